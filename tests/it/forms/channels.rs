//! Channels of every kind, with every kind of field.

use super::run::{Call, Form, rows};

const RANKS: usize = 3;

const SLOTS: &str = "
        shape { ranks: 1..=64, experts: 1..=64, let local_experts = ceil(experts, ranks) }
        input
            n: i32[ranks, 5], one: i64[ranks], real: f32[3], small: u8[2], narrow: bf16[2], code: e4m3[4],
            load: i64[experts], counts: i32[experts], expert_begin: i32[ranks + 1];
        table
            from: i32[ranks, 5], ones: i64[ranks], reals: f32[ranks, 3], smalls: u8[ranks, 2],
            narrows: bf16[ranks, 2], codes: e4m3[ranks, 4], loads: i64[ranks, local_experts],
            own_counts: i32[ranks, local_experts], flags: bool[ranks], prefix: i32[local_experts, ranks + 1],
            most: i64[ranks];
        message Words { n: i32[5], one: i64, real: f32[3], small: u8[2], narrow: bf16[2], code: e4m3[4], flag: bool }
        message Loads { load: i64[local_experts], few: i32[local_experts] }
        channel words: slots<Words> over nvlink from Talk to Talk per all { slot: [source], epochs: 3 };
        channel loads_of: slots<Loads> over nvlink from Talk to Hear per all { slot: [source] };
        role Talk on block 0, 4 warps {
            for i in ranks {
                push words[i] {
                    n: n[i], one: one[i] * 2, real: real, small: small, narrow: narrow, code: code, flag: i == me,
                };
            }
            for peer in all { push loads_of[peer] { load: owned(load, peer), few: owned(counts, peer) }; }
            await words;
            for s in ranks {
                record from[s] = words[s].n;
                record ones[s] = words[s].one;
                record flags[s] = words[s].flag;
                for k in 0..3 { record reals[s, k] = words[s].real[k]; }
                record smalls[s] = words[s].small;
                record narrows[s] = words[s].narrow;
                record codes[s] = words[s].code;
            }
        }
        role Hear on block 0, 2 warps {
            await loads_of;
            for s in ranks {
                record loads[s] = loads_of[s].load;
                record own_counts[s] = loads_of[s].few;
                record most[s] = sum(e in local_experts: loads_of[s].load[e]);
            }
            for e in local_experts { record prefix[e, s] = prefix_sum(s in ranks: loads_of[s].few[e]); }
        }";

#[test]
fn slots_carry_fields_of_every_kind() {
    for (turn, (ranks, experts)) in [(RANKS, 8), (1, 3)].into_iter().enumerate() {
        let most = usize::div_ceil(experts, ranks);
        let begin = |rank: usize| (rank * most).min(experts);
        let load = |rank: usize, e: usize| ((rank + 1) * (e + 2)) as f64 * 3e10;
        let count = |rank: usize, e: usize| (rank * 7 + e + 1) as f64;
        let own = move |value: &dyn Fn(usize, usize) -> f64, me: usize, s: usize, e: usize| {
            if begin(me) + e < begin(me + 1) { value(s, begin(me) + e) } else { 0.0 }
        };
        let call = |me: usize| {
            Call::new()
                .give("n", 5, rows(ranks, 5, |peer, k| (me * 1000 + peer * 10 + k) as f64))
                .give("one", 1, rows(ranks, 1, |peer, _| -((me * 10 + peer) as f64) * 4e9))
                .give("real", 1, rows(3, 1, |k, _| me as f64 + k as f64 / 4.0))
                .give("small", 1, rows(2, 1, |k, _| (me + k * 100) as f64))
                .give("narrow", 1, rows(2, 1, |k, _| me as f64 - k as f64))
                .give("code", 1, rows(4, 1, |k, _| (me * 16 + k) as f64))
                .give("load", 1, rows(experts, 1, |e, _| load(me, e)))
                .give("counts", 1, rows(experts, 1, |e, _| count(me, e)))
                .give("expert_begin", 1, rows(ranks + 1, 1, |r, _| begin(r) as f64))
                .want("from", 5, rows(ranks, 5, |s, k| (s * 1000 + me * 10 + k) as f64))
                .want("ones", 1, rows(ranks, 1, |s, _| -((s * 10 + me) as f64) * 8e9))
                .want("reals", 3, rows(ranks, 3, |s, k| s as f64 + k as f64 / 4.0))
                .want("smalls", 2, rows(ranks, 2, |s, k| (s + k * 100) as f64))
                .want("narrows", 2, rows(ranks, 2, |s, k| s as f64 - k as f64))
                .want("codes", 4, rows(ranks, 4, |s, k| (s * 16 + k) as f64))
                .want("flags", 1, rows(ranks, 1, |s, _| f64::from(s == me)))
                .want("loads", most, rows(ranks, most, |s, e| own(&load, me, s, e)))
                .want("own_counts", most, rows(ranks, most, |s, e| own(&count, me, s, e)))
                .want(
                    "most",
                    1,
                    rows(ranks, 1, |s, _| (0..most).map(|e| own(&load, me, s, e)).sum()),
                )
                .want(
                    "prefix",
                    ranks + 1,
                    rows(most, ranks + 1, |e, end| (0..end).map(|s| own(&count, me, s, e)).sum()),
                )
        };
        let form = Form::new(SLOTS, &[("ranks", ranks as i64), ("experts", experts as i64)]);
        form.blocks(1).turn(turn).check(&call);
    }
}

