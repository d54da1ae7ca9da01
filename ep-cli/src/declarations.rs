//! Declarations that a command reads from Rust files: compiled as the macro compiles them, when the command runs.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use ep_codegen::expansion::{self, CompiledPipeline};
use ep_codegen::syntax;
use ep_runtime::ir::{Pipeline, text};
use ep_runtime::plan::kebab;
use ep_runtime::{AnyPipeline, Text, pipelines};

use crate::failure::Failure;

/// The crate whose pipelines a path may name.
const STANDARD: &str = "ep_runtime";

/// The pipelines of all `files`, then those of `entries` with other names. What the macro warns about goes to `err`.
pub(crate) fn load(
    files: &[PathBuf],
    entries: &[AnyPipeline],
    err: &mut dyn Write,
) -> Result<(usize, Vec<AnyPipeline>), Failure> {
    let mut all: Vec<CompiledPipeline> = Vec::new();
    for file in files {
        for compiled in read(file, err)? {
            if let Some(same) = all.iter().find(|other| other.ir.name == compiled.ir.name) {
                let (name, file) = (&same.ir.name, file.display());
                return Err(Failure::Failed(format!("{file}: there is another pipeline `{name}`")));
            }
            all.push(compiled);
        }
    }
    let mut linked = Linked { made: vec![None; all.len()], open: Vec::new(), all: &all, entries };
    let mut loaded = Vec::new();
    for index in 0..all.len() {
        loaded.push(linked.entry(index)?);
    }
    let others = entries.iter().filter(|entry| !loaded.iter().any(|own| own.name == entry.name));
    let (own, others) = (loaded.len(), others.copied().collect());
    Ok((own, [loaded, others].concat()))
}

/// Compiles the blocks of a file.
fn read(file: &Path, err: &mut dyn Write) -> Result<Vec<CompiledPipeline>, Failure> {
    let name = file.display().to_string();
    let source = fs::read_to_string(file)
        .map_err(|error| Failure::WrongUse(format!("{name} cannot be read: {error}")))?;
    let blocks = syntax::blocks(&source).map_err(|error| {
        let start = error.span().start();
        let (line, column) = (start.line, start.column + 1);
        Failure::Failed(format!("{name}:{line}:{column}: this is not Rust: {error}"))
    })?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let load =
        |path: &str| fs::read_to_string(folder.join(path)).map_err(|error| error.to_string());
    let mut all = Vec::new();
    for block in blocks {
        let compiled = expansion::compiled(block, &load).map_err(|errors| {
            let text = errors.in_file(&name, &source);
            Failure::Failed(text.strip_prefix("error: ").unwrap_or(&text).to_owned())
        })?;
        for slow in compiled.iter().flat_map(|compiled| &compiled.slow) {
            write!(err, "{}", slow.warning_in_file(&name, &source))?;
        }
        all.extend(compiled);
    }
    match all.is_empty() {
        true => Err(Failure::WrongUse(format!("{name} has no `pipeline!` block with a pipeline"))),
        false => Ok(all),
    }
}

/// Pipelines of files as entries, each with those whose handles it reads.
struct Linked<'a> {
    all: &'a [CompiledPipeline],
    entries: &'a [AnyPipeline],
    made: Vec<Option<AnyPipeline>>,
    /// Those whose handles are being looked for, which must not need one another.
    open: Vec<usize>,
}

impl Linked<'_> {
    fn entry(&mut self, index: usize) -> Result<AnyPipeline, Failure> {
        if let Some(made) = self.made[index] {
            return Ok(made);
        }
        let CompiledPipeline { ir, texts, handles, .. } = &self.all[index];
        if self.open.contains(&index) {
            let what = format!("the handle of `{}` depends on itself", ir.name);
            return Err(Failure::Failed(what));
        }
        self.open.push(index);
        let handles = handles.iter().map(|path| self.handle(ir, path));
        let handles = handles.collect::<Result<Vec<_>, _>>()?;
        self.open.pop();
        let texts =
            texts.iter().map(|text| Text { arms: known(&text.arms), body: text.body.clone() });
        let entry = AnyPipeline::compiled(ir.clone(), texts.collect(), handles);
        self.made[index] = Some(entry);
        Ok(entry)
    }

    /// The pipeline that a path of `reader` names: one of the files, of the program, or a standard one.
    fn handle(&mut self, reader: &Pipeline, path: &[String]) -> Result<AnyPipeline, Failure> {
        let name = path.last().cloned().unwrap_or_default();
        let of_file = self.all.iter().position(|other| other.ir.name == name);
        let is_standard = path.first().is_some_and(|first| first == STANDARD);
        let found = match of_file.filter(|_| !is_standard) {
            Some(index) => self.entry(index)?,
            None => {
                let kebab = kebab(&name);
                let program = self.entries.iter().filter(|_| !is_standard);
                let mut known = program.chain(&pipelines::ALL);
                *known.find(|entry| entry.name == kebab).ok_or_else(|| {
                    let path = path.join("::");
                    Failure::Failed(format!(
                        "`{}` reads the handle of `{path}`, which is neither in these files nor in this \
                        program",
                        reader.name
                    ))
                })?
            }
        };
        same_tables(reader, &found.ir())?;
        Ok(found)
    }
}

/// The tables that `reader` reads are those that `maker` leaves: rustc compares them in a crate.
fn same_tables(reader: &Pipeline, maker: &Pipeline) -> Result<(), Failure> {
    let reads = reader.tensors.iter().filter(|it| it.from_handle.as_deref() == Some(&maker.name));
    for table in reads {
        let told =
            |elem, extents: usize| format!("{} with {extents} extents", text::elem_type(elem));
        let own = maker.tensors.iter().filter(|it| it.from_handle.is_none());
        let mut left = own.filter(|it| it.name == table.name);
        let (name, by, of) = (&table.name, &reader.name, &maker.name);
        let wanted = told(&table.elem, table.dims.len());
        let Some(first) = left.clone().next() else {
            return Err(Failure::Failed(format!(
                "`{by}` reads `{name}`, and `{of}` leaves no such table"
            )));
        };
        if !left.any(|it| it.elem == table.elem && it.dims.len() == table.dims.len()) {
            let recorded = told(&first.elem, first.dims.len());
            return Err(Failure::Failed(format!(
                "`{by}` reads `{name}` as {wanted}, and `{of}` records {recorded}"
            )));
        }
    }
    Ok(())
}

/// Arms for as long as the process runs, as those of a text are.
fn known(arms: &[String]) -> &'static [&'static str] {
    let arms: Vec<&'static str> = arms.iter().map(|arm| &*arm.clone().leak()).collect();
    arms.leak()
}
