//! Expressions.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Word;
use super::channels::{Lane, wait};
use super::data::{Scalar, Tensor};
use super::memory::Hand;
use super::open::Touched;
use super::value::{Message, Value, Written, binary, cast, form};
use super::world::World;
use super::wrong::{Fault, Found, Stop};
use crate::ir::helpers::{SLOT, folds_parts, taken_of_part};
use crate::ir::{BinaryOp, Channel, Expr, Fold, NameKind, walk};

/// One instance of a role: what its warps share has one value.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) rank: usize,
    /// Index of the role.
    pub(super) role: usize,
    pub(super) stripe: Option<i64>,
    pub(super) hand: Hand,
    /// Pushes to each index of a channel.
    pub(super) sent: BTreeMap<(usize, Vec<i64>), Sent>,
}

impl Actor {
    /// The actor that evaluates the sizes and extents of a rank before its roles begin.
    pub(super) fn of_begin(rank: usize) -> Actor {
        let hand = Hand { id: 0, wave: 0 };
        Actor { rank, role: 0, stripe: None, hand, sent: BTreeMap::new() }
    }
}

/// What an instance has pushed to one index of a channel.
#[derive(Debug, Clone, Default)]
pub(super) struct Sent {
    /// The position behind `at`.
    pub(super) base: i64,
    /// Messages.
    pub(super) count: i64,
    /// What `channel[index].position` is now: of the last message, or `-1 - next` where a condition
    /// said no.
    pub(super) position: i64,
    pub(super) touched: Touched,
}

/// A name in scope.
#[derive(Debug, Clone)]
pub(super) struct Bind<'p> {
    pub(super) name: &'p str,
    pub(super) bound: Bound,
}

/// What a name stands for.
#[derive(Debug, Clone)]
pub(super) enum Bound {
    /// A number or a `let`.
    Value(Value, Touched),
    /// A `let` of something that is not there.
    Absent,
    /// A value with positions of its own.
    Placed { value: i64, position: i64, touched: Touched },
    /// A message that has arrived.
    Arrived(Arrived),
    /// A word of the tensor of this name, which the block has waited for.
    Raised { index: usize },
    /// The parts of a gather, each with its value of the axis.
    Gathered { channel: String, axis: String, parts: Vec<(i64, Rc<Message>)> },
}

/// A message where it has arrived.
#[derive(Debug, Clone)]
pub(super) struct Arrived {
    pub(super) message: Rc<Message>,
    /// Its position, once that is known.
    pub(super) row: Option<i64>,
    pub(super) index: i64,
    pub(super) source: i64,
    pub(super) part: i64,
    /// What its row and index depend on.
    pub(super) touched: Touched,
}

/// Evaluates for one instance.
pub(super) struct Eval<'w, 'p> {
    pub(super) world: &'w World<'p>,
    pub(super) actor: &'w Actor,
    pub(super) binds: &'w mut Vec<Bind<'p>>,
    /// What has been read so far depends on this.
    pub(super) touched: Touched,
}

