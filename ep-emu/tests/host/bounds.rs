//! What a kernel stores outside its buffers is found in every build, and told by the tensor's name.

use ep_emu::{Address, Build, Failure, FailureKind, LaunchTensor, RunStats, Spec, World};

use crate::support::{alloc, bytes, compile, launch, source};

const ROW_BYTES: usize = 128;

/// A kernel of `bounds.cu` on two ranks, whose `y` has so many bytes; rank 1 stores `rows` rows from
/// `first` on.
fn run(
    build: Build,
    kernel: &str,
    y_bytes: usize,
    (first, rows): (i32, u32),
) -> Result<RunStats, Failure> {
    let program = compile(&source("bounds.cu", &[]), build);
    let mut world = World::new(Spec { ranks: 2, ..Spec::default() }).expect("a world");
    let mut lists = Vec::new();
    for rank in 0..2 {
        let y = alloc(&mut world, rank, y_bytes, "device memory");
        // Another buffer on either side: what is stored outside must not pass for one of its rows.
        let flag = alloc(&mut world, rank, 4 * y_bytes, "device memory");
        let mut launch = launch(&program, kernel, 1, 32);
        let (first, rows) = if rank == 1 { (first, rows) } else { (0, 1) };
        launch.args = bytes(&[y.0, flag.0, u64::from(first as u32) | u64::from(rows) << 32]);
        let tensor = |name: &str, at: Address, row_bytes| LaunchTensor {
            name: name.to_owned(),
            at,
            row_bytes,
        };
        launch.tensors = vec![tensor("flag", flag, 0), tensor("y", y, ROW_BYTES as u64)];
        lists.push(vec![launch]);
    }
    world.run(lists)
}

#[test]
fn an_output_that_is_too_short_is_found_in_every_build() {
    for build in [Build::Plain, Build::Checked] {
        let short = |bytes| run(build, "store_rows", bytes, (0, 20));
        short(20 * ROW_BYTES).unwrap_or_else(|failure| panic!("{failure}"));
        for missing in [4, 40, 128, 132, 1000] {
            let failure = short(20 * ROW_BYTES - missing).expect_err("it is too short");
            assert_eq!(failure.kind, FailureKind::OutOfBounds, "{failure}");
            let (row, byte) = (19 - (missing - 1) / 128, (20 * ROW_BYTES - missing) % 128);
            let rest = if byte == 0 { String::new() } else { format!(" and {byte} bytes") };
            let place = match build {
                // A lane may be rows ahead of the one that is first outside.
                Build::Checked => format!(" of {row}{rest}"),
                _ if byte == 0 => format!("y of rank 1, row {row} of {row}"),
                _ => format!("y of rank 1, row {row} of {row}{rest}, byte {byte}"),
            };
            assert!(failure.message.contains(&place), "{failure}");
        }
    }
    let failure = run(Build::Plain, "store_rows", 20 * ROW_BYTES - 40, (0, 20)).expect_err("short");
    assert_eq!(
        failure.to_string(),
        "out of bounds: a store outside of all buffers changed 40 bytes: \
         y of rank 1, row 19 of 19 and 88 bytes, byte 88\n  a checked run names the access (seed 1)"
    );
}

#[test]
fn a_row_far_outside_is_told_by_its_number() {
    for kernel in ["store_rows", "strong_rows"] {
        for (row, place) in [
            (40, "y of rank 1, row 40 of 20"),
            (20, "y of rank 1, row 20 of 20"),
            (-1, "128 bytes before device memory of rank 1"),
        ] {
            let failure = run(Build::Checked, kernel, 20 * ROW_BYTES, (row, 1)).expect_err(place);
            assert_eq!(failure.kind, FailureKind::OutOfBounds, "{failure}");
            assert!(failure.message.contains(place), "{failure}");
            assert!(failure.message.contains(&format!("({kernel})")), "{failure}");
        }
    }
    let failure = run(Build::Plain, "store_rows", 20 * ROW_BYTES, (-1, 1)).expect_err("before");
    assert!(failure.message.contains("128 bytes before device memory of rank 1"), "{failure}");
}

#[test]
fn a_store_outside_in_the_drain_is_found() {
    for build in [Build::Plain, Build::Checked] {
        let drain = |row| run(build, "store_in_the_drain", 20 * ROW_BYTES, (row, 1));
        let failure = drain(19).expect_err("a deadlock");
        assert_eq!((failure.kind, failure.drained), (FailureKind::Deadlock, true), "{failure}");
        let failure = drain(20).expect_err("and a store outside");
        assert_eq!(failure.kind, FailureKind::OutOfBounds, "{failure}");
        assert!(failure.message.contains("y of rank 1, row 20 of 20"), "{failure}");
        assert!(failure.message.contains("while draining after a deadlock"), "{failure}");
    }
}

#[test]
fn the_padding_behind_a_part_belongs_to_nobody() {
    let program = compile(&source("bounds.cu", &[]), Build::Plain);
    let run = |first: u64, forget: bool| {
        let mut world = World::new(Spec::default()).expect("a world");
        let window = alloc(&mut world, 0, 8 * ROW_BYTES, "window");
        // Three rows, one of padding, and four of another tensor.
        world.name_part(window, 3 * ROW_BYTES, "sums", ep_emu::Rules::NONE);
        world.name_part(window.offset(512), 4 * ROW_BYTES, "ids", ep_emu::Rules::NONE);
        if forget {
            world.forget_parts(window);
        }
        let mut launch = launch(&program, "strong_rows", 1, 32);
        launch.args = bytes(&[window.0, window.0, first | 1 << 32]);
        world.run(vec![vec![launch]])
    };
    for row in [0, 2, 4, 7] {
        run(row, false).unwrap_or_else(|failure| panic!("row {row}: {failure}"));
    }
    let failure = run(3, false).expect_err("row 3 is padding");
    assert_eq!(failure.kind, FailureKind::OutOfBounds, "{failure}");
    assert!(failure.message.contains("bytes past window.sums of rank 0"), "{failure}");
    run(3, true).unwrap_or_else(|failure| panic!("{failure}"));
}
