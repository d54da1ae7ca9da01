//! From the syntax tree to the IR: names are resolved, positions become lines, and the text of
//! every statement is kept for the emitted comments.
//!
//! **Handles.** A macro sees only its own tokens, so a pipeline learns another one's tables in one
//! of two ways:
//!
//! - `uses handle Layout;` names a pipeline of the same `pipeline!` block. Its tables can be read
//!   under their own names; the types come from its declaration.
//! - `uses handle super::Layout { in_rank: bool[tokens, ranks] };` names a pipeline of any block
//!   and lists the tables that are read, with their types. The expansion compares each with the
//!   field of that pipeline's `Handle`, so rustc reports a wrong table or type at its own word.
//!
//! Either form may stand in a `when`. A table that the chosen arms do not read is dropped.
//!
//! **Positions.** `at [expert, token]` and `rows[expert, source]` index slots by several axes; both
//! lower to a call of the pseudo-helper [`ir::helpers::SLOT`]. `..message` lowers to one value per
//! field that the statement does not give itself.
//!
//! Lowering trusts `check`: where a declaration is wrong it gives some IR, and never panics.

mod body;
mod declared;
mod expr;
mod lets;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::ast;
use crate::ir;
use declared::{arg, axis, cuda_fn, share};
pub(crate) use declared::{tables_in, tables_of};
use expr::next;
pub(crate) use expr::scalar;

/// Lowers `pipeline`, one of those in `file`.
pub fn lower(file: &ast::File, pipeline: &ast::Pipeline) -> ir::Pipeline {
    let mut lowering = Lowering::new(pipeline);
    lowering.declare(file, &pipeline.items);
    lowering.channels(&pipeline.items, &Guard::default());
    lowering.items(file, &pipeline.items, &Guard::default());
    lowering.finish()
}

/// What a declared name stands for.
#[derive(Clone, Copy, PartialEq)]
enum Named {
    Dim,
    Tune,
    Arg,
    Size,
    Tensor,
    Channel,
}

/// The conditions and the phase around an item.
#[derive(Clone, Default)]
struct Guard {
    when: Vec<ir::When>,
    phase: Option<String>,
}

impl Guard {
    fn with<T>(&self, when: &ast::When<T>) -> Guard {
        let mut guard = self.clone();
        guard.when.push(condition(when));
        guard
    }
}

fn condition<T>(when: &ast::When<T>) -> ir::When {
    let arms = when.arms.iter().map(ToString::to_string).collect();
    ir::When { axis: when.axis.to_string(), arms }
}

struct Lowering {
    /// Line of the word `pipeline`.
    first_line: usize,
    names: BTreeMap<String, Named>,
    /// Names bound by the loops around an expression, innermost last.
    binders: Vec<String>,
    /// Channel of each message binder, so that `..message` finds its fields.
    messages: BTreeMap<String, String>,
    /// The size whose rows the stripes share, and whether the caller gives it: the first such one, else the
    /// first of all.
    striped: Option<(String, bool)>,
    /// Names of the tables that a handle brings without a list.
    implicit: Vec<String>,
    out: ir::Pipeline,
}

impl Lowering {
    fn new(pipeline: &ast::Pipeline) -> Lowering {
        let out = ir::Pipeline {
            name: pipeline.name.to_string(),
            doc: pipeline.doc.clone(),
            dims: Vec::new(),
            requires: Vec::new(),
            axes: Vec::new(),
            tunes: Vec::new(),
            args: Vec::new(),
            sizes: Vec::new(),
            uses: Vec::new(),
            tensors: Vec::new(),
            messages: Vec::new(),
            channels: Vec::new(),
            roles: Vec::new(),
            cuda_fns: Vec::new(),
        };
        Lowering {
            first_line: pipeline.keyword.start().line,
            names: BTreeMap::new(),
            binders: Vec::new(),
            messages: BTreeMap::new(),
            striped: None,
            implicit: Vec::new(),
            out,
        }
    }

