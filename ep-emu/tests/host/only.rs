//! One kernel for each way to weaken the checker: it breaks one rule, and with one edit none. A
//! checker that lets one of them pass, or reports a clean one, has lost a rule.

use ep_emu::{Build, Failure, FailureKind, Rule, RunStats, Spec, World};

use crate::support::{alloc, bytes, compile, launch, source};

const ONLY_HEADER: &str = include_str!("../kernels/only.cuh");

/// The kernels of `only_scopes.cu`; all others are in `only.cu`.
const OF_SCOPES: [&str; 7] = [
    "narrow_acquire",
    "narrow_release",
    "narrow_fence_of_the_writer",
    "narrow_fence_of_the_reader",
    "narrow_acquire_after_a_look",
    "wide_fence_before_a_store",
    "wide_fence_behind_a_look",
];

/// What a kernel is run as.
#[derive(Clone, Copy)]
struct Shape {
    ranks: u32,
    blocks: u32,
    launches: usize,
    resident: u32,
}

const BLOCKS: Shape = Shape { ranks: 1, blocks: 2, launches: 1, resident: 8 };
const THREE: Shape = Shape { blocks: 3, ..BLOCKS };
const WARP: Shape = Shape { blocks: 1, ..BLOCKS };
const PEERS: Shape = Shape { ranks: 2, ..BLOCKS };
const PEER: Shape = Shape { ranks: 2, blocks: 1, ..BLOCKS };

const SEEDS: std::ops::Range<u64> = 1..13;

/// Runs a kernel once.
fn run(
    kernel: &str,
    shape: Shape,
    edit: Option<(&str, &str)>,
    seed: u64,
) -> Result<RunStats, Failure> {
    let file = if OF_SCOPES.contains(&kernel) { "only_scopes.cu" } else { "only.cu" };
    let mut source = source(file, &[]);
    source.headers.push(("only.cuh".to_owned(), ONLY_HEADER.to_owned()));
    if let Some((from, to)) = edit {
        let start = source.text.find(&format!("void {kernel}(")).expect("the kernel");
        let (head, tail) = source.text.split_at(start);
        assert!(tail.contains(from), "{kernel} has no {from:?}");
        source.text = format!("{head}{}", tail.replacen(from, to, 1));
    }
    let program = compile(&source, Build::Checked);
    let max_resident_blocks = shape.resident;
    // The order of parties is that of relaxed words, which older values would break.
    let shows_older = false;
    let ranks = shape.ranks;
    let spec = Spec { ranks, seed, max_resident_blocks, shows_older, ..Spec::default() };
    let mut world = World::new(spec).unwrap_or_else(|error| panic!("{error}"));
    let [data, flag, pair] = ["data", "flag", "pair"].map(|name| alloc(&mut world, 0, 512, name));
    let owner = shape.ranks - 1;
    let local = world.alloc_local(owner, 512, "local").unwrap_or_else(|error| panic!("{error}"));
    let mut lists = Vec::new();
    for rank in 0..shape.ranks {
        let result = alloc(&mut world, rank, 512, "result");
        let last = u64::from(rank) | u64::from(shape.blocks) << 32;
        let mut launch = launch(&program, kernel, shape.blocks, 32);
        launch.shared_bytes = 1024;
        launch.cooperative = shape.resident >= shape.blocks;
        launch.args = bytes(&[data.0, flag.0, pair.0, local.0, result.0, last]);
        lists.push(vec![launch; shape.launches]);
    }
    world.run(lists)
}

/// A kernel, what it breaks, and the edit that mends it.
struct Only {
    kernel: &'static str,
    shape: Shape,
    breaks: Result<Rule, FailureKind>,
    /// Part of the report.
    says: &'static str,
    mend: (&'static str, &'static str),
}

const fn only(
    kernel: &'static str,
    shape: Shape,
    rule: Rule,
    mend: (&'static str, &'static str),
) -> Only {
    Only { kernel, shape, breaks: Ok(rule), says: "", mend }
}

