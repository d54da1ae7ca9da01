//! Arguments by name, for a launch without a typed call, and the checks of such arguments.

use std::collections::BTreeMap;

use ep_codegen::plan::{Lists, Param, ParamKind, Plan, Taken, elem_bytes};

use super::{Operand, Rows, fill_a_list};
use crate::error::{CallError, TensorFault};

/// The arguments of one launch by name: for pipelines that have no typed call.
#[derive(Debug, Clone, Default)]
pub struct Bindings {
    numbers: BTreeMap<String, u64>,
    counts: BTreeMap<String, u64>,
    tensors: BTreeMap<(String, usize, i64), Rows>,
    regions: BTreeMap<String, u64>,
}

impl Bindings {
    /// No arguments yet. Optional tensors that are never bound are absent. All other arguments must be
    /// given.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    /// A run-time size, the capacity of one (`received_capacity`), or an integer arg.
    pub fn number(&mut self, name: &str, value: i64) -> &mut Bindings {
        self.numbers.insert(name.to_string(), value as u64);
        self
    }

    /// The network, whose part for this kernel is at `address` ([`crate::net::NetPart`]).
    pub fn network(&mut self, address: u64) -> &mut Bindings {
        self.numbers.insert("net".to_string(), address);
        self
    }

    /// A run-time size that the device reads from an `i32` at `address`; its number is then the upper limit
    /// of that word.
    pub fn counted(&mut self, size: &str, address: u64) -> &mut Bindings {
        self.counts.insert(size.to_string(), address);
        self
    }

    /// A floating-point arg.
    pub fn real(&mut self, name: &str, value: f32) -> &mut Bindings {
        self.numbers.insert(name.to_string(), u64::from(value.to_bits()));
        self
    }

    /// A tensor, or the first part of a composite one.
    pub fn tensor(&mut self, name: &str, rows: Rows) -> &mut Bindings {
        self.part(name, 0, rows)
    }

    /// A part of a composite tensor: 1 is the first scale.
    pub fn part(&mut self, name: &str, part: usize, rows: Rows) -> &mut Bindings {
        self.tensors.insert((name.to_string(), part, 0), rows);
        self
    }

    /// One of several copies of an `up to n` tensor.
    pub fn copy(&mut self, name: &str, copy: i64, rows: Rows) -> &mut Bindings {
        self.tensors.insert((name.to_string(), 0, copy), rows);
        self
    }

    /// Window offset of a window tensor, or of the meta records of a direct channel.
    pub fn region(&mut self, name: &str, window_offset: u64) -> &mut Bindings {
        self.regions.insert(name.to_string(), window_offset);
        self
    }

    /// Fails if a required tensor is absent, or if its rows are not laid out as the kernel of `plan`
    /// expects. A tensor without rows needs no address.
    pub fn check_tensors(&self, plan: &Plan) -> Result<(), CallError> {
        for taken in &plan.taken {
            self.check_taken(plan, taken).map_err(|fault| CallError::Tensor {
                pipeline: plan.pipeline.clone(),
                tensor: match taken.part {
                    0 => taken.tensor.clone(),
                    part => format!("{}'s part {part}", taken.tensor),
                },
                fault,
            })?;
        }
        self.check_lists(plan)?;
        self.check_strides(plan)
    }

    /// Fails if the scales of a list of rows do not fill it, row by row or column by column: kernels know where each
    /// list begins.
    fn check_lists(&self, plan: &Plan) -> Result<(), CallError> {
        for Lists { tensor, part, rows, columns } in &plan.lists {
            let given = self.tensors.get(&(tensor.clone(), *part, 0));
            let Some(given) = given.filter(|given| given.address != 0) else { continue };
            let have = [given.row_stride, given.column_stride];
            if !fill_a_list([*rows, *columns], have) {
                let fault = TensorFault::Lists { have: have.to_vec(), list: rows * columns };
                let tensor = format!("{tensor}'s part {part}");
                return Err(CallError::Tensor { pipeline: plan.pipeline.clone(), tensor, fault });
            }
        }
        Ok(())
    }

    fn check_taken(&self, plan: &Plan, taken: &Taken) -> Result<(), TensorFault> {
        let rows = self.tensors.get(&(taken.tensor.clone(), taken.part, 0));
        let has_no_rows = |size: &String| {
            let rows =
                self.numbers.get(size).or_else(|| self.numbers.get(&format!("{size}_capacity")));
            rows == Some(&0)
        };
        if taken.size.as_ref().is_some_and(has_no_rows) || taken.row == Some(0) {
            return Ok(());
        }
        let rows = rows.filter(|rows| rows.address != 0).ok_or(TensorFault::Absent)?;
        let (rows_apart, columns_apart) = plan.strides_of(&taken.tensor, taken.part);
        let least = taken.row.unwrap_or(1);
        let fits = match (rows_apart, columns_apart) {
            (_, true) => rows.row_stride >= 1 && rows.column_stride >= 1,
            (true, false) => rows.row_stride >= least,
            (false, false) => true,
        };
        if fits {
            return Ok(());
        }
        let have = vec![rows.row_stride, rows.column_stride];
        Err(TensorFault::Strides { have, row: least, or_more: true })
    }

