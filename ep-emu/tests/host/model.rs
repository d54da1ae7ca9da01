//! Litmus tests of the PTX memory model, at each scope: the emulator shows all that an order of whole
//! accesses gives, of the weak outcomes that the model allows those which older values make, and nothing
//! else; each is named here and in docs/host.md; and what the model leaves unordered the checker reports.

use std::collections::BTreeSet;

use ep_emu::{Build, Failure, Spec, World};

use crate::support::{alloc, bytes, compile, launch, source, words};

const OPS: usize = 4;
const ROUNDS: usize = 64;
const PLACES: usize = 2;

/// What a party does; the numbers are those of `model.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Kind {
    Put = 1,
    Look,
    Release,
    Acquire,
    Add,
    AddAcqRel,
    Fence,
    Write,
    Read,
    LeaveIfZero,
}
use Kind::{Acquire, Add, AddAcqRel, Fence, LeaveIfZero, Look, Put, Read, Release, Write};

/// An operation on a place with a value.
type Op = (Kind, u64, u64);
type Program = &'static [&'static [Op]];
/// What every reading operation saw, in the order of the text, and the final values of the places.
type Outcome = Vec<u32>;

const X: u64 = 0;
const Y: u64 = 1;

impl Kind {
    fn reads(self) -> bool {
        matches!(self, Look | Acquire | Add | AddAcqRel | Read)
    }
}

/// Scopes by their numbers.
const SCOPES: [(&str, u64); 3] = [("cta", 0), ("gpu", 1), ("sys", 2)];

/// Runs a program with all parties in one block, one rank, or one group (`placed`); gives the outcomes
/// of all rounds.
fn run(
    program: Program,
    scope: u64,
    placed: u64,
    build: Build,
    (seed, shows_older): (u64, bool),
) -> Result<BTreeSet<Outcome>, Failure> {
    let parties = program.len();
    let [ranks, blocks, warps] =
        [2, 1, 0].map(|level| if placed == level { parties as u32 } else { 1 });
    let binary = compile(&source("model.cu", &[]), build);
    let spec = Spec { ranks, seed, shows_older, ..Spec::default() };
    let mut world = World::new(spec).unwrap_or_else(|error| panic!("{error}"));
    let mut buffer = |bytes, name: &str| alloc(&mut world, 0, bytes, name);
    let places = buffer(4 * PLACES * ROUNDS, "places");
    let turn = buffer(4, "turn");
    let seen = buffer(4 * ROUNDS * parties * OPS, "seen");
    let ops = buffer(12 * parties * OPS, "ops");
    let list = world.bytes_mut(ops, 12 * parties * OPS).expect("a buffer");
    for (party, own) in program.iter().enumerate() {
        for (step, (kind, place, value)) in own.iter().enumerate() {
            let numbers = [*kind as u64, *place, *value].map(|it| (it as u32).to_le_bytes());
            let at = 12 * (party * OPS + step);
            list[at..at + 12].copy_from_slice(&numbers.concat());
        }
    }
    let mut lists = Vec::new();
    for rank in 0..ranks {
        let mut launch = launch(&binary, "model", blocks, 32 * warps);
        let pairs = [scope | placed << 32, parties as u64 | (ROUNDS as u64) << 32, u64::from(rank)];
        launch.args = bytes(&[&[places.0, turn.0, seen.0, ops.0][..], &pairs].concat());
        launch.args.truncate(launch.kernel.args_bytes());
        lists.push(vec![launch]);
    }
    world.run(lists)?;
    let (seen, finals) =
        (words(&world, seen, ROUNDS * parties * OPS), words(&world, places, PLACES * ROUNDS));
    let outcome = |round: usize| {
        let all = program.iter().enumerate().flat_map(|(party, own)| {
            let base = (round * parties + party) * OPS;
            let reads = own.iter().enumerate().filter(|(_, (kind, ..))| kind.reads());
            reads.map(move |(step, _)| base + step)
        });
        let finals = (0..PLACES).map(|place| finals[place * ROUNDS + round]);
        all.map(|at| seen[at]).chain(finals).collect()
    };
    Ok((0..ROUNDS).map(outcome).collect())
}

