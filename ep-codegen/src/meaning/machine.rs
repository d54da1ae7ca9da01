//! All roles of all ranks in turn: each instance runs until it needs what is not there yet.

use std::collections::{BTreeMap, BTreeSet};

use super::eval::{Actor, Bind, Bound, Eval};
use super::flow::{Frame, Turns};
use super::memory::Hand;
use super::open::Touched;
use super::value::Value;
use super::world::{World, shared_names};
use super::wrong::{Awaited, Fault, Found, Stop, Whereabouts, Wrong};
use super::{Outcome, Problem};
use crate::ir::stripes::is_by_stripe;
use crate::ir::{Action, Blocks, PeerSet, Role, Share, Stmt, TensorKind, WellKnown, walk};

/// How a run ends.
pub(super) enum End {
    /// Everything has run.
    Done,
    /// The messages of this channel turned out to be in no fixed order.
    Open(usize),
}

/// A call in progress.
pub(super) struct Machine<'p> {
    world: World<'p>,
    instances: Vec<Instance<'p>>,
    /// Instances that are not done, by rank and wave.
    waves: BTreeMap<(usize, u32), usize>,
}

/// One turn of what a role's warps share.
pub(super) struct Instance<'p> {
    pub(super) actor: Actor,
    pub(super) binds: Vec<Bind<'p>>,
    pub(super) frames: Vec<Frame<'p>>,
    /// Turns taken by each value of a loop with positions: by statement and value.
    pub(super) placed: BTreeMap<(usize, i64), i64>,
    /// The statement at work.
    at: Option<&'p Stmt>,
    waits: Option<Awaited>,
    /// Channels that are filled by the first so many statements of the body.
    fills: Vec<(usize, usize)>,
    done: bool,
}

impl<'p> Instance<'p> {
    pub(super) fn eval<'w>(&'w mut self, world: &'w World<'p>) -> Eval<'w, 'p> {
        let Instance { actor, binds, .. } = self;
        Eval { world, actor, binds, touched: Touched::Nothing }
    }
}

