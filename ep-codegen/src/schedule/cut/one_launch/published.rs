//! What a rank publishes of what it has counted.

use super::OneLaunch;
use super::texts::{binary, call, method, name};
use crate::ir::typed::first_part;
use crate::ir::{Action, BinaryOp, Elem, FieldValue, WellKnown};
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::ParamType::Index;
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::Constant;
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering};

impl RoleLowering<'_> {
    /// The counts that a rank publishes, as far as blocks have them in shared memory: each field by a block that has counted
    /// it.
    pub(super) fn tells(
        &mut self,
        one: &OneLaunch<'_>,
        tokens: &Term,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let (binder, values) = told(one, out)?;
        for of_rows in [true, false] {
            let own = |value: &&FieldValue| {
                let counts = one.counted(&value.name);
                counts.is_some_and(|counts| counts.values.is_none() == of_rows)
            };
            let own: Vec<&FieldValue> = values.iter().filter(own).collect();
            if own.is_empty() {
                continue;
            }
            let block = match of_rows {
                true => Term::int(0),
                false => binary(BinaryOp::Sub, name("team.blocks"), Term::int(1)),
            };
            let outer = self.names.clone();
            let peer = self.names.fresh(binder);
            let mut steps = Vec::new();
            let value = self.counts_of_block(of_rows, (&peer, tokens), &mut steps)?;
            for field in own {
                steps.push(self.published(one, (&field.name, &peer), value.clone())?);
            }
            let condition = name("team.block").test(BinaryOp::Eq, block);
            out.push(Step::If { condition, body: vec![self.each_peer(peer, steps)] });
            self.names = outer;
        }
        Ok(())
    }

    /// What a rank publishes besides counts that a block has in shared memory; by the last block.
    pub(super) fn tells_rest(&mut self, one: &OneLaunch<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        let (binder, values) = told(one, out)?;
        let outer = self.names.clone();
        let peer = self.names.fresh(binder);
        let known = Term { range: self.me().range, ..Term::index(&peer) };
        let scope = Scope::default().with(binder, Meaning::Value(known));
        let mut steps = Vec::new();
        for field in values.iter().filter(|value| one.counted(&value.name).is_none()) {
            let value = self.element_of(&scope, &field.value, 0)?;
            steps.push(self.published(one, (&field.name, &peer), value)?);
        }
        out.push(self.each_peer(peer, steps));
        self.names = outer;
        Ok(())
    }

    /// A loop over all ranks, which the warps of a block take in turn.
    fn each_peer(&self, peer: String, body: Vec<Step>) -> Step {
        let (from, to) = (Term::int(0), self.number(WellKnown::Ranks.name()));
        let turns = Takers::WarpsOfBlock;
        Step::Loop(Loop { binder: peer, elem: Elem::I32, from, to, turns, body })
    }

    /// Publishes a field of the slots to a peer.
    fn published(
        &mut self,
        one: &OneLaunch<'_>,
        (field, peer): (&str, &str),
        value: Term,
    ) -> Lowered<Step> {
        let (_, message) = self.carried(&one.slots.name)?;
        let known = message.fields.iter().find(|known| known.name == field);
        let elem = known.map_or(Elem::I32, |it| first_part(self.ir, &it.elem));
        let [place, count] = [Constant::field, Constant::field_count]
            .map(|of| Term::constant(of(&one.slots.message, field)));
        let slots = self.object(&one.slots.name);
        let words = Term { elem: Elem::U8, ..method(&slots, "to", vec![name(peer)]) };
        let to = binary(BinaryOp::Add, words, place);
        Ok(Step::Do(call(ep::put.of(&elem), vec![to, count, value])))
    }

    /// The function that gives what a block has counted for a peer: the rows of each rank, or the values that the peer has.
    fn counts_of_block(
        &mut self,
        of_rows: bool,
        (peer, tokens): (&str, &Term),
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let theirs = if of_rows { String::new() } else { self.names.fresh("theirs") };
        if !of_rows {
            let value = call(ep::experts_of, vec![name("args.expert_begin"), name(peer)]);
            out.push(Step::Made { name: theirs.clone(), value });
        }
        self.function(&[], &[(Index, "i")], |_, params, _| {
            let i = params[0].clone();
            Ok(Some(match of_rows {
                true => method("smem.routes", "tokens_to", vec![i, tokens.clone()]),
                false => {
                    let first = name(&format!("{theirs}.first"));
                    let entry = binary(BinaryOp::Add, first, i.clone());
                    let chosen = name("smem.routes.chosen").at(entry, Elem::I32);
                    let known = i.test(BinaryOp::Lt, name(&format!("{theirs}.count")));
                    known.choose(chosen, Term::int(0))
                }
            }))
        })
    }
}

/// Says that a rank publishes its counts; the name of the peer, and the values.
fn told<'o>(one: &'o OneLaunch<'_>, out: &mut Vec<Step>) -> Lowered<(&'o str, &'o [FieldValue])> {
    let (Action::Push { values, .. }, Action::For { binder, .. }) =
        (&one.told.action, &one.tell.action)
    else {
        return Err(broken("counts are published"));
    };
    out.extend([one.tell, one.told].map(|stmt| Step::Says(stmt.at.clone())));
    Ok((binder, values))
}
