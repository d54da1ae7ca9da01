//! The pipeline of this crate in the emulator: rows and tags come where they belong, and nothing but
//! luck orders no two accesses.

use ep_runtime::AnyPipeline;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use own_pipeline::TaggedDispatch;
use own_pipeline::run::{Ranks, Sent, Shape};

#[test]
fn tags_come_with_their_rows() {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let shape = Shape { tokens: 40, hidden: 144, topk: 3, experts: 7 };
    for seed in 1..4 {
        let mut options = HostOptions { build: Build::Checked, ..HostOptions::new(3) };
        options.spec.seed = seed;
        let group = HostBackend::new(&programs, options).unwrap().group().unwrap();
        let ranks = Ranks::new(&group, Sent::random(shape, 3, seed), 4).unwrap();
        let settings = [("depth", "16"), ("chunk", "4")];
        let dispatch = ranks.prepare(&AnyPipeline::of::<TaggedDispatch>(), &settings).unwrap();
        ranks.poison(&dispatch).unwrap();
        assert!(ranks.wrong_rows(&dispatch, true).unwrap() > 0, "the poison shows");
        // The second call goes round in the same rings.
        for _ in 0..2 {
            group.local().for_each(|rank| ranks.launch(&dispatch, rank, 4).unwrap());
        }
        ranks.sync().unwrap();
        assert_eq!(ranks.wrong_rows(&dispatch, true).unwrap(), 0, "seed {seed}");
        assert!(ranks.rows() > 0);
    }
}
