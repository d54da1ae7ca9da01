//! The places on this machine that may have an NVRTC, in order of preference.
//!
//! Nothing is loaded here. The file uses the standard library only, because `xtask` includes it too: `cargo
//! xtask setup` must search exactly the places that the run time will search.

#[path = "trust.rs"]
pub(super) mod trust;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The oldest NVRTC that compiles EPForge's output: 12.8 is the first that supports sm_100a and sm_120a and
/// the `.shared::cta` destination of bulk copies.
pub const OLDEST: Version = Version { major: 12, minor: 8 };

/// The environment variable that names the NVRTC to use: the library, or its folder.
pub const VARIABLE: &str = "EPFORGE_NVRTC";

/// The folder of a project that `cargo xtask setup` puts NVRTC into.
pub const PROJECT_FOLDER: &str = ".cuda";

/// A version of NVRTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The CUDA release, such as 13.
    pub major: u32,
    /// The update within it, such as 5.
    pub minor: u32,
}

impl Version {
    /// Reads `13.5` or `13.5.37`; a text with no minor number is no version.
    fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some(Version { major, minor })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Why a place was searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `EPFORGE_NVRTC` names it.
    Variable,
    /// A `.cuda` folder at or above the current directory.
    Project,
    /// A wheel in the site-packages of the `python3` on PATH, next to torch.
    Python,
    /// A CUDA toolkit or a package of the system.
    System,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Variable => "named by EPFORGE_NVRTC",
            Origin::Project => "in the project's .cuda folder",
            Origin::Python => "in Python's site-packages",
            Origin::System => "in the system",
        })
    }
}

/// An NVRTC library that was found and not yet loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The library itself.
    pub library: PathBuf,
    /// The companion library, which has to be loaded first: without it some versions compile nothing.
    pub builtins: Option<PathBuf>,
    /// The version in the file names, if they have one.
    pub version: Option<Version>,
    /// Why this place was searched.
    pub origin: Origin,
}

/// Everything except the file system that determines where to look for NVRTC.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The value of `EPFORGE_NVRTC`: a library or a folder. If it is set, no other place is searched.
    pub variable: Option<PathBuf>,
    /// The folder where the search for a `.cuda` folder begins; it continues upward.
    pub start: Option<PathBuf>,
    /// The folders of PATH, which are searched for `python3`.
    pub path: Vec<PathBuf>,
    /// The home folder, for packages that pip installed for one user.
    pub home: Option<PathBuf>,
    /// Folders of the system, in the order of preference.
    pub system: Vec<PathBuf>,
}

