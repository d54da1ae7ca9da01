//! Tensors in memory of a rank, for other libraries: by DLPack and the CUDA array interface. What they
//! view stays in its place until the last of them is gone.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use ep_runtime::group::Group;
use ep_runtime::memory::DeviceMemory;
use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::dlpack::{CUDA, DlTensor, NEW};
use crate::errors::{Failure, at_once, released};
use crate::group::{self, raw_stream};

/// The type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Bf16,
    Fp8,
    F32,
    I64,
    I32,
    U8,
}

impl Element {
    pub(crate) const ALL: [Element; 6] =
        [Element::Bf16, Element::Fp8, Element::F32, Element::I64, Element::I32, Element::U8];

    pub(crate) fn named(name: &str) -> Option<Element> {
        Element::ALL.into_iter().find(|element| element.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Element::Bf16 => "bfloat16",
            Element::Fp8 => "float8_e4m3fn",
            Element::F32 => "float32",
            Element::I64 => "int64",
            Element::I32 => "int32",
            Element::U8 => "uint8",
        }
    }

    pub(crate) fn bytes(self) -> i64 {
        match self {
            Element::Bf16 => 2,
            Element::Fp8 | Element::U8 => 1,
            Element::F32 | Element::I32 => 4,
            Element::I64 => 8,
        }
    }

    /// Code and bits of DLPack. Few readers know its float8: they get bytes.
    pub(crate) fn dlpack(self) -> (u8, u8) {
        match self {
            Element::Bf16 => (4, 16),
            Element::F32 => (2, 32),
            Element::I64 => (0, 64),
            Element::I32 => (0, 32),
            Element::Fp8 | Element::U8 => (1, 8),
        }
    }

    /// What the array interface knows; it has no bfloat16 and no float8.
    fn array(self) -> &'static str {
        match self {
            Element::Bf16 => "<u2",
            Element::F32 => "<f4",
            Element::I64 => "<i8",
            Element::I32 => "<i4",
            Element::Fp8 | Element::U8 => "|u1",
        }
    }
}

/// A tensor of a rank.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Tensor {
    /// Keeps what is viewed where it is.
    pub(crate) owner: Arc<dyn Any + Send + Sync>,
    pub(crate) group: Group,
    pub(crate) rank: usize,
    /// Ordinal of the rank's GPU; none in the emulator.
    pub(crate) device: Option<i32>,
    pub(crate) address: u64,
    pub(crate) shape: Vec<i64>,
    /// In elements.
    pub(crate) strides: Vec<i64>,
    pub(crate) element: Element,
}

/// What DLPack calls a `DLManagedTensor`, and what it keeps.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _owner: Arc<dyn Any + Send + Sync>,
}

/// # Safety
///
/// `managed` comes from [`Tensor::managed`], and is used no more.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(managed) });
}

/// # Safety
///
/// Python calls it with a capsule that [`Tensor::__dlpack__`] made.
unsafe extern "C" fn delete_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: it is a capsule. A reader that has taken the tensor has renamed it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NEW) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NEW).cast());
        }
    }
}

/// The type that is called so.
fn element_named(dtype: &str) -> Result<Element, Failure> {
    let unknown = || Failure::mismatch(format!("there are no tensors of {dtype}"));
    Element::named(dtype).ok_or_else(unknown)
}

/// Strides of elements side by side; their number can be counted.
fn dense(shape: &[i64]) -> Result<Vec<i64>, Failure> {
    let mut strides = Vec::new();
    let mut count = 1i64;
    for extent in shape.iter().rev() {
        strides.insert(0, count);
        count = Some(*extent)
            .filter(|extent| *extent >= 0)
            .and_then(|it| count.checked_mul(it))
            .ok_or_else(|| Failure::mismatch(format!("there is no tensor of {shape:?}")))?;
    }
    Ok(strides)
}

/// Whether elements fill their memory, one index of the first axis behind another, in whatever order of the other axes.
fn are_side_by_side(shape: &[i64], strides: &[i64], dense: &[i64]) -> bool {
    let mut axes: Vec<_> = strides.iter().zip(shape).skip(1).filter(|axis| *axis.1 != 1).collect();
    axes.sort_unstable();
    let mut next = 1;
    let fills = axes.iter().all(|(stride, extent)| {
        let fits = **stride == next;
        next *= **extent;
        fits
    });
    strides.len() == shape.len()
        && (fills && strides.first() == dense.first() || shape.contains(&0))
}

