//! From a selected pipeline to the body of its kernel: everything but the numbers.
//!
//! Rust decides and names, the templates of `templates/kernels` compose, the device library does the
//! work. What depends on the shape is a member of `Cfg`, which the plan writes in front.

mod count;
mod items;
mod layout;
mod role;
mod templates;

use std::cell::RefCell;

use crate::ir::facts::{Facts, facts};
use crate::ir::{Expr, Pipeline, Source, Tensor};
use crate::plan::Body;
use crate::print;
use crate::schedule::library::Entity;
use crate::schedule::{self, Constant, Needs, Recipe, RuleSet, Step, Term, Ways};
pub use templates::RenderError;
use templates::Templates;

/// A text, or the defect of ours that prevents it.
type Rendered = Result<String, RenderError>;

/// The body of the kernel of a pipeline from which one choice of arms has been selected.
pub fn body(ir: &Pipeline) -> Result<Body, RenderError> {
    body_with(ir, RuleSet::All)
}

/// The body of the kernel of a selected pipeline, made with no rules but those of `rules`.
pub fn body_with(ir: &Pipeline, rules: RuleSet) -> Result<Body, RenderError> {
    Ok(body_and_recipe(ir, rules)?.0)
}

/// The body, and how it carries out each role.
pub(crate) fn body_and_recipe(
    ir: &Pipeline,
    rules: RuleSet,
) -> Result<(Body, Recipe), RenderError> {
    let ways = Ways::of(ir, rules);
    let (templates, needs) = (Templates::load()?, RefCell::default());
    let render = Renderer { ir, facts: facts(ir), ways, templates, needs };
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
    let needs = render.needs.into_inner();
    let body = Body {
        text: layout::lay_out(&text).into(),
        headers: needs.headers().into(),
        constants: needs.constants().into(),
    };
    Ok((body, render.ways.recipe))
}

/// One selected pipeline on its way to text.
struct Renderer<'a> {
    ir: &'a Pipeline,
    facts: Facts,
    ways: Ways,
    templates: Templates,
    /// What the text takes from what stands in front of it.
    needs: RefCell<Needs>,
}

impl<'a> Renderer<'a> {
    /// Renders a template whose view is a list of names and texts.
    fn step(&self, name: &str, view: &[(&'static str, &str)]) -> Rendered {
        self.templates.render(name, view)
    }

    // ---- What is named is noted ----

    /// The name of something of the device library.
    fn library(&self, item: Entity) -> &'static str {
        self.needs.borrow_mut().item(item);
        item.name
    }

    /// The name of a constant.
    fn constant(&self, constant: Constant) -> String {
        self.needs.borrow_mut().constant(&constant);
        constant.to_string()
    }

    /// The text of a value.
    fn term(&self, term: &Term) -> String {
        self.needs.borrow_mut().term(term);
        print::term(term)
    }

    /// The text of steps.
    fn steps_text(&self, steps: &[Step]) -> String {
        self.needs.borrow_mut().steps(steps);
        print::steps(steps, &|at| self.comment_of(at))
    }

    fn tensor(&self, name: &str) -> Result<&'a Tensor, RenderError> {
        let found = self.ir.tensors.iter().find(|tensor| tensor.name == name);
        found.ok_or_else(|| self.defect(&format!("no tensor `{name}`")))
    }

    /// An error for a pipeline that has no text as a whole.
    fn defect(&self, what: &str) -> RenderError {
        RenderError { message: format!("{}: {what}", self.ir.name), statement: None }
    }

    /// `// +31  push ..`, the lines above each step: the statement, and the pairs that it is an end of.
    fn comment_of(&self, at: &Source) -> String {
        let mut lines = vec![format!("// +{}  {}", at.line, at.text.trim_end_matches(';'))];
        for pair in &self.facts.pairs {
            let what = format!("{} of {}", pair.what.name(), pair.channel);
            let (publish, consume) = (&pair.publish, &pair.consume);
            if publish.is_at(at) {
                lines.push(format!(
                    "// W{}: publishes {what}, for {} +{}",
                    pair.number, consume.role, consume.line
                ));
            }
            if consume.is_at(at) {
                lines.push(format!(
                    "// W{}: takes {what}, from {} +{}",
                    pair.number, publish.role, publish.line
                ));
            }
        }
        lines.join("\n")
    }

    /// An expression over numbers of the shape and of a call.
    fn text(&self, expr: &Expr) -> String {
        let role = self.ir.roles.first();
        let value = role.and_then(|role| schedule::number(self.ir, role, expr));
        value.map(|value| self.term(&value)).unwrap_or_default()
    }
}
