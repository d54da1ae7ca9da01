//! Rows that are copied to places of the values that they list: one role copies, the other one tells how many rows of
//! each source list each value.
//!
//! What it gains: composed, each choice of a row looks at all rows before it, and each value at all rows. Counted in
//! shared memory, all of them are looked at once in a block; and a row is loaded once for all of its places.

use super::values::{is_name, mentions_name};
use super::way_back::is_part_of;
use super::{Checked, Forms, Unfit};
use crate::ir::parts::{elem_bytes, parts};
use crate::ir::{
    Action, BinaryOp, Blocks, DimKind, Domain, Elem, ElemType, Expr, Memory, NameKind, Pipeline,
    Role, Share, Stmt, TensorKind, walk,
};
use crate::schedule::hazards;
use crate::schedule::typed::elem_of;

/// A lane has each choice of a row.
const CHOICES: i64 = 32;
/// What lanes copy at once.
const UNIT_BYTES: i64 = 16;

/// The parts of such a pair of roles.
pub(crate) struct Listed<'s> {
    pub(crate) copied: Copied<'s>,
    pub(crate) told: Told<'s>,
}

/// The role that copies rows.
pub(crate) struct Copied<'s> {
    pub(crate) role: &'s Role,
    /// Its loops over rows and choices.
    pub(crate) rows: &'s Stmt,
    pub(crate) choices: &'s Stmt,
    /// Who lists values, for how many rows there is room, how many a row lists, and how many there are.
    lists: &'s str,
    pub(crate) most: &'s Expr,
    pub(crate) width: &'s Expr,
    pub(crate) values: &'s Expr,
    /// `let value = lists[row, choice];`, the number of earlier rows that list it, and what else is named.
    pub(crate) entry: &'s Stmt,
    pub(crate) place: &'s Stmt,
    pub(crate) names: Vec<&'s Stmt>,
    /// What is written for any choice,
    pub(crate) written: &'s [Stmt],
    /// and where some condition holds: what is recorded, and the row.
    pub(crate) takes: &'s Stmt,
    pub(crate) filter: &'s Expr,
    pub(crate) records: &'s [Stmt],
    pub(crate) store: &'s Stmt,
}

/// The role that tells counts.
pub(crate) struct Told<'s> {
    pub(crate) role: &'s Role,
    /// The name of a value, and where the rows of a source begin.
    pub(crate) value: &'s str,
    pub(crate) begin: &'s Expr,
    /// Rows of the sources before that list it, and of this one; and what is written of them.
    pub(crate) first: &'s Stmt,
    pub(crate) count: &'s Stmt,
    pub(crate) body: &'s [Stmt],
}

/// The loops of the role that copies.
struct Loops<'s> {
    rows: &'s Stmt,
    choices: &'s Stmt,
    end: &'s Expr,
    row: &'s str,
    choice: &'s str,
    width: &'s str,
    body: &'s [Stmt],
}

impl<'s> Listed<'s> {
    /// The parts of the only two roles of a selected pipeline, if they are such roles.
    pub(crate) fn of(ir: &'s Pipeline) -> Option<Listed<'s>> {
        if is_candidate(ir) { Forms { ir }.listed().ok() } else { None }
    }
}

/// The name that a `let` gives.
pub(crate) fn name_of(stmt: &Stmt) -> &str {
    match &stmt.action {
        Action::Let { name, .. } => name,
        _ => "",
    }
}

/// Whether a pipeline without channels has a role that takes rows by blocks, and one whose warps share two indices.
pub(super) fn is_candidate(ir: &Pipeline) -> bool {
    let ([copies, tells], []) = (ir.roles.as_slice(), ir.channels.as_slice()) else { return false };
    copies.share == Share::BlockPerToken
        && matches!(&tells.share, Share::Indices { names } if names.len() == 2)
        && copies.phase == tells.phase
}

impl<'s> Forms<'s> {
    /// The parts of both roles, or the first statement that is none of them.
    pub(super) fn listed(&self) -> Result<Listed<'s>, Unfit> {
        let [copies, tells] = self.ir.roles.as_slice() else {
            return Err(self.lacks("pair of roles for", "the rows"));
        };
        for role in [copies, tells] {
            self.check_known(role)?;
            if role.blocks != Blocks::All || !hazards::reread(role).is_empty() {
                let why = "such roles are on all blocks, and read what none writes";
                return self.refuse(&role.at, why);
            }
        }
        let loops = self.loops_of_rows(copies)?;
        let copied = self.copied(copies, &loops)?;
        let told = self.told_counts(tells, copied.lists, copied.values)?;
        self.check_ends(&loops, told.begin)?;
        Ok(Listed { copied, told })
    }

