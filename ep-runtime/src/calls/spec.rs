//! The arguments that a call must provide, and the words of `struct Args` that they become.
//!
//! One list holds the numbers of a call: four for each place of the declaration (address, row stride,
//! column stride, place in the window), two for each size (how many, and where the device finds the
//! number), one for each tensor of several copies, one for each arg, and the address of the network.

mod words;

use ep_codegen::ir::parts::{LINE_BYTES, elem_bytes, parts};
use ep_codegen::ir::{self, Blocks, Expr, Memory, NameKind, TensorKind};
use ep_codegen::plan::{Config, Param, ParamKind, Plan, eval};

use super::fit::{Dim, Kind, TensorSpec, row_of};
use super::held::{MOST_PLACES, PlaceSet};
use super::prepare::{PrepareOptions, TensorName};
use crate::args::Operand;
use crate::error::CallError;
use crate::group::positive;
use crate::memory::align_up;

/// Sizes of one call, in the order of the declaration; what is beyond it is 0.
pub(super) type Sizes = [u64; MOST_SIZES];

/// Most sizes of a declaration.
pub(super) const MOST_SIZES: usize = 8;

/// A size.
struct SizeSpec {
    name: &'static str,
    most: u64,
    /// Inputs whose first extent says it; none: the call does.
    told_by: Vec<usize>,
    /// Outputs whose first extent is how many there may be.
    holders: Vec<usize>,
    is_said: bool,
}

/// All that calls of a pipeline take.
pub(super) struct CallSpec {
    pipeline: String,
    /// By place; none where the chosen arms take nothing.
    pub(super) tensors: Vec<Option<TensorSpec>>,
    pub(super) names: &'static [TensorName],
    /// Which of the places are those of handles: these have the tables of all arms.
    of_handles: Vec<bool>,
    /// Places that a call brings, and those that it may leave to its handle.
    required: PlaceSet,
    /// Those that each call may leave out.
    left_out: Vec<usize>,
    own_tables: PlaceSet,
    /// Which numbers of the list the kernel reads.
    pub(super) is_read: Vec<bool>,
    sizes: Vec<SizeSpec>,
    /// The most of each.
    pub(super) most: Sizes,
    args: Vec<(bool, ir::Arg)>,
    /// First place and number of places of each tensor of several copies.
    copies: Vec<(&'static str, usize, usize)>,
    /// Number of the chosen arm of each axis.
    pub(super) arms: Vec<usize>,
    pub(super) is_paired: bool,
    /// Length of the list of numbers.
    pub(super) values: usize,
    pub(super) table_bytes: u64,
    pub(super) regions_at: u64,
    pub(super) region_bytes: u64,
}

/// Words of the list for each place: address, row stride, column stride, place in the window.
pub(super) const WORDS: usize = 4;

impl CallSpec {
    pub(super) fn new(
        ir: &ir::Pipeline,
        config: &Config,
        plan: &Plan,
        options: &PrepareOptions<'_>,
    ) -> Result<CallSpec, CallError> {
        let selected = ir.select(&config.choice);
        let names = options.tensors;
        for (what, count, most) in
            [("sizes", ir.sizes.len(), MOST_SIZES), ("tensors", names.len(), MOST_PLACES)]
        {
            if count > most {
                let what =
                    format!("{} has {count} {what}, and calls can have at most {most}", ir.name);
                return Err(CallError::Mismatch { what });
            }
        }
        let mut most = [0; MOST_SIZES];
        for (most, size) in most.iter_mut().zip(&ir.sizes) {
            let given = options.sizes.iter().find(|(name, _)| *name == size.name);
            *most = given.map_or(0, |(_, most)| *most as u64);
        }
        let maker = Maker { ir: &selected, config, plan, most: &most };
        let tensors: Vec<_> = names.iter().map(|name| maker.tensor(name)).collect();
        let arms = ir.axes.iter().zip(&config.choice.arms);
        let arm = |(axis, chosen): (&ir::Axis, &String)| {
            axis.arms.iter().position(|arm| arm.name == *chosen).unwrap_or(0)
        };
        let taken = |arg: &ir::Arg| {
            let own = selected.args.iter().find(|it| it.name == arg.name);
            (own.is_some(), own.unwrap_or(arg).clone())
        };
        let left_out = places_left_out(&selected, names);
        let mut spec = CallSpec {
            pipeline: ir.name.clone(),
            required: places_of(&tensors, false, &left_out),
            own_tables: places_of(&tensors, true, &left_out),
            left_out,
            is_read: Vec::new(),
            of_handles: names.iter().map(|name| is_table(ir, name.name)).collect(),
            sizes: Vec::new(),
            most,
            args: ir.first_args().map(taken).collect(),
            copies: copies(names),
            arms: arms.map(arm).collect(),
            is_paired: selected
                .roles
                .iter()
                .any(|role| matches!(role.blocks, Blocks::Even | Blocks::Odd)),
            values: 0,
            table_bytes: 0,
            regions_at: 0,
            region_bytes: 0,
            tensors,
            names,
        };
        spec.sizes = spec.sizes_of(ir, options);
        let words = WORDS * names.len() + 2 * spec.sizes.len();
        spec.values = words + spec.copies.len() + spec.args.len() + 1;
        spec.is_read = vec![false; spec.values];
        for param in &plan.params {
            if let Some(Operand::PerCall(at, _)) = spec.operand(param) {
                spec.is_read[at] = true;
            }
        }
        spec.place();
        Ok(spec)
    }

