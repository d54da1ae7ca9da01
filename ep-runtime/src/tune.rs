//! How many SMs a call takes, and how a direct dispatch splits them between rows that leave the rank and
//! rows that stay. Both follow in closed form from four rates of the machine, which are measured once.
//!
//! Rows for other ranks get as many SMs as saturate the link. Meanwhile, other SMs copy the rows that stay:
//! as many as finish when the link does. If there are fewer SMs than both need together, every SM serves
//! every rank, including its own: stores within the device then overlap with those that leave it.

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
    /// What one SM copies within its device.
    pub copy: u32,
    /// What one SM stores to other ranks while the link is far from saturated.
    pub push: u32,
    /// What one SM stores to all ranks including its own, the same amount to each.
    pub both: u32,
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

/// SMs that are asked for their own rates: few enough not to fill a link.
const ASKED_BLOCKS: u32 = 4;

/// What is left of the link where those who fill it copy the rank's own rows as well: 330 of
/// 347 GB/s on four H200.
const LINK_BETWEEN_COPIES: f64 = 0.95;

/// What is left of the rates of plain stores and copies for rows that come with records and are
/// counted, where those of all ranks are unpacked meanwhile. On four H200 8 SMs would fill
/// the link, and take 480 us where 9 or more take 473; with FP8 rows 270 and 265.
const PUSHES_OF_ROWS: f64 = 0.85;
const COPIES_OF_ROWS: f64 = 0.75;

impl Rates {
    /// Rates of four H200 on NVSwitch, which a buffer assumes by default.
    pub const H200: Rates = Rates { copy: 49_000, push: 43_900, both: 49_300, link: 347_000 };

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
        Key::of(["rates of multiprocessors and links, 2", &machine, &name, &ranks, &share])
    }

    /// Measures the rates; none for a single rank, and where nothing can be timed.
    fn measure(group: &Group) -> Result<Option<Rates>, CallError> {
        let each = |rate: Option<f64>| rate.map(|rate| rate / f64::from(ASKED_BLOCKS));
        let megabytes = |rate: f64| (rate / 1e6).round().clamp(1.0, f64::from(u32::MAX)) as u32;
        let Some((time, _)) = wire_time(group, ASKED_BYTES)? else { return Ok(None) };
        let of = |destination| push_rate(group, destination, ASKED_BYTES, ASKED_BLOCKS).map(each);
        let rates = [of(Destination::Own)?, of(Destination::Others)?, of(Destination::All)?];
        let [Some(copy), Some(push), Some(both)] = rates.map(|rate| rate.map(megabytes)) else {
            return Ok(None);
        };
        let link = megabytes(ASKED_BYTES as f64 / time.as_secs_f64());
        Ok(Some(Rates { copy, push, both, link }))
    }

    fn to_bytes(self) -> Vec<u8> {
        let words = [self.copy, self.push, self.both, self.link];
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Rates> {
        let words: Option<Vec<u32>> =
            bytes.chunks(4).map(|word| word.try_into().ok().map(u32::from_le_bytes)).collect();
        match words?[..] {
            [copy, push, both, link] if [copy, push, both, link].iter().all(|rate| *rate > 0) => {
                Some(Rates { copy, push, both, link })
            }
            _ => None,
        }
    }

    /// What one SM copies of rows.
    fn copy_rows(&self) -> f64 {
        f64::from(self.copy) * COPIES_OF_ROWS
    }

    /// What one SM sends of rows.
    fn push_rows(&self) -> f64 {
        f64::from(self.push) * PUSHES_OF_ROWS
    }

    /// The shortest time in which a rank can send this many bytes.
    pub fn wire(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / (f64::from(self.link.max(1)) * 1e6))
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [copy, push, both, link] =
            [self.copy, self.push, self.both, self.link].map(|rate| f64::from(rate) / 1e3);
        write!(
            f,
            "an SM copies {copy:.1} GB/s, sends {push:.1} GB/s and does both at {both:.1} GB/s, a \
             rank sends {link:.1} GB/s"
        )
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
    /// All SMs of the call.
    pub sms: u32,
    /// SMs that send to other ranks. If all of them do, they serve their own rank as well.
    pub remote: u32,
    /// Time of the slower side, without the fixed cost of a call.
    pub seconds: f64,
}

impl Tuning {
    /// The fewest SMs that saturate the link.
    pub fn choose(rates: &Rates, traffic: &Traffic) -> Tuning {
        let (remote, own) = wanted(rates, traffic);
        Tuning::of(rates, traffic, remote, own)
    }

