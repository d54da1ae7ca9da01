//! The whole compiler as the macro runs it: parse, check, lower, render, and the Rust that a
//! `pipeline!` block becomes.
//!
//! A pipeline `NvlDispatch` becomes a unit struct of that name, which implements
//! `ep_runtime::Pipeline`, and a module `nvl_dispatch` with its `Handle`. On a mistake these items
//! are still there, so that nothing else in the user's crate breaks.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote, quote_spanned};

use crate::ast::{Elem, Excerpt, File, Item, Pipeline, Stmt, StmtKind, Tensor, TokenRange, Uses};
use crate::check::check;
use crate::cuda_fn::{self, ReadFile};
use crate::diagnostics::form::{no_cuda, no_cuda_form};
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::ir::{self, Embed};
use crate::lower::{lower, tables_in, tables_of};
use crate::plan::{kebab, snake};
use crate::render::{self, RenderError};
use crate::schedule::{self, Refusal, RuleSet};
use crate::syntax::parse;

/// Expands a `pipeline!` block. `load` reads the files of `cuda fn .. from "file"`.
pub fn expand(tokens: TokenStream, load: ReadFile) -> TokenStream {
    let (file, made, errors) = compile(tokens, load);
    let mut out = errors.to_tokens();
    for (index, pipeline) in file.pipelines.iter().enumerate() {
        match made.get(index).filter(|_| errors.is_empty()) {
            Some(made) => out.extend(items(&file, pipeline, made)),
            None => out.extend(items(&file, pipeline, &Made::nothing(pipeline))),
        }
    }
    out
}

/// The syntax tree of a block and every mistake that the earliest stage with mistakes found.
pub fn front_end(tokens: TokenStream, load: ReadFile) -> (File, Diagnostics) {
    let (file, _, errors) = compile(tokens, load);
    (file, errors)
}

/// What a pipeline is compiled to.
struct Made {
    ir: ir::Pipeline,
    /// The text of each choice of arms; none for a pipeline that is only declared and checked.
    texts: Vec<Text>,
}

/// The two texts of one choice of arms.
struct Text {
    arms: Vec<String>,
    body: String,
    plain: String,
}

impl Made {
    /// What stands in for a wrong declaration.
    fn nothing(pipeline: &Pipeline) -> Made {
        let bare = Pipeline { items: Vec::new(), ..pipeline.clone() };
        Made { ir: lower(&File { pipelines: Vec::new() }, &bare), texts: Vec::new() }
    }
}

/// All stages; without a mistake it gives what every pipeline of the block is compiled to.
fn compile(tokens: TokenStream, load: ReadFile) -> (File, Vec<Made>, Diagnostics) {
    let (mut file, mut errors) = parse(tokens);
    if errors.is_empty() {
        cuda_fn::load(&mut file, load, &mut errors);
        errors.extend(check(&file));
    }
    let mut made = Vec::new();
    if errors.is_empty() {
        let all = file.pipelines.iter();
        made.extend(all.map(|pipeline| make(&file, pipeline, &mut errors)));
    }
    (file, made, errors)
}

/// A pipeline within one node is emitted, or refused at the statements that prevent it; hops over a
/// network and phases are declared and checked only.
fn make(file: &File, pipeline: &Pipeline, errors: &mut Diagnostics) -> Made {
    let ir = lower(file, pipeline);
    let mut refused: Vec<Refusal> = Vec::new();
    for choice in ir.choices() {
        let found = schedule::refusals(&ir.select(&choice));
        refused.extend(found.into_iter().filter(|it| !refused.contains(it)).collect::<Vec<_>>());
    }
    if !refused.is_empty() {
        if is_within_node(&ir) {
            refused.iter().for_each(|it| errors.push(refusal(pipeline, it)));
        }
        return Made { ir, texts: Vec::new() };
    }
    match texts(&ir) {
        Ok(texts) => Made { ir, texts },
        Err(defect) => {
            errors.push(no_cuda(&pipeline.name, &defect.message));
            Made { ir, texts: Vec::new() }
        }
    }
}

/// The texts of each choice of arms.
fn texts(ir: &ir::Pipeline) -> Result<Vec<Text>, RenderError> {
    let text = |choice: ir::Choice| {
        let selected = ir.select(&choice);
        let plain = render::body_with(&selected, RuleSet::None)?;
        Ok(Text { arms: choice.arms, body: render::body(&selected)?, plain })
    };
    ir.choices().into_iter().map(text).collect()
}

fn refusal(pipeline: &Pipeline, refused: &Refusal) -> Diagnostic {
    match (Statements { pipeline }.find(&pipeline.items, &refused.at)) {
        Some(at) => no_cuda_form(at, &pipeline.name, &refused.why),
        None => no_cuda(&pipeline.name, &refused.why),
    }
}

fn is_within_node(ir: &ir::Pipeline) -> bool {
    let nvlink = |channel: &ir::Channel| {
        channel.over == [ir::Transport::Nvlink] && channel.parts_per.is_none()
    };
    let nodes = ir.dims.iter().any(|dim| dim.name == "nodes");
    !nodes && ir.channels.iter().all(nvlink) && ir.roles.iter().all(|role| role.phase.is_none())
}

