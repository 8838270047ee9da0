//! Expansion of `#[task]`.

use proc_macro2::{Span, TokenStream as Tokens};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{Attribute, Expr, ExprLit, FnArg, Ident, Index, ItemFn, Lit, Meta, Type, parse_str};

use crate::signature::{GeneratorItems, Signature};
use crate::span::at;

/// Maximum number of parameters: `Task::submit` has as many implementations.
const ARGUMENTS_MAX: usize = 12;
/// Maximum number of results: `Handles` has as many implementations.
const RETURNS_MAX: usize = 8;

/// Expands to the function itself and a type of the same name that submits it.
pub fn expand(function: &ItemFn, args: Tokens) -> syn::Result<Tokens> {
    let signature = Signature::of_function(
        function,
        "a task can't be async, only methods of an actor can: wait with `get` instead",
    )?;
    check_arguments("task", &function.sig, &signature)?;
    let Expansion { handles, output, run, definition, pool } = match signature.items()? {
        Some(items) => expand_generator(function, &signature, args, &items)?,
        None => expand_plain(function, &signature, args)?,
    };
    let (ident, name) = (signature.ident, &signature.name);
    let (names, types): (Vec<_>, Vec<_>) = signature.inputs.iter().cloned().unzip();
    let conditions: Vec<&Attribute> = function.attrs.iter().filter(|a| a.path().is_ident("cfg")).collect();
    let (vis, submits) = (&function.vis, format!("Submits [`{name}`](fn@{name})."));
    let (own, submit_type) = (identifiers(&names, ident.span()), types.iter().map(submit_type));
    let as_function = quote!(fn(#(#types),*) -> #output);
    Ok(quote! {
        #function
        #(#conditions)*
        #[doc = #submits]
        #[allow(non_camel_case_types, reason = "it has the function's name")]
        #vis enum #ident {}
        #(#conditions)*
        const _: () = {
            #run
            static __SANDBAR_TASK: ::sandbar_guest::__private::TaskDefinition = #definition;
            ::sandbar_guest::__private::inventory::submit!(&__SANDBAR_TASK);
            impl #ident {
                /// Submits a remote call with these arguments: values, or objects in place of values.
                #[allow(dead_code, clippy::too_many_arguments, reason = "the function determines it")]
                #vis fn submit(#(#own: #submit_type),*) -> #handles {
                    ::sandbar_guest::__private::Task::<#as_function, #handles>::new(&__SANDBAR_TASK).submit(#(#own),*)
                }

                #pool

                /// Options of a call, if they differ from the defaults: one processor and nothing else.
                #[allow(dead_code, reason = "most calls use the default options")]
                #vis fn options() -> ::sandbar_guest::Submission<#as_function, #handles> {
                    ::sandbar_guest::Submission::new(&__SANDBAR_TASK)
                }
            }
        };
    })
}

/// The parts in which tasks and generators differ.
struct Expansion {
    /// The return type of `submit`.
    handles: Tokens,
    /// The function's return type, as a type that can be named.
    output: Tokens,
    /// The function `__sandbar_run`.
    run: Tokens,
    /// The static task definition.
    definition: Tokens,
    /// The function `pool`, if the task supports it.
    pool: Tokens,
}

