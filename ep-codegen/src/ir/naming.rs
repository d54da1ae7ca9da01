//! Names of the declaration as the text and the command line spell them.

use super::Pipeline;

/// `local_experts` as `kLocalExperts`.
pub fn constant(name: &str) -> String {
    format!("k{}", camel(name))
}

/// `local_experts` or `recv` as `LocalExperts` and `Recv`.
pub fn camel(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>())
    };
    name.split('_').filter_map(word).collect()
}

/// `NvlDispatch` as `nvl-dispatch`.
pub fn kebab(name: &str) -> String {
    joined(name, '-')
}

/// `NvlDispatch` as `nvl_dispatch`.
pub fn snake(name: &str) -> String {
    joined(name, '_')
}

fn joined(name: &str, separator: char) -> String {
    let mut out = String::new();
    for (index, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && index > 0 {
            out.push(separator);
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// Symbol of the kernel of a phase, or of a pipeline without phases.
pub fn kernel_of(ir: &Pipeline, phase: Option<&str>) -> String {
    match phase {
        Some(phase) => format!("{}_{}", snake(&ir.name), snake(phase)),
        None => snake(&ir.name),
    }
}