/// Who sends what where: token `token` of `from` goes to `to`.
pub(super) fn goes(from: usize, token: usize, to: usize) -> bool {
    (from * 5 + token * 3 + to) % 4 != 1
}

pub(super) fn tokens_of(rank: usize) -> usize {
    [13, 0, 7][rank % 3]
}

/// The tokens of a stripe.
pub(super) fn stripe(tokens: usize, stripes: usize, stripe: usize) -> std::ops::Range<usize> {
    let (each, longer) = (tokens / stripes, tokens % stripes);
    let begin = stripe * each + stripe.min(longer);
    begin..begin + each + usize::from(stripe < longer)
}

/// The rows that arrive at a rank, in order: who sent them, and which token.
fn arrive(at: usize, ranks: usize) -> Vec<(usize, usize)> {
    let sent = |from: usize| {
        (0..tokens_of(from)).filter(move |t| goes(from, *t, at)).map(move |t| (from, t))
    };
    (0..ranks).flat_map(sent).collect()
}

/// Rows up to and with those of `from`.
fn before(at: usize, from: usize, ranks: usize) -> usize {
    arrive(at, ranks).iter().filter(|(sender, _)| *sender < from).count()
}

const STRIPES: usize = 2;

/// What every rank brings to a dispatch: where tokens go, and where their rows start.
fn sent(me: usize, ranks: usize) -> Call {
    let tokens = tokens_of(me);
    let matches = |stripe_tokens: std::ops::Range<usize>, peer: usize| {
        stripe_tokens.filter(|token| goes(me, *token, peer)).count() as f64
    };
    Call::new()
        .number("tokens", tokens)
        .give("to", ranks, rows(tokens, ranks, |token, peer| f64::from(goes(me, token, peer))))
        .give("starts", ranks, rows(ranks + 1, ranks, |from, at| before(at, from, ranks) as f64))
        .give(
            "in_stripe",
            ranks,
            rows(STRIPES, ranks, |s, peer| matches(stripe(tokens, STRIPES, s), peer)),
        )
        .give(
            "ahead",
            STRIPES,
            rows(ranks, STRIPES, |peer, s| matches(0..stripe(tokens, STRIPES, s).start, peer)),
        )
}

/// Where the row of a token is: how many rows of it this rank has sent the peer, or that there is
/// none and how many have gone before.
fn position(me: usize, token: usize, peer: usize, first: usize) -> f64 {
    let gone = first + (0..token).filter(|before| goes(me, *before, peer)).count();
    if goes(me, token, peer) { gone as f64 } else { -1.0 - gone as f64 }
}

const FIELDS: &str = "
    src: i32, flag: bool, small: u8[3], ids: i64[topk], w: f32[topk], narrow: bf16[4], code: e4m3[5], power: ue8m0,
    pairs: i32[2, 3], maybe: f32[2] with may, never: f32[2] with no, sum_of: i32";
