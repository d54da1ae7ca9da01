//! Roles that stay on their rank: loops, folds, counters, and tensors of every kind.

use super::run::{Call, Form, rows};

const RANKS: usize = 3;

/// What the experts of a row are: owned, absent, unknown, twice.
fn id(token: usize, k: usize, experts: usize) -> f64 {
    match (token * 3 + k) % 7 {
        2 => -1.0,
        4 => (experts + 3) as f64,
        other => ((other * 5 + token) % experts) as f64,
    }
}

const TEAM: &str = r##"
        shape { ranks: 1..=8, experts: 1..=64, let half = ceil(experts, 2), let more = ranks + 1 }
        size tokens;
        size rows;
        tune { each: 4 in [4, 8] }
        arg { least: i32 = 1 in 0..=9, wide: i64 = 1 in 0..=9, small: u8 = 1 in 0..=9, real: f32 = 1 in 0..=9 }
        input
            a: i32[ranks, experts], cube: i32[ranks, 3, experts], f: f32[ranks], w: i64[ranks],
            b: bf16[ranks], c: e4m3[ranks], s: ue8m0[ranks], u: u8[ranks], g: bool[ranks], thirds: f32[ranks, 3],
            maybe: optional i32[ranks], never: optional i32[ranks], h: i32[half];
        output
            from: i32[ranks, experts], rest: i32[ranks], total: i32[ranks], real_total: f32[1], wide_total: i64[1],
            others_total: i32[1], out: i32[ranks, 3, experts], twice: i32[ranks, experts],
            ob: bf16[ranks], oc: e4m3[ranks], os: ue8m0[ranks], ou: u8[ranks], og: bool[ranks],
            numbers: i32[ranks], of_args: f32[ranks], of_maybe: i32[ranks], of_never: i32[ranks],
            sums: i32[half], with_total: i32[more], by_rank: i32[ranks, experts],
            of_tokens: i32[tokens], of_rows: i32[rows], of_each: i32[8], heard: i32[ranks] to host,
            late: optional i32[ranks], own: f32[ranks, 3], zero: bool[ranks], flat: bf16[ranks];
        cuda fn doubled(n: i32) -> i32 = r#"__device__ inline ep::i32 doubled(ep::i32 n) { return 2 * n; }"#;
        cuda fn halved(n: f32) -> f32 = r#"__device__ inline float halved(float n) { return n / 2; }"#;
        cuda fn is_zero(n: bf16) -> bool = r#"__device__ inline bool is_zero(ep::bf16 n) { return ep::to_float(n) == 0; }"#;
        cuda fn rounded(n: f32) -> bf16 = r#"__device__ inline ep::bf16 rounded(float n) { return ep::to_bf16(n); }"#;
        inout kept: i32[ranks], kept_real: f32[ranks];
        role Low on blocks 1..2 {
            for r in ranks { for e in 2..experts { store from[r, e] = e; } }
            for r in others { store rest[r] = r; }
            for r in ranks { store total[r] = sum(e in 2..experts: a[r, e]); }
            store real_total[0] = sum(r in ranks: f[r]);
            store wide_total[0] = sum(r in ranks: w[r]);
            store others_total[0] = sum(r in others: a[r, 0]);
            for r in ranks {
                for k in 0..3 { for e in experts { store out[r, k, e] = cube[r, k, e] + 1; } }
            }
        }
        role First on block 0 {
            for i in ranks { store twice[i] = a[i] * 2 - a[i, 1]; }
            for r in ranks {
                store ob[r] = b[r];
                store oc[r] = c[r];
                store os[r] = s[r];
                store ou[r] = u[r];
                store og[r] = !g[r] && r != me;
                store numbers[r] = max(a[r, 0], 3) + align(a[r, 1], 4) - ceil(a[r, 2], 2) - min(r, 1) % 2;
                store of_args[r] = f[r] * 2 + least + wide + small + real;
                store of_maybe[r] = maybe[r];
                store of_never[r] = never[r];
                store own[r] = halved(thirds[r]) + doubled(r + 1);
                store zero[r] = is_zero(b[r]);
                store flat[r] = rounded(halved(f[r]));
                add kept[r] = r + 1;
                add kept_real[r] = f[r];
            }
        }
        role Rest on other blocks {
            store sums[i] = prefix_sum(i in half: h[i]);
            store with_total[i] = prefix_sum(i in ranks: a[i, 0]);
            for r in ranks { store by_rank[r, e] = prefix_sum(e in experts: a[r, e]); }
            for token in tokens where token % 2 == 0 { let even = token * 2; store of_tokens[token] = even; }
            for row in rows { store of_rows[row] = row; }
            for i in each { store of_each[i] = each; }
            for r in 1..ranks { store heard[r] = r; }
            for r in ranks { store late[r] = r; }
        }"##;

