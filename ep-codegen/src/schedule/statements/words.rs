//! `raise` and `await` of words.

use super::absent;
use crate::ir::{Action, BinaryOp, Elem, Expr, Place, Stmt};
use crate::schedule::library::ep;
use crate::schedule::scope::Scope;
use crate::schedule::step::Step;
use crate::schedule::symbol::Constant;
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering};

impl RoleLowering<'_> {
    /// `raise tensor[..];` of the warp that did what stands before it.
    pub(super) fn raise(
        &mut self,
        scope: &Scope,
        target: &Place,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let word = self.word(scope, target, out)?;
        let args = vec![Term::name("team", Elem::I32), word];
        out.push(Step::Do(Term::call(ep::raise_word, args, Elem::I32)));
        Ok(())
    }

    /// `await tensor[..] >= least;`, and the statements of the block behind it: a stopped team leaves them out.
    pub(super) fn behind_word(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        rest: Vec<Step>,
        out: &mut Vec<Step>,
    ) {
        let Action::AwaitWord { word, least } = &stmt.action else { return };
        out.push(Step::Says(stmt.at.clone()));
        match self.has_come(scope, word, least, out) {
            Ok(condition) => out.push(Step::If { condition, body: rest }),
            Err(why) => self.refuse(&stmt.at, why),
        }
    }

    /// That a word has come so far, or that nobody gave it.
    fn has_come(
        &mut self,
        scope: &Scope,
        word: &Place,
        least: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let tensor = self.tensor(&word.tensor)?;
        let at = self.word(scope, word, out)?;
        let least = self.scalar(scope, least, out)?.converted(&Elem::I32);
        let number = Term::constant(Constant::word(&tensor.name));
        let args = vec![Term::name("team", Elem::I32), at, least, number];
        let has_come = Term::call(ep::await_word, args, Elem::Bool);
        Ok(match tensor.optional {
            true => absent(tensor).test(BinaryOp::Or, has_come),
            false => has_come,
        })
    }

    /// Where a word is.
    fn word(&mut self, scope: &Scope, word: &Place, out: &mut Vec<Step>) -> Lowered<Term> {
        let tensor = self.tensor(&word.tensor)?;
        let at = self.indices(scope, &word.indices, out)?;
        Ok(self.place(tensor, 0, None, at, None)?.address())
    }
}
