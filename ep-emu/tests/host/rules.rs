//! Each rule of the checker: kernels that keep it are clean, the same with one word changed break
//! exactly this rule, and a checker without the rule no longer sees it.

use ep_emu::{
    Beside, Build, Failure, FailureKind, LaunchTensor, Raising, Rule, Rules, RunStats, Spec, Told,
    World,
};

use crate::relay::Relay;
use crate::support::{alloc, bytes, compile, launch, source};

/// Seeds of a clean run.
const CLEAN_SEEDS: u64 = 40;

/// How a kernel of `litmus.cu` is launched.
#[derive(Clone, Copy)]
struct Shape {
    ranks: u32,
    blocks: u32,
    threads: u32,
    launches: usize,
    comes_early: bool,
}

const BLOCKS: Shape = Shape { blocks: 2, ..LANES };
const PEERS: Shape = Shape { ranks: 2, ..LANES };
const WARPS: Shape = Shape { threads: 128, ..LANES };
const LANES: Shape = Shape { ranks: 1, blocks: 1, threads: 32, launches: 1, comes_early: false };
const EARLY: Shape = Shape { launches: 3, comes_early: true, ..LANES };
const EARLY_PEERS: Shape = Shape { ranks: 2, launches: 2, ..EARLY };

/// Runs a kernel of `litmus.cu` once.
fn litmus(
    kernel: &str,
    shape: Shape,
    edits: &[(&str, &str)],
    seed: u64,
    rules: Rules,
) -> Result<RunStats, Failure> {
    let mut source = source("litmus.cu", &[]);
    let start = source.text.find(&format!("void {kernel}(")).expect("the kernel");
    for (from, to) in edits {
        let (head, tail) = source.text.split_at(start);
        assert!(tail.contains(from), "{kernel} has no {from:?}");
        source.text = format!("{head}{}", tail.replacen(from, to, 1));
    }
    let program = compile(&source, Build::Checked);
    let spec = Spec { ranks: shape.ranks, seed, rules, ..Spec::default() };
    let mut world = World::new(spec).unwrap_or_else(|error| panic!("{error}"));
    let [data, flag, pair] = ["data", "flag", "pair"].map(|name| alloc(&mut world, 0, 512, name));
    let mut lists = Vec::new();
    for rank in 0..shape.ranks {
        let result = alloc(&mut world, rank, 512, "result");
        let last = u64::from(rank) | u64::from(shape.blocks) << 32;
        let mut launch = launch(&program, kernel, shape.blocks, shape.threads);
        launch.shared_bytes = 1024;
        launch.comes_early = shape.comes_early;
        launch.args = bytes(&[data.0, flag.0, pair.0, result.0, last]);
        match kernel {
            "beside" => {
                let steps = vec![Raising { written: vec![(data, 512)], raised: vec![flag] }];
                world.run_beside(vec![Beside { rank, steps, told: Vec::new() }]);
            }
            "beside_in_turn" => {
                let half = |at: u64| Raising {
                    written: vec![(data.offset(256 * at), 256)],
                    raised: vec![flag.offset(4 * at)],
                };
                world.run_beside(vec![Beside {
                    rank,
                    steps: vec![half(0), half(1)],
                    told: Vec::new(),
                }]);
            }
            "told" => {
                let told = vec![Told { words: (flag, 4), memory: vec![(data, 512)] }];
                world.run_beside(vec![Beside { rank, steps: Vec::new(), told }]);
            }
            _ => {}
        }
        if ["lent", "filled"].contains(&kernel) {
            launch.tensors.push(LaunchTensor { name: "data".to_owned(), at: data, row_bytes: 0 });
        }
        lists.push(vec![launch; shape.launches]);
    }
    world.run(lists)
}

/// Every kernel that should be clean.
const CLEAN: [(&str, Shape); 20] = [
    ("message", BLOCKS),
    ("message_to_peer", PEERS),
    ("message_by_fence", BLOCKS),
    ("last_block", Shape { blocks: 5, ..BLOCKS }),
    ("chain", Shape { blocks: 3, ..BLOCKS }),
    ("lanes", LANES),
    ("half_warps", LANES),
    ("warps", WARPS),
    ("leader", BLOCKS),
    ("shared_word", WARPS),
    ("whole_word", BLOCKS),
    ("read_only", BLOCKS),
    ("offer_to_peer", Shape { launches: 2, ..PEERS }),
    ("lent", PEERS),
    ("filled", PEERS),
    ("next_launch", Shape { launches: 3, ..LANES }),
    ("next_early", EARLY),
    ("next_early", Shape { comes_early: false, ..EARLY }),
    ("offer_early", EARLY_PEERS),
    ("offer_early", Shape { comes_early: false, ..EARLY_PEERS }),
];

