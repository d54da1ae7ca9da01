//! Where the ranks of a command run: in the emulator, on the GPUs of this process, or on a GPU per
//! process.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use ep_runtime::backend::Backend;
use ep_runtime::error::CallError;
use ep_runtime::gpu::{self, Compile, GpuBackend, GpuOptions, Sharing};
use ep_runtime::group::{Group, GroupOptions};
use ep_runtime::host::{self, Build, HostBackend, HostOptions, Programs};
use ep_runtime::jit::{Cache, Jit, Nvrtc};
use ep_runtime::join::{Member, Store};
use ep_runtime::net::{Carrier, ModelOptions, RESIDENT_SMS, ResidentOptions};
use ep_runtime::perturb::perturbing;

use crate::failure::Failure;
use crate::problem::{failed, no_machine};
use crate::processes;

/// The variable that turns a skip for want of GPUs into a failure: how many there have to be.
pub(crate) const REQUIRED: &str = "EP_REQUIRE_GPUS";

/// Longest run of one call on the host.
const HOST_LIMIT: Duration = Duration::from_secs(600);

/// Where kernels run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Machine {
    /// In the emulator, on any machine
    Host,
    /// On the GPUs of this machine
    Gpu,
}

/// How windows reach other GPUs of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SharingName {
    /// Mapped into the address space of every device
    Mapped,
    /// Peer access between contexts
    Peer,
}

/// What a command asks of GPUs.
#[derive(Debug, Clone)]
pub(crate) struct GpuRequest {
    pub(crate) ranks: usize,
    /// GPU of each rank; none: the GPUs in turn.
    pub(crate) devices: Option<Vec<i32>>,
    /// Whether this process is one of several, with one rank each.
    pub(crate) is_member: bool,
    pub(crate) sharing: Sharing,
    pub(crate) cooperative: Option<bool>,
    /// SMs of each GPU that ranks do not fill.
    pub(crate) kept_sms: u32,
    pub(crate) timeout: Duration,
    /// Whether calls that can do without a rank go on when that rank does not answer.
    pub(crate) leaves_out_absent: bool,
    /// Seed of what disturbs its kernels.
    pub(crate) perturb: Option<u64>,
}

impl GpuRequest {
    /// `ranks` ranks in this process, spread over its GPUs.
    pub(crate) fn threads(ranks: usize, timeout: Duration) -> GpuRequest {
        GpuRequest {
            ranks,
            devices: None,
            is_member: false,
            sharing: Sharing::Mapped,
            cooperative: None,
            kept_sms: 0,
            timeout,
            leaves_out_absent: false,
            perturb: None,
        }
    }

    /// Sets the seed from `perturb`. If there is a seed, kernels have random delays.
    pub(crate) fn perturbed(self, perturb: Perturb) -> GpuRequest {
        GpuRequest { perturb: perturb.seed, ..self }
    }

    /// For ranks of this process on these GPUs.
    fn options(&self, devices: Vec<i32>) -> GpuOptions {
        let GpuRequest { sharing, cooperative, kept_sms, .. } = *self;
        GpuOptions { devices, sharing, cooperative, kept_sms, ..GpuOptions::default() }
    }

    /// The GPU of a rank on a machine with `count` of them.
    pub(crate) fn device(&self, rank: usize, count: usize) -> i32 {
        match &self.devices {
            Some(devices) => devices.get(rank).copied().unwrap_or(0),
            None => i32::try_from(rank % count.max(1)).unwrap_or(0),
        }
    }
}

/// The option of commands that run kernels.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct Perturb {
    /// Delay threads of each kernel at atomics, fences, barriers, waits and bulk copies, at random from this seed
    #[arg(id = "perturb", long = "perturb", value_name = "SEED")]
    pub(crate) seed: Option<u64>,
}

