//! The calls of [`Backend`] on GPUs, each made through the driver.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use cudarc::driver::sys;
use ep_codegen::plan::Arch;

#[cfg(target_os = "linux")]
use super::cards;
use super::driver::check;
use super::kernel::Kernel;
use super::window::Exchange;
use super::{GpuBackend, capture};
#[cfg(target_os = "linux")]
use crate::backend::CardAccess;
use crate::backend::{
    Accompanied, Backend, BackendError, Block, Capture, Captured, Code, Companion, Event,
    HostBlock, Image, Kept, KernelLaunch, Mapping, RowCopy, Stream,
};

impl Backend for GpuBackend {
    fn name(&self) -> String {
        let names: Vec<&str> = self.devices.values().map(|device| device.name.as_str()).collect();
        format!("{} x {}", names.len(), names.first().copied().unwrap_or("no GPU"))
    }

    fn ranks(&self) -> usize {
        self.total
    }

    fn local(&self) -> Range<usize> {
        self.first..self.first + self.ranks.len()
    }

    fn node(&self) -> Range<usize> {
        self.node.clone()
    }

    fn gather(&self, label: &str, value: u64) -> Result<Vec<u64>, BackendError> {
        self.others.as_ref().map_or(Ok(vec![value]), |others| others.gather(label, value))
    }

    fn say(&self, doing: &str) {
        if let Some(others) = &self.others {
            others.say(doing);
        }
    }

    fn has_left(&self, rank: usize) -> bool {
        self.others.as_ref().is_some_and(|others| others.has_left(rank))
    }

    fn arch(&self) -> Arch {
        self.arch
    }

    fn sms(&self, rank: usize) -> u32 {
        let Some(rank) = self.rank(rank) else { return 0 };
        let device = self.devices.get(&rank.ordinal);
        device.map_or(0, |device| device.sms.saturating_sub(self.kept_sms) / rank.sharers.max(1))
    }

    fn device(&self, rank: usize) -> Option<i32> {
        self.rank(rank).map(|own| own.ordinal)
    }

    fn runs_alone(&self) -> bool {
        true
    }

    fn compile(&self, name: &str, cuda: &str) -> Result<Image, BackendError> {
        (self.compile)(name, cuda, self.arch)
    }

    fn load(
        &self,
        rank: usize,
        image: &Image,
        entry: &str,
        block: Block,
    ) -> Result<Code, BackendError> {
        // The device gives each block an SM of its own as long as it can, and a block of a companion needs a whole one.
        let each = if self.kept_sms > 0 { 1 } else { u32::MAX };
        let share = (self.sms(rank), each);
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        let kernel = Kernel::load(rank, image, entry, block, share)?;
        let mut kernels = write(&self.kernels);
        kernels.push(Some(kernel));
        Ok(Code(kernels.len() as u64 - 1))
    }

    fn unload(&self, rank: usize, code: Code) -> Result<(), BackendError> {
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        // Unloading may wait for the device, so the lock that launches need is not held meanwhile.
        let taken = {
            let mut kernels = write(&self.kernels);
            let own = kernels.get_mut(code.0 as usize).filter(|slot| belongs(slot, rank));
            own.and_then(Option::take)
        };
        match taken {
            Some(kernel) => {
                kernel.unload();
                Ok(())
            }
            None => Err(not_loaded(code, rank)),
        }
    }

    fn alloc(&self, rank: usize, bytes: u64) -> Result<u64, BackendError> {
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        let mut address = 0;
        // SAFETY: writes one address; the rank's context is current.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1) as usize) };
        check("cuMemAlloc", Some(rank), result)?;
        Ok(address)
    }

    fn free(&self, rank: usize, address: u64) -> Result<(), BackendError> {
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        // SAFETY: the driver refuses an address that it did not allocate.
        check("cuMemFree", Some(rank), unsafe { sys::cuMemFree_v2(address) })
    }

