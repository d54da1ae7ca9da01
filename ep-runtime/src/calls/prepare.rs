//! Prepares a kernel: derives the configuration from a caller's shape and options, and allocates all
//! memory.

use std::fmt::Debug;

use ep_codegen::ir;
use ep_codegen::plan::{Arch, Config, PlanError};
use sha2::{Digest, Sha256};

use super::CallKernel;
use super::program::{CallProgram, Loader, Room};
use crate::error::CallError;
use crate::group::Group;
use crate::pipeline::AnyPipeline;
use crate::tune::{Rates, Traffic};

/// A tensor of a declaration, or a part or copy of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorName {
    /// The name of the tensor in the declaration.
    pub name: &'static str,
    /// Which part of a composite tensor: 0 is the row, 1 its first scale.
    pub part: usize,
    /// Which of several copies.
    pub copy: i64,
}

/// A caller's choices for a declaration.
#[derive(Debug, Clone, Copy)]
pub struct PrepareOptions<'a> {
    /// All places of a call, in order.
    pub tensors: &'static [TensorName],
    /// Numbers of the shape except `ranks`, which the group provides.
    pub dims: &'a [(&'static str, usize)],
    /// The maximum of each size.
    pub sizes: &'a [(&'static str, usize)],
    /// An arm for each axis.
    pub arms: &'a [(&'static str, &'static str)],
    /// Tunes that differ from their default.
    pub tunes: &'a [(&'static str, Option<i64>)],
    /// How many copies of each optional or `up to` tensor calls pass.
    pub copies: &'a [(&'static str, usize)],
    /// Number of handles, and of outputs in the window, that may be in use at once.
    pub live: usize,
}

impl PrepareOptions<'_> {
    /// The configuration of these choices.
    pub(crate) fn config(
        &self,
        ir: &ir::Pipeline,
        ranks: usize,
        arch: Arch,
    ) -> Result<Config, PlanError> {
        let mut config = Config::new(ir, arch);
        let mut set = |name: &str, value: &dyn ToString| config.set(ir, name, &value.to_string());
        // Of nodes and the ranks of each, they follow.
        let is_given = |dim: &ir::Dim| matches!(dim.kind, ir::DimKind::Given { .. });
        if ir.dims.iter().any(|dim| dim.name == "ranks" && is_given(dim)) {
            set("ranks", &ranks)?;
        }
        for (name, value) in self.dims {
            set(name, value)?;
        }
        for (name, arm) in self.arms {
            set(name, arm)?;
        }
        for (name, value) in self.tunes {
            if let Some(value) = value {
                set(name, value)?;
            }
        }
        for (name, count) in self.copies {
            set(name, count)?;
        }
        Ok(config)
    }

    /// Fails for a tune that the chosen arms do not have.
    pub(super) fn refuse_idle_tunes(
        &self,
        ir: &ir::Pipeline,
        config: &Config,
    ) -> Result<(), PlanError> {
        let tunes = ir.select(&config.choice).tunes;
        let idle = config.tunes.keys().find(|name| tunes.iter().all(|tune| tune.name != **name));
        match idle {
            None => Ok(()),
            Some(name) => Err(PlanError::UnknownName {
                pipeline: format!("{} with these arms", ir.name),
                name: name.clone(),
                known: tunes.into_iter().map(|tune| tune.name).collect(),
            }),
        }
    }
}

impl CallKernel {
    /// Emits, compiles and loads the pipeline, and allocates everything that its calls need. All processes
    /// of the group must prepare the same pipelines in the same order.
    pub fn prepare(
        group: &Group,
        entry: AnyPipeline,
        options: &PrepareOptions<'_>,
    ) -> Result<CallKernel, CallError> {
        group.check_local()?;
        // Before anything that could fail on one rank alone and leave the others waiting.
        agree(group, &entry, options)?;
        if options.live == 0 {
            let what = format!("{} with 0 live handles cannot make a call", entry.name);
            return Err(CallError::Mismatch { what });
        }
        let room = Room { tables: options.live, window: options.live };
        let program = CallProgram::emit(group, &entry, options, room)?;
        // Each rank sends as much to every rank.
        let traffic = Traffic { remote: group.ranks() as f64 - 1.0, own: 1.0 };
        let usual_sms = group.usual_sms(&Rates::H200, &traffic);
        let kernel = Loader::new(group, &[&program])?.load(program, usual_sms)?;
        kernel.name_regions(&[kernel.plan()])?;
        // A call may wait for every rank: none is made before all of them have loaded the kernel.
        group.gather("make the first call", 0)?;
        Ok(kernel)
    }

    /// As `prepare`, for a pipeline without channels: neither this nor a call needs other processes.
    pub fn prepare_alone(
        group: &Group,
        entry: AnyPipeline,
        options: &PrepareOptions<'_>,
    ) -> Result<CallKernel, CallError> {
        group.check_local()?;
        let room = Room { tables: options.live, window: options.live };
        let program = CallProgram::emit(group, &entry, options, room)?;
        if !program.emitted().plan.messages.is_empty() {
            let name = entry.name;
            let what =
                format!("{name} has channels to other ranks: prepare it in all processes together");
            return Err(CallError::Mismatch { what });
        }
        let sms = group.sms_of(u32::MAX);
        let kernel = Loader::alone(group, &[&program])?.load(program, sms)?;
        kernel.name_regions(&[kernel.plan()])?;
        Ok(kernel)
    }
}

/// Fails on every rank if one of them prepares something else.
fn agree(group: &Group, entry: &AnyPipeline, options: &dyn Debug) -> Result<(), CallError> {
    let text = format!("{} {:x} {options:?}", entry.name, entry.digest);
    let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    let own = u64::from_le_bytes(first);
    let all = group.gather(&format!("prepare {}", entry.name), own)?;
    match all.iter().position(|other| *other != own) {
        None => Ok(()),
        Some(other) => {
            let (name, rank) = (entry.name, group.local().start);
            let what = format!(
                "rank {rank} prepares {name}, and rank {other} prepares a different pipeline: its \
                declaration, shape or options differ"
            );
            Err(CallError::Mismatch { what })
        }
    }
}
