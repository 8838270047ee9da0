//! What an attribute needs to know of the function under it.

use proc_macro2::{Span, TokenStream as Tokens};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Attribute, Expr, FnArg, GenericArgument, GenericParam, Ident, ItemFn, Lifetime, Lit, Meta, Pat, PatType,
    PathArguments, ReturnType, Type, TypeParamBound,
};

/// Why what the host calls can't be async.
const WAITED_FOR: &str = "the host calls it and waits: it can't be async";

/// A function's name, arguments, result and documentation.
pub struct Signature<'a> {
    pub ident: &'a Ident,
    /// The name as people read it, without `r#`.
    pub name: String,
    /// Name and type of each argument.
    pub inputs: Vec<(String, &'a Type)>,
    pub output: Option<&'a Type>,
    /// The first line of the documentation.
    pub about: String,
    sig: &'a syn::Signature,
}

/// What a generator yields.
pub struct Items<'a> {
    /// `T` of `impl Iterator<Item = T>`.
    pub of: &'a Type,
    /// The same, or, if that is a `Result`, what it is of.
    pub value: &'a Type,
    pub may_fail: bool,
}

impl<'a> Signature<'a> {
    /// Refuses what the host can't call, pointing at it.
    pub fn parse(function: &'a ItemFn) -> syn::Result<Self> {
        Self::of_function(function, WAITED_FOR)
    }

    /// As above, with why it can't be async.
    pub fn of_function(function: &'a ItemFn, waited_for: &str) -> syn::Result<Self> {
        let sig = &function.sig;
        let signature = Self::of_any(sig, &function.attrs)?;
        if let Some(token) = &sig.asyncness {
            return Err(syn::Error::new_spanned(token, waited_for));
        }
        match sig.receiver() {
            Some(receiver) => Err(syn::Error::new_spanned(receiver, "the host calls functions, not methods")),
            None => Ok(signature),
        }
    }

    /// Of a function or a method, whose receiver is none of its arguments. It may be async.
    pub fn of_any(sig: &'a syn::Signature, attrs: &[Attribute]) -> syn::Result<Self> {
        if let Some(generic) = sig.generics.params.iter().find(|p| !matches!(p, GenericParam::Lifetime(_))) {
            return Err(syn::Error::new_spanned(generic, "the host calls one function, not a family: give the types"));
        }
        if let Some(token) = &sig.unsafety {
            return Err(syn::Error::new_spanned(token, "the host has nothing to promise: it can't be unsafe"));
        }
        let inputs = sig.inputs.iter().filter_map(|input| match input {
            FnArg::Receiver(_) => None,
            FnArg::Typed(typed) => Some(typed),
        });
        let inputs = inputs.enumerate().map(|(i, typed)| argument(i, typed)).collect::<syn::Result<_>>()?;
        let output = match &sig.output {
            ReturnType::Default => None,
            ReturnType::Type(_, output) => Some(output.as_ref()),
        };
        let name = sig.ident.unraw().to_string();
        Ok(Signature { ident: &sig.ident, name, inputs, output, about: first_line(attrs), sig })
    }

    /// Whether it may wait by `.await`.
    pub fn is_async(&self) -> bool {
        self.sig.asyncness.is_some()
    }

