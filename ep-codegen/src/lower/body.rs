//! Statements.

use super::{Lowering, Named, condition};
use crate::ast;
use crate::ir::{self, WellKnown, helpers};

impl Lowering {
    /// Lowers a block; a `when` around statements becomes a condition on each of them.
    pub(super) fn body(&mut self, body: &[ast::Stmt]) -> Vec<ir::Stmt> {
        let mut out = Vec::new();
        self.stmts(body, &[], &mut out);
        out
    }

    fn stmts(&mut self, body: &[ast::Stmt], when: &[ir::When], out: &mut Vec<ir::Stmt>) {
        let bound = self.binders.len();
        for stmt in body {
            if let ast::StmtKind::When(inner) = &stmt.kind {
                let mut when = when.to_vec();
                when.push(condition(inner));
                self.stmts(&inner.body, &when, out);
                continue;
            }
            let action = self.action(&stmt.kind);
            out.push(ir::Stmt { action, when: when.to_vec(), at: self.source(&stmt.source) });
        }
        self.binders.truncate(bound);
    }

    fn action(&mut self, kind: &ast::StmtKind) -> ir::Action {
        match kind {
            ast::StmtKind::For(head) => self.for_(head),
            ast::StmtKind::Announce { channel, values } => ir::Action::Announce {
                channel: channel.name.to_string(),
                peer: self.slot(&channel.indices).unwrap_or(ir::Expr::Int { value: 0 }),
                values: self.values(values),
            },
            ast::StmtKind::Push { channel, position, values, rest } => {
                let mut lowered = self.values(values);
                if let Some(message) = rest {
                    self.copy_rest(&message.to_string(), &mut lowered);
                }
                ir::Action::Push {
                    channel: channel.name.to_string(),
                    peer: self.slot(&channel.indices),
                    position: self.slot(position),
                    values: lowered,
                }
            }
            ast::StmtKind::Store { place, value } => {
                let (target, value) = self.assigned(place, value);
                ir::Action::Store { target, value }
            }
            ast::StmtKind::Record { place, value } => {
                let (target, value) = self.assigned(place, value);
                ir::Action::Record { target, value }
            }
            ast::StmtKind::Add { place, value } => {
                let (target, value) = self.assigned(place, value);
                ir::Action::Add { target, value }
            }
            ast::StmtKind::Count { place } => ir::Action::Count { target: self.place(place) },
            ast::StmtKind::Raise { place } => ir::Action::Raise { target: self.place(place) },
            ast::StmtKind::AwaitWord { place, least } => {
                let word = self.place(place);
                ir::Action::AwaitWord { word, least: self.expr(least) }
            }
            ast::StmtKind::Let { name, value } => {
                let value = self.expr(value);
                self.binders.push(name.to_string());
                ir::Action::Let { name: name.to_string(), value }
            }
            ast::StmtKind::Await { channel } => ir::Action::Await { channel: channel.to_string() },
            ast::StmtKind::Close { channel } => ir::Action::Close { channel: channel.to_string() },
            // `stmts` has unfolded the one, and no fragment is left; an empty loop keeps the function total.
            ast::StmtKind::When(_) | ast::StmtKind::Call(_) => ir::Action::For {
                binder: String::new(),
                domain: ir::Domain::Tokens,
                position: None,
                filter: None,
                body: Vec::new(),
            },
        }
    }

    fn for_(&mut self, head: &ast::For) -> ir::Action {
        let binder = head.binder.to_string();
        let bound = self.binders.len();
        let action = if let Some((channel, indices)) = self.channel_of(&head.domain) {
            let peer = self.slot(indices);
            self.messages.insert(binder.clone(), channel.clone());
            self.binders.push(binder.clone());
            let position = head.position.as_ref().map(|position| self.expr(position));
            let filter = head.filter.as_ref().map(|filter| self.expr(filter));
            let body = self.body(&head.body);
            ir::Action::Receive { binder, channel, peer, position, filter, body }
        } else {
            let others = head
                .conditions_of_others()
                .filter(|_| self.is(WellKnown::Ranks.name(), Named::Dim));
            let domain = match &others {
                Some(_) => ir::Domain::Peers { set: ir::PeerSet::Others },
                None => self.domain(&head.domain),
            };
            self.binders.push(binder.clone());
            let position = head.position.as_ref().map(|position| self.expr(position));
            let conditions = others.unwrap_or_else(|| head.filter.iter().collect());
            let conditions = conditions.into_iter().map(|condition| self.expr(condition));
            let filter =
                conditions.reduce(|left, right| ir::Expr::of_two(ir::BinaryOp::And, left, right));
            match &head.gather {
                Some(gather) => self.gather(binder, domain, gather, &head.body),
                None => {
                    let body = self.body(&head.body);
                    let whole = ir::Action::For { binder, domain, position, filter, body };
                    if is_condition(&whole) { as_condition(whole) } else { whole }
                }
            }
        };
        self.binders.truncate(bound);
        action
    }

    fn gather(
        &mut self,
        binder: String,
        domain: ir::Domain,
        gather: &ast::Gather,
        body: &[ast::Stmt],
    ) -> ir::Action {
        let (part, across) = (gather.part.to_string(), gather.across.to_string());
        let channel = gather.channel.name.to_string();
        self.messages.insert(part.clone(), channel.clone());
        let over = self.domain(&gather.over);
        self.binders.extend([across.clone(), part.clone()]);
        let peer = self.slot(&gather.channel.indices);
        let position = self.slot(&gather.position).unwrap_or(ir::Expr::Int { value: 0 });
        let body = self.body(body);
        ir::Action::Gather { binder, domain, part, channel, peer, position, across, over, body }
    }

