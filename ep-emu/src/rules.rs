//! The rules of the checker, each with a name, a sentence, and a switch.
//!
//! The first ones are the PTX memory model. The proxy rules say more than its text does (which
//! side must fence); those are policies, and a channel's declaration may waive them with a reason.

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Rule {
    /// Lanes of a warp are ordered by `__syncwarp` and barriers only; votes and shuffles order
    /// nothing.
    Lanes,
    /// Warps, blocks and ranks are ordered by releases that are acquired, barriers and mbarriers
    /// only.
    Warps,
    /// Both ends of an order name a scope that holds the other end.
    Scopes,
    /// What a bulk copy did is known to those who waited for it, and to whom they told.
    BulkWait,
    /// M1: `wait_group.read` says nothing of the destination.
    FullWait,
    /// M2: before a bulk load of what others wrote, the issuer fences for the async proxy.
    LoadFence,
    /// M3: who wrote shared memory fences before a bulk copy touches it.
    WriterFence,
    /// M3: who read shared memory fences before a bulk load overwrites it.
    ReaderFence,
    /// M4: before a bulk store over what others read, the issuer fences for the async proxy.
    CreditFence,
    /// M5: memory read through the read-only path is not written in the same launch.
    ReadOnly,
    /// M7: a word is written and read whole.
    WholeWords,
    /// An mbarrier's initialisation happens before its use.
    MbarrierInit,
    /// What a rank touches of another one's tensors is touched before that one's kernel ends.
    Lent,
    /// Accesses stay inside the buffers that the lane may reach.
    Bounds,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 14] = [
        Self::Lanes,
        Self::Warps,
        Self::Scopes,
        Self::BulkWait,
        Self::FullWait,
        Self::LoadFence,
        Self::WriterFence,
        Self::ReaderFence,
        Self::CreditFence,
        Self::ReadOnly,
        Self::WholeWords,
        Self::MbarrierInit,
        Self::Lent,
        Self::Bounds,
    ];

    /// The rule of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }

    /// Name, as a declaration waives it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lanes => "lanes",
            Self::Warps => "warps",
            Self::Scopes => "scopes",
            Self::BulkWait => "bulk_wait",
            Self::FullWait => "full_wait",
            Self::LoadFence => "load_fence",
            Self::WriterFence => "writer_fence",
            Self::ReaderFence => "reader_fence",
            Self::CreditFence => "credit_fence",
            Self::ReadOnly => "read_only",
            Self::WholeWords => "whole_words",
            Self::MbarrierInit => "mbarrier_init",
            Self::Lent => "lent",
            Self::Bounds => "bounds",
        }
    }

    /// Whether a declaration may waive it: the PTX text asks for less.
    pub fn is_policy(self) -> bool {
        matches!(self, Self::LoadFence | Self::WriterFence | Self::ReaderFence | Self::CreditFence)
    }

    /// What an access that breaks the rule lacks.
    pub(super) fn explain(self) -> &'static str {
        match self {
            Self::Lanes => "no __syncwarp or barrier orders the two lanes",
            Self::Warps => "nothing orders the two",
            Self::Scopes => "the scopes of the two strong accesses do not include each other",
            Self::BulkWait => {
                "no thread that waited for the end of the bulk copy is ordered before \
            this access"
            }
            Self::FullWait => {
                "M1: the wait for the bulk store has .read, which does not order its destination"
            }
            Self::LoadFence => {
                "M2: ordered, but the issuer runs no fence.proxy.async.global in between"
            }
            Self::WriterFence => {
                "M3: ordered, but the writer runs no fence.proxy.async.shared::cta before its release"
            }
            Self::ReaderFence => {
                "M3: ordered, but the reader runs no fence.proxy.async.shared::cta before its release"
            }
            Self::CreditFence => {
                "M4: ordered, but the issuer runs no fence.proxy.async.global in between"
            }
            Self::ReadOnly => "M5: memory read through the read-only path changes in the launch",
            Self::WholeWords => "M7: the two strong accesses have different sizes",
            Self::MbarrierInit => "the mbarrier's initialisation is not ordered before",
            Self::Lent => "the kernel of the rank that lent it may be over before this",
            Self::Bounds => "outside every buffer",
        }
    }
}

/// A set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules(u32);

impl Rules {
    /// Every rule.
    pub const ALL: Self = Self(u32::MAX);
    /// No rule.
    pub const NONE: Self = Self(0);

    /// Whether `rule` is in the set.
    #[inline(always)]
    pub fn has(self, rule: Rule) -> bool {
        self.0 >> rule as u32 & 1 != 0
    }

    /// The set with `rule`.
    pub fn with(self, rule: Rule) -> Self {
        Self(self.0 | 1 << rule as u32)
    }

    /// The set without `rule`.
    pub fn without(self, rule: Rule) -> Self {
        Self(self.0 & !(1 << rule as u32))
    }
}
