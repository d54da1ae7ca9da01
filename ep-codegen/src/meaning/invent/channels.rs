//! Pieces that send messages, as text.

use std::fmt::Write;

use super::print::{Printer, WARPS, clause, put, sent, taken, upper};
use super::{Bias, Filter, Fold, Lane, Receiver, Sender, Set};

impl Printer<'_> {
    pub(super) fn rings(&mut self, lanes: &[Lane], sender: Sender, receiver: Receiver, set: Set) {
        let per = set.name();
        let (dims, first) = match receiver {
            Receiver::Place => ("ranks * stripes * most", "(me * stripes + stripe) * most"),
            _ => ("ranks, stripes, most", "stripe * 2"),
        };
        let names: Vec<String> =
            ["p", "q"].iter().take(lanes.len()).map(|it| format!("{}_{it}", self.letter)).collect();
        for (name, lane) in names.iter().zip(lanes) {
            self.lane(name, lane, dims, false);
            put!(
                self,
                "channel {name}: ring<Of{}> over nvlink from Send{1} to Take{1} per {per} {{
                     depth: 4, chunk: 1, header: [first, count],
                 }};",
                upper(name),
                upper(&self.letter.to_string())
            );
        }
        let own = upper(&self.letter.to_string());
        match sender {
            Sender::Peer => {
                put!(self, "role Send{own}[peer in {per}] on all blocks, {WARPS} warps {{");
            }
            Sender::Token => {
                put!(self, "role Send{own} on all blocks, {WARPS} warps, warps shared by token {{");
            }
        }
        for (name, lane) in names.iter().zip(lanes) {
            let count = Printer::announced(lane.filter);
            let announce = format!("announce {name}[peer] {{ first: {first}, count: {count} }};");
            match sender {
                Sender::Peer => put!(self, "{announce}"),
                Sender::Token => put!(self, "for peer in {} {{ {announce} }}", set.domain()),
            }
        }
        for (name, lane) in names.iter().zip(lanes) {
            let sent = sent(name, lane, "");
            match sender {
                Sender::Peer => {
                    put!(self, "for t in stripe{} {{ {sent} }}", clause(lane.filter));
                }
                Sender::Token => put!(
                    self,
                    "for t in stripe {{ for peer in {}{} {{ {sent} }} }}",
                    set.domain(),
                    clause(lane.filter)
                ),
            }
        }
        put!(self, "}}");
        self.take(&names, lanes, receiver, per);
    }

    /// The role that takes the messages of rings.
    fn take(&mut self, names: &[String], lanes: &[Lane], receiver: Receiver, set: &str) {
        let own = upper(&self.letter.to_string());
        let (index, place) = match receiver {
            Receiver::Stripe => ("", "m.source, stripe, m.index"),
            Receiver::Peer => ("[peer]", "peer, stripe, m.index"),
            Receiver::Place => ("[peer]", "m.row"),
        };
        match receiver {
            Receiver::Peer | Receiver::Place => {
                put!(self, "role Take{own}[peer in {set}] on all blocks, {WARPS} warps {{");
            }
            Receiver::Stripe => {
                put!(
                    self,
                    "role Take{own} on all blocks, {WARPS} warps, warps shared by stripe {{"
                );
            }
        }
        for (name, lane) in names.iter().zip(lanes) {
            let taken = taken(name, lane, place);
            let first = match receiver {
                Receiver::Place => format!(" at {name}[peer].first"),
                _ => String::new(),
            };
            put!(self, "for m in {name}{index}{first} {{ {taken} }}");
        }
        put!(self, "}}");
    }

    pub(super) fn direct(&mut self, lane: &Lane, sender: Sender, set: Set) {
        let name = format!("{}_p", self.letter);
        let own = upper(&self.letter.to_string());
        self.lane(&name, lane, "ranks * stripes * most", true);
        put!(
            self,
            "channel {name}: direct<Of{}> over nvlink from Send{own} to Take{own} per {};",
            upper(&name),
            set.name()
        );
        let sent = sent(&name, lane, " at (me * stripes + stripe) * most");
        match sender {
            Sender::Peer => {
                let per = set.name();
                put!(self, "role Send{own}[peer in {per}] on all blocks, {WARPS} warps {{");
                put!(self, "for t in stripe{} {{ {sent} }}", clause(lane.filter));
            }
            Sender::Token => {
                put!(self, "role Send{own} on all blocks, {WARPS} warps, warps shared by token {{");
                put!(
                    self,
                    "for t in stripe {{ for peer in {}{} {{ {sent} }} }}",
                    set.domain(),
                    clause(lane.filter)
                );
            }
        }
        put!(self, "}}");
        put!(
            self,
            "role Take{own} on all blocks, {WARPS} warps, warps shared by (source, stripe) {{"
        );
        put!(self, "for m in {name}[source] {{ {} }}", taken(&name, lane, "m.row"));
        put!(self, "}}");
    }

    pub(super) fn slots(&mut self, per_index: bool, folds: &[Fold], set: Set) {
        let (slot, at, index) = match per_index {
            true => ("[k: topk, source]", "at k ", "k, s"),
            false => ("[source]", "", "s"),
        };
        let own = upper(&self.letter.to_string());
        put!(self, "message Word{own} {{ per: i32[ranks], one: i64 }}");
        put!(
            self,
            "channel @c: slots<Word{own}> over nvlink from Talk{own} to Talk{own} per {} {{ slot: {slot}, epochs: 2 }};",
            set.name()
        );
        let peers = set.domain();
        let outer = if per_index { "topk, " } else { "" };
        for (at, fold) in folds.iter().enumerate() {
            match fold {
                Fold::Sum => put!(self, "output @o{at}: i64[{outer}1];"),
                Fold::Greatest => put!(self, "output @o{at}: i64[{outer}2];"),
                Fold::Prefix if set == Set::Others => {}
                Fold::Prefix => put!(self, "table @o{at}: i32[{outer}ranks + 1, ranks];"),
                Fold::Copy => put!(self, "output @o{at}: i32[{outer}ranks, ranks];"),
            }
        }
        put!(self, "role Talk{own} on block 0, {WARPS} warps {{");
        let push = format!(
            "push @c[peer] {at}{{ per: by_rank, one: me * 3 + {} }};",
            if per_index { "k" } else { "1" }
        );
        match per_index {
            true => put!(self, "for peer in {peers} {{ for k in topk {{ {push} }} }}"),
            false => put!(self, "for peer in {peers} {{ {push} }}"),
        }
        put!(self, "await @c;");
        for (at, fold) in folds.iter().enumerate() {
            let (open, close, first) = match per_index {
                true => ("for k in topk { ", " }", "k, "),
                false => ("", "", ""),
            };
            match fold {
                Fold::Sum => put!(
                    self,
                    "{open}store @o{at}[{first}0] = sum(s in {peers}: @c[{index}].one * @c[{index}].per[me]);{close}"
                ),
                // Of no peers there is a greatest number of 64 bits.
                Fold::Greatest => put!(
                    self,
                    "{open}store @o{at}[{first}0] = max(s in {peers}: @c[{index}].per[me]); store @o{at}[{first}1] = min(s in {peers}: @c[{index}].one);{close}"
                ),
                // Nothing comes from this rank itself where it is no peer.
                Fold::Prefix if set == Set::Others => {}
                Fold::Prefix => put!(
                    self,
                    "{open}for dest in ranks {{ record @o{at}[{first}s, dest] = prefix_sum(s in ranks: @c[{index}].per[dest]); }}{close}"
                ),
                Fold::Copy => put!(
                    self,
                    "{open}for s in {peers} {{ store @o{at}[{first}s] = @c[{index}].per; }}{close}"
                ),
            }
        }
        put!(self, "}}");
    }

    pub(super) fn arrivals(&mut self, lane: &Lane) {
        let name = format!("{}_p", self.letter);
        let own = upper(&self.letter.to_string());
        // A slot that is not filled has no position.
        let recorded = lane.recorded && lane.filter == Filter::All;
        let lane = &Lane { recorded, ..lane.clone() };
        self.lane(&name, lane, "ranks, most", false);
        put!(
            self,
            "channel {name}: slots<Of{}> over nvlink from Send{own} to Take{own} per all {{ slot: [source, arrival: most], epochs: 2 }};",
            upper(&name)
        );
        put!(self, "table @n: i32[ranks];");
        put!(self, "role Send{own} on block 0, {WARPS} warps {{");
        put!(
            self,
            "for t in tokens {{ for peer in ranks{} {{ {} }} }}",
            clause(lane.filter),
            sent(&name, lane, "")
        );
        put!(self, "close {name};");
        put!(self, "}}");
        put!(self, "role Take{own} on block 0, {WARPS} warps, warps shared by source {{");
        put!(self, "record @n[source] = {name}[source].count;");
        put!(self, "for m in {name}[source] {{ {} }}", taken(&name, lane, "source, m.index"));
        put!(self, "}}");
    }

    pub(super) fn keyed(&mut self, counted: bool) {
        let own = upper(&self.letter.to_string());
        let slot = if counted { "k: topk, source, arrival: most" } else { "k: topk, source" };
        put!(self, "message Key{own} {{ tag: i64 }}");
        put!(
            self,
            "channel @c: slots<Key{own}> over nvlink from Say{own} to Ask{own} per all {{ slot: [{slot}], epochs: 2 }};"
        );
        put!(self, "output @o: i64[topk, ranks, most];");
        put!(self, "role Say{own} on block 0, {WARPS} warps {{");
        match counted {
            true => put!(
                self,
                "for t in tokens {{ for peer in ranks where to[t, peer] {{ push @c[peer] at t % topk {{ tag: t * 8 + me }}; }} }}
                 close @c;"
            ),
            false => put!(
                self,
                "for k in topk {{ for peer in ranks {{ push @c[peer] at k {{ tag: by_choice[k] * 10 + me }}; }} }}"
            ),
        }
        put!(self, "}}");
        if counted {
            put!(self, "table @first: i32[topk, ranks];");
        }
        put!(self, "role Ask{own} on block 0, {WARPS} warps, warps shared by source {{");
        let first = if counted { "record @first[k, source] = @c[k, source].base; " } else { "" };
        if counted {
            put!(self, "await @c;");
        }
        put!(
            self,
            "for k in topk {{ {first}for m in @c[k, source] {{ store @o[k, source, m.index] = m.tag; }} }}"
        );
        put!(self, "}}");
    }

    pub(super) fn pull(&mut self, bias: Bias, weights: bool, scaled: bool) {
        let own = upper(&self.letter.to_string());
        put!(self, "size @rows in 1..=8;");
        put!(
            self,
            "input @x: bf16[@rows, hidden] in window, @at: i32[tokens, ranks] in -1..@rows;"
        );
        put!(self, "output @o: bf16[tokens, hidden];");
        let mut fields = "row x: bf16[hidden]".to_string();
        let mut values = "x: @x".to_string();
        if weights {
            put!(self, "input @w: f32[@rows, topk] in window;");
            put!(self, "output @ow: f32[tokens, topk];");
            fields.push_str(", w: f32[topk]");
            values.push_str(", w: @w");
        }
        if scaled {
            put!(self, "input @scale: f32[tokens, ranks];");
            put!(self, "output @os: f32[tokens, hidden];");
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
        put!(self, "message Part{own} {{ {fields} }}");
        put!(self, "channel @c: pull<Part{own}> over nvlink from Offer{own} to Sum{own} per all;");
        put!(self, "role Offer{own} on block 0, 1 warps {{ push @c {{ {values} }}; }}");
        // One warp: there are more tokens than warps, and some are claimed.
        put!(self, "role Sum{own} on all blocks, 1 warps, warps shared by token {{");
        put!(
            self,
            "for t in tokens gather part from @c[peer] at @at[t, peer] across peer in ranks {{"
        );
        put!(self, "store @o[t] = sum(part.x){added};");
        if weights {
            put!(self, "store @ow[t] = sum(part.w);");
        }
        if scaled {
            put!(
                self,
                "}}\n    for t in tokens gather part from @c[peer] at @at[t, peer] across peer in ranks {{"
            );
            put!(self, "store @os[t] = sum(part.x * @scale[t, peer]);");
        }
        put!(self, "}}\n    }}");
    }
}
