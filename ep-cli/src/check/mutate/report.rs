//! What became of all mutations, in lines, tables or objects.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ep_runtime::host::mutation::Mutation;

use super::course::Course;
use super::hunt::{Hunt, Passed, Target};
use crate::check::fault::Fault;
use crate::failure::Failure;
use crate::json::{Object, Value};

/// Tells what becomes of mutations, one by one, and then of all.
pub(super) struct Report {
    json: bool,
    outputs: bool,
    files: BTreeMap<String, Tally>,
    operators: BTreeMap<&'static str, Tally>,
    all: Tally,
}

/// Numbers of mutations.
#[derive(Clone, Copy, Default)]
struct Tally {
    all: usize,
    found: usize,
    equivalent: usize,
    unreached: usize,
}

impl Tally {
    fn add(&mut self, hunt: Option<&Hunt>) {
        self.all += 1;
        match hunt {
            None => self.equivalent += 1,
            Some(Hunt { found: Some(_), .. }) => self.found += 1,
            Some(hunt) => self.unreached += usize::from(!hunt.is_reached),
        }
    }

    fn survivors(&self) -> usize {
        self.all - self.found - self.equivalent
    }
}

impl Report {
    /// Nothing yet; `outputs`: runs are judged only by their results.
    pub(super) fn new(json: bool, outputs: bool) -> Report {
        let (files, operators) = (BTreeMap::new(), BTreeMap::new());
        Report { json, outputs, files, operators, all: Tally::default() }
    }

    /// Says what a course comes to.
    pub(super) fn course(
        &self,
        course: &Course,
        passed: &Passed,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let Passed { reached, steps, time } = passed;
        let (name, steps, time) = (&course.name, *steps as f64 / 1e6, time.as_secs_f64());
        let object = || {
            let object = Object::new().with("course", name).with("reached", *reached);
            let object = object.with("million_steps", Value::Tenths(steps));
            object.with("seconds", Value::Tenths(time))
        };
        let said = format!("{reached} mutations, {steps:.1} million steps, {time:.1} s");
        match self.json {
            true => writeln!(out, "{}", object()),
            false => writeln!(out, "  course    {name:20} comes to {said}"),
        }?;
        out.flush()
    }

    /// Reports a mutation that some courses reach and do not find, before it runs on other courses. If the
    /// command is cut off, it has reported the mutation already.
    pub(super) fn left(&self, target: &Target, hunt: &Hunt, out: &mut dyn Write) -> io::Result<()> {
        match self.json {
            true => writeln!(out, "{}", object(target, Some(hunt), "left")),
            false => writeln!(out, "  LEFT      {} ({} runs so far)", target.mutation, hunt.runs),
        }?;
        out.flush()
    }

    /// Says what became of a mutation, at once; no hunt: nothing can find it.
    pub(super) fn note(
        &mut self,
        target: &Target,
        hunt: Option<&Hunt>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mutation = &target.mutation;
        self.files.entry(mutation.file.clone()).or_default().add(hunt);
        self.operators.entry(mutation.operator.name()).or_default().add(hunt);
        self.all.add(hunt);
        match self.json {
            true => writeln!(out, "{}", object(target, hunt, fate(hunt))),
            false => show(mutation, hunt, out),
        }?;
        out.flush()
    }

    /// The tables, and whether any survives.
    pub(super) fn end(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let survivors = self.all.survivors();
        if !self.json {
            table("file", self.files.iter().map(|(name, tally)| (name.as_str(), tally)), out)?;
            table("operator", self.operators.iter().map(|(name, tally)| (*name, tally)), out)?;
            let with = if self.outputs { "only by their results" } else { "with the checker" };
            let Tally { all, found, equivalent, .. } = self.all;
            writeln!(
                out,
                "{all} mutations, judged {with}: {found} found, {equivalent} equivalent, \
                 {survivors} survive"
            )?;
        }
        match survivors {
            0 => Ok(()),
            _ => Err(Failure::Failed(format!("{survivors} mutations survive"))),
        }
    }
}

fn show(mutation: &Mutation, hunt: Option<&Hunt>, out: &mut dyn Write) -> io::Result<()> {
    match hunt {
        Some(Hunt { found: None, is_reached: false, .. }) => {
            writeln!(out, "  NOT RUN   {mutation}")?;
        }
        Some(Hunt { found: None, runs, .. }) => {
            writeln!(out, "  SURVIVES  {mutation} ({runs} runs)")?;
        }
        _ => {}
    }
    Ok(())
}

