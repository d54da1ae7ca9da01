//! Which pipeline, in which configuration: the part of the command line that `emit`, `explain` and
//! the later commands share.

use ep_runtime::AnyPipeline;
use ep_runtime::ir::{DimKind, Elem, ElemType, Expr, Pipeline, walk};
use ep_runtime::jit::Arch;
use ep_runtime::plan::{Config, PlanError};

use crate::failure::Failure;
use crate::kernels::Kernels;
use crate::suggestion::did_you_mean;

/// Default values of shape numbers: the shape of DeepSeek-V3, which most published figures use. If the
/// declared range excludes a value, the nearest one in the range is used.
pub(crate) const REFERENCE_SHAPE: [(&str, i64); 7] = [
    ("ranks", 8),
    ("hidden", 7168),
    ("topk", 8),
    ("experts", 256),
    ("stripes", 64),
    ("max_tokens", 128),
    ("local_ranks", 8),
];

/// Tokens of a rank in that shape.
const REFERENCE_TOKENS: i64 = 4096;

pub(crate) const SHAPE_HELP: &str = "\
Shape numbers default to the reference shape: ranks 8, hidden 7168, topk 8, experts 256,
stripes 64, max_tokens 128, local_ranks 8. A number with another name defaults to hidden if
it is the number of values of a row, to 4096 if it is the upper end of a size, and otherwise to its minimum.
Values outside of the declared range become the nearest value in the range. Variants default to their first arm, tunes and
args to their declared value. Every optional tensor is present.";

/// The options that choose a configuration.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Selection {
    /// Number of ranks, short for --set ranks=N
    #[arg(long, value_name = "N")]
    ranks: Option<String>,
    /// A shape number, variant, tune, arg or optional tensor
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// The GPU architecture
    #[arg(long, default_value = "sm_90a", value_parser = arch)]
    arch: Arch,
    #[arg(long, value_enum, default_value_t, help = Kernels::HELP)]
    kernels: Kernels,
}

/// A configuration, and what was not given.
#[derive(Debug, Clone)]
pub(crate) struct Selected {
    /// The declaration.
    pub(crate) ir: Pipeline,
    /// The configuration.
    pub(crate) config: Config,
    /// Shape numbers that were taken from the reference shape.
    pub(crate) assumed: Vec<(String, i64)>,
}

impl Selection {
    /// The names and values of `--set`.
    pub(crate) fn given(&self) -> &[(String, String)] {
        &self.set
    }

    /// The configuration of `entry` that the options ask for.
    pub(crate) fn of(&self, entry: &AnyPipeline) -> Result<Selected, Failure> {
        self.with(entry, None)
    }

    /// The configuration with one more number: its name, the option that sets it, and its value.
    pub(crate) fn with(
        &self,
        entry: &AnyPipeline,
        more: Option<(&str, &str, &str)>,
    ) -> Result<Selected, Failure> {
        let ranks = self.ranks.iter().map(|ranks| ("ranks", "ranks", ranks.as_str()));
        let by_options: Vec<_> = ranks.chain(more).collect();
        let is_set = |name: &str| self.set.iter().any(|(own, _)| own == name);
        if let Some((name, option, _)) = by_options.iter().find(|(name, ..)| is_set(name)) {
            return Err(twice(name, Some(option)));
        }
        let set = self.set.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let by_options = by_options.into_iter().map(|(name, _, value)| (name, value));
        let mut selected = select(entry, self.arch, by_options.chain(set))?;
        selected.config.rules = self.kernels.rules();
        Ok(selected)
    }
}

impl Selected {
    /// `hidden 7168, topk 8`, or nothing when all was given.
    pub(crate) fn assumed_text(&self) -> String {
        let assumed = self.assumed.iter().map(|(name, value)| format!("{name} {value}"));
        assumed.collect::<Vec<_>>().join(", ")
    }
}

/// The configuration of `entry` with the given names set and the reference shape for the rest.
pub(crate) fn select<'a>(
    entry: &AnyPipeline,
    arch: Arch,
    set: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Selected, Failure> {
    let ir = entry.ir();
    let mut config = Config::new(&ir, arch);
    let mut given: Vec<&str> = Vec::new();
    for (name, value) in set {
        if given.contains(&name) {
            return Err(twice(name, None));
        }
        given.push(name);
        config.set(&ir, name, value).map_err(refused)?;
    }
    let mut assumed = Vec::new();
    for dim in &ir.dims {
        if let DimKind::Given { low, high, step } = dim.kind
            && !config.dims.contains_key(&dim.name)
        {
            let value = reference(&ir, &dim.name, (low, high, step));
            config.dims.insert(dim.name.clone(), value);
            assumed.push((dim.name.clone(), value));
        }
    }
    Ok(Selected { ir, config, assumed })
}

