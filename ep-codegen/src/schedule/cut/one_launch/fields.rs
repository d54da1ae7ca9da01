//! The fields beside the row of a message: all of them are asked for before the first is written.

use super::texts::{call, method};
use crate::ir::parts::{meta_sources, parts};
use crate::ir::{Channel, Expr, FieldValue};
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::scope::Scope;
use crate::schedule::step::ParamType::Index;
use crate::schedule::step::Step;
use crate::schedule::symbol::Constant;
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering};

/// A field that has been asked for: the object that holds it, and its place in a record.
pub(super) struct Asked {
    object: String,
    place: Constant,
}

impl RoleLowering<'_> {
    /// The address of the row that is pushed.
    pub(super) fn pushed_row(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        values: &[FieldValue],
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let (_, message) = self.carried(&channel.name)?;
        let row = message.fields.iter().find(|field| field.row);
        let value = row.and_then(|row| values.iter().find(|value| value.name == row.name));
        match value.map(|value| &value.value) {
            Some(Expr::Element { tensor, indices }) => self.row(scope, (tensor, 0), indices, out),
            _ => Err(broken(format!("the row of `{}` is no row of a tensor", message.name))),
        }
    }

    /// Asks for the fields beside the row.
    pub(super) fn ask(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        values: &[FieldValue],
        out: &mut Vec<Step>,
    ) -> Lowered<Vec<Asked>> {
        let (_, message) = self.carried(&channel.name)?;
        let mut asked = Vec::new();
        for source in meta_sources(self.ir, message) {
            let value = values.iter().find(|value| value.name == source.field.name);
            let Some(FieldValue { value, .. }) = value else { continue };
            let part = parts(self.ir, &source.field.elem)
                .iter()
                .position(|(suffix, ..)| source.name == format!("{}{suffix}", source.field.name));
            let element = self.element_of(scope, value, part.unwrap_or(0))?;
            let place = Constant::field(&message.name, &source.name);
            let count = Constant::field_count(&message.name, &source.name);
            let object = self.names.fresh(&format!("{}_field", source.name));
            let ask = ep::ask.of(&source.elem).of(count);
            out.push(Step::Made { name: object.clone(), value: call(ask, vec![element]) });
            asked.push(Asked { object, place });
        }
        Ok(asked)
    }

    /// The function that gives element `i` of one part of a value.
    pub(super) fn element_of(&mut self, scope: &Scope, value: &Expr, part: usize) -> Lowered<Term> {
        self.function(&[], &[(Index, "i")], |this, params, steps| {
            let own = scope.of_lane();
            let given = match part > 0 || this.is_row(&own, value)? {
                true => this.part_value(&own, value, part, &params[0], steps)?,
                false => this.scalar(&own, value, steps)?,
            };
            Ok(Some(given))
        })
    }
}

/// Puts what was asked for into a record.
pub(super) fn put(asked: &[Asked], record: &Term, out: &mut Vec<Step>) {
    for Asked { object, place } in asked {
        let to =
            crate::schedule::channels::bytes_behind(record.clone(), Term::constant(place.clone()));
        out.push(Step::Do(method(object, "put", vec![to])));
    }
}
