//! `cargo xtask ci`: what a release must pass.

use std::time::Instant;

use crate::cargo::{cargo, succeed};
use crate::{Failure, Outcome, root, say, test};

/// Runs the task.
pub(crate) fn run(options: &[String]) -> Outcome {
    if let Some(option) = options.first() {
        return Err(Failure::Usage(format!("ci has no option `{option}`")));
    }
    timed("docs", || {
        let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
        doc.env("RUSTDOCFLAGS", "-D warnings");
        succeed(doc, "cargo doc")
    })?;
    timed("install", || {
        let target = root().join("target");
        let place = target.join("installed");
        let mut install = cargo(&["install", "--path", "ep-cli", "--debug", "--quiet", "--locked"]);
        install.arg("--root").arg(place).env("CARGO_TARGET_DIR", target);
        succeed(install, "cargo install")
    })?;
    test::run(&["--full".to_owned()])
}

fn timed(name: &str, run: impl FnOnce() -> Outcome) -> Outcome {
    let started = Instant::now();
    run()?;
    say(&format!("== {name}: {:.1} s", started.elapsed().as_secs_f64()));
    Ok(())
}
