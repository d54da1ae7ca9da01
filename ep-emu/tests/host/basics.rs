//! Each word of CUDA gives what it gives on a device.

use ep_emu::Build;

use crate::support::{alloc, bytes, compile, launch, source, words, world};

#[test]
fn warp_functions_compute() {
    let program = compile(&source("basics.cu", &[]), Build::Plain);
    for seed in 1..20 {
        let mut world = world(1, seed);
        let (blocks, threads) = (2, 64);
        let [ballots, sums, firsts, votes] =
            ["ballots", "sums", "firsts", "votes"].map(|name| alloc(&mut world, 0, 512, name));
        let mut launch = launch(&program, "warp_words", blocks, threads);
        launch.args = bytes(&[ballots.0, sums.0, firsts.0, votes.0]);
        world.run(vec![vec![launch]]).expect("it ends");
        assert_eq!(words(&world, ballots, 4), [0xaaaa_aaaa; 4]);
        assert_eq!(words(&world, votes, 4), [1 | 3 << 2; 4]);
        for thread in 0..128usize {
            assert_eq!(words(&world, sums, 128)[thread], (thread + (thread ^ 1)) as u32);
            assert_eq!(words(&world, firsts, 128)[thread], (thread / 32 * 32 + 3) as u32);
        }
    }
}

#[test]
fn blocks_share_memory_that_starts_as_poison() {
    let program = compile(&source("basics.cu", &[]), Build::Plain);
    let mut world = world(1, 3);
    let out = alloc(&mut world, 0, 4 * 256 * 3, "out");
    let raw = alloc(&mut world, 0, 4, "raw");
    let mut launch = launch(&program, "block_words", 3, 256);
    launch.shared_bytes = 1024;
    launch.args = bytes(&[out.0, raw.0]);
    world.run(vec![vec![launch]]).expect("it ends");
    assert_eq!(words(&world, raw, 1), [0xcbcb_cbcb]);
    let expected: Vec<u32> =
        (0..3).flat_map(|block| (0..256).map(move |thread| 255 - thread + 1000 * block)).collect();
    assert_eq!(words(&world, out, 768), expected);
}

#[test]
fn ranks_hand_a_word_to_each_other() {
    let program = compile(&source("basics.cu", &[]), Build::Plain);
    for seed in 1..20 {
        let mut world = world(2, seed);
        let flags = [0, 1].map(|rank| alloc(&mut world, rank, 4, "flag"));
        let results = [0, 1].map(|rank| alloc(&mut world, rank, 4, "result"));
        let lists = (0..2usize).map(|rank| {
            let mut launch = launch(&program, "round_trip", 1, 32);
            let (mine, theirs) = (flags[rank].0, flags[1 - rank].0);
            launch.args = bytes(&[mine, theirs, results[rank].0, 50 | (rank as u64) << 32]);
            vec![launch]
        });
        let lists = lists.collect();
        world.run(lists).expect("it ends");
        assert_eq!(words(&world, results[0], 1), [50]);
        assert_eq!(words(&world, results[1], 1), [50]);
    }
}

/// Whoever looks at a word that does not change need not wait for it.
#[test]
fn many_looks_are_no_deadlock() {
    let program = compile(&source("basics.cu", &[]), Build::Plain);
    for seed in 1..20 {
        let mut world = world(1, seed);
        let [word, told] = ["word", "told"].map(|name| alloc(&mut world, 0, 4, name));
        let mut launch = launch(&program, "many_looks", 1, 64);
        launch.args = bytes(&[word.0, told.0, 500]);
        world.run(vec![vec![launch]]).expect("it ends");
        assert_eq!(words(&world, told, 1), [1]);
    }
}

#[test]
fn parameters_are_packed_as_cuda_packs_them() {
    let program = compile(&source("basics.cu", &[]), Build::Plain);
    let mut world = world(1, 1);
    let out = alloc(&mut world, 0, 8, "out");
    let mut launch = launch(&program, "parameters", 1, 32);
    launch.args = bytes(&[7, out.0, 100, 1000]);
    world.run(vec![vec![launch]]).expect("it ends");
    assert_eq!(words(&world, out, 1), [1107]);
}