impl Search {
    /// The search that the environment of this process requests.
    pub fn from_environment() -> Search {
        let folders = |name| {
            env::var_os(name).map_or_else(Vec::new, |value| env::split_paths(&value).collect())
        };
        Search {
            variable: env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from),
            start: env::current_dir().ok(),
            path: folders("PATH"),
            home: env::var_os("HOME").map(PathBuf::from),
            system: system_folders(folders("LD_LIBRARY_PATH")),
        }
    }

    /// All libraries found, best first, each once. A place is searched only after the ones before it
    /// yielded all their libraries.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> {
        let places: &[fn(&Search) -> Vec<Candidate>] = match self.variable {
            Some(_) => &[Search::in_variable],
            None => &[Search::in_project, Search::in_python, Search::in_system],
        };
        let mut seen = HashSet::new();
        places
            .iter()
            .flat_map(|look| look(self))
            .filter(move |candidate| seen.insert(real_path(&candidate.library)))
    }

    /// What `EPFORGE_NVRTC` names: a library file, or a folder that holds one or is a wheel's root.
    fn in_variable(&self) -> Vec<Candidate> {
        let Some(named) = &self.variable else { return Vec::new() };
        if !named.is_file() {
            let inside = in_folder(named, Origin::Variable);
            return inside.into_iter().chain(in_wheels(named, Origin::Variable)).collect();
        }
        let folder = named.parent().unwrap_or(Path::new("."));
        let name = named.file_name().unwrap_or_default().to_string_lossy();
        vec![candidate(folder, &name, Origin::Variable)]
    }

    fn in_project(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        for folder in self.project_folders().filter(|folder| distrust(folder).is_none()) {
            let mut inside = in_project_folder(&folder);
            inside.retain(|candidate| candidate.distrust().is_none());
            newest_first(&mut inside);
            found.extend(inside);
        }
        found
    }

    /// Files in a `.cuda` folder that are not used, because another user could have put them there; one
    /// sentence each.
    pub fn distrusted(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        for folder in self.project_folders() {
            let flaws = match distrust(&folder) {
                Some(flaw) => vec![flaw],
                None => in_project_folder(&folder).iter().filter_map(Candidate::distrust).collect(),
            };
            let folder = folder.display();
            sentences.extend(flaws.iter().map(|flaw| format!("{folder} is not used: {flaw}")));
        }
        sentences
    }

    /// The files of this name that lie in a folder of a `.cuda` folder and that nobody else could have put
    /// there, nearest first.
    pub(crate) fn project_files(&self, name: &str) -> Vec<PathBuf> {
        let folders = self.project_folders().filter(|folder| distrust(folder).is_none());
        let files = folders.flat_map(|folder| children(&folder)).map(|folder| folder.join(name));
        files.filter(|file| file.is_file() && trust::distrust(file).is_none()).collect()
    }

    /// The `.cuda` folders at and above the start, nearest first.
    fn project_folders(&self) -> impl Iterator<Item = PathBuf> {
        let places = self.start.iter().flat_map(|start| start.ancestors());
        places.map(|place| place.join(PROJECT_FOLDER)).filter(|folder| folder.is_dir())
    }

    fn in_python(&self) -> Vec<Candidate> {
        let folders = self.python_folders().into_iter();
        let found = |folder: PathBuf| {
            let wheels = in_wheels(&folder, Origin::Python);
            // Conda puts the library into the `lib` of its prefix.
            wheels.into_iter().chain(in_folder(&folder, Origin::Python))
        };
        folders.flat_map(found).collect()
    }

    fn in_system(&self) -> Vec<Candidate> {
        self.system.iter().flat_map(|folder| in_folder(folder, Origin::System)).collect()
    }

    /// The folders that the `python3` on PATH imports packages from, and the `lib` of its prefix.
    fn python_folders(&self) -> Vec<PathBuf> {
        let Some(python) =
            self.path.iter().map(|folder| folder.join("python3")).find(|path| path.is_file())
        else {
            return Vec::new();
        };
        let mut folders = Vec::new();
        let environment = python.parent().and_then(Path::parent);
        if let Some(prefix) = environment
            && let Ok(settings) = fs::read_to_string(prefix.join("pyvenv.cfg"))
        {
            add_packages(prefix, None, &mut folders);
            if !sees_system_packages(&settings) {
                return folders;
            }
        }
        let real = real_path(&python);
        let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let version = name.strip_prefix("python").filter(|rest| rest.starts_with('3'));
        match (version, real.parent().and_then(Path::parent)) {
            (Some(version), Some(prefix)) if !is_script(&real) => {
                let version = version.contains('.').then_some(version);
                if let Some(home) = &self.home {
                    add_packages(&home.join(".local"), version, &mut folders);
                }
                add_packages(prefix, version, &mut folders);
                add_packages(&prefix.join("local"), version, &mut folders);
            }
            // A shim of a version manager: only the interpreter behind it knows its folders.
            _ => folders.extend(ask_python(&python)),
        }
        folders
    }
}

/// Every NVRTC that lies directly in `folder`.
fn in_folder(folder: &Path, origin: Origin) -> Vec<Candidate> {
    let mut names = file_names(folder);
    names.retain(|name| name == "libnvrtc.so" || name.starts_with("libnvrtc.so."));
    // `libnvrtc.so.13` before `.12`, and either before the bare link, which names no version.
    names.sort_by_key(|name| Reverse(major_in_name(name)));
    names.iter().map(|name| candidate(folder, name, origin)).collect()
}

/// The NVRTC of the wheels under `packages`: `nvidia/cu13/lib`, `nvidia/cuda_nvrtc/lib`.
fn in_wheels(packages: &Path, origin: Origin) -> Vec<Candidate> {
    let wheels = children(&packages.join("nvidia"));
    let mut found: Vec<_> =
        wheels.iter().flat_map(|wheel| in_folder(&wheel.join("lib"), origin)).collect();
    newest_first(&mut found);
    found
}

fn newest_first(candidates: &mut [Candidate]) {
    candidates.sort_by_key(|candidate| Reverse(candidate.version));
}

fn candidate(folder: &Path, name: &str, origin: Origin) -> Candidate {
    let library = folder.join(name);
    let real = real_path(&library);
    let real_name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let major = major_in_name(&real_name).or(major_in_name(name));
    let mut builtins: Vec<(Version, String)> = file_names(folder)
        .into_iter()
        .filter_map(|name| {
            let version = Version::parse(name.strip_prefix("libnvrtc-builtins.so.")?)?;
            (major.is_none() || major == Some(version.major)).then_some((version, name))
        })
        .collect();
    let in_name = real_name.strip_prefix("libnvrtc.so.").and_then(Version::parse);
    if let Some(version) = in_name {
        builtins.retain(|(builtin, _)| *builtin == version);
    }
    let builtins = builtins.into_iter().max();
    Candidate {
        library,
        version: in_name.or(builtins.as_ref().map(|(version, _)| *version)),
        builtins: builtins.map(|(_, name)| folder.join(name)),
        origin,
    }
}

fn major_in_name(name: &str) -> Option<u32> {
    name.strip_prefix("libnvrtc.so.")?.split('.').next()?.parse().ok()
}