    /// The best use of `sms` SMs.
    pub fn split(rates: &Rates, traffic: &Traffic, sms: u32) -> Tuning {
        let sms = sms.max(2);
        let (apart, together) =
            (Tuning::apart(rates, traffic, sms), Tuning::together(rates, traffic, sms));
        if together.seconds < apart.seconds { together } else { apart }
    }

    /// All of them serve every rank.
    fn together(rates: &Rates, traffic: &Traffic, sms: u32) -> Tuning {
        let storing =
            (traffic.remote + traffic.own) / (f64::from(rates.both) * f64::from(sms) * 1e6);
        let sending = traffic.remote / (f64::from(rates.link) * LINK_BETWEEN_COPIES * 1e6);
        Tuning { sms, remote: sms, seconds: storing.max(sending) }
    }

    /// Some send and the others copy; at least one on each side.
    fn apart(rates: &Rates, traffic: &Traffic, sms: u32) -> Tuning {
        let (most, own) = wanted(rates, traffic);
        if sms >= most + own {
            return Tuning::of(rates, traffic, most, sms - most);
        }
        let (sending, copying) =
            (traffic.remote / rates.push_rows(), traffic.own / rates.copy_rows());
        let share = f64::from(sms) * sending / (sending + copying).max(f64::MIN_POSITIVE);
        let within = |remote: f64| (remote as u32).clamp(1, most.min(sms - 1));
        let [low, high] = [within(share.floor()), within(share.ceil())]
            .map(|remote| Tuning::of(rates, traffic, remote, sms - remote));
        if low.seconds < high.seconds { low } else { high }
    }

    fn of(rates: &Rates, traffic: &Traffic, remote: u32, own: u32) -> Tuning {
        let all = |rate: f64, count: u32| rate * f64::from(count) * 1e6;
        let link = f64::from(rates.link) * 1e6;
        let sending = traffic.remote / all(rates.push_rows(), remote).min(link);
        let copying = traffic.own / all(rates.copy_rows(), own);
        Tuning { sms: remote + own, remote, seconds: sending.max(copying) }
    }
}

/// What a dispatch costs besides its rows, on two H200 in a graph: as two launches, of which one counts, and
/// as one launch, where every block counts all tokens.
const TWO_LAUNCHES: f64 = 17.5e-6;
const ONE_LAUNCH: f64 = 6.5e-6;
const ONE_LAUNCH_TOKEN: f64 = 14e-9;

/// Whether a dispatch of up to `tokens` tokens takes less time as one kernel, which counts and sends, than
/// as two. The single kernel gives every SM rows for all ranks.
pub fn is_faster_in_one_launch(rates: &Rates, traffic: &Traffic, tokens: u64) -> bool {
    let sms = Tuning::choose(rates, traffic).sms;
    let one = ONE_LAUNCH + ONE_LAUNCH_TOKEN * tokens as f64;
    let rows_of_one = Tuning::together(rates, traffic, sms).seconds;
    one + rows_of_one < TWO_LAUNCHES + Tuning::split(rates, traffic, sms).seconds
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
    let rows = traffic.remote / (f64::from(rates.link) * LINK_BETWEEN_COPIES * 1e6);
    PUSHED_BACK + rows / PUSHED_BACK_RATE < PULLED_BACK + rows
}

