//! Pieces with floats, functions of the user and sizes of their own, as text.

use std::fmt::Write;

use super::local::number;
use super::print::{Printer, WARPS, put, upper};
use super::{Real, RealOp, Value};

impl Printer<'_> {
    pub(super) fn reals(&mut self, value: &Real, by_row: bool, bf16: bool) {
        let own = upper(&self.letter.to_string());
        let (elem, cast) = if bf16 { ("bf16", " as bf16") } else { ("f32", "") };
        put!(self, "input @g: bf16[tokens, topk];");
        put!(self, "output @o: {elem}[tokens, topk];");
        put!(
            self,
            "cuda fn @called(v: f32) -> f32 = r\"__device__ inline float @called(float v) {{ return v > 0.5f ? v * 0.75f : -v; }}\";"
        );
        put!(self, "role Real{own} on all blocks, {WARPS} warps, warps shared by stripe {{");
        let value = self.real(value, by_row);
        match by_row {
            // Of which at least one is a row.
            true => put!(self, "for t in stripe {{ store @o[t] = (weights[t] + {value}){cast}; }}"),
            false => {
                put!(
                    self,
                    "for t in stripe {{ for k in topk {{ store @o[t, k] = ({value}){cast}; }} }}"
                );
            }
        }
        put!(self, "}}");
    }

    /// A float as text: always an `f32`.
    fn real(&self, value: &Real, by_row: bool) -> String {
        let at = if by_row { "t" } else { "t, k" };
        match value {
            Real::Weight => format!("weights[{at}]"),
            Real::Gate => format!("(@g[{at}] as f32)"),
            Real::Number => "(numbers[t] as f32)".to_string(),
            Real::Small => "(small[t, 1] as f32)".to_string(),
            Real::Called(inner) => format!("@called({})", self.real(inner, by_row)),
            Real::Rounded(inner) => format!("(({}) as bf16 as f32)", self.real(inner, by_row)),
            Real::Pair(op, left, right) => {
                let op = match op {
                    RealOp::Add => "+",
                    RealOp::Sub => "-",
                    RealOp::Mul => "*",
                };
                format!("({} {op} {})", self.real(left, by_row), self.real(right, by_row))
            }
        }
    }

    pub(super) fn tallies(&mut self, over: i64, value: &Value) {
        let own = upper(&self.letter.to_string());
        put!(self, "size @rows in 0..=most;");
        put!(self, "input @v: i64[@rows, topk] in -2000000000..6000000000;");
        put!(self, "output @n: i32[@rows], @m: i64[@rows, topk];");
        put!(self, "role Tally{own} on all blocks, {WARPS} warps {{");
        put!(self, "for r in @rows {{");
        put!(self, "let n = sum(k in topk: (@v[r, k] > {over}) as i32);");
        put!(self, "store @n[r] = n * n - n;");
        put!(
            self,
            "for j in topk where n > 0 || @v[r, j] != {over} {{ store @m[r, j] = n * @v[r, j] + {}; }}",
            number(value, 0)
        );
        put!(self, "}}\n    }}");
    }
}
