//! Handles: the pipeline exists, leaves the tables that are read, and means the same by them.

use std::collections::BTreeMap;

use super::graph::circle;
use super::model::{Model, View};
use super::names::{declared_tensors, is_number};
use super::numbers::visit_names;
use super::statements::reads;
use crate::ast::{Elem, File, Ident, Item, Pipeline, Tensor, TensorKind, Uses};
use crate::diagnostics::{Diagnostics, handles as errors};
use crate::syntax::reprint::expr as text;

/// Handles that need each other. Some arms may read what other arms of the same pipeline record.
pub(super) fn check_file(file: &File, out: &mut Diagnostics) {
    let uses: Vec<Vec<(usize, &Ident)>> = file
        .pipelines
        .iter()
        .map(|pipeline| {
            let all = Model::new(file, pipeline).items;
            let names = all.into_iter().filter_map(|placed| match placed.item {
                Item::Uses(uses) if uses.name == pipeline.name && !placed.guards.is_empty() => None,
                Item::Uses(uses) => Some(&uses.name),
                _ => None,
            });
            names.filter_map(|name| Some((index_of(file, name)?, name))).collect()
        })
        .collect();
    let next = |from: usize| uses[from].iter().map(|(to, _)| *to).collect();
    for start in 0..file.pipelines.len() {
        let Some(found) = circle(start, uses.len(), &next) else { continue };
        // Each circle once, at its first pipeline.
        if found.iter().all(|index| *index >= start) {
            let after = found.get(1).copied().unwrap_or(start);
            if let Some((_, name)) = uses[start].iter().find(|(to, _)| *to == after) {
                out.push(errors::circle(name, &file.pipelines[start].name));
            }
        }
    }
}

fn index_of(file: &File, name: &Ident) -> Option<usize> {
    file.pipelines.iter().position(|pipeline| pipeline.name == *name)
}

/// Rules that no choice of arms changes.
pub(super) fn check_declarations(model: &Model<'_>, out: &mut Diagnostics) {
    for placed in &model.items {
        let Item::Uses(uses) = placed.item else { continue };
        let of_block = (uses.path.len() == 1)
            .then(|| model.file.pipelines.iter().find(|other| other.name == uses.name))
            .flatten();
        match (of_block, &uses.tables) {
            (None, None) => {
                let known = model.file.pipelines.iter().map(|other| &other.name);
                let known: Vec<String> = known
                    .filter(|name| **name != model.pipeline.name)
                    .map(Ident::to_string)
                    .collect();
                out.push(errors::unknown_pipeline(uses, known));
            }
            (Some(other), tables) => {
                let theirs = tables_of(model.file, other);
                if theirs.is_empty() {
                    out.push(errors::no_tables(&uses.name, &other.name));
                }
                let listed = tables.iter().flatten();
                listed.for_each(|table| same_table(table, &theirs, uses, out));
            }
            (None, Some(tables)) if tables.is_empty() => out.push(errors::empty_list(uses)),
            (None, Some(_)) => {}
        }
        for table in uses.tables.iter().flatten() {
            if let Some(at) = table.optional.or(table.window).or(table.host) {
                out.push(errors::only_type(at, &table.name));
            }
        }
    }
    brought_twice(model, out);
}

/// Handles under different arms bring no tables of one name: a caller may pass all handles at once.
fn brought_twice(model: &Model<'_>, out: &mut Diagnostics) {
    let mut known: Vec<(&Ident, &Ident)> = Vec::new();
    for placed in model.items.iter().filter(|placed| !placed.guards.is_empty()) {
        let Item::Uses(uses) = placed.item else { continue };
        let other = model.file.pipelines.iter().find(|other| other.name == uses.name);
        let all = other.filter(|_| uses.tables.is_none()).map(|other| tables_of(model.file, other));
        let unlisted = all.iter().flatten().map(|table| (&uses.name, &table.name));
        let listed = uses.tables.iter().flatten().map(|table| (&table.name, &table.name));
        for (at, table) in listed.chain(unlisted) {
            let first = known.iter().find(|(of, known)| **of != uses.name && *known == table);
            if let Some((_, first)) = first {
                out.push(errors::ambiguous_table(at, table, &uses.name, first));
            }
            known.push((&uses.name, table));
        }
    }
}

fn tables_of<'a>(file: &'a File, pipeline: &'a Pipeline) -> Vec<&'a Tensor> {
    let tensors = declared_tensors(&Model::new(file, pipeline));
    let tables = tensors.into_iter().filter(|(_, kind)| *kind == TensorKind::Table);
    tables.map(|(tensor, _)| tensor).collect()
}