impl Tensor {
    /// A tensor with memory of its own, which lies row by row; of any content, or zero.
    pub(crate) fn alone(
        group: &group::Group,
        rank: usize,
        shape: Vec<i64>,
        dtype: &str,
        is_zero: bool,
    ) -> Result<Tensor, Failure> {
        let element = element_named(dtype)?;
        let strides = dense(&shape)?;
        let count = shape.first().map_or(1, |rows| rows * strides[0]);
        let bytes = (count as u64).saturating_mul(element.bytes() as u64);
        let index = group.inner.local_index(rank)?;
        let allocate = if is_zero { DeviceMemory::zeroed } else { DeviceMemory::new };
        let memory = Arc::new(allocate(group.inner.backend(), rank, bytes)?);
        Ok(Tensor {
            address: memory.address(),
            owner: memory,
            group: group.inner.clone(),
            rank,
            device: group.devices.get(index).copied(),
            shape,
            strides,
            element,
        })
    }

    /// Bytes from the first element of the first row to the end of the last row's stride.
    fn span(&self) -> usize {
        let rows = self.shape.first().copied().unwrap_or(1);
        let stride = self.strides.first().copied().unwrap_or(1);
        rows.saturating_mul(stride).saturating_mul(self.element.bytes()).max(0) as usize
    }

    /// Fails unless `bytes` from the start of the tensor are whole rows of it.
    fn within(&self, bytes: usize) -> Result<(), Failure> {
        let span = self.span();
        if bytes <= span {
            return Ok(());
        }
        Err(Failure::mismatch(format!("{bytes} bytes lie outside a tensor of {span}")))
    }

    fn managed(&self, device: i32) -> *mut Managed {
        let (code, bits) = self.element.dlpack();
        let tensor = DlTensor {
            data: self.address as *mut c_void,
            device_type: CUDA,
            device_id: device,
            dimensions: self.shape.len() as c_int,
            code,
            bits,
            lanes: 1,
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        let mut managed = Box::new(Managed {
            tensor,
            context: ptr::null_mut(),
            deleter: Some(delete),
            shape: self.shape.clone(),
            strides: self.strides.clone(),
            _owner: Arc::clone(&self.owner),
        });
        managed.tensor.shape = managed.shape.as_mut_ptr();
        managed.tensor.strides = managed.strides.as_mut_ptr();
        Box::into_raw(managed)
    }

    /// The first `rows` of it.
    fn cut(&self, rows: i64) -> Tensor {
        let mut shape = self.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = rows.clamp(0, *first);
        }
        Tensor {
            owner: Arc::clone(&self.owner),
            group: self.group.clone(),
            strides: self.strides.clone(),
            shape,
            ..*self
        }
    }
}

#[pymethods]
impl Tensor {
    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    #[getter]
    fn shape(&self) -> Vec<i64> {
        self.shape.clone()
    }

    /// Elements from one to the next, along each axis.
    #[getter]
    fn strides(&self) -> Vec<i64> {
        self.strides.clone()
    }

