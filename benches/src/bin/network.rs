//! Times a network between two processes of this machine, through the queue that kernels write to and,
//! in turn with it, by a plain loop of writes over the same provider:
//! `cargo run --release -p ep-benches --bin network -- [PROVIDER] [--json]`.
//!
//! Each process has two busy threads, so that figures mean something on four cores and more. All stay on one
//! NUMA node, and each on a core of its own where the node has eight. What a turn gives changes with what
//! else the machine does: the share is that of two neighbouring turns, which take the lead by turns, and is
//! told with its least and its most.

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("networks need Linux");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::error::Error;
    use std::io::{self, Write};
    use std::process::Command;
    use std::sync::Arc;
    use std::time::Duration;

    use ep_runtime::backend::Backend;
    use ep_runtime::host::{HostBackend, HostOptions, Programs};
    use ep_runtime::join::{Member, Store, UniqueId};
    use ep_runtime::net::measure::{self, Measured};
    use ep_runtime::net::{NetError, Network, Provider};

    /// The variable with the id of the two ranks, for rank 1.
    const ID: &str = "EPFORGE_BENCH_ID";

    /// Turns of each measurement; the median counts.
    const TURNS: usize = 15;

    /// What is asked of a descriptor from one end to the other over `shm`, in microseconds, of
    /// descriptors a second, and of bytes a second beside a plain loop.
    const LATENCY_US: f64 = 2.0;
    const DESCRIPTORS: f64 = 3e6;
    const SHARE: f64 = 0.9;

    /// Rows that are timed: their bytes, and how many.
    const ROWS: [(u32, u32); 4] = [(16, 300_000), (256, 200_000), (7424, 40_000), (14464, 20_000)];

    pub(super) fn main() -> Result<(), Box<dyn Error>> {
        let mut json = false;
        let mut provider = Provider::Shm;
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--json" => json = true,
                name => provider = name.parse()?,
            }
        }
        if let Some(id) = UniqueId::from_variable(ID)? {
            return run(&id, 1, provider).map(|_| ());
        }
        measure::stay_near()?;
        let id = UniqueId::local()?;
        let mut other = Command::new(std::env::current_exe()?);
        id.give_to(&mut other, ID);
        let mut other = other.arg(provider.name()).spawn()?;
        let result = run(&id, 0, provider);
        let ended = other.wait()?;
        let result = result?;
        if !ended.success() {
            return Err("the other process failed".into());
        }
        show(provider, &result, json)?;
        Ok(())
    }

    /// What one run gives.
    struct Figures {
        latency_us: f64,
        rows: Vec<Rows>,
    }

    /// Rows of one length, in turns.
    struct Rows {
        bytes: u32,
        /// Rows a second through the queue, plainly, and the one beside the other.
        queued: Spread,
        plain: Spread,
        share: Spread,
    }

    /// What turns give, from the least to the most.
    struct Spread(Vec<f64>);

    impl Spread {
        fn of(turns: impl Iterator<Item = f64>) -> Spread {
            let mut turns = Vec::from_iter(turns);
            turns.sort_by(f64::total_cmp);
            Spread(turns)
        }

        fn least(&self) -> f64 {
            self.0[0]
        }

        fn median(&self) -> f64 {
            self.0[self.0.len() / 2]
        }

        fn most(&self) -> f64 {
            self.0[self.0.len() - 1]
        }
    }

    fn run(id: &UniqueId, rank: usize, provider: Provider) -> Result<Figures, Box<dyn Error>> {
        let store = Store::join(id, Member { rank, ranks: 2 }, Duration::from_secs(60))?;
        let backend = HostBackend::new(&Programs::find()?, HostOptions::new(1))?;
        let group = backend.group()?;
        debug_assert_eq!(Arc::clone(&backend).ranks(), 1);
        let network = Network::join(&group, 0, &store, &measure::options(provider))?;
        let mut measured = Measured::new(&store, provider, &network)?;
        measured.latency(1000)?;
        let mut latencies = Vec::new();
        for _ in 0..TURNS {
            latencies.push(measured.latency(5000)?.as_secs_f64() * 1e6);
        }
        let latency_us = Spread::of(latencies.into_iter()).median();
        let rows: Result<_, _> = ROWS.iter().map(|rows| take_turns(&mut measured, *rows)).collect();
        Ok(Figures { latency_us, rows: rows? })
    }

    /// Both ways in turns, and first one of them, then the other one first. A turn that nobody counts
    /// comes before: it touches the pages.
    fn take_turns(
        measured: &mut Measured<'_>,
        (bytes, count): (u32, u32),
    ) -> Result<Rows, NetError> {
        measured.queued(bytes, count / 10)?;
        measured.plain(bytes, count / 10)?;
        let mut turns = Vec::new();
        for turn in 0..TURNS {
            let first = if turn % 2 == 0 { Some(measured.queued(bytes, count)?) } else { None };
            let plain = measured.plain(bytes, count)?;
            let queued = first.map_or_else(|| measured.queued(bytes, count), Ok)?;
            turns.push((queued, plain));
        }
        Ok(Rows {
            bytes,
            queued: Spread::of(turns.iter().map(|(queued, _)| *queued)),
            plain: Spread::of(turns.iter().map(|(_, plain)| *plain)),
            share: Spread::of(turns.iter().map(|(queued, plain)| queued / plain)),
        })
    }

    fn show(provider: Provider, figures: &Figures, json: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let is_shm = provider == Provider::Shm;
        let latency = figures.latency_us;
        match json {
            true => writeln!(
                out,
                "{{\"what\":\"descriptor end to end\",\"provider\":\"{provider}\",\"us\":{latency:.3}}}"
            )?,
            false => {
                let goal = if is_shm { format!(", goal {LATENCY_US} us") } else { String::new() };
                writeln!(out, "{provider}: a descriptor end to end {latency:.2} us{goal}")?;
            }
        }
        for Rows { bytes, queued, plain, share } in &figures.rows {
            let rate = queued.median() * f64::from(*bytes) / 1e9;
            let (least, most) = (share.least(), share.most());
            if json {
                writeln!(
                    out,
                    "{{\"what\":\"rows\",\"provider\":\"{provider}\",\"bytes\":{bytes},\
                     \"queued_per_s\":{:.0},\"queued_most_per_s\":{:.0},\"plain_per_s\":{:.0},\
                     \"share\":{:.3},\"share_least\":{least:.3},\"share_most\":{most:.3}}}",
                    queued.median(),
                    queued.most(),
                    plain.median(),
                    share.median()
                )?;
                continue;
            }
            let goal = match bytes {
                16 if is_shm => format!(", goal {:.0} M/s", DESCRIPTORS / 1e6),
                5000.. => format!(", goal {SHARE}"),
                _ => String::new(),
            };
            writeln!(
                out,
                "{provider}: {bytes:>5} bytes {:>7.3} M/s (most {:.3}) {rate:>7.2} GB/s, {:.2} of a plain \
                 loop ({least:.2} to {most:.2}){goal}",
                queued.median() / 1e6,
                queued.most() / 1e6,
                share.median()
            )?;
        }
        Ok(())
    }
}
