//! What a caller chooses before a kernel is compiled: the shape, an arm for each axis, tunes.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use super::tensors::{Field, Presence, elem_type, name_of};
use super::{Calls, axis_tensor, axis_type};
use crate::ir::{DimKind, ElemType, WellKnown};

impl Calls<'_> {
    /// The enums of all axes, and the tensors whose elements they choose.
    pub(super) fn axes(&self) -> TokenStream {
        let axes = self.ir.axes.iter().map(|axis| {
            let name = axis_type(&axis.name);
            let doc = format!(" An arm of `variant {}`.", axis.name);
            let arms = axis.arms.iter().enumerate().map(|(index, arm)| {
                let name = format_ident!("{}", arm.name);
                let parts: Vec<String> = arm.parts.iter().map(|it| it.name.clone()).collect();
                let doc = match parts.is_empty() {
                    true => format!(" `{}`", arm.name),
                    false => format!(" `{}`: {}", arm.name, parts.join(", ")),
                };
                let default = (index == 0).then(|| quote!(#[default]));
                quote!(#[doc = #doc] #default #name)
            });
            let spelled = axis.arms.iter().map(|arm| {
                let (name, text) = (format_ident!("{}", arm.name), &arm.name);
                quote!(Self::#name => #text)
            });
            let tensor = self.is_element(&axis.name).then(|| self.axis_tensors(axis));
            quote! {
                #[doc = #doc]
                #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
                pub enum #name { #(#arms),* }

                impl #name {
                    fn name(self) -> &'static str {
                        match self { #(#spelled),* }
                    }
                }
                #tensor
            }
        });
        axes.collect()
    }

    /// Whether tensors have elements of this axis.
    fn is_element(&self, axis: &str) -> bool {
        let mut fields = self.inputs.iter().chain(&self.outputs);
        fields.any(|field| field.axis.as_deref() == Some(axis))
    }

    fn axis_tensors(&self, axis: &crate::ir::Axis) -> TokenStream {
        let name = axis_tensor(&axis.name);
        let doc = format!(" A tensor whose elements are those of an arm of `{}`.", axis.name);
        let most = axis.arms.iter().map(|arm| arm.parts.len()).max().unwrap_or(0);
        let (mut variants, mut gives, mut makes) = (Vec::new(), Vec::new(), Vec::new());
        for (index, arm) in axis.arms.iter().enumerate() {
            let variant = format_ident!("{}", arm.name);
            let doc = format!(" `{}`", arm.name);
            let parts = || arm.parts.iter().map(|part| format_ident!("{}", part.name));
            let fields = arm.parts.iter().zip(parts()).map(|(part, field)| {
                let doc = match part.block {
                    1 => format!(" `{}`", name_of(&part.elem)),
                    block => format!(" `{}` for each {block} elements", name_of(&part.elem)),
                };
                let elem = elem_type(name_of(&part.elem), proc_macro2::Span::call_site());
                quote!(#[doc = #doc] #field: ::ep_runtime::__private::DeviceTensor<#elem, RANK>)
            });
            variants.push(quote!(#[doc = #doc] #variant { #(#fields),* }));
            let (bound, given, left) = (parts(), parts(), most - arm.parts.len());
            gives.push(quote!(Self::#variant { #(#bound),* } => {
                #(::ep_runtime::__private::Give::give(#given, to);)*
                ::ep_runtime::__private::skip(to, #left);
            }));
            let made = parts()
                .enumerate()
                .map(|(part, field)| quote!(#field: made.tensor(place + #part)?));
            let pattern = if index + 1 < axis.arms.len() { quote!(#index) } else { quote!(_) };
            makes.push(quote!(#pattern => Self::#variant { #(#made),* }));
        }
        quote! {
            #[doc = #doc]
            #[derive(Debug, Clone)]
            pub enum #name<const RANK: usize> { #(#variants),* }

            impl<const RANK: usize> ::ep_runtime::__private::Give for #name<RANK> {
                const PLACES: usize = #most;

                fn give<'a>(&'a self, to: &mut ::ep_runtime::__private::Places<'_, 'a>) {
                    match self { #(#gives)* }
                }
            }

            impl<const RANK: usize> #name<RANK> {
                fn made(
                    made: &::ep_runtime::__private::OutputMemory<'_>,
                    arm: usize,
                    place: usize,
                ) -> ::std::result::Result<Self, ::ep_runtime::error::CallError> {
                    ::std::result::Result::Ok(match arm { #(#makes),* })
                }
            }
        }
    }

    pub(super) fn shape(&self) -> TokenStream {
        let dims = self.given_dims().into_iter().map(|(name, low, high, step)| {
            let step = if step == 1 { String::new() } else { format!(" step {step}") };
            let doc = format!(" `{low}..={high}{step}`");
            let name = format_ident!("{name}");
            quote!(#[doc = #doc] pub #name: usize)
        });
        let sizes = self.ir.sizes.iter().map(|size| {
            let doc = format!(" The most that `{}` may be.", size.at.text);
            let name = format_ident!("{}", size.name);
            quote!(#[doc = #doc] pub #name: usize)
        });
        quote! {
            /// The numbers that a kernel is compiled for, and the most rows of its calls.
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub struct Shape { #(#dims,)* #(#sizes,)* }
        }
    }

    /// The dims that callers give, with their ranges; the group gives the number of ranks.
    pub(super) fn given_dims(&self) -> Vec<(&str, i64, i64, i64)> {
        let given = self.ir.dims.iter().filter_map(|dim| match dim.kind {
            DimKind::Given { low, high, step } => Some((dim.name.as_str(), low, high, step)),
            DimKind::Derived { .. } => None,
        });
        given.filter(|(name, ..)| !WellKnown::Ranks.is(*name)).collect()
    }

    /// The tunes by name, with what each arm offers.
    pub(super) fn tune_names(&self) -> Vec<(&str, String)> {
        let mut all: Vec<(&str, String)> = Vec::new();
        for tune in &self.ir.tunes {
            let offer = format!("{} in {:?}", tune.default, tune.choices);
            match all.iter_mut().find(|(name, _)| *name == tune.name) {
                Some((_, offers)) => *offers += &format!(" or {offer}"),
                None => all.push((&tune.name, offer)),
            }
        }
        all
    }

    /// Inputs and outputs that callers may leave out.
    pub(super) fn open(&self) -> impl Iterator<Item = &Field> {
        let fields = self.inputs.iter().chain(&self.outputs);
        fields.filter(|field| field.is_open)
    }

    pub(super) fn options(&self) -> TokenStream {
        let axes = self.ir.axes.iter().map(|axis| {
            let doc = format!(" `variant {}`", axis.name);
            let (name, of) = (format_ident!("{}", axis.name), axis_type(&axis.name));
            (
                quote!(#[doc = #doc] pub #name: #of),
                quote!(#name: ::std::default::Default::default()),
            )
        });
        let tunes = (!self.ir.tunes.is_empty()).then(|| {
            let doc = " Tunes that differ from their default.";
            (
                quote!(#[doc = #doc] pub tunes: TuneOptions),
                quote!(tunes: ::std::default::Default::default()),
            )
        });
        let open = self.open().map(|field| {
            let name = &field.name;
            match field.presence {
                Presence::Copies(most) => {
                    let doc =
                        format!(" The number of tensors `{name}` that calls pass, at most {most}.");
                    (quote!(#[doc = #doc] pub #name: usize), quote!(#name: #most))
                }
                _ => {
                    let doc = format!(" Whether calls bring `{name}`.");
                    (quote!(#[doc = #doc] pub #name: bool), quote!(#name: true))
                }
            }
        });
        let (fields, defaults): (Vec<_>, Vec<_>) = axes.chain(tunes).chain(open).unzip();
        quote! {
            /// What a kernel is compiled for besides its shape; the default is that of the declaration.
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub struct Options {
                #(#fields,)*
                /// Handles, and tensors in the window, that may be in use at once.
                pub live: usize,
            }

            impl ::std::default::Default for Options {
                fn default() -> Self {
                    Options { #(#defaults,)* live: 1 }
                }
            }
        }
    }

    pub(super) fn tunes(&self) -> TokenStream {
        let names = self.tune_names();
        if names.is_empty() {
            return TokenStream::new();
        }
        let field = |(name, offer): &(&str, String), of: TokenStream| {
            let (doc, name) = (format!(" `{name}: {offer}`"), format_ident!("{name}"));
            quote!(#[doc = #doc] pub #name: #of)
        };
        let fields = names.iter().map(|it| field(it, quote!(i64)));
        let open = names.iter().map(|it| field(it, quote!(::std::option::Option<i64>)));
        let texts: Vec<&str> = names.iter().map(|(text, _)| *text).collect();
        let idents = texts.iter().map(|text| format_ident!("{text}"));
        let values = names.iter().map(|(text, _)| {
            let name = format_ident!("{text}");
            quote!(#name: self.core.number(#text))
        });
        quote! {
            /// Tunes that differ from their default, of the chosen arms.
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
            pub struct TuneOptions { #(#open,)* }

            impl TuneOptions {
                /// The names of all tunes.
                pub const NAMES: &[&str] = &[#(#texts),*];

                /// The tune of a name, for programs that read names.
                pub fn by_name(
                    &mut self,
                    name: &str,
                ) -> ::std::option::Option<&mut ::std::option::Option<i64>> {
                    match name {
                        #(#texts => ::std::option::Option::Some(&mut self.#idents),)*
                        _ => ::std::option::Option::None,
                    }
                }
            }

            /// The tunes of a kernel; 0 for those of other arms.
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub struct Tunes { #(#fields,)* }

            impl Kernel {
                /// The tunes that it was compiled with.
                pub fn tunes(&self) -> Tunes {
                    Tunes { #(#values,)* }
                }
            }
        }
    }

    /// The position of an axis among all.
    pub(super) fn axis_index(&self, elem: &ElemType) -> usize {
        let ElemType::OfAxis { axis } = elem else { return 0 };
        self.ir.axes.iter().position(|it| it.name == *axis).unwrap_or(0)
    }
}