/// Why a `.cuda` folder must not be used, as a clause. What lies there gets loaded, and the current
/// directory may well be below /tmp.
pub(crate) fn distrust(folder: &Path) -> Option<String> {
    trust::distrust(folder).or_else(|| folder.parent().and_then(trust::shared))
}

/// The NVRTC of all wheels in a `.cuda` folder.
fn in_project_folder(folder: &Path) -> Vec<Candidate> {
    let places = children(folder).into_iter().chain([folder.to_owned()]);
    places.flat_map(|place| in_wheels(&place, Origin::Project)).collect()
}

impl Candidate {
    /// Why it must not be loaded, as a clause.
    fn distrust(&self) -> Option<String> {
        [Some(&self.library), self.builtins.as_ref()]
            .into_iter()
            .flatten()
            .find_map(|file| trust::distrust(file))
    }
}

/// Adds the package folders below `prefix` of Python `version`, or of each version that is there.
fn add_packages(prefix: &Path, version: Option<&str>, folders: &mut Vec<PathBuf>) {
    let lib = prefix.join("lib");
    let mut versions: Vec<PathBuf> = match version {
        Some(version) => vec![lib.join(format!("python{version}")), lib.join("python3")],
        None => children(&lib)
            .into_iter()
            .filter(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
            })
            .collect(),
    };
    if let Some(version) = version {
        versions.push(prefix.join("lib64").join(format!("python{version}")));
    }
    for folder in versions {
        folders.push(folder.join("site-packages"));
        folders.push(folder.join("dist-packages"));
    }
    folders.push(lib);
    folders.retain(|folder| folder.is_dir());
}

/// Whether a `pyvenv.cfg` lets its environment see the packages of the interpreter below it.
fn sees_system_packages(settings: &str) -> bool {
    settings.lines().filter_map(|line| line.split_once('=')).any(|(name, value)| {
        name.trim() == "include-system-site-packages" && value.trim().eq_ignore_ascii_case("true")
    })
}

fn is_script(path: &Path) -> bool {
    use std::io::Read;
    let mut start = [0; 2];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && &start == b"#!"
}

/// Asks the interpreter itself; no answer within five seconds counts as none.
fn ask_python(python: &Path) -> Vec<PathBuf> {
    const QUESTION: &str = "import site, sysconfig\n\
        print(sysconfig.get_path('purelib'), sysconfig.get_path('platlib'),\
        site.getusersitepackages(), *site.getsitepackages(), sep='\\n')";
    let child = Command::new(python)
        .args(["-c", QUESTION])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return Vec::new() };
    let deadline = Instant::now() + Duration::from_secs(5);
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > deadline {
            // A failure to kill means that the process has ended by itself.
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let Ok(output) = child.wait_with_output() else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect()
}

/// The system's folders: what the user's environment names, the toolkits, the loader's folders.
fn system_folders(loader_path: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut folders = loader_path;
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os);
    let mut roots: Vec<PathBuf> = toolkits.map(PathBuf::from).collect();
    roots.push(PathBuf::from("/usr/local/cuda"));
    roots.extend(numbered_toolkits(Path::new("/usr/local")));
    roots.push(PathBuf::from("/opt/cuda"));
    for root in roots {
        folders.push(root.join("lib64"));
        folders.push(root.join("lib"));
        folders.extend(children(&root.join("targets")).iter().map(|target| target.join("lib")));
    }
    folders.extend(loader_folders(Path::new("/etc")));
    let multiarch = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    folders.extend([&*multiarch, "/usr/lib64", "/usr/lib"].map(PathBuf::from));
    folders
}

/// `cuda-12.8`, `cuda-13.0`, ... below `folder`, newest first.
fn numbered_toolkits(folder: &Path) -> Vec<PathBuf> {
    let mut toolkits: Vec<(Version, PathBuf)> = children(folder)
        .into_iter()
        .filter_map(|path| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            Some((Version::parse(name.strip_prefix("cuda-")?)?, path))
        })
        .collect();
    toolkits.sort_by(|one, other| other.cmp(one));
    toolkits.into_iter().map(|(_, path)| path).collect()
}

/// The folders that the configuration of the dynamic loader names.
fn loader_folders(etc: &Path) -> Vec<PathBuf> {
    let mut files = vec![etc.join("ld.so.conf")];
    let parts = etc.join("ld.so.conf.d");
    files.extend(file_names(&parts).iter().map(|name| parts.join(name)));
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    let text: String = texts.map(|text| text + "\n").collect();
    let lines = text.lines().map(str::trim);
    lines.filter(|line| line.starts_with('/')).map(PathBuf::from).collect()
}

/// The entries of `folder` in the order of their names; none if it cannot be read.
fn children(folder: &Path) -> Vec<PathBuf> {
    file_names(folder).into_iter().map(|name| folder.join(name)).collect()
}

fn file_names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn real_path(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
