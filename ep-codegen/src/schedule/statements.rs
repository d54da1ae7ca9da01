//! Statements other than those of channels, for a warp or for one lane.

mod absent;
mod cast;
mod fill;
mod prefix;
mod sums;
mod words;
mod write;

pub(super) use cast::Cast;

use super::limit::Limit;
use super::scope::{Meaning, Scope, position_of};
use super::step::{Step, Takers};
use super::term::Term;
use super::{Lowered, RoleLowering};
use crate::ir::helpers::{folds_parts, taken_of_part};
use crate::ir::{Action, BinaryOp, CONDITION, Elem, Expr, NameKind, Stmt, Tensor, walk};

/// The name of what says that the `else` of an `if` runs; see [`CONDITION`].
pub(super) const OTHERWISE: &str = "else";

impl<'a> RoleLowering<'a> {
    /// The statements of a block; names that it gives end with it.
    pub(super) fn body(&mut self, scope: &Scope, body: &[Stmt], out: &mut Vec<Step>) {
        self.in_order(&mut scope.clone(), body, out);
    }

    /// The statements of a block; names that they give stay in `scope` after the block.
    pub(super) fn in_order(&mut self, scope: &mut Scope, body: &[Stmt], out: &mut Vec<Step>) {
        for (index, stmt) in body.iter().enumerate() {
            if matches!(stmt.action, Action::AwaitWord { .. }) {
                let mut rest = Vec::new();
                self.in_order(scope, &body[index + 1..], &mut rest);
                return self.behind_word(scope, stmt, rest, out);
            }
            self.one(scope, stmt, out);
        }
    }

    /// One statement, skipped where an optional tensor that it needs is absent.
    pub(super) fn one(&mut self, scope: &mut Scope, stmt: &Stmt, out: &mut Vec<Step>) {
        let mut steps = Vec::new();
        let presence = self.presence(scope, stmt);
        if let Err(why) = self.statement(scope, stmt, &mut steps) {
            self.refuse(&stmt.at, why);
        }
        out.push(Step::Says(stmt.at.clone()));
        out.extend(where_there(presence, steps));
    }

    /// That everything is there which `stmt` itself needs: optional tensors, and the part that it takes.
    pub(super) fn presence(&self, scope: &Scope, stmt: &Stmt) -> Option<Term> {
        // A name stands for what is absent, until something is made of it.
        if matches!(stmt.action, Action::Let { .. }) {
            return None;
        }
        let first = scope.parts.as_ref().and_then(|parts| parts.first.clone());
        let takes = self.takes_part(scope, |see| walk::exprs(stmt, see));
        let part = first
            .filter(|_| takes)
            .map(|first| Term::name(first, Elem::I32).test(BinaryOp::Ge, Term::int(0)));
        // A field comes with its tensor: without it there are no elements of it.
        if matches!(stmt.action, Action::Push { .. }) {
            return part;
        }
        let mut names: Vec<String> =
            walk::target(stmt).map(|place| place.tensor.clone()).into_iter().collect();
        walk::exprs(stmt, &mut |part| self.needed(scope, part, &mut names));
        let mut added: Vec<&str> = Vec::new();
        walk::exprs(stmt, &mut |part| {
            if let Expr::Binary { op: BinaryOp::Add, left, right } = part
                && let Expr::Element { tensor, .. } = &**right
                && self.is_of_parts(scope, left)
            {
                added.push(tensor);
            }
        });
        let optional = |tensor: &&Tensor| {
            let name = tensor.name.as_str();
            tensor.optional && names.iter().any(|it| it == name) && !added.contains(&name)
        };
        let tensors = self.ir.tensors.iter().filter(optional).map(there);
        tensors.chain(part).reduce(Term::and)
    }

