//! Rows back to the choices of their tokens through slots: the steps of both roles.

use super::{Whole, call, cfg_of, method, object, team};
use crate::ir::{Action, Elem, Expr, NameKind};
use crate::schedule::Lowered;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::rules::Spread;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::ParamType::Index;
use crate::schedule::step::Step;
use crate::schedule::term::Term;

impl Whole<'_, '_> {
    /// Both roles of such a pair.
    pub(super) fn spread(&mut self, spread: &Spread<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        match self.role.role.name == spread.sums.name {
            true => self.choices_added(spread, out),
            false => self.choices_sent(spread, out),
        }
    }

    fn choices_sent(&mut self, spread: &Spread<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        let scope = Scope::default();
        let slots = self.role.names.fresh(&spread.channel.name);
        let choices = self.role.scalar(&scope, spread.choices, out)?;
        let class = ep::SpreadOut.of(cfg_of(spread.channel)).of(choices);
        out.push(object(class, &slots, vec![team()]));
        out.push(Step::Says(spread.rows.at.clone()));
        out.push(Step::Says(spread.push.at.clone()));
        let rows = self.rows_of_source((spread.first, spread.end))?;
        let token = self.number_of(&[spread.row], spread.token)?;
        let list = self.number_of(&[spread.row, spread.choice], spread.number)?;
        let sent = self.row_numbered(spread)?;
        out.push(Step::Do(method(&slots, "run", vec![rows, token, list, sent])));
        Ok(())
    }

    fn choices_added(&mut self, spread: &Spread<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        let scope = Scope::default();
        let (
            Action::Gather { binder: token, domain, part, peer: Some(peer), across, .. },
            Action::Store { target, .. },
        ) = (&spread.gather.action, &spread.store.action)
        else {
            return Err(broken("parts are gathered, and their sum is stored"));
        };
        let sum = self.role.names.fresh(part);
        let choices = self.role.scalar(&scope, spread.choices, out)?;
        let class = ep::SpreadIn.of(cfg_of(spread.channel)).of(choices);
        out.push(object(class, &sum, vec![team()]));
        out.push(Step::Says(spread.gather.at.clone()));
        let tokens = self.role.numbers(&scope, domain, out)?.to.converted(&Elem::I32);
        let of_choice: &[&str] = &[token.as_str(), across.as_str()];
        let place = self.number_of(of_choice, spread.place)?;
        let peer = self.number_of(of_choice, peer)?;
        let sent = self.row_numbered(spread)?;
        let factor = self.value_of(of_choice, spread.factor, &Elem::F32)?;
        let stores = self.function(&[], &[(Index, token)], |this, params, steps| {
            let own = Scope::default().with(token, Meaning::Value(params[0].clone()));
            steps.push(Step::Says(spread.store.at.clone()));
            let to = this.written(&own, target, steps)?;
            steps.push(Step::Do(method(&sum, "store_row", vec![to])));
            Ok(None)
        })?;
        let args = vec![tokens, place, peer, sent, factor, stores];
        out.push(Step::Do(method(&sum, "run", args)));
        Ok(())
    }

    /// The function that gives the rows that came from a rank.
    pub(super) fn rows_of_source(&mut self, (first, end): (&Expr, &Expr)) -> Lowered<Term> {
        self.function(&[], &[(Index, "source")], |this, params, steps| {
            let source = Term { range: this.role.me().range, ..params[0].clone() };
            let own = Scope::default().with("source", Meaning::Value(source));
            let mut ends = Vec::new();
            for end in [first, end] {
                ends.push(this.role.scalar(&own, end, steps)?.converted(&Elem::I32));
            }
            Ok(Some(call(ep::span_of, ends)))
        })
    }

    /// The function that gives where a row lies that has a number.
    fn row_numbered(&mut self, spread: &Spread<'_>) -> Lowered<Term> {
        let at = Expr::Name { name: "at".to_string(), kind: NameKind::Binder };
        self.function(&[], &[(Index, "at")], |this, params, steps| {
            let own = Scope::default().with("at", Meaning::Value(params[0].clone()));
            this.row(&own, (spread.sent, 0), &[at], steps).map(Some)
        })
    }

    /// The function that gives a whole number of what `binders` stand for.
    fn number_of(&mut self, binders: &[&str], value: &Expr) -> Lowered<Term> {
        self.value_of(binders, value, &Elem::I32)
    }

    /// The function that gives a value of what `binders` stand for.
    fn value_of(&mut self, binders: &[&str], value: &Expr, elem: &Elem) -> Lowered<Term> {
        let params: Vec<_> = binders.iter().map(|binder| (Index, *binder)).collect();
        self.function(&[], &params, |this, params, steps| {
            let mut own = Scope::default();
            for (binder, param) in binders.iter().zip(params) {
                own = own.with(binder, Meaning::Value(param.clone()));
            }
            Ok(Some(this.role.scalar(&own.of_lane(), value, steps)?.converted(elem)))
        })
    }
}
