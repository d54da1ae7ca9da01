//! The fragments that a block may use: its own, those of the files that it names, and the standard ones.

use std::collections::BTreeMap;

use proc_macro2::TokenStream;

use super::names::{self, Names};
use crate::ast::visit::{self, NameUse, Visitor};
use crate::ast::{
    Argument, Call, Expr, ExprKind, File, Fragment, FragmentBody, FragmentFile, Ident, Item, Param,
    ParamKind, Span, Stmt,
};
use crate::cuda_fn::ReadFile;
use crate::diagnostics::{
    Diagnostics, cuda_fn as wording_of_files, form, fragments as wording, names as wording_of_names,
};
use crate::ir::helpers;
use crate::keywords::STATEMENTS;
use crate::syntax::parse;

/// The standard fragments.
pub(super) const STANDARD: &[&str] =
    &[include_str!("../../prelude/payload.pipe"), include_str!("../../prelude/dispatch.pipe")];

/// What a fragment consists of.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sort {
    Items,
    Statements,
}

/// Where a fragment stands.
#[derive(Clone)]
enum Place {
    Block,
    File(String),
    Standard,
}

/// A fragment and where it stands.
pub(super) struct Definition {
    pub(super) fragment: Fragment,
    place: Place,
}

impl Definition {
    /// Its declarations, if it is made of them.
    pub(super) fn items(&self) -> Option<&[Item]> {
        match &self.fragment.body {
            FragmentBody::Items(items) => Some(items),
            FragmentBody::Statements { .. } => None,
        }
    }

    /// Its parameters and statements, if it is made of them.
    pub(super) fn statements(&self) -> Option<(&[Param], &[Stmt])> {
        match &self.fragment.body {
            FragmentBody::Statements { params, body } => Some((params, body)),
            FragmentBody::Items(_) => None,
        }
    }

    /// Whether rustc can show its tokens.
    pub(super) fn is_in_block(&self) -> bool {
        matches!(self.place, Place::Block)
    }

    /// The file that it stands in.
    pub(super) fn file(&self) -> Option<&String> {
        match &self.place {
            Place::File(path) => Some(path),
            Place::Block | Place::Standard => None,
        }
    }
}

/// All of them, by name.
pub(super) struct Known {
    list: BTreeMap<String, Definition>,
}

impl Known {
    /// Those that `file` may use; what is wrong with those that are not standard is in `errors`.
    pub(super) fn new(file: &File, load: ReadFile, errors: &mut Diagnostics) -> Known {
        let mut known = Known { list: BTreeMap::new() };
        for text in STANDARD {
            for fragment in text.parse().map(parse).unwrap_or_default().0.fragments {
                let name = fragment.name.to_string();
                known.list.insert(name, Definition { fragment, place: Place::Standard });
            }
        }
        for fragment in &file.fragments {
            known.add(fragment.clone(), Place::Block, errors);
        }
        for named in &file.files {
            match load(&named.path) {
                Ok(text) => known.add_file(named, &text, errors),
                Err(reason) => {
                    errors.push(wording_of_files::cannot_read(named.span, &named.path, &reason))
                }
            }
        }
        for Definition { fragment, place } in known.list.values() {
            let mut found = Diagnostics::new();
            match place {
                Place::Standard => {}
                Place::Block => known.check(fragment, errors),
                Place::File(path) => {
                    known.check(fragment, &mut found);
                    errors.extend(found.at_file(fragment.name.span(), path));
                }
            }
        }
        known
    }

    fn add_file(&mut self, named: &FragmentFile, text: &str, errors: &mut Diagnostics) {
        let tokens = match text.parse::<TokenStream>() {
            Ok(tokens) => tokens,
            Err(error) => {
                let reason = error.to_string();
                return errors.push(wording_of_files::cannot_read(
                    named.span,
                    &named.path,
                    &reason,
                ));
            }
        };
        let (mut file, mut found) = parse(tokens);
        for pipeline in &file.pipelines {
            found.push(form::unknown_word(
                pipeline.keyword,
                "declaration of a file of fragments",
                "pipeline",
                &["fragment", "items"],
            ));
        }
        for inner in &file.files {
            found.push(form::unexpected(inner.span, "`fragments from`"));
        }
        let mut moves = Moves { to: named.span };
        for fragment in &mut file.fragments {
            moves.fragment(fragment);
        }
        for fragment in file.fragments {
            self.add(fragment, Place::File(named.path.clone()), &mut found);
        }
        errors.extend(found.at_file(named.span, &named.path));
    }

