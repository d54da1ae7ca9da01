//! Rows in fewer bits: the warp casts a row block by block, each with a scale of its own, and `as f32` reads
//! such a row.

use crate::ir::helpers::casts_to;
use crate::ir::parts::{Code, parts};
use crate::ir::{BinaryOp, Elem, ElemType, Expr, Tensor};
use crate::schedule::library::ep;
use crate::schedule::limit::{Limit, broken};
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::term::{Term, arithmetic};
use crate::schedule::{Lowered, RoleLowering};

/// A row that is cast: to what, what it is made of, where its names mean what they do, and its block.
pub(in crate::schedule) struct Cast {
    code: Code,
    row: Expr,
    there: Scope,
    block: Expr,
}

/// Writes a value to its place: the element of a part.
pub(in crate::schedule) type Put<'a, 'f> =
    dyn FnMut(&mut RoleLowering<'a>, usize, Term, Term) -> Lowered<Step> + 'f;

/// What is done with an element of a block: its index, and its value.
type Each<'a, 'f> = dyn FnMut(&mut RoleLowering<'a>, Term, Term) -> Lowered<Vec<Step>> + 'f;

/// Codes of logfmt10 whose upper bits share a byte.
const FOUR: i64 = 4;

impl<'a> RoleLowering<'a> {
    /// The cast that an expression is, if it is one.
    pub(in crate::schedule) fn cast_of(&self, scope: &Scope, value: &Expr) -> Option<Cast> {
        match value {
            Expr::Call { helper, args } => {
                let code = casts_to(helper)?;
                let [row, block] = args.as_slice() else { return None };
                Some(Cast { code, row: row.clone(), there: scope.clone(), block: block.clone() })
            }
            Expr::Name { name, .. } => match scope.find(name)? {
                Meaning::Row(row, there) => self.cast_of(there, row),
                _ => None,
            },
            _ => None,
        }
    }

    /// Casts a row of `width` elements to a place of this type; `put` writes what comes of it.
    pub(in crate::schedule) fn cast(
        &mut self,
        cast: &Cast,
        (width, elem): (Term, &ElemType),
        put: &mut Put<'a, '_>,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if cast.there.by_lane {
            return Err(broken("a whole warp casts a row"));
        }
        let all = parts(self.ir, elem);
        if Code::of_elem(self.ir, elem) != Some(cast.code) {
            let name = cast.code.name();
            return Err(broken(format!("a row that is cast to {name} goes to a row of its parts")));
        }
        let size = self.scalar(&cast.there, &cast.block, out)?;
        if cast.code == Code::Logfmt10 && !size.is(all[2].2) {
            return Err(Limit::CastBlocks.of(&[&all[2].2.to_string()]));
        }
        let count = Term::call(ep::ceil, vec![width.clone(), size.clone()], Elem::I32);
        let name = self.names.fresh("block");
        let block = Term::index(&name);
        let mut body = Vec::new();
        let first = self.named("first", block.clone().times(size.clone()), &mut body);
        let first = first.converted(&Elem::I32);
        let end =
            Term::call(ep::min, vec![first.clone().plus(size).wide(), width.wide()], Elem::I64);
        let end = self.named("end", end.converted(&Elem::I32), &mut body);
        match cast.code {
            Code::E4m3 => {
                self.cast_e4m3(cast, (block, first, end), (&all[1].1, put), &mut body)?;
            }
            Code::Logfmt10 => self.cast_logfmt10(cast, (block, first, end), put, &mut body)?,
        }
        out.push(Step::Loop(Loop {
            binder: name,
            elem: Elem::I32,
            from: Term::int(0),
            to: count,
            turns: Takers::Alone,
            body,
        }));
        Ok(())
    }

    /// A block, from `first` to `end`, as e4m3 and a scale.
    fn cast_e4m3(
        &mut self,
        cast: &Cast,
        (block, first, end): (Term, Term, Term),
        (scale, put): (&Elem, &mut Put<'a, '_>),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let peak = self.variable("peak", Elem::F32, out);
        self.each_of_range(cast, (&first, &end, Takers::Lanes), out, &mut |_, _, value| {
            let args = vec![peak.clone(), value];
            let value = Term::call(ep::greater_magnitude, args, Elem::F32);
            Ok(vec![Step::Set { place: peak.clone(), value }])
        })?;
        let exact = Term::call(ep::block_scale, vec![peak.clone()], Elem::F32);
        let exact = self.named("scale", exact.converted(scale), out);
        let factor = exact.clone().converted(&Elem::F32);
        self.each_of_range(cast, (&first, &end, Takers::Lanes), out, &mut |this, i, value| {
            let code = arithmetic(BinaryOp::Div, value, factor.clone()).converted(&Elem::E4m3);
            Ok(vec![put(this, 0, i, code)?])
        })?;
        out.push(Step::Leader(vec![put(self, 1, block, exact)?]));
        Ok(())
    }

    /// A block, from `first` to `end`, as logfmt10; four codes share a byte of upper bits, so a lane takes four.
    fn cast_logfmt10(
        &mut self,
        cast: &Cast,
        (block, first, end): (Term, Term, Term),
        put: &mut Put<'a, '_>,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let least = self.variable("least", Elem::F32, out);
        let peak = self.variable("peak", Elem::F32, out);
        self.each_of_range(cast, (&first, &end, Takers::Lanes), out, &mut |this, _, value| {
            let mut steps = Vec::new();
            let value = this.named("value", value, &mut steps);
            for (place, function) in
                [(&least, ep::lesser_magnitude), (&peak, ep::greater_magnitude)]
            {
                let value = Term::call(function, vec![place.clone(), value.clone()], Elem::F32);
                steps.push(Step::Set { place: place.clone(), value });
            }
            Ok(steps)
        })?;
        let least = Term::call(ep::block_least, vec![least], Elem::F32);
        let peak = Term::call(ep::block_peak, vec![peak], Elem::F32);
        let (least, peak) = (self.named("least", least, out), self.named("peak", peak, out));
        let low = Term::call(ep::log_low, vec![least, peak.clone()], Elem::F32);
        let low = self.named("low", low, out);
        let step = Term::call(ep::log_step, vec![low.clone(), peak], Elem::F32);
        let step = self.named("step", step, out);
        let name = self.names.fresh("four");
        let four = Term::index(&name);
        let begin = four.clone().times(Term::int(FOUR)).converted(&Elem::I32);
        let most = begin.clone().plus(Term::int(FOUR)).wide();
        let stop = Term::call(ep::min, vec![most, end.clone().wide()], Elem::I64);
        let mut body = Vec::new();
        let upper = self.variable("upper", Elem::I32, &mut body);
        let range = (&begin, &stop.converted(&Elem::I32), Takers::Alone);
        self.each_of_range(cast, range, &mut body, &mut |this, i, value| {
            let mut steps = Vec::new();
            let args = vec![value, low.clone(), step.clone()];
            let code = Term::call(ep::to_logfmt10, args, Elem::I32);
            let code = this.named("code", code, &mut steps);
            steps.push(put(this, 0, i.clone(), code.clone().converted(&Elem::U8))?);
            let more = Term::call(ep::with_upper, vec![upper.clone(), code, i], Elem::I32);
            steps.push(Step::Set { place: upper.clone(), value: more });
            Ok(steps)
        })?;
        body.push(put(self, 1, four, upper.converted(&Elem::U8))?);
        out.push(Step::Loop(Loop {
            binder: name,
            elem: Elem::I32,
            from: arithmetic(BinaryOp::Div, first, Term::int(FOUR)).converted(&Elem::I32),
            to: Term::call(ep::ceil, vec![end, Term::int(FOUR)], Elem::I32),
            turns: Takers::Lanes,
            body,
        }));
        let range = [put(self, 2, block.clone(), low)?, put(self, 3, block, step)?];
        out.push(Step::Leader(range.into()));
        Ok(())
    }

    /// A number that begins with zero and is changed.
    fn variable(&mut self, wanted: &str, elem: Elem, out: &mut Vec<Step>) -> Term {
        let name = self.names.fresh(wanted);
        let value = Term::int(0).converted(&elem);
        out.push(Step::Variable { name: name.clone(), elem: elem.clone(), value });
        Term::name(name, elem)
    }

    /// `value as f32`, if it is a row that a cast has made: its element `i`.
    pub(in crate::schedule) fn decoded(
        &mut self,
        scope: &Scope,
        value: &Expr,
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Option<Term>> {
        let Some(elem) = self.row_elem(scope, value) else { return Ok(None) };
        let Some(code) = Code::of_elem(self.ir, &elem) else { return Ok(None) };
        let i = i.ok_or(broken("a row with scales is read as a row"))?;
        let mut found = Vec::new();
        for (part, (_, _, block)) in parts(self.ir, &elem).into_iter().enumerate() {
            let at = arithmetic(BinaryOp::Div, i.clone(), Term::int(block)).converted(&Elem::I32);
            let at = if block == 1 { i.clone() } else { at };
            found.push(self.part_value(scope, value, part, &at, out)?);
        }
        Ok(Some(match code {
            Code::E4m3 => {
                let scale = found.swap_remove(1).converted(&Elem::F32);
                arithmetic(BinaryOp::Mul, found.swap_remove(0).converted(&Elem::F32), scale)
            }
            Code::Logfmt10 => {
                found.insert(2, i.clone());
                Term::call(ep::from_logfmt10, found, Elem::F32)
            }
        }))
    }

    /// The element type of a row that lies somewhere.
    fn row_elem(&self, scope: &Scope, value: &Expr) -> Option<ElemType> {
        match value {
            Expr::Element { tensor, .. } => Some(self.tensor(tensor).ok()?.elem.clone()),
            Expr::Field { of, field, .. } => {
                let Meaning::Message(arrived) = scope.find(of)? else { return None };
                let (_, layout) = self.carried(&arrived.channel).ok()?;
                let known = layout.fields.iter().find(|known| known.name == *field)?;
                Some(known.elem.clone())
            }
            Expr::Name { name, .. } => match scope.find(name)? {
                Meaning::Row(row, there) => self.row_elem(there, row),
                _ => None,
            },
            _ => None,
        }
    }

    /// Steps for each element of a range.
    fn each_of_range(
        &mut self,
        cast: &Cast,
        (first, end, turns): (&Term, &Term, Takers),
        out: &mut Vec<Step>,
        steps: &mut Each<'a, '_>,
    ) -> Lowered<()> {
        let name = self.names.fresh("i");
        let i = Term::index(&name);
        let mut body = Vec::new();
        let value = self.value(&cast.there.of_lane(), &cast.row, Some(&i), &mut body)?;
        body.extend(steps(self, i, value.converted(&Elem::F32))?);
        let (from, to) = (first.clone(), end.clone());
        out.push(Step::Loop(Loop { binder: name, elem: Elem::I32, from, to, turns, body }));
        Ok(())
    }

    /// `store rows[..] = cast_e4m3(row, block);` and the like.
    pub(super) fn write_cast(
        &mut self,
        scope: &Scope,
        (tensor, cast): (&Tensor, &Cast),
        indices: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if indices.len() + 1 != tensor.dims.len() {
            return Err(broken("a row that is cast has one extent"));
        }
        let at = self.indices(scope, indices, out)?;
        let width = self.width(tensor, 0)?;
        let mut set = |this: &mut RoleLowering<'a>, part: usize, i: Term, value: Term| {
            let place = this.place(tensor, part, None, at.clone(), Some(i))?;
            Ok(Step::Set { place, value })
        };
        self.cast(cast, (width, &tensor.elem), &mut set, out)
    }
}
