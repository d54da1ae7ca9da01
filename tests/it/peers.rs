//! Errors that say where the ranks are which others wait for: the emitted kernels on the host, with a
//! rank that does not come, and with ranks that call in another order.

use std::sync::Arc;

use ep_runtime::buffer::{
    Buffer, BufferOptions, BuiltIn, CallOptions, CombineInput, CombineOutput, DispatchInput,
    Handle, Offered,
};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::host::{HostBackend, HostOptions};
use ep_runtime::timeouts::{PeerReport, PeerState};

use crate::host::programs;

const RANKS: usize = 3;

/// A group whose calls move no tokens, and wait for each other all the same.
struct Ranks {
    group: Group,
    buffer: Buffer,
    offered: Vec<Offered>,
}

impl Ranks {
    fn new() -> Option<Ranks> {
        Some(Ranks::on(&HostBackend::new(programs()?, HostOptions::new(RANKS)).expect("it starts")))
    }

    /// A group of all ranks of a machine, beside others that it may have.
    fn on(backend: &Arc<HostBackend>) -> Ranks {
        let group = backend.group().expect("the group forms");
        let base = BufferOptions::new(4, 64, 2, 6);
        // So few tokens would take one launch, where a rank has one call to be in, and their rows
        // would come back by stores, where nobody waits for a rank that brings none.
        let (one_launch, push_combine) = (Some(false), Some(false));
        let options = BufferOptions { live: 2, one_launch, push_combine, ..base };
        let buffer = Buffer::new(&group, options, &BuiltIn).expect("the shape is legal");
        let offered = (0..RANKS).map(|rank| buffer.offer(rank).expect("one is free"));
        Ranks { offered: offered.collect(), group, buffer }
    }

    fn dispatch(&self, rank: usize) -> Handle {
        let call = CallOptions::sms(2);
        let dispatched = self.buffer.dispatch(rank, &DispatchInput::default(), &call);
        dispatched.expect("it is queued").0
    }

    fn combine(&self, handle: &Handle) {
        let input = CombineInput::Offered(&self.offered[handle.rank()]);
        let (output, call) = (CombineOutput::default(), CallOptions::sms(2));
        self.buffer.combine(handle, input, &[], &output, &call).expect("it is queued");
    }

    /// What the ranks say when they have waited in vain.
    fn reports(&self) -> Vec<PeerReport> {
        match self.group.sync(0) {
            Err(CallError::Timeout(timeouts)) => {
                let text = timeouts.to_string();
                eprintln!("{text}");
                let told = |why: &PeerReport| text.contains(&why.to_string());
                assert!(timeouts.peers.iter().all(told), "{text}");
                timeouts.peers
            }
            other => panic!("{other:?}"),
        }
    }
}

fn states(all: &[PeerReport], peer: usize) -> Vec<&PeerState> {
    all.iter().filter(|why| why.peer == peer).map(|why| &why.state).collect()
}

#[test]
fn a_rank_that_has_not_come_is_told_from_one_that_is_stuck() {
    let Some(ranks) = Ranks::new() else { return };
    for rank in 0..RANKS {
        ranks.dispatch(rank);
    }
    ranks.group.sync(0).expect("all have come");
    let _waiting = [ranks.dispatch(0), ranks.dispatch(1)];
    let all = ranks.reports();
    assert_eq!(states(&all, 2), [&PeerState::NotCome], "{all:?}");
    assert_eq!(all[0].to_string(), "rank 2 has not made call 2 of Layout");
    let options = BufferOptions::new(4, 64, 2, 6);
    match Buffer::new(&ranks.group, options, &BuiltIn) {
        Err(CallError::Timeout(timeouts)) => assert_eq!(timeouts.peers, all),
        other => panic!("a stopped group takes no buffer: {:?}", other.map(|_| ())),
    }
}

#[test]
fn calls_in_another_order_are_named_on_both_sides() {
    let Some(ranks) = Ranks::new() else { return };
    let handles = [0, 1, 2].map(|rank| ranks.dispatch(rank));
    handles.iter().for_each(|handle| ranks.combine(handle));
    ranks.group.sync(0).expect("all have come");
    let mut later = vec![ranks.dispatch(0), ranks.dispatch(1)];
    ranks.combine(&handles[2]);
    later.push(ranks.dispatch(2));
    for handle in &handles[..2] {
        ranks.combine(handle);
    }
    let all = ranks.reports();
    let order = |pipeline: &str| PeerState::OtherOrder { pipeline: pipeline.to_string(), call: 2 };
    assert_eq!(states(&all, 2), [&order("NvlCombine"); 2], "{all:?}");
    assert!(states(&all, 0).contains(&&order("Layout")), "{all:?}");
    let text = "rank 2 is in call 2 of NvlCombine while rank 0 is in call 2 of Layout: all ranks have \
                to make the calls of a group in the same order";
    assert!(all.iter().any(|why| why.to_string() == text), "{all:?}");
}

#[test]
fn a_rank_that_makes_half_a_dispatch_is_named_with_the_other_half() {
    let Some(ranks) = Ranks::new() else { return };
    let _handles = [0, 1].map(|rank| ranks.dispatch(rank));
    let call = CallOptions::sms(2);
    let half = ranks.buffer.exchange_counts(2, &DispatchInput::default(), &call);
    let _half = half.expect("it is queued");
    let all = ranks.reports();
    assert_eq!(states(&all, 2), [&PeerState::NotCome], "{all:?}");
    assert_eq!(all[0].to_string(), "rank 2 has not made call 1 of NvlDispatch");
}

/// Each group by itself keeps an order that is the same on all ranks.
#[test]
fn two_groups_in_another_order_on_another_rank_are_told_apart() {
    let Some(programs) = programs() else { return };
    let backend = HostBackend::new(programs, HostOptions::new(RANKS)).expect("it starts");
    let (one, other) = (Ranks::on(&backend), Ranks::on(&backend));
    let _first = [0, 1].map(|rank| (one.dispatch(rank), other.dispatch(rank)));
    let _last = (other.dispatch(2), one.dispatch(2));
    let Err(CallError::Timeout(timeouts)) = one.group.sync(0) else { panic!("they cannot end") };
    let text = timeouts.to_string();
    let beside = "rank 2 of another group on these GPUs is in call 1 of Layout: groups that share GPUs \
                have to make their calls in the same order on all ranks";
    assert!(text.contains(beside), "{text}");
}