    /// What it yields, if it is a generator.
    pub fn items(&self) -> syn::Result<Option<Items<'a>>> {
        let Some(output) = self.output else { return Ok(None) };
        let wrong = |message: &str| Err(syn::Error::new_spanned(output, message));
        if result_of(output).flatten().is_some_and(|success| iterator_of(success).is_some()) {
            return wrong("an item may be an error, the generator is none: `impl Iterator<Item = Result<T, E>>`");
        }
        let Some(arguments) = iterator_of(output) else {
            return match output {
                Type::ImplTrait(_) => {
                    wrong("a task returns a value, or a generator's items: `impl Iterator<Item = T>`")
                }
                _ => Ok(None),
            };
        };
        let item = match arguments {
            PathArguments::AngleBracketed(arguments) => arguments.args.iter().find_map(|argument| match argument {
                GenericArgument::AssocType(of) if of.ident == "Item" => Some(&of.ty),
                _ => None,
            }),
            _ => None,
        };
        let Some(of) = item else { return wrong("what are its items? `impl Iterator<Item = T>`") };
        match result_of(of) {
            None => Ok(Some(Items { of, value: of, may_fail: false })),
            Some(Some(value)) => Ok(Some(Items { of, value, may_fail: true })),
            Some(None) => Err(syn::Error::new_spanned(of, "an item is a value or a Result of one: `Result<T, E>`")),
        }
    }

    /// The type returned on success: `T` of `T` or of `Result<T, E>`.
    pub fn success(&self, usage: &str) -> syn::Result<&'a Type> {
        let output = self.output.ok_or_else(|| syn::Error::new_spanned(self.sig, usage))?;
        match result_of(output) {
            None => Ok(output),
            Some(success) => success.ok_or_else(|| syn::Error::new_spanned(output, usage)),
        }
    }

    /// `call` as a `Result<T, String>`.
    pub fn as_result(&self, call: Tokens, usage: &str) -> syn::Result<Tokens> {
        self.as_result_with(call, usage, quote!(|e| ::std::string::ToString::to_string(&e)))
    }

    /// As above, with how an error becomes a `String`.
    pub fn as_result_with(&self, call: Tokens, usage: &str, failed: Tokens) -> syn::Result<Tokens> {
        let success = self.success(usage)?;
        let output = self.output.unwrap_or(success);
        let span = output.span().resolved_at(Span::call_site());
        Ok(match result_of(output) {
            Some(_) => quote_spanned!(span=> #call.map_err(#failed)),
            None => quote_spanned!(span=> ::core::result::Result::<_, ::std::string::String>::Ok(#call)),
        })
    }
}

fn argument(index: usize, typed: &PatType) -> syn::Result<(String, &Type)> {
    if let Some(condition) = typed.attrs.iter().find(|a| a.path().is_ident("cfg")) {
        let message = "the host passes all arguments or none: put the condition at the function";
        return Err(syn::Error::new_spanned(condition, message));
    }
    let name = match typed.pat.as_ref() {
        Pat::Ident(ident) => ident.ident.unraw().to_string(),
        _ => format!("argument_{index}"),
    };
    Ok((name, typed.ty.as_ref()))
}

/// For `impl Iterator<Item = T>`, the bound's arguments.
fn iterator_of(output: &Type) -> Option<&PathArguments> {
    let Type::ImplTrait(of) = output else { return None };
    let mut bounds = of.bounds.iter().filter_map(|bound| match bound {
        TypeParamBound::Trait(bound) => bound.path.segments.last(),
        _ => None,
    });
    bounds.find(|last| last.ident == "Iterator").map(|last| &last.arguments)
}

/// For a `Result`, its first argument, if it has one.
fn result_of(output: &Type) -> Option<Option<&Type>> {
    let Type::Path(path) = output else { return None };
    let last = path.path.segments.last().filter(|s| s.ident == "Result")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return Some(None) };
    Some(arguments.args.iter().find_map(|a| match a {
        GenericArgument::Type(success) => Some(success),
        _ => None,
    }))
}

/// What to put for the lifetimes of a type.
#[derive(Debug, Clone, Copy)]
pub enum Lifetimes {
    /// `'static`: a type that can be named anywhere.
    Static,
    /// `'_`: whatever fits.
    Inferred,
}

/// The type with other lifetimes in its references and arguments.
pub fn with_lifetimes(of: &Type, lifetimes: Lifetimes) -> Type {
    let mut of = of.clone();
    replace(&mut of, lifetimes);
    of
}

fn replace(of: &mut Type, lifetimes: Lifetimes) {
    let lifetime = |span: Span| match lifetimes {
        Lifetimes::Static => Lifetime::new("'static", span),
        Lifetimes::Inferred => Lifetime::new("'_", span),
    };
    match of {
        Type::Reference(reference) => {
            reference.lifetime = Some(lifetime(reference.and_token.span));
            replace(&mut reference.elem, lifetimes);
        }
        Type::Paren(inner) => replace(&mut inner.elem, lifetimes),
        Type::Group(inner) => replace(&mut inner.elem, lifetimes),
        Type::Slice(slice) => replace(&mut slice.elem, lifetimes),
        Type::Path(path) => {
            for segment in &mut path.path.segments {
                let PathArguments::AngleBracketed(arguments) = &mut segment.arguments else { continue };
                for argument in &mut arguments.args {
                    match argument {
                        GenericArgument::Lifetime(own) => *own = lifetime(own.span()),
                        GenericArgument::Type(inner) => replace(inner, lifetimes),
                        _ => {}
                    }
                }
            }
        }
        _ => {}
    }
}

fn first_line(attributes: &[Attribute]) -> String {
    let texts = attributes.iter().filter(|a| a.path().is_ident("doc")).filter_map(|a| match &a.meta {
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    // Of a comment between `/**` and `*/` all is one text, and each line of it may start with a star.
    let line = |text: String| {
        text.lines().map(|line| line.trim().trim_start_matches('*').trim().to_owned()).find(|line| !line.is_empty())
    };
    texts.into_iter().find_map(line).unwrap_or_default()
}
