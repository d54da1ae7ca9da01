//! Rows back to their tokens through a slot for each choice of a token: one role sends what this rank has made for
//! each choice of a row that came, the other one adds the slots of each token up, each times a factor.
//!
//! What it gains over slots that are filled one by one: a way back (`way_back.rs`) for rows whose factors only the
//! token's rank knows, and no kernel that brings these first.

use super::values::{is_name, is_of};
use super::way_back::{self, ROWS_OF_SUM, is_part_of};
use super::{Forms, Unfit};
use crate::ir::slots::places;
use crate::ir::{
    Action, BinaryOp, Blocks, Channel, Domain, Elem, Expr, PeerSet, Pipeline, Role, Share, Stmt,
    Transport,
};
use crate::schedule::typed::{elem_of, rank_of};

/// The parts of such a pair of roles.
pub(crate) struct Spread<'s> {
    pub(crate) channel: &'s Channel,
    /// The number of choices.
    pub(crate) choices: &'s Expr,
    /// The loop over the rows of a source, and the push in it.
    pub(crate) rows: &'s Stmt,
    pub(crate) push: &'s Stmt,
    /// The row that came, its range for a source, and its token there.
    pub(crate) row: &'s str,
    pub(crate) first: &'s Expr,
    pub(crate) end: &'s Expr,
    pub(crate) token: &'s Expr,
    /// The choice of a row, what is sent for it: the number of a row, and that row.
    pub(crate) choice: &'s str,
    pub(crate) number: &'s Expr,
    pub(crate) sent: &'s str,
    /// The role that adds up, its gather, and the sum that it stores.
    pub(crate) sums: &'s Role,
    pub(crate) gather: &'s Stmt,
    pub(crate) place: &'s Expr,
    pub(crate) factor: &'s Expr,
    pub(crate) store: &'s Stmt,
}

/// The loops of the sending role.
struct Sends<'s> {
    rows: &'s Stmt,
    push: &'s Stmt,
    row: &'s str,
    range: (&'s Expr, &'s Expr),
    choice: &'s str,
    number: &'s Expr,
    sent: &'s str,
    token: &'s Expr,
}

impl<'s> Spread<'s> {
    /// The parts of the only two roles of a selected pipeline, if they are such roles.
    pub(crate) fn of(ir: &'s Pipeline) -> Option<Spread<'s>> {
        if is_candidate(ir) { Forms { ir }.spread().ok() } else { None }
    }
}

/// Whether a pipeline has one channel of slots for tokens and their choices, and is otherwise one of a way back.
pub(super) fn is_candidate(ir: &Pipeline) -> bool {
    let names = ir.channels.first().map_or(&[][..], |channel| &channel.slot_names);
    way_back::is_candidate(ir) && names.len() == 2 && names.iter().all(|name| name != "source")
}

impl<'s> Forms<'s> {
    /// The parts of both roles, or the first statement that is none of them.
    pub(super) fn spread(&self) -> Result<Spread<'s>, Unfit> {
        let ([send, sums], [channel]) = (self.ir.roles.as_slice(), self.ir.channels.as_slice())
        else {
            return Err(self.lacks("pair of roles for", "the slots"));
        };
        if channel.per != PeerSet::All || channel.over.as_slice() != [Transport::Nvlink] {
            return self.refuse(&send.at, "such slots have to connect all ranks of a node");
        }
        let shares = matches!(&send.share, Share::Indices { names } if *names == ["source"]);
        let all = send.blocks == Blocks::All && sums.blocks == Blocks::All;
        if !shares || !all || sums.share != Share::Token {
            let why = "a role on all blocks has to send by source, and another role on all blocks has \
            to add by token";
            return self.refuse(&send.at, why);
        }
        for role in [send, sums] {
            self.check_known(role)?;
        }
        let choices = &channel.slot[1];
        if !self.is_at_most(choices, ROWS_OF_SUM) {
            return self.refuse(&channel.at, "each choice of a token has to have its own lane");
        }
        let sends = self.sends_choices(send, choices)?;
        let Sends { rows, push, row, range: (first, end), choice, number, sent, token } = sends;
        let (gather, place, factor, store) = self.adds_choices(sums, choices)?;
        Ok(Spread {
            channel,
            choices,
            rows,
            push,
            row,
            first,
            end,
            token,
            choice,
            number,
            sent,
            sums,
            gather,
            place,
            factor,
            store,
        })
    }

