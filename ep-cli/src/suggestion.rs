//! What a user meant by a name that does not exist.

use ep_runtime::plan::PlanError;
use ep_runtime::spelling::nearest;

/// `; did you mean hidden?`, or nothing if no name is near.
pub(crate) fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// Suggests a name or value, as `did_you_mean` does, for one that a plan refuses; empty for any other error.
pub(crate) fn for_plan(error: &PlanError) -> String {
    match error {
        PlanError::UnknownName { name, known, .. } => {
            did_you_mean(name, known.iter().map(String::as_str))
        }
        PlanError::OutOfRange { value, allowed, .. } => did_you_mean(value, allowed.split(", ")),
        _ => String::new(),
    }
}