const EXPERTS: usize = 11;

fn a(rank: usize, expert: usize) -> f64 {
    (rank * 7 + expert * 3 % 5) as f64
}

fn f(rank: usize) -> f64 {
    rank as f64 + 0.5
}

fn of_ranks(value: &dyn Fn(usize) -> f64) -> Vec<f64> {
    rows(RANKS, 1, |rank, _| value(rank))
}

fn given() -> Call {
    Call::new()
        .number("tokens", 5)
        .number("rows", 4)
        .number("least", 2)
        .number("wide", 3)
        .number("small", 4)
        .number("real", 5)
        .give("a", EXPERTS, rows(RANKS, EXPERTS, a))
        .give("cube", EXPERTS, rows(RANKS * 3, EXPERTS, |at, e| (at * 100 + e) as f64))
        .give("f", 1, of_ranks(&f))
        .give("thirds", 3, rows(RANKS, 3, |r, k| (r * 3 + k) as f64))
        .give("w", 1, of_ranks(&|r| (r as f64 + 1.0) * 5e12))
        .give("b", 1, of_ranks(&|r| r as f64 - 1.5))
        .give("c", 1, of_ranks(&|r| 17.0 * r as f64))
        .give("s", 1, of_ranks(&|r| 31.0 * r as f64))
        .give("u", 1, of_ranks(&|r| 100.0 + r as f64))
        .give("g", 1, of_ranks(&|r| (r % 2) as f64))
        .give("maybe", 1, of_ranks(&|r| 9.0 + r as f64))
        .give("h", 1, rows(6, 1, |i, _| i as f64))
}

#[test]
fn loops_of_a_team_run_over_every_domain() {
    let call = |me: usize| {
        let number = |r: usize| {
            let aligned = (a(r, 1) / 4.0).ceil() * 4.0;
            a(r, 0).max(3.0) + aligned - (a(r, 2) / 2.0).ceil() - (r.min(1) % 2) as f64
        };
        let there = |row: usize, value: f64| if row == 0 { f64::NAN } else { value };
        given()
            .want("own", 3, rows(RANKS, 3, |r, k| (r * 3 + k) as f64 / 2.0 + 2.0 * (r + 1) as f64))
            .want("zero", 1, of_ranks(&|_| 0.0))
            .want("flat", 1, of_ranks(&|r| f(r) / 2.0))
            .want(
                "from",
                EXPERTS,
                rows(RANKS, EXPERTS, |_, e| if e < 2 { f64::NAN } else { e as f64 }),
            )
            .want("rest", 1, of_ranks(&|r| if r == me { f64::NAN } else { r as f64 }))
            .want("total", 1, of_ranks(&|r| (2..EXPERTS).map(|e| a(r, e)).sum()))
            .want("real_total", 1, vec![(0..RANKS).map(f).sum()])
            .want("wide_total", 1, vec![3e13])
            .want("others_total", 1, vec![(0..RANKS).filter(|r| *r != me).map(|r| a(r, 0)).sum()])
            .want("out", EXPERTS, rows(RANKS * 3, EXPERTS, |at, e| (at * 100 + e + 1) as f64))
            .want("twice", EXPERTS, rows(RANKS, EXPERTS, |r, e| a(r, e) * 2.0 - a(r, 1)))
            .want("ob", 1, of_ranks(&|r| r as f64 - 1.5))
            .want("oc", 1, of_ranks(&|r| 17.0 * r as f64))
            .want("os", 1, of_ranks(&|r| 31.0 * r as f64))
            .want("ou", 1, of_ranks(&|r| 100.0 + r as f64))
            .want("og", 1, of_ranks(&|r| f64::from(r % 2 == 0 && r != me)))
            .want("numbers", 1, of_ranks(&number))
            .want("of_args", 1, of_ranks(&|r| f(r) * 2.0 + 14.0))
            .want("of_maybe", 1, of_ranks(&|r| 9.0 + r as f64))
            .want("of_never", 1, of_ranks(&|_| f64::NAN))
            .want("sums", 1, rows(6, 1, |i, _| (0..i).sum::<usize>() as f64))
            .want("with_total", 1, rows(RANKS + 1, 1, |end, _| (0..end).map(|r| a(r, 0)).sum()))
            .want(
                "by_rank",
                EXPERTS,
                rows(RANKS, EXPERTS, |r, end| (0..end).map(|e| a(r, e)).sum()),
            )
            .want(
                "of_tokens",
                1,
                rows(5, 1, |t, _| if t % 2 == 0 { 2.0 * t as f64 } else { f64::NAN }),
            )
            .want("of_rows", 1, rows(4, 1, |row, _| row as f64))
            .want("of_each", 1, rows(8, 1, |i, _| if i < 4 { 4.0 } else { f64::NAN }))
            .want("heard", 1, of_ranks(&|r| there(r, r as f64)))
            .change("kept", 1, of_ranks(&|_| 1.0), of_ranks(&|r| 1.0 + 2.0 * (r as f64 + 1.0)))
            .change("kept_real", 1, of_ranks(&|_| 0.0), of_ranks(&|r| 2.0 * f(r)))
    };
    let form = Form::new(TEAM, &[("ranks", RANKS as i64), ("experts", EXPERTS as i64)]);
    form.blocks(4).copies("never", 0).copies("late", 0).check(&call);
}

