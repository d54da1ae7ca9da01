//! Why a valid declaration is not emitted: a closed list. A row of docs/dsl.md gives the reason of each limit.

use std::fmt;

macro_rules! limits {
    ($($limit:ident of $row:literal: $sentence:literal,)*) => {
        /// What a declaration asks for that is not emitted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Limit {
            $(#[doc = $sentence] $limit,)*
        }

        impl Limit {
            /// All of them.
            pub const ALL: &[Limit] = &[$(Limit::$limit),*];

            /// The beginning of the row of docs/dsl.md that gives the reason.
            pub fn row(self) -> &'static str {
                match self {
                    $(Limit::$limit => $row,)*
                }
            }

            /// The message, with `{}` for each name.
            fn sentence(self) -> &'static str {
                match self {
                    $(Limit::$limit => $sentence,)*
                }
            }
        }
    };
}

limits! {
    PartsOverNetwork of "parts of a ring over a network":
        "a ring over a network cannot have parts yet",
    FarSlotsUnsourced of "rows, counts or several indices in slots over a network":
        "slots over a network need the index `source`, because a sender signals for all of its slots at once",
    FarSlotsUnclosed of "rows, counts or several indices in slots over a network":
        "one role has to fill slots over a network and close them by one statement, which signals their arrival",
    NoLocalRanks of "a channel over a network where the shape has no `local_ranks`":
        "a channel over a network needs the number `local_ranks`: ranks of one node do not use the network",
    PartsNotKept of "a ring with parts in a role that keeps neither":
        "each warp has to handle either all parts of one peer of `{}`, as in `Role[peer]`, or one part of all \
         peers, as with `warps shared by` the index of the parts",
    WrittenByRole of "a read of what another warp writes in the same call":
        "`{}` writes `{}` at the same time, and nothing orders the write and this read",
    WrittenByWarp of "a read of what another warp writes in the same call":
        "another warp of this role may write the same element of `{}`, and nothing orders the write and this \
         read: read values from before the call from an input",
    AddedByWarps of "`add` by several warps to one element of another type":
        "several warps would add to one element, which works only for `i32`, `i64` and `f32` in device memory: \
         index the element by what the role's warps share",
    AddedToHost of "other elements than `i32` `to host`":
        "`add` cannot change a tensor `to host`: use `store`",
    AddedInWindow of "`add` to an output `in window`":
        "`add` cannot change an output `in window`: peers may store rows there before this call clears it",
    AddedRow of "`add` of a row":
        "`add` takes one element: use a loop over the row",
    RingOfTeam of "a ring in a role that is not dealt out by stripes":
        "a ring belongs to a stripe, so its roles take stripes: write `Role[peer]` or `warps shared by stripe`",
    EndOfNoStripe of "a ring in a role that is not dealt out by stripes":
        "`{}` belongs to a stripe, so this role has to take stripes",
    WordOfTeam of "`raise` and `await` of words outside of the loops of a role that is one team":
        "every warp of this role would run this `{}`, and each has only a part of the work: move the statement \
         into the loop whose turns it reports",
    NoStripes of "a ring in a role that is not dealt out by stripes":
        "this needs the number `stripes`",
    ComputedPeers of "computed peers in a role `R[peer]`":
        "a warp of this role may push to `{}` only for its own peer: compute peers in a role with `warps shared \
         by stripe`",
    PositionOfToken of "the position of a `push` that depends on the token":
        "the position of a push is that of the stripe's first row for the peer, and later pushes follow it, so the \
         position cannot depend on the token: `stripe.first` is the number of the stripe's first row",
    SlotsOfSome of "awaited slots that are not pushed to every peer, or twice":
        "every rank waits for a record from each peer: push in a loop over the peers, without `where`, to the \
         binder of the loop",
    SlotsTwice of "awaited slots that are not pushed to every peer, or twice":
        "a call may fill each slot only once",
    SlotNotFilled of "a slot's position recorded below a condition":
        "this push runs under a condition, and a slot that is not filled has no position to record",
    CastBlocks of "a cast of rows with several extents":
        "this cast needs blocks of {}",
    CountedUnsourced of "slots that count arrivals without `source`":
        "slots that count arrivals need the index `source`",
    CountedNotLast of "slots that count arrivals without `source`":
        "the index that counts arrivals has to be the last one",
    CountedByRoles of "slots that count arrivals without `source`":
        "only one role may fill slots that count arrivals",
    CountedUnclosed of "slots that count arrivals without `source`":
        "one statement has to close slots that count arrivals",
    ClosedInLoop of "slots that count arrivals without `source`":
        "a role closes its slots once, outside of all loops",
    SlotOfSeveral of "a slot that is not named by all of its indices":
        "name all indices of the slot of `{}`",
    GatheredAcross of "parts of slots gathered across anything but peers":
        "parts of slots can be gathered across peers, across a number of the shape, or across a range that ends \
         with such a number",
    DirectMoved of "a gather from a direct channel":
        "the sender has already put rows of a direct channel in place, so the receiver cannot give them a position",
    DirectNotInPlace of "a gather from a direct channel":
        "`{}` has to store each row of `{}` at `message.row` of a tensor in the window",
    TwoKinds of "one message in channels of two kinds":
        "`{}` and `{}` are of different kinds and carry one message: declare the message twice, because each kind \
         has its own layout",
    ServesFewer of "a role `R[peer in others]` at a channel `per all`":
        "`{}` sends to fewer peers than `{}` connects",
    PlacesOfOther of "places by something else than a number of the shape":
        "a loop with `at` has to run over a number of the shape",
    ScalesWritten of "scales on their own, or a row with scales":
        "a row with scales has to be written as a whole",
    ScalesCopied of "scales on their own, or a row with scales":
        "a row with scales has to be copied as a whole",
    ScalesFilled of "scales on their own, or a row with scales":
        "`fill` does not work on rows with scales",
    CountersOfPhases of "counters of one tensor in several phases":
        "a tensor may be counted into or added to in one phase only, which clears it first",
    PullFields of "several fields beside the row of a `pull` channel":
        "a message of a pull channel may have at most one field besides the row",
    CounterKind of "counters other than `i32`":
        "a counter has to be `i32`, or `i64` with extents of the shape, in device memory",
    HostElement of "other elements than `i32` `to host`":
        "a tensor `to host` has to be `i32`: the word itself signals that it has arrived",
    CountOnLast of "`count` in a role on the last block":
        "a role on the last block cannot count, because counters are stored before it runs",
    WarpsOfCall of "warps, channel options and message extents":
        "the number of warps has to be a number of the shape",
    OptionsOfCall of "warps, channel options and message extents":
        "the options of a channel and the extents of its message have to be numbers of the shape",
    OtherBehindGap of "`other blocks` behind a gap":
        "`other blocks` needs the named blocks to begin at block 0 and to leave no gap",
    NoExperts of "a word that counts with what is not declared":
        "this needs the input `expert_begin: i32[ranks + 1]`",
    NoNumber of "a word that counts with what is not declared":
        "this needs the number `{}` in the shape",
    NoSize of "a word that counts with what is not declared":
        "a stripe is a slice of a size, and this pipeline has no size: declare one, such as `size rows in \
         0..=max_rows;`",
    OneName of "names that the text gives to two things":
        "{} and {} would both be `{}` in CUDA: choose another name",
}

impl Limit {
    /// The reason with these names.
    pub(super) fn of(self, names: &[&str]) -> Why {
        let mut parts = self.sentence().split("{}");
        let mut sentence = parts.next().unwrap_or_default().to_string();
        for (name, part) in names.iter().zip(parts) {
            sentence.push_str(name);
            sentence.push_str(part);
        }
        Why { limit: Some(self), sentence }
    }
}

/// Why a statement has no steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// What it asks for; `None`: the checks should have refused it.
    pub limit: Option<Limit>,
    pub(super) sentence: String,
}

impl From<Limit> for Why {
    fn from(limit: Limit) -> Why {
        limit.of(&[])
    }
}

/// Something that no declaration asks for that has been checked.
pub(super) fn broken(what: impl Into<String>) -> Why {
    Why { limit: None, sentence: what.into() }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)?;
        match self.limit {
            Some(_) => Ok(()),
            None => f.write_str(", which the checks let pass: this is a defect of EPForge"),
        }
    }
}
