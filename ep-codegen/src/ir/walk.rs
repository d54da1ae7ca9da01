//! Visiting the statements and expressions of a pipeline, each once and in order of the text.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Action, Channel, DimKind, Domain, ElemType, Expr, FieldValue, Pipeline, Place, Stmt, Tensor,
    TensorKind,
};

/// Shows every statement of `body`, outer ones first.
pub fn stmts<'a>(body: &'a [Stmt], see: &mut dyn FnMut(&'a Stmt)) {
    for stmt in body {
        see(stmt);
        stmts(nested(stmt), see);
    }
}

/// Whether `holds` for any statement of `body`.
pub fn any_stmt<'a>(body: &'a [Stmt], holds: &mut dyn FnMut(&'a Stmt) -> bool) -> bool {
    let mut found = false;
    stmts(body, &mut |stmt| found = found || holds(stmt));
    found
}

/// Whether `holds` for any part of the expressions of `stmt`, without those of its block.
pub fn any_in<'a>(stmt: &'a Stmt, holds: &mut dyn FnMut(&'a Expr) -> bool) -> bool {
    let mut found = false;
    exprs(stmt, &mut |part| found = found || holds(part));
    found
}

/// Whether `holds` for any part of an expression.
pub fn any_expr<'a>(whole: &'a Expr, holds: &mut dyn FnMut(&'a Expr) -> bool) -> bool {
    let mut found = false;
    expr(whole, &mut |part| found = found || holds(part));
    found
}

/// The block of a statement; empty for a statement without one.
pub fn nested(stmt: &Stmt) -> &[Stmt] {
    match &stmt.action {
        Action::For { body, .. } | Action::Receive { body, .. } | Action::Gather { body, .. } => {
            body
        }
        _ => &[],
    }
}

/// Shows every expression of `stmt` with its parts, but not those of its block.
pub fn exprs<'a>(stmt: &'a Stmt, see: &mut dyn FnMut(&'a Expr)) {
    match &stmt.action {
        Action::For { domain, position, filter, .. } => {
            in_domain(domain, see);
            each(position.iter().chain(filter), see);
        }
        Action::Receive { peer, position, filter, .. } => {
            each(peer.iter().chain(position).chain(filter), see);
        }
        Action::Gather { domain, peer, position, over, .. } => {
            in_domain(domain, see);
            each(peer, see);
            expr(position, see);
            in_domain(over, see);
        }
        Action::Announce { peer, values, .. } => {
            expr(peer, see);
            in_values(values, see);
        }
        Action::Push { peer, position, values, .. } => {
            each(peer.iter().chain(position), see);
            in_values(values, see);
        }
        Action::Store { target, value }
        | Action::Record { target, value }
        | Action::Add { target, value } => {
            in_place(target, see);
            expr(value, see);
        }
        Action::Count { target } | Action::Raise { target } => in_place(target, see),
        Action::AwaitWord { word, least } => {
            in_place(word, see);
            expr(least, see);
        }
        Action::Let { value, .. } => expr(value, see),
        Action::Await { .. } | Action::Close { .. } => {}
    }
}

/// Shows `whole` and every part of it, outer ones first.
pub fn expr<'a>(whole: &'a Expr, see: &mut dyn FnMut(&'a Expr)) {
    see(whole);
    match whole {
        Expr::Int { .. } | Expr::Real { .. } | Expr::Bool { .. } | Expr::Name { .. } => {}
        Expr::Element { indices, .. } | Expr::Field { indices, .. } => each(indices, see),
        Expr::OfChannel { index, indices, .. } => each(index.iter().chain(indices), see),
        Expr::Call { args, .. } => each(args, see),
        Expr::Fold { domain, body, .. } => {
            in_domain(domain, see);
            expr(body, see);
        }
        Expr::Cast { value, .. } | Expr::Not { value } => expr(value, see),
        Expr::If { condition, yes, no } => {
            [condition, yes, no].into_iter().for_each(|part| expr(part, see));
        }
        Expr::Binary { left, right, .. } => {
            expr(left, see);
            expr(right, see);
        }
    }
}

