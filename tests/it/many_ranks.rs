//! Rows between more than 64 ranks of several nodes, so many that a word has no bit for each.

use ep_runtime::buffer::{BufferOptions, BuiltIn, CallOptions};
use ep_runtime::group::Group;
use ep_runtime::host::{HostBackend, HostOptions};
use ep_runtime::net::ModelOptions;
use ep_runtime::pipelines::low_latency_dispatch::Payload;
use ep_verify::selftest::{Case, LowLatency, LowLatencyCase, Selftest, Way};

use crate::host::programs;

/// Ranks of so many nodes. None on a machine without a C++ compiler.
fn group(nodes: usize, local_ranks: usize) -> Option<Group> {
    let mut options = HostOptions::new(nodes * local_ranks);
    options.spec.max_resident_blocks = 2;
    let backend = HostBackend::new(programs()?, options).expect("there is a host");
    Some(Group::over_model(&backend, nodes, &ModelOptions::default()).expect("there is a group"))
}

/// Makes one dispatch and its combine.
fn pass_at_low_latency(nodes: usize, local_ranks: usize, way: Way) {
    let Some(group) = group(nodes, local_ranks) else { return };
    let case = LowLatencyCase {
        tokens: 1,
        hidden: 128,
        topk: 2,
        experts: nodes * local_ranks,
        payload: Payload::Bf16,
        way,
        call: CallOptions::sms(1),
        pairs: 1,
    };
    let found = LowLatency::new(&group, case).and_then(|calls| calls.check());
    let found = found.unwrap_or_else(|error| panic!("{error}"));
    assert!(found.is_good(), "{found}");
}

fn pass_in_two_hops(nodes: usize, local_ranks: usize) {
    let Some(group) = group(nodes, local_ranks) else { return };
    let ranks = nodes * local_ranks;
    let mut options =
        BufferOptions { weights: false, cached: false, ..BufferOptions::new(1, 16, 2, ranks) };
    options.tunes.node_dispatch.stripes = Some(4);
    let case = Case::even(options, ranks, 2);
    let found = Selftest::new(&group, &BuiltIn, case).and_then(|test| test.check());
    let found = found.unwrap_or_else(|error| panic!("{error}"));
    assert!(found.is_good(), "{found}");
}

#[test]
fn low_latency_rows_travel_between_66_ranks_at_length() {
    pass_at_low_latency(33, 2, Way::PerExpert);
}

#[test]
fn low_latency_rows_travel_once_for_each_of_66_ranks_at_length() {
    pass_at_low_latency(33, 2, Way::PerRank);
}

#[test]
fn weights_follow_to_each_of_66_ranks_at_length() {
    pass_at_low_latency(33, 2, Way::PerRankLate);
}

#[test]
fn rows_travel_in_two_hops_between_72_ranks_at_length() {
    pass_in_two_hops(9, 8);
}
