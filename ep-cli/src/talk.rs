//! What a command tells as it goes on.

use std::io::Write;

use crate::failure::Failure;
use crate::json::Object;

/// Where a command tells what it does: text, or JSON objects.
pub(crate) struct Talk<'a> {
    pub(crate) json: bool,
    pub(crate) out: &'a mut dyn Write,
}

impl Talk<'_> {
    pub(crate) fn say(&mut self, line: &str) -> Result<(), Failure> {
        if !self.json {
            writeln!(self.out, "{line}")?;
            // What follows may take a moment.
            self.out.flush()?;
        }
        Ok(())
    }

    pub(crate) fn end(&mut self, what: &'static str, line: &str) -> Result<(), Failure> {
        match self.json {
            true => writeln!(self.out, "{}", Object::new().with(what, line))?,
            false => writeln!(self.out, "\n{line}")?,
        }
        Ok(())
    }
}
