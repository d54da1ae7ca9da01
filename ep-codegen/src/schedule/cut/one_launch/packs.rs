//! Rows that the receiver of a dispatch in one launch packs as they come: each goes to a place for every value that its
//! token lists, behind the rows of the ranks before and those before it of its own rank.
//!
//! What it gains: rows are packed without a launch of their own, and those that come as words from registers.

use super::counting::sum_of_slots;
use super::{Checked, Facts, OneLaunch, WhyNot, is_name};
use crate::ir::parts::{UNIT_BYTES, elem_bytes, parts};
use crate::ir::put::mentions;
use crate::ir::{
    Action, DimKind, Domain, Elem, ElemType, Expr, Field, Fold, Memory, Message, NameKind,
    Pipeline, Stmt, change, walk,
};
use crate::schedule::cut::own_name;

/// A lane has a choice of a row, 32 of them at a time. A warp has all choices of a row in registers.
const CHOICES: i64 = 64;
/// How many values may share a scale: those of neighboring lanes, of which each has a unit. A warp has all blocks of a word.
const BLOCKS: [i64; 4] = [16, 32, 64, 128];

/// Names that no declaration can have: how many earlier tokens list a value, and how many rows earlier ranks have in a list.
pub(super) const BEFORE: &str = "tokens before";
pub(super) const AHEAD: &str = "rows ahead";

/// `for choice in topk { let ..; record table[token, choice] = value; }`: a number of each choice of a token.
pub(super) struct Turns<'s> {
    pub(super) stmt: &'s Stmt,
    /// The name of a choice, and how many a token has.
    pub(super) choice: &'s str,
    pub(super) width: &'s str,
    pub(super) names: Vec<&'s Stmt>,
    pub(super) record: &'s Stmt,
    pub(super) table: &'s str,
    /// The number, with [`BEFORE`] in place of how many tokens list a value, if it has that.
    pub(super) value: Expr,
    pub(super) before: Option<Listed>,
}

/// `sum(earlier in 0..end: listed(ids[earlier], value) as i32)`
pub(super) struct Listed {
    pub(super) ids: String,
    pub(super) end: Expr,
    pub(super) value: Expr,
}

/// The loop over the choices of a message, right in the loop over messages.
pub(super) struct Packs<'s> {
    pub(super) stmt: &'s Stmt,
    /// The names of a message and of a choice, and how many a message has.
    pub(super) message: &'s str,
    pub(super) choice: &'s str,
    pub(super) width: &'s str,
    /// The `let` statements. One of them computes the place in a list.
    pub(super) names: Vec<&'s Stmt>,
    pub(super) place: &'s Stmt,
    /// The value of the place, with [`AHEAD`] for the number of rows that earlier ranks have in the list. Slots hold that
    /// number in this field, at this list.
    pub(super) value: Expr,
    pub(super) field: String,
    pub(super) list: Expr,
    /// The statements for every choice.
    pub(super) written: Vec<&'s Stmt>,
    /// The statement that stores the row, its condition if it has one, the records under that condition, and the store.
    pub(super) takes: &'s Stmt,
    pub(super) filter: Option<&'s Expr>,
    pub(super) records: &'s [Stmt],
    pub(super) store: &'s Stmt,
}

/// The row of a tensor that is cast to e4m3 in blocks that the library has, and their size.
pub(super) fn row_cast(value: &Expr) -> Option<(&Expr, i64)> {
    let Expr::Call { helper, args } = value else { return None };
    match args.as_slice() {
        [row @ Expr::Element { .. }, Expr::Int { value: block }]
            if helper == "cast_e4m3" && BLOCKS.contains(block) =>
        {
            Some((row, *block))
        }
        _ => None,
    }
}