    fn sizes_of(&self, ir: &ir::Pipeline, options: &PrepareOptions<'_>) -> Vec<SizeSpec> {
        let begin_with = |dim: Dim, wanted: &dyn Fn(&TensorSpec) -> bool| {
            let tensors = self.tensors.iter().enumerate();
            let fits = |spec: &TensorSpec| spec.dims.first() == Some(&dim) && wanted(spec);
            tensors.filter(|(_, spec)| spec.as_ref().is_some_and(fits)).map(|(at, _)| at).collect()
        };
        let size = |(index, size): (usize, &ir::Size)| {
            let given = options.sizes.iter().find(|(name, _)| *name == size.name);
            let is_input = |spec: &TensorSpec| {
                !spec.is_output && !matches!(spec.kind, Kind::Handle | Kind::Table)
            };
            SizeSpec {
                name: given.map_or("rows", |(name, _)| name),
                most: self.most[index],
                told_by: begin_with(Dim::Said(index), &is_input),
                holders: begin_with(Dim::Found(index), &|spec| spec.is_output),
                is_said: size.value.is_none(),
            }
        };
        ir.sizes.iter().enumerate().map(size).collect()
    }

    /// Lays out the tables of a handle, and a region of the window.
    fn place(&mut self) {
        for spec in self.tensors.iter_mut().flatten() {
            let end = match spec.kind {
                Kind::Table => &mut self.table_bytes,
                Kind::Window => &mut self.region_bytes,
                Kind::Device | Kind::Host | Kind::Handle => continue,
            };
            spec.at = *end;
            *end += align_up(spec.most_bytes);
        }
    }

    pub(super) fn tables(&self) -> impl Iterator<Item = &TensorSpec> {
        self.tensors.iter().flatten().filter(|spec| spec.kind == Kind::Table)
    }

    pub(super) fn in_window(&self) -> impl Iterator<Item = &TensorSpec> {
        self.tensors.iter().flatten().filter(|spec| spec.kind == Kind::Window)
    }

    /// Regions of the window for `live` calls: a caller takes inputs and outputs separately.
    pub(super) fn regions(&self, live: usize) -> usize {
        let (outputs, inputs): (Vec<_>, Vec<_>) = self.in_window().partition(|spec| spec.is_output);
        live * (usize::from(!outputs.is_empty()) + usize::from(!inputs.is_empty()))
    }

    fn size_at(&self, size: usize) -> usize {
        WORDS * self.names.len() + 2 * size
    }

    fn copies_at(&self) -> usize {
        self.size_at(self.sizes.len())
    }

    fn args_at(&self) -> usize {
        self.copies_at() + self.copies.len()
    }

    /// Where the list has the network of the rank, which no call changes.
    pub(super) fn network_at(&self) -> usize {
        self.args_at() + self.args.len()
    }