const GIVEN: &str = "
    input
        to: bool[tokens, ranks], starts: i32[ranks + 1, ranks], in_stripe: i32[stripes, ranks],
        ahead: i32[ranks, stripes], flags: bool[tokens], smalls: u8[tokens, 3], ids: i64[tokens, topk],
        w: f32[tokens, topk], narrows: bf16[tokens, 4], codes: e4m3[tokens, 5], powers: ue8m0[tokens],
        pairs: i32[tokens, 2, 3], may: optional f32[tokens, 2], no: optional f32[tokens, 2];";
const TAKEN: &str = "
    output
        o_small: u8[received, 3] fill 9 beyond received, o_ids: i32[received, topk] fill -1 beyond received,
        o_w: f32[received, topk] fill -2 beyond received, o_narrow: bf16[received, 4] fill -3 beyond received,
        o_flag: bool[received] fill 1 beyond received, o_code: e4m3[received, 5], o_power: ue8m0[received],
        o_pairs: i64[received, 2, 3], o_maybe: optional f32[received, 2], o_never: optional f32[received, 2];
    table srcs: i32[received], next: i32[received], sums: i32[received];";
const PUSHED: &str = "
    src: i, flag: flags[i], small: smalls[i], ids: ids[i], w: w[i] * 2, narrow: narrows[i], code: codes[i],
    power: powers[i], pairs: pairs[i], maybe: may[i], never: no[i], sum_of: sum(k in topk: ids[i, k]) + peer";
const STORED: &str = "
    record srcs[message.row] = message.src;
    record next[message.row] = message.src + 1;
    store o_flag[message.row] = !message.flag;
    store o_small[message.row] = message.small;
    store o_ids[message.row] = message.ids;
    store o_w[message.row] = message.w + 1;
    store o_narrow[message.row] = message.narrow;
    store o_code[message.row] = message.code;
    store o_power[message.row] = message.power;
    store o_pairs[message.row] = message.pairs;
    store o_maybe[message.row] = message.maybe;
    store o_never[message.row] = message.never;
    record sums[message.row] = message.sum_of - me;";

const TOPK: usize = 3;
/// Rows that outputs hold beyond those of the call.
const SPARE: usize = 2;

fn fields(call: Call, me: usize) -> Call {
    let tokens = tokens_of(me);
    let at = |token: usize, k: usize| (me * 1000 + token * 10 + k) as f64;
    call.give("flags", 1, rows(tokens, 1, |t, _| (t % 2) as f64))
        .give("smalls", 3, rows(tokens, 3, |t, k| (t * 4 + k) as f64))
        .give("ids", TOPK, rows(tokens, TOPK, at))
        .give("w", TOPK, rows(tokens, TOPK, |t, k| at(t, k) / 8.0))
        .give("narrows", 4, rows(tokens, 4, |t, k| (t * 4 + k) as f64))
        .give("codes", 5, rows(tokens, 5, |t, k| (t * 7 + k) as f64))
        .give("powers", 1, rows(tokens, 1, |t, _| (t + 100) as f64))
        .give("pairs", 6, rows(tokens, 6, |t, k| at(t, k) + 5.0))
        .give("may", 2, rows(tokens, 2, |t, k| at(t, k) + 0.5))
}

/// What the fields above leave; `filled`: rows beyond those of the call have been filled.
fn arrived(call: Call, me: usize, ranks: usize) -> Call {
    let all = arrive(me, ranks);
    let of = |row: usize| all.get(row).copied();
    let at = |(from, token): (usize, usize), k: usize| (from * 1000 + token * 10 + k) as f64;
    let or = |fill: f64, value: &dyn Fn((usize, usize), usize) -> f64, width: usize| {
        rows(all.len() + SPARE, width, |row, k| of(row).map_or(fill, |sent| value(sent, k)))
    };
    let any = f64::NAN;
    call.number("received_capacity", all.len() + SPARE)
        .want("srcs", 1, or(any, &|(_, token), _| token as f64, 1))
        .want("next", 1, or(any, &|(_, token), _| (token + 1) as f64, 1))
        .want("o_flag", 1, or(1.0, &|(_, token), _| 1.0 - (token % 2) as f64, 1))
        .want("o_small", 3, or(9.0, &|(_, token), k| (token * 4 + k) as f64, 3))
        .want("o_ids", TOPK, or(-1.0, &at, TOPK))
        .want("o_w", TOPK, or(-2.0, &|sent, k| at(sent, k) / 4.0 + 1.0, TOPK))
        .want("o_narrow", 4, or(-3.0, &|(_, token), k| (token * 4 + k) as f64, 4))
        .want("o_code", 5, or(any, &|(_, token), k| (token * 7 + k) as f64, 5))
        .want("o_power", 1, or(any, &|(_, token), _| (token + 100) as f64, 1))
        .want("o_pairs", 6, or(any, &|sent, k| at(sent, k) + 5.0, 6))
        .want("o_maybe", 2, or(any, &|sent, k| at(sent, k) + 0.5, 2))
        .want("sums", 1, or(any, &|sent, _| (0..TOPK).map(|k| at(sent, k)).sum(), 1))
}

