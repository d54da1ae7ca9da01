//! One use of a fragment: its statements or declarations, moved to the place of use.

use std::collections::BTreeMap;
use std::mem;

use super::known::Definition;
use crate::ast::visit::{self, NameUse, Visitor};
use crate::ast::{
    Argument, Call, Domain, Expr, ExprKind, For, Ident, Item, ItemsUse, Origin, Param, Span, Stmt,
    StmtKind, TokenRange,
};
use crate::ir::CONDITION;
use crate::syntax::reprint;

/// Expressions that stand for parameters may have so many parts in one role.
const PARTS_MAX: usize = 100_000;

/// Moves what a fragment holds to one place of use.
pub(super) struct Instance<'a> {
    found: &'a Definition,
    /// What stands for each parameter.
    args: BTreeMap<String, &'a Argument>,
    /// Other names for those that would mean something else at the place of use.
    fresh: BTreeMap<String, String>,
    at: TokenRange,
    origins: &'a mut Vec<Origin>,
    /// The origin of what is being moved.
    origin: usize,
    /// Parts of expressions that stand for parameters, up to here.
    parts: usize,
}

impl<'a> Instance<'a> {
    /// For declarations.
    pub(super) fn of_items(
        found: &'a Definition,
        used: &ItemsUse,
        origins: &'a mut Vec<Origin>,
    ) -> Instance<'a> {
        let (args, fresh, at) = (BTreeMap::new(), BTreeMap::new(), TokenRange::from(&used.name));
        Instance { found, args, fresh, at, origins, origin: 0, parts: 0 }
    }

    /// For statements.
    pub(super) fn of_call(
        found: &'a Definition,
        (params, call): (&[Param], &'a Call),
        fresh: BTreeMap<String, String>,
        origins: &'a mut Vec<Origin>,
    ) -> Instance<'a> {
        let names = params.iter().map(|param| param.name.to_string());
        let args = names.zip(&call.args).collect();
        Instance { found, args, fresh, at: call.at, origins, origin: 0, parts: 0 }
    }

    /// Moves declarations.
    pub(super) fn declare(&mut self, items: &mut [Item]) {
        items.iter_mut().for_each(|inner| self.item(inner));
    }

    /// Whether the arguments made what they stand in too large.
    pub(super) fn is_too_large(&self) -> bool {
        self.parts > PARTS_MAX
    }

    /// Notes what comes from `text` at `at` from now on.
    fn come_from(&mut self, text: String, at: TokenRange) {
        let origin = Origin {
            fragment: self.found.fragment.name.to_string(),
            file: self.found.file().cloned(),
            text,
            at: self.found.is_in_block().then_some(at),
            user: self.at.first.origin,
        };
        self.origin = self.origins.len();
        self.origins.push(origin);
    }

    fn here(&self, token: proc_macro2::Span) -> Span {
        Span { token, origin: Some(self.origin) }
    }

    /// The block that a call without arguments stands for, if it names a parameter.
    fn block(&self, stmt: &Stmt) -> Option<&'a [Stmt]> {
        let StmtKind::Call(call) = &stmt.kind else { return None };
        match self.args.get(&call.name.to_string()) {
            Some(Argument::Block { body, .. }) => Some(body),
            _ => None,
        }
    }
}

