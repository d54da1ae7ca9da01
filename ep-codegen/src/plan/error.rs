//! What a plan refuses, with the statement, the limit and the numbers.

use std::fmt;

use crate::ir::Source;

/// Why a configuration or a shape is refused.
#[derive(Clone, PartialEq, Eq)]
pub enum PlanError {
    /// `name` is neither a shape, variant, tune, arg nor optional tensor of the pipeline.
    UnknownName {
        /// Pipeline.
        pipeline: String,
        /// The name that was given.
        name: String,
        /// Every name the pipeline takes.
        known: Vec<String>,
    },
    /// The value is not one that the declaration allows.
    OutOfRange {
        /// Pipeline.
        pipeline: String,
        /// Name.
        name: String,
        /// Value that was given.
        value: String,
        /// What the declaration allows.
        allowed: String,
    },
    /// A shape number has no value.
    Missing {
        /// Pipeline.
        pipeline: String,
        /// Name.
        name: String,
    },
    /// A `require` does not hold.
    Require {
        /// Pipeline.
        pipeline: String,
        /// The condition.
        at: Source,
        /// The numbers in it.
        numbers: String,
    },
    /// A limit of the hardware or the protocol is exceeded.
    Limit {
        /// Pipeline.
        pipeline: String,
        /// The statement that needs it.
        at: Source,
        /// What is needed, as a noun phrase.
        what: String,
        /// How much is needed.
        need: i64,
        /// How much there is.
        have: i64,
        /// What would help.
        help: String,
    },
    /// A limit of a multiple or a power: what the least shape misses, a greater one may have right.
    Uneven(Box<PlanError>),
    /// An expression has no value: division by zero or overflow.
    NoValue {
        /// Pipeline.
        pipeline: String,
        /// The expression.
        expr: String,
        /// The numbers in it.
        numbers: String,
    },
}

impl PlanError {
    /// Whether the caller used a name or value that the declaration does not offer (exit code 2),
    /// rather than a legal shape that does not fit (exit code 1).
    pub fn is_wrong_use(&self) -> bool {
        matches!(
            self,
            PlanError::UnknownName { .. }
                | PlanError::OutOfRange { .. }
                | PlanError::Missing { .. }
        )
    }
}

/// What `main` prints of it: the sentence.
impl fmt::Debug for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::UnknownName { pipeline, name, known } => {
                write!(f, "{pipeline} has no `{name}`; it takes {}", known.join(", "))
            }
            PlanError::OutOfRange { pipeline, name, value, allowed } => {
                write!(f, "{pipeline}: `{name}` is {value}, it takes {allowed}")
            }
            PlanError::Missing { pipeline, name } => {
                write!(f, "{pipeline}: `{name}` has no value; give it with --set {name}=N")
            }
            PlanError::Require { pipeline, at, numbers } => {
                write!(f, "{pipeline} +{}: `{}` does not hold with {numbers}", at.line, at.text)
            }
            PlanError::Uneven(limit) => limit.fmt(f),
            PlanError::Limit { pipeline, at, what, need, have, help } => write!(
                f,
                "{pipeline} +{}: `{}` needs {need} {what}, there are {have}; {help}",
                at.line, at.text
            ),
            PlanError::NoValue { pipeline, expr, numbers } => {
                write!(f, "{pipeline}: `{expr}` has no value with {numbers}")
            }
        }
    }
}

impl std::error::Error for PlanError {}
