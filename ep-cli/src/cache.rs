//! `epforge cache`: the compiled kernels on this machine.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use ep_runtime::jit::{Cache, Listed};

use crate::failure::Failure;
use crate::json::Object;

/// Options of `cache`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
    /// The cache folder; by default the one that the environment names
    #[arg(long, value_name = "DIR", global = true)]
    folder: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the compiled kernels
    List,
    /// Remove all compiled kernels
    Clear,
    /// Print the path of the cache folder
    Path,
}

pub(crate) fn run(
    options: &Options,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    let cache = Cache::at(options.folder.as_deref()).map_err(failed)?;
    let Some(folder) = cache.folder() else {
        let why = cache.warning().map_or_else(String::new, ToString::to_string);
        return Err(Failure::Failed(format!("there is no cache on disk: {why}")));
    };
    match options.action {
        Action::Path => path(folder, json, out),
        Action::List => list(&cache, json, out, err),
        Action::Clear => {
            let cleared = cache.clear().map_err(failed)?;
            let (entries, bytes) = (cleared.entries, cleared.bytes);
            if json {
                let object = Object::new().with("cleared", entries).with("bytes", bytes);
                writeln!(out, "{object}")?;
            } else {
                writeln!(out, "{entries} kernels removed, {bytes} bytes")?;
            }
            Ok(())
        }
    }
}

fn path(folder: &Path, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let folder = folder.display().to_string();
    if json {
        writeln!(out, "{}", Object::new().with("path", folder))?;
    } else {
        writeln!(out, "{folder}")?;
    }
    Ok(())
}

fn list(
    cache: &Cache,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    let entries = cache.list().map_err(failed)?;
    for listed in &entries {
        if json {
            writeln!(out, "{}", object(listed))?;
        } else {
            let key = listed.key.to_string();
            let what = match &listed.entry {
                Ok(it) => format!("{}  {}  {}", it.name, it.target, it.tool),
                Err(reason) => format!("damaged: {reason}"),
            };
            writeln!(out, "{:.12}  {:>9} bytes  {what}", key, listed.bytes)?;
        }
    }
    if entries.is_empty() && !json {
        writeln!(err, "the cache is empty")?;
    }
    Ok(())
}

fn object(listed: &Listed) -> Object {
    let object = Object::new().with("key", listed.key.to_string()).with("bytes", listed.bytes);
    match &listed.entry {
        Ok(it) => object.with("name", &it.name).with("target", &it.target).with("tool", &it.tool),
        Err(reason) => object.with("damaged", reason),
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}
