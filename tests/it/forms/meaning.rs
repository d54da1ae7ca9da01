//! Random declarations: what their kernels leave is what the declarations mean.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ep_codegen::meaning::{
    Data, Drawing, Drawn, Invented, Left, Outcome, Scalar, Tensor, again, compare,
};
use ep_codegen::schedule::{RuleSet, refusals};
use ep_codegen::{ast, expansion, lower, syntax};
use ep_runtime::ir::{Pipeline, TensorKind};
use ep_runtime::jit::Arch;

use super::run::{Call, Form};
use crate::usual;

/// Declarations of a usual run, beside those of `check --random`, and of one for which `EP_RANDOM_DECLARATIONS` says how many, and
/// `EP_RANDOM_SEED` from which one on.
const SEEDS: u64 = 12;

#[test]
fn random_declarations_leave_what_they_mean() {
    if crate::host::programs().is_none() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = number("EP_RANDOM_DECLARATIONS").unwrap_or(SEEDS);
    let first = number("EP_RANDOM_SEED").unwrap_or(0);
    let mut failures = Vec::new();
    for seed in usual::some(first..first + seeds, 4) {
        let invented = Invented::new(seed);
        let Err(words) = judged(&invented, seed) else { continue };
        let small = invented.shrunk(&mut |less| judged(less, seed).is_err());
        let words = judged(&small, seed).err().unwrap_or(words);
        failures.push(format!("seed {seed}: {words}\n{}", small.source()));
    }
    assert!(failures.is_empty(), "{} of {seeds}\n{}", failures.len(), failures.join("\n\n"));
}

/// The IR of the one pipeline in `source`, or what is said to it.
pub(super) fn accepted(source: &str) -> Result<Pipeline, String> {
    let whole = format!("ep_runtime::pipeline! {{ pub pipeline Form {{ {source} }} }}");
    let block = syntax::blocks(&whole).expect("the text is made of Rust tokens").remove(0);
    let (file, errors) = expansion::front_end(block, &|path| Err(format!("{path} is not here")));
    if !errors.is_empty() {
        return Err(errors.to_text(&whole));
    }
    Ok(lower::lower(&file, &file.pipelines[0]))
}

/// What is wrong with a declaration: its refusal, or what differs.
fn judged(invented: &Invented, seed: u64) -> Result<(), String> {
    let numbers = [("ranks", 1 + seed as i64 % 5)];
    held(&pipelines_of(invented)?, &numbers, seed)
}

/// The IR of a declaration, or what is said to it.
pub(super) fn pipelines_of(invented: &Invented) -> Result<Vec<Pipeline>, String> {
    let whole = format!("ep_runtime::pipeline! {{ {} }}", invented.source());
    let block = syntax::blocks(&whole).map_err(|error| error.to_string())?.remove(0);
    let (file, errors) = expansion::front_end(block, &|path| Err(format!("{path} is not here")));
    if !errors.is_empty() {
        return Err(errors.to_text(&whole));
    }
    Ok(file.pipelines.iter().map(|it| lowered(&file, it)).collect())
}

/// Calls of the pipelines, one after the other with the tables of those before, leave what they mean.
pub(crate) fn held(all: &[Pipeline], numbers: &[(&str, i64)], seed: u64) -> Result<(), String> {
    held_by(all, numbers, seed, &|drawn| drawn, &|form| form)
}

/// Calls of the pipelines, one after the other with the tables of those before, leave what they mean. `call` changes
/// each call, and `run` says how it runs.
pub(super) fn held_by(
    all: &[Pipeline],
    numbers: &[(&str, i64)],
    seed: u64,
    call: &dyn Fn(Drawn) -> Drawn,
    run: &dyn Fn(Form) -> Form,
) -> Result<(), String> {
    held_behind(&[], all, numbers, seed, call, run)
}

