//! Rows that the receiver of a dispatch in one launch packs as they come: each goes to a place for every value that its
//! token lists, behind the rows of the ranks before and those before it of its own rank.
//!
//! What it gains: rows are packed without a launch of their own, and those that come as words from registers.

use super::one_launch::{Counted, is_slot};
use super::values::{is_name, mentions_name};
use super::{Checked, Forms, OneLaunch, Unfit};
use crate::ir::parts::{elem_bytes, parts};
use crate::ir::{
    Action, BinaryOp, DimKind, Domain, Elem, ElemType, Expr, Field, Fold, Memory, Message,
    NameKind, Stmt, walk,
};

/// A lane has each choice of a row.
const CHOICES: i64 = 32;
/// What lanes copy at once.
const UNIT_BYTES: i64 = 16;
/// Values that share a scale, as the library casts them.
const BLOCK: i64 = 128;

/// `for choice in topk { let value = ids[token, choice]; record table[token, choice] = sum(earlier in 0..token:
/// listed(ids[earlier], value) as i32) * (value >= 0) as i32; }`: how many tokens before list each value of a token.
pub(crate) struct Turns<'s> {
    pub(crate) stmt: &'s Stmt,
    pub(crate) record: &'s Stmt,
    /// The name of a choice, and how many a token has.
    pub(crate) choice: &'s str,
    pub(crate) width: &'s str,
    /// The value of a choice.
    pub(crate) value: &'s Expr,
    pub(crate) table: &'s str,
}

/// The loop over the choices of a message, right in the loop over messages.
pub(crate) struct Packs<'s> {
    pub(crate) stmt: &'s Stmt,
    /// The names of a message and of a choice, and how many a message has.
    pub(crate) message: &'s str,
    pub(crate) choice: &'s str,
    pub(crate) width: &'s str,
    /// What is named, of which one is the place in the list of a value,
    pub(crate) names: Vec<&'s Stmt>,
    pub(crate) place: &'s Stmt,
    /// behind as many rows of the ranks before: a field of slots, at a list.
    pub(crate) ahead: &'s Expr,
    pub(crate) field: &'s str,
    pub(crate) list: &'s Expr,
    /// What is written for any choice,
    pub(crate) written: Vec<&'s Stmt>,
    /// and where some condition holds: what is recorded, and the row.
    pub(crate) takes: &'s Stmt,
    pub(crate) filter: &'s Expr,
    pub(crate) records: &'s [Stmt],
    pub(crate) store: &'s Stmt,
}

/// The name that a `let` gives.
pub(crate) fn name_of(stmt: &Stmt) -> &str {
    match &stmt.action {
        Action::Let { name, .. } => name,
        _ => "",
    }
}

/// The row of a tensor that is cast to e4m3 in blocks as the library has them.
pub(crate) fn row_cast(value: &Expr) -> Option<&Expr> {
    let Expr::Call { helper, args } = value else { return None };
    match args.as_slice() {
        [row @ Expr::Element { .. }, Expr::Int { value: BLOCK }] if helper == "cast_e4m3" => {
            Some(row)
        }
        _ => None,
    }
}

