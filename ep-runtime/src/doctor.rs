//! What EPForge needs and this machine has, and what to do about missing parts.
//!
//! Every part may be missing: a report works on any machine.

mod cards;
mod gpus;
mod networks;

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ep_codegen::plan::Arch;

pub use cards::CardsFound;
pub use networks::LibfabricFound;

use crate::jit::{Cache, Nvrtc, Search, Version};

/// What was found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The CUDA driver.
    pub driver: Driver,
    /// The run-time compiler; the error says why it is missing and what to do.
    pub nvrtc: Result<NvrtcFound, String>,
    /// Files in a `.cuda` folder that are not used, because others could have put them there.
    pub distrusted: Vec<String>,
    /// A C++ compiler, which the host backend needs; the error says why it is missing.
    pub compiler: Result<HostCompiler, String>,
    /// The folder of compiled kernels; the error says why they are not kept.
    pub cache: Result<PathBuf, String>,
    /// The GPUs, in the order of the driver.
    pub gpus: Vec<Gpu>,
    /// For each GPU, how it reaches each other one: `peers[from][to]`.
    pub peers: Vec<Vec<Peer>>,
    /// Network devices for RDMA.
    pub nics: Vec<Nic>,
    /// For each GPU, the network devices that are nearest to it on the PCIe bus.
    pub nearest: Vec<Vec<String>>,
    /// The library for networks between machines; the error says why it is missing and what to do.
    pub libfabric: Result<LibfabricFound, String>,
    /// The cards that kernels can write to; the error says what is missing and what to do.
    pub cards: Result<CardsFound, String>,
}

/// The CUDA driver of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// There is no libcuda.
    Missing,
    /// libcuda is there and does not work.
    Failed {
        /// The function that failed.
        function: &'static str,
        /// Its result code.
        code: i32,
        /// The driver's name for that code.
        meaning: String,
    },
    /// libcuda works.
    Found {
        /// The newest CUDA it supports.
        cuda: Version,
        /// The release of its kernel module, such as 580.65.06, where the system reports it.
        release: Option<String>,
    },
}

/// The NVRTC that this process uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvrtcFound {
    /// Path of the library.
    pub path: PathBuf,
    /// Version of the library.
    pub version: Version,
}

/// A C++ compiler that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCompiler {
    /// The command that runs it.
    pub command: String,
    /// The first line of its version output.
    pub version: String,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Name of the GPU.
    pub name: String,
    /// Compute capability of the GPU.
    pub capability: (u32, u32),
    /// Target architecture of kernels for the GPU; `None` if EPForge has no such target.
    pub arch: Option<Arch>,
    /// Number of SMs.
    pub sms: u32,
    /// Bytes of memory.
    pub bytes: u64,
    /// Whether a network device may access its memory as a dma-buf.
    pub dma_buf: bool,
}

/// How one GPU reaches another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Kernels may read and write the other's memory.
    pub access: bool,
    /// The link executes atomics on it.
    pub atomics: bool,
}

/// One port of a network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// The device and its port, such as `mlx5_0:1`.
    pub name: String,
    /// InfiniBand or Ethernet.
    pub link: String,
    /// The state, such as `ACTIVE`.
    pub state: String,
    /// The rate, such as `400 Gb/sec (4X NDR)`.
    pub rate: String,
}

/// The driver, the GPUs and how they reach each other, as one text. Measurements stay valid as long as this
/// text stays the same.
pub fn machine() -> String {
    let gpus::Found { driver, gpus, peers } = gpus::look();
    let names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    format!("{driver:?} {names:?} {peers:?}")
}

impl Report {
    /// Examines this machine. `cache` is the cache folder if the user names one.
    pub fn collect(cache: Option<&Path>) -> Report {
        let gpus::Found { driver, gpus, peers } = gpus::look();
        let nvrtc = Nvrtc::find().map_err(|error| error.to_string());
        Report {
            driver,
            nvrtc: nvrtc.map(|nvrtc| NvrtcFound {
                path: nvrtc.path().to_owned(),
                version: nvrtc.version(),
            }),
            distrusted: Search::from_environment().distrusted(),
            compiler: compiler(&env::var("CXX").unwrap_or_default()),
            cache: cache_folder(cache),
            nearest: nearest(gpus.len()),
            gpus,
            peers,
            nics: nics(Path::new("/sys/class/infiniband")),
            libfabric: networks::look(),
            cards: cards::look(),
        }
    }