    /// Fails if the rows of a tensor that peers reach where they lie are not as far apart as they count
    /// on.
    fn check_strides(&self, plan: &Plan) -> Result<(), CallError> {
        for (name, apart) in &plan.strides {
            let key = (name.clone(), 0, 0);
            let Some(rows) = self.tensors.get(&key).filter(|rows| rows.address != 0) else {
                continue;
            };
            let bytes = plan.params.iter().find_map(|param| match &param.kind {
                ParamKind::Pointer { tensor, part: 0, elem, .. } if tensor == name => {
                    Some(elem_bytes(elem))
                }
                _ => None,
            });
            let given = rows.row_stride.saturating_mul(bytes.unwrap_or(1));
            if given != *apart {
                let what = format!(
                    "the rows of `{name}` have a stride of {given} bytes, and {} uses a stride of \
                    {apart} bytes in the window",
                    plan.pipeline
                );
                return Err(CallError::Mismatch { what });
            }
        }
        Ok(())
    }

    /// The subset of the arguments that the kernel of `plan` takes.
    #[must_use]
    pub fn taken_by(&self, plan: &Plan) -> Bindings {
        let mut taken = self.clone();
        while let Some(name) = taken.unknown(plan).cloned() {
            taken.numbers.remove(&name);
            taken.counts.remove(&name);
            taken.tensors.retain(|(tensor, ..), _| *tensor != name);
            taken.regions.remove(&name);
        }
        taken
    }

    /// Fails if the kernel of `plan` takes no argument of one of these names.
    pub fn check_names(&self, plan: &Plan) -> Result<(), CallError> {
        let Some(name) = self.unknown(plan) else { return Ok(()) };
        let known = plan.params.iter().filter(|param| param.kind != ParamKind::Group);
        let known: Vec<&str> = known.map(|param| param.name.as_str()).collect();
        let what = format!("{} takes no `{name}`; it takes {}", plan.pipeline, known.join(", "));
        Err(CallError::Mismatch { what })
    }

    /// A name that the kernel of `plan` takes nothing of.
    fn unknown(&self, plan: &Plan) -> Option<&String> {
        let number = |name: &&String| plan.params.iter().any(|param| param.name == **name);
        let is = |name: &str, of: fn(&ParamKind) -> Option<&String>| {
            plan.params.iter().any(|param| of(&param.kind).is_some_and(|taken| taken == name))
        };
        let count = |name: &&String| {
            is(name, |kind| match kind {
                ParamKind::SizeFrom { size } => Some(size),
                _ => None,
            })
        };
        let tensor = |name: &&String| {
            is(name, |kind| match kind {
                ParamKind::Pointer { tensor, .. } => Some(tensor),
                _ => None,
            })
        };
        let region = |name: &&String| {
            is(name, |kind| match kind {
                ParamKind::WindowOffset { tensor: name }
                | ParamKind::MetaOffset { channel: name } => Some(name),
                _ => None,
            })
        };
        let tensors = || self.tensors.keys().map(|(name, ..)| name);
        (self.numbers.keys().find(|name| !number(name)))
            .or_else(|| self.counts.keys().find(|name| !count(name)))
            .or_else(|| tensors().find(|name| !tensor(name)))
            .or_else(|| self.regions.keys().find(|name| !region(name)))
    }

    /// The operand of a member. `control_at` is the start of the plan's control memory; the kernel counts
    /// window offsets from there.
    pub fn operand(&self, param: &Param, control_at: u64) -> Option<Operand> {
        let rows = |tensor: &str, part: usize, copy: i64| {
            self.tensors.get(&(tensor.to_string(), part, copy)).copied().unwrap_or_default()
        };
        let region = |name: &String| Some(self.regions.get(name)?.wrapping_sub(control_at));
        let value = match &param.kind {
            ParamKind::Group => return None,
            ParamKind::Size
            | ParamKind::Capacity { .. }
            | ParamKind::Arg { .. }
            | ParamKind::Net => *self.numbers.get(&param.name)?,
            ParamKind::SizeFrom { size } => self.counts.get(size).copied().unwrap_or(0),
            ParamKind::Copies { tensor } => {
                self.tensors.keys().filter(|(name, part, _)| name == tensor && *part == 0).count()
                    as u64
            }
            ParamKind::Pointer { tensor, part, copy, .. } => rows(tensor, *part, *copy).address,
            ParamKind::RowStride { tensor, part } => rows(tensor, *part, 0).row_stride as u64,
            ParamKind::ColumnStride { tensor, part } => rows(tensor, *part, 0).column_stride as u64,
            ParamKind::WindowOffset { tensor } => match rows(tensor, 0, 0).address {
                0 => 0,
                _ => region(tensor)?,
            },
            ParamKind::MetaOffset { channel } => region(channel)?,
        };
        Some(Operand::Fixed(value))
    }
}

