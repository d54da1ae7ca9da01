//! Emitted pipelines that become kernels together, with one window for all of them. Their control memory
//! comes first, then the tensors of their calls that are in the window. One kernel reads in place what
//! another one wrote.

use std::sync::{Arc, Mutex};

use ep_codegen::ir;
use ep_codegen::ir::Transport;
use ep_codegen::plan::{Arch, Config, Param, Plan};

use super::fit::Kind;
use super::prepare::PrepareOptions;
use super::spec::CallSpec;
use super::{CallKernel, Inner, RankMemory};
use crate::backend::{Backend, BackendError, Image};
use crate::emit::Emitted;
use crate::error::CallError;
use crate::group::{Group, GroupKernel, Net, compile_all, place_control, waived};
use crate::launch::Prepared;
use crate::memory::{DeviceMemory, Window, align_up};
use crate::pipeline::AnyPipeline;
use crate::tensor::TensorMemory;

/// A pipeline that is emitted, and all that its calls take.
pub(crate) struct CallProgram {
    emitted: Emitted,
    spec: CallSpec,
    room: Room,
    /// Whether its places in the window are those of the program before it.
    is_over: bool,
}

/// Places that a kernel has for what its calls leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Room {
    /// For tables.
    pub(crate) tables: usize,
    /// In the window, for inputs and for outputs each.
    pub(crate) window: usize,
}

/// What a text is emitted for besides a caller's choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Ranks of the group.
    pub ranks: usize,
    /// What carries rows between nodes; none within one.
    pub carrier: Option<Transport>,
    /// The GPU.
    pub arch: Arch,
    /// Whether calls go on without ranks that do not answer.
    pub leaves_out_absent: bool,
}

impl Machine {
    /// That of a group.
    fn of(group: &Group) -> Machine {
        Machine {
            ranks: group.ranks(),
            carrier: group.carrier(),
            arch: group.backend().arch(),
            leaves_out_absent: group.leaves_out_absent(),
        }
    }
}

impl CallProgram {
    /// Emits a pipeline for a caller's choices.
    pub(crate) fn emit(
        group: &Group,
        entry: &AnyPipeline,
        options: &PrepareOptions<'_>,
        room: Room,
    ) -> Result<CallProgram, CallError> {
        CallProgram::emit_for(&Machine::of(group), entry, options, room)
    }

    /// Emits a pipeline for a machine that need not be there.
    pub(crate) fn emit_for(
        machine: &Machine,
        entry: &AnyPipeline,
        options: &PrepareOptions<'_>,
        room: Room,
    ) -> Result<CallProgram, CallError> {
        let Machine { ranks, carrier, arch, leaves_out_absent } = machine.clone();
        let ir = entry.ir();
        let config = options.config(&ir, ranks, arch)?;
        let config = Config { carrier, leaves_out_absent, ..config };
        options.refuse_idle_tunes(&ir, &config)?;
        let emitted = entry.emit(&config)?;
        CallProgram::new((&ir, &config), emitted, options, room)
    }

    /// What was emitted of a declaration, for a configuration.
    pub(crate) fn new(
        (ir, config): (&ir::Pipeline, &Config),
        emitted: Emitted,
        options: &PrepareOptions<'_>,
        room: Room,
    ) -> Result<CallProgram, CallError> {
        let spec = CallSpec::new(ir, config, &emitted.plan, options)?;
        Ok(CallProgram { emitted, spec, room, is_over: false })
    }

    /// What was emitted.
    pub(crate) fn emitted(&self) -> &Emitted {
        &self.emitted
    }

    /// Bytes that a kernel of its own takes on each rank: its window, and tables.
    pub(crate) fn device_bytes(&self) -> u64 {
        place(&[self]).1 + self.room.tables as u64 * self.spec.table_bytes
    }

    /// Bytes of the tables of a call.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.spec.table_bytes
    }

    /// Bytes of the outputs and the window inputs of a call, each as large as an allocator makes it.
    pub(crate) fn tensor_bytes(&self) -> u64 {
        let outputs = self.spec.tensors.iter().flatten();
        let outputs = outputs.filter(|spec| spec.is_output && spec.kind == Kind::Device);
        self.spec.region_bytes + outputs.map(|spec| align_up(spec.most_bytes)).sum::<u64>()
    }

    /// Gives it the places in the window of the program that stands before it: no call may need both at once.
    pub(crate) fn put_over(&mut self, before: &mut CallProgram) {
        let bytes = self.spec.region_bytes.max(before.spec.region_bytes);
        (self.spec.region_bytes, before.spec.region_bytes) = (bytes, bytes);
        self.is_over = true;
    }

    /// Bytes of its places in the window.
    fn window_bytes(&self) -> u64 {
        self.spec.regions(self.room.window) as u64 * self.spec.region_bytes
    }
}

/// Programs that are compiled, and the window of all of them. They are loaded in their order.
pub(crate) struct Loader<'a> {
    group: &'a Group,
    window: Arc<Window>,
    net: Option<Arc<Net>>,
    places: std::iter::Enumerate<std::vec::IntoIter<Place>>,
}

/// What one of them gets.
struct Place {
    /// Where its control memory begins in the window, and where its regions do.
    control_at: u64,
    regions_at: u64,
    image: Image,
}

/// Bytes of the control memory of programs that share a window.
pub(crate) fn control_bytes(programs: &[&CallProgram]) -> u64 {
    let plans = programs.iter().map(|program| &program.emitted.plan);
    align_up(place_control(plans).1)
}

