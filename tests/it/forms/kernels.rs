//! Several channels in one kernel and in one role, groups of more ranks than a warp has lanes, and rows
//! that are put in order on one rank.
use super::run::{Call, Form, rows};
use crate::usual;

const THREE_KINDS: &str = "
        shape { ranks: 1..=64, hidden: 8..=1024 step 8, stripes: 1..=8 }
        size tokens;
        size received = starts[ranks, me];
        input x: bf16[tokens, hidden], to: bool[tokens, ranks], starts: i32[ranks + 1, ranks], ahead: i32[ranks, stripes], in_stripe: i32[stripes, ranks], n: i32[ranks];
        output out: bf16[received, hidden] in window, out2: bf16[received, hidden], heard: i32[ranks];
        table srcs: i32[received], srcs2: i32[received], head: i32[tokens, ranks];
        message A { row x: bf16[hidden], src: i32 }
        message B { row x: bf16[hidden], src: i32 }
        message C { n: i32 }
        channel rows: direct<A> over nvlink from Send to Recv per all;
        channel ring: ring<B> over nvlink from SendRing to RecvRing per all { depth: 2, chunk: 1, header: [first, count] };
        channel words: slots<C> over nvlink from Talk to Hear per all { slot: [source] };
        role Send on all blocks, 2 warps, warps shared by token {
            for token in stripe { for peer in ranks where to[token, peer] {
                push rows[peer] at starts[me, peer] + ahead[peer, stripe] { x: x[token], src: token };
            } }
        }
        role Recv on all blocks, 2 warps, warps shared by (source, stripe) {
            for message in rows[source] { store out[message.row] = message.x; record srcs[message.row] = message.src; }
        }
        role SendRing[peer] on all blocks, 2 warps {
            announce ring[peer] { first: ahead[peer, stripe], count: in_stripe[stripe, peer] };
            for token in stripe where to[token, peer] {
                push ring[peer] { x: x[token], src: token };
                record head[token, peer] = ring[peer].position;
            }
        }
        role RecvRing[peer] on all blocks, 3 warps {
            for message in ring[peer] at starts[peer, me] + ring[peer].first {
                store out2[message.row] = message.x; record srcs2[message.row] = message.src;
            }
        }
        role Talk on block 1, 1 warps { for peer in ranks { push words[peer] { n: n[peer] }; } }
        role Hear on block 0, 2 warps { await words; for s in ranks { store heard[s] = words[s].n; } }";

#[test]
fn channels_of_three_kinds_share_blocks() {
    for (ranks, stripes) in usual::some([(2, 2), (35, 1), (1, 8)], 3) {
        let tokens = |r: usize| [5usize, 0, 3][r % 3];
        let goes = |f: usize, t: usize, to: usize| (f + t * 3 + to) % 5 < 2;
        let span = |r: usize, s: usize| {
            let (e, l) = (tokens(r) / stripes, tokens(r) % stripes);
            let b = s * e + s.min(l);
            b..b + e + usize::from(s < l)
        };
        let hidden = 24;
        let arrive = |at: usize| -> Vec<(usize, usize)> {
            (0..ranks)
                .flat_map(|f| (0..tokens(f)).filter(move |t| goes(f, *t, at)).map(move |t| (f, t)))
                .collect()
        };
        let value = |f: usize, t: usize, c: usize| ((f * 7 + t * 3 + c) % 64) as f64;
        let call = |me: usize| {
            let all = arrive(me);
            let n = tokens(me);
            Call::new()
                .number("tokens", n)
                .number("received_capacity", all.len())
                .give("x", hidden, rows(n, hidden, |t, c| value(me, t, c)))
                .give("to", ranks, rows(n, ranks, |t, p| f64::from(goes(me, t, p))))
                .give(
                    "starts",
                    ranks,
                    rows(ranks + 1, ranks, |f, at| {
                        arrive(at).iter().filter(|(s, _)| *s < f).count() as f64
                    }),
                )
                .give(
                    "ahead",
                    stripes,
                    rows(ranks, stripes, |p, s| {
                        (0..span(me, s).start).filter(|t| goes(me, *t, p)).count() as f64
                    }),
                )
                .give(
                    "in_stripe",
                    ranks,
                    rows(stripes, ranks, |s, p| {
                        span(me, s).filter(|t| goes(me, *t, p)).count() as f64
                    }),
                )
                .give("n", 1, rows(ranks, 1, |p, _| (me * 100 + p) as f64))
                .want("out", hidden, rows(all.len(), hidden, |r, c| value(all[r].0, all[r].1, c)))
                .want("out2", hidden, rows(all.len(), hidden, |r, c| value(all[r].0, all[r].1, c)))
                .want("srcs", 1, rows(all.len(), 1, |r, _| all[r].1 as f64))
                .want("srcs2", 1, rows(all.len(), 1, |r, _| all[r].1 as f64))
                .want("head", ranks, rows(n, ranks, |_, _| f64::NAN))
                .want("heard", 1, rows(ranks, 1, |s, _| (s * 100 + me) as f64))
        };
        let form = Form::new(
            THREE_KINDS,
            &[("ranks", ranks as i64), ("hidden", hidden as i64), ("stripes", stripes as i64)],
        );
        form.blocks(2).check(&call);
    }
}

