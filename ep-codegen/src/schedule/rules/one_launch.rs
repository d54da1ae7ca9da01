//! A dispatch in one launch: one team that counts where its tokens go, tells every rank, sends and takes.
//!
//! Composed, one warp does it all. The rule spreads it over the grid without a wait between blocks: each
//! block counts for itself, the rows of a warp follow from the bits of the tokens before, and a rank's
//! counts travel while the first rows are loaded.

use super::packed::{Packs, Turns, row_cast};
use super::values::{is_name, mentions_name};
use super::{Fanout, Forms, Unfit};
use crate::ir::kind::Traits;
use crate::ir::parts::parts;
use crate::ir::slots::travels_in_words;
use crate::ir::{
    Action, BinaryOp, Blocks, Channel, Domain, Elem, ElemType, Expr, FieldValue, Fold, Memory,
    NameKind, PeerSet, Pipeline, Role, Share, Stmt, walk,
};
use crate::schedule::declaration::is_of_shape;
use crate::schedule::typed::is_plain;

/// What is counted of the experts of all tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The tokens that go to a rank.
    Ranks,
    /// How often an expert is named, or by how many tokens.
    Experts,
}

/// A table of counts, and the statement that makes it.
pub(crate) struct Counts<'s> {
    pub(crate) stmt: &'s Stmt,
    /// The statement in its loop.
    pub(crate) record: &'s Stmt,
    pub(crate) of: Counted,
    /// Whether a token counts once that names an expert several times.
    once: bool,
    pub(crate) table: &'s str,
}

/// `for row in .. { for i in .. { store tensor[row, i] = number; } }` behind the rows that arrive.
pub(crate) struct Fill<'s> {
    pub(crate) stmt: &'s Stmt,
    pub(crate) store: &'s Stmt,
    pub(crate) tensor: &'s str,
    pub(crate) begin: &'s Expr,
    pub(crate) end: &'s Expr,
    pub(crate) value: i64,
}

/// The parts of such a role.
pub(crate) struct OneLaunch<'s> {
    pub(crate) role: &'s Role,
    /// The tensor whose rows say where tokens go.
    pub(crate) routes: &'s str,
    pub(crate) counts: Vec<Counts<'s>>,
    /// The loop that pushes counts, and its push.
    pub(crate) tell: &'s Stmt,
    pub(crate) told: &'s Stmt,
    pub(crate) slots: &'s Channel,
    pub(crate) awaits: &'s Stmt,
    /// The field of a slot that holds how many rows go to each rank.
    pub(crate) rows_to: &'s str,
    /// Whether experts are counted once for each token.
    pub(crate) lists: bool,
    /// What is made of the slots.
    pub(crate) tables: Vec<&'s Stmt>,
    /// The loop that sends, what it pushes, and the turns that it counts for a token.
    pub(crate) send: &'s Stmt,
    pub(crate) pushed: &'s [FieldValue],
    pub(crate) turns: Option<Turns<'s>>,
    pub(crate) rows: &'s Channel,
    pub(crate) fills: Vec<Fill<'s>>,
    /// The loop that takes, the name of a message in it, what it writes of each one,
    pub(crate) take: &'s Stmt,
    pub(crate) message: &'s str,
    pub(crate) unpacks: &'s [Stmt],
    /// and how it packs the rows.
    pub(crate) packs: Option<Packs<'s>>,
}

/// What is pushed, and what is counted for a token.
type Sends<'s> = (&'s [FieldValue], Option<Turns<'s>>);

/// What stands behind the slots of such a role.
struct Flow<'s> {
    tables: Vec<&'s Stmt>,
    fills: Vec<Fill<'s>>,
    send: Option<(&'s Stmt, Sends<'s>)>,
    /// The loop, the name of a message in it, and its statements.
    take: Option<(&'s Stmt, &'s str, &'s [Stmt])>,
}

impl<'s> OneLaunch<'s> {
    /// The parts of the only role of a selected pipeline, if it is such a role.
    pub(crate) fn of(ir: &'s Pipeline) -> Option<OneLaunch<'s>> {
        let forms = Forms { ir };
        let [role] = ir.roles.as_slice() else { return None };
        is_candidate(ir, role).then(|| forms.one_launch(role).ok()).flatten()
    }

    /// The row that is cast as it leaves, if it is.
    pub(crate) fn cast(&self) -> Option<&'s Expr> {
        self.pushed.iter().find_map(|value| row_cast(&value.value))
    }

