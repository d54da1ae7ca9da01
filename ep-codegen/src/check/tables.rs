//! Tensors as targets and sources: each is written by the right word, once, before it is read, and
//! lives where the channel that moves it can reach it.

use super::apart::apart;
use super::coverage::lacking;
use super::model::{Model, Tensor, View};
use super::names::{declared_tensors, is_number, striped};
use super::numbers::{mentions, visit_names};
use super::ranges::range;
use super::statements::reads;
use super::types::scalar_of;
use super::walk::{Counted, Meaning, Site, exprs, root};
use crate::ast::{self, Elem, Expr, ExprKind, Ident, Item, Place, StmtKind, TensorKind};
use crate::diagnostics::{Diagnostics, tables as errors};
use crate::ir::WellKnown;
use crate::syntax::reprint::expr as text;

/// Addresses that the parameters of a kernel hold, 4096 bytes: each copy of a tensor has one.
const MOST_COPIES: i64 = 4096 / 8;

/// Rules that no choice of arms changes.
pub(super) fn check_declarations(model: &Model<'_>, out: &mut Diagnostics) {
    for placed in &model.items {
        if let Item::Tensors(tensors) = placed.item {
            tensors.list.iter().for_each(|tensor| declaration(tensor, tensors.kind, out));
        }
    }
}

fn declaration(tensor: &ast::Tensor, kind: TensorKind, out: &mut Diagnostics) {
    if let Some(up_to) = &tensor.up_to {
        if kind != TensorKind::Input {
            out.push(errors::only_inputs(up_to.span, "up to", &tensor.name));
        } else if up_to.value < 1 {
            out.push(errors::no_copies(up_to, &tensor.name));
        } else if up_to.value > MOST_COPIES {
            out.push(errors::too_many_copies(up_to, &tensor.name, MOST_COPIES));
        }
    }
    if let (Some(window), Some(_)) = (tensor.window, tensor.host) {
        out.push(errors::window_and_host(window, &tensor.name));
    }
    if let Some(host) = tensor.host
        && kind != TensorKind::Output
    {
        out.push(errors::only_outputs(host, "to host", &tensor.name));
    }
    let Some(fill) = &tensor.fill else { return };
    if kind != TensorKind::Output {
        out.push(errors::only_outputs(fill.value.span, "fill", &tensor.name));
    }
    let first = tensor.dims.first();
    let by_first =
        first.is_some_and(|dim| matches!(&dim.kind, ExprKind::Name(name) if *name == fill.beyond));
    if let (false, Some(first)) = (by_first, first) {
        out.push(errors::fill_beyond_another(&fill.beyond, &tensor.name, first.at, &text(first)));
    }
    if let Elem::Name(elem) = &tensor.elem {
        let limits = match elem.to_string().as_str() {
            "u8" => 0..=255,
            "i8" => -128..=127,
            "bool" => 0..=1,
            "i32" => i64::from(i32::MIN)..=i64::from(i32::MAX),
            _ => i64::MIN..=i64::MAX,
        };
        if !limits.contains(&fill.value.value) {
            out.push(crate::diagnostics::numbers::does_not_fit(
                &fill.value,
                fill.value.value,
                elem.span(),
            ));
        }
    }
}

/// Rules about the statements of one choice of arms.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    extents(view, out);
    for (index, site) in view.sites.iter().enumerate() {
        if let Some((word, place)) = written(site) {
            word_fits(view, site, word, place, out);
            rewritten_by_loop(view, site, word, place, out);
            maybe_absent(view, site, place, out);
        }
        written_twice(view, index, out);
        read_before_written(view, index, out);
        places(view, site, out);
    }
    for size in &view.sizes {
        if let Some(value) = &size.value {
            visit_names(value, &mut |name| {
                if let Some(tensor) = view.tensor(name)
                    && tensor.handle.is_none()
                    && tensor.kind != TensorKind::Input
                    && (tensor.kind != TensorKind::Table || needed_before(view, &size.name, name))
                {
                    out.push(errors::size_of_own(name, &size.name));
                }
            });
        }
    }
}

