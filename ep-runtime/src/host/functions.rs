//! The `cuda fn`s of a pipeline as host functions, for the interpreter of its declaration.

use std::collections::BTreeMap;

use ep_codegen::ir::{CudaFn, Pipeline};
use ep_codegen::meaning::{Data, Function, Scalar};
use ep_codegen::plan::snake;
use ep_codegen::schedule::elem_type;
use ep_emu::{Build, Kernel};

use super::Programs;
use crate::backend::BackendError;

/// The kernel that calls one of the functions.
const ENTRY: &str = "call_cuda_fn";

/// Bytes of a value in the argument of [`ENTRY`].
const VALUE_BYTES: usize = 8;

/// What a text of functions begins with: every function of the device library that one may call.
const PRELUDE: &str = "#include <ep/cast.cuh>
#include <ep/compute.cuh>

template <class T>
T taken(ep::u64 bits) {
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}
template <class T>
void give(ep::u64* result, T value) {
    *result = 0;
    __builtin_memcpy(result, &value, sizeof(T));
}
";

/// The `cuda fn`s of a pipeline, compiled for this machine.
#[derive(Default)]
pub struct Functions {
    list: BTreeMap<String, Shared>,
}

/// A [`Function`] that threads share.
type Shared = Box<dyn Fn(&[Scalar]) -> Scalar + Send + Sync>;

impl Functions {
    /// The functions by name, as a [`Problem`](ep_codegen::meaning::Problem) takes them.
    pub fn list(&self) -> BTreeMap<String, &Function> {
        let mut list: BTreeMap<String, &Function> = BTreeMap::new();
        for (name, function) in &self.list {
            list.insert(name.clone(), &**function);
        }
        list
    }
}

impl Programs {
    /// Compiles the `cuda fn`s of pipelines that are called one after another. A text that is not valid C++
    /// is an error with the compiler's message.
    pub fn functions(&self, pipelines: &[&Pipeline]) -> Result<Functions, BackendError> {
        let all = distinct(pipelines)?;
        let mut list: BTreeMap<String, Shared> = BTreeMap::new();
        if all.is_empty() {
            return Ok(Functions { list });
        }
        let program = self.program(ENTRY, &text(&all), Build::Plain)?;
        let kernel = program.kernel(ENTRY);
        let kernel = kernel.map_err(|error| BackendError::Missing { what: error.to_string() })?;
        for (index, (_, function)) in all.into_iter().enumerate() {
            let (kernel, declared) = (kernel.clone(), function.clone());
            let call = move |values: &[Scalar]| call(&kernel, index, &declared, values);
            list.insert(function.name.clone(), Box::new(call));
        }
        Ok(Functions { list })
    }
}

/// Every function once, and whose it is.
fn distinct<'a>(pipelines: &[&'a Pipeline]) -> Result<Vec<(&'a str, &'a CudaFn)>, BackendError> {
    let mut all: Vec<(&str, &CudaFn)> = Vec::new();
    for pipeline in pipelines {
        for function in &pipeline.cuda_fns {
            match all.iter().find(|(_, known)| known.name == function.name) {
                None => all.push((&pipeline.name, function)),
                Some((_, known)) if *known == function => {}
                Some((other, _)) => {
                    let (name, own) = (&function.name, &pipeline.name);
                    let what = format!("`{other}` and `{own}` have two functions called `{name}`");
                    return Err(BackendError::Wrong { what });
                }
            }
        }
    }
    Ok(all)
}

/// The functions, and a kernel that calls the one that its argument names.
fn text(all: &[(&str, &CudaFn)]) -> String {
    let most = all.iter().map(|(_, function)| function.params.len()).max().unwrap_or(0).max(1);
    let body = |(pipeline, function): &(&str, &CudaFn)| {
        let place = snake(pipeline);
        format!("namespace {place} {{\n{}\n}}\n", function.body)
    };
    let case = |(index, (pipeline, function)): (usize, &(&str, &CudaFn))| {
        let params = function.params.iter().enumerate();
        let params =
            params.map(|(at, it)| format!("taken<{}>(call.values[{at}])", elem_type(&it.elem)));
        let params = params.collect::<Vec<_>>().join(", ");
        let (place, name) = (snake(pipeline), &function.name);
        format!("        case {index}: give(call.result, {place}::{name}({params})); break;\n")
    };
    let bodies: String = all.iter().map(body).collect();
    let cases: String = all.iter().enumerate().map(case).collect();
    format!(
        "{PRELUDE}{bodies}struct Call {{\n    ep::u64 which;\n    ep::u64* result;\n    \
         ep::u64 values[{most}];\n}};\nextern \"C\" __global__ void {ENTRY}(const Call call) {{\n    \
         switch (call.which) {{\n{cases}    }}\n}}\n"
    )
}

fn call(kernel: &Kernel, index: usize, function: &CudaFn, values: &[Scalar]) -> Scalar {
    let mut result = [0_u8; VALUE_BYTES];
    let mut args = (index as u64).to_le_bytes().to_vec();
    args.extend((result.as_mut_ptr() as u64).to_le_bytes());
    for (value, param) in values.iter().zip(&function.params) {
        let mut data = Data::zeros(&param.elem, 1);
        // A value of another kind leaves a zero; the interpreter has cast what it gives.
        data.put(0, *value);
        let mut bytes = [0; VALUE_BYTES];
        data.write(0, &mut bytes);
        args.extend(bytes);
    }
    args.resize(args.len().max(kernel.args_bytes()), 0);
    kernel.call(&args);
    let mut data = Data::zeros(&function.returns, 1);
    data.read(0, &result);
    data.get(0).unwrap_or(Scalar::Int(0))
}
