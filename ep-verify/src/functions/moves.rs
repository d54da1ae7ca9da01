//! What a warp leaves that moves rows, in the order of `moves.cu`.

use super::{Check, Sheet};

/// Those of a mover with 16 stages of 16 bytes, and not one more.
pub(super) const SHARED_BYTES: i64 = 4736;

const ROWS: usize = 9;
const COPY: usize = 4700;
const NOTES: usize = 3 * COPY;

pub(super) const CHECKS: [Check; 18] = [
    ("rows in three pieces", || stream(&THREE, 2)),
    ("rows of more pieces than stages", || stream(&FIVE, 1)),
    ("rows in one piece", || stream(&WHOLE, 3)),
    ("rows in as many stages as can be", || stream(&FULL, 9)),
    ("rows by vectors", || stream(&VECTOR, 0)),
    ("rows of two vectors", || stream(&SMALL, 0)),
    ("rows in three pieces that are complete", || complete(&THREE)),
    ("rows in one piece that are complete", || complete(&WHOLE)),
    ("rows in many stages that are complete", || complete(&FULL)),
    ("rows by vectors that are complete", || complete(&VECTOR)),
    ("a stop before the first row", || stop(&THREE, 0)),
    ("a stop behind rows in five pieces", || stop(&FIVE, 2)),
    ("a stop behind rows in one piece", || stop(&BARE, 3)),
    ("a stop behind rows by vectors", || stop(&VECTOR, 2)),
    ("destinations", places),
    ("rows of some turns of a warp", || stream(&TURNS, 0)),
    ("rows that go to several places", || spread(&THREE)),
    ("rows by vectors that go to several places", || spread(&SMALL)),
];

/// How a role moves rows: words of a row, of a piece and of a record, and pieces that are being loaded
/// when one is stored.
struct Role {
    row: usize,
    piece: usize,
    meta: usize,
    ahead: usize,
}

const THREE: Role = Role { row: 10, piece: 4, meta: 6, ahead: 2 };
const FIVE: Role = Role { row: 10, piece: 2, meta: 0, ahead: 1 };
const WHOLE: Role = Role { row: 12, piece: 12, meta: 2, ahead: 2 };
const FULL: Role = Role { row: 2, piece: 2, meta: 2, ahead: 8 };
const BARE: Role = Role { row: 2, piece: 2, meta: 0, ahead: 8 };
const VECTOR: Role = Role { row: 130, piece: 130, meta: 66, ahead: 0 };
const SMALL: Role = Role { row: 4, piece: 4, meta: 0, ahead: 0 };
const TURNS: Role = Role { row: 512, piece: 512, meta: 0, ahead: 0 };

impl Role {
    /// The rows as they are given.
    fn begin(&self) -> Sheet {
        let mut sheet = Sheet::new();
        sheet.put(0, (0..ROWS * self.row).map(|i| 100 + i as i64));
        sheet
    }

    /// Who stores a row, and where that lane's rows begin.
    fn lanes(row: usize) -> impl Iterator<Item = (usize, usize)> {
        [(1, COPY), (30, 2 * COPY)].into_iter().take(1 + row % 2)
    }

    /// Stores so many words of a row, and its record.
    fn store(&self, sheet: &mut Sheet, row: usize, words: usize) {
        let first = 100 + (row * self.row) as i64;
        for (_, base) in Role::lanes(row) {
            sheet.put(base + row * self.row, (0..words as i64).map(|i| first + i));
            let meta = (0..self.meta as i64).map(|i| 7000 + row as i64 * 100 + i);
            sheet.put(base + ROWS * self.row + row * self.meta, meta);
        }
    }

    /// What lanes find of a row: the last words, each beside its lane's place.
    fn look(&self, sheet: &mut Sheet, row: usize, place: impl Fn(usize) -> usize) {
        for (lane, _) in Role::lanes(row) {
            sheet.set(place(lane), 100 + (row * self.row + self.row - 1) as i64);
            if self.meta > 0 {
                sheet.set(place(lane) + 1, 7000 + (row * 100 + self.meta - 1) as i64);
            }
        }
    }

    fn pieces(&self) -> usize {
        self.row.div_ceil(self.piece)
    }

    /// How many of so many rows are on their way out.
    fn loaded(&self, rows: usize) -> usize {
        (rows * self.pieces()).saturating_sub(self.ahead) / self.pieces()
    }
}

/// What lanes have written and read at so many meetings.
fn marks(sheet: &mut Sheet, count: usize) {
    for meeting in 0..count {
        let place = NOTES + 1200 + meeting * 64;
        sheet.put(place, (0..32).chain(1..32).chain([0]));
    }
}

fn stream(role: &Role, recent: usize) -> Vec<i64> {
    let mut sheet = role.begin();
    for row in 0..ROWS {
        role.store(&mut sheet, row, role.row);
        let begun = row + 1;
        let sure = begun.saturating_sub(recent);
        let note = (sure * 10000 + role.loaded(begun) * 100 + begun) as i64;
        sheet.put(NOTES + row * 96, [note; 32]);
        if let Some(last) = sure.checked_sub(1) {
            role.look(&mut sheet, last, |lane| NOTES + row * 96 + 32 + lane);
        }
    }
    sheet.put(NOTES + 900, [9; 32]);
    sheet.put(NOTES + 1000, [9, 9]);
    role.look(&mut sheet, ROWS - 1, |lane| NOTES + 1100 + lane * 2);
    marks(&mut sheet, 3);
    sheet.0
}

fn complete(role: &Role) -> Vec<i64> {
    let mut sheet = role.begin();
    for pass in 0..ROWS {
        role.store(&mut sheet, pass, role.row);
        role.look(&mut sheet, pass, |lane| NOTES + pass * 64 + lane * 2);
        let before = pass * ROWS;
        let loaded = if pass == 4 { before + ROWS } else { before + role.loaded(ROWS) };
        sheet.set(NOTES + 900 + pass, loaded as i64);
    }
    marks(&mut sheet, ROWS);
    sheet.0
}

fn stop(role: &Role, rows: usize) -> Vec<i64> {
    let mut sheet = role.begin();
    let mut pieces = (rows * role.pieces()).saturating_sub(role.ahead);
    for row in 0..rows {
        let stored = pieces.min(role.pieces());
        role.store(&mut sheet, row, (stored * role.piece).min(role.row));
        pieces -= stored;
    }
    sheet.put(NOTES, [rows as i64; 32]);
    sheet.0
}

fn spread(role: &Role) -> Vec<i64> {
    let mut sheet = role.begin();
    let rows = [0; 34].into_iter().chain([1; 2]);
    for (place, row) in rows.enumerate() {
        let first = 100 + (row * role.row) as i64;
        sheet.put(COPY + place * role.row, first..first + role.row as i64);
    }
    sheet.put(NOTES, [2, 3, 3]);
    sheet.0
}

fn places() -> Vec<i64> {
    let mut all = vec![-1; 192];
    for peer in 30..35 {
        all[(peer - 30) * 32 + peer % 32] = 8;
    }
    all[160] = 8;
    all
}