/// A whole tensor as the row, rows of u8 through a tensor of three extents, one consumer of two channels.
const TWO_CHANNELS: &str = "
        shape { ranks: 1..=64, hidden: 16..=1024 step 16, stripes: 1..=8 }
        size tokens;
        size received = starts[ranks, me];
        input x: u8[tokens, ranks, hidden], y: u8[hidden], starts: i32[ranks + 1, ranks], ahead: i32[ranks, stripes];
        output out: u8[received, hidden] in window, out2: u8[received, hidden] in window, o: optional i32[received];
        message A { row x: u8[hidden] }
        message B { row x: u8[hidden], m: i32 with may }
        input may: optional i32[tokens];
        channel one: direct<A> over nvlink from Send to Recv per all;
        channel two: direct<B> over nvlink from Send2 to Recv per all;
        role Send on all blocks, 2 warps, warps shared by token {
            for token in stripe { for peer in all {
                push one[peer] at starts[me, peer] + ahead[peer, stripe] { x: x[token, me] };
            } }
        }
        role Send2 on all blocks, 2 warps, warps shared by token {
            for token in stripe { for peer in ranks where token % 2 == 0 || token > 0 {
                push two[peer] at starts[me, peer] + ahead[peer, stripe] { x: y, m: may[token] };
            } }
        }
        role Recv on all blocks, 2 warps, warps shared by (source, stripe) {
            for message in one { store out[message.row] = message.x; }
            for message in two[source] { store out2[message.row] = message.x; store o[message.row] = message.m; }
        }";

/// Each output has the rows of its own channel, though both have a row of one name.
#[test]
fn channels_of_one_role_keep_their_strides_apart() {
    let wider = TWO_CHANNELS.replace("y: u8[hidden]", "y: f32[hidden]");
    let wider = wider.replace("out2: u8[received", "out2: f32[received");
    let wider = wider.replace("message B { row x: u8[hidden]", "message B { row x: f32[hidden]");
    let form = Form::new(&wider, &[("ranks", 2), ("hidden", 48), ("stripes", 1)]);
    assert_eq!(form.strides(), [("out".to_owned(), 128), ("out2".to_owned(), 256)]);
}

#[test]
fn one_role_takes_two_channels() {
    for (ranks, stripes, given, taken) in
        [(2, 2, true, true), (3, 1, false, true), (2, 1, false, false)]
    {
        let tokens = 4;
        let hidden = 16;
        let call = |me: usize| {
            let call = Call::new()
                .number("tokens", tokens)
                .number("received_capacity", tokens * ranks)
                .give(
                    "x",
                    hidden,
                    rows(tokens * ranks, hidden, |at, c| ((at * 3 + c + me) % 250) as f64),
                )
                .give("y", hidden, rows(1, hidden, |_, c| (me * 16 + c) as f64))
                .give("starts", ranks, rows(ranks + 1, ranks, |f, _| (f * tokens) as f64))
                .give("ahead", stripes, rows(ranks, stripes, |_, s| (s * tokens / stripes) as f64))
                .want(
                    "out",
                    hidden,
                    rows(tokens * ranks, hidden, |at, c| {
                        let (from, token) = (at / tokens, at % tokens);
                        (((token * ranks + from) * 3 + c + from) % 250) as f64
                    }),
                )
                .want(
                    "out2",
                    hidden,
                    rows(tokens * ranks, hidden, |at, c| ((at / tokens) * 16 + c) as f64),
                );
            let call = if given {
                call.give("may", 1, rows(tokens, 1, |t, _| (me * 10 + t) as f64))
            } else {
                call
            };
            if taken {
                call.want(
                    "o",
                    1,
                    rows(tokens * ranks, 1, |at, _| {
                        if given { ((at / tokens) * 10 + at % tokens) as f64 } else { f64::NAN }
                    }),
                )
            } else {
                call
            }
        };
        let form = Form::new(
            TWO_CHANNELS,
            &[("ranks", ranks as i64), ("hidden", hidden as i64), ("stripes", stripes as i64)],
        );
        form.copies("may", i64::from(given)).copies("o", i64::from(taken)).blocks(2).check(&call);
    }
}