/// The default of a shape number, from its name or from how the declaration uses it.
pub(crate) fn reference(ir: &Pipeline, name: &str, (low, high, step): (i64, i64, i64)) -> i64 {
    let of_name = |name: &str| {
        REFERENCE_SHAPE.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    };
    let of_use = || match name {
        "nodes" => None,
        _ if is_row_extent(ir, name) => of_name("hidden"),
        _ if ends_a_size(ir, name) => Some(REFERENCE_TOKENS),
        _ => None,
    };
    let value = of_name(name).or_else(of_use).unwrap_or(low).clamp(low, high);
    value - (value - low) % step.max(1)
}

/// Whether `name` is the length of a row of a message or tensor.
fn is_row_extent(ir: &Pipeline, name: &str) -> bool {
    let is_it =
        |dim: Option<&Expr>| matches!(dim, Some(Expr::Name { name: own, .. }) if own == name);
    let mut fields = ir.messages.iter().flat_map(|message| &message.fields);
    let values = [Elem::F32, Elem::Bf16, Elem::E4m3];
    let has_values = |elem: &ElemType| match elem {
        ElemType::Scalar { elem } => values.contains(elem),
        ElemType::OfAxis { .. } => true,
        ElemType::Bits { .. } => false,
    };
    fields.any(|field| field.row && is_it(field.dims.last()))
        || ir.tensors.iter().any(|tensor| {
            tensor.dims.len() > 1 && has_values(&tensor.elem) && is_it(tensor.dims.last())
        })
}

/// Whether `name` bounds a size that callers choose.
fn ends_a_size(ir: &Pipeline, name: &str) -> bool {
    let ends = ir.sizes.iter().filter_map(|size| size.values.as_ref()).map(|values| &values.high);
    let mut found = false;
    ends.for_each(|end| {
        walk::expr(end, &mut |part| {
            found |= matches!(part, Expr::Name { name: own, .. } if own == name);
        });
    });
    found
}

/// The pipeline called `name`.
pub(crate) fn find<'a>(entries: &'a [AnyPipeline], name: &str) -> Result<&'a AnyPipeline, Failure> {
    entries.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
        let hint = did_you_mean(name, names.iter().copied());
        let names = names.join(", ");
        Failure::WrongUse(format!("there is no pipeline `{name}`; choose one of {names}{hint}"))
    })
}

/// The error for a number that is given twice, or by both `--set` and an option.
pub(crate) fn twice(name: &str, option: Option<&str>) -> Failure {
    let same = option.map(|option| format!(": `--set {name}=` is `--{option}`"));
    Failure::WrongUse(format!("`{name}` is given twice{}", same.unwrap_or_default()))
}

/// A refusal of the plan, with the exit code that its kind has.
pub(crate) fn refused(error: PlanError) -> Failure {
    Failure::from(ep_runtime::EmitError::Plan(error))
}

pub(crate) fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it is not of the form NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn arch(text: &str) -> Result<Arch, String> {
    Arch::from_name(text).ok_or_else(|| {
        let names = Arch::ALL.map(Arch::name);
        format!("it is not one of {}{}", names.join(", "), did_you_mean(text, names))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_shape_yields_to_the_declared_range() {
        let ir = ep_runtime::pipelines::ALL[0].ir();
        assert_eq!(reference(&ir, "hidden", (16, 32768, 16)), 7168);
        assert_eq!(reference(&ir, "hidden", (16, 4096, 16)), 4096);
        assert_eq!(reference(&ir, "hidden", (8192, 16384, 16)), 8192);
        assert_eq!(reference(&ir, "ranks", (3, 63, 2)), 7);
        assert_eq!(reference(&ir, "unheard_of", (5, 9, 1)), 5);
    }

    #[test]
    fn the_help_tells_the_reference_shape() {
        let told: Vec<String> =
            REFERENCE_SHAPE.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let help = SHAPE_HELP.replace('\n', " ");
        assert!(help.contains(&told.join(", ")), "{help}");
    }
}
