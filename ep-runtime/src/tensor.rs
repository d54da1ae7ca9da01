//! Tensors of calls: an address with extents and strides, and the memory behind it if this crate owns it.
//!
//! A tensor is a view, and clones share the memory. Memory that this crate has allocated lives as long as a
//! tensor of it does. Memory from elsewhere, such as torch's, lives as long as its owner keeps it.

mod element;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use ep_codegen::ir::Elem;

pub use element::{Bf16, Bits, Composite, E4m3, Element, Ue8m0};

use crate::args::Rows;
use crate::backend::{Backend, BackendError, Stream};
use crate::error::CallError;
use crate::group::Group;
use crate::memory::{DeviceMemory, HostMemory, Window};

/// A tensor of `RANK` extents that kernels can access. [`Default`] gives an absent tensor.
pub struct DeviceTensor<E, const RANK: usize> {
    address: u64,
    extents: [u64; RANK],
    /// In elements.
    strides: [i64; RANK],
    memory: Option<Arc<TensorMemory>>,
    elem: PhantomData<fn() -> E>,
}

/// The memory behind tensors.
pub(crate) enum TensorMemory {
    Device(DeviceMemory),
    Host(HostMemory),
    /// A part of the window of one rank; dropping it gives the part back.
    Window(Arc<Window>, usize),
    /// Memory of a rank that its owner frees, and what keeps it until then.
    Kept {
        backend: Arc<dyn Backend>,
        rank: usize,
        #[expect(dead_code, reason = "it is there to be dropped")]
        kept: Box<dyn Send + Sync>,
    },
}

impl TensorMemory {
    fn backend(&self) -> (&Arc<dyn Backend>, usize) {
        match self {
            TensorMemory::Device(memory) => (memory.backend(), memory.rank()),
            TensorMemory::Host(memory) => (memory.backend(), memory.rank()),
            TensorMemory::Window(window, rank) => (window.backend(), *rank),
            TensorMemory::Kept { backend, rank, .. } => (backend, *rank),
        }
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), BackendError> {
        let TensorMemory::Host(memory) = self else {
            let (backend, rank) = self.backend();
            return backend.read(rank, at, to);
        };
        let from = at - memory.address();
        let (first, behind) = (from / 4, (from + to.len() as u64).div_ceil(4));
        let mut words = vec![0; (behind - first) as usize];
        memory.read(4 * first, &mut words)?;
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let skip = (from % 4) as usize;
        to.copy_from_slice(&bytes[skip..skip + to.len()]);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BackendError> {
        let (backend, rank) = self.backend();
        backend.write(rank, at, from)
    }
}

impl<E, const RANK: usize> DeviceTensor<E, RANK> {
    /// A tensor in memory from elsewhere; strides count elements.
    ///
    /// # Safety
    ///
    /// The elements must be in memory of the device of the rank that the tensor is used for, and must stay
    /// there until all calls that use the tensor have run.
    pub unsafe fn from_raw(
        address: u64,
        extents: [u64; RANK],
        strides: [i64; RANK],
    ) -> DeviceTensor<E, RANK> {
        DeviceTensor { address, extents, strides, memory: None, elem: PhantomData }
    }

    pub(crate) fn within(
        memory: &Arc<TensorMemory>,
        address: u64,
        extents: [u64; RANK],
        strides: [i64; RANK],
    ) -> DeviceTensor<E, RANK> {
        let memory = Some(Arc::clone(memory));
        DeviceTensor { address, extents, strides, memory, elem: PhantomData }
    }

    /// A tensor in memory that the caller of this crate's calls keeps until they have run.
    pub(crate) fn borrowed(address: u64, extents: [u64; RANK]) -> DeviceTensor<E, RANK> {
        DeviceTensor { address, extents, strides: dense(&extents), memory: None, elem: PhantomData }
    }

    /// This tensor, in memory that `memory` keeps. An absent tensor stays absent.
    pub(crate) fn kept_by(&self, memory: &Arc<TensorMemory>) -> DeviceTensor<E, RANK> {
        match self.address {
            0 => DeviceTensor::default(),
            address => DeviceTensor::within(memory, address, self.extents, self.strides),
        }
    }

    /// Device address of the first element; 0 if the tensor is absent or has no elements.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Extents, outermost first.
    pub fn extents(&self) -> [u64; RANK] {
        self.extents
    }

    /// Elements from one index to the next, of each extent.
    pub fn strides(&self) -> [i64; RANK] {
        self.strides
    }

    /// The rows of the tensor, for calls that take untyped rows.
    pub fn as_rows(&self) -> Rows {
        let stride = |axis: usize| self.strides.get(axis).copied().unwrap_or(1);
        let (row_stride, column_stride) = (stride(0), stride(1));
        Rows { address: self.address, row_stride, column_stride }
    }

