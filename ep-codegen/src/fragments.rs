//! Fragments: what stands in several places is written once.
//!
//! Every use is replaced by what it stands for before `check`, so that no later stage knows of fragments. What
//! comes from a fragment stands at the place of its use, and its [`Span::origin`](crate::ast::Span::origin)
//! leads to the statement or declaration of the fragment, which errors name second.

mod calls;
mod instance;
mod known;
mod names;
#[cfg(test)]
mod tests;

use std::mem;

use crate::ast::{File, Item, ItemsUse, Origin, Stmt, StmtKind};
use crate::cuda_fn::ReadFile;
use crate::diagnostics::{Diagnostics, form, fragments as wording, names as wording_of_names};
use calls::Calls;
use instance::Instance;
use known::{Known, Sort};
use names::Declared;

/// Fragments may use one another this deep.
const DEPTH_MAX: usize = 8;

/// Replaces every use of a fragment. `load` reads the files of fragments.
pub fn expand(file: &mut File, load: ReadFile, errors: &mut Diagnostics) {
    let has_own = !file.fragments.is_empty() || !file.files.is_empty();
    if !has_own && !file.pipelines.iter().any(|pipeline| uses(&pipeline.items)) {
        return;
    }
    let known = Known::new(file, load, errors);
    let mut origins = Vec::new();
    for pipeline in &mut file.pipelines {
        let mut items = Items { known: &known, origins: &mut origins, errors };
        items.expand(&mut pipeline.items, &mut Vec::new());
    }
    let declared: Vec<Declared> =
        file.pipelines.iter().map(|pipeline| Declared::of(file, pipeline)).collect();
    for (pipeline, declared) in file.pipelines.iter_mut().zip(&declared) {
        let mut calls = Calls::new(&known, declared, &mut origins, errors);
        roles(&mut pipeline.items, &mut calls);
    }
    file.origins = origins;
}

/// Whether a declaration among `items` uses a fragment.
fn uses(items: &[Item]) -> bool {
    items.iter().any(|item| match item {
        Item::Use(_) => true,
        Item::Role(role) => calls_any(&role.body),
        Item::Phase(phase) => uses(&phase.items),
        Item::When(when) => uses(&when.body),
        _ => false,
    })
}

fn calls_any(body: &[Stmt]) -> bool {
    body.iter().any(|stmt| match &stmt.kind {
        StmtKind::Call(_) => true,
        StmtKind::For(inner) => calls_any(&inner.body),
        StmtKind::When(when) => calls_any(&when.body),
        _ => false,
    })
}

fn roles(items: &mut [Item], calls: &mut Calls<'_>) {
    for item in items {
        match item {
            Item::Role(role) => calls.role(role),
            Item::Phase(phase) => roles(&mut phase.items, calls),
            Item::When(when) => roles(&mut when.body, calls),
            _ => {}
        }
    }
}

/// Replaces the uses of declarations.
struct Items<'a> {
    known: &'a Known,
    origins: &'a mut Vec<Origin>,
    errors: &'a mut Diagnostics,
}

impl Items<'_> {
    /// `chain`: the fragments that `items` come from, outermost first.
    fn expand(&mut self, items: &mut Vec<Item>, chain: &mut Vec<String>) {
        for mut item in mem::take(items) {
            match &mut item {
                Item::Use(used) => {
                    items.extend(self.used(used, chain));
                    continue;
                }
                Item::Phase(phase) => self.expand(&mut phase.items, chain),
                Item::When(when) => self.expand(&mut when.body, chain),
                _ => {}
            }
            items.push(item);
        }
    }

    fn used(&mut self, used: &ItemsUse, chain: &mut Vec<String>) -> Vec<Item> {
        let name = &used.name;
        let Some(found) = self.known.find(name) else {
            let names = self.known.names(Sort::Items);
            self.errors.push(wording_of_names::unknown(name, "fragment", names));
            return Vec::new();
        };
        let Some(items) = found.items() else {
            self.errors.push(wording::other_sort(name, false));
            return Vec::new();
        };
        if let Some(error) = too_deep(name, chain) {
            self.errors.push(error);
            return Vec::new();
        }
        let mut items = items.to_vec();
        Instance::of_items(found, used, self.origins).declare(&mut items);
        chain.push(name.to_string());
        self.expand(&mut items, chain);
        chain.pop();
        items
    }
}

/// The error of a use in a fragment that came from `name` itself, or from too many others.
fn too_deep(name: &crate::ast::Ident, chain: &[String]) -> Option<crate::diagnostics::Diagnostic> {
    let before = chain.iter().position(|link| name == link);
    match before {
        Some(first) => Some(wording::recursion(name, &chain[first..])),
        None if chain.len() >= DEPTH_MAX => {
            Some(form::blocks_too_deep(name.span(), DEPTH_MAX as u32))
        }
        None => None,
    }
}