const SHAPE: &str = "
    shape { ranks: 1..=64, hidden: 1..=1024, topk: 1..=32, stripes: 1..=16 }
    variant payload { Bf16 { x: bf16 }, Fp8 { x: e4m3, big_scale: f32 block 128, scale: ue8m0 block 32 }, Wide { x: i64 } }
    size tokens;
    size received = starts[ranks, me];";

/// The arms of `payload`: parts beside the row as (block, code of a row's own number).
fn payload(call: Call, arm: &str, hidden: usize, me: usize, ranks: usize) -> Call {
    let tokens = tokens_of(me);
    let all = arrive(me, ranks);
    let value = |from: usize, token: usize, k: usize| ((from * 31 + token * 7 + k) % 120) as f64;
    let part = |call: Call, number: usize, width: usize, add: usize| {
        let value = move |from: usize, token: usize, k: usize| value(from, token, k + add);
        let (x, out) = match number {
            0 => ("x".to_string(), "out".to_string()),
            _ => (format!("x.{number}"), format!("out.{number}")),
        };
        call.give(&x, width, rows(tokens, width, |t, k| value(me, t, k))).want(
            &out,
            width,
            rows(all.len() + SPARE, width, |row, k| {
                all.get(row).map_or(f64::NAN, |(from, token)| value(*from, *token, k))
            }),
        )
    };
    let call = part(call, 0, hidden, 0);
    if arm != "Fp8" {
        return call;
    }
    let call = part(call, 1, hidden.div_ceil(128), 3);
    part(call, 2, hidden.div_ceil(32), 50)
}

fn of_rings() -> String {
    format!(
        "{SHAPE} {GIVEN} {TAKEN}
        input x: payload[tokens, hidden];
        output out: payload[received, hidden];
        table
            head: i64[tokens, ranks], note: f32[tokens, ranks], first_of: i32[ranks, stripes],
            count_of: i64[ranks, stripes];
        message Token {{ row x: payload[hidden], {FIELDS} }}
        channel ring: ring<Token> over nvlink from Send to Recv per all {{
            depth: 16, chunk: 4, header: [count, first],
        }};
        role Send[peer] on blocks 0..2 {{
            announce ring[peer] {{ count: in_stripe[stripe, peer], first: ahead[peer, stripe] }};
            for i in stripe where to[i, peer] {{
                push ring[peer] {{ {PUSHED}, x: x[i] }};
                record head[i, peer] = ring[peer].position;
                record note[i, peer] = i as f32 * 2;
            }}
        }}
        role Recv[peer] on other blocks {{
            record first_of[peer, stripe] = starts[peer, me] + ring[peer].first;
            record count_of[peer, stripe] = ring[peer].count;
            for message in ring[peer] at starts[peer, me] + ring[peer].first {{
                store out[message.row] = message.x;
                {STORED}
            }}
        }}"
    )
}

