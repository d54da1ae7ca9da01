//! The memory for results of calls: tables of handles, and outputs that a kernel allocated itself.

use std::cell::OnceCell;
use std::sync::Arc;

use super::fit::{Kind, TensorSpec};
use super::spec::Sizes;
use super::{CallKernel, free};
use crate::error::CallError;
use crate::memory::{DeviceMemory, HostMemory};
use crate::tensor::{DeviceTensor, Element, TensorMemory, dense};

/// The tables that a call fills.
pub struct LeftTables {
    pub(super) tables: Option<Arc<TensorMemory>>,
    pub(super) sizes: Sizes,
}

/// Memory for the tensors of a call, with the sizes of the shape.
pub struct OutputMemory<'a> {
    kernel: &'a CallKernel,
    rank: usize,
    /// A part of the window, and where it begins, once something needs it.
    region: OnceCell<(Arc<TensorMemory>, u64)>,
}

impl CallKernel {
    /// The table at a place of the declaration, as a call has filled it; absent if the chosen arms record
    /// no such table.
    pub fn table<E: Element, const RANK: usize>(
        &self,
        left: &LeftTables,
        place: usize,
    ) -> DeviceTensor<E, RANK> {
        let spec = self.inner.spec.tensors.get(place).and_then(Option::as_ref);
        // Other arms may read what these record.
        let Some(spec) = spec.filter(|spec| spec.kind == Kind::Table) else {
            return DeviceTensor::default();
        };
        let mut extents = [0; RANK];
        for (extent, dim) in extents.iter_mut().zip(&spec.dims) {
            *extent = dim.value(&left.sizes).unwrap_or(0);
        }
        // Tables without elements take no memory.
        let Some(memory) = &left.tables else { return DeviceTensor::borrowed(0, extents) };
        let TensorMemory::Device(block) = memory.as_ref() else { return DeviceTensor::default() };
        DeviceTensor::within(memory, block.address() + spec.at, extents, dense(&extents))
    }

    /// Tables for calls that take them as arguments, with the sizes of the shape.
    pub fn tables(&self, rank: usize) -> Result<LeftTables, CallError> {
        let inner = self.inner.as_ref();
        let own = &inner.ranks[inner.group.local_index(rank)?];
        let sizes = inner.spec.most;
        if inner.spec.table_bytes == 0 {
            return Ok(LeftTables { tables: None, sizes });
        }
        let _alone = own.values();
        let (_, place) = free(&own.tables, "handles", rank)?;
        Ok(LeftTables { tables: Some(place), sizes })
    }

    /// Memory for inputs and outputs of calls of one rank.
    pub fn memory(&self, rank: usize) -> Result<OutputMemory<'_>, CallError> {
        self.inner.group.local_index(rank)?;
        Ok(OutputMemory { kernel: self, rank, region: OnceCell::new() })
    }
}