impl<'s> Forms<'s> {
    /// The turns of a token, of which `routes` says what it lists.
    pub(super) fn turns(
        &self,
        stmt: &'s Stmt,
        token: &str,
        routes: &str,
    ) -> Result<Turns<'s>, Unfit> {
        let (choice, width, body) = choices(stmt).ok_or_else(|| self.no_form(stmt))?;
        let [entry, record] = body else { return Err(self.no_form(stmt)) };
        let (Action::Let { name, value }, Action::Record { target, value: turns }) =
            (&entry.action, &record.action)
        else {
            return Err(self.no_form(stmt));
        };
        let is_choice = |indices: &[Expr]| {
            matches!(indices, [row, column]
            if is_name(row, token) && is_name(column, choice))
        };
        let is_value = matches!(value, Expr::Element { tensor, indices }
            if tensor == routes && is_choice(indices));
        let Expr::Binary { op: BinaryOp::Mul, left, right } = turns else {
            return Err(self.no_form(record));
        };
        if !is_value || !lists_before(left, routes, name, token) || !is_there(right, name) {
            return self.refuse(
                &record.at,
                "a turn has to be the number of earlier tokens that list a value that is present",
            );
        }
        self.check_element(record, target)?;
        let table = self.tensor(&target.tensor)?;
        let fits = table.elem == (ElemType::Scalar { elem: Elem::I32 })
            && table.memory == Memory::Device
            && is_choice(&target.indices)
            && table.dims.last().is_some_and(|own| is_name(own, width));
        if !fits || !self.has_lanes(width) {
            return self
                .refuse(&record.at, "turns have to be `i32`, of at most 32 values of a token");
        }
        Ok(Turns { stmt, record, choice, width, value, table: &target.tensor })
    }

    /// The row that is cast as it leaves is one of bf16, in whole units, and its scales share no word with other fields.
    pub(super) fn check_cast(
        &self,
        stmt: &Stmt,
        (message, field): (&Message, &Field),
        row: &Expr,
    ) -> Checked {
        let Expr::Element { tensor, indices } = row else { return Err(self.no_form(stmt)) };
        let of = self.tensor(tensor)?;
        let [width] = field.dims.as_slice() else { return Err(self.no_form(stmt)) };
        let to = parts(self.ir, &field.elem);
        let fits = of.elem == (ElemType::Scalar { elem: Elem::Bf16 })
            && !of.optional
            && of.copies == 1
            && of.dims.len() == indices.len() + 1
            && of.dims.last() == Some(width)
            && self.is_of_units(width, &field.elem)
            && matches!(to.as_slice(), [(_, Elem::E4m3, _), (_, Elem::F32 | Elem::Ue8m0, BLOCK)]);
        if !fits {
            return self.refuse(
                &stmt.at,
                "a row has to be cast from bf16 to e4m3 in blocks of 128 values",
            );
        }
        let others = message.fields.iter().filter(|other| !other.row);
        let mut elems = others.flat_map(|other| parts(self.ir, &other.elem));
        if elems.any(|(_, elem, _)| elem_bytes(&elem) < 4) {
            return self
                .refuse(&stmt.at, "the other fields beside a row that is cast have to be words");
        }
        indices.iter().try_for_each(|index| self.check_here(stmt, index))
    }

    /// The parts of the loop over choices, or the first statement that is none of them.
    pub(super) fn packs(
        &self,
        stmt: &'s Stmt,
        message: &'s str,
        one: &OneLaunch<'s>,
    ) -> Result<Packs<'s>, Unfit> {
        let (choice, width, body) = choices(stmt).ok_or_else(|| self.no_form(stmt))?;
        let is_let = |stmt: &&Stmt| matches!(stmt.action, Action::Let { .. });
        let (names, body): (Vec<&Stmt>, Vec<&Stmt>) = body.iter().partition(is_let);
        let Some((takes, written)) = body.split_last() else { return Err(self.no_form(stmt)) };
        let (filter, inner) = once(takes).ok_or_else(|| self.no_form(takes))?;
        let Some((store, records)) = inner.split_last() else { return Err(self.no_form(takes)) };
        let fields = Packing { message, choice, one };
        let found = names.iter().find_map(|stmt| fields.place(stmt).map(|place| (*stmt, place)));
        let Some((place, (ahead, field, list))) = found else {
            let why = "a place has to follow the rows of earlier ranks and the rows that the sender counts";
            return self.refuse(&stmt.at, why);
        };
        let (value, place_name) = self.packed_to(store, message, one)?;
        if place_name != name_of(place)
            || !fields.is_value(&names, value)
            || !implies_there(filter, value)
            || !fields.is_list(&names, list, value, filter)
            || !self.has_lanes(width)
        {
            let why = "a row has to go to the list of each of at most 32 values that are present, at its place";
            return self.refuse(&takes.at, why);
        }
        let packs = Packs {
            stmt,
            message,
            choice,
            width,
            names,
            place,
            ahead,
            field,
            list,
            written: written.to_vec(),
            takes,
            filter,
            records,
            store,
        };
        self.check_packed(&packs, one)?;
        Ok(packs)
    }

    /// The value and the place of `store out[value, place] = message.x;`, of a row with all of its parts.
    fn packed_to(
        &self,
        store: &'s Stmt,
        message: &str,
        one: &OneLaunch<'s>,
    ) -> Result<(&'s str, &'s str), Unfit> {
        let Action::Store { target, value: Expr::Field { of, field, indices } } = &store.action
        else {
            return Err(self.no_form(store));
        };
        let to = self.tensor(&target.tensor)?;
        let row = self.message(one.rows)?.fields.iter().find(|own| own.row && own.name == *field);
        let all = |of| parts(self.ir, of).into_iter().map(|(name, elem, _)| (name, elem));
        let fits = row.is_some_and(|row| {
            all(&row.elem).eq(all(&to.elem))
                && row.dims.len() == 1
                && row.dims.last() == to.dims.last()
                && self.is_of_units(&row.dims[0], &to.elem)
        });
        match target.indices.as_slice() {
            [
                Expr::Name { name: value, kind: NameKind::Binder },
                Expr::Name { name: place, kind: NameKind::Binder },
            ] if fits
                && of == message
                && indices.is_empty()
                && to.dims.len() == 3
                && !to.optional
                && to.copies == 1
                && to.memory == Memory::Device =>
            {
                Ok((value, place))
            }
            _ => self.refuse(&store.at, "a row has to be copied unchanged to a place in a list"),
        }
    }

    /// What is named and written in the lane of a choice.
    fn check_packed(&self, packs: &Packs<'s>, one: &OneLaunch<'s>) -> Checked {
        let others = packs.names.iter().filter(|stmt| !std::ptr::eq(**stmt, packs.place));
        let records = packs.written.iter().copied().chain(packs.records);
        let place = name_of(packs.place);
        for stmt in others.copied().chain(records.clone()) {
            match &stmt.action {
                Action::Let { .. } | Action::Store { .. } | Action::Record { .. } => {
                    self.check_write(stmt, None)?;
                }
                _ => return Err(self.no_form(stmt)),
            }
            self.check_reads(stmt, packs, one)?;
        }
        self.check_expr(packs.takes, packs.filter)?;
        self.check_reads(packs.takes, packs, one)?;
        for stmt in records {
            let Some(target) = walk::target(stmt) else { continue };
            let names = |is_named: &dyn Fn(&Expr) -> bool| {
                let mut found = false;
                for index in &target.indices {
                    walk::expr(index, &mut |part| found |= is_named(part));
                }
                found
            };
            let is_row = |part: &Expr| {
                matches!(part, Expr::Field { of, field, .. }
                    if of == packs.message && field == "row")
            };
            let of_choice = names(&is_row) && names(&|part| is_name(part, packs.choice));
            if !of_choice && !names(&|part| is_name(part, place)) {
                let why =
                    "values of a choice have to be written at its place, or at its row and number";
                return self.refuse(&stmt.at, why);
            }
        }
        Ok(())
    }

    /// What a lane knows of a message: its small fields, its row and its source.
    fn check_reads(&self, stmt: &Stmt, packs: &Packs<'s>, one: &OneLaunch<'s>) -> Checked {
        let fields = &self.message(one.rows)?.fields;
        let mut known = true;
        walk::exprs(stmt, &mut |part| match part {
            Expr::Field { of, field, .. } if of == packs.message => {
                known &= ["row", "source"].contains(&field.as_str())
                    || fields.iter().any(|own| own.name == *field && !own.row);
            }
            Expr::OfChannel { .. } => known = false,
            _ => {}
        });
        if known { Ok(()) } else { Err(self.no_form(stmt)) }
    }

    /// Whether each of so many choices has a lane.
    fn has_lanes(&self, width: &str) -> bool {
        let width = Expr::Name { name: width.to_string(), kind: NameKind::Dim };
        self.is_at_most(&width, CHOICES)
    }

    /// Whether rows of so many elements are made of whole units in every shape, and begin with one.
    pub(super) fn is_of_units(&self, width: &Expr, elem: &ElemType) -> bool {
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
}

