//! Rows back to their tokens through slots: the steps of both roles.

use super::{Whole, call, cfg_of, method, object, team};
use crate::ir::{Action, Elem, Expr};
use crate::schedule::Lowered;
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::rules::{Sent, SumOfRows, WayBack};
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::ParamType::{self, Index};
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
        let rows = self.rows_of_source((back.first, back.end))?;
        let token = self.of_row(back, |this, own, steps| {
            Ok(this.role.scalar(own, back.token, steps)?.converted(&Elem::I32))
        })?;
        out.push(Step::Says(back.rows.at.clone()));
        out.push(Step::Says(back.push.at.clone()));
        let (run, sent) = match &back.sent {
            Sent::Row { row, numbers } => {
                let floats = match numbers {
                    Some((field, _)) => {
                        Term::constant(Constant::field_count(&back.channel.message, field))
                    }
                    None => Term::int(0),
                };
                let sent = self.rows_sent(back, row, numbers.as_ref().map(|(_, value)| *value))?;
                (Symbol::method(&slots, "run").of(floats), sent.to_vec())
            }
            Sent::Sum(sum) => {
                let most = self.role.scalar(&scope, sum.most, out)?;
                let sent = self.rows_added(back, sum)?;
                (Symbol::method(&slots, "run_sums").of(most), sent.to_vec())
            }
        };
        out.push(Step::Do(call(run, [vec![rows, token], sent].concat())));
        Ok(())
    }

    /// The functions that say where a row that goes back lies, and the numbers beside it.
    fn rows_sent(
        &mut self,
        back: &WayBack<'_>,
        row: &Expr,
        numbers: Option<&Expr>,
    ) -> Lowered<[Term; 2]> {
        let sent = self.of_row(back, |this, own, steps| this.address(own, row, steps))?;
        let numbers = match numbers {
            Some(value) => self.of_row(back, |this, own, steps| this.address(own, value, steps))?,
            None => {
                let nothing = Term::name("nullptr", Elem::F32);
                let nothing =
                    Term::call(Symbol::text("static_cast<const float*>"), vec![nothing], Elem::F32);
                self.of_row(back, |_, _, _| Ok(nothing))?
            }
        };
        Ok([sent, numbers])
    }

    /// The functions that say which rows a row that goes back is the sum of, where one lies, and how often it
    /// counts.
    fn rows_added(&mut self, back: &WayBack<'_>, sum: &SumOfRows<'_>) -> Lowered<[Term; 3]> {
        let list =
            self.function(&[], &[(Index, back.row), (Index, "k")], |this, params, steps| {
                let own = Scope::default().with(back.row, Meaning::Value(params[0].clone()));
                let at = this.role.value(&own, sum.list, Some(&params[1]), steps)?;
                Ok(Some(at.converted(&Elem::I64)))
            })?;
        let row = self.of_added(sum, |this, own, steps| this.address(own, sum.row, steps))?;
        let factor = self.of_added(sum, |this, own, steps| {
            Ok(this.role.scalar(own, sum.factor, steps)?.converted(&Elem::F32))
        })?;
        Ok([list, row, factor])
    }

    /// A function of a row that is added to one that goes back.
    fn of_added(
        &mut self,
        sum: &SumOfRows<'_>,
        make: impl FnOnce(&mut Self, &Scope, &mut Vec<Step>) -> Lowered<Term>,
    ) -> Lowered<Term> {
        self.function(&[], &[(ParamType::Value(Elem::I64), sum.at)], |this, params, steps| {
            let own = Scope::default().with(sum.at, Meaning::Value(params[0].clone()));
            make(this, &own, steps).map(Some)
        })
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
        let Action::Gather { part, domain, .. } = &back.gather.action else {
            return Err(broken("parts are gathered"));
        };
        let sum = self.role.names.fresh(part);
        let class = ep::BackIn.of(cfg_of(back.channel));
        out.push(object(class, &sum, vec![team()]));
        out.push(Step::Says(back.gather.at.clone()));
        let tokens = self.role.numbers(&scope, domain, out)?.to.converted(&Elem::I32);
        let position = self.part_position(&scope, back.gather)?;
        let mut args = vec![tokens, position];
        // Sums are in slots, those of this rank too.
        if let Sent::Row { row, numbers } = &back.sent {
            let numbers = numbers.as_ref().map(|(_, value)| *value);
            args.extend(self.rows_sent(back, row, numbers)?);
        }
        args.push(self.sums(&scope, back.gather, &sum)?);
        out.push(Step::Do(method(&sum, "run", args)));
        Ok(())
    }

    /// The function that gives the rows that came from a rank.
    fn rows_of_source(&mut self, (first, end): (&Expr, &Expr)) -> Lowered<Term> {
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
}
