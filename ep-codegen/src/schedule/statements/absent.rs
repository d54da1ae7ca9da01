//! What conditions leave out: each table says how far its channel has come.

use super::records_position;
use crate::ir::{Action, BinaryOp, Expr, Place, Stmt};
use crate::schedule::scope::Scope;
use crate::schedule::step::Step;
use crate::schedule::term::{Term, arithmetic};
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    /// The positions that a condition leaves out: each table says how far the channel has come.
    pub(in crate::schedule) fn absent(
        &mut self,
        scope: &Scope,
        body: &[Stmt],
        out: &mut Vec<Step>,
    ) {
        if !records_position(body) {
            return;
        }
        let mut scope = scope.clone();
        for stmt in body {
            if let Err(why) = self.absent_in(&mut scope, stmt, out) {
                self.refuse(&stmt.at, why);
            }
        }
    }

    fn absent_in(&mut self, scope: &mut Scope, stmt: &Stmt, out: &mut Vec<Step>) -> Lowered<()> {
        match &stmt.action {
            Action::Let { name, value } => self.bind(scope, name, value, out),
            Action::For { body, .. } if records_position(body) => {
                self.repeat_absent(scope, stmt, out)
            }
            Action::Record { target, value: Expr::OfChannel { channel, index, field, .. } }
                if field == "position" =>
            {
                let next = self.next_position(scope, channel, index, out)?;
                let value = arithmetic(BinaryOp::Sub, Term::int(-1), next);
                self.record_absent(scope, stmt, target, value, out)
            }
            _ => Ok(()),
        }
    }

    fn record_absent(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        target: &Place,
        value: Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let tensor = self.tensor(&target.tensor)?;
        out.push(Step::Says(stmt.at.clone()));
        let mut steps = Vec::new();
        self.write_number(scope, tensor, target, value, &mut steps)?;
        self.by_leader(scope, steps, out);
        Ok(())
    }
}
