//! A role that is one team with channels, cut at its dependences: each statement is dealt to all warps of the role,
//! and all of them meet where a statement needs what others have written.
//!
//! Rows of a direct channel lie in the order in which they are pushed. A loop that pushes them is cut into runs of
//! neighboring turns, one warp each. Every run first counts its rows for each peer; its own rows begin behind
//! those of the runs before.

mod forward;
mod one_launch;
mod rings;
mod runs;
mod slices;
mod steps;
mod stripes;

use super::one_warp::has_one_warp;
use super::{RoleRule, RuleSet};
use crate::ir::slots::{Arrival, arrival};
use crate::ir::{
    Action, BinaryOp, Channel, Domain, Expr, NameKind, Pipeline, Place, Role, Share, Stmt, Tensor,
    TensorKind, WellKnown, walk,
};
pub(super) use forward::{Forward, computed, forwards};
pub(super) use one_launch::{is_of_units, one_launch};
pub(super) use rings::{Pushing, shares_rings};
pub(super) use runs::{PEER, first_rows, own_name};
pub(super) use stripes::sends_parts;

/// Why several warps do not share a stripe.
const DEPENDENT: &str = "it needs what an earlier statement wrote for the stripe";

/// Runs into which each loop over rows of a direct channel is cut.
pub(crate) const RUNS: i64 = 192;

/// How a statement of such a role is dealt out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deal {
    /// Every warp does it for itself.
    Every,
    /// The warps or threads take the turns of the loop.
    Turns,
    /// The warps take runs of turns, which push rows of direct channels.
    Runs,
    /// The warps take the messages of a channel.
    Messages,
    /// The warps bring together the parts of a token each.
    Parts,
    /// One warp does it.
    One,
}

/// Whether `rules` cut a role.
pub(super) fn is_cut(ir: &Pipeline, role: &Role, rules: RuleSet) -> bool {
    if !rules.has(RoleRule::Cut) || role.share != Share::Team || has_one_warp(role) {
        return false;
    }
    let mut fits = true;
    let mut own = ends(ir, role).peekable();
    let is_needed = own.peek().is_some() || !super::hazards::reread(role).is_empty();
    let has_stripes = super::extents::has_stripes(ir);
    for channel in own {
        let kind = channel.kind.traits();
        fits &= !kind.in_order && !kind.offers;
        fits &= !kind.lands || (!has_stripes && channel.from.len() == 1);
    }
    walk::stmts(&role.body, &mut |stmt| {
        fits &= !matches!(
            stmt.action,
            Action::Raise { .. } | Action::AwaitWord { .. } | Action::Count { .. }
        );
    });
    fits && is_needed
}

/// How many loops push rows of a direct channel in runs; 0: one warp pushes all of them, or other roles by stripes.
pub(crate) fn loops_in_runs(ir: &Pipeline, channel: &Channel, rules: RuleSet) -> usize {
    let senders = ir.roles.iter().filter(|role| channel.from.contains(&role.name));
    let cut = senders.filter(|role| is_cut(ir, role, rules));
    cut.map(|role| Cut::new(ir, role).loops_of(channel).map_or(0, |loops| loops.len())).sum()
}

/// Whether several warps may share each unit of the work that a role deals out: its statements are loops whose turns
/// need neither each other nor an order.
pub(super) fn shares_units(ir: &Pipeline, role: &Role, rules: RuleSet) -> bool {
    let cut = Cut::new(ir, role);
    let is_shared = |stmt: &Stmt| match &stmt.action {
        Action::Let { .. } => true,
        // A loop over a number of the shape is the rule `apart`'s.
        Action::For { domain: Domain::Tokens | Domain::Range { .. }, .. } => {
            cut.order(stmt).is_none()
        }
        // The rows of a stripe are there together.
        Action::Receive { channel, .. } if role.share == Share::SourceStripe => {
            let lands = |it: &Channel| it.name == *channel && it.kind.traits().lands;
            ir.channels.iter().any(lands) && cut.order(stmt).is_none()
        }
        _ => false,
    };
    let opens = ends(ir, role).any(|it| {
        let kind = it.kind.traits();
        let sends = it.from.contains(&role.name);
        (kind.opens_out && sends) || (kind.opens_in && it.to == role.name) || kind.offers
    });
    rules.has(RoleRule::Cut)
        && !opens
        && cut.dependent(&role.body).is_none()
        && role.body.iter().all(is_shared)
}

