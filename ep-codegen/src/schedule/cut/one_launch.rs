//! A dispatch in one launch: a role of one team that counts which of its tokens go to each rank, publishes the counts,
//! sends the rows to a direct channel, and takes those of others.
//!
//! Cut at its dependences, such a role meets twice and waits for the counts of all ranks before the first row leaves. The
//! rule spreads it over the grid without a wait between blocks. Every block finds out for itself which tokens go where, so
//! that a warp knows the positions of its rows from the tokens before and from the counts of earlier ranks. The last block
//! computes everything else.
//!
//! The rule looks at what statements read, write and count. It needs:
//! - one loop over tokens that pushes at most one row of each token to each rank, where a condition on inputs holds;
//! - a slot that publishes the number of these rows, and positions that are the sum of it over earlier ranks;
//! - one loop that takes the rows, and leaves them where they are.

mod counting;
mod facts;
mod fanout;
mod fields;
mod fits;
mod packing;
mod packs;
mod published;
mod sending;
mod steps;
mod texts;

use super::{Forward, PEER, computed, first_rows, forwards, order_of, pushed_in_turn};
use crate::ir::kind::Traits;
use crate::ir::put::mentions;
use crate::ir::rows::is_own_row;
use crate::ir::slots::travels_in_words;
use crate::ir::{
    Action, Blocks, Channel, Domain, Expr, FieldValue, NameKind, PeerSet, Pipeline, Role, Share,
    Stmt, WellKnown, walk,
};
use crate::schedule::recipe::{Routes, WhyNot};
use crate::schedule::step::Step;
use crate::schedule::{
    AtOnce, Lowered, OwnSteps, RoleLowering, RoleRule, RoleSteps, RuleSet, Warps, rewritten,
};
use counting::{Counts, condition, sum_of_slots};
use facts::{Checked, Facts, is_name};
use fanout::Fanout;
pub(in crate::schedule) use packs::is_of_units;
use packs::{Packs, Turns, row_cast};
use sending::is_position;

/// The steps of a team that both sends and takes rows, as a dispatch in one launch, or what keeps it from being one;
/// `None`: it is no such team.
pub(in crate::schedule) fn one_launch(
    ir: &Pipeline,
    role: &Role,
    rules: RuleSet,
) -> Option<Result<RoleSteps, WhyNot>> {
    let both = |channel: &Channel| channel.kind.traits().lands && channel.is_held_by(role);
    let is_team = role.share == Share::Team && role.blocks == Blocks::All;
    let is_asked = rules.has(RoleRule::OneLaunch) && is_team && ir.channels.iter().any(both);
    is_asked.then(|| Facts { ir }.one_launch(role).and_then(|one| one.steps(ir, rules)))
}

/// The parts of such a role.
struct OneLaunch<'s> {
    role: &'s Role,
    /// Whether a token goes to [`PEER`].
    goes: Expr,
    /// Tables that every block, or the last one, has in shared memory.
    counts: Vec<Counts<'s>>,
    /// The loop that pushes counts, and its push.
    tell: &'s Stmt,
    told: &'s Stmt,
    slots: &'s Channel,
    awaits: &'s Stmt,
    /// The field of a slot that holds how many rows go to each rank.
    rows_to: &'s str,
    /// The statements of the last block, in order. They include the counts, and the push if it also publishes other values.
    tables: Vec<&'s Stmt>,
    /// The loop that sends, and its parts.
    send: &'s Stmt,
    fanout: Fanout<'s>,
    /// The numbers that the loop records for each choice of a token.
    turns: Option<Turns<'s>>,
    rows: &'s Channel,
    /// Loops over rows behind all that arrive.
    behind: Vec<&'s Stmt>,
    /// The loop that takes rows, the name of a message in it, and what it does with each one.
    take: &'s Stmt,
    message: &'s str,
    unpacks: &'s [Stmt],
    /// How it packs the rows, if it does.
    packs: Option<Packs<'s>>,
    /// Tables whose elements are computed where they are read.
    forwards: Vec<Forward>,
}

impl<'s> OneLaunch<'s> {
    /// All steps of the role, what every block does as it enters, and what the last one does.
    fn steps(&self, ir: &'s Pipeline, rules: RuleSet) -> Result<RoleSteps, WhyNot> {
        let part = |steps: RoleSteps| OwnSteps { steps: steps.steps, uses_me: steps.uses_me };
        let of = (ir, rules);
        let entered = part(self.lowered(of, |role, out| role.counts_routes(self, out))?);
        let tables = part(self.lowered(of, |role, out| role.tables(self, out))?);
        let routes = Routes {
            slots: self.slots.name.clone(),
            rows: self.rows.name.clone(),
            values: self.values().map(|counts| counts.count.to_string()),
            packs: self.packs.is_some(),
        };
        let steps = self.lowered(of, |role, out| role.dispatch(self, out))?;
        Ok(RoleSteps { at_once: Some(AtOnce { routes, entered, tables }), ..steps })
    }