/// Whether the call needs a size before the phases that write `table` have ended.
fn needed_before(view: &View<'_>, size: &Ident, table: &Ident) -> bool {
    let named = |expr: &Expr| mentions(expr, &size.to_string());
    let phase = |site: &Site<'_>| phase_of(view, site.role);
    let has_size = |tensor: &Tensor<'_>| tensor.decl.dims.iter().any(named);
    let target = |site: &Site<'_>| view.tensor(&written(site)?.1.tensor);
    let needs = |site: &Site<'_>| {
        let mut found = target(site).is_some_and(has_size);
        exprs(site.stmt, &mut |expr| found |= named(expr));
        found
    };
    let writes = |site: &&Site<'_>| target(site).is_some_and(|tensor| tensor.decl.name == *table);
    let written_in = view.sites.iter().filter(writes).map(phase).max();
    // The caller sizes what it gives, and peers size what they reach, before the call.
    let is_sized_before = |tensor: &Tensor<'_>| {
        let ends = tensor.decl.values.iter().flat_map(|values| [&values.low, &values.high]);
        let of_call = matches!(tensor.kind, TensorKind::Output | TensorKind::Table);
        ends.chain(tensor.decl.values.iter().flat_map(|values| &values.step)).any(named)
            || (has_size(tensor) && (!of_call || tensor.decl.window.is_some()))
    };
    (striped(view) == Some(size) && is_number(view, WellKnown::Stripes.name()))
        || view.sizes.iter().any(|other| other.value.as_ref().is_some_and(named))
        || view.tensors.iter().any(is_sized_before)
        || view.sites.iter().any(|site| needs(site) && Some(phase(site)) <= written_in)
}

/// Extents that are 0 or less for every legal shape, and bit sets wider than a word.
fn extents(view: &View<'_>, out: &mut Diagnostics) {
    let fields = view.messages.iter().flat_map(|message| &message.fields);
    let own = view.tensors.iter().filter(|tensor| tensor.handle.is_none());
    let all = own
        .map(|tensor| (&tensor.decl.elem, &tensor.decl.dims, &tensor.decl.name))
        .chain(fields.map(|field| (&field.elem, &field.dims, &field.name)));
    for (elem, dims, name) in all {
        for dim in dims {
            if range(view, dim).is_some_and(|range| range.high <= 0) {
                out.push(errors::empty_extent(dim.at, name));
            }
        }
        if let Elem::Bits { count, .. } = elem
            && let Some(bits) = range(view, count)
            && bits.low > 64
        {
            out.push(crate::diagnostics::limits::too_many_bits(count.at, bits.low));
        }
    }
}

/// The word and the place of a statement that writes a tensor.
pub(super) fn written<'a>(site: &Site<'a>) -> Option<(&'static str, &'a Place)> {
    match &site.stmt.kind {
        StmtKind::Store { place, .. } => Some(("store", place)),
        StmtKind::Record { place, .. } => Some(("record", place)),
        StmtKind::Add { place, .. } => Some(("add", place)),
        StmtKind::Count { place } => Some(("count", place)),
        StmtKind::Raise { place } => Some(("raise", place)),
        _ => None,
    }
}

/// Outputs are stored, tables recorded, and what a handle brings stays as it is.
fn word_fits(view: &View<'_>, site: &Site<'_>, word: &str, place: &Place, out: &mut Diagnostics) {
    let Some(tensor) = view.tensor(&place.tensor) else { return };
    if let Some(uses) = tensor.handle {
        return out.push(errors::table_of_handle(&place.tensor, word, &uses.name));
    }
    let error = match (word, tensor.kind) {
        (_, TensorKind::Input) => errors::input_written(&place.tensor, word, &tensor.decl.name),
        ("store", TensorKind::Table) => errors::table_stored(site.stmt.keyword, &place.tensor),
        ("record", TensorKind::Output | TensorKind::Inout) => {
            errors::output_recorded(site.stmt.keyword, &place.tensor)
        }
        _ => return,
    };
    out.push(error);
}

