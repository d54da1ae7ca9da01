//! The syntax tree: what was written, with the place of every name.
//!
//! Nothing is resolved here. `ring[peer].first` is a field of an index of a name; only `check` and
//! `lower` know that `ring` is a channel.

mod body;
mod channel;
mod fragment;
mod place;
mod role;
pub mod visit;

use proc_macro2::TokenStream;

use crate::ir;

pub use body::{
    ChannelRef, Domain, Expr, ExprKind, FieldValue, For, Gather, Place, Stmt, StmtKind, UNNAMED,
};
pub use channel::{Channel, ChannelOption, Field, Message, OptionValue, SlotAxis};
pub use fragment::{
    Argument, Call, Fragment, FragmentBody, FragmentFile, ItemsUse, Origin, Param, ParamKind,
};
pub use place::{Excerpt, Ident, Span, TokenRange};
pub use role::{Blocks, Role, Share};

pub use crate::ir::{BinaryOp, PeerSet, TensorKind, Transport};

/// A whole `pipeline! { .. }` block.
#[derive(Debug, Clone, Default)]
pub struct File {
    /// Its pipelines in order.
    pub pipelines: Vec<Pipeline>,
    /// Its fragments in order.
    pub fragments: Vec<Fragment>,
    /// The files of fragments that it names.
    pub files: Vec<FragmentFile>,
    /// What each statement or declaration from a fragment was; see [`Span::origin`].
    pub origins: Vec<Origin>,
}

/// One `pipeline Name { .. }`.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// Lines of its doc comment.
    pub doc: Vec<String>,
    /// Visibility as written (`pub`, `pub(crate)`, or nothing).
    pub vis: TokenStream,
    /// The word `pipeline`: line 0 of every statement's number.
    pub keyword: Span,
    /// Name.
    pub name: Ident,
    /// What it declares.
    pub items: Vec<Item>,
}

/// A declaration inside a pipeline, a phase or a `when` block.
#[derive(Debug, Clone)]
pub enum Item {
    /// `shape { .. }`
    Shape(Shape),
    /// `variant name { .. }`
    Variant(Variant),
    /// `tune { .. }`
    Tune(Vec<Tune>),
    /// `arg { .. }`
    Arg(Vec<Arg>),
    /// `size name = expr;`
    Size(Size),
    /// `input ..;`, `output ..;`, `inout ..;`, `table ..;`
    Tensors(Tensors),
    /// `message Name { .. }`
    Message(Message),
    /// `channel name: ..;`
    Channel(Box<Channel>),
    /// `role Name .. { .. }`
    Role(Role),
    /// `phase name { .. }`
    Phase(Phase),
    /// `when axis is Arm { .. }`
    When(When<Item>),
    /// `uses handle Name;`
    Uses(Uses),
    /// `cuda fn ..;`
    CudaFn(CudaFn),
    /// `use name;`; after the fragments are expanded there is none.
    Use(ItemsUse),
}

/// An integer literal, with a minus sign where one is allowed.
#[derive(Debug, Clone)]
pub struct Int {
    /// Value.
    pub value: i64,
    /// The literal.
    pub span: Span,
}

/// A number literal, whole or decimal, with a minus sign where one is allowed.
#[derive(Debug, Clone)]
pub struct Number {
    /// Value.
    pub value: ir::Number,
    /// The literal.
    pub span: Span,
}

/// `shape { .. }`
#[derive(Debug, Clone)]
pub struct Shape {
    /// The word `shape`.
    pub keyword: Span,
    /// Entries in order.
    pub entries: Vec<ShapeEntry>,
}

/// An entry of a `shape`.
#[derive(Debug, Clone)]
pub enum ShapeEntry {
    /// `name: low..=high step n`
    Given {
        /// Name.
        name: Ident,
        /// Least value.
        low: Int,
        /// Greatest value.
        high: Int,
        /// Distance of legal values, 1 when not written.
        step: Option<Int>,
        /// The entry.
        source: Excerpt,
    },
    /// `let name = value`
    Derived {
        /// Name.
        name: Ident,
        /// Formula over names of the shape.
        value: Expr,
        /// The entry.
        source: Excerpt,
    },
    /// `require condition`
    Require {
        /// Condition over names of the shape and tunes.
        condition: Expr,
        /// The entry.
        source: Excerpt,
    },
}

/// `variant name { Arm { part: elem block n }, .. }`
#[derive(Debug, Clone)]
pub struct Variant {
    /// Name of the axis.
    pub name: Ident,
    /// Arms.
    pub arms: Vec<Arm>,
    /// The head.
    pub source: Excerpt,
}

/// An arm of a variant.
#[derive(Debug, Clone)]
pub struct Arm {
    /// Name.
    pub name: Ident,
    /// Parts, if the axis is used as an element type.
    pub parts: Vec<Part>,
}

/// `part: elem block n`
#[derive(Debug, Clone)]
pub struct Part {
    /// Name.
    pub name: Ident,
    /// Element type.
    pub elem: Elem,
    /// Elements of the row that share one value.
    pub block: Option<Int>,
}

/// `name: default in [choices]`
#[derive(Debug, Clone)]
pub struct Tune {
    /// Name.
    pub name: Ident,
    /// Default.
    pub default: Int,
    /// Legal values.
    pub choices: Vec<Int>,
    /// The entry.
    pub source: Excerpt,
}

