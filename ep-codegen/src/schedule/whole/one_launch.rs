//! A dispatch in one launch: the steps of its role, what every block counts as it enters, and what the last one
//! records.

use super::{Whole, binary, call, cfg_of, method, name, object, team};
use crate::ir::naming::function_of;
use crate::ir::parts::{MetaSource, meta_sources, parts};
use crate::ir::rows::row_in_place;
use crate::ir::{Action, BinaryOp, Channel, Elem, Expr, FieldValue, NameKind, Stmt};
use crate::schedule::channels::{End, Object};
use crate::schedule::library::ep;
use crate::schedule::limit::broken;
use crate::schedule::rules::{Counted, Fanout, OneLaunch, counted_field, is_position, row_cast};
use crate::schedule::scope::{Meaning, Scope};
use crate::schedule::statements::there;
use crate::schedule::step::ParamType::{Bytes, Index, Value};
use crate::schedule::step::{Loop, Step, Takers};
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::Term;
use crate::schedule::typed::first_part;
use crate::schedule::{Lowered, RoleLowering, RuleSet};

/// What the last block records.
pub(in crate::schedule) fn tables(role: &mut RoleLowering<'_>) -> Lowered<Vec<Step>> {
    let one = OneLaunch::of(role.ir).ok_or(broken("no such role"))?;
    let mut steps = Vec::new();
    // The warps of the block deal them out as those of a team that is cut do, and none reads what another one writes.
    (role.rules, role.cut) = (RuleSet::All, true);
    role.reread.clear();
    Whole::of(role).tables(&one, &mut steps)?;
    Ok(steps)
}