/// A second statement that writes the same elements.
fn written_twice(view: &View<'_>, index: usize, out: &mut Diagnostics) {
    let site = &view.sites[index];
    let Some((word @ ("store" | "record"), place)) = written(site) else { return };
    let first = view.sites[..index].iter().find_map(|other| match written(other) {
        Some(("store" | "record", first))
            if first.tensor == place.tensor && !apart(view, other, first, site, place) =>
        {
            Some(first)
        }
        _ => None,
    });
    if let Some(first) = first {
        out.push(errors::written_twice(&place.tensor, word, &first.tensor));
    }
}

/// A loop whose binder the place does not name writes the same element in each turn.
fn rewritten_by_loop(
    view: &View<'_>,
    site: &Site<'_>,
    word: &str,
    place: &Place,
    out: &mut Diagnostics,
) {
    if !matches!(word, "store" | "record") || is_carried(view, site, place) {
        return;
    }
    // What a `let` or an inner loop was computed from is not followed.
    let opaque = place.indices.iter().any(|index| {
        let mut found = false;
        visit_names(index, &mut |name| {
            let binder = site.scope.iter().rev().find(|binder| binder.name == name);
            found |= binder.is_some_and(|binder| {
                matches!(
                    binder.meaning,
                    Meaning::Value(_)
                        | Meaning::Message(_)
                        | Meaning::Placed(_)
                        | Meaning::Index(Counted::Other)
                )
            });
        });
        found
    });
    if opaque {
        return;
    }
    let outer = site.loops.iter().filter_map(|index| view.sites[*index].as_for());
    for inner in outer.filter(|outer| outer.domain.has_turns()) {
        let binder = inner.binder.to_string();
        if !place.indices.iter().any(|index| mentions(index, &binder)) {
            return out.push(errors::written_in_each_turn(&place.tensor, word, &inner.binder));
        }
    }
}

/// Whether each turn makes an element of an `inout` from what it was.
fn is_carried(view: &View<'_>, site: &Site<'_>, place: &Place) -> bool {
    let is_inout = view.tensor(&place.tensor).is_some_and(|it| it.kind == TensorKind::Inout);
    let StmtKind::Store { value, .. } = &site.stmt.kind else { return false };
    is_inout && mentions(value, &place.tensor.to_string())
}

/// A tensor that must be there takes nothing from a field that may be absent.
fn maybe_absent(view: &View<'_>, site: &Site<'_>, place: &Place, out: &mut Diagnostics) {
    let Some(tensor) = view.tensor(&place.tensor) else { return };
    if tensor.decl.optional.is_some() {
        return;
    }
    let StmtKind::Store { value, .. } = &site.stmt.kind else { return };
    if let Some((field, with)) = absent_field(view, site, value) {
        out.push(errors::value_may_be_absent(value.at, &tensor.decl.name, field, with));
    }
}

/// A field in `expr` that is empty when its optional tensor is absent, and that tensor.
fn absent_field<'a>(
    view: &View<'a>,
    site: &Site<'a>,
    expr: &Expr,
) -> Option<(&'a Ident, &'a Ident)> {
    let sub = |expr: &Expr| absent_field(view, site, expr);
    match &expr.kind {
        ExprKind::Field { base, field } => {
            let name = root(base)?;
            let binder = site.scope.iter().rev().find(|binder| binder.name == name)?;
            let (Meaning::Message(channel) | Meaning::Part(channel)) = &binder.meaning else {
                return None;
            };
            let message = view.message(&channel.message)?;
            let found = message.fields.iter().find(|candidate| candidate.name == *field)?;
            // That a row goes with a tensor is an error of its own.
            if found.row.is_some() {
                return None;
            }
            found.with.as_ref().map(|with| (&found.name, with))
        }
        ExprKind::Call { args, .. } => args.iter().find_map(sub),
        ExprKind::Fold { body: value, .. }
        | ExprKind::Index { base: value, .. }
        | ExprKind::Cast { value, .. }
        | ExprKind::Not { value }
        | ExprKind::Neg { value } => sub(value),
        ExprKind::If { condition, yes, no } => {
            sub(condition).or_else(|| sub(yes)).or_else(|| sub(no))
        }
        ExprKind::Binary { left, right, .. } => sub(left).or_else(|| sub(right)),
        ExprKind::Int(_) | ExprKind::Real(_) | ExprKind::Bool(_) | ExprKind::Name(_) => None,
    }
}