    /// `for row in first..end { for choice in choices where number >= 0 { push back[source] at [token, choice]
    /// { x: sent[number] }; } }`
    fn sends_choices(&self, send: &'s Role, choices: &Expr) -> Result<Sends<'s>, Unfit> {
        let [rows] = send.body.as_slice() else {
            return self.refuse(&send.at, "such a role can only send");
        };
        let Action::For { binder: row, domain, position: None, filter: None, body } = &rows.action
        else {
            return Err(self.no_form(rows));
        };
        let (Domain::Range { low, high }, [of_choices]) = (domain, body.as_slice()) else {
            return Err(self.no_form(rows));
        };
        if !is_part_of(low, high) {
            let why = "the rows of a source have to be between two neighboring entries of a table";
            return self.refuse(&rows.at, why);
        }
        let Action::For { binder: choice, domain, position: None, filter: Some(filter), body } =
            &of_choices.action
        else {
            return Err(self.no_form(of_choices));
        };
        let (true, [push]) = (is_number(domain, choices), body.as_slice()) else {
            return Err(self.no_form(of_choices));
        };
        let Action::Push { peer: Some(peer), position: Some(position), values, .. } = &push.action
        else {
            return Err(self.no_form(push));
        };
        let ([token, own], [value]) = (places(Some(position)), values.as_slice()) else {
            return Err(self.no_form(push));
        };
        let Expr::Element { tensor: sent, indices } = &value.value else {
            return self.refuse(&push.at, "the row that goes back has to be sent unchanged");
        };
        let ([number], Some(there)) = (indices.as_slice(), if_there(filter)) else {
            return Err(self.no_form(push));
        };
        let fits = is_name(peer, "source")
            && is_name(own, choice)
            && number == there
            && elem_of(self.ir, number) == Elem::I32
            && elem_of(self.ir, &value.value) == Elem::Bf16
            && rank_of(self.ir, &value.value) == 1
            && is_of(token, &[row.as_str()])
            && is_of(number, &[row.as_str(), choice.as_str()]);
        if !fits {
            return Err(self.no_form(push));
        }
        for part in [low, high, token, number] {
            self.check_here(push, part)?;
        }
        self.refuse_optional(push, &value.value)?;
        let range = (low, high);
        Ok(Sends { rows, push, row, range, choice, number, sent, token })
    }

    /// `for token in tokens gather part from back[..] at [token, place] across choice in choices
    /// { store out[token] = sum(factor * part.x as f32) as bf16; }`: the gather, the place, the factor and the store.
    fn adds_choices(
        &self,
        sums: &'s Role,
        choices: &Expr,
    ) -> Result<(&'s Stmt, &'s Expr, &'s Expr, &'s Stmt), Unfit> {
        let [gather] = sums.body.as_slice() else {
            return self.refuse(&sums.at, "such a role can only add");
        };
        let Action::Gather { binder, domain, part, peer, position, across, over, body, .. } =
            &gather.action
        else {
            return Err(self.no_form(gather));
        };
        let ([token, place], [store], Some(peer)) =
            (places(Some(position)), body.as_slice(), peer.as_ref())
        else {
            return Err(self.no_form(gather));
        };
        if *domain != Domain::Tokens || !is_number(over, choices) || !is_name(token, binder) {
            return Err(self.no_form(gather));
        }
        let Action::Store { target, value } = &store.action else {
            return Err(self.no_form(store));
        };
        let out = self.tensor(&target.tensor)?;
        let factor = factor_of(value, part).ok_or_else(|| self.no_form(store))?;
        let fits = target.indices.len() + 1 == out.dims.len()
            && !out.optional
            && elem_of(
                self.ir,
                &Expr::Element { tensor: target.tensor.clone(), indices: target.indices.clone() },
            ) == Elem::Bf16
            && (elem_of(self.ir, factor), rank_of(self.ir, factor)) == (Elem::F32, 0);
        if !fits {
            return Err(self.no_form(store));
        }
        let of_choice = [binder.as_str(), across.as_str()];
        if ![place, peer, factor].into_iter().all(|number| is_of(number, &of_choice)) {
            return Err(self.no_form(gather));
        }
        for number in [place, peer, factor].into_iter().chain(&target.indices) {
            self.check_here(gather, number)?;
        }
        Ok((gather, place, factor, store))
    }
}

/// Whether a loop goes over the numbers below one of the shape.
fn is_number(domain: &Domain, number: &Expr) -> bool {
    matches!((domain, number), (Domain::Dim { name }, Expr::Name { name: own, .. }) if name == own)
}

/// `number >= 0`
fn if_there(filter: &Expr) -> Option<&Expr> {
    match filter {
        Expr::Binary { op: BinaryOp::Ge, left, right } => {
            matches!(**right, Expr::Int { value: 0 }).then_some(left)
        }
        _ => None,
    }
}

/// `sum(factor * part.field as f32) as bf16`
fn factor_of<'e>(value: &'e Expr, of_part: &str) -> Option<&'e Expr> {
    let Expr::Cast { value, elem: Elem::Bf16 } = value else { return None };
    let Expr::Call { helper, args } = &**value else { return None };
    let ("sum", [Expr::Binary { op: BinaryOp::Mul, left, right }]) =
        (helper.as_str(), args.as_slice())
    else {
        return None;
    };
    let Expr::Cast { value, elem: Elem::F32 } = &**right else { return None };
    matches!(&**value, Expr::Field { of, indices, .. } if of == of_part && indices.is_empty())
        .then_some(left)
}