fn table<'a>(
    head: &str,
    rows: impl Iterator<Item = (&'a str, &'a Tally)>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (all, found, equivalent) = ("mutations", "found", "equivalent");
    writeln!(out, "  {head:20} {all:>9} {found:>9} {equivalent:>10}   survive  (not run)")?;
    for (name, tally) in rows {
        let Tally { all, found, equivalent, unreached } = tally;
        let survivors = tally.survivors();
        writeln!(
            out,
            "  {name:20} {all:>9} {found:>9} {equivalent:>10} {survivors:>9} {unreached:>10}"
        )?;
    }
    Ok(())
}

fn fate(hunt: Option<&Hunt>) -> &'static str {
    match hunt {
        None => "equivalent",
        Some(Hunt { found: Some(_), .. }) => "found",
        Some(Hunt { is_reached: true, .. }) => "survives",
        Some(_) => "not run",
    }
}

fn object(target: &Target, hunt: Option<&Hunt>, fate: &str) -> Object {
    let mutation = &target.mutation;
    let object = Object::new()
        .with("number", target.place)
        .with("file", &mutation.file)
        .with("line", u64::from(mutation.line))
        .with("operator", mutation.operator.name())
        .with("code", &mutation.code)
        .with("from", &mutation.from)
        .with("to", &mutation.to)
        .with("fate", fate);
    let reason = || target.equivalent.clone().or_else(|| target.form.clone());
    let Some(hunt) = hunt else { return object.with("reason", reason()) };
    let object = object.with("runs", hunt.runs).with("cut", hunt.is_cut);
    match &hunt.found {
        None => object,
        Some(found) => {
            let first = found.report.lines().next().unwrap_or_default();
            object
                .with("fault", found.fault.map(Fault::name))
                .with("course", &found.course)
                .with("seed", found.seed)
                .with("report", first)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufWriter;

    use ep_runtime::host::mutation::Operator;

    use super::*;

    fn target(place: usize) -> Target {
        let (file, code) = ("ep/rings.cuh".to_owned(), "if (a) b();".to_owned());
        let (from, to, operator) = ("a".to_owned(), "!(a)".to_owned(), Operator::Negated);
        let mutation = Mutation { number: 1, file, line: 7, operator, from, to, code };
        Target { place, nth: 1, mutation, numbers: vec![1], equivalent: None, form: None }
    }

    /// What has been printed by now, by a run that is cut off here.
    fn printed(
        json: bool,
        tell: impl FnOnce(&mut Report, &mut dyn Write) -> io::Result<()>,
    ) -> String {
        let mut out = BufWriter::new(Vec::new());
        tell(&mut Report::new(json, false), &mut out).unwrap();
        String::from_utf8(out.get_ref().clone()).unwrap()
    }

    #[test]
    fn what_is_known_is_printed_at_once() {
        let hunt = |runs, is_reached| Hunt { runs, is_reached, ..Hunt::default() };
        let shown = |is_reached| {
            printed(false, |report, out| report.note(&target(0), Some(&hunt(9, is_reached)), out))
        };
        assert_eq!(
            shown(true),
            "  SURVIVES  ep/rings.cuh:7 negated: `a` becomes `!(a)` (9 runs)\n"
        );
        assert_eq!(shown(false), "  NOT RUN   ep/rings.cuh:7 negated: `a` becomes `!(a)`\n");
        let object = printed(true, |report, out| report.note(&target(3), None, out));
        assert!(object.starts_with("{\"number\":3,"), "{object}");
        assert!(object.ends_with("\"fate\":\"equivalent\",\"reason\":null}\n"), "{object}");
    }

    #[test]
    fn mutations_that_still_run_are_named_and_not_counted() {
        let hunt = Hunt { runs: 4, is_reached: true, ..Hunt::default() };
        let left = "  LEFT      ep/rings.cuh:7 negated: `a` becomes `!(a)` (4 runs so far)\n";
        let tell = |report: &mut Report, out: &mut dyn Write| {
            report.left(&target(0), &hunt, out)?;
            assert_eq!(report.all.survivors(), 0);
            Ok(())
        };
        assert_eq!(printed(false, tell), left);
        assert!(printed(true, tell).contains("\"fate\":\"left\",\"runs\":4,\"cut\":false"));
    }
}