    /// The channel that a loop receives from, if its domain is one.
    fn channel_of<'a>(&self, domain: &'a ast::Domain) -> Option<(String, &'a [ast::Expr])> {
        let ast::Domain::Expr(whole) = domain else { return None };
        let (name, indices): (_, &[ast::Expr]) = match &whole.kind {
            ast::ExprKind::Name(name) => (name.to_string(), &[]),
            ast::ExprKind::Index { base, indices } => match &base.kind {
                ast::ExprKind::Name(name) => (name.to_string(), indices),
                _ => return None,
            },
            _ => return None,
        };
        self.is(&name, Named::Channel).then_some((name, indices))
    }

    /// What a loop or fold runs over.
    pub(super) fn domain(&mut self, domain: &ast::Domain) -> ir::Domain {
        let whole = match domain {
            ast::Domain::Range { low, high } => {
                return ir::Domain::Range { low: self.expr(low), high: self.expr(high) };
            }
            ast::Domain::Once { .. } => return ir::Domain::Once,
            ast::Domain::Expr(whole) => whole,
        };
        let ast::ExprKind::Name(name) = &whole.kind else {
            return ir::Domain::Row { row: self.expr(whole) };
        };
        let name = name.to_string();
        let peers = |set| ir::Domain::Peers { set };
        match self.names.get(&name) {
            Some(Named::Size) | None if WellKnown::Tokens.is(&name) => ir::Domain::Tokens,
            Some(Named::Dim | Named::Tune) => ir::Domain::Dim { name },
            Some(Named::Arg | Named::Size) => {
                ir::Domain::Range { low: ir::Expr::Int { value: 0 }, high: self.expr(whole) }
            }
            Some(Named::Tensor | Named::Channel) => ir::Domain::Row { row: self.expr(whole) },
            None => match name.as_str() {
                "stripe" => ir::Domain::Stripe,
                "all" => peers(ir::PeerSet::All),
                "others" => peers(ir::PeerSet::Others),
                "local" => peers(ir::PeerSet::Local),
                "rail" => peers(ir::PeerSet::Rail),
                _ => ir::Domain::Row { row: self.expr(whole) },
            },
        }
    }

    /// One index as it is, several as a call of [`helpers::SLOT`].
    fn slot(&mut self, indices: &[ast::Expr]) -> Option<ir::Expr> {
        let mut lowered = self.exprs(indices);
        if lowered.len() > 1 {
            return Some(ir::Expr::Call { helper: helpers::SLOT.to_string(), args: lowered });
        }
        lowered.pop()
    }

    fn values(&mut self, values: &[ast::FieldValue]) -> Vec<ir::FieldValue> {
        values
            .iter()
            .map(|field| ir::FieldValue {
                name: field.name.to_string(),
                value: self.expr(&field.value),
            })
            .collect()
    }

    /// `..message`: every field that `values` does not give.
    fn copy_rest(&self, of: &str, values: &mut Vec<ir::FieldValue>) {
        let channel = self.messages.get(of).and_then(|name| self.channel_named(name));
        let message = channel.and_then(|channel| {
            self.out.messages.iter().find(|message| message.name == channel.message)
        });
        for field in message.into_iter().flat_map(|message| &message.fields) {
            if values.iter().any(|value| value.name == field.name) {
                continue;
            }
            let value = ir::Expr::Field {
                of: of.to_string(),
                field: field.name.clone(),
                indices: Vec::new(),
            };
            values.push(ir::FieldValue { name: field.name.clone(), value });
        }
    }

    /// `place = value`. The binder of a prefix sum is bound in the place too: it says where each
    /// partial sum goes.
    fn assigned(&mut self, place: &ast::Place, value: &ast::Expr) -> (ir::Place, ir::Expr) {
        let bound = self.binders.len();
        if let ast::ExprKind::Fold { binder, .. } = &value.kind {
            self.binders.push(binder.to_string());
        }
        let target = self.place(place);
        self.binders.truncate(bound);
        (target, self.expr(value))
    }

    fn place(&mut self, place: &ast::Place) -> ir::Place {
        ir::Place { tensor: place.tensor.to_string(), indices: self.exprs(&place.indices) }
    }
}

/// Whether a loop is `for once in 0..1 where condition`, with a binder that says nothing.
fn is_condition(whole: &ir::Action) -> bool {
    let ir::Action::For { binder, domain, position: None, filter: Some(filter), body } = whole
    else {
        return false;
    };
    let ends = (ir::Expr::Int { value: 0 }, ir::Expr::Int { value: 1 });
    let mut named = false;
    let mut see = |part: &ir::Expr| {
        named |= matches!(part, ir::Expr::Name { name, .. } if name == binder);
    };
    ir::walk::expr(filter, &mut see);
    ir::walk::stmts(body, &mut |stmt| {
        let places = ir::walk::target(stmt).into_iter().chain(ir::walk::awaited(stmt));
        places.for_each(|place| {
            place.indices.iter().for_each(|index| ir::walk::expr(index, &mut see))
        });
        ir::walk::exprs(stmt, &mut see);
    });
    !named && matches!(domain, ir::Domain::Range { low, high } if (low, high) == (&ends.0, &ends.1))
}

/// The loop as an `if`.
fn as_condition(whole: ir::Action) -> ir::Action {
    match whole {
        ir::Action::For { position, filter, body, .. } => {
            let binder = ast::UNNAMED.to_string();
            ir::Action::For { binder, domain: ir::Domain::Once, position, filter, body }
        }
        other => other,
    }
}
