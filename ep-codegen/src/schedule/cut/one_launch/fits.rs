//! Conditions under which the warps of a dispatch in one launch need not wait for one another.

use super::facts::RANKS_MAX;
use super::{Checked, Facts, OneLaunch, is_name};
use crate::ir::once::tokens_end;
use crate::ir::parts::{elem_bytes, parts};
use crate::ir::rows::row_in_place;
use crate::ir::{
    Action, BinaryOp, Channel, DimKind, Domain, Expr, NameKind, Role, Stmt, WellKnown, walk,
};
use crate::schedule::declaration::is_of_shape;
use crate::schedule::extents::has_stripes;

/// The most bytes of a field beside a row: they travel as words, twice as many bytes, which lanes hold in registers.
const FIELD_BYTES: i64 = 2048;

impl<'s> Facts<'s> {
    /// Checks that the role is the only one, that rows have no stripes, and that the shape bounds the number of tokens.
    pub(super) fn check_alone(&self, role: &Role, rows: &Channel) -> Checked {
        if self.ir.roles.len() != 1 || has_stripes(self.ir) {
            let why = "the pipeline can have only this role, and its rows cannot have stripes";
            return self.refuse(&role.at, why);
        }
        self.check_room(rows)?;
        if tokens_end(self.ir).is_none_or(|end| !is_of_shape(end)) {
            return self
                .refuse(&role.at, "the range of `tokens` has to end at a number of the shape");
        }
        if self.ranks_max() > RANKS_MAX {
            let why = format!("a block knows the tokens of at most {RANKS_MAX} ranks");
            return self.refuse(&role.at, &why);
        }
        // Only teams that meet compare the rows that arrive with the capacity of an output.
        let mut counted = Ok(());
        walk::stmts(&role.body, &mut |stmt| {
            let tensor = walk::target(stmt).and_then(|place| self.tensor(&place.tensor).ok());
            if let Some(Expr::Name { name, kind: NameKind::Size }) =
                tensor.and_then(|it| it.dims.first())
                && self.ir.sizes.iter().any(|size| size.name == *name && size.value.is_some())
            {
                counted =
                    self.refuse(&stmt.at, "the rows of outputs have to be numbers of the shape");
            }
        });
        counted?;
        match self.ir.has_number(WellKnown::Ranks) {
            true => Ok(()),
            false => self.refuse(&role.at, "this needs the number `ranks` in the shape"),
        }
    }

    /// Checks that the declaration gives room to the tokens of all ranks.
    fn check_room(&self, rows: &Channel) -> Checked {
        let Some((_, tensor)) = row_in_place(self.ir, rows) else {
            return self.refuse(&rows.at, "rows have to stay where they land");
        };
        let factors = tensor.dims.first().map(|dim| self.factors(dim)).unwrap_or_default();
        let Some(end) = tokens_end(self.ir) else { return Ok(()) };
        let is_end = |number: &Expr| {
            number == end
                || matches!(end, Expr::Binary { op: BinaryOp::Add, left, right }
                    if **left == *number && **right == (Expr::Int { value: 1 }))
        };
        let of_ranks = |number: &Expr| is_name(number, WellKnown::Ranks.name());
        match factors.iter().any(of_ranks) && factors.iter().any(is_end) {
            true => Ok(()),
            false => self.refuse(&tensor.at, "rows need room for all tokens of all ranks"),
        }
    }

    /// The factors of a number, with derived numbers expanded.
    fn factors(&self, number: &Expr) -> Vec<Expr> {
        let derived = |name: &str| {
            self.ir.dims.iter().find(|dim| dim.name == name).and_then(|dim| match &dim.kind {
                DimKind::Derived { value } => Some(value),
                _ => None,
            })
        };
        match number {
            Expr::Binary { op: BinaryOp::Mul, left, right } => {
                self.factors(left).into_iter().chain(self.factors(right)).collect()
            }
            Expr::Name { name, .. } => match derived(name) {
                Some(value) => self.factors(value),
                None => vec![number.clone()],
            },
            other => vec![other.clone()],
        }
    }

