//! From a pipeline and a configuration to the CUDA that NVRTC gets.

use ep_codegen::plan::{Config, Plan, PlanError, plan};
use ep_codegen::schedule::RuleSet;
use sha2::{Digest, Sha256};

use crate::pipeline::{AnyPipeline, Text};

impl AnyPipeline {
    /// The plan of one configuration, and its CUDA.
    pub fn emit(&self, config: &Config) -> Result<Emitted, EmitError> {
        let ir = self.ir();
        let plan = plan(&ir, config).map_err(EmitError::Plan)?;
        let chosen = |text: &&Text| text.arms.iter().eq(config.choice.arms.iter());
        let text = self.texts().iter().find(chosen).ok_or(EmitError::NoText(self.name))?;
        // The program holds the text with all rules; any other one is made when it is asked for.
        let cuda = match config.rules {
            RuleSet::All => plan.cuda(&text.body),
            #[cfg(feature = "render")]
            rules => {
                let body = ep_codegen::render::body_with(&ir.select(&config.choice), rules);
                plan.cuda(&body.map_err(|_| EmitError::NoText(self.name))?)
            }
            #[cfg(not(feature = "render"))]
            _ => return Err(EmitError::NoText(self.name)),
        };
        Ok(Emitted { cuda, plan })
    }
}

/// A specialized kernel: the text that NVRTC gets, `emit` prints and `generated/` holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// The CUDA source.
    pub cuda: String,
    /// The data that the host needs about it.
    pub plan: Plan,
}

impl Emitted {
    /// SHA-256 of the CUDA source, as `sha256sum` prints it for a file that holds it.
    pub fn digest(&self) -> String {
        Sha256::digest(self.cuda.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Why nothing was emitted.
#[derive(Clone, PartialEq, Eq)]
pub enum EmitError {
    /// The plan refuses the configuration.
    Plan(PlanError),
    /// The program holds no text of the pipeline for these arms and rules.
    NoText(&'static str),
}

/// What `main` prints of it: the sentence.
impl std::fmt::Debug for EmitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for EmitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EmitError::Plan(error) => error.fmt(f),
            EmitError::NoText(name) => {
                write!(f, "this program holds no CUDA text of {name} for these arms and rules")
            }
        }
    }
}

impl std::error::Error for EmitError {}