const TOKENS: &str = "
        shape { ranks: 1..=64, experts: 1..=64, topk: 1..=32, stripes: 1..=16 }
        size tokens;
        input
            ids: i64[tokens, topk], narrow: i32[tokens, topk], on: bool[tokens], w: f32[tokens],
            maybe: optional i32[tokens], expert_begin: i32[ranks + 1];
        output
            chosen: i32[experts], great: i64[experts], from_two: i32[experts], narrow_hits: i32[experts],
            goes: i32[ranks], rest: i32[ranks], of_stripe: i32[tokens], owner_of: i32[tokens],
            place: i32[tokens], of_maybe: i32[tokens], told: i32[1] to host;
        table flags: bool[tokens, ranks], index: i32[tokens, ranks], copy: i64[tokens, topk], cube: i32[stripes, 2, experts];
        inout weights: f32[tokens];
        role Count on all blocks, warps shared by stripe {
            for token in stripe where on[token] {
                for expert in ids[token] { count chosen[expert]; }
                for expert in ids[token] where expert > 2 { count great[expert]; }
                for expert in 2..experts where listed(ids[token], expert) { count from_two[expert]; }
                count told[0];
            }
            for token in stripe {
                for expert in narrow[token] { count narrow_hits[expert]; count cube[stripe, 1, expert]; }
                record copy[token] = narrow[token];
                for peer in ranks where routed(ids[token], peer) { count goes[peer]; }
                for peer in others where routed(ids[token], peer) { count rest[peer]; }
                for peer in ranks {
                    record flags[token, peer] = routed(ids[token], peer) && on[token];
                    record index[token, peer] = local(ids[token, 0], peer);
                }
                let first = ids[token, 0];
                store of_stripe[token] = stripe;
                store owner_of[token] = owner(first);
                store place[token] = local(first, me);
                store of_maybe[token] = maybe[token];
                add weights[token] = w[token] * 2;
            }
        }";

const STRIPES: usize = 3;

/// The tokens of one rank: which experts they choose, and where these live.
#[derive(Clone, Copy)]
struct Tokens {
    ranks: usize,
    tokens: usize,
    topk: usize,
    experts: usize,
}

impl Tokens {
    fn id(&self, token: usize, k: usize) -> f64 {
        id(token, k, self.experts)
    }

    fn chose(&self, token: usize, id: f64) -> usize {
        (0..self.topk).filter(|k| self.id(token, *k) == id).count()
    }

    fn begin(&self, rank: usize) -> usize {
        rank * self.experts / self.ranks
    }

    /// The rank of an expert; none of an absent or unknown one.
    fn owner(&self, id: f64) -> Option<usize> {
        let lives =
            |rank: &usize| (self.begin(*rank)..self.begin(rank + 1)).contains(&(id as usize));
        (0..self.ranks).filter(|_| id >= 0.0).find(lives)
    }

