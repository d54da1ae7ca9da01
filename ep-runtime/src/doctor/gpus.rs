//! The driver and its GPUs, asked without trusting that any of it works.
//!
//! The functions of the driver are resolved through the library that cudarc has loaded, with their
//! results as integers: cudarc's own functions return a Rust enum, and a driver newer than cudarc
//! may give a code that is no value of it.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fs;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUdevice, CUdevice_P2PAttribute_enum as P2pAttribute,
    CUdevice_attribute_enum as Attribute,
};
use ep_codegen::plan::Arch;

use super::{Driver, Gpu, Peer};
use crate::jit::Version;

/// What the driver says.
pub(super) struct Found {
    pub(super) driver: Driver,
    pub(super) gpus: Vec<Gpu>,
    pub(super) peers: Vec<Vec<Peer>>,
}

/// Asks the driver, if there is one.
pub(super) fn look() -> Found {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: tries to load libcuda by its names, whose start-up code touches nothing of ours.
    let present = *PRESENT.get_or_init(|| unsafe { sys::is_culib_present() });
    if !present {
        return Found { driver: Driver::Missing, gpus: Vec::new(), peers: Vec::new() };
    }
    ask().unwrap_or_else(|driver| Found { driver, gpus: Vec::new(), peers: Vec::new() })
}

/// The error is a driver that failed.
fn ask() -> Result<Found, Driver> {
    let api = Api::resolve()?;
    // SAFETY: the driver may be initialised any number of times; 0 is the only flag value.
    api.check("cuInit", unsafe { (api.init)(0) })?;
    let version = api.number("cuDriverGetVersion", |place| {
        // SAFETY: the place is an int that lives through the call.
        unsafe { (api.version)(place) }
    })?;
    let count = api.number("cuDeviceGetCount", |place| {
        // SAFETY: as above.
        unsafe { (api.count)(place) }
    })?;
    let devices: Vec<CUdevice> =
        (0..count.cast_signed()).map(|ordinal| api.device(ordinal)).collect::<Result<_, _>>()?;
    let gpus = devices.iter().map(|device| api.gpu(*device)).collect::<Result<_, _>>()?;
    let row = |from: &CUdevice| devices.iter().map(|to| api.peer(*from, *to)).collect();
    let peers = devices.iter().map(row).collect::<Result<_, _>>()?;
    let cuda = Version { major: version / 1000, minor: version % 1000 / 10 };
    Ok(Found { driver: Driver::Found { cuda, release: release() }, gpus, peers })
}

/// The release of the kernel module.
fn release() -> Option<String> {
    let text = fs::read_to_string("/sys/module/nvidia/version")
        .or_else(|_| fs::read_to_string("/proc/driver/nvidia/version"))
        .ok()?;
    // The second file reads `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...`.
    let is_release =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.split_whitespace().find(is_release).map(str::to_owned)
}

/// The result code of the driver.
type Code = c_int;

/// The functions of the driver that a report needs, as its header declares them.
struct Api {
    init: unsafe extern "C" fn(c_uint) -> Code,
    version: unsafe extern "C" fn(*mut c_int) -> Code,
    count: unsafe extern "C" fn(*mut c_int) -> Code,
    device: unsafe extern "C" fn(*mut CUdevice, c_int) -> Code,
    name: unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> Code,
    memory: unsafe extern "C" fn(*mut usize, CUdevice) -> Code,
    attribute: unsafe extern "C" fn(*mut c_int, c_int, CUdevice) -> Code,
    access: unsafe extern "C" fn(*mut c_int, CUdevice, CUdevice) -> Code,
    p2p: unsafe extern "C" fn(*mut c_int, c_int, CUdevice, CUdevice) -> Code,
    error_name: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
}

