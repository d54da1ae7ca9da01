//! The tensors of a call: a typed field for each, and the places that it takes in the list of all.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};

use super::{Calls, PlaceName, axis_tensor, is_size};
use crate::ir::text;
use crate::ir::{Elem, ElemType, Memory, Size, Tensor, TensorKind};

/// Whether a field has to be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Required,
    Optional,
    /// At most this many.
    Copies(usize),
}

/// An input or output of a call.
pub(super) struct Field {
    pub(super) name: Ident,
    doc: String,
    /// The type of one tensor.
    of: TokenStream,
    pub(super) presence: Presence,
    /// Whether the declaration leaves it to the caller, not to an arm.
    pub(super) is_open: bool,
    /// The axis that chooses its elements, and the number of that axis.
    pub(super) axis: Option<String>,
    axis_index: usize,
    parts: usize,
    is_window: bool,
    /// Whether each call may come without it.
    may_be_left_out: bool,
}

impl Field {
    pub(super) fn places(&self) -> Vec<PlaceName> {
        let copies = if let Presence::Copies(most) = self.presence { most as i64 } else { 1 };
        let name = self.name.to_string();
        let place = |copy| {
            let name = name.clone();
            (0..self.parts).map(move |part| PlaceName { name: name.clone(), part, copy })
        };
        (0..copies).flat_map(place).collect()
    }