    /// What is done for each choice of a row.
    fn copied(&self, role: &'s Role, loops: &Loops<'s>) -> Result<Copied<'s>, Unfit> {
        let Loops { rows, choices, .. } = *loops;
        let [entry, body @ ..] = loops.body else { return Err(self.no_form(choices)) };
        let (lists, [most, width], values) = self.lists(entry, loops)?;
        let names = body.iter().take_while(|stmt| matches!(stmt.action, Action::Let { .. }));
        let (names, body) = body.split_at(names.count());
        let Some((takes, written)) = body.split_last() else { return Err(self.no_form(choices)) };
        let value = name_of(entry);
        let is_place = |stmt: &&'s Stmt| place_of(stmt, names, (lists, value, loops.row));
        let Some(place) = names.iter().find(is_place) else {
            let why = "a place is the number of earlier rows that list a value that is there";
            return self.refuse(&choices.at, why);
        };
        let (filter, inner) = once(takes).ok_or_else(|| self.no_form(takes))?;
        let Some((store, records)) = inner.split_last() else { return Err(self.no_form(takes)) };
        if !implies_there(filter, value) {
            let why = "a row goes to values that are there: `>= 0` is part of its condition";
            return self.refuse(&takes.at, why);
        }
        let names: Vec<&Stmt> = names.iter().filter(|stmt| !std::ptr::eq(*stmt, place)).collect();
        names.iter().try_for_each(|stmt| self.check_write(stmt, None))?;
        self.check_expr(takes, filter)?;
        written.iter().try_for_each(|stmt| self.check_by_lane(stmt))?;
        records.iter().try_for_each(|stmt| self.check_written(stmt))?;
        self.check_copied(store, loops.row)?;
        Ok(Copied {
            role,
            rows,
            choices,
            lists,
            most,
            width,
            values,
            entry,
            place,
            names,
            written,
            takes,
            filter,
            records,
            store,
        })
    }

    /// `for row in 0..end { for choice in width { .. } }`
    fn loops_of_rows(&self, role: &'s Role) -> Result<Loops<'s>, Unfit> {
        let [rows] = role.body.as_slice() else {
            return self.refuse(&role.at, "such a role goes through rows, and nothing else");
        };
        let Action::For {
            binder: row,
            domain: Domain::Range { low, high: end },
            position: None,
            filter: None,
            body,
        } = &rows.action
        else {
            return Err(self.no_form(rows));
        };
        let ([choices], true) = (body.as_slice(), is_zero(low)) else {
            return Err(self.no_form(rows));
        };
        let Action::For {
            binder: choice,
            domain: Domain::Dim { name: width },
            position: None,
            filter: None,
            body,
        } = &choices.action
        else {
            return Err(self.no_form(choices));
        };
        Ok(Loops { rows, choices, end, row, choice, width, body })
    }

    /// `let value = lists[row, choice];` of an input that says how many values there are.
    fn lists(
        &self,
        entry: &'s Stmt,
        loops: &Loops<'s>,
    ) -> Result<(&'s str, [&'s Expr; 2], &'s Expr), Unfit> {
        let Action::Let { value: Expr::Element { tensor, indices }, .. } = &entry.action else {
            return Err(self.no_form(entry));
        };
        let [row, choice] = indices.as_slice() else { return Err(self.no_form(entry)) };
        let of = self.tensor(tensor)?;
        let read_only = of.kind == TensorKind::Input && of.from_handle.is_none() && !of.optional;
        let whole =
            of.elem == (ElemType::Scalar { elem: Elem::I64 }) && of.memory == Memory::Device;
        let [most, width] = of.dims.as_slice() else { return Err(self.no_form(entry)) };
        let of_shape = |number: &Expr| matches!(number, Expr::Name { kind: NameKind::Dim, .. });
        let known = of.values.as_ref().filter(|values| of_shape(&values.high));
        match known.map(|values| (&values.high, &values.low)) {
            Some((values, Expr::Int { value: -1..=0 }))
                if read_only
                    && whole
                    && of_shape(most)
                    && is_name(row, loops.row)
                    && is_name(choice, loops.choice)
                    && is_name(width, loops.width)
                    && self.is_at_most(width, CHOICES) =>
            {
                Ok((tensor, [most, width], values))
            }
            _ => {
                let why = "rows, as many as the shape says, list at most 32 values of `i64` below a number of it, or -1";
                self.refuse(&entry.at, why)
            }
        }
    }

    /// What a lane writes, be it under a condition.
    fn check_by_lane(&self, stmt: &'s Stmt) -> Checked {
        match once(stmt) {
            Some((filter, body)) => {
                self.check_expr(stmt, filter)?;
                body.iter().try_for_each(|inner| self.check_written(inner))
            }
            None => self.check_written(stmt),
        }
    }

    fn check_written(&self, stmt: &'s Stmt) -> Checked {
        match &stmt.action {
            Action::Store { .. } | Action::Record { .. } => self.check_write(stmt, None),
            _ => Err(self.no_form(stmt)),
        }
    }

    /// `store out[..] = x[row];`, of a row with all of its parts.
    fn check_copied(&self, store: &Stmt, row: &str) -> Checked {
        let Action::Store { target, value: Expr::Element { tensor, indices } } = &store.action
        else {
            return Err(self.no_form(store));
        };
        let (to, from) = (self.tensor(&target.tensor)?, self.tensor(tensor)?);
        let all = |of| parts(self.ir, of).into_iter().map(|(name, elem, _)| (name, elem));
        let fits = matches!(indices.as_slice(), [own] if is_name(own, row))
            && target.indices.len() + 1 == to.dims.len()
            && from.dims.len() == 2
            && from.dims.last() == to.dims.last()
            && from.dims.last().is_some_and(|width| self.is_of_units(width, &from.elem))
            && all(&from.elem).eq(all(&to.elem))
            && from.kind == TensorKind::Input
            && !from.optional
            && !to.optional
            && (from.copies, to.copies) == (1, 1)
            && to.memory != Memory::Host;
        if !fits {
            return self.refuse(&store.at, "a row is copied as it lies to a row of an output");
        }
        target.indices.iter().try_for_each(|index| self.check_expr(store, index))
    }

    /// Whether rows of so many elements are made of whole units in every shape, and begin with one.
    fn is_of_units(&self, width: &Expr, elem: &ElemType) -> bool {
        let Expr::Name { name, kind: NameKind::Dim } = width else { return false };
        let bytes = match parts(self.ir, elem).first() {
            Some((_, elem @ (Elem::Bf16 | Elem::E4m3), _)) => elem_bytes(elem),
            _ => return false,
        };
        let is_unit = |elements: i64| elements * bytes % UNIT_BYTES == 0;
        self.ir.dims.iter().any(|dim| {
            dim.name == *name
                && matches!(dim.kind, DimKind::Given { low, step, .. } if is_unit(low) && is_unit(step))
        })
    }

    /// `let first = sum(row in 0..table[source, me]: ..); let count = sum(row in table[source, me]..table[source + 1,
    /// me]: ..); ..` of the role that tells counts.
    fn told_counts(&self, role: &'s Role, lists: &str, values: &Expr) -> Result<Told<'s>, Unfit> {
        let ([first, count, body @ ..], Share::Indices { names }) =
            (role.body.as_slice(), &role.share)
        else {
            return self.refuse(&role.at, "such a role tells two counts");
        };
        let value = match names.as_slice() {
            [value, source] if source == "source" && is_name(values, &format!("{value}s")) => value,
            _ => return self.refuse(&role.at, "its warps share the values and their sources"),
        };
        let begin = range_of(count).map(|(low, _)| low).filter(|begin| {
            counts(count, lists, value, &is_part_of)
                && counts(first, lists, value, &|low, high| is_zero(low) && high == *begin)
        });
        let Some(begin) = begin else {
            let why = "what is told are rows of the sources before, and of the source, that list the value";
            return self.refuse(&first.at, why);
        };
        for stmt in body {
            match &stmt.action {
                Action::Add { .. } => self.check_write(stmt, Some(value))?,
                _ => self.check_by_lane(stmt)?,
            }
        }
        Ok(Told { role, value, begin, first, count, body })
    }

    /// The rows end where those of the last source do.
    fn check_ends(&self, loops: &Loops<'_>, begin: &Expr) -> Checked {
        let mut end = loops.end;
        if let Expr::Name { name, kind: NameKind::Size } = end {
            let size = self.ir.sizes.iter().find(|size| size.name == *name);
            end = size.and_then(|size| size.value.as_ref()).unwrap_or(end);
        }
        let table = |of: &'_ Expr| match of {
            Expr::Element { tensor, .. } => Some(tensor.clone()),
            _ => None,
        };
        let is_last = matches!(end, Expr::Element { indices, .. } if matches!(indices.as_slice(),
            [ranks, Expr::Name { kind: NameKind::Me, .. }] if is_name(ranks, "ranks")));
        let plain = elem_of(self.ir, begin) == Elem::I32
            && self.ir.dims.iter().any(|dim| dim.name == "ranks");
        match is_last && plain && table(end) == table(begin) {
            true => Ok(()),
            false => self.refuse(&loops.rows.at, "the rows end where those of the last source do"),
        }
    }
}

