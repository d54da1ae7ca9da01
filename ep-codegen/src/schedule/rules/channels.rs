//! The forms of loops that push, take, gather and place rows.

use super::forms::{is_bf16, is_name, mentions_name};
use super::sum_and_bias;
use super::{Forms, Unfit};
use crate::ir::parts::parts;
use crate::ir::rows::moved_row;
use crate::ir::{
    Action, Channel, ChannelKind, Domain, Elem, Expr, Field, FieldValue, Memory, NameKind, PeerSet,
    Place, Role, Stmt, walk,
};
use crate::schedule::typed::{elem_of, field_of, is_plain, rank_of};

type Checked = Result<(), Unfit>;

impl Forms<'_> {
    // ---- Loops over the tokens of a stripe ----

    /// `for token in stripe { .. }` with a lane for each token.
    pub(super) fn check_counts(&self, stmt: &Stmt) -> Checked {
        let Action::For { binder: token, filter, body, .. } = &stmt.action else {
            return Err(self.no_form(stmt));
        };
        if let Some(condition) = filter {
            self.check_here(stmt, condition)?;
        }
        self.check_rows(stmt, Some(token))?;
        for inner in body {
            let Action::For { binder, domain, position: None, filter, body } = &inner.action else {
                self.check_write(inner, Some(token))?;
                continue;
            };
            if let Some(condition) = filter {
                self.check_expr(inner, condition)?;
            }
            match domain {
                Domain::Row { .. } => self.check_entries(inner, binder, body)?,
                _ => self.check_counted(inner, domain)?,
            }
            for leaf in body {
                if !walk::nested(leaf).is_empty() {
                    return Err(self.no_form(leaf));
                }
                self.check_write(leaf, Some(token))?;
            }
        }
        Ok(())
    }

    /// The rows that a loop looks at: each is loaded once, before anything else. `token` is the only
    /// binder that may say which; `None`: any may.
    fn check_rows(&self, stmt: &Stmt, token: Option<&str>) -> Checked {
        let mut rows: Vec<(&Stmt, &Expr)> = Vec::new();
        walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
            if let Action::For { domain: Domain::Row { row }, .. } = &inner.action {
                rows.push((inner, row));
            }
            walk::exprs(inner, &mut |part| {
                if let Some(row) = looked_at(part) {
                    rows.push((inner, row));
                }
            });
        });
        for (at, row) in &rows {
            let Expr::Element { tensor: name, indices } = row else {
                return Err(self.no_form(at));
            };
            let tensor = self.tensor(name)?;
            let numbers = matches!(elem_of(self.ir, row), Elem::U8 | Elem::I32 | Elem::I64);
            let mut sized = false;
            if let Some(dim) = tensor.dims.last() {
                walk::expr(dim, &mut |part| {
                    sized |= matches!(part, Expr::Name { kind: NameKind::Size, .. });
                });
            }
            if rank_of(self.ir, row) != 1 || !numbers || sized || tensor.copies > 1 {
                return self.refuse(&at.at, "a row of numbers has an extent of the shape");
            }
            if tensor.optional {
                return self.refuse(&at.at, "an optional row of numbers has no CUDA form here");
            }
            let mut foreign = false;
            for index in indices {
                walk::expr(index, &mut |part| {
                    foreign |= matches!((part, token),
                        (Expr::Name { name, kind: NameKind::Binder }, Some(token)) if name != token);
                });
            }
            if foreign {
                return self.refuse(&at.at, "a row of numbers is found by the token alone");
            }
            let other = rows.iter().any(|(_, other)| {
                matches!(other, Expr::Element { tensor, indices: others }
                    if tensor == name && others != indices)
            });
            if other {
                let why = format!("a loop looks at one row of `{name}`");
                return self.refuse(&at.at, &why);
            }
        }
        Ok(())
    }

    /// No row of numbers is loaded here.
    pub(super) fn refuse_rows(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut found = None;
        walk::expr(whole, &mut |part| {
            if let (Expr::Call { helper, .. }, Some(_)) = (part, looked_at(part)) {
                found = Some(helper);
            }
        });
        match found {
            Some(helper) => self.refuse(
                &stmt.at,
                &format!("`{helper}` is recorded in a loop over a stripe, and its table read here"),
            ),
            None => Ok(()),
        }
    }

    /// `for value in row`: values beyond the places that they index are skipped.
    fn check_entries(&self, stmt: &Stmt, binder: &str, body: &[Stmt]) -> Checked {
        let mut bounds: Vec<&Expr> = Vec::new();
        for place in body.iter().filter_map(walk::target) {
            let tensor = self.tensor(&place.tensor)?;
            let indexed = place.indices.iter().zip(&tensor.dims);
            bounds.extend(indexed.filter(|(index, _)| is_name(index, binder)).map(|(_, dim)| dim));
        }
        if bounds.windows(2).any(|pair| pair[0] != pair[1]) {
            let why = format!("`{binder}` indexes places of one extent in each loop");
            return self.refuse(&stmt.at, &why);
        }
        Ok(())
    }

    // ---- Sending ----

    /// The statements of a role `Name[peer]`.
    pub(super) fn check_ring_role(&self, role: &Role, peer: &str, set: &PeerSet) -> Checked {
        if *set != PeerSet::All {
            return self.refuse(&role.at, "a role with a peer serves all ranks");
        }
        let channel = self.ring_of(role)?;
        let mut loops = 0;
        for stmt in &role.body {
            let here = |index: &Expr| is_name(index, peer);
            loops += usize::from(!walk::nested(stmt).is_empty());
            if loops > 1 {
                return self.refuse(&stmt.at, "a role with a peer has one loop");
            }
            match &stmt.action {
                Action::Announce { peer, values, .. } if here(peer) => {
                    for value in values {
                        self.check_here(stmt, &value.value)?;
                    }
                }
                Action::For { binder, domain: Domain::Stripe, position: None, filter, body } => {
                    if let Some(condition) = filter {
                        self.check_here(stmt, condition)?;
                    }
                    self.check_sends(channel, body, &|index| is_name(index, peer), binder)?;
                }
                Action::For {
                    domain: Domain::Range { low, high },
                    position: None,
                    filter: None,
                    body,
                    binder,
                } => {
                    self.check_here(stmt, low)?;
                    self.check_here(stmt, high)?;
                    self.check_sends(channel, body, &|index| is_name(index, peer), binder)?;
                }
                Action::For { domain: Domain::Range { .. }, filter: Some(_), .. } => {
                    return self.refuse(&stmt.at, "a range of rows is sent without a `where`");
                }
                Action::Receive { peer: Some(from), .. } if here(from) => {
                    self.check_receive(stmt)?
                }
                Action::Record { target, value } | Action::Store { target, value } => {
                    self.check_here(stmt, value)?;
                    self.check_element(stmt, target)?;
                    self.check_value(stmt, target, value)?;
                }
                _ => return Err(self.no_form(stmt)),
            }
        }
        Ok(())
    }

    /// An expression where nothing is loaded ahead and nothing is skipped.
    pub(super) fn check_here(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        self.refuse_rows(stmt, whole)?;
        self.refuse_optional(stmt, whole)?;
        self.check_expr(stmt, whole)
    }

    /// A place of one element that is always there.
    fn check_element(&self, stmt: &Stmt, target: &Place) -> Checked {
        self.check_target(stmt, target)?;
        let tensor = self.tensor(&target.tensor)?;
        if target.indices.len() != tensor.dims.len() || tensor.optional {
            return self
                .refuse(&stmt.at, "one element is written here, of a tensor that is always there");
        }
        if tensor.memory == Memory::Host {
            return self.refuse(&stmt.at, "what the host reads is written by a role of one team");
        }
        Ok(())
    }

    /// `for token in stripe { for peer in .. where .. { push ..; record ..; } }`.
    pub(super) fn check_fanout(&self, stmt: &Stmt) -> Checked {
        let Action::For { binder: token, filter, body, position: None, .. } = &stmt.action else {
            return Err(self.no_form(stmt));
        };
        if let Some(condition) = filter {
            self.check_here(stmt, condition)?;
        }
        let fanout = self.fanout(stmt)?;
        let Action::Push { channel, position, values, .. } = &fanout.push.action else {
            return Err(self.no_form(stmt));
        };
        let channel = self.channel(channel)?;
        if position.as_ref().is_some_and(|position| mentions_name(position, token)) {
            let why = "the position is that of the stripe's first row for the peer: \
                       it does not depend on the token";
            return self.refuse(&fanout.push.at, why);
        }
        if let Some(position) = position {
            self.check_here(fanout.push, position)?;
        }
        if let [inner] = body.as_slice()
            && let Action::For { binder: peer, filter, body, .. } = &inner.action
        {
            if let Some(condition) = filter {
                self.check_here(inner, condition)?;
            }
            if values.iter().any(|value| mentions_name(&value.value, peer)) {
                let why = "what is pushed is loaded once and goes to all peers of the loop: \
                           it does not depend on the peer";
                return self.refuse(&fanout.push.at, why);
            }
            return self.check_sends(channel, body, &|index| is_name(index, peer), token);
        }
        let own = |index: &Expr| matches!(index, Expr::Name { kind: NameKind::Me, .. });
        self.check_sends(channel, body, &own, token)
    }

    /// One push to the peer, and records.
    pub(super) fn check_sends(
        &self,
        channel: &Channel,
        body: &[Stmt],
        is_peer: &dyn Fn(&Expr) -> bool,
        token: &str,
    ) -> Checked {
        let mut pushes = 0;
        for stmt in body {
            match &stmt.action {
                Action::Push { peer: Some(peer), values, .. } if pushes == 0 && is_peer(peer) => {
                    pushes += 1;
                    self.check_push(stmt, channel, values)?;
                }
                Action::Push { .. } => {
                    let why =
                        format!("each turn of `{token}` pushes once, to the peer of its loop");
                    return self.refuse(&stmt.at, &why);
                }
                Action::Record { target, value } => {
                    self.check_element(stmt, target)?;
                    if !is_position(value, channel) {
                        self.refuse_position(stmt, value)?;
                        self.check_here(stmt, value)?;
                        self.check_value(stmt, target, value)?;
                    }
                }
                _ => return Err(self.no_form(stmt)),
            }
        }
        Ok(())
    }

    fn refuse_position(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut found = false;
        walk::expr(whole, &mut |part| found |= matches!(part, Expr::OfChannel { .. }));
        if found {
            return self.refuse(&stmt.at, "a position is recorded as it is");
        }
        Ok(())
    }

    /// A row of a tensor, and small fields beside it.
    fn check_push(&self, stmt: &Stmt, channel: &Channel, values: &[FieldValue]) -> Checked {
        let message = self.message(channel)?;
        if !message.fields.iter().any(|field| field.row) {
            return self.refuse(&stmt.at, "a message of this kind of channel has a `row`");
        }
        for value in values {
            let Some(field) = message.fields.iter().find(|field| field.name == value.name) else {
                continue;
            };
            if field.row {
                self.check_pushed_row(stmt, field, &value.value)?;
            } else {
                self.refuse_rows(stmt, &value.value)?;
                self.check_field(stmt, &channel.name, &value.name, &value.value)?;
            }
        }
        Ok(())
    }

    fn check_pushed_row(&self, stmt: &Stmt, field: &Field, value: &Expr) -> Checked {
        let Expr::Element { tensor, indices } = value else {
            return self.refuse(&stmt.at, "a row that is pushed is one of a tensor, as it is");
        };
        let tensor = self.tensor(tensor)?;
        let same = parts(self.ir, &tensor.elem) == parts(self.ir, &field.elem);
        if !same || rank_of(self.ir, value) != 1 || tensor.optional || tensor.copies > 1 {
            return self.refuse(&stmt.at, "a row that is pushed is one of a tensor, as it is");
        }
        indices.iter().try_for_each(|index| self.check_here(stmt, index))
    }

    /// The value of a small field: copied, or computed element by element.
    pub(super) fn check_field(
        &self,
        stmt: &Stmt,
        channel: &str,
        name: &str,
        value: &Expr,
    ) -> Checked {
        let Some(field) = field_of(self.ir, channel, name) else { return Ok(()) };
        let to = match parts(self.ir, &field.elem).as_slice() {
            [(_, elem, _)] => elem.clone(),
            _ => return self.refuse(&stmt.at, "only the row of a message has scales"),
        };
        let mut absent = Ok(());
        walk::expr(value, &mut |part| {
            if let Expr::Element { tensor, .. } = part
                && field.optional_with.as_ref() != Some(tensor)
                && absent.is_ok()
            {
                absent = self.refuse_optional(stmt, part);
            }
        });
        absent?;
        match value {
            Expr::Call { helper, args } if helper == "owned" => match args.first() {
                Some(Expr::Element { tensor, indices })
                    if self.has_kind(channel, ChannelKind::Slots) =>
                {
                    let same =
                        parts(self.ir, &self.tensor(tensor)?.elem) == parts(self.ir, &field.elem);
                    if same && indices.is_empty() {
                        return Ok(());
                    }
                    self.refuse(&stmt.at, "`owned` takes a whole tensor of the field's type")
                }
                _ => self.refuse(&stmt.at, "`owned` has no CUDA form here"),
            },
            // The elements of a row of several extents lie one behind the other.
            Expr::Element { tensor, indices } if elem_of(self.ir, value) == to => {
                let tensor = self.tensor(tensor)?;
                self.check_tensor(stmt, tensor, tensor.dims.len())?;
                indices.iter().try_for_each(|index| self.check_expr(stmt, index))
            }
            _ if !is_plain(&to) => self.refuse(&stmt.at, super::forms::NOT_PLAIN),
            _ => self.check_expr(stmt, value),
        }
    }

    // ---- Taking ----

    /// `for message in channel[peer] at .. { store ..; }`.
    pub(super) fn check_receive(&self, stmt: &Stmt) -> Checked {
        let Action::Receive { binder, channel, position, filter, body, .. } = &stmt.action else {
            return Err(self.no_form(stmt));
        };
        let channel = self.channel(channel)?;
        let ring = channel.kind == ChannelKind::Ring;
        if filter.is_some() {
            return self.refuse(&stmt.at, "every message is taken: the loop has no `where`");
        }
        if !ring && position.is_some() {
            return self
                .refuse(&stmt.at, "the sender has said where rows go: the loop has no `at`");
        }
        if ring && ["first", "row"].contains(&binder.as_str()) {
            let why = format!("`{binder}` already has a meaning in the functions of rings");
            return self.refuse(&stmt.at, &why);
        }
        if let Some(position) = position {
            self.check_here(stmt, position)?;
        }
        let mut rows = 0;
        for inner in body {
            let (Action::Store { target, value } | Action::Record { target, value }) =
                &inner.action
            else {
                return Err(self.no_form(inner));
            };
            rows += usize::from(self.check_unpacked(inner, channel, binder, target, value)?);
            if rows > 1 {
                return self.refuse(&inner.at, "the row of a message is stored once");
            }
        }
        Ok(())
    }

    /// Whether it is the row that `stmt` stores.
    fn check_unpacked(
        &self,
        stmt: &Stmt,
        channel: &Channel,
        binder: &str,
        target: &Place,
        value: &Expr,
    ) -> Result<bool, Unfit> {
        let tensor = self.tensor(&target.tensor)?;
        let at_row = matches!(target.indices.as_slice(),
            [Expr::Field { of, field, .. }] if of == binder && field == "row");
        if !at_row || tensor.memory == Memory::Host {
            let why =
                format!("what a message brings is written at `{binder}.row`, in device memory");
            return self.refuse(&stmt.at, &why);
        }
        let mut fields: Vec<(&str, bool)> = Vec::new();
        let mut foreign = false;
        walk::expr(value, &mut |part| match part {
            Expr::Field { of, field, indices } if of == binder => {
                fields.push((field, !indices.is_empty()));
            }
            Expr::Name { kind: NameKind::Binder | NameKind::Stripe, .. } => {
                foreign |= channel.kind == ChannelKind::Direct;
            }
            Expr::OfChannel { .. } => foreign = true,
            _ => {}
        });
        fields.dedup();
        let [(name, false)] = fields.as_slice() else {
            return self.refuse(&stmt.at, "the value is made from one whole field of the message");
        };
        let message = self.message(channel)?;
        let field = message.fields.iter().find(|field| field.name == *name);
        let Some(field) = field.filter(|_| !foreign) else {
            return self.refuse(&stmt.at, "the value is made from one whole field of the message");
        };
        if tensor.optional && field.optional_with.is_none() {
            let why =
                format!("`{}` may be absent, and the field `{name}` is always there", tensor.name);
            return self.refuse(&stmt.at, &why);
        }
        self.refuse_rows(stmt, value)?;
        self.refuse_optional(stmt, value)?;
        let same = parts(self.ir, &tensor.elem) == parts(self.ir, &field.elem);
        let copied = matches!(value, Expr::Field { .. });
        match (copied && same, field.row) {
            (true, row) => return Ok(row),
            (false, true) => {
                return self.refuse(&stmt.at, "the row of a message is stored as it is");
            }
            _ => {}
        }
        let plain = |elem| parts(self.ir, elem).iter().all(|(_, elem, _)| is_plain(elem));
        if !plain(&tensor.elem) || !plain(&field.elem) {
            return self.refuse(&stmt.at, super::forms::NOT_PLAIN);
        }
        self.check_expr(stmt, value)?;
        Ok(false)
    }

    // ---- Gathering ----

    /// `for token in .. gather part from .. { store ..; }`.
    pub(super) fn check_gather(&self, stmt: &Stmt) -> Checked {
        let Action::Gather { part, channel, peer, position, across, over, body, .. } = &stmt.action
        else {
            return Err(self.no_form(stmt));
        };
        let channel = self.channel(channel)?;
        let all = match over {
            Domain::Peers { set } => *set == PeerSet::All,
            Domain::Dim { name } => name == "ranks",
            _ => false,
        };
        if !all || !peer.as_ref().is_some_and(|peer| is_name(peer, across)) {
            return self.refuse(&stmt.at, "parts are brought together across `ranks`");
        }
        self.check_here(stmt, position)?;
        let mut rows = 0;
        for inner in body {
            rows += usize::from(self.check_gathered(inner, channel, part)?);
        }
        if rows != 1 {
            return self.refuse(&stmt.at, "a gather stores the sum of the row once");
        }
        Ok(())
    }

    /// Whether it is the sum of the row that `stmt` stores.
    fn check_gathered(&self, stmt: &Stmt, channel: &Channel, part: &str) -> Result<bool, Unfit> {
        let Action::Store { target, value } = &stmt.action else { return Err(self.no_form(stmt)) };
        let (field, bias) = sum_and_bias(value, part).ok_or_else(|| self.no_form(stmt))?;
        let out = self.tensor(&target.tensor)?;
        let Some(field) = field_of(self.ir, &channel.name, field) else {
            return Err(self.no_form(stmt));
        };
        for index in &target.indices {
            self.check_here(stmt, index)?;
        }
        if target.indices.len() + 1 != out.dims.len()
            || (out.optional && field.optional_with.is_none())
            || out.memory == Memory::Host
        {
            return self.refuse(&stmt.at, "a sum is stored to one row, in device memory");
        }
        if field.row {
            if !is_bf16(&field.elem, self.ir) || !is_bf16(&out.elem, self.ir) {
                return self.refuse(&stmt.at, "rows that are added up, and their sum, are `bf16`");
            }
        } else if bias.is_some() {
            return Err(self.no_form(stmt));
        } else if ![&field.elem, &out.elem]
            .iter()
            .all(|elem| matches!(parts(self.ir, elem).as_slice(), [(_, Elem::F32, _)]))
        {
            return self.refuse(&stmt.at, "fields that are added up, and their sum, are `f32`");
        }
        if let Some(Expr::Element { tensor, indices }) = bias {
            let tensor = self.tensor(tensor)?;
            if !is_bf16(&tensor.elem, self.ir)
                || indices.len() + 1 != tensor.dims.len()
                || indices.len() > 1
            {
                return self.refuse(&stmt.at, "a bias is a row of `bf16`");
            }
            for index in indices {
                self.check_here(stmt, index)?;
            }
        }
        Ok(field.row)
    }

    // ---- Rows in order of an index ----

    /// `for row in stripe { for index in number at .. where .. { .. } }`.
    pub(super) fn check_placed(&self, stmt: &Stmt, inner: &Stmt) -> Checked {
        let (
            Action::For { binder: row, filter: None, .. },
            Action::For { binder: index, domain, position: Some(first), filter, body },
        ) = (&stmt.action, &inner.action)
        else {
            return Err(self.no_form(stmt));
        };
        if !matches!(domain, Domain::Dim { .. }) {
            return Err(self.no_form(inner));
        }
        if mentions_name(first, row) {
            return self.refuse(&inner.at, "the first place does not depend on the row");
        }
        self.check_here(inner, first)?;
        self.check_rows(stmt, None)?;
        if let Some(condition) = filter {
            self.refuse_optional(inner, condition)?;
            self.check_expr(inner, condition)?;
        }
        for leaf in body {
            let (Action::Store { target, value } | Action::Record { target, value }) = &leaf.action
            else {
                return Err(self.no_form(leaf));
            };
            match moved_row(self.ir, leaf) {
                Some(from) => {
                    let out = self.tensor(&target.tensor)?;
                    let same = parts(self.ir, &from.elem) == parts(self.ir, &out.elem);
                    let whole = !from.optional && !out.optional && from.copies == 1;
                    if !same || !whole || out.dims.len() != 2 || mentions_name(value, index) {
                        return self.refuse(
                            &leaf.at,
                            "a row is copied as it is, found by the loop over rows",
                        );
                    }
                }
                None => {
                    self.check_element(leaf, target)?;
                    self.check_here(leaf, value)?;
                    self.check_value(leaf, target, value)?;
                }
            }
        }
        Ok(())
    }

    // ---- What one statement leaves for a later one ----

    /// Lanes and warps do not wait for one another inside a role: what one writes is read by the
    /// same lane only, in the same turn of a loop over tokens.
    pub(super) fn check_order(&self, role: &Role) -> Checked {
        let mut written: Vec<(usize, &Stmt, &Place)> = Vec::new();
        for (number, stmt) in role.body.iter().enumerate() {
            walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
                written.extend(walk::target(inner).map(|place| (number, inner, place)));
            });
        }
        for (number, stmt) in role.body.iter().enumerate() {
            let same = |from: usize, place: &Place, indices: &[Expr]| {
                self.same_lane(role, from, number)
                    && own_place(&role.body[from], &place.indices)
                    && own_place(stmt, indices)
            };
            let mut found = Ok(());
            walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
                walk::exprs(inner, &mut |part| {
                    let Expr::Element { tensor, indices } = part else { return };
                    let mut writes = written.iter().filter(|(.., place)| place.tensor == *tensor);
                    // Counters are added up at the end of the kernel.
                    let apart = writes.any(|(from, by, place)| {
                        matches!(by.action, Action::Count { .. }) || !same(*from, place, indices)
                    });
                    if apart && found.is_ok() {
                        let why = format!(
                            "another thread writes `{tensor}` in this role, and nothing orders the two"
                        );
                        found = self.refuse(&inner.at, &why);
                    }
                });
            });
            found?;
        }
        Ok(())
    }

    /// Whether turns of the two statements with one number are turns of one lane.
    fn same_lane(&self, role: &Role, a: usize, b: usize) -> bool {
        let over_stripe =
            |stmt: &Stmt| matches!(&stmt.action, Action::For { domain: Domain::Stripe, .. });
        a == b || (over_stripe(&role.body[a]) && over_stripe(&role.body[b]))
    }
}

/// Whether a place is found by the binder of the loop that is around it all.
fn own_place(stmt: &Stmt, indices: &[Expr]) -> bool {
    match &stmt.action {
        Action::For { binder, .. } => indices.iter().any(|index| is_name(index, binder)),
        _ => false,
    }
}

/// The row of numbers that a helper looks at.
fn looked_at(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Call { helper, args } if helper == "routed" || helper == "listed" => args.first(),
        _ => None,
    }
}

/// `channel[peer].position`
pub(crate) fn is_position(value: &Expr, channel: &Channel) -> bool {
    matches!(value, Expr::OfChannel { channel: of, field, .. }
        if *of == channel.name && field == "position")
}
