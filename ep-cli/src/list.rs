//! `epforge list`: the pipelines there are.

use std::io::Write;

use ep_runtime::ir::Pipeline;
use ep_runtime::{AnyPipeline, Recipe, RuleSet};

use crate::failure::Failure;
use crate::json::Object;

pub(crate) fn run(entries: &[AnyPipeline], json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    for entry in entries {
        let ir = entry.ir();
        if json {
            writeln!(out, "{}", object(entry, &ir))?;
            continue;
        }
        let doc = first_sentence(&ir.doc);
        writeln!(out, "{:width$}  {:8}  {doc}", entry.name, way(&ir))?;
    }
    Ok(())
}

/// How the roles of all choices of arms are carried out, in a word: the worst one counts.
fn way(ir: &Pipeline) -> &'static str {
    let warns = ir.choices().iter().any(|choice| {
        let recipe = Recipe::of(&ir.select(choice), RuleSet::All);
        recipe.warnings().next().is_some()
    });
    if warns { "one-warp" } else { "all-warps" }
}

/// The first sentence of a doc comment, which may span several lines.
fn first_sentence(doc: &[String]) -> String {
    let lines = doc.iter().map(|line| line.trim()).take_while(|line| !line.is_empty());
    let paragraph = lines.collect::<Vec<_>>().join(" ");
    match paragraph.find(". ") {
        Some(end) => paragraph[..=end].to_owned(),
        None => paragraph,
    }
}

fn object(entry: &AnyPipeline, ir: &Pipeline) -> Object {
    let axis = |axis: &ep_runtime::ir::Axis| {
        let arms: Vec<String> =
            axis.arms.iter().map(|arm| ep_runtime::plan::kebab(&arm.name)).collect();
        Object::new().with("name", &axis.name).with("arms", arms)
    };
    let axes: Vec<Object> = ir.axes.iter().map(axis).collect();
    Object::new()
        .with("pipeline", entry.name)
        .with("way", way(ir))
        .with("doc", ir.doc.iter().map(|line| line.trim().to_owned()).collect::<Vec<_>>())
        .with("variants", axes)
        .with("texts", entry.texts().len())
        .with("digest", format!("{:032x}", entry.digest))
}