const fn outside(kernel: &'static str, shape: Shape, says: &'static str, to: &'static str) -> Only {
    let (breaks, mend) = (Err(FailureKind::OutOfBounds), ("args.rank == 0", to));
    Only { kernel, shape, breaks, says, mend }
}

const FOREIGN: &str = "in another rank's local memory: local of rank 1";
const SCOPES: &str = "where sys was needed";

const ONLY: [Only; 36] = [
    only(
        "store_ends_a_release",
        THREE,
        Rule::Warps,
        ("put(args.flag, 2, EMU_GPU);", "add(args.flag, EMU_RELAXED, EMU_GPU);"),
    ),
    only("fence_after_the_meeting", WARP, Rule::WriterFence, ("/* mended */", "__syncwarp();")),
    outside("peer_reads_local", PEER, FOREIGN, "args.rank == 1"),
    outside("peer_looks_at_local", PEER, FOREIGN, "args.rank == 1"),
    Only {
        breaks: Err(FailureKind::Bulk),
        mend: ("args.rank != 0", "args.rank != 1"),
        ..outside("peer_copies_to_local", PEER, FOREIGN, "")
    },
    Only {
        mend: ("look(reinterpret_cast<const u32*>(at), EMU_CTA)", "static_cast<u32>(at)"),
        ..outside("block_looks_at_anothers", BLOCKS, "in another block's shared memory", "")
    },
    only(
        "second_reader_is_silent",
        THREE,
        Rule::Warps,
        ("EMU_RELAXED /* second */", "EMU_RELEASE"),
    ),
    only("first_reader_is_silent", THREE, Rule::Warps, ("EMU_RELAXED /* first */", "EMU_RELEASE")),
    only(
        "another_lanes_fence",
        BLOCKS,
        Rule::LoadFence,
        ("/* mended */", "ep::fence_proxy_async_global();"),
    ),
    Only {
        says: SCOPES,
        ..only(
            "narrow_acquire",
            PEERS,
            Rule::Warps,
            ("acquire(args.flag, EMU_GPU)", "acquire(args.flag, EMU_SYS)"),
        )
    },
    Only {
        says: SCOPES,
        ..only(
            "narrow_release",
            PEERS,
            Rule::Warps,
            ("EMU_RELEASE, EMU_GPU", "EMU_RELEASE, EMU_SYS"),
        )
    },
    only("narrow_fence_of_the_writer", BLOCKS, Rule::Warps, ("EMU_CTA /* writer */", "EMU_GPU")),
    Only {
        says: "and the fence after it has scope cta where gpu was needed; the release",
        ..only(
            "narrow_fence_of_the_reader",
            BLOCKS,
            Rule::Warps,
            ("EMU_CTA /* reader */", "EMU_GPU"),
        )
    },
    only(
        "release_ends_a_release",
        THREE,
        Rule::Warps,
        ("/* mended */", "acquire(args.flag, EMU_GPU);"),
    ),
    only(
        "narrow_acquire_after_a_look",
        PEERS,
        Rule::Warps,
        ("acquire(args.flag, EMU_GPU)", "acquire(args.flag, EMU_SYS)"),
    ),
    only("failed_swap", BLOCKS, Rule::Warps, ("expected = 5", "expected = 0")),
    Only {
        breaks: Err(FailureKind::Mbarrier),
        says: "without fence.mbarrier_init",
        ..only(
            "another_lanes_mbarrier_fence",
            WARP,
            Rule::MbarrierInit,
            ("lane == 1) ep::fence_mbarrier_init", "lane == 0) ep::fence_mbarrier_init"),
        )
    },
    Only {
        breaks: Err(FailureKind::Bulk),
        mend: ("kPast = 16", "kPast = 0"),
        ..outside("copy_leaves_shared_memory", WARP, "which leaves the block's shared memory", "")
    },
    only("written_after", WARP, Rule::ReadOnly, ("__ldg(args.data)", "*args.data")),
    only("written_long_after", WARP, Rule::ReadOnly, ("__ldg(args.data)", "*args.data")),
    only("another_lanes_wait", BLOCKS, Rule::BulkWait, ("/* mended */", "__syncwarp();")),
    only(
        "same_place",
        Shape { resident: 1, ..BLOCKS },
        Rule::Warps,
        ("/* mended */", "acquire(args.flag, EMU_GPU);"),
    ),
    only(
        "another_ranks_launch",
        Shape { launches: 3, ..PEER },
        Rule::Warps,
        ("/* mended */", "acquire(args.flag, EMU_SYS);"),
    ),
    only(
        "place_has_no_memory",
        Shape { resident: 2, ..THREE },
        Rule::Warps,
        ("/* mended */", "acquire(args.flag, EMU_GPU);"),
    ),
    only(
        "place_has_no_fences",
        Shape { resident: 2, ..THREE },
        Rule::LoadFence,
        ("/* mended */", "ep::fence_proxy_async_global();"),
    ),
    only(
        "two_owners",
        PEERS,
        Rule::Warps,
        ("acquire(args.flag, EMU_GPU)", "acquire(args.flag, EMU_SYS)"),
    ),
    only(
        "source_is_overwritten",
        WARP,
        Rule::BulkWait,
        ("/* mended */", "ep::tma_wait_read<0>();"),
    ),
    only(
        "an_earlier_phase",
        WARP,
        Rule::BulkWait,
        (
            "/* mended */\n    args.result[0] = smem.words[4];\n    /* late */ end();",
            "end();\n    args.result[0] = smem.words[4];",
        ),
    ),
    only(
        "fence_before_the_write",
        WARP,
        Rule::WriterFence,
        ("/* mended */", "ep::fence_proxy_async_shared();"),
    ),
    only("read_only_after_a_write", BLOCKS, Rule::ReadOnly, ("__ldg(args.data)", "*args.data")),
    only(
        "copy_over_a_read",
        BLOCKS,
        Rule::CreditFence,
        ("/* mended */", "ep::fence_proxy_async_global();"),
    ),
    only(
        "plain_read_of_an_atomic",
        BLOCKS,
        Rule::Warps,
        ("= args.flag[0]", "= look(args.flag, EMU_GPU)"),
    ),
    only("an_open_phase", WARP, Rule::Lanes, ("arrivals = 1", "arrivals = 2")),
    only("after_half_has_met", WARP, Rule::Lanes, ("/* mended */", "__syncwarp(0xffffu);")),
    only("half_of_a_warp_meets", WARP, Rule::Lanes, ("/* mended */", "__syncwarp();")),
    Only {
        says: "note: a relaxed load saw a release that orders the two, and no acquire or fence \
                followed; the release at only.cu",
        ..only(
            "relaxed_look",
            BLOCKS,
            Rule::Warps,
            ("/* mended */", "acquire(args.flag, EMU_GPU);"),
        )
    },
];