/// The binder of a loop of a role, and how many rows of a channel one of its turns pushes to [`PEER`]; `None`: that cannot
/// be told before.
pub(super) fn pushed_in_turn<'s>(
    ir: &Pipeline,
    role: &Role,
    stmt: &'s Stmt,
    channel: &Channel,
) -> Option<(&'s String, Expr)> {
    Cut::new(ir, role).rows_of_each(stmt, channel, None)
}

/// Why one warp takes the turns of a loop of a role in order; `None`: several warps take them in any order.
pub(super) fn order_of(ir: &Pipeline, role: &Role, stmt: &Stmt) -> Option<&'static str> {
    Cut::new(ir, role).order(stmt)
}

/// A role that is cut.
#[derive(Clone, Copy)]
struct Cut<'p, 'f> {
    ir: &'p Pipeline,
    role: &'p Role,
    /// Tables of a team whose elements are computed where they are read.
    forwards: &'f [Forward],
}

impl<'p> Cut<'p, '_> {
    fn new(ir: &'p Pipeline, role: &'p Role) -> Self {
        Cut { ir, role, forwards: &[] }
    }

    /// The loops of the body that push rows of a direct channel, if each of them is cut into runs.
    fn loops_of(self, channel: &Channel) -> Option<Vec<&'p Stmt>> {
        if !channel.kind.traits().lands {
            return None;
        }
        let pushing = self.role.body.iter().filter(|stmt| walk::pushes_to(stmt, channel));
        let loops: Vec<&Stmt> = pushing.collect();
        let first =
            loops.first().and_then(|stmt| first_rows(std::slice::from_ref(stmt), channel))?;
        let fits = |stmt: &&Stmt| {
            self.order(stmt).is_none()
                && self.count(stmt, channel).is_some()
                && first_rows(std::slice::from_ref(stmt), channel).as_ref() == Some(&first)
        };
        loops.iter().all(fits).then_some(loops)
    }

    /// How a statement of the body is dealt out.
    fn deal(self, stmt: &Stmt) -> Deal {
        let lands: Vec<&Channel> = self
            .ir
            .channels
            .iter()
            .filter(|channel| channel.kind.traits().lands && walk::pushes_to(stmt, channel))
            .collect();
        if !lands.is_empty() {
            let fits = |channel: &&Channel| self.loops_of(channel).is_some();
            return if lands.iter().all(fits) { Deal::Runs } else { Deal::One };
        }
        match &stmt.action {
            Action::Let { .. } | Action::Await { .. } | Action::Close { .. } => Deal::Every,
            Action::For { domain: Domain::Once, body, .. } => {
                let free = |stmt: &Stmt| {
                    matches!(self.deal(stmt), Deal::Every | Deal::Turns | Deal::Parts)
                };
                if self.dependent(body).is_none() && body.iter().all(free) {
                    Deal::Every
                } else {
                    Deal::One
                }
            }
            Action::For { .. } if self.order(stmt).is_none() => Deal::Turns,
            Action::Receive { .. } if self.order(stmt).is_none() => Deal::Messages,
            Action::Gather { .. } if self.order(stmt).is_none() => Deal::Parts,
            _ => Deal::One,
        }
    }

    /// The first statement of a block that needs what an earlier one wrote.
    fn dependent(self, body: &'p [Stmt]) -> Option<&'p Stmt> {
        let mut before = Touched::default();
        body.iter().find(|stmt| {
            let touched = Touched::of(self, stmt);
            let is_behind = before.before(&touched);
            before.add(&touched);
            is_behind
        })
    }

    /// Why one warp takes the turns of a loop in order; `None`: several warps take them in any order.
    fn order(self, stmt: &Stmt) -> Option<&'static str> {
        let turn = match &stmt.action {
            Action::For { domain: Domain::Row { .. }, .. } => {
                return Some("one warp examines the values of a row");
            }
            Action::For { position: Some(_), .. } => {
                return Some("one warp assigns places in order");
            }
            Action::For { binder, domain, .. }
                if !matches!(domain, Domain::ReceivedFrom { .. } | Domain::Once) =>
            {
                Turn::of(binder, None, walk::nested(stmt))
            }
            Action::Receive { binder, .. } => Turn::of(binder, Some("row"), walk::nested(stmt)),
            Action::Gather { binder, .. } => Turn::of(binder, None, walk::nested(stmt)),
            _ => return Some("one warp does it"),
        };
        let body = walk::nested(stmt);
        let mut why = None;
        walk::stmts(body, &mut |inner| {
            let found = match &inner.action {
                Action::Push { channel, .. } if self.counts_arrivals(channel) => {
                    Some("one warp takes slots that count arrivals in order")
                }
                Action::For { position: Some(_), .. } => Some("one warp assigns places in order"),
                Action::Await { .. } | Action::Close { .. } | Action::Announce { .. } => {
                    Some("one warp waits for the channel in each turn")
                }
                Action::Add { target, .. } if turn.axis_of(&target.indices).is_none() => {
                    Some("several turns may add to one element, so one warp runs them in order")
                }
                _ => walk::target(inner)
                    .filter(|place| self.is_inout(place) && turn.axis_of(&place.indices).is_none())
                    .map(|_| "several turns may write one element, so one warp runs them in order"),
            };
            why = why.or(found);
        });
        let apart = self.keeps_apart(&turn, body);
        why.or((!apart)
            .then_some("a turn may read what another turn writes, so one warp runs them in order"))
    }

    /// Why one warp does a statement.
    fn why(self, stmt: &Stmt) -> &'static str {
        let lands = |it: &&Channel| it.kind.traits().lands && walk::pushes_to(stmt, it);
        match self.order(stmt) {
            None if self.ir.channels.iter().any(|it| lands(&it)) => {
                "the position of a turn's rows is known only after all earlier turns, so one warp \
                pushes them in order"
            }
            why => why.unwrap_or("one warp does it"),
        }
    }

    /// Whether what a turn writes and a turn reads is the turn's own.
    fn keeps_apart(self, turn: &Turn<'_>, body: &[Stmt]) -> bool {
        let (written, read) = (written(body), read(body));
        let mut axes: Vec<(&String, Option<usize>)> = Vec::new();
        walk::stmts(body, &mut |stmt| {
            let place = walk::target(stmt);
            axes.extend(place.map(|place| (&place.tensor, turn.axis_of(&place.indices))));
            walk::exprs(stmt, &mut |part| {
                if let Expr::Element { tensor, indices } = part
                    && written.contains(tensor)
                {
                    axes.push((tensor, turn.axis_of(indices)));
                }
            });
        });
        axes.iter().filter(|(tensor, _)| read.contains(tensor)).all(|(tensor, axis)| {
            axis.is_some() && axes.iter().all(|(other, at)| other != tensor || at == axis)
        })
    }

    /// Whether a place is in memory that the caller brings, whose elements may be written more than once.
    fn is_inout(self, place: &Place) -> bool {
        let own = |it: &&Tensor| it.name == place.tensor;
        self.ir.tensors.iter().find(own).is_some_and(|it| it.kind == TensorKind::Inout)
    }

    /// Whether slots of a channel are taken in the order of the pushes.
    fn counts_arrivals(self, channel: &str) -> bool {
        let own = self.ir.channels.iter().find(|known| known.name == channel);
        own.is_some_and(|own| {
            own.kind.traits().is_indexed && arrival(self.ir, own) == Arrival::Counts
        })
    }
}

