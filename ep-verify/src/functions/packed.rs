//! What ranks leave that send rows in pieces and pack them, in the order of `packed.cu`.

use super::made::{Memory, Scales, code, lying, words_of};
use super::waits::{Record, state};
use super::warps::slices_of;
use super::{Check, ROOM, Sheet, UNTOUCHED, stamped};

/// Where tokens go, and what a warp moves.
pub(super) const SHARED_BYTES: i64 = 10_880;

/// What 4 groups have of their own, rows of tokens, counts, and windows.
pub(super) const WINDOW_BYTES: i64 = 64 + 4 * 512 + 6 * 3680 + 34 * 34 * 8 + 128 + 3 * 173_440;

const TOKENS: usize = 6;
const ROWS: usize = 16;
const FIELDS: usize = 40;

pub(super) const CHECKS: [Check; 30] = [
    ("rows of tokens", Vec::new),
    ("rows to many ranks", || sends(&MANY, None, &Sent::new(7, 6))),
    ("casts to many ranks", || sends(&MANY, Some(Scales::Floats), &Sent::new(8, 2))),
    ("long rows", || sends(&LONG, None, &Sent::new(9, 5))),
    ("long casts", || sends(&LONG, Some(Scales::Floats), &Sent::new(10, 5))),
    ("a long cast by powers of two", || sends(&LONG, Some(Scales::Powers), &Sent::new(11, 1))),
    ("long rows by vectors", || sends(&VECTOR, None, &Sent::new(12, 5))),
    ("casts as words", || sends(&FEW, Some(Scales::Floats), &Sent::new(13, 5))),
    ("casts by powers of two as words", || sends(&FEW, Some(Scales::Powers), &Sent::new(14, 5))),
    ("casts that are too many for words", || sends(&FEW, Some(Scales::Powers), &Sent::new(15, 6))),
    ("casts of warps that are stopped", || {
        sends(&LONG, Some(Scales::Floats), &Sent { is_stopped: true, ..Sent::new(16, 5) })
    }),
    ("casts up to a stop", || {
        sends(&LONG, Some(Scales::Floats), &Sent { stop: Some(1), ..Sent::new(17, 5) })
    }),
    ("a count that does not come", || {
        sends(&LONG, None, &Sent { is_missing: true, ..Sent::new(18, 5) })
    }),
    ("rows that many ranks send", || takes(&MANY, &Taken::new(7, &[1, 16, 31, 33]))),
    ("slices of a row", || takes(&LONG, &Taken::new(8, &[1]))),
    ("rows of the first and the last rank", || takes(&LONG, &Taken::new(9, &ENDS))),
    ("rows of which some are words", || takes(&FEW, &Taken { words: 4, ..Taken::new(10, &ENDS) })),
    ("rows where none are words", || takes(&FEW, &Taken::new(11, &ENDS))),
    ("slices of rows of many pieces", || takes(&PIECES, &Taken::new(12, &[1, 2]))),
    ("the last of many pieces, which does not come", || {
        takes(&PIECES, &Taken { lost: Some((CLOSED, 1, 0)), ..Taken::new(13, &[1, 2]) })
    }),
    ("a piece that does not come", || {
        takes(&LONG, &Taken { lost: Some((CLOSED, 2, 3)), ..Taken::new(14, &ENDS) })
    }),
    ("a field that does not come", || {
        takes(&LONG, &Taken { lost: Some((CLOSED, 2, 3)), ..Taken::new(15, &ENDS) })
    }),
    ("a word that does not come", || {
        takes(&FEW, &Taken { words: 4, lost: Some((CLOSED, 2, 7)), ..Taken::new(16, &ENDS) })
    }),
    ("a number of rows that does not come", || {
        takes(&LONG, &Taken { lost: Some((FLAG, 2, 3)), ..Taken::new(17, &ENDS) })
    }),
    ("the first of two pieces of a lane, which does not come", || {
        let lost = Some((CLOSED, 1, 0));
        takes(&PIECES, &Taken { lost, seen: 0, ..Taken::new(18, &[1, 2]) })
    }),
    ("the first field of a lane, which does not come", || {
        takes(&LONG, &Taken { lost: Some((CLOSED, 2, 3)), ..Taken::new(19, &ENDS) })
    }),
    ("a field behind words, which does not come", || {
        takes(&FEW, &Taken { words: 4, lost: Some((CLOSED, 2, 6)), ..Taken::new(20, &ENDS) })
    }),
    ("rows far away", || sends(&FAR, None, &Sent::new(21, 6))),
    ("the last of rows that are far apart", || takes(&FAR, &Taken::new(22, &ENDS))),
    ("long casts by vectors", || sends(&VECTOR, Some(Scales::Floats), &Sent::new(23, 5))),
];