impl Visitor for Instance<'_> {
    fn span(&mut self, span: &mut Span) {
        *span = self.here(self.at.first.token);
    }

    fn range(&mut self, range: &mut TokenRange) {
        let (first, last) = (self.at.first.token, self.at.last.token);
        *range = TokenRange { first: self.here(first), last: self.here(last) };
    }

    fn name(&mut self, name: &mut Ident, what: NameUse) {
        let mut at = self.at.first.token;
        if !matches!(what, NameUse::Helper | NameUse::Fragment | NameUse::Other) {
            let text = name.to_string();
            if let Some(Argument::Value(Expr { kind: ExprKind::Name(given), .. })) =
                self.args.get(&text)
            {
                at = given.span().token;
                *name = given.clone();
            } else if let Some(fresh) = self.fresh.get(&text) {
                *name = Ident::new(fresh, name.span());
            }
        }
        name.set_span(self.here(at));
    }

    fn expr(&mut self, value: &mut Expr) {
        let given = match &value.kind {
            ExprKind::Name(name) => self.args.get(&name.to_string()),
            _ => None,
        };
        if let Some(Argument::Value(given)) = given {
            if self.parts <= PARTS_MAX {
                *value = given.clone();
            }
            let mut marks = Marks { origin: self.origin, parts: 0 };
            marks.expr(value);
            self.parts += marks.parts;
            return;
        }
        visit::expr(self, value);
    }

    fn call(&mut self, call: &mut Call) {
        for arg in &mut call.args {
            // A block may go on to another fragment.
            if let Argument::Value(Expr { kind: ExprKind::Name(name), .. }) = arg
                && let Some(block @ Argument::Block { .. }) = self.args.get(&name.to_string())
            {
                *arg = (*block).clone();
            } else {
                visit::argument(self, arg);
            }
        }
        self.name(&mut call.name, NameUse::Fragment);
        self.range(&mut call.at);
    }

    fn item(&mut self, declared: &mut Item) {
        let outer = self.origin;
        let (text, at) = head(declared);
        self.come_from(text, at);
        visit::item(self, declared);
        self.origin = outer;
    }

    fn body(&mut self, body: &mut Vec<Stmt>) {
        let outer = self.origin;
        // The parts of an `if` with an `else` are one statement.
        let (mut condition, mut origin_of_condition) = (String::new(), outer);
        for mut stmt in mem::take(body) {
            if let Some(block) = self.block(&stmt) {
                body.extend(block.iter().cloned());
                continue;
            }
            if is_behind_condition(&stmt.kind) {
                self.origin = origin_of_condition;
            } else {
                let text = reprint::statement(&stmt, &mut String::new());
                self.come_from(text, stmt.source.tokens);
            }
            let origin = self.origin;
            if matches!(&stmt.kind, StmtKind::Let { name, .. } if name == CONDITION) {
                origin_of_condition = origin;
            }
            visit::stmt(self, &mut stmt);
            self.origin = origin;
            stmt.source.text = reprint::statement(&stmt, &mut condition);
            body.push(stmt);
        }
        self.origin = outer;
    }
}

/// Whether a statement is a block of an `if` with an `else`, whose condition was found out before.
pub(super) fn is_behind_condition(kind: &StmtKind) -> bool {
    let is_condition =
        |value: &Expr| matches!(&value.kind, ExprKind::Name(name) if name == CONDITION);
    let StmtKind::For(For { domain: Domain::Once { .. }, filter: Some(filter), .. }) = kind else {
        return false;
    };
    match &filter.kind {
        ExprKind::Not { value } => is_condition(value),
        _ => is_condition(filter),
    }
}

/// How a declaration begins, and where.
fn head(item: &Item) -> (String, TokenRange) {
    let excerpt = match item {
        Item::Shape(shape) => return ("shape".to_string(), shape.keyword.into()),
        Item::Phase(phase) => return (format!("phase {}", phase.name), (&phase.name).into()),
        Item::When(when) => return (reprint::when(when), (&when.axis).into()),
        Item::Use(used) => return (format!("use {}", used.name), (&used.name).into()),
        Item::Tune(tunes) => tunes.first().map(|tune| &tune.source),
        Item::Arg(args) => args.first().map(|arg| &arg.source),
        Item::Tensors(tensors) => tensors.list.first().map(|tensor| &tensor.source),
        Item::Variant(variant) => Some(&variant.source),
        Item::Size(size) => Some(&size.source),
        Item::Message(message) => Some(&message.source),
        Item::Channel(channel) => Some(&channel.source),
        Item::Role(role) => Some(&role.source),
        Item::Uses(uses) => Some(&uses.source),
        Item::CudaFn(function) => Some(&function.source),
    };
    match excerpt {
        Some(source) => (source.text.clone(), source.tokens),
        None => ("..".to_string(), proc_macro2::Span::call_site().into()),
    }
}

/// Keeps the places of an argument, and notes the statement that it stands in.
struct Marks {
    origin: usize,
    parts: usize,
}

impl Visitor for Marks {
    fn span(&mut self, span: &mut Span) {
        span.origin = Some(self.origin);
        self.parts += 1;
    }
}
