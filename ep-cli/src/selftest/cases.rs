//! The cases: one table, and what each of them does.

use ep_runtime::buffer::{BufferOptions, BuiltIn, CallOptions, Payload, Via};
use ep_runtime::error::CallError;
use ep_runtime::gpu::Sharing;
use ep_runtime::net::ResidentOptions;
use ep_runtime::pipelines::low_latency_dispatch::Payload as Moved;
use ep_runtime::tune::Destination;
use ep_verify::Findings;
use ep_verify::litmus::Litmus;
use ep_verify::litmus::litmus;
use ep_verify::options::random_shape;
use ep_verify::oracle::RoutingOptions;
use ep_verify::probe::probe;
use ep_verify::pushes::check_pushes;
use ep_verify::selftest::{Case as Run, Load, LowLatency, LowLatencyCase, Selftest, Turns, Way};

use super::{Case, Needs, Place, apart};
use crate::failure::Failure;
use crate::machine::{GpuRequest, Ranks};
use crate::problem::failed;

const ALL: &[usize] = &[1, 2, 3, 4];

/// Every case, the quickest first.
#[rustfmt::skip] // A table: one row per case.
pub(super) const CASES: &[Case] = &[
    Case { name: "probe", about: "words travel between ranks, and a silent one is named", needs: Needs::Anything, ranks: ALL, run: words },
    Case { name: "litmus", about: "each order of accesses of the device library, and its numbers", needs: Needs::Anything, ranks: ALL, run: litmus_kernels },
    Case { name: "pushes", about: "plain bulk copies arrive, here and at other ranks", needs: Needs::Anything, ranks: ALL, run: pushes },
    Case { name: "rows", about: "every payload and way, with counts that differ and absent and repeated experts", needs: Needs::Anything, ranks: ALL, run: rows },
    Case { name: "routings", about: "no tokens at all, none on one rank, all to one rank, one expert each, top-32", needs: Needs::Anything, ranks: ALL, run: routings },
    Case { name: "sms", about: "any number of SMs", needs: Needs::Anything, ranks: &[1, 2, 4], run: sms },
    Case { name: "too small", about: "an output that is too small is told on every rank", needs: Needs::Anything, ranks: &[2, 4], run: too_small },
    Case { name: "queued", about: "calls that nobody waits for, with experts that write in place", needs: Needs::Anything, ranks: &[2, 4], run: queued },
    Case { name: "copied", about: "rows in plain memory outlive the output that they came into", needs: Needs::Anything, ranks: &[2, 4], run: copied },
    Case { name: "expanded", about: "rows for each expert apart, aligned", needs: Needs::Anything, ranks: &[2, 4], run: expanded },
    Case { name: "streams", about: "calls by turns on two streams that nobody else orders", needs: Needs::Queues, ranks: &[1, 2, 4], run: streams },
    Case { name: "peer access", about: "windows that other GPUs reach by peer access alone", needs: Needs::GpuPerRank, ranks: &[2, 4], run: peer_access },
    Case { name: "same bytes", about: "ranks as threads and as processes give the same bytes", needs: Needs::Processes, ranks: &[2, 4], run: apart::same_bytes },
    Case { name: "exchanges", about: "windows go from process to process by descriptors and by CUDA IPC", needs: Needs::Processes, ranks: &[2, 4], run: apart::both_exchanges },
    Case { name: "compile once", about: "processes that start with an empty cache compile each kernel once", needs: Needs::Processes, ranks: &[2, 4], run: apart::compile_once },
    Case { name: "lost rank", about: "the other ranks report that one has ended, and go on", needs: Needs::Processes, ranks: &[2, 4], run: apart::lost_rank },
    Case { name: "lost far rank", about: "the other ranks of two nodes name one that is killed during calls, over cards that are kernels", needs: Needs::Processes, ranks: &[2, 4], run: apart::lost_far_rank },
    Case { name: "nodes", about: "processes of one rank each are two nodes, between which rows go over shm, tcp and cards that are kernels", needs: Needs::Network, ranks: &[2, 4], run: apart::nodes },
    Case { name: "graphs", about: "captured calls replay with other tokens, routing and rows each time", needs: Needs::Anything, ranks: &[1, 2, 4], run: graphs },
    Case { name: "pairs", about: "many pairs of dispatch and combine beside a load on another stream", needs: Needs::Anything, ranks: &[1, 2, 4], run: pairs },
    Case { name: "low latency", about: "calls of all sizes and phases, with ranks that are late, and that make none for a while", needs: Needs::Anything, ranks: &[2, 4], run: low_latency },
    Case { name: "cards", about: "nodes with network cards that are kernels, or models in the emulator, whose puts land in any order", needs: Needs::Anything, ranks: &[2, 4, 8], run: cards },
    Case { name: "random", about: "random shapes", needs: Needs::Anything, ranks: &[2, 4], run: random },
];