    /// The field that is pushed with the turns of a token.
    pub(crate) fn turned(&self, turns: &Turns<'s>) -> Option<&'s FieldValue> {
        self.pushed.iter().find(|value| {
            matches!(&value.value, Expr::Element { tensor, indices }
                if tensor == turns.table && indices.len() == 1)
        })
    }

    /// Which counts a field of the slots holds.
    pub(super) fn counted(&self, field: &str) -> Option<Counted> {
        let (Action::For { binder, .. }, Action::Push { values, .. }) =
            (&self.tell.action, &self.told.action)
        else {
            return None;
        };
        let value = values.iter().find(|value| value.name == field)?;
        counted_field(value, &self.counts, binder)
    }

    /// The most tokens of a call: the end of the range of `tokens`.
    pub(crate) fn tokens_end(ir: &Pipeline) -> Option<&Expr> {
        let tokens = ir.sizes.iter().find(|size| size.name == "tokens")?;
        tokens.values.as_ref().map(|values| &values.high)
    }
}

/// Whether a role holds both ends of a direct channel as one team of all blocks.
pub(super) fn is_candidate(ir: &Pipeline, role: &Role) -> bool {
    let both = |channel: &Channel| {
        channel.kind.traits().lands
            && channel.to == role.name
            && channel.from.as_slice() == std::slice::from_ref(&role.name)
    };
    role.share == Share::Team && role.blocks == Blocks::All && ir.channels.iter().any(both)
}

/// The reason if a role lacks a step of a whole dispatch.
const ALL_STEPS: &str = "the role has to count, publish the counts, await, send and receive";

impl<'s> Forms<'s> {
    /// The parts of a role that does a whole dispatch, or the first statement that is none of them.
    pub(super) fn one_launch(&self, role: &'s Role) -> Result<OneLaunch<'s>, Unfit> {
        let (slots, rows) = self.two_channels(role)?;
        self.check_alone(role)?;
        let mut body = role.body.iter().peekable();
        let mut counts = Vec::new();
        let mut routes = None;
        while let Some((count, of)) = body.peek().and_then(|stmt| counts_of(stmt)) {
            if routes.is_some_and(|known| known != of) {
                return Err(self.unfit(&count.stmt.at, "all counts have to be of one tensor"));
            }
            routes = Some(of);
            counts.push(count);
            body.next();
        }
        let end = || self.unfit(&role.at, ALL_STEPS);
        // The statement in the first loop is the one that would have to count.
        let first = |stmt: &&'s Stmt| self.no_form(walk::nested(stmt).first().unwrap_or(stmt));
        let routes = routes.ok_or_else(|| body.peek().map_or_else(end, first))?;
        self.check_counted_tables(&counts, routes)?;
        let lists = counts.iter().any(|count| count.once);
        if counts.iter().any(|count| count.of == Counted::Experts && count.once != lists) {
            return Err(
                self.unfit(&role.at, "all counts of experts have to be computed in one way")
            );
        }
        let tell = body.next().ok_or_else(end)?;
        let (told, rows_to) = self.told(tell, slots, &counts)?;
        let awaits = body.next().ok_or_else(end)?;
        if !matches!(&awaits.action, Action::Await { channel } if *channel == slots.name) {
            return Err(self.no_form(awaits));
        }
        let prefix = role.body.iter().find_map(|stmt| prefix_of(stmt, slots, rows_to));
        let flow = self.flow(body, (prefix.ok_or_else(end)?, routes, [slots, rows]))?;
        let Flow { tables, fills, send, take } = flow;
        let ((send, (pushed, turns)), (take, message, body)) = send.zip(take).ok_or_else(end)?;
        let is_loop = |stmt: &Stmt| matches!(stmt.action, Action::For { .. });
        let packed = body.split_last().filter(|(last, _)| is_loop(last));
        let unpacks = packed.map_or(body, |(_, unpacks)| unpacks);
        self.check_messages(take, unpacks)?;
        let mut one = OneLaunch {
            role,
            routes,
            counts,
            tell,
            told,
            slots,
            awaits,
            rows_to,
            lists,
            tables,
            send,
            pushed,
            turns,
            rows,
            fills,
            take,
            message,
            unpacks,
            packs: None,
        };
        one.packs = packed.map(|(stmt, _)| self.packs(stmt, message, &one)).transpose()?;
        if one.packs.is_none() && (one.turns.is_some() || one.cast().is_some()) {
            return Err(
                self.unfit(&take.at, "rows that are cast or counted on the way have to be packed")
            );
        }
        self.check_apart(&one)?;
        Ok(one)
    }

    /// What stands behind the slots: tables, fills, and the loops that send and take.
    fn flow(
        &self,
        body: impl Iterator<Item = &'s Stmt>,
        (prefix, routes, [slots, rows]): (&'s str, &str, [&Channel; 2]),
    ) -> Result<Flow<'s>, Unfit> {
        let mut flow = Flow { tables: Vec::new(), fills: Vec::new(), send: None, take: None };
        for stmt in body {
            if flow.take.is_some() {
                return Err(self.no_form(stmt));
            }
            match &stmt.action {
                Action::For { domain: Domain::Tokens, .. } if flow.send.is_none() => {
                    flow.send = Some((stmt, self.sends(stmt, prefix, routes)?));
                }
                Action::Receive { channel, peer: None, binder, body, .. }
                    if *channel == rows.name =>
                {
                    flow.take = Some((stmt, binder, body));
                }
                _ => match fill_of(stmt, prefix).filter(|fill| self.is_filled(fill)) {
                    Some(fill) => flow.fills.push(fill),
                    None => {
                        self.check_table(stmt, slots)?;
                        flow.tables.push(stmt);
                    }
                },
            }
        }
        Ok(flow)
    }

    /// Checks that a table which the last block records reads only inputs and slots.
    fn check_table(&self, stmt: &'s Stmt, slots: &Channel) -> Result<(), Unfit> {
        let mut wrong = None;
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            let mut fits = match &inner.action {
                Action::For { domain, position, .. } => {
                    position.is_none() && !matches!(domain, Domain::ReceivedFrom { .. })
                }
                Action::Store { .. } | Action::Record { .. } | Action::Add { .. } => true,
                _ => false,
            };
            walk::exprs(inner, &mut |part| {
                fits &= !matches!(part, Expr::OfChannel { channel, index, .. }
                    if *channel != slots.name || index.is_empty());
            });
            if !fits {
                wrong.get_or_insert_with(|| self.no_form(inner));
            }
        });
        wrong.map_or(Ok(()), Err)
    }

