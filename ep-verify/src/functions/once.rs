//! What a dispatch in one launch leaves, in the order of `once.cu`.

use super::{Check, Sheet, stamped};

/// Where a block's tokens go, and what two warps move.
pub(super) const SHARED_BYTES: i64 = 4352;

/// All that ranks have, and some to spare.
pub(super) const WINDOW_BYTES: i64 = 377_088;

const RANKS: i64 = 34;
const SELF: i64 = 33;

/// Words of a record, and what a rank's window holds in words: ends, rows, records.
const FIELDS: i64 = 34;
const TOLD: i64 = 1088 / 8;
const ROWS: i64 = 32 * 16;
const RECORDS: i64 = 4992 / 8;
const MOST: i64 = 11;

/// Numbers that blocks leave where they have not counted.
const UNTOUCHED: i64 = 77;

pub(super) const CHECKS: [Check; 31] = [
    ("what stays the same", Vec::new),
    ("numbers of one launch", numbers),
    ("offers", offers),
    ("one launch", || call(&CALLS[0])),
    ("what it has sent", || sent(1)),
    ("one launch that tells early", || call(&CALLS[1])),
    ("what it has sent early", || sent(2)),
    ("one launch of two tokens", || call(&CALLS[2])),
    ("what it has sent of two tokens", || sent(3)),
    ("one launch of two tokens that tells early", || call(&CALLS[3])),
    ("what it has sent of two tokens early", || sent(4)),
    ("counts of all ranks", || counts(11, 17, None)),
    ("counts of all ranks in the next call", || counts(12, 17, None)),
    ("counts of which one does not come", || counts(13, 17, Some(33))),
    ("an offer that does not come", || lack(40, [1, 0, 4, 32, 8])),
    ("a count that does not come", || lack(41, [1, 0, 4, 31, 41])),
    ("the first count that does not come", || lack(42, [1, 0, 4, 0, 42])),
    ("warps that do not come", || lack(43, [0, 0, 4, 32, 41])),
    ("a number of rows that does not come", || lack(44, [0, 0, 4, 5, 44])),
    ("a record that does not come", || lack(45, [0, 4, 5, 32, 44])),
    ("an end that does not come", || lack(46, [0, 8, 5, 33, 45])),
    ("all that comes", || lack(47, [0, 8, 0, 0, 0])),
    ("what all of them have sent", || sent(5)),
    ("where as many tokens go as there is room for", || routes_alone(96)),
    ("where tokens go, of which one is in the last word", || routes_alone(65)),
    ("where one token goes", || routes_alone(1)),
    ("counts of which the last one does not come", || counts(14, 17, Some(288))),
    ("counts of few ranks", || counts(15, 5, None)),
    ("rows that are asked for", || vec![0, 32]),
    ("the first end, which does not come", || lack(48, [0, 8, 5, 0, 9])),
    ("warps that do not come in call 0", || lack(0, [0, 0, 4, 32, 48])),
];

/// A call: its epoch, its tokens, and before which rank those are that send rows.
struct Call {
    epoch: i64,
    tokens: i64,
    sources: i64,
}

const CALLS: [Call; 4] = [
    Call { epoch: 6, tokens: 70, sources: 34 },
    Call { epoch: 7, tokens: 70, sources: 28 },
    Call { epoch: 8, tokens: 2, sources: 17 },
    Call { epoch: 9, tokens: 2, sources: 34 },
];

/// The sum of words, each times an odd number of its own.
fn digest(words: &[i64]) -> i64 {
    let terms = words.iter().enumerate().map(|(i, word)| word.wrapping_mul(2 * i as i64 + 1));
    terms.fold(0, i64::wrapping_add)
}

fn experts(token: i64) -> [i64; 2] {
    match (token % 5, token % 35) {
        (1, _) => [-1, 68],
        (_, 9) => [64, 67],
        _ => [token * 7 % 68, (token * 11 + 3) % 68],
    }
}

fn goes(token: i64, rank: i64) -> bool {
    experts(token).iter().any(|expert| (0..68).contains(expert) && expert / 2 == rank)
}

/// Rows of the ranks before this one at `peer`.
fn first(peer: i64) -> i64 {
    (0..SELF).filter(|source| (source + peer) % 16 == 0).count() as i64
}