/// Shows every expression that stands outside of the roles' bodies.
pub fn declared<'a>(pipeline: &'a Pipeline, see: &mut dyn FnMut(&'a Expr)) {
    for dim in &pipeline.dims {
        if let DimKind::Derived { value } = &dim.kind {
            expr(value, see);
        }
    }
    each(pipeline.requires.iter().map(|require| &require.condition), see);
    each(pipeline.sizes.iter().filter_map(|size| size.value.as_ref()), see);
    for tensor in &pipeline.tensors {
        in_elem(&tensor.elem, see);
        each(&tensor.dims, see);
    }
    let ranges = pipeline.tensors.iter().map(|tensor| &tensor.values);
    for values in ranges.chain(pipeline.sizes.iter().map(|size| &size.values)).flatten() {
        each([&values.low, &values.high].into_iter().chain(&values.step), see);
    }
    for field in pipeline.messages.iter().flat_map(|message| &message.fields) {
        in_elem(&field.elem, see);
        each(&field.dims, see);
    }
    for channel in &pipeline.channels {
        each(&channel.slot, see);
        each(channel.options.iter().map(|option| &option.value), see);
    }
    each(pipeline.roles.iter().filter_map(|role| role.warps.as_ref()), see);
}

fn each<'a>(list: impl IntoIterator<Item = &'a Expr>, see: &mut dyn FnMut(&'a Expr)) {
    for part in list {
        expr(part, see);
    }
}

fn in_elem<'a>(elem: &'a ElemType, see: &mut dyn FnMut(&'a Expr)) {
    if let ElemType::Bits { count } = elem {
        expr(count, see);
    }
}

fn in_domain<'a>(domain: &'a Domain, see: &mut dyn FnMut(&'a Expr)) {
    match domain {
        Domain::Row { row } => expr(row, see),
        Domain::ReceivedFrom { peer } => expr(peer, see),
        Domain::Range { low, high } => {
            expr(low, see);
            expr(high, see);
        }
        Domain::Tokens
        | Domain::Stripe
        | Domain::Dim { .. }
        | Domain::Peers { .. }
        | Domain::Once => {}
    }
}

fn in_values<'a>(values: &'a [FieldValue], see: &mut dyn FnMut(&'a Expr)) {
    each(values.iter().map(|field| &field.value), see);
}

fn in_place<'a>(place: &'a Place, see: &mut dyn FnMut(&'a Expr)) {
    each(&place.indices, see);
}

/// Whether anything in `pipeline` reads or writes `tensor`.
pub fn mentions(pipeline: &Pipeline, tensor: &str) -> bool {
    let mut found = false;
    let mut see = |part: &Expr| {
        found |= matches!(part, Expr::Element { tensor: name, .. } if name == tensor);
    };
    declared(pipeline, &mut see);
    found || pipeline.roles.iter().any(|role| mentioned_in(&role.body, tensor))
}

/// Whether a statement of `body` reads or writes `tensor`.
pub fn mentioned_in(body: &[Stmt], tensor: &str) -> bool {
    let mut found = reads(body, tensor);
    stmts(body, &mut |stmt| {
        let places = target(stmt).into_iter().chain(awaited(stmt));
        found |= places.into_iter().any(|place| place.tensor == tensor);
    });
    found
}

/// Whether a statement of `body` reads an element of `tensor`.
pub fn reads(body: &[Stmt], tensor: &str) -> bool {
    let mut found = false;
    stmts(body, &mut |stmt| {
        exprs(stmt, &mut |part| {
            found |= matches!(part, Expr::Element { tensor: name, .. } if name == tensor);
        });
    });
    found
}

/// Whether a statement of `body` writes `tensor`.
pub fn writes(body: &[Stmt], tensor: &str) -> bool {
    let mut found = false;
    stmts(body, &mut |stmt| found |= target(stmt).is_some_and(|place| place.tensor == tensor));
    found
}

/// Whether a statement, or one inside of it, pushes to a channel.
pub fn pushes_to(stmt: &Stmt, channel: &Channel) -> bool {
    let mut found = false;
    stmts(std::slice::from_ref(stmt), &mut |inner| {
        found |= matches!(&inner.action, Action::Push { channel: to, .. } if *to == channel.name);
    });
    found
}

/// What a statement writes in a tensor.
pub fn target(stmt: &Stmt) -> Option<&Place> {
    match &stmt.action {
        Action::Store { target, .. }
        | Action::Record { target, .. }
        | Action::Add { target, .. }
        | Action::Count { target }
        | Action::Raise { target } => Some(target),
        _ => None,
    }
}

