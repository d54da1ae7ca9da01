//! Steps of actors, and what they do to memory.

use super::{Fault, Machine};
use crate::actor::ActorMemory;
use crate::failure::FailureKind;
use crate::heap::Address;
use crate::memory::{read, write};

/// The machine as the actor of this number sees it.
struct Acting<'m, 'w> {
    machine: &'m mut Machine<'w>,
    actor: usize,
}

impl Acting<'_, '_> {
    fn check(&mut self, at: Address, bytes: usize, writes: bool) {
        let (actor, at) = (self.actor, at.0 as usize);
        let seen = self.machine.checked(|checker| checker.actor_accesses(actor, at, bytes, writes));
        if let Err(fault) = seen {
            self.machine.fail(*fault);
        }
    }

    fn sees(&mut self, at: Address) {
        if let Some(checker) = &mut self.machine.checker {
            checker.actor_acquires(self.actor, at.0 as usize);
        }
    }

    fn publish(&mut self, at: Address, value: u64, bytes: u32) {
        let (actor, place) = (self.actor, (at.0 as usize, bytes));
        // SAFETY: actors are given addresses of the world's regions.
        let old = unsafe { read(place.0, bytes) };
        let told =
            self.machine.checked(|checker| checker.actor_releases(actor, place, (old, value)));
        if let Err(fault) = told {
            self.machine.fail(*fault);
        }
        // SAFETY: as above.
        unsafe { write(at.0 as usize, value, bytes) };
        self.machine.touch(at.0 as usize, bytes as usize);
    }
}

impl ActorMemory for Acting<'_, '_> {
    fn peek(&self, at: Address) -> u64 {
        // SAFETY: actors are given addresses of the world's regions.
        unsafe { read(at.0 as usize, 8) }
    }

    fn peek_half(&self, at: Address) -> u32 {
        // SAFETY: actors are given addresses of the world's regions.
        unsafe { read(at.0 as usize, 4) as u32 }
    }

    fn acquire(&mut self, at: Address) -> u64 {
        self.sees(at);
        self.peek(at)
    }

    fn acquire_half(&mut self, at: Address) -> u32 {
        self.sees(at);
        self.peek_half(at)
    }

    fn read(&mut self, at: Address, into: &mut [u8]) {
        self.check(at, into.len(), false);
        // SAFETY: actors are given addresses of the world's regions.
        unsafe {
            std::ptr::copy_nonoverlapping(at.0 as *const u8, into.as_mut_ptr(), into.len());
        }
    }

    fn write(&mut self, at: Address, bytes: &[u8]) {
        self.check(at, bytes.len(), true);
        // SAFETY: actors are given addresses of the world's regions.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.0 as *mut u8, bytes.len()) };
        self.machine.touch(at.0 as usize, bytes.len());
    }

    fn release(&mut self, at: Address, value: u64) {
        self.publish(at, value, 8);
    }

    fn release_half(&mut self, at: Address, value: u32) {
        self.publish(at, u64::from(value), 4);
    }

    fn fail(&mut self, why: String) {
        self.machine.fail(Fault { places: Vec::new(), ..Fault::new(FailureKind::Network, why, 0) });
    }

    fn clock_ns(&self) -> u64 {
        self.machine.clock_ns
    }

    fn draw(&mut self, bound: usize) -> usize {
        self.machine.schedule.rng.below(bound)
    }
}

impl Machine<'_> {
    /// Runs one step of an actor.
    pub(super) fn actor_step(&mut self, actor: usize) -> bool {
        let mut actors = std::mem::take(&mut self.actors);
        let acted = actors[actor].step(&mut Acting { machine: self, actor });
        self.actors = actors;
        self.progress += u64::from(acted);
        acted
    }
}
