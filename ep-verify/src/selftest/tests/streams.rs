//! Calls on several streams run in the order in which they were made.

use crate::selftest::{Case, Selftest};
use crate::unordered::UnorderedBackend;
use ep_runtime::backend::{Backend, Stream};
use ep_runtime::buffer::{BufferOptions, BuiltIn};
use ep_runtime::group::{Group, GroupOptions};

/// Streams of a caller; the backend runs later ones first where nothing orders them.
fn streams() -> [Stream; 3] {
    // SAFETY: this backend takes any number for a stream.
    [Stream::OWN, unsafe { Stream::from_raw(1) }, unsafe { Stream::from_raw(2) }]
}

fn case(dispatch: Stream, combine: Stream) -> Case {
    let mut case = Case::even(BufferOptions::new(8, 64, 2, 5), 2, 4);
    case.dispatch.stream = dispatch;
    case.combine.stream = combine;
    case
}

/// The backend fails when the kernels of a rank run in another order than that of the calls.
#[test]
fn calls_on_several_streams_run_in_the_order_of_the_calls() {
    let Some(backend) = UnorderedBackend::new(2) else { return };
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    // One buffer after another, and two at once, all in one group.
    let other = Selftest::new(&group, &BuiltIn, case(streams()[2], streams()[0])).unwrap();
    for dispatch in streams() {
        for combine in streams() {
            let test = Selftest::new(&group, &BuiltIn, case(dispatch, combine)).unwrap();
            // Nothing runs before all of it is queued.
            test.queue_one().unwrap();
            other.queue_one().unwrap();
            let findings = test.check().unwrap();
            assert!(findings.is_good(), "{dispatch:?} {combine:?}: {findings}");
            assert!(other.check().unwrap().is_good());
        }
    }
}

/// A capture of the caller's own, with a second stream that joined it.
#[test]
fn captured_calls_on_two_streams_keep_their_order() {
    let [own, first, second] = streams();
    let Some(backend) = UnorderedBackend::new(1) else { return };
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    let mut case = Case { tokens: vec![8], ..case(first, second) };
    case.options.live = 2;
    let test = Selftest::new(&group, &BuiltIn, case).unwrap();
    backend.begin_capture(0, first).unwrap();
    let joined = backend.create_event(0).unwrap();
    backend.record(0, first, &joined).unwrap();
    backend.wait_event(0, second, &joined).unwrap();
    test.queue_one().unwrap();
    let captured = backend.end_capture(0, first).unwrap();
    for stream in [first, own, second] {
        test.check().unwrap();
        group.await_calls(0, stream).unwrap();
        backend.replay(0, stream, &captured).unwrap();
        group.follow(0, stream).unwrap();
        assert!(test.check().unwrap().is_good());
    }
    backend.destroy_captured(0, captured).unwrap();
}

#[test]
fn an_own_stream_that_is_captured_orders_nothing() {
    let [own, first, _] = streams();
    let Some(backend) = UnorderedBackend::new(1) else { return };
    let group = Group::new(backend, GroupOptions::default()).unwrap();
    let calls = || group.follow(0, first);
    let error = group.capture(0, own, calls).err().unwrap();
    let text = "the own stream of rank 0 is being captured: end the capture before a call on another \
                stream";
    assert_eq!(error.to_string(), text);
    group.follow(0, first).unwrap();
    // From now on the caller's stream is behind the last call.
    group.capture(0, own, || group.follow(0, first)).unwrap();
}