    /// Which number of a call a member of `struct Args` takes.
    pub(super) fn operand(&self, param: &Param) -> Option<Operand> {
        let tensor = |name: &str, part: usize, copy: i64, word: usize| {
            let wanted = |it: &&TensorName| (it.name, it.part, it.copy) == (name, part, copy);
            let place = self.names.iter().position(|it| wanted(&it))?;
            Some(WORDS * place + word)
        };
        let size = |name: &str| self.sizes.iter().position(|size| size.name == name);
        let at = match &param.kind {
            ParamKind::Group => None,
            ParamKind::Size => Some(self.size_at(size(&param.name)?)),
            ParamKind::SizeFrom { size: name } => Some(self.size_at(size(name)?) + 1),
            ParamKind::Capacity { size: name } => Some(self.size_at(size(name)?)),
            ParamKind::Arg { .. } => {
                let arg = self.args.iter().position(|(_, arg)| arg.name == param.name)?;
                Some(self.args_at() + arg)
            }
            ParamKind::Copies { tensor } => {
                let index = self.copies.iter().position(|(name, ..)| name == tensor)?;
                Some(self.copies_at() + index)
            }
            ParamKind::Pointer { tensor: name, part, copy, .. } => tensor(name, *part, *copy, 0),
            ParamKind::RowStride { tensor: name, part } => tensor(name, *part, 0, 1),
            ParamKind::ColumnStride { tensor: name, part } => tensor(name, *part, 0, 2),
            ParamKind::WindowOffset { tensor: name } => tensor(name, 0, 0, 3),
            ParamKind::MetaOffset { channel } => tensor(&records(channel), 0, 0, 3),
            ParamKind::Net => Some(self.network_at()),
        };
        Some(Operand::PerCall(at?, 0))
    }
}

/// What a direct channel's records are called among the tensors of a call.
fn records(channel: &str) -> String {
    format!("{channel}_records")
}

fn is_table(ir: &ir::Pipeline, name: &str) -> bool {
    ir.tensors.iter().any(|tensor| tensor.name == name && tensor.kind == TensorKind::Table)
}

/// The places of tables that a call leaves, or of all other tensors.
fn places_of(tensors: &[Option<TensorSpec>], are_tables: bool, without: &[usize]) -> PlaceSet {
    PlaceSet::of(tensors.len(), |place| {
        let own = tensors[place].as_ref().filter(|_| !without.contains(&place));
        own.is_some_and(|it| (it.kind == Kind::Table) == are_tables)
    })
}

/// The places of tensors that each call may leave out.
fn places_left_out(ir: &ir::Pipeline, names: &[TensorName]) -> Vec<usize> {
    (0..names.len()).filter(|place| ir.may_be_left_out(names[*place].name)).collect()
}

/// The tensors of which there may be several.
fn copies(names: &'static [TensorName]) -> Vec<(&'static str, usize, usize)> {
    let mut all: Vec<(&'static str, usize, usize)> = Vec::new();
    for (place, name) in names.iter().enumerate().filter(|(_, name)| name.part == 0) {
        match all.iter_mut().find(|(known, ..)| *known == name.name) {
            Some((_, _, count)) => *count += 1,
            None => all.push((name.name, place, 1)),
        }
    }
    all.retain(|(.., count)| *count > 1);
    all
}

/// Makes the specification of each place.
struct Maker<'a> {
    /// With the chosen arms alone.
    ir: &'a ir::Pipeline,
    config: &'a Config,
    plan: &'a Plan,
    most: &'a Sizes,
}

impl Maker<'_> {
    fn tensor(&self, name: &TensorName) -> Option<TensorSpec> {
        let Some(tensor) = self.ir.tensors.iter().find(|tensor| tensor.name == name.name) else {
            return self.records(name);
        };
        let parts = parts(self.ir, &tensor.elem);
        let (suffix, elem, block) = parts.into_iter().nth(name.part)?;
        let count = self.config.copies.get(name.name).copied().unwrap_or(tensor.copies);
        if name.copy >= count {
            return None;
        }
        let mut dims: Vec<Dim> = tensor.dims.iter().map(|dim| self.dim(dim)).collect();
        if let Some(Dim::Is(last)) = dims.last_mut() {
            *last = last.div_ceil(positive(block).max(1));
        }
        let kind = match (&tensor.kind, &tensor.memory, &tensor.from_handle) {
            (_, _, Some(_)) => Kind::Handle,
            (TensorKind::Table, ..) => Kind::Table,
            (_, Memory::Window, _) if name.part == 0 => Kind::Window,
            (_, Memory::Host, _) => Kind::Host,
            _ => Kind::Device,
        };
        let (rows_apart, columns_apart) = self.plan.strides_of(name.name, name.part);
        let is_output = matches!(tensor.kind, TensorKind::Output | TensorKind::Inout);
        let bytes = positive(elem_bytes(&elem));
        let copy = if name.copy > 0 { format!("[{}]", name.copy) } else { String::new() };
        let mut spec = TensorSpec {
            // As it is spelled in `struct Args`.
            name: format!("{}{suffix}{copy}", name.name),
            elem,
            bytes,
            inner: row_of(&dims),
            has_elements: dims.iter().all(|dim| dim.value(self.most) != Some(0)),
            dims,
            kind,
            is_output,
            rows_apart,
            columns_apart,
            stride_bytes: None,
            at: 0,
            most_bytes: 0,
        };
        self.lay_out(&mut spec, name);
        Some(spec)
    }