impl Perturb {
    /// Refuses it in the emulator.
    pub(crate) fn check(self, machine: Machine) -> Result<(), Failure> {
        match (machine, self.seed) {
            (Machine::Host, Some(_)) => Err(Failure::WrongUse(
                "`--perturb` is for `--backend gpu`: on the host, `check` draws schedules that delay every thread"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

/// A group, and what became of its kernels.
pub(crate) struct Ranks {
    pub(crate) group: Group,
    compiled: Option<Arc<Compiled>>,
}

/// How many kernels a process compiled, and how many it found in the cache.
#[derive(Default)]
struct Compiled {
    made: AtomicU64,
    found: AtomicU64,
}

/// Ranks in the emulator.
pub(crate) fn host_backend(
    programs: &Arc<Programs>,
    ranks: usize,
    seed: u64,
) -> Result<Arc<HostBackend>, Failure> {
    let isolation = Some(HOST_LIMIT);
    let options = HostOptions { isolation, ..plain(0..ranks, ranks, seed) };
    HostBackend::new(programs, options).map_err(no_machine)
}

/// The ranks `local` of an emulator that checks no order of accesses.
fn plain(local: Range<usize>, ranks: usize, seed: u64) -> HostOptions {
    let mut options = HostOptions { local, build: Build::Plain, ..HostOptions::new(ranks) };
    options.spec.seed = seed;
    options
}

/// Options of a group in the emulator.
fn patient() -> GroupOptions {
    GroupOptions { timeout: host::TIMEOUT, ..GroupOptions::default() }
}

impl Ranks {
    /// Ranks in the emulator.
    pub(crate) fn on_host(
        programs: &Arc<Programs>,
        ranks: usize,
        seed: u64,
    ) -> Result<Ranks, Failure> {
        Ranks::on_host_with(programs, ranks, seed, false)
    }

    /// Ranks in the emulator. `leaves_out_absent` says whether calls that can do without a rank go on when that rank
    /// does not answer.
    pub(crate) fn on_host_with(
        programs: &Arc<Programs>,
        ranks: usize,
        seed: u64,
        leaves_out_absent: bool,
    ) -> Result<Ranks, Failure> {
        let backend = host_backend(programs, ranks, seed)?;
        let options = GroupOptions { leaves_out_absent, ..patient() };
        let group = Group::new(backend, options).map_err(failed)?;
        Ok(Ranks { group, compiled: None })
    }

    /// Nodes in the emulator, with models of cards between them.
    pub(crate) fn on_host_over_cards(
        programs: &Arc<Programs>,
        ranks: usize,
        nodes: usize,
        seed: u64,
    ) -> Result<Ranks, Failure> {
        // Not apart: what models of cards know would not come back from another process.
        let backend =
            HostBackend::new(programs, plain(0..ranks, ranks, seed)).map_err(no_machine)?;
        let group = Group::over_cards(&backend, nodes, &ModelOptions::default()).map_err(failed)?;
        Ok(Ranks { group, compiled: None })
    }

    /// The ranks `local` of one node in the emulator, in the group that `join` makes.
    pub(crate) fn on_host_of_node(
        programs: &Arc<Programs>,
        (local, ranks): (Range<usize>, usize),
        seed: u64,
        join: impl FnOnce(Arc<dyn Backend>, GroupOptions) -> Result<Group, CallError>,
    ) -> Result<Ranks, Failure> {
        let backend = HostBackend::new(programs, plain(local, ranks, seed)).map_err(no_machine)?;
        Ok(Ranks { group: join(backend, patient()).map_err(failed)?, compiled: None })
    }

    /// The rank of a process alone in its emulator, of a group that `store` brings together and `over` connects.
    pub(crate) fn on_host_of_process(
        programs: &Arc<Programs>,
        store: &Arc<Store>,
        nodes: usize,
        over: &Carrier,
        seed: u64,
    ) -> Result<Ranks, Failure> {
        let Member { rank, ranks } = store.member();
        let options = plain(rank..rank + 1, ranks, seed);
        let backend =
            HostBackend::join_node(programs, options, store, nodes).map_err(no_machine)?;
        let group = Group::over_store(backend, patient(), store, over).map_err(failed)?;
        Ok(Ranks { group, compiled: None })
    }

    /// Ranks on GPUs; a member of several processes joins the group of the environment.
    pub(crate) fn on_gpus(request: &GpuRequest) -> Result<Ranks, Failure> {
        Ranks::with(request, |compile, count| {
            if request.is_member {
                return processes::join(|rank| request.device(rank, count), compile);
            }
            let devices = (0..request.ranks).map(|rank| request.device(rank, count)).collect();
            GpuBackend::new(&request.options(devices), compile).map_err(no_machine)
        })
    }

    /// Ranks on GPUs of this process, each node of `each` ranks on one of them, with network cards that are kernels.
    pub(crate) fn over_cards(
        request: &GpuRequest,
        each: usize,
        cards: &ResidentOptions,
    ) -> Result<Ranks, Failure> {
        // The driver may run cooperative grids one after another, and so not beside the cards.
        let request =
            GpuRequest { cooperative: Some(false), kept_sms: RESIDENT_SMS, ..request.clone() };
        let open = |compile, count: usize| {
            let device = |rank: usize| i32::try_from(rank / each % count.max(1)).unwrap_or(0);
            let devices = (0..request.ranks).map(device).collect();
            GpuBackend::new(&request.options(devices), compile).map_err(no_machine)
        };
        let join = |backend, options| {
            let nodes = request.ranks / each;
            Group::over_resident_cards(backend, nodes, options, cards)
        };
        Ranks::joined(&request, open, join)
    }

    /// The ranks `local` of one node on GPUs, in the group that `join` makes.
    pub(crate) fn of_node(
        request: &GpuRequest,
        local: Range<usize>,
        join: impl FnOnce(Arc<dyn Backend>, GroupOptions) -> Result<Group, CallError>,
    ) -> Result<Ranks, Failure> {
        let open = |compile, count| {
            let devices = local.clone().map(|rank| request.device(rank, count)).collect();
            let (before, behind) = (local.start, request.ranks - local.end);
            let options = GpuOptions { before, behind, ..request.options(devices) };
            GpuBackend::new(&options, compile).map_err(no_machine)
        };
        Ranks::joined(request, open, join)
    }

    /// The rank of a process alone, of a group that `store` brings together and `over` connects.
    pub(crate) fn of_process(
        request: &GpuRequest,
        store: &Arc<Store>,
        nodes: usize,
        over: &Carrier,
    ) -> Result<Ranks, Failure> {
        let open = |compile, count| {
            let device = request.device(store.member().rank, count);
            let backend = GpuBackend::join_node(device, store, nodes, compile);
            Ok(over.beside(backend.map_err(no_machine)?, nodes))
        };
        let join = |backend, options| Group::over_store(backend, options, store, over);
        Ranks::joined(request, open, join)
    }

    /// The ranks that are left when `lost` has ended, in a group of their own.
    pub(crate) fn without(request: &GpuRequest, lost: usize) -> Result<Ranks, Failure> {
        Ranks::with(request, |compile, count| {
            processes::join_again(lost, |rank| request.device(rank, count), compile)
        })
    }

    fn with(
        request: &GpuRequest,
        open: impl FnOnce(Compile, usize) -> Result<GpuBackend, Failure>,
    ) -> Result<Ranks, Failure> {
        Ranks::joined(request, open, Group::new)
    }

    /// Those of a backend that `open` makes, and a group of it.
    fn joined(
        request: &GpuRequest,
        open: impl FnOnce(Compile, usize) -> Result<GpuBackend, Failure>,
        join: impl FnOnce(Arc<dyn Backend>, GroupOptions) -> Result<Group, CallError>,
    ) -> Result<Ranks, Failure> {
        let text = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
        let nvrtc = Nvrtc::find().map_err(|error| text(&error))?;
        let cache = Cache::at(None).map_err(|error| text(&error))?;
        let compiled = Arc::new(Compiled::default());
        let counted = Arc::clone(&compiled);
        let compile = gpu::compile_noting(Arc::new(Jit::new(nvrtc, cache)), move |was_cached| {
            let count = if was_cached { &counted.found } else { &counted.made };
            count.fetch_add(1, Ordering::Relaxed);
        });
        let compile = match request.perturb {
            Some(seed) => perturbing(compile, seed),
            None => compile,
        };
        let backend: Arc<dyn Backend> = Arc::new(open(compile, gpus()?)?);
        let GpuRequest { timeout, leaves_out_absent, .. } = *request;
        let options = GroupOptions { timeout, leaves_out_absent };
        let group = join(backend, options).map_err(failed)?;
        Ok(Ranks { group, compiled: Some(compiled) })
    }

    /// Ranks that this process drives.
    pub(crate) fn local(&self) -> Range<usize> {
        self.group.local()
    }

    /// Whether this process is the one of several that reports.
    pub(crate) fn is_first(&self) -> bool {
        self.local().contains(&0)
    }

    /// SMs that each rank may fill.
    pub(crate) fn sms(&self) -> u32 {
        self.group.backend().sms(self.local().start)
    }

    /// Kernels that all processes of the group have compiled, and those that they have found in
    /// the cache. None on the host.
    pub(crate) fn compiled(&self) -> Result<Option<(u64, u64)>, Failure> {
        let Some(compiled) = &self.compiled else { return Ok(None) };
        let all = |label: &str, count: &AtomicU64| {
            let all = self.group.backend().gather(label, count.load(Ordering::Relaxed));
            all.map(|all| all.into_iter().sum()).map_err(no_machine)
        };
        let made = all("compiled kernels", &compiled.made)?;
        Ok(Some((made, all("cached kernels", &compiled.found)?)))
    }
}

/// Says what the cache of host kernels could not do; everything is right all the same.
pub(crate) fn warn(programs: &Programs, err: &mut dyn Write) {
    for warning in programs.warnings() {
        // When nobody reads the warnings there is nobody to tell.
        let _ = writeln!(err, "warning: {warning}");
    }
}

/// How many GPUs this machine has.
pub(crate) fn gpus() -> Result<usize, Failure> {
    gpu::devices().map(|devices| devices.len()).map_err(no_machine)
}

/// How many GPUs there have to be: what `EP_REQUIRE_GPUS` says.
pub(crate) fn required_gpus() -> Result<usize, Failure> {
    let Some(value) = std::env::var_os(REQUIRED) else { return Ok(0) };
    let number = value.to_str().and_then(|value| value.parse().ok());
    number.ok_or_else(|| {
        let value = value.to_string_lossy();
        Failure::WrongUse(format!("{REQUIRED} is a number of GPUs, not `{value}`"))
    })
}