    /// The steps that `make` gives, as rules rewrite them. No warp reads what another one writes.
    fn lowered(
        &self,
        (ir, rules): (&'s Pipeline, RuleSet),
        make: impl FnOnce(&mut RoleLowering<'s>, &mut Vec<Step>) -> Lowered<()>,
    ) -> Result<RoleSteps, WhyNot> {
        let mut role = RoleLowering::new(ir, self.role, rules);
        (role.cut, role.forwards) = (true, self.forwards.clone());
        role.reread.clear();
        let mut steps = Vec::new();
        if let Err(why) = make(&mut role, &mut steps) {
            role.refuse(&self.role.at, why);
        }
        let (steps, uses) = rewritten(&mut role, steps);
        match role.refusals.first() {
            Some(refusal) => Err(WhyNot::new(&refusal.at, &refusal.why.to_string())),
            None => Ok(role.finished(steps, uses, Warps::All)),
        }
    }

    /// The row that is cast as it leaves, if it is, and the size of its blocks.
    fn cast(&self) -> Option<(&'s Expr, i64)> {
        self.fanout.values.iter().find_map(|value| row_cast(&value.value))
    }

    /// The values that are counted, if any are.
    fn values(&self) -> Option<&Counts<'s>> {
        self.counts.iter().find(|counts| counts.values.is_some())
    }

    /// The counts that a field of the slots holds: those of the rows for each rank, or those of the receiver's own values.
    fn counted(&self, field: &str) -> Option<&Counts<'s>> {
        let (Action::For { binder, .. }, Action::Push { values, .. }) =
            (&self.tell.action, &self.told.action)
        else {
            return None;
        };
        let value = &values.iter().find(|value| value.name == field)?.value;
        let of = |name: &str| self.counts.iter().find(|counts| counts.table == name);
        match value {
            Expr::Element { tensor, indices } if indices.is_empty() => {
                of(tensor).filter(|counts| counts.values.is_none())
            }
            Expr::Call { helper, args } if helper == "owned" => match args.as_slice() {
                [Expr::Element { tensor, indices }, rank]
                    if indices.is_empty() && is_name(rank, binder) =>
                {
                    of(tensor).filter(|counts| counts.values.is_some())
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The field that is pushed with the turns of a token.
    fn turned(&self, turns: &Turns<'s>) -> Option<&'s FieldValue> {
        self.fanout.values.iter().find(|value| {
            matches!(&value.value, Expr::Element { tensor, indices }
                if tensor == turns.table && indices.len() == 1)
        })
    }

    /// Whether some statement for a message asks for its source.
    fn asks_source(&self) -> bool {
        let mut found = false;
        walk::stmts(self.unpacks, &mut |stmt| {
            walk::exprs(stmt, &mut |part| {
                found |= matches!(part, Expr::Field { of, field, .. }
                    if of == self.message && field == "source");
            });
        });
        found
    }
}

impl<'s> Facts<'s> {
    /// The parts of such a role, or the first statement that keeps it from being one.
    fn one_launch(&self, role: &'s Role) -> Result<OneLaunch<'s>, WhyNot> {
        let (slots, rows) = self.two_channels(role)?;
        self.check_alone(role, rows)?;
        let tell = only(role, "publishes counts", &|stmt| walk::pushes_to(stmt, slots))?;
        let awaits = only(
            role,
            "awaits the counts",
            &|stmt| matches!(&stmt.action, Action::Await { channel } if *channel == slots.name),
        )?;
        let send = only(role, "sends rows", &|stmt| walk::pushes_to(stmt, rows))?;
        let take = only(
            role,
            "takes rows",
            &|stmt| matches!(&stmt.action, Action::Receive { channel, .. } if *channel == rows.name),
        )?;
        let Action::Receive { binder: message, body, .. } = &take.action else {
            return Err(self.no_form(take));
        };
        for stmt in [send, take] {
            if let Some(why) = order_of(self.ir, role, stmt) {
                return self.refuse(&stmt.at, why);
            }
        }
        let (token, turn) = pushed_in_turn(self.ir, role, send, rows)
            .ok_or_else(|| WhyNot::new(&send.at, "the rows of a token are not known ahead"))?;
        let goes = condition(self.ir, &turn)
            .ok_or_else(|| WhyNot::new(&send.at, "a token goes to each rank at most once"))?;
        let fanout = self.fanout(send, rows)?;
        let forwards = forwards(self.ir, &role.body);
        let rows_to = self.rows_to(send, (slots, rows), &forwards)?;
        let counts = self.counts(role, (token, &goes));
        let is_behind = |stmt: &&Stmt| self.is_behind(stmt, (take, &forwards), (slots, rows_to));
        let behind: Vec<&Stmt> = role.body.iter().filter(is_behind).collect();
        let is_other =
            |stmt: &&Stmt| ![send, take].iter().chain(&behind).any(|own| std::ptr::eq(*own, *stmt));
        let tables = role.body.iter().filter(is_other).collect();
        let packed = body.split_last().filter(|(last, _)| self.copies_row(last, rows));
        let mut one = OneLaunch {
            role,
            goes,
            counts,
            tell,
            told: self.told(tell)?,
            slots,
            awaits,
            rows_to,
            tables,
            send,
            fanout,
            turns: None,
            rows,
            behind,
            take,
            message,
            unpacks: packed.map_or(body.as_slice(), |(_, unpacks)| unpacks),
            packs: None,
            forwards,
        };
        self.check_told(&mut one)?;
        if let Some((last, _)) = packed {
            let turns = one.fanout.loops().next();
            one.turns = turns.map(|stmt| self.turns(stmt, one.fanout.token)).transpose()?;
            one.packs = Some(self.packs(last, message, &one)?);
        }
        self.check_sent(&one)?;
        self.check_taken(&one)?;
        self.check_apart(&one)?;
        Ok(one)
    }

    /// The field of the slots whose sum over earlier ranks is the position of the first row for a rank.
    fn rows_to(
        &self,
        send: &Stmt,
        (slots, rows): (&Channel, &Channel),
        forwards: &[Forward],
    ) -> Result<&'s str, WhyNot> {
        let position = first_rows(std::slice::from_ref(send), rows);
        let position = position.map(|it| computed(&it, forwards));
        let sum = position.as_ref().and_then(|it| sum_of_slots(it, slots));
        let sum = sum.filter(|sum| is_me(sum.end) && is_name(sum.at, PEER));
        let fields = &self.message(slots)?.fields;
        let field = sum.and_then(|sum| fields.iter().find(|field| field.name == sum.field));
        field.map(|field| field.name.as_str()).ok_or_else(|| {
            WhyNot::new(&send.at, "rows have to follow those of earlier ranks, as their slots say")
        })
    }

    /// The tables of counts.
    fn counts(&self, role: &'s Role, goes: (&str, &Expr)) -> Vec<Counts<'s>> {
        let mut counts: Vec<Counts<'s>> = Vec::new();
        for found in role.body.iter().filter_map(|stmt| self.counts_of(stmt, goes)) {
            // Shared memory has the counts of one tensor's values.
            if !counts.iter().any(|other| other.values.is_some() && found.values.is_some()) {
                counts.push(found);
            }
        }
        counts
    }

    /// The slots say how many rows go to each rank. The last block publishes what no block has counted.
    fn check_told(&self, one: &mut OneLaunch<'s>) -> Result<(), WhyNot> {
        if one.counted(one.rows_to).is_none_or(|counts| counts.values.is_some()) {
            let why = "a slot has to publish how many rows go to each rank";
            return self.refuse(&one.told.at, why);
        }
        if let Action::Push { values, .. } = &one.told.action
            && values.iter().all(|value| one.counted(&value.name).is_some())
        {
            let tell = one.tell;
            one.tables.retain(|stmt| !std::ptr::eq(*stmt, tell));
        }
        match one.tables.iter().find(|stmt| !self.is_of_block(stmt, one.slots)) {
            Some(stmt) => Err(self.no_form(stmt)),
            None => Ok(()),
        }
    }

    /// The slots and the direct channel that the role has to itself.
    fn two_channels(&self, role: &Role) -> Result<(&'s Channel, &'s Channel), WhyNot> {
        let own = |channel: &&&Channel| channel.is_held_by(role) && channel.per == PeerSet::All;
        let of_kind = |fact: fn(&Traits) -> bool| {
            let mut found = self.ir.channels.iter().filter(|it| fact(it.kind.traits()));
            found.next().filter(|it| own(&it))
        };
        let (slots, rows) = (of_kind(|kind| kind.is_indexed), of_kind(|kind| kind.lands));
        match (self.ir.channels.len(), slots, rows) {
            (2, Some(slots), Some(rows)) if travels_in_words(self.ir, slots) => Ok((slots, rows)),
            _ => self.refuse(&role.at, "the role has to have slots and a direct channel to itself"),
        }
    }

    /// The parts of the loop that sends.
    fn fanout(&self, send: &'s Stmt, rows: &Channel) -> Result<Fanout<'s>, WhyNot> {
        let fanout = Fanout::of(send).ok_or_else(|| self.no_form(send))?;
        if !fanout.reaches_all {
            return self.refuse(&fanout.inner.at, "rows have to go to some of all ranks");
        }
        let of_peer = fanout.values.iter().find(|value| mentions(&value.value, fanout.peer));
        if of_peer.is_some() {
            let why = "the message has to be the same for all peers of the loop";
            return self.refuse(&fanout.push.at, why);
        }
        for stmt in &fanout.others {
            let mut read = Vec::new();
            walk::exprs(stmt, &mut |part| {
                read.extend(matches!(part, Expr::OfChannel { .. }).then_some(part));
            });
            let fits = match &stmt.action {
                Action::Let { .. } => read.is_empty(),
                Action::Record { value, .. } => {
                    read.is_empty() || is_position(value, rows) && read.len() == 1
                }
                _ => false,
            };
            if !fits {
                return Err(self.no_form(stmt));
            }
            if let Some(target) = walk::target(stmt) {
                self.check_element(stmt, target)?;
            }
        }
        self.check_push(fanout.push, rows, fanout.values)?;
        Ok(fanout)
    }

    /// The push of counts to every rank.
    fn told(&self, tell: &'s Stmt) -> Result<&'s Stmt, WhyNot> {
        let Action::For { binder, domain, position: None, filter: None, body } = &tell.action
        else {
            return Err(self.no_form(tell));
        };
        match body.as_slice() {
            [push @ Stmt { action: Action::Push { peer: Some(peer), .. }, .. }]
                if domain.is_peers(&PeerSet::All) && is_name(peer, binder) =>
            {
                Ok(push)
            }
            _ => Err(self.no_form(tell)),
        }
    }

    /// Whether a loop writes rows behind all that arrive: they are no rows of messages.
    fn is_behind(
        &self,
        stmt: &Stmt,
        (take, forwards): (&Stmt, &[Forward]),
        (slots, rows_to): (&Channel, &str),
    ) -> bool {
        let Action::For { binder, domain, position: None, filter: None, body } = &stmt.action
        else {
            return false;
        };
        let Domain::Range { low, high } = domain else { return false };
        let begin = computed(low, forwards);
        let all = sum_of_slots(&begin, slots);
        let is_all = |name: &Expr| is_name(name, WellKnown::Ranks.name());
        let mut fits =
            all.is_some_and(|sum| sum.field == rows_to && is_all(sum.end) && is_me(sum.at));
        let first =
            |stmt: &'_ Stmt| walk::target(stmt).and_then(|place| place.indices.first().cloned());
        let mut see = |part: &Expr| fits &= !matches!(part, Expr::OfChannel { .. });
        walk::expr(high, &mut see);
        walk::stmts(body, &mut |inner| walk::exprs(inner, &mut see));
        walk::stmts(body, &mut |inner| {
            fits &= match &inner.action {
                Action::Store { .. } | Action::Record { .. } => {
                    first(inner).is_some_and(|index| is_name(&index, binder))
                }
                Action::For { .. } | Action::Let { .. } => true,
                _ => false,
            };
        });
        let Action::Receive { binder: message, body: unpacks, .. } = &take.action else {
            return false;
        };
        walk::stmts(unpacks, &mut |inner| {
            let Some(place) = walk::target(inner).filter(|place| walk::writes(body, &place.tensor))
            else {
                return;
            };
            fits &= place
                .indices
                .first()
                .is_some_and(|index| is_own_row(std::slice::from_ref(index), message));
        });
        fits
    }

    /// Whether a statement is a loop over a number that stores the rows of messages somewhere.
    fn copies_row(&self, stmt: &Stmt, rows: &Channel) -> bool {
        if !matches!(stmt.action, Action::For { domain: Domain::Dim { .. }, .. }) {
            return false;
        }
        let row = self.message(rows).ok().and_then(|it| it.fields.iter().find(|field| field.row));
        let mut found = false;
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            walk::exprs(inner, &mut |part| {
                found |= matches!(part, Expr::Field { field, .. }
                    if row.is_some_and(|row| row.name == *field));
            });
        });
        found
    }
}

fn is_me(value: &Expr) -> bool {
    matches!(value, Expr::Name { kind: NameKind::Me, .. })
}

/// The only statement of a role for which `does` holds.
fn only<'s>(role: &'s Role, what: &str, does: &dyn Fn(&Stmt) -> bool) -> Result<&'s Stmt, WhyNot> {
    let mut found = role.body.iter().filter(|stmt| does(stmt));
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(WhyNot::new(&role.at, &format!("no statement of it {what}"))),
        (_, Some(second)) => Err(WhyNot::new(&second.at, &format!("a second statement {what}"))),
    }
}