impl OutputMemory<'_> {
    /// Whether calls take a tensor at a place of the declaration.
    pub fn takes(&self, place: usize) -> bool {
        self.kernel.inner.spec.tensors.get(place).is_some_and(Option::is_some)
    }

    /// Memory for the tensor at a place of the declaration.
    pub fn tensor<E: Element, const RANK: usize>(
        &self,
        place: usize,
    ) -> Result<DeviceTensor<E, RANK>, CallError> {
        Ok(self.optional(place)?.unwrap_or_default())
    }

    /// Memory for the tensor at a place of the declaration, if calls take one there.
    pub fn optional<E: Element, const RANK: usize>(
        &self,
        place: usize,
    ) -> Result<Option<DeviceTensor<E, RANK>>, CallError> {
        let Some(spec) = self.kernel.inner.spec.tensors.get(place).and_then(Option::as_ref) else {
            return Ok(None);
        };
        let mut extents = [0; RANK];
        for (extent, dim) in extents.iter_mut().zip(&spec.dims) {
            *extent = dim.value(&self.kernel.inner.spec.most).unwrap_or(0);
        }
        if spec.kind != Kind::Window {
            return self.alone(spec, extents).map(Some);
        }
        let (memory, at) = self.region()?;
        let mut strides = dense(&extents);
        if let Some(outermost) = strides.first_mut() {
            *outermost = spec.row_stride();
        }
        Ok(Some(DeviceTensor::within(memory, at + spec.at, extents, strides)))
    }

    /// A place in the window that is not in use.
    fn region(&self) -> Result<&(Arc<TensorMemory>, u64), CallError> {
        if let Some(region) = self.region.get() {
            return Ok(region);
        }
        let inner = self.kernel.inner.as_ref();
        let own = &inner.ranks[inner.group.local_index(self.rank)?];
        let _alone = own.values();
        let (index, place) = free(&own.regions, "places in the window", self.rank)?;
        let window = inner.window.own(self.rank)?;
        let at = window + inner.spec.regions_at + index as u64 * inner.spec.region_bytes;
        Ok(self.region.get_or_init(|| (place, at)))
    }

    /// Memory of its own.
    fn alone<E: Element, const RANK: usize>(
        &self,
        spec: &TensorSpec,
        extents: [u64; RANK],
    ) -> Result<DeviceTensor<E, RANK>, CallError> {
        let backend = self.kernel.inner.group.backend();
        let bytes = extents.iter().product::<u64>() * E::BYTES as u64;
        let (address, memory) = if spec.kind == Kind::Host {
            let memory = HostMemory::new(backend, self.rank, bytes)?;
            (memory.address(), TensorMemory::Host(memory))
        } else {
            let memory = DeviceMemory::zeroed(backend, self.rank, bytes)?;
            (memory.address(), TensorMemory::Device(memory))
        };
        backend.name_memory(self.rank, address, bytes, &spec.name, &[]);
        Ok(DeviceTensor::within(&Arc::new(memory), address, extents, dense(&extents)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::CallOptions;
    use crate::fake::FakeBackend;
    use crate::group::{Group, GroupOptions};
    use crate::pipelines::{Layout, NvlDispatch, layout, nvl_dispatch};
    use crate::tensor::DeviceTensor;

    /// Calls that can have no tokens leave tables as others do, without memory for them.
    #[test]
    fn tables_without_elements_take_no_place() {
        let group = Group::new(FakeBackend::new(1), GroupOptions::default()).unwrap();
        let shape = nvl_dispatch::Shape { hidden: 64, topk: 2, experts: 4, tokens: 0, received: 0 };
        let kernel = NvlDispatch::prepare(&group, shape, Default::default()).unwrap();
        let stripes = kernel.tunes().stripes as usize;
        let counts = layout::Shape { topk: 2, experts: 4, stripes, tokens: 0 };
        let layout = Layout::prepare(&group, counts, Default::default()).unwrap();
        let (routes, outputs) = (layout.tables(0).unwrap(), kernel.outputs(0).unwrap());
        let inputs = nvl_dispatch::Inputs {
            x: nvl_dispatch::PayloadTensor::Bf16 {
                x: DeviceTensor::zeros(&group, 0, [0, 64]).unwrap(),
            },
            topk_idx: Some(DeviceTensor::zeros(&group, 0, [0, 2]).unwrap()),
            topk_weights: Some(DeviceTensor::zeros(&group, 0, [0, 2]).unwrap()),
            expert_begin: DeviceTensor::from_slice(&group, 0, [2], &[0, 4]).unwrap(),
        };
        let (call, args) = (CallOptions::default(), nvl_dispatch::Args::default());
        let launch = || kernel.launch(0, &call, &inputs, &outputs, &routes, None, &args).unwrap();
        let kept = [launch(), launch()];
        assert!(kept.iter().all(|tables| tables.send_row.extents() == [0, 1]));
        group.sync(0).unwrap();
    }
}