#[cfg(test)]
mod tests {
    use ep_codegen::plan::{Arch, Config};

    use super::*;
    use crate::fake::{plan_of, pointer};
    use crate::pipeline::AnyPipeline;
    use crate::pipelines::Expand;

    #[test]
    fn scales_fill_their_lists() {
        let mut plan = plan_of("Pack", vec![("x", pointer("x"))]);
        plan.lists = vec![Lists { tensor: "x".into(), part: 1, rows: 6, columns: 4 }];
        let said = |row_stride, column_stride| {
            let mut bindings = Bindings::new();
            bindings.part("x", 1, Rows { address: 0x5000, row_stride, column_stride });
            bindings.check_tensors(&plan).err().map(|error| error.to_string())
        };
        assert_eq!([said(4, 1), said(1, 6)], [None, None]);
        for (row, column) in [(5, 1), (1, 7), (1, 12), (2, 6), (0, 1)] {
            let text = format!(
                "Pack: `x's part 1` has strides [{row}, {column}], and has to consist of \
                 consecutive lists of rows of 24 elements each"
            );
            assert_eq!(said(row, column), Some(text));
        }
    }

    #[test]
    fn window_offsets_count_from_the_control_memory_of_the_plan() {
        let kind = ParamKind::WindowOffset { tensor: "x".into() };
        let plan = plan_of("Scale", vec![("x", pointer("x")), ("x_at", kind)]);
        let mut bindings = Bindings::new();
        bindings.tensor("x", Rows::new(0x5000, 64)).region("x", 0x4000);
        let operand = bindings.operand(&plan.params[2], 0x1000);
        assert_eq!(operand, Some(Operand::Fixed(0x3000)));
        assert_eq!(Bindings::new().operand(&plan.params[2], 0x1000), Some(Operand::Fixed(0)));
    }

    #[test]
    fn a_name_that_nothing_takes_is_refused() {
        let plan = plan_of("Scale", vec![("tokens", ParamKind::Size), ("x", pointer("x"))]);
        let said = |change: fn(&mut Bindings) -> &mut Bindings| {
            let mut bindings = Bindings::new();
            change(bindings.tensor("x", Rows::new(16, 1)).number("tokens", 1));
            bindings.check_names(&plan).map_err(|error| error.to_string())
        };
        assert_eq!(said(|it| it), Ok(()));
        let text = |name: &str| Err(format!("Scale takes no `{name}`; it takes tokens, x"));
        assert_eq!(said(|it| it.tensor("y", Rows::default())), text("y"));
        assert_eq!(said(|it| it.number("token", 1)), text("token"));
        assert_eq!(said(|it| it.region("x", 0)), text("x"), "it lies in no window");
        assert_eq!(said(|it| it.counted("tokens", 8)), text("tokens"), "the host says it");
        let mut several = Bindings::new();
        several.tensor("x", Rows::new(16, 1)).tensor("y", Rows::new(32, 1)).number("z", 1);
        assert_eq!(several.taken_by(&plan).check_names(&plan), Ok(()));
    }

    /// A kernel that followed such an address would take its device along.
    #[test]
    fn a_tensor_that_is_absent_or_too_narrow_is_refused() {
        let entry = AnyPipeline::of::<Expand>();
        let ir = entry.ir();
        let mut config = Config::new(&ir, Arch::Sm90a);
        for (name, value) in
            [("ranks", "2"), ("hidden", "64"), ("topk", "2"), ("experts", "8"), ("stripes", "4")]
        {
            config.set(&ir, name, value).unwrap();
        }
        let plan = entry.emit(&config).unwrap().plan;
        let whole = || {
            let mut bindings = Bindings::new();
            for param in &plan.params {
                match &param.kind {
                    ParamKind::Pointer { tensor, part, .. } => {
                        bindings.part(tensor, *part, Rows::new(0x1000, 1 << 20));
                    }
                    ParamKind::Size | ParamKind::Capacity { .. } | ParamKind::Arg { .. } => {
                        bindings.number(&param.name, 8);
                    }
                    _ => {}
                }
            }
            bindings
        };
        let said = |bindings: &Bindings| match bindings.check_tensors(&plan) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        assert_eq!(said(&whole()), "");
        let mut without = whole();
        without.tensors.retain(|(name, ..), _| name != "rank_prefix");
        assert_eq!(said(&without), "Expand: `rank_prefix` is absent");
        assert_eq!(said(whole().tensor("x", Rows::default())), "Expand: `x` is absent");
        let narrow = said(whole().tensor("x", Rows::new(0x1000, 0)));
        assert!(narrow.starts_with("Expand: `x` has strides [0, 1], and its rows"), "{narrow}");
        let none =
            said(whole().number("expanded_capacity", 0).tensor("expanded_x", Rows::default()));
        assert_eq!(none, "", "a tensor of no rows");
    }
}