    /// One sentence for each part that is missing or does not fit, with what to do; empty if all is well.
    pub fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        match &self.driver {
            Driver::Missing => advice.push(
                "There is no CUDA driver, so kernels cannot run on a GPU here: install NVIDIA's \
                 driver, or start the container with its GPUs (`--gpus all`)."
                    .to_owned(),
            ),
            Driver::Failed { function, code, meaning } => advice.push(format!(
                "The CUDA driver does not start ({function}: {meaning}, code {code}): see whether \
                 `nvidia-smi` works and whether CUDA_VISIBLE_DEVICES hides every GPU."
            )),
            Driver::Found { .. } if self.gpus.is_empty() => advice
                .push("The driver shows no GPU: see what CUDA_VISIBLE_DEVICES hides.".to_owned()),
            Driver::Found { .. } => {}
        }
        match (&self.nvrtc, &self.driver) {
            (Err(error), _) => advice.push(format!("Kernels cannot be compiled: {error}.")),
            (Ok(nvrtc), Driver::Found { cuda, .. }) if cuda.major < nvrtc.version.major => {
                advice.push(format!(
                    "NVRTC {} makes code that a driver for CUDA {cuda} may refuse: update the \
                     driver, or name an NVRTC of CUDA {} in EPFORGE_NVRTC.",
                    nvrtc.version, cuda.major
                ));
            }
            _ => {}
        }
        advice.extend(self.distrusted.iter().map(|sentence| format!("{sentence}.")));
        if let Err(reason) = &self.compiler {
            advice.push(format!("Nothing runs on the host: {reason}."));
        }
        if let Err(reason) = &self.cache {
            advice.push(format!("Each process compiles all of its kernels: {reason}."));
        }
        advice.extend(self.gpu_advice());
        advice.extend(self.network_advice());
        advice
    }

    fn gpu_advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        for (ordinal, gpu) in self.gpus.iter().enumerate() {
            if gpu.arch.is_none() {
                let (major, minor) = gpu.capability;
                advice.push(format!(
                    "GPU {ordinal} ({}) has compute capability {major}.{minor}, for which EPForge \
                     has no target: it has {}.",
                    gpu.name,
                    Arch::ALL.map(Arch::name).join(", ")
                ));
            }
        }
        let apart = self.peers.iter().enumerate().find_map(|(from, row)| {
            let to = row.iter().enumerate().find(|(to, peer)| *to != from && !peer.access)?.0;
            Some((from, to))
        });
        if let Some((from, to)) = apart {
            advice.push(format!(
                "GPU {from} cannot reach the memory of GPU {to}, so that no NVLink pipeline runs \
                 between them: see `nvidia-smi topo -p2p r`, or use the GPUs that reach each other."
            ));
        }
        advice
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.driver {
            Driver::Found { cuda, release } => {
                let release = release.as_deref().unwrap_or("release unknown");
                line(f, "driver", &format!("CUDA {cuda}, {release}"))?;
            }
            Driver::Missing => line(f, "driver", "not found")?,
            Driver::Failed { .. } => line(f, "driver", "found, and does not start")?,
        }
        let nvrtc = self.nvrtc.as_ref().ok();
        let nvrtc = nvrtc.map(|it| format!("{} at {}", it.version, it.path.display()));
        line(f, "NVRTC", nvrtc.as_deref().unwrap_or("not found"))?;
        let compiler = self.compiler.as_ref().ok();
        let compiler = compiler.map(|it| format!("{} ({})", it.command, it.version));
        line(f, "C++ compiler", compiler.as_deref().unwrap_or("not found"))?;
        let cache = self.cache.as_ref().ok().map(|folder| folder.display().to_string());
        line(f, "cache", cache.as_deref().unwrap_or("in memory only"))?;
        self.write_gpus(f)?;
        if self.nics.is_empty() {
            line(f, "NICs", "no RDMA device found; pipelines within one node need none")?;
        }
        for nic in &self.nics {
            let Nic { name, link, state, rate } = nic;
            line(f, "NIC", &format!("{name}, {link}, {state}, {rate}"))?;
        }
        for (ordinal, near) in self.nearest.iter().enumerate().filter(|(_, near)| !near.is_empty())
        {
            line(f, &format!("  of GPU {ordinal}"), &format!("nearest: {}", near.join(", ")))?;
        }
        self.write_networks(f)?;
        self.write_cards(f)?;
        for advice in self.advice() {
            write!(f, "\n{advice}")?;
        }
        Ok(())
    }
}

