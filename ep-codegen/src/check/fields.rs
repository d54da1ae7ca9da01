//! The types of fields: of messages and parts, of channels and stripes, and the parts of composite values.

use super::names;
use super::types::{
    Extent, MESSAGE_NUMBERS, SLOT_NUMBERS, STRIPE_NUMBERS, Scalar, Type, Value, declared, scalar_of,
};
use super::typing::Typing;
use super::walk::{Meaning, Scope};
use crate::ast::{Channel, Expr, ExprKind, Ident, OptionValue};
use crate::diagnostics::types as errors;
use crate::syntax::reprint::expr as text;

impl<'a> Typing<'_, 'a> {
    /// The type of `base.field`.
    pub(super) fn field(
        &mut self,
        scope: &mut Scope<'a>,
        base: &'a Expr,
        field: &'a Ident,
    ) -> Type<'a> {
        if let ExprKind::Name(name) = &base.kind
            && field == "position"
            && let Some(binder) = scope.iter().rev().find(|binder| binder.name == name)
            && matches!(binder.meaning, Meaning::Placed(_))
        {
            return Type::number();
        }
        if matches!(&base.kind, ExprKind::Name(name) if name == "stripe") {
            return self.field_of_stripe(field);
        }
        match self.expr(scope, base) {
            Type::Unknown => Type::Unknown,
            Type::Message(channel) => self.field_of(channel, field, MESSAGE_NUMBERS),
            Type::Part(channel) => self.field_of(channel, field, &[]),
            Type::Channel(channel) => {
                let mut numbers = vec!["position".to_string()];
                if channel.kind.value.traits().is_indexed {
                    numbers.extend(SLOT_NUMBERS.iter().map(|number| number.to_string()));
                }
                for option in &channel.options {
                    if let OptionValue::Header(names) = &option.value {
                        numbers.extend(names.iter().map(Ident::to_string));
                    }
                }
                let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
                self.field_of(channel, field, &numbers)
            }
            Type::Value(value) => {
                // Only a name can have parts: a row is moved whole.
                let named = matches!(base.kind, ExprKind::Name(_));
                let part = self.part(&value, field).filter(|_| named);
                part.unwrap_or_else(|| {
                    let ty = Type::Value(value);
                    self.out.push(errors::no_fields(field, &text(base), &ty));
                    Type::Unknown
                })
            }
        }
    }

    fn field_of_stripe(&mut self, field: &Ident) -> Type<'a> {
        if !STRIPE_NUMBERS.iter().any(|number| field == number) {
            self.out.push(errors::unknown_of_stripe(field, STRIPE_NUMBERS));
            return Type::Unknown;
        }
        if names::striped(self.view).is_none() {
            self.out.push(errors::stripe_of_nothing(field));
        }
        Type::number()
    }

    fn field_of(&mut self, channel: &'a Channel, field: &Ident, numbers: &[&str]) -> Type<'a> {
        if numbers.iter().any(|number| field == number) {
            return Type::number();
        }
        let Some(message) = self.view.message(&channel.message) else { return Type::Unknown };
        match message.fields.iter().find(|candidate| candidate.name == *field) {
            Some(found) => declared(self.view, &found.elem, &found.dims),
            None => {
                let fields = message.fields.iter().map(|field| field.name.to_string());
                let known = numbers.iter().map(|number| number.to_string()).chain(fields).collect();
                self.out.push(errors::unknown_field(field, &message.name, known));
                Type::Unknown
            }
        }
    }

    /// The part of a composite value.
    fn part(&self, value: &Value<'a>, field: &Ident) -> Option<Type<'a>> {
        let Scalar::Axis(_, parts) = value.scalar else { return None };
        let part = parts.iter().find(|part| part.name == *field)?;
        let mut extents = value.extents.clone();
        if let (Some(_), Some(last)) = (&part.block, extents.last_mut()) {
            *last = Extent::any();
        }
        Some(Type::Value(Value { scalar: scalar_of(self.view, &part.elem)?, extents }))
    }
}
