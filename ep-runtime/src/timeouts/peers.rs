//! Where the ranks are when a wait has expired: which of them is gone, which has not made the call, and
//! which makes its calls in another order.
//!
//! Every kernel counts the calls that it has begun and ended in its rank's window. Other ranks can read
//! these counters, even those of a rank whose process has died.

use std::fmt;

use super::wait::StuckWait;

/// The words of `ep::State` (`templates/device/ep/sync.cuh`) in order, 4 bytes each, up to the address at its
/// end. A test holds this list against the header's text.
pub(crate) const STATE_WORDS: [&str; 6] =
    ["epoch", "blocks", "arrivals", "records", "entered", "gave_up"];
/// Where it holds the address of all ranks' `ep::Presence`.
pub(crate) const PRESENCES_AT: u64 = 4 * STATE_WORDS.len() as u64;

/// What a rank has done of one pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    ended: u32,
    entered: u32,
    gave_up: u32,
}

impl Progress {
    /// Reads the words of `ep::State`.
    pub(crate) fn read(bytes: &[u8; 4 * STATE_WORDS.len()]) -> Progress {
        let word = |name: &str| {
            let index = STATE_WORDS.iter().position(|word| *word == name).unwrap_or(0);
            let bytes = &bytes[4 * index..4 * index + 4];
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        let (epoch, entered) = (word("epoch"), word("entered"));
        // A kernel gives the number on while blocks of it are still inside: the call has not ended then.
        let inside = word("blocks") >> 16 != 0;
        let ended = if inside && epoch == entered { epoch.wrapping_sub(1) } else { epoch };
        Progress { ended, entered, gave_up: word("gave_up") }
    }

    /// The call that it is in, or was in when it gave up.
    fn current(&self) -> Option<u32> {
        let inside = self.entered != self.ended || self.gave_up == self.entered;
        Some(self.entered).filter(|entered| *entered != 0 && inside)
    }
}

/// What all ranks have done of one pipeline.
pub(crate) struct Calls {
    pub(crate) pipeline: String,
    /// By rank; none where it could not be read.
    pub(crate) ranks: Vec<Option<Progress>>,
}

impl Calls {
    /// The ranks that are in a call.
    pub(crate) fn in_progress(&self) -> impl Iterator<Item = CallBeside> {
        let ranks = self.ranks.iter().enumerate();
        ranks.filter_map(|(rank, progress)| {
            let call = progress.as_ref()?.current()?;
            Some(CallBeside { rank, pipeline: self.pipeline.clone(), call })
        })
    }
}

/// The call that a rank of another group on the same GPUs is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallBeside {
    /// The rank's number in that group.
    pub rank: usize,
    /// The pipeline.
    pub pipeline: String,
    /// The number of the call.
    pub call: u32,
}

impl fmt::Display for CallBeside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallBeside { rank, pipeline, call } = self;
        write!(
            f,
            "rank {rank} of another group on these GPUs is in call {call} of {pipeline}: groups that \
            share GPUs have to make their calls in the same order on all ranks"
        )
    }
}

/// Why a rank does not answer. States nearer to a cause come first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerState {
    /// The rank's process has ended, or has left the group.
    Gone,
    /// The rank is in a call that the waiting rank has not made, and has not made the waiting rank's call.
    OtherOrder {
        /// The pipeline.
        pipeline: String,
        /// The number of the call.
        call: u32,
    },
    /// The rank has not made the call, and is in no other one.
    NotCome,
    /// The rank is still in an earlier call.
    Behind {
        /// The pipeline.
        pipeline: String,
        /// The number of the call.
        call: u32,
    },
    /// The rank is in the same call and makes no progress.
    Inside,
    /// The rank has ended the call.
    Ended,
}

impl PeerState {
    /// Whether other ranks wait because this rank is not in their call.
    pub(crate) fn is_cause(&self) -> bool {
        !matches!(self, PeerState::Inside | PeerState::Ended)
    }
}

