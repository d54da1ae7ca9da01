//! One mutation: which courses come to it, and how it shows.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ep_runtime::host::mutation::{Mutation, REACHING, Weaver};
use ep_runtime::host::{Build, Programs};

use super::course::{Course, Way};
use crate::check::fault::Fault;
use crate::check::pool::on_all_cores;

/// Runs of each kind, in order: the seeds, what strikes a rank, and in which of the courses that come to a
/// mutation then. The long ones come last, since a budget may end before them.
const RUNS: [(RangeInclusive<u64>, Option<Fault>, Range<usize>); 5] = [
    (1..=1, None, 0..16),
    (1..=3, Some(Fault::StoppedRank), 0..3),
    // Some wait for it then, and say so.
    (1..=2, Some(Fault::DeadRank), 0..3),
    (1..=1, None, 16..usize::MAX),
    (2..=2, None, 0..usize::MAX),
];

/// A mutated kernel that takes so many times the steps of a good one is a failure.
const MORE_STEPS: u64 = 20;

/// What a good run may take besides, on a machine that does other work, and how long a step may.
const LEAST_STEPS: u64 = 1_000_000;
const LEAST_TIME: Duration = Duration::from_secs(10);
const STEP_TIME: Duration = Duration::from_micros(2);

/// A mutation, in every text that has it: a line that several texts share is one line.
pub(super) struct Target {
    /// Its place among all that are asked for.
    pub(super) place: usize,
    /// Which of those of its file that read the same; from 1 on.
    pub(super) nth: usize,
    pub(super) mutation: Mutation,
    pub(super) numbers: Vec<u32>,
    /// Why nothing can find it, if so.
    pub(super) equivalent: Option<String>,
    /// Why nothing finds it, if nothing does: what is so of all mutations of its form.
    pub(super) form: Option<String>,
}

impl Target {
    /// Whether what was not found is a mutation that nothing can find.
    pub(super) fn excuses(&self, hunt: &Hunt) -> bool {
        self.form.is_some() && hunt.is_reached && hunt.found.is_none()
    }
}

/// The targets of all mutations so far.
pub(super) fn targets(weaver: &Weaver) -> Vec<Target> {
    let mut all: Vec<Target> = Vec::new();
    let mut places: BTreeMap<_, usize> = BTreeMap::new();
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for mutation in weaver.mutations() {
        let Mutation { file, operator, from, to, code, .. } = mutation.clone();
        let what = (file, operator, from, to, code);
        let count = counts.entry((weaver.text_of(mutation.number), what.clone())).or_default();
        *count += 1;
        let nth = *count;
        let place = *places.entry((nth, what)).or_insert(all.len());
        match all.get_mut(place) {
            Some(target) => target.numbers.push(mutation.number),
            None => {
                let numbers = vec![mutation.number];
                all.push(Target { place: 0, nth, mutation, numbers, equivalent: None, form: None });
            }
        }
    }
    all
}

/// How a mutation showed.
pub(super) struct Found {
    /// What struck a rank.
    pub(super) fault: Option<Fault>,
    pub(super) course: String,
    pub(super) seed: u64,
    pub(super) report: String,
}

/// What became of a mutation.
#[derive(Default)]
pub(super) struct Hunt {
    pub(super) found: Option<Found>,
    pub(super) runs: u64,
    /// Whether any course comes to it.
    pub(super) is_reached: bool,
    /// Whether the budget ended it.
    pub(super) is_cut: bool,
}

/// How mutations are judged.
#[derive(Debug, Clone, Copy)]
pub(in crate::check) struct Judging {
    /// Whether the checker looks on.
    pub(in crate::check) checker: bool,
    /// Steps that all runs with a mutation may take, as they are without it.
    pub(in crate::check) budget: u64,
}

/// The courses, and what is known of each.
pub(super) struct Field {
    courses: Vec<(Course, Known)>,
    judging: Judging,
    /// Of the courses that fail as they are: they judge nothing.
    pub(super) wrong: Vec<String>,
}

/// What a course came to.
pub(super) struct Passed {
    /// Mutations that it comes to.
    pub(super) reached: usize,
    pub(super) steps: u64,
    pub(super) time: Duration,
}

/// What a course does without a mutation.
pub(in crate::check) struct Known {
    programs: Arc<Programs>,
    reached: BTreeSet<u32>,
    /// What it comes to only when a rank stops or dies.
    struck: BTreeSet<u32>,
    steps: u64,
}

