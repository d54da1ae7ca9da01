//! `epforge check --coverage`: which lines and branches of the device library schedules come to.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use ep_runtime::device::HEADERS;
use ep_runtime::host::Programs;
use ep_runtime::host::mutation::{Coverage, Spot};

use crate::failure::Failure;
use crate::json::{Object, Value};

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

    /// Tells what was not reached, and how much was.
    pub(super) fn report(&self, json: bool, out: &mut dyn Write) -> io::Result<()> {
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
        for ((file, line), _) in lines.iter().filter(|(_, is_reached)| !**is_reached) {
            tell(file, *line, "not run", json, out)?;
        }
        // A condition that no run comes to is a line that none does.
        for Spot { file, line, outcome } in one_way {
            if lines.get(&(file.as_str(), *line)).is_some_and(|is_reached| *is_reached) {
                let what = if *outcome == Some(true) { "never true" } else { "never false" };
                tell(file, *line, what, json, out)?;
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
        sum("the device library", total, json, out)
    }
}

/// Says what no run has come to.
fn tell(file: &str, line: u32, what: &str, json: bool, out: &mut dyn Write) -> io::Result<()> {
    let text = HEADERS.iter().find(|(name, _)| *name == file).map_or("", |(_, text)| text);
    let code = text.lines().nth(line as usize - 1).unwrap_or_default().trim();
    if json {
        let object = Object::new().with("file", file).with("line", u64::from(line));
        return writeln!(out, "{}", object.with("finding", what).with("code", code));
    }
    writeln!(out, "  {what:<11} {file}:{line}  {code}")
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