impl<'p> Eval<'_, 'p> {
    /// A whole number.
    pub(super) fn whole(&mut self, expr: &'p Expr) -> Found<i64> {
        self.expr(expr)?.whole(Written(expr))
    }

    /// The whole numbers of an index.
    pub(super) fn wholes(&mut self, list: &'p [Expr]) -> Found<Vec<i64>> {
        list.iter().map(|expr| self.whole(expr)).collect()
    }

    /// The axes of an index of a channel, of which there may be several.
    pub(super) fn axes(&mut self, index: &'p Expr) -> Found<Vec<i64>> {
        match index {
            Expr::Call { helper, args } if helper == SLOT => self.wholes(args),
            other => Ok(vec![self.whole(other)?]),
        }
    }

    pub(super) fn expr(&mut self, whole: &'p Expr) -> Found<Value> {
        match whole {
            Expr::Int { value } => Ok(Value::int(*value)),
            Expr::Real { bits } => Ok(Value::One(Scalar::Real(f32::from_bits(*bits)))),
            Expr::Bool { value } => Ok(Value::bool(*value)),
            Expr::Name { name, kind } => self.name(name, kind),
            Expr::Element { tensor, indices } => self.element(tensor, indices),
            Expr::Field { of, field, indices } => self.field(of, field, indices),
            Expr::OfChannel { channel, index, field, indices } => {
                self.of_channel(channel, index, field, indices)
            }
            Expr::Call { helper, args } => self.call(helper, args),
            Expr::Fold { fold: Fold::PrefixSum, .. } => Err(form(Written(whole))),
            Expr::Fold { fold, binder, domain, body } => self.fold(*fold, binder, domain, body),
            Expr::Cast { value, elem } => {
                self.expr(value)?.decoded().map(&mut |one| cast(elem, one, Written(whole)))
            }
            Expr::Not { value } => {
                let truth = self.expr(value)?.truth(Written(whole))?;
                Ok(Value::bool(!truth))
            }
            Expr::If { condition, yes, no } => {
                // A statement needs what either value is made of.
                self.needs(yes)?;
                self.needs(no)?;
                let holds = self.expr(condition)?.truth(Written(whole))?;
                self.expr(if holds { yes } else { no })
            }
            Expr::Binary { op, left, right } => self.binary(whole, op, left, right),
        }
    }

    /// That what `whole` is made of is there, whatever of it counts in the end.
    fn needs(&self, whole: &Expr) -> Found<()> {
        let mut added: Vec<&str> = Vec::new();
        let absent = walk::any_expr(whole, &mut |part| match part {
            Expr::Binary { op: BinaryOp::Add, left, right } if self.is_of_parts(left) => {
                if let Expr::Element { tensor, .. } = &**right {
                    added.push(tensor);
                }
                false
            }
            Expr::Element { tensor, .. } if added.contains(&tensor.as_str()) => false,
            Expr::Element { tensor: name, .. }
            | Expr::Field { of: name, .. }
            | Expr::Name { name, kind: NameKind::Binder }
                if self.bound(name).is_none() =>
            {
                let declared = self.world.ir.tensors.iter().find(|it| it.name == *name);
                declared.is_some_and(|tensor| tensor.optional)
                    && self.world.memory(self.actor.rank, name).is_err()
            }
            Expr::Field { of, field, .. } => match self.bound(of) {
                Some(Bound::Arrived(arrived)) => {
                    let known = arrived.message.fields.iter().find(|(name, ..)| name == field);
                    known.is_some_and(|(_, value, _)| value.is_none())
                }
                Some(Bound::Gathered { channel, .. }) => self.comes_with_nothing(channel, of, part),
                bound => matches!(bound, Some(Bound::Absent)),
            },
            Expr::Element { tensor: name, .. } | Expr::Name { name, .. } => {
                matches!(self.bound(name), Some(Bound::Absent))
            }
            _ => false,
        });
        if absent { Err(Stop::Absent) } else { Ok(()) }
    }

    fn name(&mut self, name: &str, kind: &NameKind) -> Found<Value> {
        let missing = |what| Stop::Wrong(Fault::Missing { what, name: name.to_string() });
        Ok(match kind {
            NameKind::Dim | NameKind::Tune => {
                Value::int(self.world.number(name).ok_or_else(|| missing("number"))?)
            }
            NameKind::Arg => self.world.arg(name).map(Value::One).ok_or_else(|| missing("arg"))?,
            NameKind::Size => {
                let size = self.world.sizes.get(self.actor.rank).and_then(|sizes| sizes.get(name));
                Value::int(*size.ok_or_else(|| missing("size"))?)
            }
            NameKind::Me => Value::int(self.actor.rank as i64),
            NameKind::Stripe => match self.bound(name) {
                Some(Bound::Value(value, _)) => value.clone(),
                _ => Value::int(self.actor.stripe.ok_or_else(|| form("stripe"))?),
            },
            NameKind::Binder => match self.bound(name).cloned() {
                Some(Bound::Value(value, touched)) => {
                    self.touched = self.touched.and(touched);
                    value
                }
                Some(Bound::Placed { value, .. }) => Value::int(value),
                Some(Bound::Absent) => return Err(Stop::Absent),
                _ => return Err(form(name)),
            },
        })
    }

    pub(super) fn bound(&self, name: &str) -> Option<&Bound> {
        self.binds.iter().rev().find(|bind| bind.name == name).map(|bind| &bind.bound)
    }

    /// `tensor[..]`, or of a name that a `let` has given a row.
    fn element(&mut self, name: &'p str, indices: &'p [Expr]) -> Found<Value> {
        let places = self.wholes(indices)?;
        match self.bound(name).cloned() {
            Some(Bound::Value(value, touched)) => {
                self.touched = self.touched.and(touched);
                return under(name, &value, &places);
            }
            Some(Bound::Absent) => return Err(Stop::Absent),
            _ => {}
        }
        let memory = self.world.memory(self.actor.rank, name)?;
        match memory.copies.len() {
            1 => self.copy(name, 0, &places),
            // The name of a tensor that may come several times stands for their sum.
            0 => Ok(Value::int(0)),
            copies => {
                let mut sum = self.copy(name, 0, &places)?;
                for copy in 1..copies {
                    sum = added(&sum, &self.copy(name, copy, &places)?)?;
                }
                Ok(sum)
            }
        }
    }

    fn copy(&mut self, name: &str, copy: usize, places: &[i64]) -> Found<Value> {
        let memory = self.world.memory(self.actor.rank, name)?;
        let (value, touched) = memory.read(name, copy, places, self.actor.hand)?;
        self.touched = self.touched.and(touched);
        let words: Vec<Word> = self.binds.iter().filter_map(raised).collect();
        if !words.is_empty() {
            let (start, count) = memory.span(name, places)?;
            self.world.note_behind(self.actor.rank, name, start..start + count, words);
        }
        Ok(value)
    }

    fn binary(
        &mut self,
        whole: &'p Expr,
        op: &BinaryOp,
        left: &'p Expr,
        right: &'p Expr,
    ) -> Found<Value> {
        let words = Written(whole);
        if matches!(op, BinaryOp::And | BinaryOp::Or) {
            // A statement needs what both sides are made of.
            self.needs(right)?;
            let first = self.expr(left)?.truth(words)?;
            if first == (*op == BinaryOp::Or) {
                return Ok(Value::bool(first));
            }
            return Ok(Value::bool(self.expr(right)?.truth(words)?));
        }
        let a = self.expr(left)?;
        if *op == BinaryOp::Add
            && let Some(sum) = self.with_copies(&a, left, right)?
        {
            return Ok(sum);
        }
        let b = self.expr(right)?;
        a.zip(&b, words, &mut |a, b| binary(op, a, b, words))
    }

    /// `a + tensor[..]`: copies are added one after the other, and an optional tensor that is absent
    /// adds nothing to what is made of the parts of a gather.
    fn with_copies(&mut self, a: &Value, left: &'p Expr, right: &'p Expr) -> Found<Option<Value>> {
        let Expr::Element { tensor, indices } = right else { return Ok(None) };
        if self.bound(tensor).is_some() {
            return Ok(None);
        }
        match self.world.memory(self.actor.rank, tensor) {
            Ok(memory) if memory.copies.len() != 1 => {
                let copies = memory.copies.len();
                let places = self.wholes(indices)?;
                let mut sum = a.clone();
                for copy in 0..copies {
                    sum = added(&sum, &self.copy(tensor, copy, &places)?)?;
                }
                Ok(Some(sum))
            }
            Err(Stop::Absent) if self.is_of_parts(left) => Ok(Some(a.clone())),
            _ => Ok(None),
        }
    }

    /// Whether an expression is made of the parts of a gather, or of one.
    fn is_of_parts(&self, expr: &Expr) -> bool {
        folds_parts(expr) || self.takes_part(expr)
    }

    /// Whether an expression takes a part of a gather as it is.
    pub(super) fn takes_part(&self, expr: &Expr) -> bool {
        let mut parts =
            self.binds.iter().filter(|bind| matches!(bind.bound, Bound::Gathered { .. }));
        parts.any(|bind| !taken_of_part(bind.name, |see| walk::expr(expr, see)).is_empty())
    }

    fn field(&mut self, of: &'p str, field: &str, indices: &'p [Expr]) -> Found<Value> {
        let places = self.wholes(indices)?;
        match self.bound(of).cloned() {
            Some(Bound::Placed { position, touched, .. }) if field == "position" => {
                self.touched = self.touched.and(touched);
                Ok(Value::int(position))
            }
            Some(Bound::Arrived(arrived)) => {
                let number = match field {
                    "row" => arrived.row,
                    "index" => Some(arrived.index),
                    "source" => Some(arrived.source),
                    "part" => Some(arrived.part),
                    _ => return self.of_message(&arrived.message, field, &places),
                };
                if field == "row" || field == "index" {
                    self.touched = self.touched.and(arrived.touched);
                }
                Ok(Value::int(number.ok_or_else(|| form("the position of a message"))?))
            }
            Some(Bound::Value(value, touched)) => {
                self.touched = self.touched.and(touched);
                let part = self.part_of(&value, field)?;
                under(of, &part, &places)
            }
            // Outside of folds, a part is the first that there is.
            Some(Bound::Gathered { parts, .. }) => match parts.first() {
                Some((_, message)) => self.of_message(message, field, &places),
                None => Err(Stop::Absent),
            },
            Some(Bound::Absent) => Err(Stop::Absent),
            Some(_) => Err(form(&format!("{of}.{field}"))),
            None => {
                let whole = self.copy(of, 0, &[])?;
                let part = self.part_of(&whole, field)?;
                under(of, &part, &places)
            }
        }
    }

    fn of_message(&mut self, message: &Message, field: &str, places: &[i64]) -> Found<Value> {
        let found = message.fields.iter().find(|(name, ..)| name == field);
        let (_, value, touched) = found.ok_or_else(|| form(field))?;
        self.touched = self.touched.and(*touched);
        under(field, value.as_ref().ok_or(Stop::Absent)?, places)
    }

    /// A part of a composite value, by the name that the chosen arm gives it.
    fn part_of(&self, value: &Value, field: &str) -> Found<Value> {
        let row = value.row(field)?;
        for arm in self.world.ir.axes.iter().filter_map(|axis| axis.arms.first()) {
            if arm.parts.len() != row.parts.len() {
                continue;
            }
            if let Some(at) = arm.parts.iter().position(|part| part.name == field) {
                let mut extents = row.extents.clone();
                if let Some(last) = extents.last_mut() {
                    *last = last.div_ceil(row.parts[at].block.max(1));
                }
                return Ok(Value::of(Tensor::new(&extents, row.parts[at].data.clone())));
            }
        }
        Err(form(field))
    }

    fn of_channel(
        &mut self,
        name: &'p str,
        index: &'p [Expr],
        field: &str,
        indices: &'p [Expr],
    ) -> Found<Value> {
        let (at, channel) = self.world.channel(name)?;
        let index = self.wholes(index)?;
        let places = self.wholes(indices)?;
        if field == "position" {
            let sent = self.actor.sent.get(&(at, index));
            let sent = sent.ok_or_else(|| form("a position before the push"))?;
            self.touched = self.touched.and(sent.touched);
            return Ok(Value::int(sent.position));
        }
        if channel.kind.traits().is_indexed {
            return match field {
                "count" => {
                    self.world.slot_count(at, channel, self.actor.rank, &index).map(Value::int)
                }
                "base" => {
                    self.world.slot_base(at, channel, self.actor.rank, &index).map(Value::int)
                }
                _ => {
                    let message = self.world.slot_message(at, channel, self.actor.rank, &index)?;
                    self.of_message(&message, field, &places)
                }
            };
        }
        let place = channel.header.iter().position(|known| known == field);
        let place = place.ok_or_else(|| form(field))?;
        let lane = self.lane(at, channel, &index)?;
        let header = self.world.channels.queues.get(&lane).and_then(|queue| queue.header.as_ref());
        let header = header.ok_or_else(|| wait(name, "the header", &[lane.from]))?;
        Ok(Value::int(header.get(place).copied().unwrap_or(0)))
    }

    /// The queue that this instance reads at an index of a channel.
    pub(super) fn lane(&self, at: usize, channel: &Channel, index: &[i64]) -> Found<Lane> {
        let peer = index.first().copied().ok_or_else(|| form(&channel.name))?;
        let (to, stripe) = (self.actor.rank, self.actor.stripe.unwrap_or(0));
        let from = self.world.peer(channel, to, peer)?;
        let part = index.get(1).copied().unwrap_or(0);
        Ok(Lane { channel: at, from, to, stripe, part })
    }
}

/// `a + b`, element by element.
pub(super) fn added(a: &Value, b: &Value) -> Found<Value> {
    a.zip(b, "+", &mut |a, b| binary(&BinaryOp::Add, a, b, "+"))
}

/// What is left of a value after `places`.
fn under(name: &str, value: &Value, places: &[i64]) -> Found<Value> {
    if places.is_empty() {
        return Ok(value.clone());
    }
    let row = value.row(name)?;
    let mut start = 0;
    for (axis, index) in places.iter().enumerate() {
        let extent = row.extents.get(axis).copied().unwrap_or(0);
        let place = usize::try_from(*index).ok().filter(|index| *index < extent);
        let Some(place) = place else {
            let (of, extent) = (name.to_string(), extent as i64);
            return Err(Fault::Index { of, axis, index: *index, extent }.into());
        };
        start = start * extent + place;
    }
    let inner: usize = row.extents[places.len()..].iter().product();
    Ok(Value::of(row.under(places.len(), start * inner)))
}

/// The word that a bind says has been awaited.
fn raised(bind: &Bind<'_>) -> Option<Word> {
    match bind.bound {
        Bound::Raised { index } => Some((bind.name.to_string(), index)),
        _ => None,
    }
}