fn judged(findings: &Findings) -> Result<String, Failure> {
    match findings.is_good() {
        true => Ok(findings.to_string()),
        false => Err(Failure::Failed(findings.to_string())),
    }
}

/// Checks all of a problem.
fn check(ranks: &Ranks, run: Run) -> Result<Findings, Failure> {
    let words = format!("{run:?}");
    good(&words, Selftest::new(&ranks.group, &BuiltIn, run).and_then(|test| test.check()))
}

/// What was found, unless something was wrong; `words` say where.
fn good(words: &str, found: Result<Findings, CallError>) -> Result<Findings, Failure> {
    let found = found.map_err(|error| Failure::Failed(format!("{words}: {error}")))?;
    match found.is_good() {
        true => Ok(found),
        false => Err(Failure::Failed(format!("{words}: {found}"))),
    }
}

fn all_of(runs: impl Iterator<Item = Result<Findings, Failure>>) -> Result<String, Failure> {
    let (mut problems, mut all) = (0, Findings::default());
    for found in runs {
        all.checks.extend(found?.checks);
        problems += 1;
    }
    Ok(format!("{problems} problems: {all}"))
}

fn words(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    judged(&probe(ranks.group.backend()).map_err(failed)?)
}

fn litmus_kernels(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    let mut all = Findings::default();
    for kind in Litmus::ALL {
        let rounds = match kind {
            // Every upper half of a float with every rounding.
            Litmus::Numbers => place.either(7 << 16, 2000),
            _ => place.either(20_000, 20),
        };
        all.checks.extend(litmus(&ranks.group, kind, rounds).map_err(failed)?.checks);
    }
    judged(&all)
}

fn pushes(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    let mut all = Findings::default();
    for destination in [Destination::Others, Destination::All] {
        let bytes = place.either(64 << 20, 40_000);
        let found = check_pushes(&ranks.group, destination, bytes).map_err(failed)?;
        all.checks.push((format!("{destination:?}"), found));
    }
    judged(&all)
}

fn peer_access(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let sharing = Sharing::PeerAccess;
    let request = GpuRequest { sharing, ..place.request(ranks) };
    let ranks = Ranks::on_gpus(&request)?;
    let found = probe(ranks.group.backend()).map_err(failed)?;
    judged(&found)?;
    check(&ranks, uneven(place, &ranks, BufferOptions::new(300, 2880, 5, 12)))
        .map(|it| it.to_string())
}

/// A problem whose ranks have different numbers of tokens, one of them none.
fn uneven(place: &Place<'_>, ranks: &Ranks, options: BufferOptions) -> Run {
    let count = ranks.group.ranks();
    let call = place.call(ranks);
    let tokens = (0..count).map(|rank| options.tokens * ((rank + 1) % 3) / 2).collect();
    let routing = RoutingOptions {
        absent: 0.1,
        repeated: 0.1,
        ..RoutingOptions::even(options.topk, options.experts)
    };
    Run { tokens, routing, dispatch: call, combine: call, ..Run::even(options, count, 1) }
}

fn rows(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    let hidden = place.either(2880, 144);
    let kinds = Payload::ALL.into_iter().flat_map(|it| [(it, Via::Direct), (it, Via::Ring)]);
    all_of(kinds.map(|(payload, via)| {
        let base = BufferOptions::new(place.either(300, 10), hidden, 5, 12);
        check(&ranks, uneven(place, &ranks, BufferOptions { payload, via, biases: 1, ..base }))
    }))
}