    /// What the role as a whole needs: it is alone, and the shape bounds its rows.
    fn check_alone(&self, role: &Role) -> Result<(), Unfit> {
        let dims = self.ir.dims.iter().map(|dim| &dim.name);
        let mut numbers = dims.chain(self.ir.tunes.iter().map(|tune| &tune.name));
        if self.ir.roles.len() != 1 || numbers.any(|name| name == "stripes") {
            return Err(self.unfit(
                &role.at,
                "the pipeline can have only this role, and its rows cannot have stripes",
            ));
        }
        if OneLaunch::tokens_end(self.ir).is_none_or(|end| !is_of_shape(end)) {
            return Err(
                self.unfit(&role.at, "the range of `tokens` has to end at a number of the shape")
            );
        }
        self.check_known(role)
    }

    fn unfit(&self, at: &crate::ir::Source, why: &str) -> Unfit {
        Unfit { at: at.clone(), why: why.to_string() }
    }

    /// The slots and the direct channel that the role has to itself.
    fn two_channels(&self, role: &Role) -> Result<(&'s Channel, &'s Channel), Unfit> {
        let own = |channel: &&&Channel| {
            channel.to == role.name
                && channel.from.as_slice() == std::slice::from_ref(&role.name)
                && channel.per == PeerSet::All
        };
        let of_kind = |fact: fn(&Traits) -> bool| {
            let mut found = self.ir.channels.iter().filter(|it| fact(it.kind.traits()));
            found.next().filter(|it| own(&it))
        };
        let (slots, rows) = (of_kind(|kind| kind.is_indexed), of_kind(|kind| kind.lands));
        match (self.ir.channels.len(), slots, rows) {
            (2, Some(slots), Some(rows)) if travels_in_words(self.ir, slots) => Ok((slots, rows)),
            _ => {
                Err(self
                    .unfit(&role.at, "the role has to have slots and a direct channel to itself"))
            }
        }
    }

