//! The intermediate representation: a checked declaration as plain data.
//!
//! Names are resolved, nothing is decided: no sizes, no threads, no CUDA. A [`Pipeline`] still
//! holds every arm of its variants; [`Pipeline::select`] keeps what one choice of arms leaves.

mod canon;
pub mod counting;
pub mod facts;
pub mod helpers;
pub mod naming;
pub mod params;
pub mod parts;
pub mod rows;
mod select;
pub mod text;
pub mod walk;

pub use canon::Canon;
#[cfg(feature = "syntax")]
pub use canon::Embed;
use canon::ir_types;
pub use select::Choice;

/// Policies of the checker that a channel may waive: rules about its memory that go beyond the text
/// of the PTX memory model.
pub const POLICIES: [&str; 2] = ["load_fence", "credit_fence"];

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

    /// A run-time number: never part of the text.
    struct Arg {
        /// Name.
        name: String,
        /// Element type.
        elem: Elem,
        /// Value when the caller gives none.
        default: i64,
        /// Least allowed value.
        low: i64,
        /// Greatest allowed value.
        high: i64,
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

    /// The layout of what travels through a channel.
    struct Message {
        /// Name.
        name: String,
        /// Fields in order.
        fields: Vec<Field>,
        /// Guard.
        when: Vec<When>,
        /// Where it was declared.
        at: Source,
    }

    /// A field of a message.
    struct Field {
        /// Name.
        name: String,
        /// `row` field: moved in pieces by the mover; all others form the meta record.
        row: bool,
        /// Element type.
        elem: ElemType,
        /// Extents; empty for a scalar.
        dims: Vec<Expr>,
        /// The optional tensor whose absence makes this field empty.
        optional_with: Option<String>,
    }

    /// How a channel stores messages.
    enum ChannelKind {
        /// Ring with head and tail.
        Ring,
        /// Fixed place per index, counted or flagged.
        Slots,
        /// Rows land in the receiver's output.
        Direct,
        /// The consumer reads the producer's tensor in the window.
        Pull,
    }

    /// What carries a channel.
    enum Transport {
        /// Peer pointers.
        Nvlink,
        /// CPU-posted network writes.
        Rdma,
        /// GPU-posted network writes.
        Ibgda,
    }

    /// Which peers a channel joins.
    enum PeerSet {
        /// Every rank, this one included.
        All,
        /// Every other rank.
        Others,
        /// The ranks of this node.
        Local,
        /// The rank with this local index on every node.
        Rail,
    }

    /// A named number of a channel (`depth`, `chunk`, `epochs`).
    struct ChannelOption {
        /// Name.
        name: String,
        /// Value over dims and tunes.
        value: Expr,
    }

    /// A policy of the checker that a channel need not keep.
    struct Waiver {
        /// Name: one of [`POLICIES`].
        policy: String,
        /// Why, in the words of the declaration.
        reason: String,
    }

    /// A channel.
    struct Channel {
        /// Name.
        name: String,
        /// Kind.
        kind: ChannelKind,
        /// Message it carries.
        message: String,
        /// Transports; more than one: the network one is chosen at run time.
        over: Vec<Transport>,
        /// Producing roles: one, or several whose peers do not meet.
        from: Vec<String>,
        /// Consuming role.
        to: String,
        /// Peers it joins.
        per: PeerSet,
        /// Rings kept apart by one more index (`one part per node`).
        parts_per: Option<String>,
        /// Names of a slot's indices (`slot: [expert: local_experts, source]`).
        slot_names: Vec<String>,
        /// Extents of a slot's indices, in the same order; `source` has that of the peer set.
        slot: Vec<Expr>,
        /// Names announced once per (stripe, peer).
        header: Vec<String>,
        /// Options in order of name.
        options: Vec<ChannelOption>,
        /// What is waived here, if anything is.
        waiver: Option<Waiver>,
        /// Guard.
        when: Vec<When>,
        /// Where it was declared.
        at: Source,
    }

    /// Blocks a role runs on.
    enum Blocks {
        /// All of them.
        All,
        /// Even block numbers.
        Even,
        /// Odd block numbers.
        Odd,
        /// `low..high`, either end may be an expression over dims, tunes and args.
        Range { low: Expr, high: Expr },
        /// Those that no `Range` role names.
        Other,
        /// The one that is done last, when all other roles are.
        Last,
    }

    /// What the warps of a role share among them.
    enum Share {
        /// `Role[peer]`: the block takes stripes in turn, its warps split over the peers.
        Peer { binder: String, set: PeerSet },
        /// Each warp of the grid takes whole stripes in turn.
        Stripe,
        /// The block takes stripes in turn, its warps take tokens in turn.
        Token,
        /// Each warp of the grid takes (source, stripe) pairs in turn.
        SourceStripe,
        /// Each warp of the grid takes one value of each named index in turn.
        Indices { names: Vec<String> },
        /// Each block of the grid takes a token in turn.
        BlockPerToken,
        /// The whole role is one team: work is spread over its threads.
        Team,
    }

    /// A warp role.
    struct Role {
        /// Name in upper camel case.
        name: String,
        /// The phase it belongs to, if the pipeline has phases.
        phase: Option<String>,
        /// Blocks it runs on.
        blocks: Blocks,
        /// Warps per block; `None`: the plan chooses.
        warps: Option<Expr>,
        /// How its warps share the work.
        share: Share,
        /// Body.
        body: Vec<Stmt>,
        /// Guard.
        when: Vec<When>,
        /// Where it was declared.
        at: Source,
    }

    /// What a loop runs over.
    enum Domain {
        /// The tokens of this rank, all of them.
        Tokens,
        /// The tokens of the current stripe.
        Stripe,
        /// `0..dim` for a named dim (`ranks`, `experts`, `stripes`).
        Dim { name: String },
        /// The peers of a set.
        Peers { set: PeerSet },
        /// The values of a tensor row (`topk_idx[token]`); absent (-1) entries are skipped.
        Row { row: Expr },
        /// The received rows that came from a peer in the current stripe.
        ReceivedFrom { peer: Expr },
        /// A range of numbers.
        Range { low: Expr, high: Expr },
    }

    /// A field's value in a `push`.
    struct FieldValue {
        /// Field name.
        name: String,
        /// Value.
        value: Expr,
    }

    /// A statement.
    struct Stmt {
        /// What it does.
        action: Action,
        /// Guard.
        when: Vec<When>,
        /// Where it stands.
        at: Source,
    }

    /// The actions and loops of the language.
    enum Action {
        /// `for binder in domain at position where filter { body }`. Inside a loop over a stripe each
        /// value of `domain` has positions of its own: the first is `position`, every turn takes one.
        For {
            binder: String,
            domain: Domain,
            position: Option<Expr>,
            filter: Option<Expr>,
            body: Vec<Stmt>,
        },
        /// `for message in channel[peer] at position where filter { body }`.
        Receive {
            binder: String,
            channel: String,
            peer: Option<Expr>,
            position: Option<Expr>,
            filter: Option<Expr>,
            body: Vec<Stmt>,
        },
        /// `for binder in domain gather part from channel[across] at position across set { body }`.
        Gather {
            binder: String,
            domain: Domain,
            part: String,
            channel: String,
            peer: Option<Expr>,
            position: Expr,
            across: String,
            over: Domain,
            body: Vec<Stmt>,
        },
        /// `announce channel[peer] { first: .., count: .. };`.
        Announce { channel: String, peer: Expr, values: Vec<FieldValue> },
        /// `push channel[peer] at position { field: value };`.
        Push { channel: String, peer: Option<Expr>, position: Option<Expr>, values: Vec<FieldValue> },
        /// `store tensor[..] = value;`.
        Store { target: Place, value: Expr },
        /// `record table[..] = value;`.
        Record { target: Place, value: Expr },
        /// `count tensor[..];` adds one.
        Count { target: Place },
        /// `add tensor[..] = value;`.
        Add { target: Place, value: Expr },
        /// `let name = value;`.
        Let { name: String, value: Expr },
        /// `await channel;`: all messages of this epoch have landed.
        Await { channel: String },
        /// `close channel;`: counts follow the rows.
        Close { channel: String },
    }

    /// A tensor element or row that is written.
    struct Place {
        /// Tensor.
        tensor: String,
        /// Indices; fewer than the rank of the tensor name a row.
        indices: Vec<Expr>,
    }

    /// What a bare name stands for.
    enum NameKind {
        /// A dim of the shape.
        Dim,
        /// A tune.
        Tune,
        /// A run-time arg.
        Arg,
        /// A run-time size.
        Size,
        /// A loop or role binder, or a `let`.
        Binder,
        /// `me`: this rank.
        Me,
        /// `stripe`: the current stripe.
        Stripe,
    }

    /// An expression; all names are resolved.
    enum Expr {
        /// An integer.
        Int { value: i64 },
        /// `true` or `false`.
        Bool { value: bool },
        /// A name.
        Name { name: String, kind: NameKind },
        /// `tensor[i, j]`: an element, or a row when indices are missing.
        Element { tensor: String, indices: Vec<Expr> },
        /// `message.field` of the message or part bound by `of`.
        Field { of: String, field: String, indices: Vec<Expr> },
        /// `channel[source].field[..]` after an `await`, or `channel[peer].position`/header names.
        OfChannel { channel: String, index: Vec<Expr>, field: String, indices: Vec<Expr> },
        /// A helper of the table in `ir::helpers`.
        Call { helper: String, args: Vec<Expr> },
        /// `sum(binder in domain: body)` or `prefix_sum(..)`.
        Fold { prefix: bool, binder: String, domain: Box<Domain>, body: Box<Expr> },
        /// `value as elem`.
        Cast { value: Box<Expr>, elem: Elem },
        /// A binary operation.
        Binary { op: BinaryOp, left: Box<Expr>, right: Box<Expr> },
        /// `!value`.
        Not { value: Box<Expr> },
    }

    /// Binary operators.
    enum BinaryOp {
        /// `+`
        Add,
        /// `-`
        Sub,
        /// `*`
        Mul,
        /// `/`
        Div,
        /// `%`
        Rem,
        /// `==`
        Eq,
        /// `!=`
        Ne,
        /// `<`
        Lt,
        /// `<=`
        Le,
        /// `>`
        Gt,
        /// `>=`
        Ge,
        /// `&&`
        And,
        /// `||`
        Or,
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

impl Pipeline {
    /// Canonical text; equal IR gives equal text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.canon(&mut out);
        out
    }

    /// The channel of this name, and the message that it carries.
    pub fn carried(&self, channel: &str) -> Option<(&Channel, &Message)> {
        let channel = self.channels.iter().find(|known| known.name == channel)?;
        let message = self.messages.iter().find(|message| message.name == channel.message)?;
        Some((channel, message))
    }

    /// FNV-1a, 128 bits, of the canonical text: embedded by the macro, compared at run time.
    pub fn digest(&self) -> u128 {
        crate::digest::fnv128(self.text().as_bytes())
    }
}
