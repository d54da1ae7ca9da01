//! A pipeline as the rules see it.
//!
//! [`Model`] flattens `when` and `phase` blocks: every item stands beside the conditions it is
//! under. [`View`] keeps what one choice of arms leaves, so that in it every name means one thing;
//! rules about behaviour run on each view, and an error found in several is reported once.

use super::walk::{self, Site};
use crate::ast;
use crate::ast::{
    Arg, Arm, Channel, CudaFn, File, Ident, Item, Message, Part, Phase, Pipeline, ShapeEntry, Size,
    TensorKind, Tune, Uses, Variant, When,
};

/// More texts than this a pipeline must not have.
pub(super) const TEXTS_MAX: usize = 16;

/// `axis is A | B`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guard<'a> {
    /// The axis.
    pub(super) axis: &'a Ident,
    /// The arms.
    pub(super) arms: &'a [Ident],
}

impl<'a> Guard<'a> {
    /// The condition of a `when` block.
    pub(super) fn of<T>(when: &'a When<T>) -> Guard<'a> {
        Guard { axis: &when.axis, arms: &when.arms }
    }

    fn allows(&self, axis: &Variant, arm: &Arm) -> bool {
        *self.axis != axis.name || self.arms.contains(&arm.name)
    }
}

/// An item and what it stands under.
#[derive(Debug, Clone)]
pub(super) struct Placed<'a> {
    /// The item; never a `when` or a phase.
    pub(super) item: &'a Item,
    /// The conditions around it, outermost first.
    pub(super) guards: Vec<Guard<'a>>,
    /// The phase around it.
    pub(super) phase: Option<&'a Phase>,
}

/// One arm per axis.
pub(super) type Choice<'a> = Vec<(&'a Variant, &'a Arm)>;

/// A pipeline with its items flattened.
#[derive(Debug)]
pub(super) struct Model<'a> {
    /// The block it stands in.
    pub(super) file: &'a File,
    /// The pipeline.
    pub(super) pipeline: &'a Pipeline,
    /// Its items in order.
    pub(super) items: Vec<Placed<'a>>,
    /// Its axes in order.
    pub(super) axes: Vec<&'a Variant>,
}

impl<'a> Model<'a> {
    /// The model of `pipeline`.
    pub(super) fn new(file: &'a File, pipeline: &'a Pipeline) -> Model<'a> {
        let mut items = Vec::new();
        flatten(&pipeline.items, &mut Vec::new(), None, &mut items);
        let axes = items
            .iter()
            .filter_map(|placed| match placed.item {
                Item::Variant(variant) => Some(variant),
                _ => None,
            })
            .collect();
        Model { file, pipeline, items, axes }
    }

    /// How many texts the axes make.
    pub(super) fn texts(&self) -> usize {
        self.axes.iter().fold(1, |texts, axis| texts.saturating_mul(axis.arms.len().max(1)))
    }

    /// Every choice of arms, as far as a legal pipeline can have them.
    pub(super) fn choices(&self) -> Vec<Choice<'a>> {
        let mut all: Vec<Choice<'a>> = vec![Vec::new()];
        for axis in self.axes.iter().filter(|axis| !axis.arms.is_empty()) {
            let with = |choice: &Choice<'a>, arm| {
                let mut longer = choice.clone();
                longer.push((*axis, arm));
                longer
            };
            all = all
                .iter()
                .flat_map(|choice| axis.arms.iter().map(move |arm| with(choice, arm)))
                .take(4 * TEXTS_MAX)
                .collect();
        }
        all
    }

    /// The axis of this name.
    pub(super) fn axis(&self, name: &Ident) -> Option<&'a Variant> {
        self.axes.iter().copied().find(|axis| axis.name == *name)
    }
}

fn flatten<'a>(
    items: &'a [Item],
    guards: &mut Vec<Guard<'a>>,
    phase: Option<&'a Phase>,
    out: &mut Vec<Placed<'a>>,
) {
    for item in items {
        match item {
            Item::When(when) => {
                guards.push(Guard::of(when));
                flatten(&when.body, guards, phase, out);
                guards.pop();
            }
            Item::Phase(inner) => flatten(&inner.items, guards, Some(inner), out),
            _ => out.push(Placed { item, guards: guards.clone(), phase }),
        }
    }
}

/// Whether all of `guards` hold under `choice`.
pub(super) fn holds(guards: &[Guard<'_>], choice: &Choice<'_>) -> bool {
    guards.iter().all(|guard| choice.iter().all(|(axis, arm)| guard.allows(axis, arm)))
}

/// A tensor of a view.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tensor<'a> {
    /// Its declaration, here or in the pipeline whose handle brings it.
    pub(super) decl: &'a ast::Tensor,
    /// What it is.
    pub(super) kind: TensorKind,
    /// The handle that brings it.
    pub(super) handle: Option<&'a Uses>,
}

/// A role of a view.
#[derive(Debug, Clone, Copy)]
pub(super) struct Role<'a> {
    /// Its declaration.
    pub(super) decl: &'a ast::Role,
    /// The phase it belongs to.
    pub(super) phase: Option<&'a Phase>,
}

impl Role<'_> {
    /// Whether it runs on the last block, when all roles on others are done.
    pub(super) fn is_last(&self) -> bool {
        matches!(self.decl.blocks, ast::Blocks::Last)
    }
}

