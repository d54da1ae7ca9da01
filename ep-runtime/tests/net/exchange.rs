//! The ranks of a test: a process each, which runs `exchange.cu` on the host over a network.

use std::sync::Arc;
use std::time::Duration;

use ep_runtime::Emitted;
use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::{Backend, Stream};
use ep_runtime::device::HEADERS;
use ep_runtime::error::CallError;
use ep_runtime::gpu::{Compile, GpuBackend, GpuOptions, compile_with};
use ep_runtime::group::{Group, GroupKernel, GroupOptions, control_bytes};
use ep_runtime::handwritten::HandwrittenKernel;
use ep_runtime::host::{HostBackend, HostOptions, Programs};
use ep_runtime::jit::{Cache, Jit, Nvrtc};
use ep_runtime::join::{Member, Store, UniqueId};
use ep_runtime::memory::{DeviceMemory, Window};
use ep_runtime::net::{NetOptions, Network, Provider};

pub(crate) const TEXT: &str = include_str!("exchange.cu");

/// The kernel for ranks that speak to a network card themselves.
pub(crate) fn for_cards(text: &str) -> String {
    text.replace("ep::NetQueue", "ep::PairQueue").replace("<ep/net.cuh>", "<ep/ibgda.cuh>")
}

const KERNEL: HandwrittenKernel = HandwrittenKernel {
    name: "Exchange",
    entry: "exchange_rows",
    numbers: &["ranks", "rows", "words", "rounds"],
    pointers: &["net", "wrong"],
    wide_numbers: &[],
    threads: 128,
    shared_bytes: 0,
    window_bytes: 0,
    blocks_min: 1,
    waits: true,
    enters: true,
};

/// What the ranks of a test do.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) provider: Provider,
    pub(crate) ranks: usize,
    /// Rows to each peer in a round.
    pub(crate) rows: usize,
    /// Words of a row.
    pub(crate) words: usize,
    pub(crate) rounds: usize,
    /// Descriptors of the queue.
    pub(crate) slots: usize,
    pub(crate) silence: Duration,
    /// Room for the rows that leave, and none for those that come.
    pub(crate) is_short: bool,
    /// A GPU for each rank, as far as there are any, instead of the host backend.
    pub(crate) on_gpus: bool,
    /// An address of this machine, or an empty text.
    pub(crate) source: String,
}

/// What became of one rank.
pub(crate) type Ended = Result<i32, String>;

impl Exchange {
    /// A short one.
    pub(crate) fn over(provider: Provider) -> Exchange {
        Exchange {
            provider,
            ranks: 2,
            rows: 40,
            words: 700,
            rounds: 6,
            slots: 64,
            silence: Duration::from_secs(20),
            is_short: false,
            on_gpus: false,
            source: String::new(),
        }
    }

    /// As words for another process.
    pub(crate) fn encode(&self) -> String {
        let Exchange { provider, ranks, rows, words, rounds, slots, silence, .. } = self;
        let (short, gpus) = (u8::from(self.is_short), u8::from(self.on_gpus));
        let (millis, source) = (silence.as_millis(), &self.source);
        format!(
            "{provider} {ranks} {rows} {words} {rounds} {slots} {millis} {short} {gpus} {source}"
        )
    }

    pub(crate) fn decode(text: &str) -> Option<Exchange> {
        let mut parts = text.split(' ');
        let provider = parts.next()?.parse().ok()?;
        let mut number = || parts.next()?.parse::<usize>().ok();
        let [ranks, rows, words, rounds, slots] =
            [number()?, number()?, number()?, number()?, number()?];
        let silence = Duration::from_millis(number()? as u64);
        let (is_short, on_gpus) = (number()? != 0, number()? != 0);
        let source = parts.next().unwrap_or_default().to_string();
        Some(Exchange {
            provider,
            ranks,
            rows,
            words,
            rounds,
            slots,
            silence,
            is_short,
            on_gpus,
            source,
        })
    }