    /// Notes what each name stands for, since a role may use what is declared below it.
    fn declare(&mut self, file: &ast::File, items: &[ast::Item]) {
        for item in items {
            match item {
                ast::Item::Shape(shape) => {
                    for entry in &shape.entries {
                        if let ast::ShapeEntry::Given { name, .. }
                        | ast::ShapeEntry::Derived { name, .. } = entry
                        {
                            self.names.insert(name.to_string(), Named::Dim);
                        }
                    }
                }
                ast::Item::Tune(tunes) => self.note(tunes.iter().map(|t| &t.name), Named::Tune),
                ast::Item::Arg(args) => self.note(args.iter().map(|arg| &arg.name), Named::Arg),
                ast::Item::Size(size) => {
                    self.note([&size.name], Named::Size);
                    let given = size.value.is_none();
                    if self.striped.as_ref().is_none_or(|(_, known)| given && !known) {
                        self.striped = Some((size.name.to_string(), given));
                    }
                }
                ast::Item::Tensors(tensors) => {
                    self.note(tensors.list.iter().map(|t| &t.name), Named::Tensor);
                }
                ast::Item::Uses(uses) => {
                    let tables = tables_of(file, uses);
                    self.note(tables.iter().map(|t| &t.name), Named::Tensor);
                }
                ast::Item::Channel(channel) => self.note([&channel.name], Named::Channel),
                ast::Item::Phase(phase) => self.declare(file, &phase.items),
                ast::Item::When(when) => self.declare(file, &when.body),
                ast::Item::Variant(_)
                | ast::Item::Message(_)
                | ast::Item::Role(_)
                | ast::Item::CudaFn(_)
                | ast::Item::Use(_) => {}
            }
        }
    }