impl<'s> Facts<'s> {
    /// Finds the parts of a loop that records a number for each choice of a token.
    pub(super) fn turns(&self, stmt: &'s Stmt, token: &str) -> Result<Turns<'s>, WhyNot> {
        let (choice, width, body) = choices(stmt).ok_or_else(|| self.no_form(stmt))?;
        let (record, names) = body.split_last().ok_or_else(|| self.no_form(stmt))?;
        let Action::Record { target, value } = &record.action else {
            return Err(self.no_form(record));
        };
        if let Some(other) = names.iter().find(|it| !matches!(it.action, Action::Let { .. })) {
            return Err(self.no_form(other));
        }
        self.check_element(record, target)?;
        let table = self.tensor(&target.tensor)?;
        let fits = table.elem == (ElemType::Scalar { elem: Elem::I32 })
            && table.memory == Memory::Device
            && matches!(target.indices.as_slice(), [row, column]
                if is_name(row, token) && is_name(column, choice))
            && table.dims.last().is_some_and(|own| is_name(own, width));
        if !fits || !self.has_registers(width) {
            let why = format!("turns have to be `i32`, of at most {CHOICES} values of a token");
            return self.refuse(&record.at, &why);
        }
        self.refuse_optional(record, value)?;
        let mut value = value.clone();
        let before = taken(&mut value, BEFORE, &|part| self.listed(part));
        let (names, table) = (names.iter().collect(), &target.tensor);
        Ok(Turns { stmt, choice, width, names, record, table, value, before })
    }

    /// How many rows of a tensor list a value, if an expression is that.
    fn listed(&self, part: &Expr) -> Option<Listed> {
        let Expr::Fold { fold: Fold::Sum, binder, domain, body } = part else { return None };
        let Domain::Range { low: Expr::Int { value: 0 }, high } = &**domain else { return None };
        let Expr::Cast { value: holds, elem: Elem::I32 } = &**body else { return None };
        let Expr::Call { helper, args } = &**holds else { return None };
        let [Expr::Element { tensor, indices }, value] = args.as_slice() else { return None };
        let ids = self.tensor(tensor).ok()?;
        // The library compares 32 bits of each number.
        let fits = helper == "listed"
            && matches!(indices.as_slice(), [own] if is_name(own, binder))
            && !mentions(value, binder)
            && ids.elem == (ElemType::Scalar { elem: Elem::I64 })
            && ids.values.is_some()
            && !ids.optional
            && ids.copies == 1
            && ids.dims.len() == 2;
        fits.then(|| Listed { ids: tensor.clone(), end: high.clone(), value: value.clone() })
    }

    /// The row that is cast as it leaves is one of bf16, in whole units, and its scales share no word with other fields.
    pub(super) fn check_cast(
        &self,
        stmt: &Stmt,
        (message, field): (&Message, &Field),
        (row, block): (&Expr, i64),
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
            && is_of_units(self.ir, width, &field.elem)
            && matches!(to.as_slice(), [(_, Elem::E4m3, _), (_, Elem::F32 | Elem::Ue8m0, own)]
                if *own == block);
        if !fits {
            return self.refuse(
                &stmt.at,
                "a row has to be cast from bf16 to e4m3 in blocks of 16, 32, 64 or 128 values",
            );
        }
        let others = message.fields.iter().filter(|other| !other.row);
        let mut elems = others.flat_map(|other| parts(self.ir, &other.elem));
        if elems.any(|(_, elem, _)| elem_bytes(&elem) < 4) {
            return self
                .refuse(&stmt.at, "the other fields beside a row that is cast have to be words");
        }
        indices.iter().try_for_each(|index| self.refuse_optional(stmt, index))
    }

    /// The parts of the loop over choices, or the first statement that is none of them.
    pub(super) fn packs(
        &self,
        stmt: &'s Stmt,
        message: &'s str,
        one: &OneLaunch<'s>,
    ) -> Result<Packs<'s>, WhyNot> {
        let (choice, width, body) = choices(stmt).ok_or_else(|| self.no_form(stmt))?;
        if !self.has_registers(width) {
            return self.refuse(&stmt.at, &format!("a row can go to at most {CHOICES} places"));
        }
        let is_let = |stmt: &&Stmt| matches!(stmt.action, Action::Let { .. });
        let (names, body): (Vec<&Stmt>, Vec<&Stmt>) = body.iter().partition(is_let);
        let Some((takes, written)) = body.split_last() else { return Err(self.no_form(stmt)) };
        let (filter, inner) = match &takes.action {
            Action::For { domain: Domain::Once, filter: Some(filter), body, .. } => {
                (Some(filter), body.as_slice())
            }
            _ => (None, std::slice::from_ref(*takes)),
        };
        let Some((store, records)) = inner.split_last() else { return Err(self.no_form(takes)) };
        let mut found = names.iter().filter_map(|stmt| {
            let Action::Let { value, .. } = &stmt.action else { return None };
            let mut value = value.clone();
            let sum = taken(&mut value, AHEAD, &|part| ahead_of(part, one, message));
            sum.map(|sum| (*stmt, value, sum))
        });
        let Some((place, value, (field, list))) = found.next() else {
            let why = "a place has to follow the rows of earlier ranks in some list";
            return self.refuse(&stmt.at, why);
        };
        self.refuse_optional(place, &value)?;
        self.refuse_slots(place, &list)?;
        self.refuse_slots(place, &value)?;
        self.check_store(store, message, one)?;
        let packs = Packs {
            stmt,
            message,
            choice,
            width,
            names: names.clone(),
            place,
            value,
            field,
            list,
            written: written.to_vec(),
            takes,
            filter,
            records,
            store,
        };
        for stmt in names.iter().copied().chain(packs.written.iter().copied()).chain(packs.records)
        {
            match &stmt.action {
                Action::Let { .. } if std::ptr::eq(stmt, place) => continue,
                Action::Let { value, .. } => self.refuse_optional(stmt, value)?,
                Action::Store { .. } | Action::Record { .. } => {}
                _ => return Err(self.no_form(stmt)),
            }
            self.check_reads(stmt, &packs, one)?;
        }
        if let Some(filter) = filter {
            self.refuse_optional(takes, filter)?;
            self.check_reads(takes, &packs, one)?;
        }
        Ok(packs)
    }

