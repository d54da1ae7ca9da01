//! Warp functions: lanes that name the same mask meet, the last one computes for all.

use super::{Fault, Flow, Machine, Outcome};
use crate::abi::Pc;
use crate::failure::FailureKind;
use crate::state::Idx;
use crate::state::collective::{Collective, SHFL, SHFL_XOR, SYNC, lanes_of, name};
use crate::state::lane::State;

impl Machine<'_> {
    /// A lane calls a warp function.
    pub(crate) fn warp_function(
        &mut self,
        op: u32,
        mask: u32,
        value: u64,
        argument: i32,
        width: i32,
        pc: Pc,
    ) -> Outcome {
        let here = self.here();
        let (warp, lane) = (self.lanes[here].warp, here % 32);
        self.stats.collectives += 1;
        self.lanes[here].pc = pc;
        self.check_mask(here, op, mask, pc)?;
        let open = &mut self.warps[warp].collectives;
        let slot = match open.iter().position(|meeting| meeting.mask == mask) {
            Some(slot) => slot,
            None => {
                let (values, arguments) = ([0; 32], [0; 32]);
                open.push(Collective { mask, arrived: 0, op, width, pc, values, arguments });
                open.len() - 1
            }
        };
        let meeting = &mut open[slot];
        if meeting.arrived == 0 {
            (meeting.op, meeting.width, meeting.pc) = (op, width, pc);
        } else if meeting.op != op {
            let (other, first) = (meeting.op, meeting.pc);
            return Err(self.mixed_functions(here, op, other, pc, first));
        }
        meeting.values[lane] = value;
        meeting.arguments[lane] = argument;
        meeting.arrived |= 1 << lane;
        if meeting.arrived != mask {
            self.lanes[here].state = State::Warp { mask };
            return Ok(Flow::Blocked);
        }
        if op == SYNC
            && let Some(checker) = &mut self.checker
        {
            checker.warp_meets(warp, mask);
        }
        self.complete(here, warp, slot)
    }

    /// The last lane has come: everybody's result is computed and everybody may go on.
    fn complete(&mut self, here: Idx, warp: Idx, slot: usize) -> Outcome {
        let first = self.first_lane(warp);
        let lane = here % 32;
        let meeting = &mut self.warps[warp].collectives[slot];
        meeting.arrived = 0;
        let meeting: *const Collective = meeting;
        // SAFETY: nothing below adds to or removes from the warp's list of meetings.
        let meeting = unsafe { &*meeting };
        let common = meeting.common();
        let mut mine = common;
        for member in lanes_of(meeting.mask) {
            let result = match meeting.op {
                SHFL..=SHFL_XOR => match meeting.source(member) {
                    Ok(source) => meeting.values[source],
                    Err(source) => {
                        return Err(self.reads_outside(first + member, source, meeting));
                    }
                },
                16 => meeting.matching(member),
                _ => common,
            };
            if member == lane {
                mine = result;
            } else {
                self.lanes[first + member].result = result;
                self.make_ready(first + member);
            }
        }
        Ok(Flow::Value(mine))
    }

    fn check_mask(&self, here: Idx, op: u32, mask: u32, pc: Pc) -> Outcome<()> {
        let fault = |message: String| {
            let message = format!("{}: {} {message}", self.who(here), name(op));
            Box::new(Fault::new(FailureKind::Warp, message, pc))
        };
        if mask >> (here % 32) & 1 == 0 {
            return Err(fault(format!("with mask {mask:08x}, which does not name the caller,")));
        }
        let warp = &self.warps[self.lanes[here].warp];
        let gone = mask & !warp.live;
        if gone != 0 {
            let lane = gone.trailing_zeros();
            return Err(fault(format!("with mask {mask:08x}, but lane {lane} has left,")));
        }
        let met = warp.collectives.iter().find(|meeting| meeting.mask == mask);
        let arrived = met.map_or(0, |meeting| meeting.arrived);
        if mask & !(warp.ready | arrived | 1 << (here % 32)) == 0 {
            return Ok(());
        }
        let first = here - here % 32;
        for other in lanes_of(mask & !(1 << (here % 32))) {
            let lane = &self.lanes[first + other];
            let (what, never) = match lane.state {
                State::Warp { mask: theirs } => (
                    "a warp function of another mask",
                    theirs != mask && theirs >> (here % 32) & 1 != 0,
                ),
                State::Barrier { .. } => ("a block barrier, which needs the whole warp", true),
                _ => ("", false),
            };
            if never {
                let message = format!("with mask {mask:08x}, but lane {other} waits in {what},");
                let mut found = fault(message);
                found.places.push(("and", lane.pc));
                return Err(found);
            }
        }
        Ok(())
    }

    fn mixed_functions(&self, here: Idx, op: u32, other: u32, pc: Pc, first: Pc) -> Box<Fault> {
        let message = format!(
            "{}: lanes of one mask meet in different functions, {} and {},",
            self.who(here),
            name(op),
            name(other)
        );
        Box::new(Fault::new(FailureKind::Warp, message, pc).and("and", first))
    }

    fn reads_outside(&self, lane: Idx, source: usize, meeting: &Collective) -> Box<Fault> {
        let message = format!(
            "{}: {} reads lane {source}, which mask {:08x} does not name,",
            self.who(lane),
            name(meeting.op),
            meeting.mask
        );
        Box::new(Fault::new(FailureKind::Warp, message, meeting.pc))
    }
}

impl Machine<'_> {
    /// Lanes that have arrived in the open meeting of `mask`, and what it computes.
    pub(crate) fn meeting(&self, warp: Idx, mask: u32) -> (u32, &'static str) {
        let open = self.warps[warp].collectives.iter();
        let found = open.into_iter().find(|meeting| meeting.mask == mask && meeting.arrived != 0);
        found.map_or((0, name(SYNC)), |meeting| (meeting.arrived, name(meeting.op)))
    }
}
