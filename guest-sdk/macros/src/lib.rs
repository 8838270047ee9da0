//! The attributes of `sandbar-guest`: each leaves the function as it is and
//! announces it to the host beside it.

mod signature;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote, quote_spanned};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{ItemFn, LitStr, Token, parse_macro_input};

use signature::Signature;

/// Turns a function of plain values into a scalar function over columns.
///
/// Arguments are numbers, `bool`, `Timestamp`, `&str`, `String`, `&[f64]` (lists) or an `Option` of
/// these; each is a column. It returns one such value (a list as `Vec<f64>`), an `Option` of it, or
/// a `Result`. A row in which an argument that is no `Option` is null gives null and is not computed.
#[proc_macro_attribute]
pub fn scalar(args: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    let args = Tokens::from(args);
    expand(function, |f| {
        if !args.is_empty() {
            return Err(syn::Error::new_spanned(&args, "#[scalar] takes no arguments"));
        }
        expand_scalar(f)
    })
}

/// Turns a function from record batch to record batch into a batch function.
///
/// It takes a `RecordBatch` and, if it likes, parameters (any `serde::Deserialize`, by value or by
/// reference), and returns a `RecordBatch` or a `Result` of one. `#[batch(columns("a", "b"))]` names
/// the columns it needs: no others are read.
#[proc_macro_attribute]
pub fn batch(args: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    let args = Tokens::from(args);
    expand(function, |f| expand_batch(f, args))
}

/// Turns a function from group to model into a trainer.
///
/// It takes a `&Group` and, if it likes, parameters (any `serde::Deserialize`, by value or by
/// reference), and returns a `Model` or a `Result` of one.
#[proc_macro_attribute]
pub fn trainer(args: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    let args = Tokens::from(args);
    expand(function, |f| {
        if !args.is_empty() {
            return Err(syn::Error::new_spanned(&args, "#[trainer] takes no arguments"));
        }
        expand_trainer(f)
    })
}

/// The function as it was, with its announcement or with what is wrong with it.
fn expand(function: ItemFn, announce: impl FnOnce(&ItemFn) -> syn::Result<Tokens>) -> TokenStream {
    let announcement = announce(&function).unwrap_or_else(|e| e.to_compile_error());
    quote! {
        #function
        #announcement
    }
    .into()
}

