//! Slots: a fixed place for each message, used anew in every call.

use crate::ir::{Action, Channel, Domain, Elem, Expr, PeerSet, Pipeline, Source, Stmt, walk};
use crate::schedule::scope::Scope;
use crate::schedule::step::Step;
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    pub(in crate::schedule) fn await_slots(
        &mut self,
        scope: &Scope,
        channel: &str,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        if scope.by_lane {
            return Err("a whole warp waits for slots".to_string());
        }
        out.push(Step::Do(Term::call(
            format!("{}.await", self.object(channel)),
            Vec::new(),
            Elem::I32,
        )));
        Ok(())
    }
}

/// Who waits for slots waits for those of every peer.
pub(in crate::schedule) fn check_slots(
    ir: &Pipeline,
    channel: &Channel,
    refuse: &mut dyn FnMut(&Source, &str),
) {
    let mut pushes = 0;
    for role in &ir.roles {
        slot_pushes(channel, &role.body, &mut Vec::new(), &mut |stmt, every| {
            pushes += 1;
            if !every {
                let why = "every rank waits for a record of every other one: push in a loop over \
                           its peers, without `where`, to its binder";
                refuse(&stmt.at, why);
            } else if pushes == 2 {
                refuse(&stmt.at, "a call fills each slot once");
            }
        });
    }
}

/// Shows every push to `channel`, and whether it serves all peers.
fn slot_pushes<'s>(
    channel: &Channel,
    body: &'s [Stmt],
    loops: &mut Vec<(&'s str, &'s Domain, bool)>,
    see: &mut dyn FnMut(&Stmt, bool),
) {
    for stmt in body {
        match &stmt.action {
            Action::Push { channel: to, peer: Some(Expr::Name { name, .. }), .. }
                if *to == channel.name =>
            {
                let over = loops.iter().find(|(binder, ..)| binder == name);
                let all = over.is_some_and(|(_, domain, _)| serves(channel, domain));
                see(stmt, all && !loops.iter().any(|(.., filtered)| *filtered));
            }
            Action::Push { channel: to, .. } if *to == channel.name => see(stmt, false),
            Action::For { binder, domain, filter, body, .. } => {
                loops.push((binder, domain, filter.is_some()));
                slot_pushes(channel, body, loops, see);
                loops.pop();
            }
            _ => {
                loops.push(("", &Domain::Tokens, true));
                slot_pushes(channel, walk::nested(stmt), loops, see);
                loops.pop();
            }
        }
    }
}

/// Whether a domain is all peers of a channel.
fn serves(channel: &Channel, domain: &Domain) -> bool {
    match (domain, &channel.per) {
        (Domain::Dim { name }, PeerSet::All) => name == "ranks",
        (Domain::Dim { name }, PeerSet::Local) => name == "local_ranks",
        (Domain::Peers { set }, per) => set == per,
        _ => false,
    }
}
