//! `epforge emit`: the CUDA of one configuration, or of all that are kept in a folder.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ep_runtime::jit::Arch;
use ep_runtime::{AnyPipeline, Emitted, RuleSet};

use crate::configurations::{CONFIGURATIONS, Configuration};
use crate::explain;
use crate::failure::Failure;
use crate::files;
use crate::json::Object;
use crate::plan_text;
use crate::protocol::Protocol;
use crate::selection::{SHAPE_HELP, Selection, find, select};

/// Options of `emit`.
#[derive(Debug, clap::Args)]
#[command(after_help = SHAPE_HELP)]
pub(crate) struct Options {
    /// Name of the pipeline, from `list`
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pipeline: Option<String>,
    #[command(flatten)]
    selection: Selection,
    /// Write the CUDA and the plan of every configuration that is kept in `generated/`
    #[arg(long, requires = "out", conflicts_with_all = ["ranks", "set", "arch", "kernels"])]
    all: bool,
    /// The folder to write to
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write nothing; fail if the folder has other contents
    #[arg(long)]
    check: bool,
}

/// The first `of_files` entries come from files: loading them has printed their warnings.
pub(crate) fn run(
    options: &Options,
    (of_files, entries): (usize, &[AnyPipeline]),
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    if let Some(name) = &options.pipeline {
        // clap drops `requires` when what is required conflicts with what is there.
        if options.out.is_some() || options.check {
            return Err(Failure::WrongUse("--out and --check go with --all".to_owned()));
        }
        let entry = find(entries, name)?;
        let warns = entries[..of_files].iter().all(|own| own.name != entry.name);
        return one(entry, warns, &options.selection, json, out, err);
    }
    let folder = options.out.as_deref().unwrap_or(Path::new("."));
    let kept = Kept { files: texts(entries)?, folder, entries };
    if options.check { kept.check(json, out) } else { kept.write(json, out) }
}

/// The folder of `--all`, and what belongs into it.
struct Kept<'a> {
    /// Every file: name and text.
    files: BTreeMap<String, String>,
    folder: &'a Path,
    entries: &'a [AnyPipeline],
}

/// Prints exactly what NVRTC gets: what was assumed goes to `err`.
fn one(
    entry: &AnyPipeline,
    warns: bool,
    selection: &Selection,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    let selected = selection.of(entry)?;
    let Emitted { cuda, plan } = entry.emit(&selected.config)?;
    // A plain text is slow on purpose.
    if warns && selected.config.rules == RuleSet::All {
        for warning in plan.recipe.warnings() {
            writeln!(err, "warning: {warning}")?;
        }
    }
    if json {
        let assumed = selected.assumed.iter();
        let assumed =
            assumed.fold(Object::new(), |object, (name, value)| object.with(name, *value));
        let object = Object::new()
            .with("pipeline", entry.name)
            .with("plan", plan_text::object(&plan))
            .with("assumed", assumed)
            .with("cuda", cuda);
        writeln!(out, "{object}")?;
        return Ok(());
    }
    if !selected.assumed.is_empty() {
        writeln!(err, "reference shape: {}", selected.assumed_text())?;
    }
    out.write_all(cuda.as_bytes())?;
    Ok(())
}

/// Every file of the folder: name and text.
fn texts(entries: &[AnyPipeline]) -> Result<BTreeMap<String, String>, Failure> {
    let mut files = BTreeMap::new();
    let mut protocol = Protocol::default();
    for entry in entries {
        for Configuration { name, arch, set, .. } in kept(entry.name) {
            let selected = select(entry, arch, set.iter().copied())?;
            let Emitted { cuda, plan } = entry.emit(&selected.config)?;
            let arms: Vec<String> =
                plan.arms.iter().map(|(axis, arm)| format!("{axis} {arm}")).collect();
            let choice = &selected.config.choice;
            protocol.add(entry.name, &arms.join(", "), &selected.ir.select(choice));
            let stem = format!("{}.{name}", entry.name);
            files.insert(format!("{stem}.plan.txt"), plan_text::text(&plan));
            files.insert(format!("{stem}.cu"), cuda);
        }
    }
    for entry in entries {
        let first = kept(entry.name).into_iter().next();
        let Some(Configuration { arch, set, .. }) = first else { continue };
        let drawn = explain::drawn(&select(entry, arch, set.iter().copied())?)?;
        files.insert(format!("{}.svg", entry.name), drawn);
    }
    files.insert("protocol.md".to_owned(), protocol.text());
    Ok(files)
}

