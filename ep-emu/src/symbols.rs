//! From an address in kernel code to the line of the library and the statement it serves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::abi::Pc;
use crate::failure::Failure;
use crate::program::Program;
use crate::state::stream::Launch;

/// Files of the host backend: their lines explain nothing to a reader of the kernel.
const TWINS: [&str; 4] = ["emu.h", "builtins.h", "ptx.cuh", "shim.cpp"];
/// The tools that read debug information; both come with the compilers.
const TOOLS: [&str; 3] = ["addr2line", "llvm-addr2line", "llvm-symbolizer"];
/// Around each address in a message that is not yet resolved.
const MARK: char = '\u{1}';

/// The loaded libraries of a run.
#[derive(Clone, Debug)]
pub(crate) struct Symbols {
    modules: Vec<(usize, Arc<Program>)>,
}

/// One line of code.
#[derive(Clone, Debug)]
struct Frame {
    function: String,
    file: PathBuf,
    line: u32,
}

impl Frame {
    fn name(&self) -> String {
        self.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

impl Symbols {
    /// The libraries of these launches.
    pub(crate) fn of(launches: &[Vec<Launch>]) -> Self {
        let mut modules: Vec<(usize, Arc<Program>)> = Vec::new();
        for launch in launches.iter().flatten() {
            let program = &launch.kernel.program;
            if !modules.iter().any(|(base, _)| *base == program.base()) {
                modules.push((program.base(), Arc::clone(program)));
            }
        }
        Self { modules }
    }

    /// Puts places and the seed into a failure.
    pub(crate) fn resolve_failure(&self, failure: Failure, seed: u64) -> Failure {
        let mut all = vec![failure.message];
        all.extend(failure.waits.iter().chain(&failure.left).map(|wait| wait.place.clone()));
        // One call of the tool for all: it reads the debug information each time.
        let resolved = self.resolve(&all.join("\u{2}"));
        let mut resolved = resolved.split('\u{2}').map(str::to_owned);
        let message = resolved.next().unwrap_or_default();
        let (mut waits, mut left) = (failure.waits, failure.left);
        for (wait, place) in waits.iter_mut().chain(&mut left).zip(resolved) {
            wait.place = place;
        }
        Failure { message, waits, left, seed, ..failure }
    }

    /// Replaces the marked addresses of a message by places.
    fn resolve(&self, message: &str) -> String {
        let parts: Vec<&str> = message.split(MARK).collect();
        let mut pcs: Vec<Pc> = parts.iter().skip(1).step_by(2).map(|hex| parse(hex)).collect();
        pcs.sort_unstable();
        pcs.dedup();
        let places = self.places(&pcs);
        let mut resolved = String::new();
        for (index, part) in parts.iter().enumerate() {
            if index % 2 == 0 {
                resolved.push_str(part);
            } else {
                let place = places.get(&parse(part));
                resolved.push_str(place.map_or("an unknown place", String::as_str));
            }
        }
        resolved
    }

    fn places(&self, pcs: &[Pc]) -> BTreeMap<Pc, String> {
        let mut places = BTreeMap::new();
        for (base, program) in &self.modules {
            let owned = |pc: &&Pc| self.base_of(**pc) == Some(*base);
            let own: Vec<Pc> = pcs.iter().filter(owned).copied().collect();
            for (pc, frames) in frames_of(*base, program, &own) {
                places.insert(pc, describe(program, &frames));
            }
        }
        places
    }

    /// Libraries are far apart: the one with the greatest base below an address holds it.
    fn base_of(&self, pc: Pc) -> Option<usize> {
        self.modules.iter().map(|(base, _)| *base).filter(|base| *base <= pc).max()
    }
}

fn parse(hex: &str) -> Pc {
    Pc::from_str_radix(hex, 16).unwrap_or(0)
}

/// A text with a marked address, to be resolved later.
pub(crate) fn mark(pc: Pc) -> String {
    format!("{MARK}{pc:x}{MARK}")
}

/// The inlined frames of each address, innermost first.
fn frames_of(base: usize, program: &Program, pcs: &[Pc]) -> Vec<(Pc, Vec<Frame>)> {
    if pcs.is_empty() {
        return Vec::new();
    }
    // A return address belongs to the instruction before it.
    let addresses: Vec<String> = pcs.iter().map(|pc| format!("{:#x}", pc - base - 1)).collect();
    let library = program.path();
    for tool in TOOLS {
        let mut command = Command::new(tool);
        if tool == "llvm-symbolizer" {
            command.args(["--output-style=GNU", "--functions"]);
        } else {
            command.arg("-f");
        }
        command.args(["-a", "-C", "-i", "-e"]).arg(&library).args(&addresses);
        if let Ok(output) = command.output()
            && output.status.success()
        {
            return parse_frames(pcs, &String::from_utf8_lossy(&output.stdout));
        }
    }
    Vec::new()
}

/// Reads `address`, then pairs of lines `function` and `file:line`, for each address.
fn parse_frames(pcs: &[Pc], output: &str) -> Vec<(Pc, Vec<Frame>)> {
    let mut found: Vec<(Pc, Vec<Frame>)> = Vec::new();
    let mut order = pcs.iter();
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            found.extend(order.next().map(|pc| (*pc, Vec::new())));
            continue;
        }
        let place = lines.next().unwrap_or_default();
        let place = place.split(" (discriminator").next().unwrap_or(place);
        let (file, number) = place.rsplit_once(':').unwrap_or((place, "0"));
        let frame = Frame {
            function: function_name(line),
            file: PathBuf::from(file),
            line: number.parse().unwrap_or(0),
        };
        if let Some((_, frames)) = found.last_mut() {
            frames.push(frame);
        }
    }
    found
}

