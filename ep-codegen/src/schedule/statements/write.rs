//! `store` and `record`: one value, or those of a row.

use super::reads_parts;
use crate::ir::parts::parts;
use crate::ir::{BinaryOp, Elem, ElemType, Expr, Fold, Memory, Place, Tensor, rows};
use crate::schedule::library::ep;
use crate::schedule::limit::Limit;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::term::{Term, arithmetic};
use crate::schedule::value::{Numbers, counted_loop};
use crate::schedule::{Lowered, RoleLowering};

/// What is done with an element: its index, what names mean there, and what comes before.
pub(super) type PerElement<'a, 'f> =
    dyn FnMut(&mut RoleLowering<'a>, &Term, &Scope, &mut Vec<Step>) -> Lowered<Step> + 'f;

/// One value, or one of a row.
enum Width {
    One,
    Row(Term),
}

impl<'a> RoleLowering<'a> {
    /// `store place = value` or `record place = value`.
    pub(super) fn write(
        &mut self,
        scope: &Scope,
        target: &Place,
        value: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let tensor = self.tensor(&target.tensor)?;
        if let Expr::Fold { fold: Fold::PrefixSum, binder, domain, body } = value {
            return self.prefix_sum(scope, (tensor, target, (binder, domain, body)), out);
        }
        self.before_write(scope, &target.tensor, out);
        if let Some(cast) = self.cast_of(scope, value) {
            return self.write_cast(scope, (tensor, &cast), &target.indices, out);
        }
        let all = parts(self.ir, &tensor.elem);
        let is_row = target.indices.len() < tensor.dims.len();
        if all.len() > 1 && !is_row {
            return Err(Limit::ScalesWritten.into());
        }
        for part in 0..all.len() {
            if part == 0 && self.is_in_place(scope, (tensor, &target.indices), value) {
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
    pub(super) fn open_width(
        &mut self,
        tensor: &Tensor,
        part: usize,
        given: usize,
    ) -> Lowered<Term> {
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
            return Err(Limit::HostElement.into());
        }
        let set = |place: Term, value: Term| match to_host {
            true => Step::Do(Term::call(
                ep::store_host,
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
    pub(in crate::schedule) fn elements(
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
        if turns == Takers::Lanes && reads_parts(scope, value) {
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
        let numbers = Numbers { from: Term::int(0), to: width, others: false };
        out.push(counted_loop(name, numbers, turns, body));
        Ok(())
    }

    /// Element `i` of one part of a row.
    pub(in crate::schedule) fn part_value(
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
                    return Err(Limit::ScalesCopied.into());
                };
                let (_, layout) = self.carried(&arrived.channel)?;
                let known = layout.fields.iter().find(|known| known.name == *field);
                let elem = known.map(|known| known.elem.clone());
                let elem = elem.unwrap_or(ElemType::Scalar { elem: Elem::I32 });
                let all = parts(self.ir, &elem);
                let (suffix, ..) = all.get(part).ok_or(Limit::ScalesCopied)?;
                self.arrived(&arrived, field, suffix, Vec::new(), Some(i))
            }
            Expr::Name { name, .. } => match scope.find(name).cloned() {
                Some(Meaning::Row(row, there)) => self.part_value(&there, &row, part, i, out),
                _ => Err(Limit::ScalesCopied.into()),
            },
            _ => Err(Limit::ScalesCopied.into()),
        }
    }

    pub(in crate::schedule) fn write_number(
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
                ep::store_host,
                vec![place.address(), value.converted(&elem)],
                elem,
            )),
            Memory::Host => return Err(Limit::HostElement.into()),
            _ => Step::Set { place, value: value.converted(&elem) },
        });
        Ok(())
    }

    /// Whether `value` is the row of a direct message that its sender has stored in a place.
    fn is_in_place(
        &self,
        scope: &Scope,
        (tensor, indices): (&Tensor, &[Expr]),
        value: &Expr,
    ) -> bool {
        let Expr::Field { of, field, .. } = value else { return false };
        let Some(Meaning::Message(arrived)) = scope.find(of) else { return false };
        let Ok((channel, layout)) = self.carried(&arrived.channel) else { return false };
        let is_row = layout.fields.iter().any(|known| known.row && known.name == *field);
        is_row
            && channel.kind.traits().lands
            && rows::is_own_row(indices, of)
            && rows::row_in_place(self.ir, channel)
                .is_some_and(|(_, place)| place.name == tensor.name)
    }
}
