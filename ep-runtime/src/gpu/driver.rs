//! The CUDA driver: whether it is there, the meaning of its errors, and the devices it offers.

use std::ffi::{CStr, c_int};
use std::ptr;

use cudarc::driver::sys::{self, CUresult};
use ep_codegen::plan::Arch;

use crate::backend::BackendError;

/// The oldest driver that has every function used here (`cuEventElapsedTime_v2` is the newest);
/// an older one would end the process at the first function that it lacks.
const OLDEST_DRIVER: i32 = 12080;

/// Turns a driver result into ours.
pub(super) fn check(
    call: &'static str,
    rank: Option<usize>,
    result: CUresult,
) -> Result<(), BackendError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(BackendError::Failed { call, rank, code: result as u32, text: words(result) })
}

/// The driver's name and words for a result.
fn words(result: CUresult) -> String {
    let mut name = ptr::null();
    let mut text = ptr::null();
    // SAFETY: both functions only write one pointer, to a string that lives as long as the driver,
    // or leave it null when they do not know the code.
    unsafe {
        let _ = sys::cuGetErrorName(result, &mut name);
        let _ = sys::cuGetErrorString(result, &mut text);
    }
    let read = |at: *const std::ffi::c_char| {
        if at.is_null() {
            return "unknown".to_string();
        }
        // SAFETY: not null, so it is a string of the driver as said above.
        unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
    };
    format!("{} ({})", read(name), read(text))
}

/// A device of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Ordinal of the device among those that `CUDA_VISIBLE_DEVICES` makes visible.
    pub ordinal: i32,
    /// Marketing name.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Number of SMs.
    pub sms: u32,
    /// Target architecture of kernels for the device; `None` if EPForge has no target for it.
    pub arch: Option<Arch>,
}

/// The devices of this machine, or why there are none: no driver, too old a driver, no device.
pub fn devices() -> Result<Vec<DeviceInfo>, BackendError> {
    open()?;
    let mut count: c_int = 0;
    // SAFETY: the driver is initialised; the call writes one integer.
    check("cuDeviceGetCount", None, unsafe { sys::cuDeviceGetCount(&mut count) })?;
    (0..count).map(device).collect()
}

/// Whether the driver loads each kernel at its first launch, as `CUDA_MODULE_LOADING` says.
pub fn loads_lazily() -> Result<bool, BackendError> {
    open()?;
    let mut mode = sys::CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING;
    // SAFETY: the driver is initialised; the call writes one number, of those that this version of the driver has.
    check("cuModuleGetLoadingMode", None, unsafe { sys::cuModuleGetLoadingMode(&mut mode) })?;
    Ok(mode == sys::CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING)
}

/// The PCI address of a device, such as `0000:17:00.0`.
pub(crate) fn place(ordinal: c_int) -> Result<String, BackendError> {
    open()?;
    let mut address = [0 as std::ffi::c_char; 32];
    // SAFETY: the driver writes at most 31 letters and a zero into the 32 bytes.
    let result = unsafe { sys::cuDeviceGetPCIBusId(address.as_mut_ptr(), 31, handle(ordinal)?) };
    check("cuDeviceGetPCIBusId", None, result)?;
    // SAFETY: the array was zeroed and its last byte never written, so a zero ends the text.
    Ok(unsafe { CStr::from_ptr(address.as_ptr()) }.to_string_lossy().into_owned())
}

/// Loads and initialises the driver.
fn open() -> Result<(), BackendError> {
    // SAFETY: looks for the library and loads it; libcuda has no load-time effect on Rust state.
    // Without this test the first call of a driver function would panic.
    if !unsafe { sys::is_culib_present() } {
        let what = "there is no CUDA driver (libcuda.so) on this machine".to_string();
        return Err(BackendError::Missing { what });
    }
    // SAFETY: the library is there; cuInit may be called any number of times.
    check("cuInit", None, unsafe { sys::cuInit(0) })?;
    let mut version: c_int = 0;
    // SAFETY: writes one integer.
    check("cuDriverGetVersion", None, unsafe { sys::cuDriverGetVersion(&mut version) })?;
    if version < OLDEST_DRIVER {
        return Err(BackendError::Missing {
            what: format!(
                "the CUDA driver has version {}.{}, and EPForge needs {}.{} or later",
                version / 1000,
                version % 1000 / 10,
                OLDEST_DRIVER / 1000,
                OLDEST_DRIVER % 1000 / 10
            ),
        });
    }
    Ok(())
}

fn device(ordinal: c_int) -> Result<DeviceInfo, BackendError> {
    use sys::CUdevice_attribute_enum as Attribute;
    let major = attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let count = attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let mut name = [0 as std::ffi::c_char; 128];
    // SAFETY: the driver writes at most 127 letters and a zero into the 128 bytes.
    let result = unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 127, handle(ordinal)?) };
    check("cuDeviceGetName", None, result)?;
    // SAFETY: the array was zeroed and its last byte never written, so a zero ends the text.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(DeviceInfo {
        ordinal,
        name,
        capability: (major, minor),
        sms: count,
        arch: Arch::for_capability(major, minor),
    })
}

/// The driver's handle of a device.
pub(super) fn handle(ordinal: c_int) -> Result<sys::CUdevice, BackendError> {
    let mut device = 0;
    // SAFETY: the driver is initialised; the call writes one handle or fails on a wrong number.
    check("cuDeviceGet", None, unsafe { sys::cuDeviceGet(&mut device, ordinal) })?;
    Ok(device)
}

pub(super) fn attribute(
    ordinal: c_int,
    attribute: sys::CUdevice_attribute_enum,
) -> Result<u32, BackendError> {
    let mut value: c_int = 0;
    // SAFETY: writes one integer; the device handle is valid.
    let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, handle(ordinal)?) };
    check("cuDeviceGetAttribute", None, result)?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Whether kernels on `from` can reach memory of `to`.
pub(super) fn reaches(from: c_int, to: c_int) -> Result<bool, BackendError> {
    let mut can: c_int = 0;
    // SAFETY: writes one integer; both handles are valid.
    let result = unsafe { sys::cuDeviceCanAccessPeer(&mut can, handle(from)?, handle(to)?) };
    check("cuDeviceCanAccessPeer", None, result)?;
    Ok(can != 0)
}

/// Whether kernels on one device can add to memory of the other as to their own.
pub(super) fn adds(from: c_int, to: c_int) -> Result<bool, BackendError> {
    let asked = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    let mut can: c_int = 0;
    // SAFETY: writes one integer; both handles are valid.
    let result =
        unsafe { sys::cuDeviceGetP2PAttribute(&mut can, asked, handle(from)?, handle(to)?) };
    check("cuDeviceGetP2PAttribute", None, result)?;
    Ok(can != 0)
}

/// Whether memory of the device can go to another process by a file descriptor.
#[cfg(target_os = "linux")]
pub(super) fn gives_descriptors(ordinal: c_int) -> Result<bool, BackendError> {
    use sys::CUdevice_attribute_enum as Attribute;
    let supported = Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    Ok(maps_memory(ordinal)? && attribute(ordinal, supported)? != 0)
}

/// Whether the device can map memory with `cuMemMap`.
pub(super) fn maps_memory(ordinal: c_int) -> Result<bool, BackendError> {
    use sys::CUdevice_attribute_enum as Attribute;
    let supported = Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
    Ok(attribute(ordinal, supported)? != 0)
}
