//! Ranks on GPUs, through the CUDA driver: all of a group in one process, or one per process.
//!
//! Every rank has a device and a stream of its own. Several ranks may share one device, so that correctness
//! tests run on a single GPU. Sharing a device has three consequences. The blocks of all ranks have to be
//! resident together, so each rank gets its share of the SMs. Kernels are launched without the cooperative
//! attribute, because the driver may run cooperative grids of one device one after another, while ours wait
//! for each other. The streams of all ranks need their own work queues; there are 8 unless
//! `CUDA_DEVICE_MAX_CONNECTIONS` says more when the process first uses CUDA.
//!
//! Each call makes the context of its rank current on the calling thread and leaves it current.

mod calls;
mod capture;
#[cfg(target_os = "linux")]
mod cards;
mod companions;
mod driver;
mod kernel;
#[cfg(target_os = "linux")]
mod processes;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use cudarc::driver::sys;
use ep_codegen::plan::Arch;

#[cfg(target_os = "linux")]
pub(crate) use cards::has_peer_memory;
#[cfg(target_os = "linux")]
pub(crate) use driver::place;
pub use driver::{DeviceInfo, devices, loads_lazily};
pub use window::{EXCHANGE_VARIABLE, Exchange, Sharing};

use crate::backend::{Backend, BackendError, Image, Mapping, Stream};
use crate::device::HEADERS;
use crate::jit::{CudaSource, Jit, JitError};
use capture::Relaxed;
use companions::Companions;
use driver::check;
use kernel::Kernel;
use window::{RankWindow, Reach};

/// Turns emitted text into a CUBIN: the JIT, or a table of images made elsewhere.
pub type Compile = Box<dyn Fn(&str, &str, Arch) -> Result<Image, BackendError> + Send + Sync>;

/// Compiles with `jit` against the device library that this crate carries.
pub fn compile_with(jit: Arc<Jit>) -> Compile {
    compile_noting(jit, |_| ())
}

/// As [`compile_with`], and calls `note` once per kernel with whether the cache had it.
pub fn compile_noting(jit: Arc<Jit>, note: impl Fn(bool) + Send + Sync + 'static) -> Compile {
    let noted = Mutex::new(BTreeSet::new());
    Box::new(move |name, cuda, arch| {
        let file = format!("{name}.cu");
        let source = CudaSource { name: &file, text: cuda, headers: HEADERS };
        let failed = |error: JitError| BackendError::Compile {
            name: name.to_string(),
            log: error.to_string(),
        };
        let compiled = jit.compile(&source, arch, &[]).map_err(failed)?;
        if noted.lock().unwrap_or_else(PoisonError::into_inner).insert(compiled.key) {
            note(compiled.cached);
        }
        Ok(compiled.cubin.as_slice().into())
    })
}

/// Options of the ranks of a process on GPUs.
#[derive(Debug, Clone, Default)]
pub struct GpuOptions {
    /// Device of each rank of this process, by ordinal; a device may appear more than once.
    pub devices: Vec<i32>,
    /// Number of ranks of other nodes that come before these ranks; they are reached over a network.
    pub before: usize,
    /// Number of ranks of other nodes that come after these ranks.
    pub behind: usize,
    /// How windows are shared.
    pub sharing: Sharing,
    /// Whether launches get the cooperative attribute; `None`: only if no device is shared.
    pub cooperative: Option<bool>,
    /// SMs of each device that ranks do not fill, for kernels that run beside theirs. If there are any, a rank can have
    /// only one block on each of its SMs.
    pub kept_sms: u32,
}

impl GpuOptions {
    /// `ranks` ranks, assigned to the devices of this machine in turn.
    pub fn spread(ranks: usize) -> Result<GpuOptions, BackendError> {
        let count = devices()?.len().max(1);
        let devices = (0..ranks).map(|rank| (rank % count) as i32).collect();
        Ok(GpuOptions { devices, ..GpuOptions::default() })
    }
}

/// The ranks of a group that live in other processes.
trait Others: Send + Sync {
    /// Waits until every process has come to this step, and gives what each brought.
    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError>;

    /// Says what this process does next.
    fn say(&self, doing: &str);

    /// Whether the process of a rank is gone.
    fn has_left(&self, rank: usize) -> bool;