    fn write(&self, rank: usize, to: u64, from: &[u8]) -> Result<(), BackendError> {
        let (own, _relaxed) = self.enter_relaxed(rank)?;
        if from.is_empty() {
            return Ok(());
        }
        let bytes = from.len();
        // SAFETY: `from` is valid for `bytes`; it is pageable, so the driver has copied it when the
        // call returns. A wrong device address is refused or fails the context, not the host.
        let result =
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), bytes, own.stream) };
        check("cuMemcpyHtoDAsync", Some(rank), result)?;
        // A caller may pass page-locked memory after all, which the copy would read later.
        self.sync(rank, Stream::OWN)
    }

    fn read(&self, rank: usize, from: u64, to: &mut [u8]) -> Result<(), BackendError> {
        let (own, _relaxed) = self.enter_relaxed(rank)?;
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: `to` is valid for its length, and the stream is waited for before it is used.
        let result = unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), own.stream)
        };
        check("cuMemcpyDtoHAsync", Some(rank), result)?;
        self.sync(rank, Stream::OWN)
    }

    fn fill(
        &self,
        rank: usize,
        stream: Stream,
        at: u64,
        byte: u8,
        bytes: u64,
    ) -> Result<(), BackendError> {
        let own = self.enter(rank)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: writes device memory only; a wrong address fails the context, not the host.
        let result = unsafe { sys::cuMemsetD8Async(at, byte, bytes as usize, own.queue(stream)) };
        check("cuMemsetD8Async", Some(rank), result)
    }

    fn copy_rows(&self, rank: usize, stream: Stream, copy: &RowCopy) -> Result<(), BackendError> {
        let own = self.enter(rank)?;
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        if copy.rows == 0 || copy.row_bytes == 0 {
            return Ok(());
        }
        let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        let described = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: device,
            srcHost: ptr::null(),
            srcDevice: copy.from,
            srcArray: ptr::null_mut(),
            srcPitch: size(copy.from_stride),
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: device,
            dstHost: ptr::null_mut(),
            dstDevice: copy.to,
            dstArray: ptr::null_mut(),
            dstPitch: size(copy.to_stride),
            WidthInBytes: size(copy.row_bytes),
            Height: size(copy.rows),
        };
        // SAFETY: reads the description; both ends are device memory, and a wrong address fails the
        // context, not the host.
        let result = unsafe { sys::cuMemcpy2DAsync_v2(&described, own.queue(stream)) };
        check("cuMemcpy2DAsync", Some(rank), result)
    }

    fn alloc_host(&self, rank: usize, bytes: u64) -> Result<HostBlock, BackendError> {
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        let bytes = bytes.max(4).next_multiple_of(4);
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        let mut host: *mut c_void = ptr::null_mut();
        // SAFETY: writes one address of `bytes` page-locked bytes.
        let result = unsafe { sys::cuMemHostAlloc(&mut host, bytes as usize, flags) };
        check("cuMemHostAlloc", Some(rank), result)?;
        let mut device = 0;
        // SAFETY: `host` was just allocated with DEVICEMAP; then zeroed before anyone knows it.
        let result = unsafe {
            ptr::write_bytes(host.cast::<u8>(), 0, bytes as usize);
            sys::cuMemHostGetDevicePointer_v2(&mut device, host, 0)
        };
        let block = HostBlock { host: host as u64, device, bytes };
        if let Err(error) = check("cuMemHostGetDevicePointer", Some(rank), result) {
            let _ = self.free_host(rank, block);
            return Err(error);
        }
        Ok(block)
    }

    fn free_host(&self, rank: usize, block: HostBlock) -> Result<(), BackendError> {
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        if block.host == 0 {
            return Ok(());
        }
        // SAFETY: only `alloc_host` makes blocks, they cannot be copied, and this consumes it.
        check("cuMemFreeHost", Some(rank), unsafe { sys::cuMemFreeHost(block.host as *mut c_void) })
    }

    fn read_host(&self, block: &HostBlock, at: u64, to: &mut [u32]) -> Result<(), BackendError> {
        let from = words(block, at, to.len())?;
        for (index, word) in to.iter_mut().enumerate() {
            // SAFETY: `words` checked the range; the block is alive since it is borrowed. Volatile:
            // a kernel may write the word meanwhile.
            *word = unsafe { from.add(index).read_volatile() };
        }
        Ok(())
    }

    fn write_host(&self, block: &HostBlock, at: u64, from: &[u32]) -> Result<(), BackendError> {
        let to = words(block, at, from.len())?;
        for (index, word) in from.iter().enumerate() {
            // SAFETY: as in `read_host`.
            unsafe { to.add(index).write_volatile(*word) };
        }
        Ok(())
    }

    #[cfg(target_os = "linux")]
    fn reach_by_card(&self, rank: usize, at: u64, bytes: u64) -> Result<CardAccess, BackendError> {
        let (own, _relaxed) = self.enter_relaxed(rank)?;
        let ordinal = own.ordinal;
        cards::reach(rank, ordinal, (at, bytes))
    }

    #[cfg(target_os = "linux")]
    fn map_registers(&self, rank: usize, host: u64, bytes: u64) -> Result<u64, BackendError> {
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        cards::map(rank, host, bytes)
    }

    #[cfg(target_os = "linux")]
    fn unmap_registers(&self, rank: usize, host: u64) -> Result<(), BackendError> {
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        cards::unmap(rank, host)
    }

    fn map_window(&self, bytes: u64) -> Result<Mapping, BackendError> {
        self.map(&format!("map a window of {bytes} bytes"), bytes, self.node.clone())
    }

    fn map_machine_window(&self, bytes: u64) -> Result<Mapping, BackendError> {
        if self.others.is_none() && self.local().len() < self.total {
            let what = "the ranks of other nodes are in processes that have joined no store";
            return Err(BackendError::Missing { what: what.to_string() });
        }
        let label = format!("map a window of {bytes} bytes on all ranks");
        self.map(&label, bytes, 0..self.total)
    }

    fn unmap_window(&self, mapping: &Mapping) -> Result<(), BackendError> {
        let _relaxed = capture::relaxed();
        let windows = self.windows().remove(&mapping.id).ok_or_else(|| BackendError::Wrong {
            what: format!("window {} is not mapped", mapping.id),
        })?;
        match self.exchange {
            Exchange::Ipc => self.close_windows(mapping.id, windows),
            Exchange::Descriptors => self.release_windows(windows),
        }
    }

    fn resident(&self, rank: usize, code: Code) -> Result<(u32, Block), BackendError> {
        let kernels = read(&self.kernels);
        Ok(loaded(&kernels, rank, code)?.resident())
    }

    fn enqueue(
        &self,
        rank: usize,
        stream: Stream,
        launch: &KernelLaunch,
    ) -> Result<(), BackendError> {
        let own = self.enter(rank)?;
        // A launch may wait for another rank's, so the lock that loading needs is not held meanwhile.
        let function = loaded(&read(&self.kernels), rank, launch.code)?.function();
        let cooperative = self.cooperative && launch.waits;
        let comes_early = launch.enters && self.arch.has_early_launch();
        let queue = own.queue(stream);
        self.beside(rank, queue, || function.launch(queue, launch, [cooperative, comes_early]))
    }

    fn accompany(&self, companion: Companion) -> Result<Box<dyn Accompanied>, BackendError> {
        let function = loaded(&read(&self.kernels), companion.rank, companion.code)?.function();
        let (own, _relaxed) = self.enter_relaxed(companion.rank)?;
        self.companions.add(own.context, function, companion)
    }

    fn capture(&self, rank: usize, stream: Stream) -> Result<Option<Capture>, BackendError> {
        let own = self.enter(rank)?;
        Ok(capture::of(rank, own.queue(stream))?.map(|open| open.capture))
    }

    fn begin_capture(&self, rank: usize, stream: Stream) -> Result<(), BackendError> {
        capture::begin(rank, self.enter(rank)?.queue(stream))
    }

    fn end_capture(&self, rank: usize, stream: Stream) -> Result<Captured, BackendError> {
        capture::end(rank, self.enter(rank)?.queue(stream))
    }

    fn keep(&self, rank: usize, stream: Stream, kept: Kept) -> Result<(), BackendError> {
        let own = self.enter(rank)?;
        let open = capture::of(rank, own.queue(stream))?.ok_or_else(|| BackendError::Wrong {
            what: format!("the stream of rank {rank} captures nothing"),
        })?;
        capture::keep(rank, &open, kept)
    }

    fn replay(&self, rank: usize, stream: Stream, captured: &Captured) -> Result<(), BackendError> {
        let queue = self.enter(rank)?.queue(stream);
        self.beside(rank, queue, || capture::replay(rank, queue, captured))
    }

    fn destroy_captured(&self, rank: usize, captured: Captured) -> Result<(), BackendError> {
        self.enter(rank)?;
        capture::destroy(rank, captured)
    }

    fn sync(&self, rank: usize, stream: Stream) -> Result<(), BackendError> {
        let (own, _relaxed) = self.enter_relaxed(rank)?;
        // SAFETY: the stream is the rank's own, or the caller vouched for it in `Stream::from_raw`.
        let result = unsafe { sys::cuStreamSynchronize(own.queue(stream)) };
        check("cuStreamSynchronize", Some(rank), result)
    }

    fn poll(&self, rank: usize) -> Result<(), BackendError> {
        let (own, _relaxed) = self.enter_relaxed(rank)?;
        // Asking a stream that is being captured would end the capture.
        if capture::of(rank, own.stream)?.is_some() {
            return Ok(());
        }
        // SAFETY: the stream lives as long as the rank.
        let result = unsafe { sys::cuStreamQuery(own.stream) };
        match result {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(()),
            result => check("cuStreamQuery", Some(rank), result),
        }
    }

    fn create_stream(&self, rank: usize) -> Result<Stream, BackendError> {
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        let mut stream = ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle, which belongs to the context that is current.
        let result = unsafe { sys::cuStreamCreate(&mut stream, flags) };
        check("cuStreamCreate", Some(rank), result)?;
        // SAFETY: a stream of this rank's device, alive until `destroy_stream`.
        Ok(unsafe { Stream::from_raw(stream as u64) })
    }

    fn destroy_stream(&self, rank: usize, stream: Stream) -> Result<(), BackendError> {
        if stream == Stream::OWN {
            return Ok(());
        }
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        // SAFETY: only `create_stream` makes streams for this backend to destroy, and its caller is
        // done with this one.
        let result = unsafe { sys::cuStreamDestroy_v2(stream.raw() as sys::CUstream) };
        check("cuStreamDestroy", Some(rank), result)
    }

    fn stream_number(&self, rank: usize, stream: Stream) -> Option<u64> {
        let own = self.enter(rank).ok()?;
        let mut number = 0;
        // SAFETY: writes one number; the stream as in `sync`.
        let result = unsafe { sys::cuStreamGetId(own.queue(stream), &mut number) };
        check("cuStreamGetId", Some(rank), result).ok().map(|()| number)
    }

    fn create_mark(&self, rank: usize) -> Result<Event, BackendError> {
        self.new_event(rank, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    fn create_event(&self, rank: usize) -> Result<Event, BackendError> {
        self.new_event(rank, 0)
    }

    fn destroy_event(&self, rank: usize, event: Event) -> Result<(), BackendError> {
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        // SAFETY: only `create_event` makes events, they cannot be copied, and this consumes it.
        let result = unsafe { sys::cuEventDestroy_v2(event.0 as sys::CUevent) };
        check("cuEventDestroy", Some(rank), result)
    }

    fn record(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError> {
        let own = self.enter(rank)?;
        // SAFETY: the event is alive since it is borrowed; the stream as in `sync`.
        let result = unsafe { sys::cuEventRecord(event.0 as sys::CUevent, own.queue(stream)) };
        check("cuEventRecord", Some(rank), result)
    }

    fn wait_event(&self, rank: usize, stream: Stream, event: &Event) -> Result<(), BackendError> {
        let own = self.enter(rank)?;
        // SAFETY: as in `record`.
        let result =
            unsafe { sys::cuStreamWaitEvent(own.queue(stream), event.0 as sys::CUevent, 0) };
        check("cuStreamWaitEvent", Some(rank), result)
    }

    fn elapsed(&self, rank: usize, from: &Event, to: &Event) -> Result<Duration, BackendError> {
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        let mut milliseconds = 0.0f32;
        // SAFETY: writes one float; both events are alive since they are borrowed.
        let result = unsafe {
            sys::cuEventElapsedTime_v2(
                &mut milliseconds,
                from.0 as sys::CUevent,
                to.0 as sys::CUevent,
            )
        };
        check("cuEventElapsedTime", Some(rank), result)?;
        Ok(Duration::from_nanos((f64::from(milliseconds.max(0.0)) * 1e6) as u64))
    }

    fn hold(
        &self,
        rank: usize,
        stream: Stream,
        block: &HostBlock,
        at: u64,
        value: u32,
    ) -> Result<(), BackendError> {
        words(block, at, 1)?;
        let own = self.enter(rank)?;
        let at_least = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: the word lies inside a live block that the device can reach.
        let result = unsafe {
            sys::cuStreamWaitValue32_v2(own.queue(stream), block.device + at, value, at_least)
        };
        check("cuStreamWaitValue32", Some(rank), result)
    }
}

impl GpuBackend {
    /// Launches into a stream, beside the companions if there are any and the launch runs now.
    fn beside(
        &self,
        rank: usize,
        stream: sys::CUstream,
        launch: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let own = self.enter(rank)?;
        if !self.companions.has_any() || capture::of(rank, stream)?.is_some() {
            return launch();
        }
        self.companions.beside((rank, own.context), stream, launch)
    }

    fn new_event(&self, rank: usize, flags: u32) -> Result<Event, BackendError> {
        let (_, _relaxed) = self.enter_relaxed(rank)?;
        let mut event = ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuEventCreate", Some(rank), unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(Event(event as u64))
    }
}

pub(super) fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn belongs(slot: &Option<Kernel>, rank: usize) -> bool {
    slot.as_ref().is_some_and(|kernel| kernel.rank == rank)
}

fn loaded(kernels: &[Option<Kernel>], rank: usize, code: Code) -> Result<&Kernel, BackendError> {
    let kernel = kernels.get(code.0 as usize).filter(|slot| belongs(slot, rank));
    kernel.and_then(Option::as_ref).ok_or_else(|| not_loaded(code, rank))
}

fn not_loaded(code: Code, rank: usize) -> BackendError {
    BackendError::Wrong { what: format!("kernel {} is not loaded for rank {rank}", code.0) }
}

/// The host address of `count` words at byte `at` of a block.
fn words(block: &HostBlock, at: u64, count: usize) -> Result<*mut u32, BackendError> {
    let end = at.checked_add(4 * count as u64);
    if !at.is_multiple_of(4) || end.is_none_or(|end| end > block.bytes) {
        let what = format!("{count} words at {at} are outside of a block of {} bytes", block.bytes);
        return Err(BackendError::Wrong { what });
    }
    Ok((block.host + at) as *mut u32)
}
