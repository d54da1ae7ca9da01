//! A kernel loaded for one rank: all work is done in advance that its first launch would otherwise do.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use cudarc::driver::sys;

use super::driver::check;
use crate::backend::{BackendError, Block, Image, KernelLaunch};

/// The word in which `perturb.cuh` has the rank.
const PERTURBED_RANK: &CStr = c"ep_perturbed_rank";

/// A loaded kernel.
pub(super) struct Kernel {
    pub(super) rank: usize,
    module: sys::CUmodule,
    function: Function,
    /// Blocks that are resident at once within the rank's share of the device.
    resident: u32,
}

/// What a launch needs of a kernel, as long as that is loaded.
#[derive(Clone, Copy)]
pub(super) struct Function {
    rank: usize,
    function: sys::CUfunction,
    block: Block,
    /// Size of its one parameter, as the CUBIN says it.
    args_bytes: usize,
}

impl Kernel {
    /// Loads an image into the current context. The rank has so many SMs, each with room for at most so many blocks.
    pub(super) fn load(
        rank: usize,
        image: &Image,
        entry: &str,
        block: Block,
        share: (u32, u32),
    ) -> Result<Kernel, BackendError> {
        let name = CString::new(entry).map_err(|_| BackendError::Wrong {
            what: format!("`{entry}` is no name of a kernel"),
        })?;
        let mut module = ptr::null_mut();
        // SAFETY: the image is a complete CUBIN made by the compiler for this device; the driver
        // copies what it needs.
        let result = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
        check("cuModuleLoadData", Some(rank), result)?;
        let function = Function { rank, function: ptr::null_mut(), block, args_bytes: 0 };
        let mut kernel = Kernel { rank, module, function, resident: 0 };
        kernel.say_rank();
        match kernel.prepare(&name, share) {
            Ok(()) => Ok(kernel),
            Err(error) => {
                kernel.unload();
                Err(error)
            }
        }
    }

    /// Unloads the code; its context is current and none of it runs any more.
    pub(super) fn unload(self) {
        // SAFETY: loaded once, and `self` is consumed. A failure means that the context is lost.
        let _ = unsafe { sys::cuModuleUnload(self.module) };
    }

    /// Tells a disturbed module whose it is, so that ranks are not delayed alike; others have no such word.
    fn say_rank(&self) {
        let (mut word, mut bytes) = (0, 0);
        // SAFETY: the module is loaded; the call writes an address and a size, or fails.
        let found = unsafe {
            sys::cuModuleGetGlobal_v2(&mut word, &mut bytes, self.module, PERTURBED_RANK.as_ptr())
        };
        if found == sys::CUresult::CUDA_SUCCESS && bytes == size_of::<u32>() {
            let rank = self.rank as u32;
            // SAFETY: the word belongs to the module, none of whose code runs yet; the call has read `rank`
            // when it returns. A failure means that the context is lost.
            let _ = unsafe { sys::cuMemcpyHtoD_v2(word, (&raw const rank).cast(), bytes) };
        }
    }

    /// Everything that the first launch would otherwise do: the code on the device, the shared
    /// memory limit, the number of resident blocks.
    fn prepare(&mut self, name: &CString, (sms, each): (u32, u32)) -> Result<(), BackendError> {
        use sys::CUfunction_attribute_enum as Attribute;
        let (rank, own) = (Some(self.rank), &mut self.function);
        // SAFETY: the module is loaded; the call writes one handle.
        let result =
            unsafe { sys::cuModuleGetFunction(&mut own.function, self.module, name.as_ptr()) };
        check("cuModuleGetFunction", rank, result)?;
        let shared = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = own.block.shared_bytes as c_int;
        // SAFETY: the function belongs to a loaded module.
        let result = unsafe { sys::cuFuncSetAttribute(own.function, shared, bytes) };
        check("cuFuncSetAttribute", rank, result)?;
        // With lazy loading the code would reach the device at the first launch, which may wait for
        // everything in flight there: a deadlock when that waits for this very launch (M8).
        // SAFETY: as above.
        check("cuFuncLoad", rank, unsafe { sys::cuFuncLoad(own.function) })?;
        let mut offset = 0;
        // SAFETY: writes two sizes.
        let result =
            unsafe { sys::cuFuncGetParamInfo(own.function, 0, &mut offset, &mut own.args_bytes) };
        check("cuFuncGetParamInfo", rank, result)?;
        let mut blocks: c_int = 0;
        // SAFETY: writes one integer.
        let result = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                own.function,
                own.block.threads as c_int,
                own.block.shared_bytes as usize,
            )
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", rank, result)?;
        self.resident = u32::try_from(blocks).unwrap_or(0).min(each) * sms;
        Ok(())
    }

    /// How many blocks can be resident at once, and what they are.
    pub(super) fn resident(&self) -> (u32, Block) {
        (self.resident, self.function.block)
    }

    pub(super) fn function(&self) -> Function {
        self.function
    }
}

impl Function {
    pub(super) fn launch(
        &self,
        stream: sys::CUstream,
        launch: &KernelLaunch,
        [cooperative, comes_early]: [bool; 2],
    ) -> Result<(), BackendError> {
        if launch.args.len() != self.args_bytes {
            let (got, want) = (launch.args.len(), self.args_bytes);
            let what =
                format!("`struct Args` has {want} bytes in the kernel, and the call passed {got}");
            return Err(BackendError::Wrong { what });
        }
        let (mut attributes, count) = attributes(cooperative, comes_early);
        let config = sys::CUlaunchConfig {
            gridDimX: launch.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.block.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.block.shared_bytes,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count,
        };
        let mut params = [launch.args.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the function is loaded, the attributes outlive the call, and the one parameter
        // points to as many bytes as the kernel declares, which the driver copies before it
        // returns.
        let result = unsafe {
            sys::cuLaunchKernelEx(&config, self.function, params.as_mut_ptr(), ptr::null_mut())
        };
        check("cuLaunchKernelEx", Some(self.rank), result)
    }
}

/// What a launch asks for beside its grid: the first so many of these.
fn attributes(cooperative: bool, comes_early: bool) -> ([sys::CUlaunchAttribute; 2], u32) {
    use sys::CUlaunchAttributeID as Id;
    let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
    let gang = sys::CUlaunchAttributeValue { cooperative: 1 };
    let early = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
    let mut all = [
        attribute(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, gang),
        attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, early),
    ];
    if !cooperative {
        all.reverse();
    }
    (all, u32::from(cooperative) + u32::from(comes_early))
}
