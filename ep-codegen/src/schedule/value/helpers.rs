//! Calls of helpers and of the user's device functions.

use super::{Numbers, counted_loop};
use crate::ir::{BinaryOp, Elem, ElemType, Expr, Fold, NameKind, WellKnown, walk};
use crate::schedule::library::{Entity, ep};
use crate::schedule::limit::{Limit, broken};
use crate::schedule::loops::turns_of;
use crate::schedule::scope::Scope;
use crate::schedule::step::{Step, Takers};
use crate::schedule::symbol::{RANKS, Symbol};
use crate::schedule::term::{Term, arithmetic};
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    /// Names the experts of this rank, where some expression asks for them.
    pub(in crate::schedule) fn own_experts(&mut self, out: &mut Vec<Step>) {
        let mut asked = false;
        walk::stmts(&self.role.body, &mut |stmt| {
            walk::exprs(stmt, &mut |part| {
                asked |= matches!(part, Expr::Call { helper, args } if helper == "local"
                    && matches!(args.get(1), Some(Expr::Name { kind: NameKind::Me, .. })));
            });
        });
        if let (true, Ok(begin)) = (asked, self.expert_begin()) {
            let own = self.names.fresh("mine");
            let args = vec![begin, self.me()];
            let value = Term::call(ep::experts_of, args, Elem::I32);
            out.push(Step::Made { name: own.clone(), value });
            self.own_experts = Some(own);
        }
    }

    pub(super) fn call(
        &mut self,
        scope: &Scope,
        helper: &str,
        args: &[Expr],
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        if let (Some(fold), [value]) = (Fold::of_parts(helper, args), args) {
            return self.fold_of_parts(scope, fold, value, i, out);
        }
        match (helper, args) {
            ("listed" | "routed", [row, number]) => self.of_row(scope, (helper, row), number, out),
            ("routed_node" | "routed_bits", [row, node]) => {
                self.of_node(scope, (helper, row), node, out)
            }
            ("owned", [row, rank]) => self.owned(scope, row, rank, i, out),
            ("local", [expert, rank]) => {
                let expert = self.value(scope, expert, i, out)?;
                if let (Some(own), Expr::Name { kind: NameKind::Me, .. }) =
                    (&self.own_experts, rank)
                {
                    return Ok(Term::method(own, "local", vec![expert], Elem::I32));
                }
                let experts = vec![self.expert_begin()?, self.scalar(scope, rank, out)?, expert];
                Ok(Term::call(ep::local_expert, experts, Elem::I32))
            }
            ("owner", [expert]) => {
                let expert = self.scalar(scope, expert, out)?;
                self.owner(expert)
            }
            ("alive", [rank]) => {
                let rank = self.scalar(scope, rank, out)?.wide();
                let args = vec![Term::name("args.group", Elem::I64), rank];
                Ok(Term::call(ep::is_alive, args, Elem::Bool))
            }
            ("any", [bits]) => {
                Ok(self.value(scope, bits, i, out)?.test(BinaryOp::Ne, Term::int(0)))
            }
            ("node" | "local_rank", [rank]) => {
                let op = if helper == "node" { BinaryOp::Div } else { BinaryOp::Rem };
                let rank = self.scalar(scope, rank, out)?;
                Ok(arithmetic(op, rank, self.known(WellKnown::LocalRanks)?))
            }
            ("rank_at", [node, local]) => {
                let node = self.scalar(scope, node, out)?;
                let local = self.scalar(scope, local, out)?;
                Ok(node.times(self.known(WellKnown::LocalRanks)?).plus(local))
            }
            ("has", [_, _]) => self.of_two(scope, (ep::has, Elem::Bool), args, i, out),
            ("min", [_, _]) => self.of_two(scope, (ep::min, Elem::I64), args, i, out),
            ("max", [_, _]) => self.of_two(scope, (ep::max, Elem::I64), args, i, out),
            ("bit_xor", [_, _]) => self.of_two(scope, (ep::bit_xor, Elem::I64), args, i, out),
            ("align", [_, _]) => self.of_two(scope, (ep::align, Elem::I64), args, i, out),
            ("ceil", [_, _]) => self.of_two(scope, (ep::ceil, Elem::I64), args, i, out),
            _ => self.own_function(scope, helper, args, i, out),
        }
    }

    /// What a row of numbers says of one, or of a rank.
    fn of_row(
        &mut self,
        scope: &Scope,
        (helper, row): (&str, &Expr),
        number: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let number = self.scalar(scope, number, out)?;
        match scope.looked_at(helper, row) {
            // What is kept of a row answers for numbers of 32 bits that can be in it.
            Some(known) if number.range.is_some_and(|(low, _)| low >= 0) => {
                let number = vec![number.converted(&Elem::I32)];
                Ok(Term::method(known, "has", number, Elem::Bool))
            }
            _ if helper == "listed" => {
                self.any_entry(scope, row, out, |entry| entry.test(BinaryOp::Eq, number))
            }
            _ => {
                let next = number.clone().plus(Term::int(1));
                self.routed(scope, row, (number, next), out)
            }
        }
    }

    /// What it says of the ranks of a node.
    fn of_node(
        &mut self,
        scope: &Scope,
        (helper, row): (&str, &Expr),
        node: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let each = self.known(WellKnown::LocalRanks)?;
        let first = self.scalar(scope, node, out)?.times(each.clone());
        let bits = helper == "routed_bits";
        if let Some(known) = scope.looked_at("routed", row) {
            let (what, elem) = if bits { ("bits", Elem::I64) } else { ("has_any", Elem::Bool) };
            let ranks = vec![first.converted(&Elem::I32), each];
            return Ok(Term::method(known, what, ranks, elem));
        }
        if bits {
            return self.routed_bits(scope, row, (first, each), out);
        }
        let next = first.clone().plus(each);
        self.routed(scope, row, (first, next), out)
    }

    /// A function of the library of two whole numbers.
    fn of_two(
        &mut self,
        scope: &Scope,
        (function, elem): (Entity, Elem),
        args: &[Expr],
        i: Option<&Term>,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let mut values = Vec::new();
        for arg in args {
            values.push(self.value(scope, arg, i, out)?.wide());
        }
        Ok(Term::call(function, values, elem))
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
        let own = own.ok_or_else(|| broken(format!("`{name}` has no CUDA text yet")))?;
        let mut values = Vec::new();
        for (arg, param) in args.iter().zip(&own.params) {
            values.push(self.value(scope, arg, i, out)?.converted(&param.elem));
        }
        Ok(Term::call(Symbol::text(name), values, own.returns.clone()))
    }

    /// The rank on which an expert lives.
    fn owner(&self, expert: Term) -> Lowered<Term> {
        self.known(WellKnown::Ranks)?;
        Ok(Term::call(ep::owner.of(RANKS), vec![expert, self.expert_begin()?], Elem::I32))
    }

    pub(in crate::schedule) fn expert_begin(&self) -> Lowered<Term> {
        let known = self.ir.tensors.iter().any(|tensor| {
            WellKnown::ExpertBegin.is(&tensor.name)
                && tensor.elem == ElemType::Scalar { elem: Elem::I32 }
                && tensor.dims.len() == 1
        });
        match known {
            true => Ok(Term::name("args.expert_begin", Elem::I32)),
            false => Err(Limit::NoExperts.into()),
        }
    }

    /// An entry of a row of numbers, from where the lane keeps the row.
    pub(in crate::schedule) fn entry(
        &mut self,
        scope: &Scope,
        row: &Expr,
        k: &Term,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        match scope.looked_at("", row) {
            Some(object) => {
                let values = Term::name(format!("{object}.values"), Elem::I64);
                Ok(values.at(k.clone(), Elem::I64))
            }
            None => self.value(scope, row, Some(k), out),
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
        let entry = self.entry(scope, row, &Term::index(&k), &mut steps)?;
        // Named, so that no entry waits for what the one before was.
        let here = self.named("here", holds(entry), &mut steps);
        let value = found.clone().test(BinaryOp::Or, here);
        steps.push(Step::Set { place: found.clone(), value });
        let numbers = Numbers { from: Term::int(0), to: count, others: false };
        out.push(counted_loop(k, numbers, turns_of(scope, row, Takers::Alone), steps));
        Ok(found)
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

    /// The ranks of a node on which entries of the row live, a bit for each.
    fn routed_bits(
        &mut self,
        scope: &Scope,
        row: &Expr,
        (first, each): (Term, Term),
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let first = self.named("first_rank", first, out);
        let count = self.row_width(scope, row)?;
        let bits = self.names.fresh("bits");
        out.push(Step::Variable {
            name: bits.clone(),
            elem: Elem::I64,
            value: Term::int(0).wide(),
        });
        let bits = Term::name(bits, Elem::I64);
        let k = self.names.fresh("k");
        let mut steps = Vec::new();
        let entry = self.entry(scope, row, &Term::index(&k), &mut steps)?;
        let owner = self.owner(entry)?;
        let owner = self.named("rank", owner, &mut steps);
        let index = arithmetic(BinaryOp::Sub, owner, first).wide();
        let args = vec![bits.clone(), index, each.wide()];
        let value = Term::call(ep::with_bit, args, Elem::I64);
        steps.push(Step::Set { place: bits.clone(), value });
        let numbers = Numbers { from: Term::int(0), to: count, others: false };
        out.push(counted_loop(k, numbers, turns_of(scope, row, Takers::Alone), steps));
        Ok(bits)
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
        let i = i.ok_or(broken("`owned` gives a row"))?;
        let begins = self.expert_begin()?;
        let rank = self.scalar(scope, rank, out)?;
        let first = self.named("first_expert", begins.clone().at(rank.clone(), Elem::I32), out);
        let next = begins.at(rank.plus(Term::int(1)), Elem::I32);
        let at = self.named("expert", first.plus(i.clone()), out);
        let value = self.value(scope, row, Some(&at), out)?;
        let zero = Term::int(0).converted(&value.elem);
        Ok(at.test(BinaryOp::Lt, next).choose(value, zero))
    }
}
