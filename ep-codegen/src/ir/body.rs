//! Roles, their statements, and expressions.

use super::canon::{Packed, ir_types};
use super::{Canon, Elem, PeerSet, Source, When};

/// The name of what an `if` with an `else` has found out. No author can write it.
pub const CONDITION: &str = "if";

ir_types! {
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
        /// One turn: an `if`, whose condition is the filter.
        Once,
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
        /// `raise tensor[..];` adds one, and tells what its warp did before.
        Raise { target: Place },
        /// `await tensor[..] >= least;`: somebody has raised it so far.
        AwaitWord { word: Place, least: Expr },
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
        /// A decimal number, as the bits of an `f32`.
        Real { bits: u32 },
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
        /// `sum(binder in domain: body)` and the like.
        Fold { fold: Fold, binder: String, domain: Box<Domain>, body: Box<Expr> },
        /// `value as elem`.
        Cast { value: Box<Expr>, elem: Elem },
        /// A binary operation.
        Binary { op: BinaryOp, left: Box<Expr>, right: Box<Expr> },
        /// `!value`.
        Not { value: Box<Expr> },
        /// `if condition { yes } else { no }`; only the value that counts is computed.
        If { condition: Box<Expr>, yes: Box<Expr>, no: Box<Expr> },
    }

    /// How a fold combines its terms.
    #[derive(Copy)]
    enum Fold {
        /// Their sum.
        Sum,
        /// The sum of those before, for each of them.
        PrefixSum,
        /// The greatest.
        Max,
        /// The least.
        Min,
    }

    /// Binary operators.
    #[derive(Copy)]
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
}

impl Expr {
    /// `left op right`
    pub fn of_two(op: BinaryOp, left: Expr, right: Expr) -> Expr {
        Expr::Binary { op, left: Box::new(left), right: Box::new(right) }
    }
}

impl BinaryOp {
    /// Whether the operation gives a number, and not a `bool`.
    pub fn is_arithmetic(&self) -> bool {
        use BinaryOp::{Add, Div, Mul, Rem, Sub};
        matches!(self, Add | Sub | Mul | Div | Rem)
    }
}