/// `let place = sum(earlier in 0..row: listed(lists[earlier], value) as i32) * there;`, where `there` is 0 for a value
/// that is not there, and 1 for any other.
fn place_of(stmt: &Stmt, names: &[Stmt], (lists, value, row): (&str, &str, &str)) -> bool {
    let Action::Let { value: Expr::Binary { op: BinaryOp::Mul, left, right }, .. } = &stmt.action
    else {
        return false;
    };
    let is_there = |stmt: &Stmt| {
        matches!(&stmt.action, Action::Let { name, value: number }
        if is_name(right, name) && is_there(number, value))
    };
    names.iter().any(is_there)
        && counted_up_to(left, lists, value, &|low, high| is_zero(low) && is_name(high, row))
}

/// `(value >= 0) as i32`
fn is_there(number: &Expr, value: &str) -> bool {
    let Expr::Cast { value: holds, elem: Elem::I32 } = number else { return false };
    matches!(&**holds, Expr::Binary { op: BinaryOp::Ge, left, right } if is_name(left, value) && is_zero(right))
}

/// The condition and the statements of `for once in 0..1 where .. { .. }`.
fn once(stmt: &Stmt) -> Option<(&Expr, &[Stmt])> {
    let Action::For { binder, domain, position: None, filter: Some(filter), body } = &stmt.action
    else {
        return None;
    };
    let mut named = mentions_name(filter, binder);
    walk::stmts(body, &mut |inner| {
        walk::exprs(inner, &mut |part| named |= is_name(part, binder));
    });
    let is_once =
        matches!(domain, Domain::Range { low, high: Expr::Int { value: 1 } } if is_zero(low));
    (is_once && !named).then_some((filter, body))
}

