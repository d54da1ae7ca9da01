//! The pipeline of this crate in the emulator: rows and tags come where they belong, and nothing but
//! luck orders no two accesses.

use ep_runtime::buffer::Placement;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::tensor::Bf16;
use ep_verify::oracle::{Oracle, Random, RoutingOptions};
use own_pipeline::run::{Dispatch, Sent};
use own_pipeline::tagged_dispatch::{Options, Shape, TuneOptions};

const RANKS: usize = 3;
const SHAPE: Shape = Shape { hidden: 144, topk: 3, experts: 7, tokens: 40, received: 40 * RANKS };

/// A group whose every access is checked; none on a machine without a C++ compiler.
fn group(seed: u64) -> Option<Group> {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    let mut options = HostOptions { build: Build::Checked, ..HostOptions::new(RANKS) };
    options.spec.seed = seed;
    Some(HostBackend::new(&programs, options).unwrap().group().unwrap())
}

/// Random rows, tags and routing of each rank, and what has to arrive where.
fn problem(random: &mut Random) -> (Vec<Sent>, Oracle) {
    let Shape { tokens, hidden, topk, experts, .. } = SHAPE;
    let routing = RoutingOptions::even(topk, experts);
    let routings: Vec<_> = (0..RANKS).map(|_| routing.routing(tokens, random)).collect();
    let sent = routings.iter().map(|routing| {
        let x = (0..tokens * hidden).map(|_| Bf16(random.bits() as u16));
        let x: Vec<Bf16> = x.collect();
        let tags = (0..tokens * 4).map(|_| random.bits() as i32).collect();
        (x, tags, routing.experts.clone(), routing.weights.clone())
    });
    let sent = sent.collect();
    (sent, Oracle::new(experts, Placement::even(experts, RANKS), routings))
}

#[test]
fn tags_come_with_their_rows() {
    for seed in 1..4 {
        let Some(group) = group(seed) else { return };
        let tunes = TuneOptions { depth: Some(16), chunk: Some(4), ..TuneOptions::default() };
        let options = Options { tunes, ..Options::default() };
        let dispatch = Dispatch::prepare(&group, SHAPE, options).unwrap();
        let mut random = Random::new(seed);
        // The second round continues in the same rings, and makes two steps with one handle.
        for call in 0..2 {
            let (sent, oracle) = problem(&mut random);
            let arrived = dispatch.send(&sent, 1 + call).unwrap();
            for (rank, (rows, tags)) in arrived.iter().enumerate() {
                let wanted = oracle.arrivals(rank);
                assert!(!wanted.is_empty());
                let part = |row: usize| (wanted[row].source, wanted[row].token);
                assert_eq!(rows.len(), wanted.len() * SHAPE.hidden, "seed {seed} call {call}");
                for (row, x) in rows.chunks(SHAPE.hidden).enumerate() {
                    let (source, token) = part(row);
                    assert!(x == &sent[source].0[token * SHAPE.hidden..][..SHAPE.hidden]);
                }
                for (row, tag) in tags.chunks(4).enumerate() {
                    let (source, token) = part(row);
                    assert_eq!(tag, &sent[source].1[token * 4..][..4], "seed {seed} call {call}");
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_the_declaration_is_refused_by_name() {
    let Some(group) = group(1) else { return };
    let tunes = TuneOptions { depth: Some(17), ..TuneOptions::default() };
    let odd = Options { tunes, ..Options::default() };
    let refused = |error: CallError| error.to_string();
    let error = Dispatch::prepare(&group, SHAPE, odd).err().map(refused).unwrap();
    assert_eq!(error, "TaggedDispatch: `depth` is 17, it takes [16, 32, 64, 128, 256, 512]");
    let narrow = Shape { hidden: 145, ..SHAPE };
    let error = Dispatch::prepare(&group, narrow, Options::default()).err().map(refused).unwrap();
    assert_eq!(error, "TaggedDispatch: `hidden` is 145, it takes 16..=32768 step 16");
    let none = Options { topk_weights: false, ..Options::default() };
    let dispatch = Dispatch::prepare(&group, SHAPE, none).unwrap();
    let (sent, _) = problem(&mut Random::new(1));
    let error = dispatch.send(&sent, 1).err().map(refused).unwrap();
    let text = "TaggedDispatch: `topk_weights` is given, but these options do not take it";
    assert_eq!(error, text);
}