    /// Nothing awaits slots here.
    fn refuse_slots(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let found = walk::any_expr(whole, &mut |part| matches!(part, Expr::OfChannel { .. }));
        if found { Err(self.no_form(stmt)) } else { Ok(()) }
    }

    /// `store out[..] = message.x;`, of a row with all of its parts, to one that begins with a whole unit.
    fn check_store(&self, store: &'s Stmt, message: &str, one: &OneLaunch<'s>) -> Checked {
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
                && is_of_units(self.ir, &row.dims[0], &to.elem)
        });
        let is_row =
            of == message && indices.is_empty() && target.indices.len() + 1 == to.dims.len();
        if !fits || !is_row || to.optional || to.copies > 1 || to.memory != Memory::Device {
            return self.refuse(&store.at, "a row has to be copied unchanged to rows of a tensor");
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

    /// Whether a warp has so many choices in registers.
    fn has_registers(&self, width: &str) -> bool {
        self.ir.dims.iter().any(|dim| {
            dim.name == width && matches!(dim.kind, DimKind::Given { high, .. } if high <= CHOICES)
        })
    }
}

/// Whether rows of so many elements are made of whole units in every shape, and begin with one.
pub(in crate::schedule) fn is_of_units(ir: &Pipeline, width: &Expr, elem: &ElemType) -> bool {
    let Expr::Name { name, kind: NameKind::Dim } = width else { return false };
    let bytes = match parts(ir, elem).first() {
        Some((_, elem @ (Elem::Bf16 | Elem::E4m3), _)) => elem_bytes(elem),
        _ => return false,
    };
    let is_unit = |elements: i64| elements * bytes % UNIT_BYTES == 0;
    ir.dims.iter().any(|dim| {
        dim.name == *name
            && matches!(dim.kind, DimKind::Given { low, step, .. } if is_unit(low) && is_unit(step))
    })
}

/// Replaces the part of an expression that `known` accepts with a name, if all such parts are equal.
fn taken<T>(whole: &mut Expr, name: &str, known: &dyn Fn(&Expr) -> Option<T>) -> Option<T> {
    let mut parts: Vec<Expr> = Vec::new();
    walk::expr(whole, &mut |part| {
        if known(part).is_some() && !parts.contains(part) {
            parts.push(part.clone());
        }
    });
    let [only] = parts.as_slice() else { return None };
    change::expr(whole, false, &mut |part, _| {
        if part == only {
            *part = own_name(name);
        }
    });
    known(only)
}

/// The field of slots and the list of a sum over the ranks before that of a message.
fn ahead_of(part: &Expr, one: &OneLaunch<'_>, message: &str) -> Option<(String, Expr)> {
    // A cast around the sum stays.
    let sum = sum_of_slots(part, one.slots).filter(|_| matches!(part, Expr::Fold { .. }))?;
    let from_before = matches!(sum.end, Expr::Field { of, field, .. }
        if of == message && field == "source");
    from_before.then(|| (sum.field.to_string(), sum.at.clone()))
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
