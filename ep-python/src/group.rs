//! Groups of ranks and memory of theirs.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ep_runtime::backend::Stream;
use ep_runtime::gpu::{self, Compile, GpuBackend, GpuOptions};
use ep_runtime::group::GroupOptions;
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
use ep_runtime::jit::{Cache, Jit, Nvrtc};
use ep_runtime::join::{self, Member, Store};
use pyo3::prelude::*;

use crate::errors::{Failure, released};
use crate::tensor::Tensor;

/// Names a group of processes; whoever knows its text can join.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct UniqueId(join::UniqueId);

#[pymethods]
impl UniqueId {
    /// A new group on this machine, at a free port of the loopback interface.
    #[staticmethod]
    fn local(py: Python<'_>) -> PyResult<UniqueId> {
        released(py, || join::UniqueId::local().map_err(|error| Failure::of_join(&error)))
            .map(UniqueId)
    }

    /// The id that a text names.
    #[staticmethod]
    fn parse(py: Python<'_>, text: &str) -> PyResult<UniqueId> {
        let parsed = || text.parse().map_err(|error| Failure::of_join(&error));
        released(py, parsed).map(UniqueId)
    }

    /// The id in `EPFORGE_ID`, or that of a launcher.
    #[staticmethod]
    fn from_environment(py: Python<'_>) -> PyResult<UniqueId> {
        let found = || join::UniqueId::from_environment().map_err(|error| Failure::of_join(&error));
        released(py, found).map(UniqueId)
    }

    /// The text for the other processes, and for nobody else.
    fn text(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// How many GPUs this process sees.
#[pyfunction]
pub(crate) fn gpus(py: Python<'_>) -> PyResult<usize> {
    released(py, || Ok(gpu::devices()?.len()))
}

/// The ranks that move rows among each other.
#[pyclass(frozen, module = "epforge._core")]
pub(crate) struct Group {
    pub(crate) inner: ep_runtime::group::Group,
    /// Device of each local rank; none in the emulator.
    pub(crate) devices: Vec<i32>,
}

fn compile(cache: Option<&Path>) -> Result<Compile, Failure> {
    let nvrtc = Nvrtc::find().map_err(|error| Failure::of_jit(&error))?;
    let cache = Cache::at(cache).map_err(|error| Failure::of_cache(&error))?;
    Ok(gpu::compile_with(Arc::new(Jit::new(nvrtc, cache))))
}

fn seconds(value: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| Failure::mismatch(format!("{value} is no number of seconds: {error}")))
}

#[pymethods]
impl Group {
    /// Ranks in the emulator, all in this process.
    #[staticmethod]
    fn on_host(py: Python<'_>, ranks: usize, seed: u64, checked: bool) -> PyResult<Group> {
        released(py, || {
            let mut options = HostOptions::new(ranks);
            options.spec.seed = seed;
            options.build = if checked { Build::Checked } else { Build::Fast };
            let inner = HostBackend::new(&Programs::find()?, options)?.group()?;
            Ok(Group { inner, devices: Vec::new() })
        })
    }

    /// Ranks on the GPUs of this process, in turn.
    #[staticmethod]
    fn on_gpus(py: Python<'_>, devices: Vec<i32>, timeout: f64) -> PyResult<Group> {
        released(py, || {
            let options = GpuOptions { devices: devices.clone(), ..GpuOptions::default() };
            let backend = GpuBackend::new(&options, compile(None)?)?;
            let options = GroupOptions { timeout: seconds(timeout)? };
            let inner = ep_runtime::group::Group::new(Arc::new(backend), options)?;
            Ok(Group { inner, devices })
        })
    }

    /// This process as one rank of a group of processes.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        id: &UniqueId,
        rank: usize,
        ranks: usize,
        device: i32,
        deadline: f64,
        timeout: f64,
    ) -> PyResult<Group> {
        let id = id.0.clone();
        released(py, || {
            let member = Member { rank, ranks };
            let store = Store::join(&id, member, seconds(deadline)?);
            let store = store.map_err(|error| Failure::of_join(&error))?;
            let backend = GpuBackend::join(device, store, compile(None)?)?;
            let options = GroupOptions { timeout: seconds(timeout)? };
            let inner = ep_runtime::group::Group::new(Arc::new(backend), options)?;
            Ok(Group { inner, devices: vec![device] })
        })
    }

    /// How many ranks there are, here and in other processes.
    #[getter]
    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    /// First rank that this process drives, and the one behind the last.
    #[getter]
    fn local(&self) -> (usize, usize) {
        let Range { start, end } = self.inner.local();
        (start, end)
    }

    /// Whether the ranks live in the emulator.
    #[getter]
    fn on_emulator(&self) -> bool {
        self.devices.is_empty()
    }

    /// The machine in a few words.
    #[getter]
    fn name(&self) -> String {
        self.inner.backend().name()
    }

    /// The device of a local rank.
    fn device(&self, py: Python<'_>, rank: usize) -> PyResult<i32> {
        released(py, || {
            let index = self.inner.local_index(rank)?;
            Ok(self.devices.get(index).copied().unwrap_or(0))
        })
    }

    /// SMs that a local rank may fill.
    fn sms(&self, rank: usize) -> u32 {
        self.inner.backend().sms(rank)
    }

    /// Waits until all calls of the rank have run.
    fn sync(&self, py: Python<'_>, rank: usize) -> PyResult<()> {
        released(py, || Ok(self.inner.sync(rank)?))
    }

    /// Puts a stream behind all calls of the rank so far.
    fn await_calls(&self, py: Python<'_>, rank: usize, stream: u64) -> PyResult<()> {
        let stream = raw_stream(stream);
        released(py, || Ok(self.inner.await_calls(rank, stream)?))
    }

    /// Puts later calls of the rank behind a stream.
    fn follow(&self, py: Python<'_>, rank: usize, stream: u64) -> PyResult<()> {
        let stream = raw_stream(stream);
        released(py, || Ok(self.inner.follow(rank, stream)?))
    }

    /// Waits until every process of the group has come to this step, and gives what each brought.
    fn gather(&self, py: Python<'_>, label: &str, value: u64) -> PyResult<Vec<u64>> {
        released(py, || Ok(self.inner.backend().gather(label, value)?))
    }

    /// A tensor of a rank with memory of its own and any content.
    fn empty(&self, py: Python<'_>, rank: usize, shape: Vec<i64>, dtype: &str) -> PyResult<Tensor> {
        released(py, || Tensor::alone(self, rank, shape, dtype, false))
    }

    /// A tensor of a rank with memory of its own, all of it zero.
    fn zeros(&self, py: Python<'_>, rank: usize, shape: Vec<i64>, dtype: &str) -> PyResult<Tensor> {
        released(py, || Tensor::alone(self, rank, shape, dtype, true))
    }

    /// Leaves a rank out of low-latency calls, or takes it back in, as this process sees it.
    fn leave_out(&self, py: Python<'_>, rank: usize, is_out: bool) -> PyResult<()> {
        released(py, || Ok(self.inner.leave_out(rank, is_out)?))
    }
}

/// A stream of the caller.
pub(crate) fn raw_stream(handle: u64) -> Stream {
    // SAFETY: the package passes handles of streams that the caller's library owns.
    unsafe { Stream::from_raw(handle) }
}
