//! The whole compiler as the macro runs it: parse, expand fragments, check, lower, render, and the Rust that a
//! `pipeline!` block becomes.
//!
//! A pipeline `NvlDispatch` becomes a unit struct of that name, which implements
//! `ep_runtime::Pipeline`, and a module `nvl_dispatch` with the types of its calls. On a mistake the
//! struct and its `Handle` are still there, so that no other pipeline breaks; what is only refused as CUDA
//! keeps all types.

use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

use crate::ast::{Excerpt, File, Ident, Item, Origin, Pipeline, Stmt, StmtKind, TokenRange};
use crate::calls::{self, Calls};
use crate::check::check;
use crate::cuda_fn::{self, ReadFile};
use crate::diagnostics::form::{no_cuda, no_cuda_form};
use crate::diagnostics::{Diagnostic, Diagnostics, Label, one_warp};
use crate::fragments;
use crate::ir;
use crate::lower::lower;
use crate::plan::{Body, kebab, snake};
use crate::render::{self, RenderError};
use crate::schedule::{self, Constant, Refusal, RuleSet, Warning};
use crate::syntax::parse;

/// Expands a `pipeline!` block. `load` reads the files of `cuda fn .. from "file"` and of fragments.
pub fn expand(tokens: TokenStream, load: ReadFile) -> TokenStream {
    let (file, made, errors) = compile(tokens, load);
    let mut out = errors.to_tokens();
    out.extend(included(file.files.iter().map(|named| named.path.as_str())));
    for (index, pipeline) in file.pipelines.iter().enumerate() {
        // What is only not emitted has types all the same: rustc finds no fault with who calls it.
        match made.get(index) {
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

/// A pipeline of a block that was compiled by a program, not by the macro.
#[derive(Debug)]
pub struct CompiledPipeline {
    /// The declaration as data.
    pub ir: ir::Pipeline,
    /// The text of each choice of arms; none for a pipeline that is only declared and checked.
    pub texts: Vec<CompiledText>,
    /// The paths of the other pipelines whose handles it reads.
    pub handles: Vec<Vec<String>>,
    /// Roles that one warp of the grid carries out, each at its statement.
    pub slow: Vec<Label>,
}

/// Compiles a block as the macro does, for a program that reads declarations.
pub fn compiled(tokens: TokenStream, load: ReadFile) -> Result<Vec<CompiledPipeline>, Diagnostics> {
    let (file, made, errors) = compile(tokens, load);
    if !errors.is_empty() {
        return Err(errors);
    }
    let compiled = file.pipelines.iter().zip(made).map(|(pipeline, made)| {
        let handles = handle_paths(pipeline).into_iter();
        let handles = handles.map(|path| path.iter().map(Ident::to_string).collect());
        let label = |it: &Warning| {
            let (at, message) = warned(&file, pipeline, it);
            Label { at, message }
        };
        CompiledPipeline {
            handles: handles.collect(),
            slow: made.slow.iter().map(label).collect(),
            ir: made.ir,
            texts: made.texts,
        }
    });
    Ok(compiled.collect())
}

/// What a pipeline is compiled to.
struct Made {
    ir: ir::Pipeline,
    /// The text of each choice of arms; none for a pipeline that is only declared and checked.
    texts: Vec<CompiledText>,
    /// Roles that one warp of the grid carries out in some choice of arms.
    slow: Vec<Warning>,
    /// Whether this is all of the declaration, not what stands in for a wrong one.
    is_whole: bool,
}

/// The text of one choice of arms.
#[derive(Debug)]
pub struct CompiledText {
    /// The chosen arm of each axis, in order of the axes.
    pub arms: Vec<String>,
    /// The body, and the constants and headers that it needs from the prologue.
    pub body: Body,
}

impl Made {
    /// What stands in for a wrong declaration.
    fn nothing(pipeline: &Pipeline) -> Made {
        let bare = Pipeline { items: Vec::new(), ..pipeline.clone() };
        Made {
            ir: lower(&File::default(), &bare),
            texts: Vec::new(),
            slow: Vec::new(),
            is_whole: false,
        }
    }
}

/// All stages; without a mistake it gives what every pipeline of the block is compiled to.
fn compile(tokens: TokenStream, load: ReadFile) -> (File, Vec<Made>, Diagnostics) {
    let (mut file, mut errors) = parse(tokens);
    if errors.is_empty() {
        fragments::expand(&mut file, load, &mut errors);
    }
    if errors.is_empty() {
        cuda_fn::load(&mut file, load, &mut errors);
        errors.extend(check(&file));
    }
    let mut made = Vec::new();
    if errors.is_empty() {
        let all = file.pipelines.iter();
        made.extend(all.map(|pipeline| make(&file, pipeline, &mut errors)));
    }
    errors.trace(&file.origins);
    (file, made, errors)
}

/// Emits a pipeline, or refuses it at the statements that prevent it.
fn make(file: &File, pipeline: &Pipeline, errors: &mut Diagnostics) -> Made {
    let ir = lower(file, pipeline);
    let mut refused: Vec<Refusal> = Vec::new();
    for choice in ir.choices() {
        let found = schedule::refusals(&ir.select(&choice));
        refused.extend(found.into_iter().filter(|it| !refused.contains(it)).collect::<Vec<_>>());
    }
    if !refused.is_empty() {
        refused.iter().for_each(|it| errors.push(refusal(pipeline, it)));
        return Made { ir, texts: Vec::new(), slow: Vec::new(), is_whole: true };
    }
    match texts(&ir) {
        Ok((texts, slow)) => Made { ir, texts, slow, is_whole: true },
        Err(defect) => {
            errors.push(no_cuda(&pipeline.name, &defect.message));
            Made { ir, texts: Vec::new(), slow: Vec::new(), is_whole: false }
        }
    }
}

/// The texts of each choice of arms, and what to warn about.
fn texts(ir: &ir::Pipeline) -> Result<(Vec<CompiledText>, Vec<Warning>), RenderError> {
    let (mut texts, mut slow) = (Vec::new(), Vec::new());
    for choice in ir.choices() {
        let selected = ir.select(&choice);
        let (body, recipe) = render::body_and_recipe(&selected, RuleSet::All)?;
        let more = recipe.warnings().filter(|it| !slow.contains(*it));
        slow.extend(more.cloned().collect::<Vec<_>>());
        texts.push(CompiledText { arms: choice.arms, body });
    }
    Ok((texts, slow))
}

/// The statement that a warning is about, and the warning, with the fragments that the statement comes from.
fn warned(
    file: &File,
    pipeline: &Pipeline,
    Warning { at, sentence }: &Warning,
) -> (TokenRange, String) {
    let place = Statements { pipeline }.find(&pipeline.items, at);
    let place = place.unwrap_or(TokenRange::from(&pipeline.name));
    let from = Origin::of(place, &file.origins).into_iter().map(|(_, origin)| origin.to_string());
    let sentences: Vec<String> = [sentence.clone()].into_iter().chain(from).collect();
    (place, sentences.join("; "))
}

fn refusal(pipeline: &Pipeline, refused: &Refusal) -> Diagnostic {
    match (Statements { pipeline }.find(&pipeline.items, &refused.at)) {
        Some(at) => no_cuda_form(at, &pipeline.name, &refused.why.to_string()),
        None => no_cuda(&pipeline.name, &refused.why.to_string()),
    }
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
    let module = format_ident!("{}", snake(&ir.name), span = name.span().token);
    let kebab = kebab(&ir.name);
    let digest = ir.digest();
    let packed = Literal::byte_string(&ir.packed());
    let doc = &pipeline.doc;
    // A wrong declaration has its handle alone: other pipelines name it.
    let whole = made.is_whole.then(|| Calls::of(pipeline, ir));
    let types = whole.as_ref().map_or_else(|| calls::handle(pipeline), Calls::types);
    let functions = whole.as_ref().map(Calls::functions);
    let uses = calls::uses(file, &pipeline.items);
    let handles = handle_paths(pipeline).into_iter().map(|path| quote!(#(#path)::*));
    let texts = made.texts.iter().map(|CompiledText { arms, body }| {
        let body = embedded(body);
        quote!(::ep_runtime::__private::Text { arms: &[#(#arms),*], body: #body })
    });
    let slow = made.slow.iter().map(|it| {
        let (place, sentence) = warned(file, pipeline, it);
        one_warp(place, &sentence)
    });
    let mut files = Vec::new();
    cuda_fn::files(&pipeline.items, &mut files);
    let included = included(files);
    quote! {
        #(#[doc = #doc])*
        #[derive(Debug, Clone, Copy, Default)]
        #vis struct #name;

        impl ::ep_runtime::Pipeline for #name {
            type Handle = #module::Handle;
            const NAME: &'static str = #kebab;
            const DIGEST: u128 = #digest;

            fn ir() -> ::ep_runtime::__private::ir::Pipeline {
                ::ep_runtime::__private::ir::Pipeline::unpacked(#packed)
            }

            fn texts() -> &'static [::ep_runtime::__private::Text] {
                const TEXTS: &[::ep_runtime::__private::Text] = &[#(#texts),*];
                TEXTS
            }

            fn handles() -> ::std::vec::Vec<::ep_runtime::AnyPipeline> {
                ::std::vec![#(::ep_runtime::AnyPipeline::of::<#handles>()),*]
            }
        }

        #[doc = ::std::concat!("The types of calls of `", ::std::stringify!(#name), "`.")]
        #[allow(clippy::module_inception, reason = "a file may be named after its pipeline")]
        #[allow(dead_code, unreachable_pub, reason = "not every caller needs all of them")]
        #vis mod #module {
            #types
        }

        #functions
        #(#slow)*

        #included
        #uses
    }
}

/// A change of these files must expand the macro again; rustc tracks what it includes.
fn included<'a>(files: impl IntoIterator<Item = &'a str>) -> TokenStream {
    let files = files.into_iter();
    quote! {
        #(const _: &str = ::std::include_str!(::std::concat!(
            ::std::env!("CARGO_MANIFEST_DIR"), "/", #files
        ));)*
    }
}

/// The other pipelines whose handles `pipeline` reads, each once.
fn handle_paths(pipeline: &Pipeline) -> Vec<&[Ident]> {
    let mut found = Vec::new();
    calls::uses_in(&pipeline.items, &mut found);
    let mut paths: Vec<&[Ident]> = Vec::new();
    for uses in found.into_iter().filter(|uses| uses.name != pipeline.name) {
        if !paths.contains(&uses.path.as_slice()) {
            paths.push(&uses.path);
        }
    }
    paths
}

/// The Rust of a body as a constant.
fn embedded(body: &Body) -> TokenStream {
    let Body { text, headers, constants } = body;
    let constants = constants.iter().map(|Constant { group, member }| {
        quote!(::ep_runtime::__private::Constant::known(#group, #member))
    });
    quote!({
        const CONSTANTS: &[::ep_runtime::__private::Constant] = &[#(#constants),*];
        ::ep_runtime::__private::Body::known(#text, &[#(#headers),*], CONSTANTS)
    })
}