/// Kinds of waits.
const READY: i64 = 4;
const CLOSED: i64 = 5;
const FLAG: i64 = 6;

/// The sources of five rows.
const ENDS: [usize; 5] = [0, 0, 0, 2, 2];

/// A channel: bytes of a row and of a piece, how many tokens travel as words, and whether a GiB is between rows.
struct Form {
    peers: usize,
    own: usize,
    few: usize,
    row: usize,
    piece: usize,
    is_far: bool,
}

const MANY: Form = Form { peers: 34, own: 33, few: 0, row: 80, piece: 80, is_far: false };
const LONG: Form = Form { peers: 3, own: 2, row: 1808, piece: 512, ..MANY };
const VECTOR: Form = Form { piece: 1024, ..LONG };
const FEW: Form = Form { few: 5, ..LONG };
const PIECES: Form = Form { peers: 3, own: 0, row: 560, piece: 16, ..MANY };
const FAR: Form = Form { peers: 3, own: 2, is_far: true, ..MANY };

impl Form {
    fn pieces(&self) -> usize {
        self.row.div_ceil(self.piece)
    }

    fn stride(&self) -> usize {
        self.row + 32
    }

    /// Where each area of a window begins: words that tell, records, rows as words, rows, and the end.
    fn areas(&self) -> [usize; 5] {
        let whole = |at: usize| at.next_multiple_of(128);
        let told = 2 * self.peers * 16;
        let records = told + self.peers * TOKENS * self.pieces() * 8;
        let words = whole(records + ROWS * FIELDS * 8);
        let rows = whole(words + 2 * self.peers * self.few * self.word_row());
        [told, records, words, rows, whole(rows + 128 + ROWS * self.stride())]
    }

    fn word_row(&self) -> usize {
        self.row.div_ceil(512) * 1024 + FIELDS * 8
    }
}

fn digest(words: &[i64]) -> i64 {
    words.iter().fold(0, |sum, word| sum.wrapping_mul(31).wrapping_add(*word))
}

/// The turn of a warp.
fn turn_of(index: usize) -> usize {
    let (block, warp) = (index / 2, index % 2);
    if block < 2 { warp * 2 + block } else { 4 + warp }
}

fn goes(token: usize, rank: usize) -> bool {
    token % 5 != 3 && (token * 9 + rank * rank * 3 + token * token % 13 * rank) % 7 < 3
}

/// What the warps of a rank send, and what stops them.
struct Sent {
    call: i64,
    tokens: usize,
    is_stopped: bool,
    stop: Option<usize>,
    is_missing: bool,
}

impl Sent {
    fn new(call: i64, tokens: usize) -> Sent {
        Sent { call, tokens, is_stopped: false, stop: None, is_missing: false }
    }
}

/// The windows of all ranks while one sends.
struct Windows<'a> {
    form: &'a Form,
    scales: Option<Scales>,
    call: i64,
    all: Vec<Memory>,
}

impl Windows<'_> {
    fn row(&self, token: usize) -> Vec<u8> {
        match self.scales {
            Some(_) => (0..self.form.row).map(|i| code(token, i)).collect(),
            None => lying(token, 1808, self.form.row / 2),
        }
    }

    /// The fields of a token, and the piece that each goes with.
    fn fields(&self, token: usize) -> Vec<(i64, usize)> {
        let own = |i: usize| ((token * 100 + i) as i64, 0);
        let mut fields: Vec<(i64, usize)> = (0..FIELDS).map(own).collect();
        let Some(scales) = self.scales else { return fields };
        for (i, word) in scales.words(token, self.form.row).into_iter().enumerate() {
            fields[2 + i] = (word, i * 512 / scales.bytes() / self.form.piece);
        }
        fields
    }

    fn number(&self, token: usize, peer: usize) -> usize {
        (0..token).filter(|earlier| goes(*earlier, peer)).count()
    }

    /// Where the first row of this rank goes at a peer.
    fn first(&self, peer: usize) -> usize {
        (0..self.form.own).filter(|source| (source * 3 + peer) % 4 == 1).count()
    }

    fn send_piece(&mut self, token: usize, piece: usize) {
        let [told, records, _, rows, _] = self.form.areas();
        let (row, fields, form, call) = (self.row(token), self.fields(token), self.form, self.call);
        for peer in (0..form.peers).filter(|peer| goes(token, *peer)) {
            let (first, number) = (self.first(peer), self.number(token, peer));
            let (begin, end) = (piece * form.piece, form.row.min((piece + 1) * form.piece));
            let at = rows + peer % 2 * 128 + (first + number) * form.stride();
            let record = records + (first + number) * FIELDS * 8;
            let told = told + ((form.own * TOKENS + number) * form.pieces() + piece) * 8;
            let window = &mut self.all[peer];
            if form.is_far {
                let number = first + number;
                let at = rows + peer % 2 * 128 + (number << 30);
                window.put_words(rows + number * 8, [at as i64]);
            } else {
                window.put(at + begin, &row[begin..end]);
            }
            for (i, (field, _)) in fields.iter().enumerate().filter(|(_, (_, own))| *own == piece) {
                window.put_words(record + i * 8, [stamped(call, *field)]);
            }
            window.put_words(told, [stamped(call, 1)]);
        }
    }

    fn send_words(&mut self, token: usize) {
        let [_, _, words, _, _] = self.form.areas();
        let (row, fields, form, call) = (self.row(token), self.fields(token), self.form, self.call);
        for peer in (0..form.peers).filter(|peer| goes(token, *peer)) {
            let place = (call as usize % 2 * form.peers + form.own) * form.few;
            let at = words + (place + self.number(token, peer)) * form.word_row();
            let window = &mut self.all[peer];
            for (i, word) in words_of(call, &row) {
                window.put_words(at + i * 8, [word]);
            }
            let numbers = at + form.row.div_ceil(512) * 1024;
            window.put_words(numbers, fields.iter().map(|(field, _)| stamped(call, *field)));
        }
    }
}