    /// Rows of `i64` are counted, into tables of `i32`.
    fn check_counted_tables(&self, counts: &[Counts<'s>], routes: &str) -> Result<(), Unfit> {
        let of = self.tensor(routes)?;
        let at = &counts[0].stmt.at;
        if of.elem != (ElemType::Scalar { elem: Elem::I64 }) || of.optional || of.dims.len() != 2 {
            return Err(
                self.unfit(at, "counted values have to be rows of `i64` that are not optional")
            );
        }
        for count in counts {
            let table = self.tensor(count.table)?;
            let plain = table.elem == ElemType::Scalar { elem: Elem::I32 };
            if !plain || table.memory != Memory::Device || table.optional {
                return Err(
                    self.unfit(&count.record.at, "counts have to be `i32` in device memory")
                );
            }
        }
        Ok(())
    }

    /// Whether the rows of a tensor are filled with one number as they lie.
    fn is_filled(&self, fill: &Fill<'_>) -> bool {
        self.tensor(fill.tensor).is_ok_and(|tensor| {
            let all = parts(self.ir, &tensor.elem);
            tensor.dims.len() == 2
                && tensor.memory == Memory::Device
                && all.len() == 1
                && all.iter().all(|(_, elem, _)| is_plain(elem))
        })
    }

    /// The push of the counts, and the field that holds those of ranks.
    fn told(
        &self,
        tell: &'s Stmt,
        slots: &Channel,
        counts: &[Counts<'s>],
    ) -> Result<(&'s Stmt, &'s str), Unfit> {
        let Action::For { binder, domain, position: None, filter: None, body } = &tell.action
        else {
            return Err(self.no_form(tell));
        };
        let [push] = body.as_slice() else { return Err(self.no_form(tell)) };
        let Action::Push { channel, peer: Some(peer), values, .. } = &push.action else {
            return Err(self.no_form(push));
        };
        if !is_ranks(domain) || !is_name(peer, binder) || *channel != slots.name {
            return Err(self.no_form(push));
        }
        let of = |value: &FieldValue| counted_field(value, counts, binder);
        if values.iter().any(|value| of(value).is_none()) {
            return Err(self.unfit(
                &push.at,
                "the published values have to be counts of ranks, and of their experts",
            ));
        }
        let found = values.iter().find(|value| of(value) == Some(Counted::Ranks));
        match found {
            Some(value) => Ok((push, &value.name)),
            None => {
                Err(self.unfit(&push.at, "no message has the number of rows that go to each rank"))
            }
        }
    }

    /// What the loop over all tokens pushes, to the ranks that were counted, behind the rows of the ranks before; and
    /// what it counts for a token.
    fn sends(&self, stmt: &'s Stmt, prefix: &str, routes: &str) -> Result<Sends<'s>, Unfit> {
        let fanout = Fanout::of(stmt).ok_or_else(|| self.no_form(stmt))?;
        let [filter] = fanout.filters.as_slice() else { return Err(self.no_form(stmt)) };
        let counted = of_row("routed", filter).is_some_and(|(tensor, token, peer)| {
            tensor == routes && token == fanout.token && is_name(peer, fanout.peer)
        });
        let Action::Push { position: Some(position), .. } = &fanout.push.action else {
            return Err(self.no_form(fanout.push));
        };
        let behind = is_prefix(position, prefix, &is_me, &|index| is_name(index, fanout.peer));
        if !fanout.reaches_all || !counted || !behind {
            let why = "rows have to go where the counts say, after the rows of earlier ranks";
            let at = if behind { fanout.inner } else { fanout.push };
            return Err(self.unfit(&at.at, why));
        }
        let Action::Push { channel, values, .. } = &fanout.push.action else {
            return Err(self.no_form(fanout.push));
        };
        if values.iter().any(|value| mentions_name(&value.value, fanout.peer)) {
            let why = "the message has to be the same for all peers of the loop";
            return Err(self.unfit(&fanout.push.at, why));
        }
        let turns = fanout.ahead.map(|stmt| self.turns(stmt, fanout.token, routes)).transpose()?;
        let body = walk::nested(fanout.inner);
        let is_peer = |index: &Expr| is_name(index, fanout.peer);
        self.check_sends(self.channel(channel)?, body, &is_peer, fanout.token)?;
        Ok((values, turns))
    }

    /// What one team reads, none of its warps writes: nothing orders the two. Counts that are told, the first rows of a
    /// rank, and the turns of a token the library has at hand.
    fn check_apart(&self, one: &OneLaunch<'s>) -> Result<(), Unfit> {
        let (role, tell) = (one.role, one.tell);
        let mut at_hand: Vec<&Expr> = one.fills.iter().map(|fill| fill.begin).collect();
        walk::stmts(std::slice::from_ref(one.send), &mut |stmt| {
            if let Action::Push { position: Some(position), .. } = &stmt.action {
                at_hand.push(position);
            }
        });
        let turns = one.turns.as_ref();
        at_hand.extend(turns.and_then(|turns| one.turned(turns)).map(|value| &value.value));
        let mut written: Vec<&str> = Vec::new();
        walk::stmts(&role.body, &mut |stmt| {
            written.extend(walk::target(stmt).map(|place| place.tensor.as_str()));
        });
        let mut wrong = None;
        for stmt in role.body.iter().filter(|stmt| !std::ptr::eq(*stmt, tell)) {
            walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
                walk::exprs(inner, &mut |part| {
                    if let Expr::Element { tensor, .. } = part
                        && written.contains(&tensor.as_str())
                        && !at_hand.iter().any(|own| std::ptr::eq(*own, part))
                    {
                        wrong.get_or_insert((inner.at.clone(), tensor.clone()));
                    }
                });
            });
        }
        match wrong {
            None => Ok(()),
            Some((at, tensor)) => {
                let why = format!("another warp writes `{tensor}` in this role");
                Err(self.unfit(&at, &why))
            }
        }
    }
}

/// `for peer in ranks { record table[peer] = sum(token in tokens: routed(idx[token], peer) as i32); }` or
/// `for expert in experts { record table[expert] = sum(token in tokens: sum(k in topk: (idx[token, k] ==
/// expert) as i32)); }`, or the same of `listed(idx[token], expert) as i32`; and the tensor that says where tokens go.
fn counts_of(stmt: &Stmt) -> Option<(Counts<'_>, &str)> {
    let Action::For { binder, domain: Domain::Dim { name }, position: None, filter: None, body } =
        &stmt.action
    else {
        return None;
    };
    let [record] = body.as_slice() else { return None };
    let Action::Record { target, value } = &record.action else { return None };
    let [index] = target.indices.as_slice() else { return None };
    let Expr::Fold { fold: Fold::Sum, binder: token, domain, body } = value else { return None };
    if !is_name(index, binder) || **domain != Domain::Tokens {
        return None;
    }
    // `listed(tensor[token], expert)`
    let listed = || {
        let (tensor, own, expert) = of_row("listed", as_i32(body)?)?;
        (own == token && is_name(expert, binder)).then_some(tensor)
    };
    let (of, tensor) = match name.as_str() {
        "ranks" => {
            let (tensor, own, peer) = of_row("routed", as_i32(body)?)?;
            (own == token && is_name(peer, binder)).then_some((Counted::Ranks, tensor))
        }
        "experts" => Some((Counted::Experts, choices(body, token, binder).or_else(listed)?)),
        _ => None,
    }?;
    let once = of == Counted::Experts && listed().is_some();
    Some((Counts { stmt, record, of, once, table: &target.tensor }, tensor))
}

/// `sum(k in topk: (idx[token, k] == expert) as i32)`
fn choices<'s>(value: &'s Expr, token: &str, expert: &str) -> Option<&'s str> {
    let Expr::Fold { fold: Fold::Sum, binder, domain, body } = value else { return None };
    let Expr::Binary { op: BinaryOp::Eq, left, right } = as_i32(body)? else { return None };
    let Expr::Element { tensor, indices } = &**left else { return None };
    let all = matches!(&**domain, Domain::Dim { name } if name == "topk");
    let [row, column] = indices.as_slice() else { return None };
    let own = is_name(row, token) && is_name(column, binder) && is_name(right, expert);
    (all && own).then_some(tensor)
}

