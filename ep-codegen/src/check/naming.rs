//! The names that an author chooses: no two things share one, and each reads alike in Rust, in
//! CUDA and here.

use std::collections::BTreeMap;

use super::model::{Model, Placed};
use super::names::declared_names;
use crate::ast::{Channel, File, Ident, Item};
use crate::diagnostics::{Diagnostics, names as errors};

/// Pipelines of one block have different names.
pub(super) fn check_file(file: &File, out: &mut Diagnostics) {
    let mut seen: BTreeMap<String, &Ident> = BTreeMap::new();
    for pipeline in &file.pipelines {
        let name = &pipeline.name;
        twice(&mut seen, name, "pipeline", out);
        style(name, "pipeline", Style::Camel, out);
        // It becomes a module in Rust, a namespace and a kernel in CUDA.
        let emitted = snake(&name.to_string());
        if CPP_WORDS.contains(&emitted.as_str()) || RUST_WORDS.contains(&emitted.as_str()) {
            out.push(errors::word_of_cpp(name, &emitted));
        }
    }
}

/// Reports `name` if it was seen before.
fn twice<'a>(
    seen: &mut BTreeMap<String, &'a Ident>,
    name: &'a Ident,
    what: &str,
    out: &mut Diagnostics,
) {
    match seen.get(&name.to_string()) {
        Some(first) => out.push(errors::duplicate(name, what, first)),
        None => drop(seen.insert(name.to_string(), name)),
    }
}

/// Rules about declarations that no choice of arms changes.
pub(super) fn check_declarations(model: &Model<'_>, out: &mut Diagnostics) {
    duplicates(model, out);
    for placed in &model.items {
        styles(placed.item, out);
        inner_duplicates(placed.item, out);
    }
    emitted_structs(model, out);
    emitted_functions(model, out);
}

/// Two declarations of one name that can exist together.
fn duplicates(model: &Model<'_>, out: &mut Diagnostics) {
    let mut seen: Vec<(&Ident, &Placed<'_>)> = Vec::new();
    for placed in &model.items {
        for name in declared_names(placed.item) {
            let clash = seen.iter().find(|(other, at)| *other == name && meet(at, placed));
            match clash {
                Some((first, _)) => out.push(errors::duplicate(name, kind(placed.item), first)),
                None => seen.push((name, placed)),
            }
        }
    }
}

/// Whether the conditions of two items can hold together.
fn meet(a: &Placed<'_>, b: &Placed<'_>) -> bool {
    a.guards.iter().all(|guard| {
        b.guards.iter().all(|other| {
            guard.axis != other.axis || guard.arms.iter().any(|arm| other.arms.contains(arm))
        })
    })
}

/// Names inside one item: arms, parts, fields, parameters.
fn inner_duplicates(item: &Item, out: &mut Diagnostics) {
    let mut all = |what: &str, names: Vec<&Ident>| {
        let mut seen = BTreeMap::new();
        names.into_iter().for_each(|name| twice(&mut seen, name, what, out));
    };
    match item {
        Item::Variant(variant) => {
            all("arm", variant.arms.iter().map(|arm| &arm.name).collect());
            for arm in &variant.arms {
                all("part", arm.parts.iter().map(|part| &part.name).collect());
            }
        }
        Item::Message(message) => {
            all("field", message.fields.iter().map(|field| &field.name).collect());
        }
        Item::Channel(channel) => {
            all("option", channel.options.iter().map(|option| &option.name).collect());
            all("role", channel.from.iter().collect());
        }
        Item::CudaFn(cuda_fn) => {
            all("parameter", cuda_fn.params.iter().map(|param| &param.name).collect());
        }
        _ => {}
    }
}

/// How a kind of name is written.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// `NvlDispatch`
    Camel,
    /// `send_head`
    Snake,
}

/// What an item declares, in a word.
fn kind(item: &Item) -> &'static str {
    match item {
        Item::Variant(_) => "variant",
        Item::Message(_) => "message",
        Item::Role(_) => "role",
        Item::Channel(_) => "channel",
        Item::Tensors(_) => "tensor",
        Item::CudaFn(_) => "function",
        Item::Size(_) => "size",
        Item::Tune(_) => "tune",
        Item::Arg(_) => "arg",
        Item::Shape(_) | Item::Uses(_) | Item::Phase(_) | Item::When(_) | Item::Use(_) => "number",
    }
}

