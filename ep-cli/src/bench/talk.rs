//! What `bench` tells while it runs, and how far it is.

use std::fmt;
use std::io::Write;

use crate::failure::Failure;
use crate::json::Object;
use crate::machine::REQUIRED;
use crate::progress::Progress;

/// Where the command tells what it finds. Results are lines of JSON or of a table; with JSON all else
/// goes to standard error.
pub(super) struct Talk<'a> {
    pub(super) json: bool,
    /// Whether this process is the one of several that talks.
    pub(super) speaks: bool,
    /// How far the measurements of a buffer are, if it talks; out of the way where something is told.
    pub(super) progress: Option<Progress>,
    pub(super) out: &'a mut dyn Write,
    pub(super) err: &'a mut dyn Write,
}

impl Talk<'_> {
    pub(super) fn say(&mut self, text: &str) -> Result<(), Failure> {
        if !self.speaks {
            return Ok(());
        }
        let out = if self.json { &mut *self.err } else { &mut *self.out };
        line(self.progress.as_ref(), out, &text)
    }

    pub(super) fn object(&mut self, object: &Object) -> Result<(), Failure> {
        if !self.speaks || !self.json {
            return Ok(());
        }
        line(self.progress.as_ref(), self.out, object)
    }

    /// Begins to measure in a buffer, whose kernels may have to be compiled before.
    pub(super) fn begin(&mut self, measurements: usize, part: String) {
        // The one before leaves its line first.
        self.progress = None;
        if self.speaks {
            let progress = Progress::new(measurements as u64);
            progress.begin(part);
            self.progress = Some(progress);
        }
    }

    /// One more is measured.
    pub(super) fn step(&self, part: &str) {
        self.progress.iter().for_each(|progress| progress.step(part));
    }

    /// Ends without results on a machine that lacks what it takes.
    pub(super) fn skipped(&mut self, failure: &Failure) -> Result<(), Failure> {
        let why = failure.sentence();
        writeln!(self.err, "skipped: {why} ({REQUIRED}=N makes this a failure)")?;
        Ok(())
    }
}

/// Writes a line at once, since what follows may take a while.
fn line(
    progress: Option<&Progress>,
    out: &mut dyn Write,
    text: &dyn fmt::Display,
) -> Result<(), Failure> {
    let mut write = || writeln!(out, "{text}").and_then(|()| out.flush());
    Ok(match progress {
        Some(progress) => progress.aside(write),
        None => write(),
    }?)
}

#[cfg(test)]
mod tests {
    use indicatif::InMemoryTerm;

    use super::*;

    #[test]
    fn lines_stand_above_how_far_it_is() {
        let terminal = InMemoryTerm::new(4, 80);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let progress = Some(Progress::on(&terminal, 4));
        let mut talk = Talk { json: false, speaks: true, progress, out: &mut out, err: &mut err };
        talk.step("dispatch");
        talk.say("a result").unwrap();
        assert_eq!(terminal.contents(), "[######>.................] 1/4 dispatch");
        talk.begin(8, "fp8: kernels".to_string());
        assert_eq!(terminal.contents(), "", "the one before leaves its line");
        assert_eq!(talk.progress.as_ref().and_then(Progress::total), Some(8));
        talk.speaks = false;
        talk.begin(8, "fp8: kernels".to_string());
        assert_eq!(
            talk.progress.as_ref().and_then(Progress::total),
            None,
            "another process tells it"
        );
        assert_eq!(out, b"a result\n");
    }
}
