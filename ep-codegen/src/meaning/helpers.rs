//! Helpers of the language, slots as they are read, and functions of the user.

use std::rc::Rc;

use super::channels::wait;
use super::data::{Data, Scalar, Tensor};
use super::eval::Eval;
use super::value::{Message, Value, cast, form};
use super::world::World;
use super::wrong::{Fault, Found};
use crate::ir::helpers::casts_to;
use crate::ir::{Channel, Elem, Expr, Fold, WellKnown, text};

impl<'p> World<'p> {
    /// The value of an arg in this call.
    pub(super) fn arg(&self, name: &str) -> Option<Scalar> {
        let arg = self.ir.args.iter().find(|arg| arg.name == name)?;
        let given = self.problem.args.get(name).copied();
        let value = given.unwrap_or(Scalar::of(arg.default));
        cast(&arg.elem, value, name).ok()
    }

    /// The experts of a rank: the first, and the one behind the last.
    fn experts(&self, me: usize, rank: i64) -> Found<(i64, i64)> {
        let begin = self.expert_begin(me)?;
        let place = |rank: i64| match usize::try_from(rank).ok().and_then(|at| begin.get(at)) {
            Some(Scalar::Int(expert)) => Ok(expert),
            _ => Err(Fault::Index {
                of: WellKnown::ExpertBegin.name().to_string(),
                axis: 0,
                index: rank,
                extent: begin.count() as i64,
            }),
        };
        Ok((place(rank)?, place(rank + 1)?))
    }

    /// The rank of an expert, -1 of an absent or unknown one.
    fn owner(&self, me: usize, expert: i64) -> Found<i64> {
        for rank in 0..self.count() {
            let (first, end) = self.experts(me, rank)?;
            if (first..end).contains(&expert) {
                return Ok(rank);
            }
        }
        Ok(-1)
    }

    /// The tokens of a stripe.
    pub(super) fn stripe_span(&self, rank: usize, stripe: i64) -> std::ops::Range<i64> {
        let rows = self.striped(rank).unwrap_or(0);
        let stripes = self.number(WellKnown::Stripes.name()).unwrap_or(1).max(1);
        let (each, longer) = (rows / stripes, rows % stripes);
        let begin = stripe * each + stripe.min(longer);
        begin..begin + each + i64::from(stripe < longer)
    }

    /// The axis of a slot that counts arrivals, if one does.
    pub(super) fn counted_axis(&self, channel: &Channel) -> Option<usize> {
        crate::ir::slots::counted_axis(self.ir, channel)
    }

    /// The sender that a slot's index names, if it names one.
    fn named_source(&self, channel: &Channel, me: usize, index: &[i64]) -> Found<Vec<usize>> {
        let at = channel.slot_names.iter().position(|name| name == "source");
        match at.and_then(|at| index.get(at)) {
            Some(source) => Ok(vec![self.peer(channel, me, *source)?]),
            None => Ok(self.peers(channel, me)),
        }
    }

    /// `slots[..].count`: messages in the counted slots, once their senders have closed them.
    pub(super) fn slot_count(
        &self,
        at: usize,
        channel: &Channel,
        me: usize,
        index: &[i64],
    ) -> Found<i64> {
        let sources = self.named_source(channel, me, index)?;
        let open: Vec<usize> = sources
            .into_iter()
            .filter(|rank| self.alive(*rank) && !self.is_closed(at, *rank))
            .collect();
        if !open.is_empty() {
            return Err(wait(&channel.name, "a count", &open));
        }
        Ok(self.channels.filled(at, me, index) as i64)
    }

    /// `slots[..].base`: messages of the sources before this one.
    pub(super) fn slot_base(
        &self,
        at: usize,
        channel: &Channel,
        me: usize,
        index: &[i64],
    ) -> Found<i64> {
        let place = channel.slot_names.iter().position(|name| name == "source");
        let place = place.filter(|place| *place < index.len()).ok_or_else(|| form("base"))?;
        let mut sum = 0;
        for source in self.members(&channel.per, me).into_iter().filter(|it| *it < index[place]) {
            let mut earlier = index.to_vec();
            earlier[place] = source;
            sum += self.slot_count(at, channel, me, &earlier)?;
        }
        Ok(sum)
    }

