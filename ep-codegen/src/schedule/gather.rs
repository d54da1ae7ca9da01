//! `for token in domain gather part from channel[peer] at position across peer in peers { .. }`: the parts
//! of a token are brought together, read by the statements of the body, and given back.

use super::channels::{End, class_of};
use super::scope::{Meaning, Parts, Scope};
use super::step::{Step, Takers};
use super::term::Term;
use super::value::{Numbers, counted_loop};
use super::{Lowered, RoleLowering};
use crate::ir::{Action, BinaryOp, Channel, ChannelKind, Domain, Elem, Expr, PeerSet, Stmt};

impl RoleLowering<'_> {
    /// All turns of a gather, taken as `turns` says.
    pub(super) fn gather(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        turns: Takers,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Gather { binder, domain, part, channel, position, across, over, body, .. } =
            &stmt.action
        else {
            return Ok(());
        };
        if scope.by_lane {
            return Err("a whole warp brings parts together".to_string());
        }
        let (declared, _) = self.carried(channel)?;
        if !matches!(declared.kind, ChannelKind::Ring | ChannelKind::Pull) {
            return Err(
                "parts are gathered from rings and pull channels; from slots they have no \
                        CUDA text yet"
                    .to_string(),
            );
        }
        let object = self.names.fresh(&format!("{part}s"));
        out.push(Step::Object {
            class: format!("ep::Parts<{}>", class_of(declared, End::In)),
            name: object.clone(),
            args: vec![Term::name("team", Elem::I32), Term::name(self.object(channel), Elem::I32)],
        });
        let numbers = self.numbers(scope, domain, out)?;
        let name = self.names.fresh(binder);
        let token = self.index_in(&name, &numbers);
        let mut steps = Vec::new();
        if numbers.others {
            steps.push(Step::SkipUnless(token.clone().test(BinaryOp::Ne, self.me())));
        }
        let inner = scope.with(binder, Meaning::Value(token));
        let peers = self.number(self.peers_of(&declared.per)?);
        self.expect(&inner, declared, (&object, across, over), position, &mut steps)?;
        let parts = Parts {
            part: part.clone(),
            across: across.clone(),
            channel: channel.clone(),
            object: object.clone(),
            peers,
        };
        let with_parts = inner.with_parts(parts);
        let mut taken = Vec::new();
        self.body(&with_parts, body, &mut taken);
        let call = |what: &str| Term::call(format!("{object}.{what}"), Vec::new(), Elem::Bool);
        taken.push(Step::Do(call("close")));
        steps.push(Step::If { condition: call("open"), body: taken });
        out.push(counted_loop(name, numbers, turns, steps));
        Ok(())
    }

    /// Says where the part of each peer is, a lane for each; negative: the peer has none.
    fn expect(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        (object, across, over): (&str, &str, &Domain),
        position: &Expr,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        out.push(Step::Do(Term::call(format!("{object}.clear"), Vec::new(), Elem::I32)));
        let to = self.number(self.peers_of(&channel.per)?);
        let all = Numbers { from: Term::int(0), to, others: channel.per == PeerSet::Others };
        let name = self.names.fresh(across);
        let peer = self.index_in(&name, &all);
        let mut steps = Vec::new();
        let over = self.numbers(scope, over, out)?;
        if over.others || all.others {
            steps.push(Step::SkipUnless(peer.clone().test(BinaryOp::Ne, self.me())));
        }
        if !over.from.is(0) {
            steps.push(Step::SkipUnless(peer.clone().test(BinaryOp::Ge, over.from)));
        }
        if over.to != all.to {
            steps.push(Step::SkipUnless(peer.clone().test(BinaryOp::Lt, over.to)));
        }
        let inner = scope.of_lane().with(across, Meaning::Value(peer.clone()));
        let entry = self.scalar(&inner, position, &mut steps)?.converted(&Elem::I32);
        let call = Term::call(format!("{object}.expect"), vec![peer, entry], Elem::I32);
        steps.push(Step::Do(call));
        out.push(counted_loop(name, all, Takers::Lanes, steps));
        Ok(())
    }
}