/// How many parts a row that is cast has as words.
fn parts_of(form: &Form) -> usize {
    form.row.div_ceil(512)
}

fn sends(form: &Form, scales: Option<Scales>, sent: &Sent) -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [0; 500]);
    let [.., end] = form.areas();
    let all = (0..form.peers).map(|_| Memory::zero(end)).collect();
    let mut windows = Windows { form, scales, call: sent.call, all };
    for index in 0..6 {
        let is_as_words = sent.tokens <= form.few;
        let ends = match is_as_words {
            true => send_as_words(&mut windows, sent, index, &mut sheet),
            false => send_pieces(&mut windows, sent, index, &mut sheet),
        };
        sheet.put(500 + index * 20, ends);
        sheet.put(700 + index * 32, [0; 32]);
    }
    for (peer, window) in windows.all.iter().enumerate() {
        let words = window.words();
        let areas = form.areas().map(|at| at / 8);
        sheet.put(1000 + peer * 4, areas.windows(2).map(|ends| digest(&words[ends[0]..ends[1]])));
    }
    sheet.0
}

/// Notes where the rows of a token go.
fn places(windows: &Windows<'_>, token: usize, sheet: &mut Sheet) {
    for peer in 0..windows.form.peers {
        let position = windows.first(peer) + windows.number(token, peer);
        let matches = if goes(token, peer) { 10_000 } else { 0 };
        sheet.add(token * windows.form.peers + peer, (matches + position + 1) as i64);
    }
}

fn send_pieces(
    windows: &mut Windows<'_>,
    sent: &Sent,
    index: usize,
    sheet: &mut Sheet,
) -> Vec<i64> {
    let turn = turn_of(index);
    let units = if turn < 4 { sent.tokens * windows.form.pieces() } else { 0 };
    let waits = turn < units && !sent.is_stopped;
    let mut is_stopped = sent.is_stopped;
    for unit in (turn..units).step_by(4) {
        if is_stopped {
            break;
        }
        let (token, piece) = (unit % sent.tokens, unit / sent.tokens);
        sheet.add(400 + index * 8 + token, 2);
        sheet.add(300 + token, i64::from(piece == 0));
        is_stopped = sent.is_missing || sent.stop == Some(token) && piece == 0;
        if is_stopped {
            continue;
        }
        windows.send_piece(token, piece);
        if piece == 0 {
            places(windows, token, sheet);
        }
    }
    let record = record(0, READY, 0, (sent.call, sent.call));
    let mut ends = state(is_stopped, sent.is_missing.then_some((record, sent.call)));
    ends[0] = i64::from(is_stopped && (waits || sent.is_stopped));
    if sent.is_missing {
        // Each warp that waits has one.
        ends[2] = 4.min(index as i64 + 1);
    }
    ends
}

fn send_as_words(
    windows: &mut Windows<'_>,
    sent: &Sent,
    index: usize,
    sheet: &mut Sheet,
) -> Vec<i64> {
    let (turn, parts) = (turn_of(index), parts_of(windows.form));
    let units = if turn < 4 { sent.tokens * (parts + 1) } else { 0 };
    for unit in (turn..units).step_by(4) {
        let (token, part) = (unit % sent.tokens, unit / sent.tokens);
        let is_row = part < parts;
        if is_row && !(0..windows.form.peers).any(|peer| goes(token, peer)) {
            continue;
        }
        sheet.add(400 + index * 8 + token, i64::from(is_row));
        sheet.add(300 + token, i64::from(!is_row));
        if !is_row {
            windows.send_words(token);
        }
    }
    for token in (turn..sent.tokens).step_by(4).filter(|_| turn < 4) {
        places(windows, token, sheet);
    }
    state(false, None)
}