impl Api {
    fn resolve() -> Result<Api, Driver> {
        let missing = |_| Driver::Failed {
            function: "loading libcuda",
            code: 0,
            meaning: "a function is missing".to_owned(),
        };
        // SAFETY: `look` has seen that the library is there, so that cudarc does not panic.
        let library = unsafe { sys::culib() };
        // SAFETY: every field has the type that cuda.h declares for the symbol of that name, but
        // for enums, which are ints in C.
        let resolve = || unsafe {
            Ok(Api {
                init: *library.get(b"cuInit\0")?,
                version: *library.get(b"cuDriverGetVersion\0")?,
                count: *library.get(b"cuDeviceGetCount\0")?,
                device: *library.get(b"cuDeviceGet\0")?,
                name: *library.get(b"cuDeviceGetName\0")?,
                memory: *library.get(b"cuDeviceTotalMem_v2\0")?,
                attribute: *library.get(b"cuDeviceGetAttribute\0")?,
                access: *library.get(b"cuDeviceCanAccessPeer\0")?,
                p2p: *library.get(b"cuDeviceGetP2PAttribute\0")?,
                error_name: *library.get(b"cuGetErrorName\0")?,
            })
        };
        resolve().map_err(|error: libloading::Error| missing(error))
    }

    fn check(&self, function: &'static str, code: Code) -> Result<(), Driver> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the place is a pointer that lives through the call; the driver stores a constant
        // text or null there, and leaves it null for a code it does not know.
        let meaning = unsafe {
            (self.error_name)(code, &mut name);
            if name.is_null() { c"unknown error" } else { CStr::from_ptr(name) }
        };
        let meaning = meaning.to_string_lossy().into_owned();
        Err(Driver::Failed { function, code, meaning })
    }

    /// Calls a function that gives one number.
    fn number(
        &self,
        function: &'static str,
        call: impl FnOnce(*mut c_int) -> Code,
    ) -> Result<u32, Driver> {
        let mut value = 0;
        self.check(function, call(&mut value))?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    fn device(&self, ordinal: c_int) -> Result<CUdevice, Driver> {
        let mut device = 0;
        // SAFETY: the place is a handle that lives through the call.
        self.check("cuDeviceGet", unsafe { (self.device)(&mut device, ordinal) })?;
        Ok(device)
    }

    fn attribute(&self, device: CUdevice, attribute: Attribute) -> Result<u32, Driver> {
        self.number("cuDeviceGetAttribute", |place| {
            // SAFETY: the place is an int that lives through the call.
            unsafe { (self.attribute)(place, attribute as c_int, device) }
        })
    }

    fn gpu(&self, device: CUdevice) -> Result<Gpu, Driver> {
        let mut name = [0 as c_char; 128];
        // SAFETY: the driver writes at most 127 bytes and a zero.
        self.check("cuDeviceGetName", unsafe { (self.name)(name.as_mut_ptr(), 128, device) })?;
        // SAFETY: the driver ended the text with a zero, and the array began as zeros.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let mut bytes = 0;
        // SAFETY: the place is a size_t that lives through the call.
        self.check("cuDeviceTotalMem", unsafe { (self.memory)(&mut bytes, device) })?;
        let major =
            self.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor =
            self.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let dma_buf = self.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
        Ok(Gpu {
            name,
            capability: (major, minor),
            arch: Arch::for_capability(major, minor),
            sms: self.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            bytes: bytes as u64,
            // A driver that does not know the attribute has none of them either.
            dma_buf: dma_buf.is_ok_and(|supported| supported != 0),
        })
    }

    fn peer(&self, from: CUdevice, to: CUdevice) -> Result<Peer, Driver> {
        if from == to {
            return Ok(Peer { access: true, atomics: true });
        }
        let access = self.number("cuDeviceCanAccessPeer", |place| {
            // SAFETY: the place is an int that lives through the call.
            unsafe { (self.access)(place, from, to) }
        })?;
        let native = P2pAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED as c_int;
        let atomics = self.number("cuDeviceGetP2PAttribute", |place| {
            // SAFETY: as above.
            unsafe { (self.p2p)(place, native, from, to) }
        })?;
        Ok(Peer { access: access != 0, atomics: atomics != 0 })
    }
}
