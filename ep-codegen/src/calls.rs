//! The Rust types of a pipeline's calls: `Shape`, `Options`, `Inputs`, `Outputs`, `Args`, `Handle` and
//! `Kernel`, with a field for each name of the declaration. They stand on `ep_runtime::calls`, which
//! knows tensors by their places in one list; [`Calls::names`] is that list.

mod choices;
mod kernel;
mod tensors;

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote, quote_spanned};

use crate::ast::{self, File, Item, Uses};
use crate::ir::{self, ElemType, Expr, NameKind, TensorKind};
use crate::lower::{tables_in, tables_of};
use crate::plan::{camel, snake};
use tensors::{Field, elem_type};

/// What is generated for the calls of one pipeline.
pub(crate) struct Calls<'a> {
    pipeline: &'a ast::Pipeline,
    ir: &'a ir::Pipeline,
    /// What each choice of arms leaves of it.
    selected: Vec<ir::Pipeline>,
    inputs: Vec<Field>,
    outputs: Vec<Field>,
    /// The pipelines whose handles are read, with the tables that are.
    handles: Vec<HandleUse<'a>>,
    /// Own tables of one element type.
    tables: Vec<&'a ir::Tensor>,
}

/// A handle that calls read.
struct HandleUse<'a> {
    uses: &'a Uses,
    /// Name of the parameter.
    name: Ident,
    tables: Vec<&'a ir::Tensor>,
    /// Whether every choice of arms reads it.
    is_required: bool,
}

/// A place in the list of a call's tensors.
pub(crate) struct PlaceName {
    name: String,
    part: usize,
    copy: i64,
}

impl PlaceName {
    fn of(name: &str) -> PlaceName {
        PlaceName { name: name.to_string(), part: 0, copy: 0 }
    }
}

impl<'a> Calls<'a> {
    pub(crate) fn of(pipeline: &'a ast::Pipeline, ir: &'a ir::Pipeline) -> Calls<'a> {
        let selected: Vec<ir::Pipeline> = ir.choices().iter().map(|it| ir.select(it)).collect();
        let mut calls = Calls {
            pipeline,
            ir,
            selected,
            inputs: Vec::new(),
            outputs: Vec::new(),
            handles: Vec::new(),
            tables: Vec::new(),
        };
        for tensor in first_of_each(ir, |_| true) {
            match tensor.kind {
                TensorKind::Input => calls.inputs.push(calls.field(tensor)),
                TensorKind::Output | TensorKind::Inout => calls.outputs.push(calls.field(tensor)),
                TensorKind::Table => {}
            }
        }
        calls.outputs.extend(calls.records());
        calls.handles = calls.handle_uses();
        calls.tables = tables_from(ir, None);
        calls
    }

    /// All tensors of a call in the order of their places.
    pub(crate) fn names(&self) -> Vec<PlaceName> {
        let fields = self.inputs.iter().chain(&self.outputs).flat_map(Field::places);
        fields.chain(self.all_tables().map(|table| PlaceName::of(&table.name))).collect()
    }

    /// Each table once: those that only handles bring, then the own ones. One arm may read what another one records.
    fn all_tables(&self) -> impl Iterator<Item = &'a ir::Tensor> {
        let of_handles = self.handles.iter().flat_map(|it| &it.tables).copied();
        let is_own = |table: &ir::Tensor| self.tables.iter().any(|own| own.name == table.name);
        of_handles.filter(move |table| !is_own(table)).chain(self.tables.iter().copied())
    }

    /// The types that stand inside the pipeline's module.
    pub(crate) fn types(&self) -> TokenStream {
        let axes = self.axes();
        let (shape, options, tunes) = (self.shape(), self.options(), self.tunes());
        let (inputs, outputs, args) = (self.inputs(), self.outputs(), self.args());
        let (handle, left, kernel) = (handle(self.pipeline), self.left(), self.kernel_type());
        let (pending, places) = (self.pending(), self.places());
        quote! {
            #axes #shape #options #tunes #inputs #outputs #args #handle #left #kernel #pending #places
        }
    }

    /// The functions, which name handles of other pipelines as the declaration does: they stand beside it.
    pub(crate) fn functions(&self) -> TokenStream {
        let (prepare, launch) = (self.prepare(), self.launch());
        quote!(#prepare #launch)
    }

    fn module(&self) -> Ident {
        format_ident!("{}", snake(&self.ir.name), span = self.pipeline.name.span().token)
    }

    fn handle_uses(&self) -> Vec<HandleUse<'a>> {
        let mut found: Vec<&'a Uses> = Vec::new();
        uses_in(&self.pipeline.items, &mut found);
        let mut all: Vec<HandleUse<'a>> = Vec::new();
        for uses in found {
            if all.iter().any(|known| known.uses.name == uses.name) {
                continue;
            }
            let of = uses.name.to_string();
            let reads = |ir: &ir::Pipeline| {
                ir.tensors.iter().any(|tensor| tensor.from_handle.as_ref() == Some(&of))
            };
            let own = ["rank", "call", "inputs", "outputs", "args", "into", "place", "given"];
            let name = match snake(&of) {
                _ if of == self.ir.name => format_ident!("earlier"),
                name if own.contains(&name.as_str()) => format_ident!("{name}_handle"),
                name => format_ident!("{name}"),
            };
            all.push(HandleUse {
                uses,
                name,
                tables: tables_from(self.ir, Some(&of)),
                is_required: self.selected.iter().all(reads),
            });
        }
        all
    }
}

