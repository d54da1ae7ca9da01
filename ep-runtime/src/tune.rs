//! How many SMs a call takes: as many as fill the link with the rows for other ranks while they also store
//! the rows that stay. The number follows in closed form from two rates of the machine, which are
//! measured once.

mod pushes;

use std::fmt;
use std::time::Duration;

use crate::doctor;
use crate::error::CallError;
use crate::group::Group;
use crate::jit::{Cache, Entry, Key};

pub use pushes::{Destination, PUSH_TEXT, Pushes, push_rate, wire_time};

/// Rates of a machine, in megabytes (10^6) a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// What one SM stores to all ranks including its own, the same amount to each.
    pub store: u32,
    /// What a rank sends to all others together, at most.
    pub link: u32,
}

/// Where rates come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RatesSource {
    /// Measured just now.
    Measured,
    /// Measured before on this machine.
    Cached,
    /// The constants of [`Rates::H200`], because nothing can be measured here.
    Assumed,
}

impl RatesSource {
    /// `measured`, `cached` or `assumed`.
    pub fn name(self) -> &'static str {
        match self {
            RatesSource::Measured => "measured",
            RatesSource::Cached => "cached",
            RatesSource::Assumed => "assumed",
        }
    }
}

/// Bytes pushed by each rank to ask for its rates: milliseconds for all of it.
const ASKED_BYTES: u64 = 128 << 20;

/// SMs that are asked what one of them stores: few enough not to fill a link.
const ASKED_BLOCKS: u32 = 4;

/// Share of the link's rate that a rank reaches while it also stores its own rows: 330 of 347 GB/s on
/// four H200.
const LINK_SHARE: f64 = 0.95;

/// Share of the rate of plain stores that rows with records reach.
const STORE_SHARE: f64 = 0.85;

impl Rates {
    /// Rates of four H200 on NVSwitch, which a buffer assumes by default.
    pub const H200: Rates = Rates { store: 49_300, link: 347_000 };

    /// The rates of the group's machine: from the cache if all processes of the group have them there,
    /// measured otherwise. All processes of the group must make this call.
    pub fn of(group: &Group, cache: &Cache) -> Result<(Rates, RatesSource), CallError> {
        let backend = group.backend();
        let key = Rates::key(group);
        let known = cache.fetch(&key, || Err(())).ok();
        let known = known.and_then(|fetched| Rates::from_bytes(&fetched.entry.binary));
        let all = backend.gather("look for known rates", u64::from(known.is_some()))?;
        if let Some(rates) = known.filter(|_| all.iter().all(|has| *has == 1)) {
            return Ok((rates, RatesSource::Cached));
        }
        let Some(rates) = Rates::measure(group)? else {
            return Ok((Rates::H200, RatesSource::Assumed));
        };
        let entry = Entry {
            name: "rates".to_owned(),
            target: backend.name(),
            tool: "a plain push".to_owned(),
            log: rates.to_string(),
            binary: rates.to_bytes(),
        };
        // Without a place to keep them they are measured again the next time.
        let _ = cache.fetch(&key, || Ok::<Entry, ()>(entry));
        Ok((rates, RatesSource::Measured))
    }

    /// Where the rates of this machine are kept: driver, devices and how they reach each other, and
    /// what a rank has of its device, since ranks that share one have no link between them.
    fn key(group: &Group) -> Key {
        let (ranks, name) = (group.ranks().to_string(), group.backend().name());
        let share = group.backend().sms(group.local().start).to_string();
        let machine = doctor::machine();
        Key::of(["rates of multiprocessors and links, 3", &machine, &name, &ranks, &share])
    }

    /// Measures the rates; none for a single rank, and where nothing can be timed.
    fn measure(group: &Group) -> Result<Option<Rates>, CallError> {
        let Some((time, _)) = wire_time(group, ASKED_BYTES)? else { return Ok(None) };
        let stored = push_rate(group, Destination::All, ASKED_BYTES, ASKED_BLOCKS)?;
        let Some(stored) = stored else { return Ok(None) };
        let megabytes = |rate: f64| (rate / 1e6).round().clamp(1.0, f64::from(u32::MAX)) as u32;
        let store = megabytes(stored / f64::from(ASKED_BLOCKS));
        let link = megabytes(ASKED_BYTES as f64 / time.as_secs_f64());
        Ok(Some(Rates { store, link }))
    }

    fn to_bytes(self) -> Vec<u8> {
        [self.store, self.link].into_iter().flat_map(u32::to_le_bytes).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Rates> {
        let words: Option<Vec<u32>> =
            bytes.chunks(4).map(|word| word.try_into().ok().map(u32::from_le_bytes)).collect();
        match words?[..] {
            [store, link] if store > 0 && link > 0 => Some(Rates { store, link }),
            _ => None,
        }
    }

    /// The shortest time in which a rank can send this many bytes.
    pub fn wire(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / (f64::from(self.link.max(1)) * 1e6))
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [store, link] = [self.store, self.link].map(|rate| f64::from(rate) / 1e3);
        write!(f, "an SM stores {store:.1} GB/s, a rank sends {link:.1} GB/s")
    }
}

