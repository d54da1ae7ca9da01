//! `epforge doctor`: what this machine has and lacks.

use std::io::Write;
use std::path::PathBuf;

use ep_runtime::doctor::{Driver, Gpu, Nic, Peer, Report};

use crate::failure::Failure;
use crate::json::{Object, Value};

/// Options of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The cache folder; by default the one that the environment names
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// Whatever is missing, looking was done: the command succeeds, and its lines tell the rest.
pub(crate) fn run(options: &Options, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let report = Report::collect(options.cache.as_deref());
    if !json {
        write!(out, "{report}")?;
        if !report.advice().is_empty() {
            writeln!(out)?;
        }
        return Ok(());
    }
    for object in objects(&report) {
        writeln!(out, "{object}")?;
    }
    Ok(())
}

fn objects(report: &Report) -> Vec<Object> {
    let part = |name: &str, found: bool| Object::new().with("part", name).with("found", found);
    let driver = match &report.driver {
        Driver::Missing => part("driver", false),
        Driver::Failed { function, code, meaning } => part("driver", true)
            .with("error", format!("{function} failed with code {code} ({meaning})")),
        Driver::Found { cuda, release } => {
            part("driver", true).with("cuda", cuda.to_string()).with("release", release.clone())
        }
    };
    let nvrtc = match &report.nvrtc {
        Ok(it) => part("nvrtc", true)
            .with("version", it.version.to_string())
            .with("path", it.path.display().to_string()),
        Err(reason) => part("nvrtc", false).with("error", reason),
    };
    let compiler = match &report.compiler {
        Ok(it) => part("compiler", true).with("command", &it.command).with("version", &it.version),
        Err(reason) => part("compiler", false).with("error", reason),
    };
    let cache = match &report.cache {
        Ok(folder) => part("cache", true).with("path", folder.display().to_string()),
        Err(reason) => part("cache", false).with("error", reason),
    };
    let mut objects = vec![driver, nvrtc, compiler, cache];
    objects.extend(report.gpus.iter().enumerate().map(|(ordinal, gpu)| {
        gpu_object(part("gpu", true).with("ordinal", ordinal), gpu)
            .with("reaches", reaches(report.peers.get(ordinal).map_or(&[], Vec::as_slice)))
            .with("nearest_nics", Value::from(near(report, ordinal)))
    }));
    objects.extend(report.nics.iter().map(|nic| nic_object(part("nic", true), nic)));
    objects.extend(networks(report, part));
    objects.extend(cards(report, part));
    objects.extend(report.advice().into_iter().map(|line| Object::new().with("advice", line)));
    objects
}

/// libfabric, and what it has for each provider.
fn networks(report: &Report, part: impl Fn(&str, bool) -> Object) -> Vec<Object> {
    let found = match &report.libfabric {
        Ok(found) => found,
        Err(reason) => return vec![part("libfabric", false).with("error", reason)],
    };
    let (major, minor) = found.version;
    let library = part("libfabric", true)
        .with("version", format!("{major}.{minor}"))
        .with("path", found.path.display().to_string());
    let provider = |(name, offers): &(&str, Result<Vec<String>, String>)| match offers {
        Ok(offers) => {
            let offers: Vec<&str> = offers.iter().map(String::as_str).collect();
            part("network", true).with("provider", *name).with("offers", Value::from(offers))
        }
        Err(reason) => part("network", false).with("provider", *name).with("error", reason),
    };
    std::iter::once(library).chain(found.providers.iter().map(provider)).collect()
}

/// The libraries for cards that kernels write to, and each port.
fn cards(report: &Report, part: impl Fn(&str, bool) -> Object) -> Vec<Object> {
    let found = match &report.cards {
        Ok(found) => found,
        Err(reason) => return vec![part("cards", false).with("error", reason)],
    };
    let libraries = part("cards", true)
        .with("path", found.folder.display().to_string())
        .with("dma_buf", found.takes_dma_buf)
        .with("peer_memory", found.has_peer_memory)
        .with("run_on_hardware", false);
    let ports = match &found.ports {
        Ok(ports) => ports.iter().map(|port| part("card", true).with("port", port)).collect(),
        Err(reason) => vec![part("card", false).with("error", reason)],
    };
    std::iter::once(libraries).chain(ports).collect()
}

fn gpu_object(object: Object, gpu: &Gpu) -> Object {
    let (major, minor) = gpu.capability;
    object
        .with("name", &gpu.name)
        .with("capability", format!("{major}.{minor}"))
        .with("arch", gpu.arch.map(|arch| arch.name()))
        .with("sms", gpu.sms)
        .with("bytes", gpu.bytes)
        .with("dma_buf", gpu.dma_buf)
}

fn near(report: &Report, ordinal: usize) -> Vec<&str> {
    report.nearest.get(ordinal).into_iter().flatten().map(String::as_str).collect()
}

fn reaches(row: &[Peer]) -> Value {
    row.iter().map(|peer| peer.access).collect::<Vec<bool>>().into()
}

fn nic_object(object: Object, nic: &Nic) -> Object {
    object
        .with("name", &nic.name)
        .with("link", &nic.link)
        .with("state", &nic.state)
        .with("rate", &nic.rate)
}
