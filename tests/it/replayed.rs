//! Graphs on the host: calls captured once, then replayed with inputs and token counts that change in
//! memory, every replay against the oracle.

use std::sync::Arc;
use std::time::Duration;

use ep_runtime::buffer::{BufferOptions, BuiltIn, Payload, Via};
use ep_runtime::host::{Build, HostBackend, HostOptions};
use ep_verify::options::ring_tunes;
use ep_verify::selftest::{Case, Selftest};

use crate::host::programs;
use crate::usual;

fn replayed(ranks: usize, options: BufferOptions, build: Build, replays: u64) {
    let Some(programs) = programs() else { return };
    let isolation = Some(Duration::from_secs(120));
    let host = HostOptions { build, isolation, ..HostOptions::new(ranks) };
    let backend: Arc<HostBackend> =
        HostBackend::new(programs, host).unwrap_or_else(|error| panic!("{error}"));
    let group = backend.group().unwrap_or_else(|error| panic!("{error}"));
    let case = Case::even(BufferOptions { live: 2, ..options }, ranks, 4);
    let test = Selftest::new(&group, &BuiltIn, case);
    let mut test = test.unwrap_or_else(|error| panic!("{error}"));
    let findings = test.check_replayed(replays).unwrap_or_else(|error| panic!("{error}"));
    assert!(findings.is_good(), "{findings}");
    assert!(findings.checks.len() as u64 > 10 * replays);
}

fn direct() -> BufferOptions {
    let options = BufferOptions::new(12, 128, 4, 10);
    BufferOptions { biases: 1, one_launch: Some(false), push_combine: Some(false), ..options }
}

fn one_launch() -> BufferOptions {
    let few = BufferOptions { one_launch: Some(true), push_combine: Some(true), ..direct() };
    BufferOptions { payload: Payload::Fp8, ..few }
}

fn ring() -> BufferOptions {
    let options = BufferOptions { via: Via::Ring, payload: Payload::Fp8, ..direct() };
    BufferOptions { tunes: ring_tunes(&options, 4, 16, 8), ..options }
}

#[test]
fn a_graph_replays_with_other_tokens_each_time() {
    replayed(3, direct(), Build::Plain, usual::count(40));
}

#[test]
fn a_graph_of_dispatches_in_one_launch_replays_with_other_tokens_each_time() {
    replayed(3, one_launch(), Build::Plain, usual::count(40));
}

#[test]
fn a_graph_of_rings_replays_with_other_tokens_each_time() {
    replayed(2, ring(), Build::Plain, usual::count(25));
}

#[test]
fn no_access_of_a_replay_races_with_another_at_length() {
    replayed(2, direct(), Build::Checked, 3);
    replayed(2, one_launch(), Build::Checked, 3);
    replayed(2, ring(), Build::Checked, 3);
}
