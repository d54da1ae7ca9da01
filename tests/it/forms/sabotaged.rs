//! Bugs planted in the schedule, each found by a random declaration.

use std::cell::RefCell;

use ep_codegen::meaning::Invented;
use ep_codegen::schedule::sabotage::{self, Bug};
use ep_codegen::schedule::{RoleRule, RuleSet};

use super::meaning::{held_by, pipelines_of};
use super::run::Form;
use crate::usual;

/// Every role statement by statement.
const LOWERED: RuleSet = RuleSet::None;
/// Every role rewritten by the rules over steps: all rules but `OneLaunch`.
const REWRITTEN: RuleSet = RuleSet::Without(RoleRule::OneLaunch);

/// Some bugs show when one rank is far ahead of another.
const SCHEDULES: u64 = 16;

/// The first seed that finds each bug, and in which text: the bugs of rules are in none of the other.
/// `EP_SABOTAGE_SEEDS=40` looks through so many seeds, and says which ones find what.
#[rustfmt::skip] // A table.
const FOUND: [(Bug, RuleSet, u64); 30] = [
    (Bug::TokenNotWaited,      REWRITTEN, 4),
    (Bug::StageFreedEarly,     REWRITTEN, 33),
    (Bug::DebtKept,            REWRITTEN, 4),
    (Bug::FenceLeftOut,        REWRITTEN, 14),
    (Bug::AddressOfEach,       REWRITTEN, 4),
    (Bug::MeetLeftOut,         LOWERED,   0),
    (Bug::LeaderOfAll,         LOWERED,   0),
    (Bug::TurnsOfAll,          LOWERED,   1),
    (Bug::TurnsThatDepend,     LOWERED,   0),
    (Bug::ReadAhead,           LOWERED,   1),
    (Bug::RoomNotAwaited,      LOWERED,   1),
    (Bug::EndNotTold,          LOWERED,   2),
    (Bug::UnitsOfAll,          REWRITTEN, 1),
    (Bug::ClaimsShared,        REWRITTEN, 13),
    (Bug::CountersClaimed,     REWRITTEN, 22),
    (Bug::ExtentOfAnother,     LOWERED,   0),
    (Bug::ConditionLeftOut,    LOWERED,   1),
    (Bug::MoreThanSent,        REWRITTEN, 7),
    (Bug::CopyCutShort,        REWRITTEN, 1),
    (Bug::PastTheEnd,          LOWERED,   1),
    (Bug::NeighboursOfAnother, REWRITTEN, 17),
    (Bug::ProductsCut,         LOWERED,   19),
    (Bug::PeersForgotten,      LOWERED,   4),
    (Bug::HeadersInOnePlace,   LOWERED,   1),
    (Bug::PartsInOnePlace,     REWRITTEN, 5),
    (Bug::AbsentCounted,       REWRITTEN, 27),
    (Bug::SlicesInOnePlace,    REWRITTEN, 9),
    (Bug::SumsCut,             REWRITTEN, 24),
    (Bug::RowsInOnePlace,      REWRITTEN, 23),
    (Bug::AskedTooEarly,       REWRITTEN, 7),
];

/// Takes as long as its compiles, of one text for each bug.
#[test]
fn every_bug_in_the_schedule_is_found() {
    if crate::host::programs().is_none() {
        return;
    }
    let seeds = std::env::var("EP_SABOTAGE_SEEDS").ok().and_then(|text| text.parse().ok());
    if let Some(seeds) = seeds {
        return search(seeds);
    }
    let all: Vec<Bug> = FOUND.iter().map(|(bug, ..)| *bug).collect();
    assert_eq!(all, Bug::ALL, "one line for each");
    for (bug, rules, seed) in usual::some(FOUND, 4) {
        let words = sabotage::with(bug, || judged(seed, rules));
        let words = words.expect_err(&format!("seed {seed} finds {bug:?}"));
        assert!(!words.contains("does not compile"), "{bug:?}: {words}");
    }
}

/// Prints which of so many seeds find each bug, beside those whose text has it.
fn search(seeds: u64) {
    let right: Vec<_> = (0..seeds).map(texts).collect();
    for bug in Bug::ALL {
        let (mut found, mut with_it) = (Vec::new(), 0);
        for (seed, right) in (0..).zip(&right) {
            let wrong = sabotage::with(bug, || texts(seed));
            for (rules, (wrong, right)) in
                [LOWERED, REWRITTEN].into_iter().zip(wrong.iter().zip(right))
            {
                let has_it = wrong != right;
                with_it += u64::from(has_it);
                if has_it && sabotage::with(bug, || judged(seed, rules)).is_err() {
                    found.push((seed, rules));
                }
            }
        }
        eprintln!("{bug:?}: {} of {with_it}: {found:?}", found.len());
    }
}

fn ranks(seed: u64) -> [(&'static str, i64); 1] {
    [("ranks", 1 + seed as i64 % 5)]
}

/// The texts of a seed's declaration, as they are lowered and as they are rewritten.
fn texts(seed: u64) -> [String; 2] {
    let found = RefCell::new([String::new(), String::new()]);
    let all = pipelines_of(&Invented::new(seed)).expect("it is legal");
    let read = |form: Form| {
        for (text, rules) in found.borrow_mut().iter_mut().zip([LOWERED, REWRITTEN]) {
            text.push_str(&form.text(rules));
        }
        form.with_rules(&[])
    };
    held_by(&all, &ranks(seed), seed, &|drawn| drawn, &read).expect("it has texts");
    found.into_inner()
}

/// What is wrong with what one text of a seed's declaration leaves.
fn judged(seed: u64, rules: RuleSet) -> Result<(), String> {
    let all = pipelines_of(&Invented::new(seed))?;
    let one_text = |form: Form| form.with_rules(&[rules]).guarded().under(SCHEDULES);
    held_by(&all, &ranks(seed), seed, &|drawn| drawn, &one_text)
}
