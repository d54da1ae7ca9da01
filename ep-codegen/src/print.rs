//! Steps as text: total, since whatever has no text was refused before.
//!
//! What comes out is not indented: that is done for the whole text at the end.

mod steps;
mod terms;

pub use steps::{steps, term};
