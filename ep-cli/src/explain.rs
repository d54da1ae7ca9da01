//! `epforge explain`: what a pipeline does in one configuration, and what it costs.

mod computed;
mod measured;
mod memory;
mod picture;
mod tuned;
mod wire;

use std::io::Write;
use std::path::PathBuf;

use ep_runtime::ir::facts::facts;
use ep_runtime::ir::{Channel, Memory, Pipeline, Tensor, text};
use ep_runtime::plan::{
    Config, LINE_BYTES, MessageLayout, Plan, align, elem_bytes, eval, parts, plan,
};
use ep_runtime::{AnyPipeline, RuleSet, pipelines};

use crate::failure::Failure;
use crate::files;
use crate::json::{Object, Value};
use crate::plan_text::{aligned, headline, object as plan_object, regions};
use crate::selection::{SHAPE_HELP, Selected, Selection, find, refused};
use computed::computed_rows;
use measured::Measured;
use memory::{BufferMemory, Size};
use tuned::Tuned;
use wire::Traffic;

/// Options of `explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = SHAPE_HELP)]
pub(crate) struct Options {
    /// Name of the pipeline, from `list`
    pipeline: String,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    size: Size,
    /// Draw the roles and channels into this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(
    options: &Options,
    entries: &[AnyPipeline],
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let entry = find(entries, &options.pipeline)?;
    let tokens = options.size.max_tokens(&entry.ir());
    let selected =
        options.selection.with(entry, tokens.as_ref().map(|it| (it.0, "tokens", &*it.1)))?;
    let plan = plan(&selected.ir, &selected.config).map_err(refused)?;
    let memory = BufferMemory::of(&options.size, &selected.ir, &plan, options.selection.given())?;
    let measured = if is_standard(entry, &selected) { Measured::of(&plan)? } else { None };
    // What the other arms would do has no place in this configuration.
    let ir = selected.ir.select(&selected.config.choice);
    if let Some(file) = &options.svg {
        files::write(file, &picture::svg(&ir, &plan)).map_err(|error| {
            Failure::Failed(format!("{} cannot be written: {error}", file.display()))
        })?;
    }
    if json {
        let object = object(entry, &ir, &plan, &selected);
        let object = object
            .with("measured", measured.map(|measured| measured.objects()))
            .with("memory", memory.as_ref().map(BufferMemory::object));
        writeln!(out, "{}", object.with("plan", plan_object(&plan)))?;
        return Ok(());
    }
    head(&ir, &plan, &selected, out)?;
    roles(&ir, &plan, out)?;
    if let Some(measured) = measured {
        write!(out, "\n{measured}")?;
    }
    channels(&ir, &plan, out)?;
    buffer(&ir, &plan, out)?;
    if let Some(memory) = memory {
        writeln!(out, "{}", memory.line())?;
    }
    let derived = text::facts_text(&facts(&ir));
    if !derived.is_empty() {
        write!(
            out,
            "\nderived: roles, credits, and every publish with the consume that sees it\n"
        )?;
        write!(out, "{derived}")?;
    }
    Ok(())
}

/// Whether the text is that of a standard pipeline with default tunes. Measured times apply to nothing else.
fn is_standard(entry: &AnyPipeline, selected: &Selected) -> bool {
    let is_known = pipelines::ALL.iter().any(|known| known.digest == entry.digest);
    let Config { tunes, rules, .. } = &selected.config;
    is_known && tunes.is_empty() && *rules == RuleSet::All
}

/// The picture of a pipeline in one configuration.
pub(crate) fn drawn(selected: &Selected) -> Result<String, Failure> {
    let plan = plan(&selected.ir, &selected.config).map_err(refused)?;
    Ok(picture::svg(&selected.ir.select(&selected.config.choice), &plan))
}

fn head(
    ir: &Pipeline,
    plan: &Plan,
    selected: &Selected,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    writeln!(out, "{}", headline(plan))?;
    if !selected.assumed.is_empty() {
        writeln!(out, "reference shape: {}", selected.assumed_text())?;
    }
    writeln!(out)?;
    for line in &ir.doc {
        writeln!(out, "{}", line.trim())?;
    }
    Ok(())
}

fn roles(ir: &Pipeline, plan: &Plan, out: &mut dyn Write) -> Result<(), Failure> {
    let Plan { threads, blocks_min, shared_bytes, .. } = plan;
    writeln!(
        out,
        "\nroles: {threads} threads a block, at least {blocks_min} blocks, {shared_bytes} bytes of \
         shared memory of {} on {}",
        plan.arch.shared_bytes_max(),
        plan.arch.name()
    )?;
    let rows: Vec<Vec<String>> = ir
        .roles
        .iter()
        .map(|role| {
            let planned = plan.roles.iter().find(|planned| planned.name == role.name);
            let warps = planned.map_or_else(String::new, |planned| {
                format!("warps {}..{}", planned.first, planned.first + planned.count)
            });
            vec![text::role(role), warps]
        })
        .collect();
    write!(out, "{}", aligned(&rows))?;
    carried_out(plan, out)?;
    if let Some(tuned) = Tuned::of(plan) {
        writeln!(out, "tuning: {tuned}")?;
    }
    Ok(())
}

/// Prints how each role is carried out: its warps, its classes, and the reasons why no faster way applies.
fn carried_out(plan: &Plan, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "carried out by")?;
    for role in &plan.recipe.roles {
        writeln!(out, "  {}: {}; {}", role.role, plan.who(role), role.how())?;
        for reason in role.reasons() {
            writeln!(out, "    {reason}")?;
        }
    }
    Ok(())
}

