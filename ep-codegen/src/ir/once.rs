//! Messages that have the same bytes for each of their receivers, so that a sender may fill them once.

use std::collections::BTreeMap;

use super::network::uses_network;
use super::slots::{Arrival, arrival};
use super::{
    Action, BinaryOp, Channel, Domain, Expr, NameKind, Pipeline, Role, Share, Stmt, WellKnown, walk,
};

/// The index that numbers the messages of a channel within a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageIndex<'a> {
    /// The name of an index of the sending role.
    pub name: &'a str,
    /// How many values it has at most.
    pub count: Expr,
}

/// The index on whose value alone the bytes of a message depend, where a network carries slots that their sender counts.
pub fn message_index<'a>(selected: &'a Pipeline, channel: &Channel) -> Option<MessageIndex<'a>> {
    if arrival(selected, channel) != Arrival::Counts || !uses_network(selected, channel) {
        return None;
    }
    let role = selected.roles.iter().find(|role| channel.from.contains(&role.name))?;
    let mut found = Vec::new();
    pushes(&role.body, &channel.name, &Path::default(), &mut found);
    let [(path, values)] = found.as_slice() else { return None };
    let mut read = Read::default();
    for field in *values {
        read.value(&field.value, &path.lets)?;
    }
    let [name] = read.names.as_slice() else { return None };
    // The role writes everything outside of these loops before it sends a message of this index.
    let (inner, count) = match path.loops.split_first() {
        Some(((binder, stmt), inner)) if binder == name && is_over_tokens(stmt) => {
            (inner, tokens(selected)?)
        }
        _ => (path.loops.as_slice(), shared(selected, role, name)?),
    };
    let is_written =
        |tensor: &&str| inner.iter().any(|(_, stmt)| walk::writes(walk::nested(stmt), tensor));
    let awaits = walk::any_stmt(&role.body, &mut |stmt| walk::awaited(stmt).is_some());
    (!awaits && !read.tensors.iter().any(is_written)).then_some(MessageIndex { name, count })
}

/// The loops around a statement, outer ones first, and the names that stand for a value there.
#[derive(Clone, Default)]
struct Path<'a> {
    loops: Vec<(&'a str, &'a Stmt)>,
    lets: BTreeMap<&'a str, &'a Expr>,
}

/// A push: the path to it and the values it sends.
type Pushed<'a> = (Path<'a>, &'a [super::FieldValue]);

/// Finds the pushes to a channel.
fn pushes<'a>(body: &'a [Stmt], channel: &str, path: &Path<'a>, found: &mut Vec<Pushed<'a>>) {
    let mut path = path.clone();
    for stmt in body {
        let mut inner = path.clone();
        match &stmt.action {
            Action::Let { name, value } => {
                path.lets.insert(name, value);
            }
            Action::Push { channel: to, values, .. } if to == channel => {
                found.push((path.clone(), values));
            }
            Action::For { domain: Domain::Once, body, .. } => pushes(body, channel, &inner, found),
            Action::For { binder, domain: Domain::Range { low, high }, body, .. }
                if is_next(low, high) =>
            {
                inner.lets.insert(binder, low);
                pushes(body, channel, &inner, found);
            }
            Action::For { binder, body, .. }
            | Action::Receive { binder, body, .. }
            | Action::Gather { binder, body, .. } => {
                inner.lets.remove(binder.as_str());
                inner.loops.push((binder, stmt));
                pushes(body, channel, &inner, found);
            }
            _ => {}
        }
    }
}

/// Whether a range has one value at most: `low..low + 1` or `low..min(low + 1, ..)`.
fn is_next(low: &Expr, high: &Expr) -> bool {
    match high {
        Expr::Binary { op: BinaryOp::Add, left, right } => {
            **left == *low && **right == Expr::Int { value: 1 }
        }
        Expr::Call { helper, args } if helper == "min" => args.iter().any(|end| is_next(low, end)),
        _ => false,
    }
}

/// The names and tensors that values depend on.
#[derive(Default)]
struct Read<'a> {
    /// Names that differ from message to message.
    names: Vec<&'a str>,
    /// Tensors that the role may have written.
    tensors: Vec<&'a str>,
}

impl<'a> Read<'a> {
    /// Adds those of a value; `None`: it has parts that are not known to stay as they are.
    fn value(&mut self, value: &'a Expr, lets: &BTreeMap<&'a str, &'a Expr>) -> Option<()> {
        let (mut names, mut folded, mut is_known) = (Vec::new(), Vec::new(), true);
        walk::expr(value, &mut |part| match part {
            Expr::Name { name, kind: NameKind::Binder } => names.push(name.as_str()),
            Expr::Name { kind: NameKind::Stripe, .. }
            | Expr::Field { .. }
            | Expr::OfChannel { .. } => is_known = false,
            Expr::Fold { binder, .. } => folded.push(binder.as_str()),
            Expr::Element { tensor, .. } => self.tensors.push(tensor),
            _ => {}
        });
        names.retain(|name| !folded.contains(name));
        for name in names {
            match lets.get(name) {
                Some(value) => self.value(value, lets)?,
                None if self.names.contains(&name) => {}
                None => self.names.push(name),
            }
        }
        is_known.then_some(())
    }
}

fn is_over_tokens(stmt: &Stmt) -> bool {
    matches!(&stmt.action, Action::For { domain: Domain::Tokens, .. })
}

/// The end of the range of `tokens`, one more than any call has.
pub fn tokens_end(selected: &Pipeline) -> Option<&Expr> {
    let tokens = selected.sizes.iter().find(|size| WellKnown::Tokens.is(&size.name))?;
    tokens.values.as_ref().map(|values| &values.high)
}

/// The most tokens of a call.
fn tokens(selected: &Pipeline) -> Option<Expr> {
    let end = tokens_end(selected)?.clone();
    let (left, right) = (Box::new(end), Box::new(Expr::Int { value: 1 }));
    Some(Expr::Binary { op: BinaryOp::Sub, left, right })
}

/// How many values an index has that the warps of a role share, if a number of the shape says so.
fn shared(selected: &Pipeline, role: &Role, name: &str) -> Option<Expr> {
    let Share::Indices { names } = &role.share else { return None };
    let plural = format!("{name}s");
    let is_known =
        names.iter().any(|own| own == name) && selected.dims.iter().any(|dim| dim.name == plural);
    is_known.then_some(Expr::Name { name: plural, kind: NameKind::Dim })
}
