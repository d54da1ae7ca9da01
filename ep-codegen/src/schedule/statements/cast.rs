//! `cast_e4m3(row, block)`: the warp casts a row block by block, each with a scale of its own.

use crate::ir::parts::parts;
use crate::ir::{BinaryOp, Elem, Expr, Tensor};
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::term::{Term, arithmetic};
use crate::schedule::{Lowered, RoleLowering};

/// A row that is cast: what it is made of, where its names mean what they do, and its block.
pub(in crate::schedule) struct Cast {
    row: Expr,
    there: Scope,
    block: Expr,
}

/// Writes a value to its place: element or scale number so many.
pub(in crate::schedule) type Put<'a, 'f> =
    dyn FnMut(&mut RoleLowering<'a>, Term, Term) -> Lowered<Step> + 'f;

impl<'a> RoleLowering<'a> {
    /// The cast that an expression is, if it is one.
    pub(in crate::schedule) fn cast_of(&self, scope: &Scope, value: &Expr) -> Option<Cast> {
        match value {
            Expr::Call { helper, args } if helper == "cast_e4m3" => {
                let [row, block] = args.as_slice() else { return None };
                Some(Cast { row: row.clone(), there: scope.clone(), block: block.clone() })
            }
            Expr::Name { name, .. } => match scope.find(name)? {
                Meaning::Row(row, there) => self.cast_of(there, row),
                _ => None,
            },
            _ => None,
        }
    }

    /// Casts a row of `width` elements; `codes` and `scales` write what comes of it.
    pub(in crate::schedule) fn cast(
        &mut self,
        cast: &Cast,
        (width, scale): (Term, Elem),
        (codes, scales): (&mut Put<'a, '_>, &mut Put<'a, '_>),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if cast.there.by_lane {
            return Err("a whole warp casts a row".to_string());
        }
        let size = self.scalar(&cast.there, &cast.block, out)?;
        let count = Term::call("ep::ceil", vec![width.clone(), size.clone()], Elem::I32);
        let name = self.names.fresh("block");
        let block = Term::index(&name);
        let mut body = Vec::new();
        let first = self.named("first", block.clone().times(size.clone()), &mut body);
        let first = first.converted(&Elem::I32);
        let end =
            Term::call("ep::min", vec![first.clone().plus(size).wide(), width.wide()], Elem::I64);
        let end = self.named("end", end.converted(&Elem::I32), &mut body);
        let peak = self.names.fresh("peak");
        let zero = Term::int(0).converted(&Elem::F32);
        body.push(Step::Variable { name: peak.clone(), elem: Elem::F32, value: zero });
        let peak = Term::name(peak, Elem::F32);
        self.each_of_block(cast, (&first, &end), &mut body, &mut |_, _, value| {
            let args = vec![peak.clone(), value];
            let value = Term::call("ep::greater_magnitude", args, Elem::F32);
            Ok(Step::Set { place: peak.clone(), value })
        })?;
        let exact = Term::call("ep::block_scale", vec![peak.clone()], Elem::F32);
        let exact = self.named("scale", exact.converted(&scale), &mut body);
        let factor = exact.clone().converted(&Elem::F32);
        self.each_of_block(cast, (&first, &end), &mut body, &mut |this, i, value| {
            let code = arithmetic(BinaryOp::Div, value, factor.clone()).converted(&Elem::E4m3);
            codes(this, i, code)
        })?;
        body.push(Step::Leader(vec![scales(self, block, exact)?]));
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

    /// A step for each element of a block, a lane each.
    fn each_of_block(
        &mut self,
        cast: &Cast,
        (first, end): (&Term, &Term),
        out: &mut Vec<Step>,
        step: &mut Put<'a, '_>,
    ) -> Lowered<()> {
        let name = self.names.fresh("i");
        let i = Term::index(&name);
        let mut body = Vec::new();
        let value = self.value(&cast.there.of_lane(), &cast.row, Some(&i), &mut body)?;
        body.push(step(self, i, value.converted(&Elem::F32))?);
        let (from, to) = (first.clone(), end.clone());
        let (elem, turns) = (Elem::I32, Takers::Lanes);
        out.push(Step::Loop(Loop { binder: name, elem, from, to, turns, body }));
        Ok(())
    }

    /// `store rows[..] = cast_e4m3(row, block);`
    pub(super) fn write_cast(
        &mut self,
        scope: &Scope,
        (tensor, cast): (&Tensor, &Cast),
        indices: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if indices.len() + 1 != tensor.dims.len() {
            return Err("a row that is cast has one extent".to_string());
        }
        let all = parts(self.ir, &tensor.elem);
        let [(_, Elem::E4m3, _), (_, scale, _)] = all.as_slice() else {
            return Err("a row that is cast has e4m3 elements and scales".to_string());
        };
        let at = self.indices(scope, indices, out)?;
        let width = self.width(tensor, 0)?;
        let set = |part: usize| {
            let at = at.clone();
            move |this: &mut RoleLowering<'a>, i: Term, value: Term| {
                let place = this.place(tensor, part, None, at.clone(), Some(i))?;
                Ok(Step::Set { place, value })
            }
        };
        self.cast(cast, (width, scale.clone()), (&mut set(0), &mut set(1)), out)
    }
}
