//! What a pipeline declares around its roles.

use super::canon::{Packed, ir_types};
use super::{Canon, Channel, Expr, Message, Role};

ir_types! {
    /// One declared pipeline.
    struct Pipeline {
        /// Name as declared, in upper camel case.
        name: String,
        /// The declaration's doc comment, a line each.
        doc: Vec<String>,
        /// Shape numbers in order of declaration, derived ones after what they use.
        dims: Vec<Dim>,
        /// Conditions that every legal shape meets.
        requires: Vec<Require>,
        /// Structural choices.
        axes: Vec<Axis>,
        /// Numbers that have a default and a list of allowed values.
        tunes: Vec<Tune>,
        /// Run-time numbers of a call.
        args: Vec<Arg>,
        /// Row counts known only at run time (`tokens`, `received`).
        sizes: Vec<Size>,
        /// Pipelines whose handle this one reads.
        uses: Vec<String>,
        /// Inputs, outputs and tables.
        tensors: Vec<Tensor>,
        /// Message layouts.
        messages: Vec<Message>,
        /// Channels.
        channels: Vec<Channel>,
        /// Roles in order of declaration.
        roles: Vec<Role>,
        /// Device functions of the user.
        cuda_fns: Vec<CudaFn>,
    }

    /// Where a statement stands: its line relative to the `pipeline` line, and its words.
    struct Source {
        /// Lines below the `pipeline` keyword.
        line: u32,
        /// The statement as declared, white space folded, no trailing `{ .. }` block.
        text: String,
    }

    /// A condition `axis is A | B`; an item is kept when all its conditions hold.
    struct When {
        /// Name of the axis.
        axis: String,
        /// Arms for which the item exists.
        arms: Vec<String>,
    }

    /// A number of the shape.
    struct Dim {
        /// Name.
        name: String,
        /// Range, or the formula of a derived name.
        kind: DimKind,
        /// Where it was declared.
        at: Source,
    }

    /// How a [`Dim`] gets its value.
    enum DimKind {
        /// Given by the user, `low..=high step step`.
        Given { low: i64, high: i64, step: i64 },
        /// Computed from earlier dims.
        Derived { value: Expr },
    }

    /// A condition on the shape, checked by the plan.
    struct Require {
        /// The condition over dims and tunes.
        condition: Expr,
        /// Where it holds.
        when: Vec<When>,
        /// Where it was declared.
        at: Source,
    }

    /// A structural axis.
    struct Axis {
        /// Name, as in `--set name=arm`.
        name: String,
        /// Arms; the first one is the default.
        arms: Vec<Arm>,
    }

    /// One arm of an [`Axis`].
    struct Arm {
        /// Name in upper camel case.
        name: String,
        /// Components when the axis is used as an element type (`payload[tokens, hidden]`).
        parts: Vec<Part>,
    }

    /// A component of a composite element: the row itself, or one scale per block of it.
    struct Part {
        /// Name (`x`, `scale`).
        name: String,
        /// Element type.
        elem: Elem,
        /// Elements of the row that share one value; 1 for the row itself.
        block: i64,
    }

    /// A number with a default that the user may override within a list.
    struct Tune {
        /// Name.
        name: String,
        /// Default value.
        default: i64,
        /// Allowed values, ascending.
        choices: Vec<i64>,
        /// Guard.
        when: Vec<When>,
        /// Where it was declared.
        at: Source,
    }

    /// A number that an arg may have.
    #[derive(Copy)]
    enum Number {
        /// A whole one.
        Whole { value: i64 },
        /// One of an `f32`, by its bits.
        Real { bits: u32 },
    }

    /// A run-time number: never part of the text.
    struct Arg {
        /// Name.
        name: String,
        /// Element type.
        elem: Elem,
        /// Value when the caller gives none.
        default: Number,
        /// Least allowed value.
        low: Number,
        /// Greatest allowed value.
        high: Number,
        /// Guard.
        when: Vec<When>,
    }

    /// A row count known only at run time.
    struct Size {
        /// Name.
        name: String,
        /// `None`: given by the caller at each call. `Some`: read on the device.
        value: Option<Expr>,
        /// What the caller may give, if the declaration says so.
        values: Option<Values>,
        /// Where it was declared.
        at: Source,
    }

    /// Scalar element types.
    enum Elem {
        /// `bool`, one byte.
        Bool,
        /// `u8`.
        U8,
        /// `i8`
        I8,
        /// `i32`.
        I32,
        /// `i64`.
        I64,
        /// `f32`.
        F32,
        /// `bf16`.
        Bf16,
        /// `e4m3`, 8 bits.
        E4m3,
        /// `ue8m0`, 8-bit power of two.
        Ue8m0,
    }

    /// Element type of a tensor or field.
    enum ElemType {
        /// A scalar.
        Scalar { elem: Elem },
        /// The parts of an axis' chosen arm.
        OfAxis { axis: String },
        /// `bits[n]`: one bit per index, packed in a u64.
        Bits { count: Expr },
    }

    /// What a tensor is to the pipeline.
    #[derive(Copy)]
    enum TensorKind {
        /// Read only.
        Input,
        /// Written only.
        Output,
        /// Read and written.
        Inout,
        /// Written for a later pipeline, or read from the handle of an earlier one.
        Table,
    }

    /// Where a tensor lives.
    enum Memory {
        /// Ordinary device memory.
        Device,
        /// The group's symmetric window: peers may reach it; rows are padded to 128 bytes.
        Window,
        /// Host memory mapped into the device.
        Host,
    }

    /// An input, output or table.
    struct Tensor {
        /// Name.
        name: String,
        /// What it is to the pipeline.
        kind: TensorKind,
        /// For a table read through a handle: the pipeline that records it.
        from_handle: Option<String>,
        /// Element type.
        elem: ElemType,
        /// Extents, outermost first.
        dims: Vec<Expr>,
        /// May be absent (a number that may be 0).
        optional: bool,
        /// How many of them (`up to 2`); 1 for an ordinary tensor.
        copies: i64,
        /// Where it lives.
        memory: Memory,
        /// Value of the rows beyond a run-time size, if asked for.
        fill: Option<i64>,
        /// The values that it may hold, if the declaration says so.
        values: Option<Values>,
        /// Guard.
        when: Vec<When>,
        /// Where it was declared.
        at: Source,
    }

    /// The whole numbers that an input may hold, or a size may be.
    struct Values {
        /// Least value.
        low: Expr,
        /// The end behind the greatest value.
        high: Expr,
        /// Rows do not fall, and go from the first value to the last.
        ascending: bool,
        /// How far one value of an ascending row is from the next, at most.
        step: Option<Expr>,
        /// No value but -1 stands twice in a row.
        distinct: bool,
    }

    /// A device function of the user, called per row.
    struct CudaFn {
        /// Name.
        name: String,
        /// Parameters as (name, type) in C++ order.
        params: Vec<CudaParam>,
        /// Return type.
        returns: Elem,
        /// C++ text of the definition.
        body: String,
    }

    /// A parameter of a [`CudaFn`].
    struct CudaParam {
        /// Name.
        name: String,
        /// Type.
        elem: Elem,
    }
}
