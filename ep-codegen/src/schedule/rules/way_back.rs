//! Rows back to their tokens through slots of the tokens: one role sends what came from each rank, the other
//! one adds the slots of each token up.
//!
//! What it gains over a pull: no announcement, no round trip to fetch a row, nothing to wait for at the end;
//! and several warps carry a row, and add up a token, where both are few. What goes back may be a sum of rows,
//! which is then made where it is sent: no kernel before it, and no memory between them.

use super::forms::{is_name, is_of};
use super::{Forms, Unfit};
use crate::ir::parts::parts;
use crate::ir::slots::{Arrival, arrival};
use crate::ir::typed::{elem_of, rank_of};
use crate::ir::{
    Action, BinaryOp, Blocks, Channel, DimKind, Domain, Elem, Expr, Field, FieldValue, Fold,
    NameKind, PeerSet, Pipeline, Role, Share, Stmt, Transport,
};

/// A lane has each row of a sum.
const ROWS_OF_SUM: i64 = 32;

/// A field's name, and what it is given.
type Named<'s> = (&'s str, &'s Expr);

/// The parts of such a pair of roles.
pub(crate) struct WayBack<'s> {
    pub(crate) channel: &'s Channel,
    /// The loop over the rows of a source, and the push in it.
    pub(crate) rows: &'s Stmt,
    pub(crate) push: &'s Stmt,
    /// The row's name, and its range for a source.
    pub(crate) row: &'s str,
    pub(crate) first: &'s Expr,
    pub(crate) end: &'s Expr,
    /// The token of a row there.
    pub(crate) token: &'s Expr,
    pub(crate) sent: Sent<'s>,
    /// The role that adds up, and its gather.
    pub(crate) sums: &'s Role,
    pub(crate) gather: &'s Stmt,
}

/// What goes back of a row that came.
pub(crate) enum Sent<'s> {
    /// A row as it lies, and numbers beside it, with the name of their field.
    Row { row: &'s Expr, numbers: Option<Named<'s>> },
    /// The rows of a list, each times a factor, added up.
    Sum(SumOfRows<'s>),
}

/// `sum(at in list: factor * row as f32) as bf16`
pub(crate) struct SumOfRows<'s> {
    pub(crate) list: &'s Expr,
    pub(crate) at: &'s str,
    pub(crate) factor: &'s Expr,
    pub(crate) row: &'s Expr,
    /// How long lists are.
    pub(crate) most: &'s Expr,
}

impl<'s> WayBack<'s> {
    /// The parts of the only two roles of a selected pipeline, if they are such roles.
    pub(crate) fn of(ir: &'s Pipeline) -> Option<WayBack<'s>> {
        if is_candidate(ir) { Forms { ir }.way_back().ok() } else { None }
    }
}

/// Whether a pipeline has one channel of slots with rows, between two roles that share no phase border.
pub(super) fn is_candidate(ir: &Pipeline) -> bool {
    let ([send, sums], [channel]) = (ir.roles.as_slice(), ir.channels.as_slice()) else {
        return false;
    };
    channel.kind.traits().is_indexed
        && channel.from.as_slice() == std::slice::from_ref(&send.name)
        && channel.to == sums.name
        && send.phase == sums.phase
        && arrival(ir, channel) == Arrival::Flags
}

/// The slots through which the roles of a selected pipeline send rows back to their tokens, if they do.
pub(crate) fn back_channel(ir: &Pipeline) -> Option<&Channel> {
    WayBack::of(ir).map(|back| back.channel)
}

impl<'s> Forms<'s> {
    /// The parts of both roles, or the first statement that is none of them.
    pub(super) fn way_back(&self) -> Result<WayBack<'s>, Unfit> {
        let ([send, sums], [channel]) = (self.ir.roles.as_slice(), self.ir.channels.as_slice())
        else {
            return Err(self.lacks("pair of roles for", "the slots"));
        };
        let whole = channel.per == PeerSet::All
            && channel.over.as_slice() == [Transport::Nvlink]
            && matches!(channel.slot_names.as_slice(), [source, _] if source == "source");
        if !whole {
            return self
                .refuse(&send.at, "the indices of such slots have to be the source and a token");
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
        let [rows] = send.body.as_slice() else {
            return self.refuse(&send.at, "such a role can only send");
        };
        let [gather] = sums.body.as_slice() else {
            return self.refuse(&sums.at, "such a role can only add");
        };
        if !matches!(&gather.action, Action::Gather { domain: Domain::Tokens, .. }) {
            return Err(self.no_form(gather));
        }
        self.check_gather(gather)?;
        let Action::For { binder: row, domain, position: None, filter: None, body } = &rows.action
        else {
            return Err(self.no_form(rows));
        };
        let (Domain::Range { low: first, high: end }, [push]) = (domain, body.as_slice()) else {
            return Err(self.no_form(rows));
        };
        if !is_part_of(first, end) {
            return self.refuse(
                &rows.at,
                "the rows of a source have to be between two neighboring entries of a table",
            );
        }
        let Action::Push { peer: Some(peer), position: Some(token), values, .. } = &push.action
        else {
            return Err(self.no_form(push));
        };
        if !is_name(peer, "source") {
            return self.refuse(&push.at, "rows have to go back to their senders");
        }
        for number in [first, end, token] {
            self.refuse_optional(push, number)?;
        }
        if !is_of(token, &[row.as_str()]) {
            return self.refuse(
                &push.at,
                "the token of a row that goes back has to depend on the row alone",
            );
        }
        let sent = self.sent_back(push, values, (channel, row))?;
        Ok(WayBack { channel, rows, push, row, first, end, token, sent, sums, gather })
    }

