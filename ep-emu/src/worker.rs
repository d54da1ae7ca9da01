//! Worker processes: a run that crashes or hangs takes only its worker down.
//!
//! A worker is a fork of the caller, so everything the caller built is at hand in it: programs,
//! worlds, inputs. The memory of a world is shared with it; all else comes back as bytes on a pipe.
//! In the worker only the forking thread lives, so what runs there must not wait for other threads.

use std::fmt;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, FailureKind};
use crate::os::{self, Ended};
use crate::symbols::{Symbols, mark};

/// Set in a worker: it has the process to itself.
static INSIDE: AtomicBool = AtomicBool::new(false);

/// Whether this process is a worker.
pub(crate) fn inside() -> bool {
    INSIDE.load(Ordering::Relaxed)
}

/// Sent before a message's bytes.
const NOTE: u8 = b'n';
const ANSWER: u8 = b'a';
const CRASH: u8 = b'c';
/// How the sanitized build ends undefined behaviour.
const ILLEGAL_INSTRUCTION: i32 = 4;
/// How long a worker that was asked where it is may take to say so.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How a worker ended that gave no answer.
#[derive(Clone, Debug)]
pub struct WorkerEnd {
    kind: FailureKind,
    /// What the worker last noted ([`Reporter::note`]).
    pub last_note: Vec<u8>,
    signal: i32,
    /// The running lane and its place in kernel code, when the worker could still say.
    place: Option<(String, usize)>,
}

impl WorkerEnd {
    fn new(kind: FailureKind) -> Self {
        Self { kind, last_note: Vec::new(), signal: 0, place: None }
    }

    /// As a failure of the run of `seed`.
    pub(crate) fn into_failure(self, symbols: &Symbols, seed: u64) -> Failure {
        let mut message = self.to_string();
        if let Some((lane, pc)) = &self.place {
            // The address is that of the instruction itself, not of the one after a call.
            message.push_str(&format!(": {lane} at {}", mark(pc + 1)));
        }
        symbols.resolve_failure(Failure::new(self.kind, message), seed)
    }
}

impl fmt::Display for WorkerEnd {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.signal) {
            (FailureKind::Hang, _) => write!(out, "the worker did not answer in time"),
            (FailureKind::Launch, _) => write!(out, "no worker process could be started"),
            (_, 0) => write!(out, "the worker ended without an answer"),
            (_, ILLEGAL_INSTRUCTION) => {
                write!(out, "an illegal instruction, in a sanitized build: undefined behaviour")
            }
            (_, signal) => write!(out, "signal {signal} ended the worker"),
        }
    }
}

impl std::error::Error for WorkerEnd {}

/// A worker's way to tell its parent how far it is.
pub struct Reporter {
    pipe: std::fs::File,
}

impl Reporter {
    /// Tells the parent; it keeps the last note and passes each to its listener.
    pub fn note(&mut self, bytes: &[u8]) {
        self.send(NOTE, bytes);
    }

    fn send(&mut self, kind: u8, bytes: &[u8]) {
        let mut message = vec![kind];
        message.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        message.extend_from_slice(bytes);
        // A parent that no longer listens has given this worker up.
        let _ = self.pipe.write_all(&message);
    }
}

/// Runs `body` in a worker and returns what it returns.
pub fn isolate(
    limit: Duration,
    body: impl FnOnce(&mut Reporter) -> Vec<u8>,
) -> Result<Vec<u8>, WorkerEnd> {
    isolate_listening(limit, body, |_| {})
}

/// As [`isolate`]; `listen` gets each note as it comes. `limit` is the time between two messages.
pub fn isolate_listening(
    limit: Duration,
    body: impl FnOnce(&mut Reporter) -> Vec<u8>,
    mut listen: impl FnMut(&[u8]),
) -> Result<Vec<u8>, WorkerEnd> {
    let child = os::fork_with_pipe(|pipe| {
        INSIDE.store(true, Ordering::Relaxed);
        os::report_crashes(&pipe, describe_crash);
        let mut reporter = Reporter { pipe };
        match catch_unwind(AssertUnwindSafe(|| body(&mut reporter))) {
            Ok(answer) => {
                reporter.send(ANSWER, &answer);
                0
            }
            Err(_) => 1,
        }
    });
    let Ok(mut child) = child else { return Err(WorkerEnd::new(FailureKind::Launch)) };
    let Ok(mut pipe) = child.answers.try_clone() else {
        return Err(WorkerEnd::new(FailureKind::Launch));
    };
    let (sender, messages) = mpsc::channel();
    let reader = thread::spawn(move || {
        while let Some(message) = read_message(&mut pipe) {
            if sender.send(message).is_err() {
                break;
            }
        }
    });
    let mut end = WorkerEnd::new(FailureKind::Crash);
    let mut deadline = Instant::now() + limit;
    let answer = loop {
        match messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((ANSWER, bytes)) => break Some(bytes),
            Ok((CRASH, bytes)) => end.place = parse_crash(&bytes),
            Ok((_, bytes)) => {
                listen(&bytes);
                end.last_note = bytes;
                deadline = Instant::now() + limit;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break None,
            Err(mpsc::RecvTimeoutError::Timeout) if end.kind == FailureKind::Hang => break None,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                end.kind = FailureKind::Hang;
                child.ask();
                deadline = Instant::now() + LAST_WORDS;
            }
        }
    };
    let ended = child.reap(answer.is_none() && end.kind == FailureKind::Hang);
    // The worker is gone and its end of the pipe closed, so the reader ends.
    let _ = reader.join();
    if let Ended::Signal(signal) = ended {
        end.signal = signal;
    }
    answer.ok_or(end)
}

fn read_message(pipe: &mut impl Read) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    pipe.read_exact(&mut head).ok()?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    let mut bytes = vec![0; length as usize];
    pipe.read_exact(&mut bytes).ok()?;
    Some((head[0], bytes))
}

/// What a worker that got a deadly signal at `pc` sends: `lane\npc`.
fn describe_crash(pc: usize) -> Vec<u8> {
    let lane = crate::run::running_lane().unwrap_or_default();
    let text = format!("{lane}\n{pc}");
    let mut message = vec![CRASH];
    message.extend_from_slice(&(text.len() as u32).to_le_bytes());
    message.extend_from_slice(text.as_bytes());
    message
}

fn parse_crash(bytes: &[u8]) -> Option<(String, usize)> {
    let text = String::from_utf8_lossy(bytes);
    let (lane, pc) = text.split_once('\n')?;
    Some((lane.to_owned(), pc.parse().ok()?))
}
