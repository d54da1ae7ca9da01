//! Statements that write: into tensors, headers and names.

use super::channels::wait;
use super::eval::{Bind, Bound, Eval};
use super::flow::{Frame, is_position, records_position_of, there};
use super::machine::Instance;
use super::open::{OpenElement, Touched};
use super::value::{Value, form, shaped};
use super::world::World;
use super::wrong::{Fault, Found, Stop};
use crate::ir::{Action, Domain, Expr, FieldValue, Fold, Place, Stmt};

/// How a statement writes.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Store,
    Add,
    /// One more.
    Count,
}

impl<'p> Instance<'p> {
    /// Runs a statement, or gives the frame of a loop. `absent`: a condition around it said no, and it
    /// only says so of positions, and of places where messages lie in no fixed order.
    pub(super) fn statement(
        &mut self,
        world: &mut World<'p>,
        stmt: &'p Stmt,
        absent: bool,
    ) -> Found<Option<Frame<'p>>> {
        match &stmt.action {
            Action::For { .. } | Action::Receive { .. } | Action::Gather { .. } => {
                return self.begin(world, stmt, absent);
            }
            Action::Push { channel, .. } if absent => {
                if records_position_of(&world.ir.roles[self.actor.role].body, channel) {
                    self.skip_push(world, stmt)?;
                }
            }
            Action::Let { name, value } => {
                let mut eval = self.eval(world);
                let (value, touched) = (eval.expr(value), eval.touched);
                let bound = match value {
                    Ok(value) => Bound::Value(value, touched),
                    Err(Stop::Absent) => Bound::Absent,
                    Err(Stop::Wrong(_)) if absent => Bound::Absent,
                    Err(stop) => return Err(stop),
                };
                self.binds.push(Bind { name, bound });
            }
            Action::Store { target, .. } | Action::Record { target, .. }
                if absent && !is_position(stmt) =>
            {
                self.leave_out(world, target, How::Store)?;
            }
            Action::Add { target, .. } | Action::Count { target } | Action::Raise { target }
                if absent && !self.is_in_turn(target) =>
            {
                self.leave_out(world, target, How::Add)?;
            }
            _ if absent && !is_position(stmt) => {}
            Action::Push { .. } => self.push(world, stmt)?,
            Action::Store { target, value } | Action::Record { target, value } => {
                there(self.assign(world, target, value, How::Store))?;
            }
            Action::Add { target, value } => {
                there(self.assign(world, target, value, How::Add))?;
            }
            Action::Count { target } | Action::Raise { target } => {
                let one = Value::int(1);
                there(self.write(world, target, &one, Touched::Nothing, How::Count))?;
            }
            Action::Announce { channel, peer, values } => {
                self.announce(world, channel, peer, values)?;
            }
            Action::AwaitWord { word, least } => {
                there(self.wait_for_word(world, word, least))?;
            }
            Action::Await { channel } => self.wait_for_all(world, channel)?,
            Action::Close { channel } => {
                let (at, _) = world.channel(channel)?;
                *world.channels.closed.entry((at, self.actor.rank)).or_insert(0) += 1;
            }
        }
        Ok(None)
    }

    /// `place = value`, where a prefix sum writes a place for each value of its binder.
    fn assign(
        &mut self,
        world: &mut World<'p>,
        target: &'p Place,
        value: &'p Expr,
        how: How,
    ) -> Found<()> {
        if let Expr::Fold { fold: Fold::PrefixSum, binder, domain, body } = value {
            return self.prefix_sum(world, target, binder, domain, body, how);
        }
        let mut eval = self.eval(world);
        let result = eval.expr(value)?;
        let touched = eval.touched;
        self.write(world, target, &result, touched, how)
    }

    fn prefix_sum(
        &mut self,
        world: &mut World<'p>,
        target: &'p Place,
        binder: &'p str,
        domain: &'p Domain,
        body: &'p Expr,
        how: How,
    ) -> Found<()> {
        let mut eval = self.eval(world);
        let values = eval.domain(domain)?;
        let tensor = eval.world.ir.tensors.iter().find(|tensor| tensor.name == target.tensor);
        let axis = target
            .indices
            .iter()
            .position(|index| matches!(index, Expr::Name { name, .. } if name == binder));
        let extent = tensor.and_then(|tensor| tensor.dims.get(axis?));
        let has_total = extent.is_some_and(|extent| eval.is_one_more(extent, domain));
        // All values are there before the first sum is written.
        let mut sums = Vec::new();
        let mut sum: Option<Value> = None;
        for value in &values {
            let term = eval.with(binder, *value, |inner| inner.expr(body))?;
            let before = sum.take().map_or_else(|| term.zeros(), Ok)?;
            sums.push((*value, before.clone()));
            sum = Some(super::eval::added(&before, &term)?);
        }
        if has_total {
            sums.push((values.len() as i64, sum.unwrap_or(Value::int(0))));
        }
        for (value, sum) in sums {
            let bound = Bound::Value(Value::int(value), Touched::Nothing);
            self.binds.push(Bind { name: binder, bound });
            let written = self.write(world, target, &sum, Touched::Nothing, how);
            self.binds.pop();
            written?;
        }
        Ok(())
    }

    /// Writes a value where `target` says.
    fn write(
        &mut self,
        world: &mut World<'p>,
        target: &'p Place,
        value: &Value,
        touched: Touched,
        how: How,
    ) -> Found<()> {
        let name = target.tensor.as_str();
        let mut eval: Eval<'_, 'p> = self.eval(world);
        let indices = eval.wholes(&target.indices)?;
        let place = match (how, eval.touched) {
            (How::Store, place) => place,
            (_, Touched::Nothing) => Touched::Nothing,
            // Any message of a group may have added to the sum, or none.
            _ if !self.is_in_turn(target) => Touched::Many,
            // Whichever message comes by, one does.
            (How::Count, _) => Touched::Nothing,
            (How::Add, place) => place,
        };
        let open = OpenElement { place, value: touched };
        let declared = world.ir.tensors.iter().find(|tensor| tensor.name == name);
        let declared = declared.ok_or_else(|| form(name))?;
        let parts = world.parts(&declared.elem);
        let (rank, hand) = (self.actor.rank, self.actor.hand);
        let memory = world.ranks.get_mut(rank).and_then(|tensors| tensors.get_mut(name));
        let memory = memory.ok_or(Stop::Absent)?;
        let value = shaped(name, &indices, memory.extents(indices.len()), &parts, value)?;
        match how {
            How::Store => memory.write(name, &indices, &value, hand, open),
            How::Add | How::Count => memory.add(name, &indices, &value, hand, open),
        }
    }

    /// Notes the place of a statement that a condition has left out, where that is one in no fixed order.
    fn leave_out(&mut self, world: &mut World<'p>, target: &'p Place, how: How) -> Found<()> {
        let name = target.tensor.as_str();
        let mut eval = self.eval(world);
        // What has no place is not left out of it.
        let (Ok(indices), place) = (eval.wholes(&target.indices), eval.touched) else {
            return Ok(());
        };
        let memory = world.ranks.get_mut(self.actor.rank).and_then(|it| it.get_mut(name));
        let place = match (how, place) {
            (_, Touched::Nothing) | (How::Store, Touched::Many) => return Ok(()),
            (How::Store, _) => place,
            _ => Touched::Many,
        };
        match memory.map(|memory| memory.leave_out(name, &indices, place)) {
            None | Some(Err(Stop::Wrong(_))) => Ok(()),
            Some(left) => left,
        }
    }

    fn announce(
        &mut self,
        world: &mut World<'p>,
        channel: &'p str,
        peer: &'p Expr,
        values: &'p [FieldValue],
    ) -> Found<()> {
        let (at, channel) = world.channel(channel)?;
        let index = self.eval(world).axes(peer)?;
        let lane = self.lane_to(world, at, channel, &index)?;
        let mut header = Vec::new();
        for name in &channel.header {
            let value = values.iter().find(|value| value.name == *name);
            let value = value.ok_or_else(|| form(name))?;
            header.push(self.eval(world).whole(&value.value)?);
        }
        if !world.alive(lane.to) {
            return Ok(());
        }
        let count = channel.header.iter().position(|name| name == "count");
        let pushed = world.channels.pushed(&lane) as i64;
        if let Some(announced) = count.map(|place| header[place]).filter(|count| *count < pushed) {
            let (channel, from, to) = (channel.name.clone(), lane.from, lane.to);
            let stripe = lane.stripe;
            return Err(Fault::Announced { channel, from, to, stripe, announced, pushed }.into());
        }
        world.channels.announce(lane, &channel.name, header)
    }

    /// `await channel;`: all slots of this call are there, or closed if they count what arrives.
    /// Whoever raises the word is on this rank.
    fn wait_for_word(&mut self, world: &World<'p>, word: &'p Place, least: &'p Expr) -> Found<()> {
        let mut eval = self.eval(world);
        let indices = eval.wholes(&word.indices)?;
        let least = eval.whole(least)?;
        let memory = world.memory(self.actor.rank, &word.tensor)?;
        let (found, index) = memory.word(&word.tensor, &indices)?;
        match found.whole(&word.tensor)? >= least {
            true => {
                self.binds.push(Bind { name: &word.tensor, bound: Bound::Raised { index } });
                Ok(())
            }
            false => Err(wait(&word.tensor, &format!("{least} in a word"), &[self.actor.rank])),
        }
    }

    fn wait_for_all(&mut self, world: &World<'p>, channel: &'p str) -> Found<()> {
        let (at, channel) = world.channel(channel)?;
        let me = self.actor.rank;
        if world.counted_axis(channel).is_some() {
            return world.slot_count(at, channel, me, &[]).map(drop);
        }
        let mut keys = vec![Vec::new()];
        for (axis, name) in channel.slot_names.iter().enumerate() {
            let values: Vec<i64> = match name.as_str() {
                "source" => {
                    let peers = world.peers(channel, me);
                    peers.iter().map(|rank| world.source(channel, *rank)).collect()
                }
                _ => (0..world.shape(&channel.slot[axis])?).collect(),
            };
            let longer = |key: &Vec<i64>| -> Vec<Vec<i64>> {
                values.iter().map(|value| key.iter().copied().chain([*value]).collect()).collect()
            };
            keys = keys.iter().flat_map(longer).collect();
        }
        keys.iter().try_for_each(|key| world.slot_message(at, channel, me, key).map(drop))
    }
}
