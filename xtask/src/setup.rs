//! `cargo xtask setup`: what the tests need besides Rust.
//!
//! An NVRTC or libfabric of the machine is used as it is. Only if there is none, one comes from a Python
//! wheel into the `.cuda` folder of the project, where nothing else looks and `rm -r` removes it.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fabric::libraries;
use crate::find::{Candidate, OLDEST, PROJECT_FOLDER, Search, Version, distrust};
use crate::{Failure, Outcome, root, say};

/// A release on PyPI.
struct Wheel {
    folder: &'static str,
    package: &'static str,
    release: &'static str,
    content: Content,
}

/// What a wheel is brought for.
#[derive(Clone, Copy)]
enum Content {
    /// NVRTC of this version.
    Nvrtc(Version),
    /// A program at this place of the wheel.
    Program(&'static str),
    /// A library that the wheel has at this place, beside folders of its own; it is put into the folder.
    Library(&'static str),
}

/// The first one is brought when the machine has none; `--all-nvrtc` adds the older ones, which
/// users have beside torch.
const WHEELS: [Wheel; 3] = [
    Wheel {
        folder: "nvrtc-13.5",
        package: "nvidia-cuda-nvrtc",
        release: "13.5.37",
        content: Content::Nvrtc(Version { major: 13, minor: 5 }),
    },
    Wheel {
        folder: "nvrtc-13.0",
        package: "nvidia-cuda-nvrtc",
        release: "13.0.88",
        content: Content::Nvrtc(Version { major: 13, minor: 0 }),
    },
    Wheel {
        folder: "nvrtc-12.9",
        package: "nvidia-cuda-nvrtc-cu12",
        release: "12.9.86",
        content: Content::Nvrtc(Version { major: 12, minor: 9 }),
    },
];

/// The tests look at machine code with it. It is where `tests` looks for it.
const DISASSEMBLER: Wheel = Wheel {
    folder: "nvdisasm-13.5",
    package: "nvidia-cuda-nvdisasm",
    release: "13.5.37",
    content: Content::Program("nvidia/cu13/bin/nvdisasm"),
};

/// The MPICH wheel carries a libfabric that needs nothing but libc, for tests of networks and for machines
/// without root. It is used where the system has none.
const LIBFABRIC: Wheel = Wheel {
    folder: "libfabric-2.5",
    package: "mpich",
    release: "5.0.2",
    content: Content::Library("mpich-5.0.2.data/data/lib/mpich/libfabric.so.1"),
};

const LICENCE: &str = "\
NVRTC and nvdisasm are NVIDIA's and come from NVIDIA's packages on PyPI; their licence applies
(https://docs.nvidia.com/cuda/eula/). EPForge redistributes no part of it.";

/// Runs the task.
pub(crate) fn run(options: &[String]) -> Outcome {
    let (mut all, mut disassembler) = (false, false);
    for option in options {
        match option.as_str() {
            "--all-nvrtc" => all = true,
            "--nvdisasm" => disassembler = true,
            other => return Err(Failure::Usage(format!("setup has no option `{other}`"))),
        }
    }
    // Every part is tried, so that one run reports everything that is missing.
    let project = root().join(PROJECT_FOLDER);
    let parts = [nvrtc(&project, all, disassembler), libfabric(&project), compiler()];
    let mut missing = Vec::new();
    for part in parts {
        match part {
            Err(Failure::Task(sentence)) => missing.push(sentence),
            other => other?,
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(Failure::Task(missing.join("; and "))) }
}

/// Pipelines within one machine need none, so that it is no failure if none can be had.
fn libfabric(project: &Path) -> Outcome {
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    trusted(project)?;
    let search = Search { start: Some(root()), ..Search::from_environment() };
    if let Some(library) = libraries(&search).first() {
        say(&format!("libfabric: {}", library.display()));
        return Ok(());
    }
    say("libfabric is of the OpenFabrics Alliance: BSD licence, or GPL 2.");
    match bring(&LIBFABRIC, project) {
        Err(Failure::Task(why)) => say(&format!("libfabric: none, tests of networks skip: {why}")),
        other => other?,
    }
    Ok(())
}

fn nvrtc(project: &Path, all: bool, disassembler: bool) -> Outcome {
    trusted(project)?;
    let search = Search { start: Some(root()), ..Search::from_environment() };
    search.distrusted().iter().for_each(|sentence| say(sentence));
    let usable = search.candidates().find(|candidate| {
        candidate.builtins.is_some() && candidate.version.is_some_and(|version| version >= OLDEST)
    });
    let mut wanted = Vec::new();
    match usable {
        Some(Candidate { library, version: Some(version), origin, .. }) => {
            say(&format!("NVRTC: {version} {origin}: {}", library.display()));
        }
        _ if search.variable.is_some() => {
            return Err(task(format!(
                "EPFORGE_NVRTC names {}, where there is no NVRTC {OLDEST} or newer",
                search.variable.unwrap_or_default().display()
            )));
        }
        _ => wanted.push(&WHEELS[0]),
    }
    if all {
        wanted = WHEELS.iter().collect();
    }
    if disassembler {
        wanted.push(&DISASSEMBLER);
    }
    wanted.retain(|wheel| !is_complete(wheel, &project.join(wheel.folder)));
    if !wanted.is_empty() {
        say(LICENCE);
    }
    wanted.into_iter().try_for_each(|wheel| bring(wheel, project))
}

/// What is downloaded gets loaded later: no other user may have made the folder, or be able to.
fn trusted(project: &Path) -> Outcome {
    if fs::symlink_metadata(project).is_err() {
        // It is made here, or not at all.
        return Ok(());
    }
    match distrust(project) {
        None => Ok(()),
        Some(flaw) => Err(task(format!("{} cannot be used: {flaw}", project.display()))),
    }
}

/// Installs `wheel` into its folder below `project`.
fn bring(wheel: &Wheel, project: &Path) -> Outcome {
    let folder = project.join(wheel.folder);
    let requirement = format!("{}=={}", wheel.package, wheel.release);
    say(&format!("bringing {requirement} from PyPI into {}", folder.display()));
    // Only a finished folder gets to where it is looked for, whatever stops this process.
    let partial = project.join("partial").join(format!("{}-{}", wheel.folder, std::process::id()));
    let outcome = fetch(wheel, &requirement, &partial).and_then(|()| {
        let failed = |error| task(format!("{} cannot be put in place: {error}", folder.display()));
        if is_complete(wheel, &folder) {
            return Ok(());
        }
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(failed)?;
        }
        fs::rename(&partial, &folder).map_err(failed)
    });
    // What stays behind after a failure is a folder that nothing looks into.
    let _ = fs::remove_dir_all(&partial);
    let _ = fs::remove_dir(project.join("partial"));
    outcome?;
    if !is_complete(wheel, &folder) {
        return Err(task(format!(
            "the package {requirement} has nothing for this machine ({} {})",
            env::consts::OS,
            env::consts::ARCH
        )));
    }
    Ok(())
}

/// Puts what a wheel is brought for into a folder.
fn fetch(wheel: &Wheel, requirement: &str, target: &Path) -> Outcome {
    match wheel.content {
        Content::Nvrtc(_) | Content::Program(_) => install(requirement, target),
        Content::Library(place) => unpack(requirement, Path::new(place), target),
    }
}

/// Gets a wheel and takes one library out of it, with what lies in folders of the same name.
fn unpack(requirement: &str, place: &Path, target: &Path) -> Outcome {
    let python = python()?;
    let whole = target.join("wheel");
    fs::create_dir_all(&whole)
        .map_err(|error| task(format!("the folder {} cannot be made: {error}", whole.display())))?;
    let mut download = pip(python, "download");
    download.arg("--dest").arg(&whole).arg(requirement);
    succeed(download, requirement)?;
    let failed = |error| task(format!("{requirement} cannot be unpacked: {error}"));
    let files = fs::read_dir(&whole).map_err(failed)?.flatten();
    let wheel = files.map(|file| file.path()).find(|path| path.extension().is_some());
    let wheel = wheel.ok_or_else(|| task(format!("pip brought no wheel of {requirement}")))?;
    let mut extract = Command::new(python);
    extract.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&whole);
    succeed(extract, requirement)?;
    let library = whole.join(place);
    let name = place.file_name().unwrap_or_default();
    fs::rename(&library, target.join(name)).map_err(failed)?;
    // Its providers that are no part of it, such as `libfabric/libverbs-fi.so`.
    let stem = name.to_string_lossy().split('.').next().unwrap_or_default().to_owned();
    let more = library.with_file_name(&stem);
    if more.is_dir() {
        fs::rename(&more, target.join(&stem)).map_err(failed)?;
    }
    fs::remove_dir_all(&whole).map_err(failed)
}

/// Whether the folder holds what the wheel is brought for: NVRTC only together with its builtins.
fn is_complete(wheel: &Wheel, folder: &Path) -> bool {
    let wanted = match wheel.content {
        Content::Nvrtc(version) => version,
        Content::Program(path) => return folder.join(path).is_file(),
        Content::Library(path) => {
            return Path::new(path).file_name().is_some_and(|name| folder.join(name).is_file());
        }
    };
    let search = Search { variable: Some(folder.to_owned()), ..Search::default() };
    search
        .candidates()
        .any(|candidate| candidate.version == Some(wanted) && candidate.builtins.is_some())
}

fn install(requirement: &str, target: &Path) -> Outcome {
    let python = python()?;
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(|error| {
            task(format!("the folder {} cannot be made: {error}", folder.display()))
        })?;
    }
    let mut command = pip(python, "install");
    command.args(["--no-compile", "--target"]).arg(target).arg(requirement);
    succeed(command, requirement)
}

/// A call of pip that asks nothing and takes one wheel.
fn pip(python: &str, verb: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", verb, "--quiet", "--disable-pip-version-check", "--no-input"]);
    command.args(["--no-deps", "--only-binary=:all:"]);
    // Nothing is installed into the system here, whoever runs it.
    command.env("PIP_ROOT_USER_ACTION", "ignore");
    command
}

fn succeed(mut command: Command, requirement: &str) -> Outcome {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status();
    let status = status.map_err(|error| task(format!("{program} does not run: {error}")))?;
    match status.success() {
        true => Ok(()),
        false => Err(task(format!(
            "{program} could not bring {requirement}: see what it says above, or name a library of your \
             own in EPFORGE_NVRTC or EPFORGE_LIBFABRIC"
        ))),
    }
}

/// The Python that has pip.
pub(crate) fn python() -> Result<&'static str, Failure> {
    let mut without_pip = None;
    for python in ["python3", "python"] {
        if runs(python, &["-m", "pip", "--version"]) {
            return Ok(python);
        }
        if without_pip.is_none() && runs(python, &["--version"]) {
            without_pip = Some(python);
        }
    }
    Err(task(match without_pip {
        Some(python) => format!(
            "{python} has no pip, which brings NVRTC: install it (`{python} -m ensurepip`, or the \
             package python3-pip), or name an NVRTC of your own in EPFORGE_NVRTC"
        ),
        None => {
            "there is no python3 on PATH, whose pip brings NVRTC: install it, or name an NVRTC \
                 of your own in EPFORGE_NVRTC"
                .to_owned()
        }
    }))
}