/// What the least shape misses is no reason to refuse the pipeline: only that shape.
#[test]
fn rows_of_uneven_size_are_refused_by_their_shape() {
    let source = "
        shape { ranks: 1..=8, hidden: 1..=64 }
        size tokens;
        size rows;
        input x: bf16[rows, hidden] in window, at: i32[tokens, ranks];
        output sums: bf16[tokens, hidden];
        message Part { row x: bf16[hidden] }
        channel parts: pull<Part> over nvlink from Offer to Sum per all;
        role Offer on block 0, 1 warps { push parts { x: x }; }
        role Sum on all blocks, 4 warps, warps shared by token {
            for token in tokens gather part from parts[peer] at at[token, peer] across peer in ranks {
                store sums[token] = sum(part.x);
            }
        }";
    let form = |hidden| Form::new(source, &[("ranks", 2), ("hidden", hidden)]);
    assert_eq!(form(24).refusal(), "");
    let said = "needs 48 bytes a row, there are 40; use rows of whole 16-byte units";
    assert!(form(20).refusal().ends_with(said));
}

const PLACED: &str = "
        shape { hidden: 4..=64 step 4, topk: 1..=32, experts: 1..=64, stripes: 1..=8 }
        size rows;
        size places;
        input x: f32[rows, hidden], from: i32[rows], ids: i64[rows, topk], w: f32[rows, topk], first: i32[experts, stripes];
        output out: f32[places, hidden], weight: f32[places];
        table src: i32[places, 2], place: i64[places];
        role Move on all blocks, 3 warps, warps shared by stripe {
            for i in stripe {
                for e in experts at first[e, stripe] where listed(ids[i], e) && from[i] >= 0 {
                    store out[e.position] = x[from[i]];
                    record src[e.position, 0] = i;
                    record src[e.position, 1] = e;
                    record place[e.position] = e.position * 2;
                    store weight[e.position] = w[i, 0] * 2;
                }
            }
        }";

#[test]
fn rows_go_where_an_index_says() {
    const STRIPES: usize = 3;
    for (tokens, experts, topk) in [(17, 5, 2), (8, 40, 32)] {
        let hidden = 12;
        let id = |row: usize, k: usize| ((row * 7 + k * 3) % (experts + 2)) as f64;
        let from = |row: usize| if row % 5 == 3 { -1.0 } else { ((row * 3) % tokens) as f64 };
        let stripe = |s: usize| {
            let (each, longer) = (tokens / STRIPES, tokens % STRIPES);
            let begin = s * each + s.min(longer);
            begin..begin + each + usize::from(s < longer)
        };
        let goes =
            |row: usize, e: usize| from(row) >= 0.0 && (0..topk).any(|k| id(row, k) == e as f64);
        let mut firsts = Vec::new();
        let mut placed: Vec<(usize, usize)> = Vec::new();
        for e in 0..experts {
            for s in 0..STRIPES {
                firsts.push(placed.len() as f64);
                placed.extend(stripe(s).filter(|row| goes(*row, e)).map(|row| (row, e)));
            }
        }
        let call = |_: usize| {
            let value = |row: usize, c: usize| (row * 100 + c) as f64 / 4.0;
            let count = placed.len();
            Call::new()
                .number("rows", tokens)
                .number("places", count)
                .give("x", hidden, rows(tokens, hidden, value))
                .give("from", 1, rows(tokens, 1, |row, _| from(row)))
                .give("ids", topk, rows(tokens, topk, id))
                .give("w", topk, rows(tokens, topk, |row, k| (row + k) as f64))
                .give("first", STRIPES, firsts.clone())
                .want(
                    "out",
                    hidden,
                    rows(count, hidden, |at, c| value(from(placed[at].0) as usize, c)),
                )
                .want("src", 2, rows(count, 2, |at, k| [placed[at].0, placed[at].1][k] as f64))
                .want("place", 1, rows(count, 1, |at, _| 2.0 * at as f64))
                .want("weight", 1, rows(count, 1, |at, _| 2.0 * placed[at].0 as f64))
        };
        let form = Form::new(
            PLACED,
            &[
                ("hidden", hidden as i64),
                ("topk", topk as i64),
                ("experts", experts as i64),
                ("stripes", STRIPES as i64),
            ],
        );
        form.check(&call);
        form.check_vector(&call);
    }
}

