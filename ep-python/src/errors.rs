//! The errors of the run time as classes of Python: one for each kind, with the same sentence.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ep_runtime::backend::BackendError;
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::jit::{CacheError, JitError};
use ep_runtime::join::JoinError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(epforge, Error, PyException, "Why a call did not happen, or did not end well.");
create_exception!(epforge, InternalError, Error, "A mistake of EPForge itself; please report it.");

/// Declares classes of errors below `Error`, and puts them into a module.
macro_rules! classes {
    ($($name:ident: $doc:literal,)*) => {
        $(create_exception!(epforge, $name, Error, $doc);)*

        pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
            let py = module.py();
            module.add("Error", py.get_type::<Error>())?;
            module.add("InternalError", py.get_type::<InternalError>())?;
            $(module.add(stringify!($name), py.get_type::<$name>())?;)*
            Ok(())
        }
    };
}

classes! {
    Plan: "A number of the shape or a tune is out of its range.",
    Mismatch: "A tensor is absent or does not fit; a handle, output or option does not fit.",
    TooLarge: "More tokens, rows or experts than the buffer was made for: `need` and `have`.",
    OutputTooSmall: "More rows arrive at `rank` than its output holds: `need` and `have`.",
    AllInUse: "All handles, outputs or combine inputs of the buffer are taken.",
    Disagreement: "Processes make different buffers, or run different programs.",
    Capture: "A graph cannot hold the call.",
    Launch: "A launch without enough blocks, or without one of its arguments.",
    Emit: "A pipeline has no text for the choice.",
    Timeout: "A wait ran out; the group is stopped.",
    Network: "A network between nodes failed: no library, no provider, or a peer that is not heard.",
    Silent: "Counts never came, and no kernel says why.",
    Missing: "No driver, GPU, compiler, or way between two GPUs.",
    TooManyBlocks: "The blocks of a call do not fit at once: `need` and `have`.",
    Compile: "A kernel did not compile; the text has the log.",
    Driver: "A call of the driver failed.",
    Kernel: "The emulator found a wrong access or a crash; `seed` replays it.",
    GroupError: "Processes did not come together, or came apart.",
    Wrong: "A rank that is not local, or memory that is not there.",
}

/// Whatever fails below this module.
pub(crate) struct Failure(CallError);

impl<E: Into<CallError>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.into())
    }
}

impl Failure {
    pub(crate) fn mismatch(what: String) -> Failure {
        Failure(CallError::Mismatch { what })
    }

    pub(crate) fn of_join(error: &JoinError) -> Failure {
        Failure(CallError::Backend(BackendError::Group { what: error.to_string() }))
    }

    pub(crate) fn of_jit(error: &JitError) -> Failure {
        Failure(CallError::Backend(BackendError::Missing { what: error.to_string() }))
    }

    pub(crate) fn of_cache(error: &CacheError) -> Failure {
        Failure(CallError::Backend(BackendError::Missing { what: error.to_string() }))
    }
}

/// Runs `work`, which may wait, while other Python threads run; a panic becomes an `InternalError`.
pub(crate) fn released<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    // What a panic leaves half done is behind locks that are taken all the same.
    ended(py, py.detach(|| catch_unwind(AssertUnwindSafe(work))))
}

/// Runs `work`, which only looks something up.
pub(crate) fn at_once<T>(py: Python<'_>, work: impl FnOnce() -> Result<T, Failure>) -> PyResult<T> {
    ended(py, catch_unwind(AssertUnwindSafe(work)))
}

/// Runs `work`, which puts something into a stream. Other Python threads run meanwhile only where one of them may have to
/// make a call before this one returns: if ranks of this process wait for one another. To get the interpreter back from
/// another thread can take milliseconds.
pub(crate) fn launched<T: Send>(
    py: Python<'_>,
    group: &Group,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    match group.local().len() {
        1 if group.backend().runs_alone() => at_once(py, work),
        _ => released(py, work),
    }
}

fn ended<T>(py: Python<'_>, end: std::thread::Result<Result<T, Failure>>) -> PyResult<T> {
    match end {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(Failure(error))) => Err(raised(py, &error)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(InternalError::new_err(text.unwrap_or("a panic without words").to_string()))
        }
    }
}

/// The error as an exception, with its numbers as attributes.
fn raised(py: Python<'_>, error: &CallError) -> PyErr {
    let text = error.to_string();
    let (made, numbers): (PyErr, Vec<(&str, u64)>) = match error {
        CallError::Backend(error) => return of_backend(py, error, text),
        CallError::Plan(_) => (Plan::new_err(text), vec![]),
        CallError::Emit { .. } => (Emit::new_err(text), vec![]),
        CallError::Unbound { .. } | CallError::TooFewBlocks { .. } => {
            (Launch::new_err(text), vec![])
        }
        CallError::TooLarge { need, have, .. } => {
            (TooLarge::new_err(text), vec![("need", *need), ("have", *have)])
        }
        CallError::OutputTooSmall { rank, need, have } => {
            let numbers = vec![("rank", *rank as u64), ("need", *need), ("have", *have)];
            (OutputTooSmall::new_err(text), numbers)
        }
        CallError::AllInUse { rank, live, .. } => {
            (AllInUse::new_err(text), vec![("rank", *rank as u64), ("live", *live as u64)])
        }
        CallError::Mismatch { .. } | CallError::Tensor { .. } => (Mismatch::new_err(text), vec![]),
        CallError::Disagreement { .. } => (Disagreement::new_err(text), vec![]),
        CallError::Capture { .. } => (Capture::new_err(text), vec![]),
        CallError::Timeout(_) => (Timeout::new_err(text), vec![]),
        CallError::Network(_) => (Network::new_err(text), vec![]),
        CallError::Silent { rank, .. } => (Silent::new_err(text), vec![("rank", *rank as u64)]),
    };
    with_numbers(py, made, &numbers)
}

fn of_backend(py: Python<'_>, error: &BackendError, text: String) -> PyErr {
    let (made, numbers): (PyErr, Vec<(&str, u64)>) = match error {
        BackendError::Missing { .. } => (Missing::new_err(text), vec![]),
        BackendError::Failed { code, .. } => {
            (Driver::new_err(text), vec![("code", u64::from(*code))])
        }
        BackendError::Compile { .. } => (Compile::new_err(text), vec![]),
        BackendError::TooManyBlocks { need, have, .. } => {
            let numbers = vec![("need", u64::from(*need)), ("have", u64::from(*have))];
            (TooManyBlocks::new_err(text), numbers)
        }
        BackendError::Kernel { seed, .. } => (Kernel::new_err(text), vec![("seed", *seed)]),
        BackendError::Group { .. } => (GroupError::new_err(text), vec![]),
        BackendError::Wrong { .. } => (Wrong::new_err(text), vec![]),
    };
    with_numbers(py, made, &numbers)
}

fn with_numbers(py: Python<'_>, made: PyErr, numbers: &[(&str, u64)]) -> PyErr {
    let value = made.value(py);
    for (name, number) in numbers {
        if let Err(error) = value.setattr(*name, *number) {
            return error;
        }
    }
    made
}
