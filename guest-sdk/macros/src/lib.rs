//! The attributes of `sandbar-guest`. Each keeps the function and generates its registration with the host.

mod actor;
mod signature;
mod span;
mod task;

use proc_macro::TokenStream;
use proc_macro2::{Span, TokenStream as Tokens};
use quote::{quote, quote_spanned};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Ident, Item, ItemFn, LitStr, Token, parse_macro_input};

use signature::{Lifetimes, Signature, with_lifetimes};
use span::at;

/// Makes a function of plain values a scalar function over columns.
///
/// Parameters are numbers, `bool`, `Date`, `Timestamp`, `&str`, `String`, `&[f64]` (lists) or an `Option` of these;
/// each is a column. The function returns one such value (a list as `Vec<f64>` or `&[f64]`), an `Option` of it, or a
/// `Result` of either, whose errors implement `Display`. A row with a null in a parameter that is not an `Option` gives
/// null, without a call.
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

/// Makes a function from record batch to record batch a batch function.
///
/// It takes a `RecordBatch` and optionally parameters (any `serde::Deserialize`, by value or by reference), and returns
/// a `RecordBatch` or a `Result` of one. `#[batch(columns("a", "b"))]` names the columns that it needs; the host reads
/// no others.
#[proc_macro_attribute]
pub fn batch(args: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    let args = Tokens::from(args);
    expand(function, |f| expand_batch(f, args))
}

/// Makes a function from group to model a trainer.
///
/// It takes a `&Group` and optionally parameters (any `serde::Deserialize`, by value or by reference), and returns a
/// `Model` or a `Result` of one.
///
/// `#[trainer(together = function)]` names a function that fits many groups at once, for jobs with a `device`. It takes
/// `&Groups` and a reference to the parameters, and returns a `Vec<Option<Model>>`. Groups with `None` are fitted one
/// by one.
#[proc_macro_attribute]
pub fn trainer(args: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    let args = Tokens::from(args);
    expand(function, |f| {
        let together = match args.is_empty() {
            true => None,
            false => Some(syn::parse2::<TogetherArgument>(args.clone())?.0),
        };
        expand_trainer(f, together.as_ref())
    })
}