/// The host backend compiles emitted kernels for the processor.
fn compiler() -> Outcome {
    let named = env::var("CXX").unwrap_or_default();
    let usual = ["c++", "g++", "clang++"];
    let commands = if named.trim().is_empty() { &usual[..] } else { &[&*named] };
    for command in commands {
        let mut words = command.split_whitespace();
        let Some(program) = words.next() else { continue };
        let arguments: Vec<&str> = words.chain(["--version"]).collect();
        if runs(program, &arguments) {
            say(&format!("C++ compiler: {command}"));
            return Ok(());
        }
    }
    Err(task(match named.trim().is_empty() {
        false => format!("CXX names `{named}`, which does not run: correct or unset it"),
        true => {
            "there is no C++ compiler, which the host backend needs: install g++ or clang++, or \
                 name one in CXX"
                .to_owned()
        }
    }))
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn task(sentence: String) -> Failure {
    Failure::Task(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_complete_with_the_library_and_its_builtins() {
        let folder = env::temp_dir().join(format!("epforge-setup-{}", std::process::id()));
        let lib = folder.join("nvidia/cu13/lib");
        fs::create_dir_all(&lib).unwrap();
        fs::write(lib.join("libnvrtc.so.13"), "").unwrap();
        let without_builtins = is_complete(&WHEELS[0], &folder);
        fs::write(lib.join("libnvrtc-builtins.so.13.5"), "").unwrap();
        let complete = [is_complete(&WHEELS[0], &folder), is_complete(&WHEELS[1], &folder)];
        let without_libfabric = is_complete(&LIBFABRIC, &folder);
        fs::write(folder.join("libfabric.so.1"), "").unwrap();
        let with_libfabric = is_complete(&LIBFABRIC, &folder);
        fs::remove_dir_all(&folder).unwrap();
        assert!(!without_builtins && !without_libfabric && with_libfabric);
        assert_eq!(complete, [true, false]);
    }

    /// A folder that was there before, for whoever put it there.
    #[cfg(unix)]
    #[test]
    fn a_planted_folder_is_refused_by_name() {
        use std::os::unix::fs::PermissionsExt;
        let folder = env::temp_dir().join(format!("epforge-planted-{}", std::process::id()));
        let project = folder.join(PROJECT_FOLDER);
        fs::create_dir(&folder).unwrap();
        assert!(trusted(&project).is_ok(), "it is made here");
        fs::create_dir(&project).unwrap();
        fs::set_permissions(&project, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = nvrtc(&project, false, false);
        std::os::unix::fs::symlink("nowhere", folder.join("link")).unwrap();
        let dangling = trusted(&folder.join("link"));
        fs::remove_dir_all(&folder).unwrap();
        let Err(Failure::Task(said)) = refused else { panic!("{} is used", project.display()) };
        assert!(said.ends_with(".cuda can be written by everybody (mode 0777)"), "{said}");
        assert!(matches!(dangling, Err(Failure::Task(_))));
    }

    #[test]
    fn unknown_options_are_wrong_use() {
        let outcome = run(&["--no-such-option".to_owned()]);
        assert!(matches!(outcome, Err(Failure::Usage(sentence)) if sentence.contains("--no-such")));
    }

    #[test]
    fn a_program_that_is_not_there_does_not_run() {
        assert!(!runs("no-such-program-anywhere", &[]));
    }
}
