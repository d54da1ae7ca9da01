//! Uses of statements: arguments fit the parameters, and the names of a fragment are its own.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use super::instance::{Instance, is_behind_condition};
use super::known::{Definition, Known, Sort};
use super::names::{self, Declared, Names};
use super::too_deep;
use crate::ast::{
    Argument, Call, Domain, Expr, ExprKind, For, Ident, Origin, Param, ParamKind, Role, Share,
    Stmt, StmtKind,
};
use crate::diagnostics::{
    Diagnostic, Diagnostics, fragments as wording, names as wording_of_names,
};
use crate::keywords::STATEMENTS;

/// A name that a role, a loop or a `let` gives.
struct Binder {
    name: String,
    is_message: bool,
}

/// Replaces the uses of statements in the roles of one pipeline.
pub(super) struct Calls<'a> {
    known: &'a Known,
    declared: &'a Declared,
    origins: &'a mut Vec<Origin>,
    errors: &'a mut Diagnostics,
    /// What is in scope, innermost last.
    scope: Vec<Binder>,
    /// The names in the role and in the fragments around the statement.
    around: Vec<BTreeSet<String>>,
    /// The fragments around the statement, outermost first.
    chain: Vec<String>,
}

impl<'a> Calls<'a> {
    pub(super) fn new(
        known: &'a Known,
        declared: &'a Declared,
        origins: &'a mut Vec<Origin>,
        errors: &'a mut Diagnostics,
    ) -> Calls<'a> {
        let (scope, around, chain) = (Vec::new(), Vec::new(), Vec::new());
        Calls { known, declared, origins, errors, scope, around, chain }
    }

    /// Replaces the uses in a role.
    pub(super) fn role(&mut self, role: &mut Role) {
        let has_calls = super::calls_any(&role.body);
        let shared = match &role.share {
            Some(Share::Warps(names)) => names.as_slice(),
            _ => &[],
        };
        for name in role.binder.iter().chain(shared) {
            self.bind(name, false);
        }
        self.around.push(Names::of(&mut role.body, self.known).all);
        self.block(&mut role.body);
        self.around.pop();
        self.scope.clear();
        if has_calls {
            tell_apart(&mut role.body, &mut BTreeMap::new());
        }
    }

    fn bind(&mut self, name: &Ident, is_message: bool) {
        self.scope.push(Binder { name: name.to_string(), is_message });
    }

    fn block(&mut self, body: &mut Vec<Stmt>) {
        let outer = self.scope.len();
        self.statements(body);
        self.scope.truncate(outer);
    }

    /// Statements that stand among others of their block.
    fn statements(&mut self, body: &mut Vec<Stmt>) {
        for mut stmt in mem::take(body) {
            match &mut stmt.kind {
                StmtKind::For(inner) => {
                    let outer = self.scope.len();
                    self.bind_loop(inner);
                    self.block(&mut inner.body);
                    self.scope.truncate(outer);
                }
                StmtKind::When(when) => self.block(&mut when.body),
                StmtKind::Let { name, .. } => self.bind(name, false),
                StmtKind::Call(call) => {
                    body.extend(self.call(call));
                    continue;
                }
                _ => {}
            }
            body.push(stmt);
        }
    }

    fn bind_loop(&mut self, inner: &For) {
        let is_message = match &inner.domain {
            Domain::Expr(Expr { kind: ExprKind::Name(name), .. }) => self.is_channel(name),
            Domain::Expr(Expr { kind: ExprKind::Index { base, .. }, .. }) => {
                matches!(&base.kind, ExprKind::Name(name) if self.is_channel(name))
            }
            _ => false,
        };
        self.bind(&inner.binder, is_message);
        if let Some(gather) = &inner.gather {
            self.bind(&gather.across, false);
            self.bind(&gather.part, true);
        }
    }

    fn binder(&self, name: &Ident) -> Option<&Binder> {
        self.scope.iter().rev().find(|binder| *name == binder.name)
    }

    fn is_channel(&self, name: &Ident) -> bool {
        self.binder(name).is_none() && self.declared.channels.contains(&name.to_string())
    }

    fn is_tensor(&self, name: &Ident) -> bool {
        self.binder(name).is_none() && self.declared.tensors.contains(&name.to_string())
    }

    fn is_message(&self, name: &Ident) -> bool {
        self.binder(name).is_some_and(|binder| binder.is_message)
    }

    fn is_axis(&self, name: &Ident) -> bool {
        self.binder(name).is_none() && self.declared.axes.contains(&name.to_string())
    }

    /// What a call stands for; nothing after a mistake.
    fn call(&mut self, call: &mut Call) -> Vec<Stmt> {
        // A block belongs to the place of use, and so do the fragments in it.
        for arg in &mut call.args {
            if let Argument::Block { body, .. } = arg {
                self.block(body);
            }
        }
        let Some(found) = self.known.find(&call.name) else {
            let words = STATEMENTS.iter().map(|word| word.to_string());
            let known = self.known.names(Sort::Statements).into_iter().chain(words).collect();
            self.errors.push(wording_of_names::unknown(&call.name, "fragment", known));
            return Vec::new();
        };
        let Some((params, body)) = found.statements() else {
            self.errors.push(wording::other_sort(&call.name, true));
            return Vec::new();
        };
        if let Some(error) = too_deep(&call.name, &self.chain) {
            self.errors.push(error);
            return Vec::new();
        }
        let mut body = body.to_vec();
        let own = Names::of(&mut body, self.known);
        if !self.args_fit(call, params, found) || self.hides_number(call, &own) {
            return Vec::new();
        }
        let fresh = self.fresh((params, call), (&body, &own));
        let mut instance = Instance::of_call(found, (params, call), fresh, self.origins);
        crate::ast::visit::Visitor::body(&mut instance, &mut body);
        if instance.is_too_large() {
            self.errors.push(wording::too_large(call));
            return Vec::new();
        }
        self.nested(found, &mut body);
        body
    }

    /// Replaces the uses of other fragments in one that stands for a call.
    fn nested(&mut self, found: &Definition, body: &mut Vec<Stmt>) {
        self.chain.push(found.fragment.name.to_string());
        self.around.push(Names::of(body, self.known).all);
        self.statements(body);
        self.around.pop();
        self.chain.pop();
    }

    fn args_fit(&mut self, call: &Call, params: &[Param], found: &Definition) -> bool {
        if call.args.len() != params.len() {
            self.errors.push(wording::argument_count(call, params));
            return false;
        }
        let fit: Vec<bool> = call
            .args
            .iter()
            .zip(params)
            .map(|(arg, param)| self.fits((call, found), arg, param))
            .collect();
        fit.iter().all(|fits| *fits)
    }

    /// Whether a binder around the call hides a number that the fragment means.
    fn hides_number(&mut self, call: &Call, own: &Names<'_>) -> bool {
        let mut numbers = names::numbers_among(own);
        let hidden = numbers.find(|number| self.scope.iter().any(|binder| binder.name == *number));
        if let Some(number) = hidden {
            self.errors.push(wording::number_hidden(call, number));
        }
        hidden.is_some()
    }

    /// Whether an argument is what its parameter asks for.
    fn fits(&mut self, (call, found): (&Call, &Definition), arg: &Argument, param: &Param) -> bool {
        let name = match arg {
            Argument::Block { .. } => None,
            Argument::Value(Expr { kind: ExprKind::Name(name), .. }) => Some(name),
            Argument::Value(_) if param.kind.value == ParamKind::Value => return true,
            Argument::Value(_) => None,
        };
        let is_block = matches!(arg, Argument::Block { .. });
        let fits = match (param.kind.value, name) {
            (ParamKind::Block, _) => is_block,
            (ParamKind::Name, Some(_)) => true,
            (ParamKind::Value, Some(name)) => {
                !self.is_channel(name) && !self.is_message(name) && !self.is_axis(name)
            }
            (ParamKind::Tensor, Some(name)) => self.is_tensor(name),
            (ParamKind::Channel, Some(name)) => self.is_channel(name),
            (ParamKind::Message, Some(name)) => self.is_message(name),
            (ParamKind::Variant, Some(name)) => self.is_axis(name),
            (_, None) => false,
        };
        if !fits {
            let unknown = name.and_then(|name| self.unknown(name, param.kind.value));
            let other = || {
                let error = wording::argument_kind(arg.at(), &call.name, param);
                match found.is_in_block() {
                    true => error.also(&param.name, format!("`{}` is declared here", param.name)),
                    false => error,
                }
            };
            self.errors.push(unknown.unwrap_or_else(other));
        }
        fits
    }

    /// The error of an argument that stands for nothing.
    fn unknown(&self, name: &Ident, kind: ParamKind) -> Option<Diagnostic> {
        let messages = self.scope.iter().filter(|binder| binder.is_message);
        let (what, known) = match kind {
            ParamKind::Tensor => ("tensor", self.declared.tensors.iter().cloned().collect()),
            ParamKind::Channel => ("channel", self.declared.channels.iter().cloned().collect()),
            ParamKind::Variant => ("variant", self.declared.axes.iter().cloned().collect()),
            ParamKind::Message => ("message", messages.map(|it| it.name.clone()).collect()),
            ParamKind::Value | ParamKind::Name | ParamKind::Block => return None,
        };
        let is_known = self.binder(name).is_some()
            || self.declared.all.contains(&name.to_string())
            || names::means_the_same(name);
        (!is_known).then(|| wording_of_names::unknown(name, what, known))
    }

    /// Other names for those of a fragment that would mean something else at the place of use, or hide something there.
    fn fresh(
        &self,
        (params, call): (&[Param], &mut Call),
        (body, own): (&[Stmt], &Names<'_>),
    ) -> BTreeMap<String, String> {
        let mut given = Names::none(self.known);
        call.args.iter_mut().for_each(|arg| given.add(arg));
        let lets = names::lets(body);
        let around = |name: &String| self.around.iter().any(|names| names.contains(name));
        let is_taken = |name: &String| {
            self.declared.all.contains(name)
                || given.all.contains(name)
                || self.scope.iter().any(|binder| binder.name == *name)
        };
        let mut fresh = BTreeMap::new();
        let is_param = |name: &String| params.iter().any(|param| param.name == *name);
        for name in own.bound.iter().filter(|name| !is_param(name)) {
            // The statements after the use see a `let`, too.
            if is_taken(name) || lets.contains(name) && around(name) {
                let others = (2..).map(|number| format!("{name}_{number}"));
                let free = |it: &String| !is_taken(it) && !around(it) && !own.all.contains(it);
                fresh.extend(others.into_iter().find(free).map(|other| (name.clone(), other)));
            }
        }
        fresh
    }
}

/// Numbers the statements that read the same and stand in one line, as all statements of a fragment do: later stages
/// know a statement by its line and its text.
fn tell_apart(body: &mut [Stmt], seen: &mut BTreeMap<(usize, String), usize>) {
    for stmt in body {
        let source = &mut stmt.source;
        if !is_behind_condition(&stmt.kind) {
            let line = source.tokens.first.start().line;
            let times = seen.entry((line, source.text.clone())).or_insert(0);
            *times += 1;
            if *times > 1 {
                let (text, end) = match source.text.strip_suffix(';') {
                    Some(text) => (text, ";"),
                    None => (source.text.as_str(), ""),
                };
                source.text = format!("{text} ({times}){end}");
            }
        }
        match &mut stmt.kind {
            StmtKind::For(inner) => tell_apart(&mut inner.body, seen),
            StmtKind::When(when) => tell_apart(&mut when.body, seen),
            _ => {}
        }
    }
}
