//! The fields beside the row of a message: all of them are asked for before the first is written.

use super::{Whole, call, method, name};
use crate::ir::parts::{meta_sources, parts};
use crate::ir::{Action, Channel, Expr, FieldValue, Stmt};
use crate::schedule::Lowered;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::ParamType::{Index, Object, Value};
use crate::schedule::step::{Param, Step};
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::{Node, Term};

/// A field that has been asked for: the object that holds it, and its place in a record.
pub(super) struct Asked {
    object: String,
    place: Constant,
}

impl Whole<'_, '_> {
    /// The address of the row that is pushed.
    pub(super) fn pushed_row(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        values: &[FieldValue],
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let (_, message) = self.role.carried(&channel.name)?;
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
        let (_, message) = self.role.carried(&channel.name)?;
        let mut asked = Vec::new();
        for source in meta_sources(self.role.ir, message) {
            let value = values.iter().find(|value| value.name == source.field.name);
            let Some(FieldValue { value, .. }) = value else { continue };
            let part = parts(self.role.ir, &source.field.elem)
                .iter()
                .position(|(suffix, ..)| source.name == format!("{}{suffix}", source.field.name));
            let element = self.element(scope, value, part.unwrap_or(0))?;
            let place = Constant::field(&message.name, &source.name);
            let count = Constant::field_count(&message.name, &source.name);
            let object = self.role.names.fresh(&format!("{}_field", source.name));
            let ask = ep::ask.of(&source.elem).of(count);
            out.push(Step::Made { name: object.clone(), value: call(ask, vec![element]) });
            asked.push(Asked { object, place });
        }
        Ok(asked)
    }

    /// The function that gives element `i` of one part of a value.
    pub(super) fn element(&mut self, scope: &Scope, value: &Expr, part: usize) -> Lowered<Term> {
        self.function(&[], &[(Index, "i")], |this, params, steps| {
            let own = scope.of_lane();
            let given = match part > 0 || this.role.is_row(&own, value)? {
                true => this.role.part_value(&own, value, part, &params[0], steps)?,
                false => this.role.scalar(&own, value, steps)?,
            };
            Ok(Some(given))
        })
    }

    /// The function that unpacks messages.
    pub(super) fn taken(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        (binder, body): (&str, &[Stmt]),
    ) -> Lowered<Term> {
        self.function(&[], &[(Object(ep::OnceMessage), binder)], |this, params, steps| {
            let Node::Name(messages) = &params[0].node else { return Ok(None) };
            let mut stores = Vec::new();
            for inner in body {
                stores.push(Step::Says(inner.at.clone()));
                let before = stores.len();
                let of = (channel, binder, messages.as_str());
                this.unpack(scope, of, inner, (steps, &mut stores))?;
                if stores.len() == before {
                    let words = "The sender has stored it in place.";
                    stores.push(Step::Remark(words.to_string()));
                }
            }
            steps.append(&mut stores);
            Ok(None)
        })
    }

    /// Takes the fields beside the row out of the messages under the name `messages`: what asks for them,
    /// and what stores them. None of a row that is stored as it is.
    pub(super) fn unpack(
        &mut self,
        scope: &Scope,
        (channel, binder, messages): (&Channel, &str, &str),
        stmt: &Stmt,
        (asks, stores): (&mut Vec<Step>, &mut Vec<Step>),
    ) -> Lowered<()> {
        let (Action::Store { target, value } | Action::Record { target, value }) = &stmt.action
        else {
            return Err(broken("a message is stored field by field"));
        };
        let (_, message) = self.role.carried(&channel.name)?;
        let tensor = self.role.tensor(&target.tensor)?;
        let fields = fields_of(value, binder);
        let mut sources = meta_sources(self.role.ir, message);
        sources.retain(|source| fields.contains(&source.field.name.as_str()));
        // In the order of the value: the first one brings the others along.
        sources.sort_by_key(|source| fields.iter().position(|field| *field == source.field.name));
        let mut asked = Vec::new();
        for source in &sources {
            let place = Constant::field(&message.name, &source.name);
            let count = Constant::field_count(&message.name, &source.name);
            let ask = Symbol::method(messages, "ask").of(&source.elem).of(count);
            let ask = call(ask, vec![Term::constant(place)]);
            asked.push(self.asked_once(&source.name, ask, asks));
        }
        // Each part of one field for itself, or a value of elements of several fields.
        let together = if fields.len() == 1 { 1 } else { sources.len().max(1) };
        let all = parts(self.role.ir, &tensor.elem);
        for (read, objects) in sources.chunks(together).zip(asked.chunks(together)) {
            let first = &read[0];
            let suffix = first.name.strip_prefix(fields[0]).unwrap_or_default();
            let part = all.iter().position(|(own, ..)| own == suffix).unwrap_or(0);
            let params: Vec<_> = read
                .iter()
                .map(|source| (Value(source.elem.clone()), source.field.name.as_str()))
                .collect();
            let convert = self.function(&[], &params, |this, params, steps| {
                let known = read.iter().zip(params).map(|(source, param)| {
                    let own = Term { elem: source.elem.clone(), ..param.clone() };
                    (source.field.name.clone(), own)
                });
                let known: Vec<_> = known.collect();
                if first.field.row {
                    return Ok(Some(known[0].1.clone()));
                }
                let own = scope.with(binder, Meaning::Fields(known)).of_lane();
                this.role.scalar(&own, value, steps).map(Some)
            })?;
            let to = name(&format!("args.{}", self.role.part_name(tensor, part)));
            let (between, beside) = (self.stride(tensor, part)?, self.column(tensor, part)?);
            let mut args = vec![to, between, beside];
            if !is_identity(&convert) {
                args.push(convert);
            }
            args.extend(objects[1..].iter().map(|object| name(object)));
            stores.push(Step::Do(method(&objects[0], "store", args)));
        }
        Ok(())
    }

    /// The object that `ask` makes, which other stores may have asked for.
    fn asked_once(&mut self, field: &str, ask: Term, asks: &mut Vec<Step>) -> String {
        let known = asks.iter().find_map(|step| match step {
            Step::Made { name, value } if *value == ask => Some(name.clone()),
            _ => None,
        });
        known.unwrap_or_else(|| {
            let object = self.role.names.fresh(&format!("{field}_field"));
            asks.push(Step::Made { name: object.clone(), value: ask });
            object
        })
    }
}

/// Whether a function gives what it takes.
fn is_identity(function: &Term) -> bool {
    let Node::Lambda(function) = &function.node else { return false };
    let [Param { name, .. }] = function.params.as_slice() else { return false };
    let given = function.gives.as_ref().map(|given| &given.node);
    function.body.is_empty() && matches!(given, Some(Node::Name(own)) if own == name)
}

/// Puts what was asked for into a record.
pub(super) fn put(asked: &[Asked], record: &Term, out: &mut Vec<Step>) {
    for Asked { object, place } in asked {
        let to =
            crate::schedule::channels::bytes_behind(record.clone(), Term::constant(place.clone()));
        out.push(Step::Do(method(object, "put", vec![to])));
    }
}

/// The fields of `binder` that `value` reads, each once.
pub(in crate::schedule) fn fields_of<'e>(value: &'e Expr, binder: &str) -> Vec<&'e str> {
    let mut found = Vec::new();
    crate::ir::walk::expr(value, &mut |part| {
        if let Expr::Field { of, field, .. } = part
            && of == binder
            && !found.contains(&field.as_str())
        {
            found.push(field.as_str());
        }
    });
    found
}
