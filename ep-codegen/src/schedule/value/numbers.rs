//! Numbers of the shape and of a call, and what loops run over.

use super::STRIPE;
use crate::ir::{Domain, Elem, PeerSet, Size, WellKnown};
use crate::schedule::extents::range_of;
use crate::schedule::library::ep;
use crate::schedule::limit::{Limit, broken};
use crate::schedule::scope::Scope;
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering};

/// What a loop or fold runs over.
pub(in crate::schedule) struct Numbers {
    pub(in crate::schedule) from: Term,
    pub(in crate::schedule) to: Term,
    /// Whether this rank is left out.
    pub(in crate::schedule) others: bool,
}

impl<'a> RoleLowering<'a> {
    /// What a loop or fold over numbers runs over.
    pub(in crate::schedule) fn numbers(
        &mut self,
        scope: &Scope,
        domain: &Domain,
        out: &mut Vec<Step>,
    ) -> Lowered<Numbers> {
        let upto = |to| Numbers { from: Term::int(0), to, others: false };
        Ok(match domain {
            Domain::Dim { name } => upto(self.number(name)),
            Domain::Tokens => upto(self.size(scope, WellKnown::Tokens.name(), out)?),
            Domain::Peers { set } => {
                let to = self.known(set.number())?;
                Numbers { others: *set == PeerSet::Others, ..upto(to) }
            }
            Domain::Range { low, high } => Numbers {
                from: self.scalar(scope, low, out)?,
                to: self.scalar(scope, high, out)?,
                others: false,
            },
            Domain::Stripe => {
                let span = self.span(scope, "rows", out)?;
                Numbers {
                    from: Term::index(format!("{span}.begin")),
                    to: Term::index(format!("{span}.end")),
                    others: false,
                }
            }
            Domain::Once => upto(Term::int(1)),
            Domain::Row { .. } | Domain::ReceivedFrom { .. } => {
                return Err(broken("a fold runs over numbers"));
            }
        })
    }

    /// The rows of the current stripe.
    pub(in crate::schedule) fn span(
        &mut self,
        scope: &Scope,
        wanted: &str,
        out: &mut Vec<Step>,
    ) -> Lowered<String> {
        let stripe = self.scalar(scope, &STRIPE, out)?;
        let rows = self.striped(scope, out)?;
        let span = self.names.fresh(wanted);
        let args = vec![rows, self.number(WellKnown::Stripes.name()), stripe];
        out.push(Step::Object {
            class: Symbol::from(ep::Span).fixed(),
            name: span.clone(),
            args: vec![Term::call(ep::stripe_span, args, Elem::I32)],
        });
        Ok(span)
    }

    /// A number of the shape, with the values that it may have.
    pub(in crate::schedule) fn number(&self, name: &str) -> Term {
        Term { range: range_of(self.ir, name), ..Term::constant(Constant::number(name)) }
    }

    /// This rank.
    pub(in crate::schedule) fn me(&self) -> Term {
        self.uses_me.set(true);
        let ranks = range_of(self.ir, WellKnown::Ranks.name())
            .map_or(i64::from(i32::MAX), |(_, high)| high);
        Term::small("me", 0, ranks - 1)
    }

    /// A size that the caller gives, or what the device computes it from.
    pub(in crate::schedule) fn size(
        &mut self,
        scope: &Scope,
        name: &str,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let size = self.ir.sizes.iter().find(|size| size.name == name);
        match size.and_then(|size| size.value.as_ref()) {
            Some(value) => self.scalar(scope, value, out),
            None => {
                let word = |suffix| Term::name(format!("args.{name}{suffix}"), Elem::I32);
                let rows = Term::call(ep::rows_of, vec![word(""), word("_from")], Elem::I32);
                let end = size.and_then(|size| size.values.as_ref()).map(|values| &values.high);
                let end = end.map(|end| self.scalar(&Scope::default(), &end.clone(), out));
                let range = end.transpose()?.and_then(|end| end.range);
                let most = range.map_or(i64::from(i32::MAX), |(_, end)| end - 1);
                Ok(Term { range: Some((0, most.min(i64::from(i32::MAX)))), ..rows })
            }
        }
    }

    /// How many rows the stripes share: those that the caller gives, else those of the device.
    pub(in crate::schedule) fn striped(
        &mut self,
        scope: &Scope,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let size = self.striped_size().ok_or(Limit::NoSize)?;
        self.size(scope, &size.name, out)
    }

    /// The size that says how many they are.
    pub(in crate::schedule) fn striped_size(&self) -> Option<&'a Size> {
        let given = self.ir.sizes.iter().find(|size| size.value.is_none());
        given.or(self.ir.sizes.first())
    }

    /// A number that a word of the language counts with.
    pub(in crate::schedule) fn known(&self, number: WellKnown) -> Lowered<Term> {
        match self.ir.has_number(number) {
            true => Ok(self.number(number.name())),
            false => Err(Limit::NoNumber.of(&[number.name()])),
        }
    }

    /// The number of a loop under its name in the text.
    pub(in crate::schedule) fn index_in(&self, name: &str, numbers: &Numbers) -> Term {
        match numbers.from.range {
            Some((low, _)) if numbers_fit(numbers) => {
                let most = numbers.to.range.map_or(i64::from(i32::MAX), |(_, high)| high);
                Term::small(name, low, (most - 1).max(low))
            }
            _ => Term::name(name, Elem::I64),
        }
    }
}

/// Whether a loop over these numbers can count in 32 bits: it begins at a known one, and ends at one that has them.
fn numbers_fit(numbers: &Numbers) -> bool {
    let ends = numbers.to.range.is_some() && numbers.to.elem != Elem::I64;
    numbers.from.range.is_some()
        && numbers.from.elem != Elem::I64
        && (ends || numbers.to.elem == Elem::I32)
}

/// A loop over numbers.
pub(in crate::schedule) fn counted_loop(
    binder: String,
    numbers: Numbers,
    turns: Takers,
    body: Vec<Step>,
) -> Step {
    let elem = if numbers_fit(&numbers) { Elem::I32 } else { Elem::I64 };
    Step::Loop(Loop { binder, elem, from: numbers.from, to: numbers.to, turns, body })
}