/// State of a rank that another one waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerReport {
    /// The rank that waits.
    pub rank: usize,
    /// The pipeline of the call that it waits in.
    pub pipeline: String,
    /// Number of that call.
    pub call: u32,
    /// The rank that it waits for.
    pub peer: usize,
    /// Why that rank does not answer.
    pub state: PeerState,
}

impl PeerReport {
    /// Why `wait`, in the pipeline `own` of `all`, has not ended; none if nothing is known.
    pub(crate) fn of(
        wait: &StuckWait,
        own: usize,
        all: &[Calls],
        has_left: impl Fn(usize) -> bool,
    ) -> Option<PeerReport> {
        let peer = wait.peer.filter(|peer| *peer != wait.rank)?;
        if has_left(peer) {
            return Some(PeerReport::gone(wait, peer));
        }
        let state = state(wait, peer, own, all)?;
        Some(PeerReport { state, ..PeerReport::gone(wait, peer) })
    }

    /// The process of `peer` has ended, and so `wait` does not.
    pub(crate) fn gone(wait: &StuckWait, peer: usize) -> PeerReport {
        let (rank, pipeline, call) = (wait.rank, wait.pipeline.clone(), wait.epoch);
        PeerReport { rank, pipeline, call, peer, state: PeerState::Gone }
    }

    /// Adds the ranks that have left and are not named yet: the rank of a wait may wait for a process that has ended, or that
    /// has ended because of another one.
    pub(crate) fn add_gone(
        found: &mut Vec<PeerReport>,
        wait: &StuckWait,
        left: impl Iterator<Item = usize>,
    ) {
        for peer in left {
            if !found.iter().any(|why| why.peer == peer && why.state == PeerState::Gone) {
                found.push(PeerReport::gone(wait, peer));
            }
        }
    }
}

fn state(wait: &StuckWait, peer: usize, own: usize, all: &[Calls]) -> Option<PeerState> {
    let progress = |calls: &Calls, rank: usize| calls.ranks.get(rank).copied().flatten();
    let there = progress(all.get(own)?, peer)?;
    if there.entered >= wait.epoch {
        let inside = there.ended < wait.epoch || there.gave_up == wait.epoch;
        return Some(if inside { PeerState::Inside } else { PeerState::Ended });
    }
    let elsewhere = all.iter().find_map(|calls| {
        let call = progress(calls, peer)?.current()?;
        let here = progress(calls, wait.rank)?.entered;
        Some((calls.pipeline.clone(), call, here))
    });
    Some(match elsewhere {
        None => PeerState::NotCome,
        Some((pipeline, call, here)) if here < call => PeerState::OtherOrder { pipeline, call },
        Some((pipeline, call, _)) => PeerState::Behind { pipeline, call },
    })
}

