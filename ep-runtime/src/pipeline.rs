//! What a declared pipeline is to the rest of the crate: its IR, its texts and its tables.

use std::fmt::Debug;
use std::marker::PhantomData;

use ep_codegen::ir;

/// A pipeline declared with [`pipeline!`](crate::pipeline).
pub trait Pipeline {
    /// The tables that a call leaves for later pipelines.
    type Handle: Debug + Clone + Default;

    /// Name on the command line and in file names (`nvl-dispatch`).
    const NAME: &'static str;

    /// Digest of the IR that the texts were rendered from.
    const DIGEST: u128;

    /// The declaration as data.
    fn ir() -> ir::Pipeline;

    /// The CUDA body of each choice of arms.
    fn texts() -> &'static [Text];
}

/// The CUDA body of one choice of arms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text {
    /// The chosen arm of each axis, in order of the axes.
    pub arms: &'static [&'static str],
    /// The body: all functions of the kernel, without the numbers of a shape.
    pub body: &'static str,
    /// The same with every role composed statement by statement.
    pub plain: &'static str,
}

/// A table in a handle: `RANK` extents of `E`. It is empty until a call of the pipeline whose arms
/// record it has filled the handle.
pub struct Table<E, const RANK: usize> {
    /// Device address; 0 while the table is empty.
    pub address: u64,
    /// Extents, outermost first.
    pub extents: [u64; RANK],
    elem: PhantomData<E>,
}

impl<E, const RANK: usize> Table<E, RANK> {
    /// A table at a device address.
    pub fn new(address: u64, extents: [u64; RANK]) -> Table<E, RANK> {
        Table { address, extents, elem: PhantomData }
    }
}

impl<E, const RANK: usize> Clone for Table<E, RANK> {
    fn clone(&self) -> Table<E, RANK> {
        Table::new(self.address, self.extents)
    }
}

impl<E, const RANK: usize> Default for Table<E, RANK> {
    fn default() -> Table<E, RANK> {
        Table::new(0, [0; RANK])
    }
}

impl<E, const RANK: usize> Debug for Table<E, RANK> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Table({:#x}, {:?})", self.address, self.extents)
    }
}

/// Element types of tables, as types: so that a pipeline that reads a table with another type than
/// it was declared with does not compile.
pub mod elem {
    macro_rules! markers {
        ($($name:ident: $doc:literal,)*) => {$(
            #[doc = concat!("`", $doc, "`")]
            #[derive(Debug, Clone, Copy)]
            pub enum $name {}
        )*};
    }
    markers! {
        Bool: "bool",
        U8: "u8",
        I32: "i32",
        I64: "i64",
        F32: "f32",
        Bf16: "bf16",
        E4m3: "e4m3",
        Ue8m0: "ue8m0",
        Bits: "bits[n]",
        Composite: "the parts of a variant's arm",
    }
}