/// A size that the device reads from a table, under the name that loops know.
#[test]
fn tokens_may_be_counted_by_the_device() {
    let source = "
        shape { ranks: 1..=8 }
        input given: i32[ranks];
        size tokens = given[me] * 2;
        output twice: i32[tokens], sum_of: i32[1], tally: i32[3];
        role Work on all blocks, 3 warps {
            for token in tokens {
                store twice[token] = token * 2;
                count tally[token % 3];
            }
            store sum_of[0] = sum(token in tokens: token);
        }";
    let call = |me: usize| {
        let tokens = 2 * (me * 7 + 3);
        let tally = |rest: usize| (0..tokens).filter(|token| token % 3 == rest).count() as f64;
        Call::new()
            .number("tokens_capacity", tokens)
            .give("given", 1, rows(2, 1, |rank, _| (rank * 7 + 3) as f64))
            .want("twice", 1, rows(tokens, 1, |token, _| 2.0 * token as f64))
            .want("sum_of", 1, vec![(0..tokens).sum::<usize>() as f64])
            .want("tally", 1, rows(3, 1, |rest, _| tally(rest)))
    };
    Form::new(source, &[("ranks", 2)]).check(&call);
}

/// Blocks are resident at once where they wait for one another, or several of them for other ranks.
#[test]
fn a_grid_waits_where_more_than_its_first_block_does() {
    let waits = |source: &str| Form::new(source, &[("ranks", 2)]).waits();
    let counting = |extent: &str| {
        let source = format!(
            "shape {{ ranks: 1..=8 }}
             size tokens;
             output hits: i32[{extent}];
             role Work on all blocks {{ for token in tokens {{ count hits[token % 2]; }} }}"
        );
        waits(&source)
    };
    assert!(counting("tokens"), "all blocks zero it before any of them counts");
    assert!(!counting("ranks"), "the last block out stores the sums");
    let exchanging = |block: u32| {
        let source = format!(
            "shape {{ ranks: 1..=8 }}
             input own: i32[1];
             output all: i32[1];
             message Word {{ value: i32[1] }}
             channel words: slots<Word> over nvlink from Meet to Meet per all {{ slot: [source] }};
             role Meet on block {block} {{
                 for peer in ranks {{ push words[peer] {{ value: own }}; }}
                 await words;
                 store all[0] = sum(source in ranks: words[source].value[0]);
             }}
             role Rest on block {rest} {{ for peer in ranks {{ store unused[peer] = peer; }} }}
             output unused: i32[ranks];",
            rest = 1 - block
        );
        waits(&source)
    };
    assert!(!exchanging(0), "the first block is always begun");
    assert!(exchanging(1), "it may be begun when the first one has ended");
}

