//! The Tera templates of `templates/kernels`, embedded. They compose; they decide nothing.

use tera::{Context, Tera};

macro_rules! templates {
    ($($name:literal),* $(,)?) => {
        /// Name and text of every template.
        const TEMPLATES: &[(&str, &str)] = &[$(
            ($name, include_str!(concat!("../../templates/kernels/", $name, ".tera")))
        ),*];
    };
}

templates!(
    "args",
    "count_tokens",
    "direct_receive",
    "direct_send",
    "entry",
    "gather_pull",
    "gather_ring",
    "kernel",
    "pull_offer",
    "push",
    "ring_receive",
    "ring_role",
    "ring_send",
    "ring_send_range",
    "role",
    "slots_push",
);

/// The loaded templates.
pub(super) struct Templates {
    tera: Tera,
}

/// A template does not fit its view, or the IR is one that `check` refuses: a defect of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderError {
    /// What is wrong, with template, line and column where there is one.
    pub message: String,
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
        RenderError { message: error.to_string() }
    }
}
