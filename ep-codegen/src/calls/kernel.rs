//! `prepare` and `launch`, and the numbers that a call brings.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

use super::tensors::{elem_type, name_of, table_tensor};
use super::{Calls, HandleUse, PlaceName};
use crate::ir::{Elem, Number, Size, Tensor};

impl Calls<'_> {
    /// Sizes that calls say.
    fn said(&self) -> impl Iterator<Item = &Size> {
        self.ir.sizes.iter().filter(|size| size.value.is_none())
    }

    fn has_args(&self) -> bool {
        !self.ir.args.is_empty() || self.said().next().is_some()
    }

    pub(super) fn args(&self) -> TokenStream {
        if !self.has_args() {
            return TokenStream::new();
        }
        let (mut fields, mut defaults) = (Vec::new(), Vec::new());
        for arg in self.ir.first_args() {
            let doc = format!(" `{}..={}`", arg.low, arg.high);
            let name = format_ident!("{}", arg.name);
            let of = elem_type(name_of(&arg.elem), proc_macro2::Span::call_site());
            fields.push(quote!(#[doc = #doc] pub #name: #of));
            defaults.push(match arg.default {
                Number::Whole { value } => quote!(#name: #value as #of),
                Number::Real { bits } => quote!(#name: #of::from_bits(#bits)),
            });
        }
        for size in self.said() {
            let (name, from) =
                (format_ident!("{}", size.name), format_ident!("{}_from", size.name));
            if !self.is_told(size) {
                let doc = format!(" How many `{}` the call has.", size.name);
                fields.push(quote!(#[doc = #doc] pub #name: usize));
                defaults.push(quote!(#name: 0));
            }
            let doc = format!(
                " Where the device finds how many `{}` there are, for a call whose host does not know: \
                 its tensors then say the most that there may be.",
                size.name
            );
            let word = quote!(::ep_runtime::__private::DeviceTensor<::core::primitive::i32, 1>);
            fields.push(quote!(#[doc = #doc] pub #from: ::std::option::Option<#word>));
            defaults.push(quote!(#from: ::std::option::Option::None));
        }
        quote! {
            /// The numbers of a call; the default is that of the declaration.
            #[derive(Debug, Clone)]
            pub struct Args { #(#fields,)* }

            impl ::std::default::Default for Args {
                fn default() -> Self {
                    Args { #(#defaults,)* }
                }
            }
        }
    }

    /// What each tensor's place is, and the list of all places without any tensor.
    pub(super) fn places(&self) -> TokenStream {
        let count = self.names().len();
        let fields = self.inputs.iter().chain(&self.outputs);
        let fields = fields.map(|field| (field.name.clone(), field.given(), field.places().len()));
        let tables = self.all_tables();
        let tables = tables.map(|table| (format_ident!("{}", table.name), table_tensor(table), 1));
        let mut place = 0usize;
        let places = fields.chain(tables).map(|(name, of, takes)| {
            let first = place;
            place += takes;
            quote! {
                pub const #name: ::ep_runtime::__private::Place<#of> =
                    ::ep_runtime::__private::Place::new(#first);
            }
        });
        let places: TokenStream = places.collect();
        quote! {
            /// Where each tensor of a call goes, for callers that have some of them checked once.
            #[doc(hidden)]
            #[allow(
                dead_code,
                missing_docs,
                non_upper_case_globals,
                unused_imports,
                reason = "they are spelled as the tensors are, and few callers name them"
            )]
            pub mod places {
                use super::*;
                #places
            }

            impl Kernel {
                /// The list of all places, without any tensor.
                #[doc(hidden)]
                pub const NO_TENSORS:
                    [::std::option::Option<::ep_runtime::__private::Given<'static>>; #count] =
                    [::std::option::Option::None; #count];
            }
        }
    }

    /// The numbers of a call as words.
    fn numbers(&self) -> TokenStream {
        let args = self.ir.first_args().map(|arg| {
            let name = format_ident!("{}", arg.name);
            match arg.elem {
                Elem::F32 => quote!(u64::from(args.#name.to_bits())),
                Elem::Bool => quote!(u64::from(args.#name)),
                _ => quote!(args.#name as i64 as u64),
            }
        });
        let sizes = self.said().map(|size| {
            let (name, from) =
                (format_ident!("{}", size.name), format_ident!("{}_from", size.name));
            let own = if self.is_told(size) { quote!(0) } else { quote!(args.#name as u64) };
            quote!(args.#from.as_ref().map_or(0, |word| word.address()), #own)
        });
        quote!([#(#args,)* #(#sizes,)*])
    }

    pub(super) fn kernel_type(&self) -> TokenStream {
        let names = self.names().into_iter().map(|PlaceName { name, part, copy }| {
            quote!(::ep_runtime::__private::TensorName { name: #name, part: #part, copy: #copy })
        });
        let dims = self.given_dims().into_iter().map(|(name, ..)| pair(name, &quote!(shape)));
        let sizes = self.ir.sizes.iter().map(|size| pair(&size.name, &quote!(shape)));
        let tunes = self.tune_names();
        let tunes = tunes.into_iter().map(|(name, _)| pair(name, &quote!(options.tunes)));
        let arms = self.ir.axes.iter().map(|axis| {
            let (text, name) = (&axis.name, format_ident!("{}", axis.name));
            quote!((#text, options.#name.name()))
        });
        let open = self.open().map(|field| {
            let (text, name) = (field.name.to_string(), &field.name);
            quote!((#text, usize::from(options.#name)))
        });
        let own_tables = self.own_tables();
        quote! {
            /// The pipeline, compiled and loaded on all local ranks. Clones share one.
            #[derive(Clone)]
            pub struct Kernel {
                #[doc(hidden)]
                pub core: ::ep_runtime::__private::CallKernel,
            }

            impl Kernel {
                /// SMs that a call takes, a block each.
                pub fn sms(&self, call: &::ep_runtime::calls::CallOptions) -> u32 {
                    self.core.sms(call)
                }

                /// What its calls bring, and the choices that `shape` and `options` are.
                #[doc(hidden)]
                pub fn chosen<T>(
                    shape: &Shape,
                    options: &Options,
                    take: impl ::std::ops::FnOnce(&::ep_runtime::__private::PrepareOptions<'_>) -> T,
                ) -> T {
                    take(&::ep_runtime::__private::PrepareOptions {
                        tensors: &[#(#names),*],
                        dims: &[#(#dims),*],
                        sizes: &[#(#sizes),*],
                        arms: &[#(#arms),*],
                        tunes: &[#(#tunes),*],
                        copies: &[#(#open),*],
                        live: options.live,
                    })
                }
                #own_tables
            }
        }
    }

    /// Places for tables that no call has left yet.
    fn own_tables(&self) -> Option<TokenStream> {
        (!self.tables.is_empty()).then(|| {
            quote! {
                /// Tables for calls that write them again, as large as the shape says. They keep one of
                /// `live` places until they are dropped.
                pub fn tables(
                    &self,
                    rank: usize,
                ) -> ::std::result::Result<Handle, ::ep_runtime::error::CallError> {
                    let left = self.core.tables(rank)?;
                    ::std::result::Result::Ok(Handle::left(&self.core, &left))
                }
            }
        })
    }

    pub(super) fn prepare(&self) -> TokenStream {
        let (name, module) = (&self.pipeline.name, self.module());
        quote! {
            impl #name {
                /// Compiles and loads the pipeline on all local ranks, and allocates what its calls take.
                /// All processes of a group prepare the same pipelines in the same order.
                pub fn prepare(
                    group: &::ep_runtime::group::Group,
                    shape: #module::Shape,
                    options: #module::Options,
                ) -> ::std::result::Result<#module::Kernel, ::ep_runtime::error::CallError> {
                    let entry = ::ep_runtime::AnyPipeline::of::<#name>();
                    let core = #module::Kernel::chosen(&shape, &options, |chosen| {
                        ::ep_runtime::__private::CallKernel::prepare(group, entry, chosen)
                    })?;
                    ::std::result::Result::Ok(#module::Kernel { core })
                }
            }
        }
    }

    /// The tensors and numbers of a call as parameters, and their names.
    fn params(&self) -> (Vec<TokenStream>, Vec<TokenStream>) {
        let module = self.module();
        let mut all = Vec::new();
        if !self.inputs.is_empty() {
            all.push((quote!(inputs: &'a #module::Inputs), quote!(inputs)));
        }
        if !self.outputs.is_empty() {
            all.push((quote!(outputs: &'a #module::Outputs), quote!(outputs)));
        }
        for HandleUse { uses, name, is_required, .. } in &self.handles {
            let path = &uses.path;
            let of = quote!(&'a <#(#path)::* as ::ep_runtime::Pipeline>::Handle);
            let param = match is_required {
                true => quote!(#name: #of),
                false => quote!(#name: ::std::option::Option<#of>),
            };
            all.push((param, quote!(#name)));
        }
        if self.has_args() {
            all.push((quote!(args: &'a #module::Args), quote!(args)));
        }
        all.into_iter().unzip()
    }

    pub(super) fn launch(&self) -> TokenStream {
        let (module, (params, passed), bound) = (self.module(), self.params(), self.bound());
        let first_phase = self.first_phase();
        quote! {
            #[allow(
                clippy::too_many_arguments,
                clippy::unnecessary_cast,
                clippy::needless_lifetimes,
                clippy::let_unit_value,
                dead_code,
                unused_variables,
                unused_mut,
                reason = "each declaration has some of these"
            )]
            impl #module::Kernel {
                /// Launches on one rank, and gives the tables that the call leaves; nothing is launched
                /// if it fails. Every rank makes the same calls in the same order.
                pub fn launch<'a>(
                    &self,
                    rank: usize,
                    call: &::ep_runtime::calls::CallOptions,
                    #(#params,)*
                ) -> ::std::result::Result<#module::Handle, ::ep_runtime::error::CallError> {
                    let into = ::std::option::Option::None;
                    let (given, numbers) = Self::bound(#(#passed,)* into);
                    let left = self.core.launch(rank, call, &given, &numbers)?;
                    ::std::result::Result::Ok(#module::Handle::left(&self.core, &left))
                }

                /// Launches on one rank, and writes the tables of the call to `into`, such as the handle of an
                /// earlier call; nothing is launched if it fails. Every rank makes the same calls in the same
                /// order.
                pub fn launch_into<'a>(
                    &self,
                    rank: usize,
                    call: &::ep_runtime::calls::CallOptions,
                    #(#params,)*
                    into: &'a #module::Handle,
                ) -> ::std::result::Result<(), ::ep_runtime::error::CallError> {
                    let into = ::std::option::Option::Some(into);
                    let (given, numbers) = Self::bound(#(#passed,)* into);
                    self.core.launch(rank, call, &given, &numbers).map(drop)
                }

                /// Checks a call of one rank that writes its tables to `into`, and makes it ready. Nothing is
                /// launched yet.
                #[doc(hidden)]
                pub fn bind_into<'a>(
                    &self,
                    rank: usize,
                    call: &::ep_runtime::calls::CallOptions,
                    #(#params,)*
                    into: &'a #module::Handle,
                ) -> ::std::result::Result<
                    ::ep_runtime::__private::BoundCall<'_>,
                    ::ep_runtime::error::CallError,
                > {
                    let into = ::std::option::Option::Some(into);
                    let (given, numbers) = Self::bound(#(#passed,)* into);
                    self.core.bind(rank, call, &given, &numbers)
                }

                #first_phase
                #bound
            }
        }
    }

    /// The names of the phases, if there are several.
    fn phases(&self) -> Vec<Ident> {
        let phases = self.ir.phases();
        let names = phases.into_iter().flatten().map(|name| format_ident!("{name}"));
        let names: Vec<Ident> = names.collect();
        if names.len() > 1 { names } else { Vec::new() }
    }

    /// The function that launches the first phase alone.
    fn first_phase(&self) -> Option<TokenStream> {
        let (module, (params, passed)) = (self.module(), self.params());
        let name = self.phases().into_iter().next()?;
        let doc = format!(
            " Launches the phase `{name}` alone; the call goes on when its caller says so."
        );
        let name_into = format_ident!("{name}_into");
        let doc_into = format!(
            " As `{name}`, with tables that lie in `into`; what the last phase gives has none of its own."
        );
        Some(quote! {
            #[doc = #doc]
            pub fn #name<'a>(
                &self,
                rank: usize,
                call: &::ep_runtime::calls::CallOptions,
                #(#params,)*
            ) -> ::std::result::Result<#module::Pending, ::ep_runtime::error::CallError> {
                let (given, numbers) = Self::bound(#(#passed,)* ::std::option::Option::None);
                let call = self.core.begin(rank, call, &given, &numbers)?;
                ::std::result::Result::Ok(#module::Pending { call })
            }

            #[doc = #doc_into]
            pub fn #name_into<'a>(
                &self,
                rank: usize,
                call: &::ep_runtime::calls::CallOptions,
                #(#params,)*
                into: &'a #module::Handle,
            ) -> ::std::result::Result<#module::Pending, ::ep_runtime::error::CallError> {
                let into = ::std::option::Option::Some(into);
                let (given, numbers) = Self::bound(#(#passed,)* into);
                let call = self.core.begin(rank, call, &given, &numbers)?;
                ::std::result::Result::Ok(#module::Pending { call })
            }
        })
    }

    /// The call between its phases.
    pub(super) fn pending(&self) -> TokenStream {
        let phases = self.phases();
        if phases.is_empty() {
            return TokenStream::new();
        }
        let last = phases.len() - 1;
        let later = phases.iter().enumerate().skip(1).map(|(index, name)| {
            let doc = format!(" Launches the phase `{name}`, on any stream.");
            let (of, value) = match index == last {
                true => {
                    (quote!(Handle), quote!(Handle::left(self.call.left().0, self.call.left().1)))
                }
                false => (quote!(()), quote!(())),
            };
            quote! {
                #[doc = #doc]
                pub fn #name(
                    &self,
                    call: &::ep_runtime::calls::CallOptions,
                ) -> ::std::result::Result<#of, ::ep_runtime::error::CallError> {
                    self.call.go_on(#index, call)?;
                    ::std::result::Result::Ok(#value)
                }
            }
        });
        quote! {
            /// A call between its phases, with the memory that it needs. Its phases follow one another,
            /// each once, before the next call of the rank.
            pub struct Pending {
                #[doc(hidden)]
                pub call: ::ep_runtime::__private::PhasedCall,
            }

            impl Pending { #(#later)* }
        }
    }

    /// The handle of what a call has left.
    pub(super) fn left(&self) -> TokenStream {
        let first = self.names().len() - self.tables.len();
        let tables = self.tables.iter().enumerate().map(|(index, table)| {
            let (name, place) = (format_ident!("{}", table.name), first + index);
            quote!(#name: core.table(left, #place))
        });
        quote! {
            impl Handle {
                #[doc(hidden)]
                #[allow(clippy::needless_update, unused_variables, reason = "some have no tables")]
                pub fn left(
                    core: &::ep_runtime::__private::CallKernel,
                    left: &::ep_runtime::__private::LeftTables,
                ) -> Handle {
                    Handle { #(#tables,)* ..::std::default::Default::default() }
                }
            }
        }
    }

    /// What a call gives: its tensors at their places, and its numbers.
    fn bound(&self) -> TokenStream {
        let (module, (params, _), count) = (self.module(), self.params(), self.names().len());
        let (given, numbers) = (self.given(), self.numbers());
        let words = self.ir.first_args().count() + 2 * self.said().count();
        let args = self.has_args().then(|| quote!(args: &#module::Args));
        let passed = self.has_args().then(|| quote!(args));
        quote! {
            /// The numbers of a call as words.
            #[doc(hidden)]
            pub fn numbers(#args) -> [u64; #words] {
                #numbers
            }

            fn bound<'a>(
                #(#params,)*
                into: ::std::option::Option<&'a #module::Handle>,
            ) -> ([::std::option::Option<::ep_runtime::__private::Given<'a>>; #count], [u64; #words])
            {
                let mut given = [::std::option::Option::None; #count];
                let to = &mut given.iter_mut();
                #given
                (given, Self::numbers(#passed))
            }
        }
    }

    /// Statements that put each tensor at its place.
    fn given(&self) -> TokenStream {
        let inputs = Calls::gives(&self.inputs, "inputs");
        let outputs = Calls::gives(&self.outputs, "outputs");
        let tables = self.all_tables().map(|table| self.give_table(&table.name));
        quote!(#inputs #outputs #(#tables)*)
    }

    /// Gives a table of this call, or of a handle.
    fn give_table(&self, table: &str) -> TokenStream {
        let has = |tables: &[&Tensor]| tables.iter().any(|it| it.name == table);
        let name = format_ident!("{table}");
        let own = has(&self.tables).then(|| quote!(into.map(|into| &into.#name)));
        let handles = self.handles.iter().filter(|it| has(&it.tables)).map(|of| {
            let handle = &of.name;
            match of.is_required {
                true => quote!(::std::option::Option::Some(&#handle.#name)),
                false => quote!(#handle.map(|handle| &handle.#name)),
            }
        });
        let all = own.into_iter().chain(handles);
        quote!(::ep_runtime::__private::give_first([#(#all),*], to);)
    }
}

/// `("name", from.name)`
fn pair(text: &str, from: &TokenStream) -> TokenStream {
    let name = format_ident!("{text}");
    quote!((#text, #from.#name))
}
