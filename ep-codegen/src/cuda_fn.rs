//! `cuda fn`: the C++ text must define the function that the declaration promises.

use crate::ast::{CudaBody, CudaFn, Elem, File, Item, Span};
use crate::diagnostics::{Diagnostic, Diagnostics, cuda_fn as wording};
use crate::spelling::nearest;

/// Reads a file named by its path relative to the declaring crate.
pub type ReadFile<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// Reads the text of every `cuda fn .. from "file"` and compares every text with its declaration.
pub fn load(file: &mut File, load: ReadFile, errors: &mut Diagnostics) {
    for pipeline in &mut file.pipelines {
        load_items(&mut pipeline.items, load, errors);
    }
}

/// The files that `items` name, in order.
pub fn files<'a>(items: &'a [Item], out: &mut Vec<&'a str>) {
    for item in items {
        match item {
            Item::CudaFn(CudaFn { body: CudaBody::File { path, .. }, .. }) => out.push(path),
            Item::Phase(phase) => files(&phase.items, out),
            Item::When(when) => files(&when.body, out),
            _ => {}
        }
    }
}

fn load_items(items: &mut [Item], load: ReadFile, errors: &mut Diagnostics) {
    for item in items {
        match item {
            Item::CudaFn(function) => load_fn(function, load, errors),
            Item::Phase(phase) => load_items(&mut phase.items, load, errors),
            Item::When(when) => load_items(&mut when.body, load, errors),
            _ => {}
        }
    }
}

fn load_fn(function: &mut CudaFn, load: ReadFile, errors: &mut Diagnostics) {
    if let CudaBody::File { path, text, span } = &mut function.body {
        match load(path) {
            Ok(content) => *text = content,
            Err(reason) => {
                errors.push(wording::cannot_read(*span, path, &reason));
                return;
            }
        }
    }
    if let Err(error) = compare(function) {
        errors.push(error);
    }
}

/// Compares the text with the declaration.
fn compare(function: &CudaFn) -> Result<(), Diagnostic> {
    let (text, span) = match &function.body {
        CudaBody::Text { text, span } | CudaBody::File { text, span, .. } => (text, *span),
    };
    let Some(declared) = declaration(function) else {
        // A parameter type that C++ has no name for: `check` reports it.
        return Ok(());
    };
    let code = without_comments(text);
    let Some((returns, params)) = signature(&code, &function.name.to_string()) else {
        return Err(missing(function, &code, span, &declared));
    };
    let defined = format!("{returns} {}({})", function.name, params.join(", "));
    let text = wording::Text { at: span, declared: &declared, defined: &defined };
    let name = &function.name;
    if params.len() != function.params.len() {
        let (ours, theirs) = (function.params.len(), params.len());
        return Err(wording::parameter_count(name, ours, theirs, &text));
    }
    for (param, written) in function.params.iter().zip(&params) {
        if !matches_type(&param.elem, written) {
            let (at, elem) = (param.elem.span(), elem_name(&param.elem));
            return Err(wording::parameter_type(at, &param.name, &elem, written, &text));
        }
    }
    if !matches_type(&function.returns, &returns) {
        let (at, elem) = (function.returns.span(), elem_name(&function.returns));
        return Err(wording::result_type(at, name, &elem, &returns, &text));
    }
    Ok(())
}

fn missing(function: &CudaFn, code: &str, span: Span, declared: &str) -> Diagnostic {
    let name = function.name.to_string();
    let words = code.split(|letter: char| !is_word(letter)).filter(|word| !word.is_empty());
    wording::no_definition(span, &name, nearest(&name, words), declared)
}

/// The head of the C++ definition that the declaration asks for.
fn declaration(function: &CudaFn) -> Option<String> {
    let mut params = Vec::new();
    for param in &function.params {
        params.push(format!("{} {}", cuda_types(&param.elem)?.first()?, param.name));
    }
    let returns = cuda_types(&function.returns)?.first()?;
    Some(format!("__device__ {returns} {}({})", function.name, params.join(", ")))
}

fn elem_name(elem: &Elem) -> String {
    match elem {
        Elem::Name(name) => name.to_string(),
        Elem::Bits { .. } => "bits".to_string(),
    }
}