fn routings(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    let (count, tokens) = (ranks.group.ranks(), place.either(400, 8));
    let call = place.call(&ranks);
    let usual = |topk: usize, experts: usize| {
        let options = BufferOptions::new(tokens, place.either(1024, 128), topk, experts);
        Run { dispatch: call, combine: call, ..Run::even(options, count, 1) }
    };
    let mut nobody = usual(4, 16);
    nobody.tokens = vec![0; count];
    let mut one_without = usual(4, 16);
    one_without.tokens[0] = 0;
    let mut to_one = usual(4, 16);
    to_one.routing.skew = 50.0;
    let mut none_stay = usual(4, 16);
    none_stay.routing.absent = 1.0;
    let mut all_repeated = usual(4, 16);
    all_repeated.routing.repeated = 1.0;
    let runs = [nobody, one_without, to_one, none_stay, all_repeated, usual(1, 1), usual(32, 40)];
    let both = |run: Run| {
        let mut ring = run.clone();
        ring.options.via = Via::Ring;
        [run, ring]
    };
    all_of(runs.into_iter().flat_map(both).map(|run| check(&ranks, run)))
}

/// Calls of one buffer, since what one of them leaves is what the next one finds.
fn sms(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    let most = ranks.sms().min(place.either(64, 12));
    let run = uneven(place, &ranks, BufferOptions::new(place.either(200, 5), 128, 4, 12));
    let (dispatch, combine) = (run.dispatch, run.combine);
    let mut test = Selftest::new(&ranks.group, &BuiltIn, run).map_err(failed)?;
    let numbers = [2, 64, 1, 24, 3, 12, 5, 8].into_iter().filter(|sms| *sms <= most);
    all_of(numbers.map(|sms| {
        let dispatch = CallOptions { sms: Some(sms), ..dispatch };
        test.set_calls(dispatch, CallOptions { sms: Some(sms), ..combine });
        good(&format!("{dispatch:?}"), test.check())
    }))
}

fn too_small(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    let count = ranks.group.ranks();
    // Every token goes to every rank.
    let options = BufferOptions::new(20, 128, count, count);
    let options = BufferOptions { capacity: Some(20 * count - 1), ..options };
    let run = Run { dispatch: place.call(&ranks), ..Run::even(options, count, 1) };
    let test = Selftest::new(&ranks.group, &BuiltIn, run).map_err(failed)?;
    match test.check() {
        Err(CallError::OutputTooSmall { need, have, .. })
            if (need, have) == (20 * count as u64, 20 * count as u64 - 1) =>
        {
            Ok(format!("{need} rows into {have} are refused"))
        }
        Err(other) => Err(failed(other)),
        Ok(found) => Err(Failure::Failed(format!("nobody minds, and {found}"))),
    }
}

fn queued(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    all_of([Via::Direct, Via::Ring].into_iter().map(|via| {
        let base = BufferOptions::new(place.either(500, 6), place.either(1024, 128), 4, 12);
        let mut run = uneven(place, &ranks, BufferOptions { via, live: 5, ..base });
        // What the experts give back is added up for tokens that have a row.
        run.routing.absent = 0.0;
        let test = Selftest::new(&ranks.group, &BuiltIn, run).map_err(failed)?;
        let found = test.check_back_to_back().map_err(failed)?;
        judged(&found).map(|_| found)
    }))
}

fn graphs(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    let call = place.call(&ranks);
    all_of([Via::Direct, Via::Ring].into_iter().map(|via| {
        let base = BufferOptions::new(place.either(128, 6), place.either(1024, 128), 4, 16);
        let options = BufferOptions { via, live: 2, ..base };
        let run =
            Run { dispatch: call, combine: call, ..Run::even(options, ranks.group.ranks(), 1) };
        let mut test = Selftest::new(&ranks.group, &BuiltIn, run).map_err(failed)?;
        let found = test.check_replayed(place.either(1000, 3)).map_err(failed)?;
        judged(&found).map(|_| found)
    }))
}

/// Runs a check on rows of every kind.
fn with_payloads(
    place: &Place<'_>,
    ranks: usize,
    check: fn(&Selftest) -> Result<Findings, CallError>,
) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    all_of(Payload::ALL.into_iter().map(|payload| {
        let base = BufferOptions::new(place.either(300, 8), place.either(1024, 128), 4, 12);
        let run = uneven(place, &ranks, BufferOptions { payload, ..base });
        let test = Selftest::new(&ranks.group, &BuiltIn, run).map_err(failed)?;
        let found = check(&test).map_err(failed)?;
        judged(&found).map(|_| found)
    }))
}

fn copied(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    with_payloads(place, ranks, Selftest::check_copied)
}

fn expanded(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    with_payloads(place, ranks, |test| test.check_expanded(8, 0))
}