/// Expands a task that returns values.
fn expand_plain(function: &ItemFn, signature: &Signature<'_>, args: Tokens) -> syn::Result<Expansion> {
    let values = values(signature, parse_returns(args)?)?;
    let handles = match values.as_slice() {
        [one] => quote!(::sandbar_guest::ObjectRef<#one>),
        several => quote!((#(::sandbar_guest::ObjectRef<#several>),*)),
    };
    let (returned, count) = match values.as_slice() {
        [one] => (text(one), 1),
        several => (text(quote!((#(#several),*))), several.len() as u32),
    };
    let [arguments, results] = locals();
    let call = call(signature, &arguments);
    let call = match signature.output {
        Some(_) => signature.as_result_with(call, "", quote!(::sandbar_guest::__private::report_error))?,
        None => quote!(::core::result::Result::<_, ::std::string::String>::Ok(#call)),
    };
    let return_values = values.iter().enumerate().map(|(i, ty)| {
        let place = (values.len() > 1).then(|| Index::from(i)).map(|i| quote!(.#i));
        quote_spanned!(at(ty)=> ::sandbar_guest::__private::return_value::<#ty>(#results #place)?;)
    });
    let run = quote! {
        fn __sandbar_run(
            #arguments: &::sandbar_guest::__private::Arguments<'_>,
        ) -> ::core::result::Result<(), ::std::string::String> {
            let #results = #call?;
            #(#return_values)*
            ::core::result::Result::Ok(())
        }
    };
    let (name, about, described) = (&signature.name, &signature.about, describe_parameters(signature));
    let definition = quote! {
        ::sandbar_guest::__private::TaskDefinition::new(#name, #about, #described, #returned, #count, __sandbar_run)
    };
    let vis = &function.vis;
    let pool = match (signature.inputs.as_slice(), values.as_slice()) {
        ([(_, one)], [result]) => quote! {
            /// Runs the task for each of many arguments: see [`Pool`](::sandbar_guest::Pool).
            #[allow(dead_code, reason = "most tasks are called without a pool")]
            #vis fn pool<'p>() -> ::sandbar_guest::Pool<'p, #one, #result> {
                Self::options().pool()
            }
        },
        _ => quote!(),
    };
    let output = signature.output.map_or(quote!(()), ToTokens::to_token_stream);
    Ok(Expansion { handles, output, run, definition, pool })
}

/// Expands a generator.
fn expand_generator(
    function: &ItemFn,
    signature: &Signature<'_>,
    args: Tokens,
    items: &GeneratorItems<'_>,
) -> syn::Result<Expansion> {
    let GeneratorItems { ty, value, may_fail } = *items;
    if parse_returns(args.clone())? != 1 {
        return Err(syn::Error::new_spanned(args, "a generator has one result, its stream: remove `returns`"));
    }
    let [arguments, yielded] = locals();
    let call = call(signature, &arguments);
    let yield_item = quote_spanned!(at(value)=> ::sandbar_guest::__private::yield_item::<#value>);
    let yield_item = match may_fail {
        true => {
            quote_spanned!(at(ty)=> #yielded.map_err(::sandbar_guest::__private::report_error).and_then(#yield_item))
        }
        false => quote!(#yield_item(#yielded)),
    };
    let output = &function.sig.output;
    let begin = quote_spanned!(at(output)=> ::std::boxed::Box::new(::core::iter::Iterator::map(#call, |#yielded: #ty| #yield_item)));
    let run = quote! {
        fn __sandbar_run(
            #arguments: &::sandbar_guest::__private::Arguments<'_>,
        ) -> ::core::result::Result<::sandbar_guest::__private::GeneratorItems, ::std::string::String> {
            ::core::result::Result::Ok(#begin)
        }
    };
    let (name, about, described, items) =
        (&signature.name, &signature.about, describe_parameters(signature), text(value));
    let definition = quote! {
        ::sandbar_guest::__private::TaskDefinition::generator(#name, #about, #described, #items, __sandbar_run)
    };
    let handles = quote!(::sandbar_guest::ObjectStream<#value>);
    Ok(Expansion { output: handles.clone(), handles, run, definition, pool: quote!() })
}

/// Variable names. With the macro's own hygiene, a user's tasks of the same names could shadow them.
fn locals() -> [Ident; 2] {
    ["__sandbar_arguments", "__sandbar_results"].map(|name| format_ident!("{name}"))
}

/// A call of the function with its decoded arguments.
fn call(signature: &Signature<'_>, arguments: &Ident) -> Tokens {
    let ident = signature.ident;
    let values = signature.inputs.iter().enumerate();
    let values = values.map(|(i, (_, ty))| quote_spanned!(at(ty)=> #arguments.take::<#ty>(#i)?));
    quote!(#ident(#(#values),*))
}

/// Name and type of each parameter.
fn describe_parameters(signature: &Signature<'_>) -> Tokens {
    let described = signature.inputs.iter().map(|(name, ty)| {
        let ty = text(*ty);
        quote!((#name, #ty))
    });
    quote!(&[#(#described),*])
}

/// Parameter names as identifiers.
pub fn identifiers(names: &[String], span: Span) -> Vec<Ident> {
    let own = |name: &String| parse_str(name).unwrap_or_else(|_| Ident::new_raw(name, span));
    names.iter().map(own).collect()
}

/// The parameter type of `submit` for a parameter of this type.
pub fn submit_type(ty: &impl ToTokens) -> Tokens {
    quote_spanned!(at(ty)=> impl ::core::convert::Into<::sandbar_guest::Arg<#ty>>)
}

/// Rejects parameters that can't be sent to another process.
pub fn check_arguments(context: &str, sig: &syn::Signature, signature: &Signature<'_>) -> syn::Result<()> {
    if let Some(lifetime) = sig.generics.params.first() {
        let message = format!("a {context} can't borrow its arguments: they come from another process");
        return Err(syn::Error::new_spanned(lifetime, message));
    }
    for (_, ty) in &signature.inputs {
        match ty {
            Type::Reference(reference) => {
                let own = text(&*reference.elem);
                let own = match own.as_str() {
                    "str" => "String".to_owned(),
                    own => own
                        .strip_prefix('[')
                        .and_then(|o| o.strip_suffix(']'))
                        .map_or(own.to_owned(), |item| format!("Vec<{item}>")),
                };
                let message =
                    format!("a {context} can't borrow its arguments: they come from another process; take `{own}`");
                return Err(syn::Error::new_spanned(ty, message));
            }
            Type::ImplTrait(_) => {
                return Err(syn::Error::new_spanned(ty, "the function can't be generic: use concrete types"));
            }
            _ => {}
        }
    }
    let typed = |input: &&FnArg| matches!(input, FnArg::Typed(_));
    if let Some(over) = sig.inputs.iter().filter(typed).nth(ARGUMENTS_MAX) {
        let message = format!("a {context} takes at most {ARGUMENTS_MAX} arguments: combine some in a struct");
        return Err(syn::Error::new_spanned(over, message));
    }
    Ok(())
}

/// Parses `N` of `returns = N`; 1 by default.
fn parse_returns(args: Tokens) -> syn::Result<usize> {
    if args.is_empty() {
        return Ok(1);
    }
    let expected = "expected `returns = N`, the number of values in the task's tuple";
    let literal = match syn::parse2(args)? {
        Meta::NameValue(pair) if pair.path.is_ident("returns") => match pair.value {
            Expr::Lit(ExprLit { lit: Lit::Int(literal), .. }) => literal,
            other => return Err(syn::Error::new_spanned(other, expected)),
        },
        other => return Err(syn::Error::new_spanned(other, expected)),
    };
    match literal.base10_parse()? {
        count if (1..=RETURNS_MAX).contains(&count) => Ok(count),
        _ => Err(syn::Error::new_spanned(literal, format!("a task returns 1 to {RETURNS_MAX} objects"))),
    }
}

/// The types of the results, each of which becomes an object.
fn values(signature: &Signature<'_>, count: usize) -> syn::Result<Vec<Type>> {
    let unit: Type = syn::parse_quote!(());
    let success = match signature.output {
        Some(_) => signature.success("a task returns a value or a Result of one")?,
        None => &unit,
    };
    match success {
        one if count == 1 => Ok(vec![one.clone()]),
        Type::Tuple(tuple) if tuple.elems.len() == count => Ok(tuple.elems.iter().cloned().collect()),
        other => {
            let message =
                format!("`returns = {count}`, but `{}` does not return a tuple of {count} values", signature.name);
            Err(match signature.output {
                Some(_) => syn::Error::new_spanned(other, message),
                None => syn::Error::new_spanned(signature.ident, message),
            })
        }
    }
}

/// The usual notation of a type.
pub fn text(ty: impl ToTokens) -> String {
    let spaced = ty.to_token_stream().to_string();
    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut text = String::with_capacity(spaced.len());
    let mut rest = spaced.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            ' ' if !(word(text.chars().last()) && word(rest.peek().copied())) => {}
            ',' => text.push_str(", "),
            c => text.push(c),
        }
    }
    text
}