    fn place(&self, id: f64, rank: usize) -> f64 {
        if self.owner(id) == Some(rank) { id - self.begin(rank) as f64 } else { -1.0 }
    }

    fn routed(&self, token: usize, rank: usize) -> bool {
        (0..self.topk).any(|k| self.owner(self.id(token, k)) == Some(rank))
    }

    fn goes(&self, rank: usize) -> f64 {
        (0..self.tokens).filter(|token| self.routed(*token, rank)).count() as f64
    }

    /// How often `expert` is chosen by the tokens that count.
    fn hits(&self, expert: usize, counts: &dyn Fn(usize) -> bool) -> f64 {
        let tokens = (0..self.tokens).filter(|token| counts(*token));
        tokens.map(|token| self.chose(token, expert as f64)).sum::<usize>() as f64
    }

    fn listed(&self, expert: usize) -> f64 {
        let on = (0..self.tokens).filter(|token| is_on(*token));
        on.filter(|token| self.chose(*token, expert as f64) > 0).count() as f64
    }

    fn stripe(&self, token: usize) -> usize {
        let (each, longer) = (self.tokens / STRIPES, self.tokens % STRIPES);
        match token < longer * (each + 1) {
            true => token / (each + 1),
            false => longer + (token - longer * (each + 1)) / each,
        }
    }

    fn call(&self, me: usize, maybe: bool) -> Call {
        let Tokens { ranks, tokens, topk, experts } = *self;
        let per_expert = |value: &dyn Fn(usize) -> f64| rows(experts, 1, |e, _| value(e));
        let per_token = |value: &dyn Fn(usize) -> f64| rows(tokens, 1, |token, _| value(token));
        let ids = || rows(tokens, topk, |t, k| self.id(t, k));
        let from = |least: usize, e: usize, value: f64| if e < least { 0.0 } else { value };
        let rest = |r: usize| if r == me { 0.0 } else { self.goes(r) };
        let first = |t: usize| self.id(t, 0);
        let flag = |t, r| f64::from(self.routed(t, r) && is_on(t));
        let cube = |at: usize, e: usize| match at % 2 {
            1 => self.hits(e, &|t| self.stripe(t) == at / 2),
            _ => 0.0,
        };
        let given = |t: usize| if maybe { 3.0 * t as f64 } else { f64::NAN };
        let call = Call::new()
            .number("tokens", tokens)
            .give("ids", topk, ids())
            .give("narrow", topk, ids())
            .give("on", 1, per_token(&|t| f64::from(is_on(t))))
            .give("w", 1, per_token(&|t| t as f64 + 0.25))
            .give("expert_begin", 1, rows(ranks + 1, 1, |r, _| self.begin(r) as f64))
            .want("chosen", 1, per_expert(&|e| self.hits(e, &is_on)))
            .want("great", 1, per_expert(&|e| from(3, e, self.hits(e, &is_on))))
            .want("from_two", 1, per_expert(&|e| from(2, e, self.listed(e))))
            .want("narrow_hits", 1, per_expert(&|e| self.hits(e, &|_| true)))
            .want("goes", 1, rows(ranks, 1, |r, _| self.goes(r)))
            .want("rest", 1, rows(ranks, 1, |r, _| rest(r)))
            .want("flags", ranks, rows(tokens, ranks, flag))
            .want("index", ranks, rows(tokens, ranks, |t, r| self.place(first(t), r)))
            .want("copy", topk, ids())
            .want("cube", experts, rows(STRIPES * 2, experts, cube))
            .want("of_stripe", 1, per_token(&|t| self.stripe(t) as f64))
            .want("owner_of", 1, per_token(&|t| self.owner(first(t)).map_or(-1.0, |r| r as f64)))
            .want("place", 1, per_token(&|t| self.place(first(t), me)))
            .want("told", 1, vec![(0..tokens).filter(|t| is_on(*t)).count() as f64])
            .change("weights", 1, per_token(&|_| 1.0), per_token(&|t| 2.0 + 4.0 * t as f64))
            .want("of_maybe", 1, per_token(&given));
        if maybe { call.give("maybe", 1, per_token(&given)) } else { call }
    }
}

fn is_on(token: usize) -> bool {
    token % 3 != 1
}