#[test]
fn ordered_kernels_are_clean_at_length() {
    for (kernel, shape) in CLEAN {
        for seed in 1..CLEAN_SEEDS {
            litmus(kernel, shape, &[], seed, Rules::ALL)
                .unwrap_or_else(|failure| panic!("{kernel}: {failure}"));
        }
    }
}

/// A planted bug in a kernel of `litmus.cu` and the rule that it breaks.
struct Planted {
    kernel: &'static str,
    shape: Shape,
    edit: (&'static str, &'static str),
    rule: Rule,
}

const fn planted(
    kernel: &'static str,
    shape: Shape,
    edit: (&'static str, &'static str),
    rule: Rule,
) -> Planted {
    Planted { kernel, shape, edit, rule }
}

const PLANTED: [Planted; 28] = [
    planted("message", BLOCKS, ("fetch_add_acq_rel_gpu", "fetch_add_relaxed_gpu"), Rule::Warps),
    planted("message", BLOCKS, ("ep::load_acquire_gpu(args.flag);", ""), Rule::Warps),
    planted(
        "message",
        BLOCKS,
        ("ep::fetch_add_acq_rel_gpu(args.flag, 1)", "__threadfence(), *args.flag = 1"),
        Rule::Warps,
    ),
    planted(
        "message_to_peer",
        PEERS,
        ("ep::store_release_sys", "__threadfence(), ep::store_relaxed_gpu"),
        Rule::Scopes,
    ),
    planted("message_to_peer", PEERS, ("load_relaxed_sys", "load_relaxed_gpu"), Rule::Scopes),
    planted("message_to_peer", PEERS, ("ep::load_acquire_sys(args.flag);", ""), Rule::Warps),
    planted("message_by_fence", BLOCKS, ("__threadfence();  // writer", ""), Rule::Warps),
    planted("message_by_fence", BLOCKS, ("__threadfence();  // reader", ""), Rule::Warps),
    planted("last_block", BLOCKS, ("fetch_add_acq_rel_gpu", "fetch_add_relaxed_gpu"), Rule::Warps),
    planted(
        "chain",
        Shape { blocks: 3, ..BLOCKS },
        (
            "ep::fetch_add_acq_rel_gpu(args.flag + 1, 1)",
            "ep::fetch_add_relaxed_gpu(args.flag + 1, 1)",
        ),
        Rule::Warps,
    ),
    planted("lanes", LANES, ("__syncwarp();", "__ballot_sync(ep::kAllLanes, 1);"), Rule::Lanes),
    planted("half_warps", LANES, ("lane ^ 15", "lane ^ 16"), Rule::Lanes),
    planted("warps", WARPS, ("__syncthreads();", "__syncwarp();"), Rule::Warps),
    planted("leader", BLOCKS, ("__syncwarp();  // writers", ""), Rule::Warps),
    planted("leader", BLOCKS, ("__syncwarp();  // readers", ""), Rule::Warps),
    planted(
        "shared_word",
        WARPS,
        (
            "ep::load_acquire_shared(&smem.word) != 1",
            "*(volatile u64*)&smem.word != 1 && ep::clock_ns() < 100000",
        ),
        Rule::Warps,
    ),
    planted(
        "whole_word",
        BLOCKS,
        (
            "ep::store_relaxed_sys(args.pair, u64(7) << 32 | 1)",
            "ep::store_relaxed_sys(reinterpret_cast<u32*>(args.pair), 1)",
        ),
        Rule::WholeWords,
    ),
    planted(
        "read_only",
        BLOCKS,
        ("args.result[blockIdx.x] =", "args.data[0] = 1 +"),
        Rule::ReadOnly,
    ),
    planted(
        "offer_to_peer",
        Shape { launches: 2, ..PEERS },
        ("store_entry_sys", "store_relaxed_sys"),
        Rule::Warps,
    ),
    // It says nothing of what its own launch did.
    planted(
        "offer_to_peer",
        Shape { launches: 2, ..PEERS },
        ("if (launch == 1)", "if (launch == 2)"),
        Rule::Warps,
    ),
    // It ends before the other one has read, or without knowing that it has.
    planted("lent", PEERS, ("(heard) == 0u) {", "(heard) == 0u && args.rank == 1) {"), Rule::Lent),
    planted(
        "lent",
        PEERS,
        ("ep::load_acquire_sys(heard);", "if (args.rank == 1) ep::load_acquire_sys(heard);"),
        Rule::Lent,
    ),
    planted("filled", PEERS, ("ep::load_acquire_sys(args.flag);", ""), Rule::Lent),
    // What launches before did is not known to one that may begin before they are over.
    planted("next_early", EARLY, ("ep::after_last_kernel();", ""), Rule::Warps),
    planted("next_launch", EARLY, ("args.data[0]", "args.data[0]"), Rule::Warps),
    planted("offer_early", EARLY_PEERS, ("store_entry_sys", "store_relaxed_sys"), Rule::Warps),
    planted("offer_early", EARLY_PEERS, ("ep::after_last_kernel();", ""), Rule::Warps),
    planted("one_read", LANES, ("args.data[0];", "args.data[130];"), Rule::Bounds),
];