    /// The one message of a slot.
    pub(super) fn slot_message(
        &self,
        at: usize,
        channel: &Channel,
        me: usize,
        index: &[i64],
    ) -> Found<Rc<Message>> {
        let message = match self.counted_axis(channel) {
            Some(axis) if index.len() == channel.slot_names.len() => {
                let mut row = index.to_vec();
                let place = usize::try_from(row.remove(axis)).unwrap_or(usize::MAX);
                self.channels.slot(at, me, &row, place)
            }
            _ => self.channels.slot(at, me, index, 0),
        };
        match message {
            Some(message) => Ok(Rc::clone(message)),
            None => {
                let sources = self.named_source(channel, me, index)?;
                Err(wait(&channel.name, &format!("the slot {index:?}"), &sources))
            }
        }
    }
}

impl<'p> Eval<'_, 'p> {
    pub(super) fn call(&mut self, helper: &'p str, args: &'p [Expr]) -> Found<Value> {
        if self.world.ir.cuda_fns.iter().any(|own| own.name == helper) {
            return self.call_function(helper, args);
        }
        if let (Some(fold), [value]) = (Fold::of_parts(helper, args), args) {
            return self.fold_of_parts(fold, value);
        }
        let me = self.actor.rank;
        match (helper, args) {
            ("align" | "bit_xor" | "ceil" | "max" | "min", [a, b]) => {
                let (a, b) = (self.whole(a)?, self.whole(b)?);
                arithmetic(helper, a, b).map(Value::int)
            }
            ("alive", [rank]) => {
                let rank = self.whole(rank)?;
                Ok(Value::bool(usize::try_from(rank).is_ok_and(|rank| self.world.alive(rank))))
            }
            ("node", [rank]) => {
                Ok(Value::int(self.whole(rank)?.div_euclid(self.world.local_ranks())))
            }
            ("local_rank", [rank]) => {
                Ok(Value::int(self.whole(rank)?.rem_euclid(self.world.local_ranks())))
            }
            ("rank_at", [node, local]) => {
                let (node, local) = (self.whole(node)?, self.whole(local)?);
                Ok(Value::int(node * self.world.local_ranks() + local))
            }
            ("owner", [expert]) => {
                let expert = self.whole(expert)?;
                self.world.owner(me, expert).map(Value::int)
            }
            ("local", [expert, rank]) => {
                let (expert, rank) = (self.expr(expert)?, self.whole(rank)?);
                let (first, end) = self.world.experts(me, rank)?;
                expert.map(&mut |one| match one {
                    Scalar::Int(id) if (first..end).contains(&id) => Ok(Scalar::Int(id - first)),
                    Scalar::Int(_) => Ok(Scalar::Int(-1)),
                    _ => Err(form("local")),
                })
            }
            ("any", [bits]) => match self.expr(bits)? {
                Value::One(Scalar::Bits(bits)) => Ok(Value::bool(bits != 0)),
                _ => Err(form("any")),
            },
            ("has", [bits, index]) => match (self.expr(bits)?, self.whole(index)?) {
                (Value::One(Scalar::Bits(bits)), index) => {
                    Ok(Value::bool((0..64).contains(&index) && bits >> index & 1 == 1))
                }
                _ => Err(form("has")),
            },
            ("cast_e4m3" | "cast_logfmt10", [row, block]) => {
                let (row, block) = (self.expr(row)?, self.whole(block)?);
                let block = usize::try_from(block).ok().filter(|block| *block > 0);
                let block = block.ok_or_else(|| form(helper))?;
                let code = casts_to(helper).ok_or_else(|| form(helper))?;
                Ok(Value::Scaled(Rc::new(row.row(helper)?.clone()), code, block))
            }
            ("owned", [row, rank]) => self.owned(row, rank),
            _ => self.of_experts(helper, args),
        }
    }

    /// Helpers of a row of expert numbers.
    fn of_experts(&mut self, helper: &str, args: &'p [Expr]) -> Found<Value> {
        let [row, of] = args else { return Err(form(helper)) };
        let (row, of) = (self.expr(row)?, self.whole(of)?);
        let row = row.row(helper)?;
        let (me, each) = (self.actor.rank, self.world.local_ranks());
        let mut bits = 0;
        let mut found = false;
        for at in 0..row.count() {
            let Some(Scalar::Int(expert)) = row.get(at) else { continue };
            if helper == "listed" {
                found |= expert == of;
                continue;
            }
            let owner = self.world.owner(me, expert)?;
            match helper {
                "routed" => found |= owner >= 0 && owner == of,
                "routed_node" => found |= owner >= 0 && owner / each == of,
                "routed_bits" if owner >= 0 && owner / each == of => {
                    bits |= 1_u64 << (owner % each)
                }
                "routed_bits" => {}
                _ => return Err(form(helper)),
            }
        }
        Ok(if helper == "routed_bits" {
            Value::One(Scalar::Bits(bits))
        } else {
            Value::bool(found)
        })
    }

    /// `owned(row, rank)`: the entries of the experts that live on the rank.
    fn owned(&mut self, row: &'p Expr, rank: &'p Expr) -> Found<Value> {
        let words = text::expr(row);
        let (row, rank) = (self.expr(row)?, self.whole(rank)?);
        let row = row.row(&words)?;
        let (first, end) = self.world.experts(self.actor.rank, rank)?;
        let list: Option<Vec<i64>> = (first..end)
            .map(|expert| match usize::try_from(expert).ok().and_then(|at| row.get(at)) {
                Some(Scalar::Int(value)) => Some(value),
                _ => None,
            })
            .collect();
        let extent = row.count() as i64;
        let beyond = Fault::Index { of: words, axis: 0, index: end - 1, extent };
        let list = list.ok_or(beyond)?;
        Ok(Value::Short(Rc::new(Tensor::new(&[list.len()], Data::I64(list)))))
    }

    /// A function of the user, element by element.
    fn call_function(&mut self, name: &'p str, args: &'p [Expr]) -> Found<Value> {
        let missing = || Fault::Missing { what: "function", name: name.to_string() };
        let function = *self.world.problem.functions.get(name).ok_or_else(missing)?;
        let declared = self.world.ir.cuda_fns.iter().find(|own| own.name == name);
        let declared = declared.ok_or_else(missing)?;
        let values: Found<Vec<Value>> = args.iter().map(|arg| self.expr(arg)).collect();
        let values = values?;
        let row = values.iter().find_map(|value| value.row(name).ok());
        let extents = row.map(|row| row.extents.clone());
        let count = row.map_or(1, Tensor::count);
        let mut out = Tensor::zeros(
            extents.as_deref().unwrap_or_default(),
            &[(Some(declared.returns.clone()), 1)],
        );
        for at in 0..count {
            let mut elements = Vec::new();
            for (value, param) in values.iter().zip(&declared.params) {
                let one = match value {
                    Value::One(one) => Some(*one),
                    other => other.row(name)?.get(at),
                };
                let one = one.ok_or_else(|| form(name))?;
                // A code is passed as it is.
                let is_code = matches!(param.elem, Elem::E4m3 | Elem::Ue8m0 | Elem::Bool);
                elements.push(if is_code { one } else { cast(&param.elem, one, name)? });
            }
            let result = function(&elements);
            let part = out.parts.first_mut().ok_or_else(|| form(name))?;
            part.data.set(at, result).map_err(|_| Fault::Fit {
                of: name.to_string(),
                index: vec![at as i64],
                value: super::value::shown(result),
                elem: part.data.elem(),
            })?;
        }
        Ok(Value::of(out))
    }
}

/// Helpers of two whole numbers.
fn arithmetic(helper: &str, a: i64, b: i64) -> Found<i64> {
    let rounded_up = || a.checked_add(b.checked_sub(1)?)?.checked_div(b);
    let value = match helper {
        "bit_xor" => Some(a ^ b),
        "max" => Some(a.max(b)),
        "min" => Some(a.min(b)),
        "ceil" => rounded_up(),
        _ => rounded_up().and_then(|steps| steps.checked_mul(b)),
    };
    let text = format!("{helper}({a}, {b})");
    value.ok_or_else(|| Fault::Number { text, left: a, right: b }.into())
}
