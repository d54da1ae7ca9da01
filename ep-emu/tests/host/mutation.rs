//! One compilation has all mutations of a text, and each shows as what it is.

use std::sync::Arc;

use ep_emu::mutation::{Mutation, Operator, REACHING, Weaver};
use ep_emu::{Build, Failure, FailureKind, Program, Spec};

use crate::support::{alloc, bytes, compile, launch, source, words, world};

/// The kernel with all its mutations.
fn woven(build: Build) -> (Arc<Program>, Vec<Mutation>) {
    let weaver = Weaver::new(["handed.cu".to_owned()]);
    let text = source("handed.cu", &[]);
    let woven = weaver.weave(&text).unwrap_or_else(|error| panic!("{error}"));
    (compile(&woven, build), weaver.mutations())
}

/// What the kernel gives with a mutation.
fn run(program: &Arc<Program>, mutation: u32, seed: u64) -> Result<u32, Failure> {
    let mut world = world(1, seed);
    world.set_spec(Spec { mutation, seed, max_steps: 100_000, ..Spec::default() });
    let [data, told, result] = ["data", "told", "result"].map(|name| alloc(&mut world, 0, 4, name));
    let mut launch = launch(program, "handed", 2, 32);
    launch.args = bytes(&[data.0, told.0, result.0]);
    world.run(vec![vec![launch]]).map(|_| words(&world, result, 1)[0])
}

#[test]
fn each_mutation_shows_in_one_program() {
    let (program, mutations) = woven(Build::Checked);
    let number = |operator: Operator, from: &str| {
        let is_it = |it: &&Mutation| it.operator == operator && it.from == from;
        let found = mutations.iter().find(is_it);
        found.unwrap_or_else(|| panic!("{operator} of {from}")).number
    };
    let kind = |mutation: u32| run(&program, mutation, 3).expect_err("it shows").kind;
    assert_eq!(run(&program, 0, 3).ok(), Some(42), "without a mutation");
    assert_eq!(run(&program, number(Operator::Number, "40"), 3).ok(), Some(43));
    assert_eq!(run(&program, number(Operator::Operand, "40 + 2"), 3).ok(), Some(40));
    let release = "ep::store_release_sys(args.told, 1u)";
    assert_eq!(kind(number(Operator::Order, release)), FailureKind::Race);
    assert_eq!(kind(number(Operator::Skip, &format!("{release};"))), FailureKind::Deadlock);
    let acquire = "ep::load_acquire_sys(args.told)";
    assert_eq!(kind(number(Operator::Order, acquire)), FailureKind::Race);
    assert_eq!(run(&program, 0, 4).ok(), Some(42), "and none afterwards");
}

#[test]
fn a_run_notes_what_it_comes_to() {
    let (program, mutations) = woven(Build::Plain);
    assert_eq!(run(&program, REACHING, 1).ok(), Some(42));
    let all: Vec<u32> = mutations.iter().map(|mutation| mutation.number).collect();
    assert_eq!(program.reached(), all);
}
