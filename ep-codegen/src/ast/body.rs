//! Statements and expressions.

use super::{Call, Excerpt, Ident, Span, TokenRange, When};
use crate::ir::{BinaryOp, WellKnown};

/// A statement.
#[derive(Debug, Clone)]
pub struct Stmt {
    /// What it says.
    pub kind: StmtKind,
    /// The first word.
    pub keyword: Span,
    /// The statement, without its block.
    pub source: Excerpt,
}

/// The statements.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a declaration has few of them")]
pub enum StmtKind {
    /// `for binder in ..` of any form.
    For(For),
    /// `announce channel[peer] { .. };`
    Announce {
        /// Channel and peer.
        channel: ChannelRef,
        /// Values.
        values: Vec<FieldValue>,
    },
    /// `push channel[peer] at position { .. };`
    Push {
        /// Channel and peer.
        channel: ChannelRef,
        /// `at position`, or `at [i, j]`.
        position: Vec<Expr>,
        /// Values.
        values: Vec<FieldValue>,
        /// `..message`
        rest: Option<Ident>,
    },
    /// `store place = value;`
    Store {
        /// Place.
        place: Place,
        /// Value.
        value: Expr,
    },
    /// `record place = value;`
    Record {
        /// Place.
        place: Place,
        /// Value.
        value: Expr,
    },
    /// `add place = value;`
    Add {
        /// Place.
        place: Place,
        /// Value.
        value: Expr,
    },
    /// `count place;`
    Count {
        /// Place.
        place: Place,
    },
    /// `raise place;`
    Raise {
        /// Place.
        place: Place,
    },
    /// `await place >= least;`
    AwaitWord {
        /// Place.
        place: Place,
        /// What it has to come to.
        least: Expr,
    },
    /// `let name = value;`
    Let {
        /// Name.
        name: Ident,
        /// Value.
        value: Expr,
    },
    /// `await channel;`
    Await {
        /// Channel.
        channel: Ident,
    },
    /// `close channel;`
    Close {
        /// Channel.
        channel: Ident,
    },
    /// `when axis is Arm { .. }`
    When(When<Stmt>),
    /// `fragment(argument, ..);`; after the fragments are expanded there is none.
    Call(Call),
}

/// `channel` or `channel[i, j]`
#[derive(Debug, Clone)]
pub struct ChannelRef {
    /// Channel.
    pub name: Ident,
    /// Indices; empty when none are written.
    pub indices: Vec<Expr>,
}

/// `tensor[i, j]` as a target.
#[derive(Debug, Clone)]
pub struct Place {
    /// Tensor.
    pub tensor: Ident,
    /// Indices; empty when none are written.
    pub indices: Vec<Expr>,
}

/// `field: value`
#[derive(Debug, Clone)]
pub struct FieldValue {
    /// Field.
    pub name: Ident,
    /// Value.
    pub value: Expr,
}

/// `for binder in domain at position where filter gather .. { .. }`
///
/// A loop over messages when `domain` is [`Domain::Expr`] whose root names a channel.
#[derive(Debug, Clone)]
pub struct For {
    /// Binder.
    pub binder: Ident,
    /// What it runs over.
    pub domain: Domain,
    /// `at position`: of a loop over messages.
    pub position: Option<Expr>,
    /// `where filter`
    pub filter: Option<Expr>,
    /// `gather ..`
    pub gather: Option<Gather>,
    /// Body.
    pub body: Vec<Stmt>,
}

impl For {
    /// Of `for peer in ranks where peer != me && ..`, which is a loop over `others`: the rest of its
    /// conditions, in order. `None`: it is another loop.
    pub fn conditions_of_others(&self) -> Option<Vec<&Expr>> {
        let Domain::Expr(Expr { kind: ExprKind::Name(name), .. }) = &self.domain else {
            return None;
        };
        if !WellKnown::Ranks.is(name) || self.position.is_some() || self.gather.is_some() {
            return None;
        }
        let mut conditions = Vec::new();
        self.filter.as_ref()?.conditions(&mut conditions);
        let all = conditions.len();
        conditions.retain(|condition| !condition.is_other_than_me(&self.binder));
        (conditions.len() < all).then_some(conditions)
    }
}