/// Where the control memory and the regions of each program begin, and the bytes of the window.
fn place(programs: &[&CallProgram]) -> (Vec<(u64, u64)>, u64) {
    let plans = programs.iter().map(|program| &program.emitted.plan);
    let (control_at, _) = place_control(plans);
    let mut bytes = control_bytes(programs);
    let mut at = bytes;
    let regions = programs.iter().map(|program| {
        if !program.is_over {
            at = bytes;
            bytes += program.window_bytes();
        }
        at
    });
    let places = control_at.into_iter().zip(regions).collect();
    (places, bytes)
}

impl Loader<'_> {
    /// Maps the window and compiles. All processes of the group do it together.
    pub(crate) fn new<'a>(
        group: &'a Group,
        programs: &[&CallProgram],
    ) -> Result<Loader<'a>, CallError> {
        Loader::with_window(group, programs, Window::new)
    }

    /// Compiles programs without channels, whose window no other rank reaches. A process does it alone.
    pub(crate) fn alone<'a>(
        group: &'a Group,
        programs: &[&CallProgram],
    ) -> Result<Loader<'a>, CallError> {
        Loader::with_window(group, programs, Window::unshared)
    }

    fn with_window<'a>(
        group: &'a Group,
        programs: &[&CallProgram],
        make: impl FnOnce(&Arc<dyn Backend>, u64) -> Result<Window, BackendError>,
    ) -> Result<Loader<'a>, CallError> {
        let (places, bytes) = place(programs);
        let emitted: Vec<&Emitted> = programs.iter().map(|program| &program.emitted).collect();
        let plans: Vec<&Plan> = emitted.iter().map(|emitted| &emitted.plan).collect();
        group.check_nodes(&plans)?;
        let window = Arc::new(make(group.backend(), bytes)?);
        let images = compile_all(group, &emitted)?;
        let net = group.open_network(&plans)?;
        let places = places.into_iter().zip(images);
        let place = |((control_at, regions_at), image)| Place { control_at, regions_at, image };
        let places: Vec<Place> = places.map(place).collect();
        Ok(Loader { group, window, net, places: places.into_iter().enumerate() })
    }

    /// Loads the next one on all local ranks, and allocates what its calls take. `usual_sms`: SMs of
    /// calls that do not say how many.
    pub(crate) fn load(
        &mut self,
        program: CallProgram,
        usual_sms: u32,
    ) -> Result<CallKernel, CallError> {
        let (group, window) = (self.group, &self.window);
        let CallProgram { emitted: Emitted { plan, .. }, mut spec, room, .. } = program;
        let Some((number, Place { control_at, regions_at, image })) = self.places.next() else {
            let what = format!("{} was not compiled with the others", plan.pipeline);
            return Err(CallError::Mismatch { what });
        };
        spec.regions_at = regions_at;
        let kernel = GroupKernel::load(group, window, control_at, &plan, &image)?;
        let operand = |param: &Param| spec.operand(param);
        let prepared = Prepared::new(kernel, usual_sms, spec.is_paired, operand)?;
        let ranks = group.local().map(|rank| RankMemory::new(group, rank, &spec, room, window));
        let ranks = ranks.collect::<Result<Vec<_>, CallError>>()?;
        for (local, own) in ranks.iter().enumerate() {
            let address = self.net.as_ref().map_or(0, |net| net.address(number, local));
            own.values()[spec.network_at()] = address;
        }
        let (group, window, _net) = (group.clone(), Arc::clone(window), self.net.clone());
        let inner = Inner { prepared, ranks, spec, group, window, _net };
        Ok(CallKernel { inner: Arc::new(inner) })
    }
}

impl RankMemory {
    fn new(
        group: &Group,
        rank: usize,
        spec: &CallSpec,
        room: Room,
        window: &Arc<Window>,
    ) -> Result<RankMemory, CallError> {
        let tables = (0..if spec.table_bytes > 0 { room.tables } else { 0 }).map(|_| {
            let memory = DeviceMemory::zeroed(group.backend(), rank, spec.table_bytes)?;
            for table in spec.tables() {
                let at = memory.address() + table.at;
                group.backend().name_memory(rank, at, table.most_bytes, &table.name, &[]);
            }
            Ok::<_, CallError>(Arc::new(TensorMemory::Device(memory)))
        });
        let regions = (0..spec.regions(room.window))
            .map(|_| Arc::new(TensorMemory::Window(Arc::clone(window), rank)));
        Ok(RankMemory {
            tables: tables.collect::<Result<_, _>>()?,
            regions: regions.collect(),
            values: Mutex::new(vec![0; spec.values]),
        })
    }
}

impl CallKernel {
    /// Says what lies where in the window, for reports; `plans` are those whose kernels reach it.
    pub(crate) fn name_regions(&self, plans: &[&Plan]) -> Result<(), CallError> {
        let Inner { ranks, spec, group, window, .. } = self.inner.as_ref();
        let waived: Vec<&str> = plans.iter().flat_map(|plan| waived(plan, |_| true)).collect();
        for (rank, own) in group.local().zip(ranks) {
            for index in 0..own.regions.len() as u64 {
                let region = window.own(rank)? + spec.regions_at + index * spec.region_bytes;
                for tensor in spec.in_window() {
                    let (at, bytes) = (region + tensor.at, tensor.most_bytes);
                    group.backend().name_memory(rank, at, bytes, &tensor.name, &waived);
                }
            }
        }
        Ok(())
    }
}
