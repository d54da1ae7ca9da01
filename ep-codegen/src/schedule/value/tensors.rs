//! Elements of tensors: where they lie.

use crate::ir::params::has_row_stride;
use crate::ir::parts::parts;
use crate::ir::{BinaryOp, Elem, Expr, Tensor, TensorKind};
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::scope::Scope;
use crate::schedule::statements::there;
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::term::{Term, arithmetic};
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    pub(super) fn element(
        &mut self,
        scope: &Scope,
        tensor: &Tensor,
        indices: &[Expr],
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let at = self.indices(scope, indices, out)?;
        if at.len() < tensor.dims.len() && i.is_none() {
            return Err(broken(format!(
                "`{}` is a row here, where one value is wanted",
                tensor.name
            )));
        }
        if tensor.copies == 1 {
            return self.place(tensor, 0, None, at, i.cloned());
        }
        // The name of a tensor that comes several times stands for their sum.
        let total = self.names.fresh("sum");
        let elem = self.sum_elem(tensor);
        let value = Term::int(0).converted(&elem);
        out.push(Step::Variable { name: total.clone(), elem: elem.clone(), value });
        let total = Term::name(total, elem);
        self.add_copies(tensor, at, i, total.clone(), out)?;
        Ok(total)
    }

    /// What copies of a tensor are added up in.
    pub(super) fn sum_elem(&self, tensor: &Tensor) -> Elem {
        match &parts(self.ir, &tensor.elem)[0].1 {
            Elem::F32 | Elem::Bf16 | Elem::E4m3 | Elem::Ue8m0 => Elem::F32,
            Elem::Bool | Elem::U8 | Elem::I8 | Elem::I32 | Elem::I64 => Elem::I64,
        }
    }

    /// Adds every copy of a tensor that came to `total`, one after the other.
    pub(super) fn add_copies(
        &mut self,
        tensor: &Tensor,
        at: Vec<Term>,
        i: Option<&Term>,
        total: Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if tensor.copies == 1 {
            let value = self.place(tensor, 0, None, at, i.cloned())?.converted(&total.elem);
            let there = there(tensor);
            let body = vec![Step::Increase { place: total, value }];
            out.push(Step::If { condition: there, body });
            return Ok(());
        }
        let copy = self.names.fresh("copy");
        let index = Term::small(&copy, 0, tensor.copies);
        let value = self.place(tensor, 0, Some(index), at, i.cloned())?.converted(&total.elem);
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

    /// Element of one part of a tensor: at `indices`, and in what they leave open at `rest`.
    pub(in crate::schedule) fn place(
        &mut self,
        tensor: &Tensor,
        part: usize,
        copy: Option<Term>,
        indices: Vec<Term>,
        rest: Option<Term>,
    ) -> Lowered<Term> {
        let name = self.part_name(tensor, part);
        let parts = parts(self.ir, &tensor.elem);
        let (_, elem, _) =
            parts.get(part).ok_or_else(|| broken(format!("`{}` has no part", tensor.name)))?;
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

    /// An element of a tensor whose rows may lie apart, and its columns too where it holds scales. Lists of rows, which
    /// tensors of three extents have, lie one behind another.
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
        let (given, lists) = (indices.len(), last.saturating_sub(1));
        let mut indices = indices.into_iter();
        let mut list = self.numbered(&tensor.dims[..lists], &mut indices)?;
        let mut row = self.numbered(&tensor.dims[lists..last], &mut indices)?;
        let mut column = column.or(rest).unwrap_or_else(|| Term::int(0));
        if given < last {
            // Several rows, one element after the other.
            let width = self.width(tensor, part)?;
            row = row.plus(arithmetic(BinaryOp::Div, column.clone(), width.clone()));
            column = arithmetic(BinaryOp::Rem, column, width);
        }
        let mut offset = Term::int(0);
        if lists > 0 {
            let rows = self.scalar(&Scope::default(), &tensor.dims[lists], &mut Vec::new())?;
            if given < lists {
                list = list.plus(arithmetic(BinaryOp::Div, row.clone(), rows.clone()));
                row = arithmetic(BinaryOp::Rem, row, rows.clone());
            }
            offset = list.times(rows.times(self.width(tensor, part)?));
        }
        let stride = |suffix: &str| Term::name(format!("args.{name}{suffix}"), Elem::I64);
        if part > 0 {
            column = column.times(stride("_block_stride"));
        }
        Ok(offset.plus(row.times(stride("_stride"))).plus(column))
    }

    /// The number of an element among those of `dims`, with 0 for indices that are open.
    fn numbered(
        &mut self,
        dims: &[Expr],
        indices: &mut impl Iterator<Item = Term>,
    ) -> Lowered<Term> {
        let mut number = Term::int(0);
        for dim in dims {
            // The first extent is no factor of anything.
            if !number.is(0) {
                number = number.times(self.scalar(&Scope::default(), dim, &mut Vec::new())?);
            }
            number = number.plus(indices.next().unwrap_or_else(|| Term::int(0)));
        }
        Ok(number)
    }

    /// Elements of a part in one row of a tensor.
    pub(in crate::schedule) fn width(&mut self, tensor: &Tensor, part: usize) -> Lowered<Term> {
        let last = tensor.dims.last().ok_or(broken("a tensor without extents"))?.clone();
        let elements = self.scalar(&Scope::default(), &last, &mut Vec::new())?;
        let (.., block) =
            parts(self.ir, &tensor.elem).into_iter().nth(part).ok_or(broken("no part"))?;
        Ok(match (part, block) {
            (0, _) => elements,
            _ => Term::call(ep::ceil, vec![elements, Term::int(block)], Elem::I32),
        })
    }

    /// The name of a part of a tensor in `struct Args`.
    pub(in crate::schedule) fn part_name(&self, tensor: &Tensor, part: usize) -> String {
        let suffix = parts(self.ir, &tensor.elem).into_iter().nth(part).map(|(suffix, ..)| suffix);
        format!("{}{}", tensor.name, suffix.unwrap_or_default())
    }

    /// The names of all parts of `inout` tensors in the text. A pipeline may write their elements more than once.
    pub(in crate::schedule) fn inouts(&self) -> Vec<String> {
        let own = self.ir.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Inout);
        let names = own.flat_map(|tensor| {
            let all = parts(self.ir, &tensor.elem).len();
            (0..all).map(|part| format!("args.{}", self.part_name(tensor, part)))
        });
        names.collect()
    }
}
