//! Block barriers, with the rules that hardware leaves to the programmer.

use super::{Fault, Flow, Machine, Outcome};
use crate::abi::Pc;
use crate::failure::FailureKind;
use crate::state::Idx;
use crate::state::barrier::Barrier;
use crate::state::lane::State;

impl Machine<'_> {
    /// A lane arrives at barrier `id` of `threads` threads, and waits unless it only arrives.
    pub(crate) fn barrier(&mut self, id: i32, threads: i32, waits: bool, pc: Pc) -> Outcome {
        let here = self.here();
        let slot = self.block_of(here);
        self.lanes[here].pc = pc;
        let size = self.blocks[slot].view.size[0] as i32;
        let fault = |machine: &Self, message: String| {
            let message = format!("{}: barrier {id} {message}", machine.who(here));
            Box::new(Fault::new(FailureKind::Barrier, message, pc))
        };
        if !(0..16).contains(&id) || threads <= 0 || threads % 32 != 0 {
            return Err(fault(self, format!("of {threads} threads cannot be")));
        }
        if threads > size {
            return Err(fault(self, format!("of {threads} threads in a block of {size}")));
        }
        let barrier = &mut self.blocks[slot].barriers[id as usize];
        if barrier.arrived == 0 {
            (barrier.wanted, barrier.pc) = (threads as u32, pc);
        } else if barrier.wanted != threads as u32 {
            let (wanted, first) = (barrier.wanted, barrier.pc);
            let message = format!("of {threads} threads meets one of {wanted}");
            let mut found = fault(self, message);
            found.places.push(("and", first));
            return Err(found);
        }
        barrier.arrived += 1;
        let (warp, bit) = (self.lanes[here].warp, 1 << (here % 32));
        let barrier = &mut self.blocks[slot].barriers[id as usize];
        match barrier.warps.iter_mut().find(|(known, _)| *known == warp) {
            Some((_, lanes)) if *lanes & bit == 0 => *lanes |= bit,
            Some(_) => return Err(fault(self, "is reached twice by one lane".to_owned())),
            None => barrier.warps.push((warp, bit)),
        }
        if waits {
            barrier.waiting.push(here);
            self.lanes[here].state = State::Barrier { id: id as u8 };
        }
        if self.blocks[slot].barriers[id as usize].arrived == threads as u32 {
            self.release_barrier(slot, id as usize, here, pc)?;
            return Ok(Flow::Value(0));
        }
        Ok(if waits { Flow::Blocked } else { Flow::Value(0) })
    }

    fn release_barrier(&mut self, slot: Idx, id: usize, here: Idx, pc: Pc) -> Outcome<()> {
        let mut barrier = std::mem::take(&mut self.blocks[slot].barriers[id]);
        barrier.warps.sort_unstable();
        self.check_generation(slot, id, &barrier, pc)?;
        if let Some(checker) = &mut self.checker {
            checker.barrier_completes(&barrier.warps);
        }
        let warps = barrier.warps.iter().map(|(warp, _)| *warp).collect();
        self.blocks[slot].barriers[id].earlier = Some(warps);
        self.progress += 1;
        for lane in barrier.waiting {
            if lane == here {
                self.lanes[here].state = State::Ready;
            } else {
                self.make_ready(lane);
            }
        }
        Ok(())
    }

    /// Whole warps come, and the same ones each time: anything else is a count that happens to
    /// fit.
    fn check_generation(&self, slot: Idx, id: usize, made: &Barrier, pc: Pc) -> Outcome<()> {
        let block = &self.blocks[slot];
        let place = format!("rank {} block {}: barrier {id}", block.rank, block.view.index[0]);
        for (warp, lanes) in &made.warps {
            let live = self.warps[*warp].live;
            if *lanes != live {
                let index = self.warps[*warp].index;
                let message = format!(
                    "{place} of {} threads is complete, but only lanes {lanes:08x} (of {live:08x}) of \
                    warp {index} arrived; a barrier needs whole warps",
                    made.wanted
                );
                return Err(Box::new(Fault::new(FailureKind::Barrier, message, pc)));
            }
        }
        let Some(earlier) = &made.earlier else { return Ok(()) };
        let warps: Vec<Idx> = made.warps.iter().map(|(warp, _)| *warp).collect();
        if *earlier == warps {
            return Ok(());
        }
        let number = |warps: &[Idx]| -> Vec<u32> {
            warps.iter().map(|warp| self.warps[*warp].index).collect()
        };
        let message = format!(
            "{place} of {} threads is made by warps {:?}, and was made by warps {:?} before",
            made.wanted,
            number(&warps),
            number(earlier)
        );
        Err(Box::new(Fault::new(FailureKind::Barrier, message, pc)))
    }
}