    /// The first `rows` of the outermost extent, or all of them if there are fewer.
    #[must_use]
    pub fn first(&self, rows: usize) -> DeviceTensor<E, RANK> {
        let mut first = self.clone();
        if let Some(outermost) = first.extents.first_mut() {
            *outermost = (*outermost).min(rows as u64);
        }
        first
    }

    /// Number of elements.
    fn count(&self) -> u64 {
        self.extents.iter().product()
    }

    /// Where each element is, counted from the first one, in order.
    fn offsets(&self) -> impl Iterator<Item = i64> {
        (0..self.count()).map(|number| {
            let mut left = number;
            let axes = self.extents.iter().zip(self.strides).rev();
            axes.fold(0, |at, (extent, stride)| {
                let index = left % extent;
                left /= extent;
                at + index as i64 * stride
            })
        })
    }

    /// Elements from the first one to behind the last one.
    fn span(&self) -> u64 {
        let axes = self.extents.iter().zip(self.strides);
        let last: i64 = axes.map(|(extent, stride)| (*extent as i64 - 1).max(0) * stride).sum();
        if self.count() == 0 { 0 } else { last as u64 + 1 }
    }

    fn memory(&self) -> Result<&Arc<TensorMemory>, CallError> {
        self.memory.as_ref().ok_or_else(|| {
            let what = "only the owner of a tensor made by `from_raw` can read and write it";
            CallError::Mismatch { what: what.to_string() }
        })
    }
}

impl<E> DeviceTensor<E, 3> {
    /// The rows of all lists as one list, if all rows lie equally far apart.
    pub(crate) fn as_list(&self) -> Option<DeviceTensor<E, 2>> {
        let ([lists, rows, columns], [list, row, column]) = (self.extents, self.strides);
        let (address, memory) = (self.address, self.memory.clone());
        let (extents, strides) = ([lists * rows, columns], [row, column]);
        let is_even = list == rows as i64 * row;
        is_even.then_some(DeviceTensor { address, extents, strides, memory, elem: PhantomData })
    }
}

impl<E> DeviceTensor<E, 2> {
    /// A tensor of rows in memory that the caller of this crate's calls keeps until they have run. The elements
    /// of a row may lie apart.
    pub(crate) fn borrowed_rows(rows: &Rows, extents: [u64; 2]) -> DeviceTensor<E, 2> {
        let strides = [rows.row_stride, rows.column_stride];
        let address = rows.address;
        DeviceTensor { address, extents, strides, memory: None, elem: PhantomData }
    }
}

/// Strides of elements side by side.
pub(crate) fn dense<const RANK: usize>(extents: &[u64; RANK]) -> [i64; RANK] {
    let mut strides = [1; RANK];
    for axis in (1..RANK).rev() {
        strides[axis - 1] = strides[axis] * extents[axis] as i64;
    }
    strides
}

impl<E: Element, const RANK: usize> DeviceTensor<E, RANK> {
    /// New memory of a local rank, all of its bytes zero.
    pub fn zeros(
        group: &Group,
        rank: usize,
        extents: [usize; RANK],
    ) -> Result<DeviceTensor<E, RANK>, CallError> {
        let (extents, bytes) = sized::<E, RANK>(extents)?;
        let memory = DeviceMemory::zeroed(group.backend(), rank, bytes)?;
        Ok(DeviceTensor::of_memory(memory, extents))
    }

    /// New memory of a local rank with these values, the last index fastest.
    pub fn from_slice(
        group: &Group,
        rank: usize,
        extents: [usize; RANK],
        values: &[E],
    ) -> Result<DeviceTensor<E, RANK>, CallError> {
        let (extents, bytes) = sized::<E, RANK>(extents)?;
        if bytes != (values.len() * E::BYTES) as u64 {
            return Err(wrong_count(&extents, values.len()));
        }
        let memory = DeviceMemory::new(group.backend(), rank, bytes)?;
        memory.write(0, &stored(values))?;
        Ok(DeviceTensor::of_memory(memory, extents))
    }

    fn of_memory(memory: DeviceMemory, extents: [u64; RANK]) -> DeviceTensor<E, RANK> {
        let address = memory.address();
        let memory = Arc::new(TensorMemory::Device(memory));
        DeviceTensor::within(&memory, address, extents, dense(&extents))
    }

    /// Reads all elements, the last index fastest. Waits for the work in the rank's own stream and in no
    /// other; [`Group::sync`] waits for all calls. Host memory is read as it is now.
    pub fn read(&self) -> Result<Vec<E>, CallError> {
        let mut bytes = vec![0; self.span() as usize * E::BYTES];
        if !bytes.is_empty() {
            self.memory()?.read(self.address, &mut bytes)?;
        }
        let element = |at: i64| E::load(&bytes[at as usize * E::BYTES..][..E::BYTES]);
        Ok(self.offsets().map(element).collect())
    }

