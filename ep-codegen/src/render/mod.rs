//! From a selected pipeline to the body of its kernel: everything but the numbers.
//!
//! Rust decides and names, the templates of `templates/kernels` compose, the device library does the
//! work. What depends on the shape is a member of `Cfg`, which the plan writes in front.

mod composed;
mod compute;
mod count;
mod direct;
mod expr;
mod gather;
mod items;
mod layout;
mod names;
mod one_launch;
mod placed;
mod ring;
mod role;
mod team;
mod templates;
mod twin;
mod way_back;

use crate::ir::facts::{Facts, facts};
use crate::ir::{
    Action, Channel, ChannelKind, Expr, Message, Pipeline, Share, Source, Stmt, Tensor, walk,
};
use crate::schedule::{RuleSet, Ways};
use expr::Scope;
pub use templates::RenderError;
use templates::Templates;

/// A text, or the defect of ours that prevents it.
type Rendered = Result<String, RenderError>;

/// The body of the kernel of a pipeline from which one choice of arms has been selected.
pub fn body(ir: &Pipeline) -> Rendered {
    body_with(ir, RuleSet::All)
}

/// The same with some rules alone.
pub fn body_with(ir: &Pipeline, rules: RuleSet) -> Rendered {
    let ways = Ways::of(ir, rules);
    let element = if !binds(ir, "i") { "i" } else { "i_of_row" };
    let render = Renderer { ir, element, facts: facts(ir), ways, templates: Templates::load()? };
    let mut roles = Vec::new();
    for role in &ir.roles {
        roles.push(render.role(role)?);
    }
    let text = render.step(
        "kernel",
        &[
            ("args", &render.args()?),
            ("smem", &render.smem()?),
            ("cuda_fns", &render.cuda_fns()),
            ("roles", &roles.join("\n")),
            ("entry", &render.entries()?),
            ("name", &crate::plan::snake(&ir.name)),
        ],
    )?;
    Ok(layout::lay_out(&text))
}

/// One selected pipeline on its way to text.
struct Renderer<'a> {
    ir: &'a Pipeline,
    /// The index of an element, in loops over the elements of a row.
    element: &'static str,
    facts: Facts,
    ways: Ways,
    templates: Templates,
}

impl<'a> Renderer<'a> {
    /// Renders a template whose view is a list of names and texts.
    fn step(&self, name: &str, view: &[(&'static str, &str)]) -> Rendered {
        self.templates.render(name, view)
    }

    fn tensor(&self, name: &str) -> Result<&'a Tensor, RenderError> {
        let found = self.ir.tensors.iter().find(|tensor| tensor.name == name);
        found.ok_or_else(|| self.defect(&format!("no tensor `{name}`")))
    }

    fn channel(&self, name: &str) -> Result<&'a Channel, RenderError> {
        let found = self.ir.channels.iter().find(|channel| channel.name == name);
        found.ok_or_else(|| self.defect(&format!("no channel `{name}`")))
    }

    fn message(&self, channel: &Channel) -> Result<&'a Message, RenderError> {
        let found = self.ir.messages.iter().find(|message| message.name == channel.message);
        found.ok_or_else(|| self.defect(&format!("no message `{}`", channel.message)))
    }

    fn has_kind(&self, channel: &str, kind: ChannelKind) -> bool {
        self.ir.channels.iter().any(|c| c.name == channel && c.kind == kind)
    }

    /// An error for a pipeline that has no text as a whole.
    fn defect(&self, what: &str) -> RenderError {
        RenderError { message: format!("{}: {what}", self.ir.name), statement: None }
    }

    /// `// +31  push ..`, the lines above each step: the statement, and the pairs that it is an end of.
    fn comment(&self, stmt: &Stmt) -> String {
        self.comment_of(&stmt.at)
    }

    fn comment_of(&self, at: &Source) -> String {
        let mut lines = vec![format!("// +{}  {}", at.line, at.text.trim_end_matches(';'))];
        for pair in &self.facts.pairs {
            let what = format!("{} of {}", pair.what.name(), pair.channel);
            let (publish, consume) = (&pair.publish, &pair.consume);
            if publish.line == at.line {
                lines.push(format!(
                    "// W{}: publishes {what}, for {} +{}",
                    pair.number, consume.role, consume.line
                ));
            }
            if consume.line == at.line {
                lines.push(format!(
                    "// W{}: takes {what}, from {} +{}",
                    pair.number, publish.role, publish.line
                ));
            }
        }
        lines.join("\n")
    }

    /// The line above a step that ends a stripe of what `stmt` does row by row.
    fn ending(&self, stmt: &Stmt) -> String {
        let text = stmt.at.text.as_str();
        let head = text.split([';', '{']).next().unwrap_or(text);
        let head = head.split(" at ").next().unwrap_or(head).trim_end();
        format!("// +{}  {head}: what is left", stmt.at.line)
    }

    /// The scope of plain role code: `me` is a local, rows are read at `i`.
    fn scope(&self) -> Scope<'_> {
        let field = &|of: &str, field: &str| format!("{of}.{field}");
        Scope { ir: self.ir, me: "me", element: self.element, field }
    }

    fn text(&self, expr: &Expr) -> String {
        self.scope().text(expr)
    }

    /// An expression as a factor of a product.
    fn factor(&self, expr: &Expr) -> String {
        self.scope().factor(expr)
    }
}

/// Whether a role gives something the name `name`.
fn binds(ir: &Pipeline, name: &str) -> bool {
    let mut found = false;
    for role in &ir.roles {
        found |= matches!(&role.share, Share::Peer { binder, .. } if binder == name);
        walk::stmts(&role.body, &mut |stmt| {
            found |= match &stmt.action {
                Action::For { binder, .. } | Action::Receive { binder, .. } => binder == name,
                Action::Gather { binder, part, across, .. } => {
                    [binder, part, across].into_iter().any(|own| own == name)
                }
                Action::Let { name: own, .. } => own == name,
                _ => false,
            };
            walk::exprs(stmt, &mut |part| {
                found |= matches!(part, Expr::Fold { binder, .. } if binder == name);
            });
        });
    }
    found
}

/// Whether `word` stands in `text` as a whole word.
fn mentions(text: &str, word: &str) -> bool {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(|c| is_word(c) || c == '.') && !after.is_some_and(is_word)
    })
}

/// A lambda parameter, without its name when `body` does not use it.
fn param(kind: &str, name: &str, body: &str) -> String {
    if mentions(body, name) { format!("{kind} {name}") } else { kind.to_string() }
}
