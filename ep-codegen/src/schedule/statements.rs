//! Statements other than those of channels, for a warp or for one lane.

use super::extents::is_one_more;
use super::scope::{Meaning, Scope, position_of};
use super::step::{Loop, Step, Takers};
use super::term::{Term, arithmetic};
use super::value::counted_loop;
use super::{Lowered, RoleLowering, elem_type};
use crate::ir::counting::{Counting, counted};
use crate::ir::naming::constant;
use crate::ir::parts::parts;
use crate::ir::{
    Action, BinaryOp, Domain, Elem, ElemType, Expr, Memory, NameKind, Place, Stmt, Tensor, walk,
};

/// What is done with an element: its index, what names mean there, and what comes before.
pub(super) type PerElement<'a, 'f> =
    dyn FnMut(&mut RoleLowering<'a>, &Term, &Scope, &mut Vec<Step>) -> Lowered<Step> + 'f;

/// One value, or one of a row.
enum Width {
    One,
    Row(Term),
}

impl<'a> RoleLowering<'a> {
    /// The statements of a block; names that it gives end with it.
    pub(super) fn body(&mut self, scope: &Scope, body: &[Stmt], out: &mut Vec<Step>) {
        let mut scope = scope.clone();
        for stmt in body {
            self.one(&mut scope, stmt, out);
        }
    }

    /// One statement, skipped where an optional tensor that it needs is absent.
    pub(super) fn one(&mut self, scope: &mut Scope, stmt: &Stmt, out: &mut Vec<Step>) {
        let mut steps = Vec::new();
        if let Err(why) = self.statement(scope, stmt, &mut steps) {
            self.refuse(&stmt.at, why);
        }
        match self.presence(stmt) {
            Some(condition) => {
                if matches!(stmt.action, Action::Let { .. }) {
                    let why = "an optional tensor is used where its statement can be skipped";
                    self.refuse(&stmt.at, why.to_string());
                }
                out.push(Step::Says(stmt.at.clone()));
                out.push(Step::If { condition, body: steps });
            }
            None => {
                out.push(Step::Says(stmt.at.clone()));
                out.extend(steps);
            }
        }
    }

    /// That every optional tensor which `stmt` itself needs is there.
    fn presence(&self, stmt: &Stmt) -> Option<Term> {
        // A field comes with its tensor: without it there are no elements of it.
        if matches!(stmt.action, Action::Push { .. }) {
            return None;
        }
        let mut names: Vec<&str> =
            walk::target(stmt).map(|place| place.tensor.as_str()).into_iter().collect();
        walk::exprs(stmt, &mut |part| {
            if let Expr::Element { tensor, .. } | Expr::Field { of: tensor, .. } = part {
                names.push(tensor);
            }
        });
        let mut added: Vec<&str> = Vec::new();
        walk::exprs(stmt, &mut |part| {
            if let Expr::Binary { op: BinaryOp::Add, left, right } = part
                && let Expr::Element { tensor, .. } = &**right
                && sums_parts(left)
            {
                added.push(tensor);
            }
        });
        let optional = |tensor: &&Tensor| {
            let name = tensor.name.as_str();
            tensor.optional && names.contains(&name) && !added.contains(&name)
        };
        self.ir.tensors.iter().filter(optional).map(there).reduce(Term::and)
    }

    /// Whether `left + tensor` adds what came of a tensor to the sum of the parts of a gather: nothing, if
    /// nothing came.
    pub(super) fn adds_what_came(&self, left: &Expr, tensor: &Tensor) -> bool {
        tensor.copies > 1 || (tensor.optional && sums_parts(left))
    }

    fn statement(&mut self, scope: &mut Scope, stmt: &Stmt, out: &mut Vec<Step>) -> Lowered<()> {
        match &stmt.action {
            Action::For { .. } => self.repeat(scope, stmt, out),
            Action::Store { target, value } | Action::Record { target, value } => {
                self.write(scope, target, value, out)
            }
            Action::Add { target, value } => self.add(scope, target, value, out),
            Action::Count { target } => self.count(scope, target, out),
            Action::Let { name, value } => self.bind(scope, name, value, out),
            Action::Receive { .. } => self.receive(scope, stmt, out),
            Action::Gather { .. } => self.gather(scope, stmt, Takers::Serial, out),
            Action::Announce { channel, peer, values } => {
                self.announce(scope, channel, peer, values, out)
            }
            Action::Push { .. } => self.push(scope, stmt, out),
            Action::Await { channel } => self.await_slots(scope, channel, out),
            Action::Close { .. } => {
                Err("slots that are closed belong to phases, which have no CUDA text yet".into())
            }
        }
    }

    fn bind(
        &mut self,
        scope: &mut Scope,
        name: &str,
        value: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if !self.row_width(scope, value)?.is(1) || self.is_row(scope, value)? {
            // Rows have no place of their own: they are made where they are used.
            let there = scope.clone();
            scope.bind(name, Meaning::Row(value.clone(), there));
            return Ok(());
        }
        let value = self.scalar(scope, value, out)?;
        let term = self.named(name, value, out);
        scope.bind(name, Meaning::Value(term));
        Ok(())
    }

    /// Whether the expression gives a row, and not one value.
    pub(super) fn is_row(&self, scope: &Scope, expr: &Expr) -> Lowered<bool> {
        Ok(match expr {
            Expr::Element { tensor, indices } => indices.len() < self.tensor(tensor)?.dims.len(),
            Expr::Field { of, field, indices } => match scope.find(of) {
                Some(Meaning::Message(arrived)) => {
                    let (_, layout) = self.carried(&arrived.channel)?;
                    let known = layout.fields.iter().find(|known| known.name == *field);
                    known.is_some_and(|known| indices.len() < known.dims.len())
                }
                None => indices.len() < self.tensor(of)?.dims.len(),
                _ => false,
            },
            Expr::OfChannel { channel, field, indices, .. } => {
                let (_, layout) = self.carried(channel)?;
                let known = layout.fields.iter().find(|known| known.name == *field);
                known.is_some_and(|known| indices.len() < known.dims.len())
            }
            Expr::Name { name, .. } => matches!(scope.find(name), Some(Meaning::Row(..))),
            Expr::Call { helper, .. }
                if ["listed", "routed", "routed_node"].contains(&&**helper) =>
            {
                false
            }
            Expr::Call { helper, args } => {
                let mut row = helper == "owned";
                let inner = match (&scope.parts, helper.as_str()) {
                    (Some(parts), "sum") => {
                        let message = super::scope::Arrived {
                            channel: parts.channel.clone(),
                            row: Term::int(0),
                            meta: Term::int(0),
                            numbers: Vec::new(),
                        };
                        scope.with(&parts.part, Meaning::Message(message))
                    }
                    _ => scope.clone(),
                };
                for arg in args {
                    row |= self.is_row(&inner, arg)?;
                }
                row
            }
            Expr::Cast { value, .. } | Expr::Not { value } => self.is_row(scope, value)?,
            Expr::Binary { left, right, .. } => {
                self.is_row(scope, left)? || self.is_row(scope, right)?
            }
            Expr::Fold { body, .. } => self.is_row(scope, body)?,
            Expr::Int { .. } | Expr::Bool { .. } => false,
        })
    }

    /// `store place = value` or `record place = value`.
    fn write(
        &mut self,
        scope: &Scope,
        target: &Place,
        value: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let tensor = self.tensor(&target.tensor)?;
        if let Expr::Fold { prefix: true, binder, domain, body } = value {
            return self.prefix_sum(scope, tensor, target, (binder, domain, body), out);
        }
        self.before_write(scope, &target.tensor, out);
        let all = parts(self.ir, &tensor.elem);
        let is_row = target.indices.len() < tensor.dims.len();
        if all.len() > 1 && !is_row {
            return Err("a row with scales is written whole".to_string());
        }
        for part in 0..all.len() {
            if part == 0 && self.is_in_place(scope, tensor, value) {
                out.push(Step::Remark("The sender has stored it in place.".to_string()));
                continue;
            }
            let width = match is_row {
                true => Width::Row(self.open_width(tensor, part, target.indices.len())?),
                false => Width::One,
            };
            self.write_part(scope, (tensor, part), target, value, width, out)?;
        }
        self.after_write(scope, &target.tensor, out);
        Ok(())
    }

    /// How many elements of a part the missing indices of a place stand for.
    fn open_width(&mut self, tensor: &Tensor, part: usize, given: usize) -> Lowered<Term> {
        let last = tensor.dims.len().saturating_sub(1);
        let (lead, mut width) = match part {
            0 => (tensor.dims.len(), Term::int(1)),
            _ => (last, self.width(tensor, part)?),
        };
        for dim in &tensor.dims[given.min(lead)..lead] {
            width = width.times(self.scalar(&Scope::default(), dim, &mut Vec::new())?);
        }
        Ok(width)
    }

    fn write_part(
        &mut self,
        scope: &Scope,
        (tensor, part): (&Tensor, usize),
        target: &Place,
        value: &Expr,
        width: Width,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let at = self.indices(scope, &target.indices, out)?;
        let to_host = tensor.memory == Memory::Host;
        let elem = parts(self.ir, &tensor.elem)[part].1.clone();
        if to_host && elem != Elem::I32 {
            return Err(
                "what the host reads is `i32`: the word says by itself that it has come".into()
            );
        }
        let set = |place: Term, value: Term| match to_host {
            true => Step::Do(Term::call(
                "ep::store_host",
                vec![place.address(), value.converted(&Elem::I32)],
                Elem::I32,
            )),
            false => Step::Set { place, value: value.converted(&elem) },
        };
        match width {
            Width::One => {
                let value = self.scalar(scope, value, out)?;
                let place = self.place(tensor, part, None, at, None)?;
                self.by_leader(scope, vec![set(place, value)], out);
            }
            Width::Row(width) => {
                let turns = if scope.by_lane { Takers::Alone } else { Takers::Lanes };
                self.elements(scope, value, width, turns, out, &mut |this, i, own, steps| {
                    let value = this.part_value(own, value, part, i, steps)?;
                    let place = this.place(tensor, part, None, at.clone(), Some(i.clone()))?;
                    Ok(set(place, value))
                })?;
            }
        }
        Ok(())
    }

    /// A step for each element of a row. What takes the whole warp to find out an element is done by
    /// all lanes, those past the end with the last one.
    pub(super) fn elements(
        &mut self,
        scope: &Scope,
        value: &Expr,
        width: Term,
        turns: Takers,
        out: &mut Vec<Step>,
        step: &mut PerElement<'a, '_>,
    ) -> Lowered<()> {
        let name = self.names.fresh("i");
        let i = Term::index(&name);
        let mut body = Vec::new();
        if turns == Takers::Lanes && scope.parts.is_some() && sums_parts(value) {
            let base = self.names.fresh("base");
            let most = width.range.map_or(i64::from(i32::MAX), |(_, high)| high);
            let lane = Term::small("team.lane", 0, 31);
            let own = Term::small(&base, 0, most).plus(lane);
            let last = arithmetic(BinaryOp::Sub, width.clone(), Term::int(1));
            let inside = own.clone().test(BinaryOp::Lt, width.clone());
            let clamped = inside.clone().choose(own, last).converted(&Elem::I32);
            let body_of_last = step(self, &i, scope, &mut body)?;
            let mut steps = vec![Step::Let { name, value: clamped }];
            steps.append(&mut body);
            steps.push(Step::If { condition: inside, body: vec![body_of_last] });
            out.push(Step::Loop(Loop {
                binder: base,
                elem: Elem::I32,
                from: Term::int(0),
                to: width,
                turns: Takers::Chunks,
                body: steps,
            }));
            return Ok(());
        }
        let last = step(self, &i, &scope.of_lane(), &mut body)?;
        body.push(last);
        let numbers = super::value::Numbers { from: Term::int(0), to: width, others: false };
        out.push(counted_loop(name, numbers, turns, body));
        Ok(())
    }

    /// Element `i` of one part of a row.
    pub(super) fn part_value(
        &mut self,
        scope: &Scope,
        value: &Expr,
        part: usize,
        i: &Term,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        if part == 0 {
            return self.value(scope, value, Some(i), out);
        }
        match value {
            Expr::Element { tensor, indices } => {
                let tensor = self.tensor(tensor)?;
                let at = self.indices(scope, indices, out)?;
                self.place(tensor, part, None, at, Some(i.clone()))
            }
            Expr::Field { of, field, .. } => {
                let Some(Meaning::Message(arrived)) = scope.find(of).cloned() else {
                    return Err("a row with scales is copied whole".to_string());
                };
                let (_, layout) = self.carried(&arrived.channel)?;
                let known = layout.fields.iter().find(|known| known.name == *field);
                let elem = known.map(|known| known.elem.clone());
                let elem = elem.unwrap_or(ElemType::Scalar { elem: Elem::I32 });
                let all = parts(self.ir, &elem);
                let (suffix, ..) = all.get(part).ok_or("a row with scales is copied whole")?;
                self.arrived(&arrived, field, suffix, Vec::new(), Some(i))
            }
            Expr::Name { name, .. } => match scope.find(name).cloned() {
                Some(Meaning::Row(row, there)) => self.part_value(&there, &row, part, i, out),
                _ => Err("a row with scales is copied whole".to_string()),
            },
            _ => Err("a row with scales is copied whole".to_string()),
        }
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

    fn add(
        &mut self,
        scope: &Scope,
        target: &Place,
        value: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let tensor = self.tensor(&target.tensor)?;
        if tensor.memory == Memory::Host {
            return Err("what the host reads is stored, not added to".to_string());
        }
        if target.indices.len() < tensor.dims.len() {
            return Err("one element is added to at a time".to_string());
        }
        self.before_write(scope, &target.tensor, out);
        let at = self.indices(scope, &target.indices, out)?;
        let value = self.scalar(scope, value, out)?;
        let place = self.place(tensor, 0, None, at, None)?;
        let sum = arithmetic(BinaryOp::Add, place.clone(), value).converted(&place.elem);
        self.by_leader(scope, vec![Step::Set { place, value: sum }], out);
        self.after_write(scope, &target.tensor, out);
        Ok(())
    }

    fn count(&mut self, scope: &Scope, target: &Place, out: &mut Vec<Step>) -> Lowered<()> {
        let tensor = self.tensor(&target.tensor)?;
        let kind = counted(self.ir).into_iter().find(|(known, _)| known.name == tensor.name);
        let summed = kind.is_some_and(|(_, kind)| kind == Counting::Summed);
        let elem = parts(self.ir, &tensor.elem)[0].1.clone();
        let fits = match elem {
            Elem::I32 => summed || tensor.memory == Memory::Device,
            Elem::I64 => summed && tensor.memory == Memory::Device,
            _ => false,
        };
        if !fits {
            return Err(
                "counters are `i32`, or `i64` with extents of the shape, in device memory".into()
            );
        }
        self.before_write(scope, &target.tensor, out);
        let at = self.indices(scope, &target.indices, out)?;
        let place = self.place(tensor, 0, None, at, None)?;
        let step = match (summed, place.node.clone()) {
            (true, super::term::Node::Index(_, at)) => {
                let first =
                    Term::name(format!("Cfg::Counted::{}", constant(&tensor.name)), Elem::I32);
                let index = arithmetic(BinaryOp::Add, first, (*at).converted(&Elem::I32));
                let args = vec![index.converted(&Elem::I32), Term::int(1)];
                Step::Do(Term::call("counters.add", args, Elem::I32))
            }
            _ => {
                let args = vec![place.address(), Term::int(1)];
                Step::Do(Term::call("ep::add_count", args, Elem::I32))
            }
        };
        self.by_leader(scope, vec![step], out);
        self.after_write(scope, &target.tensor, out);
        Ok(())
    }

    /// `place = prefix_sum(binder in domain: body)`: one lane adds up.
    fn prefix_sum(
        &mut self,
        scope: &Scope,
        tensor: &Tensor,
        target: &Place,
        (binder, domain, body): (&str, &Domain, &Expr),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if target.indices.len() < tensor.dims.len() {
            return Err("a prefix sum is written element by element".to_string());
        }
        self.before_write(scope, &target.tensor, out);
        let own = scope.of_lane();
        let mut steps = Vec::new();
        let numbers = self.numbers(&own, domain, &mut steps)?;
        let name = self.names.fresh(binder);
        let index = self.index_in(&name, &numbers);
        let inner = own.with(binder, Meaning::Value(index.clone()));
        let mut turn = Vec::new();
        if numbers.others {
            turn.push(Step::SkipUnless(index.test(BinaryOp::Ne, self.me())));
        }
        let value = self.value(&inner, body, None, &mut turn)?;
        let elem = if value.is_whole() { Elem::I64 } else { Elem::F32 };
        let sum = self.names.fresh("sum");
        let zero = Term::int(0).converted(&elem);
        steps.push(Step::Variable { name: sum.clone(), elem: elem.clone(), value: zero });
        let sum = Term::name(sum, elem.clone());
        self.write_number(&inner, tensor, target, sum.clone(), &mut turn)?;
        turn.push(Step::Increase { place: sum.clone(), value: value.converted(&elem) });
        let end = numbers.to.clone();
        steps.push(counted_loop(name, numbers, Takers::Alone, turn));
        if has_total(self, tensor, target, binder, domain) {
            let behind = own.with(binder, Meaning::Value(end));
            self.write_number(&behind, tensor, target, sum, &mut steps)?;
        }
        self.by_leader(scope, steps, out);
        self.after_write(scope, &target.tensor, out);
        Ok(())
    }

    fn write_number(
        &mut self,
        scope: &Scope,
        tensor: &Tensor,
        target: &Place,
        value: Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let at = self.indices(scope, &target.indices, out)?;
        let place = self.place(tensor, 0, None, at, None)?;
        let elem = place.elem.clone();
        out.push(match tensor.memory {
            Memory::Host if elem == Elem::I32 => Step::Do(Term::call(
                "ep::store_host",
                vec![place.address(), value.converted(&elem)],
                elem,
            )),
            Memory::Host => return Err("what the host reads is `i32`".to_string()),
            _ => Step::Set { place, value: value.converted(&elem) },
        });
        Ok(())
    }

    /// The positions that a condition leaves out: each table says how far the channel has come.
    pub(super) fn absent(&mut self, scope: &Scope, body: &[Stmt], out: &mut Vec<Step>) {
        let mut scope = scope.clone();
        for stmt in body {
            if let Err(why) = self.absent_in(&mut scope, stmt, out) {
                self.refuse(&stmt.at, why);
            }
        }
    }

    fn absent_in(&mut self, scope: &mut Scope, stmt: &Stmt, out: &mut Vec<Step>) -> Lowered<()> {
        match &stmt.action {
            Action::Let { name, value } => self.bind(scope, name, value, out),
            Action::For { body, .. } if records_position(body) => {
                self.repeat_absent(scope, stmt, out)
            }
            Action::Record { target, value: Expr::OfChannel { channel, index, field, .. } }
                if field == "position" =>
            {
                let next = self.next_position(scope, channel, index, out)?;
                let value = arithmetic(BinaryOp::Sub, Term::int(-1), next);
                self.record_absent(scope, stmt, target, value, out)
            }
            Action::Record { target, value: Expr::Field { of, field, .. } }
                if field == "position" =>
            {
                let Some(Meaning::Placed(_, next)) = scope.find(of).cloned() else {
                    return Ok(());
                };
                let value = arithmetic(BinaryOp::Sub, Term::int(-1), next);
                self.record_absent(scope, stmt, target, value, out)
            }
            _ => Ok(()),
        }
    }

    fn record_absent(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        target: &Place,
        value: Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let tensor = self.tensor(&target.tensor)?;
        out.push(Step::Says(stmt.at.clone()));
        let mut steps = Vec::new();
        self.write_number(scope, tensor, target, value, &mut steps)?;
        self.by_leader(scope, steps, out);
        Ok(())
    }

    /// Whether `value` is the row of a direct message that its sender has stored in `tensor`.
    fn is_in_place(&self, scope: &Scope, tensor: &Tensor, value: &Expr) -> bool {
        let Expr::Field { of, field, .. } = value else { return false };
        let Some(Meaning::Message(arrived)) = scope.find(of) else { return false };
        let Ok((channel, layout)) = self.carried(&arrived.channel) else { return false };
        let is_row = layout.fields.iter().any(|known| known.row && known.name == *field);
        is_row
            && channel.kind == crate::ir::ChannelKind::Direct
            && crate::ir::rows::row_in_place(self.ir, channel)
                .is_some_and(|(_, place)| place.name == tensor.name)
    }

    /// `fill value beyond size` for the tensors that the role stores.
    pub(super) fn fills(&mut self, out: &mut Vec<Step>) {
        let mut stored: Vec<&str> = Vec::new();
        walk::stmts(&self.role.body, &mut |stmt| {
            stored.extend(walk::target(stmt).map(|place| place.tensor.as_str()));
        });
        let ir = self.ir;
        for tensor in ir.tensors.iter().filter(|tensor| stored.contains(&tensor.name.as_str())) {
            let (Some(value), Some(Expr::Name { name, kind: NameKind::Size })) =
                (tensor.fill, tensor.dims.first())
            else {
                continue;
            };
            if let Err(why) = self.fill(tensor, name, value, out) {
                self.refuse(&tensor.at, why);
            }
        }
    }

    fn fill(
        &mut self,
        tensor: &Tensor,
        size: &str,
        value: i64,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let derived = self.ir.sizes.iter().any(|known| known.name == size && known.value.is_some());
        if !derived {
            return Ok(());
        }
        let all = parts(self.ir, &tensor.elem);
        let [(_, elem, _)] = all.as_slice() else {
            return Err("rows with scales are not filled".to_string());
        };
        let mut width = self.open_width(tensor, 0, 1)?;
        if crate::ir::params::has_row_stride(self.ir, tensor) {
            width = Term::name(format!("args.{}_stride", tensor.name), Elem::I64);
        }
        if tensor.optional {
            width = there(tensor).choose(width.converted(&Elem::I32), Term::int(0));
        }
        let value = match elem {
            Elem::Bool => Term::bool(value != 0),
            _ => Term::int(value).converted(elem),
        };
        out.push(Step::Remark(format!(
            "{}: fill {} beyond {size}",
            tensor.name,
            tensor.fill.unwrap_or(0)
        )));
        let rows = self.size(&Scope::default(), size, out)?;
        let call = Term::call(
            format!("ep::fill<{}>", elem_type(elem)),
            vec![
                Term::name("team", Elem::I32),
                Term::name(format!("args.{}", tensor.name), elem.clone()),
                width.converted(&Elem::I32),
                rows.converted(&Elem::I32),
                Term::name(format!("args.{size}_capacity"), Elem::I32),
                value,
            ],
            Elem::I32,
        );
        out.push(Step::Do(call));
        Ok(())
    }
}

/// That an optional tensor is there.
pub(super) fn there(tensor: &Tensor) -> Term {
    let pointer = Term::name(format!("args.{}", tensor.name), Elem::I64);
    pointer.test(BinaryOp::Ne, Term::name("nullptr", Elem::I64))
}

/// Whether a table with one more entry than the domain takes the total there.
fn has_total(
    role: &RoleLowering<'_>,
    tensor: &Tensor,
    target: &Place,
    binder: &str,
    domain: &Domain,
) -> bool {
    let count = match domain {
        Domain::Dim { name } => name.as_str(),
        Domain::Peers { .. } => "ranks",
        _ => return false,
    };
    let axis = target
        .indices
        .iter()
        .position(|index| matches!(index, Expr::Name { name, .. } if name == binder));
    let extent = axis.and_then(|axis| tensor.dims.get(axis));
    extent.is_some_and(|extent| is_one_more(role.ir, extent, count))
}

/// Whether a block records the position of a push, or of a turn.
pub(super) fn records_position(body: &[Stmt]) -> bool {
    let mut found = false;
    walk::stmts(body, &mut |stmt| {
        found |= matches!(&stmt.action, Action::Record {
            value: Expr::OfChannel { field, .. } | Expr::Field { field, .. }, ..
        } if field == "position");
    });
    found
}

/// Whether a value adds up parts.
pub(super) fn sums_parts(value: &Expr) -> bool {
    let mut found = false;
    walk::expr(value, &mut |part| {
        found |= matches!(part, Expr::Call { helper, .. } if helper == "sum");
    });
    found
}

/// The name under which the last position of a channel is kept.
pub(super) fn bind_position(scope: &mut Scope, channel: &str, position: Term) {
    scope.bind(&position_of(channel), Meaning::Value(position));
}