/// Makes a function a task: a type of the same name submits it. The function itself stays callable.
///
/// Its parameters are values: owned types that implement `serde::Serialize` and `serde::Deserialize`, or a `Batch`. It
/// returns a value, or a `Result` of one whose errors implement `Display`. With `#[task(returns = 2)]` it returns a
/// tuple of two values (up to eight), and `submit` returns a tuple of two handles.
///
/// A task that returns `impl Iterator<Item = T>` is a generator: `submit` returns an `ObjectStream<T>`, whose items can
/// be taken while the generator runs. If `T` is a `Result`, an error is the last item.
///
/// ```text
/// #[task]
/// fn add(a: i64, b: i64) -> i64 {
///     a + b
/// }
///
/// let five = add::submit(2, 3); // an ObjectRef<i64>
/// let nine = add::submit(&five, 4);
/// assert_eq!(nine.get()?, add(5, 4));
/// ```
#[proc_macro_attribute]
pub fn task(args: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    match task::expand(&function, args.into()) {
        Ok(task) => task.into(),
        Err(e) => {
            let error = e.to_compile_error();
            quote!(#function #error).into()
        }
    }
}

/// Makes the public methods of an `impl` those of an actor: `NameHandle` calls them remotely. The `impl` itself stays.
///
/// `pub fn new` creates the actor: `Name::submit` takes its arguments, runs it in a sandbox of its own, and returns a
/// `NameHandle`. A method takes `&self` or `&mut self`, and values as a `#[task]` does. A method with `&mut self` has
/// exclusive access until it returns. A method with `&self` may be `async`: while it waits for an object
/// (`object.await`), other such methods run. `pub fn checkpoint(&self)` and `pub fn restore(saved: …)` save the actor
/// and recreate it from the saved value. A function that is not `pub` is not a method of the actor.
///
/// ```text
/// #[actor]
/// impl Counter {
///     pub fn new(start: i64) -> Counter {
///         Counter { count: start }
///     }
///
///     pub fn add(&mut self, n: i64) -> i64 {
///         self.count += n;
///         self.count
///     }
/// }
///
/// let counter = Counter::submit(5); // a CounterHandle
/// let eight = counter.add(3); // an ObjectRef<i64>
/// ```
#[proc_macro_attribute]
pub fn actor(args: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as Item);
    let args = Tokens::from(args);
    let expanded = match args.is_empty() {
        true => actor::expand(&item),
        false => Err(syn::Error::new_spanned(
            &args,
            "#[actor] takes no arguments: the arguments of the actor are those of `new`",
        )),
    };
    let expanded = expanded.unwrap_or_else(|e| e.to_compile_error());
    quote!(#item #expanded).into()
}

/// The function itself, followed by its registration or its error.
fn expand(function: ItemFn, register: impl FnOnce(&ItemFn) -> syn::Result<Tokens>) -> TokenStream {
    let conditions = function.attrs.iter().filter(|a| a.path().is_ident("cfg"));
    let registration = match register(&function) {
        Ok(registration) => quote! {
            #(#conditions)*
            const _: () = { #registration };
        },
        Err(e) => e.to_compile_error(),
    };
    quote! {
        #function
        #registration
    }
    .into()
}

fn expand_scalar(function: &ItemFn) -> syn::Result<Tokens> {
    let signature = Signature::parse(function)?;
    let Some(output) = signature.output else {
        return Err(syn::Error::new_spanned(&function.sig, "a scalar function returns the value of a row; add `-> T`"));
    };
    if signature.inputs.is_empty() {
        return Err(syn::Error::new_spanned(&function.sig, "a scalar function takes at least one column"));
    }
    let (ident, name, about) = (signature.ident, &signature.name, &signature.about);
    let names: Vec<_> = signature.inputs.iter().map(|(n, _)| n).collect();
    let types: Vec<_> = signature.inputs.iter().map(|(_, t)| with_lifetimes(t, Lifetimes::Static)).collect();
    let output = with_lifetimes(output, Lifetimes::Static);
    let columns: Vec<_> = (0..types.len()).map(|i| local(&format!("column_{i}"))).collect();
    let validities: Vec<_> = (0..types.len()).map(|i| local(&format!("validity_{i}"))).collect();
    let [chunk, out, at_buffer, mask, row] = ["chunk", "out", "at", "mask", "row"].map(local);
    let argument: Vec<_> =
        types.iter().map(|t| quote_spanned!(at(t)=> <#t as ::sandbar_guest::__private::Argument>)).collect();
    Ok(quote! {
        struct __SandbarFunction;
        impl ::sandbar_guest::__private::Scalar for __SandbarFunction {
            type Output = #output;
            const NAME: &'static str = #name;
            const WIDTHS: &'static [::core::option::Option<usize>] = &[#(#argument::WIDTH),*];
            fn evaluate(
                #chunk: &::sandbar_guest::__private::Chunk<'_>,
                #out: &mut ::sandbar_guest::__private::ColumnOf<Self>,
            ) -> ::core::result::Result<(), ::std::string::String> {
                let mut #at_buffer = 0;
                #(let (#validities, #columns) = #chunk.column::<#types>(#names, &mut #at_buffer)?;)*
                let #mask = ::sandbar_guest::__private::mask(&[#(#validities),*]);
                ::sandbar_guest::__private::gather(#out, #chunk.rows(), #mask.as_deref(), |#row| #ident(#(#argument::get(&#columns, #row)),*))
            }
        }
        fn __sandbar_arguments() -> ::std::vec::Vec<::sandbar_guest::__private::Field> {
            ::std::vec![#(#argument::field(#names)),*]
        }
        ::sandbar_guest::__private::inventory::submit!(::sandbar_guest::__private::Function::scalar::<__SandbarFunction>(#about, __sandbar_arguments));
    })
}

/// An identifier that can't collide with the user's names.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

fn expand_batch(function: &ItemFn, args: Tokens) -> syn::Result<Tokens> {
    let columns = parse_columns(args)?;
    let signature = Signature::parse(function)?;
    let usage = "a batch function takes a RecordBatch and, optionally, parameters";
    let (params, call) =
        call_with_params(function, &signature, usage, "a batch function returns a RecordBatch or a Result of one")?;
    let success = signature.success("")?;
    let call = quote_spanned!(at(success)=> #call.map(|out| -> ::sandbar_guest::__private::RecordBatch { out }));
    let (name, about) = (&signature.name, &signature.about);
    let [input, arguments_of_call] = ["input", "params"].map(local);
    let parameters = describe_params(&params);
    Ok(quote! {
        #parameters
        struct __SandbarFunction;
        impl ::sandbar_guest::__private::Batch for __SandbarFunction {
            type Params = #params;
            fn call(
                #input: ::sandbar_guest::__private::RecordBatch,
                #arguments_of_call: &#params,
            ) -> ::core::result::Result<::sandbar_guest::__private::RecordBatch, ::std::string::String> {
                #call
            }
        }
        fn __sandbar_arguments() -> ::std::vec::Vec<::sandbar_guest::__private::Field> {
            ::std::vec![#(::sandbar_guest::__private::any(#columns)),*]
        }
        ::sandbar_guest::__private::inventory::submit!(::sandbar_guest::__private::Function::batch::<__SandbarFunction>(#name, #about, __sandbar_arguments, __sandbar_parameters));
    })
}

/// The argument `together = function`.
struct TogetherArgument(syn::Path);

impl syn::parse::Parse for TogetherArgument {
    fn parse(input: syn::parse::ParseStream<'_>) -> syn::Result<TogetherArgument> {
        let named: syn::MetaNameValue = input.parse()?;
        let wrong = || syn::Error::new_spanned(&named, "the only argument of #[trainer] is `together = function`");
        match &named.value {
            syn::Expr::Path(function) if named.path.is_ident("together") && input.is_empty() => {
                Ok(TogetherArgument(function.path.clone()))
            }
            _ => Err(wrong()),
        }
    }
}

fn expand_trainer(function: &ItemFn, together: Option<&syn::Path>) -> syn::Result<Tokens> {
    let signature = Signature::parse(function)?;
    let returns = "a trainer returns its model or a Result of one";
    let usage = "a trainer takes a &Group and, optionally, parameters";
    let (params, call) = call_with_params(function, &signature, usage, returns)?;
    let model = signature.success(returns)?;
    let (name, about) = (&signature.name, &signature.about);
    let [input, arguments_of_call] = ["input", "params"].map(local);
    let together = together.map(|together| {
        quote! {
            const TOGETHER: ::core::option::Option<::sandbar_guest::__private::FitTogether<#params, #model>> =
                ::core::option::Option::Some(#together);
        }
    });
    let parameters = describe_params(&params);
    Ok(quote! {
        #parameters
        struct __SandbarFunction;
        impl ::sandbar_guest::__private::Trainer for __SandbarFunction {
            type Params = #params;
            type Model = #model;
            fn fit(
                #input: &::sandbar_guest::Group<'_>,
                #arguments_of_call: &#params,
            ) -> ::core::result::Result<#model, ::std::string::String> {
                #call
            }
            #together
        }
        ::sandbar_guest::__private::inventory::submit!(::sandbar_guest::__private::Function::trainer::<__SandbarFunction>(#name, #about, __sandbar_parameters));
    })
}

/// A function that describes parameters of this type, with their defaults if the type implements `Serialize`.
fn describe_params(params: &Tokens) -> Tokens {
    quote! {
        #[allow(unused_imports, reason = "the type determines which of the traits is used")]
        fn __sandbar_parameters() -> ::std::vec::Vec<::sandbar_guest::__private::Parameter> {
            use ::sandbar_guest::__private::{NoDescription as _, WithDefaults as _, WithoutDefaults as _};
            (&&::sandbar_guest::__private::Describe::<#params>::NEW).parameters()
        }
    }
}

/// Returns the type of the second parameter (`NoParams` if there is none), and the call with `input` and `params` as a
/// `Result`.
fn call_with_params(
    function: &ItemFn,
    signature: &Signature<'_>,
    usage: &str,
    returns: &str,
) -> syn::Result<(Tokens, Tokens)> {
    let name = signature.ident;
    let own_params = local("params");
    let (input, params, passed) = match signature.inputs.as_slice() {
        [(_, input)] => (input, quote!(::sandbar_guest::__private::NoParams), quote!()),
        [(_, input), (_, syn::Type::Reference(by_reference))] => {
            if by_reference.mutability.is_some() {
                return Err(syn::Error::new_spanned(
                    by_reference,
                    "all calls share the parameters: take them as `&P`, not `&mut P`",
                ));
            }
            let params = &by_reference.elem;
            (input, quote!(#params), quote!(#own_params))
        }
        [(_, input), (_, by_value)] => {
            let passed = quote_spanned!(at(by_value)=> ::core::clone::Clone::clone(#own_params));
            (input, quote!(#by_value), passed)
        }
        _ => return Err(syn::Error::new_spanned(&function.sig, usage)),
    };
    // A mismatch is reported at the user's type.
    let input_type = with_lifetimes(input, Lifetimes::Inferred);
    let own_input = Ident::new("input", Span::mixed_site().located_at(input.span()));
    let input = quote_spanned!(at(input)=> { let own: #input_type = #own_input; own });
    let call = signature.as_result(quote!(#name(#input, #passed)), returns)?;
    Ok((params, call))
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
