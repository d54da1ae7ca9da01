//! Times a network between two processes of this machine, through the queue that kernels write to and,
//! in turn with it, by a plain loop of writes over the same provider:
//! `cargo run --release -p ep-benches --bin network -- [PROVIDER] [--json]`.
//!
//! Each process has two busy threads, so that figures mean something on four cores and more.

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
    use ep_runtime::net::{Network, Provider};

    /// The variable with the id of the two ranks, for rank 1.
    const ID: &str = "EPFORGE_BENCH_ID";

    /// Turns of each measurement; the median counts.
    const TURNS: usize = 5;

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

    /// The medians of one run.
    struct Figures {
        latency_us: f64,
        /// Bytes of a row, rows a second through the queue, and plainly.
        rows: Vec<(u32, f64, f64)>,
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
        let mut rows = Vec::new();
        for (bytes, count) in ROWS {
            let (mut queued, mut plain) = (Vec::new(), Vec::new());
            for _ in 0..TURNS {
                queued.push(measured.queued(bytes, count)?);
                plain.push(measured.plain(bytes, count)?);
            }
            rows.push((bytes, median(queued), median(plain)));
        }
        Ok(Figures { latency_us: median(latencies), rows })
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
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
        for (bytes, queued, plain) in &figures.rows {
            let (share, rate) = (queued / plain, queued * f64::from(*bytes) / 1e9);
            if json {
                writeln!(
                    out,
                    "{{\"what\":\"rows\",\"provider\":\"{provider}\",\"bytes\":{bytes},\
                     \"queued_per_s\":{queued:.0},\"plain_per_s\":{plain:.0},\"share\":{share:.3}}}"
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
                "{provider}: {bytes:>5} bytes {:>7.3} M/s {rate:>7.2} GB/s, {share:.2} of a plain loop{goal}",
                queued / 1e6
            )?;
        }
        Ok(())
    }
}