fn as_i32(value: &Expr) -> Option<&Expr> {
    match value {
        Expr::Cast { value, elem: Elem::I32 } => Some(value),
        _ => None,
    }
}

/// `name(tensor[token], number)`
fn of_row<'s>(name: &str, value: &'s Expr) -> Option<(&'s str, &'s str, &'s Expr)> {
    let Expr::Call { helper, args } = value else { return None };
    let [Expr::Element { tensor, indices }, number] = args.as_slice() else { return None };
    let [Expr::Name { name: token, .. }] = indices.as_slice() else { return None };
    (helper == name).then_some((tensor.as_str(), token.as_str(), number))
}

/// Which counts a field of a slot holds: those of all ranks, or those of the experts of the receiver.
pub(crate) fn counted_field(
    value: &FieldValue,
    counts: &[Counts<'_>],
    peer: &str,
) -> Option<Counted> {
    let of = |name: &str| counts.iter().find(|count| count.table == name).map(|count| count.of);
    match &value.value {
        Expr::Element { tensor, indices } if indices.is_empty() => {
            of(tensor).filter(|of| *of == Counted::Ranks)
        }
        Expr::Call { helper, args } if helper == "owned" => match args.as_slice() {
            [Expr::Element { tensor, indices }, rank]
                if indices.is_empty() && is_name(rank, peer) =>
            {
                of(tensor).filter(|of| *of == Counted::Experts)
            }
            _ => None,
        },
        _ => None,
    }
}

/// The table of `for dest in ranks { record table[source, dest] = prefix_sum(source in ranks:
/// slots[source].field[dest]); }`: where the rows of each rank begin, and how many there are.
fn prefix_of<'s>(stmt: &'s Stmt, slots: &Channel, rows_to: &str) -> Option<&'s str> {
    let Action::For { binder: dest, domain, position: None, filter: None, body } = &stmt.action
    else {
        return None;
    };
    let [Stmt { action: Action::Record { target, value }, .. }] = body.as_slice() else {
        return None;
    };
    let Expr::Fold { fold: Fold::PrefixSum, binder, domain: sources, body } = value else {
        return None;
    };
    let [source, to] = target.indices.as_slice() else { return None };
    let own = is_name(source, binder) && is_name(to, dest);
    let summed = is_slot(body, slots, rows_to, binder, &|index| is_name(index, dest));
    (own && summed && is_ranks(domain) && is_ranks(sources)).then_some(target.tensor.as_str())
}