impl fmt::Display for PeerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PeerReport { rank, pipeline, call, peer, state } = self;
        match state {
            PeerState::Gone => write!(f, "the process of rank {peer} has ended"),
            PeerState::NotCome => {
                write!(f, "rank {peer} has not made call {call} of {pipeline}")
            }
            PeerState::Behind { pipeline, call } => {
                write!(f, "rank {peer} is still in call {call} of {pipeline}")
            }
            PeerState::OtherOrder { pipeline: other, call: number } => write!(
                f,
                "rank {peer} is in call {number} of {other} while rank {rank} is in call {call} of \
                {pipeline}: all ranks have to make the calls of a group in the same order"
            ),
            PeerState::Inside => {
                write!(
                    f,
                    "rank {peer} is in call {call} of {pipeline} too and does not make progress"
                )
            }
            PeerState::Ended => write!(f, "rank {peer} has ended call {call} of {pipeline}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::members;
    use crate::fake::plan_of;
    use crate::timeouts::WaitNumbers;

    /// Rank 0 waits for rank 1 in call 5 of a dispatch.
    fn waiting() -> StuckWait {
        let numbers = WaitNumbers {
            rank: 0,
            role: 0,
            channel: 0,
            kind: 0,
            expired: true,
            stripe: -1,
            peer: 1,
            want: 1,
            seen: None,
            epoch: 5,
            block: 0,
            warp: 0,
        };
        StuckWait::named(&plan_of("Dispatch", vec![]), &numbers)
    }

    fn progress(ended: u32, entered: u32, gave_up: u32) -> Option<Progress> {
        Some(Progress { ended, entered, gave_up })
    }

    /// Rank 0 has given up call 5 of the dispatch and ended call 4 of the combine.
    fn why(dispatch: Option<Progress>, combine: Option<Progress>) -> Option<String> {
        let calls = |pipeline: &str, ranks: [Option<Progress>; 2]| Calls {
            pipeline: pipeline.to_string(),
            ranks: ranks.to_vec(),
        };
        let all = [
            calls("Combine", [progress(4, 4, 0), combine]),
            calls("Dispatch", [progress(5, 5, 5), dispatch]),
        ];
        PeerReport::of(&waiting(), 1, &all, |_| false).map(|why| why.to_string())
    }

    #[test]
    fn every_reason_is_told_from_the_others() {
        let cases = [
            (progress(4, 4, 0), progress(4, 4, 0), "rank 1 has not made call 5 of Dispatch"),
            (progress(4, 4, 0), progress(3, 4, 0), "rank 1 is still in call 4 of Combine"),
            (progress(3, 4, 0), progress(3, 3, 0), "rank 1 is still in call 4 of Dispatch"),
            (
                progress(4, 4, 0),
                progress(4, 5, 0),
                "rank 1 is in call 5 of Combine while rank 0 is in call 5 of Dispatch: all ranks have \
                to make the calls of a group in the same order",
            ),
            // Its own wait expired before, and its kernel has ended.
            (
                progress(4, 4, 0),
                progress(5, 5, 5),
                "rank 1 is in call 5 of Combine while rank 0 is in call 5 of Dispatch: all ranks have \
                to make the calls of a group in the same order",
            ),
            (
                progress(4, 5, 0),
                progress(4, 4, 0),
                "rank 1 is in call 5 of Dispatch too and does not make progress",
            ),
            (
                progress(5, 5, 5),
                progress(4, 4, 0),
                "rank 1 is in call 5 of Dispatch too and does not make progress",
            ),
            (progress(5, 5, 0), progress(4, 4, 0), "rank 1 has ended call 5 of Dispatch"),
        ];
        for (dispatch, combine, text) in cases {
            assert_eq!(why(dispatch, combine).as_deref(), Some(text));
        }
        assert_eq!(why(None, progress(4, 4, 0)), None, "its words could not be read");
    }

    #[test]
    fn a_call_has_ended_when_no_block_is_inside() {
        let read = |epoch: u32, blocks: u32, entered: u32| {
            let words = [epoch, blocks, 0, 0, entered, 0].map(u32::to_le_bytes);
            Some(Progress::read(&words.concat().try_into().unwrap()))
        };
        assert_eq!(read(5, 0, 5), progress(5, 5, 0));
        assert_eq!(read(5, 3 << 16 | 1, 5), progress(4, 5, 0), "some of its blocks wait");
        assert_eq!(read(4, 3 << 16 | 1, 5), progress(4, 5, 0));
    }

    #[test]
    fn the_state_is_what_the_header_says() {
        let declared = members("struct State {");
        let words = STATE_WORDS.iter().map(|word| format!("u32 {word}"));
        let ours: Vec<String> = words.chain(["Presence* const* presences".into()]).collect();
        assert_eq!(declared, ours);
        assert_eq!(PRESENCES_AT % 8, 0, "an address is aligned");
    }

    #[test]
    fn all_ranks_that_have_left_are_named_once() {
        let wait = waiting();
        let mut found = vec![PeerReport::gone(&wait, 2)];
        PeerReport::add_gone(&mut found, &wait, [2, 3].into_iter());
        assert_eq!(found.iter().map(|why| why.peer).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn a_rank_that_is_gone_is_where_its_words_say_no_more() {
        let why = PeerReport::of(&waiting(), 0, &[], |rank| rank == 1).unwrap();
        assert_eq!(why.to_string(), "the process of rank 1 has ended");
    }
}