/// Bytes that one rank moves in a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    /// To other ranks.
    pub remote: f64,
    /// To the rank itself.
    pub own: f64,
}

impl Traffic {
    /// `tokens` tokens of `row_bytes` bytes. Each goes to `topk` different, random ones of `experts`
    /// experts, which are spread evenly over `ranks` ranks.
    pub fn even(ranks: i64, experts: i64, topk: i64, tokens: i64, row_bytes: i64) -> Traffic {
        let ranks = ranks.max(1);
        let all = mean_groups(ranks, experts, topk) * tokens as f64 * row_bytes as f64;
        let own = all / ranks as f64;
        Traffic { remote: all - own, own }
    }
}

/// How many SMs a call takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// SMs of the call.
    pub sms: u32,
    /// Time in which they move the rows, without the fixed cost of a call.
    pub seconds: f64,
}

impl Tuning {
    /// The fewest SMs that fill the link.
    pub fn choose(rates: &Rates, traffic: &Traffic) -> Tuning {
        let stored = traffic.remote + traffic.own;
        // A rank with more rows for itself than for others stores them no faster than a link would.
        let limit = traffic.remote.max(traffic.own).max(f64::MIN_POSITIVE);
        let per_sm = f64::from(rates.store) * STORE_SHARE;
        let sms = stored / limit * f64::from(rates.link) / per_sm;
        Tuning::of(rates, traffic, sms.ceil() as u32)
    }

    /// The time of `sms` SMs; 0 counts as 1.
    pub fn of(rates: &Rates, traffic: &Traffic, sms: u32) -> Tuning {
        let sms = sms.max(1);
        let stored = traffic.remote + traffic.own;
        let storing = stored / (f64::from(rates.store) * f64::from(sms) * 1e6);
        Tuning { sms, seconds: storing.max(sending(rates, traffic)) }
    }
}

/// Seconds in which the link carries the rows for other ranks.
fn sending(rates: &Rates, traffic: &Traffic) -> f64 {
    traffic.remote / (f64::from(rates.link) * LINK_SHARE * 1e6)
}

/// What a dispatch costs besides its rows, on two H200 in a graph: as two launches, of which one counts, and
/// as one launch, where every block counts all tokens.
const TWO_LAUNCHES: f64 = 17.5e-6;
const ONE_LAUNCH: f64 = 6.5e-6;
const ONE_LAUNCH_TOKEN: f64 = 14e-9;

/// Whether a dispatch of up to `tokens` tokens takes less time as one kernel, which counts and sends, than
/// as two. Rows take equally long in both.
pub fn is_faster_in_one_launch(tokens: u64) -> bool {
    ONE_LAUNCH + ONE_LAUNCH_TOKEN * (tokens as f64) < TWO_LAUNCHES
}

/// What a combine costs besides its rows, on two H200 in a graph: where they are stored to their tokens, and
/// where they are fetched. Stored, they go at a part of the link's rate, since each is read twice.
const PUSHED_BACK: f64 = 6.7e-6;
const PULLED_BACK: f64 = 10.4e-6;
const PUSHED_BACK_RATE: f64 = 0.6;

/// Default SMs of a combine that pushes rows; with 16 SMs, 128 tokens take 20.3 us.
pub const PUSHED_BACK_SMS: u32 = 24;

/// Whether a combine takes less time if it pushes rows to the ranks of their tokens than if those ranks
/// pull them.
pub fn is_faster_pushed_back(rates: &Rates, traffic: &Traffic) -> bool {
    let rows = sending(rates, traffic);
    PUSHED_BACK + rows / PUSHED_BACK_RATE < PULLED_BACK + rows
}