/// How many SMs fill the link, and how many copy a rank's own rows meanwhile.
fn wanted(rates: &Rates, traffic: &Traffic) -> (u32, u32) {
    let count = |count: f64| count.ceil().max(1.0) as u32;
    let link = f64::from(rates.link);
    // A rank with more rows for itself than for others copies them no faster than a link would.
    let limit = traffic.remote.max(traffic.own).max(f64::MIN_POSITIVE);
    let remote = if traffic.remote > 0.0 { count(link / rates.push_rows()) } else { 1 };
    (remote, count(traffic.own / limit * link / rates.copy_rows()))
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

    /// On four H200 9 SMs for other ranks and at least 4 for the own rows reach the wire.
    #[test]
    fn four_gpus_reach_the_wire_with_fourteen() {
        let tuning = Tuning::choose(&Rates::H200, &target(4));
        assert_eq!((tuning.sms, tuning.remote), (14, 10));
        assert!((450..=470).contains(&micros(&tuning)), "{tuning:?}");
        for sms in [14, 15, 16, 24, 132] {
            let split = Tuning::split(&Rates::H200, &target(4), sms);
            assert_eq!((split.sms, split.remote), (sms, 10));
            assert_eq!(split.seconds, tuning.seconds, "more than the wire there is not");
        }
        // With 2 for the own rows it was 820 us.
        let starved = Tuning::of(&Rates::H200, &target(4), 8, 2);
        assert!((700..=840).contains(&micros(&starved)), "{starved:?}");
    }

    /// Set apart they would take 720 us, together they take what was measured: 296 GB/s over the wire.
    #[test]
    fn eight_in_all_serve_every_rank() {
        let split = Tuning::split(&Rates::H200, &target(4), 8);
        assert_eq!((split.sms, split.remote), (8, 8));
        assert!((530..=545).contains(&micros(&split)), "{split:?}");
        let apart = Tuning::apart(&Rates::H200, &target(4), 8);
        assert_eq!((apart.sms, apart.remote), (8, 6));
        assert!(micros(&apart) > 700, "{apart:?}");
        let worse =
            [4, 5, 7].map(|remote| Tuning::of(&Rates::H200, &target(4), remote, 8 - remote));
        assert!(worse.iter().all(|other| other.seconds > apart.seconds), "{apart:?} {worse:?}");
        // A few bytes are shared as many are.
        let few = Traffic::even(2, 5, 2, 1, 16);
        assert_eq!(Tuning::split(&Rates::H200, &few, 8).remote, 8);
        // With 10 of them the wire is the limit, shared with copies.
        assert!(micros(&Tuning::together(&Rates::H200, &target(4), 10)) < 490);
    }

    /// Half of the rows stay: they want as many SMs as those that leave. With 16 it was
    /// 187 us together, and 198 us set apart.
    #[test]
    fn two_gpus_copy_as_much_as_they_send() {
        let tuning = Tuning::choose(&Rates::H200, &target(2));
        assert_eq!((tuning.sms, tuning.remote), (20, 10));
        assert!((165..=175).contains(&micros(&tuning)), "{tuning:?}");
        let split = Tuning::split(&Rates::H200, &target(2), 16);
        assert_eq!((split.sms, split.remote), (16, 16));
        assert!((175..=185).contains(&micros(&split)), "{split:?}");
        let apart = Tuning::apart(&Rates::H200, &target(2), 16);
        assert_eq!((apart.sms, apart.remote), (16, 8));
        assert!((195..=205).contains(&micros(&apart)), "{apart:?}");
    }

    /// Measured on two H200: 22.8 and 29.5 us for 512 tokens of FP8, 12.0 and 21.1 for 128.
    #[test]
    fn few_tokens_are_faster_in_one_launch() {
        for (ranks, row) in [(2, 7424), (2, 14336), (4, 7424), (4, 14336)] {
            let faster = |tokens: i64| {
                let traffic = Traffic::even(ranks, 288, 8, tokens, row);
                is_faster_in_one_launch(&Rates::H200, &traffic, tokens as u64)
            };
            assert!(faster(1) && faster(128) && faster(512), "{ranks} ranks");
            assert!(!faster(1024), "{ranks} ranks");
        }
        // Where rows that stay are slow beside those that leave, they are sent apart sooner.
        let slow = Rates { both: 4_000, ..Rates::H200 };
        let traffic = Traffic::even(2, 288, 8, 512, 14336);
        assert!(!is_faster_in_one_launch(&slow, &traffic, 512));
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
        let alone = Tuning::choose(&Rates::H200, &target(1));
        assert_eq!((alone.remote, alone.sms), (1, 11));
        let nothing = Traffic { remote: 0.0, own: 0.0 };
        for traffic in [target(1), target(64), nothing, Traffic { remote: 1.0, own: 0.0 }] {
            for sms in [0, 1, 2, 3, 8, 500] {
                let split = Tuning::split(&Rates::H200, &traffic, sms);
                assert!((1..=split.sms).contains(&split.remote), "{traffic:?} {split:?}");
            }
        }
    }

    #[test]
    fn a_machine_is_asked_once() {
        let rates = Rates { copy: 1, push: 2, both: 3, link: 300_000 };
        assert_eq!(Rates::from_bytes(&rates.to_bytes()), Some(rates));
        assert_eq!(Rates::from_bytes(&[0; 16]), None);
        assert_eq!(Rates::from_bytes(&[1; 12]), None);
        assert_eq!(Rates::from_bytes(&[1; 17]), None);
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
