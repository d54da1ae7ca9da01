//! Fields of messages and of parts of a gather.

use super::{Numbers, counted_loop};
use crate::ir::parts::{Code, meta_sources, parts};
use crate::ir::{BinaryOp, Channel, Elem, ElemType, Expr, Fold, Message, Tensor};
use crate::schedule::channels::End;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::scope::{Arrived, Meaning, Parts, Scope, number_of, position_of};
use crate::schedule::step::{Step, Takers};
use crate::schedule::symbol::Constant;
use crate::schedule::term::{Node, Term};
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    pub(super) fn field(
        &mut self,
        scope: &Scope,
        of: &str,
        field: &str,
        indices: &[Expr],
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        match scope.find(of).cloned() {
            Some(Meaning::Placed(_, position)) if field == "position" => Ok(position),
            Some(Meaning::Message(arrived)) => {
                let numbers = &arrived.numbers;
                if let Some((_, value)) = numbers.iter().find(|(name, _)| *name == field) {
                    return Ok(value.clone());
                }
                let at = self.indices(scope, indices, out)?;
                self.arrived(&arrived, field, "", at, i)
            }
            None => {
                let tensor = self.tensor(of)?;
                let part = self.part(tensor, field)?;
                let at = self.indices(scope, indices, out)?;
                self.place(tensor, part, None, at, i.cloned())
            }
            Some(_) => Err(broken(format!("`{of}` has no field `{field}` here"))),
        }
    }

    fn part(&self, tensor: &Tensor, name: &str) -> Lowered<usize> {
        let all = parts(self.ir, &tensor.elem);
        let suffix = format!("_{name}");
        let found = all.iter().position(|(own, ..)| *own == suffix);
        // The first part has the name of its row.
        let first = match &tensor.elem {
            ElemType::OfAxis { .. } => Some(0),
            _ => None,
        };
        found.or(first).ok_or_else(|| broken(format!("`{}` has no part `{name}`", tensor.name)))
    }

    /// A field of a message that has arrived, or of a part of it (`suffix`).
    pub(in crate::schedule) fn arrived(
        &mut self,
        message: &Arrived,
        field: &str,
        suffix: &str,
        at: Vec<Term>,
        i: Option<&Term>,
    ) -> Lowered<Term> {
        let (channel, layout) = self.carried(&message.channel)?;
        let declared = layout.fields.iter().find(|known| known.name == field);
        let declared =
            declared.ok_or_else(|| broken(format!("`{}` has no field `{field}`", layout.name)))?;
        let mut offset: Option<Term> = None;
        let given = at.len();
        for (dim, index) in declared.dims.iter().zip(at) {
            offset = Some(match offset {
                None => index,
                Some(outer) => {
                    let extent = self.scalar(&Scope::default(), dim, &mut Vec::new())?;
                    outer.times(extent).plus(index)
                }
            });
        }
        if given < declared.dims.len() {
            let rest = i.ok_or_else(|| {
                broken(format!("`{field}` is a row here, where one value is wanted"))
            })?;
            let mut inner = Term::int(1);
            for dim in declared.dims.iter().skip(given) {
                inner = inner.times(self.scalar(&Scope::default(), dim, &mut Vec::new())?);
            }
            offset = Some(match offset {
                None => rest.clone(),
                Some(outer) => outer.times(inner).plus(rest.clone()),
            });
        }
        let offset = offset.unwrap_or_else(|| Term::int(0));
        let (base, elem) = self.field_at(channel, layout, field, suffix, message)?;
        let get = ep::get.of(&elem);
        Ok(Term::call(get, vec![base, offset], elem))
    }

    /// Where a field of a message begins, and the type of its elements.
    fn field_at(
        &self,
        channel: &Channel,
        layout: &Message,
        field: &str,
        suffix: &str,
        message: &Arrived,
    ) -> Lowered<(Term, Elem)> {
        let is_row = layout.fields.iter().any(|known| known.row && known.name == field);
        if is_row && suffix.is_empty() {
            let (_, elem) = crate::ir::parts::row_field(self.ir, layout).ok_or(broken("no row"))?;
            return Ok((message.row.clone(), elem));
        }
        let name = format!("{field}{suffix}");
        let sources = meta_sources(self.ir, layout);
        let source = sources.iter().find(|source| source.name == name);
        let source =
            source.ok_or_else(|| broken(format!("`{}` brings no `{name}`", channel.name)))?;
        let offset = Term::constant(Constant::field(&layout.name, &source.name));
        // Bytes, or words of slots: what a field begins with is counted in bytes for both.
        let base = Term {
            node: Node::Binary(BinaryOp::Add, Box::new(message.meta.clone()), Box::new(offset)),
            elem: Elem::U8,
            range: None,
        };
        Ok((base, source.elem.clone()))
    }

    pub(super) fn of_channel(
        &mut self,
        scope: &Scope,
        (name, index, field, inner): (&str, &[Expr], &str, &[Expr]),
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        if field == "position" {
            return match scope.find(&position_of(name)) {
                Some(Meaning::Value(position)) => Ok(position.clone()),
                _ => Err(broken(format!("`{name}` has no position here: nothing was pushed"))),
            };
        }
        if let Some(Meaning::Value(number)) = scope.find(&number_of(name, field)) {
            return Ok(number.clone());
        }
        let (channel, _) = self.carried(name)?;
        if let Some(word) = channel.header_word(field) {
            let peer = self.ring(scope, (channel, End::In), index, out)?;
            let number = Term::int(word as i64);
            let header = Term::method(&self.object(name), "header", vec![peer, number], Elem::I32);
            // Waiting takes the whole warp.
            return Ok(self.named(field, header, out));
        }
        if !channel.kind.traits().is_indexed {
            return Err(broken(format!("`{name}.{field}` has no value here")));
        }
        let number = ["count", "base"].into_iter().find(|number| *number == field);
        if let Some(number) = number {
            return self.slot_number(scope, channel, (index, number), out);
        }
        let message = self.slot_message(scope, channel, index, out)?;
        let at = self.indices(scope, inner, out)?;
        self.arrived(&message, field, "", at, i)
    }

    /// The peer that an index of a channel names.
    pub(in crate::schedule) fn peer(
        &mut self,
        scope: &Scope,
        index: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        match index {
            [peer] => self.scalar(scope, peer, out),
            _ => Err(broken("a channel is indexed by one peer here")),
        }
    }

    /// Whether values read the row of a part, and what is beside it.
    pub(in crate::schedule) fn read_of_part(
        &self,
        parts: &Parts,
        values: &[&Expr],
    ) -> Lowered<(bool, bool)> {
        let (_, layout) = self.carried(&parts.channel)?;
        let (mut of_row, mut of_meta) = (false, false);
        let mut see = |part: &Expr| {
            if let Expr::Field { of, field, .. } = part
                && *of == parts.part
            {
                let known = layout.fields.iter().find(|known| known.name == *field);
                let is_row = known.is_some_and(|known| known.row);
                of_row |= is_row;
                // The scales of a row are beside it.
                let is_code =
                    known.is_some_and(|known| Code::of_elem(self.ir, &known.elem).is_some());
                of_meta |= !is_row || is_code;
            }
        };
        values.iter().for_each(|value| crate::ir::walk::expr(value, &mut see));
        Ok((of_row, of_meta))
    }

    /// A fold of `value` over the parts that a gather has brought together, in order of the peers.
    pub(super) fn fold_of_parts(
        &mut self,
        scope: &Scope,
        fold: Fold,
        value: &Expr,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let parts: Parts = scope.parts.clone().ok_or(broken("the parts of a gather are folded"))?;
        let peer = self.names.fresh(&parts.across);
        let index = Term { range: parts.peers.range, ..Term::name(&peer, Elem::I32) };
        let mut steps = Vec::new();
        let pointer = |of| Term::method(&parts.object, of, vec![index.clone()], Elem::U8);
        let row = self.names.fresh("row");
        let meta = self.names.fresh("meta");
        let bytes = |name: &String, value| Step::Pointer {
            name: name.clone(),
            to: None,
            read_only: true,
            value,
        };
        let (of_row, of_meta) = self.read_of_part(&parts, &[value])?;
        for (used, name, what) in [(of_row, &row, "row"), (of_meta, &meta, "meta")] {
            if used {
                steps.push(bytes(name, pointer(what)));
            }
        }
        let there = Term::method(&parts.object, "has", vec![index.clone()], Elem::Bool);
        let arrived = Arrived {
            channel: parts.channel.clone(),
            row: Term::name(&row, Elem::U8),
            meta: Term::name(&meta, Elem::U8),
            numbers: Vec::new(),
        };
        let inner = scope
            .with(&parts.across, Meaning::Value(index))
            .with(&parts.part, Meaning::Message(arrived));
        let mut adds = Vec::new();
        let value = self.value(&inner, value, i, &mut adds)?;
        let total = self.folded(fold, value, out, &mut adds);
        steps.push(Step::If { condition: there, body: adds });
        let numbers = Numbers { from: Term::int(0), to: parts.peers.clone(), others: false };
        out.push(counted_loop(peer, numbers, Takers::Alone, steps));
        Ok(total)
    }
}