    fn note<'a>(&mut self, names: impl IntoIterator<Item = &'a ast::Ident>, what: Named) {
        for name in names {
            self.names.insert(name.to_string(), what);
        }
    }

    /// Lowers messages and channels, before the roles that may stand above them.
    fn channels(&mut self, items: &[ast::Item], guard: &Guard) {
        for item in items {
            match item {
                ast::Item::Message(message) => self.message(message, guard),
                ast::Item::Channel(channel) => self.channel(channel, guard),
                ast::Item::Phase(phase) => self.channels(&phase.items, guard),
                ast::Item::When(when) => self.channels(&when.body, &guard.with(when)),
                _ => {}
            }
        }
    }

    fn items(&mut self, file: &ast::File, items: &[ast::Item], guard: &Guard) {
        for item in items {
            self.item(file, item, guard);
        }
    }

    fn item(&mut self, file: &ast::File, item: &ast::Item, guard: &Guard) {
        match item {
            ast::Item::Shape(shape) => self.shape(shape, guard),
            ast::Item::Variant(variant) => self.out.axes.push(axis(variant)),
            ast::Item::Tune(tunes) => {
                for tune in tunes {
                    let tune = self.tune(tune, guard);
                    self.out.tunes.push(tune);
                }
            }
            ast::Item::Arg(args) => {
                self.out.args.extend(args.iter().map(|entry| arg(entry, guard)));
            }
            ast::Item::Size(size) => {
                let value = size.value.as_ref().map(|value| self.expr(value));
                let values = size.values.as_ref().map(|values| self.range_of(values));
                let at = self.source(&size.source);
                let name = size.name.to_string();
                self.out.sizes.push(ir::Size { name, value, values, at });
            }
            ast::Item::Tensors(tensors) => {
                for tensor in &tensors.list {
                    let tensor = self.tensor(tensor, tensors.kind, guard);
                    self.out.tensors.push(tensor);
                }
            }
            ast::Item::Uses(uses) => self.uses(file, uses, guard),
            ast::Item::Role(role) => self.role(role, guard),
            ast::Item::Phase(phase) => {
                let guard = Guard { phase: Some(phase.name.to_string()), ..guard.clone() };
                self.items(file, &phase.items, &guard);
            }
            ast::Item::When(when) => self.items(file, &when.body, &guard.with(when)),
            ast::Item::CudaFn(function) => self.out.cuda_fns.push(cuda_fn(function)),
            ast::Item::Message(_) | ast::Item::Channel(_) | ast::Item::Use(_) => {}
        }
    }

    fn shape(&mut self, shape: &ast::Shape, guard: &Guard) {
        for entry in &shape.entries {
            match entry {
                ast::ShapeEntry::Given { name, low, high, step, source } => {
                    let step = step.as_ref().map_or(1, |step| step.value);
                    let kind = ir::DimKind::Given { low: low.value, high: high.value, step };
                    let at = self.source(source);
                    self.out.dims.push(ir::Dim { name: name.to_string(), kind, at });
                }
                ast::ShapeEntry::Derived { name, value, source } => {
                    let kind = ir::DimKind::Derived { value: self.expr(value) };
                    let at = self.source(source);
                    self.out.dims.push(ir::Dim { name: name.to_string(), kind, at });
                }
                ast::ShapeEntry::Require { condition, source } => {
                    let (condition, at) = (self.expr(condition), self.source(source));
                    let when = guard.when.clone();
                    self.out.requires.push(ir::Require { condition, when, at });
                }
            }
        }
    }

    fn tune(&self, tune: &ast::Tune, guard: &Guard) -> ir::Tune {
        ir::Tune {
            name: tune.name.to_string(),
            default: tune.default.value,
            choices: tune.choices.iter().map(|choice| choice.value).collect(),
            when: guard.when.clone(),
            at: self.source(&tune.source),
        }
    }

    fn tensor(&mut self, tensor: &ast::Tensor, kind: ast::TensorKind, guard: &Guard) -> ir::Tensor {
        let keyword = match kind {
            ir::TensorKind::Input => "input",
            ir::TensorKind::Output => "output",
            ir::TensorKind::Inout => "inout",
            ir::TensorKind::Table => "table",
        };
        let memory = match (&tensor.window, &tensor.host) {
            (Some(_), _) => ir::Memory::Window,
            (None, Some(_)) => ir::Memory::Host,
            (None, None) => ir::Memory::Device,
        };
        let mut at = self.source(&tensor.source);
        at.text = format!("{keyword} {}", at.text);
        ir::Tensor {
            name: tensor.name.to_string(),
            kind,
            from_handle: None,
            elem: self.elem(&tensor.elem),
            dims: self.exprs(&tensor.dims),
            // One that comes at most once is there or not.
            optional: tensor.optional.is_some()
                || tensor.up_to.as_ref().is_some_and(|up_to| up_to.value == 1),
            copies: tensor.up_to.as_ref().map_or(1, |up_to| up_to.value),
            memory,
            fill: tensor.fill.as_ref().map(|fill| fill.value.value),
            values: tensor.values.as_ref().map(|values| self.range_of(values)),
            when: guard.when.clone(),
            at,
        }
    }

    fn uses(&mut self, file: &ast::File, uses: &ast::Uses, guard: &Guard) {
        let from = uses.name.to_string();
        if !self.out.uses.contains(&from) {
            self.out.uses.push(from.clone());
        }
        for table in tables_of(file, uses) {
            let name = table.name.to_string();
            // Two arms may each list a table; one that is there for both is there already.
            let there = |tensor: &ir::Tensor| {
                tensor.name == name && (tensor.when.is_empty() || tensor.when == guard.when)
            };
            if self.out.tensors.iter().any(there) {
                continue;
            }
            if uses.tables.is_none() {
                self.implicit.push(name);
            }
            let mut tensor = self.tensor(table, ast::TensorKind::Table, guard);
            tensor.from_handle = Some(from.clone());
            tensor.at = self.source(&uses.source);
            self.out.tensors.push(tensor);
        }
    }

    fn elem(&mut self, elem: &ast::Elem) -> ir::ElemType {
        match elem {
            ast::Elem::Bits { count, .. } => ir::ElemType::Bits { count: self.expr(count) },
            ast::Elem::Name(name) => match scalar(&name.to_string()) {
                Some(elem) => ir::ElemType::Scalar { elem },
                None => ir::ElemType::OfAxis { axis: name.to_string() },
            },
        }
    }

    fn message(&mut self, message: &ast::Message, guard: &Guard) {
        let fields = message
            .fields
            .iter()
            .map(|field| ir::Field {
                name: field.name.to_string(),
                row: field.row.is_some(),
                elem: self.elem(&field.elem),
                dims: self.exprs(&field.dims),
                optional_with: field.with.as_ref().map(ToString::to_string),
            })
            .collect();
        let at = self.source(&message.source);
        let name = message.name.to_string();
        self.out.messages.push(ir::Message { name, fields, when: guard.when.clone(), at });
    }

    fn channel(&mut self, channel: &ast::Channel, guard: &Guard) {
        let mut lowered = ir::Channel {
            name: channel.name.to_string(),
            kind: channel.kind.value,
            message: channel.message.to_string(),
            over: channel.over.iter().map(|word| word.value).collect(),
            from: channel.from.iter().map(ToString::to_string).collect(),
            to: channel.to.to_string(),
            per: channel.per.value,
            parts_per: channel.parts_per.as_ref().map(ToString::to_string),
            slot_names: Vec::new(),
            slot: Vec::new(),
            header: Vec::new(),
            options: Vec::new(),
            waited: None,
            waiver: None,
            when: guard.when.clone(),
            at: self.source(&channel.source),
        };
        for option in &channel.options {
            match &option.value {
                ast::OptionValue::Number(value) => {
                    let value = self.expr(value);
                    let name = option.name.to_string();
                    lowered.options.push(ir::ChannelOption { name, value });
                }
                ast::OptionValue::Header(names) => {
                    lowered.header = names.iter().map(ToString::to_string).collect();
                }
                ast::OptionValue::Slot(axes) => {
                    lowered.slot_names = axes.iter().map(|axis| axis.name.to_string()).collect();
                    lowered.slot =
                        axes.iter().map(|axis| self.slot_extent(axis, &lowered.per)).collect();
                }
                ast::OptionValue::Waited(tensor) => lowered.waited = Some(tensor.to_string()),
                ast::OptionValue::Waive { policy, reason, .. } => {
                    let (policy, reason) = (policy.to_string(), reason.clone());
                    lowered.waiver = Some(ir::Waiver { policy, reason });
                }
            }
        }
        lowered.options.sort_by(|a, b| a.name.cmp(&b.name));
        self.out.channels.push(lowered);
    }

    /// The extent of a slot's index; `source` has one value per peer of the channel.
    fn slot_extent(&mut self, axis: &ast::SlotAxis, per: &ir::PeerSet) -> ir::Expr {
        if let Some(extent) = &axis.extent {
            return self.expr(extent);
        }
        ir::Expr::Name { name: per.number().name().to_string(), kind: ir::NameKind::Dim }
    }

    fn role(&mut self, role: &ast::Role, guard: &Guard) {
        let shared: Vec<String> = match &role.share {
            Some(ast::Share::Warps(names)) => names.iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        };
        let bound = role.binder.iter().map(ToString::to_string);
        self.binders = bound.chain(shared.iter().cloned()).collect();
        let mut body = self.body(&role.body);
        lets::settle(&mut body);
        self.binders.clear();
        let share = match (&role.binder, &role.share) {
            (Some(binder), _) => {
                let binder = binder.to_string();
                let set = match &role.binder_set {
                    Some(set) => set.value,
                    None => self.set_of_binder(&body, &binder),
                };
                ir::Share::Peer { binder, set }
            }
            (None, Some(ast::Share::BlockPerToken)) => ir::Share::BlockPerToken,
            (None, Some(ast::Share::Warps(_))) => share(shared),
            (None, None) => ir::Share::Team,
        };
        let lowered = ir::Role {
            name: role.name.to_string(),
            phase: guard.phase.clone(),
            blocks: self.blocks(&role.blocks),
            warps: role.warps.as_ref().map(|warps| self.expr(warps)),
            share,
            body,
            when: guard.when.clone(),
            at: self.source(&role.source),
        };
        self.out.roles.push(lowered);
    }

    /// `Send[peer]` runs over the peers of the channel that it indexes by `peer`.
    fn set_of_binder(&self, body: &[ir::Stmt], binder: &str) -> ir::PeerSet {
        let mut found = None;
        ir::walk::stmts(body, &mut |stmt| {
            let (channel, peer) = match &stmt.action {
                ir::Action::Announce { channel, peer, .. } => (channel, Some(peer)),
                ir::Action::Push { channel, peer, .. }
                | ir::Action::Receive { channel, peer, .. } => (channel, peer.as_ref()),
                _ => return,
            };
            // `inner[peer, node]`: the peer stands first, the part after it.
            let peer = match peer {
                Some(ir::Expr::Call { args, .. }) => args.first(),
                other => other,
            };
            let by_binder = matches!(peer, Some(ir::Expr::Name { name, .. }) if name == binder);
            if by_binder && found.is_none() {
                found = self.channel_named(channel).map(|channel| channel.per);
            }
        });
        found.unwrap_or(ir::PeerSet::All)
    }

    fn channel_named(&self, name: &str) -> Option<&ir::Channel> {
        self.out.channels.iter().find(|channel| channel.name == name)
    }

    fn blocks(&mut self, blocks: &ast::Blocks) -> ir::Blocks {
        match blocks {
            ast::Blocks::All => ir::Blocks::All,
            ast::Blocks::Even => ir::Blocks::Even,
            ast::Blocks::Odd => ir::Blocks::Odd,
            ast::Blocks::Other => ir::Blocks::Other,
            ast::Blocks::Last => ir::Blocks::Last,
            ast::Blocks::One(block) => {
                let low = self.expr(block);
                let high = next(low.clone());
                ir::Blocks::Range { low, high }
            }
            ast::Blocks::Range { low, high } => {
                ir::Blocks::Range { low: self.expr(low), high: self.expr(high) }
            }
        }
    }

    /// Drops the tables that a handle offers and nothing reads.
    fn finish(mut self) -> ir::Pipeline {
        for name in std::mem::take(&mut self.implicit) {
            if !ir::walk::mentions(&self.out, &name) {
                self.out.tensors.retain(|tensor| tensor.name != name);
            }
        }
        self.out
    }

    fn source(&self, source: &ast::Excerpt) -> ir::Source {
        let line = source.tokens.first.start().line.saturating_sub(self.first_line);
        ir::Source { line: u32::try_from(line).unwrap_or(u32::MAX), text: source.text.clone() }
    }
}
