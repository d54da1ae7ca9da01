//! Tensors of other libraries that come by DLPack.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::tensor::Element;

const CPU: c_int = 1;
pub(crate) const CUDA: c_int = 2;

/// The name of a capsule that nobody has taken the tensor of.
pub(crate) const NEW: *const c_char = c"dltensor".as_ptr();

/// What DLPack calls a `DLTensor`.
#[repr(C)]
pub(crate) struct DlTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device_type: c_int,
    pub(crate) device_id: c_int,
    pub(crate) dimensions: c_int,
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

/// A tensor of another library that came by DLPack, and is given back when this is gone.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Taken(ptr::NonNull<Foreign>);

// SAFETY: DLPack lets any thread read and delete what it manages.
unsafe impl Send for Taken {}
// SAFETY: as above.
unsafe impl Sync for Taken {}

/// A `DLManagedTensor` of somebody else.
#[repr(C)]
struct Foreign {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Foreign)>,
}

const USED: *const c_char = c"used_dltensor".as_ptr();

/// Takes the tensor of a capsule that some `__dlpack__` has returned.
#[pyfunction]
pub(crate) fn take_dlpack(capsule: &Bound<'_, PyCapsule>) -> PyResult<Taken> {
    // SAFETY: it is a capsule; its name says what it holds, and whose it is from here on.
    let found = unsafe {
        let found = ffi::PyCapsule_GetPointer(capsule.as_ptr(), NEW);
        if !found.is_null() && ffi::PyCapsule_SetName(capsule.as_ptr(), USED) != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        found
    };
    ptr::NonNull::new(found.cast()).map(Taken).ok_or_else(|| PyErr::fetch(capsule.py()))
}

impl Taken {
    fn tensor(&self) -> &DlTensor {
        // SAFETY: it is alive until this is dropped.
        unsafe { &self.0.as_ref().tensor }
    }

    fn extents(&self, of: *const i64) -> Vec<i64> {
        let count = usize::try_from(self.tensor().dimensions).unwrap_or(0);
        if of.is_null() || count == 0 {
            return Vec::new();
        }
        // SAFETY: DLPack has one for each dimension.
        unsafe { std::slice::from_raw_parts(of, count) }.to_vec()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: nobody else deletes it: its capsule has another name.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

#[pymethods]
impl Taken {
    #[getter]
    fn address(&self) -> u64 {
        self.tensor().data as u64 + self.tensor().byte_offset
    }

    #[getter]
    fn shape(&self) -> Vec<i64> {
        self.extents(self.tensor().shape)
    }

    #[getter]
    fn strides(&self) -> Vec<i64> {
        let strides = self.extents(self.tensor().strides);
        if !strides.is_empty() {
            return strides;
        }
        let shape = self.shape();
        (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect()
    }

    /// Name of the type of its elements, or its code and bits.
    #[getter]
    fn dtype(&self) -> String {
        let DlTensor { code, bits, lanes, .. } = *self.tensor();
        let known = Element::ALL.into_iter().filter(|element| *element != Element::Fp8);
        let found = known.into_iter().find(|element| element.dlpack() == (code, bits));
        match (found, code, bits) {
            _ if lanes != 1 => format!("{lanes} lanes of code {code}"),
            (Some(element), ..) => element.name().to_string(),
            // Since DLPack 1.1.
            (None, 10, 8) => Element::Fp8.name().to_string(),
            _ => format!("code {code} with {bits} bits"),
        }
    }

    /// Ordinal of its GPU; none on the host.
    #[getter]
    fn device(&self) -> PyResult<Option<i32>> {
        match *self.tensor() {
            DlTensor { device_type: CPU, .. } => Ok(None),
            DlTensor { device_type: CUDA, device_id, .. } => Ok(Some(device_id)),
            DlTensor { device_type, .. } => {
                Err(PyBufferError::new_err(format!("device type {device_type} is no CPU or GPU")))
            }
        }
    }
}
