//! One definition of an IR type gives the type, its canonical text and the bytes that a program embeds, so that
//! the three cannot drift apart.

/// Writes a value as canonical text: the same value always gives the same text.
pub trait Canon {
    /// Appends the canonical text of `self` to `out`.
    fn canon(&self, out: &mut String);
}

/// Writes a value as bytes, which rustc compiles much faster than Rust code that builds the value.
pub trait Packed: Sized {
    /// Appends the bytes of `self` to `out`.
    fn pack(&self, out: &mut Vec<u8>);

    /// Reads a value from the start of `bytes`, and leaves the rest; none if the bytes are not those of a value.
    fn unpack(bytes: &mut &[u8]) -> Option<Self>;
}

/// Seven bits a byte, the lowest first.
impl Packed for u64 {
    fn pack(&self, out: &mut Vec<u8>) {
        let mut left = *self;
        while left >= 0x80 {
            out.push(left as u8 | 0x80);
            left >>= 7;
        }
        out.push(left as u8);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<u64> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (first, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

/// Small numbers of either sign take few bytes.
impl Packed for i64 {
    fn pack(&self, out: &mut Vec<u8>) {
        (((self << 1) ^ (self >> 63)) as u64).pack(out);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<i64> {
        let word = u64::unpack(bytes)?;
        Some((word >> 1) as i64 ^ -((word & 1) as i64))
    }
}

impl Packed for u32 {
    fn pack(&self, out: &mut Vec<u8>) {
        u64::from(*self).pack(out);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<u32> {
        u64::unpack(bytes)?.try_into().ok()
    }
}

impl Packed for bool {
    fn pack(&self, out: &mut Vec<u8>) {
        u64::from(*self).pack(out);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<bool> {
        match u64::unpack(bytes)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Packed for String {
    fn pack(&self, out: &mut Vec<u8>) {
        (self.len() as u64).pack(out);
        out.extend(self.as_bytes());
    }

    fn unpack(bytes: &mut &[u8]) -> Option<String> {
        let length = u64::unpack(bytes)?.try_into().ok()?;
        let (text, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

impl<T: Packed> Packed for Vec<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        (self.len() as u64).pack(out);
        self.iter().for_each(|item| item.pack(out));
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Vec<T>> {
        let count = u64::unpack(bytes)?;
        (0..count).map(|_| T::unpack(bytes)).collect()
    }
}

impl<T: Packed> Packed for Option<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        self.is_some().pack(out);
        self.iter().for_each(|value| value.pack(out));
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Option<T>> {
        match bool::unpack(bytes)? {
            true => T::unpack(bytes).map(Some),
            false => Some(None),
        }
    }
}

impl<T: Packed> Packed for Box<T> {
    fn pack(&self, out: &mut Vec<u8>) {
        (**self).pack(out);
    }

    fn unpack(bytes: &mut &[u8]) -> Option<Box<T>> {
        T::unpack(bytes).map(Box::new)
    }
}

macro_rules! plain {
    ($($ty:ty),*) => {$(
        impl Canon for $ty {
            fn canon(&self, out: &mut String) {
                out.push_str(&format!("{self:?}"));
            }
        }
    )*};
}
plain!(bool, u32, i64);

impl Canon for String {
    fn canon(&self, out: &mut String) {
        out.push_str(&format!("{self:?}"));
    }
}

impl<T: Canon> Canon for Vec<T> {
    fn canon(&self, out: &mut String) {
        out.push('[');
        for (index, item) in self.iter().enumerate() {
            if index > 0 {
                out.push(' ');
            }
            item.canon(out);
        }
        out.push(']');
    }
}

impl<T: Canon> Canon for Option<T> {
    fn canon(&self, out: &mut String) {
        match self {
            Some(value) => value.canon(out),
            None => out.push('-'),
        }
    }
}

impl<T: Canon> Canon for Box<T> {
    fn canon(&self, out: &mut String) {
        (**self).canon(out);
    }
}

/// Defines IR structs and enums (variants are units or have named fields) with [`Canon`] and [`Packed`].
macro_rules! ir_types {
    () => {};
    ($(#[$meta:meta])* struct $name:ident {
        $($(#[$fmeta:meta])* $field:ident: $ty:ty,)*
    } $($rest:tt)*) => {
        #[derive(Debug, Clone, PartialEq, Eq)]
        $(#[$meta])*
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)* }

        impl Canon for $name {
            fn canon(&self, out: &mut String) {
                out.push_str(concat!("(", stringify!($name)));
                $(out.push_str(concat!(" ", stringify!($field), "=")); self.$field.canon(out);)*
                out.push(')');
            }
        }

        impl Packed for $name {
            fn pack(&self, out: &mut Vec<u8>) {
                $(self.$field.pack(out);)*
            }

            fn unpack(bytes: &mut &[u8]) -> Option<Self> {
                Some($name { $($field: Packed::unpack(bytes)?,)* })
            }
        }

        ir_types!($($rest)*);
    };
    ($(#[$meta:meta])* enum $name:ident {
        $($(#[$vmeta:meta])* $variant:ident $({ $($field:ident: $ty:ty),* $(,)? })?,)*
    } $($rest:tt)*) => {
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "a pipeline has few of them")]
        $(#[$meta])*
        pub enum $name { $($(#[$vmeta])* $variant $({ $(
            #[allow(missing_docs, reason = "the variant's own line describes its fields")]
            $field: $ty
        ),* })?,)* }

        impl Canon for $name {
            fn canon(&self, out: &mut String) {
                match self {
                    $($name::$variant { $($($field),*)? } => {
                        out.push_str(concat!("(", stringify!($variant)));
                        $($(out.push(' '); $field.canon(out);)*)?
                        out.push(')');
                    })*
                }
            }
        }

        impl Packed for $name {
            fn pack(&self, out: &mut Vec<u8>) {
                enum Tag { $($variant),* }
                match self {
                    $($name::$variant { $($($field),*)? } => {
                        (Tag::$variant as u64).pack(out);
                        $($($field.pack(out);)*)?
                    })*
                }
            }

            fn unpack(bytes: &mut &[u8]) -> Option<Self> {
                enum Tag { $($variant),* }
                let tag = u64::unpack(bytes)?;
                $(if tag == Tag::$variant as u64 {
                    return Some($name::$variant { $($($field: Packed::unpack(bytes)?),*)? });
                })*
                None
            }
        }

        ir_types!($($rest)*);
    };
}
pub(crate) use ir_types;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_their_bytes_say() {
        fn check<T: Packed + PartialEq + std::fmt::Debug>(value: T) {
            let mut bytes = Vec::new();
            value.pack(&mut bytes);
            let mut left = &bytes[..];
            assert_eq!(T::unpack(&mut left).as_ref(), Some(&value));
            assert!(left.is_empty(), "{value:?}: {left:?}");
            assert_eq!(T::unpack(&mut &bytes[..bytes.len() - 1]), None, "{value:?} cut short");
        }
        [0, 1, -1, 63, -64, 64, i64::MAX, i64::MIN].into_iter().for_each(check);
        [0, 127, 128, u32::MAX].into_iter().for_each(check);
        check(Some(vec![String::new(), "\u{e9} \0".to_owned()]));
        check(Box::new((0..300).map(|it| it % 2 == 0).collect::<Vec<bool>>()));
        assert_eq!(bool::unpack(&mut &[2][..]), None);
        assert_eq!(u64::unpack(&mut &[0xff; 11][..]), None);
    }
}