#[test]
fn loops_over_tokens_filter_and_count() {
    for (ranks, tokens, topk, experts, maybe) in
        [(3, 37, 5, 12, true), (1, 2, 1, 3, false), (40, 9, 32, 40, true)]
    {
        let all = Tokens { ranks, tokens, topk, experts };
        let form = Form::new(
            TOKENS,
            &[
                ("ranks", ranks as i64),
                ("experts", experts as i64),
                ("topk", topk as i64),
                ("stripes", STRIPES as i64),
            ],
        );
        form.copies("maybe", i64::from(maybe)).check(&|me| all.call(me, maybe));
    }
}

/// A loop whose turns take a warp for one statement and a lane for another.
#[test]
fn loops_mix_what_warps_and_lanes_do() {
    for body in [
        "for e in experts {
             record before[e, s] = prefix_sum(s in stripes: of[s, e]);
             let n = sum(s in stripes: of[s, e]);
             store all[e] = n * 2;
         }",
        "for e in experts {
             for once in 0..1 { record before[e, s] = prefix_sum(s in stripes: of[s, e]); }
             store all[e] = e;
         }",
        "for e in experts {
             store all[e] = e;
             for s in 0..stripes { let n = of[s, e]; record before[e, s] = n + 1; }
         }",
        "let first = of[0, 0];
         for e in experts where e % 2 == 0 {
             record before[e, s] = prefix_sum(s in stripes: of[s, e]);
             store all[e] = first + e;
         }",
    ] {
        let ir = super::run::accepted(&format!(
            "shape {{ ranks: 1..=8, experts: 1..=12, stripes: 1..=8, topk: 1..=4 }}
             size tokens in 0..=9;
             input ids: i64[tokens, topk] in -1..experts;
             table of: i32[stripes, experts], before: i32[experts, stripes];
             output all: i32[experts];
             role Count on all blocks, warps shared by stripe {{
                 for t in stripe {{ for e in ids[t] {{ count of[stripe, e]; }} }}
             }}
             role Final on last block {{ {body} }}"
        ));
        let ir = ir.unwrap_or_else(|errors| panic!("{errors}"));
        let held = super::meaning::held(&[ir], &[("ranks", 2)], 1);
        held.unwrap_or_else(|words| panic!("{body}: {words}"));
    }
}

/// Signed numbers of one byte keep their sign in tensors, messages, rows and functions.
#[test]
fn small_signed_numbers_keep_their_sign() {
    let source = r##"
        shape { ranks: 1..=8, hidden: 16..=64 step 16 }
        tune { stripes: 2 in [1, 2] }
        size tokens in 0..=6;
        input x: i8[tokens, hidden], n: i8[tokens], to: i32[tokens] in 0..ranks;
        output
            y: i8[ranks, 6, hidden], twice: i32[ranks, 6], low: i8[ranks, 6], least: i8[tokens],
            total: i64[1], half: f32[ranks, 6];
        cuda fn negated(n: i8) -> i8 = r#"__device__ inline ep::i8 negated(ep::i8 n) { return static_cast<ep::i8>(-n); }"#;
        message Row { row x: i8[hidden], token: i32, n: i8 }
        channel ring: ring<Row> over nvlink from Send to Take per all { depth: 16, chunk: 1, header: [count] };
        role Send[peer] on even blocks, 2 warps {
            announce ring[peer] { count: sum(token in stripe: (to[token] == peer) as i32) };
            for token in stripe where to[token] == peer {
                push ring[peer] { x: x[token], token: token, n: negated(n[token]) };
            }
        }
        role Sum on even blocks, 1 warps {
            store total[0] = sum(token in tokens: n[token]);
            for token in tokens { store least[token] = min(n[token], -3) as i8; }
        }
        role Take[peer] on odd blocks, 2 warps {
            for message in ring[peer] {
                store y[peer, message.token] = message.x;
                store twice[peer, message.token] = message.n * 2;
                store low[peer, message.token] = message.n;
                store half[peer, message.token] = message.n * 0.5;
            }
        }"##;
    let ir = super::run::accepted(source).unwrap_or_else(|errors| panic!("{errors}"));
    let held = super::meaning::held(std::slice::from_ref(&ir), &[("ranks", 3)], 1);
    held.unwrap_or_else(|words| panic!("{words}"));
}