/// Calls of the pipelines in `all`, one after the other with the tables of those before, leave what they mean. The
/// pipelines in `before` are not run: their tables hold what the declarations mean. `call` changes each call, and `run`
/// says how it runs.
pub(super) fn held_behind(
    before: &[Pipeline],
    all: &[Pipeline],
    numbers: &[(&str, i64)],
    seed: u64,
    call: &dyn Fn(Drawn) -> Drawn,
    run: &dyn Fn(Form) -> Form,
) -> Result<(), String> {
    let known: Vec<&Pipeline> = before.iter().chain(all).collect();
    let Some(programs) = crate::host::programs() else { return Ok(()) };
    let functions = programs.functions(&known).map_err(|error| error.to_string())?;
    let functions = functions.list();
    let mut drawing = Drawing::new(seed, &known, &functions);
    for (name, value) in numbers {
        drawing = drawing.number(name, *value);
        // Calls of as many tokens as they may have.
        if *name == "max_tokens" {
            drawing = drawing.rows(*value);
        }
    }
    for pipeline in all {
        let drawn = call(drawing.draw(pipeline).map_err(|error| error.to_string())?);
        let refused = refusals(&drawn.ir);
        if !refused.is_empty() {
            return Err(format!("{} is refused: {refused:?}", pipeline.name));
        }
        let first = drawn.run(&functions).map_err(|wrong| wrong.to_string())?;
        let next = Drawn { ranks: again(&drawn.ranks, &first, &drawn.ir), ..drawn.clone() };
        let second = next.run(&functions).map_err(|wrong| wrong.to_string())?;
        compared(pipeline, &drawn, &second, (seed, run))?;
    }
    Ok(())
}

/// A pipeline with no other arm of an axis.
pub(super) fn only(mut pipeline: Pipeline, axis: &str, arm: &str) -> Pipeline {
    for own in pipeline.axes.iter_mut().filter(|own| own.name == axis) {
        own.arms.retain(|own| own.name == arm);
        assert_eq!(own.arms.len(), 1, "{axis}");
    }
    pipeline
}

fn lowered(file: &ast::File, pipeline: &ast::Pipeline) -> Pipeline {
    lower::lower(file, pipeline)
}

/// Runs two calls as every rule and as none would have them.
fn compared(
    pipeline: &Pipeline,
    drawn: &Drawn,
    second: &Outcome,
    (seed, run): (u64, &dyn Fn(Form) -> Form),
) -> Result<(), String> {
    let form = run(Form::drawn(pipeline, drawn, seed));
    let call = |rank: usize| call(drawn, second, rank);
    // With TMA, and without it.
    let arch = if seed % 4 == 3 { Arch::Sm80 } else { Arch::Sm90a };
    for rules in form.rule_sets() {
        // A rule may ask for room for what every message brings; without rules nothing does.
        if rules == RuleSet::All && form.is_refused() {
            continue;
        }
        let run = || {
            for schedule in seed..seed + form.schedules {
                let left = form.run((arch, rules), schedule, &call);
                let differences = unordered(second, &left);
                assert!(differences.is_empty(), "{}", differences.join("\n"));
            }
        };
        catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| it.to_string()));
            format!("{rules:?}: {}", text.unwrap_or_default())
        })?;
    }
    Ok(())
}

/// What differs in what the language leaves in no fixed order.
fn unordered(second: &Outcome, left: &[BTreeMap<String, Vec<u8>>]) -> Vec<String> {
    let found = left.iter().zip(&second.ranks).map(|(bytes, wanted)| {
        let found = wanted.iter().map(|(name, left)| {
            let mut tensor = left.tensor.clone();
            for (number, part) in tensor.parts.iter_mut().enumerate() {
                let of = if number == 0 { name.clone() } else { format!("{name}.{number}") };
                bytes
                    .get(&of)
                    .into_iter()
                    .for_each(|bytes| part.data = of_memory(&part.data, bytes));
            }
            (name.clone(), tensor)
        });
        found.collect()
    });
    let found: Vec<BTreeMap<String, Tensor>> = found.collect();
    compare(&second.ranks[..found.len()], &found)
}

