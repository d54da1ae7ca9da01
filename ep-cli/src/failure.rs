//! Why a command did not do what it was asked for, and the exit code that follows.

use std::fmt;
use std::io;

use ep_runtime::EmitError;

use crate::suggestion;

/// What a command ends with when it does not end well.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A name or value that nothing here goes by; one sentence.
    WrongUse(String),
    /// The command line does not parse; the words are clap's.
    CommandLine(String),
    /// A check, run or plan failed; one sentence.
    Failed(String),
    /// The output could not be written.
    Output(io::Error),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::WrongUse(_) | Failure::CommandLine(_) => 2,
            Failure::Output(_) if self.is_broken_pipe() => 0,
            Failure::Failed(_) | Failure::Output(_) => 1,
        }
    }

    /// The failure without the word in front, for a text that goes on.
    pub(crate) fn sentence(&self) -> String {
        let text = self.to_string();
        text.strip_prefix("error: ").unwrap_or(&text).to_owned()
    }

    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::WrongUse(sentence) | Failure::Failed(sentence) => {
                write!(f, "error: {sentence}")
            }
            Failure::CommandLine(text) => f.write_str(text),
            Failure::Output(error) => write!(f, "error: the output cannot be written: {error}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

impl From<EmitError> for Failure {
    fn from(error: EmitError) -> Failure {
        match &error {
            EmitError::Plan(refused) if refused.is_wrong_use() => {
                Failure::WrongUse(format!("{error}{}", suggestion::for_plan(refused)))
            }
            _ => Failure::Failed(error.to_string()),
        }
    }
}
