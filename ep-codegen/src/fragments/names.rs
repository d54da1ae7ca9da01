//! The names around a use of a fragment, and those in it.

use std::collections::BTreeSet;

use super::known::{Definition, Known};
use crate::ast::visit::{self, NameUse, Visitor};
use crate::ast::{
    Argument, Call, ExprKind, File, Ident, Item, ParamKind, Pipeline, Stmt, StmtKind, UNNAMED,
};
use crate::ir::{CONDITION, WellKnown};
use crate::lower::tables_of;

/// Numbers that mean the same in every pipeline that has them.
const NUMBERS: &[WellKnown] = &[
    WellKnown::Ranks,
    WellKnown::Nodes,
    WellKnown::LocalRanks,
    WellKnown::Stripes,
    WellKnown::Tokens,
    WellKnown::Hidden,
    WellKnown::Topk,
    WellKnown::Experts,
];

/// Words that mean the same in every pipeline.
const WORDS: &[&str] = &["me", "stripe", "all", "others", "local", "rail"];

/// Whether a fragment may use `name` without a parameter.
pub(super) fn means_the_same(name: &Ident) -> bool {
    name == CONDITION
        || WORDS.iter().any(|word| name == *word)
        || NUMBERS.iter().any(|number| number.is(name))
}

/// The names in statements or arguments.
pub(super) struct Names<'a> {
    known: &'a Known,
    /// Those that loops, folds and `let` give.
    pub(super) bound: BTreeSet<String>,
    /// All names that may stand for a value, a tensor, a channel or a variant.
    pub(super) all: BTreeSet<String>,
}

impl<'a> Names<'a> {
    /// None.
    pub(super) fn none(known: &'a Known) -> Names<'a> {
        Names { known, bound: BTreeSet::new(), all: BTreeSet::new() }
    }

    /// Those of statements.
    pub(super) fn of(body: &mut Vec<Stmt>, known: &'a Known) -> Names<'a> {
        let mut names = Names::none(known);
        names.body(body);
        names
    }

    /// Those of an argument.
    pub(super) fn add(&mut self, arg: &mut Argument) {
        match arg {
            Argument::Value(value) => self.expr(value),
            Argument::Block { body, .. } => self.body(body),
        }
    }

    /// Whether a loop, fold or `let` gives `name`.
    pub(super) fn binds(&self, name: &Ident) -> bool {
        self.bound.contains(&name.to_string())
    }
}

impl Visitor for Names<'_> {
    fn name(&mut self, name: &mut Ident, what: NameUse) {
        // An author cannot write those of an `if`.
        if *name == UNNAMED || *name == CONDITION {
            return;
        }
        match what {
            NameUse::Binder | NameUse::Let => drop(self.bound.insert(name.to_string())),
            NameUse::Tensor
            | NameUse::Channel
            | NameUse::Message
            | NameUse::Axis
            | NameUse::Value => {}
            NameUse::Helper | NameUse::Fragment | NameUse::Other => return,
        }
        self.all.insert(name.to_string());
    }

    fn call(&mut self, call: &mut Call) {
        let params = self.known.find(&call.name).and_then(Definition::statements);
        for (param, arg) in params.map_or(&[][..], |(params, _)| params).iter().zip(&call.args) {
            // A name for a binder of another fragment.
            if let (ParamKind::Name, Argument::Value(value)) = (param.kind.value, arg)
                && let ExprKind::Name(name) = &value.kind
            {
                self.bound.insert(name.to_string());
            }
        }
        visit::call(self, call);
    }
}

/// The numbers among `names` that mean the same in every pipeline.
pub(super) fn numbers_among(names: &Names<'_>) -> impl Iterator<Item = &'static str> {
    let is_free = |number: &str| names.all.contains(number) && !names.bound.contains(number);
    NUMBERS.iter().map(|number| number.name()).filter(move |number| is_free(number))
}

/// The names that a `let` gives to the rest of the block that `body` stands in.
pub(super) fn lets(body: &[Stmt]) -> BTreeSet<String> {
    let names = body.iter().filter_map(|stmt| match &stmt.kind {
        StmtKind::Let { name, .. } if name != CONDITION => Some(name.to_string()),
        _ => None,
    });
    names.collect()
}

/// The names that a pipeline declares.
#[derive(Default)]
pub(super) struct Declared {
    /// Tensors, those of handles included.
    pub(super) tensors: BTreeSet<String>,
    /// Channels.
    pub(super) channels: BTreeSet<String>,
    /// Variants.
    pub(super) axes: BTreeSet<String>,
    /// All of these, and everything else.
    pub(super) all: BTreeSet<String>,
}

impl Declared {
    /// The names of `pipeline`, one of those in `file`.
    pub(super) fn of(file: &File, pipeline: &Pipeline) -> Declared {
        let mut declared = Declared::default();
        declared.add(file, &pipeline.items);
        let sets = [&declared.tensors, &declared.channels, &declared.axes];
        let more: Vec<String> = sets.into_iter().flatten().cloned().collect();
        declared.all.extend(more);
        declared
    }

    fn add(&mut self, file: &File, items: &[Item]) {
        for item in items {
            match item {
                Item::Tensors(tensors) => {
                    self.tensors.extend(tensors.list.iter().map(|it| it.name.to_string()));
                }
                Item::Uses(uses) => {
                    let tables = tables_of(file, uses);
                    self.tensors.extend(tables.iter().map(|it| it.name.to_string()));
                }
                Item::Channel(channel) => drop(self.channels.insert(channel.name.to_string())),
                Item::Variant(variant) => drop(self.axes.insert(variant.name.to_string())),
                Item::Phase(phase) => self.add(file, &phase.items),
                Item::When(when) => self.add(file, &when.body),
                _ => {}
            }
            let names = crate::check::declared_names(item);
            self.all.extend(names.into_iter().map(Ident::to_string));
        }
    }
}
