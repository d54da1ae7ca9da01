//! Direct channels: a lane per peer stores rows in the receivers' outputs.

use super::{PEERS, Whole, binary, call, cfg_of, method, name, object, team};
use crate::ir::rows::row_in_place;
use crate::ir::{Action, BinaryOp, Channel, Elem, Expr, NameKind, Pipeline, Role, Stmt};
use crate::schedule::library::{Entity, ep};
use crate::schedule::limit::broken;
use crate::schedule::rules::{self, Fanout, Reached, is_position, pushes_direct};
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::step::ParamType::{Index, Object, Value};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::term::{Node, Term};
use crate::schedule::{Lowered, RoleLowering, RuleSet};

/// The functions of a fan-out.
#[derive(PartialEq)]
pub(super) struct Fan {
    pub(super) goes: Term,
    pub(super) first: Term,
    pub(super) row: Term,
    pub(super) each: Term,
}

impl<'a> Whole<'_, 'a> {
    /// `for token in stripe { for peer in .. where .. { push ..; record ..; } }`, and what `twin` does, which
    /// is the same for this rank alone.
    pub(super) fn direct_send(
        &mut self,
        scope: &Scope,
        (stmt, twin): (&Stmt, Option<&Stmt>),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let fanout = Fanout::of(stmt).ok_or(broken("no fan-out"))?;
        let other = twin.and_then(Fanout::of);
        let channel = self.pushed_to(&fanout)?;
        let names = &mut self.role.names;
        let (units, end, goes) =
            (names.fresh("units"), names.fresh(&channel.name), names.fresh("goes"));
        let (base, stripe) = (names.fresh("base"), names.fresh("stripe"));
        let peers = if twin.is_some() { PEERS.to_string() } else { names.fresh(PEERS) };
        if twin.is_none() {
            let value = self.reached(fanout.reached);
            out.push(Step::Made { name: peers.clone(), value });
        }
        let own = binary(BinaryOp::Add, name(&base), name("team.lane"));
        let own = method(&peers, "at", vec![own]);
        let striped = self.striped(scope, out)?;
        let most = self.role.number("stripes").range.map_or(i64::from(i32::MAX), |(_, high)| high);
        let inner = scope.with("stripe", Meaning::Value(Term::small(&stripe, 0, most - 1)));
        let pushes = [Some(&fanout), other.as_ref()].into_iter().flatten().map(|it| it.push);
        let pushes: Vec<&Stmt> = pushes.collect();
        let fan = self.fan((scope, &inner), &fanout, (&end, &pushes), false)?;
        let total = self.function(&[], &[(Index, fanout.peer)], |this, params, steps| {
            let peer = Term { range: this.role.me().range, ..params[0].clone() };
            let own = inner.with("me", Meaning::Value(peer));
            this.received(&own, channel, steps).map(Some)
        })?;
        let mut body = vec![
            object(
                ep::DirectUnits.of(cfg_of(channel)),
                &units,
                vec![team(), name(&base), own.clone(), striped],
            ),
            object(
                ep::DirectProducer.of(cfg_of(channel)).of(self.cfg()),
                &end,
                vec![team(), name(&self.mover()), name(&units), own],
            ),
        ];
        body.extend(fanout.inner.map(|inner| Step::Says(inner.at.clone())));
        body.push(Step::Made { name: goes.clone(), value: fan.goes });
        body.extend([Some(stmt), twin].into_iter().flatten().map(|it| Step::Says(it.at.clone())));
        let open = vec![name(&goes), fan.first, total];
        body.push(Step::While {
            condition: method(&units, "take", Vec::new()),
            body: vec![
                Step::Let { name: stripe, value: method(&units, "stripe", Vec::new()) },
                Step::Do(method(&end, "open", open)),
                Step::Do(method(&end, "for_tokens", vec![fan.row, fan.each])),
                Step::Do(method(&end, "close", Vec::new())),
            ],
        });
        body.extend(pushes.iter().map(|push| self.ending(push)));
        body.push(Step::Do(method(&end, "finish", Vec::new())));
        out.push(Step::Loop(Loop {
            binder: base,
            elem: Elem::I32,
            from: Term::int(0),
            to: method(&peers, "count", Vec::new()),
            turns: Takers::Chunks,
            body,
        }));
        Ok(())
    }

    /// The channel of a fan-out.
    fn pushed_to(&self, fanout: &Fanout<'_>) -> Lowered<&'a Channel> {
        match &fanout.push.action {
            Action::Push { channel, .. } => Ok(self.role.carried(channel)?.0),
            _ => Err(broken("a fan-out pushes")),
        }
    }

    /// The functions of a fan-out through the object `end`, of which the filter knows no stripe. `own`: those
    /// of this rank as the only peer.
    pub(super) fn fan(
        &mut self,
        (outside, scope): (&Scope, &Scope),
        fanout: &Fanout<'_>,
        (end, pushes): (&str, &[&Stmt]),
        own: bool,
    ) -> Lowered<Fan> {
        let Action::Push { position, values, .. } = &fanout.push.action else {
            return Err(broken("a fan-out pushes"));
        };
        let channel = self.pushed_to(fanout)?;
        let wanted = if own { "peer" } else { fanout.peer };
        let me = self.role.me();
        let of = |peer: &Term, scope: &Scope| {
            let peer = Term { range: me.range, ..peer.clone() };
            scope.with(fanout.peer, Meaning::Value(if own { me.clone() } else { peer }))
        };
        let token = (Index, fanout.token);
        let with_token =
            |token: &Term, scope: &Scope| scope.with(fanout.token, Meaning::Value(token.clone()));
        let first = self.function(&[], &[(Index, wanted)], |this, params, steps| {
            let scope = of(&params[0], scope);
            let first = position.as_ref().ok_or(broken("a direct channel needs a position"))?;
            Ok(Some(this.role.scalar(&scope, first, steps)?.converted(&Elem::I32)))
        })?;
        let goes =
            self.function(&[], &[token.clone(), (Index, wanted)], |this, params, steps| {
                let scope = with_token(&params[0], &of(&params[1], outside)).of_lane();
                let mut all: Option<Term> = None;
                for filter in &fanout.filters {
                    let holds = this.role.scalar(&scope, filter, steps)?;
                    all = Some(match all {
                        None => holds,
                        Some(all) => all.and(holds),
                    });
                }
                Ok(Some(all.unwrap_or(Term::bool(true))))
            })?;
        let says: Vec<_> = pushes.iter().map(|push| &push.at).collect();
        let row = self.function(&says, &[token, (Index, "position")], |this, params, steps| {
            let scope = with_token(&params[0], scope);
            this.push_row(&scope, (channel, end), values, &params[1], steps)?;
            Ok(None)
        })?;
        let each = self.each(scope, (fanout, channel), wanted, of)?;
        Ok(Fan { goes, first, row, each })
    }

    /// The function of what is recorded of a token and a peer.
    fn each(
        &mut self,
        scope: &Scope,
        (fanout, channel): (&Fanout<'_>, &Channel),
        wanted: &str,
        of: impl Fn(&Term, &Scope) -> Scope,
    ) -> Lowered<Term> {
        let params = [
            (Index, fanout.token),
            (Index, wanted),
            (Value(Elem::Bool), "match"),
            (Index, "position"),
        ];
        self.function(&[], &params, |this, params, steps| {
            let [token, peer, goes, position] = params else { return Ok(None) };
            let scope = of(peer, scope).with(fanout.token, Meaning::Value(token.clone()));
            for stmt in &fanout.records {
                let one = std::slice::from_ref(*stmt);
                this.records(&scope, channel, one, (goes, position), steps)?;
            }
            Ok(None)
        })
    }

    /// Records values for a token and a peer, in one lane: a position for every peer, any other value only for peers to
    /// which the token goes.
    pub(super) fn records(
        &mut self,
        scope: &Scope,
        channel: &Channel,
        body: &[Stmt],
        (goes, position): (&Term, &Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let mut own = scope.of_lane();
        for stmt in body {
            let Action::Record { target, value } = &stmt.action else { continue };
            if !is_position(value, channel) {
                let mut steps = Vec::new();
                self.role.one(&mut own, stmt, &mut steps);
                out.push(Step::If { condition: goes.clone(), body: steps });
                continue;
            }
            out.push(Step::Says(stmt.at.clone()));
            let tensor = self.role.tensor(&target.tensor)?;
            let at = self.role.indices(&own, &target.indices, out)?;
            let place = self.role.place(tensor, 0, None, at, None)?;
            let value = call(ep::recorded, vec![goes.clone(), position.clone()]);
            out.push(Step::Set { value: value.converted(&place.elem), place });
        }
        Ok(())
    }

    /// The peers of a fan-out.
    fn reached(&self, reached: Reached) -> Term {
        let ranks = self.role.number("ranks");
        match reached {
            Reached::All => call(ep::all_peers, vec![ranks]),
            Reached::Others => call(ep::other_peers, vec![ranks, self.role.me()]),
            Reached::Own => call(ep::one_peer, vec![self.role.me()]),
        }
    }

    /// How many rows arrive at the rank that `scope` calls `me`: the size of the outputs that the channel
    /// stores into.
    fn received(&mut self, scope: &Scope, channel: &Channel, out: &mut Vec<Step>) -> Lowered<Term> {
        let ir = self.role.ir;
        let dim = row_in_place(ir, channel).and_then(|(_, tensor)| tensor.dims.first());
        let Some(Expr::Name { name, kind: NameKind::Size }) = dim else {
            return Err(broken(format!(
                "no output of a known size for channel `{}`",
                channel.name
            )));
        };
        Ok(self.role.size(scope, name, out)?.converted(&Elem::I32))
    }

    /// `for message in channel[source] { store ..; }`: rows are in place, the rest is unpacked.
    pub(super) fn direct_receive(
        &mut self,
        scope: &Scope,
        stmt: &Stmt,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let Action::Receive { channel, .. } = &stmt.action else { return Ok(()) };
        let (channel, _) = self.role.carried(channel)?;
        out.push(Step::Says(stmt.at.clone()));
        let window = Term::name("args.group.window", Elem::U8);
        let meta = name(&format!("args.{}_meta_at", channel.name));
        let records = self.role.bytes("records", binary(BinaryOp::Add, window, meta), true, out);
        let Action::Receive { binder, body, .. } = &stmt.action else {
            return Err(broken("messages are taken"));
        };
        let take = self.taken(scope, (channel, ep::DirectMessages), (binder, body))?;
        let messages = ep::for_direct_messages.of(cfg_of(channel));
        out.push(Step::Do(call(messages, vec![team(), records, take])));
        Ok(())
    }

    /// The function that unpacks messages of this class.
    pub(super) fn taken(
        &mut self,
        scope: &Scope,
        (channel, class): (&Channel, Entity),
        (binder, body): (&str, &[Stmt]),
    ) -> Lowered<Term> {
        self.function(&[], &[(Object(class), binder)], |this, params, steps| {
            let Node::Name(messages) = &params[0].node else { return Ok(None) };
            let mut stores = Vec::new();
            for inner in body {
                stores.push(Step::Says(inner.at.clone()));
                let before = stores.len();
                let of = (channel, binder, messages.as_str());
                this.unpack(scope, of, inner, (steps, &mut stores))?;
                if stores.len() == before {
                    let words = "The sender has stored it in place.";
                    stores.push(Step::Remark(words.to_string()));
                }
            }
            steps.append(&mut stores);
            Ok(None)
        })
    }
}

/// The fan-out of a role that does nothing else.
fn fanout_of<'s>(ir: &Pipeline, role: &'s Role) -> Option<Fanout<'s>> {
    let [stmt] = role.body.as_slice() else { return None };
    let sends = pushes_direct(ir, stmt) && rules::check(ir, role).is_ok();
    Fanout::of(stmt).filter(|_| sends)
}