/// The last block out adds up what all blocks have counted and recorded, and tells the other ranks.
#[test]
fn the_last_block_finds_what_all_others_have_left() {
    let source = "
        shape { ranks: 1..=8, stripes: 1..=8 }
        size tokens;
        input to: i64[tokens];
        table sent: i32[ranks], of_stripe: i32[stripes], twice: i32[tokens];
        output arriving: i32[1], seen: i32[1], doubled: i32[1];
        message Word { value: i32[ranks] }
        channel words: slots<Word> over nvlink from Meet to Meet per all { slot: [source] };
        role Count on all blocks, warps shared by stripe {
            for token in stripe {
                for peer in ranks where to[token] == peer { count sent[peer]; }
                count of_stripe[stripe];
                record twice[token] = token * 2;
            }
        }
        role Meet on last block, 2 warps {
            for peer in ranks { push words[peer] { value: sent }; }
            await words;
            store arriving[0] = sum(source in ranks: words[source].value[me]);
        }
        role Sum on last block, 3 warps {
            store seen[0] = sum(s in stripes: of_stripe[s]);
            store doubled[0] = sum(token in tokens: twice[token]);
        }";
    let ranks = 3;
    let tokens = |me: usize| 40 + 9 * me;
    let to = |me: usize, token: usize| (me + token * token) % ranks;
    let call = |me: usize| {
        let arriving = (0..ranks)
            .map(|source| (0..tokens(source)).filter(|token| to(source, *token) == me).count());
        let all = tokens(me);
        let going = |peer: usize| (0..all).filter(|token| to(me, *token) == peer).count();
        let in_stripe = |stripe: usize| all / 5 + usize::from(stripe < all % 5);
        Call::new()
            .number("tokens", all)
            .give("to", 1, rows(all, 1, |token, _| to(me, token) as f64))
            .want("sent", 1, rows(ranks, 1, |peer, _| going(peer) as f64))
            .want("of_stripe", 1, rows(5, 1, |stripe, _| in_stripe(stripe) as f64))
            .want("twice", 1, rows(all, 1, |token, _| 2.0 * token as f64))
            .want("arriving", 1, vec![arriving.sum::<usize>() as f64])
            .want("seen", 1, vec![all as f64])
            .want("doubled", 1, vec![(0..all).map(|token| 2 * token).sum::<usize>() as f64])
    };
    let sets = [("ranks", ranks as i64), ("stripes", 5)];
    for blocks in [1, 2, 6] {
        Form::new(source, &sets).blocks(blocks).check(&call);
    }
    assert!(!Form::new(source, &sets).waits(), "one block waits, when all others are done");
}

/// What a pipeline of two phases is, whose second one has these statements.
fn in_two_phases(second: &str) -> String {
    format!(
        "shape {{ ranks: 1..=8 }}
         input own: i64[ranks];
         output came: i64[ranks], left: i64[ranks];
         table twice: i64[ranks];
         message Word {{ value: i64 }}
         channel words: slots<Word> over nvlink from Give to Take per all {{ slot: [source] }};
         phase there {{
             role Give on block 0 {{
                 for peer in ranks {{
                     push words[peer] {{ value: own[peer] }};
                     record twice[peer] = 2 * own[peer];
                 }}
                 close words;
             }}
         }}
         phase here {{
             role Take on all blocks, warps shared by source {{
                 for message in words[source] at source {{
                     store came[message.row] = message.value;
                 }}
                 {second}
             }}
         }}"
    )
}

/// A call of all phases is one kernel where these meet in channels alone, and it leaves the same.
#[test]
fn phases_are_one_kernel_unless_its_end_orders_them() {
    let ranks = 3;
    let own = |rank: usize, peer: usize| (10 * rank + peer) as f64;
    let sets = [("ranks", ranks as i64)];
    for (second, is_joined) in [
        ("store left[source] = own[source];", true),
        ("store left[source] = twice[source];", false),
        ("count left[source];", false),
    ] {
        let form = || Form::new(&in_two_phases(second), &sets);
        assert_eq!(form().joined(), is_joined.then(|| "form".to_string()), "{second}");
        let call = |me: usize| {
            let left = |source: usize| match second {
                _ if second.starts_with("count") => 1.0,
                _ if second.contains("twice") => 2.0 * own(me, source),
                _ => own(me, source),
            };
            Call::new()
                .give("own", 1, rows(ranks, 1, |peer, _| own(me, peer)))
                .want("came", 1, rows(ranks, 1, |source, _| own(source, me)))
                .want("left", 1, rows(ranks, 1, |source, _| left(source)))
                .want("twice", 1, rows(ranks, 1, |peer, _| 2.0 * own(me, peer)))
        };
        form().check(&call);
        form().apart().check(&call);
    }
}