/// Own tables are read after the statement that records them; outputs are not read.
fn read_before_written(view: &View<'_>, index: usize, out: &mut Diagnostics) {
    let site = &view.sites[index];
    for name in reads(view, site) {
        let Some(tensor) = view.tensor(name).filter(|tensor| tensor.handle.is_none()) else {
            continue;
        };
        match tensor.kind {
            TensorKind::Output => out.push(errors::output_read(name, &tensor.decl.name)),
            TensorKind::Table => table_read(view, index, name, out),
            TensorKind::Input | TensorKind::Inout => {}
        }
    }
}

fn table_read(view: &View<'_>, index: usize, name: &Ident, out: &mut Diagnostics) {
    let site = &view.sites[index];
    let writers: Vec<(usize, &Site<'_>, &Place)> = view
        .sites
        .iter()
        .enumerate()
        .filter_map(|(at, other)| Some((at, other, written(other)?.1)))
        .filter(|(_, _, place)| place.tensor == *name)
        .collect();
    let phase = |role: usize| phase_of(view, role);
    let before = |at: usize, other: &Site<'_>| {
        (other.role == site.role && at < index)
            || phase(other.role) < phase(site.role)
            || (phase(other.role) == phase(site.role)
                && view.roles[site.role].is_last()
                && !view.roles[other.role].is_last())
    };
    // A table that nobody records is reported where it is declared.
    let Some((_, writer, place)) = writers.first() else { return };
    if !writers.iter().any(|(at, other, _)| before(*at, other)) {
        let role = (writer.role != site.role).then(|| &view.roles[writer.role].decl.name);
        out.push(errors::read_before_written(name, &place.tensor, role));
    }
}

/// Where the phase of a role stands among the phases.
fn phase_of(view: &View<'_>, role: usize) -> Option<usize> {
    let phase = view.roles[role].phase?;
    view.roles.iter().position(|other| other.phase.is_some_and(|it| it.name == phase.name))
}

/// Where tensors live: a direct channel stores in place, a pull channel reads in place, and both
/// reach only the window of another rank.
fn places(view: &View<'_>, site: &Site<'_>, out: &mut Diagnostics) {
    match &site.stmt.kind {
        StmtKind::Store { .. } => {
            let Some((place, channel)) = row_landed(view, site) else { return };
            // What has landed once may be copied to other memory.
            let lands = |other: &Site<'_>| {
                row_landed(view, other).is_some_and(|(place, of)| {
                    of.name == channel.name
                        && view.tensor(&place.tensor).is_some_and(|it| it.decl.window.is_some())
                })
            };
            if !view.sites.iter().any(lands) {
                needs_window(view, &place.tensor, &channel.name, "direct", out);
            }
        }
        StmtKind::Push { channel, values, .. } => {
            let pull = view
                .channel(&channel.name)
                .is_some_and(|channel| channel.kind.value.traits().offers);
            for value in values.iter().filter(|_| pull) {
                if let ExprKind::Name(tensor) = &value.value.kind {
                    needs_window(view, tensor, &channel.name, "pull", out);
                }
            }
        }
        _ => {}
    }
}

/// Where a statement stores the row of a direct channel.
fn row_landed<'v>(view: &View<'v>, site: &Site<'v>) -> Option<(&'v Place, &'v ast::Channel)> {
    let StmtKind::Store { place, value } = &site.stmt.kind else { return None };
    let ExprKind::Field { base, field } = &value.kind else { return None };
    let name = root(base)?;
    let binder = site.scope.iter().rev().find(|binder| *binder.name == *name)?;
    let Meaning::Message(channel) = binder.meaning else { return None };
    let row = view
        .message(&channel.message)
        .is_some_and(|message| message.fields.iter().any(|f| f.name == *field && f.row.is_some()));
    (row && channel.kind.value.traits().lands).then_some((place, channel))
}