#[test]
fn each_breaks_one_rule_in_every_schedule() {
    for it in &ONLY {
        for seed in SEEDS {
            let failure = run(it.kernel, it.shape, None, seed).expect_err(it.kernel);
            let report = format!("{}, seed {seed}: {failure}", it.kernel);
            match it.breaks {
                Ok(rule) => {
                    assert!(failure.message.contains(&format!("[{}]", rule.name())), "{report}")
                }
                Err(kind) => assert_eq!(failure.kind, kind, "{report}"),
            }
            assert!(failure.message.contains(it.says), "{report}");
        }
    }
}

#[test]
fn mended_they_are_clean_at_length() {
    for it in &ONLY {
        for seed in SEEDS {
            run(it.kernel, it.shape, Some(it.mend), seed)
                .unwrap_or_else(|failure| panic!("{} with {:?}: {failure}", it.kernel, it.mend));
        }
    }
}

#[test]
fn what_the_model_orders_is_not_reported() {
    let ordered = [
        ("own_store_keeps_it", BLOCKS),
        ("look_then_acquire", THREE),
        ("wide_fence_before_a_store", PEERS),
        ("wide_fence_behind_a_look", PEERS),
    ];
    for (kernel, shape) in ordered {
        for seed in SEEDS {
            run(kernel, shape, None, seed).unwrap_or_else(|failure| panic!("{kernel}: {failure}"));
        }
    }
}
