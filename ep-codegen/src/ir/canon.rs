//! One definition of an IR type gives the type, its canonical text and the Rust tokens that
//! rebuild it, so that the three cannot drift apart.

/// Writes a value as canonical text: the same value always gives the same text.
pub trait Canon {
    /// Appends the canonical text of `self` to `out`.
    fn canon(&self, out: &mut String);
}

/// Gives the Rust tokens that rebuild a value inside a user's crate.
#[cfg(feature = "syntax")]
pub trait Embed {
    /// Tokens of an expression whose value equals `self`.
    fn embed(&self) -> proc_macro2::TokenStream;
}

macro_rules! plain {
    ($($ty:ty),*) => {$(
        impl Canon for $ty {
            fn canon(&self, out: &mut String) {
                out.push_str(&format!("{self:?}"));
            }
        }
        #[cfg(feature = "syntax")]
        impl Embed for $ty {
            fn embed(&self) -> proc_macro2::TokenStream {
                quote::quote!(#self)
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

#[cfg(feature = "syntax")]
impl Embed for String {
    fn embed(&self) -> proc_macro2::TokenStream {
        quote::quote!(::std::string::String::from(#self))
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

#[cfg(feature = "syntax")]
impl<T: Embed> Embed for Vec<T> {
    fn embed(&self) -> proc_macro2::TokenStream {
        let items = self.iter().map(Embed::embed);
        quote::quote!(::std::vec![#(#items),*])
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

#[cfg(feature = "syntax")]
impl<T: Embed> Embed for Option<T> {
    fn embed(&self) -> proc_macro2::TokenStream {
        match self {
            Some(value) => {
                let value = value.embed();
                quote::quote!(::std::option::Option::Some(#value))
            }
            None => quote::quote!(::std::option::Option::None),
        }
    }
}

impl<T: Canon> Canon for Box<T> {
    fn canon(&self, out: &mut String) {
        (**self).canon(out);
    }
}

#[cfg(feature = "syntax")]
impl<T: Embed> Embed for Box<T> {
    fn embed(&self) -> proc_macro2::TokenStream {
        let value = (**self).embed();
        quote::quote!(::std::boxed::Box::new(#value))
    }
}

/// Defines IR structs and enums (variants are units or have named fields) with [`Canon`] and
/// `Embed`.
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

        #[cfg(feature = "syntax")]
        impl Embed for $name {
            fn embed(&self) -> proc_macro2::TokenStream {
                $(let $field = self.$field.embed();)*
                quote::quote!(::ep_runtime::__private::ir::$name { $($field: #$field),* })
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

        #[cfg(feature = "syntax")]
        impl Embed for $name {
            fn embed(&self) -> proc_macro2::TokenStream {
                match self {
                    $($name::$variant { $($($field),*)? } => {
                        $($(let $field = $field.embed();)*)?
                        quote::quote!(
                            ::ep_runtime::__private::ir::$name::$variant { $($($field: #$field),*)? }
                        )
                    })*
                }
            }
        }

        ir_types!($($rest)*);
    };
}
pub(crate) use ir_types;