    /// The type of what its places take.
    pub(super) fn given(&self) -> TokenStream {
        let of = &self.of;
        match self.presence {
            Presence::Copies(most) => quote!([::std::option::Option<#of>; #most]),
            Presence::Required | Presence::Optional => of.clone(),
        }
    }

    fn declared(&self) -> TokenStream {
        let Field { name, doc, of, .. } = self;
        let of = match self.presence {
            Presence::Required => of.clone(),
            Presence::Optional => quote!(::std::option::Option<#of>),
            Presence::Copies(most) => quote!([::std::option::Option<#of>; #most]),
        };
        quote!(#[doc = #doc] pub #name: #of)
    }

    /// Memory for it, from the variable `made`; its first place is `place`.
    fn made(&self, place: usize) -> TokenStream {
        let name = &self.name;
        let value = match (&self.axis, self.presence) {
            (None, Presence::Optional) if self.may_be_left_out => {
                quote!(::std::option::Option::None)
            }
            (Some(axis), presence) => {
                let (of, index) = (axis_tensor(axis), self.axis_index);
                let made = quote!(#of::made(&made, self.core.arm(#index), #place)?);
                match presence {
                    Presence::Required => made,
                    _ => quote!(match made.takes(#place) {
                        true => ::std::option::Option::Some(#made),
                        false => ::std::option::Option::None,
                    }),
                }
            }
            (None, Presence::Required) => quote!(made.tensor(#place)?),
            (None, Presence::Optional) => quote!(made.optional(#place)?),
            (None, Presence::Copies(most)) => {
                let copies = (0..most).map(|copy| place + copy * self.parts);
                quote!([#(made.optional(#copies)?),*])
            }
        };
        quote!(#name: #value)
    }
}

impl Calls<'_> {
    pub(super) fn field(&self, tensor: &Tensor) -> Field {
        let rank = tensor.dims.len();
        let (of, parts, axis) = match &tensor.elem {
            ElemType::OfAxis { axis } => {
                let of = axis_tensor(axis);
                let arms =
                    self.ir.axes.iter().filter(|it| it.name == *axis).flat_map(|it| &it.arms);
                let parts = arms.map(|arm| arm.parts.len()).max().unwrap_or(1);
                (quote!(#of<#rank>), parts, Some(axis.clone()))
            }
            ElemType::Scalar { elem } => (tensor_type(name_of(elem), rank), 1, None),
            ElemType::Bits { .. } => (tensor_type("bits", rank), 1, None),
        };
        let in_all =
            self.selected.iter().all(|ir| ir.tensors.iter().any(|it| it.name == tensor.name));
        let presence = match tensor.copies {
            copies if copies > 1 => Presence::Copies(usize::try_from(copies).unwrap_or(1)),
            _ if tensor.optional || !in_all => Presence::Optional,
            _ => Presence::Required,
        };
        let may_be_left_out = self.ir.may_be_left_out(&tensor.name);
        Field {
            name: format_ident!("{}", tensor.name),
            doc: format!(" `{}`", text::tensor(tensor)),
            of,
            presence,
            is_open: (tensor.optional && !may_be_left_out) || tensor.copies > 1,
            axis,
            axis_index: self.axis_index(&tensor.elem),
            parts,
            is_window: tensor.memory == Memory::Window,
            may_be_left_out,
        }
    }

    /// Memory that direct channels bring their small fields to.
    pub(super) fn records(&self) -> Vec<Field> {
        let direct = self.ir.channels.iter().filter(|it| it.kind.traits().lands);
        let field = |channel: &crate::ir::Channel| Field {
            name: format_ident!("{}_records", channel.name),
            doc: format!(" Where the small fields of `{}` arrive, in the window.", channel.name),
            of: tensor_type("u8", 1),
            presence: Presence::Optional,
            is_open: false,
            axis: None,
            axis_index: 0,
            parts: 1,
            is_window: true,
            may_be_left_out: false,
        };
        direct.map(field).collect()
    }

    pub(super) fn inputs(&self) -> TokenStream {
        if self.inputs.is_empty() {
            return TokenStream::new();
        }
        let fields = self.inputs.iter().map(Field::declared);
        let offers = self.offers();
        quote! {
            /// What a call reads.
            #[derive(Debug, Clone)]
            pub struct Inputs { #(#fields,)* }
            #offers
        }
    }

    /// Memory in the window for inputs that peers read where they lie.
    fn offers(&self) -> TokenStream {
        let offered = || self.with_places(&self.inputs, 0).filter(|(field, _)| field.is_window);
        if offered().next().is_none() {
            return TokenStream::new();
        }
        let fields = offered().map(|(field, _)| field.declared());
        let made = offered().map(|(field, place)| field.made(place));
        quote! {
            /// Inputs in the window, where peers reach them.
            #[derive(Debug, Clone)]
            pub struct Offers { #(#fields,)* }

            impl Kernel {
                /// Memory in the window for the inputs that peers reach, as large as the shape says.
                pub fn offers(
                    &self,
                    rank: usize,
                ) -> ::std::result::Result<Offers, ::ep_runtime::error::CallError> {
                    let made = self.core.memory(rank)?;
                    ::std::result::Result::Ok(Offers { #(#made,)* })
                }
            }
        }
    }

    pub(super) fn outputs(&self) -> TokenStream {
        if self.outputs.is_empty() {
            return TokenStream::new();
        }
        let first = self.inputs.iter().map(|field| field.places().len()).sum();
        let fields = self.outputs.iter().map(Field::declared);
        let made = self.with_places(&self.outputs, first).map(|(field, place)| field.made(place));
        quote! {
            /// What a call writes.
            #[derive(Debug, Clone)]
            pub struct Outputs { #(#fields,)* }

            impl Kernel {
                /// Memory for all outputs, as large as the shape says.
                pub fn outputs(
                    &self,
                    rank: usize,
                ) -> ::std::result::Result<Outputs, ::ep_runtime::error::CallError> {
                    let made = self.core.memory(rank)?;
                    ::std::result::Result::Ok(Outputs { #(#made,)* })
                }
            }
        }
    }

    /// The fields with their first places.
    fn with_places<'f>(
        &self,
        fields: &'f [Field],
        first: usize,
    ) -> impl Iterator<Item = (&'f Field, usize)> {
        fields.iter().scan(first, |next, field| {
            let place = *next;
            *next += field.places().len();
            Some((field, place))
        })
    }

    /// `gives` for each field: its tensors at their places.
    pub(super) fn gives(fields: &[Field], from: &str) -> TokenStream {
        let from = format_ident!("{from}");
        let gives = fields.iter().map(|field| {
            let name = &field.name;
            quote!(::ep_runtime::__private::Give::give(&#from.#name, to);)
        });
        gives.collect()
    }

    /// Whether some input that every call brings says what a size is.
    pub(super) fn is_told(&self, size: &Size) -> bool {
        let tells = |tensor: &Tensor| {
            let first = tensor.dims.first();
            let is_input =
                tensor.kind == TensorKind::Input && !tensor.optional && tensor.copies == 1;
            is_input && first.is_some_and(|dim| is_size(dim, &size.name))
        };
        self.selected.iter().all(|ir| ir.tensors.iter().any(tells))
    }
}

fn tensor_type(elem: &str, rank: usize) -> TokenStream {
    let elem = elem_type(elem, Span::call_site());
    quote!(::ep_runtime::__private::DeviceTensor<#elem, #rank>)
}

/// The type of a table of one element type.
pub(super) fn table_tensor(table: &Tensor) -> TokenStream {
    let elem = match &table.elem {
        ElemType::Scalar { elem } => name_of(elem),
        ElemType::Bits { .. } | ElemType::OfAxis { .. } => "bits",
    };
    tensor_type(elem, table.dims.len())
}

/// The name of an element type in a declaration.
pub(super) fn name_of(elem: &Elem) -> &'static str {
    text::elem(elem)
}

/// The Rust type that stands for an element type.
pub(super) fn elem_type(name: &str, span: Span) -> TokenStream {
    let own = match name {
        "bool" | "u8" | "i8" | "i32" | "i64" | "f32" => {
            let name = Ident::new(name, span);
            return quote_spanned!(span=> ::core::primitive::#name);
        }
        "bf16" => "Bf16",
        "e4m3" => "E4m3",
        "ue8m0" => "Ue8m0",
        "bits" => "Bits",
        _ => "Composite",
    };
    let own = Ident::new(own, span);
    quote_spanned!(span=> ::ep_runtime::__private::#own)
}
