//! Parts that run beside others, each as a process whose output is shown when it ends.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::Run;
use super::took::Took;
use crate::cargo::Tally;
use crate::{Failure, Outcome, say};

/// How many parts run at once: where one waits for its longest test, the other one keeps the cores busy.
const AT_ONCE: usize = 2;

/// What the threads share that run the parts.
struct Parts<'a> {
    waiting: VecDeque<String>,
    run: &'a mut Run,
    failed: Vec<String>,
}

/// Runs the parts by the program `own`, and adds up what they say. Once one has failed, no other one starts.
pub(super) fn run(
    own: &Path,
    parts: VecDeque<String>,
    words: &[&str],
    noted: &Path,
    run: &mut Run,
) -> Outcome {
    let shared = Mutex::new(Parts { waiting: parts, run, failed: Vec::new() });
    let work = || {
        while let Some(name) = next(&shared) {
            let Said { text, tally, took } = output(own, &name, words, noted);
            let mut parts = lock(&shared);
            say(&format!("\n== {name}\n{}\n== {name}: {took}", text.trim_end()));
            parts.run.tally.add(tally);
            parts.run.took.push((name.clone(), took));
            if tally.failed > 0 {
                parts.failed.push(name);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let failed = &lock(&shared).failed;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Task(format!("{} failed: see above", failed.join(", ")))),
    }
}

fn lock<'s, 'a>(shared: &'s Mutex<Parts<'a>>) -> MutexGuard<'s, Parts<'a>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn next(shared: &Mutex<Parts<'_>>) -> Option<String> {
    let mut parts = lock(shared);
    if parts.failed.is_empty() { parts.waiting.pop_front() } else { None }
}

/// What a part prints, and what its last lines say.
struct Said {
    text: String,
    tally: Tally,
    took: Took,
}

fn output(own: &Path, name: &str, words: &[&str], noted: &Path) -> Said {
    let mut text = String::new();
    let status = printed(own, name, words, noted, &mut text);
    let mut tally = text.lines().rev().find_map(Tally::read).unwrap_or_default();
    let took = text.lines().rev().find_map(Took::read).unwrap_or_default();
    match status {
        Ok(true) => {}
        Ok(false) => tally.failed = tally.failed.max(1),
        Err(error) => {
            text.push_str(&format!("xtask: this part does not run: {error}\n"));
            tally.failed = tally.failed.max(1);
        }
    }
    Said { text, tally, took }
}

/// Runs a part to its end: whether it ends well. Both streams go into one pipe, in their order.
fn printed(
    own: &Path,
    name: &str,
    words: &[&str],
    noted: &Path,
    text: &mut String,
) -> io::Result<bool> {
    let (mut end, start) = io::pipe()?;
    let mut command = Command::new(own);
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