impl Field {
    /// Runs every course once, to know what it comes to, and tells `told` about each. An error if none is
    /// good.
    pub(super) fn new(
        courses: Vec<Course>,
        programs: &Arc<Programs>,
        weaver: &Arc<Weaver>,
        judging: Judging,
        mut told: impl FnMut(&Course, Option<&Passed>),
    ) -> Result<Field, String> {
        let mut known = BTreeMap::new();
        let mut wrong = Vec::new();
        // Programs of its own, which note what this course comes to.
        let work = |index: usize| explore(&courses[index], &programs.woven(weaver), judging);
        on_all_cores(courses.len(), work, |index, outcome| match outcome {
            Ok((found, time)) => {
                let reached = found.reached.len() + found.struck.len();
                told(&courses[index], Some(&Passed { reached, steps: found.steps, time }));
                known.insert(index, found);
            }
            Err(report) => {
                told(&courses[index], None);
                wrong.push(report);
            }
        });
        if let Some(wrong) = wrong.first().filter(|_| known.is_empty()) {
            return Err(wrong.clone());
        }
        let good = courses.into_iter().enumerate();
        let good = good.filter_map(|(index, course)| Some((course, known.remove(&index)?)));
        let mut courses: Vec<(Course, Known)> = good.collect();
        courses.sort_by_key(|(_, known)| known.steps);
        Ok(Field { courses, judging, wrong })
    }

    /// Runs what comes to a mutation until a run fails, after the runs of other courses.
    pub(super) fn hunt(&self, target: &Target, before: &Hunt) -> Result<Hunt, String> {
        let (plain, struck) = (self.plain(target), self.struck(target));
        let is_reached = before.is_reached || !plain.is_empty() || !struck.is_empty();
        let mut hunt = Hunt { is_reached, runs: before.runs, ..Hunt::default() };
        let mut steps = 0;
        for (seeds, fault, places) in RUNS {
            let courses = if fault.is_some() { &struck } else { &plain };
            for seed in seeds {
                // Many ranks take longer than all the rest, so that one schedule of theirs is enough.
                let in_turn = |it: &&Reaching<'_>| seed == 1 || !it.0.is_large();
                let courses = courses.iter().skip(places.start).take(places.len());
                for (course, known, mutation) in courses.filter(in_turn) {
                    steps += known.steps;
                    // One run is made whatever it takes.
                    if hunt.runs > 0 && steps > self.judging.budget {
                        hunt.is_cut = true;
                        return Ok(hunt);
                    }
                    hunt.runs += 1;
                    let struck = fault.map(|fault| (fault, course.ranks()));
                    let way = known.way(self.judging.build(course), seed, *mutation, struck);
                    let Err(report) = course.run(&known.programs, way)? else { continue };
                    // That it is good with the first seed is known.
                    if seed > 1 {
                        known.confirm(course, way)?;
                    }
                    let course = course.name.clone();
                    hunt.found = Some(Found { fault, course, seed, report });
                    return Ok(hunt);
                }
            }
        }
        Ok(hunt)
    }

    /// The courses that come to a mutation, the shortest first.
    fn plain(&self, target: &Target) -> Vec<Reaching<'_>> {
        self.coming(target, |known, number| known.reached.contains(&number))
    }

    /// Those that do with a fault, and first those that come to something new then.
    fn struck(&self, target: &Target) -> Vec<Reaching<'_>> {
        let mut all = self.coming(target, |known, number| {
            known.reached.contains(&number) || known.struck.contains(&number)
        });
        all.retain(|(course, ..)| course.has_faults());
        all.sort_by_key(|(_, known, _)| known.struck.is_empty());
        all
    }

    fn coming(&self, target: &Target, comes: impl Fn(&Known, u32) -> bool) -> Vec<Reaching<'_>> {
        let reaching = |(course, known)| {
            let number = target.numbers.iter().find(|number| comes(known, **number))?;
            Some((course, known, *number))
        };
        self.courses.iter().map(|it| (&it.0, &it.1)).filter_map(reaching).collect()
    }
}

/// A course, and the number in it of a mutation that it comes to.
type Reaching<'a> = (&'a Course, &'a Known, u32);

