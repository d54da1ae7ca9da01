//! What ends of rings between nodes leave; see `net_rings.cu`.

use super::rings::{CALLS, NOTED, STRIPES, messages, note, told as told_of};
use super::{Check, Sheet};

/// Ranks of two nodes.
pub(super) const RANKS: usize = 4;

/// Two channels, one behind the other.
pub(super) const WINDOW_BYTES: i64 = 8192;

/// The sequences of two warps' rings.
pub(super) const SHARED_BYTES: i64 = 2 * 4 * 40;
pub(super) const DATA_BYTES: i64 = 8192;

/// Counters of each source and queue.
pub(super) const COUNTERS: i64 = 3 + 8 + 8;

const QUEUES: i64 = 2;

pub(super) const CHECKS: [Check; 1] = [("rings between nodes", both)];

/// A channel, seen from any of its ranks.
struct Channel {
    peers: i64,
    near: i64,
    readers: usize,
}

const ALL: Channel = Channel { peers: 4, near: 2, readers: 2 };
const RAIL: Channel = Channel { peers: 2, near: 1, readers: 1 };

/// What comes in both channels, and what they leave.
fn both() -> Vec<i64> {
    let mut sheet = Sheet::new();
    for (channel, at, left_at) in [(&ALL, 0, 8000), (&RAIL, 6000, 9000)] {
        for reader in 0..channel.readers {
            for peer in 0..channel.peers {
                note(&mut sheet, at + (reader * 4 + peer as usize) * NOTED, 0, peer);
            }
        }
        let rings = (0..STRIPES).flat_map(|stripe| (0..channel.peers).map(move |it| (stripe, it)));
        sheet.put(left_at, rings.flat_map(|(stripe, peer)| channel.words(stripe, peer)));
    }
    sheet.0
}

impl Channel {
    /// What windows and counters hold of one ring behind all calls.
    fn words(&self, stripe: i64, peer: i64) -> Vec<i64> {
        // As many come from a peer as go to it.
        let through =
            |calls: i64| -> i64 { (1..=calls).map(|call| messages(0, peer, call, stripe)).sum() };
        let is_near = peer < self.near;
        let told = [through(CALLS), through(CALLS), CALLS, 2 * CALLS];
        let mut words = if is_near { told[..3].to_vec() } else { Vec::new() };
        for queue in 0..QUEUES {
            let is_told = !is_near && queue == stripe;
            words.extend(told.map(|number| if is_told { number } else { 0 }));
        }
        for call in [CALLS, CALLS - 1] {
            words.extend([through(call); 2]);
            if is_near {
                let told = i64::from(told_of(0, peer, call, stripe) as u32);
                words.extend([messages(0, peer, call, stripe), call, told, call]);
            }
        }
        words.extend([0; 4]);
        words
    }
}