    fn add(&mut self, fragment: Fragment, place: Place, errors: &mut Diagnostics) {
        let name = &fragment.name;
        if STATEMENTS.iter().any(|word| name == *word) {
            return errors.push(wording::name_taken(name, "a statement of the language"));
        }
        match self.list.get(&name.to_string()) {
            Some(Definition { place: Place::Standard, .. }) => {
                return errors.push(wording::name_taken(name, "a standard fragment"));
            }
            Some(Definition { fragment: first, .. }) => {
                return errors.push(wording_of_names::duplicate(name, "fragment", &first.name));
            }
            None => {}
        }
        self.list.insert(name.to_string(), Definition { fragment, place });
    }

    /// Parameters have different names, and every name in the statements is a parameter where one may stand, a
    /// name that the fragment gives, or one that means the same everywhere.
    pub(super) fn check(&self, fragment: &Fragment, errors: &mut Diagnostics) {
        let FragmentBody::Statements { params, body } = &fragment.body else { return };
        for (index, param) in params.iter().enumerate() {
            if let Some(first) = params[..index].iter().find(|first| first.name == param.name) {
                errors.push(wording_of_names::duplicate(&param.name, "parameter", &first.name));
            }
        }
        let mut body = body.clone();
        let own = Names::of(&mut body, self);
        let mut uses = Uses { fragment, params, own: &own, errors };
        uses.body(&mut body);
    }

    /// The fragment of this name.
    pub(super) fn find(&self, name: &Ident) -> Option<&Definition> {
        self.list.get(&name.to_string())
    }

    /// The names of one sort, for a message.
    pub(super) fn names(&self, sort: Sort) -> Vec<String> {
        let all = self.list.iter();
        let of_sort = all.filter(|(_, found)| (sort == Sort::Items) == found.items().is_some());
        of_sort.map(|(name, _)| name.clone()).collect()
    }
}

/// Moves everything to the place where a file is named: its own places are nowhere in the block.
struct Moves {
    to: Span,
}

impl Visitor for Moves {
    fn span(&mut self, span: &mut Span) {
        *span = self.to;
    }
}

impl Moves {
    fn fragment(&mut self, fragment: &mut Fragment) {
        self.name(&mut fragment.name, NameUse::Other);
        match &mut fragment.body {
            FragmentBody::Items(items) => items.iter_mut().for_each(|inner| self.item(inner)),
            FragmentBody::Statements { params, body } => {
                for param in params {
                    self.name(&mut param.name, NameUse::Other);
                    self.span(&mut param.kind.span);
                }
                self.body(body);
            }
        }
    }
}

/// Judges each name of a fragment.
struct Uses<'a> {
    fragment: &'a Fragment,
    params: &'a [Param],
    own: &'a Names<'a>,
    errors: &'a mut Diagnostics,
}

impl Uses<'_> {
    fn judge(&mut self, name: &Ident, what: NameUse) {
        use ParamKind::*;
        let Some(param) = self.params.iter().find(|param| param.name == *name) else {
            return self.judge_other(name, what);
        };
        let kind = param.kind.value;
        let (fits, wanted) = match what {
            NameUse::Binder | NameUse::Let => (kind == Name, "a name"),
            NameUse::Tensor => (kind == Tensor, "a tensor"),
            NameUse::Channel => (kind == Channel, "a channel"),
            NameUse::Message => (kind == Message, "a message"),
            NameUse::Axis => (kind == Variant, "a variant"),
            NameUse::Value => (!matches!(kind, Variant | Block), "a value"),
            NameUse::Fragment => (kind == Block, "a block"),
            NameUse::Helper | NameUse::Other => return,
        };
        if !fits {
            self.errors.push(wording::parameter_elsewhere(name, param, wanted));
        }
    }

    fn judge_other(&mut self, name: &Ident, what: NameUse) {
        let is_known = match what {
            NameUse::Binder | NameUse::Let | NameUse::Fragment | NameUse::Other => true,
            NameUse::Helper => {
                let text = name.to_string();
                helpers::find(&text, 0).is_some() || crate::ir::Fold::of_word(&text).is_some()
            }
            NameUse::Value => self.own.binds(name) || names::means_the_same(name),
            NameUse::Message => self.own.binds(name),
            NameUse::Tensor | NameUse::Channel | NameUse::Axis => false,
        };
        if !is_known {
            self.errors.push(wording::not_a_parameter(name, &self.fragment.name));
        }
    }
}

impl Visitor for Uses<'_> {
    fn name(&mut self, name: &mut Ident, what: NameUse) {
        self.judge(name, what);
    }

    fn call(&mut self, call: &mut Call) {
        self.judge(&call.name, NameUse::Fragment);
        for arg in &mut call.args {
            match arg {
                // Any parameter may go on to another fragment.
                Argument::Value(Expr { kind: ExprKind::Name(name), .. })
                    if self.own.binds(name)
                        || self.params.iter().any(|param| param.name == *name) => {}
                Argument::Value(value) => visit::expr(self, value),
                Argument::Block { body, .. } => self.body(body),
            }
        }
    }
}