/// A choice of a message of a dispatch.
struct Packing<'p, 's> {
    message: &'s str,
    choice: &'s str,
    one: &'p OneLaunch<'s>,
}

impl<'s> Packing<'_, 's> {
    /// `let place = sum(earlier in 0..message.source: slots[earlier].field[list]) + message.turns[choice];`
    fn place(&self, stmt: &'s Stmt) -> Option<(&'s Expr, &'s str, &'s Expr)> {
        let Action::Let { value: Expr::Binary { op: BinaryOp::Add, left, right }, .. } =
            &stmt.action
        else {
            return None;
        };
        let Expr::Fold { fold: Fold::Sum, binder, domain, body } = &**left else { return None };
        let Domain::Range { low: Expr::Int { value: 0 }, high } = &**domain else { return None };
        let from_before = matches!(high, Expr::Field { of, field, .. }
            if of == self.message && field == "source");
        let Expr::OfChannel { field, indices, .. } = &**body else { return None };
        let list = indices.first()?;
        let of_list = is_slot(body, self.one.slots, field, binder, &|index| index == list)
            && !mentions_name(list, binder);
        let listed = self.one.lists && self.one.counted(field) == Some(Counted::Experts);
        let turns = self.one.turns.as_ref()?;
        let is_turn =
            |value: &Expr| matches!(value, Expr::Element { tensor, .. } if tensor == turns.table);
        let own = self.reads(right, &is_turn);
        (from_before && of_list && listed && own).then_some((&**left, field.as_str(), list))
    }

    /// Whether a name is that of `local(message.values[choice], me)`, of the values that tokens list.
    fn is_value(&self, names: &[&Stmt], name: &str) -> bool {
        let routes = |value: &Expr| {
            matches!(value, Expr::Element { tensor, indices }
                if tensor == self.one.routes && indices.len() == 1)
        };
        names.iter().any(|stmt| match &stmt.action {
            Action::Let { name: own, value: Expr::Call { helper, args } } => {
                own == name
                    && helper == "local"
                    && matches!(args.as_slice(),
                        [value, Expr::Name { kind: NameKind::Me, .. }] if self.reads(value, &routes))
            }
            _ => false,
        })
    }

    /// Whether a list is that of a value wherever a condition holds: `value`, or `value * holds`.
    fn is_list(&self, names: &[&Stmt], list: &Expr, value: &str, condition: &Expr) -> bool {
        let Expr::Binary { op: BinaryOp::Mul, left, right } = list else {
            return is_name(list, value);
        };
        is_name(left, value)
            && names.iter().any(|stmt| match &stmt.action {
                Action::Let { name, value: Expr::Cast { value: holds, elem: Elem::I32 } } => {
                    is_name(right, name) && **holds == *condition
                }
                _ => false,
            })
    }

    /// `message.field[choice]`, of a field that is pushed as such a value.
    fn reads(&self, value: &Expr, pushed: &dyn Fn(&Expr) -> bool) -> bool {
        let Expr::Field { of, field, indices } = value else { return false };
        of == self.message
            && matches!(indices.as_slice(), [index] if is_name(index, self.choice))
            && self.one.pushed.iter().any(|value| value.name == *field && pushed(&value.value))
    }
}

