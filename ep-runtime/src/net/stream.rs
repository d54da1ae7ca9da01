//! Turns writes that land in any order into counters that say what has landed.
//!
//! All writes of a rank to a peer through one queue form a stream, and each carries its place in it. The
//! receiver records which places have landed, and a signal counts once all places before it have landed. A
//! network only has to guarantee that a write's number never arrives before its bytes.
//!
//! ```text
//! number of a write   kind 2 bits | queue 3 | source 11 | place or count 16
//! ```

use super::layout::{Layout, MOST_QUEUES, MOST_RANKS, WINDOW};

/// What the number of a write says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    /// Bytes of a put; its place in the stream.
    Put(u16),
    /// A signal; its place.
    Signal(u16),
    /// So many more places of the receiver's own stream have landed, one after another.
    Landed(u16),
    /// Nothing but that the source is there.
    Alive(Pulse),
}

/// What a source says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pulse {
    /// It is well.
    Well,
    /// It will send nothing more.
    Leaving,
    /// It has given up, for which it blames this rank, if one.
    GaveUp(Option<usize>),
}

/// Beside the ranks that a pulse can blame.
const LEAVING: u16 = u16::MAX - 1;
const WELL: u16 = u16::MAX;
const NOBODY: u16 = u16::MAX - 2;

impl Number {
    /// The number of a write of `source` that goes through `queue`.
    pub(super) fn encode(self, source: usize, queue: usize) -> u32 {
        let (kind, rest) = match self {
            Number::Put(place) => (0, place),
            Number::Signal(place) => (1, place),
            Number::Landed(count) => (2, count),
            Number::Alive(Pulse::Well) => (3, WELL),
            Number::Alive(Pulse::Leaving) => (3, LEAVING),
            Number::Alive(Pulse::GaveUp(None)) => (3, NOBODY),
            Number::Alive(Pulse::GaveUp(Some(rank))) => (3, rank as u16),
        };
        kind << 30 | (queue as u32) << 27 | (source as u32) << 16 | u32::from(rest)
    }

    /// What a number says, with its source and queue, in a network of this layout; a clause that says why
    /// nobody sends it.
    pub(super) fn decode(number: u32, layout: &Layout) -> Result<(Number, usize, usize), String> {
        let queue = (number >> 27) as usize % MOST_QUEUES;
        let source = (number >> 16) as usize % MOST_RANKS;
        let rest = number as u16;
        if source >= layout.ranks || queue >= layout.queues {
            return Err(format!("it names rank {source} and queue {queue}"));
        }
        let said = match number >> 30 {
            0 => Number::Put(rest),
            1 => Number::Signal(rest),
            2 => Number::Landed(rest),
            _ => Number::Alive(match rest {
                WELL => Pulse::Well,
                LEAVING => Pulse::Leaving,
                NOBODY => Pulse::GaveUp(None),
                rank if usize::from(rank) < layout.ranks => Pulse::GaveUp(Some(usize::from(rank))),
                rank => return Err(format!("it blames rank {rank}")),
            }),
        };
        Ok((said, source, queue))
    }
}

/// The sending end of a stream.
#[derive(Debug, Clone, Default)]
pub(super) struct Sending {
    next: u16,
    on_their_way: usize,
}

impl Sending {
    /// The place of the next write; none while as many are on their way as the other end can note.
    pub(super) fn place(&self) -> Option<u16> {
        (self.on_their_way < WINDOW).then_some(self.next)
    }

    /// The write with that place has been posted.
    pub(super) fn posted(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.on_their_way += 1;
    }

    /// So many more have landed, as the other end says; a clause if they were never sent.
    pub(super) fn landed(&mut self, count: u16) -> Result<(), String> {
        let on_their_way = self.on_their_way;
        let left = on_their_way.checked_sub(usize::from(count));
        self.on_their_way =
            left.ok_or_else(|| format!("{count} writes have landed of {on_their_way}"))?;
        Ok(())
    }

    /// Whether nothing is on its way.
    pub(super) fn is_quiet(&self) -> bool {
        self.on_their_way == 0
    }
}

/// The receiving end of a stream.
#[derive(Debug, Clone)]
pub(super) struct Landing {
    /// The first place that has not landed.
    next: u16,
    landed: [u64; WINDOW / 64],
    signals: [u64; WINDOW / 64],
    /// Places that have landed, one after another, and that the sender has not been told of.
    owed: u16,
}

impl Default for Landing {
    fn default() -> Landing {
        Landing { next: 0, landed: [0; WINDOW / 64], signals: [0; WINDOW / 64], owed: 0 }
    }
}

