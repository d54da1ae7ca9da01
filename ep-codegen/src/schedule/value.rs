//! Expressions of the language as values of the emitted text.
//!
//! What takes a loop, a fold or a look at a whole row, becomes steps ahead of the value.

use super::scope::{Arrived, Meaning, Parts, Scope, position_of};
use super::step::{Loop, Step, Takers};
use super::term::{Term, arithmetic};
use super::{Lowered, RoleLowering};
use crate::ir::naming::constant;
use crate::ir::params::has_row_stride;
use crate::ir::parts::{meta_sources, parts};
use crate::ir::{
    BinaryOp, Channel, ChannelKind, DimKind, Domain, Elem, ElemType, Expr, Message, NameKind,
    PeerSet, Tensor,
};

/// What a loop or fold runs over.
pub(super) struct Numbers {
    pub(super) from: Term,
    pub(super) to: Term,
    /// Whether this rank is left out.
    pub(super) others: bool,
}

impl RoleLowering<'_> {
    /// The value of `expr`; of a row, its element `i`. What has to be done before goes to `out`.
    pub(super) fn value(
        &mut self,
        scope: &Scope,
        expr: &Expr,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        match expr {
            Expr::Int { value } => Ok(Term::int(*value)),
            Expr::Bool { value } => Ok(Term::bool(*value)),
            Expr::Name { name, kind } => self.name(scope, name, kind, i, out),
            Expr::Element { tensor, indices } => {
                let tensor = self.tensor(tensor)?;
                self.element(scope, tensor, indices, i, out)
            }
            Expr::Field { of, field, indices } => self.field(scope, of, field, indices, i, out),
            Expr::OfChannel { channel, index, field, indices } => {
                self.of_channel(scope, (channel, index, field, indices), i, out)
            }
            Expr::Call { helper, args } => self.call(scope, helper, args, i, out),
            Expr::Cast { value, elem } => Ok(self.value(scope, value, i, out)?.converted(elem)),
            Expr::Not { value } => Ok(self.value(scope, value, i, out)?.negated()),
            Expr::Binary { op, left, right } => self.binary(scope, op, left, right, i, out),
            Expr::Fold { prefix: false, binder, domain, body } => {
                self.fold(scope, binder, domain, body, i, out)
            }
            Expr::Fold { prefix: true, .. } => {
                Err("a prefix sum is the whole value of a `store` or `record`".to_string())
            }
        }
    }

    /// One number or truth.
    pub(super) fn scalar(
        &mut self,
        scope: &Scope,
        expr: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        self.value(scope, expr, None, out)
    }

    fn name(
        &mut self,
        scope: &Scope,
        name: &str,
        kind: &NameKind,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        match kind {
            NameKind::Dim | NameKind::Tune => Ok(self.number(name)),
            NameKind::Arg => {
                let arg = self.ir.args.iter().find(|arg| arg.name == *name);
                let arg = arg.ok_or_else(|| format!("no arg `{name}`"))?;
                let value = Term::name(format!("args.{name}"), arg.elem.clone());
                let range = value.is_whole().then_some((arg.low, arg.high));
                Ok(Term { range, ..value })
            }
            NameKind::Size => self.size(scope, name, out),
            NameKind::Me => Ok(self.me()),
            NameKind::Stripe | NameKind::Binder => {
                let name = if *kind == NameKind::Stripe { "stripe" } else { name };
                match scope.find(name) {
                    Some(Meaning::Value(value) | Meaning::Placed(value, _)) => Ok(value.clone()),
                    Some(Meaning::Row(row, there)) => {
                        let (row, mut there) = (row.clone(), there.clone());
                        there.by_lane = scope.by_lane;
                        self.value(&there, &row, i, out)
                    }
                    Some(Meaning::Message(_)) => Err(format!("`{name}` is a whole message here")),
                    None if *kind == NameKind::Stripe => {
                        Err("`stripe` has a value only where a role is dealt out by stripes".into())
                    }
                    None => Err(format!("`{name}` has no value here")),
                }
            }
        }
    }

    /// A number of the shape, with the values that it may have.
    pub(super) fn number(&self, name: &str) -> Term {
        let constant = Term::name(format!("Cfg::{}", constant(name)), Elem::I32);
        Term { range: self.range_of(name), ..constant }
    }

    fn range_of(&self, name: &str) -> Option<(i64, i64)> {
        if let Some(tune) = self.ir.tunes.iter().find(|tune| tune.name == name) {
            return Some((*tune.choices.first()?, *tune.choices.last()?));
        }
        match &self.ir.dims.iter().find(|dim| dim.name == name)?.kind {
            DimKind::Given { low, high, .. } => Some((*low, *high)),
            // What the plan takes fits: every constant has 32 bits.
            DimKind::Derived { .. } => Some((0, i64::from(i32::MAX))),
        }
    }

    /// This rank.
    pub(super) fn me(&self) -> Term {
        self.uses_me.set(true);
        let ranks = self.range_of("ranks").map_or(i64::from(i32::MAX), |(_, high)| high);
        Term::small("me", 0, ranks - 1)
    }

    /// A size that the caller gives, or what the device computes it from.
    pub(super) fn size(&mut self, scope: &Scope, name: &str, out: &mut Vec<Step>) -> Lowered<Term> {
        let size = self.ir.sizes.iter().find(|size| size.name == name);
        match size.and_then(|size| size.value.as_ref()) {
            Some(value) => self.scalar(scope, value, out),
            None => {
                let word = |suffix| Term::name(format!("args.{name}{suffix}"), Elem::I32);
                let rows = Term::call("ep::rows_of", vec![word(""), word("_from")], Elem::I32);
                Ok(Term { range: Some((0, i64::from(i32::MAX))), ..rows })
            }
        }
    }

    /// How many rows the stripes share: those that the caller gives, else those of the device.
    pub(super) fn striped(&mut self, scope: &Scope, out: &mut Vec<Step>) -> Lowered<Term> {
        let given = self.ir.sizes.iter().find(|size| size.value.is_none());
        let size = given.or(self.ir.sizes.first());
        let size = size.ok_or("no size says how many rows the stripes share")?;
        self.size(scope, &size.name.clone(), out)
    }

    /// What a loop or fold over numbers runs over.
    pub(super) fn numbers(
        &mut self,
        scope: &Scope,
        domain: &Domain,
        out: &mut Vec<Step>,
    ) -> Lowered<Numbers> {
        let upto = |to| Numbers { from: Term::int(0), to, others: false };
        Ok(match domain {
            Domain::Dim { name } => upto(self.number(name)),
            Domain::Tokens => upto(self.size(scope, "tokens", out)?),
            Domain::Peers { set } => {
                let to = self.number(self.peers_of(set)?);
                Numbers { others: *set == PeerSet::Others, ..upto(to) }
            }
            Domain::Range { low, high } => Numbers {
                from: self.scalar(scope, low, out)?,
                to: self.scalar(scope, high, out)?,
                others: false,
            },
            Domain::Stripe => {
                let stripe = self.scalar(scope, &STRIPE, out)?;
                let rows = self.striped(scope, out)?;
                let span = self.names.fresh("rows");
                out.push(Step::Object {
                    class: "const ep::Span".to_string(),
                    name: span.clone(),
                    args: vec![Term::call(
                        "ep::stripe_span",
                        vec![rows, self.number("stripes"), stripe],
                        Elem::I32,
                    )],
                });
                Numbers {
                    from: Term::index(format!("{span}.begin")),
                    to: Term::index(format!("{span}.end")),
                    others: false,
                }
            }
            Domain::Row { .. } | Domain::ReceivedFrom { .. } => {
                return Err("a fold runs over numbers".to_string());
            }
        })
    }

    /// The number that says how many peers a set has.
    pub(super) fn peers_of(&self, set: &PeerSet) -> Lowered<&'static str> {
        let number = match set {
            PeerSet::All | PeerSet::Others => "ranks",
            PeerSet::Local => "local_ranks",
            PeerSet::Rail => "nodes",
        };
        match self.ir.dims.iter().any(|dim| dim.name == number) {
            true => Ok(number),
            false => Err(format!("this needs the number `{number}` in the shape")),
        }
    }

    fn element(
        &mut self,
        scope: &Scope,
        tensor: &Tensor,
        indices: &[Expr],
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let at = self.indices(scope, indices, out)?;
        if at.len() < tensor.dims.len() && i.is_none() {
            return Err(format!("`{}` is a row here, where one value is wanted", tensor.name));
        }
        if tensor.copies == 1 {
            return self.place(tensor, 0, None, at, i.cloned());
        }
        // The name of a tensor that comes several times stands for their sum.
        let total = self.names.fresh("sum");
        out.push(Step::Variable {
            name: total.clone(),
            elem: Elem::F32,
            value: Term::int(0).converted(&Elem::F32),
        });
        let total = Term::name(total, Elem::F32);
        self.add_copies(tensor, at, i, total.clone(), out)?;
        Ok(total)
    }

    /// Adds every copy of a tensor that came to `total`, one after the other.
    fn add_copies(
        &mut self,
        tensor: &Tensor,
        at: Vec<Term>,
        i: Option<&Term>,
        total: Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if tensor.copies == 1 {
            let value = self.place(tensor, 0, None, at, i.cloned())?.converted(&Elem::F32);
            let there = super::statements::there(tensor);
            let body = vec![Step::Increase { place: total, value }];
            out.push(Step::If { condition: there, body });
            return Ok(());
        }
        let copy = self.names.fresh("copy");
        let index = Term::small(&copy, 0, tensor.copies);
        let value = self.place(tensor, 0, Some(index), at, i.cloned())?.converted(&Elem::F32);
        out.push(Step::Loop(Loop {
            binder: copy,
            elem: Elem::I32,
            from: Term::int(0),
            to: Term::small(format!("args.{}_count", tensor.name), 0, tensor.copies),
            turns: Takers::Alone,
            body: vec![Step::Increase { place: total, value }],
        }));
        Ok(())
    }

    /// Indices as values.
    pub(super) fn indices(
        &mut self,
        scope: &Scope,
        indices: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<Vec<Term>> {
        indices.iter().map(|index| self.scalar(scope, index, out)).collect()
    }

    /// Element of one part of a tensor: at `indices`, and in what they leave open at `rest`.
    pub(super) fn place(
        &mut self,
        tensor: &Tensor,
        part: usize,
        copy: Option<Term>,
        indices: Vec<Term>,
        rest: Option<Term>,
    ) -> Lowered<Term> {
        let name = part_name(self, tensor, part);
        let parts = parts(self.ir, &tensor.elem);
        let (_, elem, _) =
            parts.get(part).ok_or_else(|| format!("`{}` has no part", tensor.name))?;
        let mut base = Term::name(format!("args.{name}"), elem.clone());
        if let Some(copy) = copy {
            base = base.at(copy, elem.clone());
        }
        let offset = self.offset(tensor, part, &name, indices, rest)?;
        Ok(base.at(offset, elem.clone()))
    }

    fn offset(
        &mut self,
        tensor: &Tensor,
        part: usize,
        name: &str,
        indices: Vec<Term>,
        rest: Option<Term>,
    ) -> Lowered<Term> {
        if has_row_stride(self.ir, tensor) || part > 0 {
            return self.strided(tensor, part, name, indices, rest);
        }
        let nothing = &mut Vec::new();
        let mut at: Option<Term> = None;
        let given = indices.len();
        for (dim, index) in tensor.dims.iter().zip(indices) {
            at = Some(match at {
                None => index,
                Some(outer) => {
                    let extent = self.scalar(&Scope::default(), dim, nothing)?;
                    outer.times(extent).plus(index)
                }
            });
        }
        let rest = rest.filter(|_| given < tensor.dims.len());
        let Some(rest) = rest else { return Ok(at.unwrap_or_else(|| Term::int(0))) };
        let Some(at) = at else { return Ok(rest) };
        let mut inner = Term::int(1);
        for dim in tensor.dims.iter().skip(given) {
            inner = inner.times(self.scalar(&Scope::default(), dim, nothing)?);
        }
        Ok(at.times(inner).plus(rest))
    }

    /// An element of a tensor whose rows may lie apart, and its columns too where it holds scales.
    fn strided(
        &mut self,
        tensor: &Tensor,
        part: usize,
        name: &str,
        mut indices: Vec<Term>,
        rest: Option<Term>,
    ) -> Lowered<Term> {
        let last = tensor.dims.len().saturating_sub(1);
        let column = if indices.len() > last { indices.pop() } else { None };
        let mut row = Term::int(0);
        let mut is_open = false;
        let mut given = indices.into_iter();
        for dim in &tensor.dims[..last] {
            let extent = self.scalar(&Scope::default(), dim, &mut Vec::new())?;
            let index = given.next();
            is_open |= index.is_none();
            row = row.times(extent).plus(index.unwrap_or_else(|| Term::int(0)));
        }
        let rest = column.or(rest).unwrap_or_else(|| Term::int(0));
        let column = match is_open {
            false => rest,
            // Several rows, one element after the other.
            true => {
                let width = self.width(tensor, part)?;
                row = row.plus(arithmetic(BinaryOp::Div, rest.clone(), width.clone()));
                arithmetic(BinaryOp::Rem, rest, width)
            }
        };
        let stride = |suffix: &str| Term::name(format!("args.{name}{suffix}"), Elem::I64);
        let column = if part == 0 { column } else { column.times(stride("_block_stride")) };
        Ok(row.times(stride("_stride")).plus(column))
    }

    /// Elements of a part in one row of a tensor.
    pub(super) fn width(&mut self, tensor: &Tensor, part: usize) -> Lowered<Term> {
        let last = tensor.dims.last().ok_or("a tensor without extents")?.clone();
        let elements = self.scalar(&Scope::default(), &last, &mut Vec::new())?;
        let (.., block) = parts(self.ir, &tensor.elem).into_iter().nth(part).ok_or("no part")?;
        Ok(match (part, block) {
            (0, _) => elements,
            _ => Term::call("ep::ceil", vec![elements, Term::int(block)], Elem::I32),
        })
    }

    fn field(
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
            Some(_) => Err(format!("`{of}` has no field `{field}` here")),
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
        found.or(first).ok_or_else(|| format!("`{}` has no part `{name}`", tensor.name))
    }

    /// A field of a message that has arrived, or of a part of it (`suffix`).
    pub(super) fn arrived(
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
            declared.ok_or_else(|| format!("`{}` has no field `{field}`", layout.name))?;
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
            let rest =
                i.ok_or_else(|| format!("`{field}` is a row here, where one value is wanted"))?;
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
        let get = format!("ep::get<{}>", super::elem_type(&elem));
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
            let (_, elem) = crate::ir::parts::row_field(self.ir, layout).ok_or("no row")?;
            return Ok((message.row.clone(), elem));
        }
        let name = format!("{field}{suffix}");
        let sources = meta_sources(self.ir, layout);
        let source = sources.iter().find(|source| source.name == name);
        let source = source.ok_or_else(|| format!("`{}` brings no `{name}`", channel.name))?;
        let offset =
            Term::name(format!("Cfg::{}::{}", layout.name, constant(&source.name)), Elem::I32);
        // Bytes, or words of slots: what a field begins with is counted in bytes for both.
        let base = Term {
            node: super::term::Node::Binary(
                BinaryOp::Add,
                Box::new(message.meta.clone()),
                Box::new(offset),
            ),
            elem: Elem::U8,
            range: None,
        };
        Ok((base, source.elem.clone()))
    }

    fn of_channel(
        &mut self,
        scope: &Scope,
        (name, index, field, inner): (&str, &[Expr], &str, &[Expr]),
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        if field == "position" {
            return match scope.find(&position_of(name)) {
                Some(Meaning::Value(position)) => Ok(position.clone()),
                _ => Err(format!("`{name}` has no position here: nothing was pushed")),
            };
        }
        let (channel, _) = self.carried(name)?;
        if let Some(word) = channel.header.iter().position(|known| known == field) {
            let peer = self.peer(scope, index, out)?;
            let number = Term::int(word as i64);
            let header =
                Term::call(format!("{}.header", self.object(name)), vec![peer, number], Elem::I32);
            // Waiting takes the whole warp.
            return Ok(self.named(field, header, out));
        }
        if channel.kind != ChannelKind::Slots {
            return Err(format!("`{name}.{field}` has no value here"));
        }
        let source = self.peer(scope, index, out)?;
        let words = Term::call(format!("{}.from", self.object(name)), vec![source], Elem::U8);
        let message = Arrived {
            channel: name.to_string(),
            row: words.clone(),
            meta: words,
            numbers: Vec::new(),
        };
        let at = self.indices(scope, inner, out)?;
        self.arrived(&message, field, "", at, i)
    }

    /// The peer that an index of a channel names.
    pub(super) fn peer(
        &mut self,
        scope: &Scope,
        index: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        match index {
            [peer] => self.scalar(scope, peer, out),
            _ => Err("a channel is indexed by one peer here".to_string()),
        }
    }

    /// A value under a name of its own.
    pub(super) fn named(&mut self, wanted: &str, value: Term, out: &mut Vec<Step>) -> Term {
        let name = self.names.fresh(wanted);
        let term = Term { range: value.range, ..Term::name(&name, value.elem.clone()) };
        out.push(Step::Let { name, value });
        term
    }

    fn binary(
        &mut self,
        scope: &Scope,
        op: &BinaryOp,
        left: &Expr,
        right: &Expr,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        if let (BinaryOp::Add, Expr::Element { tensor, indices }) = (op, right)
            && self.adds_what_came(left, self.tensor(tensor)?)
        {
            // Each copy that came is added to what stands on the left, in turn.
            let tensor = self.tensor(tensor)?;
            let value = self.value(scope, left, i, out)?.converted(&Elem::F32);
            let name = self.names.fresh("sum");
            out.push(Step::Variable { name: name.clone(), elem: Elem::F32, value });
            let total = Term::name(name, Elem::F32);
            let at = self.indices(scope, indices, out)?;
            self.add_copies(tensor, at, i, total.clone(), out)?;
            return Ok(total);
        }
        let first = self.value(scope, left, i, out)?;
        if matches!(op, BinaryOp::And | BinaryOp::Or) {
            return self.logical(scope, op, first, right, i, out);
        }
        let second = self.value(scope, right, i, out)?;
        let is_test = !matches!(
            op,
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem
        );
        Ok(match is_test {
            false => arithmetic(op.clone(), first, second),
            true if first.is_whole() && second.is_whole() => first.test(op.clone(), second),
            true => first.converted(&Elem::F32).test(op.clone(), second.converted(&Elem::F32)),
        })
    }

    /// `left && right` or `left || right`: what the right side takes to find out is done only where it
    /// counts.
    fn logical(
        &mut self,
        scope: &Scope,
        op: &BinaryOp,
        first: Term,
        right: &Expr,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let mut ahead = Vec::new();
        let second = self.value(scope, right, i, &mut ahead)?;
        if ahead.is_empty() {
            return Ok(first.test(op.clone(), second));
        }
        let name = self.names.fresh("holds");
        out.push(Step::Variable { name: name.clone(), elem: Elem::Bool, value: first });
        let holds = Term::name(name, Elem::Bool);
        let condition = match op {
            BinaryOp::And => holds.clone(),
            _ => holds.clone().negated(),
        };
        ahead.push(Step::Set { place: holds.clone(), value: second });
        out.push(Step::If { condition, body: ahead });
        Ok(holds)
    }

    /// `sum(binder in domain: body)`, in order.
    fn fold(
        &mut self,
        scope: &Scope,
        binder: &str,
        domain: &Domain,
        body: &Expr,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let numbers = self.numbers(scope, domain, out)?;
        let name = self.names.fresh(binder);
        let index = self.index_in(&name, &numbers);
        let inner = scope.with(binder, Meaning::Value(index.clone()));
        let mut steps = Vec::new();
        if numbers.others {
            steps.push(Step::SkipUnless(index.test(BinaryOp::Ne, self.me())));
        }
        let value = self.value(&inner, body, i, &mut steps)?;
        let elem = if value.is_whole() { Elem::I64 } else { Elem::F32 };
        let total = self.names.fresh("sum");
        out.push(Step::Variable {
            name: total.clone(),
            elem: elem.clone(),
            value: Term::int(0).converted(&elem),
        });
        let total = Term::name(total, elem.clone());
        steps.push(Step::Increase { place: total.clone(), value: value.converted(&elem) });
        out.push(counted_loop(name, numbers, Takers::Alone, steps));
        Ok(total)
    }

    /// The number of a loop under its name in the text.
    pub(super) fn index_in(&self, name: &str, numbers: &Numbers) -> Term {
        match (numbers.from.range, numbers.to.range) {
            (Some((low, _)), Some((_, high))) if numbers_fit(numbers) => {
                Term::small(name, low, (high - 1).max(low))
            }
            _ => Term::name(name, Elem::I64),
        }
    }

    fn call(
        &mut self,
        scope: &Scope,
        helper: &str,
        args: &[Expr],
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        match (helper, args) {
            ("listed", [row, expert]) => self.listed(scope, row, expert, out),
            ("routed", [row, rank]) => {
                let first = self.scalar(scope, rank, out)?;
                let next = first.clone().plus(Term::int(1));
                self.routed(scope, row, (first, next), out)
            }
            ("routed_node", [row, node]) => {
                let each = self.number("local_ranks");
                let first = self.scalar(scope, node, out)?.times(each.clone());
                let next = first.clone().plus(each);
                self.routed(scope, row, (first, next), out)
            }
            ("owned", [row, rank]) => self.owned(scope, row, rank, i, out),
            ("sum", [value]) => self.sum_of_parts(scope, value, i, out),
            ("local", [expert, rank]) => {
                let expert = self.value(scope, expert, i, out)?;
                let rank = self.scalar(scope, rank, out)?;
                let experts = vec![self.expert_begin()?, rank, expert];
                Ok(Term::call("ep::local_expert", experts, Elem::I32))
            }
            ("owner", [expert]) => {
                let expert = self.scalar(scope, expert, out)?;
                let args = vec![expert, self.expert_begin()?];
                Ok(Term::call("ep::owner<Cfg::kRanks>", args, Elem::I32))
            }
            ("any", [bits]) => {
                Ok(self.value(scope, bits, i, out)?.test(BinaryOp::Ne, Term::int(0)))
            }
            ("node" | "local_rank", [rank]) => {
                let op = if helper == "node" { BinaryOp::Div } else { BinaryOp::Rem };
                let rank = self.scalar(scope, rank, out)?;
                Ok(arithmetic(op, rank, self.number("local_ranks")))
            }
            ("rank_at", [node, local]) => {
                let node = self.scalar(scope, node, out)?;
                let local = self.scalar(scope, local, out)?;
                Ok(node.times(self.number("local_ranks")).plus(local))
            }
            ("has" | "min" | "max" | "align" | "ceil", [_, _]) => {
                let mut values = Vec::new();
                for arg in args {
                    values.push(self.value(scope, arg, i, out)?.wide());
                }
                let elem = if helper == "has" { Elem::Bool } else { Elem::I64 };
                Ok(Term::call(format!("ep::{helper}"), values, elem))
            }
            _ => self.own_function(scope, helper, args, i, out),
        }
    }

    /// A device function of the user.
    fn own_function(
        &mut self,
        scope: &Scope,
        name: &str,
        args: &[Expr],
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let ir = self.ir;
        let own = ir.cuda_fns.iter().find(|own| own.name == name);
        let own = own.ok_or_else(|| format!("`{name}` has no CUDA text yet"))?;
        let mut values = Vec::new();
        for (arg, param) in args.iter().zip(&own.params) {
            values.push(self.value(scope, arg, i, out)?.converted(&param.elem));
        }
        Ok(Term::call(name, values, own.returns.clone()))
    }

    pub(super) fn expert_begin(&self) -> Lowered<Term> {
        let known = self.ir.tensors.iter().any(|tensor| {
            tensor.name == "expert_begin"
                && tensor.elem == ElemType::Scalar { elem: Elem::I32 }
                && tensor.dims.len() == 1
        });
        match known {
            true => Ok(Term::name("args.expert_begin", Elem::I32)),
            false => Err("this needs the input `expert_begin: i32[ranks + 1]`".to_string()),
        }
    }

    /// `found` becomes true where `holds(entry)` does for an entry of a row.
    fn any_entry(
        &mut self,
        scope: &Scope,
        row: &Expr,
        out: &mut Vec<Step>,
        holds: impl FnOnce(Term) -> Term,
    ) -> Lowered<Term> {
        let count = self.row_width(scope, row)?;
        let found = self.names.fresh("found");
        out.push(Step::Variable {
            name: found.clone(),
            elem: Elem::Bool,
            value: Term::bool(false),
        });
        let found = Term::name(found, Elem::Bool);
        let k = self.names.fresh("k");
        let mut steps = Vec::new();
        let entry = self.value(scope, row, Some(&Term::index(&k)), &mut steps)?;
        let value = found.clone().test(BinaryOp::Or, holds(entry));
        steps.push(Step::Set { place: found.clone(), value });
        let numbers = Numbers { from: Term::int(0), to: count, others: false };
        out.push(counted_loop(k, numbers, Takers::Alone, steps));
        Ok(found)
    }

    fn listed(
        &mut self,
        scope: &Scope,
        row: &Expr,
        expert: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let expert = self.scalar(scope, expert, out)?;
        self.any_entry(scope, row, out, |entry| entry.test(BinaryOp::Eq, expert))
    }

    /// Whether an entry of the row lives on one of the ranks from `first` up to `next`.
    fn routed(
        &mut self,
        scope: &Scope,
        row: &Expr,
        (first, next): (Term, Term),
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let begins = self.expert_begin()?;
        let first = self.named("first_expert", begins.clone().at(first, Elem::I32), out);
        let next = self.named("next_expert", begins.at(next, Elem::I32), out);
        self.any_entry(scope, row, out, |entry| {
            let above = entry.clone().test(BinaryOp::Ge, first);
            above.and(entry.test(BinaryOp::Lt, next))
        })
    }

    /// The entries of the experts of a rank; zero behind the last.
    fn owned(
        &mut self,
        scope: &Scope,
        row: &Expr,
        rank: &Expr,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let i = i.ok_or("`owned` gives a row")?;
        let begins = self.expert_begin()?;
        let rank = self.scalar(scope, rank, out)?;
        let first = self.named("first_expert", begins.clone().at(rank.clone(), Elem::I32), out);
        let next = begins.at(rank.plus(Term::int(1)), Elem::I32);
        let at = self.named("expert", first.plus(i.clone()), out);
        let value = self.value(scope, row, Some(&at), out)?;
        let zero = Term::int(0).converted(&value.elem);
        Ok(at.test(BinaryOp::Lt, next).choose(value, zero))
    }

    /// `sum(value)` over the parts that a gather has brought together, in order of the peers.
    fn sum_of_parts(
        &mut self,
        scope: &Scope,
        value: &Expr,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let parts: Parts = scope.parts.clone().ok_or("`sum` adds up the parts of a gather")?;
        let peer = self.names.fresh(&parts.across);
        let index = Term { range: parts.peers.range, ..Term::name(&peer, Elem::I32) };
        let mut steps = Vec::new();
        let pointer =
            |of: &str| Term::call(format!("{}.{of}", parts.object), vec![index.clone()], Elem::U8);
        let row = self.names.fresh("row");
        let meta = self.names.fresh("meta");
        let bytes = |name: &String, value| Step::Pointer {
            name: name.clone(),
            to: None,
            read_only: true,
            value,
        };
        let (_, layout) = self.carried(&parts.channel)?;
        let (mut of_row, mut of_meta) = (false, false);
        crate::ir::walk::expr(value, &mut |part| {
            if let Expr::Field { of, field, .. } = part
                && *of == parts.part
            {
                let is_row = layout.fields.iter().any(|known| known.row && known.name == *field);
                *(if is_row { &mut of_row } else { &mut of_meta }) = true;
            }
        });
        for (used, name, what) in [(of_row, &row, "row"), (of_meta, &meta, "meta")] {
            if used {
                steps.push(bytes(name, pointer(what)));
            }
        }
        let there = Term::call(format!("{}.has", parts.object), vec![index.clone()], Elem::Bool);
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
        let elem = if value.is_whole() { Elem::I64 } else { Elem::F32 };
        let total = self.names.fresh("sum");
        let zero = Term::int(0).converted(&elem);
        out.push(Step::Variable { name: total.clone(), elem: elem.clone(), value: zero });
        let total = Term::name(total, elem.clone());
        adds.push(Step::Increase { place: total.clone(), value: value.converted(&elem) });
        steps.push(Step::If { condition: there, body: adds });
        let numbers = Numbers { from: Term::int(0), to: parts.peers.clone(), others: false };
        out.push(counted_loop(peer, numbers, Takers::Alone, steps));
        Ok(total)
    }

    /// How many elements a row has.
    pub(super) fn row_width(&mut self, scope: &Scope, row: &Expr) -> Lowered<Term> {
        let nothing = &mut Vec::new();
        let dims = match row {
            Expr::Element { tensor, indices } => {
                let tensor = self.tensor(tensor)?;
                tensor.dims[indices.len().min(tensor.dims.len())..].to_vec()
            }
            Expr::Field { of, field, indices } => match scope.find(of) {
                Some(Meaning::Message(arrived)) => {
                    let (_, layout) = self.carried(&arrived.channel)?;
                    let known = layout.fields.iter().find(|known| known.name == *field);
                    let known = known.ok_or_else(|| format!("no field `{field}`"))?;
                    known.dims[indices.len().min(known.dims.len())..].to_vec()
                }
                _ => self.tensor(of)?.dims.get(indices.len()..).unwrap_or_default().to_vec(),
            },
            Expr::Name { name, .. } => match scope.find(name).cloned() {
                Some(Meaning::Row(row, there)) => return self.row_width(&there, &row),
                _ => Vec::new(),
            },
            Expr::OfChannel { channel, field, indices, .. } => {
                let (_, layout) = self.carried(channel)?;
                let known = layout.fields.iter().find(|known| known.name == *field);
                known
                    .map(|known| known.dims[indices.len().min(known.dims.len())..].to_vec())
                    .unwrap_or_default()
            }
            Expr::Call { helper, .. } if helper == "owned" => {
                return Ok(self.number("local_experts"));
            }
            Expr::Call { args, .. } => {
                return self.widest(scope, args.iter());
            }
            Expr::Cast { value, .. } | Expr::Not { value } => return self.row_width(scope, value),
            Expr::Binary { left, right, .. } => {
                return self.widest(scope, [&**left, &**right].into_iter());
            }
            _ => Vec::new(),
        };
        let mut width = Term::int(1);
        for dim in &dims {
            width = width.times(self.scalar(&Scope::default(), dim, nothing)?);
        }
        Ok(width)
    }

    fn widest<'e>(&mut self, scope: &Scope, of: impl Iterator<Item = &'e Expr>) -> Lowered<Term> {
        let mut found = Term::int(1);
        for expr in of {
            let width = self.row_width(scope, expr)?;
            if !width.is(1) {
                found = width;
            }
        }
        Ok(found)
    }
}

/// The current stripe.
pub(super) const STRIPE: Expr = Expr::Name { name: String::new(), kind: NameKind::Stripe };

/// Whether a loop over these numbers can count in 32 bits.
fn numbers_fit(numbers: &Numbers) -> bool {
    numbers.from.elem != Elem::I64 && numbers.to.elem != Elem::I64
}

/// A loop over numbers.
pub(super) fn counted_loop(
    binder: String,
    numbers: Numbers,
    turns: Takers,
    body: Vec<Step>,
) -> Step {
    let elem =
        if numbers_fit(&numbers) && numbers.to.range.is_some() && numbers.from.range.is_some() {
            Elem::I32
        } else {
            Elem::I64
        };
    Step::Loop(Loop { binder, elem, from: numbers.from, to: numbers.to, turns, body })
}

/// The name of a part of a tensor in `struct Args`.
pub(super) fn part_name(role: &RoleLowering<'_>, tensor: &Tensor, part: usize) -> String {
    let suffix = parts(role.ir, &tensor.elem).into_iter().nth(part).map(|(suffix, ..)| suffix);
    format!("{}{}", tensor.name, suffix.unwrap_or_default())
}
