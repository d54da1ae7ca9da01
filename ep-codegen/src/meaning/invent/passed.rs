//! Pieces whose messages a role passes on, or sends to peers that it computes, as text.

use std::fmt::Write;

use super::print::{Printer, WARPS, clause, condition, put, sent, taken, upper};
use super::{Filter, Lane, On, Through};

impl Printer<'_> {
    pub(super) fn forward(&mut self, lane: &Lane, on: On) {
        let name = format!("{}_p", self.letter);
        let own = upper(&self.letter.to_string());
        let dims = if on == On::Own { "stripes, most * ranks" } else { "ranks, stripes, most" };
        self.lane(&name, lane, dims, false);
        let options = "{ depth: 4, chunk: 1, header: [count] }";
        put!(
            self,
            "channel {name}: ring<Of{0}> over nvlink from Send{own} to Pass{own} per all {options};",
            upper(&name)
        );
        put!(
            self,
            "channel {name}on: ring<Of{0}> over nvlink from Pass{own} to Take{own} per all {options};",
            upper(&name)
        );
        let count = Printer::announced(lane.filter);
        put!(self, "role Send{own}[peer] on all blocks, {WARPS} warps {{");
        put!(self, "announce {name}[peer] {{ count: {count} }};");
        put!(self, "for t in stripe{} {{ {} }}", clause(lane.filter), sent(&name, lane, ""));
        put!(self, "}}");
        self.passes(&name, on);
        let place = if on == On::Own { "stripe, m.row" } else { "peer, stripe, m.row" };
        let taken = taken(&name, lane, place);
        if on == On::Own {
            put!(self, "role Take{own} on all blocks, {WARPS} warps, warps shared by stripe {{");
            put!(self, "for m in {name}on[me] {{ {taken} }}");
        } else {
            put!(self, "role Take{own}[peer] on all blocks, {WARPS} warps {{");
            put!(self, "for m in {name}on[peer] {{ {taken} }}");
        }
        put!(self, "}}");
    }

    /// The role in the middle.
    fn passes(&mut self, name: &str, on: On) {
        let own = upper(&self.letter.to_string());
        match on {
            On::Same => {
                put!(self, "role Pass{own}[peer] on all blocks, {WARPS} warps {{");
                put!(self, "announce {name}on[peer] {{ count: {name}[peer].count }};");
                put!(self, "for m in {name}[peer] {{ push {name}on[peer] {{ ..m }}; }}");
            }
            On::Own => {
                put!(
                    self,
                    "role Pass{own} on all blocks, {WARPS} warps, warps shared by stripe {{"
                );
                put!(
                    self,
                    "announce {name}on[me] {{ count: sum(peer in ranks: {name}[peer].count) }};"
                );
                put!(self, "for peer in others {{ announce {name}on[peer] {{ count: 0 }}; }}");
                put!(self, "for m in {name} {{ push {name}on[me] {{ ..m }}; }}");
            }
            On::Next => {
                put!(
                    self,
                    "role Pass{own} on all blocks, {WARPS} warps, warps shared by stripe {{"
                );
                put!(
                    self,
                    "for peer in ranks {{ announce {name}on[(peer + 1) % ranks] {{ count: {name}[peer].count }}; }}"
                );
                put!(
                    self,
                    "for m in {name} {{ push {name}on[(m.source + 1) % ranks] {{ ..m }}; }}"
                );
            }
        }
        put!(self, "}}");
    }

    /// Messages of a token to a peer that depends on it.
    pub(super) fn moved(&mut self, lane: &Lane, by: i64, through: Through) {
        let name = format!("{}_p", self.letter);
        let own = upper(&self.letter.to_string());
        let target = format!("(t + numbers[t] * numbers[t] + {by}) % ranks");
        // The rank itself stands where a condition speaks of a peer.
        let goes = match lane.filter {
            Filter::All => String::new(),
            filter => condition(filter).replace("peer", "me"),
        };
        let also = if goes.is_empty() { String::new() } else { format!("({goes}) && ") };
        let clause = if goes.is_empty() { String::new() } else { format!(" where {goes}") };
        let (dims, kind, options) = match through {
            Through::Ring => {
                ("ranks, stripes, most", "ring", " { depth: 4, chunk: 1, header: [count] }")
            }
            Through::Direct => ("ranks * stripes * most", "direct", ""),
            Through::Slots => {
                ("ranks, most", "slots", " { slot: [source, arrival: most], epochs: 2 }")
            }
        };
        self.lane(&name, lane, dims, through == Through::Direct);
        put!(
            self,
            "channel {name}: {kind}<Of{}> over nvlink from Send{own} to Take{own} per all{options};",
            upper(&name)
        );
        let at = if through == Through::Direct { " at (me * stripes + stripe) * most" } else { "" };
        let push = sent(&name, lane, at).replace("[peer]", &format!("[{target}]"));
        put!(self, "role Send{own} on all blocks, {WARPS} warps, warps shared by stripe {{");
        if through == Through::Ring {
            put!(
                self,
                "for peer in ranks {{ announce {name}[peer] {{ count: sum(t in stripe: ({also}{target} == peer) as i32) }}; }}"
            );
        }
        put!(self, "for t in stripe{clause} {{ {push} }}");
        if through == Through::Slots {
            put!(self, "close {name};");
        }
        put!(self, "}}");
        let (share, index, place) = match through {
            Through::Ring => ("[peer] on all blocks, 2 warps", "peer", "peer, stripe, m.index"),
            Through::Direct => {
                (" on all blocks, 2 warps, warps shared by (source, stripe)", "source", "m.row")
            }
            Through::Slots => {
                (" on all blocks, 2 warps, warps shared by source", "source", "source, m.index")
            }
        };
        put!(self, "role Take{own}{share} {{");
        put!(self, "for m in {name}[{index}] {{ {} }}", taken(&name, lane, place));
        put!(self, "}}");
    }
}
