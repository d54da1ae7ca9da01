//! Tensors of other libraries that come by DLPack: in a capsule, or looked at by the library's own C functions.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};

use crate::arguments::RowsTuple;
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

impl DlTensor {
    /// What somebody else is going to describe.
    fn absent() -> DlTensor {
        DlTensor {
            data: ptr::null_mut(),
            device_type: 0,
            device_id: 0,
            dimensions: 0,
            code: 0,
            bits: 0,
            lanes: 0,
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        }
    }

    fn address(&self) -> u64 {
        self.data as u64 + self.byte_offset
    }

    fn extents(&self) -> &[i64] {
        self.numbers(self.shape).unwrap_or(&[])
    }

    /// What `of` has for each dimension, if it is there.
    fn numbers(&self, of: *const i64) -> Option<&[i64]> {
        let count = usize::try_from(self.dimensions).unwrap_or(0);
        // SAFETY: DLPack has one for each dimension, which are alive as long as the tensor.
        (!of.is_null()).then(|| unsafe { std::slice::from_raw_parts(of, count) })
    }

    /// Elements from one index to the next, of each extent.
    fn strides(&self) -> Vec<i64> {
        let shape = self.extents();
        let dense = |axis: usize| shape[axis + 1..].iter().product();
        let given = self.numbers(self.strides).map(<[i64]>::to_vec);
        given.unwrap_or_else(|| (0..shape.len()).map(dense).collect())
    }

    /// Whether its elements lie side by side, the last index fastest.
    fn is_dense(&self) -> bool {
        let Some(strides) = self.numbers(self.strides) else { return true };
        let mut dense = 1;
        let lies = |(extent, stride): (&i64, &i64)| {
            let fits = *extent == 1 || *stride == dense;
            dense *= extent;
            fits
        };
        let shape = self.extents();
        shape.contains(&0) || shape.iter().zip(strides).rev().all(lies)
    }

    /// The type of its elements, if it is one of ours.
    fn element(&self) -> Option<Element> {
        match (self.code, self.bits, self.lanes) {
            // Since DLPack 1.1.
            (10, 8, 1) => Some(Element::Fp8),
            (code, bits, 1) => {
                let known = Element::ALL.into_iter().filter(|it| *it != Element::Fp8);
                known.into_iter().find(|element| element.dlpack() == (code, bits))
            }
            _ => None,
        }
    }

    /// Ordinal of its GPU, or -1 for the host; none elsewhere.
    fn place(&self) -> Option<i32> {
        match self.device_type {
            CPU => Some(-1),
            CUDA => Some(self.device_id),
            _ => None,
        }
    }
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

/// The name of the capsule of a library's C functions.
const FUNCTIONS: *const c_char = c"dlpack_exchange_api".as_ptr();

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
        self.tensor().address()
    }

    #[getter]
    fn shape(&self) -> Vec<i64> {
        self.tensor().extents().to_vec()
    }

    #[getter]
    fn strides(&self) -> Vec<i64> {
        self.tensor().strides()
    }

    /// Name of the type of its elements, or its code and bits.
    #[getter]
    fn dtype(&self) -> String {
        let DlTensor { code, bits, lanes, .. } = *self.tensor();
        match self.tensor().element() {
            Some(element) => element.name().to_string(),
            None if lanes != 1 => format!("{lanes} lanes of code {code}"),
            None => format!("code {code} with {bits} bits"),
        }
    }

    /// Ordinal of its GPU; none on the host.
    #[getter]
    fn device(&self) -> PyResult<Option<i32>> {
        let place = self.tensor().place().ok_or_else(|| {
            let device_type = self.tensor().device_type;
            PyBufferError::new_err(format!("device type {device_type} is no CPU or GPU"))
        })?;
        Ok((place >= 0).then_some(place))
    }
}

/// The C functions of a library, as DLPack has them since 1.3; of those that are not called here only the places.
#[repr(C)]
struct Functions {
    major: u32,
    minor: u32,
    older: *const c_void,
    make: *const c_void,
    take: *const c_void,
    give: *const c_void,
    /// Describes a tensor without taking it: what it says holds until the tensor is touched again.
    look: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut DlTensor) -> c_int>,
}

/// Looks at tensors of one class at a tenth of what it takes to ask their methods.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Looks {
    look: unsafe extern "C" fn(*mut ffi::PyObject, *mut DlTensor) -> c_int,
    class: Py<PyType>,
    /// The library's function for another tensor like one.
    empty_like: Py<PyAny>,
}

/// A tensor of another library, and what it has to be.
pub(crate) type Wanted<'a, 'py, const RANK: usize> = (&'a Bound<'py, PyAny>, Element, [u64; RANK]);

