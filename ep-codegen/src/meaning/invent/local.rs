//! Pieces that stay on their rank, as text.

use std::fmt::Write;

use super::print::{Printer, WARPS, clause, put, upper};
use super::{Dealt, Filter, Op, Value};

impl Printer<'_> {
    pub(super) fn count(&mut self, filter: Filter, experts: Filter, last: bool, flags: bool) {
        let own = upper(&self.letter.to_string());
        // A count of a token has no peer: the rank itself is one.
        let own_clause = clause(filter).replace("peer", "me");
        let by_expert = match experts {
            Filter::All | Filter::Flag | Filter::Routed => String::new(),
            Filter::Modulo(by) | Filter::Several(by) => format!(" where e % {by} != 1"),
        };
        put!(self, "output @hits: i32[experts], @rows: i32[experts];");
        put!(self, "table @of: i32[stripes, ranks];");
        if flags {
            put!(self, "table @goes: bool[tokens, ranks];");
        }
        if !last {
            put!(self, "output @kept: {}[tokens, hidden];", self.row_type());
        }
        // One warp: there are more stripes than warps, and some are claimed.
        put!(self, "role Count{own} on all blocks, 1 warps, warps shared by stripe {{");
        put!(self, "for t in stripe{own_clause} {{");
        put!(self, "for e in ids[t]{by_expert} {{ count @hits[e]; }}");
        put!(self, "for peer in ranks where routed(ids[t], peer) {{ count @of[stripe, peer]; }}");
        put!(self, "for e in experts where listed(ids[t], e) {{ count @rows[e]; }}");
        if !last {
            // A turn is the work of a warp.
            put!(self, "store @kept[t] = x[t];");
        }
        put!(self, "}}");
        if flags {
            put!(
                self,
                "for t in stripe {{ for peer in ranks {{ record @goes[t, peer] = routed(ids[t], peer) && to[t, peer]; }} }}"
            );
        }
        put!(self, "}}");
        if last {
            put!(self, "table @first: i32[ranks, stripes];");
            put!(self, "role Last{own} on last block, {WARPS} warps {{");
            put!(
                self,
                "for peer in ranks {{ record @first[peer, s] = prefix_sum(s in stripes: @of[s, peer]); }}"
            );
            put!(self, "}}");
        }
    }

    pub(super) fn places(&mut self, filter: Filter) {
        let own = upper(&self.letter.to_string());
        let and = match filter {
            Filter::All | Filter::Routed => String::new(),
            Filter::Flag => " && to[t, me]".to_string(),
            Filter::Modulo(by) | Filter::Several(by) => format!(" && (t + e) % {by} != 1"),
        };
        put!(self, "output @o: {}[experts * stripes * most, hidden];", self.row_type());
        put!(self, "table @src: i32[experts * stripes * most];");
        put!(self, "role Move{own} on all blocks, {WARPS} warps, warps shared by stripe {{");
        put!(
            self,
            "for t in stripe {{ for e in experts at (e * stripes + stripe) * most where listed(ids[t], e){and} {{"
        );
        put!(self, "store @o[e.position] = x[t];");
        put!(self, "record @src[e.position] = t;");
        put!(self, "}} }}\n    }}");
    }

    pub(super) fn compute(
        &mut self,
        depth: usize,
        value: &Value,
        filter: Option<&Value>,
        named: bool,
        inout: bool,
    ) {
        let own = upper(&self.letter.to_string());
        let (binders, extents) = (["i", "j", "k"], ["ranks", "topk", "3"]);
        let dims = extents[..depth].join(", ");
        let places = binders[..depth].join(", ");
        put!(self, "output @o: i64[{dims}];");
        if inout {
            put!(self, "inout @kept: i64[ranks];");
        }
        put!(self, "role Compute{own} on all blocks, {WARPS} warps {{");
        let value = number(value, depth);
        for (at, (binder, extent)) in binders.iter().zip(extents).take(depth).enumerate() {
            let domain = if extent == "3" { "0..3" } else { extent };
            let last = at + 1 == depth;
            let filter = filter.filter(|_| last);
            let word = if named { "{ if" } else { "where" };
            let filter = filter.map(|filter| format!(" {word} {} % 2 == 0", number(filter, depth)));
            put!(self, "for {binder} in {domain}{} {{", filter.unwrap_or_default());
            if at == 0 && inout && !last {
                put!(self, "add @kept[i] = i + 1;");
            }
        }
        if named {
            put!(self, "let it = {value};");
            put!(self, "store @o[{places}] = it * 2 - it;");
        } else {
            put!(self, "store @o[{places}] = {value};");
        }
        if inout && depth == 1 {
            put!(self, "add @kept[i] = i + 1;");
        }
        if named && filter.is_some() {
            put!(self, "}} else {{ store @o[{places}] = 1; }}");
        }
        put!(self, "{}", "} ".repeat(depth));
        put!(self, "}}");
    }

    /// Each warp of the role has a stripe of its own, whose elements its lanes share out.
    pub(super) fn again(&mut self, value: &Value, carried: bool) {
        let own = upper(&self.letter.to_string());
        put!(self, "inout @o: i64[stripes, topk], @s: i64[stripes];");
        if carried {
            put!(self, "inout @c: i64[stripes, topk + 1], @d: i64[stripes, experts + 1];");
        }
        put!(self, "role Again{own} on all blocks, {WARPS} warps, warps shared by stripe {{");
        let value = number(value, 0);
        put!(self, "for k in topk {{ store @o[stripe, k] = by_choice[k] + {value} * k; }}");
        put!(self, "store @s[stripe] = sum(k in topk: @o[stripe, topk - 1 - k] * (k + 1));");
        if carried {
            let before = format!("{}_c[stripe, k] * 2 + {}_o[stripe, k]", self.letter, self.letter);
            put!(self, "for k in topk {{ store @c[stripe, k + 1] = {before}; }}");
            // Whether a turn is taken depends on the turns before.
            put!(
                self,
                "for e in experts where @d[stripe, e] % 2 == 0 {{ store @d[stripe, e + 1] = @d[stripe, e] / 2 + e; }}"
            );
        }
        put!(self, "}}");
    }

    /// Each number once, whoever takes it: `i` is one of the ranks.
    pub(super) fn dealt(&mut self, share: Dealt, value: &Value) {
        let own = upper(&self.letter.to_string());
        let value = number(value, 1);
        put!(self, "inout @sum: i64[1];");
        put!(self, "output @o: i64[ranks];");
        let (binder, by) = match share {
            Dealt::Stripe => ("", ", warps shared by stripe"),
            Dealt::Token => ("", ", warps shared by token"),
            Dealt::Block => ("", ", one block a token"),
            Dealt::Peer => ("[i]", ""),
            Dealt::Rank => ("", ", warps shared by rank"),
        };
        put!(self, "role Deal{own}{binder} on all blocks, {WARPS} warps{by} {{");
        let once = match share {
            Dealt::Stripe | Dealt::Token | Dealt::Block => "for i in ranks {",
            Dealt::Peer => "for once in 0..1 {",
            Dealt::Rank => "let i = rank; for once in 0..1 {",
        };
        put!(self, "{once} store @o[i] = {value}; add @sum[0] = {value} + 1; }}");
        put!(self, "}}");
    }

    pub(super) fn prefix(&mut self, nested: bool, total: bool, value: &Value) {
        let own = upper(&self.letter.to_string());
        // Sums of 32 bits, for which what is added is small, or of more.
        let (elem, unit) = if total { ("i32", 1) } else { ("i64", 1 << 30) };
        let value = format!("{} % 100 * {unit}", number(value, 1));
        let extent = if total { "more" } else { "ranks" };
        let outer = if nested { "topk, " } else { "" };
        put!(self, "output @o: {elem}[{outer}{extent}];");
        put!(self, "role Prefix{own} on all blocks, {WARPS} warps {{");
        match nested {
            true => put!(
                self,
                "for k in topk {{ store @o[k, i] = prefix_sum(i in ranks: {value} + k); }}"
            ),
            false => put!(self, "store @o[i] = prefix_sum(i in ranks: {value});"),
        }
        put!(self, "}}");
    }
}

