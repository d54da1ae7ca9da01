//! Inputs whose values are used as indices although their declaration does not say which values they hold:
//! what is drawn for those is no call that anybody would make.

use std::collections::BTreeMap;

use super::super::wrong::{Fault, Wrong};
use crate::ir::helpers::SLOT;
use crate::ir::rows::row_in_place;
use crate::ir::{
    Action, BinaryOp, Channel, Domain, Elem, ElemType, Expr, Pipeline, Role, Stmt, Tensor,
    TensorKind, WellKnown, text, walk,
};

/// Helpers that take experts.
const OF_EXPERTS: &[&str] = &["local", "owner", "routed", "routed_bits", "routed_node"];

/// What to declare, where an index is wrong that may come of such an input. An input of the statement that
/// failed comes first.
pub(super) fn proposal(ir: &Pipeline, wrong: &Wrong) -> Option<String> {
    let of_index = matches!(
        *wrong.fault,
        Fault::Index { .. } | Fault::Peer { .. } | Fault::Number { .. } | Fault::OutOfOrder { .. }
    );
    let mut uses = Vec::new();
    for role in ir.roles.iter().filter(|_| of_index) {
        let mut seen = Uses { ir, names: names_of(role), at: (role, None), found: Vec::new() };
        walk::stmts(&role.body, &mut |stmt| {
            seen.at.1 = Some(stmt);
            seen.statement(stmt);
        });
        uses.append(&mut seen.found);
    }
    let is_here = |used: &&Use<'_>| {
        let at = wrong.at.as_ref();
        at.is_some_and(|at| at.role == used.role && at.line == used.line && at.text == used.text)
    };
    let used = uses.iter().find(is_here).or(uses.first())?;
    let (tensor, range) = (used.tensor, &used.range);
    let name = &tensor.name;
    let dims: Vec<String> = tensor.dims.iter().map(text::expr).collect();
    let declared = format!("{name}: {}[{}]", text::elem_type(&tensor.elem), dims.join(", "));
    Some(format!(
        "`{name}` is used as an index and has no range, so any numbers are drawn for it: declare \
         `{declared} in {range}`"
    ))
}

/// An input without a range where it is an index, and the range that it needs there.
struct Use<'a> {
    tensor: &'a Tensor,
    range: String,
    role: &'a str,
    line: u32,
    text: &'a str,
}

/// What the names of a role stand for.
enum Known<'a> {
    Value(&'a Expr),
    /// The values of a row, -1 left out.
    Row(&'a Expr),
    Range(&'a Expr, &'a Expr),
}

fn names_of(role: &Role) -> BTreeMap<&str, Known<'_>> {
    let mut names = BTreeMap::new();
    walk::stmts(&role.body, &mut |stmt| match &stmt.action {
        Action::Let { name, value } => drop(names.insert(name.as_str(), Known::Value(value))),
        Action::For { binder, domain, .. } => {
            names.extend(known_of(domain).map(|known| (binder.as_str(), known)));
        }
        _ => {}
    });
    names
}

fn known_of(domain: &Domain) -> Option<Known<'_>> {
    match domain {
        Domain::Row { row } => Some(Known::Row(row)),
        Domain::Range { low, high } => Some(Known::Range(low, high)),
        _ => None,
    }
}

struct Uses<'a> {
    ir: &'a Pipeline,
    names: BTreeMap<&'a str, Known<'a>>,
    at: (&'a Role, Option<&'a Stmt>),
    found: Vec<Use<'a>>,
}

impl<'a> Uses<'a> {
    fn statement(&mut self, stmt: &'a Stmt) {
        walk::exprs(stmt, &mut |part| self.part(part));
        if let Some(place) = walk::target(stmt).or(walk::awaited(stmt)) {
            self.element(&place.tensor, &place.indices);
        }
        match &stmt.action {
            Action::Push { channel, peer, position, .. } => {
                self.peer(channel, peer.as_ref());
                self.position(channel, position.as_ref());
            }
            Action::Receive { channel, peer, .. } => self.peer(channel, peer.as_ref()),
            Action::Gather { channel, peer, position, .. } => {
                self.peer(channel, peer.as_ref());
                self.position(channel, Some(position));
            }
            _ => {}
        }
    }