/// How many of `groups` equal groups contain one of `topk` different experts, on average over all choices
/// of experts. The first `experts % groups` groups contain one more expert.
pub fn mean_groups(groups: i64, experts: i64, topk: i64) -> f64 {
    let larger = experts % groups;
    let hit = |own: i64| {
        let missed = (0..topk.min(experts)).map(|drawn| {
            let left = (experts - own - drawn).max(0) as f64;
            left / (experts - drawn) as f64
        });
        1.0 - missed.product::<f64>()
    };
    let small = experts / groups;
    larger as f64 * hit(small + 1) + (groups - larger) as f64 * hit(small)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::fake::FakeBackend;
    use crate::group::GroupOptions;

    /// 4096 tokens of 7168 bf16 values, top-8 of 256.
    fn target(ranks: i64) -> Traffic {
        Traffic::even(ranks, 256, 8, 4096, 14336)
    }

    fn micros(tuning: &Tuning) -> u64 {
        (tuning.seconds * 1e6) as u64
    }

    #[test]
    fn the_mean_is_exact_where_it_is_known() {
        assert_eq!(mean_groups(1, 8, 2), 1.0);
        assert_eq!(mean_groups(4, 4, 4), 4.0);
        assert_eq!(mean_groups(4, 4, 1), 1.0);
        // Two of three experts on two ranks, {a, b} and {c}: ab meets one rank, ac and bc two.
        assert!((mean_groups(2, 3, 2) - 5.0 / 3.0).abs() < 1e-12);
        // More choices than experts meet every rank that has one.
        assert_eq!(mean_groups(4, 2, 8), 2.0);
    }

    #[test]
    fn the_published_shape_gives_the_published_bytes() {
        let megabytes = target(4).remote / 1e6;
        assert!((megabytes - 159.0).abs() < 1.0, "{megabytes}");
    }

    /// Four ranks store a third more rows than they send, two ranks twice as many.
    #[test]
    fn the_fewest_that_fill_the_link_are_chosen() {
        for (ranks, sms, time) in [(4, 12, 475..=485), (2, 17, 175..=185)] {
            let tuning = Tuning::choose(&Rates::H200, &target(ranks));
            assert_eq!(tuning.sms, sms);
            assert!(time.contains(&micros(&tuning)), "{tuning:?}");
            let all = Tuning::of(&Rates::H200, &target(ranks), 132);
            assert_eq!(all.seconds, tuning.seconds, "more than the link there is not");
        }
    }

    /// Measured on four H200: 8 SMs take 537 us, 296 GB/s over the link.
    #[test]
    fn few_sms_are_as_slow_as_their_stores() {
        let few = Tuning::of(&Rates::H200, &target(4), 8);
        assert!((530..=545).contains(&micros(&few)), "{few:?}");
    }

    /// Measured on two H200: 22.8 and 29.5 us for 512 tokens of FP8, 12.0 and 21.1 for 128.
    #[test]
    fn few_tokens_are_faster_in_one_launch() {
        assert!([1, 128, 512].into_iter().all(is_faster_in_one_launch));
        assert!(!is_faster_in_one_launch(1024));
    }

    /// Measured on two H200 with 24 SMs: stored 15.4 and 22.6 us for 128 and 160 tokens, fetched 16.9 and 17.5.
    #[test]
    fn few_rows_are_faster_pushed_back() {
        for ranks in [2, 4, 8] {
            let faster = |tokens: i64| {
                is_faster_pushed_back(&Rates::H200, &Traffic::even(ranks, 288, 8, tokens, 14336))
            };
            assert!(faster(1) && !faster(512), "{ranks} ranks");
        }
        let of_two = |tokens: i64| {
            is_faster_pushed_back(&Rates::H200, &Traffic::even(2, 288, 8, tokens, 14336))
        };
        assert!(of_two(128) && !of_two(160));
    }

    #[test]
    fn one_rank_and_odd_numbers_get_an_answer() {
        assert_eq!(Tuning::choose(&Rates::H200, &target(1)).sms, 9, "as fast as a link would");
        let (nothing, own) = (Traffic { remote: 0.0, own: 0.0 }, Traffic { remote: 1.0, own: 1e9 });
        assert_eq!(Tuning::choose(&Rates::H200, &nothing), Tuning { sms: 1, seconds: 0.0 });
        assert_eq!(Tuning::choose(&Rates::H200, &own).sms, 9, "as fast as a link would");
        assert_eq!(Tuning::of(&Rates::H200, &target(2), 0).sms, 1);
    }

    #[test]
    fn a_machine_is_asked_once() {
        let rates = Rates { store: 3, link: 300_000 };
        assert_eq!(Rates::from_bytes(&rates.to_bytes()), Some(rates));
        assert_eq!(Rates::from_bytes(&[0; 8]), None);
        assert_eq!(Rates::from_bytes(&[1; 4]), None);
        assert_eq!(Rates::from_bytes(&[1; 9]), None);
        let fake = FakeBackend::new(2);
        let group = Group::new(fake.clone(), GroupOptions::default()).unwrap();
        let folder = std::env::temp_dir().join(format!("ep-rates-{}", std::process::id()));
        let cache = Cache::open(&folder).unwrap();
        let asked = Rates::of(&group, &cache).unwrap();
        assert_eq!(asked, (Rates::H200, RatesSource::Assumed), "memory has no clock");
        let entry = Entry {
            name: "rates".to_owned(),
            target: String::new(),
            tool: String::new(),
            log: String::new(),
            binary: rates.to_bytes(),
        };
        cache.fetch(&Rates::key(&group), || Ok::<Entry, ()>(entry)).unwrap();
        assert_eq!(Rates::of(&group, &cache).unwrap(), (rates, RatesSource::Cached));
        // Ranks that share a device have other rates, and so has another number of ranks.
        fake.sms.store(66, Ordering::Relaxed);
        assert_eq!(Rates::of(&group, &cache).unwrap().1, RatesSource::Assumed);
        let group = Group::new(FakeBackend::new(3), GroupOptions::default()).unwrap();
        assert_eq!(Rates::of(&group, &cache).unwrap().1, RatesSource::Assumed);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
