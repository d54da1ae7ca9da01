//! The network inside the emulator: many schedules, every access checked, writes that overtake one another.

use std::sync::Arc;
use std::time::Duration;

use ep_runtime::error::CallError;
use ep_runtime::host::mutant::Mutant;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs, Spec};
use ep_runtime::net::{Layout, ModelNetwork, ModelOptions, NetError, Provider};

use crate::exchange::{Exchange, TEXT, count, for_cards};

/// Mistakes in `net.cuh`, and in `ibgda.cuh`.
const BUGS: &str = include_str!("bugs.txt");
const CARD_BUGS: &str = include_str!("card_bugs.txt");

/// A word that is put behind the rows says that they are there, not a signal: what nobody may rely on.
const TAIL_AS_A_PUT: [(&str, &str); 2] = [
    // A warp puts a word behind its rows, and signals nothing.
    (
        "queue.signal(to, kRows, team.leader() ? static_cast<ep::u32>(count) : 0);",
        "ep::u32* tail = reinterpret_cast<ep::u32*>(args.net->data + place(2, to, 0)) + team.index();
         if (team.leader()) *tail = static_cast<ep::u32>(round + 1);
         __syncwarp();
         queue.put(to, place(2, own, 0) + 4 * team.count() + 4 * team.index(),
                   place(2, to, 0) + 4 * team.index(), team.leader() ? 4 : 0);",
    ),
    (
        "if (!wait(kRows, from, (round + 1) * args.rows)) return;",
        "const ep::u32* tails =
             reinterpret_cast<const ep::u32*>(args.net->data + place(2, from, 0)) + team.count();
         const ep::u32* tail = team.lane < team.count() ? tails + team.lane : nullptr;
         const ep::Site site{kRows, ep::Waiting::kArrival, -1, from,
                             static_cast<ep::u32>(round + 1)};
         ep::wait_counter(team, site, tail);
         if (team.stopped) return;",
    ),
];

/// A small exchange over the model.
struct Modelled {
    exchange: Exchange,
    options: ModelOptions,
    build: Build,
    programs: Arc<Programs>,
    text: String,
    /// Whether kernels speak to the card of their rank.
    has_cards: bool,
}

impl Modelled {
    fn new() -> Modelled {
        let small = Exchange { ranks: 3, rows: 40, words: 20, rounds: 3, slots: 32, ..shape() };
        Modelled {
            exchange: small,
            options: ModelOptions::default(),
            build: Build::Checked,
            programs: Programs::find().expect("a C++ compiler"),
            text: TEXT.to_string(),
            has_cards: false,
        }
    }

    fn with_cards() -> Modelled {
        Modelled { text: for_cards(TEXT), has_cards: true, ..Modelled::new() }
    }

    fn edited(edits: &[(&str, &str)]) -> Modelled {
        let mut modelled = Modelled::new();
        for (from, to) in edits {
            assert!(modelled.text.contains(from), "{from}");
            modelled.text = modelled.text.replacen(from, to, 1);
        }
        modelled
    }

    /// The words that were wrong on all ranks, or what happened.
    fn run(&self, seed: u64) -> Result<i32, String> {
        let ranks = self.exchange.ranks;
        let options = HostOptions::new(ranks);
        let spec = Spec { seed, ..options.spec.clone() };
        let options = HostOptions { spec, build: self.build, ..options };
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let backend = HostBackend::new(&self.programs, options).map_err(|error| said(&error))?;
        let group = backend.group().map_err(|error| said(&error))?;
        let layout = Layout {
            ranks,
            // Room for words behind the rows, too.
            data_bytes: 2 * self.exchange.data_bytes(),
            queues: 2,
            slots: self.exchange.slots,
            counters: 2,
            ports: self.options.ports,
        };
        let network = match self.has_cards {
            true => ModelNetwork::of_cards(&backend, layout, &self.options),
            false => ModelNetwork::new(&backend, layout, &self.options),
        };
        let network = network.map_err(|error| said(&error))?;
        let run = || {
            let kernel = self.exchange.prepare(&group, &self.text)?;
            let start = |rank| self.exchange.start(&kernel, &group, rank, network.address(rank));
            let wrong = (0..ranks).map(start).collect::<Result<Vec<_>, _>>()?;
            (0..ranks).try_for_each(|rank| group.sync(rank))?;
            wrong.iter().map(count).sum()
        };
        let result: Result<i32, CallError> = run();
        // What the emulator saw says more than what the kernels recorded.
        let result = result.map_err(|error| backend.report().unwrap_or_else(|| said(&error)));
        if let Some(said) =
            result.as_ref().err().and_then(|report| report.strip_prefix("network: "))
        {
            let failure = network.failure().expect("the network has said so itself");
            assert!(matches!(failure, NetError::Entry { .. }), "{failure:?}");
            assert!(said.starts_with(&failure.to_string()), "{said}");
        }
        result
    }
}

fn shape() -> Exchange {
    Exchange::over(Provider::Tcp)
}

