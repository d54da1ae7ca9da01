//! Messages and channels.

use super::canon::{Packed, ir_types};
use super::{Canon, ChannelKind, ElemType, Expr, Role, Source, When};

ir_types! {
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

    /// What carries a channel.
    #[derive(Copy)]
    enum Transport {
        /// Peer pointers.
        Nvlink,
        /// CPU-posted network writes.
        Rdma,
        /// GPU-posted network writes.
        Ibgda,
    }

    /// Which peers a channel joins.
    #[derive(Copy)]
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
        /// The tensor to which the times are added that its receiver waits for each peer.
        waited: Option<String>,
        /// What is waived here, if anything is.
        waiver: Option<Waiver>,
        /// Guard.
        when: Vec<When>,
        /// Where it was declared.
        at: Source,
    }
}

impl Channel {
    /// Whether a role holds both ends, and no other role sends.
    pub fn is_held_by(&self, role: &Role) -> bool {
        self.to == role.name && self.from.as_slice() == std::slice::from_ref(&role.name)
    }

    /// Which word of the header a number is, if the channel announces it. The ends of the device library
    /// tell `first` before `count`, and either kind of end may be at the other side.
    pub fn header_word(&self, name: &str) -> Option<usize> {
        let place = self.header.iter().position(|word| word == name)?;
        let is_of = |name: &str| self.header.iter().any(|word| word == name);
        let is_usual = self.header.len() == 2 && is_of("first") && is_of("count");
        Some(if is_usual { usize::from(name == "count") } else { place })
    }
}
