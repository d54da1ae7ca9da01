//! What names mean at one place of a role, and which names its function has given out.

use super::term::Term;
use crate::ir::Expr;

/// Words that mean something in C++, or in every function of a role.
#[rustfmt::skip] // A list of words.
const TAKEN: &[&str] = &[
    "alignas", "alignof", "and", "and_eq", "args", "asm", "auto", "bitand", "bitor", "block",
    "blocks", "bool", "break", "call", "case", "catch", "char", "char16_t", "char32_t", "char8_t",
    "class", "co_await", "co_return", "co_yield", "compl", "concept", "const", "const_cast",
    "consteval", "constexpr", "constinit", "continue", "counters", "decltype", "default", "delete",
    "do", "double", "dynamic_cast", "else", "enum", "ep", "explicit", "export", "extern", "false",
    "float", "for", "friend", "goto", "if", "inline", "int", "long", "me", "mutable", "namespace",
    "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or", "or_eq", "private",
    "protected", "public", "register", "reinterpret_cast", "requires", "return", "short", "signed",
    "sizeof", "smem", "static", "static_assert", "static_cast", "struct", "switch", "team",
    "template", "this", "thread_local", "throw", "true", "try", "typedef", "typeid", "typename",
    "union", "unsigned", "using", "virtual", "void", "volatile", "wchar_t", "while", "xor",
    "xor_eq",
];

/// The names that a function has given out.
#[derive(Clone)]
pub(super) struct Names {
    used: Vec<String>,
}

impl Names {
    /// Names of a function beside which `others` stand.
    pub(super) fn beside(others: impl Iterator<Item = String>) -> Names {
        Names { used: others.collect() }
    }

    /// `wanted`, or the like of it that nothing else is called.
    pub(super) fn fresh(&mut self, wanted: &str) -> String {
        let free = |name: &String| !TAKEN.contains(&name.as_str()) && !self.used.contains(name);
        let numbered = (2..).map(|number| format!("{wanted}_{number}"));
        let name = std::iter::once(wanted.to_string()).chain(numbered).find(free);
        let name = name.unwrap_or_default();
        self.used.push(name.clone());
        name
    }
}

/// What a name of the declaration stands for.
#[derive(Debug, Clone)]
pub(super) enum Meaning {
    /// One value.
    Value(Term),
    /// A row: what it is made of, and where those names mean what they do.
    Row(Expr, Scope),
    /// A turn of a loop that deals out places: its number and its place.
    Placed(Term, Term),
    /// A message that has arrived, or one part of a gather.
    Message(Arrived),
}

/// A message where it can be read.
#[derive(Debug, Clone)]
pub(super) struct Arrived {
    /// Its channel.
    pub(super) channel: String,
    /// Where its row is, as bytes.
    pub(super) row: Term,
    /// Where its other fields are, as bytes.
    pub(super) meta: Term,
    /// `message.row`, `.index`, `.source`, as far as it has them.
    pub(super) numbers: Vec<(&'static str, Term)>,
}

/// What names mean.
#[derive(Debug, Clone, Default)]
pub(super) struct Scope {
    meanings: Vec<(String, Meaning)>,
    /// Whether each lane has turns of its own here, and not the warp as a whole.
    pub(super) by_lane: bool,
    /// Where the parts of a gather are, while they are there.
    pub(super) parts: Option<Parts>,
    /// What is known of rows of numbers.
    pub(super) looks: Vec<LookedAt>,
}

/// A row of numbers that has been loaded, or what it says.
#[derive(Debug, Clone)]
pub(super) struct LookedAt {
    /// The helper that asks for it; empty: the row itself.
    pub(super) helper: String,
    /// The row.
    pub(super) row: Expr,
    /// The object that holds it.
    pub(super) object: String,
}

/// The parts that a gather has brought together.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    /// The part's name in the declaration.
    pub(super) part: String,
    /// The peer's name there.
    pub(super) across: String,
    /// Its channel.
    pub(super) channel: String,
    /// The object that holds them.
    pub(super) object: String,
    /// How many peers there may be.
    pub(super) peers: Term,
    /// The first peer that has a part, where statements take that one; negative: none has.
    pub(super) first: Option<String>,
}

impl Scope {
    /// The meaning of a name.
    pub(super) fn find(&self, name: &str) -> Option<&Meaning> {
        self.meanings.iter().rev().find(|(known, _)| known == name).map(|(_, meaning)| meaning)
    }

    /// The object that knows what `helper` asks of a row; that holds the row, if it is empty.
    pub(super) fn looked_at(&self, helper: &str, row: &Expr) -> Option<&str> {
        let mut known = self.looks.iter().filter(|known| known.helper == helper);
        known.find(|known| known.row == *row).map(|known| known.object.as_str())
    }

    /// This scope with one more name.
    pub(super) fn with(&self, name: &str, meaning: Meaning) -> Scope {
        let mut scope = self.clone();
        scope.bind(name, meaning);
        scope
    }

    /// Gives a name a meaning.
    pub(super) fn bind(&mut self, name: &str, meaning: Meaning) {
        self.meanings.push((name.to_string(), meaning));
    }

    /// This scope while the parts of a gather are there.
    pub(super) fn with_parts(&self, parts: Parts) -> Scope {
        Scope { parts: Some(parts), ..self.clone() }
    }

    /// This scope where each lane has turns of its own.
    pub(super) fn of_lane(&self) -> Scope {
        Scope { by_lane: true, ..self.clone() }
    }
}

/// What the position of the last push to a channel is called.
pub(super) fn position_of(channel: &str) -> String {
    number_of(channel, "position")
}

/// What a number of a channel is called.
pub(super) fn number_of(channel: &str, number: &str) -> String {
    format!("{channel}.{number}")
}