impl<'p> Machine<'p> {
    pub(super) fn new(
        problem: &'p Problem<'p>,
        open: &BTreeSet<usize>,
    ) -> Result<Machine<'p>, Wrong> {
        let mut machine = Machine {
            world: World::new(problem, open),
            instances: Vec::new(),
            waves: BTreeMap::new(),
        };
        let begun = machine.world.begin().and_then(|()| machine.spread());
        begun.map_err(Wrong::of_call)?;
        Ok(machine)
    }

    /// Makes the instances of every role.
    fn spread(&mut self) -> Found<()> {
        for rank in 0..self.world.problem.ranks.len() {
            if !self.world.alive(rank) {
                continue;
            }
            for (at, role) in self.world.ir.roles.iter().enumerate() {
                let stripes = match is_by_stripe(self.world.ir, role) {
                    true => (0..self.world.number(WellKnown::Stripes.name()).unwrap_or(1))
                        .map(Some)
                        .collect(),
                    false => vec![None],
                };
                let turns = self.shares(role, rank)?;
                for stripe in stripes {
                    for binds in &turns {
                        self.add(rank, at, stripe, binds.clone());
                    }
                }
            }
        }
        Ok(())
    }

    /// The values of what a role's warps share, but for stripes. No warp serves a rank that takes no part.
    fn shares(&self, role: &'p Role, rank: usize) -> Found<Vec<Vec<Bind<'p>>>> {
        let mut turns = vec![Vec::new()];
        for name in shared_names(&role.share) {
            let values = match &role.share {
                Share::Peer { set, .. } => self.world.members(set, rank),
                _ => self.world.shared(role, name, rank)?,
            };
            // Whoever takes the ranks in turn finds that nothing came of this one.
            let is_rank =
                matches!(&role.share, Share::Peer { set: PeerSet::All | PeerSet::Others, .. });
            let there = |value: &i64| {
                !is_rank || usize::try_from(*value).is_ok_and(|peer| self.world.alive(peer))
            };
            let mut next = Vec::new();
            for turn in &turns {
                for value in values.iter().filter(|value| there(value)) {
                    let bound = Bound::Value(Value::int(*value), Touched::Nothing);
                    let mut binds: Vec<Bind<'p>> = turn.clone();
                    binds.push(Bind { name, bound });
                    next.push(binds);
                }
            }
            turns = next;
        }
        Ok(turns)
    }

    fn add(&mut self, rank: usize, at: usize, stripe: Option<i64>, binds: Vec<Bind<'p>>) {
        let role = &self.world.ir.roles[at];
        let phases = self.world.ir.phases();
        let before = phases.iter().take_while(|phase| **phase != role.phase.as_deref()).count();
        let wave = 2 * before as u32 + u32::from(role.blocks == Blocks::Last);
        let hand = Hand { id: self.instances.len() as u32, wave };
        let mut fills = Vec::new();
        for (channel, declared) in self.world.ir.channels.iter().enumerate() {
            let closes = |stmt: &Stmt| matches!(&stmt.action, Action::Close { channel } if *channel == declared.name);
            if mentions(&role.body, &closes) {
                *self.world.closers.entry((channel, rank)).or_insert(0) += 1;
            }
            let last = role.body.iter().rposition(|stmt| {
                mentions(std::slice::from_ref(stmt), &|stmt| fills_channel(stmt, &declared.name))
            });
            if let Some(last) = last {
                *self.world.filling.entry((channel, rank, stripe)).or_insert(0) += 1;
                fills.push((channel, last + 1));
            }
        }
        *self.world.instances.entry((rank, at, stripe)).or_insert(0) += 1;
        *self.waves.entry((rank, wave)).or_insert(0) += 1;
        let frames = vec![Frame::new(&role.body, binds.len(), Turns::Once)];
        self.instances.push(Instance {
            actor: Actor { rank, role: at, stripe, hand, sent: BTreeMap::new() },
            binds,
            frames,
            placed: BTreeMap::new(),
            at: None,
            waits: None,
            fills,
            done: false,
        });
    }

    /// Runs everything, or says who waits for whom.
    pub(super) fn run(&mut self) -> Result<End, Wrong> {
        loop {
            let mut moved = false;
            for at in 0..self.instances.len() {
                if self.instances[at].done || !self.may_start(at) {
                    continue;
                }
                match self.advance(at) {
                    Ok(progress) => moved |= progress,
                    Err(Stop::Open(channel)) => return Ok(End::Open(channel)),
                    Err(stop) => return Err(self.wrong(at, stop.into())),
                }
            }
            if self.instances.iter().all(|instance| instance.done) {
                let empty = self.world.channels.check_empty(&self.world.ir.channels);
                empty.map_err(Wrong::of_call)?;
                return Ok(End::Done);
            }
            if !moved {
                return Err(self.stuck());
            }
        }
    }

    /// Whether all that runs before an instance on its rank has been done.
    fn may_start(&self, at: usize) -> bool {
        let Actor { rank, hand, .. } = self.instances[at].actor;
        self.waves.range((rank, 0)..(rank, hand.wave)).all(|(_, left)| *left == 0)
    }

    /// Runs an instance until it waits; whether it did anything.
    fn advance(&mut self, at: usize) -> Found<bool> {
        let mut moved = false;
        let instance = &mut self.instances[at];
        let known = self.world.sizes[instance.actor.rank].len();
        if instance.at.is_none() && known < self.world.ir.sizes.len() {
            self.world.begin_phase(&instance.actor)?;
        }
        instance.waits = None;
        loop {
            match instance.step(&mut self.world) {
                Ok(()) => moved = true,
                Err(Stop::Wait(wait)) => {
                    instance.waits = Some(wait);
                    return Ok(moved);
                }
                Err(stop) => return Err(stop),
            }
            instance.report(&mut self.world);
            if instance.frames.is_empty() {
                instance.done = true;
                let Actor { rank, hand, .. } = instance.actor;
                if let Some(left) = self.waves.get_mut(&(rank, hand.wave)) {
                    *left -= 1;
                }
                return Ok(true);
            }
        }
    }

    fn wrong(&self, at: usize, fault: Fault) -> Wrong {
        let at = Some(Box::new(self.whereabouts(at)));
        Wrong { at, fault: Box::new(fault), help: None }
    }

    fn whereabouts(&self, at: usize) -> Whereabouts {
        let Instance { actor, at, .. } = &self.instances[at];
        let role = self.world.ir.roles[actor.role].name.clone();
        let (line, text) =
            at.map_or((0, String::new()), |stmt| (stmt.at.line, stmt.at.text.clone()));
        Whereabouts { rank: actor.rank, role, stripe: actor.stripe, line, text }
    }

    /// Nobody can go on: somebody waits for what never comes, or all wait for one another.
    fn stuck(&self) -> Wrong {
        let mut waits = Vec::new();
        for (at, instance) in self.instances.iter().enumerate() {
            let Some(wait) = instance.waits.as_ref().filter(|_| !instance.done) else { continue };
            let channel = self.world.ir.channels.iter().position(|it| it.name == wait.channel);
            let sends = |rank: &usize| {
                channel.is_some_and(|it| self.world.is_filling(it, *rank, instance.actor.stripe))
            };
            if !wait.for_room && !wait.ranks.iter().any(sends) {
                return self.wrong(at, Fault::NeverSent { wait: wait.clone() });
            }
            waits.push((self.whereabouts(at), wait.clone()));
        }
        Wrong::of_call(Fault::Circle { waits })
    }

    /// What the call leaves.
    pub(super) fn outcome(mut self) -> Outcome {
        let mut ranks = Vec::new();
        for rank in 0..self.world.problem.ranks.len() {
            let written =
                self.world.ir.tensors.iter().filter(|tensor| {
                    tensor.from_handle.is_none() && tensor.kind != TensorKind::Input
                });
            let mut left = BTreeMap::new();
            for tensor in written {
                if let Some(found) = self.world.left(rank, tensor) {
                    left.insert(tensor.name.clone(), found);
                }
            }
            ranks.push(left);
        }
        let owned = |sizes: BTreeMap<&str, i64>| {
            sizes.into_iter().map(|(name, rows)| (name.to_string(), rows)).collect()
        };
        let (behind, moved) = (self.world.behind(), self.world.moved());
        Outcome { ranks, behind, moved, sizes: self.world.sizes.into_iter().map(owned).collect() }
    }
}