/// A block that has let the next launch in, which may hold the SMs of those that are waited for, waits for nobody.
#[test]
fn nobody_waits_beside_the_next_launch() {
    let shape = Shape { threads: 64, ..BLOCKS };
    let run = |edits: &[(&str, &str)], seed| litmus("next_beside", shape, edits, seed, Rules::ALL);
    let waiter = "if (blockIdx.x == 0 && threadIdx.x == 32) {";
    let brings =
        format!("if (threadIdx.x == 0) ep::bring_next_kernel();\n__syncthreads();\n{waiter}");
    let mut found = 0;
    for seed in 1..16 {
        run(&[], seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        // Before the wait, and beside it.
        let failure = run(&[(waiter, &brings)], seed).expect_err("it waits");
        assert_eq!(failure.kind, FailureKind::Deadlock, "{failure}");
        assert!(failure.message.contains("has let the next kernel start"), "{failure}");
        found += usize::from(run(&[("__syncthreads();", "")], seed).is_err());
    }
    assert!(found > 0, "no schedule shows a wait that has begun");
}

/// What a kernel beside this one writes may be read behind a word of its own, acquired at the scope of the device.
#[test]
fn what_is_written_beside_is_read_behind_its_word() {
    let run = |edits: &[(&str, &str)], seed| litmus("beside", LANES, edits, seed, Rules::ALL);
    let acquire = "ep::load_acquire_gpu(args.flag);";
    for seed in 1..8 {
        run(&[], seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        for edit in ["", "ep::load_acquire_gpu(args.flag + 1);", "ep::load_relaxed_gpu(args.flag);"]
        {
            let failure = run(&[(acquire, edit)], seed).expect_err("nothing orders the two");
            let says = "after the write by a kernel that runs at the same time as that of rank 0\n";
            assert!(failure.message.contains(says), "{edit:?}: {failure}");
        }
    }
}

/// A word publishes what the kernel that raises it has written until then.
#[test]
fn what_is_written_beside_in_turn_is_read_behind_its_own_word() {
    let run = |edits: &[(&str, &str)]| litmus("beside_in_turn", LANES, edits, 1, Rules::ALL);
    let (first, last) =
        ("ep::load_acquire_gpu(args.flag);", "ep::load_acquire_gpu(args.flag + 1);");
    run(&[]).unwrap_or_else(|failure| panic!("{failure}"));
    for edit in [(first, ""), (last, ""), (last, first)] {
        let failure = run(&[edit]).expect_err("each word tells of its half");
        let says = "after the write by a kernel that runs at the same time as that of rank 0\n";
        assert!(failure.message.contains(says), "{edit:?}: {failure}");
    }
}

/// What a kernel tells one beside it of is there when the word is raised, in launches that follow one another as well.
#[test]
fn what_is_read_beside_is_there_when_its_word_is_raised() {
    let twice = Shape { launches: 2, ..LANES };
    let run = |edits: &[(&str, &str)], seed| litmus("told", twice, edits, seed, Rules::ALL);
    let (meet, store) = ("__syncwarp();", "args.data[threadIdx.x] = 1;");
    let raise = "ep::add_release_gpu(args.flag, 1u);";
    for seed in 1..8 {
        run(&[], seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        for edits in [
            &[(meet, "")][..],
            &[(raise, "ep::store_relaxed_gpu(args.flag, 1u);")],
            &[(raise, "ep::add_release_gpu(args.flag + 1, 1u);")],
            &[(store, ""), (raise, &format!("{raise} {store}"))],
        ] {
            let failure = run(edits, seed).expect_err("the word tells of it too early");
            let says = "read of data of rank 0 + 0 by a kernel that runs at the same time as that of rank 0\n";
            let says = [says, &says.replace("+ 0", "+ 4")];
            assert!(says.iter().any(|it| failure.message.contains(*it)), "{edits:?}: {failure}");
        }
    }
}

#[test]
fn each_planted_race_is_found_at_once_and_by_its_rule() {
    for bug in &PLANTED {
        let what = format!("{} with {:?}", bug.kernel, bug.edit);
        for seed in 1..8 {
            let failure = litmus(bug.kernel, bug.shape, &[bug.edit], seed, Rules::ALL)
                .expect_err(&format!("{what}, seed {seed}"));
            if bug.rule == Rule::Bounds {
                assert_eq!(failure.kind, FailureKind::OutOfBounds, "{what}: {failure}");
                continue;
            }
            assert_eq!(failure.kind, FailureKind::Race, "{what}: {failure}");
            let name = format!("[{}]", bug.rule.name());
            assert!(failure.message.contains(&name), "{what}, seed {seed}: {failure}");
        }
    }
}

#[test]
fn without_its_rule_a_planted_race_is_not_found() {
    for bug in &PLANTED {
        let rules = Rules::ALL.without(bug.rule);
        let named = format!("[{}]", bug.rule.name());
        for seed in 1..4 {
            if let Err(failure) = litmus(bug.kernel, bug.shape, &[bug.edit], seed, rules) {
                let what = format!("{} with {:?}", bug.kernel, bug.edit);
                assert!(!failure.message.contains(&named), "{what}: {failure}");
            }
        }
    }
}

/// Bugs in `relay.cu`, and the rule or the kind of failure that shows each.
const RELAY: [(&str, &str, Result<Rule, FailureKind>); 16] = [
    ("ep::tma_wait_stored<0>();", "ep::tma_wait_read<0>();", Ok(Rule::FullWait)),
    (
        "ep::store_release_sys(args.tail_there",
        "ep::store_relaxed_sys(args.tail_there",
        Ok(Rule::BulkWait),
    ),
    (
        "ep::store_release_sys(args.tail_there",
        "__threadfence(), ep::store_relaxed_gpu(args.tail_there",
        Ok(Rule::Scopes),
    ),
    ("ep::load_acquire_sys(args.tail_here);  // M2: arrival", "", Ok(Rule::BulkWait)),
    ("ep::fence_proxy_async_global();        //", "//", Ok(Rule::LoadFence)),
    ("ep::fence_proxy_async_shared();  // M3: writer", "// M3", Ok(Rule::WriterFence)),
    (
        "ep::fence_proxy_async_shared();  // M3: writer",
        "if (lane == 0) ep::fence_proxy_async_shared();  // M3",
        Ok(Rule::WriterFence),
    ),
    ("ep::fence_proxy_async_shared();  // M3: reader", "// M3", Ok(Rule::ReaderFence)),
    (
        "ep::fence_proxy_async_shared();  // M3: reader",
        "if (lane == 0) ep::fence_proxy_async_shared();  // M3",
        Ok(Rule::ReaderFence),
    ),
    ("ep::fence_proxy_async_global();  // M4", "// M4", Ok(Rule::CreditFence)),
    ("ep::load_acquire_sys(args.head_here);", "", Ok(Rule::BulkWait)),
    (
        "ep::store_release_sys(args.head_back",
        "ep::store_relaxed_sys(args.head_back",
        Ok(Rule::BulkWait),
    ),
    (">= kDepth)", ">= kDepth + 1)", Ok(Rule::BulkWait)),
    (
        "ep::tma_wait_stored<0>();  // M1",
        "row + 1 == args.rows ? ep::tma_wait_stored<0>() : ep::tma_wait_stored<1>();  // M1",
        Ok(Rule::BulkWait),
    ),
    ("ep::fence_mbarrier_init();", "", Err(FailureKind::Mbarrier)),
    ("    __syncthreads();", "", Ok(Rule::MbarrierInit)),
];

fn relay(edit: (&str, &str), seed: u64, rules: Rules) -> Result<RunStats, Failure> {
    let spec = Spec { ranks: 2, seed, rules, ..Spec::default() };
    Relay::new(spec, 11, Build::Checked, &[edit]).run(2)
}

/// Bugs that show only when one side is ahead by a certain number of rows.
const RARE: [&str; 2] = [">= kDepth)", "ep::tma_wait_stored<0>();  // M1"];

#[test]
fn every_rule_has_a_bug_that_breaks_it() {
    let planted = PLANTED.iter().map(|bug| bug.rule);
    let in_relay = RELAY.iter().filter_map(|(.., expected)| expected.ok());
    let covered: Vec<Rule> = planted.chain(in_relay).collect();
    for rule in Rule::ALL {
        assert!(covered.contains(&rule), "no planted bug breaks `{}`", rule.name());
    }
}

#[test]
fn every_memory_rule_is_held() {
    for (from, to, expected) in &RELAY {
        let what = format!("{from:?} as {to:?}");
        let found: Vec<_> =
            (1..10).filter_map(|seed| relay((from, to), seed, Rules::ALL).err()).collect();
        let least = if RARE.contains(from) { 4 } else { 9 };
        assert!(found.len() >= least, "{what}: found in {} of 9 runs", found.len());
        for failure in found {
            match expected {
                // Who comes early enough finds no mbarrier at all.
                Ok(Rule::MbarrierInit) if failure.kind == FailureKind::Mbarrier => {}
                Ok(rule) => {
                    let named = format!("[{}]", rule.name());
                    assert!(failure.message.contains(&named), "{what}: {failure}");
                }
                Err(kind) => assert_eq!(failure.kind, *kind, "{what}: {failure}"),
            }
        }
    }
}

#[test]
fn a_wrong_phase_is_found() {
    let edit = ("row / kStages % 2);\n        // Every", "row % 2);\n        // Every");
    for seed in 1..10 {
        // Which sign it gives first, a race or a wait that never ends, depends on the schedule.
        relay(edit, seed, Rules::ALL).expect_err("a phase that is not this load's");
    }
}

#[test]
fn without_its_rule_a_relay_bug_passes_the_checker() {
    for (from, to, expected) in &RELAY {
        let Ok(rule) = expected else { continue };
        let named = format!("[{}]", rule.name());
        if let Err(failure) = relay((from, to), 1, Rules::ALL.without(*rule)) {
            assert!(!failure.message.contains(&named), "{failure}");
        }
    }
}

#[test]
fn a_policy_can_be_waived_where_a_channel_says_so() {
    let edit = ("ep::fence_proxy_async_global();        //", "//");
    let run = |waived: Rules, in_slots: bool| {
        let spec = Spec { ranks: 2, ..Spec::default() };
        let mut relay = Relay::new(spec, 11, Build::Checked, &[edit]);
        relay.waive(waived, in_slots);
        relay.run(2)
    };
    assert!(Rule::LoadFence.is_policy());
    run(Rules::NONE.with(Rule::LoadFence), true).unwrap_or_else(|failure| panic!("{failure}"));
    run(Rules::NONE.with(Rule::LoadFence), false).expect_err("another buffer");
    let failure = run(Rules::NONE.with(Rule::CreditFence), true).expect_err("another policy");
    assert!(failure.message.contains("slots.ring of rank"), "{failure}");
}

#[test]
fn the_relay_is_clean_in_many_schedules_at_length() {
    for seed in 1..200 {
        let spec = Spec { ranks: 3, seed, ..Spec::default() };
        let mut relay = Relay::new(spec, 9, Build::Checked, &[]);
        relay.run(3).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(relay.wrong_rows(), 0);
    }
}
