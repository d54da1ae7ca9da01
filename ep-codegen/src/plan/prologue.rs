//! What stands in front of the emitted body: everything that depends on the shape.

use std::fmt::Write;

use super::{CfgGroup, CfgKind, CfgMember, MessageLayout, Plan, Region, constant, kebab};

impl Plan {
    /// The header comment, the includes, and the `struct Cfg` that `body` asks for.
    pub fn prologue(&self, body: &str) -> String {
        let mut out = self.header();
        for header in headers(body) {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "#include <ep/{header}.cuh>");
        }
        let _ = writeln!(out, "\nnamespace {} {{\n", self.entry);
        out.push_str("struct Cfg {\n");
        for group in &self.cfg {
            write_group(&mut out, group, &self.counts_of(group), body);
        }
        out.push_str("};\n");
        out
    }

    /// The constants of a message that say how many values its fields have: they are there for the body.
    fn counts_of(&self, group: &CfgGroup) -> Vec<String> {
        let layouts = self.messages.iter().filter(|layout| layout.name == group.name);
        let fields = layouts.flat_map(|layout| &layout.meta);
        fields.map(|field| format!("{}Count", constant(&field.name))).collect()
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

/// Device headers whose names the body uses, in order of name.
fn headers(body: &str) -> Vec<&'static str> {
    #[rustfmt::skip] // A table: the header and what only it declares.
    const HEADERS: [(&str, &[&str]); 21] = [
        ("cast", &["ep::to_", "ep::block_scale"]),
        ("compute", &["ep::row_of", "ep::for_lanes", "ep::sum", "ep::prefix_sum", "ep::experts_of", "ep::for_each", "ep::in_last_warp", "ep::owner", "ep::ask", "ep::align(", "ep::ceil(", "ep::max(", "ep::min(", "ep::once(", "ep::get<", "ep::set<", "ep::local_expert", "ep::has(", "ep::with_bit", "ep::store_host"]),
        ("count", &["ep::Counters", "ep::add_count", "ep::for_hits", "ep::clear_stripes"]),
        ("direct", &["ep::Direct", "ep::direct_ready"]),
        ("directs", &["ep::DirectOut", "ep::DirectIn"]),
        ("messages", &["ep::fill"]),
        ("mover", &["ep::Mover"]),
        ("net_rings", &["ep::NetRings"]),
        ("net_slot_rows", &["ep::NetSlotRows"]),
        ("net_slots", &["ep::NetSlots"]),
        ("one_launch", &["ep::RouteSmem", "ep::OnceOut", "ep::OnceIn"]),
        ("parts", &["ep::Parts<"]),
        ("places", &["ep::PlaceCounters", "ep::places_of", "ep::require_room"]),
        ("pull", &["ep::pull_offer", "ep::PullConsumer"]),
        ("reduce", &["ep::Gather"]),
        ("ring", &["ep::RingProducer", "ep::RingConsumer", "ep::RingGather", "ep::RingMessage"]),
        ("rings", &["ep::RingsOut", "ep::RingsIn"]),
        ("slot_rows", &["ep::SlotRows"]),
        ("slots", &["ep::SlotChannel"]),
        ("way_back", &["ep::BackOut", "ep::BackIn"]),
        ("wide", &["ep::kWide"]),
    ];
    let mut found: Vec<&str> = HEADERS
        .iter()
        .filter(|(_, names)| names.iter().any(|name| body.contains(name)))
        .map(|(header, _)| *header)
        .collect();
    found.extend(["rows", "sync"]);
    found
}

fn write_group(out: &mut String, group: &CfgGroup, counts: &[String], body: &str) {
    if group.name.is_empty() {
        let used = |member: &&CfgMember| uses(body, &format!("Cfg::{}", member.name));
        group.members.iter().filter(used).for_each(|member| write_member(out, member, "    "));
        return;
    }
    if !uses(body, &format!("Cfg::{}", group.name)) {
        return;
    }
    let _ = writeln!(out, "\n    struct {} {{", group.name);
    let used = |member: &&CfgMember| {
        let own = format!("Cfg::{}::{}", group.name, member.name);
        !counts.contains(&member.name) || uses(body, &own)
    };
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

/// Whether `name` stands in `body` as a whole name.
fn uses(body: &str, name: &str) -> bool {
    body.match_indices(name).any(|(at, _)| {
        let after = body[at + name.len()..].chars().next();
        !after.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
    })
}