/// What tells the turns of a loop apart: its binder, or a field of it.
struct Turn<'s> {
    name: &'s str,
    field: Option<&'s str>,
    /// Names in the loop, and what they stand for.
    lets: Vec<(&'s str, &'s Expr)>,
}

impl<'s> Turn<'s> {
    fn of(name: &'s str, field: Option<&'s str>, body: &'s [Stmt]) -> Turn<'s> {
        let mut lets = Vec::new();
        walk::stmts(body, &mut |stmt| {
            if let Action::Let { name, value } = &stmt.action {
                lets.push((name.as_str(), value));
            }
        });
        Turn { name, field, lets }
    }

    /// The first index that is the turn itself.
    fn axis_of(&self, indices: &[Expr]) -> Option<usize> {
        indices.iter().position(|index| self.is(index, self.lets.len()))
    }

    /// Whether an expression is the turn itself, seen through so many names.
    fn is(&self, whole: &Expr, names: usize) -> bool {
        match (whole, self.field) {
            (Expr::Name { name, .. }, None) if name == self.name => true,
            (Expr::Field { of, field, .. }, Some(own)) => of == self.name && field == own,
            (Expr::Name { name, .. }, _) => {
                let mut known = self.lets.iter().filter(|(known, _)| known == name);
                names > 0 && known.next().is_some_and(|(_, value)| self.is(value, names - 1))
            }
            (Expr::Binary { op, left, right }, _) => match (op, &**left, &**right) {
                (BinaryOp::Add | BinaryOp::Sub, own, Expr::Int { value: 0 })
                | (BinaryOp::Add, Expr::Int { value: 0 }, own)
                | (BinaryOp::Mul | BinaryOp::Div, own, Expr::Int { value: 1 })
                | (BinaryOp::Mul, Expr::Int { value: 1 }, own) => self.is(own, names),
                _ => false,
            },
            _ => false,
        }
    }
}

/// The channels at whose ends a role is.
pub(super) fn ends<'p>(ir: &'p Pipeline, role: &'p Role) -> impl Iterator<Item = &'p Channel> {
    let is_end = move |it: &&Channel| it.to == role.name || it.from.contains(&role.name);
    ir.channels.iter().filter(is_end)
}

/// The tensors that statements write.
fn written(body: &[Stmt]) -> Vec<String> {
    let mut found = Vec::new();
    walk::stmts(body, &mut |stmt| found.extend(walk::target(stmt).map(|it| it.tensor.clone())));
    found
}

/// The tensors that statements read.
fn read(body: &[Stmt]) -> Vec<String> {
    let mut found = Vec::new();
    walk::stmts(body, &mut |stmt| {
        walk::exprs(stmt, &mut |part| {
            if let Expr::Element { tensor, .. } = part {
                found.push(tensor.clone());
            }
        });
    });
    found
}

/// The tensors that a statement touches.
#[derive(Debug, Clone, Default)]
struct Touched {
    read: Vec<String>,
    written: Vec<String>,
}

impl Touched {
    /// What a statement of a role reads, by names and sizes too, and what it writes.
    fn of(cut: Cut<'_, '_>, stmt: &Stmt) -> Touched {
        let own = std::slice::from_ref(stmt);
        let mut names = Vec::new();
        walk::stmts(own, &mut |inner| {
            walk::exprs(inner, &mut |part| named_in(part, &mut names));
            if let Action::For { domain: Domain::Tokens, .. } = &inner.action {
                names.push((WellKnown::Tokens.name().to_string(), NameKind::Size));
            }
        });
        let mut read = Vec::new();
        walk::stmts(own, &mut |inner| {
            walk::exprs(inner, &mut |part| read.extend(read_in(part, cut.forwards)));
        });
        read.extend(read_by_names(cut.ir, &cut.role.body, names));
        Touched { read, written: written(own) }
    }

