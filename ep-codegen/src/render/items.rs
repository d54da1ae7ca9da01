//! What stands around the roles: `struct Args`, `struct Smem` and the kernel itself.

use super::count::SEQUENCES;
use super::role::role_fn;
use super::{RenderError, Rendered, Renderer};
use crate::ir::naming::kernel_of;
use crate::ir::slots::is_read_on_entry;
use crate::ir::{Blocks, Elem, Expr, Role};
use crate::plan::{
    Param, ParamKind, RoleUse, block_groups, has_sequences, joined, params, role_use,
};
use crate::print;
use crate::schedule::library::ep;
use crate::schedule::{self, AtOnce, COUNTED, Constant, THREADS, elem_type};

/// The lambda that every block runs as it enters the kernel, as an argument; empty if there is nothing to do.
fn prepared(own: &[String]) -> String {
    if own.is_empty() { String::new() } else { format!(", [&] {{\n{}\n}}", own.join("\n")) }
}

/// C++ name of an offset in the window.
const U64: &str = "ep::u64";

impl Renderer<'_> {
    /// Members of `struct Args`, each below the declaration it comes from.
    pub(super) fn args(&self) -> Rendered {
        let mut lines: Vec<String> = Vec::new();
        let mut above = String::new();
        for param in params(self.ir).0 {
            let (kind, note) = self.param(&param.kind);
            if !note.is_empty() && note != above {
                lines.push(format!("// {note}"));
                above = note;
            }
            // The copies of an `up to n` tensor are one array.
            match param.name.split_once('[') {
                Some((_, "0]")) => lines.push(format!("{kind} {};", self.array(&param))),
                Some(_) => {}
                None => lines.push(format!("{kind} {};", param.name)),
            }
        }
        self.step("args", &[("members", &lines.join("\n"))])
    }

    fn array(&self, param: &Param) -> String {
        let (ParamKind::Pointer { tensor, .. }, Some((name, _))) =
            (&param.kind, param.name.split_once('['))
        else {
            return param.name.clone();
        };
        let copies = self.tensor(tensor).map_or(1, |tensor| tensor.copies);
        format!("{name}[{copies}]")
    }

    /// C++ type of a member, and the comment above it.
    fn param(&self, kind: &ParamKind) -> (String, String) {
        match kind {
            ParamKind::Group => (self.library(ep::Group).into(), String::new()),
            ParamKind::Size => ("int".into(), "run-time sizes".into()),
            ParamKind::SizeFrom { size } => {
                let comment = format!("if not null, holds {size}, and the above is its bound");
                (format!("const {}*", elem_type(&Elem::I32)), comment)
            }
            ParamKind::Capacity { size } => {
                ("int".into(), format!("rows that the outputs of `{size}` hold"))
            }
            ParamKind::Copies { tensor } => ("int".into(), self.declaration(tensor)),
            ParamKind::Arg { elem } => (elem_type(elem).into(), "run-time args".into()),
            ParamKind::Pointer { tensor, elem, read_only, .. } => {
                let qualifier = if *read_only { "const " } else { "" };
                (format!("{qualifier}{}*", elem_type(elem)), self.declaration(tensor))
            }
            ParamKind::RowStride { tensor, .. } | ParamKind::ColumnStride { tensor, .. } => {
                (elem_type(&Elem::I64).into(), self.declaration(tensor))
            }
            ParamKind::WindowOffset { tensor } => (U64.into(), self.declaration(tensor)),
            ParamKind::MetaOffset { channel } => (
                U64.into(),
                format!("where the meta records of channel `{channel}` are in the window"),
            ),
            ParamKind::Net => {
                let net = self.library(ep::Net);
                (format!("const {net}*"), "the network of this rank".into())
            }
        }
    }

    fn declaration(&self, name: &str) -> String {
        let Ok(tensor) = self.tensor(name) else { return String::new() };
        match &tensor.from_handle {
            Some(handle) => format!("from the handle of {handle}"),
            None => tensor.at.text.clone(),
        }
    }

    /// `struct Smem`: what the roles of one block need stands side by side, what roles of different
    /// blocks need lies in one place. Empty when no role needs any.
    pub(super) fn smem(&self) -> Rendered {
        let roles = &self.ir.roles;
        let mut groups = Vec::new();
        for group in block_groups(self.ir, &self.ways) {
            let members: Vec<String> = group
                .iter()
                .filter_map(|index| self.smem_member(&roles[*index]).transpose())
                .collect::<Result<_, _>>()?;
            match members.as_slice() {
                [] => {}
                [only] => groups.push(only.clone()),
                several => groups.push(format!("struct {{\n{}\n}};", several.join("\n"))),
            }
        }
        let mut members = match groups.as_slice() {
            [] | [_] => groups.join("\n"),
            several => format!("union {{\n{}\n}};", several.join("\n")),
        };
        if self.ways.routes().is_some() {
            let (routes, cfg) = (self.library(ep::RouteSmem), self.role_cfg(&self.ir.roles[0]));
            members = format!("{routes}<{cfg}> routes;\n{members}");
        }
        if self.has_sums() {
            let (counters, cfg) = (self.library(ep::CounterSmem), self.constant(COUNTED));
            members = format!("{counters}<{cfg}> counters;\n{members}");
        }
        if has_sequences(self.ir, &self.ways) {
            let (sequence, count) = (self.library(ep::Sequence), self.constant(SEQUENCES));
            members = format!("{sequence} sequences[{count}];\n{members}");
        }
        if members.is_empty() {
            return Ok(String::new());
        }
        Ok(format!(
            "struct Smem {{\n{members}\n}};\nstatic_assert(sizeof(Smem) == {}, \
             \"the plan counts the same bytes\");\n",
            self.constant(Constant::known("", "kSharedBytes"))
        ))
    }

    fn smem_member(&self, role: &Role) -> Result<Option<String>, RenderError> {
        // A role that another one's function serves brings the memory that this function takes.
        let kind = match role_use(&self.ways, role) {
            RoleUse { mover: true, .. } => self.library(ep::MoverSmem),
            RoleUse { parts: true, .. } => self.library(ep::PartSmem),
            _ => return Ok(None),
        };
        let cfg = self.role_cfg(role);
        let (name, own) = (role_fn(role), self.role_cfg(role));
        Ok(Some(format!("{kind}<{cfg}> {name}[{own}::kWarps];")))
    }

    /// The `__global__` functions, one for each phase and, where one can, one for all of them: which warp of
    /// which block runs which role.
    pub(super) fn entries(&self) -> Rendered {
        let phases = self.ir.phases();
        let last = phases.last().copied().flatten();
        let texts = phases.iter().map(|phase| self.entry(*phase, *phase == last));
        let mut texts = texts.collect::<Result<Vec<_>, _>>()?;
        if let Some(name) = joined(self.ir, &self.ways) {
            texts.push(self.joined_entry(&name, &phases)?);
        }
        Ok(texts.join("\n"))
    }

    /// The kernel of all phases: warps that are done with one go on to the next.
    fn joined_entry(&self, name: &str, phases: &[Option<&str>]) -> Rendered {
        let calls = phases.iter().map(|phase| {
            let calls = self.role_calls(*phase).0;
            format!("// Phase {}.\n{calls}", phase.unwrap_or_default())
        });
        let leave = format!("{}(args.group, call);", self.library(ep::leave));
        let call = format!("const {}", self.library(ep::Call));
        let calls = calls.collect::<Vec<_>>().join("\n\n");
        let none = ["shared", "clears", "goes_on"].map(|piece| (piece, ""));
        let prepare = prepared(&self.slots_are_read());
        let pieces = [
            ("name", name),
            ("prepare", &prepare),
            ("call", &call),
            ("calls", &calls),
            ("leave", &leave),
        ];
        self.step("entry", &[&none[..], &pieces].concat())
    }

    /// Calls that tell the peers, as a rank enters a call, that it has read its slots.
    fn slots_are_read(&self) -> Vec<String> {
        let channels = self.ir.channels.iter().filter(|it| is_read_on_entry(self.ir, it));
        let said = channels.map(|channel| {
            let cfg = self.constant(Constant::of_channel(channel));
            let tokens = schedule::tokens_of_words(self.ir, channel);
            let tokens = tokens.map_or(String::new(), |it| format!(", {}", print::term(&it)));
            format!("{}<{cfg}>(args.group{tokens});", self.library(ep::slots_are_read))
        });
        said.collect()
    }

    /// The calls of the roles of a phase, and of those on its last block.
    fn role_calls(&self, phase: Option<&str>) -> (String, Vec<String>) {
        let (mut calls, mut last) = (Vec::new(), Vec::new());
        for role in self.ir.roles.iter().filter(|role| role.phase.as_deref() == phase) {
            let list = if role.blocks == Blocks::Last { &mut last } else { &mut calls };
            list.push(self.role_call(role));
        }
        calls.retain(|call| !call.is_empty());
        (calls.join("\n"), last)
    }

    fn entry(&self, phase: Option<&str>, ends: bool) -> Rendered {
        let (calls, last) = self.role_calls(phase);
        let (mut own, clears) = self.zeroes(phase, !last.is_empty());
        if self.ir.phases().first() == Some(&phase) {
            own.extend(self.slots_are_read());
        }
        for role in self.ir.roles.iter().filter(|_| self.ways.routes().is_some()) {
            let Some(AtOnce { entered, .. }) = self.steps(role)?.at_once else { continue };
            if entered.uses_me {
                own.push("const int me = args.group.rank;".to_string());
            }
            own.push(self.steps_text(&entered.steps));
        }
        let prepare = prepared(&own);
        let leave = self.leave(phase, &last)?;
        let mut here = self.ir.roles.iter().filter(|role| role.phase.as_deref() == phase);
        let uses_smem = here.any(|role| self.uses_smem(role))
            || has_sequences(self.ir, &self.ways)
            || self.adds_up(phase, !last.is_empty());
        let goes_on = "// The call goes on in the next phase.\ncall.ends = false;";
        let is_fixed = clears.is_empty() && ends;
        let call = format!("{}{}", if is_fixed { "const " } else { "" }, self.library(ep::Call));
        // The template names it.
        self.constant(THREADS);
        self.step(
            "entry",
            &[
                ("name", &kernel_of(self.ir, phase)),
                ("shared", if uses_smem { "EP_SHARED(Smem, smem);" } else { "" }),
                ("prepare", &prepare),
                ("clears", &clears.join("\n")),
                ("call", &call),
                ("goes_on", if ends { "" } else { goes_on }),
                ("calls", &calls),
                ("leave", &leave),
            ],
        )
    }

    fn role_call(&self, role: &Role) -> String {
        let (test, team) = self.team(role);
        let smem = if self.uses_smem(role) { "smem, " } else { "" };
        let name = role_fn(role);
        let class = self.library(ep::Team);
        format!("if ({test}) {{\n{class} team({team});\n{name}(args, {smem}team);\n}}")
    }

    /// The test for the warps of a role, and the arguments of the team that they are.
    pub(super) fn team(&self, role: &Role) -> (String, String) {
        let cfg = self.role_cfg(role);
        let (test, block, blocks) = match &role.blocks {
            Blocks::Other if self.may_lack_others() => self.other_blocks(),
            blocks => self.blocks(blocks),
        };
        let is_between = self.library(ep::is_between);
        let warps = format!("{is_between}(warp, {cfg}::kFirstWarp, {cfg}::kWarps)");
        let test = if test.is_empty() { warps } else { format!("{test} && {warps}") };
        let team = format!(
            "args.group, call, {cfg}::kRole, {block}, {blocks},\n\
             warp - {cfg}::kFirstWarp, {cfg}::kWarps"
        );
        (test, team)
    }

    /// The test for the blocks of a role, the number of this block among them, and how many.
    fn blocks(&self, blocks: &Blocks) -> (String, String, String) {
        match blocks {
            Blocks::All => (String::new(), "block".into(), "blocks".into()),
            Blocks::Last => (String::new(), "0".into(), "1".into()),
            Blocks::Even => {
                ("block % 2 == 0".into(), "block / 2".into(), "(blocks + 1) / 2".into())
            }
            Blocks::Odd => ("block % 2 == 1".into(), "block / 2".into(), "blocks / 2".into()),
            Blocks::Range { low, high } => self.range(low, high),
            Blocks::Other => {
                let end = self.last_named_block();
                (format!("block >= {end}"), format!("block - {end}"), format!("blocks - {end}"))
            }
        }
    }

    /// Whether a launch may have no blocks but the named ones: those that a number of the call names.
    fn may_lack_others(&self) -> bool {
        self.last_named_block().parse::<i64>().is_err()
    }

    /// Where the named blocks are all there are, the role on the others comes behind theirs.
    fn other_blocks(&self) -> (String, String, String) {
        let end = self.last_named_block();
        (
            format!("(block >= {end} || blocks <= {end})"),
            format!("blocks <= {end} ? block : block - {end}"),
            format!("blocks <= {end} ? blocks : blocks - {end}"),
        )
    }

    fn range(&self, low: &Expr, high: &Expr) -> (String, String, String) {
        match (low, high) {
            (Expr::Int { value: low }, Expr::Int { value: high }) if high - low == 1 => {
                (format!("block == {low}"), "0".into(), "1".into())
            }
            (Expr::Int { value: 0 }, high) => {
                let high = self.text(high);
                (format!("block < {high}"), "block".into(), high)
            }
            (low, high) => {
                let (low, high) = (self.text(low), self.text(high));
                (
                    format!("block >= {low} && block < {high}"),
                    format!("block - {low}"),
                    format!("{high} - {low}"),
                )
            }
        }
    }

    /// End of the blocks that `Range` roles name, in whatever order: where none of them begins.
    fn last_named_block(&self) -> String {
        let ranges = self.ir.roles.iter().filter_map(|role| match &role.blocks {
            Blocks::Range { low, high } => Some((low, high)),
            _ => None,
        });
        let ranges: Vec<(&Expr, &Expr)> = ranges.collect();
        let ends = ranges.iter().map(|(_, high)| *high);
        let open = ends.filter(|end| !ranges.iter().any(|(low, _)| low == end));
        let last = open.max_by_key(|end| match end {
            Expr::Int { value } => *value,
            // What is given by a number is the last one declared.
            _ => i64::MAX,
        });
        last.map_or_else(|| "0".to_string(), |end| self.text(end))
    }

    /// The user's device functions, which may convert floats.
    pub(super) fn cuda_fns(&self) -> String {
        if !self.ir.cuda_fns.is_empty() {
            self.library(ep::to_float);
        }
        self.ir
            .cuda_fns
            .iter()
            .map(|function| function.body.as_str())
            .collect::<Vec<_>>()
            .join("\n")
    }
}