/// A demangled name without its parameters, template arguments and namespace.
fn function_name(demangled: &str) -> String {
    let mut name = String::new();
    let mut depth = 0;
    for letter in demangled.chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            '(' if depth == 0 => break,
            _ if depth == 0 => name.push(letter),
            _ => {}
        }
    }
    let name = name.rsplit(' ').next().unwrap_or_default();
    name.strip_prefix("ep::").unwrap_or(name).to_owned()
}

/// `rings.cuh:88 (slot) from dispatch.cu:112 (role_send), +41 push ring[peer]`.
fn describe(program: &Program, frames: &[Frame]) -> String {
    let twin = |frame: &&Frame| TWINS.contains(&frame.name().as_str());
    let known: Vec<&Frame> = frames.iter().filter(|frame| !twin(frame)).collect();
    let Some(inner) = known.first() else { return "an unknown place".to_owned() };
    let mut place = format!("{}:{} ({})", inner.name(), inner.line, inner.function);
    let text = &program.source().name;
    let text_name = Path::new(text).file_name().map(|name| name.to_string_lossy());
    let outer = known.iter().find(|frame| Some(frame.name().as_str()) == text_name.as_deref());
    if let Some(outer) = outer {
        if outer.line != inner.line || outer.name() != inner.name() {
            let (file, line) = (outer.name(), outer.line);
            place.push_str(&format!(" from {file}:{line} ({})", outer.function));
        }
        if let Some(statement) = statement_above(&program.source().text, outer.line) {
            place.push_str(&format!(" [{statement}]"));
        }
    }
    place
}

/// The statement of the declaration that the line serves: the nearest comment above it within its
/// function, from its first line on. Emitted text has a comment for each statement, with the pairs that
/// it is an end of below it (`W1: ..`), and no others.
fn statement_above(text: &str, line: u32) -> Option<String> {
    let lines: Vec<&str> = text.lines().take(line as usize).collect();
    let comment = |line: &str| {
        let text = line.trim_start().strip_prefix("//")?;
        Some(text.trim_start_matches('/').trim().to_owned())
    };
    let is_pair = |line: &&&str| {
        let number = comment(line).and_then(|text| text.strip_prefix('W').map(str::to_owned));
        number.is_some_and(|text| text.starts_with(|letter: char| letter.is_ascii_digit()))
    };
    let mut above =
        lines.iter().rev().take_while(|line| !line.starts_with('}')).filter(|line| !is_pair(line));
    let mut statements = vec![above.find_map(|line| comment(line))?];
    for line in above {
        let Some(before) = comment(line) else { break };
        match statements.last_mut() {
            Some(first) if !first.starts_with('+') => *first = format!("{before} {first}"),
            _ => statements.push(before),
        }
    }
    // One function may serve two statements; but one whose comment ends with a sentence has no step.
    let last = statements.remove(0);
    statements.retain(|earlier| earlier.starts_with('+') && !earlier.ends_with('.'));
    statements.reverse();
    statements.push(last);
    Some(statements.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_what_nobody_reads() {
        assert_eq!(function_name("void ep::wait<Cfg::Ring>(ep::Team&, int)"), "wait");
        assert_eq!(function_name("role_send(Args const&)"), "role_send");
        assert_eq!(function_name("ep::Mover<Cfg::Send>::row(char*)"), "Mover::row");
    }

    #[test]
    fn the_nearest_statement_counts() {
        let text =
            "void f() {\n    // +7  push ring[peer]\n    a();\n    b();\n}\nvoid g() {\n    c();\n";
        assert_eq!(statement_above(text, 4).as_deref(), Some("+7  push ring[peer]"));
        assert_eq!(statement_above(text, 7), None);
        let pairs =
            "    // +8  await turn\n    // W2: takes messages of turn, from A +3\n    a();\n";
        assert_eq!(statement_above(pairs, 3).as_deref(), Some("+8  await turn"));
        let long = "    // +9  push ring[peer] { x: x[token],\n    //     src: token }\n    a();\n";
        let statement = statement_above(long, 3);
        assert_eq!(statement.as_deref(), Some("+9  push ring[peer] { x: x[token], src: token }"));
    }
}