    /// Overwrites all elements, the last index fastest, after the work in the rank's own stream.
    pub fn write(&self, values: &[E]) -> Result<(), CallError> {
        if values.len() as u64 != self.count() {
            return Err(wrong_count(&self.extents, values.len()));
        }
        let memory = self.memory()?;
        if self.strides == dense(&self.extents) {
            return Ok(memory.write(self.address, &stored(values))?);
        }
        // Between the rows of a padded tensor there may be something else.
        let row = self.extents.last().map_or(1, |extent| (*extent).max(1) as usize);
        for (first, values) in self.offsets().step_by(row).zip(values.chunks(row)) {
            memory.write(self.address + first as u64 * E::BYTES as u64, &stored(values))?;
        }
        Ok(())
    }

    /// Sets every byte from the first element to the last one, after the work in the rank's own stream.
    pub fn fill(&self, byte: u8) -> Result<(), CallError> {
        let (backend, rank) = self.memory()?.backend();
        let bytes = self.span() * E::BYTES as u64;
        Ok(backend.fill(rank, Stream::OWN, self.address, byte, bytes)?)
    }
}

fn stored<E: Element>(values: &[E]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * E::BYTES];
    for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(E::BYTES)) {
        value.store(bytes);
    }
    bytes
}

/// The extents, and the bytes of their elements.
fn sized<E: Element, const RANK: usize>(
    extents: [usize; RANK],
) -> Result<([u64; RANK], u64), CallError> {
    let extents = extents.map(|extent| extent as u64);
    let bytes =
        extents.iter().try_fold(E::BYTES as u64, |bytes, extent| bytes.checked_mul(*extent));
    let bytes = bytes.filter(|bytes| i64::try_from(*bytes).is_ok());
    bytes.map(|bytes| (extents, bytes)).ok_or_else(|| {
        let what = format!("a tensor of {extents:?} elements is larger than any memory");
        CallError::Mismatch { what }
    })
}

fn wrong_count(extents: &[u64], count: usize) -> CallError {
    let what = format!("{count} values for a tensor of {extents:?} elements");
    CallError::Mismatch { what }
}

impl<E, const RANK: usize> Clone for DeviceTensor<E, RANK> {
    fn clone(&self) -> DeviceTensor<E, RANK> {
        let DeviceTensor { address, extents, strides, memory, elem } = self;
        let memory = memory.clone();
        DeviceTensor {
            address: *address,
            extents: *extents,
            strides: *strides,
            memory,
            elem: *elem,
        }
    }
}

impl<E, const RANK: usize> Default for DeviceTensor<E, RANK> {
    fn default() -> DeviceTensor<E, RANK> {
        let (extents, strides) = ([0; RANK], [0; RANK]);
        DeviceTensor { address: 0, extents, strides, memory: None, elem: PhantomData }
    }
}

impl<E, const RANK: usize> fmt::Debug for DeviceTensor<E, RANK> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, extents, strides) = (self.address, self.extents, self.strides);
        write!(out, "DeviceTensor({address:#x}, {extents:?}, strides {strides:?})")
    }
}

/// A tensor that is passed to a call, of any type.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    pub(crate) address: u64,
    pub(crate) elem: &'static Elem,
    pub(crate) extents: &'a [u64],
    pub(crate) strides: &'a [i64],
    pub(crate) memory: Option<&'a Arc<TensorMemory>>,
}

/// The places of a call's tensors, in the order of the declaration.
pub type Places<'p, 'a> = std::slice::IterMut<'p, Option<Given<'a>>>;

/// A type that fills some places of a call.
pub trait Give {
    /// How many.
    const PLACES: usize;

    /// Takes them.
    fn give<'a>(&'a self, to: &mut Places<'_, 'a>);
}

impl<E: Element, const RANK: usize> Give for DeviceTensor<E, RANK> {
    const PLACES: usize = 1;

    fn give<'a>(&'a self, to: &mut Places<'_, 'a>) {
        if let Some(place) = to.next() {
            let DeviceTensor { address, extents, strides, memory, .. } = self;
            let (address, memory) = (*address, memory.as_ref());
            *place = Some(Given { address, elem: E::ELEM, extents, strides, memory });
        }
    }
}

impl<T: Give> Give for Option<T> {
    const PLACES: usize = T::PLACES;

    fn give<'a>(&'a self, to: &mut Places<'_, 'a>) {
        match self {
            Some(given) => given.give(to),
            None => skip(to, T::PLACES),
        }
    }
}

impl<T: Give, const COPIES: usize> Give for [Option<T>; COPIES] {
    const PLACES: usize = COPIES * T::PLACES;