fn styles(item: &Item, out: &mut Diagnostics) {
    match item {
        Item::Variant(variant) => {
            for arm in &variant.arms {
                style(&arm.name, "arm", Style::Camel, out);
                // It becomes a variant of an enum.
                if arm.name == "Self" {
                    out.push(errors::word_of_cpp(&arm.name, "Self"));
                }
            }
        }
        Item::Message(message) => {
            for field in &message.fields {
                style(&field.name, "field", Style::Snake, out);
                let text = field.name.to_string();
                if CPP_WORDS.contains(&text.as_str()) {
                    out.push(errors::word_of_cpp(&field.name, &text));
                }
            }
        }
        _ => {}
    }
    let written = match item {
        Item::Message(_) | Item::Role(_) => Style::Camel,
        _ => Style::Snake,
    };
    for name in declared_names(item) {
        style(name, kind(item), written, out);
        reserved(name, item, out);
    }
}

fn style(name: &Ident, what: &str, style: Style, out: &mut Diagnostics) {
    let text = name.to_string();
    let text = text.trim_start_matches("r#");
    let wanted = match style {
        Style::Camel => camel(text),
        Style::Snake => snake(text),
    };
    if wanted != text {
        out.push(errors::style(name, what, style == Style::Camel, &wanted));
    }
}

/// `nvl_dispatch` as `NvlDispatch`.
fn camel(text: &str) -> String {
    let mut out = String::new();
    for word in text.split('_') {
        let mut letters = word.chars();
        out.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(letters.as_str());
    }
    out
}

