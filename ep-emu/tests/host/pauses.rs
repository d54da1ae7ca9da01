//! Where threads of a disturbed text linger, and for how long (`templates/device/perturb.cuh`).

use ep_emu::Build;

use crate::support::{alloc, compile, launch, source, words, world};

const DELAYS: &str = include_str!("../../templates/device/perturb.cuh");

const THREADS: usize = 32 * 32;
const TURNS: usize = 512;

/// The pauses of all turns, thread by thread.
fn pauses(seed: u64, rank: u64) -> Vec<u32> {
    let mut source = source("pauses.cu", &[]);
    source.text = format!("#define EP_PERTURB {seed}ull\n{DELAYS}{}", source.text);
    let program = compile(&source, Build::Plain);
    let mut world = world(1, 1);
    let out = alloc(&mut world, 0, 4 * THREADS * TURNS, "pauses");
    let mut launch = launch(&program, "pauses", 4, THREADS as u32 / 4);
    launch.args = [out.0, rank | (TURNS as u64) << 32].map(u64::to_le_bytes).concat();
    world.run(vec![vec![launch]]).unwrap_or_else(|failure| panic!("{failure}"));
    words(&world, out, THREADS * TURNS)
}

/// Most turns pass at once; each doubling of a pause is half as likely; some warps linger far more often.
#[test]
fn pauses_are_rare_and_of_all_lengths() {
    let all = pauses(5, 1);
    let some: Vec<u32> = all.iter().copied().filter(|pause| *pause != 0).collect();
    let share = some.len() as f64 / all.len() as f64;
    assert!((1.0 / 80.0..1.0 / 20.0).contains(&share), "{share}");
    let (shortest, longest) = (some.iter().min(), some.iter().max());
    assert_eq!(shortest, Some(&64));
    assert!(longest >= Some(&(64 << 8)) && longest <= Some(&(64 << 11)), "{longest:?}");
    let long = some.iter().filter(|pause| **pause >= 64 << 3).count();
    assert!((some.len() / 12..some.len() / 6).contains(&long), "{long} of {}", some.len());
    let of_warps = all.chunks(32 * TURNS).map(|warp| warp.iter().filter(|it| **it != 0).count());
    let of_warps: Vec<usize> = of_warps.collect();
    let (least, most) = (of_warps.iter().min(), of_warps.iter().max());
    assert!(most > least.map(|least| 16 * least).as_ref(), "{of_warps:?}");
}

/// A seed repeats its pauses. Another seed, rank, warp, lane or turn has others.
#[test]
fn pauses_follow_from_their_seed() {
    let all = pauses(5, 1);
    assert_eq!(all, pauses(5, 1));
    let same = |other: &[u32]| all.iter().zip(other).filter(|(a, b)| **a != 0 && a == b).count();
    let paused = all.iter().filter(|pause| **pause != 0).count();
    let shifts = [1, TURNS, 32 * TURNS].map(|by| [&all[by..], &all[..by]].concat());
    for other in [pauses(6, 1), pauses(5, 2)].iter().chain(&shifts) {
        assert!(same(other) < paused / 8, "{} of {paused}", same(other));
    }
}