    fn give<'a>(&'a self, to: &mut Places<'_, 'a>) {
        self.iter().for_each(|copy| copy.give(to));
    }
}

/// The place of a tensor of this type in the list of a call's places.
pub struct Place<T> {
    first: usize,
    of: PhantomData<fn(T)>,
}

impl<T: Give> Place<T> {
    /// The place with this number. A tensor of several parts takes the following places too.
    pub const fn new(first: usize) -> Place<T> {
        Place { first, of: PhantomData }
    }

    /// Puts a tensor there, if there is one.
    pub(crate) fn put<'a>(&self, tensor: impl Into<Option<&'a T>>, to: &mut [Option<Given<'a>>])
    where
        T: 'a,
    {
        if let (Some(tensor), Some(to)) = (tensor.into(), to.get_mut(self.first..)) {
            tensor.give(&mut to.iter_mut());
        }
    }
}

/// Fills the place of a table with the first of these that has memory. One arm may read a table that another
/// one records.
pub fn give_first<'a, E: Element, const RANK: usize, const COUNT: usize>(
    all: [Option<&'a DeviceTensor<E, RANK>>; COUNT],
    to: &mut Places<'_, 'a>,
) {
    let given = || all.iter().flatten();
    match given().find(|tensor| tensor.address != 0).or(given().next()) {
        Some(tensor) => tensor.give(to),
        None => skip(to, 1),
    }
}

/// Leaves places empty.
pub fn skip(to: &mut Places<'_, '_>, count: usize) {
    to.take(count).for_each(drop);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeBackend;
    use crate::group::GroupOptions;

    fn group() -> Group {
        Group::new(FakeBackend::new(1), GroupOptions::default()).unwrap()
    }

    #[test]
    fn values_come_back_in_order() {
        let group = group();
        let values: Vec<Bf16> = (0..6).map(|value| Bf16::from(value as f32 / 2.0)).collect();
        let tensor = DeviceTensor::from_slice(&group, 0, [3, 2], &values).unwrap();
        assert_eq!((tensor.extents(), tensor.strides()), ([3, 2], [2, 1]));
        assert_eq!(tensor.read().unwrap(), values);
        assert_eq!(tensor.first(1).read().unwrap(), values[..2]);
        assert_eq!(tensor.first(9).extents(), [3, 2]);
        tensor.first(2).write(&[Bf16::from(7.0); 4]).unwrap();
        let floats: Vec<f32> = tensor.read().unwrap().into_iter().map(f32::from).collect();
        assert_eq!(floats, [7.0, 7.0, 7.0, 7.0, 2.0, 2.5]);
        let zeros = DeviceTensor::<i64, 1>::zeros(&group, 0, [3]).unwrap();
        zeros.fill(0xff).unwrap();
        assert_eq!(zeros.read().unwrap(), [-1, -1, -1]);
    }

    #[test]
    fn padded_rows_leave_what_is_between_them() {
        let group = group();
        let all = DeviceTensor::from_slice(&group, 0, [12], &[9u8; 12]).unwrap();
        let memory = all.memory().unwrap();
        let rows = DeviceTensor::<u8, 2>::within(memory, all.address(), [3, 2], [4, 1]);
        rows.write(&[0, 1, 2, 3, 4, 5]).unwrap();
        assert_eq!(all.read().unwrap(), [0, 1, 9, 9, 2, 3, 9, 9, 4, 5, 9, 9]);
        assert_eq!(rows.read().unwrap(), [0, 1, 2, 3, 4, 5]);
        let columns = DeviceTensor::<u8, 2>::within(memory, all.address(), [2, 3], [1, 4]);
        assert_eq!(columns.read().unwrap(), [0, 2, 4, 1, 3, 5]);
    }

    #[test]
    fn a_wrong_number_of_values_is_refused() {
        let group = group();
        let few = DeviceTensor::from_slice(&group, 0, [2, 3], &[1i32; 5]).unwrap_err();
        assert_eq!(few.to_string(), "5 values for a tensor of [2, 3] elements");
        let tensor = DeviceTensor::<i32, 1>::zeros(&group, 0, [2]).unwrap();
        assert_eq!(
            tensor.write(&[1]).unwrap_err().to_string(),
            "1 values for a tensor of [2] elements"
        );
        let vast = DeviceTensor::<i32, 2>::zeros(&group, 0, [usize::MAX, 2]).unwrap_err();
        assert!(vast.to_string().ends_with("elements is larger than any memory"), "{vast}");
        // SAFETY: it is given to no call.
        let foreign = unsafe { DeviceTensor::<f32, 1>::from_raw(16, [4], [1]) };
        assert!(foreign.read().unwrap_err().to_string().contains("only the owner"));
        assert_eq!(DeviceTensor::<f32, 1>::default().read().unwrap(), [0.0; 0]);
    }
}