/// The file of [`CONFIGURATIONS`] that holds the same CUDA, if one does.
pub(crate) fn kept_file(entry: &AnyPipeline, emitted: &Emitted) -> Result<Option<String>, Failure> {
    for Configuration { name, arch, set, .. } in kept(entry.name) {
        let selected = select(entry, arch, set.iter().copied())?;
        if entry.emit(&selected.config)?.cuda == emitted.cuda {
            return Ok(Some(format!("{}.{name}.cu", entry.name)));
        }
    }
    Ok(None)
}

/// The configurations of a pipeline; one that has none in the table, such as a user's, has its
/// defaults.
fn kept(pipeline: &'static str) -> Vec<Configuration> {
    let rows = CONFIGURATIONS.iter().filter(|row| row.pipeline == pipeline);
    let rows: Vec<Configuration> = rows.copied().collect();
    if rows.is_empty() {
        return vec![Configuration { pipeline, name: "default", arch: Arch::Sm90a, set: &[] }];
    }
    rows
}

impl Kept<'_> {
    fn write(&self, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
        fs::create_dir_all(self.folder).map_err(|error| unusable(self.folder, &error))?;
        for name in self.differing()? {
            let path = self.folder.join(&name);
            let (outcome, action) = match self.files.get(&name) {
                Some(text) => (files::write(&path, text), "written"),
                None => (fs::remove_file(&path), "removed"),
            };
            outcome.map_err(|error| unusable(&path, &error))?;
            report(&path, action, json, out)?;
        }
        Ok(())
    }

    fn check(&self, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
        let differing = self.differing()?;
        for name in &differing {
            let path = self.folder.join(name);
            let found = fs::read_to_string(&path).unwrap_or_default();
            let what = match self.files.get(name) {
                Some(text) => first_difference(&found, text),
                None => "no configuration has this name".to_owned(),
            };
            report(&path, &what, json, out)?;
        }
        if differing.is_empty() {
            return Ok(());
        }
        // Within this repository there is a shorter way to say it.
        let command = if self.folder.ends_with("generated") && Path::new("xtask").is_dir() {
            "cargo xtask codegen".to_owned()
        } else {
            format!("emit --all --out {}", self.folder.display())
        };
        let files = match differing.len() {
            1 => "1 file differs".to_owned(),
            count => format!("{count} files differ"),
        };
        Err(Failure::Failed(format!("{files} from what is emitted now: run `{command}`")))
    }

    /// Names of the files that are missing, differ, or are there without a configuration.
    fn differing(&self) -> Result<Vec<String>, Failure> {
        let mut names = Vec::new();
        for (name, text) in &self.files {
            match fs::read_to_string(self.folder.join(name)) {
                Ok(found) if found == *text => {}
                Ok(_) => names.push(name.clone()),
                Err(error) if is_no_file(&error) => names.push(name.clone()),
                Err(error) => return Err(unusable(&self.folder.join(name), &error)),
            }
        }
        let listing = match fs::read_dir(self.folder) {
            Ok(listing) => listing,
            Err(error) if is_no_file(&error) => return Ok(names),
            Err(error) => return Err(unusable(self.folder, &error)),
        };
        for entry in listing {
            let entry = entry.map_err(|error| unusable(self.folder, &error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if self.is_ours(&name) && !self.files.contains_key(&name) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Whether a file has a name that this command gives: others in the folder are left alone.
    fn is_ours(&self, file: &str) -> bool {
        let of =
            |entry: &AnyPipeline| file.split_once('.').is_some_and(|(name, _)| name == entry.name);
        let kind = [".cu", ".plan.txt", ".svg"].iter().any(|end| file.ends_with(end));
        kind && self.entries.iter().any(of)
    }
}

/// A file that is no text cannot be what was emitted.
fn is_no_file(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
}

fn first_difference(found: &str, wanted: &str) -> String {
    if found.is_empty() {
        return "missing".to_owned();
    }
    let pairs = found.lines().zip(wanted.lines());
    let same = pairs.take_while(|(found, wanted)| found == wanted).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("the end of the file").to_owned();
    format!("line {}: it has `{}`, emitted is `{}`", same + 1, line(found), line(wanted))
}

fn report(path: &Path, what: &str, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let path = path.display().to_string();
    if json {
        writeln!(out, "{}", Object::new().with("file", path).with("state", what))?;
    } else {
        writeln!(out, "{path}: {what}")?;
    }
    Ok(())
}

fn unusable(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("{} cannot be used: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_the_first_line_that_differs() {
        let said = first_difference("a\nb\nc\n", "a\nx\nc\n");
        assert_eq!(said, "line 2: it has `b`, emitted is `x`");
        let said = first_difference("a\n", "a\nb\n");
        assert_eq!(said, "line 2: it has `the end of the file`, emitted is `b`");
        assert_eq!(first_difference("", "a"), "missing");
    }
}