/// `gather part from channel[peer] at position across peer in domain`
#[derive(Debug, Clone)]
pub struct Gather {
    /// The word `gather`.
    pub keyword: Span,
    /// Binder of the gathered part.
    pub part: Ident,
    /// Channel and index.
    pub channel: ChannelRef,
    /// `at position`, or `at [i, j]`.
    pub position: Vec<Expr>,
    /// Binder of the axis.
    pub across: Ident,
    /// The axis.
    pub over: Domain,
}

/// What a loop or fold runs over.
#[derive(Debug, Clone)]
pub enum Domain {
    /// `tokens`, `stripe`, `ranks`, `others`, `topk_idx[token]`, `ring[peer]`, ..
    Expr(Expr),
    /// `low..high`
    Range {
        /// First value.
        low: Expr,
        /// One past the last value.
        high: Expr,
    },
    /// One turn, whose filter is the condition of an `if`.
    Once {
        /// The word `if` or `else`.
        keyword: Span,
    },
}

/// The binder of an `if`. No author can write it.
pub const UNNAMED: &str = "_";

impl Domain {
    /// Where it stands.
    pub fn extent(&self) -> TokenRange {
        match self {
            Domain::Expr(expr) => expr.at,
            Domain::Range { low, high } => low.at.to(high),
            Domain::Once { keyword } => (*keyword).into(),
        }
    }

    /// Whether a loop may have more than one turn: `0..1` has one.
    pub fn has_turns(&self) -> bool {
        match self {
            Domain::Range { low, high } => match (&low.kind, &high.kind) {
                (ExprKind::Int(low), ExprKind::Int(high)) => (*high).saturating_sub(*low) > 1,
                _ => true,
            },
            Domain::Expr(_) => true,
            Domain::Once { .. } => false,
        }
    }
}

/// An expression.
#[derive(Debug, Clone)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// Where it stands.
    pub at: TokenRange,
}

impl Expr {
    /// Appends the sides of a chain of `&&`, in order; any other expression is a chain of one.
    fn conditions<'a>(&'a self, out: &mut Vec<&'a Expr>) {
        match &self.kind {
            ExprKind::Binary { op: BinaryOp::And, left, right, .. } => {
                left.conditions(out);
                right.conditions(out);
            }
            _ => out.push(self),
        }
    }

    /// Whether this is `binder != me`, or `me != binder`.
    fn is_other_than_me(&self, binder: &Ident) -> bool {
        let ExprKind::Binary { op: BinaryOp::Ne, left, right, .. } = &self.kind else {
            return false;
        };
        let (ExprKind::Name(left), ExprKind::Name(right)) = (&left.kind, &right.kind) else {
            return false;
        };
        (left == binder && right == "me") || (left == "me" && right == binder)
    }
}

/// The expressions.
#[derive(Debug, Clone)]
pub enum ExprKind {
    /// An integer.
    Int(i64),
    /// A decimal number.
    Real(f32),
    /// `true`, `false`
    Bool(bool),
    /// A name, `me` and `stripe` included.
    Name(Ident),
    /// `base[i, j]`
    Index {
        /// What is indexed.
        base: Box<Expr>,
        /// Indices.
        indices: Vec<Expr>,
    },
    /// `base.field`
    Field {
        /// What has the field.
        base: Box<Expr>,
        /// Field.
        field: Ident,
    },
    /// `helper(args)`
    Call {
        /// Helper or `cuda fn`.
        helper: Ident,
        /// Arguments.
        args: Vec<Expr>,
    },
    /// `sum(binder in domain: body)`
    Fold {
        /// The word `sum` or `prefix_sum`.
        helper: Ident,
        /// Binder.
        binder: Ident,
        /// Domain.
        domain: Box<Domain>,
        /// Body.
        body: Box<Expr>,
    },
    /// `value as elem`
    Cast {
        /// Value.
        value: Box<Expr>,
        /// Element type.
        elem: Ident,
    },
    /// `!value`
    Not {
        /// Value.
        value: Box<Expr>,
    },
    /// `-value`
    Neg {
        /// Value.
        value: Box<Expr>,
    },
    /// `if condition { yes } else { no }`
    If {
        /// The condition.
        condition: Box<Expr>,
        /// The value where it holds.
        yes: Box<Expr>,
        /// The value where it does not.
        no: Box<Expr>,
    },
    /// `left op right`
    Binary {
        /// Operator.
        op: BinaryOp,
        /// The operator's first character.
        op_span: Span,
        /// Left side.
        left: Box<Expr>,
        /// Right side.
        right: Box<Expr>,
    },
}