/// The range of the sum that a `let` names.
fn range_of(stmt: &Stmt) -> Option<(&Expr, &Expr)> {
    let Action::Let { value: Expr::Fold { domain, .. }, .. } = &stmt.action else { return None };
    match &**domain {
        Domain::Range { low, high } => Some((low, high)),
        _ => None,
    }
}

/// `let number = sum(row in low..high: listed(lists[row], value) as i32);`
fn counts(stmt: &Stmt, lists: &str, value: &str, is_range: &dyn Fn(&Expr, &Expr) -> bool) -> bool {
    matches!(&stmt.action, Action::Let { value: number, .. }
        if counted_up_to(number, lists, value, is_range))
}

/// `sum(row in low..high: listed(lists[row], value) as i32)`
fn counted_up_to(
    number: &Expr,
    lists: &str,
    value: &str,
    is_range: &dyn Fn(&Expr, &Expr) -> bool,
) -> bool {
    let Expr::Fold { prefix: false, binder, domain, body } = number else { return false };
    let (Domain::Range { low, high }, Expr::Cast { value: holds, elem: Elem::I32 }) =
        (&**domain, &**body)
    else {
        return false;
    };
    let Expr::Call { helper, args } = &**holds else { return false };
    let [Expr::Element { tensor, indices }, wanted] = args.as_slice() else { return false };
    helper == "listed"
        && tensor == lists
        && matches!(indices.as_slice(), [own] if is_name(own, binder))
        && is_name(wanted, value)
        && is_range(low, high)
}

/// Whether a condition holds only where `value >= 0`.
fn implies_there(condition: &Expr, value: &str) -> bool {
    match condition {
        Expr::Binary { op: BinaryOp::And, left, right } => {
            implies_there(left, value) || implies_there(right, value)
        }
        Expr::Binary { op: BinaryOp::Ge, left, right } => is_name(left, value) && is_zero(right),
        _ => false,
    }
}

fn is_zero(number: &Expr) -> bool {
    matches!(number, Expr::Int { value: 0 })
}
