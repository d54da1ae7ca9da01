//! `add` and `count`.

use crate::ir::counting::{Counting, counted, is_given};
use crate::ir::parts::parts;
use crate::ir::{BinaryOp, Elem, Expr, Memory, Place};
use crate::schedule::library::ep;
use crate::schedule::limit::Limit;
use crate::schedule::scope::Scope;
use crate::schedule::step::Step;
use crate::schedule::symbol::Constant;
use crate::schedule::term::{Node, Term, arithmetic, counting};
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    pub(super) fn add(
        &mut self,
        scope: &Scope,
        target: &Place,
        value: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let tensor = self.tensor(&target.tensor)?;
        if tensor.memory == Memory::Host {
            return Err(Limit::AddedToHost.into());
        }
        if tensor.memory == Memory::Window && !is_given(tensor) {
            return Err(Limit::AddedInWindow.into());
        }
        if target.indices.len() < tensor.dims.len() {
            return Err(Limit::AddedRow.into());
        }
        self.before_write(scope, &target.tensor, out);
        let at = self.indices(scope, &target.indices, out)?;
        let value = self.scalar(scope, value, out)?;
        let place = self.place(tensor, 0, None, at, None)?;
        if self.is_shared(target) {
            let elem = place.elem.clone();
            let args = vec![place.address(), value.converted(&elem)];
            let step = Step::Do(Term::call(ep::add_count, args, elem));
            self.by_leader(scope, vec![step], out);
            return Ok(());
        }
        let sum = arithmetic(BinaryOp::Add, place.clone(), value).converted(&place.elem);
        self.by_leader(scope, vec![Step::Set { place, value: sum }], out);
        self.after_write(scope, &target.tensor, out);
        Ok(())
    }

    pub(super) fn count(
        &mut self,
        scope: &Scope,
        target: &Place,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        self.count_many(scope, target, Term::int(1), out)
    }

    /// Adds `hits` to a counter.
    pub(in crate::schedule) fn count_many(
        &mut self,
        scope: &Scope,
        target: &Place,
        hits: Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
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
            return Err(Limit::CounterKind.into());
        }
        self.before_write(scope, &target.tensor, out);
        let at = self.indices(scope, &target.indices, out)?;
        let place = self.place(tensor, 0, None, at, None)?;
        let step = match (summed, place.node.clone()) {
            (true, Node::Index(_, at)) => {
                let first = Term::constant(Constant::counted(&tensor.name));
                let index = counting(BinaryOp::Add, first, (*at).converted(&Elem::I32));
                let args = vec![index, hits];
                Step::Do(Term::method("counters", "add", args, Elem::I32))
            }
            _ => {
                let args = vec![place.address(), hits];
                Step::Do(Term::call(ep::add_count, args, Elem::I32))
            }
        };
        self.by_leader(scope, vec![step], out);
        self.after_write(scope, &target.tensor, out);
        Ok(())
    }
}