fn numbers() -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [1, 1, 2, 3]);
    for blocks in 1..4 {
        let others = (blocks - 1).max(1);
        let turn = |lane: i64| {
            let (block, warp) = (lane % blocks, lane / blocks % 3);
            if block < others { warp * others + block } else { 3 * others + warp }
        };
        sheet.put(blocks as usize * 32, (0..32).map(turn));
    }
    sheet.put(128, (0..32).map(|lane| 4992 + lane * 9_000_000 * FIELDS * 8));
    sheet.put(160, (0..32).map(|lane| 1088 + (lane * MOST + lane % 7) * 8));
    sheet.put(192, (0..32).map(|lane| (lane % 5 % 2 * RANKS + lane) * 16));
    let bits = |ranks: i64, lane: i64| {
        let own = [lane - 3, 3 * lane].into_iter().filter(|id| (0..2 * ranks).contains(id));
        let set = own.fold(0u64, |set, id| set | 1 << (id / 2));
        if lane == 7 { 0 } else { set as i64 }
    };
    sheet.put(224, (0..32).map(|lane| bits(8, lane)));
    sheet.put(256, (0..32).map(|lane| bits(RANKS, lane)));
    sheet.0
}

fn offers() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for index in 0..6 {
        for (c, tokens) in [0, 1, 3, 4, 5, 50i64].into_iter().enumerate() {
            let mut words = vec![0; 204];
            let epoch = 21 + c as i64;
            for peer in (0..RANKS).filter(|_| index == 1) {
                let at = 2 * (epoch % 2 * RANKS + SELF + peer) as usize;
                words[at] = stamped(epoch, 5 + c as i64);
                words[at + 1] = stamped(epoch, tokens.min(4));
            }
            sheet.set(index * 6 + c, digest(&words));
        }
    }
    sheet.0
}

/// Where tokens go, as all blocks know it, and what the last one has counted.
fn routes(sheet: &mut Sheet, call: &Call) {
    let tokens = call.tokens;
    for block in 0..3 {
        let at = 8000 + block * 400;
        for rank in 0..RANKS {
            for word in 0..3 {
                let bits =
                    (word * 32..tokens.min(word * 32 + 32)).filter(|token| goes(*token, rank));
                let bits = bits.fold(0, |bits, token| bits | 1i64 << (token % 32));
                let word_at = at + (rank * 3 + word) as usize;
                sheet.set(word_at, if word * 32 < tokens { bits } else { UNTOUCHED });
            }
            let whole = tokens / 32 * 32;
            let upto = [tokens, whole, if whole > 0 { whole } else { tokens }];
            for (place, upto) in [200, 240, 280].into_iter().zip(upto) {
                let count = (0..upto).filter(|token| goes(*token, rank)).count();
                sheet.set(at + place + rank as usize, count as i64);
            }
        }
        for expert in 0..68 {
            let named = (0..tokens).flat_map(experts).filter(|id| *id == expert).count() as i64;
            sheet.set(at + 110 + expert as usize, if block == 2 { named } else { UNTOUCHED });
        }
        let goes = (0..tokens).filter(|token| goes(*token, 3)).map(|token| token + 1).sum();
        sheet.put(at + 180, [UNTOUCHED, 0, goes]);
    }
}

fn routes_alone(tokens: i64) -> Vec<i64> {
    let mut sheet = Sheet::new();
    routes(&mut sheet, &Call { epoch: 0, tokens, sources: 0 });
    sheet.0
}

/// The warp that takes a row, of six of which so many are busy: the one that has least to send begins, and the last block ends.
pub(super) fn taker(busy: i64, row: i64) -> i64 {
    let takes = |turn: &i64| {
        let own = if *turn < 4 { 3 - turn } else { turn - busy };
        *turn >= busy && row % (6 - busy) == own
    };
    let turn = (0..6).find(takes).unwrap();
    // Its number among all warps, two to a block.
    if turn < 4 { turn % 2 * 2 + turn / 2 } else { turn }
}

fn call(call: &Call) -> Vec<i64> {
    let mut sheet = Sheet::new();
    routes(&mut sheet, call);
    for peer in 0..RANKS {
        let mut position = first(peer);
        for token in 0..call.tokens {
            let match_ = goes(token, peer);
            let at = (token * RANKS + peer) as usize;
            sheet.set(at, i64::from(match_) * 1000 + position);
            position += i64::from(match_);
        }
    }
    let total = (0..call.sources).map(|source| source % 3).sum();
    let busy = if (6 - call.tokens) * 4 < total { 0 } else { call.tokens };
    for row in 0..total {
        let at = 2400 + row as usize * 36;
        sheet.put(at, (0..FIELDS).map(|i| call.epoch * 100_000 + row * 100 + i));
        sheet.set(at + 34, taker(busy, row) + 1);
    }
    sheet.put(3600, (0..199).map(|word| call.epoch * 1000 + word));
    sheet.put(3800, [total; 6]);
    sheet.put(7000, [0; 6 * 32]);
    sheet.0
}

