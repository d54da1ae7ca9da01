//! Why nothing could be drawn.

use std::fmt;

use super::super::Wrong;
use crate::plan::PlanError;

/// Why nothing could be drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Undrawn {
    /// A handle is of a pipeline that was not given, or that records no such tables in any arm.
    Handle {
        /// The pipeline that reads it.
        pipeline: String,
        /// The pipeline that leaves it.
        handle: String,
    },
    /// A range holds no value, or too few.
    Values {
        /// Tensor or size.
        name: String,
        /// The range that the declaration gives it.
        wanted: String,
    },
    /// No legal shape was found.
    Shape(Box<PlanError>),
    /// A call that leaves a handle is wrong itself.
    Wrong {
        /// Pipeline.
        pipeline: String,
        /// The mistake in that call.
        wrong: Wrong,
    },
}

impl fmt::Display for Undrawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undrawn::Handle { pipeline, handle } => {
                write!(f, "{pipeline}: no arm of `{handle}` leaves the tables of its handle")
            }
            Undrawn::Values { name, wanted } => write!(f, "`{name}` has too few values{wanted}"),
            Undrawn::Shape(error) => error.fmt(f),
            Undrawn::Wrong { pipeline, wrong } => write!(f, "{pipeline}: {wrong}"),
        }
    }
}

impl std::error::Error for Undrawn {}
