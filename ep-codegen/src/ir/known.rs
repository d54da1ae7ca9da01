//! The names to which the language gives a meaning. Nothing else in the compiler compares a name of a declaration with a
//! literal; `xtask tidy` checks this.

use super::{Domain, PeerSet, Pipeline, Tensor, TensorKind};

/// A number, a size or a tensor that the compiler knows by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WellKnown {
    /// How many ranks the group has.
    Ranks,
    /// How many ranks a node has.
    LocalRanks,
    /// How many nodes there are.
    Nodes,
    /// How many rows a rank gives to a call.
    Tokens,
    /// Into how many stripes the rows of a call are cut.
    Stripes,
    /// How many experts the group has.
    Experts,
    /// How many experts a rank has.
    LocalExperts,
    /// How many values a row has.
    Hidden,
    /// How many experts a token chooses.
    Topk,
    /// How many pieces of a row a sending warp keeps in flight.
    Stages,
    /// How many bytes a piece of a row has.
    Piece,
    /// The first expert of each rank, and the one behind the last.
    ExpertBegin,
}

impl WellKnown {
    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            WellKnown::Ranks => "ranks",
            WellKnown::LocalRanks => "local_ranks",
            WellKnown::Nodes => "nodes",
            WellKnown::Tokens => "tokens",
            WellKnown::Stripes => "stripes",
            WellKnown::Experts => "experts",
            WellKnown::LocalExperts => "local_experts",
            WellKnown::Hidden => "hidden",
            WellKnown::Topk => "topk",
            WellKnown::Stages => "stages",
            WellKnown::Piece => "piece",
            WellKnown::ExpertBegin => "expert_begin",
        }
    }

    /// Whether `name` is the name.
    pub fn is<N: PartialEq<str> + ?Sized>(self, name: &N) -> bool {
        *name == *self.name()
    }
}

impl PeerSet {
    /// The number of ranks among which the set chooses: `others` leaves this one out.
    pub const fn number(&self) -> WellKnown {
        match self {
            PeerSet::All | PeerSet::Others => WellKnown::Ranks,
            PeerSet::Local => WellKnown::LocalRanks,
            PeerSet::Rail => WellKnown::Nodes,
        }
    }
}

impl Domain {
    /// Whether it is all peers of a set, by the number of the shape or by the word.
    pub fn is_peers(&self, set: &PeerSet) -> bool {
        match self {
            Domain::Dim { name } => *set != PeerSet::Others && set.number().is(name),
            Domain::Peers { set: own } => own == set,
            _ => false,
        }
    }
}

impl Pipeline {
    /// Whether the shape has a number.
    pub fn has_number(&self, number: WellKnown) -> bool {
        self.dims.iter().any(|dim| number.is(&dim.name))
    }
}

impl Tensor {
    /// Whether a pipeline only reads it: an input, or a table from the handle of another pipeline.
    pub fn is_given(&self) -> bool {
        self.kind == TensorKind::Input || self.from_handle.is_some()
    }
}