/// What the windows of all ranks hold after so many calls; the fifth one is that of which nothing is missing, and
/// those that have sent before something was.
fn sent(calls: usize) -> Vec<i64> {
    let mut windows = vec![vec![0i64; 8320 / 8]; RANKS as usize];
    for (peer, window) in (0..RANKS).zip(&mut windows) {
        for call in CALLS.iter().take(calls) {
            let mut told = [0; 4];
            let tokens = (0..call.tokens).filter(|token| goes(*token, peer));
            for (position, token) in (first(peer)..).zip(tokens) {
                let row = ROWS + peer % 2 * 16 + position * 8;
                (0..8).for_each(|k| window[(row + k) as usize] = token * 10 + k + 1);
                for i in 0..FIELDS {
                    let field = stamped(call.epoch, call.epoch * 10000 + token * 100 + i);
                    window[(RECORDS + position * FIELDS + i) as usize] = field;
                }
                told[(token % 4) as usize] += 1;
            }
            for turn in 0..call.tokens.min(4) {
                let at = (TOLD + SELF * MOST + turn) as usize;
                window[at] = stamped(call.epoch, told[turn as usize]);
            }
        }
        // Those whose own rows have gone out before anything was missing.
        for epoch in (43..48).filter(|_| calls == 5) {
            for token in 0..2 {
                let (row, record) = (ROWS + token * 8, RECORDS + token * FIELDS);
                (0..8).for_each(|k| window[(row + k) as usize] = token * 10 + k + 1);
                (0..FIELDS).for_each(|i| window[(record + i) as usize] = stamped(epoch, i));
            }
            window[(TOLD + SELF * MOST) as usize] = stamped(epoch, 2);
        }
        // Where all ranks but one have their offers.
        offered(peer, calls, window);
    }
    windows.iter().map(|window| digest(window)).collect()
}

/// Offers that ranks have made to one another, not to this one.
fn offered(peer: i64, calls: usize, window: &mut [i64]) {
    for call in CALLS.iter().take(calls).filter(|_| peer != SELF) {
        for rank in 0..RANKS {
            let at = (call.epoch % 2 * RANKS + rank) as usize * 2;
            window[at] = stamped(call.epoch, 32 + rank % 2);
            window[at + 1] = stamped(call.epoch, call.tokens.min(4));
        }
    }
}

/// Counts of so many ranks, or of all but one of the words of a warp.
fn counts(epoch: i64, ranks: i64, missing: Option<i64>) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let value = |at: i64| 5000 * (epoch % 8) + at;
    // A warp takes 128 words of two a turn, and none of the turn that lacks one.
    let has_come = |at: i64| match missing {
        Some(missing) => at / 32 % 2 != missing / 32 % 2 || at / 256 < missing / 256,
        None => true,
    };
    let word = |at: i64| if at < ranks * 17 && has_come(at) { value(at) } else { 66 };
    sheet.put(0, (0..306).map(|i| word((i + 33) % 306)));
    let stopped = i64::from(missing.is_some());
    sheet.put(310, [stopped; 3]);
    for source in 0..ranks {
        sheet.set(320 + source as usize, word(source * 17 + 5));
        let low = source * 17 + 6;
        sheet.set(340 + source as usize, word(low + 1) << 32 | word(low));
    }
    if let Some(missing) = missing {
        // Of a wait for a slot; what was there is two calls old.
        sheet.put(360, [4, 6, -1, missing / 17, epoch, epoch - 2, epoch]);
    }
    sheet.0
}

/// What a warp has packed and taken, for what and whom it has waited in vain, and the call that it has seen there.
fn lack(epoch: i64, [stops, taken, kind, peer, seen]: [i64; 5]) -> Vec<i64> {
    let mut all = vec![2 - stops, taken, stops, i64::from(kind != 0), i64::from(kind != 0)];
    if kind == 0 {
        all.extend([0; 8]);
    } else {
        all.extend([1, 3, kind, -1, peer, epoch, seen, 1]);
    }
    // A stopped team sends nothing; what lies behind a record stays as it is.
    all.extend([1 - stops, 1 - stops, 4711]);
    all
}