/// What one choice of arms leaves of a pipeline.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// The whole pipeline.
    pub(super) model: &'a Model<'a>,
    /// The chosen arms.
    pub(super) choice: Choice<'a>,
    /// Entries of the shape.
    pub(super) shape: Vec<&'a ShapeEntry>,
    /// Tunes.
    pub(super) tunes: Vec<&'a Tune>,
    /// Run-time numbers.
    pub(super) args: Vec<&'a Arg>,
    /// Run-time sizes.
    pub(super) sizes: Vec<&'a Size>,
    /// Own tensors, then those of handles.
    pub(super) tensors: Vec<Tensor<'a>>,
    /// Messages.
    pub(super) messages: Vec<&'a Message>,
    /// Channels.
    pub(super) channels: Vec<&'a Channel>,
    /// Roles.
    pub(super) roles: Vec<Role<'a>>,
    /// Device functions.
    pub(super) cuda_fns: Vec<&'a CudaFn>,
    /// Handles.
    pub(super) uses: Vec<&'a Uses>,
    /// A handle is of a pipeline that nobody knows, so any name may be one of its tables.
    pub(super) open: bool,
    /// Every statement of every role.
    pub(super) sites: Vec<Site<'a>>,
}

impl<'a> View<'a> {
    /// The view of `model` under `choice`.
    pub(super) fn new(model: &'a Model<'a>, choice: Choice<'a>) -> View<'a> {
        let mut view = View {
            model,
            choice,
            shape: Vec::new(),
            tunes: Vec::new(),
            args: Vec::new(),
            sizes: Vec::new(),
            tensors: Vec::new(),
            messages: Vec::new(),
            channels: Vec::new(),
            roles: Vec::new(),
            cuda_fns: Vec::new(),
            uses: Vec::new(),
            open: false,
            sites: Vec::new(),
        };
        for placed in &model.items {
            if holds(&placed.guards, &view.choice) {
                view.take(placed);
            }
        }
        for uses in view.uses.clone() {
            let known = model.file.pipelines.iter().any(|other| other.name == uses.name);
            view.open |= uses.tables.is_none() && !known;
            let tables = handle_tables(model.file, uses).into_iter();
            let table = |decl| Tensor { decl, kind: TensorKind::Table, handle: Some(uses) };
            view.tensors.extend(tables.map(table));
        }
        view.sites = walk::sites(&view);
        view
    }

    fn take(&mut self, placed: &Placed<'a>) {
        match placed.item {
            Item::Shape(shape) => self.shape.extend(&shape.entries),
            Item::Tune(tunes) => self.tunes.extend(tunes),
            Item::Arg(args) => self.args.extend(args),
            Item::Size(size) => self.sizes.push(size),
            Item::Tensors(tensors) => {
                let tensor = |decl| Tensor { decl, kind: tensors.kind, handle: None };
                self.tensors.extend(tensors.list.iter().map(tensor));
            }
            Item::Message(message) => self.messages.push(message),
            Item::Channel(channel) => self.channels.push(channel),
            Item::Role(decl) => self.roles.push(Role { decl, phase: placed.phase }),
            Item::CudaFn(cuda_fn) => self.cuda_fns.push(cuda_fn),
            Item::Uses(uses) => self.uses.push(uses),
            // Axes are in the choice; `when` and `phase` are already flattened, fragments expanded.
            Item::Variant(_) | Item::Phase(_) | Item::When(_) | Item::Use(_) => {}
        }
    }

    /// The tensor of this name.
    pub(super) fn tensor(&self, name: &Ident) -> Option<&Tensor<'a>> {
        self.tensors.iter().find(|tensor| tensor.decl.name == *name)
    }

    /// The message of this name.
    pub(super) fn message(&self, name: &Ident) -> Option<&'a Message> {
        self.messages.iter().copied().find(|message| message.name == *name)
    }

    /// The channel of this name.
    pub(super) fn channel(&self, name: &Ident) -> Option<&'a Channel> {
        self.channels.iter().copied().find(|channel| channel.name == *name)
    }

    /// The role of this name.
    pub(super) fn role(&self, name: &Ident) -> Option<&Role<'a>> {
        self.roles.iter().find(|role| role.decl.name == *name)
    }

    /// The parts of the chosen arm of the axis of this name.
    pub(super) fn parts(&self, axis: &Ident) -> Option<&'a [Part]> {
        let chosen = self.choice.iter().find(|(variant, _)| variant.name == *axis);
        chosen.map(|(_, arm)| arm.parts.as_slice())
    }
}

/// The tables that `uses` makes readable: those it spells out, or those of the pipeline in this
/// block, each once even if several arms declare it.
pub(super) fn handle_tables<'a>(file: &'a File, uses: &'a Uses) -> Vec<&'a ast::Tensor> {
    if let Some(tables) = &uses.tables {
        return tables.iter().collect();
    }
    let Some(pipeline) = file.pipelines.iter().find(|pipeline| pipeline.name == uses.name) else {
        return Vec::new();
    };
    let mut tables: Vec<&ast::Tensor> = Vec::new();
    for placed in Model::new(file, pipeline).items {
        if let Item::Tensors(tensors) = placed.item
            && tensors.kind == TensorKind::Table
        {
            for table in &tensors.list {
                if !tables.iter().any(|seen| seen.name == table.name) {
                    tables.push(table);
                }
            }
        }
    }
    tables
}