/// Where the statements, channels and roles of a pipeline stand.
struct Statements<'a> {
    pipeline: &'a Pipeline,
}

impl Statements<'_> {
    /// Where the one with this line and these words stands.
    fn find(&self, items: &[Item], at: &ir::Source) -> Option<TokenRange> {
        items.iter().find_map(|item| match item {
            Item::Channel(channel) if self.is(&channel.source, at) => {
                Some(TokenRange::from(&channel.name))
            }
            Item::Role(role) if self.is(&role.source, at) => Some(TokenRange::from(&role.name)),
            Item::Role(role) => self.find_in(&role.body, at),
            Item::Phase(phase) => self.find(&phase.items, at),
            Item::When(when) => self.find(&when.body, at),
            _ => None,
        })
    }

    fn find_in(&self, body: &[Stmt], at: &ir::Source) -> Option<TokenRange> {
        body.iter().find_map(|stmt| match &stmt.kind {
            _ if self.is(&stmt.source, at) => Some(stmt.source.tokens),
            StmtKind::For(inner) => self.find_in(&inner.body, at),
            StmtKind::When(when) => self.find_in(&when.body, at),
            _ => None,
        })
    }

    fn is(&self, source: &Excerpt, at: &ir::Source) -> bool {
        let first = self.pipeline.keyword.start().line;
        let line = source.tokens.first.start().line.saturating_sub(first);
        source.text == at.text && u32::try_from(line) == Ok(at.line)
    }
}

fn items(file: &File, pipeline: &Pipeline, made: &Made) -> TokenStream {
    let ir = &made.ir;
    let (vis, name) = (&pipeline.vis, &pipeline.name);
    let module = format_ident!("{}", snake(&ir.name), span = name.span());
    let kebab = kebab(&ir.name);
    let digest = ir.digest();
    let build = ir.embed();
    let doc = &pipeline.doc;
    let handle = handle(pipeline);
    let uses = uses(file, &pipeline.items);
    let texts = made.texts.iter().map(|Text { arms, body, plain }| {
        quote!(::ep_runtime::__private::Text { arms: &[#(#arms),*], body: #body, plain: #plain })
    });
    let mut files = Vec::new();
    cuda_fn::files(&pipeline.items, &mut files);
    quote! {
        #(#[doc = #doc])*
        #[derive(Debug, Clone, Copy, Default)]
        #vis struct #name;

        impl ::ep_runtime::Pipeline for #name {
            type Handle = #module::Handle;
            const NAME: &'static str = #kebab;
            const DIGEST: u128 = #digest;

            fn ir() -> ::ep_runtime::__private::ir::Pipeline {
                #build
            }

            fn texts() -> &'static [::ep_runtime::__private::Text] {
                &[#(#texts),*]
            }
        }

        #[doc = ::std::concat!("What `", ::std::stringify!(#name), "` leaves for other pipelines.")]
        #[allow(clippy::module_inception, reason = "a file may be named after its pipeline")]
        #vis mod #module {
            #handle
        }

        // A change of these files must expand the macro again; rustc tracks what it includes.
        #(const _: &str = ::std::include_str!(::std::concat!(
            ::std::env!("CARGO_MANIFEST_DIR"), "/", #files
        ));)*
        #uses
    }
}

/// `pub struct Handle` with a field per table.
fn handle(pipeline: &Pipeline) -> TokenStream {
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
        /// The tables of a finished call.
        #[derive(Debug, Clone, Default)]
        pub struct Handle {
            #(#fields)*
        }
    }
}

/// `Table<elem::I32, 2>`; its words point at the element type, where rustc reports a mismatch.
fn table_type(table: &Tensor) -> TokenStream {
    let span = table.elem.span();
    let marker = marker(&table.elem);
    let rank = table.dims.len();
    quote_spanned!(span=> ::ep_runtime::__private::Table<::ep_runtime::__private::elem::#marker, #rank>)
}

/// The Rust type that stands for an element type.
fn marker(elem: &Elem) -> Ident {
    let name = match elem {
        Elem::Name(name) => match name.to_string().as_str() {
            "bool" => "Bool",
            "u8" => "U8",
            "i32" => "I32",
            "i64" => "I64",
            "f32" => "F32",
            "bf16" => "Bf16",
            "e4m3" => "E4m3",
            "ue8m0" => "Ue8m0",
            _ => "Composite",
        },
        Elem::Bits { .. } => "Bits",
    };
    Ident::new(name, elem.span())
}

/// A use of every handle's fields that `items` read, so that rustc compares the types.
fn uses(file: &File, items: &[Item]) -> TokenStream {
    let mut out = TokenStream::new();
    for item in items {
        match item {
            Item::Uses(item) => out.extend(use_of(file, item)),
            Item::Phase(phase) => out.extend(uses(file, &phase.items)),
            Item::When(when) => out.extend(uses(file, &when.body)),
            _ => {}
        }
    }
    out
}

fn use_of(file: &File, uses: &Uses) -> TokenStream {
    // Tables that are not listed come from a pipeline of this block: `check` compared them.
    if uses.tables.is_none() {
        return TokenStream::new();
    }
    let path = &uses.path;
    let reads = tables_of(file, uses).into_iter().map(|table| {
        let (name, of) = (&table.name, table_type(table));
        let span = table.elem.span();
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