    /// Gives this process' window to the other ranks `among` and maps theirs for the device `user`; the windows of all
    /// of these come back in order. On failure the own window is released.
    fn share(
        &self,
        label: &str,
        user: c_int,
        own: RankWindow,
        among: Range<usize>,
    ) -> Result<Vec<RankWindow>, BackendError>;
}

/// The windows of some ranks, in order.
struct Windows {
    ranks: Range<usize>,
    all: Vec<RankWindow>,
}

/// The ranks of this process on its GPUs.
pub struct GpuBackend {
    /// Local ranks, from number `first` on, of `total` in the group.
    ranks: Vec<Rank>,
    first: usize,
    total: usize,
    /// The ranks whose windows these reach.
    node: Range<usize>,
    others: Option<Box<dyn Others>>,
    /// How windows go to these.
    exchange: Exchange,
    devices: BTreeMap<i32, DeviceInfo>,
    arch: Arch,
    cooperative: bool,
    kept_sms: u32,
    sharing: Sharing,
    companions: Arc<Companions>,
    compile: Compile,
    /// By code; `None` once unloaded.
    kernels: RwLock<Vec<Option<Kernel>>>,
    windows: Mutex<BTreeMap<u64, Windows>>,
}

/// One rank: its device, the device's primary context and the rank's own stream.
struct Rank {
    ordinal: i32,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// Ranks on the same device, this one included.
    sharers: u32,
}

// SAFETY: driver handles (contexts, streams, modules, functions) belong to the process, not to a
// thread; the driver API may be called with them from any thread at any time.
unsafe impl Send for GpuBackend {}
// SAFETY: as above; what is mutable on our side is behind locks.
unsafe impl Sync for GpuBackend {}

impl GpuBackend {
    /// Opens the devices of `options`, one rank per entry, all in this process.
    pub fn new(options: &GpuOptions, compile: Compile) -> Result<GpuBackend, BackendError> {
        let mut backend = GpuBackend::open(&options.devices, compile)?;
        require_reach(&backend.devices, options.sharing)?;
        let shared = backend.devices.len() < options.devices.len();
        backend.first = options.before;
        let behind = options.before + options.devices.len();
        backend.node = options.before..behind;
        backend.total = behind + options.behind;
        backend.cooperative = options.cooperative.unwrap_or(!shared);
        backend.kept_sms = options.kept_sms;
        backend.sharing = options.sharing;
        // Ranks are added one by one, so that Drop releases exactly what was opened.
        for (index, ordinal) in options.devices.iter().enumerate() {
            let sharers = options.devices.iter().filter(|other| *other == ordinal).count();
            let rank = options.before + index;
            backend.ranks.push(Rank::open(rank, *ordinal, sharers as u32)?);
        }
        if options.sharing == Sharing::PeerAccess {
            backend.enable_peers()?;
        }
        Ok(backend)
    }

    /// A backend for these devices, without ranks.
    fn open(ordinals: &[i32], compile: Compile) -> Result<GpuBackend, BackendError> {
        let present = devices()?;
        let mut chosen = BTreeMap::new();
        for ordinal in ordinals {
            let device = present.iter().find(|device| device.ordinal == *ordinal);
            let Some(device) = device else {
                let what = format!("GPU {ordinal} does not exist: {} are visible", present.len());
                return Err(BackendError::Missing { what });
            };
            chosen.insert(*ordinal, device.clone());
        }
        Ok(GpuBackend {
            ranks: Vec::new(),
            first: 0,
            total: 0,
            node: 0..0,
            others: None,
            exchange: Exchange::Descriptors,
            arch: common_arch(&chosen)?,
            devices: chosen,
            cooperative: true,
            kept_sms: 0,
            sharing: Sharing::Mapped,
            companions: Arc::default(),
            compile,
            kernels: RwLock::default(),
            windows: Mutex::default(),
        })
    }

    fn rank(&self, rank: usize) -> Option<&Rank> {
        self.ranks.get(rank.checked_sub(self.first)?)
    }

    /// The rank, with its context current.
    fn enter(&self, rank: usize) -> Result<&Rank, BackendError> {
        let found = self.rank(rank).ok_or_else(|| BackendError::Wrong {
            what: format!("rank {rank} is not local: this process drives {:?}", self.local()),
        })?;
        // SAFETY: the context was retained when the rank was opened and lives as long as it.
        check("cuCtxSetCurrent", Some(rank), unsafe { sys::cuCtxSetCurrent(found.context) })?;
        Ok(found)
    }

