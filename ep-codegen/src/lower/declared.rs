//! Declarations that mean the same wherever they stand.

use super::Guard;
use super::expr::scalar;
use crate::{ast, ir};

pub(super) fn axis(variant: &ast::Variant) -> ir::Axis {
    let part = |part: &ast::Part| ir::Part {
        name: part.name.to_string(),
        elem: scalar_of(&part.elem),
        block: part.block.as_ref().map_or(1, |block| block.value),
    };
    let arm = |arm: &ast::Arm| ir::Arm {
        name: arm.name.to_string(),
        parts: arm.parts.iter().map(part).collect(),
    };
    ir::Axis { name: variant.name.to_string(), arms: variant.arms.iter().map(arm).collect() }
}

pub(super) fn arg(arg: &ast::Arg, guard: &Guard) -> ir::Arg {
    let elem = scalar_of(&arg.elem);
    ir::Arg {
        name: arg.name.to_string(),
        default: arg.default.value.of(&elem),
        low: arg.low.value.of(&elem),
        high: arg.high.value.of(&elem),
        elem,
        when: guard.when.clone(),
    }
}

pub(super) fn cuda_fn(function: &ast::CudaFn) -> ir::CudaFn {
    let params = function
        .params
        .iter()
        .map(|param| ir::CudaParam { name: param.name.to_string(), elem: scalar_of(&param.elem) });
    let (ast::CudaBody::Text { text, .. } | ast::CudaBody::File { text, .. }) = &function.body;
    ir::CudaFn {
        name: function.name.to_string(),
        params: params.collect(),
        returns: scalar_of(&function.returns),
        body: text.clone(),
    }
}

/// A scalar where only a scalar may stand; `check` has refused everything else.
fn scalar_of(elem: &ast::Elem) -> ir::Elem {
    match elem {
        ast::Elem::Name(name) => scalar(&name.to_string()).unwrap_or(ir::Elem::I32),
        ast::Elem::Bits { .. } => ir::Elem::I64,
    }
}

pub(super) fn share(mut names: Vec<String>) -> ir::Share {
    match names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["stripe"] => ir::Share::Stripe,
        ["token"] => ir::Share::Token,
        ["source", "stripe"] => ir::Share::SourceStripe,
        _ => ir::Share::Indices { names: std::mem::take(&mut names) },
    }
}

/// The tables that a `uses handle` brings: those it lists, or those of a pipeline in this block.
pub(crate) fn tables_of<'a>(file: &'a ast::File, uses: &'a ast::Uses) -> Vec<&'a ast::Tensor> {
    if let Some(tables) = &uses.tables {
        return tables.iter().collect();
    }
    let mut tables = Vec::new();
    for pipeline in file.pipelines.iter().filter(|pipeline| pipeline.name == uses.name) {
        tables_in(&pipeline.items, &mut tables);
    }
    tables
}

/// The tables that `items` declare, guarded ones included.
pub(crate) fn tables_in<'a>(items: &'a [ast::Item], tables: &mut Vec<&'a ast::Tensor>) {
    for item in items {
        match item {
            ast::Item::Tensors(tensors) if tensors.kind == ast::TensorKind::Table => {
                tables.extend(&tensors.list);
            }
            ast::Item::Phase(phase) => tables_in(&phase.items, tables),
            ast::Item::When(when) => tables_in(&when.body, tables),
            _ => {}
        }
    }
}