/// Every outcome of an order of whole operations.
fn sequential(program: Program) -> BTreeSet<Outcome> {
    /// How far each party is, what was read, the places.
    type Point = (Vec<usize>, Vec<Vec<u32>>, [u32; PLACES]);
    let start: Point = (vec![0; program.len()], vec![Vec::new(); program.len()], [0; PLACES]);
    let (mut todo, mut outcomes) = (vec![start], BTreeSet::new());
    while let Some((at, reads, places)) = todo.pop() {
        let mut ended = true;
        for (party, own) in program.iter().enumerate() {
            let Some((kind, place, value)) = own.get(at[party]).copied() else { continue };
            ended = false;
            let (mut at, mut reads, mut places) = (at.clone(), reads.clone(), places);
            let (word, value) = (&mut places[place as usize], value as u32);
            at[party] += 1;
            if kind.reads() {
                reads[party].push(*word);
            }
            match kind {
                Put | Release | Write => *word = value,
                Add | AddAcqRel => *word += value,
                LeaveIfZero if reads[party].last() == Some(&0) => {
                    // What it does not do reads as nothing.
                    let left = own[at[party]..].iter().filter(|(kind, ..)| kind.reads());
                    reads[party].extend(left.map(|_| 0));
                    at[party] = own.len();
                }
                _ => {}
            }
            todo.push((at, reads, places));
        }
        if ended {
            outcomes.insert(reads.into_iter().flatten().chain(places).collect());
        }
    }
    outcomes
}

/// A litmus test of strong operations.
struct Litmus {
    name: &'static str,
    program: Program,
    /// An outcome that no order of whole operations gives.
    weak: &'static [u32],
    /// What becomes of it.
    is: Weak,
}

/// A weak outcome in the PTX model, and here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weak {
    Forbidden,
    Shown,
    /// Allowed, and never seen.
    NotShown,
}

const fn forbidden(name: &'static str, program: Program, weak: &'static [u32]) -> Litmus {
    Litmus { name, program, weak, is: Weak::Forbidden }
}

const fn shown(name: &'static str, program: Program, weak: &'static [u32]) -> Litmus {
    Litmus { name, program, weak, is: Weak::Shown }
}

const fn not_shown(name: &'static str, program: Program, weak: &'static [u32]) -> Litmus {
    Litmus { name, program, weak, is: Weak::NotShown }
}

const LITMUS: [Litmus; 17] = [
    shown("MP", &[&[(Put, X, 1), (Put, Y, 1)], &[(Look, Y, 0), (Look, X, 0)]], &[1, 0, 1, 1]),
    forbidden(
        "MP, release and acquire",
        &[&[(Put, X, 1), (Release, Y, 1)], &[(Acquire, Y, 0), (Look, X, 0)]],
        &[1, 0, 1, 1],
    ),
    forbidden(
        "MP, fences",
        &[&[(Put, X, 1), (Fence, X, 0), (Put, Y, 1)], &[(Look, Y, 0), (Fence, X, 0), (Look, X, 0)]],
        &[1, 0, 1, 1],
    ),
    forbidden(
        "MP, an atomic between",
        &[&[(Put, X, 1), (Release, Y, 1)], &[(Add, Y, 1)], &[(Acquire, Y, 0), (Look, X, 0)]],
        &[1, 2, 0, 1, 2],
    ),
    shown("SB", &[&[(Put, X, 1), (Look, Y, 0)], &[(Put, Y, 1), (Look, X, 0)]], &[0, 0, 1, 1]),
    shown(
        "SB, release and acquire",
        &[&[(Release, X, 1), (Acquire, Y, 0)], &[(Release, Y, 1), (Acquire, X, 0)]],
        &[0, 0, 1, 1],
    ),
    forbidden(
        "SB, fences",
        &[&[(Put, X, 1), (Fence, X, 0), (Look, Y, 0)], &[(Put, Y, 1), (Fence, X, 0), (Look, X, 0)]],
        &[0, 0, 1, 1],
    ),
    not_shown("LB", &[&[(Look, X, 0), (Put, Y, 1)], &[(Look, Y, 0), (Put, X, 1)]], &[1, 1, 1, 1]),
    forbidden(
        "LB, acquire and release",
        &[&[(Acquire, X, 0), (Release, Y, 1)], &[(Acquire, Y, 0), (Release, X, 1)]],
        &[1, 1, 1, 1],
    ),
    shown(
        "IRIW",
        &[
            &[(Put, X, 1)],
            &[(Put, Y, 1)],
            &[(Look, X, 0), (Look, Y, 0)],
            &[(Look, Y, 0), (Look, X, 0)],
        ],
        &[1, 0, 1, 0, 1, 1],
    ),
    shown(
        "IRIW, release and acquire",
        &[
            &[(Release, X, 1)],
            &[(Release, Y, 1)],
            &[(Acquire, X, 0), (Acquire, Y, 0)],
            &[(Acquire, Y, 0), (Acquire, X, 0)],
        ],
        &[1, 0, 1, 0, 1, 1],
    ),
    forbidden(
        "IRIW, fences",
        &[
            &[(Put, X, 1)],
            &[(Put, Y, 1)],
            &[(Look, X, 0), (Fence, X, 0), (Look, Y, 0)],
            &[(Look, Y, 0), (Fence, X, 0), (Look, X, 0)],
        ],
        &[1, 0, 1, 0, 1, 1],
    ),
    forbidden("CoRR", &[&[(Put, X, 1)], &[(Look, X, 0), (Look, X, 0)]], &[1, 0, 1, 0]),
    forbidden("CoRW", &[&[(Look, X, 0), (Put, X, 1)], &[(Put, X, 2)]], &[2, 2, 0]),
    not_shown("2+2W", &[&[(Put, X, 1), (Put, Y, 2)], &[(Put, Y, 1), (Put, X, 2)]], &[1, 1]),
    forbidden(
        "WRC, release and acquire",
        &[&[(Put, X, 1)], &[(Acquire, X, 0), (Release, Y, 1)], &[(Acquire, Y, 0), (Look, X, 0)]],
        &[1, 1, 0, 1, 1],
    ),
    forbidden("atomics are whole", &[&[(Add, X, 1)], &[(Add, X, 1)]], &[0, 0, 1, 0]),
];