fn record(group: i64, kind: i64, peer: i64, (want, seen): (i64, i64)) -> Record {
    let (pipeline, role, channel, expired, block) = (70 + group, 2, 3, 1, 0);
    Record { pipeline, role, channel, kind, expired, stripe: -1, peer, want, seen, block }
}

/// Rows by their sources, of which those of some (a bit each) come as words, and what one warp waits for in vain: the kind
/// of the wait, the rank, and the first unit that is not there.
struct Taken<'a> {
    call: i64,
    sources: &'a [usize],
    words: usize,
    lost: Option<(i64, i64, usize)>,
    /// How old the word is that is seen last.
    seen: i64,
}

impl Taken<'_> {
    fn new(call: i64, sources: &[usize]) -> Taken<'_> {
        Taken { call, sources, words: 0, lost: None, seen: 2 }
    }
}

fn takes(form: &Form, taken: &Taken<'_>) -> Vec<i64> {
    let mut sheet = Sheet::new();
    sheet.put(0, [0; 1300]);
    let mut out = Memory::new(8 * ROOM);
    let [.., rows, end] = form.areas();
    let mut window = Memory::zero(end - rows);
    let (total, warps) = (taken.sources.len(), if taken.lost.is_some() { 1 } else { 6 });
    let parts = if taken.words != 0 { 2 } else { slices_of(warps, total) };
    let units = taken.lost.map_or(total * parts, |(.., units)| units);
    // The first row that is there.
    let lies = if form.is_far { 4 } else { 0 };
    for (row, source) in taken.sources.iter().enumerate() {
        let bytes: Vec<u8> = (0..form.row as u32 / 4)
            .flat_map(|i| (row as u32 * 5000 + 3 * i + 1).to_le_bytes())
            .collect();
        let is_words = taken.words >> source & 1 != 0;
        if !is_words && row >= lies {
            window.put((row - lies) * form.stride(), &bytes);
        }
        for part in (0..parts).filter(|part| row * parts + part < units) {
            packs(&mut sheet, (row, *source), part == 0);
            if row < lies {
                continue;
            }
            for unit in (0..form.row / 16).filter(|unit| unit_part(*unit, is_words, parts) == part)
            {
                let (begin, end) = (unit * 16, unit * 16 + 16);
                window.put((row - lies) * form.stride() + begin, &bytes[begin..end]);
                for choice in (0..3).filter(|choice| (row + choice) % 3 != 1) {
                    let at = 8 * 4096 + (row * 3 + choice) * form.row;
                    out.put(at + begin, &bytes[begin..end]);
                }
            }
        }
        // What is lost behind them is a count.
        let is_met = row * parts < units + usize::from(matches!(taken.lost, Some((FLAG, ..))));
        if is_met {
            sheet.put(row * 64, (0..FIELDS as i64).map(|i| row as i64 * 100 + i + 5));
            let own = |index: &usize| warps == 1 || turn_of(*index) == row * parts % 6;
            sheet.set(row * 64 + 48, (0..6).find(own).unwrap_or(0) as i64 + 1);
        }
    }
    let record = taken
        .lost
        .map(|(kind, peer, _)| record(1, kind, peer, (taken.call, taken.call - taken.seen)));
    for index in 0..warps {
        sheet.put(1300 + index * 32, [0; 32]);
        sheet.set(1500 + index, total as i64);
        let ends = state(record.is_some(), record.map(|record| (record, taken.call)));
        sheet.put(1600 + index * 20, ends);
    }
    let words = window.words();
    let stride = form.stride() / 8;
    sheet.put(1800, (0..8).map(|row| digest(&words[row * stride..][..stride])));
    let untouched = i64::from_le_bytes(UNTOUCHED);
    let copies = out.words().into_iter().skip(4096);
    let copies = copies.enumerate().filter(|(_, word)| *word != untouched);
    copies.for_each(|(i, word)| sheet.set(4096 + i, word));
    sheet.0
}

/// The part that a unit of a row is in.
fn unit_part(unit: usize, is_words: bool, parts: usize) -> usize {
    if is_words { unit / 64 } else { unit / 32 % parts }
}

/// What the lanes of three choices are told of a part.
fn packs(sheet: &mut Sheet, (row, source): (usize, usize), once: bool) {
    for choice in 0..3 {
        let list = (row * 3 + choice) % 5;
        let ahead: usize = (0..source).map(|earlier| (earlier * 2 + list) % 3).sum();
        let own = 1100 + (row * 3 + choice) * 2;
        sheet.add(own, (1000 * source + ahead + 1) as i64);
        sheet.add(own + 1, if once { 100 } else { 1 });
    }
}