    fn sent_back(
        &self,
        push: &Stmt,
        values: &'s [FieldValue],
        (channel, row): (&Channel, &str),
    ) -> Result<Sent<'s>, Unfit> {
        if let [FieldValue { value, .. }] = values
            && let Some(sum) = self.sum_of_rows(value, row)
        {
            for part in [sum.list, sum.factor, sum.row] {
                self.refuse_optional(push, part)?;
            }
            self.refuse_optional(push, sum.factor)?;
            return Ok(Sent::Sum(sum));
        }
        let (mut sent, mut numbers) = (None, None);
        let message = self.message(channel)?;
        for value in values {
            let field = message.fields.iter().find(|field| field.name == value.name);
            match field.filter(|_| is_row_of(&value.value, row)) {
                Some(Field { row: true, .. }) => sent = Some(&value.value),
                Some(field) if self.is_floats(field) && numbers.is_none() => {
                    numbers = Some((value.name.as_str(), &value.value));
                }
                _ => {
                    let why = "the row that goes back has to be sent unchanged, and a row of `f32` beside it";
                    return self.refuse(&push.at, why);
                }
            }
        }
        Ok(Sent::Row { row: sent.ok_or_else(|| self.no_form(push))?, numbers })
    }

    /// A sum of rows of `bf16` that a short list of whole numbers names, as far as they are there.
    fn sum_of_rows(&self, value: &'s Expr, row: &str) -> Option<SumOfRows<'s>> {
        let Expr::Cast { value, elem: Elem::Bf16 } = value else { return None };
        let Expr::Fold { fold: Fold::Sum, binder: at, domain, body } = &**value else {
            return None;
        };
        let Domain::Row { row: list } = &**domain else { return None };
        let Expr::Binary { op: BinaryOp::Mul, left: factor, right } = &**body else { return None };
        let Expr::Cast { value: added, elem: Elem::F32 } = &**right else { return None };
        let Expr::Element { tensor, .. } = list else { return None };
        let most = self.tensor(tensor).ok()?.dims.last()?;
        let fits = is_row_of(list, row)
            && is_row_of(added, at)
            && is_of(factor, &[at.as_str()])
            && self.is_at_most(most, ROWS_OF_SUM)
            && matches!(elem_of(self.ir, list), Elem::I32 | Elem::I64)
            && (elem_of(self.ir, factor), rank_of(self.ir, factor)) == (Elem::F32, 0)
            && elem_of(self.ir, added) == Elem::Bf16;
        fits.then_some(SumOfRows { list, at, factor, row: added, most })
    }

    /// Whether a number of the shape is never above `most`.
    pub(super) fn is_at_most(&self, number: &Expr, most: i64) -> bool {
        let Expr::Name { name, kind: NameKind::Dim } = number else { return false };
        self.ir.dims.iter().any(|dim| {
            dim.name == *name && matches!(dim.kind, DimKind::Given { high, .. } if high <= most)
        })
    }

    fn is_floats(&self, field: &Field) -> bool {
        matches!(parts(self.ir, &field.elem).as_slice(), [(_, Elem::F32, _)])
    }
}

/// `table[source, me]` and `table[source + 1, me]`
fn is_part_of(first: &Expr, end: &Expr) -> bool {
    let element = |of: &Expr| match of {
        Expr::Element { tensor, indices } => match indices.as_slice() {
            [source, Expr::Name { kind: NameKind::Me, .. }] => {
                Some((tensor.clone(), source.clone()))
            }
            _ => None,
        },
        _ => None,
    };
    let (Some((low, source)), Some((high, next))) = (element(first), element(end)) else {
        return false;
    };
    let is_next = matches!(&next, Expr::Binary { op: BinaryOp::Add, left, right }
        if is_name(left, "source") && matches!(**right, Expr::Int { value: 1 }));
    low == high && is_name(&source, "source") && is_next
}

/// `tensor[row]`, a row of two axes.
pub(super) fn is_row_of(value: &Expr, row: &str) -> bool {
    matches!(value, Expr::Element { indices, .. }
        if matches!(indices.as_slice(), [index] if is_name(index, row)))
}