fn needs_window(view: &View<'_>, name: &Ident, channel: &Ident, kind: &str, out: &mut Diagnostics) {
    let Some(Tensor { decl, handle: None, .. }) = view.tensor(name) else { return };
    if decl.window.is_none() && scalar_of(view, &decl.elem).is_some() {
        out.push(errors::not_in_window(name, channel, kind, &decl.name, &decl.source.text));
    }
}

/// Outputs that no role stores, and tables that no choice of arms records.
pub(super) fn check_all(views: &[View<'_>], out: &mut Diagnostics) {
    let Some(first) = views.first() else { return };
    for (decl, kind) in declared_tensors(first.model) {
        let here =
            |view: &View<'_>| view.tensors.iter().any(|tensor| std::ptr::eq(tensor.decl, decl));
        let fills = |view: &View<'_>| {
            let writes =
                |site: &Site<'_>| written(site).is_some_and(|(_, place)| place.tensor == decl.name);
            view.sites.iter().any(writes)
        };
        let lacks = lacking(views, &here, &fills);
        match (kind, lacks) {
            (TensorKind::Output, Some(when)) => out.push(errors::never_stored(&decl.name, &when)),
            // A cached call leaves a table alone: some arm that records it is enough.
            (TensorKind::Table, Some(when)) if when.is_empty() => {
                out.push(errors::never_recorded(&decl.name));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::said_to;

    fn body(statements: &str) -> Vec<String> {
        said_to(&format!(
            "shape {{ ranks: 1..=8, stripes: 1..=8 }} size tokens;
             input to: bool[tokens, ranks];
             table seen: i32[tokens, ranks];
             role R on all blocks, warps shared by stripe {{
                 for token in stripe {{ {statements} }}
             }}"
        ))
    }

    #[test]
    fn elements_apart_are_recorded_apart() {
        let apart = [
            "record seen[token, 0] = 1; record seen[token, 1] = 2;",
            "record seen[token, me] = 1; for peer in others { record seen[token, peer] = 2; }",
            "for peer in ranks where to[token, peer] { record seen[token, peer] = 1; }
             for peer in ranks where !to[token, peer] { record seen[token, peer] = 0; }",
            "for peer in ranks { if to[token, peer] { record seen[token, peer] = 1; } else { record seen[token, peer] = 0; } }",
        ];
        for statements in apart {
            assert_eq!(body(statements), [""; 0], "{statements}");
        }
        let twice = [
            "record seen[token, me] = 1; for peer in ranks { record seen[token, peer] = 2; }",
            "for peer in ranks {
                 if to[token, peer] { record seen[token, peer] = 1; } else { let n = 1; }
                 if to[token, 0] { let n = 1; } else { record seen[token, peer] = 0; }
             }",
        ];
        for statements in twice {
            assert_eq!(body(statements), ["`seen` is recorded twice"], "{statements}");
        }
    }

    #[test]
    fn a_table_is_read_after_its_record_only() {
        let after = "record seen[token, 0] = 1; record seen[token, 1] = seen[token, 0];";
        assert_eq!(body(after), [""; 0]);
        let before = "record seen[token, 1] = seen[token, 0]; record seen[token, 0] = 1;";
        assert_eq!(body(before), ["`seen` is read before it is written"]);
    }

    #[test]
    fn gaps_between_places_are_recorded_apart() {
        let padded = |range: &str| {
            said_to(&format!(
                "shape {{ ranks: 1..=8, stripes: 1..=8 }} size tokens;
                 input to: bool[tokens, ranks], first: i32[ranks + 1], end: i32[ranks];
                 table rows: i32[tokens];
                 role Move on all blocks, 4 warps, warps shared by stripe {{
                     for token in stripe {{
                         for peer in ranks at first[peer] where to[token, peer] {{
                             record rows[peer.position] = token;
                         }}
                     }}
                 }}
                 role Pad on all blocks, 1 warps {{ for place in {range} {{ record rows[place] = -1; }} }}"
            ))
        };
        assert_eq!(padded("end[0]..first[1]"), [""; 0]);
        assert_eq!(padded("tokens"), ["`rows` is recorded twice"]);
    }
}