/// A table that is spelled out reads as where it is declared.
fn same_table(table: &Tensor, theirs: &[&Tensor], uses: &Uses, out: &mut Diagnostics) {
    let Some(declared) = theirs.iter().find(|other| other.name == table.name) else {
        let known = theirs.iter().map(|other| other.name.to_string()).collect();
        return out.push(errors::unknown_table(&table.name, &uses.name, known));
    };
    let same_dims = declared.dims.len() == table.dims.len()
        && declared.dims.iter().zip(&table.dims).all(|(a, b)| text(a) == text(b));
    if elem_text(&declared.elem) != elem_text(&table.elem) || !same_dims {
        let spelled = |tensor: &Tensor| {
            let dims: Vec<String> = tensor.dims.iter().map(text).collect();
            format!("{}[{}]", elem_text(&tensor.elem), dims.join(", "))
        };
        out.push(errors::table_differs(
            table,
            declared,
            &uses.name,
            &spelled(table),
            &spelled(declared),
        ));
    }
}

fn elem_text(elem: &Elem) -> String {
    match elem {
        Elem::Name(name) => name.to_string(),
        Elem::Bits { count, .. } => format!("bits[{}]", text(count)),
    }
}

/// Rules about the handles of one choice of arms.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    let mut seen: BTreeMap<String, &Ident> = BTreeMap::new();
    for uses in &view.uses {
        if let Some(first) = seen.insert(uses.name.to_string(), &uses.name) {
            out.push(crate::diagnostics::names::duplicate(&uses.name, "handle", first));
        }
    }
    ambiguous(view, out);
    undeclared_extents(view, out);
}

/// One name for the tables of two handles, or for a table and something declared here.
fn ambiguous(view: &View<'_>, out: &mut Diagnostics) {
    for (index, tensor) in view.tensors.iter().enumerate() {
        let Some(uses) = tensor.handle else { continue };
        let name = &tensor.decl.name;
        let clash = view.tensors[..index].iter().find(|other| {
            other.decl.name == *name && !other.handle.is_some_and(|of| std::ptr::eq(of, uses))
        });
        let read = || view.sites.iter().any(|site| reads(view, site).contains(&name));
        if let Some(first) = clash
            && (uses.tables.is_some() || read())
        {
            let at = if uses.tables.is_some() { name } else { &uses.name };
            out.push(errors::ambiguous_table(at, name, &uses.name, &first.decl.name));
        }
    }
}

/// The extents of a table from a pipeline of this block are numbers here too.
fn undeclared_extents(view: &View<'_>, out: &mut Diagnostics) {
    let mut reported: Vec<String> = Vec::new();
    for site in &view.sites {
        for name in reads(view, site) {
            let Some(tensor) = view.tensor(name) else { continue };
            let Some(uses) = tensor.handle.filter(|uses| uses.tables.is_none()) else { continue };
            for dim in &tensor.decl.dims {
                visit_names(dim, &mut |number| {
                    let key = format!("{}.{number}", tensor.decl.name);
                    if !is_number(view, &number.to_string()) && !reported.contains(&key) {
                        reported.push(key);
                        out.push(errors::undeclared_extent(name, &uses.name, number));
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::said;

    #[test]
    fn a_handle_may_be_listed_or_not() {
        let second = |uses: &str| {
            said(&format!(
                "pipeline First {{
                     shape {{ ranks: 1..=8 }} table seen: i32[ranks];
                     role R on block 0 {{ for peer in ranks {{ record seen[peer] = 1; }} }}
                 }}
                 pipeline Second {{
                     shape {{ ranks: 1..=8 }} {uses} output n: i32[ranks];
                     role R on block 0 {{ for peer in ranks {{ store n[peer] = seen[peer]; }} }}
                 }}"
            ))
        };
        for uses in [
            "uses handle First;",
            "uses handle First { seen: i32[ranks] };",
            "uses handle other::Third { seen: i32[ranks] };",
        ] {
            assert_eq!(second(uses), [""; 0], "{uses}");
        }
        let own = |uses: &str| {
            said(&format!(
                "pipeline Again {{
                     shape {{ ranks: 1..=8 }} variant mode {{ Fresh, Cached }} output n: i32[ranks];
                     when mode is Fresh {{ table seen: i32[ranks]; }} {uses}
                     role R on block 0 {{ for peer in ranks {{
                         when mode is Fresh {{ record seen[peer] = 1; }}
                         store n[peer] = seen[peer];
                     }} }}
                 }}"
            ))
        };
        let uses = "uses handle Again { seen: i32[ranks] };";
        assert_eq!(own(&format!("when mode is Cached {{ {uses} }}")), [""; 0]);
        assert!(own(uses).contains(&"`Again` needs its own handle".to_string()));
        assert_eq!(second("uses handle Third;"), ["this block has no pipeline `Third`"]);
        assert_eq!(second(""), ["unknown name `seen`"]);
    }
}