fn expand_scalar(function: &ItemFn) -> syn::Result<Tokens> {
    let signature = Signature::parse(function)?;
    let output = signature.output.as_ref().ok_or_else(|| {
        syn::Error::new_spanned(&function.sig, "a scalar function returns the value of a row; add `-> T`")
    })?;
    if signature.inputs.is_empty() {
        return Err(syn::Error::new_spanned(&function.sig, "a scalar function takes at least one column"));
    }
    let (name, about) = (signature.ident, &signature.about);
    let literal = name.to_string();
    let names = signature.inputs.iter().map(|(n, _)| n);
    let types: Vec<_> = signature.inputs.iter().map(|(_, t)| t).collect();
    let columns: Vec<_> = (0..types.len()).map(|i| format_ident!("column_{i}")).collect();
    // Spans of the user's types, so that an unsupported one is pointed at.
    let argument = types
        .iter()
        .map(|t| quote_spanned!(t.span()=> <#t as ::sandbar_guest::__private::Argument>))
        .collect::<Vec<_>>();
    let returned = quote_spanned!(output.span()=> <#output as ::sandbar_guest::__private::Return>);
    Ok(quote! {
        const _: () = {
            struct Announced;
            impl ::sandbar_guest::__private::Scalar for Announced {
                type Output = #output;
                const NAME: &'static str = #literal;
                const WIDTHS: &'static [::core::option::Option<usize>] = &[#(#argument::WIDTH),*];
                fn evaluate(
                    chunk: &::sandbar_guest::__private::Chunk<'_>,
                    out: &mut #returned::Column,
                ) -> ::core::result::Result<(), (usize, ::std::string::String)> {
                    let mut validities: ::std::vec::Vec<&[u8]> = ::std::vec::Vec::new();
                    let mut at = 0;
                    #(
                        if !#argument::NULLABLE {
                            validities.push(chunk.validity(at));
                        }
                        let #columns = chunk.column::<#types>(&mut at);
                    )*
                    let mask = ::sandbar_guest::__private::mask(&validities);
                    #returned::extend(out, chunk.rows(), mask.as_deref(), |row| #name(#(#argument::get(&#columns, row)),*))
                }
            }
            fn arguments() -> ::std::vec::Vec<::sandbar_guest::__private::Field> {
                ::std::vec![#(#argument::field(#names)),*]
            }
            ::sandbar_guest::__private::inventory::submit!(::sandbar_guest::__private::Function::scalar::<Announced>(#about, arguments));
        };
    })
}

fn expand_batch(function: &ItemFn, args: Tokens) -> syn::Result<Tokens> {
    let columns = parse_columns(args)?;
    let signature = Signature::parse(function)?;
    let (params, call) = with_params(
        function,
        &signature,
        "a batch function takes a RecordBatch and, if it likes, parameters",
        |p| quote!(batch, #p),
    )?;
    let call = signature.as_result(call, "a batch function returns a RecordBatch or a Result of one")?;
    let (name, about) = (signature.ident.to_string(), &signature.about);
    Ok(quote! {
        const _: () = {
            struct Announced;
            impl ::sandbar_guest::__private::Batch for Announced {
                type Params = #params;
                fn call(
                    batch: ::sandbar_guest::__private::RecordBatch,
                    params: &#params,
                ) -> ::core::result::Result<::sandbar_guest::__private::RecordBatch, ::std::string::String> {
                    #call
                }
            }
            fn arguments() -> ::std::vec::Vec<::sandbar_guest::__private::Field> {
                ::std::vec![#(::sandbar_guest::__private::any(#columns)),*]
            }
            ::sandbar_guest::__private::inventory::submit!(::sandbar_guest::__private::Function::batch::<Announced>(#name, #about, arguments));
        };
    })
}

fn expand_trainer(function: &ItemFn) -> syn::Result<Tokens> {
    let signature = Signature::parse(function)?;
    let (params, call) = with_params(
        function,
        &signature,
        "a trainer takes a &Group and, if it likes, parameters",
        |p| quote!(group, #p),
    )?;
    let model = signature.success("a trainer returns its model or a Result of one")?;
    let call = signature.as_result(call, "a trainer returns its model or a Result of one")?;
    let (name, about) = (signature.ident.to_string(), &signature.about);
    Ok(quote! {
        const _: () = {
            struct Announced;
            impl ::sandbar_guest::__private::Trainer for Announced {
                type Params = #params;
                type Model = #model;
                fn fit(
                    group: &::sandbar_guest::Group<'_>,
                    params: &#params,
                ) -> ::core::result::Result<#model, ::std::string::String> {
                    #call
                }
            }
            ::sandbar_guest::__private::inventory::submit!(::sandbar_guest::__private::Function::trainer::<Announced>(#name, #about));
        };
    })
}

/// The type of the second argument (a map that ignores its content when there
/// is none) and the call with it.
fn with_params(
    function: &ItemFn,
    signature: &Signature<'_>,
    usage: &str,
    arguments: impl FnOnce(Tokens) -> Tokens,
) -> syn::Result<(Tokens, Tokens)> {
    let name = signature.ident;
    let (params, passed) = match signature.inputs.as_slice() {
        [_] => (quote!(::sandbar_guest::__private::NoParams), quote!()),
        [_, (_, syn::Type::Reference(by_reference))] => {
            let params = &by_reference.elem;
            (quote!(#params), quote!(params))
        }
        [_, (_, by_value)] => (quote!(#by_value), quote!(::core::clone::Clone::clone(params))),
        _ => return Err(syn::Error::new_spanned(&function.sig.inputs, usage)),
    };
    let arguments = arguments(passed);
    Ok((params, quote!(#name(#arguments))))
}

fn parse_columns(args: Tokens) -> syn::Result<Vec<LitStr>> {
    if args.is_empty() {
        return Ok(Vec::new());
    }
    let list: syn::MetaList = syn::parse2(args)?;
    if !list.path.is_ident("columns") {
        return Err(syn::Error::new_spanned(&list.path, "expected columns(\"name\", …)"));
    }
    Ok(list.parse_args_with(Punctuated::<LitStr, Token![,]>::parse_terminated)?.into_iter().collect())
}
