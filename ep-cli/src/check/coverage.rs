//! `epforge check --coverage`: which lines and branches of the device library schedules come to.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use ep_runtime::device::HEADERS;
use ep_runtime::host::Programs;
use ep_runtime::host::mutation::{Coverage, Spot};

use super::mutate::{Equivalents, Judging, courses, explore};
use super::pool::on_all_cores;
use super::random;
use crate::failure::Failure;
use crate::json::{Object, Value};

/// Lines that no run of `check` comes to, in the form of the list of mutations that nothing can find.
const LIST: &str = include_str!("../../unreached.txt");

/// How many declarations that nobody wrote are run.
const DECLARATIONS: usize = 40;

/// Programs that note what they come to.
pub(super) struct Marked {
    coverage: Arc<Coverage>,
    pub(super) programs: Arc<Programs>,
}

/// How much of something was reached.
#[derive(Clone, Copy, Default)]
struct Share {
    reached: usize,
    all: usize,
}

impl Share {
    fn add(&mut self, is_reached: bool) {
        self.all += 1;
        self.reached += usize::from(is_reached);
    }

    fn percent(self) -> f64 {
        100.0 * self.reached as f64 / self.all.max(1) as f64
    }
}

impl Marked {
    pub(super) fn new(programs: &Arc<Programs>) -> Result<Marked, Failure> {
        let coverage = Coverage::new(HEADERS);
        let coverage = coverage.map_err(|error| Failure::Failed(error.to_string()))?;
        let coverage = Arc::new(coverage);
        Ok(Marked { programs: programs.marked(&coverage), coverage })
    }

    /// Runs what reaches more lines than schedules of the standard shapes do: all courses that mutations run
    /// on, and some random declarations. The courses are every arm, in every kind, and the functions of the
    /// library one by one.
    pub(super) fn run_all(&self) -> Result<(), Failure> {
        let courses = courses(&self.programs)?;
        let judging = Judging { checker: false, budget: 0 };
        let work = |index: usize| match courses.get(index) {
            Some(course) => explore(course, &self.programs, judging).map(drop),
            None => random::come_to((index - courses.len()) as u64, &self.programs),
        };
        let mut wrong = None;
        on_all_cores(courses.len() + DECLARATIONS, work, |_, outcome| {
            wrong = wrong.take().or(outcome.err());
        });
        wrong.map_or(Ok(()), |report| Err(Failure::Failed(report)))
    }

    /// Tells what was not reached, and how much was; gives the number of lines that nothing came to and
    /// that have no reason.
    pub(super) fn report(&self, json: bool, out: &mut dyn Write) -> Result<usize, Failure> {
        let reasons = Equivalents::parse(LIST).map_err(Failure::Failed)?;
        let reached = self.programs.reached();
        let mut lines: BTreeMap<(&str, u32), bool> = BTreeMap::new();
        let mut files: BTreeMap<&str, [Share; 2]> = BTreeMap::new();
        let mut one_way = Vec::new();
        for (spot, is_reached) in self.coverage.spots(&reached) {
            let line = lines.entry((&spot.file, spot.line)).or_default();
            *line |= is_reached;
            if spot.outcome.is_some() {
                files.entry(&spot.file).or_default()[1].add(is_reached);
                one_way.extend((!is_reached).then_some(spot));
            }
        }
        for ((file, _), is_reached) in &lines {
            files.entry(file).or_default()[0].add(*is_reached);
        }
        let mut unnamed = 0;
        for ((file, line), _) in lines.iter().filter(|(_, is_reached)| !**is_reached) {
            let reason = reasons.reason_of(file, code_of(file, *line), "unreached");
            unnamed += usize::from(reason.is_none());
            tell((file, *line), "not run", reason, json, out)?;
        }
        // A condition that no run comes to is a line that none does.
        for Spot { file, line, outcome } in one_way {
            if lines.get(&(file.as_str(), *line)).is_some_and(|is_reached| *is_reached) {
                let what = if *outcome == Some(true) { "never true" } else { "never false" };
                tell((file, *line), what, None, json, out)?;
            }
        }
        let mut total = [Share::default(); 2];
        for (file, shares) in files {
            for (total, share) in total.iter_mut().zip(shares) {
                total.all += share.all;
                total.reached += share.reached;
            }
            sum(file, shares, json, out)?;
        }
        sum("the device library", total, json, out)?;
        Ok(unnamed)
    }
}

/// A line of a header, without white space around it.
fn code_of(file: &str, line: u32) -> &'static str {
    let text = HEADERS.iter().find(|(name, _)| *name == file).map_or("", |(_, text)| text);
    text.lines().nth(line as usize - 1).unwrap_or_default().trim()
}

/// Says what no run has come to, and why none does if that is known.
fn tell(
    (file, line): (&str, u32),
    what: &str,
    reason: Option<&str>,
    json: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let code = code_of(file, line);
    if json {
        let object = Object::new().with("file", file).with("line", u64::from(line));
        let object = object.with("finding", what).with("code", code);
        return writeln!(out, "{}", object.with("reason", reason));
    }
    let because = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    writeln!(out, "  {what:<11} {file}:{line}  {code}{because}")
}

fn sum(name: &str, shares: [Share; 2], json: bool, out: &mut dyn Write) -> io::Result<()> {
    let [lines, outcomes] = shares;
    if json {
        let object = Object::new()
            .with("file", name)
            .with("lines", lines.all)
            .with("lines_reached", lines.reached)
            .with("outcomes", outcomes.all)
            .with("outcomes_reached", outcomes.reached)
            .with("percent_of_lines", Value::Tenths(lines.percent()))
            .with("percent_of_outcomes", Value::Tenths(outcomes.percent()));
        return writeln!(out, "{object}");
    }
    writeln!(
        out,
        "  {name:20} {:>4} of {:>4} lines ({:.1} %), {:>4} of {:>4} outcomes of conditions ({:.1} %)",
        lines.reached,
        lines.all,
        lines.percent(),
        outcomes.reached,
        outcomes.all,
        outcomes.percent()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_there() {
        let list = Equivalents::parse(LIST).expect("it is a list");
        list.check_lines();
        for (file, code) in list.lines() {
            assert!(list.reason_of(file, code, "unreached").is_some(), "{code}");
        }
    }
}