/// Seeds of 64 rounds each until every outcome has been seen; far fewer do.
const MOST_SEEDS: u64 = 400;

/// What a test shows at a scope, until all that is wanted has been seen.
fn seen(
    it: &Litmus,
    scope: u64,
    shows_older: bool,
    wanted: &BTreeSet<Outcome>,
) -> BTreeSet<Outcome> {
    let mut seen = BTreeSet::new();
    for seed in 1..MOST_SEEDS {
        let found = run(it.program, scope, scope, Build::Checked, (seed, shows_older));
        seen.extend(found.unwrap_or_else(|failure| panic!("{}: {failure}", it.name)));
        if seed > 3 && seen.is_superset(wanted) {
            break;
        }
    }
    seen
}

#[test]
fn every_order_is_seen_and_nothing_else() {
    for it in &LITMUS {
        let possible = sequential(it.program);
        assert!(!possible.contains(it.weak), "{}", it.name);
        for (level, scope) in SCOPES {
            assert_eq!(seen(it, scope, false, &possible), possible, "{} at {level}", it.name);
        }
    }
}

/// What a word held before is found where the model allows that, and nowhere else.
#[test]
fn weak_outcomes_are_seen_where_the_model_allows_them() {
    for it in &LITMUS {
        let mut wanted = sequential(it.program);
        if it.is == Weak::Shown {
            wanted.insert(it.weak.to_vec());
        }
        for (level, scope) in SCOPES {
            let seen = seen(it, scope, true, &wanted);
            match it.is {
                Weak::Shown => assert!(seen.is_superset(&wanted), "{} at {level}", it.name),
                _ => assert_eq!(seen, wanted, "{} at {level}", it.name),
            }
        }
    }
}

/// Too narrow a scope leaves strong accesses as they were without any: a race.
#[test]
fn every_test_is_a_race_in_too_narrow_a_scope() {
    for Litmus { name, program, .. } in &LITMUS {
        for (scope, placed) in [(0, 1), (0, 2), (1, 2)] {
            for seed in 1..4 {
                let failure =
                    run(program, scope, placed, Build::Checked, (seed, true)).expect_err(name);
                assert!(failure.message.contains("[scopes]"), "{name}: {failure}");
            }
        }
    }
}