/// A value inside `depth` loops over `i`, `j` and `k`.
pub(super) fn number(value: &Value, depth: usize) -> String {
    let index = |at: usize| match at {
        at if at < depth => ["i", "j", "k"][at.min(2)],
        _ => "me",
    };
    match value {
        Value::Number(number) => number.to_string(),
        Value::Me => "me".to_string(),
        Value::Index(at) => index(*at).to_string(),
        Value::Input(at) => match at {
            1 if depth > 1 => "by_choice[j]".to_string(),
            2 if depth > 2 => "by_three[k]".to_string(),
            _ if depth == 0 => "by_rank[me]".to_string(),
            _ => "by_rank[i]".to_string(),
        },
        Value::Fold(at) => match at {
            0 => "sum(r in ranks: by_rank[r] + r)".to_string(),
            1 => "sum(c in topk: by_choice[c] * c)".to_string(),
            _ => "sum(n in 1..3: by_three[n])".to_string(),
        },
        Value::Pair(Op::Max, left, right) if matches!(**left, Value::Pair(..)) => {
            let (left, right) = (number(left, depth), number(right, depth));
            format!("(if {left} > {right} {{ {left} }} else {{ {right} }})")
        }
        Value::Pair(op, left, right) => {
            let (left, right) = (number(left, depth), number(right, depth));
            match op {
                Op::Add => format!("({left} + {right})"),
                Op::Sub => format!("({left} - {right})"),
                Op::Mul => format!("({left} * {right})"),
                Op::Div => format!("({left} / {right})"),
                Op::Rem => format!("({left} % {right})"),
                Op::Max => format!("max({left}, {right})"),
                Op::Min => format!("min({left}, {right})"),
                Op::Align => format!("align({left}, {right})"),
            }
        }
    }
}
