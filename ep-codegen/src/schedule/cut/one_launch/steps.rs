//! A dispatch in one launch: the steps of its role, what every block counts as it enters, and what the last one
//! does.

use super::texts::{binary, call, cfg_of, method, name, object, team};
use super::{Counts, OneLaunch, is_position, row_cast};
use crate::ir::naming::function_of;
use crate::ir::parts::{MetaSource, meta_sources};
use crate::ir::rows::row_in_place;
use crate::ir::{Action, BinaryOp, Channel, Domain, Elem, Expr, NameKind, Stmt, walk};
use crate::schedule::channels::{End, Object};
use crate::schedule::cut::{PEER, own_name};
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::rules::{asked_first, in_blocks};
use crate::schedule::scope::{Arrived, LookedAt, Meaning, Scope};
use crate::schedule::step::ParamType::{Bytes, Index, Object as OfClass, Value};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::{Node, Term};
use crate::schedule::{Lowered, RoleLowering};

/// The number of the first row behind all that arrive, as no declaration can name it.
const ALL_ROWS: &str = "all rows";

impl<'a> RoleLowering<'a> {
    /// The steps of the role itself.
    pub(super) fn dispatch(&mut self, one: &OneLaunch<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        self.own_experts(out);
        let mut scope = Scope::default();
        let tokens = self.tokens(out)?;
        let cfg = self.cfg();
        let memory = name(&format!("smem.{}[team.warp]", function_of(&one.role.name)));
        let mover = self.names.fresh("mover");
        let packs = one.packs.is_some();
        let class = if packs { ep::PieceMover } else { ep::Mover };
        out.push(object(class.of(cfg.clone()), &mover, vec![memory, team()]));
        self.slots(one, ep::SlotChannel.of(cfg_of(one.slots)), vec![team()], out);
        let rows = self.names.fresh(&one.rows.name);
        let own = vec![team(), name(&mover), name("smem.routes"), tokens.clone()];
        let class = if packs { ep::PackedOut } else { ep::OnceOut };
        out.push(object(class.of(cfg_of(one.rows)).of(cfg.clone()), &rows, own));
        self.tells(one, &tokens, out)?;
        let from = self.row_sent(&scope, one)?;
        out.push(Step::Remark("The first row is loaded while the counts travel.".to_string()));
        out.push(Step::Do(method(&rows, "ask", vec![from.clone()])));
        out.push(Step::Says(one.send.at.clone()));
        out.push(Step::Says(one.fanout.inner.at.clone()));
        let count = self.slot_word((one, one.rows_to), "peer", &[&one.awaits.at])?;
        let pack = self.packed(&scope, one)?;
        let each = self.each_sent(&scope, one)?;
        out.push(Step::Do(method(&rows, "for_tokens", vec![count, from, pack, each])));
        self.last_block(one, out);
        let taken = self.names.fresh(&format!("{}_in", one.rows.name));
        let class = match packs {
            true => ep::PackedIn.of(cfg_of(one.rows)).of(cfg),
            false => ep::OnceIn.of(cfg_of(one.rows)),
        };
        let record = method(&mover, "meta", Vec::new());
        out.push(object(class, &taken, vec![team(), record, tokens, self.offered(one)?]));
        let count = self.slot_word((one, one.rows_to), "me", &[])?;
        out.push(Step::Do(method(&taken, "open", vec![count])));
        out.push(Step::Says(one.take.at.clone()));
        scope.by_lane = false;
        let take = self.taken(&scope, one, &taken)?;
        match &one.packs {
            Some(packs) => {
                self.packs_rows((one, packs), (&scope, &taken), take, out)?;
                self.rows_behind(one, &taken, out);
            }
            None => {
                out.push(Step::Do(method(&taken, "for_messages", vec![take])));
                out.push(self.ending(one.fanout.push));
                out.push(Step::Do(method(&rows, "close", Vec::new())));
                self.rows_behind(one, &taken, out);
                out.push(Step::Remark("All rows are there.".to_string()));
                out.push(Step::Do(method(&taken, "await", Vec::new())));
            }
        }
        out.push(Step::Do(method(&mover, "finish", Vec::new())));
        Ok(())
    }