/// `NvlDispatch` as `nvl_dispatch`.
fn snake(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        if letter.is_uppercase() && !out.is_empty() && !out.ends_with('_') {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// Words that have a meaning of their own in expressions, and C++ words that Rust does not keep:
/// a name goes into the emitted text as it is.
const RESERVED: &[&str] = &["me", "stripe"];

/// Words that Rust keeps, and crates that every path can begin with.
#[rustfmt::skip] // A list of words.
const RUST_WORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "core",
    "crate", "do", "dyn", "else", "enum", "ep", "extern", "final", "fn", "for", "gen", "if", "impl",
    "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref",
    "return", "self", "static", "std", "struct", "super", "trait", "try", "type", "typeof",
    "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

#[rustfmt::skip] // A list of words.
const CPP_WORDS: &[&str] = &[
    "alignas", "alignof", "and", "asm", "auto", "bitand", "bitor", "bool", "case", "catch", "char",
    "class", "compl", "concept", "const_cast", "consteval", "constexpr", "constinit", "decltype",
    "default", "delete", "double", "dynamic_cast", "explicit", "export", "float", "friend", "goto",
    "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "not", "nullptr",
    "operator", "or", "private", "protected", "public", "register", "reinterpret_cast", "requires",
    "short", "signed", "sizeof", "static_assert", "static_cast", "switch", "template", "this",
    "thread_local", "throw", "typedef", "typeid", "typename", "union", "unsigned", "using", "void",
    "volatile", "wchar_t", "xor",
];

/// C++ words that Rust keeps, too: only a name that is written in another case comes to be one.
#[rustfmt::skip] // A list of words.
const COMMON_WORDS: &[&str] = &[
    "break", "const", "continue", "do", "else", "enum", "extern", "for", "if", "return", "static",
    "struct", "try", "virtual", "while",
];

/// Types of every pipeline's calls; a variant becomes one more, in upper camel case.
const CALL_TYPES: &[&str] =
    &["args", "handle", "inputs", "kernel", "offers", "options", "outputs", "shape", "tunes"];

/// Names of variables in the emitted functions. A `cuda fn` cannot have one of them, because a variable would hide
/// the function. Any other colliding name gets a number.
const OF_FUNCTIONS: &[&str] =
    &["args", "block", "blocks", "call", "counters", "ep", "own", "peers", "smem", "team"];

/// A binder of a role or a statement, which becomes a variable of some name.
pub(super) fn binder(name: &Ident, out: &mut Diagnostics) {
    if RESERVED.iter().any(|word| name == word) {
        out.push(errors::reserved(name));
    }
}

fn reserved(name: &Ident, item: &Item, out: &mut Diagnostics) {
    let text = name.to_string();
    // A role becomes a function, whose name is in snake case.
    let emitted = if matches!(item, Item::Role(_)) { snake(&text) } else { text.clone() };
    let is_taken = matches!(item, Item::CudaFn(_)) && OF_FUNCTIONS.contains(&text.as_str());
    let is_call_type = matches!(item, Item::Variant(_)) && CALL_TYPES.contains(&text.as_str());
    // Options of a kernel: its variants, its tunes, the tensors that it takes, and how many calls live.
    let is_option = matches!(item, Item::Variant(_) | Item::Tune(_) | Item::Tensors(_));
    if RESERVED.contains(&text.as_str()) {
        out.push(errors::reserved(name));
    } else if is_call_type || is_option && text == "live" {
        out.push(errors::word_of_calls(name));
    } else if CPP_WORDS.contains(&emitted.as_str()) || COMMON_WORDS.contains(&emitted.as_str()) {
        out.push(errors::word_of_cpp(name, &emitted));
    } else if is_taken {
        out.push(errors::word_of_emitted(name));
    }
}

/// Messages, channels and roles become structs of the emitted `Cfg`, named in camel case; a message
/// and a channel that carries it share one.
fn emitted_structs(model: &Model<'_>, out: &mut Diagnostics) {
    let mut seen: Vec<(String, &'static str, &Ident, &Placed<'_>)> = Vec::new();
    for placed in &model.items {
        let (what, name) = match placed.item {
            Item::Message(message) => ("message", &message.name),
            // One that carries a message of the same name shares its struct.
            Item::Channel(channel) if carries_namesake(model, channel) => continue,
            Item::Channel(channel) => ("channel", &channel.name),
            Item::Role(role) => ("role", &role.name),
            _ => continue,
        };
        let emitted = camel(&name.to_string());
        let clash = seen
            .iter()
            .find(|(other, _, first, at)| *other == emitted && *first != name && meet(at, placed));
        match clash {
            Some((_, kind, first, _)) => {
                out.push(errors::same_struct(name, what, &emitted, first, kind));
            }
            None => seen.push((emitted, what, name, placed)),
        }
    }
}

/// Roles, kernels and the user's functions are functions of one namespace.
fn emitted_functions(model: &Model<'_>, out: &mut Diagnostics) {
    let pipeline = &model.pipeline.name;
    let functions = || {
        model.items.iter().filter_map(|placed| match placed.item {
            Item::CudaFn(cuda_fn) => Some(&cuda_fn.name),
            _ => None,
        })
    };
    for placed in &model.items {
        let Item::Role(role) = placed.item else { continue };
        let emitted = snake(&role.name.to_string());
        if emitted == snake(&pipeline.to_string()) {
            out.push(errors::same_function(&role.name, "pipeline", &emitted, pipeline));
        }
        if let Some(function) = functions().find(|function| **function == emitted) {
            out.push(errors::same_function(&role.name, "function", &emitted, function));
        }
    }
}

/// Whether the channel's name in camel case is its message, or its message is an error by itself.
fn carries_namesake(model: &Model<'_>, channel: &Channel) -> bool {
    let declared = model.items.iter().any(
        |placed| matches!(placed.item, Item::Message(message) if message.name == channel.message),
    );
    !declared || channel.message == camel(&channel.name.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::tests::said_to;
    use super::{camel, snake};

    #[test]
    fn arms_that_exclude_each_other_may_share_a_name() {
        let two = |first: &str, second: &str| {
            said_to(&format!(
                "shape {{ ranks: 1..=8 }} variant via {{ A, B, C }} output n: i32[ranks];
                 when via is {first} {{ role R on all blocks {{ count n[0]; }} }}
                 when via is {second} {{ role R on all blocks {{ count n[1]; }} }}"
            ))
        };
        assert_eq!(two("A", "B | C"), [""; 0]);
        assert_eq!(two("A | B", "B | C"), ["the role `R` is declared twice"]);
    }

    #[test]
    fn names_change_their_case() {
        assert_eq!(
            (camel("send_head"), snake("NvlDispatch")),
            ("SendHead".into(), "nvl_dispatch".into())
        );
        assert_eq!((camel("NVLDispatch"), snake("x2")), ("NVLDispatch".into(), "x2".into()));
    }
}