/// The name of a choice, of how many, and what is done in `for choice in number { .. }`.
fn choices(stmt: &Stmt) -> Option<(&str, &str, &[Stmt])> {
    match &stmt.action {
        Action::For {
            binder,
            domain: Domain::Dim { name },
            position: None,
            filter: None,
            body,
        } => Some((binder, name, body)),
        _ => None,
    }
}

/// `sum(earlier in 0..token: listed(ids[earlier], value) as i32)`
fn lists_before(number: &Expr, ids: &str, value: &str, token: &str) -> bool {
    let Expr::Fold { fold: Fold::Sum, binder, domain, body } = number else { return false };
    let (
        Domain::Range { low: Expr::Int { value: 0 }, high },
        Expr::Cast { value: holds, elem: Elem::I32 },
    ) = (&**domain, &**body)
    else {
        return false;
    };
    let Expr::Call { helper, args } = &**holds else { return false };
    let [Expr::Element { tensor, indices }, wanted] = args.as_slice() else { return false };
    helper == "listed"
        && tensor == ids
        && matches!(indices.as_slice(), [own] if is_name(own, binder))
        && is_name(wanted, value)
        && is_name(high, token)
}

/// `(value >= 0) as i32`
fn is_there(number: &Expr, value: &str) -> bool {
    let Expr::Cast { value: holds, elem: Elem::I32 } = number else { return false };
    matches!(&**holds, Expr::Binary { op: BinaryOp::Ge, left, right: zero }
        if is_name(left, value) && is_zero(zero))
}

/// The condition and the statements of `if .. { .. }`.
fn once(stmt: &Stmt) -> Option<(&Expr, &[Stmt])> {
    match &stmt.action {
        Action::For { domain: Domain::Once, filter: Some(filter), body, .. } => {
            Some((filter, body))
        }
        _ => None,
    }
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