fn channels(ir: &Pipeline, plan: &Plan, out: &mut dyn Write) -> Result<(), Failure> {
    for channel in &ir.channels {
        writeln!(out, "\n{}", text::channel(channel))?;
        let layout = plan.messages.iter().find(|layout| layout.name == channel.message);
        if let Some(layout) = layout {
            writeln!(out, "  {}", message(layout))?;
        }
        let numbers = options(channel, plan);
        if !numbers.is_empty() {
            writeln!(out, "  {numbers}")?;
        }
        if let Some(traffic) = Traffic::of(ir, channel, plan) {
            writeln!(out, "  on the wire: {traffic}")?;
        }
        for slow in computed_rows(ir, channel) {
            writeln!(out, "  slow: {slow}")?;
        }
    }
    Ok(())
}

/// `64 slots in chunks of 8`, or `epochs 2` where there are no such words for it.
fn options(channel: &Channel, plan: &Plan) -> String {
    let value = |name: &str| {
        let option = channel.options.iter().find(|option| option.name == name)?;
        eval(&option.value, &plan.numbers)
    };
    match (value("depth"), value("chunk")) {
        (Some(depth), Some(chunk)) => {
            let stripes = plan.numbers.get("stripes").copied().unwrap_or(1);
            format!(
                "{depth} slots in chunks of {chunk}, a ring for each peer and {stripes} stripes"
            )
        }
        _ => {
            let named = channel.options.iter();
            let named = named
                .filter_map(|option| Some(format!("{} {}", option.name, value(&option.name)?)));
            named.collect::<Vec<_>>().join(", ")
        }
    }
}

/// `message Token: row 14336 bytes; meta 128 bytes: src at 0 (1), experts at 4 (8)`
fn message(layout: &MessageLayout) -> String {
    let field = |field: &ep_runtime::plan::MetaField| {
        format!("{} {} x {} at {}", field.name, field.count, text::elem(&field.elem), field.offset)
    };
    let fields: Vec<String> = layout.meta.iter().map(field).collect();
    let fields = if fields.is_empty() { String::new() } else { format!(": {}", fields.join(", ")) };
    let MessageLayout { name, row_bytes, meta_bytes, slot_bytes, .. } = layout;
    format!(
        "message {name}: row {row_bytes} bytes, slot {slot_bytes} bytes, meta record {meta_bytes} \
         bytes{fields}"
    )
}

fn buffer(ir: &Pipeline, plan: &Plan, out: &mut dyn Write) -> Result<(), Failure> {
    let tensors: Vec<Vec<String>> =
        ir.tensors.iter().filter_map(|tensor| window_tensor(ir, plan, tensor)).collect();
    if plan.window.is_empty() && tensors.is_empty() {
        writeln!(out, "\nbuffer: nothing in the window, no peer reaches this rank")?;
        return Ok(());
    }
    let bytes = plan.window_bytes;
    writeln!(out, "\nbuffer: {bytes} bytes of control memory in the window of every rank")?;
    write!(out, "{}", aligned(&regions(&plan.window)))?;
    if !tensors.is_empty() {
        writeln!(out, "and in the window, because peers read or write them in place")?;
        write!(out, "{}", aligned(&tensors))?;
    }
    if !plan.network.is_empty() {
        writeln!(out, "network: {} bytes of rows on every rank", plan.network_bytes)?;
        write!(out, "{}", aligned(&regions(&plan.network)))?;
    }
    Ok(())
}

/// What a tensor in the window needs per row: rows start at whole lines there.
fn window_tensor(ir: &Pipeline, plan: &Plan, tensor: &Tensor) -> Option<Vec<String>> {
    if tensor.memory != Memory::Window {
        return None;
    }
    let parts = parts(ir, &tensor.elem);
    let (_, first, _) = parts.first()?;
    let row: Option<i64> = tensor.dims.iter().skip(1).map(|dim| eval(dim, &plan.numbers)).product();
    let bytes = align(row? * elem_bytes(first), LINE_BYTES);
    Some(vec![text::tensor(tensor), format!("{bytes} bytes a row")])
}

fn object(entry: &AnyPipeline, ir: &Pipeline, plan: &Plan, selected: &Selected) -> Object {
    let list = |items: Vec<Object>| Value::from(items);
    let assumed = selected.assumed.iter();
    let assumed = assumed.fold(Object::new(), |object, (name, value)| object.with(name, *value));
    let roles = ir
        .roles
        .iter()
        .map(|role| Object::new().with("name", &role.name).with("declared", text::role(role)));
    let channels = ir.channels.iter().map(|channel| {
        let object = Object::new()
            .with("name", &channel.name)
            .with("message", &channel.message)
            .with("declared", text::channel(channel))
            .with("slow", computed_rows(ir, channel));
        match Traffic::of(ir, channel, plan) {
            Some(traffic) => traffic.add_to(object),
            None => object,
        }
    });
    let facts = facts(ir);
    let pairs = facts.pairs.iter().map(|pair| {
        Object::new()
            .with("number", pair.number)
            .with("channel", &pair.channel)
            .with("publish", &pair.publish.role)
            .with("publish_line", pair.publish.line)
            .with("consume", &pair.consume.role)
            .with("consume_line", pair.consume.line)
    });
    let credits = facts.credits.iter().map(|credit| {
        Object::new()
            .with("channel", &credit.channel)
            .with("returned_by", &credit.returned_by)
            .with("waited_by", credit.waited_by.clone())
    });
    Object::new()
        .with("pipeline", entry.name)
        .with("assumed", assumed)
        .with("roles", list(roles.collect()))
        .with("channels", list(channels.collect()))
        .with("credits", list(credits.collect()))
        .with("pairs", list(pairs.collect()))
        .with("tuning", Tuned::of(plan).map(|tuned| tuned.object()))
}
