//! Steps as C++ statements, a line each.

use super::terms::Terms;
use crate::ir::{Elem, Source};
use crate::schedule::{CopyBy, Loop, Node, Step, Takers, Term, elem_type};

/// The text of `steps`; `says` gives the comment above the steps of a statement.
pub fn steps(steps: &[Step], says: &dyn Fn(&Source) -> String) -> String {
    let mut writer = Writer { out: String::new(), terms: Terms { says } };
    writer.steps(steps);
    writer.out
}

/// The text of a value.
pub fn term(term: &Term) -> String {
    Terms { says: &|_| String::new() }.text(term)
}

struct Writer<'a> {
    out: String,
    terms: Terms<'a>,
}

impl Writer<'_> {
    fn text(&self, term: &Term) -> String {
        self.terms.text(term)
    }

    fn line(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    fn block(&mut self, head: &str, body: &[Step]) {
        self.line(&format!("{head} {{"));
        self.steps(body);
        self.line("}");
    }

    fn steps(&mut self, steps: &[Step]) {
        steps.iter().for_each(|step| self.step(step));
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Says(source) => {
                let says = (self.terms.says)(source);
                self.line(&says);
            }
            Step::Remark(words) => self.line(&format!("// {words}")),
            Step::Object { class, name, args } => {
                let class = self.terms.symbol(class);
                let args = args.iter().map(|arg| self.text(arg)).collect::<Vec<_>>().join(", ");
                let args = if args.is_empty() { args } else { format!("({args})") };
                self.line(&format!("{class} {name}{args};"));
            }
            Step::Let { name, value } => {
                self.line(&format!(
                    "const {} {name} = {};",
                    local_type(&value.elem),
                    self.text(value)
                ));
            }
            Step::Made { name, value } => {
                self.line(&format!("const auto {name} = {};", self.text(value)));
            }
            Step::While { condition, body } => {
                self.block(&format!("while ({})", self.text(condition)), body);
            }
            Step::Pointer { name, to, read_only, value } => {
                self.pointer(name, to.as_ref(), *read_only, value);
            }
            Step::Variable { name, elem, value } => {
                self.line(&format!("{} {name} = {};", local_type(elem), self.text(value)));
            }
            Step::Set { place, value } => {
                self.line(&format!("{} = {};", self.text(place), self.text(value)));
            }
            Step::Increase { place, value } => {
                self.line(&format!("{} += {};", self.text(place), self.text(value)));
            }
            Step::Do(call) => self.line(&format!("{};", self.text(call))),
            Step::If { condition, body } => {
                self.block(&format!("if ({})", self.text(condition)), body)
            }
            Step::SkipUnless(condition) => {
                self.line(&format!("if ({}) continue;", self.text(&condition.clone().negated())));
            }
            Step::Loop(repeat) => self.repeat(repeat),
            Step::Take { name, next, body } => {
                self.line(&format!("for (int {name}; ({name} = {}) >= 0;) {{", self.text(next)));
                self.steps(body);
                self.line("}");
            }
            Step::Copy(copy) => self.line(&format!(
                "ep::copy_row<{}, {}>(team, {}, {}, {});",
                elem_type(&copy.elem),
                if copy.by == CopyBy::Four { "4" } else { "ep::kCopiedAtOnce<Cfg::kThreads>" },
                self.text(&copy.to),
                self.text(&copy.from),
                self.text(&copy.count)
            )),
            Step::Leader(body) => self.block("if (team.leader())", body),
            Step::Meet => self.line("__syncwarp();"),
            Step::Scope(body) => {
                self.line("{");
                self.steps(body);
                self.line("}");
            }
        }
    }

    fn pointer(&mut self, name: &str, to: Option<&Elem>, read_only: bool, value: &Term) {
        let to = to.map_or("char", elem_type);
        let kind = if read_only { format!("const {to}*") } else { format!("{to}*") };
        let text = self.text(value);
        match value.node {
            Node::Address(_) => {
                self.line(&format!("{kind} {name} = reinterpret_cast<{kind}>({text});"))
            }
            _ => self.line(&format!("{kind} {name} = {text};")),
        }
    }

    fn repeat(&mut self, repeat: &Loop) {
        let (first, step, looks) = turns(repeat.turns);
        let (name, kind) = (&repeat.binder, local_type(&repeat.elem));
        let from = match first {
            "" => self.text(&repeat.from),
            _ if repeat.from.is(0) => first.to_string(),
            _ => self.text(&repeat.first_of(first)),
        };
        let looks = if looks { " && !team.stopped" } else { "" };
        let step = if step.is_empty() { format!("++{name}") } else { format!("{name} += {step}") };
        let head = format!(
            "for ({kind} {name} = {from}; {name} < {}{looks}; {step})",
            self.text(&repeat.to)
        );
        if repeat.turns == Takers::Unrolled {
            self.line("#pragma unroll");
        }
        self.block(&head, &repeat.body);
    }
}

/// The type of a local variable.
fn local_type(elem: &Elem) -> &'static str {
    match elem {
        Elem::I32 => "int",
        _ => elem_type(elem),
    }
}

/// The first turn of a warp or lane, how far its next one is, and whether it looks for a stop.
fn turns(turns: Takers) -> (&'static str, &'static str, bool) {
    match turns {
        Takers::Serial => ("", "", true),
        Takers::Alone | Takers::Unrolled => ("", "", false),
        Takers::Lanes => ("team.lane", "ep::kLanes", false),
        Takers::Chunks => ("", "ep::kLanes", false),
        Takers::Wide => ("team.lane * ep::kWide", "ep::kLanes * ep::kWide", false),
        Takers::WideChunks => ("", "ep::kLanes * ep::kWide", false),
        Takers::Parts => ("team.peer", "team.peers", true),
        Takers::Warps => ("team.index()", "team.count()", true),
        Takers::Threads => {
            ("team.index() * ep::kLanes + team.lane", "team.count() * ep::kLanes", true)
        }
        Takers::Blocks => ("team.block", "team.blocks", true),
        Takers::WarpsOfBlock => ("team.warp", "team.warps", true),
        Takers::Spread => ("team.spread()", "team.count()", true),
    }
}
