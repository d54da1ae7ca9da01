//! What kernels ask of a network, in the order of `puts.cu`.

use super::{Check, Sheet};

/// Ranks that send to each other.
pub(super) const RANKS: usize = 3;
const SENDERS: usize = 4;
const ROUNDS: usize = 14;
const WORDS: usize = 16;

/// Rows that leave, and those that come: of every source, sender and round.
pub(super) const DATA_BYTES: i64 =
    ((SENDERS * RANKS + RANKS * SENDERS * ROUNDS) * WORDS * 4) as i64;

/// Counters of each source and queue.
pub(super) const COUNTERS: i64 = 2;

pub(super) const CHECKS: [Check; 2] =
    [("sources that are written again", rows), ("a queue that nothing is asked of", || vec![1, 0])];

/// The words of the rows that others have sent, who are so far before this rank.
fn rows() -> Vec<i64> {
    const BYTES: [usize; 7] = [64, 28, 12, 30, 16, 4, 32];
    let mut sheet = Sheet::new();
    sheet.put(0, [ROUNDS as i64 * 101 + 20000; SENDERS]);
    for row in SENDERS * ROUNDS..RANKS * SENDERS * ROUNDS {
        let (far, sender, round) = (row / ROUNDS / SENDERS, row / ROUNDS % SENDERS, row % ROUNDS);
        let first = ((far * 5 + sender) * 17 + round) * 100 + 1;
        let word = |i: usize| ((first + i) as u32).wrapping_mul(2_654_435_761);
        let words = (0..BYTES[round % 7] / 4).map(|i| i64::from(word(i)));
        sheet.put(10 + row * WORDS, words);
    }
    sheet.0
}
