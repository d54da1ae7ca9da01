//! What the generator has a text for: every other form is refused at its statement, before a text is
//! made that drops a part of it, or that no compiler takes.

use super::{Fanout, Forms, Reached, Unfit};
use crate::ir::counting::Counting;
use crate::ir::parts::{parts, row_field};
use crate::ir::rows::{moved_row, row_in_place};
use crate::ir::slots::travels_in_words;
use crate::ir::{
    Action, Blocks, Channel, ChannelKind, CudaParam, DimKind, Domain, Elem, ElemType, Expr, Memory,
    NameKind, PeerSet, Place, Role, Share, Source, Stmt, Tensor, TensorKind, Transport, walk,
};
use crate::schedule::extents::{is_extent, is_one_more};
use crate::schedule::typed::{elem_of, first_part, is_plain, rank_of};

type Checked = Result<(), Unfit>;

/// Helpers of the language that have a device function.
const EMITTED_HELPERS: [&str; 8] =
    ["align", "ceil", "listed", "local", "max", "min", "owner", "routed"];

/// Helpers that look up where experts live.
const OF_EXPERTS: [&str; 4] = ["local", "owned", "owner", "routed"];

/// Ranks that a set of them, a word on the device, can hold.
const RANKS_MAX: i64 = 64;

impl Forms<'_> {
    pub(super) fn check_channel(&self, channel: &Channel) -> Checked {
        if channel.over != [Transport::Nvlink] || channel.parts_per.is_some() {
            return self.refuse(&channel.at, "rules are for channels within a node, without parts");
        }
        if channel.per != PeerSet::All {
            return self.refuse(&channel.at, "rules are for channels `per all`");
        }
        match channel.kind {
            ChannelKind::Ring if !channel.header.is_empty() && channel.header.len() != 2 => {
                self.refuse(&channel.at, "the header of a ring is [first, count]")
            }
            // They go through a mover, whose pieces are cut from a row.
            ChannelKind::Ring if !self.has_row(channel)? => self
                .refuse(&channel.at, "its messages have no row, which is what a ring's warps move"),
            // They stand beside the channel's own object.
            ChannelKind::Ring if ["first", "row", "rows", "sent"].contains(&&*channel.name) => {
                let why =
                    format!("`{}` already has a meaning in the functions of rings", channel.name);
                self.refuse(&channel.at, &why)
            }
            ChannelKind::Direct if !self.has_known_rows(channel) => {
                self.refuse(&channel.at, "no table says how many rows each rank gets in all")
            }
            ChannelKind::Direct => self.check_every_peer(channel),
            ChannelKind::Slots
                if !travels_in_words(self.ir, channel) || channel.slot_names != ["source"] =>
            {
                self.refuse(&channel.at, "its slots hold more than a small record of each source")
            }
            _ => Ok(()),
        }
    }

    /// Whether the messages of a channel have a row.
    fn has_row(&self, channel: &Channel) -> Result<bool, Unfit> {
        Ok(row_field(self.ir, self.message(channel)?).is_some())
    }

    /// Whether a table says, for every rank, how many rows of a channel it gets.
    fn has_known_rows(&self, channel: &Channel) -> bool {
        let size =
            row_in_place(self.ir, channel).and_then(|(_, tensor)| match tensor.dims.first() {
                Some(Expr::Name { name, kind: NameKind::Size }) => {
                    self.ir.sizes.iter().find(|size| size.name == *name)?.value.as_ref()
                }
                _ => None,
            });
        size.is_some()
    }

    /// Receivers of a direct channel wait for all ranks.
    fn check_every_peer(&self, channel: &Channel) -> Checked {
        let (mut others, mut own) = (false, false);
        for role in self.ir.roles.iter().filter(|role| channel.from.contains(&role.name)) {
            for stmt in role.body.iter().filter(|stmt| self.pushes_direct(stmt)) {
                let reached = self.fanout(stmt)?.reached;
                others |= reached != Reached::Own;
                own |= reached != Reached::Others;
            }
        }
        if others && own {
            return Ok(());
        }
        self.refuse(&channel.at, "its receiver waits for rows of every rank, this one too")
    }

    pub(super) fn fanout<'s>(&self, stmt: &'s Stmt) -> Result<Fanout<'s>, Unfit> {
        Fanout::of(stmt).ok_or_else(|| self.no_form(stmt))
    }

    /// The names that the functions of rules give out beside those of the declaration.
    pub(super) fn check_words(&self, role: &Role) -> Checked {
        const OWN: [&str; 32] = [
            "args", "base", "blocks", "counters", "each", "first", "goes", "hits", "items", "last",
            "match", "me", "meta", "mine", "mover", "own", "peers", "places", "position",
            "present", "records", "rows", "sent", "smem", "span", "stages", "stripe", "sum",
            "team", "theirs", "turns", "units",
        ];
        let ends = ["_row", "_ranks", "_ids", "_field"];
        let clash = |name: &str| OWN.contains(&name) || ends.iter().any(|end| name.ends_with(end));
        let mut wrong = None;
        let mut see = |at: &Source, name: &str| {
            if clash(name) {
                wrong.get_or_insert((at.clone(), name.to_string()));
            }
        };
        walk::stmts(&role.body, &mut |stmt| match &stmt.action {
            Action::For { binder, .. } | Action::Receive { binder, .. } => see(&stmt.at, binder),
            Action::Gather { binder, part, across, .. } => {
                [binder, part, across].into_iter().for_each(|name| see(&stmt.at, name));
            }
            Action::Let { name, .. } => see(&stmt.at, name),
            _ => {}
        });
        match wrong {
            None => Ok(()),
            Some((at, name)) => {
                self.refuse(&at, &format!("`{name}` has a meaning in its function"))
            }
        }
    }

    /// What the helpers and domains of a role know without being told.
    pub(super) fn check_known(&self, role: &Role) -> Checked {
        let mut found = Ok(());
        walk::stmts(&role.body, &mut |stmt| {
            let of_peers = |domain: &Domain| matches!(domain, Domain::Peers { .. });
            let mut needs_ranks =
                matches!(&stmt.action, Action::For { domain, .. } if of_peers(domain));
            let mut placed = None;
            walk::exprs(stmt, &mut |part| match part {
                Expr::Fold { domain, .. } => needs_ranks |= of_peers(domain),
                Expr::Call { helper, .. } if OF_EXPERTS.contains(&helper.as_str()) => {
                    placed = Some(helper);
                    needs_ranks = true;
                }
                _ => {}
            });
            if found.is_err() {
            } else if let Some(helper) = placed.filter(|_| !self.has_expert_begin()) {
                let why = format!("`{helper}` needs the input `expert_begin: i32[ranks + 1]`");
                found = self.refuse(&stmt.at, &why);
            } else if needs_ranks && !self.ir.dims.iter().any(|dim| dim.name == "ranks") {
                found = self.refuse(&stmt.at, "this needs the number `ranks` in the shape");
            } else if placed.is_some_and(|helper| helper == "routed")
                && self.ranks_max() > RANKS_MAX
            {
                let why =
                    format!("`routed` knows at most {RANKS_MAX} ranks, and the shape allows more");
                found = self.refuse(&stmt.at, &why);
            }
        });
        found
    }

    fn has_expert_begin(&self) -> bool {
        self.tensor("expert_begin").is_ok_and(|tensor| {
            let read_only = tensor.kind == TensorKind::Input || tensor.from_handle.is_some();
            read_only
                && tensor.elem == ElemType::Scalar { elem: Elem::I32 }
                && tensor.dims.len() == 1
                && !tensor.optional
        })
    }

    fn ranks_max(&self) -> i64 {
        let ranks = self.ir.dims.iter().find(|dim| dim.name == "ranks");
        match ranks.map(|dim| &dim.kind) {
            Some(DimKind::Given { high, .. }) => *high,
            _ => 0,
        }
    }

    pub(super) fn check_role(&self, role: &Role) -> Checked {
        self.check_known(role)?;
        self.check_slot_blocks(role)?;
        self.check_fills(role)?;
        self.check_last_block(role)?;
        let mut gathers = 0;
        for stmt in &role.body {
            gathers += usize::from(matches!(stmt.action, Action::Gather { .. }));
            if gathers > 1 {
                return self.refuse(&stmt.at, "a role gathers once");
            }
        }
        self.check_stripes(role)?;
        self.check_order(role)?;
        self.check_moved(role)?;
        match &role.share {
            Share::Peer { binder, set } => self.check_ring_role(role, binder, set),
            Share::Indices { .. } => {
                self.refuse(&role.at, "no role is emitted whose warps share these indices")
            }
            _ => role.body.iter().try_for_each(|stmt| self.check_flow(role, stmt)),
        }
    }

    /// Stripes are slices of something, and a role that takes them reads no slots.
    fn check_stripes(&self, role: &Role) -> Checked {
        let mut found = Ok(());
        walk::stmts(&role.body, &mut |stmt| {
            let striped = matches!(
                &stmt.action,
                Action::For { domain: Domain::Stripe, .. }
                    | Action::Gather { domain: Domain::Stripe, .. }
            );
            let mut slots = false;
            walk::exprs(stmt, &mut |part| {
                slots |= matches!(part, Expr::OfChannel { channel, .. }
                    if self.has_kind(channel, ChannelKind::Slots));
            });
            if found.is_err() {
            } else if striped && self.ir.sizes.is_empty() {
                found = self.refuse(&stmt.at, "no size says how many rows the stripes share");
            } else if slots && role.share != Share::Team {
                found = self.refuse(&stmt.at, "slots are read by a role whose warps share nothing");
            }
        });
        found
    }

    /// The warps that share the reading of slots stand on one block.
    fn check_slot_blocks(&self, role: &Role) -> Checked {
        let slots = self.ir.channels.iter().any(|channel| {
            channel.kind == ChannelKind::Slots
                && (channel.to == role.name || channel.from.contains(&role.name))
        });
        let one = match &role.blocks {
            Blocks::Last => true,
            Blocks::Range { low: Expr::Int { value: low }, high: Expr::Int { value: high } } => {
                high - low == 1
            }
            _ => false,
        };
        match slots && !one {
            true => self.refuse(&role.at, "the slots of a role are read by one block"),
            false => Ok(()),
        }
    }

    /// What fills a tensor is a number.
    fn check_fills(&self, role: &Role) -> Checked {
        let mut wrong = false;
        walk::stmts(&role.body, &mut |stmt| {
            let tensor = walk::target(stmt).and_then(|place| self.tensor(&place.tensor).ok());
            wrong |= tensor.is_some_and(|tensor| {
                tensor.fill.is_some() && parts(self.ir, &tensor.elem).len() > 1
            });
        });
        match wrong {
            true => self.refuse(&role.at, "rows with scales are not filled"),
            false => Ok(()),
        }
    }

    /// What moves the rows of a role is cut for one message, or for one row.
    fn check_moved(&self, role: &Role) -> Checked {
        let mut moved: Vec<(&Stmt, String)> = Vec::new();
        walk::stmts(&role.body, &mut |stmt| {
            let of = match &stmt.action {
                Action::Push { channel, .. } => match self.channel(channel) {
                    Ok(channel) if channel.kind == ChannelKind::Direct => channel.message.clone(),
                    _ => return,
                },
                _ => match moved_row(self.ir, stmt) {
                    Some(from) => format!("{:?} of {:?}", from.elem, from.dims.last()),
                    None => return,
                },
            };
            moved.push((stmt, of));
        });
        match moved.windows(2).find(|pair| pair[0].1 != pair[1].1) {
            Some(pair) => self.refuse(&pair[1].0.at, "a role moves rows of one kind"),
            None => Ok(()),
        }
    }

    /// What is done when all else is follows counters, whose last step finds the last block.
    fn check_last_block(&self, role: &Role) -> Checked {
        if role.blocks != Blocks::Last {
            return Ok(());
        }
        if role.share != Share::Team {
            return self.refuse(&role.at, "a role on the last block is one team");
        }
        Ok(())
    }

    fn check_flow(&self, role: &Role, stmt: &Stmt) -> Checked {
        match &stmt.action {
            Action::Receive { channel, .. } if self.has_kind(channel, ChannelKind::Direct) => {
                self.check_receive(stmt)
            }
            _ if role.share == Share::SourceStripe => {
                self.refuse(&stmt.at, "such a role only takes messages of a direct channel")
            }
            Action::For { domain: Domain::Stripe, .. } if self.pushes_direct(stmt) => {
                if role.share != Share::Token {
                    let why = "rows of a direct channel are sent by `warps shared by token`";
                    return self.refuse(&role.at, why);
                }
                self.check_fanout(stmt)
            }
            Action::For { domain: Domain::Stripe, body, .. } => match body.as_slice() {
                [inner @ Stmt { action: Action::For { position: Some(_), .. }, .. }] => {
                    self.check_placed(stmt, inner)
                }
                _ => self.check_counts(stmt),
            },
            Action::Gather { .. } => self.check_gather(stmt),
            Action::Push { channel, .. } if self.has_kind(channel, ChannelKind::Pull) => {
                Err(self.no_form(stmt))
            }
            _ => self.check_team(stmt),
        }
    }

    // ---- Roles that work as one team ----

    pub(super) fn check_team(&self, stmt: &Stmt) -> Checked {
        let mut stripes = false;
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            walk::exprs(inner, &mut |part| {
                stripes |= matches!(part, Expr::Name { kind: NameKind::Stripe, .. });
            });
        });
        if stripes {
            return self.refuse(&stmt.at, "`stripe` has a value only in a loop over a stripe");
        }
        let mut rows = Ok(());
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            walk::exprs(inner, &mut |part| {
                if rows.is_ok() {
                    rows = self.refuse_rows(inner, part);
                }
            });
        });
        rows?;
        self.check_team_stmt(stmt, &[])
    }

    fn check_team_stmt(&self, stmt: &Stmt, loops: &[(&str, &Domain, bool)]) -> Checked {
        match &stmt.action {
            Action::For { binder, domain, position: None, filter, body } => {
                self.check_counted(stmt, domain)?;
                if let Some(condition) = filter {
                    self.refuse_optional(stmt, condition)?;
                    self.check_expr(stmt, condition)?;
                }
                let mut inside = loops.to_vec();
                inside.push((binder.as_str(), domain, filter.is_some()));
                body.iter().try_for_each(|inner| self.check_team_stmt(inner, &inside))
            }
            Action::Push { channel, peer, values, .. }
                if self.has_kind(channel, ChannelKind::Slots) =>
            {
                let all = |domain: &Domain| match domain {
                    Domain::Peers { set } => *set == PeerSet::All,
                    Domain::Dim { name } => name == "ranks",
                    _ => false,
                };
                let every = matches!((loops, peer), ([(binder, domain, false)],
                    Some(Expr::Name { name, .. })) if all(domain) && name == binder);
                if !every {
                    let why = "every rank waits for a record of every other one: \
                               push in a loop over `ranks` to its binder";
                    return self.refuse(&stmt.at, why);
                }
                self.check_single_push(stmt, channel)?;
                values.iter().try_for_each(|value| {
                    self.check_field(stmt, channel, &value.name, &value.value)
                })
            }
            Action::Store { target, value } | Action::Record { target, value }
                if matches!(value, Expr::Fold { prefix: true, .. }) =>
            {
                if loops.iter().any(|(.., filtered)| *filtered) {
                    return self.refuse(&stmt.at, "a prefix sum stands in a loop without `where`");
                }
                self.check_prefix(stmt, target, value)
            }
            Action::Announce { .. } | Action::Receive { .. } | Action::Gather { .. } => {
                Err(self.no_form(stmt))
            }
            _ => self.check_write(stmt, loops.first().map(|(binder, ..)| *binder)),
        }
    }

    /// One record a call for each source: a second one would take the place of the first.
    fn check_single_push(&self, stmt: &Stmt, channel: &str) -> Checked {
        let mut pushes = 0;
        for role in &self.ir.roles {
            walk::stmts(&role.body, &mut |inner| {
                pushes += usize::from(
                    matches!(&inner.action, Action::Push { channel: to, .. } if to == channel),
                );
            });
        }
        if pushes == 1 {
            return Ok(());
        }
        self.refuse(&stmt.at, "a call fills each slot once")
    }

    /// A loop that counts from a number to another one.
    pub(super) fn check_counted(&self, stmt: &Stmt, domain: &Domain) -> Checked {
        match domain {
            Domain::Tokens | Domain::Dim { .. } => Ok(()),
            Domain::Peers { set: PeerSet::All | PeerSet::Others } => Ok(()),
            Domain::Range { low, high } => {
                for end in [low, high] {
                    self.refuse_optional(stmt, end)?;
                    self.check_expr(stmt, end)?;
                }
                Ok(())
            }
            _ => self.refuse(&stmt.at, "this domain has no CUDA form here"),
        }
    }

    /// `place = prefix_sum(binder in domain: value)`: in 32 bits, each sum at its binder.
    fn check_prefix(&self, stmt: &Stmt, target: &Place, value: &Expr) -> Checked {
        let Expr::Fold { binder, domain, body, .. } = value else { return Ok(()) };
        self.check_expr(stmt, body)?;
        self.check_target(stmt, target)?;
        self.refuse_optional(stmt, body)?;
        if self.tensor(&target.tensor)?.optional {
            return self.refuse(&stmt.at, "a prefix sum goes to a tensor that is always there");
        }
        if !matches!(elem_of(self.ir, body), Elem::Bool | Elem::U8 | Elem::I32) {
            return self.refuse(&stmt.at, "a prefix sum adds up numbers of 32 bits");
        }
        let Domain::Dim { name: count } = &**domain else {
            return self.refuse(&stmt.at, "a prefix sum runs over a number of the shape");
        };
        let tensor = self.tensor(&target.tensor)?;
        let at: Vec<usize> = (0..target.indices.len())
            .filter(|axis| mentions_name(&target.indices[*axis], binder))
            .collect();
        let place = match at.as_slice() {
            [axis] if is_name(&target.indices[*axis], binder) => tensor.dims.get(*axis),
            _ => None,
        };
        match place {
            Some(extent) if self.sum_fits(extent, count) => Ok(()),
            _ => {
                let why = format!(
                    "its binder is one index of the place, whose extent is `{count}` or `{count} + 1`"
                );
                self.refuse(&stmt.at, &why)
            }
        }
    }

    fn sum_fits(&self, extent: &Expr, count: &str) -> bool {
        is_extent(self.ir, extent, count) || is_one_more(self.ir, extent, count)
    }

    // ---- Statements of one lane ----

    /// A write of one lane; `owner` is the binder whose values the lanes divide.
    pub(super) fn check_write(&self, stmt: &Stmt, owner: Option<&str>) -> Checked {
        match &stmt.action {
            Action::Store { target, value } | Action::Record { target, value } => {
                self.check_target(stmt, target)?;
                self.check_value(stmt, target, value)
            }
            Action::Add { target, value } => {
                self.check_target(stmt, target)?;
                self.check_value(stmt, target, value)?;
                let own = |index| owner.is_some_and(|owner| is_name(index, owner));
                if self.tensor(&target.tensor)?.kind != TensorKind::Inout {
                    return self
                        .refuse(&stmt.at, "what is added to has a value before: an `inout`");
                }
                if !target.indices.iter().any(own) {
                    let why = "several threads would add to one element: \
                               index it by the binder of the outermost loop, or `count`";
                    return self.refuse(&stmt.at, why);
                }
                Ok(())
            }
            Action::Count { target } => {
                self.check_target(stmt, target)?;
                let tensor = self.tensor(&target.tensor)?;
                let summed = self.counting(tensor) == Some(Counting::Summed);
                match (self.elem(&target.tensor)?, &tensor.memory) {
                    (Elem::I32, _) => Ok(()),
                    (Elem::I64, Memory::Device) if summed => Ok(()),
                    _ => {
                        let why = "counters are `i32`, or `i64` with extents of the shape in \
                                   device memory";
                        self.refuse(&stmt.at, why)
                    }
                }
            }
            Action::Let { value, .. } => {
                if rank_of(self.ir, value) > 0 {
                    return self.refuse(&stmt.at, "`let` names one value, and this is a row");
                }
                self.refuse_optional(stmt, value)?;
                self.check_expr(stmt, value)
            }
            _ => Ok(()),
        }
    }

    fn elem(&self, tensor: &str) -> Result<Elem, Unfit> {
        Ok(first_part(self.ir, &self.tensor(tensor)?.elem))
    }

    /// A place that single elements are written to.
    pub(super) fn check_target(&self, stmt: &Stmt, target: &Place) -> Checked {
        for index in &target.indices {
            self.check_expr(stmt, index)?;
        }
        let tensor = self.tensor(&target.tensor)?;
        if target.indices.len() + 1 < tensor.dims.len() {
            return self.refuse(&stmt.at, "one element or one row is written at a time");
        }
        if parts(self.ir, &tensor.elem).len() > 1 {
            return self.refuse(&stmt.at, "a row with scales is written where it is moved whole");
        }
        if tensor.memory == Memory::Host && self.elem(&target.tensor)? != Elem::I32 {
            return self.refuse(&stmt.at, "what the host reads is `i32`");
        }
        Ok(())
    }

    /// A value that is computed, or an element that is copied as it is.
    pub(super) fn check_value(&self, stmt: &Stmt, target: &Place, value: &Expr) -> Checked {
        self.check_copy(stmt, &self.elem(&target.tensor)?, value)
    }

    fn check_copy(&self, stmt: &Stmt, to: &Elem, value: &Expr) -> Checked {
        let from = elem_of(self.ir, value);
        match value {
            Expr::Element { tensor, indices } if from == *to => {
                self.check_tensor(stmt, self.tensor(tensor)?, indices.len())?;
                indices.iter().try_for_each(|index| self.check_expr(stmt, index))
            }
            Expr::OfChannel { .. } if from == *to => self.check_parts(stmt, value),
            Expr::Call { .. } if from == *to => self.check_expr(stmt, value),
            _ if !is_plain(to) => self.refuse(&stmt.at, NOT_PLAIN),
            _ => self.check_expr(stmt, value),
        }
    }

    /// What is read element by element: declared as one part, and all but one index given.
    pub(super) fn check_tensor(&self, stmt: &Stmt, tensor: &Tensor, indices: usize) -> Checked {
        if tensor.copies > 1 {
            return self.refuse(&stmt.at, "a tensor that comes several times is added in a gather");
        }
        if parts(self.ir, &tensor.elem).len() > 1 {
            return self.refuse(&stmt.at, "a row with scales is moved whole");
        }
        if indices + 1 < tensor.dims.len() {
            return self.refuse(&stmt.at, "one element or one row is read at a time");
        }
        Ok(())
    }

    /// Every part of an expression that is computed.
    pub(super) fn check_expr(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut found = Ok(());
        // What a function of the user takes as it is.
        let mut taken: Vec<&Expr> = Vec::new();
        walk::expr(whole, &mut |part| {
            if let Expr::Call { helper, args } = part
                && let Some(own) = self.ir.cuda_fns.iter().find(|own| own.name == *helper)
            {
                let same = |(param, arg): &(&CudaParam, &Expr)| param.elem == elem_of(self.ir, arg);
                taken.extend(own.params.iter().zip(args).filter(same).map(|(_, arg)| arg));
            }
            if found.is_ok() {
                found = match part {
                    Expr::Element { tensor, indices }
                        if taken.iter().any(|own| std::ptr::eq(*own, part)) =>
                    {
                        self.tensor(tensor)
                            .and_then(|tensor| self.check_tensor(stmt, tensor, indices.len()))
                    }
                    _ => self.check_part(stmt, part),
                };
            }
        });
        found
    }

    /// The parts of an expression, but not the expression itself.
    fn check_parts(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut found = Ok(());
        walk::expr(whole, &mut |part| {
            if found.is_ok() && !std::ptr::eq(part, whole) {
                found = self.check_part(stmt, part);
            }
        });
        match whole {
            Expr::OfChannel { .. } => found.and(self.check_slot(stmt, whole)),
            _ => found,
        }
    }

    fn check_part(&self, stmt: &Stmt, part: &Expr) -> Checked {
        match part {
            Expr::Element { tensor, indices } => {
                let tensor = self.tensor(tensor)?;
                self.check_tensor(stmt, tensor, indices.len())?;
                if !is_plain(&elem_of(self.ir, part)) {
                    return self.refuse(&stmt.at, NOT_PLAIN);
                }
                Ok(())
            }
            Expr::OfChannel { .. } => {
                if !is_plain(&elem_of(self.ir, part)) {
                    return self.refuse(&stmt.at, NOT_PLAIN);
                }
                self.check_slot(stmt, part)
            }
            Expr::Field { of, .. } if self.tensor(of).is_ok() => {
                self.refuse(&stmt.at, "a row with scales is moved whole")
            }
            Expr::Cast { elem, .. } if !is_plain(elem) => self.refuse(&stmt.at, NOT_PLAIN),
            Expr::Call { helper, args } => self.check_call(stmt, helper, args),
            Expr::Fold { prefix: true, .. } => {
                self.refuse(&stmt.at, "a prefix sum is stored as it is")
            }
            Expr::Fold { domain, .. } => self.check_counted(stmt, domain),
            _ => Ok(()),
        }
    }

    fn check_call(&self, stmt: &Stmt, helper: &str, args: &[Expr]) -> Checked {
        if self.ir.cuda_fns.iter().any(|own| own.name == helper) {
            return Ok(());
        }
        if !EMITTED_HELPERS.contains(&helper) {
            return self.refuse(&stmt.at, &format!("`{helper}` has no CUDA form here"));
        }
        let wide = |arg: &Expr| !matches!(elem_of(self.ir, arg), Elem::Bool | Elem::U8 | Elem::I32);
        if ["align", "ceil", "max", "min"].contains(&helper) && args.iter().any(wide) {
            return self.refuse(&stmt.at, &format!("`{helper}` takes whole numbers of 32 bits"));
        }
        match (helper, args.first()) {
            ("listed" | "routed", Some(Expr::Element { tensor, .. })) => {
                if self.elem(tensor)? != Elem::I64 {
                    return self.refuse(&stmt.at, &format!("`{helper}` takes a row of `i64`"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// `slots[source].field[i]`.
    fn check_slot(&self, stmt: &Stmt, part: &Expr) -> Checked {
        let Expr::OfChannel { channel, index, field, indices } = part else { return Ok(()) };
        let channel = self.channel(channel)?;
        if channel.kind != ChannelKind::Slots {
            return Ok(());
        }
        let known = self.message(channel)?.fields.iter().find(|own| own.name == *field);
        match known {
            Some(known) if index.len() == 1 && indices.len() <= 1 && known.dims.len() <= 1 => {
                Ok(())
            }
            _ => self.refuse(&stmt.at, "a slot is read field by field, by at most one index"),
        }
    }

    pub(super) fn refuse_optional(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut optional = false;
        walk::expr(whole, &mut |part| {
            optional |= matches!(part, Expr::Element { tensor, .. }
                if self.tensor(tensor).is_ok_and(|tensor| tensor.optional));
        });
        if optional {
            return self
                .refuse(&stmt.at, "an optional tensor is used where its statement can be skipped");
        }
        Ok(())
    }
}

pub(super) const NOT_PLAIN: &str = "`bf16` and narrower floats are copied and moved, and added in a gather: \
                         other arithmetic has no CUDA form here";

pub(super) fn is_name(expr: &Expr, name: &str) -> bool {
    matches!(expr, Expr::Name { name: own, .. } if own == name)
}

pub(super) fn mentions_name(whole: &Expr, name: &str) -> bool {
    let mut found = false;
    walk::expr(whole, &mut |part| found |= is_name(part, name));
    found
}

pub(super) fn is_bf16(elem: &ElemType, ir: &crate::ir::Pipeline) -> bool {
    matches!(parts(ir, elem).as_slice(), [(_, Elem::Bf16, _)])
}
