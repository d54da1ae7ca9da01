//! A plan as text for people, beside each file of `generated/`, and as JSON.

use std::fmt::Write;

use ep_runtime::ir::text::elem;
use ep_runtime::plan::{CfgKind, CfgMember, MessageLayout, Param, ParamKind, Plan, Region, kebab};

use crate::json::Object;

/// The plan as a text of aligned lines.
pub(crate) fn text(plan: &Plan) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}", headline(plan));
    section(&mut out, "launch", launch(plan));
    section(&mut out, "roles", roles(plan));
    section(&mut out, "messages", plan.messages.iter().flat_map(message).collect());
    let title = format!("window: {} bytes of control memory", plan.window_bytes);
    section(&mut out, &title, regions(&plan.window));
    let title = format!("network: {} bytes of rows on every rank", plan.network_bytes);
    section(&mut out, &title, regions(&plan.network));
    let title = format!("args: {} bytes", plan.args_bytes);
    section(&mut out, &title, plan.params.iter().map(param_line).collect());
    section(&mut out, "cfg: the text holds those that it uses", cfg(plan));
    out
}

/// `nvl-dispatch payload=bf16 via=direct, ranks=8 hidden=7168, sm_90a`
pub(crate) fn headline(plan: &Plan) -> String {
    let arms = plan.arms.iter().map(|(axis, arm)| format!(" {axis}={}", kebab(arm)));
    let numbers = plan.numbers.iter().map(|(name, value)| format!(" {name}={value}"));
    let all: String = arms.chain(numbers).collect();
    format!("{}{all} {}", kebab(&plan.pipeline), plan.arch.name())
}

/// Rows of cells; each column but the last is as wide as its widest cell.
type Rows = Vec<Vec<String>>;

fn section(out: &mut String, title: &str, rows: Rows) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(out, "\n{title}\n{}", aligned(&rows));
}

/// The rows as lines with two spaces in front and between the cells.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (index, cell) in row.iter().enumerate() {
            if index == widths.len() {
                widths.push(0);
            }
            widths[index] = widths[index].max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("  {cell:width$}"));
        out.push_str(cells.collect::<String>().trim_end());
        out.push('\n');
    }
    out
}

