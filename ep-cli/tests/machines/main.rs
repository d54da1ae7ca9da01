//! The commands that run kernels, as scripts see them, on a machine that shows no GPU.

mod bench;
mod declared;
mod emulated;
mod selftest;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs a command line with a cache of these tests; `required`: GPUs that have to be there.
fn epforge(line: &str, required: Option<&str>) -> Output {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache");
    let mut command = Command::new(env!("CARGO_BIN_EXE_epforge"));
    command.args(line.split_whitespace()).env("EPFORGE_CACHE", cache);
    command.env("CUDA_VISIBLE_DEVICES", "").env_remove("EP_REQUIRE_GPUS");
    command.envs(required.map(|count| ("EP_REQUIRE_GPUS", count)));
    command.output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a command that has to succeed; none without a C++ compiler.
fn good(line: &str) -> Option<String> {
    let done = epforge(line, None);
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    if err.contains("no C++ compiler") {
        eprintln!("skipped: {err}");
        return None;
    }
    assert!(done.status.success(), "{line}: {out}{err}");
    Some(out)
}

fn objects(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}