    fn options(&self) -> NetOptions {
        NetOptions {
            slots: self.slots,
            counters: 2,
            pulse: self.silence / 10,
            silence: self.silence,
            source: (!self.source.is_empty()).then(|| self.source.clone()),
            ..NetOptions::new(self.provider, self.data_bytes() / (1 + u64::from(self.is_short)))
        }
    }

    /// Runs one rank in this process: how many words were wrong. `begins` is told when all are connected.
    pub(crate) fn run(&self, id: &UniqueId, rank: usize, begins: impl Fn()) -> Ended {
        let member = Member { rank, ranks: self.ranks };
        let store = Store::join(id, member, Duration::from_secs(60)).map_err(text)?;
        let timeout = match self.on_gpus {
            true => Duration::from_secs(20),
            false => ep_runtime::host::TIMEOUT,
        };
        let options = GroupOptions { timeout, ..GroupOptions::default() };
        let group = Group::new(self.backend(rank)?, options).map_err(text)?;
        let network = Network::join(&group, 0, &store, &self.options()).map_err(text)?;
        begins();
        self.launch(&group, &network).map_err(text)
    }

    fn backend(&self, rank: usize) -> Result<Arc<dyn Backend>, String> {
        if !self.on_gpus {
            let programs = Programs::find().map_err(text)?;
            return Ok(HostBackend::new(&programs, HostOptions::new(1)).map_err(text)?);
        }
        let spread = GpuOptions::spread(self.ranks).map_err(text)?;
        let options = GpuOptions { devices: vec![spread.devices[rank]], ..spread };
        let backend = GpuBackend::new(&options, compiler()?);
        Ok(Arc::new(backend.map_err(text)?))
    }

    fn launch(&self, group: &Group, network: &Network) -> Result<i32, CallError> {
        let kernel = self.prepare(group, TEXT)?;
        let wrong = self.start(&kernel, group, 0, network.address())?;
        group.sync(0)?;
        count(&wrong)
    }

    /// The kernel, or one like it.
    pub(crate) fn prepare(&self, group: &Group, cuda: &str) -> Result<GroupKernel, CallError> {
        let plan = KERNEL.plan(group.backend().arch());
        let window = Arc::new(Window::new(group.backend(), control_bytes(&plan))?);
        GroupKernel::prepare(group, &window, 0, &Emitted { plan, cuda: cuda.to_string() })
    }

    /// Launches it on a local rank; the words that are wrong are counted in the result.
    pub(crate) fn start(
        &self,
        kernel: &GroupKernel,
        group: &Group,
        rank: usize,
        net: u64,
    ) -> Result<DeviceMemory, CallError> {
        let wrong = DeviceMemory::zeroed(group.backend(), rank, 4)?;
        let mut bindings = Bindings::new();
        let Exchange { ranks, rows, words, rounds, .. } = *self;
        for (name, value) in
            [("ranks", ranks), ("rows", rows), ("words", words), ("rounds", rounds)]
        {
            bindings.number(name, value as i64);
        }
        bindings.tensor("net", Rows::new(net, 0));
        bindings.tensor("wrong", Rows::new(wrong.address(), 0));
        kernel.launch(rank, Stream::OWN, 2, &bindings)?;
        Ok(wrong)
    }

    /// Bytes for the rows that leave and those that come.
    pub(crate) fn data_bytes(&self) -> u64 {
        (2 * self.ranks * self.rows * self.words * 4) as u64
    }
}

/// NVRTC, without a cache on disk.
pub(crate) fn compiler() -> Result<Compile, String> {
    let jit = Jit::new(Nvrtc::find().map_err(text)?, Cache::memory_only());
    Ok(compile_with(Arc::new(jit)))
}

/// A number in device memory.
pub(crate) fn count(at: &DeviceMemory) -> Result<i32, CallError> {
    let mut bytes = [0; 4];
    at.read(0, &mut bytes)?;
    Ok(i32::from_le_bytes(bytes))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The device library has what the kernel includes.
#[test]
fn the_kernel_includes_the_library_alone() {
    for line in TEXT.lines().filter(|line| line.starts_with("#include")) {
        assert!(HEADERS.iter().any(|(name, _)| line == format!("#include <{name}>")), "{line}");
    }
}