#[test]
fn rows_come_over_as_they_were_in_every_schedule_at_length() {
    for modelled in [Modelled::new(), Modelled::with_cards()] {
        let has_cards = modelled.has_cards;
        for seed in 1..=20 {
            assert_eq!(modelled.run(seed), Ok(0), "seed {seed}, cards: {has_cards}");
        }
        for words in [1, 3, 4, 7, 8] {
            let exchange = Exchange { words, ..modelled.exchange.clone() };
            let small =
                Modelled { exchange, text: modelled.text.clone(), has_cards, ..Modelled::new() };
            assert_eq!(small.run(1), Ok(0), "{words} words, cards: {has_cards}");
        }
        let slow = ModelOptions {
            latency: Duration::from_micros(300),
            bytes_per_us: 50,
            reorder: false,
            ..ModelOptions::default()
        };
        let modelled = Modelled { options: slow, build: Build::Plain, ..modelled };
        for seed in 1..=20 {
            assert_eq!(modelled.run(seed), Ok(0), "seed {seed}, in order, cards: {has_cards}");
        }
    }
}

/// Each queue pair has a port, to whose keys alone its entries have the right.
#[test]
fn rows_come_over_several_ports_as_they_were() {
    let options = ModelOptions { ports: 2, ..ModelOptions::default() };
    let modelled = Modelled { options, ..Modelled::with_cards() };
    assert_eq!((1..=2).map(|seed| modelled.run(seed)).collect::<Vec<_>>(), [Ok(0), Ok(0)]);
    let modelled = Modelled { has_cards: false, ..modelled };
    let text = "a network can have only 1 port of a rank without cards, not 2";
    assert_eq!(modelled.run(1), Err(text.to_string()), "descriptors go through one");
}

#[test]
fn a_word_behind_the_rows_says_nothing_of_them() {
    let modelled = Modelled::edited(&TAIL_AS_A_PUT);
    let found = modelled.run(1).expect_err("a race");
    assert!(found.starts_with("race: "), "{found}");
    assert!(found.contains("the network for queue 0 of rank"), "{found}");
    // Without the checker, some schedule shows it by rows that are not there yet; where nothing is
    // overtaken, none does.
    let fast = Modelled { build: Build::Plain, ..modelled };
    assert!((1..=20).any(|seed| fast.run(seed) != Ok(0)));
    let in_order = ModelOptions { reorder: false, ..ModelOptions::default() };
    let fast = Modelled { options: in_order, ..fast };
    assert!((1..=20).all(|seed| fast.run(seed) == Ok(0)));
}

#[test]
fn a_dead_link_is_a_wait_that_names_both_ends() {
    let options = ModelOptions { dead_links: vec![(0, 2)], ..ModelOptions::default() };
    let modelled = Modelled { options, ..Modelled::new() };
    let found = modelled.run(1).expect_err("rank 2 gets nothing of rank 0");
    assert!(found.starts_with("deadlock: "), "{found}");
    assert!(
        found.contains("rank 2: Exchange role 0 waits for rank 0: a row in the ring"),
        "{found}"
    );
}

/// Failed entries are no progress.
const FAILURE_AS_PROGRESS: &str = "
== an entry that failed looks like one that was carried out
in ep/ibgda.cuh
-         if (kind != kCarriedOut) return near - 1;
";

/// A card that gives up says so, and whoever waits for it does not go on.
#[test]
fn what_a_card_gives_up_is_not_done() {
    let options = ModelOptions { dead_links: vec![(0, 2)], ..ModelOptions::default() };
    let modelled = Modelled { options, ..Modelled::with_cards() };
    // Others wait for room in the queue before that.
    let seed = 3;
    let found = modelled.run(seed).expect_err("rank 2 gets nothing of rank 0");
    assert!(found.starts_with("deadlock: "), "{found}");
    let waits = "rank 0: Exchange role 0 waits for rank 2: the network to read what it sends";
    assert!(found.contains(waits), "{found}");
    let waits_there = "rank 2: Exchange role 0 waits for rank 0: a row in the ring";
    assert!(found.contains(waits_there), "{found}");
    let bugs = Mutant::parse(FAILURE_AS_PROGRESS).expect("a bug");
    let planted = Modelled { programs: modelled.programs.planted(&bugs[0]), ..modelled };
    let found = planted.run(seed).expect_err("rank 2 gets nothing of rank 0");
    assert!(!found.contains(waits), "{found}");
}

/// Bugs of the library are found by the checker, by wrong rows or by a deadlock, in some of a few schedules.
fn all_are_found(list: &str, modelled: fn() -> Modelled) {
    let bugs = Mutant::parse(list).expect("the file of bugs");
    assert!(bugs.len() >= 10);
    let is_missed = |bug: &&Mutant| {
        let planted = Modelled { programs: modelled().programs.planted(bug), ..modelled() };
        // Rows that stand in an entry, too.
        let small =
            Modelled { exchange: Exchange { words: 7, ..planted.exchange.clone() }, ..modelled() };
        let small = Modelled { programs: Arc::clone(&planted.programs), ..small };
        (1..=12).all(|seed| planted.run(seed) == Ok(0) && small.run(seed) == Ok(0))
    };
    let missed: Vec<&str> = bugs.iter().filter(is_missed).map(|bug| bug.name.as_str()).collect();
    assert!(missed.is_empty(), "nothing finds {missed:?}");
}

#[test]
fn planted_bugs_of_queues_are_found() {
    all_are_found(BUGS, Modelled::new);
}

#[test]
fn planted_bugs_of_queue_pairs_are_found_at_length() {
    all_are_found(CARD_BUGS, Modelled::with_cards);
}