/// The peers to which a role sends that does nothing else.
pub(in crate::schedule) fn peers_of(role: &mut RoleLowering<'_>) -> Option<Term> {
    let fanout = fanout_of(role.ir, role.role)?;
    Some(Whole::of(role).reached(fanout.reached))
}

/// What a role does that only sends, where the peer is this rank.
fn sent_to_own(ir: &Pipeline, role: &Role) -> Option<(String, Fan)> {
    let fanout = fanout_of(ir, role)?;
    let mut lowering = RoleLowering::new(ir, role, RuleSet::None);
    let mut whole = Whole::of(&mut lowering);
    let stripe = Meaning::Value(Term::index("stripe"));
    let outside = Scope::default();
    let scope = outside.with("stripe", stripe);
    let mut fan = whole.fan((&outside, &scope), &fanout, ("rows", &[]), true).ok()?;
    for function in [&mut fan.goes, &mut fan.first, &mut fan.row, &mut fan.each] {
        if let Node::Lambda(function) = &mut function.node {
            without_words(&mut function.body);
        }
    }
    Some((whole.pushed_to(&fanout).ok()?.name.clone(), fan))
}

fn without_words(steps: &mut Vec<Step>) {
    steps.retain(|step| !matches!(step, Step::Says(_) | Step::Remark(_)));
    steps.iter_mut().filter_map(Step::inner_mut).for_each(without_words);
}

/// The earlier role whose function serves `role` too: it sends to its peers what `role` sends to this rank,
/// so that a kernel holds the loop over rows, and the compiler sees it, once.
pub(in crate::schedule) fn leader_of<'p>(ir: &'p Pipeline, role: &Role) -> Option<&'p Role> {
    let own = fanout_of(ir, role).filter(|fanout| fanout.reached == Reached::Own);
    let own = own.and_then(|_| sent_to_own(ir, role))?;
    ir.roles.iter().take_while(|other| other.name != role.name).find(|other| {
        sent_to_own(ir, other).as_ref() == Some(&own) && leader_of(ir, other).is_none()
    })
}

/// The role that the function of `role` serves besides.
pub(in crate::schedule) fn twin_of<'p>(ir: &'p Pipeline, role: &Role) -> Option<&'p Role> {
    let behind = ir.roles.iter().skip_while(|other| other.name != role.name).skip(1);
    let mut behind =
        behind.filter(|other| leader_of(ir, other).is_some_and(|leader| leader.name == role.name));
    behind.next()
}
