//! Actors: parts of the machine that are not lanes, such as a network card.
//!
//! The scheduler runs an actor's step between those of the lanes; the checker treats each actor as
//! an agent with a clock of its own. Transports that need one implement [`Actor`].

use crate::heap::Address;
use crate::machine::Machine;

/// Something that acts on memory by itself.
pub trait Actor: Send {
    /// Its name in reports.
    fn name(&self) -> String;

    /// Does one thing, if there is one to do; returns whether it did.
    fn step(&mut self, memory: &mut ActorMemory<'_, '_>) -> bool;
}

/// What an actor may do to memory; the checker sees each call.
pub struct ActorMemory<'m, 'w> {
    machine: &'m mut Machine<'w>,
    actor: usize,
}

impl ActorMemory<'_, '_> {
    /// Looks at a word without ordering anything: a hint, not a synchronisation.
    pub fn peek(&self, at: Address) -> u64 {
        // SAFETY: actors are given addresses of the world's regions.
        unsafe { crate::memory::read(at.0 as usize, 8) }
    }

    /// Reads a word that a lane has released, and sees what that lane did before.
    pub fn acquire(&mut self, at: Address) -> u64 {
        if let Some(checker) = &mut self.machine.checker {
            checker.actor_acquires(self.actor, at.0 as usize);
        }
        self.peek(at)
    }

    fn check(&mut self, at: Address, bytes: usize, writes: bool) {
        let (actor, at) = (self.actor, at.0 as usize);
        let seen = self.machine.checked(|checker| checker.actor_accesses(actor, at, bytes, writes));
        if let Err(fault) = seen {
            self.machine.fail(*fault);
        }
    }

    /// Reads data.
    pub fn read(&mut self, at: Address, into: &mut [u8]) {
        self.check(at, into.len(), false);
        // SAFETY: actors are given addresses of the world's regions.
        unsafe {
            std::ptr::copy_nonoverlapping(at.0 as *const u8, into.as_mut_ptr(), into.len());
        }
    }

    /// Writes data.
    pub fn write(&mut self, at: Address, bytes: &[u8]) {
        self.check(at, bytes.len(), true);
        // SAFETY: actors are given addresses of the world's regions.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.0 as *mut u8, bytes.len()) };
        self.machine.touch(at.0 as usize, bytes.len());
    }

    /// Writes a word that publishes what the actor did before.
    pub fn release(&mut self, at: Address, value: u64) {
        if let Some(checker) = &mut self.machine.checker {
            checker.actor_releases(self.actor, at.0 as usize);
        }
        // SAFETY: actors are given addresses of the world's regions.
        unsafe { crate::memory::write(at.0 as usize, value, 8) };
        self.machine.touch(at.0 as usize, 8);
    }

    /// A random number of the schedule, below `bound`.
    pub fn draw(&mut self, bound: usize) -> usize {
        self.machine.schedule.rng.below(bound)
    }
}

impl Machine<'_> {
    /// Runs one step of an actor.
    pub(crate) fn actor_step(&mut self, actor: usize) -> bool {
        let mut taken = self.actors.remove(actor);
        let acted = taken.step(&mut ActorMemory { machine: self, actor });
        self.actors.insert(actor, taken);
        self.progress += u64::from(acted);
        acted
    }
}