fn random(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    let count = place.options.random.unwrap_or(place.either(100, 3));
    all_of((0..count as u64).map(|seed| {
        let share = ranks.sms();
        let run = match place.is_host() {
            // On the host a large one would take minutes.
            true => {
                let options = random_shape(&BufferOptions::new(8, 128, 2, 4), seed);
                Run::random_for(options, ranks.group.ranks(), seed)
            }
            false => Run::random(ranks.group.ranks(), seed, share),
        };
        check(&ranks, run)
    }))
}

fn pairs(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let pairs = place.options.pairs.unwrap_or(place.either(10_000, 5));
    many_pairs(place, ranks, pairs, Turns::OwnStream)
}

fn low_latency(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let pairs = place.options.pairs.unwrap_or(place.either(2000, 3));
    let told = place.group(ranks)?;
    let untold = place.group_leaving_out_absent(ranks)?;
    let cases = [
        (&told, Moved::Fp8, Way::PerExpert),
        (&untold, Moved::Bf16, Way::PerExpert),
        (&told, Moved::Fp8, Way::PerRank),
        (&told, Moved::Bf16, Way::PerRankLate),
    ];
    all_of(cases.into_iter().map(|(ranks, payload, way)| {
        let case = LowLatencyCase {
            tokens: place.either(128, 5),
            hidden: place.either(7168, 144),
            topk: place.either(8, 2),
            experts: place.either(32, 5),
            payload,
            way,
            call: place.call(ranks),
            pairs: u32::try_from(pairs).unwrap_or(u32::MAX),
        };
        let words = format!("{case:?}");
        good(&words, LowLatency::new(&ranks.group, case).and_then(|calls| calls.check()))
    }))
}

/// Two nodes, and four of 8 ranks: random problems of two hops, and low-latency pairs.
fn cards(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    let nodes = if ranks < 8 { 2 } else { 4 };
    let options = ResidentOptions { seed: 7, ..ResidentOptions::default() };
    let group = match &place.programs {
        Some(programs) => Ranks::on_host_over_cards(programs, ranks, nodes, 7)?,
        None => Ranks::over_cards(&place.request(ranks), ranks / nodes, &options)?,
    };
    let call = place.call(&group);
    // Most of the time on GPUs compiles kernels of other shapes.
    let count = place.options.random.unwrap_or(place.either(8, 1));
    let two_hops = (0..count).map(|seed| {
        let hidden = if place.is_host() { 144 } else { [128, 256, 1024, 2880, 7168][seed % 5] };
        let (topk, experts) = (1 + seed % 8, ranks * (2 + seed % 7));
        let base = BufferOptions::new(1 + 37 * seed % place.either(200, 10), hidden, topk, experts);
        let options = BufferOptions { payload: Payload::ALL[seed % Payload::ALL.len()], ..base };
        let run = Run::random_for(options, ranks, seed as u64);
        check(&group, Run { dispatch: call, combine: call, ..run })
    });
    let few = [Moved::Fp8, Moved::Bf16].into_iter().map(|payload| {
        let (tokens, hidden) = place.either((32, 1024), (5, 128));
        let (topk, experts, way) = (place.either(4, 2), 2 * ranks, Way::PerExpert);
        let pairs = place.options.pairs.unwrap_or(place.either(50, 3));
        let pairs = u32::try_from(pairs).unwrap_or(u32::MAX);
        let case = LowLatencyCase { tokens, hidden, topk, experts, payload, way, call, pairs };
        let words = format!("{case:?}");
        good(&words, LowLatency::new(&group.group, case).and_then(|calls| calls.check()))
    });
    all_of(two_hops.chain(few))
}

fn streams(place: &Place<'_>, ranks: usize) -> Result<String, Failure> {
    many_pairs(place, ranks, place.either(1000, 3), Turns::TwoStreams)
}

fn many_pairs(
    place: &Place<'_>,
    ranks: usize,
    pairs: usize,
    turns: Turns,
) -> Result<String, Failure> {
    let ranks = place.group(ranks)?;
    let base = BufferOptions::new(place.either(512, 6), place.either(2048, 128), 4, 16);
    let run = uneven(place, &ranks, BufferOptions { live: 2, ..base });
    let test = Selftest::new(&ranks.group, &BuiltIn, run).map_err(failed)?;
    let other = test.reseeded(2).map_err(failed)?;
    let load = Load::new(&ranks.group, place.either(512, 32), 1).map_err(failed)?;
    let found = test.check_pairs(&other, pairs, turns, Some(&load)).map_err(failed)?;
    judged(&found).map(|found| format!("{pairs} pairs: {found}"))
}
