//! One configuration: the arms, shape numbers and options a plan is made for.

use std::collections::BTreeMap;

use super::arch::Arch;
use super::error::PlanError;
use super::numbers::Numbers;
use crate::ir::naming::kebab;
use crate::ir::network::over_network;
use crate::ir::text::transport;
use crate::ir::{Choice, DimKind, Number, Pipeline, Transport};
use crate::schedule::RuleSet;

/// What [`Config::set`] calls the carrier of rows to other machines.
pub(super) const NETWORK: &str = "network";

/// A choice of everything a pipeline leaves open before a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// One arm per axis.
    pub choice: Choice,
    /// Shape numbers that were given.
    pub dims: Numbers,
    /// Tunes that differ from their default.
    pub tunes: Numbers,
    /// How many of each optional or `up to` tensor the caller brings; others take all of them.
    pub copies: BTreeMap<String, i64>,
    /// Run-time numbers that differ from their default; they never change the text.
    pub args: BTreeMap<String, Number>,
    /// What carries rows to other machines; none: `rdma` where every channel to them lists it, else `ibgda`.
    pub carrier: Option<Transport>,
    /// Whether kernels that can do without a rank go on without one that does not answer.
    pub leaves_out_absent: bool,
    /// Target.
    pub arch: Arch,
    /// Which roles may be emitted in faster ways.
    pub rules: RuleSet,
}

impl Config {
    /// The default arms and tunes of `ir`, with no shape number set.
    pub fn new(ir: &Pipeline, arch: Arch) -> Config {
        let arms = ir.axes.iter().filter_map(|axis| Some(axis.arms.first()?.name.clone()));
        Config {
            choice: Choice { arms: arms.collect() },
            dims: Numbers::new(),
            tunes: Numbers::new(),
            copies: BTreeMap::new(),
            args: BTreeMap::new(),
            carrier: None,
            leaves_out_absent: false,
            arch,
            rules: RuleSet::All,
        }
    }

    /// Sets a shape number, arm, tune, arg, optional tensor or what carries rows to other machines, by name.
    pub fn set(&mut self, ir: &Pipeline, name: &str, value: &str) -> Result<(), PlanError> {
        if let Some(index) = ir.axes.iter().position(|axis| axis.name == name) {
            let arm = find_arm(ir, index, value)?;
            self.choice.arms[index] = arm;
            return Ok(());
        }
        let wrong = |allowed: String| PlanError::OutOfRange {
            pipeline: ir.name.clone(),
            name: name.to_string(),
            value: value.to_string(),
            allowed,
        };
        if let Some(dim) = ir.dims.iter().find(|dim| dim.name == name) {
            let DimKind::Given { low, high, step } = dim.kind else {
                return Err(wrong("no value: it is derived".to_string()));
            };
            let number = parse(value).filter(|n| in_range(*n, low, high, step));
            self.dims.insert(name.into(), number.ok_or_else(|| wrong(range(low, high, step)))?);
        } else if ir.tunes.iter().any(|tune| tune.name == name) {
            // The list is checked by the plan: arms may offer different lists for one name.
            self.tunes.insert(name.into(), parse(value).ok_or_else(|| wrong("a number".into()))?);
        } else if let Some(arg) = ir.args.iter().find(|arg| arg.name == name) {
            let number = Number::parse(&arg.elem, value);
            let number = number.filter(|number| number.is_within(arg.low, arg.high));
            let allowed = || wrong(format!("{}..={}", arg.low, arg.high));
            self.args.insert(name.into(), number.ok_or_else(allowed)?);
        } else if let Some(tensor) = ir
            .tensors
            .iter()
            .find(|tensor| tensor.name == name && (tensor.optional || tensor.copies > 1))
        {
            let high = tensor.copies;
            let number = parse(value).filter(|n| in_range(*n, 0, high, 1));
            self.copies.insert(name.into(), number.ok_or_else(|| wrong(range(0, high, 1)))?);
        } else if name == NETWORK && ir.channels.iter().any(over_network) {
            let carrier = [Transport::Rdma, Transport::Ibgda];
            let carrier = carrier.into_iter().find(|carrier| transport(carrier) == value);
            self.carrier = Some(carrier.ok_or_else(|| wrong("rdma, ibgda".into()))?);
        } else {
            return Err(PlanError::UnknownName {
                pipeline: ir.name.clone(),
                name: name.to_string(),
                known: settable(ir),
            });
        }
        Ok(())
    }

    /// The arm chosen on `axis`.
    pub fn arm<'a>(&'a self, ir: &Pipeline, axis: &str) -> Option<&'a str> {
        let index = ir.axes.iter().position(|candidate| candidate.name == axis)?;
        self.choice.arms.get(index).map(String::as_str)
    }
}

/// Every name that [`Config::set`] takes, in order of declaration.
fn settable(ir: &Pipeline) -> Vec<String> {
    let given = ir.dims.iter().filter(|dim| matches!(dim.kind, DimKind::Given { .. }));
    let mut names: Vec<String> = given.map(|dim| dim.name.clone()).collect();
    names.extend(ir.axes.iter().map(|axis| axis.name.clone()));
    names.extend(ir.tunes.iter().map(|tune| tune.name.clone()));
    names.extend(ir.args.iter().map(|arg| arg.name.clone()));
    let open = ir.tensors.iter().filter(|tensor| tensor.optional || tensor.copies > 1);
    names.extend(open.map(|tensor| tensor.name.clone()));
    names.extend(ir.channels.iter().any(over_network).then(|| NETWORK.to_string()));
    let mut seen = Vec::new();
    names.retain(|name| {
        let new = !seen.contains(name);
        seen.push(name.clone());
        new
    });
    names
}

fn find_arm(ir: &Pipeline, axis: usize, value: &str) -> Result<String, PlanError> {
    let axis = &ir.axes[axis];
    let wanted = value.replace(['-', '_'], "").to_lowercase();
    let found = axis.arms.iter().find(|arm| arm.name.to_lowercase() == wanted);
    found.map(|arm| arm.name.clone()).ok_or_else(|| PlanError::OutOfRange {
        pipeline: ir.name.clone(),
        name: axis.name.clone(),
        value: value.to_string(),
        allowed: axis.arms.iter().map(|arm| kebab(&arm.name)).collect::<Vec<_>>().join(", "),
    })
}

fn parse(value: &str) -> Option<i64> {
    value.parse().ok()
}

fn in_range(value: i64, low: i64, high: i64, step: i64) -> bool {
    (low..=high).contains(&value) && (value - low) % step.max(1) == 0
}

pub(super) fn range(low: i64, high: i64, step: i64) -> String {
    match step {
        1 => format!("{low}..={high}"),
        _ => format!("{low}..={high} step {step}"),
    }
}
