//! `place = prefix_sum(..)`: the lanes of a warp add whole numbers up together, one lane adds up all others in order.

use crate::ir::typed::{elem_of, first_part, is_plain};
use crate::ir::{
    Action, BinaryOp, Domain, Elem, Expr, Fold, PeerSet, Place, Stmt, Tensor, WellKnown, walk,
};
use crate::schedule::extents::{is_one_more, range_of};
use crate::schedule::hazards::reads;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
#[cfg(any(test, feature = "sabotage"))]
use crate::schedule::sabotage::{self, Bug};
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::{Lambda, Param, ParamType, Step, Takers};
use crate::schedule::term::Term;
use crate::schedule::value::{Numbers, counted_loop};
use crate::schedule::{Lowered, RoleLowering, RoleRule};

/// Numbers that one lane adds up as fast as a warp.
const FEW: i64 = 8;

/// A prefix sum that is written: where, and of what.
type Prefix<'p> = (&'p Tensor, &'p Place, (&'p str, &'p Domain, &'p Expr));

impl<'a> RoleLowering<'a> {
    /// Whether a loop over numbers of the shape has a prefix sum in each turn that is worth a warp.
    pub(in crate::schedule) fn turns_scan(&self, domain: Option<&Domain>, body: &[Stmt]) -> bool {
        let is_short = matches!(
            domain,
            Some(Domain::Dim { .. } | Domain::Peers { set: PeerSet::All | PeerSet::Others })
        );
        let found = walk::any_stmt(body, &mut |stmt| self.is_scanned(stmt));
        is_short && found && self.rules.has(RoleRule::Sums)
    }

    /// Whether a statement writes a prefix sum of more than a few whole numbers.
    fn is_scanned(&self, stmt: &Stmt) -> bool {
        let (Action::Store { target, value } | Action::Record { target, value }) = &stmt.action
        else {
            return false;
        };
        let Expr::Fold { fold: Fold::PrefixSum, domain, body, .. } = value else { return false };
        let count = count_of(domain).and_then(|count| range_of(self.ir, count));
        let elem = elem_of(self.ir, body);
        count.is_some_and(|(_, most)| most > FEW)
            && is_plain(&elem)
            && elem != Elem::F32
            && !reads(body, &target.tensor)
    }

    /// `place = prefix_sum(binder in domain: body)`.
    pub(super) fn prefix_sum(
        &mut self,
        scope: &Scope,
        prefix: Prefix<'_>,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let (tensor, target, (binder, domain, body)) = prefix;
        if target.indices.len() < tensor.dims.len() {
            return Err(broken("a prefix sum is written element by element"));
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
            turn.push(Step::SkipUnless(index.clone().test(BinaryOp::Ne, self.me())));
        }
        let value = self.value(&inner, body, None, &mut turn)?;
        let by_warp = !scope.by_lane
            && self.rules.has(RoleRule::Sums)
            && value.is_whole()
            && numbers.from.is(0)
            && !numbers.others
            && index.elem == Elem::I32
            && !reads_by_name(scope, body, &target.tensor);
        if by_warp {
            out.extend(steps);
            let made = (name, numbers.to, turn, value);
            self.scan(&own, prefix, made, out)?;
        } else {
            let made = (name, numbers, turn, value);
            self.add_in_order((&own, &inner), prefix, made, &mut steps)?;
            self.by_leader(scope, steps, out);
        }
        self.after_write(scope, &target.tensor, out);
        Ok(())
    }

    /// One lane adds up.
    fn add_in_order(
        &mut self,
        (own, inner): (&Scope, &Scope),
        (tensor, target, (binder, domain, _)): Prefix<'_>,
        (name, numbers, mut turn, value): (String, Numbers, Vec<Step>, Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let elem = if value.is_whole() { Elem::I64 } else { Elem::F32 };
        let sum = self.names.fresh("sum");
        let zero = Term::int(0).converted(&elem);
        out.push(Step::Variable { name: sum.clone(), elem: elem.clone(), value: zero });
        let sum = Term::name(sum, elem.clone());
        self.write_number(inner, tensor, target, sum.clone(), &mut turn)?;
        turn.push(Step::Increase { place: sum.clone(), value: value.converted(&elem) });
        let end = numbers.to.clone();
        out.push(counted_loop(name, numbers, Takers::Alone, turn));
        if has_total(self, tensor, target, binder, domain) {
            let behind = own.with(binder, Meaning::Value(end));
            self.write_number(&behind, tensor, target, sum, out)?;
        }
        Ok(())
    }

    /// The lanes of a warp add up. Where 32 bits of a sum are kept, 32 bits of each value are enough.
    fn scan(
        &mut self,
        own: &Scope,
        (tensor, target, (binder, domain, _)): Prefix<'_>,
        (name, count, turn, value): (String, Term, Vec<Step>, Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let elem = match first_part(self.ir, &tensor.elem) {
            Elem::Bool | Elem::U8 | Elem::I8 | Elem::I32 => Elem::I32,
            _ => Elem::I64,
        };
        #[cfg(any(test, feature = "sabotage"))]
        let elem = if sabotage::is(Bug::SumsCut) { Elem::I32 } else { elem };
        let index = Param { kind: ParamType::Index, name: name.clone() };
        let sum = self.names.fresh("sum");
        let param = Param { kind: ParamType::Value(elem.clone()), name: sum.clone() };
        // The total, if it is written, stands behind the last sum.
        let most = count.range.map_or(i64::from(i32::MAX), |(_, most)| most);
        let at = own.with(binder, Meaning::Value(Term::small(&name, 0, most)));
        let mut writes = Vec::new();
        self.write_number(&at, tensor, target, Term::name(sum, elem.clone()), &mut writes)?;
        let function =
            |params, body, gives| Term::lambda(Lambda { says: Vec::new(), params, body, gives });
        let values = function(vec![index.clone()], turn, Some(value.converted(&elem)));
        let sink = function(vec![index, param], writes, None);
        let scan = match has_total(self, tensor, target, binder, domain) {
            true => ep::prefix_sum_and_total,
            false => ep::prefix_sum,
        };
        let args = vec![count.converted(&Elem::I32), values, sink];
        out.push(Step::Do(Term::call(scan, args, elem)));
        Ok(())
    }
}

/// Whether a value is made of elements of a tensor, be it by a name for a row.
fn reads_by_name(scope: &Scope, value: &Expr, tensor: &str) -> bool {
    let mut found = reads(value, tensor);
    walk::expr(value, &mut |part| {
        if let Expr::Name { name, .. } = part
            && let Some(Meaning::Row(row, there)) = scope.find(name)
        {
            found |= reads_by_name(there, row, tensor);
        }
    });
    found
}

/// The number of the shape that says how many turns a loop over numbers has.
fn count_of(domain: &Domain) -> Option<&str> {
    match domain {
        Domain::Dim { name } => Some(name),
        Domain::Peers { .. } => Some(WellKnown::Ranks.name()),
        _ => None,
    }
}

/// Whether a table with one more entry than the domain takes the total there.
fn has_total(
    role: &RoleLowering<'_>,
    tensor: &Tensor,
    target: &Place,
    binder: &str,
    domain: &Domain,
) -> bool {
    let Some(count) = count_of(domain) else { return false };
    let mut indices = target.indices.iter();
    let axis = indices.position(|index| matches!(index, Expr::Name { name, .. } if name == binder));
    let extent = axis.and_then(|axis| tensor.dims.get(axis));
    extent.is_some_and(|extent| is_one_more(role.ir, extent, count))
}