/// Those of the phases, and the one that runs all of them.
fn kernels(plan: &Plan) -> String {
    plan.kernels.iter().chain(&plan.joined).map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn launch(plan: &Plan) -> Rows {
    let at_once = if plan.waits { ", all at once" } else { "" };
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    vec![
        row("kernel", kernels(plan)),
        row("threads a block", plan.threads.to_string()),
        row("blocks", format!("at least {}{at_once}", plan.blocks_min)),
        row("dynamic shared memory", format!("{} bytes", plan.shared_bytes)),
    ]
}

fn roles(plan: &Plan) -> Rows {
    let row = |role: &ep_runtime::plan::RoleWarps| {
        let warps = format!("warps {}..{}", role.first, role.first + role.count);
        let mut cells = vec![role.name.clone(), warps];
        if let Some(recipe) = plan.recipe.role(&role.name) {
            cells.extend([plan.who(recipe), recipe.how()]);
        }
        cells
    };
    plan.roles.iter().map(row).collect()
}

fn message(layout: &MessageLayout) -> Rows {
    let MessageLayout { name, row_bytes, meta, meta_bytes, slot_bytes } = layout;
    let sizes = format!("row {row_bytes} bytes, meta {meta_bytes} bytes, slot {slot_bytes} bytes");
    let mut rows = vec![vec![name.clone(), sizes]];
    rows.extend(meta.iter().map(|field| {
        let what = format!(
            "{} x {} at {} of the meta record",
            field.count,
            elem(&field.elem),
            field.offset
        );
        vec![format!("  {}", field.name), what]
    }));
    rows
}

pub(crate) fn regions(all: &[Region]) -> Rows {
    let row = |region: &Region| {
        vec![
            format!("{:#08x}", region.offset),
            region.name.clone(),
            format!("{} bytes", region.bytes),
            region.formula.clone(),
            format!("{} writes", region.writer),
            format!("{} reads", region.reader),
        ]
    };
    all.iter().map(row).collect()
}

fn param_line(param: &Param) -> Vec<String> {
    let what = match &param.kind {
        ParamKind::Group => "the group".to_owned(),
        ParamKind::Size => "row count of this call".to_owned(),
        ParamKind::SizeFrom { size } => format!("where the device finds {size}, if not null"),
        ParamKind::Arg { elem: of } => format!("{} of this call", elem(of)),
        ParamKind::Pointer { tensor, copy, elem: of, read_only, .. } => {
            let access = if *read_only { "read" } else { "written" };
            let copy = if *copy > 0 { format!(", copy {copy}") } else { String::new() };
            format!("{} of {tensor}{copy}, {access}", elem(of))
        }
        ParamKind::Copies { tensor } => format!("how many of {tensor} there are"),
        ParamKind::Capacity { size } => format!("rows of `{size}` that the outputs hold"),
        ParamKind::RowStride { tensor, .. } => format!("elements from row to row of {tensor}"),
        ParamKind::ColumnStride { tensor, .. } => {
            format!("elements from column to column of {tensor}")
        }
        ParamKind::WindowOffset { tensor } => format!("place of {tensor} in the window"),
        ParamKind::MetaOffset { channel } => {
            format!("place of the meta records of {channel} in the window")
        }
        ParamKind::Net => "the network of this rank".to_owned(),
    };
    vec![param.offset.to_string(), param.name.clone(), what]
}

fn cfg(plan: &Plan) -> Rows {
    let mut rows = Vec::new();
    for group in &plan.cfg {
        for member in &group.members {
            let owner = if group.name.is_empty() {
                "Cfg".to_owned()
            } else {
                format!("Cfg::{}", group.name)
            };
            let row = vec![format!("{owner}::{}", member.name), value(member)];
            rows.push(row);
        }
    }
    rows
}

fn value(member: &CfgMember) -> String {
    match member.kind {
        CfgKind::Bool => (member.value != 0).to_string(),
        CfgKind::Int => member.value.to_string(),
        CfgKind::Offset => format!("{:#06x}", member.value),
    }
}

/// The plan for `--json`.
pub(crate) fn object(plan: &Plan) -> Object {
    let arms = plan.arms.iter().fold(Object::new(), |all, (axis, arm)| all.with(axis, kebab(arm)));
    let numbers = plan.numbers.iter().fold(Object::new(), |all, (name, n)| all.with(name, *n));
    let roles: Vec<Object> = plan
        .roles
        .iter()
        .map(|role| {
            let object = Object::new().with("name", &role.name);
            let object = object.with("first_warp", role.first).with("warps", role.count);
            let Some(recipe) = plan.recipe.role(&role.name) else { return object };
            object
                .with(
                    "classes",
                    recipe.classes.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>(),
                )
                .with("carried_out_by", plan.who(recipe))
                .with("reasons", recipe.reasons())
        })
        .collect();
    let window: Vec<Object> = plan
        .window
        .iter()
        .map(|region| {
            let object = Object::new().with("name", &region.name).with("offset", region.offset);
            object
                .with("bytes", region.bytes)
                .with("formula", &region.formula)
                .with("writer", &region.writer)
                .with("reader", &region.reader)
        })
        .collect();
    let messages: Vec<Object> = plan
        .messages
        .iter()
        .map(|layout| {
            let object = Object::new().with("name", &layout.name);
            object
                .with("row_bytes", layout.row_bytes)
                .with("meta_bytes", layout.meta_bytes)
                .with("slot_bytes", layout.slot_bytes)
        })
        .collect();
    Object::new()
        .with("kernel", kernels(plan))
        .with("arch", plan.arch.name())
        .with("arms", arms)
        .with("numbers", numbers)
        .with("threads", plan.threads)
        .with("shared_bytes", plan.shared_bytes)
        .with("blocks_min", plan.blocks_min)
        .with("waits", plan.waits)
        .with("roles", roles)
        .with("messages", messages)
        .with("window_bytes", plan.window_bytes)
        .with("window", window)
        .with("args_bytes", plan.args_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows = vec![row(&["a", "bb"]), row(&["ccc"]), row(&["", "d", "e"])];
        assert_eq!(aligned(&rows), "  a    bb\n  ccc\n       d   e\n");
    }
}