    /// How many tokens there are, under one name.
    fn tokens(&mut self, out: &mut Vec<Step>) -> Lowered<Term> {
        let value = self.striped(&Scope::default(), out)?.converted(&Elem::I32);
        let own = self.names.fresh("tokens");
        out.push(Step::Let { name: own.clone(), value });
        Ok(Term::index(own))
    }

    /// The scope of a token, with the names that its loop gives.
    fn of_token(
        &mut self,
        scope: &Scope,
        one: &OneLaunch<'_>,
        token: &Term,
        out: &mut Vec<Step>,
    ) -> Scope {
        let mut own = scope.with(one.fanout.token, Meaning::Value(token.clone()));
        for stmt in one.fanout.ahead.iter().filter(|it| matches!(it.action, Action::Let { .. })) {
            self.one(&mut own, stmt, out);
        }
        own
    }

    /// The function that gives the row of a token, which may be cast as it leaves.
    fn row_sent(&mut self, scope: &Scope, one: &OneLaunch<'_>) -> Lowered<Term> {
        self.function(&[], &[(Index, one.fanout.token)], |this, params, steps| {
            let own = this.of_token(scope, one, &params[0], steps);
            let Some((Expr::Element { tensor, indices }, block)) = one.cast() else {
                return this.pushed_row(&own, one.rows, one.fanout.values, steps).map(Some);
            };
            let row = this.row(&own, (tensor, 0), indices, steps)?;
            let tensor = this.tensor(tensor)?;
            let width = this.width(tensor, 0)?;
            let (scale, place) = this.scales_of(one)?;
            let cast = ep::cast_from.of(&scale).of(width).of(Term::constant(place));
            Ok(Some(call(in_blocks(cast, block), vec![row])))
        })
    }

    /// The type and the place of the scales of the row that goes to a channel.
    fn scales_of(&self, one: &OneLaunch<'_>) -> Lowered<(Elem, Constant)> {
        let (_, message) = self.carried(&one.rows.name)?;
        let of_row = |source: &MetaSource<'_>| source.field.row;
        let source = meta_sources(self.ir, message).into_iter().find(of_row);
        let source = source.ok_or(broken("a row that is cast has scales"))?;
        Ok((source.elem.clone(), Constant::field(&message.name, &source.name)))
    }