    /// Name of the type of its elements.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.element.name()
    }

    /// Bytes of an element.
    #[getter]
    fn itemsize(&self) -> i64 {
        self.element.bytes()
    }

    /// Ordinal of the rank's GPU; none in the emulator.
    #[getter]
    fn device(&self) -> Option<i32> {
        self.device
    }

    /// Copies its first `bytes`, what is between rows too, to the host, behind all calls of the rank.
    fn read(&self, py: Python<'_>, to: usize, bytes: usize) -> PyResult<()> {
        released(py, || {
            self.within(bytes)?;
            if bytes == 0 {
                return Ok(());
            }
            if self.device.is_some() {
                self.group.sync(self.rank)?;
            }
            // SAFETY: the package passes the memory of an array that it has just made.
            let to = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, bytes) };
            Ok(self.group.backend().read(self.rank, self.address, to)?)
        })
    }

    /// Copies to its first `bytes`, what is between rows too, from the host, before all later calls.
    fn write(&self, py: Python<'_>, from: usize, bytes: usize) -> PyResult<()> {
        released(py, || {
            self.within(bytes)?;
            if bytes == 0 {
                return Ok(());
            }
            // SAFETY: the package passes the memory of an array that it holds.
            let from = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
            Ok(self.group.backend().write(self.rank, self.address, from)?)
        })
    }

    /// The first rows of it, in the same place.
    fn first(&self, rows: i64) -> Tensor {
        self.cut(rows)
    }

    /// What lies in it from an element of this type on, side by side, in the same place; in another order with strides.
    #[pyo3(signature = (dtype, first, shape, strides=None))]
    fn part(
        &self,
        py: Python<'_>,
        dtype: &str,
        first: i64,
        shape: Vec<i64>,
        strides: Option<Vec<i64>>,
    ) -> PyResult<Tensor> {
        at_once(py, || {
            let element = element_named(dtype)?;
            let in_order = dense(&shape)?;
            let strides = strides.unwrap_or_else(|| in_order.clone());
            if !are_side_by_side(&shape, &strides, &in_order) {
                let what = format!(
                    "the elements of {shape:?} do not lie side by side with strides {strides:?}"
                );
                return Err(Failure::mismatch(what));
            }
            let count = shape.first().map_or(1, |rows| rows * in_order[0]);
            let end = first.checked_add(count).filter(|_| first >= 0).unwrap_or(i64::MAX);
            self.within(end.saturating_mul(element.bytes()) as usize)?;
            let address = self.address + (first * element.bytes()) as u64;
            if !address.is_multiple_of(element.bytes() as u64) {
                let what = format!("no {dtype} begins at address {address:#x}");
                return Err(Failure::mismatch(what));
            }
            let (owner, group) = (Arc::clone(&self.owner), self.group.clone());
            Ok(Tensor { owner, group, address, element, shape, strides, ..*self })
        })
    }

    fn __dlpack_device__(&self) -> PyResult<(c_int, c_int)> {
        match self.device {
            Some(device) => Ok((CUDA, device)),
            None => Err(PyBufferError::new_err("memory of the emulator is copied, not viewed")),
        }
    }

    /// `stream`: the reader's, which comes behind the calls so far; -1 does not.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(c_int, c_int)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = max_version;
        let device = self.__dlpack_device__()?;
        if copy == Some(true) || dl_device.is_some_and(|wanted| wanted != device) {
            return Err(PyBufferError::new_err("the tensor is viewed where it is, not copied"));
        }
        // The legacy default stream is 1, and 0 says nothing.
        let stream = stream.unwrap_or(1);
        if stream >= 0 {
            let stream = raw_stream(stream.max(1) as u64);
            released(py, || Ok(self.group.await_calls(self.rank, stream)?))?;
        }
        let managed = self.managed(device.1);
        // SAFETY: the name is static, and the capsule deletes what nobody takes.
        unsafe {
            let capsule = ffi::PyCapsule_New(managed.cast(), NEW, Some(delete_unused));
            if capsule.is_null() {
                delete(managed);
            }
            Bound::from_owned_ptr_or_err(py, capsule)
        }
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.device.is_none() {
            return Err(PyAttributeError::new_err("memory of the emulator is on no GPU"));
        }
        let bytes = self.element.bytes();
        let strides: Vec<i64> = self.strides.iter().map(|stride| stride * bytes).collect();
        let dictionary = PyDict::new(py);
        dictionary.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        dictionary.set_item("strides", PyTuple::new(py, strides)?)?;
        dictionary.set_item("typestr", self.element.array())?;
        dictionary.set_item("data", (self.address, false))?;
        dictionary.set_item("version", 3)?;
        // Readers know no event: what they do on the default stream comes behind the calls.
        released(py, || Ok(self.group.await_calls(self.rank, raw_stream(1))?))?;
        dictionary.set_item("stream", 1)?;
        Ok(dictionary)
    }

    fn __repr__(&self) -> String {
        format!("Tensor({:?}, {}, rank {})", self.shape, self.element.name(), self.rank)
    }
}
