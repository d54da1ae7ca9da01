//! The card kernel in the emulator: what it decodes, and what it leaves.

use std::sync::Arc;

use super::super::mlx5::{
    BLOCK_BYTES, Block as EntryBlock, Entry, Heard, Source, Syndrome, Work, completion, recorded,
};
use super::super::pairs::{End, Region};
use super::tables::{FAULT_BYTES, Played, Words};
use super::*;
use crate::backend::{Block, Code, KernelLaunch, Stream};
use crate::fake::FakeBackend;
use crate::group::GroupOptions;
use crate::host::{Build, HostBackend, HostOptions, Programs, Spec};

const DECODE_TEXT: &str = include_str!("decode.cu");
const AWAIT_TEXT: &str = include_str!("await.cu");

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mix = self.0;
        mix = (mix ^ mix >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mix = (mix ^ mix >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mix ^ mix >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound.max(1)
    }

    fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

fn backend(ranks: usize, build: Build, seed: u64) -> Arc<HostBackend> {
    let programs = Programs::find().expect("a C++ compiler");
    let options = HostOptions::new(ranks);
    let spec = Spec { seed, ..options.spec.clone() };
    HostBackend::new(&programs, HostOptions { spec, build, ..options }).unwrap()
}

/// The words of an entry, as a kernel writes them.
fn words(what: u32, pair: u32, number: u32, units: u32, rest: [u32; 12]) -> EntryBlock {
    let head = [what | (number & 0xffff) << 8, pair << 8 | units, 8, 0];
    let mut block = [0; BLOCK_BYTES];
    let bytes = head.into_iter().chain(rest).flat_map(u32::to_be_bytes);
    block.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    block
}

fn halves(address: u64) -> [u32; 2] {
    [(address >> 32) as u32, address as u32]
}

fn write(pair: u32, number: u32, to: (u64, u32), from: (u64, u32), bytes: u32) -> EntryBlock {
    let ([a, b], [c, d]) = (halves(to.0), halves(from.0));
    words(0x08, pair, number, 3, [a, b, to.1, 0, bytes, from.1, c, d, 0, 0, 0, 0])
}

fn inline(pair: u32, number: u32, to: (u64, u32), held: &[u8]) -> EntryBlock {
    let [a, b] = halves(to.0);
    let mut rest = [0; 12];
    rest[..5].copy_from_slice(&[a, b, to.1, 0, 1 << 31 | held.len() as u32]);
    let units = 2 + (4 + held.len() as u32).div_ceil(16);
    let mut block = words(0x08, pair, number, units, rest);
    block[36..36 + held.len()].copy_from_slice(held);
    block
}

fn add(pair: u32, number: u32, to: (u64, u32), before: (u64, u32), count: u32) -> EntryBlock {
    let ([a, b], [c, d]) = (halves(to.0), halves(before.0));
    words(0x0800_0015, pair, number, 4, [a, b, to.1, 0, count, 0, 0, 0, 4, before.1, c, d])
}

/// A queue pair of a rank, and addresses that its entries may name.
#[derive(Clone, Copy)]
struct Side {
    layout: PairLayout,
    end: End,
    own: u64,
    theirs: u64,
}

impl Side {
    fn number(&self) -> u32 {
        self.layout.number(self.end.peer, self.end.queue)
    }

    fn key(&self, rank: usize, region: Region) -> u32 {
        self.layout.key(rank, self.layout.port(self.end), region)
    }

    /// Some place of a region, mostly inside; now and then around its ends, or with another key.
    fn place(&self, random: &mut Random, is_own: bool, counters: bool, bytes: u64) -> (u64, u32) {
        let region = if counters { Region::Counters } else { Region::Data };
        let (base, rank) =
            if is_own { (self.own, self.end.rank) } else { (self.theirs, self.end.peer) };
        let (low, high) = self.layout.range(region);
        let at = match random.chance(12) {
            true => high.saturating_sub(bytes) - 4 + random.below(8),
            false => low + random.below((high - low).saturating_sub(bytes)),
        };
        let at = if counters && !random.chance(20) { at & !3 } else { at };
        let odd = u32::from(random.chance(40));
        (base.wrapping_add(at), self.key(rank, region) ^ odd)
    }

    fn entry(&self, random: &mut Random, number: u32) -> EntryBlock {
        let pair = self.number();
        let mut block = match random.below(3) {
            0 => {
                let bytes = random.below(200);
                let to = self.place(random, false, false, bytes);
                write(pair, number, to, self.place(random, true, false, bytes), bytes as u32)
            }
            1 => {
                let held: Vec<u8> = (0..random.below(29)).map(|_| random.word() as u8).collect();
                inline(pair, number, self.place(random, false, false, held.len() as u64), &held)
            }
            _ => {
                let to = self.place(random, false, true, 4);
                add(pair, number, to, self.place(random, true, true, 4), random.word() as u32)
            }
        };
        if random.chance(3) {
            let at = random.below(BLOCK_BYTES as u64) as usize;
            block[at] ^= 1 << random.below(8);
        }
        if random.chance(8) {
            block[11] ^= 8;
        }
        block
    }
}

/// What the model of a card makes of an entry, in the words of the kernel.
fn modelled(side: &Side, block: &EntryBlock, number: u32) -> [u32; 10] {
    let failed = |syndrome: Syndrome| [syndrome as u32, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let Ok(entry) = Entry::read(block, side.number(), number) else {
        return failed(Syndrome::Operation);
    };
    if let Err((syndrome, _)) = side.layout.check(side.end, [side.own, side.theirs], &entry) {
        return failed(syndrome);
    }
    let (kind, to, from, count) = match &entry.work {
        Work::Write { to, source: Source::Memory(from) } => (1, to, Some(from), to.bytes),
        Work::Write { to, source: Source::Inline(_) } => (2, to, None, to.bytes),
        Work::Add { to, number, before } => (3, to, Some(before), *number),
    };
    let (from, key) = from.map_or((0, 0), |from| (from.address, from.key));
    let ([to_high, to_low], [high, low]) = (halves(to.address), halves(from));
    [0, kind, to_low, to_high, to.key, low, high, key, count, u32::from(entry.says_done)]
}

/// A doorbell, a record and the next entry to read: mostly those of a kernel that goes on.
fn told(random: &mut Random, side: &Side, next: &mut u32, read: &mut u32) -> (u64, u32, u32) {
    let slots = side.layout.0.slots as u64;
    *next = next.wrapping_add(random.below(slots / 3) as u32);
    if random.chance(2) {
        *read = *next;
    }
    let rung = match random.below(10) {
        0 => next.wrapping_sub(random.below(9) as u32),
        1 => next.wrapping_add(random.below(3 * slots) as u32),
        _ => *next,
    };
    let record = match random.below(10) {
        0 => rung.wrapping_sub(random.below(5) as u32),
        1 => rung.wrapping_add(random.below(9) as u32),
        _ => rung,
    };
    let pair = side.number() ^ u32::from(random.chance(30));
    let (head, size) = ((rung & 0xffff) << 8, pair << 8);
    let doorbell = u64::from(size.swap_bytes()) << 32 | u64::from(head.swap_bytes());
    (doorbell, (record & 0xffff).swap_bytes(), *read)
}

fn filled(backend: &Arc<dyn Backend>, bytes: &[u8]) -> DeviceMemory {
    let memory = DeviceMemory::new(backend, 0, bytes.len() as u64).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

fn read_words(memory: &DeviceMemory) -> Vec<u32> {
    let mut bytes = vec![0; memory.bytes() as usize];
    memory.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn the_kernel_decodes_what_the_model_decodes() {
    const STREAMS: usize = 10_000;
    const EACH: usize = 6;
    let host = backend(1, Build::Plain, 1);
    let backend: Arc<dyn Backend> = host;
    let layout = PairLayout(Layout {
        ranks: 3,
        data_bytes: 1000,
        queues: 2,
        slots: 64,
        counters: 5,
        ports: 1,
    });
    let mut random = Random(7);
    let (mut pairs, mut firsts, mut entries, mut bells) = (vec![], vec![], vec![], vec![]);
    let (mut want_read, mut want_heard) = (Vec::new(), Vec::new());
    for _ in 0..STREAMS {
        let rank = random.below(3) as usize;
        let peer = (rank + 1 + random.below(2) as usize) % 3;
        let end = End { rank, peer, queue: random.below(2) as usize };
        let side =
            Side { layout, end, own: random.word() >> 20 << 8, theirs: random.word() >> 20 << 8 };
        let Side { own, theirs, .. } = side;
        let played =
            Played { end, own, theirs, port: 0, sums: 0, state: 0, works: 0, id: 0, fault: None };
        pairs.extend(played.pair(&layout));
        let first = random.word() as u32;
        firsts.extend(first.to_le_bytes());
        let mut heard = Heard { rung: 0, recorded: first as u16, known: first };
        let (mut next, mut read) = (first, first);
        for i in 0..EACH as u32 {
            let block = side.entry(&mut random, first.wrapping_add(i));
            entries.extend(block);
            want_read.push(modelled(&side, &block, first.wrapping_add(i)));
            let (doorbell, record, read) = told(&mut random, &side, &mut next, &mut read);
            bells.extend(doorbell.to_le_bytes());
            bells.extend((u64::from(record) << 32 | u64::from(read)).to_le_bytes());
            let said = (doorbell, recorded(record));
            let wrong = heard.hear(said, read, (side.number(), layout.0.slots)).is_err();
            want_heard.push([2 * u32::from(wrong), heard.known, u32::from(heard.recorded)]);
        }
    }
    let text = format!("{RESIDENT_TEXT}{DECODE_TEXT}");
    let image = backend.compile("card_decode", &text).unwrap();
    let block = Block { threads: 256, shared_bytes: 0 };
    let code = backend.load(0, &image, "card_decode", block).unwrap();
    let inputs = [&pairs[..], &firsts, &entries, &bells].map(|bytes| filled(&backend, bytes));
    let read = DeviceMemory::new(&backend, 0, (STREAMS * EACH * 40) as u64).unwrap();
    let heard = DeviceMemory::new(&backend, 0, (STREAMS * EACH * 12) as u64).unwrap();
    let args = Words::default()
        .wide(inputs.iter().map(DeviceMemory::address))
        .wide([read.address(), heard.address()])
        .narrow([STREAMS as u32, EACH as u32])
        .0;
    launch(&backend, 0, code, &args);
    backend.sync(0, Stream::OWN).unwrap();
    let mut kinds = [0; 4];
    for (at, (got, want)) in read_words(&read).chunks_exact(10).zip(&want_read).enumerate() {
        let is_equal = if want[0] == 0 { got == want } else { got[0] == want[0] };
        assert!(is_equal, "entry {at}: {got:x?}, not {want:x?}");
        kinds[want[1] as usize] += 1;
    }
    for (at, (got, want)) in read_words(&heard).chunks_exact(3).zip(&want_heard).enumerate() {
        assert!(got == want, "doorbell {at}: {got:x?}, not {want:x?}");
    }
    // Each kind was there many times, and so were entries and doorbells that make no sense.
    assert!(kinds.iter().all(|count| *count > STREAMS / 2), "{kinds:?}");
    let wrong = want_heard.iter().filter(|told| told[0] != 0).count();
    assert!((STREAMS..EACH * STREAMS / 2).contains(&wrong), "{wrong}");
}

impl ResidentNetwork {
    fn window(&self) -> &Window {
        match &self.memory {
            Memory::Window(window) => window,
            Memory::Models(_) => panic!("these cards are models"),
        }
    }
}

/// Ranks whose queue pairs are filled before their cards run.
struct Filled {
    backend: Arc<dyn Backend>,
    network: ResidentNetwork,
    layout: PairLayout,
    random: Random,
    /// By rank, what its memory is, and what it will be.
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
    /// By rank, where the next put goes.
    free: Vec<u64>,
}

const FILLED_RANKS: usize = 3;
const SOURCES: u64 = 40_000;

/// The card kernel of all ranks here.
fn players(backend: &Arc<dyn Backend>, options: &ResidentOptions) -> Arc<Vec<Player>> {
    Arc::new(Player::of_gpus(backend, options, Duration::ZERO).unwrap())
}

/// Starts the kernel until it has nothing left to do, or until the host has stopped it and it has nothing left to do.
fn start(players: &[Player], until_idle: bool) {
    let player = &players[0];
    player.control.fill(Stream::OWN, 0).unwrap();
    launch(&player.backend, 0, player.code, &player.own_args(until_idle));
}

fn launch(backend: &Arc<dyn Backend>, rank: usize, code: Code, args: &[u8]) {
    let launch = KernelLaunch { code, blocks: 1, waits: true, enters: false, phases: 1, args };
    backend.launch(rank, Stream::OWN, &launch).unwrap();
}

impl Filled {
    fn new(seed: u64, options: &ResidentOptions) -> Filled {
        let backend: Arc<dyn Backend> = backend(FILLED_RANKS, Build::Checked, seed);
        let layout =
            Layout { ranks: 3, data_bytes: 300_000, queues: 2, slots: 64, counters: 5, ports: 1 };
        Filled::of(&players(&backend, options), seed, layout)
    }

    fn of(players: &Arc<Vec<Player>>, seed: u64, layout: Layout) -> Filled {
        let layout = PairLayout(layout);
        let network = ResidentNetwork::played(players, 3, layout).unwrap();
        let backend = Arc::clone(&network.backend);
        let mut random = Random(seed);
        let memory = |rank: usize| {
            let mut bytes = vec![0; layout.bytes() as usize];
            backend.read(rank, network.window().own(rank).unwrap(), &mut bytes).unwrap();
            bytes[..SOURCES as usize].iter_mut().for_each(|byte| *byte = random.word() as u8);
            bytes
        };
        let before: Vec<Vec<u8>> = (0..FILLED_RANKS).map(memory).collect();
        let (after, free) = (before.clone(), vec![SOURCES; FILLED_RANKS]);
        Filled { backend, network, layout, random, before, after, free }
    }

    /// Posts the first `count` entries of a queue pair and rings its doorbell. The card carries out the first `good` of them.
    fn fill(&mut self, end: End, count: u32, good: u32) {
        self.fill_behind(end, 0, count, good);
    }

    /// Posts `count` more entries after the first `behind` ones, and rings the doorbell.
    fn fill_behind(&mut self, end: End, behind: u32, count: u32, good: u32) {
        let first = self.layout.first(end.peer, end.queue).wrapping_add(behind);
        for i in 0..count {
            let number = first.wrapping_add(i);
            let block = match self.random.chance(3) {
                true => self.add(end, number, i < good),
                false => self.put(end, number, i < good),
            };
            self.set(end.rank, self.layout.entry(end.peer, end.queue, number), &block);
        }
        let (side, next) = (self.side(end), first.wrapping_add(count));
        let doorbell = [(next & 0xffff) << 8, side.number() << 8];
        let doorbell: Vec<u8> = doorbell.into_iter().flat_map(u32::to_be_bytes).collect();
        let record = (next & 0xffff).to_be_bytes();
        self.set(end.rank, self.layout.record(end.peer, end.queue), &record);
        self.set(end.rank, self.layout.doorbell(end.peer, end.queue), &doorbell);
        let failed = (good < count).then_some(Syndrome::Flushed);
        let completion = completion(side.number(), next.wrapping_sub(1), failed);
        let at = self.layout.completion(end.peer, end.queue) as usize;
        self.after[end.rank][at..at + BLOCK_BYTES].copy_from_slice(&completion);
    }

    fn side(&self, end: End) -> Side {
        let bases = self.network.window().bases(end.rank).unwrap();
        Side { layout: self.layout, end, own: bases[end.rank], theirs: bases[end.peer] }
    }

    /// What is in memory before and after.
    fn set(&mut self, rank: usize, at: u64, bytes: &[u8]) {
        for memory in [&mut self.before, &mut self.after] {
            memory[rank][at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// A put to a place of its own.
    fn put(&mut self, end: End, number: u32, is_good: bool) -> EntryBlock {
        let (side, random) = (self.side(end), &mut self.random);
        let is_inline = random.chance(2);
        let unit = [1, 4, 16][random.below(3) as usize];
        let bytes = match random.below(20) {
            _ if is_inline => random.below(29),
            0 => 20_000 / unit * unit,
            _ => random.below(60) * unit,
        };
        let from = random.below((SOURCES - bytes) / unit) * unit;
        let to = self.free[end.peer].next_multiple_of(unit);
        self.free[end.peer] = to + bytes;
        let source = self.before[end.rank][from as usize..][..bytes as usize].to_vec();
        if is_good {
            self.after[end.peer][to as usize..][..bytes as usize].copy_from_slice(&source);
        }
        let to = (side.theirs + to, side.key(end.peer, Region::Data));
        let from = (side.own + from, side.key(end.rank, Region::Data));
        match is_inline {
            true => inline(side.number(), number, to, &source),
            false => write(side.number(), number, to, from, bytes as u32),
        }
    }

    /// An add to a counter of the queue pair, or now and then to another word that no other one adds to.
    fn add(&mut self, end: End, number: u32, is_good: bool) -> EntryBlock {
        let (side, layout) = (self.side(end), self.layout);
        let End { rank, peer, queue } = end;
        let other = (queue * FILLED_RANKS + rank) as u64;
        let to = match self.random.chance(6) {
            true => layout.before(layout.0.ranks, 0) + 4 * other,
            false => layout.counters(rank, queue) + 4 * self.random.below(layout.0.counters as u64),
        };
        let (count, before) = (self.random.word() as u32, layout.before(peer, queue));
        if is_good {
            let word = &mut self.after[peer][to as usize..][..4];
            let old = u32::from_le_bytes((&*word).try_into().unwrap());
            word.copy_from_slice(&old.wrapping_add(count).to_le_bytes());
            self.after[rank][before as usize..][..4].copy_from_slice(&old.to_le_bytes());
        }
        let [to, before] = [(side.theirs + to, peer), (side.own + before, rank)]
            .map(|(at, rank)| (at, side.key(rank, Region::Counters)));
        add(side.number(), number, to, before, count)
    }

    /// Lets the cards run until they have nothing left to do.
    fn run(&self) {
        self.post();
        start(&self.network.players, true);
        self.backend.sync(0, Stream::OWN).unwrap();
    }

    /// Writes what is in memory before.
    fn post(&self) {
        for rank in 0..FILLED_RANKS {
            let at = self.network.window().own(rank).unwrap();
            self.backend.write(rank, at, &self.before[rank]).unwrap();
        }
    }

    fn check(&self) {
        for (rank, want) in self.after.iter().enumerate() {
            let mut got = vec![0; want.len()];
            self.backend.read(rank, self.network.window().own(rank).unwrap(), &mut got).unwrap();
            let wrong = got.iter().zip(want).position(|(got, want)| got != want);
            assert_eq!(wrong, None, "rank {rank} of {:?}", self.layout);
        }
    }

    fn ends(&self) -> Vec<End> {
        let ends = (0..FILLED_RANKS).flat_map(|rank| {
            let ends = self.layout.ends().filter(move |(peer, _)| *peer != rank);
            ends.map(move |(peer, queue)| End { rank, peer, queue })
        });
        ends.collect()
    }
}

#[test]
fn the_kernel_leaves_what_entries_ask_for() {
    for seed in 1..=4 {
        let slow = ResidentOptions { bytes_per_us: 10, seed, ..ResidentOptions::default() };
        let fast = ResidentOptions { bytes_per_us: 0, latency: Duration::ZERO, ..slow.clone() };
        let failing = ResidentOptions { failing: vec![(1, 2, 17), (2, 0, 0)], ..slow.clone() };
        let options = [&slow, &fast, &failing][seed as usize % 3];
        let mut filled = Filled::new(u64::from(seed), options);
        let (mut entries, mut bytes) = ([0; FILLED_RANKS], 0);
        for end in filled.ends() {
            let count = filled.random.below(60) as u32 + 1;
            let fails = options.failing.iter().find(|it| (it.0, it.1) == (end.rank, end.peer));
            let good = fails.map_or(count, |it| it.2.min(count));
            filled.fill(end, count, good);
            entries[end.rank] += u64::from(count.min(good + 1));
        }
        filled.run();
        filled.check();
        let traffic = filled.network.traffic().unwrap();
        assert_eq!(traffic.iter().map(|it| it.entries).collect::<Vec<_>>(), entries);
        let failure = filled.network.failure().map(|failure| failure.to_string());
        let (of_1, of_2) = ((1, 2, 17), (2, 0, 0));
        let words = |(rank, peer, entry): (usize, usize, u32), queue: usize| {
            format!(
                "rank {rank}: entry {entry} of its queue pair to rank {peer} for queue {queue} failed, as \
                 `fail={rank}-{peer}@{entry}` asks, and all entries behind it fail: make a new group to go on"
            )
        };
        let told = [words(of_1, 0), words(of_1, 1), words(of_2, 0), words(of_2, 1)];
        match options.failing.is_empty() {
            true => assert_eq!(failure, None),
            false => assert!(told.contains(failure.as_ref().unwrap()), "{failure:?}"),
        }
        bytes += traffic.iter().map(|it| it.bytes).sum::<u64>();
        assert!(bytes > 1000, "{bytes}");
    }
}

/// The kernels that wrote the entries may have ended, while ranks of other processes wait for them.
#[test]
fn a_stopped_card_carries_out_the_entries_it_knows() {
    let options = ResidentOptions { bytes_per_us: 10, ..ResidentOptions::default() };
    let mut filled = Filled::new(9, &options);
    for end in filled.ends() {
        filled.fill(end, 20, 20);
    }
    filled.post();
    // The number of its start, as the last argument says.
    filled.network.players[0].stop.write(0, &[1]).unwrap();
    start(&filled.network.players, false);
    filled.backend.sync(0, Stream::OWN).unwrap();
    filled.check();
}

#[test]
fn networks_share_the_kernel_until_they_go() {
    let options = ResidentOptions { failing: vec![(2, 1, 30)], ..ResidentOptions::default() };
    let backend: Arc<dyn Backend> = backend(FILLED_RANKS, Build::Checked, 3);
    let players = players(&backend, &options);
    let wide =
        Layout { ranks: 3, data_bytes: 300_000, queues: 2, slots: 64, counters: 5, ports: 1 };
    let deep =
        Layout { ranks: 3, data_bytes: 200_000, queues: 1, slots: 128, counters: 3, ports: 1 };
    let mut first = Filled::of(&players, 1, wide);
    let mut second = Filled::of(&players, 2, deep);
    // The number of an entry that fails counts in the queue pairs of each network.
    let good = |end: End| if (end.rank, end.peer) == (2, 1) { 30 } else { 40 };
    for filled in [&mut first, &mut second] {
        filled.ends().into_iter().for_each(|end| filled.fill(end, 40, good(end)));
        filled.post();
    }
    let run = || {
        start(&players, true);
        backend.sync(0, Stream::OWN).unwrap();
    };
    run();
    first.check();
    second.check();
    let entries = |filled: &Filled| {
        filled.network.traffic().unwrap().iter().map(|it| it.entries).collect::<Vec<_>>()
    };
    assert_eq!((entries(&first), entries(&second)), (vec![160, 160, 142], vec![80, 80, 71]));
    drop(first);
    players[0].fault.write(0, &[0; FAULT_BYTES / 4]).unwrap();
    // What the card knows of the other one stays.
    second.before.clone_from(&second.after);
    let end = End { rank: 0, peer: 2, queue: 0 };
    second.fill_behind(end, 40, 90, 90);
    second.post();
    run();
    second.check();
    // A fault is that of the network that came last, whichever has gone.
    let mut last = Filled::of(&players, 4, wide);
    last.fill(End { rank: 0, peer: 2, queue: 1 }, 3, 3);
    let opcode = last.layout.entry(2, 1, last.layout.first(2, 1).wrapping_add(1)) + 3;
    last.set(0, opcode, &[0x0a]);
    last.post();
    run();
    let found = second.network.failure().unwrap().to_string();
    let head = "rank 0: entry 4294967276 of its queue pair to rank 2 for queue 1 has the opcode";
    assert!(found.starts_with(head), "{found}");
}

/// Kernels wait for what the entry should bring, and their waits expire: the group tells why.
#[test]
fn a_failed_entry_is_the_error_of_every_call() {
    let backend = FakeBackend::new(2);
    let cards = ResidentOptions { failing: vec![(0, 1, 5)], ..ResidentOptions::default() };
    let group = Group::over_resident_cards(backend, 2, GroupOptions::default(), &cards).unwrap();
    let network = ResidentNetwork::new(&group, (1000, 3)).unwrap();
    group.check(1).unwrap();
    let layout = PairLayout(Layout {
        ranks: 2,
        data_bytes: 1000,
        queues: QUEUES,
        slots: SLOTS,
        counters: 3,
        ports: 1,
    });
    let bases = network.window().bases(0).unwrap();
    let end = End { rank: 0, peer: 1, queue: 0 };
    let side = Side { layout, end, own: bases[0], theirs: bases[1] };
    let number = layout.first(1, 0).wrapping_add(5);
    let block = inline(side.number(), number, (side.theirs, side.key(1, Region::Data)), &[1]);
    let block = block.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    // The first queue pair of its GPU.
    let words: Vec<u32> = [1, 0, number, 0].into_iter().chain(block).collect();
    network.players[0].fault.write(0, &words).unwrap();
    let text = "rank 0: entry 5 of its queue pair to rank 1 for queue 0 failed, as `fail=0-1@5` asks, and all \
                entries behind it fail: make a new group to go on";
    for rank in [1, 0, 1] {
        assert_eq!(group.check(rank).unwrap_err().to_string(), text);
    }
}

#[test]
fn what_makes_no_sense_is_said_in_the_words_of_the_model() {
    let options = ResidentOptions::default();
    let end = End { rank: 1, peer: 2, queue: 0 };
    let said = |damage: &dyn Fn(&mut Filled)| {
        let mut filled = Filled::new(5, &options);
        filled.fill(end, 3, 3);
        damage(&mut filled);
        filled.run();
        filled.network.failure().map(|failure| failure.to_string())
    };
    let head = "rank 1: entry";
    let tail = "of its queue pair to rank 2 for queue 0";
    assert_eq!(said(&|_| ()), None);
    let at = |filled: &Filled| filled.layout.entry(2, 0, 1);
    let opcode = |filled: &mut Filled| filled.set(1, at(filled) + 3, &[0x0a]);
    let found = said(&opcode).unwrap();
    assert!(found.starts_with(&format!("{head} 1 {tail} has the opcode 0x0a")), "{found}");
    let key = |filled: &mut Filled| filled.set(1, at(filled) + 24, &[9, 9, 9, 9]);
    let found = said(&key).unwrap();
    assert!(found.starts_with(&format!("{head} 1 {tail} names ")), "{found}");
    assert!(found.ends_with("of rank 2, to which key 0x9090909 gives no right"), "{found}");
    let bell = |filled: &mut Filled| {
        let doorbell = filled.layout.doorbell(2, 0);
        filled.set(1, doorbell + 4, &[0, 0x12, 0x34]);
    };
    let pair = "was announced by a doorbell for queue pair 0x1234, not 0x104";
    assert_eq!(said(&bell), Some(format!("{head} 2 {tail} {pair}")));
}

/// Rows that rank 0 puts to rank 1 by entries that are there before its card runs.
struct Posted {
    backend: Arc<dyn Backend>,
    network: ResidentNetwork,
    side: Side,
    rows: Vec<u8>,
    /// The next entry, and the next byte.
    number: u32,
    at: u64,
}

impl Posted {
    fn new(seed: u32, bytes: u64, options: &ResidentOptions) -> Posted {
        let backend: Arc<dyn Backend> = backend(2, Build::Checked, seed.into());
        let layout =
            Layout { ranks: 2, data_bytes: bytes, queues: 1, slots: 64, counters: 1, ports: 1 };
        let layout = PairLayout(layout);
        let network = ResidentNetwork::played(&players(&backend, options), 2, layout).unwrap();
        let bases = network.window().bases(0).unwrap();
        let end = End { rank: 0, peer: 1, queue: 0 };
        let side = Side { layout, end, own: bases[0], theirs: bases[1] };
        let mut random = Random(seed.into());
        let rows: Vec<u8> = (0..bytes).map(|_| random.word() as u8).collect();
        backend.write(0, side.own, &rows).unwrap();
        Posted { backend, network, side, rows, number: layout.first(1, 0), at: 0 }
    }

    fn post(&mut self, block: &EntryBlock) {
        let at = self.side.own + self.side.layout.entry(1, 0, self.number);
        self.backend.write(0, at, block).unwrap();
        self.number = self.number.wrapping_add(1);
    }

    fn put(&mut self, bytes: u32) {
        let (side, at) = (self.side, self.at);
        let [to, from] = [(side.theirs, 1), (side.own, 0)]
            .map(|(base, rank)| (base + at, side.key(rank, Region::Data)));
        self.at += u64::from(bytes);
        self.post(&write(side.number(), self.number, to, from, bytes));
    }

    fn signal(&mut self) {
        let (side, layout) = (self.side, self.side.layout);
        let places =
            [(side.theirs + layout.counters(0, 0), 1), (side.own + layout.before(1, 0), 0)];
        let [to, before] = places.map(|(at, rank)| (at, side.key(rank, Region::Counters)));
        self.post(&add(side.number(), self.number, to, before, 1));
    }

    fn ring(&self) {
        let (side, layout) = (self.side, self.side.layout);
        let doorbell = [(self.number & 0xffff) << 8, side.number() << 8];
        let doorbell: Vec<u8> = doorbell.into_iter().flat_map(u32::to_be_bytes).collect();
        let record = (self.number & 0xffff).to_be_bytes();
        self.backend.write(0, side.own + layout.record(1, 0), &record).unwrap();
        self.backend.write(0, side.own + layout.doorbell(1, 0), &doorbell).unwrap();
    }
}

#[test]
fn a_signal_counts_when_all_puts_before_it_have_landed() {
    const SIGNALS: u32 = 8;
    // Bytes of the puts before each signal; several warps carry the last one.
    const PUTS: [u32; 5] = [16, 640, 48, 32, 17_600];
    let each = PUTS.iter().sum::<u32>();
    for seed in 1..=6 {
        let options = ResidentOptions { seed, bytes_per_us: 0, ..ResidentOptions::default() };
        let mut posted = Posted::new(seed, u64::from(SIGNALS * each), &options);
        for _ in 0..SIGNALS {
            PUTS.iter().for_each(|bytes| posted.put(*bytes));
            posted.signal();
        }
        posted.ring();
        let (backend, side) = (&posted.backend, posted.side);
        let want = DeviceMemory::new(backend, 1, posted.rows.len() as u64).unwrap();
        want.write(0, &posted.rows).unwrap();
        let wrong = DeviceMemory::zeroed(backend, 1, 4).unwrap();
        let text = format!("{RESIDENT_TEXT}{AWAIT_TEXT}");
        let image = backend.compile("card_await", &text).unwrap();
        let block = Block { threads: 64, shared_bytes: 0 };
        let code = backend.load(1, &image, "card_await", block).unwrap();
        let counter = side.theirs + side.layout.counters(0, 0);
        let args = Words::default()
            .wide([counter, side.theirs, want.address(), wrong.address()])
            .narrow([SIGNALS, each / 4])
            .0;
        launch(backend, 1, code, &args);
        start(&posted.network.players, true);
        let ran = backend.sync(1, Stream::OWN).and_then(|()| backend.sync(0, Stream::OWN));
        assert_eq!((ran, posted.network.failure()), (Ok(()), None), "seed {seed}");
        assert_eq!(read_words(&wrong), [0], "seed {seed}");
    }
}