/// Weak data behind a flag: which flags order it.
const PASSED: [(&str, Program, bool); 8] = [
    (
        "release and acquire",
        &[&[(Write, X, 1), (Release, Y, 1)], &[(Acquire, Y, 0), (LeaveIfZero, X, 0), (Read, X, 0)]],
        true,
    ),
    (
        "a relaxed store",
        &[&[(Write, X, 1), (Put, Y, 1)], &[(Acquire, Y, 0), (LeaveIfZero, X, 0), (Read, X, 0)]],
        false,
    ),
    (
        "a relaxed look",
        &[&[(Write, X, 1), (Release, Y, 1)], &[(Look, Y, 0), (LeaveIfZero, X, 0), (Read, X, 0)]],
        false,
    ),
    (
        "a fence before the store",
        &[
            &[(Write, X, 1), (Fence, X, 0), (Put, Y, 1)],
            &[(Acquire, Y, 0), (LeaveIfZero, X, 0), (Read, X, 0)],
        ],
        true,
    ),
    (
        "an atomic that passes it on",
        &[
            &[(Write, X, 1), (Release, Y, 1)],
            &[(Add, Y, 0)],
            &[(Acquire, Y, 0), (LeaveIfZero, X, 0), (Read, X, 0)],
        ],
        true,
    ),
    (
        "a store that takes its place",
        &[
            &[(Write, X, 1), (Release, Y, 1)],
            &[(Look, Y, 0), (LeaveIfZero, X, 0), (Put, Y, 2)],
            &[(Acquire, Y, 0), (LeaveIfZero, X, 0), (Read, X, 0)],
        ],
        false,
    ),
    (
        "a chain of two",
        &[
            &[(Write, X, 1), (AddAcqRel, Y, 1)],
            &[(AddAcqRel, Y, 1), (LeaveIfZero, X, 0), (Read, X, 0)],
        ],
        true,
    ),
    ("nothing", &[&[(Write, X, 1)], &[(Read, X, 0)]], false),
];

#[test]
fn weak_data_wants_a_release_and_an_acquire_at_length() {
    for (name, program, is_ordered) in PASSED {
        for (level, scope) in SCOPES {
            let runs = (1..12).map(|seed| run(program, scope, scope, Build::Checked, (seed, true)));
            let failures: Vec<Failure> = runs.filter_map(Result::err).collect();
            assert_eq!(failures.is_empty(), is_ordered, "{name} at {level}: {failures:?}");
            for failure in failures {
                assert!(failure.message.contains("[warps]"), "{name} at {level}: {failure}");
            }
        }
    }
}

/// What a kernel of the proxies leaves in its result, by seed, and the reports of the checker.
fn proxies(kernel: &str, edit: Option<(&str, &str)>) -> (BTreeSet<u32>, Vec<Failure>) {
    let source = source("model.cu", edit.as_slice());
    let (mut results, mut reports) = (BTreeSet::new(), Vec::new());
    for build in [Build::Plain, Build::Checked] {
        let program = compile(&source, build);
        for seed in 1..60 {
            let mut world = World::new(Spec { seed, ..Spec::default() }).expect("a world");
            let [data, flag, result] =
                ["data", "flag", "result"].map(|name| alloc(&mut world, 0, 128, name));
            let blocks = if kernel == "two_copies" { 1 } else { 2 };
            let mut launch = launch(&program, kernel, blocks, 32);
            launch.shared_bytes = 128;
            launch.args = bytes(&[data.0, flag.0, result.0]);
            match world.run(vec![vec![launch]]) {
                Ok(_) => results.extend(words(&world, result, 1)),
                Err(failure) => reports.push(failure),
            }
        }
    }
    (results, reports)
}

#[test]
fn the_async_proxy_shows_its_weak_outcomes() {
    let early = ("ep::tma_wait_stored<0>();", "ep::tma_wait_read<0>();");
    let told = "told_after_a_wait";
    let (results, reports) = proxies(told, None);
    assert_eq!((results, reports.len()), (BTreeSet::from([3]), 0));
    // A wait for the reads alone: the row comes when it comes.
    let (results, reports) = proxies(told, Some(early));
    assert_eq!(results, BTreeSet::from([2, 3]));
    assert!(reports.len() > 50 && reports.iter().all(|it| it.message.contains("[full_wait]")));

    let (results, reports) = proxies("two_copies", None);
    assert_eq!(results, BTreeSet::from([1, 2]), "either copy may be the last");
    assert!(reports.len() > 50 && reports.iter().all(|it| it.message.contains("[bulk_wait]")));
    let mended = ("/* mended */", "ep::tma_wait_stored<0>();");
    let (results, reports) = proxies("two_copies", Some(mended));
    assert_eq!((results, reports.len()), (BTreeSet::from([2]), 0));
}

#[test]
fn what_the_emulator_cannot_show_is_said() {
    let page = include_str!("../../host.md");
    for Litmus { name, is, .. } in &LITMUS {
        let row = page.lines().find(|line| line.starts_with(&format!("| {name} |")));
        let row = row.unwrap_or_else(|| panic!("docs/host.md has no row for {name}"));
        let wanted = match is {
            Weak::Forbidden => "| forbidden, never seen |",
            Weak::Shown => "| allowed, shown |",
            Weak::NotShown => "| allowed, not shown |",
        };
        assert!(row.contains(wanted), "{row}");
    }
}