impl Landing {
    /// The write with this place has landed. `signal` gets the place of each signal that counts now; a
    /// clause if the place is one that nobody can have sent.
    pub(super) fn land(
        &mut self,
        place: u16,
        is_signal: bool,
        mut signal: impl FnMut(u16),
    ) -> Result<(), String> {
        let ahead = place.wrapping_sub(self.next);
        let (word, bit) = (usize::from(place) % WINDOW / 64, 1 << (place % 64));
        if usize::from(ahead) >= WINDOW || self.landed[word] & bit != 0 {
            return Err(format!("place {place} landed when {} was next", self.next));
        }
        self.landed[word] |= bit;
        if is_signal {
            self.signals[word] |= bit;
        }
        loop {
            let (word, bit) = (usize::from(self.next) % WINDOW / 64, 1 << (self.next % 64));
            if self.landed[word] & bit == 0 {
                return Ok(());
            }
            self.landed[word] &= !bit;
            if self.signals[word] & bit != 0 {
                self.signals[word] &= !bit;
                signal(self.next);
            }
            self.next = self.next.wrapping_add(1);
            self.owed += 1;
        }
    }

    /// How many places to tell the sender of now: many at once, or all that there are.
    pub(super) fn owed(&self, all: bool) -> Option<u16> {
        let least = if all { 1 } else { WINDOW as u16 / 4 };
        (self.owed >= least).then_some(self.owed)
    }

    /// The sender has been told of so many.
    pub(super) fn told(&mut self, count: u16) {
        self.owed -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout =
        Layout { ranks: 5, data_bytes: 64, queues: 3, slots: 32, counters: 4, ports: 1 };

    #[test]
    fn numbers_survive_the_way() {
        for said in [
            Number::Put(0),
            Number::Put(u16::MAX),
            Number::Signal(7),
            Number::Landed(256),
            Number::Alive(Pulse::Well),
            Number::Alive(Pulse::Leaving),
            Number::Alive(Pulse::GaveUp(None)),
            Number::Alive(Pulse::GaveUp(Some(3))),
        ] {
            let number = said.encode(4, 2);
            assert_eq!(Number::decode(number, &LAYOUT), Ok((said, 4, 2)));
        }
        let wrong = |number: u32| Number::decode(number, &LAYOUT).unwrap_err();
        assert_eq!(wrong(Number::Put(0).encode(5, 2)), "it names rank 5 and queue 2");
        assert_eq!(wrong(Number::Put(0).encode(4, 3)), "it names rank 4 and queue 3");
        assert_eq!(wrong(Number::Alive(Pulse::GaveUp(Some(9))).encode(0, 0)), "it blames rank 9");
    }

    /// Many writes in many orders: each signal counts in its turn, and none before what came before it.
    #[test]
    fn signals_count_when_all_before_them_has_landed() {
        let mut state = 1u64;
        let mut draw = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % bound
        };
        let (mut sending, mut landing) = (Sending::default(), Landing::default());
        let (mut flying, mut landed, mut counted) = (Vec::new(), Vec::new(), Vec::new());
        let (mut sent, total) = (0usize, 200_000usize);
        while counted.len() < total / 3 {
            if draw(2) == 0
                && sent < total
                && let Some(place) = sending.place()
            {
                assert_eq!(place, sent as u16);
                flying.push((place, sent));
                landed.push(false);
                sending.posted();
                sent += 1;
            } else if !flying.is_empty() {
                let (place, index) = flying.swap_remove(draw(flying.len()));
                landed[index] = true;
                let before = counted.len();
                landing.land(place, index % 3 == 2, |place| counted.push(place)).unwrap();
                for (order, place) in counted.iter().enumerate().skip(before) {
                    let index = order * 3 + 2;
                    assert_eq!(*place, index as u16);
                    assert!(landed[index - 2..=index].iter().all(|landed| *landed));
                }
            }
            if let Some(owed) = landing.owed(sent == total) {
                landing.told(owed);
                sending.landed(owed).unwrap();
            }
        }
        while let Some((place, index)) = flying.pop() {
            landing.land(place, index % 3 == 2, |_| {}).unwrap();
        }
        assert!(landing.owed(true).is_none_or(|owed| sending.landed(owed).is_ok()));
        assert!(sending.is_quiet());
    }

    #[test]
    fn places_that_nobody_sent_are_refused() {
        let mut landing = Landing::default();
        landing.land(3, false, |_| {}).unwrap();
        let twice = landing.land(3, false, |_| {}).unwrap_err();
        assert_eq!(twice, "place 3 landed when 0 was next");
        let far = landing.land(WINDOW as u16, false, |_| {}).unwrap_err();
        assert_eq!(far, "place 1024 landed when 0 was next");
        assert!(landing.land(u16::MAX, false, |_| {}).is_err(), "long past");
        let mut sending = Sending::default();
        assert_eq!(sending.landed(1).unwrap_err(), "1 writes have landed of 0");
        (0..WINDOW).for_each(|_| sending.posted());
        assert_eq!(sending.place(), None);
    }
}