    /// The rank, with its context current. Until the returned `Relaxed` is dropped, the calling thread may do
    /// what would end a capture elsewhere.
    fn enter_relaxed(&self, rank: usize) -> Result<(&Rank, Relaxed), BackendError> {
        Ok((self.enter(rank)?, capture::relaxed()))
    }

    fn enable_peers(&self) -> Result<(), BackendError> {
        for rank in self.local() {
            let own = self.enter(rank)?;
            for peer in self.ranks.iter().filter(|peer| peer.ordinal != own.ordinal) {
                // SAFETY: both contexts are retained; the own one is current.
                let result = unsafe { sys::cuCtxEnablePeerAccess(peer.context, 0) };
                if result != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
                    check("cuCtxEnablePeerAccess", Some(rank), result)?;
                }
            }
        }
        Ok(())
    }

    fn windows(&self) -> MutexGuard<'_, BTreeMap<u64, Windows>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps a zeroed window on the ranks `among`: those of this process, or of several.
    fn map(&self, label: &str, bytes: u64, among: Range<usize>) -> Result<Mapping, BackendError> {
        let _relaxed = capture::relaxed();
        let made = self.make_windows(label, bytes, among)?;
        // The other ranks have no address here.
        let mut bases = vec![0; self.total];
        for (base, window) in bases[made.ranks.clone()].iter_mut().zip(&made.all) {
            *base = window.address;
        }
        let mut windows = self.windows();
        let id = windows.keys().next_back().map_or(0, |last| last + 1);
        windows.insert(id, made);
        // One address space for all devices of the process: its ranks see the same addresses.
        Ok(Mapping { id, bytes, bases: vec![bases; self.ranks.len()] })
    }

    /// The windows of the ranks `among`, zeroed; what was made is undone when a later one fails.
    fn make_windows(
        &self,
        label: &str,
        bytes: u64,
        among: Range<usize>,
    ) -> Result<Windows, BackendError> {
        let users: Vec<c_int> = self.devices.keys().copied().collect();
        let reach = match &self.others {
            Some(_) => Reach::Processes(self.exchange),
            None => Reach::Devices(&users, self.sharing),
        };
        let mut made = Windows { ranks: self.local(), all: Vec::new() };
        let result = self.local().try_for_each(|rank| {
            let ordinal = self.enter(rank)?.ordinal;
            let window = RankWindow::new(rank, ordinal, reach, bytes)?;
            let address = window.address;
            made.all.push(window);
            self.fill(rank, Stream::OWN, address, 0, bytes)
        });
        let zeroed =
            result.and_then(|()| self.local().try_for_each(|rank| self.sync(rank, Stream::OWN)));
        if let Err(error) = zeroed {
            self.release_windows(made).ok();
            return Err(error);
        }
        let Some(others) = &self.others else { return Ok(made) };
        let Some(own) = made.all.pop() else { return Ok(made) };
        let user = users.first().copied().unwrap_or(0);
        let all = others.share(label, user, own, among.clone())?;
        let windows = Windows { ranks: among, all };
        match others.gather(label, bytes) {
            Ok(_) => Ok(windows),
            Err(error) => {
                self.release_windows(windows).ok();
                Err(error)
            }
        }
    }

    /// Closes a window that was exchanged by CUDA IPC. The own part is freed when all processes have
    /// closed it, and stays allocated if one of them does not come.
    fn close_windows(&self, id: u64, windows: Windows) -> Result<(), BackendError> {
        let Windows { ranks, mut all } = windows;
        let own = self.first - ranks.start;
        let own = (own < all.len()).then(|| all.remove(own));
        self.enter(self.first)?;
        let mut result = Ok(());
        let others = ranks.filter(|rank| *rank != self.first);
        for (rank, window) in others.zip(all) {
            result = result.and(window.release(rank));
        }
        result?;
        let closed = self.gather(&format!("close window {id}"), id);
        match own.filter(|_| closed.is_ok()) {
            Some(own) => own.release(self.first),
            None => closed.map(|_| ()),
        }
    }

    /// Unmaps windows; memory lives on while another process has it mapped. Exchanged by CUDA IPC it does
    /// not, so that the own part is left allocated here.
    fn release_windows(&self, windows: Windows) -> Result<(), BackendError> {
        let mut result = Ok(());
        for (rank, window) in windows.ranks.zip(windows.all) {
            if self.exchange == Exchange::Ipc && self.local().contains(&rank) {
                continue;
            }
            let context = if self.local().contains(&rank) { rank } else { self.first };
            let released = self.enter(context).and_then(|_| window.release(rank));
            result = result.and(released);
        }
        result
    }
}