/// Elements of the same kind, as memory holds them.
fn of_memory(like: &Data, bytes: &[u8]) -> Data {
    macro_rules! words {
        ($($kind:ident($number:ty)),*) => {
            match like {
                Data::Bool(_) => Data::Bool(bytes.iter().map(|byte| *byte != 0).collect()),
                Data::U8(_) => Data::U8(bytes.to_vec()),
                Data::I8(_) => Data::I8(bytes.iter().map(|byte| *byte as i8).collect()),
                Data::E4m3(_) => Data::E4m3(bytes.to_vec()),
                Data::Ue8m0(_) => Data::Ue8m0(bytes.to_vec()),
                $(Data::$kind(_) => {
                    let words = bytes.chunks_exact(size_of::<$number>());
                    let word = |word: &[u8]| <$number>::from_le_bytes(word.try_into().expect("whole words"));
                    Data::$kind(words.map(word).collect())
                })*
            }
        };
    }
    words!(I32(i32), I64(i64), F32(f32), Bf16(u16), Bits(u64))
}

/// What one rank brings, and what two calls must leave there.
fn call(drawn: &Drawn, second: &Outcome, rank: usize) -> Call {
    let brought = &drawn.ranks[rank];
    let mut call = Call::new();
    for (name, size) in &second.sizes[rank] {
        let given = brought.sizes.contains_key(name);
        let name = if given { name.clone() } else { format!("{name}_capacity") };
        call = call.number(&name, *size as usize);
    }
    for (name, value) in &drawn.args {
        let value = match value {
            Scalar::Int(value) => *value as f64,
            Scalar::Real(value) => f64::from(*value),
            other => panic!("an arg of {other:?}"),
        };
        call.numbers.push((name.clone(), value));
    }
    for tensor in &drawn.ir.tensors {
        let name = tensor.name.as_str();
        let copies = brought.tensors.get(name);
        let left = second.ranks[rank].get(name);
        match (copies, left) {
            (Some(copies), Some(left)) if tensor.kind == TensorKind::Inout => {
                let (before, behind) =
                    (values(&copies[0], 0, None), values(&left.tensor, 0, Some(left)));
                call = call.change(name, width(&copies[0], 0), before, behind);
            }
            (Some(copies), _) => {
                for (number, copy) in copies.iter().enumerate() {
                    for part in 0..copy.parts.len() {
                        let name = match (part, tensor.copies > 1) {
                            (0, true) => format!("{name}#{number}"),
                            (0, false) => name.to_string(),
                            (part, _) => format!("{name}.{part}"),
                        };
                        call = call.give(&name, width(copy, part), values(copy, part, None));
                    }
                }
            }
            (None, Some(left)) => {
                for part in 0..left.tensor.parts.len() {
                    let name = if part == 0 { name.to_string() } else { format!("{name}.{part}") };
                    let wanted = values(&left.tensor, part, Some(left));
                    call = call.want(&name, width(&left.tensor, part), wanted);
                }
            }
            (None, None) => {}
        }
    }
    call
}

/// Elements of a part in a row.
fn width(tensor: &Tensor, part: usize) -> usize {
    match tensor.extents.as_slice() {
        [] | [_] => 1,
        [.., last] => last.div_ceil(tensor.parts[part].block.max(1)).max(1),
    }
}

/// The elements of a part; NaN where a call leaves nothing, or what an open order decides.
fn values(tensor: &Tensor, part: usize, left: Option<&Left>) -> Vec<f64> {
    let data = &tensor.parts[part].data;
    let (own, first) = (width(tensor, part), width(tensor, 0));
    (0..data.len())
        .map(|at| {
            let row = at / own * first;
            let known = left.is_none_or(|left| {
                let at = if part == 0 { at } else { row };
                left.written.get(at) == Some(&true)
                    && !left.open.contains_key(&at)
                    && !left.loose.contains_key(&at)
            });
            if known { number(data, at) } else { f64::NAN }
        })
        .collect()
}

fn number(data: &Data, at: usize) -> f64 {
    match data.get(at) {
        Some(Scalar::Bool(value)) => f64::from(u8::from(value)),
        Some(Scalar::Int(value)) => value as f64,
        Some(Scalar::Real(value)) => f64::from(value),
        Some(Scalar::Code(code)) => f64::from(code),
        Some(Scalar::Bits(bits)) => bits as f64,
        None => f64::NAN,
    }
}