    /// The function that gives the word in which a source has counted something, by its index in a field of the slots.
    pub(super) fn slot_word(
        &mut self,
        (one, field): (&OneLaunch<'_>, &str),
        index: &'static str,
        says: &[&crate::ir::Source],
    ) -> Lowered<Term> {
        let slots = self.object(&one.slots.name);
        let field = Term::constant(Constant::field(&one.slots.message, field));
        let all = [(Index, "source"), (Index, index)];
        let params = if index == "me" { &all[..1] } else { &all[..] };
        self.function(says, params, |this, params, _| {
            let words = method(&slots, "from", vec![params[0].clone()]);
            let words = Term { elem: Elem::U8, ..words };
            let field = binary(BinaryOp::Add, words, field);
            let index = params.get(1).cloned().unwrap_or_else(|| this.me());
            Ok(Some(call(ep::word_of, vec![field, index])))
        })
    }

    /// The function that puts the small fields of a token into a record: all but the scales of a row that is cast.
    fn packed(&mut self, scope: &Scope, one: &OneLaunch<'_>) -> Lowered<Term> {
        let params = [(Index, one.fanout.token), (Bytes, "record")];
        self.function(&[], &params, |this, params, steps| {
            let own = this.of_token(scope, one, &params[0], steps);
            let mut values = one.fanout.values.to_vec();
            values.retain(|value| row_cast(&value.value).is_none());
            if let Some(turns) = &one.turns {
                let turned = one.turned(turns);
                values.retain(|value| turned.is_none_or(|turned| turned.name != value.name));
                this.counts_turns(&own, (one, turns), &params[1], steps)?;
            }
            steps.push(Step::Says(one.fanout.push.at.clone()));
            let asked = this.ask(&own, one.rows, &values, steps)?;
            super::fields::put(&asked, &params[1], steps);
            Ok(None)
        })
    }

    /// The function of what is recorded of a token and a peer.
    fn each_sent(&mut self, scope: &Scope, one: &OneLaunch<'_>) -> Lowered<Term> {
        let params = [
            (Index, one.fanout.token),
            (Index, one.fanout.peer),
            (Value(Elem::Bool), "match"),
            (Index, "position"),
        ];
        self.function(&[], &params, |this, params, steps| {
            let [token, peer, goes, position] = params else { return Ok(None) };
            let peer = Term { range: this.me().range, ..peer.clone() };
            let mut own = this
                .of_token(&scope.of_lane(), one, token, steps)
                .with(one.fanout.peer, Meaning::Value(peer));
            for stmt in &one.fanout.others {
                match stmt.action {
                    Action::Let { .. } => this.one(&mut own, stmt, steps),
                    _ => this.records(&own, (one.rows, stmt), (goes, position), steps)?,
                }
            }
            Ok(None)
        })
    }

    /// Records a value for a token and a peer, in one lane: a position for every peer, any other value only for peers to
    /// which the token goes.
    fn records(
        &mut self,
        scope: &Scope,
        (channel, stmt): (&Channel, &Stmt),
        (goes, position): (&Term, &Term),
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let mut own = scope.of_lane();
        let Action::Record { target, value } = &stmt.action else { return Ok(()) };
        if !is_position(value, channel) {
            let mut steps = Vec::new();
            self.one(&mut own, stmt, &mut steps);
            out.push(Step::If { condition: goes.clone(), body: steps });
            return Ok(());
        }
        out.push(Step::Says(stmt.at.clone()));
        let tensor = self.tensor(&target.tensor)?;
        let at = self.indices(&own, &target.indices, out)?;
        let place = self.place(tensor, 0, None, at, None)?;
        let value = call(ep::recorded, vec![goes.clone(), position.clone()]);
        out.push(Step::Set { value: value.converted(&place.elem), place });
        Ok(())
    }

    /// The function of what is done with each message.
    fn taken(&mut self, scope: &Scope, one: &OneLaunch<'_>, taken: &str) -> Lowered<Term> {
        self.function(&[], &[(OfClass(ep::OnceMessage), one.message)], |this, params, steps| {
            let Node::Name(message) = &params[0].node else { return Ok(None) };
            let of_message = Term::index(format!("{message}.row"));
            let mut numbers = Vec::new();
            if one.asks_source() {
                // The warp as a whole finds it out.
                let source = method(taken, "source_of", vec![of_message.clone()]);
                let source = this.named("source", source, steps);
                numbers.push(("source", Term { range: this.me().range, ..source }));
            }
            numbers.push(("row", Term { range: Some((0, i64::from(i32::MAX))), ..of_message }));
            let record = Term::name(format!("{message}.record"), Elem::U8);
            let channel = one.rows.name.clone();
            let arrived = Arrived { channel, row: record.clone(), meta: record, numbers };
            let mut own = scope.with(one.message, Meaning::Message(arrived));
            let mut stores = Vec::new();
            one.unpacks.iter().for_each(|stmt| this.one(&mut own, stmt, &mut stores));
            steps.extend(asked_first(&mut this.names, stores));
            Ok(None)
        })
    }

    /// The loops over rows behind all that arrive.
    fn rows_behind(&mut self, one: &OneLaunch<'_>, taken: &str, out: &mut Vec<Step>) {
        for stmt in &one.behind {
            let mut stmt = (*stmt).clone();
            if let Action::For { domain: Domain::Range { low, .. }, .. } = &mut stmt.action {
                *low = own_name(ALL_ROWS);
            }
            let total = method(taken, "total", Vec::new());
            let total = Term { range: Some((0, i64::from(i32::MAX))), ..total };
            let mut scope = Scope::default().with(ALL_ROWS, Meaning::Value(total));
            self.dealt_stmt(&mut scope, &stmt, out);
        }
    }

    /// The last block does everything else, as a team of its own.
    fn last_block(&mut self, one: &OneLaunch<'_>, out: &mut Vec<Step>) {
        let last = self.names.fresh("last");
        let block = binary(BinaryOp::Sub, name("team.blocks"), Term::int(1));
        let own = call(ep::of_block, vec![team()]);
        let tables = Symbol::text(format!("{}_tables", function_of(&one.role.name)));
        let args = vec![name("args"), name("smem"), name(&last)];
        let stopped = name(&format!("{last}.stopped"));
        out.push(Step::Remark(
            "The last block sends no rows, if it is not the only one.".to_string(),
        ));
        out.push(Step::If {
            condition: name("team.block").test(BinaryOp::Eq, block),
            body: vec![
                object(ep::Team.into(), &last, vec![own]),
                Step::Do(call(tables, args)),
                Step::Set { place: name("team.stopped"), value: stopped },
            ],
        });
    }

    /// Where the tensor that takes the rows is in the window.
    fn offered(&self, one: &OneLaunch<'_>) -> Lowered<Term> {
        let place = row_in_place(self.ir, one.rows).ok_or(broken("the rows have no place"))?;
        Ok(name(&format!("args.{}_at", place.1.name)))
    }

    /// What every block counts as it enters.
    pub(super) fn counts_routes(
        &mut self,
        one: &OneLaunch<'_>,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let tokens = self.tokens(out)?;
        let (group, offered) = (name("args.group"), self.offered(one)?);
        let offer = ep::once_offer.of(cfg_of(one.rows));
        out.push(Step::Do(call(offer, vec![group.clone(), offered, tokens.clone()])));
        for counts in &one.counts {
            out.push(Step::Says(counts.stmt.at.clone()));
            out.push(Step::Says(counts.record.at.clone()));
        }
        let goes = self.goes(one)?;
        let mut args = vec![group, name("smem.routes"), tokens, goes];
        if let Some(values) = one.values().and_then(|counts| counts.values.as_ref()) {
            let row = self.row_of_ids(&values.tensor, &values.token, &values.gates)?;
            let values = ep::values_of.of(Term::bool(values.once));
            args.push(call(values, vec![name("smem.routes"), row]));
        }
        out.push(Step::Do(call(ep::count_routes, args)));
        Ok(())
    }

    /// The function that gives the ranks to which a token goes.
    fn goes(&mut self, one: &OneLaunch<'_>) -> Lowered<Term> {
        let params = [(Index, one.fanout.token), (Value(Elem::Bool), "present")];
        self.function(&[], &params, |this, params, steps| {
            let mut own = this.of_token(&Scope::default().of_lane(), one, &params[0], steps);
            if let Some(row) = routed_row(&one.goes) {
                return this.ranks_of(&own, row, &params[1], steps).map(Some);
            }
            let mut rows: Vec<&Expr> = Vec::new();
            walk::expr(&one.goes, &mut |part| {
                let row = routed_row(part);
                rows.extend(row.filter(|row| !rows.contains(row)));
            });
            for row in rows {
                let value = this.ranks_of(&own, row, &params[1], steps)?;
                let object = this.names.fresh("ranks");
                steps.push(Step::Made { name: object.clone(), value });
                own.looks.push(LookedAt { helper: "routed".into(), row: row.clone(), object });
            }
            let present = params[1].clone();
            let holds =
                this.function(&[], &[(Index, one.fanout.peer)], |this, params, steps| {
                    let peer = Term { range: this.me().range, ..params[0].clone() };
                    let own = own.with(PEER, Meaning::Value(peer));
                    let goes = this.scalar(&own, &one.goes, steps)?;
                    Ok(Some(present.clone().and(goes)))
                })?;
            Ok(Some(call(ep::ranks_where.of(this.cfg()), vec![holds])))
        })
    }

    /// The ranks to which the entries of a row lead; none, unless the row is present.
    fn ranks_of(
        &mut self,
        scope: &Scope,
        row: &Expr,
        present: &Term,
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let loaded = self.row_of(scope, row, Some(present), out)?;
        Ok(call(ep::route_of.of(self.cfg()), vec![loaded, self.expert_begin()?]))
    }

    /// The function that gives a row of numbers, which counts where all gates hold.
    pub(super) fn row_of_ids(&mut self, ids: &str, row: &str, gates: &[Expr]) -> Lowered<Term> {
        let params = [(Index, row), (Value(Elem::Bool), "present")];
        self.function(&[], &params, |this, params, steps| {
            let index = Expr::Name { name: row.into(), kind: NameKind::Binder };
            let own = Scope::default().of_lane().with(row, Meaning::Value(params[0].clone()));
            let row = Expr::Element { tensor: ids.to_string(), indices: vec![index] };
            let mut present = params[1].clone();
            for gate in gates {
                present = present.and(this.scalar(&own, gate, steps)?);
            }
            this.row_of(&own, &row, Some(&present), steps).map(Some)
        })
    }

    /// What the last block does: it has the counts in shared memory, and its warps meet where a statement needs what others
    /// have written.
    pub(super) fn tables(&mut self, one: &OneLaunch<'a>, out: &mut Vec<Step>) -> Lowered<()> {
        let tokens = self.tokens(out)?;
        let class = ep::RouteCounts.of(cfg_of(one.slots)).of(self.cfg());
        self.slots(one, class, vec![team(), name("smem.routes")], out);
        self.team_of_block(&one.tables, out, &mut |this, stmt, out| {
            if let Some(counts) = one.counts.iter().find(|own| std::ptr::eq(own.stmt, stmt)) {
                this.recorded(counts, &tokens, out);
            } else if std::ptr::eq(one.tell, stmt) {
                this.tells_rest(one, out)?;
            } else {
                return Ok(false);
            }
            Ok(true)
        })
    }

    /// A table of counts that the block has in shared memory.
    fn recorded(&mut self, counts: &Counts<'_>, tokens: &Term, out: &mut Vec<Step>) {
        out.push(Step::Says(counts.stmt.at.clone()));
        out.push(Step::Says(counts.record.at.clone()));
        let outer = self.names.clone();
        let i = self.names.fresh("i");
        let index = Term::index(&i);
        let value = match counts.values {
            None => method("smem.routes", "tokens_to", vec![index.clone(), tokens.clone()]),
            Some(_) => name("smem.routes.chosen").at(index.clone(), Elem::I32),
        };
        let table = name(&format!("args.{}", counts.table));
        let body = vec![Step::Set { place: table.at(index, Elem::I32), value }];
        let (from, to) = (Term::int(0), self.number(counts.count));
        let turns = Takers::Threads;
        out.push(Step::Loop(Loop { binder: i, elem: Elem::I32, from, to, turns, body }));
        self.names = outer;
    }

    /// The object through which the role knows its slots, at both ends.
    fn slots(&mut self, one: &OneLaunch<'_>, class: Symbol, args: Vec<Term>, out: &mut Vec<Step>) {
        let own = self.names.fresh(&one.slots.name);
        out.push(object(class, &own, args));
        let channel = one.slots.name.clone();
        self.objects.push(Object { channel, end: End::In, name: own });
    }
}

/// The row of `routed(row, PEER)`.
fn routed_row(part: &Expr) -> Option<&Expr> {
    let Expr::Call { helper, args } = part else { return None };
    match args.as_slice() {
        [row, Expr::Name { name, .. }] if helper == "routed" && name == PEER => Some(row),
        _ => None,
    }
}
