//! Messages and channels.

use super::{Elem, Excerpt, Expr, Ident, Span, Word};
use crate::ir::{ChannelKind, PeerSet, Transport};

/// `message Name { .. }`
#[derive(Debug, Clone)]
pub struct Message {
    /// Name.
    pub name: Ident,
    /// Fields.
    pub fields: Vec<Field>,
    /// The head.
    pub source: Excerpt,
}

/// `row name: elem[dims] with tensor`
#[derive(Debug, Clone)]
pub struct Field {
    /// The word `row`: the bulk field.
    pub row: Option<Span>,
    /// Name.
    pub name: Ident,
    /// Element type.
    pub elem: Elem,
    /// Extents; empty for a scalar.
    pub dims: Vec<Expr>,
    /// Optional tensor whose absence empties the field.
    pub with: Option<Ident>,
}

/// `channel name: kind<Message> over .. from .. to .. per .. { .. };`
#[derive(Debug, Clone)]
pub struct Channel {
    /// Name.
    pub name: Ident,
    /// Kind.
    pub kind: Word<ChannelKind>,
    /// Message.
    pub message: Ident,
    /// Transports.
    pub over: Vec<Word<Transport>>,
    /// Producing roles.
    pub from: Vec<Ident>,
    /// Consuming role.
    pub to: Ident,
    /// Peers.
    pub per: Word<PeerSet>,
    /// `one part per name`
    pub parts_per: Option<Ident>,
    /// Options in order.
    pub options: Vec<ChannelOption>,
    /// The declaration.
    pub source: Excerpt,
}

/// `name: value` between the braces of a channel.
#[derive(Debug, Clone)]
pub struct ChannelOption {
    /// Name.
    pub name: Ident,
    /// Value.
    pub value: OptionValue,
}

/// Value of a channel option; the option's name decides which form it has.
#[derive(Debug, Clone)]
pub enum OptionValue {
    /// `depth: depth`
    Number(Expr),
    /// `header: [first, count]`
    Header(Vec<Ident>),
    /// `slot: [expert: local_experts, source, arrival: max_tokens]`
    Slot(Vec<SlotAxis>),
    /// `waive: credit_fence "reason"`
    Waive {
        /// The policy of the checker.
        policy: Ident,
        /// The reason.
        reason: String,
        /// The literal.
        span: Span,
    },
    /// `waited: wait_ns`
    Waited(Ident),
}

/// One index of a slot.
#[derive(Debug, Clone)]
pub struct SlotAxis {
    /// Name of the index.
    pub name: Ident,
    /// TokenRange; `source` needs none.
    pub extent: Option<Expr>,
}
