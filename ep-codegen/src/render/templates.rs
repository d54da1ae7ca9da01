//! The Tera templates of `templates/kernels`, embedded. They compose; they decide nothing.

use tera::{Context, Tera};

use crate::ir::Source;

macro_rules! templates {
    ($($name:literal),* $(,)?) => {
        /// Name and text of every template.
        const TEMPLATES: &[(&str, &str)] = &[$(
            ($name, include_str!(concat!("../../templates/kernels/", $name, ".tera")))
        ),*];
    };
}

templates!("args", "entry", "kernel", "role",);

/// The loaded templates.
pub(super) struct Templates {
    tera: Tera,
}

/// Why there is no text: a statement has no CUDA form, or a template does not fit its view, which is
/// a defect of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderError {
    /// What is wrong, with template, line and column where there is one.
    pub message: String,
    /// The statement without a form.
    pub statement: Option<Source>,
}

impl Templates {
    pub(super) fn load() -> Result<Templates, RenderError> {
        let mut tera = Tera::new();
        tera.autoescape_on(Vec::<&str>::new());
        tera.add_raw_templates(TEMPLATES.iter().copied())?;
        Ok(Templates { tera })
    }

    /// Renders the template `name`.
    pub(super) fn render(
        &self,
        name: &str,
        view: &[(&'static str, &str)],
    ) -> Result<String, RenderError> {
        let mut context = Context::new();
        for (key, text) in view {
            context.insert(*key, text);
        }
        Ok(self.tera.render(name, &context)?)
    }
}

impl From<tera::Error> for RenderError {
    fn from(error: tera::Error) -> RenderError {
        RenderError { message: error.to_string(), statement: None }
    }
}
