//! What each function of `ptx.cuh` becomes: a wrong qualifier in an asm string compiles, so the
//! instructions themselves are the snapshot.

use ep_runtime::device;
use ep_runtime::jit::{Arch, CudaSource};

use crate::nvrtc::jit;

/// A function of `ptx.cuh` that a probe can call.
struct Function {
    signature: String,
    probe: String,
}

/// Every function of the header, in order.
fn functions(header: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut rest = header;
    while let Some((head, tail)) = rest.split_once("__device__ __forceinline__ ") {
        let Some((signature, body)) = tail.split_once(" {") else { break };
        let signature = signature.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_template = head.trim_end().ends_with('>');
        functions.push(function(&signature, is_template, functions.len()));
        rest = body;
    }
    functions
}

fn function(signature: &str, is_template: bool, index: usize) -> Function {
    let (head, params) = signature.split_once('(').expect("a signature has parameters");
    let params = params.trim_end_matches(')');
    let (result, name) = head.rsplit_once(' ').expect("a signature has a result");
    let names: Vec<&str> = params
        .split(", ")
        .filter_map(|param| param.rsplit_once([' ', '*']).map(|(_, name)| name))
        .collect();
    let chosen = if is_template { "<1>" } else { "" };
    let call = format!("ep::{name}{chosen}({})", names.join(", "));
    let (out, keep) = match result {
        "void" => (String::new(), format!("{call};")),
        _ => (format!("{result}* out"), format!("*out = {call};")),
    };
    let params = [params.to_owned(), out].into_iter().filter(|it| !it.is_empty());
    let params = params.collect::<Vec<_>>().join(", ");
    let probe = format!("extern \"C\" __global__ void probe_{index}({params}) {{ {keep} }}\n");
    Function { signature: signature.to_owned(), probe }
}

/// The instructions that stand in asm strings, registers without their numbers.
fn instructions(ptx: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in ptx.lines().map(str::trim) {
        match line {
            "// begin inline asm" => inside = true,
            "// end inline asm" => inside = false,
            _ if inside && !line.is_empty() => found.push(unnumbered(line)),
            _ => {}
        }
    }
    found
}

fn unnumbered(line: &str) -> String {
    let mut out = String::new();
    let mut in_register = false;
    for letter in line.chars() {
        in_register = letter == '%' || (in_register && letter.is_alphanumeric());
        if !(in_register && letter.is_ascii_digit()) {
            out.push(letter);
        }
    }
    out
}

#[test]
fn each_function_becomes_the_instructions_of_its_snapshot() {
    let Some(jit) = jit() else { return };
    let header = device::HEADERS.iter().find(|(name, _)| *name == "ep/ptx.cuh");
    let (_, header) = header.expect("the library has its lowest layer");
    let mut lines = Vec::new();
    for function in functions(header) {
        let text = format!("#include <ep/ptx.cuh>\nusing namespace ep;\n{}", function.probe);
        let source = CudaSource { name: "probe.cu", text: &text, headers: device::HEADERS };
        let options = ["--gpu-architecture=sm_90a".to_owned(), "--std=c++17".to_owned()];
        let ptx = jit.nvrtc().ptx(&source, Arch::Sm90a, &options);
        let ptx = ptx.unwrap_or_else(|error| panic!("{}: {error}", function.signature));
        let found = instructions(&ptx);
        if !found.is_empty() {
            lines.push(format!("{}\n    {}", function.signature, found.join("\n    ")));
        }
    }
    insta::assert_snapshot!("instructions", lines.join("\n"));
}