/// The one target of all devices.
fn common_arch(devices: &BTreeMap<i32, DeviceInfo>) -> Result<Arch, BackendError> {
    let mut arch = None;
    for device in devices.values() {
        let Some(own) = device.arch else {
            let (major, minor) = device.capability;
            let what = format!(
                "{} has compute capability {major}.{minor}, for which there is no target",
                device.name
            );
            return Err(BackendError::Missing { what });
        };
        if arch.is_some_and(|arch| arch != own) {
            let what = "all GPUs of a group have to be of the same architecture".to_string();
            return Err(BackendError::Missing { what });
        }
        arch = Some(own);
    }
    arch.ok_or_else(|| BackendError::Wrong { what: "a group needs at least one rank".to_string() })
}

/// Every device can reach every other one.
fn require_reach(
    devices: &BTreeMap<i32, DeviceInfo>,
    sharing: Sharing,
) -> Result<(), BackendError> {
    for from in devices.keys() {
        if sharing == Sharing::Mapped && !driver::maps_memory(*from)? {
            let what = format!("GPU {from} has no virtual memory management; use peer access");
            return Err(BackendError::Missing { what });
        }
        for to in devices.keys().filter(|to| *to != from) {
            if !driver::reaches(*from, *to)? {
                let what = format!("GPU {from} cannot reach the memory of GPU {to}");
                return Err(BackendError::Missing { what });
            }
            // Counters of rings and slots are added to where they lie.
            if !driver::adds(*from, *to)? {
                let what = format!(
                    "GPU {from} has no atomic operations on the memory of GPU {to}, which kernels need: \
                     there is no NVLink between them"
                );
                return Err(BackendError::Missing { what });
            }
        }
    }
    Ok(())
}

impl Rank {
    fn open(rank: usize, ordinal: i32, sharers: u32) -> Result<Rank, BackendError> {
        let device = driver::handle(ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle; the retain is undone in Drop.
        let result = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) };
        check("cuDevicePrimaryCtxRetain", Some(rank), result)?;
        let mut opened = Rank { ordinal, context, stream: ptr::null_mut(), sharers };
        // SAFETY: the context was just retained.
        check("cuCtxSetCurrent", Some(rank), unsafe { sys::cuCtxSetCurrent(context) })?;
        // Not blocking: work on the legacy default stream of some library must not order ranks.
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle; destroyed in Drop.
        let result = unsafe { sys::cuStreamCreate(&mut opened.stream, flags) };
        check("cuStreamCreate", Some(rank), result)?;
        Ok(opened)
    }

    fn queue(&self, stream: Stream) -> sys::CUstream {
        match stream.raw() {
            0 => self.stream,
            handle => handle as sys::CUstream,
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _relaxed = capture::relaxed();
        // SAFETY: the context was retained once and the stream created once by `open`; the device
        // handle is derived again from the same ordinal. Errors leave nothing to do: the process
        // loses the device at its end.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            if !self.stream.is_null() {
                let _ = sys::cuStreamSynchronize(self.stream);
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
            if let Ok(device) = driver::handle(self.ordinal) {
                let _ = sys::cuDevicePrimaryCtxRelease_v2(device);
            }
        }
    }
}

impl Drop for GpuBackend {
    fn drop(&mut self) {
        let _relaxed = capture::relaxed();
        let windows = std::mem::take(&mut *self.windows());
        for (_, windows) in windows {
            let _ = self.release_windows(windows);
        }
        let kernels = std::mem::take(&mut *calls::write(&self.kernels));
        for kernel in kernels.into_iter().flatten() {
            if let Ok(own) = self.enter(kernel.rank).map(|rank| rank.stream) {
                // SAFETY: the rank lives until its field is dropped after this; unloading code that
                // still runs is what the wait avoids.
                unsafe {
                    let _ = sys::cuStreamSynchronize(own);
                }
                kernel.unload();
            }
        }
    }
}
