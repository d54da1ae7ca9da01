//! Rows that go to other ranks and come back in a pipeline of their own, where they are added up at
//! the positions that the first one has recorded.

use std::fmt::Write;

use super::print::{Printer, WARPS, clause, put, upper};
use super::{Bias, Filter, Piece};

impl Printer<'_> {
    /// The way there: what arrives is only counted.
    pub(super) fn forth(&mut self, filter: Filter) {
        let own = upper(&self.letter.to_string());
        put!(self, "message Gone{own} {{ src: i32 }}");
        put!(self, "table @head: i32[tokens, ranks], @count: i32[ranks, stripes];");
        put!(
            self,
            "channel @p: ring<Gone{own}> over nvlink from Send{own} to Take{own} per all {{
                 depth: 4, chunk: 1, header: [count],
             }};"
        );
        put!(self, "role Send{own}[peer] on all blocks, {WARPS} warps {{");
        put!(self, "announce @p[peer] {{ count: {} }};", Printer::announced(filter));
        put!(self, "for t in stripe{} {{", clause(filter));
        put!(self, "push @p[peer] {{ src: t }}; record @head[t, peer] = @p[peer].position;");
        put!(self, "}}\n    }}");
        put!(self, "output @src: i32[ranks, stripes, most];");
        put!(self, "role Take{own}[peer] on all blocks, {WARPS} warps {{");
        put!(self, "record @count[peer, stripe] = @p[peer].count;");
        put!(self, "for m in @p[peer] {{ store @src[peer, stripe, m.index] = m.src; }}");
        put!(self, "}}");
    }

    /// The pipeline of the way back.
    pub(super) fn back(&mut self) {
        put!(self, "uses handle Random;");
        for (piece, letter) in self.invented.pieces.iter().zip('a'..='z') {
            self.letter = letter;
            if let Piece::RoundTrip { bias, weights, by_row, wide, .. } = piece {
                self.added_up(*bias, (*weights, *by_row, *wide));
            }
        }
    }

    fn added_up(&mut self, bias: Bias, (weights, by_row, wide): (bool, bool, bool)) {
        let own = upper(&self.letter.to_string());
        let elem = if wide { "f32" } else { "bf16" };
        put!(self, "input @y: {elem}[ranks, stripes, most, hidden];");
        put!(self, "output @o: {elem}[tokens, hidden];");
        let (mut fields, mut values) = (String::new(), String::new());
        if weights {
            put!(self, "input @yw: f32[ranks, stripes, most, topk];");
            put!(self, "output @ow: f32[tokens, topk];");
            fields.push_str(", w: f32[topk]");
            values.push_str(", w: @yw[peer, stripe, i]");
        }
        let added = match bias {
            Bias::None => "",
            Bias::Row => {
                put!(self, "input @b: bf16[hidden];");
                " + @b"
            }
            Bias::Several => {
                put!(self, "input @b: up to 2 bf16[tokens, hidden];");
                " + @b[t]"
            }
            Bias::Maybe => {
                put!(self, "input @b: optional bf16[tokens, hidden];");
                " + @b[t]"
            }
        };
        put!(self, "message Part{own} {{ row x: {elem}[hidden]{fields} }}");
        put!(
            self,
            "channel @c: ring<Part{own}> over nvlink from Back{own} to Sum{own} per all {{ depth: 4, chunk: 1 }};"
        );
        put!(self, "role Back{own}[peer] on all blocks, {WARPS} warps {{");
        // Rows may also be told apart by the place that they have among those of all stripes.
        let (domain, row) = match by_row {
            true => ("stripe * 16..stripe * 16 + @count[peer, stripe]", "i - stripe * 16"),
            false => ("0..@count[peer, stripe]", "i"),
        };
        let values = values.replace("stripe, i]", &format!("stripe, {row}]"));
        put!(
            self,
            "for i in {domain} {{ push @c[peer] {{ x: @y[peer, stripe, {row}]{values} }}; }}"
        );
        put!(self, "}}");
        put!(self, "role Sum{own} on all blocks, {WARPS} warps, warps shared by token {{");
        put!(
            self,
            "for t in stripe gather part from @c[peer] at @head[t, peer] across peer in ranks {{"
        );
        put!(self, "store @o[t] = sum(part.x){added};");
        if weights {
            put!(self, "store @ow[t] = sum(part.w);");
        }
        put!(self, "}}\n    }}");
    }
}
