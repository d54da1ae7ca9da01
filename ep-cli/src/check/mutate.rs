//! `epforge check --mutate`: bugs made by rule in every line of the device library and of printed
//! texts, and how each shows.

mod course;
mod equivalent;
mod hunt;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use ep_runtime::device::HEADERS;
use ep_runtime::host::Programs;
use ep_runtime::host::mutation::Weaver;
use ep_verify::oracle::Random;

use super::pool::on_all_cores_until_failure;
use crate::failure::Failure;
use crate::problem::no_machine;
use crate::progress::Progress;
use crate::suggestion::did_you_mean;
use hunt::{Field, Hunt, Target, targets};
use report::Report;

pub(super) use course::{Course, Way, courses};
pub(super) use equivalent::Equivalents;
pub(super) use hunt::{Judging, explore};

/// The name for all files.
const ALL: &str = "all";

/// The lowest layer is asm, which the host has a twin of; calls of it are mutated.
const TWIN: &str = "ep/ptx.cuh";

/// What is asked for.
pub(super) struct Request<'a> {
    /// Headers of the device library and texts of kernels, or all; `FILE:LINE` for one line.
    pub(super) file: &'a str,
    /// So many of them, drawn by the seed.
    pub(super) sample: Option<usize>,
    /// A list of those that are left out.
    pub(super) known: Option<&'a Path>,
    pub(super) seed: u64,
    /// Whether runs are judged only by their results.
    pub(super) outputs: bool,
    /// The first one, by its place among them.
    pub(super) from: usize,
    /// Steps that the runs of one may take, as they are without it.
    pub(super) budget: u64,
}

pub(super) fn run(request: &Request<'_>, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let failed = |error: String| Failure::Failed(error);
    let equivalents = Equivalents::known().map_err(failed)?;
    let known = request.known.map(Equivalents::read).transpose().map_err(Failure::WrongUse)?;
    let programs = Programs::find().map_err(no_machine)?;
    let courses = courses(&programs)?;
    let texts: Vec<Vec<(String, String)>> =
        courses.iter().map(|course| course.texts()).collect::<Result<_, _>>().map_err(failed)?;
    let (file, line) = place(request.file);
    let of_pipelines = courses.iter().zip(&texts).filter(|(course, _)| course.is_of_pipeline());
    let kernels = of_pipelines.flat_map(|(_, texts)| texts).map(|(entry, _)| entry.as_str());
    let weaver = Arc::new(Weaver::new(files(file, kernels)?));
    let programs = programs.woven(&weaver);
    texts
        .concat()
        .iter()
        .try_for_each(|(entry, text)| programs.read(entry, text).map(drop))
        .map_err(no_machine)?;
    let mut chosen = choose(request, line, &weaver, (&equivalents, known.as_ref()));
    if let Some(line) = line.filter(|_| chosen.is_empty()) {
        return Err(Failure::WrongUse(format!("no mutations in line {line} of `{file}`")));
    }
    if request.from > 0 && request.from >= chosen.len() {
        let (from, all) = (request.from, chosen.len());
        let what = format!("mutation {from} does not exist: there are {all}, and the first is 0");
        return Err(Failure::WrongUse(what));
    }
    chosen.drain(..request.from);
    let judging = Judging { checker: !request.outputs, budget: request.budget };
    let mut report = Report::new(json, request.outputs);
    // What functions show within seconds is not woven into the texts of all pipelines, and what short calls
    // show waits for no long ones.
    let (pipelines, functions): (Vec<Course>, Vec<Course>) =
        courses.into_iter().partition(|course| course.is_of_pipeline());
    let (long, short) = pipelines.into_iter().partition(|course| course.is_long());
    let mut wrong = Vec::new();
    let mut left: Vec<(Target, Hunt)> =
        chosen.into_iter().map(|target| (target, Hunt::default())).collect();
    for (courses, is_last) in [(functions, false), (short, false), (long, true)] {
        let field = explore_all(courses, &left, (&programs, &weaver), judging, (&report, out))?;
        // Some do not compile, as the first runs have shown.
        let good: BTreeSet<u32> = weaver.mutations().iter().map(|it| it.number).collect();
        left.retain(|(it, _)| it.numbers.iter().any(|number| good.contains(number)));
        left = hunt_all(&field, left, is_last, (&mut report, out))?;
        wrong.extend(field.wrong);
    }
    let outcome = report.end(out);
    wrong.into_iter().next().map_or(outcome, |wrong| Err(Failure::Failed(wrong)))
}

/// A file, and a line of it if only that is meant.
fn place(name: &str) -> (&str, Option<u32>) {
    let line = name.rsplit_once(':').and_then(|(file, line)| Some((file, line.parse().ok()?)));
    line.map_or((name, None), |(file, line)| (file, Some(line)))
}