/// `pub struct Handle` with a field per table.
pub(crate) fn handle(pipeline: &ast::Pipeline) -> TokenStream {
    let mut tables = Vec::new();
    tables_in(&pipeline.items, &mut tables);
    // A table of two arms is one field; a name declared twice is an error elsewhere.
    let mut seen: Vec<String> = Vec::new();
    let fields = tables.into_iter().filter_map(|table| {
        let name = &table.name;
        if seen.contains(&name.to_string()) {
            return None;
        }
        seen.push(name.to_string());
        let (doc, of) = (format!(" `{}`", table.source.text), table_type(table));
        Some(quote! {
            #[doc = #doc]
            pub #name: #of,
        })
    });
    quote! {
        /// The tables that a call leaves; those of other arms are absent.
        #[derive(Debug, Clone, Default)]
        pub struct Handle {
            #(#fields)*
        }
    }
}

/// `DeviceTensor<i32, 2>`; its words point at the element type, where rustc reports a mismatch.
fn table_type(table: &ast::Tensor) -> TokenStream {
    let span = table.elem.span().token;
    let elem = match &table.elem {
        ast::Elem::Name(name) => elem_type(&name.to_string(), span),
        ast::Elem::Bits { .. } => elem_type("bits", span),
    };
    let rank = table.dims.len();
    quote_spanned!(span=> ::ep_runtime::__private::DeviceTensor<#elem, #rank>)
}

/// A use of every handle's fields that `items` read, so that rustc compares the types.
pub(crate) fn uses(file: &File, items: &[Item]) -> TokenStream {
    let mut found = Vec::new();
    uses_in(items, &mut found);
    found.into_iter().map(|uses| use_of(file, uses)).collect()
}

pub(crate) fn uses_in<'a>(items: &'a [Item], found: &mut Vec<&'a Uses>) {
    for item in items {
        match item {
            Item::Uses(uses) => found.push(uses),
            Item::Phase(phase) => uses_in(&phase.items, found),
            Item::When(when) => uses_in(&when.body, found),
            _ => {}
        }
    }
}

fn use_of(file: &File, uses: &Uses) -> TokenStream {
    // Tables that are not listed come from a pipeline of this block: `check` compared them.
    if uses.tables.is_none() {
        return TokenStream::new();
    }
    let path = &uses.path;
    let reads = tables_of(file, uses).into_iter().map(|table| {
        let (name, of) = (&table.name, table_type(table));
        let span = table.elem.span().token;
        quote_spanned!(span=> let _: &#of = &handle.#name;)
    });
    quote! {
        const _: () = {
            #[allow(dead_code, reason = "it is there for its types alone")]
            fn reads(handle: &<#(#path)::* as ::ep_runtime::Pipeline>::Handle) {
                #(#reads)*
            }
        };
    }
}

/// The tensors by name; of those that arms declare apart, the first.
fn first_of_each(ir: &ir::Pipeline, of: impl Fn(&ir::Tensor) -> bool) -> Vec<&ir::Tensor> {
    let mut all: Vec<&ir::Tensor> = Vec::new();
    for tensor in ir.tensors.iter().filter(|tensor| of(tensor)) {
        if all.iter().all(|known| known.name != tensor.name) {
            all.push(tensor);
        }
    }
    all
}

/// The tables of a handle, or those that the pipeline leaves, whose elements have one Rust type.
fn tables_from<'a>(ir: &'a ir::Pipeline, handle: Option<&str>) -> Vec<&'a ir::Tensor> {
    first_of_each(ir, |tensor| {
        let is_table = tensor.kind == TensorKind::Table && is_single(tensor);
        is_table && tensor.from_handle.as_deref() == handle
    })
}

/// Whether one Rust type stands for its elements.
fn is_single(tensor: &ir::Tensor) -> bool {
    !matches!(tensor.elem, ElemType::OfAxis { .. })
}

fn is_size(dim: &Expr, size: &str) -> bool {
    matches!(dim, Expr::Name { name, kind: NameKind::Size } if name == size)
}

/// The type of an axis.
fn axis_type(axis: &str) -> Ident {
    format_ident!("{}", camel(axis))
}

/// The type of tensors whose elements an axis chooses.
fn axis_tensor(axis: &str) -> Ident {
    format_ident!("{}Tensor", camel(axis))
}
