//! Actors: parts of the machine that are not lanes, such as a network card.
//!
//! The scheduler runs an actor's step between those of the lanes; the checker treats each actor as
//! an agent with a clock of its own. Transports that need one implement [`Actor`].

use std::sync::Arc;
use std::time::Duration;

use crate::heap::Address;

/// Whether something can still come from outside of the emulator, such as a network between processes,
/// which writes to memory of the world in real time. It is asked when no lane can run, and told for how
/// long nothing has moved.
pub type Outside = Arc<dyn Fn(Duration) -> bool + Send + Sync>;

/// Something that acts on memory by itself.
pub trait Actor: Send {
    /// Its name in reports.
    fn name(&self) -> String;

    /// Does one thing, if there is one to do; returns whether it did.
    fn step(&mut self, memory: &mut dyn ActorMemory) -> bool;

    /// When it has something to do that only time keeps it from, by the virtual clock.
    fn due_ns(&self) -> Option<u64> {
        None
    }
}

/// What an actor may do to memory; the checker sees each call.
pub trait ActorMemory {
    /// Looks at a word without ordering anything: a hint, not a synchronisation.
    fn peek(&self, at: Address) -> u64;

    /// As [`ActorMemory::peek`], for a word of 32 bits.
    fn peek_half(&self, at: Address) -> u32;

    /// Reads a word that a lane has released, and sees what that lane did before.
    fn acquire(&mut self, at: Address) -> u64;

    /// As [`ActorMemory::acquire`], for a word of 32 bits.
    fn acquire_half(&mut self, at: Address) -> u32;

    /// Reads data.
    fn read(&mut self, at: Address, into: &mut [u8]);

    /// Writes data.
    fn write(&mut self, at: Address, bytes: &[u8]);

    /// Writes a word that publishes what the actor did before.
    fn release(&mut self, at: Address, value: u64);

    /// As [`ActorMemory::release`], for a word of 32 bits.
    fn release_half(&mut self, at: Address, value: u32);

    /// Ends the run: something cannot be carried out, and a sentence says why.
    fn fail(&mut self, why: String);

    /// The virtual clock.
    fn clock_ns(&self) -> u64;

    /// A random number of the schedule, below `bound`.
    fn draw(&mut self, bound: usize) -> usize;
}
