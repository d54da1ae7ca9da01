//! Groups of ranks and memory of theirs.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ep_runtime::backend::{Backend, Stream};
use ep_runtime::gpu::{self, Compile, GpuBackend, GpuOptions};
use ep_runtime::group::{self as groups, GroupOptions};
use ep_runtime::host::{Build, HostBackend, HostOptions, Programs, TIMEOUT};
use ep_runtime::jit::{Cache, Jit, Nvrtc};
use ep_runtime::join::{self, Member, Store};
use ep_runtime::net::{Carrier, ModelOptions};
use pyo3::prelude::*;

use crate::errors::{Failure, launched, released};
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

    /// A new group whose rank 0 listens at a free port of the interface with this address.
    #[staticmethod]
    fn at(py: Python<'_>, address: &str) -> PyResult<UniqueId> {
        released(py, || {
            let wrong = |_| Failure::mismatch(format!("`{address}` is no address of an interface"));
            let interface = address.parse().map_err(wrong)?;
            join::UniqueId::at(interface).map_err(|error| Failure::of_join(&error))
        })
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
    pub(crate) inner: groups::Group,
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

/// What carries rows between nodes: the network that is named, or that of the environment.
fn network(name: Option<&str>) -> Result<Carrier, Failure> {
    name.map_or_else(Carrier::from_environment, str::parse).map_err(Failure::mismatch)
}

/// Refuses cards that are kernels where the driver loads the kernels of other libraries at their first launch: such a
/// launch waits until the card has ended, and the card runs until that launch has ended.
fn refuse_lazy_loading(net: &Carrier) -> Result<(), Failure> {
    if !gpu::loads_lazily()? {
        return Ok(());
    }
    let what = format!(
        "`{net}` needs `CUDA_MODULE_LOADING=EAGER` in the environment before CUDA is first used: a kernel that is loaded \
         at its first launch waits for the kernels that are network cards, and they wait for it"
    );
    Err(Failure::mismatch(what))
}

/// Some of the ranks of an emulator.
fn emulated(local: Range<usize>, ranks: usize, seed: u64, checked: bool) -> HostOptions {
    let mut options = HostOptions { local, ..HostOptions::new(ranks) };
    options.spec.seed = seed;
    options.build = if checked { Build::Checked } else { Build::Plain };
    options
}

#[pymethods]
impl Group {
    /// Ranks in the emulator, all in this process. `numbers`: how many there are, and on how many nodes.
    #[staticmethod]
    fn on_host(
        py: Python<'_>,
        numbers: [usize; 2],
        seed: u64,
        net: Option<&str>,
        checked: bool,
        leaves_out_absent: bool,
    ) -> PyResult<Group> {
        released(py, || {
            let ([ranks, nodes], net) = (numbers, network(net)?);
            let options = emulated(0..ranks, ranks, seed, checked);
            let backend = HostBackend::new(&Programs::find()?, options)?;
            let inner = match nodes {
                1 => groups::Group::new(backend, options_of(TIMEOUT, leaves_out_absent))?,
                _ if leaves_out_absent => {
                    let what = "nodes in the emulator cannot leave out who does not answer".into();
                    return Err(Failure::mismatch(what));
                }
                _ => {
                    let model = ModelOptions::default();
                    match net {
                        Carrier::Libfabric(_) => {
                            groups::Group::over_model(&backend, nodes, &model)?
                        }
                        Carrier::Ibgda(_) | Carrier::Card(_) => {
                            groups::Group::over_cards(&backend, nodes, &model)?
                        }
                    }
                }
            };
            Ok(Group { inner, devices: Vec::new() })
        })
    }

    /// The ranks of a node, each on a device or all in the emulator, and those of other processes behind a
    /// network. `numbers`: which node, how many nodes, ranks of each.
    #[staticmethod]
    fn over_network(
        py: Python<'_>,
        id: &UniqueId,
        numbers: [usize; 3],
        devices: Vec<i32>,
        net: Option<&str>,
        deadline: f64,
        timeout: f64,
    ) -> PyResult<Group> {
        let id = id.0.clone();
        released(py, || {
            let net = network(net)?;
            let [node, nodes, each] = numbers;
            let (ranks, local) = (nodes * each, node * each..(node + 1) * each);
            if node >= nodes || each == 0 {
                let what =
                    format!("node {node} does not exist: there are {nodes} nodes of {each} ranks");
                return Err(Failure::mismatch(what));
            }
            let (mut timeout, deadline) = (seconds(timeout)?, seconds(deadline)?);
            let backend: Arc<dyn Backend> = match devices.is_empty() {
                true => {
                    timeout = TIMEOUT;
                    HostBackend::new(&Programs::find()?, emulated(local, ranks, 1, false))?
                }
                false => {
                    let (before, behind) = (local.start, ranks - local.end);
                    let devices = devices.clone();
                    let options = GpuOptions { devices, before, behind, ..GpuOptions::default() };
                    Arc::new(GpuBackend::new(&options, compile(None)?)?)
                }
            };
            let options = options_of(timeout, false);
            let inner = match &net {
                Carrier::Libfabric(net) => {
                    groups::Group::over_network(backend, options, &id, net, deadline)?
                }
                Carrier::Ibgda(cards) => {
                    groups::Group::over_ibgda(backend, options, &id, cards, deadline)?
                }
                Carrier::Card(_) => {
                    let what = format!(
                        "`{net}` connects processes of one rank each: use `Group.join` or `from_torch`"
                    );
                    return Err(Failure::mismatch(what));
                }
            };
            Ok(Group { inner, devices })
        })
    }

    /// Ranks on the GPUs of this process, in turn.
    #[staticmethod]
    fn on_gpus(
        py: Python<'_>,
        devices: Vec<i32>,
        timeout: f64,
        leaves_out_absent: bool,
    ) -> PyResult<Group> {
        released(py, || {
            let options = GpuOptions { devices: devices.clone(), ..GpuOptions::default() };
            let backend = GpuBackend::new(&options, compile(None)?)?;
            let options = options_of(seconds(timeout)?, leaves_out_absent);
            let inner = groups::Group::new(Arc::new(backend), options)?;
            Ok(Group { inner, devices })
        })
    }

    /// This process as one rank of a group of processes. `numbers`: the rank, how many there are, and on how many
    /// nodes; `times`: how long others are waited for, and a wait inside a kernel.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        id: &UniqueId,
        numbers: [usize; 3],
        device: i32,
        net: Option<&str>,
        times: [f64; 2],
        leaves_out_absent: bool,
    ) -> PyResult<Group> {
        let id = id.0.clone();
        released(py, || {
            let ([rank, ranks, nodes], [deadline, timeout]) = (numbers, times);
            let (net, deadline) = (network(net)?, seconds(deadline)?);
            if nodes > 1 && matches!(net, Carrier::Card(_)) {
                refuse_lazy_loading(&net)?;
            }
            let options = options_of(seconds(timeout)?, leaves_out_absent);
            let store = Store::join(&id, Member { rank, ranks }, deadline);
            let store = Arc::new(store.map_err(|error| Failure::of_join(&error))?);
            let backend = GpuBackend::join_node(device, &store, nodes, compile(None)?)?;
            let backend = net.beside(backend, nodes);
            let inner = groups::Group::over_store(Arc::new(backend), options, &store, &net)?;
            Ok(Group { inner, devices: vec![device] })
        })
    }

    /// How many ranks there are, here and in other processes.
    #[getter]
    fn ranks(&self) -> usize {
        self.inner.ranks()
    }

    /// How many nodes they are on.
    #[getter]
    fn nodes(&self) -> usize {
        self.inner.nodes()
    }

    /// Whether kernels write to network cards themselves.
    #[getter]
    fn writes_to_cards(&self) -> bool {
        self.inner.writes_to_cards()
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
        launched(py, &self.inner, || Ok(self.inner.await_calls(rank, stream)?))
    }

    /// Puts later calls of the rank behind a stream.
    fn follow(&self, py: Python<'_>, rank: usize, stream: u64) -> PyResult<()> {
        let stream = raw_stream(stream);
        launched(py, &self.inner, || Ok(self.inner.follow(rank, stream)?))
    }

    /// Waits until every process of the group has come to this step, and gives what each brought.
    fn gather(&self, py: Python<'_>, label: &str, value: u64) -> PyResult<Vec<u64>> {
        released(py, || Ok(self.inner.gather(label, value)?))
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

    /// The ranks that calls of a local rank have found absent.
    fn absent(&self, py: Python<'_>, rank: usize) -> PyResult<Vec<usize>> {
        released(py, || Ok(self.inner.absent(rank)?))
    }
}

/// What holds for all calls of a group.
fn options_of(timeout: Duration, leaves_out_absent: bool) -> GroupOptions {
    GroupOptions { timeout, leaves_out_absent }
}

/// A stream of the caller.
pub(crate) fn raw_stream(handle: u64) -> Stream {
    // SAFETY: the package passes handles of streams that the caller's library owns.
    unsafe { Stream::from_raw(handle) }
}
