//! Element types of tensors, as Rust types: reading a table with another type than the declared one does
//! not compile.

use std::fmt::Debug;

use ep_codegen::ir::Elem;

use crate::bf16::{bf16_from_f32, bf16_to_f32};

/// A value that tensors are made of.
pub trait Element: Copy + Debug + 'static {
    /// Its type in a declaration.
    const ELEM: &'static Elem;

    /// Bytes in memory.
    const BYTES: usize;

    /// Writes its bytes; `to` holds as many.
    fn store(self, to: &mut [u8]);

    /// The value of these bytes.
    fn load(from: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($name:ty: $elem:ident,)*) => {$(
        impl Element for $name {
            const ELEM: &'static Elem = &Elem::$elem;
            const BYTES: usize = size_of::<$name>();

            fn store(self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_le_bytes());
            }

            fn load(from: &[u8]) -> $name {
                let mut bytes = [0; size_of::<$name>()];
                bytes.copy_from_slice(from);
                <$name>::from_le_bytes(bytes)
            }
        }
    )*};
}
numbers! {
    u8: U8,
    i8: I8,
    i32: I32,
    i64: I64,
    f32: F32,
}

impl Element for bool {
    const ELEM: &'static Elem = &Elem::Bool;
    const BYTES: usize = 1;

    fn store(self, to: &mut [u8]) {
        u8::from(self).store(to);
    }

    fn load(from: &[u8]) -> bool {
        u8::load(from) != 0
    }
}

macro_rules! codes {
    ($($name:ident($bits:ty): $elem:ident, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $bits);

        impl Element for $name {
            const ELEM: &'static Elem = &Elem::$elem;
            const BYTES: usize = size_of::<$bits>();

            fn store(self, to: &mut [u8]) {
                to.copy_from_slice(&self.0.to_le_bytes());
            }

            fn load(from: &[u8]) -> $name {
                let mut bytes = [0; size_of::<$bits>()];
                bytes.copy_from_slice(from);
                $name(<$bits>::from_le_bytes(bytes))
            }
        }
    )*};
}
codes! {
    Bf16(u16): Bf16, "The bits of a `bf16`.";
    E4m3(u8): E4m3, "The bits of an `e4m3`.";
    Ue8m0(u8): Ue8m0, "The bits of a `ue8m0`: an exponent.";
    Bits(u64): I64, "64 bits of a `bits[n]`.";
}

/// The parts of a variant's arm, which have no single type.
#[derive(Debug, Clone, Copy)]
pub enum Composite {}

impl From<f32> for Bf16 {
    /// The nearest one, ties to even.
    fn from(value: f32) -> Bf16 {
        Bf16(bf16_from_f32(value))
    }
}

impl From<Bf16> for f32 {
    fn from(value: Bf16) -> f32 {
        bf16_to_f32(value.0)
    }
}