    /// What an expression reads.
    fn by(cut: Cut<'_, '_>, whole: &Expr) -> Touched {
        let (mut read, mut names) = (Vec::new(), Vec::new());
        walk::expr(whole, &mut |part| {
            named_in(part, &mut names);
            read.extend(read_in(part, cut.forwards));
        });
        read.extend(read_by_names(cut.ir, &cut.role.body, names));
        Touched { read, written: Vec::new() }
    }

    /// Whether `later` has to wait for this.
    fn before(&self, later: &Touched) -> bool {
        let meets = |a: &[String], b: &[String]| a.iter().any(|name| b.contains(name));
        meets(&self.written, &later.read)
            || meets(&self.written, &later.written)
            || meets(&self.read, &later.written)
    }

    fn add(&mut self, more: &Touched) {
        self.read.extend(more.read.iter().cloned());
        self.written.extend(more.written.iter().cloned());
    }
}

/// The tensor of which an expression is an element that is read, and not computed.
fn read_in(part: &Expr, known: &[Forward]) -> Option<String> {
    let Expr::Element { tensor, indices } = part else { return None };
    let is_computed = known.iter().any(|own| own.tensor == *tensor && own.at(indices).is_some());
    (!is_computed).then(|| tensor.clone())
}

/// The tensors that are read where names and sizes stand.
fn read_by_names(ir: &Pipeline, role: &[Stmt], mut names: Vec<(String, NameKind)>) -> Vec<String> {
    let (mut read, mut seen) = (Vec::new(), Vec::new());
    while let Some((name, kind)) = names.pop() {
        if seen.contains(&name) {
            continue;
        }
        let mut look = |value: &Expr| {
            walk::expr(value, &mut |part| {
                named_in(part, &mut names);
                if let Expr::Element { tensor, .. } = part {
                    read.push(tensor.clone());
                }
            });
        };
        if kind == NameKind::Size {
            let sizes = ir.sizes.iter().filter(|size| size.name == name);
            sizes.filter_map(|size| size.value.as_ref()).for_each(&mut look);
        } else {
            walk::stmts(role, &mut |stmt| {
                if let Action::Let { name: own, value } = &stmt.action
                    && *own == name
                {
                    look(value);
                }
            });
        }
        seen.push(name);
    }
    read
}

/// A name that may stand for more than a number.
fn named_in(part: &Expr, names: &mut Vec<(String, NameKind)>) {
    match part {
        Expr::Name { name, kind: kind @ (NameKind::Binder | NameKind::Size) } => {
            names.push((name.clone(), kind.clone()));
        }
        Expr::Fold { domain, .. } if **domain == Domain::Tokens => {
            names.push((WellKnown::Tokens.name().to_string(), NameKind::Size));
        }
        _ => {}
    }
}
