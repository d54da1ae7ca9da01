//! Rows back to their tokens through slots: the steps of both roles.

use super::{Whole, call, cfg_of, method, object, team};
use crate::ir::{Elem, Expr};
use crate::schedule::Lowered;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::rules::WayBack;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::ParamType::Index;
use crate::schedule::step::Step;
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::Term;

impl Whole<'_, '_> {
    /// Both roles of such a pair.
    pub(super) fn way_back(&mut self, back: &WayBack<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        match self.role.role.name == back.sums.name {
            true => self.added_up(back, out),
            false => self.sent_back(back, out),
        }
    }

    fn sent_back(&mut self, back: &WayBack<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        let scope = Scope::default();
        let slots = self.role.names.fresh(&back.channel.name);
        let class = ep::BackOut.of(cfg_of(back.channel));
        out.push(object(class, &slots, vec![team()]));
        let rows = self.function(&[], &[(Index, "source")], |this, params, steps| {
            let source = Term { range: this.role.me().range, ..params[0].clone() };
            let own = scope.with("source", Meaning::Value(source));
            let mut ends = Vec::new();
            for end in [back.first, back.end] {
                ends.push(this.role.scalar(&own, end, steps)?.converted(&Elem::I32));
            }
            Ok(Some(call(ep::span_of, ends)))
        })?;
        let token = self.of_row(back, |this, own, steps| {
            Ok(this.role.scalar(own, back.token, steps)?.converted(&Elem::I32))
        })?;
        let floats = match back.numbers {
            Some((field, _)) => Term::constant(Constant::field_count(&back.channel.message, field)),
            None => Term::int(0),
        };
        let [sent, numbers] = self.rows_sent(back)?;
        out.push(Step::Says(back.rows.at.clone()));
        out.push(Step::Says(back.push.at.clone()));
        let run = Symbol::method(&slots, "run").of(floats);
        out.push(Step::Do(call(run, vec![rows, token, sent, numbers])));
        Ok(())
    }

    /// The functions that say where a row that goes back lies, and the numbers beside it.
    fn rows_sent(&mut self, back: &WayBack<'_>) -> Lowered<[Term; 2]> {
        let sent = self.of_row(back, |this, own, steps| this.address(own, back.sent, steps))?;
        let numbers = match back.numbers {
            Some((_, value)) => {
                self.of_row(back, |this, own, steps| this.address(own, value, steps))?
            }
            None => {
                let nothing = Term::name("nullptr", Elem::F32);
                let nothing =
                    Term::call(Symbol::text("static_cast<const float*>"), vec![nothing], Elem::F32);
                self.of_row(back, |_, _, _| Ok(nothing))?
            }
        };
        Ok([sent, numbers])
    }

    /// A function of a row that goes back.
    fn of_row(
        &mut self,
        back: &WayBack<'_>,
        make: impl FnOnce(&mut Self, &Scope, &mut Vec<Step>) -> Lowered<Term>,
    ) -> Lowered<Term> {
        self.function(&[], &[(Index, back.row)], |this, params, steps| {
            let own = Scope::default().with(back.row, Meaning::Value(params[0].clone()));
            make(this, &own, steps).map(Some)
        })
    }

    /// The address of a row of a tensor.
    fn address(&mut self, scope: &Scope, row: &Expr, out: &mut Vec<Step>) -> Lowered<Term> {
        match row {
            Expr::Element { tensor, indices } => self.row(scope, (tensor, 0), indices, out),
            _ => Err(broken("what goes back is a row of a tensor")),
        }
    }

    fn added_up(&mut self, back: &WayBack<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        let scope = Scope::default();
        let crate::ir::Action::Gather { part, domain, .. } = &back.gather.action else {
            return Err(broken("parts are gathered"));
        };
        let sum = self.role.names.fresh(part);
        let class = ep::BackIn.of(cfg_of(back.channel));
        out.push(object(class, &sum, vec![team()]));
        out.push(Step::Says(back.gather.at.clone()));
        let tokens = self.role.numbers(&scope, domain, out)?.to.converted(&Elem::I32);
        let position = self.part_position(&scope, back.gather)?;
        let [sent, numbers] = self.rows_sent(back)?;
        let stores = self.sums(&scope, back.gather, &sum)?;
        out.push(Step::Do(method(&sum, "run", vec![tokens, position, sent, numbers, stores])));
        Ok(())
    }
}
