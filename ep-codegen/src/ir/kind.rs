//! What the kinds of channels are. Each is described here, once, and whoever treats kinds differently asks
//! for a fact by its name. Only what a kind emits (`schedule/channels`) and what it takes of the window
//! (`plan/channels`) stands elsewhere, since the IR knows neither CUDA nor bytes.

use super::Canon;
use super::canon::{Packed, ir_types};
use super::facts::CreditRule;

ir_types! {
    /// How a channel stores messages.
    #[derive(Copy)]
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
}

/// What is true of every channel of a kind.
#[derive(Debug)]
pub struct Traits {
    /// Its word in the language.
    pub word: &'static str,
    /// The options that it takes, and whether it needs them.
    pub options: &'static [(&'static str, bool)],
    /// How a role takes its messages, as an error proposes it; `{}` stands for the channel.
    pub taken: &'static str,
    /// Whether a network can carry it.
    pub network: Network,
    /// Whether a push says where its message goes.
    pub position: Position,
    /// The kind of channel whose recorded positions a gather from this one needs, if it needs any.
    pub gathered_at: Option<ChannelKind>,
    /// When its receiver gives room back.
    pub credit: CreditRule,
    /// Messages lie at indices that the declaration names: they are awaited and closed as a whole, read in
    /// any order, and may be counted by the last index.
    pub is_indexed: bool,
    /// Each consumer takes the messages of a stripe in the order in which they were pushed, and each once.
    pub in_order: bool,
    /// A push waits for room that the receiver gives back within the call.
    pub is_bounded: bool,
    /// A push names whole tensors, and no peer: everyone may read their rows where they lie.
    pub offers: bool,
    /// The sender stores rows where the receiver wants them, and the other fields in a record beside each.
    pub lands: bool,
    /// A loop over its messages ends when the sender closes its end; otherwise, the loop knows how many
    /// there are.
    pub ends_when_closed: bool,
    /// Its sender opens an end to every peer for each stripe, and closes it there, having sent or not.
    pub opens_out: bool,
    /// Its receiver opens an end from every peer for each stripe.
    pub opens_in: bool,
    /// The receiver says at the end of the role that it reads no more.
    pub is_released: bool,
    /// Rows may go through shared memory on their way to it.
    pub is_staged: bool,
}

/// Whether a network can carry a kind of channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// No: one end stores to, or loads from, memory of the other one.
    Never,
    /// Where the declaration says so.
    Declared,
    /// Where the declaration says so, and the shape says who is far: without `local_ranks`, what NVLink may
    /// carry stays within a node.
    ToFarNodes,
}

/// Whether a push says where its message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// It cannot.
    None,
    /// It may: indices of a slot.
    Optional,
    /// It must: the row of its first message.
    Needed,
}

const RING: Traits = Traits {
    word: "ring",
    options: &[("depth", true), ("chunk", true), ("header", false), ("waive", false)],
    taken: "for message in {}[peer] { .. }",
    network: Network::Declared,
    position: Position::None,
    gathered_at: Some(ChannelKind::Ring),
    credit: CreditRule::Chunk,
    is_indexed: false,
    in_order: true,
    is_bounded: true,
    offers: false,
    lands: false,
    ends_when_closed: false,
    opens_out: true,
    opens_in: true,
    is_released: false,
    is_staged: true,
};

const SLOTS: Traits = Traits {
    word: "slots",
    options: &[
        ("slot", true),
        ("epochs", false),
        ("waited", false),
        ("few", false),
        ("once", false),
        ("waive", false),
    ],
    taken: "await {};",
    network: Network::ToFarNodes,
    position: Position::Optional,
    gathered_at: None,
    credit: CreditRule::Epoch,
    is_indexed: true,
    in_order: false,
    is_bounded: false,
    offers: false,
    lands: false,
    ends_when_closed: false,
    opens_out: false,
    opens_in: false,
    is_released: true,
    is_staged: false,
};

const DIRECT: Traits = Traits {
    word: "direct",
    options: &[("unit", false), ("few", false), ("early", false), ("waive", false)],
    taken: "for message in {}[source] { .. }",
    network: Network::Never,
    position: Position::Needed,
    gathered_at: None,
    credit: CreditRule::Ready,
    is_indexed: false,
    in_order: false,
    is_bounded: false,
    offers: false,
    lands: true,
    ends_when_closed: true,
    opens_out: true,
    opens_in: false,
    is_released: false,
    is_staged: true,
};

const PULL: Traits = Traits {
    word: "pull",
    options: &[("waive", false)],
    taken: "for token in tokens gather part from {}[peer] at .. across peer in ranks { .. }",
    network: Network::Never,
    position: Position::None,
    gathered_at: Some(ChannelKind::Direct),
    credit: CreditRule::Released,
    is_indexed: false,
    in_order: false,
    is_bounded: false,
    offers: true,
    lands: false,
    ends_when_closed: false,
    opens_out: false,
    opens_in: false,
    is_released: true,
    is_staged: false,
};

impl ChannelKind {
    /// All kinds by their words.
    pub const WORDS: &'static [(&'static str, ChannelKind)] = &[
        (RING.word, ChannelKind::Ring),
        (SLOTS.word, ChannelKind::Slots),
        (DIRECT.word, ChannelKind::Direct),
        (PULL.word, ChannelKind::Pull),
    ];

    /// What is true of every channel of this kind.
    pub fn traits(self) -> &'static Traits {
        match self {
            ChannelKind::Ring => &RING,
            ChannelKind::Slots => &SLOTS,
            ChannelKind::Direct => &DIRECT,
            ChannelKind::Pull => &PULL,
        }
    }
}
