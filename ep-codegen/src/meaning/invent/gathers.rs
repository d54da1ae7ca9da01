//! Pieces that bring parts of several peers together, as text.

use std::fmt::Write;

use super::print::{Printer, WARPS, put, upper};
use super::{Added, Gather, Made, Over, Set, Turns};

impl Printer<'_> {
    pub(super) fn gather(&mut self, gather: &Gather) {
        let own = upper(&self.letter.to_string());
        let elem = if gather.wide { "f32" } else { "bf16" };
        let place = if gather.slots { "" } else { " in window" };
        let turns = match gather.turns {
            Turns::Tokens => "tokens".to_string(),
            Turns::Choices => "topk".to_string(),
            Turns::Own => {
                put!(self, "size @turns in 0..=most;");
                format!("{}_turns", self.letter)
            }
        };
        put!(self, "input @x: {elem}[most, hidden]{place}, @w: f32[most, topk]{place};");
        put!(self, "output @o: {elem}[{turns}, hidden], @ow: f32[{turns}, topk];");
        let position = match gather.computed {
            true => "(i * 5 + peer * 3 + me) % (most + 1) - 1".to_string(),
            false => {
                put!(self, "input @at: i32[{turns}, ranks] in -1..most;");
                format!("{}_at[i, peer]", self.letter)
            }
        };
        let value = self.added(gather, &turns);
        let (per, over) = match gather.over {
            // Who awaits slots has one of every peer.
            Over::Set(set) => (if gather.slots { Set::All } else { set }, set.domain()),
            Over::Range => (Set::All, "1..ranks"),
        };
        put!(self, "message Part{own} {{ row x: {elem}[hidden], w: f32[topk] }}");
        self.offered(gather.slots, per);
        put!(self, "role Sum{own} on all blocks, {WARPS} warps, warps shared by token {{");
        put!(
            self,
            "for i in {turns} gather part from @c[peer] at {position} across peer in {over} {{"
        );
        put!(self, "store @o[i] = {value};");
        put!(self, "store @ow[i] = {}(part.w);", word(gather.fold));
        put!(self, "}}\n    }}");
    }

    /// The channel, and the role at its other end.
    fn offered(&mut self, slots: bool, per: Set) {
        let own = upper(&self.letter.to_string());
        let per = per.name();
        if slots {
            put!(
                self,
                "channel @c: slots<Part{own}> over nvlink from Offer{own} to Sum{own} per {per} {{ slot: [source, row: most] }};"
            );
            put!(self, "role Offer{own} on all blocks, {WARPS} warps, warps shared by row {{");
            put!(
                self,
                "for peer in ranks {{ push @c[peer] at row {{ x: @x[row], w: @w[row] }}; }}"
            );
        } else {
            put!(
                self,
                "channel @c: pull<Part{own}> over nvlink from Offer{own} to Sum{own} per {per};"
            );
            put!(self, "role Offer{own} on block 0, 1 warps {{ push @c {{ x: @x, w: @w }};");
        }
        put!(self, "}}");
    }

    /// What a row of the output is.
    fn added(&mut self, gather: &Gather, turns: &str) -> String {
        let value = match gather.value {
            Added::Plain => "part.x".to_string(),
            Added::Scaled => {
                put!(self, "input @scale: f32[{turns}, ranks];");
                format!("part.x * {}_scale[i, peer]", self.letter)
            }
            Added::Weighed => "part.x * part.w[0]".to_string(),
            Added::Rounded => "(part.x * ((peer + 1) as f32)) as bf16".to_string(),
            Added::Called => {
                put!(
                    self,
                    "cuda fn @half(v: f32) -> f32 = r\"__device__ inline float @half(float v) {{ return v * 0.5f; }}\";"
                );
                format!("{}_half(part.x as f32)", self.letter)
            }
        };
        let value = format!("{}({value})", word(gather.fold));
        if gather.value == Added::Plain {
            return value;
        }
        if gather.wide { value } else { format!("({value}) as bf16") }
    }
}

fn word(fold: Made) -> &'static str {
    match fold {
        Made::Sum => "sum",
        Made::Max => "max",
        Made::Min => "min",
    }
}