/// `name: elem = default in low..=high`
#[derive(Debug, Clone)]
pub struct Arg {
    /// Name.
    pub name: Ident,
    /// Element type.
    pub elem: Elem,
    /// Default.
    pub default: Number,
    /// Least value.
    pub low: Number,
    /// Greatest value.
    pub high: Number,
    /// The entry.
    pub source: Excerpt,
}

/// `size name = value;`
#[derive(Debug, Clone)]
pub struct Size {
    /// Name.
    pub name: Ident,
    /// `None`: given by the caller.
    pub value: Option<Expr>,
    /// `in low..high`: what the caller may give.
    pub values: Option<Values>,
    /// The declaration.
    pub source: Excerpt,
}

/// `input a: .., b: ..;` and the like.
#[derive(Debug, Clone)]
pub struct Tensors {
    /// Which word.
    pub kind: TensorKind,
    /// The word.
    pub keyword: Span,
    /// The tensors.
    pub list: Vec<Tensor>,
}

/// One tensor.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Name.
    pub name: Ident,
    /// The word `optional`.
    pub optional: Option<Span>,
    /// `up to n`
    pub up_to: Option<Int>,
    /// Element type.
    pub elem: Elem,
    /// Extents, outermost first.
    pub dims: Vec<Expr>,
    /// `in window`: span of `window`.
    pub window: Option<Span>,
    /// `to host`: span of `host`.
    pub host: Option<Span>,
    /// `fill n beyond size`
    pub fill: Option<Fill>,
    /// `in low..high`
    pub values: Option<Values>,
    /// The tensor's part of the declaration.
    pub source: Excerpt,
}

/// `in low..high [ascending [by at most step]] [distinct]`: the values that a tensor may hold.
#[derive(Debug, Clone)]
pub struct Values {
    /// Least value.
    pub low: Expr,
    /// The end: behind the greatest value, or the greatest itself.
    pub high: Expr,
    /// `..=`
    pub inclusive: bool,
    /// The word `ascending`.
    pub ascending: Option<Span>,
    /// `by at most step`
    pub step: Option<Expr>,
    /// The word `distinct`.
    pub distinct: Option<Span>,
    /// From `in` to the end.
    pub at: TokenRange,
}

/// `fill value beyond size`
#[derive(Debug, Clone)]
pub struct Fill {
    /// Value.
    pub value: Int,
    /// The size.
    pub beyond: Ident,
}

/// An element type as written.
#[derive(Debug, Clone)]
pub enum Elem {
    /// A name: a scalar type or an axis.
    Name(Ident),
    /// `bits[count]`
    Bits {
        /// The word `bits`.
        keyword: Span,
        /// Number of bits.
        count: Box<Expr>,
    },
}

impl Elem {
    /// The word that names it.
    pub fn span(&self) -> Span {
        match self {
            Elem::Name(name) => name.span(),
            Elem::Bits { keyword, .. } => *keyword,
        }
    }
}

/// A word of a closed list (`ring`, `nvlink`, `all`) that `check` or the parser has accepted.
#[derive(Debug, Clone)]
pub struct Word<T> {
    /// Meaning.
    pub value: T,
    /// Where.
    pub span: Span,
}

/// `phase name { .. }`
#[derive(Debug, Clone)]
pub struct Phase {
    /// The word `phase`.
    pub keyword: Span,
    /// Name.
    pub name: Ident,
    /// What it holds; `check` allows roles and `when` only.
    pub items: Vec<Item>,
}

/// `when axis is A | B { .. }`
#[derive(Debug, Clone)]
pub struct When<T> {
    /// The word `when`.
    pub keyword: Span,
    /// Axis.
    pub axis: Ident,
    /// Arms.
    pub arms: Vec<Ident>,
    /// What it guards.
    pub body: Vec<T>,
}

/// `uses handle path::Name;` or `uses handle path::Name { table: elem[dims], .. };`
#[derive(Debug, Clone)]
pub struct Uses {
    /// The whole path; one segment when the pipeline is in the same block.
    pub path: Vec<Ident>,
    /// The pipeline, the last segment.
    pub name: Ident,
    /// The tables that are read, with their types; `None`: those of a pipeline in this block.
    pub tables: Option<Vec<Tensor>>,
    /// The declaration.
    pub source: Excerpt,
}

/// `cuda fn name(param: elem, ..) -> elem = r"..";` or `.. from "file.cuh";`
#[derive(Debug, Clone)]
pub struct CudaFn {
    /// Name.
    pub name: Ident,
    /// Parameters.
    pub params: Vec<CudaParam>,
    /// Result.
    pub returns: Elem,
    /// C++ text.
    pub body: CudaBody,
    /// The declaration without its text.
    pub source: Excerpt,
}

/// A parameter of a [`CudaFn`].
#[derive(Debug, Clone)]
pub struct CudaParam {
    /// Name.
    pub name: Ident,
    /// Type.
    pub elem: Elem,
}

/// Where the C++ text of a [`CudaFn`] is.
#[derive(Debug, Clone)]
pub enum CudaBody {
    /// `= r"text"`
    Text {
        /// The text.
        text: String,
        /// The literal.
        span: Span,
    },
    /// `from "file"`
    File {
        /// Path relative to the declaring crate.
        path: String,
        /// What the file holds; empty until `cuda_fn::load` has read it.
        text: String,
        /// The literal.
        span: Span,
    },
}