    /// Whether expressions take the first part of a gather as it is, be it by a name for it.
    pub(super) fn takes_part<'e>(
        &self,
        scope: &Scope,
        visit: impl Fn(&mut dyn FnMut(&'e Expr)),
    ) -> bool {
        let Some(parts) = &scope.parts else { return false };
        let mut takes = !taken_of_part(&parts.part, &visit).is_empty();
        visit(&mut |part| {
            if let Expr::Name { name, kind: NameKind::Binder } = part
                && let Some(Meaning::Row(value, there)) = scope.find(name)
            {
                takes |= self.is_taken(there, value);
            }
        });
        takes
    }

    fn is_taken(&self, scope: &Scope, whole: &Expr) -> bool {
        self.takes_part(scope, |see| walk::expr(whole, see))
    }

    /// Whether an expression is made of the parts of a gather, or of one.
    fn is_of_parts(&self, scope: &Scope, whole: &Expr) -> bool {
        folds_parts(whole) || self.is_taken(scope, whole)
    }

    /// The tensors that a part of an expression needs: its own, those that fields come with, and those of
    /// what a name stands for.
    fn needed(&self, scope: &Scope, part: &Expr, names: &mut Vec<String>) {
        match part {
            Expr::Element { tensor, .. } => names.push(tensor.clone()),
            Expr::Field { of, field, .. } => match scope.find(of) {
                Some(Meaning::Message(arrived)) => {
                    names.extend(self.comes_with(&arrived.channel, field));
                }
                _ => {
                    names.push(of.clone());
                    let parts = scope.parts.as_ref().filter(|parts| parts.part == *of);
                    names.extend(parts.and_then(|parts| self.comes_with(&parts.channel, field)));
                }
            },
            Expr::OfChannel { channel, field, .. } => names.extend(self.comes_with(channel, field)),
            Expr::Name { name, kind: NameKind::Binder } => {
                if let Some(Meaning::Row(value, there)) = scope.find(name) {
                    walk::expr(value, &mut |inner| self.needed(there, inner, names));
                }
            }
            _ => {}
        }
    }

    /// The tensor without which messages bring nothing of a field. It is there on all ranks or on none.
    fn comes_with(&self, channel: &str, name: &str) -> Option<String> {
        let (_, message) = self.ir.carried(channel)?;
        let field = message.fields.iter().find(|field| field.name == name)?;
        field.optional_with.clone()
    }

    /// Whether `left + tensor` adds what came of a tensor to what is made of the parts of a gather: nothing, if
    /// nothing came.
    pub(super) fn adds_what_came(&self, scope: &Scope, left: &Expr, tensor: &Tensor) -> bool {
        tensor.copies > 1 || (tensor.optional && self.is_of_parts(scope, left))
    }

    pub(super) fn statement(
        &mut self,
        scope: &mut Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        match &stmt.action {
            Action::For { .. } => self.repeat(scope, stmt, out),
            Action::Store { target, value } | Action::Record { target, value } => {
                self.write(scope, target, value, out)
            }
            Action::Add { target, value } => self.add(scope, target, value, out),
            Action::Count { target } => self.count(scope, target, out),
            Action::Raise { target } => self.raise(scope, target, out),
            Action::AwaitWord { .. } => Err(Limit::WordOfTeam.of(&["await"])),
            Action::Let { name, value } => self.bind(scope, name, value, out),
            Action::Receive { .. } => self.receive(scope, stmt, out),
            Action::Gather { .. } => self.gather(scope, stmt, Takers::Serial, out),
            Action::Announce { channel, peer, values } => {
                self.announce(scope, channel, peer, values, out)
            }
            Action::Push { .. } => self.push(scope, stmt, out),
            Action::Await { channel } => self.await_slots(scope, channel, out),
            Action::Close { channel } => self.close_slots(scope, channel, out),
        }
    }

    fn bind(
        &mut self,
        scope: &mut Scope,
        name: &str,
        value: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let mut needed = Vec::new();
        walk::expr(value, &mut |part| self.needed(scope, part, &mut needed));
        let optional = |tensor: &Tensor| tensor.optional && needed.contains(&tensor.name);
        if name == CONDITION {
            let known = self.ir.tensors.iter().filter(|tensor| optional(tensor));
            let presence = known.map(there).reduce(Term::and);
            return self.bind_condition(scope, value, presence, out);
        }
        if self.ir.tensors.iter().any(optional)
            || self.is_taken(scope, value)
            || !self.row_width(scope, value)?.is(1)
            || self.is_row(scope, value)?
        {
            // Rows have no place of their own: they are made where they are used. So is what may be absent.
            let there = scope.clone();
            scope.bind(name, Meaning::Row(value.clone(), there));
            return Ok(());
        }
        let value = self.scalar(scope, value, out)?;
        let term = self.named(name, value, out);
        scope.bind(name, Meaning::Value(term));
        Ok(())
    }

    /// What an `if` with an `else` finds out, before either block runs. Where a tensor that it needs is absent, neither
    /// does.
    fn bind_condition(
        &mut self,
        scope: &mut Scope,
        value: &Expr,
        presence: Option<Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let mut ahead = Vec::new();
        let found = self.scalar(scope, value, &mut ahead)?;
        let Some(presence) = presence else {
            out.extend(ahead);
            let holds = self.named("holds", found, out);
            scope.bind(OTHERWISE, Meaning::Value(holds.clone().negated()));
            scope.bind(CONDITION, Meaning::Value(holds));
            return Ok(());
        };
        let name = self.names.fresh("holds");
        let holds = Term::name(&name, Elem::Bool);
        out.push(Step::Variable { name, elem: Elem::Bool, value: Term::bool(false) });
        ahead.push(Step::Set { place: holds.clone(), value: found });
        out.push(Step::If { condition: presence.clone(), body: ahead });
        scope.bind(OTHERWISE, Meaning::Value(presence.and(holds.clone().negated())));
        scope.bind(CONDITION, Meaning::Value(holds));
        Ok(())
    }

    /// Steps of one lane: of the first one, where the warp works as a whole.
    pub(super) fn by_leader(&self, scope: &Scope, steps: Vec<Step>, out: &mut Vec<Step>) {
        match scope.by_lane {
            true => out.extend(steps),
            false => out.push(Step::Leader(steps)),
        }
    }

    /// What other lanes still read is not written yet.
    fn before_write(&self, scope: &Scope, tensor: &str, out: &mut Vec<Step>) {
        if !scope.by_lane && self.reread.iter().any(|name| name == tensor) {
            out.push(Step::Meet);
        }
    }

    /// What one lane has written the others may read.
    fn after_write(&self, scope: &Scope, tensor: &str, out: &mut Vec<Step>) {
        self.before_write(scope, tensor, out);
    }
}

/// Steps, of which nothing is done unless what they need is there.
pub(super) fn where_there(presence: Option<Term>, steps: Vec<Step>) -> Vec<Step> {
    match presence {
        Some(condition) => vec![Step::If { condition, body: steps }],
        None => steps,
    }
}

/// That an optional tensor is there.
pub(super) fn there(tensor: &Tensor) -> Term {
    against_null(tensor, BinaryOp::Ne)
}

/// That it is not.
fn absent(tensor: &Tensor) -> Term {
    against_null(tensor, BinaryOp::Eq)
}

fn against_null(tensor: &Tensor, op: BinaryOp) -> Term {
    let pointer = Term::name(format!("args.{}", tensor.name), Elem::I64);
    pointer.test(op, Term::name("nullptr", Elem::I64))
}

/// Whether a block records the position of a push.
pub(super) fn records_position(body: &[Stmt]) -> bool {
    walk::any_stmt(body, &mut |stmt| {
        matches!(&stmt.action, Action::Record { value: Expr::OfChannel { field, .. }, .. }
            if field == "position")
    })
}

/// Whether the parts of a gather are read for each element of a value, be it by a name for a row.
pub(super) fn reads_parts(scope: &Scope, value: &Expr) -> bool {
    let mut found = folds_parts(value);
    walk::expr(value, &mut |part| {
        if let Expr::Name { name, kind: NameKind::Binder } = part
            && let Some(Meaning::Row(value, there)) = scope.find(name)
        {
            found |= reads_parts(there, value);
        }
    });
    found && scope.parts.is_some()
}

/// The name under which the last position of a channel is kept.
pub(super) fn bind_position(scope: &mut Scope, channel: &str, position: Term) {
    scope.bind(&position_of(channel), Meaning::Value(position));
}
