//! Roles whose warps share stripes, and whose rows are the work of a lane each: the warps of a block share its stripes by
//! slices of 32 rows.
//!
//! The gain: with one warp for each stripe, most warps have nothing to do, and the others take several rounds of rows.

use super::runs::{BEGIN, END};
use crate::ir::{Action, Domain, Elem, Role, Share, Stmt, WellKnown};
use crate::schedule::library::ep;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::statements::where_there;
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::Symbol;
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering, RoleRule};

impl RoleLowering<'_> {
    /// Whether the warps of a block share its stripes by slices: all that the role does are loops over the rows of a
    /// stripe, whose turns need no order, and none needs what another one writes.
    pub(in crate::schedule) fn by_slices(&self) -> bool {
        let scope = Scope::default();
        let is_of_lanes = |stmt: &Stmt| match &stmt.action {
            Action::For {
                binder, domain: domain @ Domain::Stripe, position: None, body, ..
            } => self.fits_lanes(&scope, binder, Some(domain), body),
            _ => false,
        };
        let Role { share, body, .. } = self.role;
        matches!(share, Share::Stripe | Share::Token)
            && self.rules.has(RoleRule::Cut)
            && self.has_stripes()
            && self.ends().is_empty()
            && self.reread.is_empty()
            && !body.is_empty()
            && body.iter().all(is_of_lanes)
    }

    /// The slices of all stripes, in turn.
    pub(in crate::schedule) fn slices_of_stripes(&mut self, out: &mut Vec<Step>) -> Lowered<()> {
        let rows = self.striped(&Scope::default(), out)?.converted(&Elem::I32);
        let stripes = self.number(WellKnown::Stripes.name());
        let most = stripes.range.map_or(i64::from(i32::MAX), |(_, high)| high - 1);
        let slices = self.names.fresh("slices");
        let class = Symbol::from(ep::StripeSlices).fixed();
        let args = vec![Term::name("team", Elem::I32), rows, stripes];
        out.push(Step::Object { class, name: slices.clone(), args });
        for stmt in &self.role.body {
            out.push(Step::Says(stmt.at.clone()));
            let slice = self.names.fresh("slice");
            let of_slice = |what| Term::method(&slices, what, vec![Term::index(&slice)], Elem::I32);
            let mut body = Vec::new();
            let stripe = self.named("stripe", of_slice("stripe"), &mut body);
            let stripe = Term { range: Some((0, most)), ..stripe };
            let span = self.names.fresh("rows");
            let (class, args) = (Symbol::from(ep::Span).fixed(), vec![of_slice("span")]);
            body.push(Step::Object { class, name: span.clone(), args });
            let end = |what| Meaning::Value(Term::index(format!("{span}.{what}")));
            let scope = Scope::default().with("stripe", Meaning::Value(stripe));
            let scope = scope.with(BEGIN, end("begin")).with(END, end("end"));
            let presence = self.presence(&scope, stmt);
            if let Err(why) = self.turns_between(&scope, stmt, &mut body) {
                self.refuse(&stmt.at, why);
            }
            let to = Term::index(format!("{slices}.count"));
            let (elem, from, turns) = (Elem::I32, Term::int(0), Takers::WarpsOfBlock);
            let repeat = Step::Loop(Loop { binder: slice, elem, from, to, turns, body });
            out.extend(where_there(presence, vec![repeat]));
        }
        Ok(())
    }
}
