//! Bugs in the text that the schedule makes: comparing drawn calls with the declaration finds each of them.

use std::sync::Arc;

use ep_codegen::schedule::RuleSet;
use ep_runtime::host::Programs;
use ep_runtime::host::mutant::Mutant;

use super::by_hand::ByHand;
use super::{forwarder, scaled_combine};
use crate::usual;

/// Schedules and calls that may pass before a bug shows.
const SEEDS: u64 = 4;

/// Rings of one stripe that go round, so that room, ends and credits matter.
fn small() -> Vec<(&'static str, ByHand)> {
    let bounce = forwarder::by_hand().fix("depth", 16).fix("chunk", 1).fix("stripes", 1);
    vec![("bounce.cu", bounce), ("scaled_pull.cu", scaled_combine::by_hand())]
}

/// The first seed that says what is wrong, and what it says.
fn found(own: &ByHand, programs: &Arc<Programs>) -> Option<(u64, String)> {
    (1..=SEEDS).find_map(|seed| {
        let calls = own.drawn(programs, 2, 60, seed);
        let wrong = own.leaves(programs, RuleSet::None, &calls, seed).err();
        wrong.map(|words| (seed, words))
    })
}

#[test]
fn every_planted_bug_is_found_at_length() {
    let Some(programs) = crate::host::programs() else { return };
    let mutants = Mutant::parse(include_str!("planted.txt")).expect("the list is well formed");
    let subjects = small();
    for (file, own) in &subjects {
        assert_eq!(found(own, programs), None, "{file} is right without a bug");
    }
    let survives = |mutant: &&Mutant| {
        let (_, own) = subjects.iter().find(|(file, _)| *file == mutant.file).expect("a program");
        found(own, &programs.planted(mutant)).is_none()
    };
    let survivors: Vec<&str> =
        usual::some(&mutants, 4).filter(survives).map(|it| it.name.as_str()).collect();
    assert!(survivors.is_empty(), "{} of {}: {survivors:?}", survivors.len(), mutants.len());
}