    /// Whether one block can run a statement: it computes, pushes to the slots, or awaits them.
    pub(super) fn is_of_block(&self, stmt: &Stmt, slots: &Channel) -> bool {
        let mut fits = true;
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            fits &= match &inner.action {
                Action::For { domain, position, .. } => {
                    position.is_none() && !matches!(domain, Domain::ReceivedFrom { .. })
                }
                Action::Store { .. }
                | Action::Record { .. }
                | Action::Add { .. }
                | Action::Let { .. } => true,
                Action::Await { channel } | Action::Push { channel, .. } => *channel == slots.name,
                _ => false,
            };
            walk::exprs(inner, &mut |part| {
                fits &= !matches!(part, Expr::OfChannel { channel, index, .. }
                    if *channel != slots.name || index.is_empty());
            });
        });
        fits
    }

    /// Checks that rows leave without knowledge of other ranks, and that the receiver packs what is cast or counted on the way.
    pub(super) fn check_sent(&self, one: &OneLaunch<'s>) -> Checked {
        self.refuse_optional(one.send, &one.goes)?;
        let mut knows = false;
        let mut see = |part: &Expr| {
            knows |= matches!(part, Expr::OfChannel { channel, .. } if *channel == one.slots.name);
        };
        walk::expr(&one.goes, &mut see);
        one.fanout.values.iter().for_each(|value| walk::expr(&value.value, &mut see));
        for stmt in one.fanout.ahead.iter().chain(&one.fanout.others) {
            walk::stmts(std::slice::from_ref(*stmt), &mut |inner| walk::exprs(inner, &mut see));
        }
        if knows {
            return self
                .refuse(&one.send.at, "rows leave before the counts of other ranks are there");
        }
        for field in self.message(one.rows)?.fields.iter().filter(|field| !field.row) {
            let elem =
                parts(self.ir, &field.elem).iter().map(|(_, elem, _)| elem_bytes(elem)).max();
            let extents = field.dims.iter().map(|dim| self.most(dim));
            let bytes = extents.fold(elem.unwrap_or(1), i64::saturating_mul);
            if bytes > FIELD_BYTES {
                let why = format!(
                    "field `{}` may have {bytes} bytes, and fields that go as words have at most {FIELD_BYTES}",
                    field.name
                );
                return self.refuse(&one.fanout.push.at, &why);
            }
        }
        let loops = one.fanout.loops().count();
        if one.packs.is_none() && (loops > 0 || one.cast().is_some()) || loops > 1 {
            return self.refuse(
                &one.take.at,
                "rows that are cast or counted on the way have to be packed",
            );
        }
        Ok(())
    }

    /// Checks that the statements for a message need only its small fields: neither its row nor slots.
    pub(super) fn check_taken(&self, one: &OneLaunch<'s>) -> Checked {
        let Action::Receive { position, filter, peer, .. } = &one.take.action else {
            return Err(self.no_form(one.take));
        };
        if position.is_some() || filter.is_some() || peer.is_some() {
            return Err(self.no_form(one.take));
        }
        let place = row_in_place(self.ir, one.rows).map(|(stmt, _)| stmt);
        let row = self.message(one.rows)?.fields.iter().find(|field| field.row);
        let mut wrong = None;
        walk::stmts(one.unpacks, &mut |stmt| {
            if place.is_some_and(|place| std::ptr::eq(place, stmt)) {
                return;
            }
            walk::exprs(stmt, &mut |part| {
                let known = match part {
                    Expr::Field { of, field, .. } if of == one.message => {
                        row.is_none_or(|row| row.name != *field)
                    }
                    Expr::OfChannel { .. } => false,
                    _ => true,
                };
                if !known {
                    wrong.get_or_insert(stmt);
                }
            });
        });
        match wrong {
            None => Ok(()),
            Some(stmt) => self.refuse(
                &stmt.at,
                "this needs the row of a message, or slots, before they are there",
            ),
        }
    }

    /// Checks that no group of statements reads or writes what another group writes, because nothing orders the groups.
    /// Published counts, the first row of a rank and the turns of a token are known without a read.
    pub(super) fn check_apart(&self, one: &OneLaunch<'s>) -> Checked {
        let mut at_hand: Vec<&Expr> = Vec::new();
        for stmt in &one.behind {
            if let Action::For { domain: Domain::Range { low, .. }, .. } = &stmt.action {
                at_hand.push(low);
            }
        }
        if let Action::Push { position: Some(position), .. } = &one.fanout.push.action {
            at_hand.push(position);
        }
        let turns = one.turns.as_ref();
        at_hand.extend(turns.and_then(|turns| one.turned(turns)).map(|value| &value.value));
        let mut groups: Vec<Vec<&Stmt>> = vec![one.tables.clone(), vec![one.send], vec![one.take]];
        groups.extend(one.behind.iter().map(|stmt| vec![*stmt]));
        let written: Vec<Vec<&str>> = groups.iter().map(|stmts| written(stmts)).collect();
        for (at, stmts) in groups.iter().enumerate() {
            let others = |tensor: &str| {
                let is_other = |(own, _): &(usize, &Vec<&str>)| *own != at;
                written.iter().enumerate().filter(is_other).any(|(_, all)| all.contains(&tensor))
            };
            // Rows behind all that arrive are no rows of messages.
            let is_apart = |tensor: &str| {
                at >= 2
                    && written[2..].iter().flatten().any(|own| *own == tensor)
                    && !written[..2].iter().flatten().any(|own| *own == tensor)
            };
            for stmt in stmts {
                let mut wrong = None;
                walk::stmts(std::slice::from_ref(*stmt), &mut |inner| {
                    let target = walk::target(inner).map(|place| place.tensor.as_str());
                    if let Some(tensor) = target.filter(|it| others(it) && !is_apart(it)) {
                        wrong.get_or_insert((inner, tensor));
                    }
                    walk::exprs(inner, &mut |part| {
                        if let Expr::Element { tensor, .. } = part
                            && (others(tensor)
                                || (at > 0 && written[at].contains(&tensor.as_str())))
                            && !at_hand.iter().any(|own| std::ptr::eq(*own, part))
                        {
                            wrong.get_or_insert((inner, tensor));
                        }
                    });
                });
                if let Some((inner, tensor)) = wrong {
                    let why = format!("another warp writes `{tensor}` in this role");
                    return self.refuse(&inner.at, &why);
                }
            }
        }
        Ok(())
    }
}

/// The tensors that some statements write.
fn written<'s>(stmts: &[&'s Stmt]) -> Vec<&'s str> {
    let mut found = Vec::new();
    for stmt in stmts {
        walk::stmts(std::slice::from_ref(*stmt), &mut |inner| {
            found.extend(walk::target(inner).map(|place| place.tensor.as_str()));
        });
    }
    found
}
