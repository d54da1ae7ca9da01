//! How a thread waits that must not wait for long.

use std::time::Duration;

/// Pauses that grow: who polls on a shared core takes time from the very one that it waits for.
#[derive(Default)]
pub(in crate::net) struct Rest {
    turns: u32,
}

impl Rest {
    /// A little less busy with each turn.
    pub(in crate::net) fn pause(&mut self) {
        const SPINS: u32 = 64;
        const YIELDS: u32 = 4096;
        self.turns = self.turns.saturating_add(1);
        match self.turns {
            turn if turn <= SPINS => std::hint::spin_loop(),
            turn if turn <= YIELDS => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}