impl<'a> Whole<'_, 'a> {
    /// The steps of the role itself.
    pub(super) fn one_launch(&mut self, one: &OneLaunch<'_>, out: &mut Vec<Step>) -> Lowered<()> {
        self.role.own_experts(out);
        let mut scope = Scope::default();
        let tokens = self.tokens(out)?;
        let cfg = self.cfg();
        let memory = name(&format!("smem.{}[team.warp]", function_of(&one.role.name)));
        let mover = self.role.names.fresh("mover");
        let packs = one.packs.is_some();
        let class = if packs { ep::PieceMover } else { ep::Mover };
        out.push(object(class.of(cfg.clone()), &mover, vec![memory, team()]));
        self.slots(one, ep::SlotChannel.of(cfg_of(one.slots)), vec![team()], out);
        let rows = self.role.names.fresh(&one.rows.name);
        let own = vec![team(), name(&mover), name("smem.routes"), tokens.clone()];
        let class = if packs { ep::PackedOut } else { ep::OnceOut };
        out.push(object(class.of(cfg_of(one.rows)).of(cfg.clone()), &rows, own));
        self.tells(one, &tokens, out)?;
        let fanout = Fanout::of(one.send).ok_or(broken("no fan-out"))?;
        let from = self.row_sent(&scope, (one, &fanout))?;
        out.push(Step::Remark("The first row is loaded while the counts travel.".to_string()));
        out.push(Step::Do(method(&rows, "ask", vec![from.clone()])));
        out.push(Step::Says(one.send.at.clone()));
        out.push(Step::Says(fanout.inner.at.clone()));
        let count = self.slot_word((one, one.rows_to), "peer", &[&one.awaits.at])?;
        let pack = self.packed(&scope, (one, &fanout))?;
        let each = self.each_sent(&scope, one, &fanout)?;
        out.push(Step::Do(method(&rows, "for_tokens", vec![count, from, pack, each])));
        self.last_block(one, out);
        let taken = self.role.names.fresh(&format!("{}_in", one.rows.name));
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
        let message = (one.message, one.unpacks);
        let take = self.taken(&scope, one.rows, message)?;
        match &one.packs {
            Some(packs) => {
                self.packs_rows((one, packs), (&scope, &taken), take, out)?;
                self.fills_behind(one, &taken, out)?;
            }
            None => {
                out.push(Step::Do(method(&taken, "for_messages", vec![take])));
                out.push(self.ending(fanout.push));
                out.push(Step::Do(method(&rows, "close", Vec::new())));
                self.fills_behind(one, &taken, out)?;
                out.push(Step::Remark("All rows are there.".to_string()));
                out.push(Step::Do(method(&taken, "await", Vec::new())));
            }
        }
        out.push(Step::Do(method(&mover, "finish", Vec::new())));
        Ok(())
    }

    /// How many tokens there are, under one name.
    fn tokens(&mut self, out: &mut Vec<Step>) -> Lowered<Term> {
        let value = self.striped(&Scope::default(), out)?;
        let own = self.role.names.fresh("tokens");
        out.push(Step::Let { name: own.clone(), value });
        Ok(Term::index(own))
    }

    /// The function that gives the row of a token, which may be cast as it leaves.
    fn row_sent(
        &mut self,
        scope: &Scope,
        (one, fanout): (&OneLaunch<'_>, &Fanout<'_>),
    ) -> Lowered<Term> {
        self.function(&[], &[(Index, fanout.token)], |this, params, steps| {
            let own = scope.with(fanout.token, Meaning::Value(params[0].clone()));
            let Some(Expr::Element { tensor, indices }) = one.cast() else {
                return this.pushed_row(&own, one.rows, one.pushed, steps).map(Some);
            };
            let row = this.row(&own, (tensor, 0), indices, steps)?;
            let tensor = this.role.tensor(tensor)?;
            let width = this.role.width(tensor, 0)?;
            let (scale, place) = this.scales_of(one)?;
            Ok(Some(call(ep::cast_from.of(&scale).of(width).of(Term::constant(place)), vec![row])))
        })
    }

    /// The type and the place of the scales of the row that goes to a channel.
    fn scales_of(&self, one: &OneLaunch<'_>) -> Lowered<(Elem, Constant)> {
        let (_, message) = self.role.carried(&one.rows.name)?;
        let of_row = |source: &MetaSource<'_>| source.field.row;
        let source = meta_sources(self.role.ir, message).into_iter().find(of_row);
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
        let slots = self.role.object(&one.slots.name);
        let field = Term::constant(Constant::field(&one.slots.message, field));
        let all = [(Index, "source"), (Index, index)];
        let params = if index == "me" { &all[..1] } else { &all[..] };
        self.function(says, params, |this, params, _| {
            let words = method(&slots, "from", vec![params[0].clone()]);
            let words = Term { elem: Elem::U8, ..words };
            let field = binary(BinaryOp::Add, words, field);
            let index = params.get(1).cloned().unwrap_or_else(|| this.role.me());
            Ok(Some(call(ep::word_of, vec![field, index])))
        })
    }

    /// The function that puts the small fields of a token into a record: all but the scales of a row that is cast.
    fn packed(
        &mut self,
        scope: &Scope,
        (one, fanout): (&OneLaunch<'_>, &Fanout<'_>),
    ) -> Lowered<Term> {
        let params = [(Index, fanout.token), (Bytes, "record")];
        self.function(&[], &params, |this, params, steps| {
            let own = scope.with(fanout.token, Meaning::Value(params[0].clone()));
            let mut values = one.pushed.to_vec();
            values.retain(|value| row_cast(&value.value).is_none());
            if let Some(turns) = &one.turns {
                let turned = one.turned(turns);
                values.retain(|value| turned.is_none_or(|turned| turned.name != value.name));
                this.counts_turns(&own, (one, turns), &params[1], steps)?;
            }
            steps.push(Step::Says(fanout.push.at.clone()));
            let asked = this.ask(&own, one.rows, &values, steps)?;
            super::fields::put(&asked, &params[1], steps);
            Ok(None)
        })
    }

    /// The function of what is recorded of a token and a peer.
    fn each_sent(
        &mut self,
        scope: &Scope,
        one: &OneLaunch<'_>,
        fanout: &Fanout<'_>,
    ) -> Lowered<Term> {
        let params = [
            (Index, fanout.token),
            (Index, fanout.peer),
            (Value(Elem::Bool), "match"),
            (Index, "position"),
        ];
        self.function(&[], &params, |this, params, steps| {
            let [token, peer, goes, position] = params else { return Ok(None) };
            let peer = Term { range: this.role.me().range, ..peer.clone() };
            let own = scope
                .with(fanout.token, Meaning::Value(token.clone()))
                .with(fanout.peer, Meaning::Value(peer));
            for stmt in &fanout.records {
                this.records(&own, (one.rows, stmt), (goes, position), steps)?;
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
            self.role.one(&mut own, stmt, &mut steps);
            out.push(Step::If { condition: goes.clone(), body: steps });
            return Ok(());
        }
        out.push(Step::Says(stmt.at.clone()));
        let tensor = self.role.tensor(&target.tensor)?;
        let at = self.role.indices(&own, &target.indices, out)?;
        let place = self.role.place(tensor, 0, None, at, None)?;
        let value = call(ep::recorded, vec![goes.clone(), position.clone()]);
        out.push(Step::Set { value: value.converted(&place.elem), place });
        Ok(())
    }

    /// The counts that a rank tells every other one: each field by a block that has counted it.
    fn tells(&mut self, one: &OneLaunch<'_>, tokens: &Term, out: &mut Vec<Step>) -> Lowered<()> {
        let (Action::Push { values, .. }, Action::For { binder, .. }) =
            (&one.told.action, &one.tell.action)
        else {
            return Err(broken("counts are told"));
        };
        out.push(Step::Says(one.tell.at.clone()));
        out.push(Step::Says(one.told.at.clone()));
        let (_, message) = self.role.carried(&one.slots.name)?;
        for of in [Counted::Ranks, Counted::Experts] {
            let own = |value: &&FieldValue| counted_field(value, &one.counts, binder) == Some(of);
            let own: Vec<&FieldValue> = values.iter().filter(own).collect();
            if own.is_empty() {
                continue;
            }
            let block = match of {
                Counted::Ranks => Term::int(0),
                Counted::Experts => binary(BinaryOp::Sub, name("team.blocks"), Term::int(1)),
            };
            let outer = self.role.names.clone();
            let peer = self.role.names.fresh(binder);
            let mut steps = Vec::new();
            let value = self.counted(of, (&peer, tokens), &mut steps)?;
            for field in own {
                let known = message.fields.iter().find(|known| known.name == field.name);
                let elem = known.map_or(Elem::I32, |it| first_part(self.role.ir, &it.elem));
                let place = Constant::field(&one.slots.message, &field.name);
                let slots = self.role.object(&one.slots.name);
                let words = Term { elem: Elem::U8, ..method(&slots, "to", vec![name(&peer)]) };
                let to = binary(BinaryOp::Add, words, Term::constant(place));
                let put = ep::put.of(&elem);
                let count = Term::constant(Constant::field_count(&one.slots.message, &field.name));
                steps.push(Step::Do(call(put, vec![to, count, value.clone()])));
            }
            let (from, to) = (Term::int(0), self.role.number("ranks"));
            let turns = Takers::WarpsOfBlock;
            let peers = Loop { binder: peer, elem: Elem::I32, from, to, turns, body: steps };
            let condition = name("team.block").test(BinaryOp::Eq, block);
            out.push(Step::If { condition, body: vec![Step::Loop(peers)] });
            self.role.names = outer;
        }
        Ok(())
    }

    /// The function that gives what a block has counted for the experts or ranks of a peer.
    fn counted(
        &mut self,
        of: Counted,
        (peer, tokens): (&str, &Term),
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let theirs = match of {
            Counted::Ranks => String::new(),
            Counted::Experts => self.role.names.fresh("theirs"),
        };
        if of == Counted::Experts {
            let value = call(ep::experts_of, vec![name("args.expert_begin"), name(peer)]);
            out.push(Step::Made { name: theirs.clone(), value });
        }
        self.function(&[], &[(Index, "i")], |_, params, _| {
            let i = params[0].clone();
            Ok(Some(match of {
                Counted::Ranks => method("smem.routes", "tokens_to", vec![i, tokens.clone()]),
                Counted::Experts => {
                    let first = name(&format!("{theirs}.first"));
                    let entry = binary(BinaryOp::Add, first, i.clone());
                    let chosen = name("smem.routes.chosen").at(entry, Elem::I32);
                    let known = i.test(BinaryOp::Lt, name(&format!("{theirs}.count")));
                    known.choose(chosen, Term::int(0))
                }
            }))
        })
    }

    /// The fills of what lies behind the rows that arrive.
    fn fills_behind(
        &mut self,
        one: &OneLaunch<'_>,
        taken: &str,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        for fill in &one.fills {
            out.push(Step::Says(fill.stmt.at.clone()));
            out.push(Step::Says(fill.store.at.clone()));
            let tensor = self.role.tensor(fill.tensor)?;
            let all = parts(self.role.ir, &tensor.elem);
            let [(_, elem, _)] = all.as_slice() else {
                return Err(broken("`fill` does not work on rows with scales"));
            };
            let mut width = self.stride(tensor, 0)?.converted(&Elem::I32);
            if tensor.optional {
                width = there(tensor).choose(width, Term::int(0));
            }
            let end = self.role.scalar(&Scope::default(), fill.end, out)?.converted(&Elem::I32);
            let value = match elem {
                Elem::Bool => Term::bool(fill.value != 0),
                _ => Term::int(fill.value).converted(elem),
            };
            let to = Term::name(format!("args.{}", tensor.name), elem.clone());
            let begin = method(taken, "total", Vec::new());
            let args = vec![team(), to, width, begin, end, value];
            out.push(Step::Do(call(ep::fill.of(elem), args)));
        }
        Ok(())
    }

    /// The last block makes the tables, as a team of its own.
    fn last_block(&mut self, one: &OneLaunch<'_>, out: &mut Vec<Step>) {
        let last = self.role.names.fresh("last");
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
        let place = row_in_place(self.role.ir, one.rows).ok_or(broken("the rows have no place"))?;
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
        for count in &one.counts {
            out.push(Step::Says(count.stmt.at.clone()));
            out.push(Step::Says(count.record.at.clone()));
        }
        let row = self.routes_of(one, "token")?;
        let begins = name("args.expert_begin");
        let args = vec![group, name("smem.routes"), tokens, begins, row];
        out.push(Step::Do(call(ep::count_routes, args)));
        Ok(())
    }

    /// The function that gives what a token lists.
    pub(super) fn routes_of(&mut self, one: &OneLaunch<'_>, token: &str) -> Lowered<Term> {
        let params = [(Index, token), (Value(Elem::Bool), "present")];
        self.function(&[], &params, |this, params, steps| {
            let name = Expr::Name { name: token.into(), kind: NameKind::Binder };
            let own = Scope::default().with(token, Meaning::Value(params[0].clone()));
            let row = Expr::Element { tensor: one.routes.to_string(), indices: vec![name] };
            this.role.row_of(&own, &row, Some(&params[1]), steps).map(Some)
        })
    }

    /// What the last block records of what all have counted.
    fn tables(&mut self, one: &OneLaunch<'a>, out: &mut Vec<Step>) -> Lowered<()> {
        let tokens = self.tokens(out)?;
        let class = ep::RouteCounts.of(cfg_of(one.slots)).of(self.cfg());
        self.slots(one, class, vec![team(), name("smem.routes")], out);
        for count in &one.counts {
            out.push(Step::Says(count.stmt.at.clone()));
            out.push(Step::Says(count.record.at.clone()));
            let outer = self.role.names.clone();
            let i = self.role.names.fresh("i");
            let index = Term::index(&i);
            let (to, value) = match count.of {
                Counted::Ranks => {
                    let args = vec![index.clone(), tokens.clone()];
                    (self.role.number("ranks"), method("smem.routes", "tokens_to", args))
                }
                Counted::Experts => {
                    let chosen = name("smem.routes.chosen").at(index.clone(), Elem::I32);
                    (self.role.number("experts"), chosen)
                }
            };
            let table = name(&format!("args.{}", count.table));
            let body = vec![Step::Set { place: table.at(index, Elem::I32), value }];
            let (from, turns) = (Term::int(0), Takers::Threads);
            out.push(Step::Loop(Loop { binder: i, elem: Elem::I32, from, to, turns, body }));
            out.push(Step::Meet);
            self.role.names = outer;
        }
        self.role.team_of_block(std::iter::once(one.awaits).chain(one.tables.iter().copied()), out);
        Ok(())
    }

    /// The object through which the role knows its slots, at both ends.
    fn slots(&mut self, one: &OneLaunch<'_>, class: Symbol, args: Vec<Term>, out: &mut Vec<Step>) {
        let own = self.role.names.fresh(&one.slots.name);
        out.push(object(class, &own, args));
        let channel = one.slots.name.clone();
        self.role.objects.push(Object { channel, end: End::In, name: own });
    }
}
