//! Pull channels: tensors that peers read where they lie.

use crate::ir::{Channel, Elem, Expr, FieldValue, Message};
use crate::schedule::library::ep;
use crate::schedule::limit::{Limit, broken};
use crate::schedule::step::Step;
use crate::schedule::symbol::Constant;
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    /// `push parts { x: x };`: offers whole tensors, and waits until all peers have read them.
    pub(super) fn push_pull(
        &mut self,
        channel: &Channel,
        message: &Message,
        values: &[FieldValue],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if message.fields.iter().filter(|field| !field.row).count() > 1 {
            return Err(Limit::PullFields.into());
        }
        let at = |row: bool| {
            let field = message.fields.iter().find(|field| field.row == row)?;
            let value = values.iter().find(|value| value.name == field.name)?;
            match &value.value {
                Expr::Element { tensor, indices } if indices.is_empty() => {
                    Some(Term::name(format!("args.{tensor}_at"), Elem::I64))
                }
                _ => None,
            }
        };
        let rows = at(true).ok_or(broken("a pull channel offers a whole tensor of rows"))?;
        let meta = match message.fields.iter().any(|field| !field.row) {
            true => at(false).ok_or(broken("a pull channel offers whole tensors"))?,
            false => Term::int(0),
        };
        let cfg = Constant::of_channel(channel);
        let team = Term::name("team", Elem::I32);
        let offer =
            Term::call(ep::pull_offer.of(cfg.clone()), vec![team.clone(), rows, meta], Elem::I32);
        out.push(Step::Do(offer));
        let wait = Term::call(ep::pull_wait_released.of(cfg), vec![team], Elem::I32);
        out.push(Step::Do(wait));
        Ok(())
    }
}
