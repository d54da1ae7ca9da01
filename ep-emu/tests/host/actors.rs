//! An actor: something beside the lanes that moves data, scheduled and checked like them.

use ep_emu::{Actor, ActorMemory, Address, Build, FailureKind, RunStats, Spec, World};

use crate::support::{alloc, bytes, compile, launch, source, words};

/// Copies `data` to `answer`, doubled, once the doorbell has been rung.
struct Courier {
    data: Address,
    doorbell: Address,
    done: Address,
    answer: Address,
    moved: usize,
}

impl Actor for Courier {
    fn name(&self) -> String {
        "the courier".to_owned()
    }

    fn step(&mut self, memory: &mut dyn ActorMemory) -> bool {
        const WORDS: usize = 32;
        if self.moved > WORDS || memory.peek(self.doorbell) == 0 {
            return false;
        }
        if self.moved == WORDS {
            memory.release(self.done, 1);
        } else {
            memory.acquire(self.doorbell);
            let at = 4 * self.moved as u64;
            let mut word = [0; 4];
            memory.read(self.data.offset(at), &mut word);
            let doubled = 2 * u32::from_le_bytes(word);
            memory.write(self.answer.offset(at), &doubled.to_le_bytes());
        }
        self.moved += 1;
        true
    }
}

fn run(seed: u64, edits: &[(&str, &str)]) -> Result<(RunStats, Vec<u32>), ep_emu::Failure> {
    let program = compile(&source("courier.cu", edits), Build::Checked);
    let mut world = World::new(Spec { seed, ..Spec::default() }).expect("a world");
    let [data, doorbell, done, answer, result] = ["data", "doorbell", "done", "answer", "result"]
        .map(|name| alloc(&mut world, 0, 128, name));
    world.add_actor(Box::new(Courier { data, doorbell, done, answer, moved: 0 }));
    let mut launch = launch(&program, "courier", 1, 32);
    launch.args = bytes(&[data.0, doorbell.0, done.0, answer.0, result.0]);
    let stats = world.run(vec![vec![launch]])?;
    Ok((stats, words(&world, result, 32)))
}

#[test]
fn an_actor_moves_data_between_steps_of_lanes() {
    let expected: Vec<u32> = (0..32).map(|lane| 6 * lane).collect();
    for seed in 1..30 {
        let (_, result) = run(seed, &[]).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(result, expected);
    }
}

#[test]
fn an_actor_is_checked_as_an_agent_of_its_own() {
    let unordered = [
        ("ep::store_release_sys(args.doorbell", "ep::store_relaxed_sys(args.doorbell"),
        // Sys is what holds an actor.
        (
            "ep::store_release_sys(args.doorbell",
            "__threadfence(), ep::store_relaxed_sys(args.doorbell",
        ),
        ("ep::load_acquire_sys(args.done);", ""),
    ];
    for edit in unordered {
        let failure = run(1, &[edit]).expect_err("a race with the actor");
        assert_eq!(failure.kind, FailureKind::Race, "{failure}");
        assert!(failure.message.contains("the courier"), "{failure}");
    }
}