    /// How far its rows lie apart, and how many bytes it has at most.
    fn lay_out(&self, spec: &mut TensorSpec, name: &TensorName) {
        let row_bytes = spec.inner * spec.bytes;
        let counted = self.plan.strides.iter().find(|(tensor, _)| tensor == name.name);
        spec.stride_bytes = match counted.filter(|_| name.part == 0) {
            Some((_, apart)) => Some(positive(*apart)),
            // Rows in the window are whole lines.
            None if spec.kind == Kind::Window && spec.rows_apart => {
                Some(row_bytes.next_multiple_of(LINE_BYTES as u64))
            }
            None => None,
        };
        let rows = spec.dims.first().map_or(1, |dim| dim.value(self.most).unwrap_or(0));
        spec.most_bytes = rows.saturating_mul(spec.stride_bytes.unwrap_or(row_bytes));
    }

    /// The records that a direct channel brings with its rows.
    fn records(&self, name: &TensorName) -> Option<TensorSpec> {
        let is_own = |channel: &&ir::Channel| {
            channel.kind.traits().lands && records(&channel.name) == name.name
        };
        let channel = self.ir.channels.iter().find(is_own)?;
        let layouts = &self.plan.messages;
        let layout = layouts.iter().find(|layout| layout.name == channel.message)?;
        // A record for each row that may arrive.
        let arriving = self.ir.tensors.iter().filter(|it| {
            it.memory == Memory::Window && matches!(it.kind, TensorKind::Output | TensorKind::Inout)
        });
        let rows = arriving.filter_map(|it| self.dim(it.dims.first()?).value(self.most));
        let rows = rows.max().unwrap_or(0);
        let bytes = rows.saturating_mul(positive(layout.meta_bytes));
        Some(TensorSpec {
            name: name.name.to_string(),
            elem: ir::Elem::U8,
            bytes: 1,
            inner: 1,
            has_elements: bytes > 0,
            // Kernels of other records may share them.
            dims: vec![Dim::Least(bytes)],
            kind: Kind::Window,
            is_output: true,
            rows_apart: false,
            columns_apart: false,
            stride_bytes: None,
            at: 0,
            most_bytes: bytes,
        })
    }

    fn dim(&self, dim: &Expr) -> Dim {
        let size = |name: &String| self.ir.sizes.iter().position(|size| size.name == *name);
        match dim {
            Expr::Name { name, kind: NameKind::Size } => match size(name) {
                Some(index) if self.ir.sizes[index].value.is_none() => Dim::Said(index),
                Some(index) => Dim::Found(index),
                None => Dim::Unknown,
            },
            dim => match eval(dim, &self.plan.numbers) {
                Some(value) => Dim::Is(positive(value)),
                None => Dim::Unknown,
            },
        }
    }
}