impl Known {
    /// How a course with a mutation is run; `struck`: with a fault on one of so many ranks.
    fn way(&self, build: Build, seed: u64, mutation: u32, struck: Option<(Fault, usize)>) -> Way {
        let max_steps = self.steps * MORE_STEPS + LEAST_STEPS;
        // Some loop without a step.
        let long = STEP_TIME * u32::try_from(self.steps * MORE_STEPS).unwrap_or(u32::MAX);
        Way {
            build,
            seed,
            mutation,
            struck: struck.map(|(fault, ranks)| (fault, fault.drawn(ranks, seed, self.steps))),
            max_steps,
            isolation: Some(LEAST_TIME + long),
        }
    }

    /// An error if a run fails without its mutation as well: it judges nothing.
    fn confirm(&self, course: &Course, way: Way) -> Result<(), String> {
        let outcome = course.run(&self.programs, Way { mutation: 0, ..way })?;
        outcome.map(drop).map_err(|report| {
            let fault = way.struck.map_or("no fault", |(fault, _)| fault.name());
            let (name, seed) = (&course.name, way.seed);
            format!("{name} fails without a mutation, with {fault} and seed {seed}: {report}")
        })
    }
}

impl Judging {
    /// How a course is compiled.
    fn build(self, course: &Course) -> Build {
        if self.checker { course.build() } else { Build::Plain }
    }
}

/// Runs a course as it is, and once more with each fault. What judges mutations finds nothing then.
pub(in crate::check) fn explore(
    course: &Course,
    programs: &Arc<Programs>,
    judging: Judging,
) -> Result<(Known, Duration), String> {
    let good = |way: Way| {
        let run = course.run(programs, way)?;
        run.map_err(|report| format!("{} fails without a mutation: {report}", course.name))
    };
    let build = judging.build(course);
    // A sanitized run is one of another process, which tells nobody what it comes to.
    let reaching = if build == Build::Sanitized { Build::Plain } else { build };
    let mut way = Way {
        build: reaching,
        seed: 1,
        mutation: REACHING,
        struck: None,
        max_steps: u64::MAX,
        isolation: None,
    };
    let (begun, steps) = (Instant::now(), good(way)?);
    let reached = programs.reached();
    if build != reaching {
        good(Way { build, mutation: 0, ..way })?;
    }
    let time = begun.elapsed();
    let faults = RUNS.iter().filter_map(|(_, fault, _)| *fault);
    for fault in faults.filter(|_| course.has_faults()) {
        way.struck = Some((fault, fault.drawn(course.ranks(), 1, steps)));
        good(way)?;
    }
    let struck = programs.reached().difference(&reached).copied().collect();
    Ok((Known { programs: Arc::clone(programs), reached, struck, steps }, time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::mutate::course::courses;

    /// The course of that name as it is, and what is known of it.
    fn explored(name: &str) -> Option<(Course, Known)> {
        let programs = Programs::find().ok()?;
        let all = courses(&programs).unwrap_or_else(|_| panic!("every course has a plan"));
        let course = all.into_iter().find(|course| course.name == name).unwrap();
        let judging = Judging { checker: true, budget: 1 };
        let (known, _) = explore(&course, &programs, judging).unwrap();
        Some((course, known))
    }

    #[test]
    fn a_run_that_fails_by_itself_judges_nothing_at_length() {
        let Some((course, known)) = explored("functions, counts") else { return };
        let way = Way { isolation: None, ..known.way(Build::Checked, 2, 1, None) };
        assert_eq!(known.confirm(&course, way), Ok(()));
        let said = known.confirm(&course, Way { max_steps: 10, ..way }).unwrap_err();
        let begins = "functions, counts fails without a mutation, with no fault and seed 2: ";
        assert!(said.starts_with(begins), "{said}");
    }

    #[test]
    fn a_rank_may_stop_at_length() {
        // While rows are expanded, and where others wait for the slots of a call that was stopped.
        for (name, seeds) in [("expanded", 1..=3), ("decode-combine, many ranks", 3..=3)] {
            let Some((course, known)) = explored(name) else { return };
            for seed in seeds {
                let struck = Some((Fault::StoppedRank, course.ranks()));
                let way = Way { isolation: None, ..known.way(course.build(), seed, 0, struck) };
                assert_eq!(known.confirm(&course, way), Ok(()), "{name}, seed {seed}");
            }
        }
    }
}