    fn part(&mut self, part: &'a Expr) {
        match part {
            Expr::Element { tensor, indices } => self.element(tensor, indices),
            Expr::OfChannel { channel, index, .. } => self.peer(channel, index.first()),
            Expr::Call { helper, args } if OF_EXPERTS.contains(&helper.as_str()) => {
                if let Some(experts) =
                    args.first().filter(|_| self.ir.has_number(WellKnown::Experts))
                {
                    self.index(experts, "-1..experts");
                }
                let begins = self.unranged(WellKnown::ExpertBegin.name());
                self.note(begins, "0..=experts ascending");
            }
            _ => {}
        }
    }

    fn element(&mut self, tensor: &str, indices: &'a [Expr]) {
        let Some(tensor) = self.ir.tensors.iter().find(|known| known.name == tensor) else {
            return;
        };
        for (index, dim) in indices.iter().zip(&tensor.dims) {
            self.index(index, &format!("0..{}", text::expr(dim)));
        }
    }

    fn channel(&self, name: &str) -> Option<&'a Channel> {
        self.ir.channels.iter().find(|channel| channel.name == name)
    }

    fn peer(&mut self, channel: &str, peer: Option<&'a Expr>) {
        let (Some(channel), Some(peer)) = (self.channel(channel), peer) else { return };
        let peers = channel.per.number().name();
        self.index(axes(peer).first().unwrap_or(peer), &format!("0..{peers}"));
    }

    fn position(&mut self, channel: &str, position: Option<&'a Expr>) {
        let (Some(channel), Some(position)) = (self.channel(channel), position) else { return };
        let kind = channel.kind.traits();
        if kind.is_indexed {
            let named = channel.slot_names.iter().zip(&channel.slot);
            let extents = named.filter(|(name, _)| *name != "source").map(|(_, extent)| extent);
            for (index, extent) in axes(position).iter().zip(extents) {
                self.index(index, &format!("0..{}", text::expr(extent)));
            }
        } else if let Some((_, tensor)) = row_in_place(self.ir, channel)
            && let Some(rows) = tensor.dims.first().map(text::expr)
        {
            // A negative position says that a peer has no part.
            let range = if kind.offers { format!("-1..{rows}") } else { format!("0..={rows}") };
            self.index(position, &range);
        }
    }

    /// The inputs that an index is made of.
    fn index(&mut self, index: &'a Expr, range: &str) {
        match index {
            Expr::Element { tensor, .. } => {
                let tensor = self.unranged(tensor);
                self.note(tensor, range);
            }
            Expr::Cast { value, .. } => self.index(value, range),
            Expr::Binary { op: BinaryOp::Add, left, right } => {
                self.index(left, &inclusive(range));
                self.index(right, &inclusive(range));
            }
            Expr::Name { name, .. } => {
                // Taken out meanwhile, so that names of names come to an end.
                if let Some(known) = self.names.remove(name.as_str()) {
                    self.named(&known, range);
                    self.names.insert(name, known);
                }
            }
            _ => {}
        }
    }

    fn named(&mut self, known: &Known<'a>, range: &str) {
        match known {
            Known::Value(value) => self.index(value, range),
            Known::Row(row) => {
                let end = range.trim_start_matches("-1..").trim_start_matches("0..");
                self.index(row, &format!("-1..{end}"));
            }
            Known::Range(low, high) => {
                self.index(low, &inclusive(range));
                self.index(high, &inclusive(range));
            }
        }
    }

    /// The input of this name, if it holds whole numbers and nothing says which.
    fn unranged(&self, name: &str) -> Option<&'a Tensor> {
        self.ir.tensors.iter().find(|tensor| {
            let is_whole = matches!(
                &tensor.elem,
                ElemType::Scalar { elem: Elem::U8 | Elem::I8 | Elem::I32 | Elem::I64 }
            );
            let is_given = matches!(tensor.kind, TensorKind::Input | TensorKind::Inout)
                && tensor.from_handle.is_none();
            tensor.name == name && is_whole && is_given && tensor.values.is_none()
        })
    }

    fn note(&mut self, tensor: Option<&'a Tensor>, range: &str) {
        let (Some(tensor), (role, Some(stmt))) = (tensor, self.at) else { return };
        let (role, line, text) = (role.name.as_str(), stmt.at.line, stmt.at.text.as_str());
        self.found.push(Use { tensor, range: range.to_string(), role, line, text });
    }
}

/// The range with its end.
fn inclusive(range: &str) -> String {
    range.replace("..", "..=").replace("==", "=")
}

/// One index, or each of several.
fn axes(index: &Expr) -> &[Expr] {
    match index {
        Expr::Call { helper, args } if helper == SLOT => args,
        one => std::slice::from_ref(one),
    }
}