#[test]
fn rings_carry_rows_and_fields_of_every_kind() {
    for (turn, (arm, ranks, hidden)) in ARMS.into_iter().enumerate() {
        let call = |me: usize| {
            let tokens = tokens_of(me);
            let of_stripe = |peer: usize, s: usize| stripe(tokens_of(peer), STRIPES, s);
            let first = |peer: usize, s: usize| {
                before(me, peer, ranks)
                    + (0..of_stripe(peer, s).start).filter(|t| goes(peer, *t, me)).count()
            };
            let call =
                payload(arrived(fields(sent(me, ranks), me), me, ranks), arm, hidden, me, ranks);
            call.want(
                "head",
                ranks,
                rows(tokens, ranks, |t, peer| {
                    // Positions of a ring count in each stripe.
                    let s = (0..STRIPES)
                        .find(|s| stripe(tokens, STRIPES, *s).contains(&t))
                        .unwrap_or(0);
                    let start = stripe(tokens, STRIPES, s).start;
                    let gone = (start..t).filter(|before| goes(me, *before, peer)).count() as f64;
                    if goes(me, t, peer) { gone } else { -1.0 - gone }
                }),
            )
            .want(
                "note",
                ranks,
                rows(
                    tokens,
                    ranks,
                    |t, peer| {
                        if goes(me, t, peer) { 2.0 * t as f64 } else { f64::NAN }
                    },
                ),
            )
            .want("first_of", STRIPES, rows(ranks, STRIPES, |peer, s| first(peer, s) as f64))
            .want(
                "count_of",
                STRIPES,
                rows(ranks, STRIPES, |peer, s| {
                    of_stripe(peer, s).filter(|t| goes(peer, *t, me)).count() as f64
                }),
            )
        };
        check_payload(&of_rings(), turn, &call);
    }
}

/// Arms of `payload`, each with its ranks and the values of a row.
const ARMS: [(&str, usize, usize); 3] = [("Bf16", 3, 152), ("Fp8", 2, 144), ("Wide", 1, 2)];

/// Runs a form that moves rows of an arm, and once without bulk copies.
fn check_payload(source: &str, turn: usize, call: &dyn Fn(usize) -> Call) {
    let (arm, ranks, hidden) = ARMS[turn];
    let numbers = [("ranks", ranks), ("hidden", hidden), ("topk", TOPK), ("stripes", STRIPES)];
    let form = Form::new(source, &numbers.map(|(name, number)| (name, number as i64)));
    let form = form.arm("payload", &arm.to_lowercase());
    let form = form.blocks(3).copies("no", 0).copies("o_never", 0).turn(turn);
    form.check(call);
    form.check_vector(call);
}

/// In units of a token or two, so that warps send parts of a stripe.
#[test]
fn direct_channels_carry_rows_and_fields_of_every_kind() {
    // What goes to all peers of a loop does not depend on the peer.
    let (pushed, stored) = (PUSHED.replace(" + peer", ""), STORED.replace(" - me", ""));
    let source = format!(
        "{SHAPE} {GIVEN} {TAKEN}
        input x: payload[tokens, hidden], on: bool[tokens];
        output out: payload[received, hidden] in window;
        table row_of: i32[tokens, ranks], note: u8[tokens, ranks];
        message Token {{ row x: payload[hidden], {FIELDS} }}
        channel rows: direct<Token> over nvlink from Send, Local to Recv per all {{ unit: 1 }};
        role Send on blocks 0..1, 3 warps, warps shared by token {{
            for i in stripe where on[i] || i >= 0 {{
                for peer in others where to[i, peer] {{
                    push rows[peer] at starts[me, peer] + ahead[peer, stripe] {{ {pushed}, x: x[i] }};
                    record row_of[i, peer] = rows[peer].position;
                    record note[i, peer] = 3;
                }}
            }}
        }}
        role Local on other blocks, 2 warps, warps shared by token {{
            for i in stripe where to[i, me] {{
                push rows[me] at starts[me, me] + ahead[me, stripe] {{ {pushed}, x: x[i] }};
                record row_of[i, me] = rows[me].position;
            }}
        }}
        role Recv on other blocks, 2 warps, warps shared by (source, stripe) {{
            for message in rows[source] {{
                store out[message.row] = message.x;
                {stored}
            }}
        }}"
    );
    for (turn, (arm, ranks, hidden)) in ARMS.into_iter().enumerate() {
        let call = |me: usize| {
            let tokens = tokens_of(me);
            let call =
                payload(arrived(fields(sent(me, ranks), me), me, ranks), arm, hidden, me, ranks);
            call.give("on", 1, rows(tokens, 1, |_, _| 0.0))
                .want(
                    "row_of",
                    ranks,
                    rows(tokens, ranks, |t, peer| position(me, t, peer, before(peer, me, ranks))),
                )
                .want(
                    "note",
                    ranks,
                    rows(tokens, ranks, |t, peer| {
                        if goes(me, t, peer) && peer != me { 3.0 } else { f64::NAN }
                    }),
                )
        };
        check_payload(&source, turn, &call);
    }
}