/// `prefix[source, dest]`
fn is_prefix(
    value: &Expr,
    prefix: &str,
    is_source: &dyn Fn(&Expr) -> bool,
    is_dest: &dyn Fn(&Expr) -> bool,
) -> bool {
    matches!(value, Expr::Element { tensor, indices } if tensor == prefix
        && matches!(indices.as_slice(), [source, dest] if is_source(source) && is_dest(dest)))
}

/// A fill of the rows behind all that arrive.
fn fill_of<'s>(stmt: &'s Stmt, prefix: &str) -> Option<Fill<'s>> {
    let Action::For { binder, domain, position: None, filter: None, body } = &stmt.action else {
        return None;
    };
    let Domain::Range { low, high: end } = domain else { return None };
    let all = |source: &Expr| is_name(source, "ranks");
    let arriving = is_prefix(low, prefix, &all, &is_me);
    let [inner] = body.as_slice() else { return None };
    let Action::For {
        binder: column,
        domain: Domain::Dim { .. },
        position: None,
        filter: None,
        body,
    } = &inner.action
    else {
        return None;
    };
    let [store] = body.as_slice() else { return None };
    let Action::Store { target, value: Expr::Int { value } } = &store.action else { return None };
    let [row, place] = target.indices.as_slice() else { return None };
    let own = is_name(row, binder) && is_name(place, column);
    let fixed = !mentions_name(end, binder);
    (arriving && own && fixed).then_some(Fill {
        stmt,
        store,
        tensor: &target.tensor,
        begin: low,
        end,
        value: *value,
    })
}

/// `slots[source].field[index]`
pub(super) fn is_slot(
    value: &Expr,
    slots: &Channel,
    field: &str,
    source: &str,
    is_index: &dyn Fn(&Expr) -> bool,
) -> bool {
    matches!(value, Expr::OfChannel { channel, index, field: own, indices }
        if *channel == slots.name
            && own == field
            && matches!(index.as_slice(), [index] if is_name(index, source))
            && matches!(indices.as_slice(), [index] if is_index(index)))
}

fn is_me(value: &Expr) -> bool {
    matches!(value, Expr::Name { kind: NameKind::Me, .. })
}

fn is_ranks(domain: &Domain) -> bool {
    match domain {
        Domain::Dim { name } => name == "ranks",
        Domain::Peers { set } => *set == PeerSet::All,
        _ => false,
    }
}
