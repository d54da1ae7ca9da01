//! The fields of a message, each at its place.

use super::bytes_behind;
use crate::ir::parts::{meta_sources, row_field};
use crate::ir::{Elem, Expr, Field, FieldValue, Message};
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::scope::Scope;
use crate::schedule::statements::Cast;
use crate::schedule::step::{Step, Takers};
use crate::schedule::symbol::Constant;
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    /// Writes every field of a message to its place.
    pub(super) fn fill_message(
        &mut self,
        scope: &Scope,
        message: &Message,
        values: &[FieldValue],
        (row, meta): (Term, Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        for field in &message.fields {
            let value = values.iter().find(|value| value.name == field.name);
            let value =
                &value.ok_or_else(|| broken(format!("no value for `{}`", field.name)))?.value;
            if let Some(cast) = self.cast_of(scope, value) {
                self.fill_cast(message, (field, &cast), (&row, &meta), out)?;
                continue;
            }
            if field.row {
                let (_, elem) = row_field(self.ir, message).ok_or(broken("no row"))?;
                let mut width = Term::int(1);
                for dim in &field.dims {
                    width = width.times(self.scalar(&Scope::default(), dim, &mut Vec::new())?);
                }
                self.fill_field(scope, value, 0, (row.clone(), elem, width), out)?;
            }
            let sources = meta_sources(self.ir, message);
            let own = sources.iter().filter(|source| std::ptr::eq(source.field, field));
            for (index, source) in own.enumerate() {
                let place = Constant::field(&message.name, &source.name);
                let to = bytes_behind(meta.clone(), Term::constant(place));
                let count = Constant::field_count(&message.name, &source.name);
                let range = Some((0, i64::from(i32::MAX)));
                let count = Term { range, ..Term::constant(count) };
                let part = if field.row { index + 1 } else { index };
                self.fill_field(scope, value, part, (to, source.elem.clone(), count), out)?;
            }
        }
        Ok(())
    }

    /// Casts the row of a message on its way: its codes go to the row, its scales beside it.
    fn fill_cast(
        &mut self,
        message: &Message,
        (field, cast): (&Field, &Cast),
        (row, meta): (&Term, &Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let ([width], true) = (field.dims.as_slice(), field.row) else {
            return Err(broken("a row that is cast goes to the row of its message, with scales"));
        };
        let width = self.scalar(&Scope::default(), width, out)?;
        let sources = meta_sources(self.ir, message);
        let own = sources.iter().filter(|source| std::ptr::eq(source.field, field));
        let mut places = vec![row.clone()];
        places.extend(own.map(|source| {
            let place = Constant::field(&message.name, &source.name);
            bytes_behind(meta.clone(), Term::constant(place))
        }));
        let mut set = |_: &mut RoleLowering<'a>, part: usize, i: Term, value: Term| {
            let elem = value.elem.clone();
            let args = vec![places[part].clone(), i, value];
            Ok(Step::Do(Term::call(ep::set.of(&elem), args, elem)))
        };
        self.cast(cast, (width, &field.elem), &mut set, out)
    }

    fn fill_field(
        &mut self,
        scope: &Scope,
        value: &Expr,
        part: usize,
        (to, elem, count): (Term, Elem, Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let set = ep::set.of(&elem);
        self.elements(scope, value, count, Takers::Lanes, out, &mut |this, i, own, steps| {
            let value = match this.is_row(own, value)? || part > 0 {
                true => this.part_value(own, value, part, i, steps)?,
                false => this.scalar(own, value, steps)?,
            };
            let args = vec![to.clone(), i.clone(), value.converted(&elem)];
            Ok(Step::Do(Term::call(set.clone(), args, elem.clone())))
        })
    }
}
