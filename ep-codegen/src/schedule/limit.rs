//! Why a declaration that checks has no text: a closed list, each of whose reasons stands in a row of
//! docs/dsl.md.

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

            /// How the row of docs/dsl.md begins that has its reason.
            pub fn row(self) -> &'static str {
                match self {
                    $(Limit::$limit => $row,)*
                }
            }

            /// What is said, with `{}` for each name.
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
        "parts of a ring over a network have no CUDA text yet",
    FarSlotsUnsourced of "rows, counts or several indices in slots over a network":
        "slots over a network are kept apart by `source`, which tells that they have come",
    FarSlotsUnclosed of "rows, counts or several indices in slots over a network":
        "slots over a network are filled by one role, which closes them by one statement: then they have \
         come",
    NoLocalRanks of "a channel over a network where the shape has no `local_ranks`":
        "a channel over a network needs the number `local_ranks`: those of a node reach each other \
         without it",
    PartsNotKept of "a ring with parts in a role that keeps neither":
        "a warp keeps to all parts of one peer of `{}`, as those of `Role[peer]` do, or to one part, as \
         with `warps shared by` its index",
    WrittenByRole of "a read of what another warp writes in the same call":
        "`{}` writes `{}` at the same time, and nothing orders the two",
    WrittenByWarp of "a read of what another warp writes in the same call":
        "another warp writes `{}` in this role, and nothing orders the two",
    AddedByWarps of "`add` by several warps to one element of another type":
        "several warps would add to one element, which only `i32`, `i64` and `f32` of the device take: \
         index it by what the role's warps share",
    AddedToHost of "other elements than `i32` `to host`":
        "what the host reads is stored, not added to",
    AddedRow of "`add` of a row":
        "one element is added to at a time",
    RingOfTeam of "a ring in a role that is not dealt out by stripes":
        "a ring belongs to a stripe: its roles are dealt out by stripes, as `Role[peer]` or by `warps \
         shared by stripe`",
    EndOfNoStripe of "a ring in a role that is not dealt out by stripes":
        "`{}` belongs to a stripe: a role at its end is dealt out by stripes",
    WordOfTeam of "`raise` and `await` of words outside of the loops of a role that is one team":
        "`{}` is of the warp that comes by, and here all warps of the role do, each with a part of the work: \
         put it into the loop whose turns it is about",
    NoStripes of "a ring in a role that is not dealt out by stripes":
        "this needs the number `stripes`",
    ComputedPeers of "computed peers in a role `R[peer]`":
        "several warps of the role carry one stripe, so each keeps to its own peer of `{}`: compute peers \
         in a role with `warps shared by stripe`",
    PositionOfToken of "the position of a `push` that depends on the token":
        "the position is that of the stripe's first row for the peer, and further pushes count on from there: \
         it does not depend on the token, and `stripe.first` is the number of the stripe's first row",
    SlotsOfSome of "awaited slots that are not pushed to every peer, or twice":
        "every rank waits for a record of every other one: push in a loop over its peers, without \
         `where`, to its binder",
    SlotsTwice of "awaited slots that are not pushed to every peer, or twice":
        "a call fills each slot once",
    SlotNotFilled of "a slot's position recorded below a condition":
        "a slot that is not filled has no position to record",
    CastBlocks of "a cast of rows with several extents":
        "a row that is cast here has blocks of {}",
    CountedUnsourced of "slots that count arrivals without `source`":
        "slots that count what arrives are kept apart by `source`",
    CountedNotLast of "slots that count arrivals without `source`":
        "the index that counts what arrives is the last one",
    CountedByRoles of "slots that count arrivals without `source`":
        "one role fills slots that count what arrives",
    CountedUnclosed of "slots that count arrivals without `source`":
        "slots that count what arrives are closed by one statement",
    ClosedInLoop of "slots that count arrivals without `source`":
        "slots are closed once by each turn of a role, in no loop",
    SlotOfSeveral of "a slot that is not named by all of its indices":
        "a slot of `{}` has more indices",
    GatheredAcross of "parts of slots gathered across anything but peers":
        "parts of slots are gathered across peers, a number of the shape, or a range that ends with one",
    DirectMoved of "a gather from a direct channel":
        "rows of a direct channel lie where their sender put them",
    DirectNotInPlace of "a gather from a direct channel":
        "`{}` stores no row of `{}` at its position in the window",
    TwoKinds of "one message in channels of two kinds":
        "`{}` and `{}` carry one message, which each kind of channel lays out in its own way",
    ServesFewer of "a role `R[peer in others]` at a channel `per all`":
        "`{}` serves fewer peers than `{}` joins",
    PlacesOfOther of "places by something else than a number of the shape":
        "places are dealt out by a number of the shape",
    ScalesWritten of "scales on their own, or a row with scales":
        "a row with scales is written whole",
    ScalesCopied of "scales on their own, or a row with scales":
        "a row with scales is copied whole",
    ScalesFilled of "scales on their own, or a row with scales":
        "rows with scales are not filled",
    CountersOfPhases of "counters of one tensor in several phases":
        "counters are stored at the end of a phase: count in one of them",
    PullFields of "several fields beside the row of a `pull` channel":
        "a pull channel offers a row and at most one field beside it",
    CounterKind of "counters other than `i32`":
        "counters are `i32`, or `i64` with extents of the shape, in device memory",
    HostElement of "other elements than `i32` `to host`":
        "what the host reads is `i32`: the word says by itself that it has come",
    CountOnLast of "`count` in a role on the last block":
        "a role on the last block counts nothing: counters are stored before it runs",
    WarpsOfCall of "warps, channel options and message extents":
        "the number of warps is one of the shape",
    OptionsOfCall of "warps, channel options and message extents":
        "its options, and the extents of its message, are numbers of the shape",
    OtherBehindGap of "`other blocks` behind a gap":
        "other blocks are those behind the named ones, which begin at block 0 and follow one another",
    NoExperts of "a word that counts with what is not declared":
        "this needs the input `expert_begin: i32[ranks + 1]`",
    NoNumber of "a word that counts with what is not declared":
        "this needs the number `{}` in the shape",
    NoSize of "a word that counts with what is not declared":
        "no size says how many rows the stripes share",
    OneName of "names that the text gives to two things":
        "{} and {} are both `{}` in CUDA: choose another name",
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