/// The word that a statement waits for.
pub fn awaited(stmt: &Stmt) -> Option<&Place> {
    match &stmt.action {
        Action::AwaitWord { word, .. } => Some(word),
        _ => None,
    }
}

/// The inputs that are read only behind a wait for a word of tensors that are `there`: what another kernel may
/// still write.
pub fn behind_words<'a>(pipeline: &'a Pipeline, there: &dyn Fn(&str) -> bool) -> Vec<&'a Tensor> {
    let mut reads = Reads { there, behind: BTreeSet::new(), before: BTreeSet::new() };
    pipeline.roles.iter().for_each(|role| reads.see(&role.body, false));
    let is_behind = |tensor: &&Tensor| {
        let name = tensor.name.as_str();
        let is_input = tensor.kind == TensorKind::Input && tensor.from_handle.is_none();
        is_input && reads.behind.contains(name) && !reads.before.contains(name)
    };
    pipeline.tensors.iter().filter(is_behind).collect()
}

/// The statements that write a tensor.
pub(crate) fn writers<'p>(ir: &'p Pipeline, tensor: &Tensor) -> Vec<&'p Stmt> {
    let mut found = Vec::new();
    for role in &ir.roles {
        stmts(&role.body, &mut |stmt| {
            if target(stmt).is_some_and(|place| place.tensor == tensor.name) {
                found.push(stmt);
            }
        });
    }
    found
}

/// Whether some role reads a tensor.
pub(crate) fn is_read(ir: &Pipeline, tensor: &Tensor) -> bool {
    ir.roles.iter().any(|role| reads(&role.body, &tensor.name))
}

/// The tensors whose words a pipeline raises, each with what the statements before have written in its block: what
/// another kernel may read once it has waited for them. Of tensors that are `there`.
pub fn told_by_words<'a>(
    pipeline: &'a Pipeline,
    there: &dyn Fn(&str) -> bool,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut told = BTreeMap::new();
    pipeline.roles.iter().for_each(|role| tells(&role.body, there, &mut told));
    told
}

/// Adds, for each word that a block raises, the tensors that the block's statements before it have written.
fn tells<'a>(
    body: &'a [Stmt],
    there: &dyn Fn(&str) -> bool,
    told: &mut BTreeMap<&'a str, BTreeSet<&'a str>>,
) {
    let mut written = BTreeSet::new();
    for stmt in body {
        stmts(std::slice::from_ref(stmt), &mut |stmt| match &stmt.action {
            Action::Store { target, .. } | Action::Record { target, .. } => {
                written.extend(there(&target.tensor).then_some(target.tensor.as_str()));
            }
            _ => {}
        });
        match &stmt.action {
            Action::Raise { target } if there(&target.tensor) => {
                told.entry(target.tensor.as_str()).or_default().extend(&written);
            }
            _ => tells(nested(stmt), there, told),
        }
    }
}

/// Tensors that are read behind a wait for a word, and without one.
struct Reads<'a, 'b> {
    there: &'b dyn Fn(&str) -> bool,
    behind: BTreeSet<&'a str>,
    before: BTreeSet<&'a str>,
}

impl<'a> Reads<'a, '_> {
    /// A wait holds for what follows it in its block.
    fn see(&mut self, body: &'a [Stmt], mut has_waited: bool) {
        for stmt in body {
            has_waited |= awaited(stmt).is_some_and(|word| (self.there)(&word.tensor));
            let read = if has_waited { &mut self.behind } else { &mut self.before };
            exprs(stmt, &mut |part| {
                if let Expr::Element { tensor, .. } = part {
                    read.insert(tensor.as_str());
                }
            });
            self.see(nested(stmt), has_waited);
        }
    }
}

/// The tensors whose words the statements of a pipeline wait for, in the order in which they are declared.
pub fn awaited_words(pipeline: &Pipeline) -> Vec<&Tensor> {
    let mut names: Vec<&str> = Vec::new();
    for role in &pipeline.roles {
        stmts(&role.body, &mut |stmt| {
            names.extend(awaited(stmt).map(|word| word.tensor.as_str()));
        });
    }
    pipeline.tensors.iter().filter(|tensor| names.contains(&tensor.name.as_str())).collect()
}