/// The files that `name` asks for.
fn files<'a>(name: &str, kernels: impl Iterator<Item = &'a str>) -> Result<Vec<String>, Failure> {
    let headers = HEADERS.iter().map(|(header, _)| (*header).to_owned());
    let kernels = kernels.map(|entry| format!("{entry}.cu"));
    let known: BTreeSet<String> = headers.chain(kernels).filter(|file| file != TWIN).collect();
    let bare = |file: &str| file.strip_prefix("ep/").unwrap_or(file).to_owned();
    let is = |name: &str, file: &str| name == ALL || file == name || bare(file) == name;
    let names: Vec<&str> = name.split(',').collect();
    let asked = |file: &&String| names.iter().any(|name| is(name, file));
    let unknown = names.iter().find(|name| !known.iter().any(|file| is(name, file)));
    let files: Vec<String> = known.iter().filter(asked).cloned().collect();
    let Some(name) = unknown else { return Ok(files) };
    let names: Vec<String> = known.iter().map(|file| bare(file)).collect();
    let (all, hint) = (names.join(", "), did_you_mean(name, names.iter().map(String::as_str)));
    Err(Failure::WrongUse(format!("no mutations for `{name}`; choose one of all, {all}{hint}")))
}

/// The mutations that are hunted: all, those of a line, or a sample of those that something can find; those
/// that are known are left out.
fn choose(
    request: &Request<'_>,
    line: Option<u32>,
    weaver: &Weaver,
    (equivalents, known): (&Equivalents, Option<&Equivalents>),
) -> Vec<Target> {
    let mut all = targets(weaver);
    all.retain(|target| line.is_none_or(|line| target.mutation.line == line));
    all.retain(|target| known.is_none_or(|known| known.reason(target).is_none()));
    for target in &mut all {
        target.equivalent = equivalents.reason(target);
        target.form = equivalents.reason_of_form(target);
    }
    if let Some(count) = request.sample {
        all.retain(|target| target.equivalent.is_none() && target.form.is_none());
        Random::new(request.seed).choose(&mut all, count);
    }
    all.iter_mut().enumerate().for_each(|(place, target)| target.place = place);
    all
}

/// Runs every course as it is whose texts have one of the mutations.
fn explore_all(
    mut courses: Vec<Course>,
    left: &[(Target, Hunt)],
    (programs, weaver): (&Arc<Programs>, &Arc<Weaver>),
    judging: Judging,
    (report, out): (&Report, &mut dyn Write),
) -> Result<Field, Failure> {
    weaver.keep(left.iter().flat_map(|(target, _)| &target.numbers).copied().collect());
    let mut about = Vec::new();
    for course in &courses {
        let mut has_any = false;
        for (entry, text) in course.texts().map_err(Failure::Failed)? {
            has_any |= programs.read(&entry, &text).map_err(no_machine)?;
        }
        about.push(has_any);
    }
    let mut about = about.into_iter();
    courses.retain(|_| about.next().unwrap_or_default());
    let progress = Progress::new(courses.len() as u64);
    let mut written = Ok(());
    let field = Field::new(courses, programs, weaver, judging, |course, passed| {
        let told = progress.aside(|| passed.map_or(Ok(()), |it| report.course(course, it, out)));
        progress.step(&course.name);
        if written.is_ok() {
            written = told;
        }
    });
    drop(progress);
    written?;
    field.map_err(Failure::Failed)
}

/// Hunts mutations, and gives those that are left; `is_last`: nobody hunts these.
fn hunt_all(
    field: &Field,
    targets: Vec<(Target, Hunt)>,
    is_last: bool,
    (report, out): (&mut Report, &mut dyn Write),
) -> Result<Vec<(Target, Hunt)>, Failure> {
    let progress = Progress::new(targets.len() as u64);
    let mut left = BTreeMap::new();
    let work = |index: usize| {
        let (target, before) = &targets[index];
        target.equivalent.is_none().then(|| field.hunt(target, before)).transpose()
    };
    let told = on_all_cores_until_failure(targets.len(), work, |index, hunt| {
        let (target, before) = &targets[index];
        let hunt = hunt.map_err(Failure::Failed)?;
        progress.aside(|| match hunt {
            Some(hunt) if hunt.found.is_none() && !is_last => {
                let is_new = hunt.runs > before.runs;
                let told = if is_new { report.left(target, &hunt, out) } else { Ok(()) };
                left.insert(index, hunt);
                told
            }
            hunt => {
                let hunt = hunt.as_ref().filter(|hunt| !target.excuses(hunt));
                report.note(target, hunt, out)
            }
        })?;
        progress.step(&target.mutation.file);
        Ok(())
    });
    drop(progress);
    let targets = targets.into_iter().enumerate();
    let left = targets.filter_map(|(index, (target, _))| Some((target, left.remove(&index)?)));
    told.map(|()| left.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_files_may_be_named() {
        let named = |name: &str| files(name, ["nvl_dispatch"].into_iter());
        let good = |name: &str| named(name).unwrap_or_else(|_| panic!("{name} is known"));
        assert_eq!(good("rows.cuh,ep/rings.cuh"), ["ep/rings.cuh", "ep/rows.cuh"]);
        assert_eq!(good("nvl_dispatch.cu"), ["nvl_dispatch.cu"]);
        assert_eq!(good("all").len(), HEADERS.len());
        assert!(
            matches!(named("rows.cuh,pul.cuh"), Err(Failure::WrongUse(what)) if what.contains("did you mean `pull.cuh`?"))
        );
    }

    #[test]
    fn a_line_may_be_named() {
        assert_eq!(place("pull.cuh:58"), ("pull.cuh", Some(58)));
        assert_eq!(place("pull.cuh"), ("pull.cuh", None));
        assert_eq!(place("pull.cuh:x"), ("pull.cuh:x", None));
        assert_eq!(place("all"), ("all", None));
    }
}