/// The C++ spellings of an element type, the preferred one first.
fn cuda_types(elem: &Elem) -> Option<&'static [&'static str]> {
    Some(match elem_name(elem).as_str() {
        "bool" => &["bool"],
        "u8" => &["ep::u8", "unsigned char"],
        "i8" => &["ep::i8", "signed char"],
        "i32" => &["ep::i32", "int"],
        "i64" => &["ep::i64", "long long"],
        "f32" => &["float"],
        "bf16" => &["ep::bf16"],
        "e4m3" => &["ep::e4m3"],
        "ue8m0" => &["ep::ue8m0"],
        _ => return None,
    })
}

fn matches_type(elem: &Elem, written: &str) -> bool {
    cuda_types(elem).is_some_and(|types| types.contains(&written))
}

/// Result type and parameter types of the definition of `name`.
fn signature(code: &str, name: &str) -> Option<(String, Vec<String>)> {
    let mut from = 0;
    while let Some(found) = code[from..].find(name) {
        let (start, end) = (from + found, from + found + name.len());
        from = end;
        let before = code[..start].chars().next_back();
        let open = code[end..].trim_start();
        if before.is_some_and(is_word) || !open.starts_with('(') {
            continue;
        }
        let Some((params, rest)) = open[1..].split_once(')') else { continue };
        // A call ends in `;` or goes on; only a definition is followed by its block.
        if !rest.trim_start().starts_with('{') {
            continue;
        }
        let params = params.split(',').map(str::trim).filter(|param| !param.is_empty());
        return Some((result_type(&code[..start]), params.map(parameter_type).collect()));
    }
    None
}

/// The type at the end of what stands before a function's name.
fn result_type(before: &str) -> String {
    let from = before.rfind([';', '}', '{', '>', '\u{0}']).map_or(0, |at| at + 1);
    let words = before[from..].split_whitespace().filter(|word| {
        let specifier = ["__device__", "__forceinline__", "inline", "static", "constexpr"];
        !specifier.contains(word) && !word.starts_with('#') && !word.starts_with('"')
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The type of `const float x`: without the name and without `const`.
fn parameter_type(param: &str) -> String {
    let param = param.split('=').next().unwrap_or(param);
    let words: Vec<&str> = param.split_whitespace().filter(|word| *word != "const").collect();
    let typed = match words.as_slice() {
        [] => String::new(),
        [only] => (*only).to_string(),
        [types @ .., _] => types.join(" "),
    };
    typed.replace(" ::", "::").replace(":: ", "::")
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The code with its comments and preprocessor lines taken out.
fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        out.push_str(&rest[..at]);
        out.push(' ');
        rest = rest[at + 2..].split_once("*/").map_or("", |(_, after)| after);
    }
    out.push_str(rest);
    let lines = out.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(declaration: &str) -> String {
        let text = format!("pipeline P {{ {declaration} }}");
        let (mut file, mut errors) =
            crate::syntax::parse(text.parse().expect("the test's brackets are balanced"));
        load(&mut file, &|_| Err("no such file".to_string()), &mut errors);
        errors
            .sorted()
            .iter()
            .map(|error| error.message().to_string())
            .collect::<Vec<_>>()
            .join("; ")
    }

    #[test]
    fn a_matching_definition_is_accepted() {
        let text = r##"cuda fn gelu(x: bf16, by: f32) -> f32 = r"
            // gelu(x) calls nothing
            #include <ep/cast.cuh>
            __device__ __forceinline__ float helper(float x) { return x; }
            __device__ inline float gelu(const ep::bf16 x, float by) { return helper(by); }
        ";"##;
        assert_eq!(errors(text), "");
    }

    #[test]
    fn differences_are_named() {
        let with = |head: &str| {
            errors(&format!("cuda fn f(a: i32, b: f32) -> f32 = r\"__device__ {head} {{ }}\";"))
        };
        assert_eq!(with("float f(int a, float b)"), "");
        assert_eq!(
            with("float f(int a)"),
            "`f` is declared with 2 parameters, and its C++ text takes 1"
        );
        assert_eq!(
            with("float f(int a, int b)"),
            "`b` is declared as `f32`, and the C++ text says `int`"
        );
        assert_eq!(
            with("int f(int a, float b)"),
            "`f` is declared to return `f32`, and the C++ text says `int`"
        );
        assert_eq!(with("float g(int a, float b)"), "the C++ text defines no `f`");
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let error = errors("cuda fn f(a: i32) -> i32 from \"f.cuh\";");
        assert_eq!(error, "cannot read `f.cuh`: no such file");
    }
}
