//! What counters of calls leave, in the order of `counts.cu`.

use super::{Check, Sheet};

/// Two sets of counters, of which one lies in shared memory, and a word for each.
pub(super) const SHARED_BYTES: i64 = 4 * (70 + 1 + 1 + 1);

/// The sums of both sets, three others, and the number of a call.
pub(super) const WINDOW_BYTES: i64 = 4096 + 16 + 8;

/// Threads of both blocks.
const THREADS: i64 = 128;

/// Each is called again, which finds what the call before has left.
pub(super) const CHECKS: [Check; 10] = [
    ("counters", || counted(70, 1, true)),
    ("counters alone", || counted(70, 1, false)),
    ("counters of a third call", || counted(70, 2, true)),
    ("counters alone, of a fourth call", || counted(70, 1, false)),
    ("many counters", || counted(306, 2, true)),
    ("many counters alone", || counted(306, 1, false)),
    ("many counters of a third call", || counted(306, 2, true)),
    ("many counters alone, of a fourth call", || counted(306, 1, false)),
    ("a call that is stopped", Vec::new),
    ("the number of a call that was stopped", || vec![0]),
];

/// So many counters; what is added up besides is looked at by every other call.
fn counted(count: i64, calls: i64, looks: bool) -> Vec<i64> {
    let mut sheet = Sheet::new();
    let sum = |counter: i64| match counter % 7 {
        3 => i64::from(counter == 3),
        _ => (0..3).map(|turn| turn * count + counter + 1).sum(),
    };
    sheet.put(0, (0..count).map(sum));
    if looks {
        sheet.put(400, (0..64).map(|i| sum((i * 5 + 11) % count) + 1));
        let threads = THREADS * (THREADS - 1) / 2;
        sheet.put(
            500,
            [
                calls * (THREADS * (1 << 33) + threads),
                calls * THREADS,
                calls * (threads - 9 * THREADS),
                1,
            ],
        );
    }
    sheet.0
}