#[pymethods]
impl Looks {
    /// At tensors of a class, if its library has such functions.
    #[staticmethod]
    fn at(class: Bound<'_, PyType>, empty_like: Py<PyAny>) -> PyResult<Option<Looks>> {
        let Some(capsule) = class.getattr_opt("__dlpack_c_exchange_api__")? else {
            return Ok(None);
        };
        // SAFETY: the name says what the capsule holds, for as long as the process lives.
        let functions = unsafe {
            let found = ffi::PyCapsule_GetPointer(capsule.as_ptr(), FUNCTIONS);
            found.cast::<Functions>().as_ref().ok_or_else(|| PyErr::fetch(class.py()))?
        };
        let look = functions.look.filter(|_| functions.major == 1);
        Ok(look.map(|look| Looks { look, class: class.unbind(), empty_like }))
    }

    /// Number of rows of so many columns, and where they are; none for a tensor of another kind or place.
    fn rows(
        &self,
        array: &Bound<'_, PyAny>,
        dtype: &str,
        columns: i64,
        device: Option<i32>,
    ) -> Option<(i64, RowsTuple)> {
        self.rows_of(array, Element::named(dtype)?, columns, device)
    }

    /// Where a tensor of this shape lies side by side; none for one of another kind or place.
    fn dense(
        &self,
        array: &Bound<'_, PyAny>,
        dtype: &str,
        shape: Vec<i64>,
        device: Option<i32>,
    ) -> Option<u64> {
        let tensor = self.tensor(array, Element::named(dtype)?, device)?;
        (tensor.extents() == shape && tensor.is_dense()).then(|| tensor.address())
    }
}

impl Looks {
    /// What `rows` says.
    pub(crate) fn rows_of(
        &self,
        array: &Bound<'_, PyAny>,
        element: Element,
        columns: i64,
        device: Option<i32>,
    ) -> Option<(i64, RowsTuple)> {
        let tensor = self.tensor(array, element, device)?;
        let [rows, have] = *tensor.extents() else { return None };
        let strides = tensor.strides();
        let at = (tensor.address(), *strides.first()?, *strides.last()?);
        (have == columns).then_some((rows, at))
    }

    /// What `dense` says.
    pub(crate) fn dense_of<const RANK: usize>(
        &self,
        (array, element, shape): Wanted<'_, '_, RANK>,
        device: Option<i32>,
    ) -> Option<u64> {
        let tensor = self.tensor(array, element, device)?;
        let fits = tensor.extents().iter().copied().eq(shape.map(|extent| extent as i64));
        (fits && tensor.is_dense()).then(|| tensor.address())
    }

    /// How many rows of so many columns a tensor has, and where they lie side by side; none for a tensor of another kind
    /// or place.
    pub(crate) fn dense_rows_of(
        &self,
        array: &Bound<'_, PyAny>,
        element: Element,
        columns: u64,
        device: Option<i32>,
    ) -> Option<(u64, u64)> {
        let tensor = self.tensor(array, element, device)?;
        let [rows, have] = *tensor.extents() else { return None };
        (have == columns as i64 && tensor.is_dense()).then(|| (rows as u64, tensor.address()))
    }

    /// A tensor of the same type and shape as another, with any content, and where it lies; none if it is of another
    /// class.
    pub(crate) fn made_like<'py>(
        &self,
        like: &Bound<'py, PyAny>,
    ) -> PyResult<Option<(Bound<'py, PyAny>, u64)>> {
        let made = self.empty_like.bind(like.py()).call1((like,))?;
        let at = self.any(&made).map(|tensor| tensor.address());
        Ok(at.map(|at| (made, at)))
    }

    /// What a tensor is, if it is one of the class and has such elements in such a place.
    fn tensor(
        &self,
        array: &Bound<'_, PyAny>,
        element: Element,
        device: Option<i32>,
    ) -> Option<DlTensor> {
        let tensor = self.any(array)?;
        let fits = tensor.element() == Some(element) && device.is_some();
        (fits && tensor.place() == device).then_some(tensor)
    }

    /// What a tensor is, if it is one of the class.
    fn any(&self, array: &Bound<'_, PyAny>) -> Option<DlTensor> {
        if !array.is_instance(self.class.bind(array.py())).unwrap_or(false) {
            return None;
        }
        let mut tensor = DlTensor::absent();
        // SAFETY: the tensor is of the class whose function this is, and alive since it is borrowed.
        let failed = unsafe { (self.look)(array.as_ptr(), &mut tensor) } != 0;
        if failed {
            // Its own methods say why.
            drop(PyErr::take(array.py()));
            return None;
        }
        Some(tensor)
    }
}
