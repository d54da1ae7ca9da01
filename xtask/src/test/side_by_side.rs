//! Parts that run beside others, each as a process whose output is shown when it ends.

use std::collections::VecDeque;
use std::env;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use crate::cargo::Tally;
use crate::{Failure, Outcome, say};

/// How many parts run at once: where one waits for its longest test, the other one keeps the cores busy.
const AT_ONCE: usize = 2;

/// What the parts share.
struct Run {
    waiting: VecDeque<String>,
    tally: Tally,
    failed: Vec<String>,
}

/// Runs the parts, and adds up what they say. Once one has failed, no other one starts.
pub(super) fn run(
    parts: VecDeque<String>,
    words: &[&str],
    noted: &Path,
    tally: &mut Tally,
) -> Outcome {
    let shared = Mutex::new(Run { waiting: parts, tally: *tally, failed: Vec::new() });
    let work = || {
        while let Some(name) = next(&shared) {
            let started = Instant::now();
            let (text, found) = output(&name, words, noted);
            let mut run = lock(&shared);
            let seconds = started.elapsed().as_secs_f64();
            say(&format!("\n== {name}\n{}\n== {name}: {seconds:.1} s", text.trim_end()));
            run.tally.add(found);
            if found.failed > 0 {
                run.failed.push(name);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let run = lock(&shared);
    *tally = run.tally;
    match run.failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Task(format!("{} failed: see above", run.failed.join(", ")))),
    }
}

fn lock(shared: &Mutex<Run>) -> MutexGuard<'_, Run> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn next(shared: &Mutex<Run>) -> Option<String> {
    let mut run = lock(shared);
    if run.failed.is_empty() { run.waiting.pop_front() } else { None }
}

/// What a part prints, and its tally.
fn output(name: &str, words: &[&str], noted: &Path) -> (String, Tally) {
    let mut text = String::new();
    let status = printed(name, words, noted, &mut text);
    let found = text.lines().rev().find_map(Tally::read);
    let mut found = found.unwrap_or_default();
    match status {
        Ok(true) => {}
        Ok(false) => found.failed = found.failed.max(1),
        Err(error) => {
            text.push_str(&format!("xtask: this part does not run: {error}\n"));
            found.failed = found.failed.max(1);
        }
    }
    (text, found)
}

/// Runs a part to its end: whether it ends well. Both streams go into one pipe, in their order.
fn printed(name: &str, words: &[&str], noted: &Path, text: &mut String) -> io::Result<bool> {
    let (mut end, start) = io::pipe()?;
    let mut command = Command::new(env::current_exe()?);
    command.args(["test", "--part", name]).args(words);
    command.env("INSTA_SNAPSHOT_REFERENCES_FILE", noted);
    command.stdout(start.try_clone()?).stderr(start);
    let mut child = command.spawn()?;
    // Holds the writing end, too.
    drop(command);
    let mut bytes = Vec::new();
    let read = end.read_to_end(&mut bytes);
    text.push_str(&String::from_utf8_lossy(&bytes));
    let status = child.wait()?;
    read.map(|_| status.success())
}
