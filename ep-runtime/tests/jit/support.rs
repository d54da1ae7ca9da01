//! Folders that vanish, and worker processes that run one test of the same binary again.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Tells a worker what to do; a test that finds it unset is the parent.
const WORKER: &str = "EPFORGE_TEST_WORKER";

/// A folder of this test alone, removed at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("epforge-{name}-{}-{number}", std::process::id());
        let path = env::temp_dir().join(folder);
        fs::create_dir(&path).expect("a new folder can be made");
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A test that failed half way may have left it unreadable; the system cleans up.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The task of this process, if it is a worker.
pub(crate) fn task() -> Option<String> {
    env::var(WORKER).ok()
}

/// Starts a process that runs only `test`, with `task` as its task.
pub(crate) fn start(test: &str, task: &str, variables: &[(&str, &Path)]) -> Child {
    let binary = env::current_exe().expect("a test knows its binary");
    Command::new(binary)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(WORKER, task)
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a test binary can be started again")
}

/// Waits for a worker, asserts that it succeeded and gives all it printed.
pub(crate) fn finish(worker: Child) -> String {
    let output = worker.wait_with_output().expect("a worker can be waited for");
    let text = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    let text = text.concat();
    assert!(output.status.success(), "the worker failed:\n{text}");
    text
}

/// Prints past the capture of the test harness, which hides what passing tests print.
pub(crate) fn announce(text: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{text}");
}
