//! What stands in front of the emitted body: everything that depends on the shape.

use std::borrow::Cow;
use std::fmt::Write;

use super::{CfgGroup, CfgKind, CfgMember, MessageLayout, Plan, Region, kebab};
use crate::schedule::{Constant, count_of};

/// The body of a kernel, and what it takes from what stands in front of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Body {
    /// All functions of the kernel, without the numbers of a shape.
    pub text: Cow<'static, str>,
    /// The headers of the device library.
    pub headers: Cow<'static, [&'static str]>,
    /// The members of `Cfg`.
    pub constants: Cow<'static, [Constant]>,
}

impl Body {
    /// A body that is known when the program is compiled.
    pub const fn known(
        text: &'static str,
        headers: &'static [&'static str],
        constants: &'static [Constant],
    ) -> Body {
        let (headers, constants) = (Cow::Borrowed(headers), Cow::Borrowed(constants));
        Body { text: Cow::Borrowed(text), headers, constants }
    }

    fn has(&self, group: &str, member: &str) -> bool {
        self.constants.iter().any(|it| it.group == group && it.member == member)
    }
}

impl Plan {
    /// The CUDA of a body with the numbers of this plan.
    pub fn cuda(&self, body: &Body) -> String {
        let mut out = self.header();
        for header in body.headers.iter() {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "#include <ep/{header}.cuh>");
        }
        let _ = writeln!(out, "\nnamespace {} {{\n", self.entry);
        out.push_str("struct Cfg {\n");
        for group in &self.cfg {
            write_group(&mut out, group, &self.counts_of(group), body);
        }
        out.push_str("};\n\n");
        out.push_str(&body.text);
        out
    }

    /// The constants of a message that say how many values its fields have: they are there for the body.
    fn counts_of(&self, group: &CfgGroup) -> Vec<String> {
        let layouts = self.messages.iter().filter(|layout| layout.name == group.name);
        let fields = layouts.flat_map(|layout| &layout.meta);
        fields.map(|field| count_of(&field.name)).collect()
    }

    fn header(&self) -> String {
        let mut out = format!("// {}", kebab(&self.pipeline));
        for (axis, arm) in &self.arms {
            let _ = write!(out, "  {axis}={}", kebab(arm));
        }
        out.push_str("\n//");
        for (name, value) in &self.numbers {
            let _ = write!(out, " {name}={value}");
        }
        let _ = writeln!(
            out,
            "\n// {}: {} threads and {} bytes of shared memory a block, at least {} blocks",
            self.arch.name(),
            self.threads,
            self.shared_bytes,
            self.blocks_min
        );
        let _ = writeln!(out, "//\n// Roles:");
        for role in &self.recipe.roles {
            let _ = writeln!(out, "//   {}: {}; {}", role.role, self.who(role), role.how());
            // Why a role is composed that has all of its warps is left to `explain`.
            let reasons = if role.why_not.is_empty() { Vec::new() } else { role.reasons() };
            for reason in reasons {
                let _ = writeln!(out, "//     {reason}");
            }
        }
        regions(&mut out, "Window", &self.window);
        regions(&mut out, "Network", &self.network);
        for message in &self.messages {
            let _ = writeln!(out, "// {}", describe(message));
        }
        for (channel, waiver) in &self.waivers {
            let _ = writeln!(out, "// Waived for {channel}: {}, {}", waiver.policy, waiver.reason);
        }
        out
    }
}

/// What lies where on every rank.
fn regions(out: &mut String, of: &str, regions: &[Region]) {
    if !regions.is_empty() {
        let _ = writeln!(out, "//\n// {of}, the same on every rank:");
    }
    for region in regions {
        let _ = writeln!(
            out,
            "//   {:<16} {:#010x} {:>10} bytes  {}; {} writes, {} reads",
            region.name, region.offset, region.bytes, region.formula, region.writer, region.reader
        );
    }
}

fn describe(message: &MessageLayout) -> String {
    let mut out = format!("Message {}:", message.name);
    if message.row_bytes > 0 {
        let _ = write!(out, " row of {} bytes,", message.row_bytes);
    }
    let _ = write!(out, " meta record of {} bytes:", message.meta_bytes);
    for field in &message.meta {
        let _ = write!(out, " {}[{}] at {},", field.name, field.count, field.offset);
    }
    out.trim_end_matches([',', ':']).to_string()
}

fn write_group(out: &mut String, group: &CfgGroup, counts: &[String], body: &Body) {
    if group.name.is_empty() {
        let used = |member: &&CfgMember| body.has("", &member.name);
        group.members.iter().filter(used).for_each(|member| write_member(out, member, "    "));
        return;
    }
    if !body.constants.iter().any(|constant| constant.group == group.name) {
        return;
    }
    let _ = writeln!(out, "\n    struct {} {{", group.name);
    let used =
        |member: &&CfgMember| !counts.contains(&member.name) || body.has(&group.name, &member.name);
    group.members.iter().filter(used).for_each(|member| write_member(out, member, "        "));
    out.push_str("    };\n");
}

fn write_member(out: &mut String, member: &CfgMember, indent: &str) {
    let (kind, value) = match member.kind {
        CfgKind::Bool => ("bool", (member.value != 0).to_string()),
        CfgKind::Int => ("int", member.value.to_string()),
        CfgKind::Offset => ("ep::u64", format!("{:#x}", member.value)),
    };
    let _ = writeln!(out, "{indent}static constexpr {kind} {} = {value};", member.name);
}
