//! The wheel: built as a user would build it, looked at, and tested where nothing else is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{SOURCE, environment, interpreter, pip, runs, task, unittests};
use crate::cargo::succeed;
use crate::{Failure, Outcome, root, say};

/// What a wheel may weigh.
const MOST_BYTES: u64 = 15_000_000;

/// What the tests of the installed package need beside it.
const PACKAGES: [&str; 2] = ["numpy", "ml_dtypes"];

/// Builds the wheel into `target/wheels`, and tests it.
pub(crate) fn run() -> Outcome {
    let place = root().join("target/wheels");
    let failed = |error| task(format!("{} cannot be written: {error}", place.display()));
    if place.exists() {
        // An older one would be found, too.
        fs::remove_dir_all(&place).map_err(failed)?;
    }
    let python = interpreter()?;
    let mut build = pip(&python, "wheel", &["--no-deps", "--wheel-dir"]);
    build.arg(&place).arg(root().join(SOURCE));
    // pip's wheels are for the machine that builds them, unless maturin is told to look at the symbols.
    build.env("MATURIN_PEP517_ARGS", "--compatibility pypi");
    succeed(build, "pip wheel of ep-python")?;
    let wheel = only_wheel(&place)?;
    let bytes = fs::metadata(&wheel).map_err(failed)?.len();
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    say(&format!("{name}: {:.1} MB", bytes as f64 / 1e6));
    if bytes > MOST_BYTES {
        return Err(task(format!("{name} is larger than {MOST_BYTES} bytes")));
    }
    let platform = platform_of(&name).map_err(task)?;
    audit(&python, &wheel, platform)?;
    installed(&wheel)
}

fn only_wheel(place: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| task(format!("{} cannot be read: {error}", place.display()));
    let entries = fs::read_dir(place).map_err(failed)?.flatten().map(|entry| entry.path());
    let wheels: Vec<PathBuf> = entries.collect();
    match wheels.as_slice() {
        [wheel] => Ok(wheel.clone()),
        _ => Err(task(format!("{} has {} files, not one wheel", place.display(), wheels.len()))),
    }
}

/// The platform of a wheel for all versions of Python from 3.10 on, and for many Linuxes.
fn platform_of(name: &str) -> Result<&str, String> {
    let tags: Vec<&str> = name.trim_end_matches(".whl").split('-').skip(2).collect();
    match tags.as_slice() {
        ["cp310", "abi3", platform] if platform.starts_with("manylinux_") => Ok(platform),
        _ => Err(format!("{name} is no wheel of cp310-abi3-manylinux")),
    }
}

/// Asks auditwheel, where it can be had, whether the symbols are those of the platform.
fn audit(python: &Path, wheel: &Path, platform: &str) -> Outcome {
    if !runs(python, "import auditwheel") && !installs(pip(python, "install", &["auditwheel"])) {
        say("skipped: auditwheel cannot be had");
        return Ok(());
    }
    let mut command = Command::new(python);
    command.args(["-m", "auditwheel", "show"]).arg(wheel);
    let output = command.output().map_err(|error| task(format!("auditwheel: {error}")))?;
    let said = String::from_utf8_lossy(&output.stdout).replace('\n', " ");
    let tag = platform.split('.').next().unwrap_or(platform);
    if !output.status.success() || !said.contains(tag) {
        return Err(task(format!("auditwheel does not find {tag}: {said}")));
    }
    say(&format!("auditwheel: {tag}"));
    Ok(())
}

fn installs(mut command: Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// Installs the wheel where nothing else is, looks at it there, and then runs its tests.
fn installed(wheel: &Path) -> Outcome {
    let home = root().join("target/wheel-tests");
    let python = home.join("bin/python");
    environment(&home)?;
    let mut install = pip(&python, "install", &["--no-deps"]);
    install.arg(wheel);
    succeed(install, "pip install of the wheel")?;
    let bare =
        "import sys, epforge, epforge.deep_ep; assert not {'torch', 'numpy'} & set(sys.modules)";
    if !runs(&python, bare) {
        return Err(task("the package needs more than itself to be imported".to_owned()));
    }
    let mut list = Command::new(home.join("bin/epforge"));
    list.arg("list").stdout(std::process::Stdio::null());
    succeed(list, "epforge list, as installed")?;
    succeed(pip(&python, "install", &PACKAGES), "pip install of what the tests need")?;
    let others = ["deep-ep", "epforge-vllm", "epforge-sglang"];
    let mut more = pip(&python, "install", &["--no-deps"]);
    more.args(others.map(|name| root().join(SOURCE).join(name)));
    succeed(more, "pip install of the other packages of ep-python")?;
    let found = unittests(&python, None, &["discover", "--pattern", "test_*.py"])?;
    if found.failed > 0 {
        return Err(task(format!("{} tests of the wheel failed, see above", found.failed)));
    }
    say(&format!("{} tests of the wheel passed", found.passed));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_those_of_one_wheel_for_all() {
        let platform =
            |tags: &str| platform_of(&format!("epforge-0.1.0-{tags}.whl")).map(str::to_string);
        let found = platform("cp310-abi3-manylinux_2_34_x86_64").unwrap();
        assert_eq!(found, "manylinux_2_34_x86_64");
        assert!(platform("cp311-cp311-manylinux_2_34_x86_64").is_err(), "one version alone");
        let error = platform("cp310-abi3-linux_x86_64").unwrap_err();
        assert!(error.ends_with("is no wheel of cp310-abi3-manylinux"), "{error}");
    }
}
