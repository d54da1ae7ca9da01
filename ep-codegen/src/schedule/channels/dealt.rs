//! Assigns messages in slots to warps: all slots of a channel by their indices, or one sender's messages by a condition on
//! their index.

use crate::ir::{Action, BinaryOp, Elem, Expr, Share, Stmt};
use crate::schedule::scope::Scope;
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::term::{Term, arithmetic};
use crate::schedule::value::Numbers;
use crate::schedule::{Lowered, RoleLowering};

impl RoleLowering<'_> {
    /// A loop over all slots that the indices with these names have, dealt to the warps of the role.
    pub(super) fn dealt_slots(&mut self, open: Vec<(String, Numbers)>, body: Vec<Step>) -> Step {
        let unit = self.names.fresh("unit");
        let extents = open.iter().map(|(_, numbers)| numbers.to.clone());
        let all = extents.fold(Term::int(1), Term::times);
        let mut rest = match all.elem {
            Elem::I64 => Term::name(&unit, Elem::I64),
            _ => Term::index(&unit),
        };
        let mut steps = Vec::new();
        for (name, numbers) in open.into_iter().rev() {
            let own = arithmetic(BinaryOp::Rem, rest.clone(), numbers.to.clone());
            steps.push(Step::Let { name, value: own.converted(&Elem::I32) });
            rest = arithmetic(BinaryOp::Div, rest, numbers.to);
        }
        steps.extend(body);
        let (elem, from, turns) = (all.elem.clone(), Term::int(0), Takers::Spread);
        Step::Loop(Loop { binder: unit, elem, from, to: all, turns, body: steps })
    }

    /// `for message in slots[..] where message.index % number == share`: the messages that are taken.
    pub(super) fn strides(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<Option<Strides>> {
        let Action::Receive { binder, filter: Some(filter), .. } = &stmt.action else {
            return Ok(None);
        };
        let Expr::Binary { op: BinaryOp::Eq, left, right: share } = filter else { return Ok(None) };
        let Expr::Binary { op: BinaryOp::Rem, left: index, right: number } = left.as_ref() else {
            return Ok(None);
        };
        let is_index = matches!(index.as_ref(), Expr::Field { of, field, indices }
            if of == binder && field == "index" && indices.is_empty());
        let (Expr::Name { name, .. }, Expr::Name { .. }, true) =
            (share.as_ref(), number.as_ref(), is_index)
        else {
            return Ok(None);
        };
        let first = self.scalar(scope, share, out)?;
        let apart = self.scalar(scope, number, out)?;
        let is_shared =
            matches!(&self.role.share, Share::Indices { names } if names.contains(name));
        let is_below = is_shared && self.extent_of(name)? == apart;
        let is_narrow = first.elem == Elem::I32 && apart.elem == Elem::I32;
        let is_sure = |term: &Term, least| term.range.is_some_and(|(low, _)| low >= least);
        Ok((is_narrow && is_sure(&first, 0) && is_sure(&apart, 1)).then_some(Strides {
            first,
            apart,
            is_below,
        }))
    }
}

/// Messages of a sender at equal distances.
pub(super) struct Strides {
    /// The first one that is taken.
    pub(super) first: Term,
    /// How far the next one is.
    pub(super) apart: Term,
    /// Whether `first` is surely below `apart`. If it is not below, the condition is false for all messages.
    is_below: bool,
}

impl Strides {
    /// The loop without its condition, if that holds for all of these messages.
    pub(super) fn unfiltered(&self, stmt: &Stmt) -> Option<Stmt> {
        let mut bare = self.is_below.then(|| stmt.clone())?;
        if let Action::Receive { filter, .. } = &mut bare.action {
            *filter = None;
        }
        Some(bare)
    }
}