impl<'p> Instance<'p> {
    /// One statement, or the begin of a loop's next turn.
    fn step(&mut self, world: &mut World<'p>) -> Found<()> {
        let Some(frame) = self.frames.last() else { return Ok(()) };
        if let Some(stmt) = frame.body.get(frame.next) {
            self.at = Some(stmt);
            let inner = self.statement(world, stmt, frame.absent)?;
            if let Some(frame) = self.frames.last_mut() {
                frame.next += 1;
            }
            self.frames.extend(inner);
            return Ok(());
        }
        let Some(mut frame) = self.frames.pop() else { return Ok(()) };
        self.binds.truncate(frame.binds);
        match self.turn(world, &mut frame) {
            Ok(false) => Ok(()),
            Ok(true) => {
                frame.next = 0;
                self.frames.push(frame);
                Ok(())
            }
            Err(stop) => {
                self.frames.push(frame);
                Err(stop)
            }
        }
    }

    /// Says which channels this instance fills no more.
    fn report(&mut self, world: &mut World<'p>) {
        let next = match self.frames.as_slice() {
            [] => usize::MAX,
            [body] => body.next,
            _ => return,
        };
        let (rank, stripe) = (self.actor.rank, self.actor.stripe);
        self.fills.retain(|(channel, last)| {
            if *last <= next
                && let Some(left) = world.filling.get_mut(&(*channel, rank, stripe))
            {
                *left = left.saturating_sub(1);
            }
            *last > next
        });
    }
}

fn mentions(body: &[Stmt], wanted: &dyn Fn(&Stmt) -> bool) -> bool {
    walk::any_stmt(body, &mut |stmt| wanted(stmt))
}

fn fills_channel(stmt: &Stmt, name: &str) -> bool {
    matches!(&stmt.action,
        Action::Push { channel, .. } | Action::Announce { channel, .. } | Action::Close { channel }
            if channel == name)
}