impl Report {
    fn write_gpus(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gpus.is_empty() {
            line(f, "GPUs", "none found")?;
        }
        for (ordinal, gpu) in self.gpus.iter().enumerate() {
            let Gpu { name, capability: (major, minor), sms, bytes, .. } = gpu;
            let arch = gpu.arch.map_or("no target", Arch::name);
            let dma_buf = if gpu.dma_buf { "dma-buf" } else { "no dma-buf" };
            let gibibytes = bytes >> 30;
            let text = format!(
                "{name}, compute capability {major}.{minor} ({arch}), {sms} SMs, \
                 {gibibytes} GiB, {dma_buf}"
            );
            line(f, &format!("GPU {ordinal}"), &text)?;
        }
        if self.gpus.len() > 1 {
            let header: String = (0..self.gpus.len()).map(|to| format!("{to:>8}")).collect();
            line(f, "P2P", &header)?;
            for (from, row) in self.peers.iter().enumerate() {
                let cells = row.iter().enumerate().map(|(to, peer)| match peer {
                    _ if to == from => "self",
                    Peer { access: false, .. } => "-",
                    Peer { atomics: true, .. } => "atomics",
                    Peer { .. } => "access",
                });
                let cells: String = cells.map(|cell| format!("{cell:>8}")).collect();
                line(f, &format!("  from {from}"), &cells)?;
            }
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, value: &str) -> fmt::Result {
    writeln!(f, "{name:<14}{value}")
}

fn cache_folder(argument: Option<&Path>) -> Result<PathBuf, String> {
    let cache = Cache::at(argument).map_err(|error| error.to_string())?;
    match (cache.folder(), cache.warning()) {
        (Some(folder), _) => Ok(folder.to_owned()),
        (None, Some(warning)) => Err(warning.to_string()),
        (None, None) => Err("the cache is in memory".to_owned()),
    }
}

/// The compiler that is `named`, with arguments if it has any; else the first of c++, g++, clang++
/// that runs.
fn compiler(named: &str) -> Result<HostCompiler, String> {
    if !named.trim().is_empty() {
        return version_of(named).ok_or_else(|| {
            format!("CXX names `{named}`, which does not run; correct or unset it")
        });
    }
    ["c++", "g++", "clang++"].iter().find_map(|command| version_of(command)).ok_or_else(|| {
        "there is no C++ compiler: install g++ or clang++, or name one in CXX".to_owned()
    })
}

fn version_of(command: &str) -> Option<HostCompiler> {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next()?)
        .args(words)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().next().unwrap_or_default().trim().to_owned();
    Some(HostCompiler { command: command.to_owned(), version })
}

/// The ports of the RDMA devices that the kernel lists in `class`.
fn nics(class: &Path) -> Vec<Nic> {
    let mut nics = Vec::new();
    for device in names(class) {
        let ports = class.join(&device).join("ports");
        for port in names(&ports) {
            let read = |file: &str| {
                let text = fs::read_to_string(ports.join(&port).join(file)).unwrap_or_default();
                // The state reads `4: ACTIVE`.
                let text = text.trim();
                text.split_once(": ").map_or(text, |(_, state)| state).to_owned()
            };
            nics.push(Nic {
                name: format!("{device}:{port}"),
                link: read("link_layer"),
                state: read("state"),
                rate: read("rate"),
            });
        }
    }
    nics
}

/// The network devices that are nearest to each of so many GPUs; none for a GPU whose place is not known.
#[cfg(target_os = "linux")]
fn nearest(gpus: usize) -> Vec<Vec<String>> {
    let cards = crate::net::card_places();
    let near = |ordinal: usize| {
        let address = crate::gpu::place(i32::try_from(ordinal).ok()?).ok()?;
        Some(crate::net::nearest(&address, &cards).into_iter().map(str::to_owned).collect())
    };
    (0..gpus).map(|ordinal| near(ordinal).unwrap_or_default()).collect()
}

#[cfg(not(target_os = "linux"))]
fn nearest(_: usize) -> Vec<Vec<String>> {
    Vec::new()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn bare() -> Report {
        Report {
            driver: Driver::Missing,
            nvrtc: Err("there is no NVRTC".to_owned()),
            distrusted: Vec::new(),
            compiler: Err("there is no C++ compiler".to_owned()),
            cache: Err("there is no home folder".to_owned()),
            gpus: Vec::new(),
            peers: Vec::new(),
            nics: Vec::new(),
            nearest: Vec::new(),
            libfabric: Err("there is no libfabric".to_owned()),
            cards: Err("there is no libibverbs".to_owned()),
        }
    }

    pub(super) fn gpu(capability: (u32, u32)) -> Gpu {
        Gpu {
            name: "NVIDIA H200".to_owned(),
            capability,
            arch: Arch::for_capability(capability.0, capability.1),
            sms: 132,
            bytes: 141 << 30,
            dma_buf: true,
        }
    }

    #[test]
    fn a_bare_machine_gets_advice_for_everything() {
        let report = bare();
        assert_eq!(report.advice().len(), 4);
        let text = report.to_string();
        for part in ["driver        not found", "NVRTC         not found", "GPUs          none"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn a_good_machine_gets_none() {
        let version = Version { major: 13, minor: 0 };
        let peer = Peer { access: true, atomics: true };
        let report = Report {
            driver: Driver::Found { cuda: version, release: Some("580.65.06".to_owned()) },
            nvrtc: Ok(NvrtcFound { path: PathBuf::from("/lib/libnvrtc.so.13"), version }),
            distrusted: Vec::new(),
            compiler: Ok(HostCompiler { command: "c++".to_owned(), version: "c++ 12".to_owned() }),
            cache: Ok(PathBuf::from("/home/me/.cache/epforge")),
            gpus: vec![gpu((9, 0)), gpu((9, 0))],
            peers: vec![vec![peer, peer], vec![peer, peer]],
            nearest: vec![Vec::new(), vec!["mlx5_2".to_owned(), "mlx5_3".to_owned()]],
            ..bare()
        };
        assert_eq!(report.advice(), [""; 0]);
        let text = report.to_string();
        assert!(text.contains("NVIDIA H200, compute capability 9.0 (sm_90a), 132 SMs, 141 GiB"));
        assert!(text.contains("from 1       atomics    self"), "{text}");
        assert!(text.contains("of GPU 1    nearest: mlx5_2, mlx5_3"), "{text}");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let none = Peer { access: false, atomics: false };
        let report = Report {
            driver: Driver::Found { cuda: Version { major: 12, minor: 4 }, release: None },
            nvrtc: Ok(NvrtcFound {
                path: PathBuf::from("/lib/libnvrtc.so.13"),
                version: Version { major: 13, minor: 5 },
            }),
            gpus: vec![gpu((7, 0)), gpu((9, 0))],
            peers: vec![vec![none, none], vec![none, none]],
            ..bare()
        };
        let advice = report.advice().join("\n");
        assert!(advice.contains("a driver for CUDA 12.4"));
        assert!(advice.contains("compute capability 7.0"));
        assert!(advice.contains("GPU 0 cannot reach the memory of GPU 1"));
    }

    #[test]
    fn reads_the_ports_of_a_network_device() {
        let root = env::temp_dir().join(format!("ep-doctor-{}", std::process::id()));
        let port = root.join("mlx5_0/ports/1");
        fs::create_dir_all(&port).unwrap();
        fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
        fs::write(port.join("rate"), "400 Gb/sec (4X NDR)\n").unwrap();
        fs::write(port.join("link_layer"), "InfiniBand\n").unwrap();
        let found = nics(&root);
        fs::remove_dir_all(&root).unwrap();
        let nic = Nic {
            name: "mlx5_0:1".to_owned(),
            link: "InfiniBand".to_owned(),
            state: "ACTIVE".to_owned(),
            rate: "400 Gb/sec (4X NDR)".to_owned(),
        };
        assert_eq!(found, [nic]);
        assert!(nics(Path::new("/no/such/folder")).is_empty());
    }

    #[test]
    fn a_cxx_that_does_not_run_is_said() {
        let said = compiler("no-such-compiler -O2").unwrap_err();
        let text = "CXX names `no-such-compiler -O2`, which does not run; correct or unset it";
        assert_eq!((said.as_str(), compiler("  ")), (text, compiler("")));
        let report = Report { compiler: Err(said), ..bare() };
        assert!(report.advice().contains(&format!("Nothing runs on the host: {text}.")));
        let planted = "/x/.cuda is not used: /x/.cuda belongs to user 5".to_owned();
        let report = Report { distrusted: vec![planted.clone()], ..bare() };
        assert!(report.advice().contains(&format!("{planted}.")));
    }

    #[test]
    fn collecting_never_panics() {
        let folder = env::temp_dir().join(format!("ep-doctor-cache-{}", std::process::id()));
        let report = Report::collect(Some(&folder));
        assert!(!report.to_string().is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }
}
