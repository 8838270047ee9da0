//! The parts of a function that an attribute needs.

use proc_macro2::{Span, TokenStream as Tokens};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{
    Attribute, Expr, FnArg, GenericArgument, GenericParam, Ident, ItemFn, Lifetime, Lit, Meta, Pat, PatType,
    PathArguments, ReturnType, Type, TypeParamBound,
};

use crate::span::at;

/// Error for an async function.
const WAITED_FOR: &str = "this function can't be async: the host waits for its result";

/// A function's name, arguments, result and documentation.
pub struct Signature<'a> {
    pub ident: &'a Ident,
    /// Name without `r#`.
    pub name: String,
    /// Name and type of each parameter.
    pub inputs: Vec<(String, &'a Type)>,
    pub output: Option<&'a Type>,
    /// First line of the documentation.
    pub about: String,
    sig: &'a syn::Signature,
}

/// The items of a generator.
pub struct GeneratorItems<'a> {
    /// `T` of `impl Iterator<Item = T>`.
    pub ty: &'a Type,
    /// `T`, or its success type if `T` is a `Result`.
    pub value: &'a Type,
    pub may_fail: bool,
}

impl<'a> Signature<'a> {
    /// Parses a function. Rejects one that the host can't call, with an error at the offending token.
    pub fn parse(function: &'a ItemFn) -> syn::Result<Self> {
        Self::of_function(function, WAITED_FOR)
    }

    /// Like `parse`, with the error for an async function.
    pub fn of_function(function: &'a ItemFn, waited_for: &str) -> syn::Result<Self> {
        let sig = &function.sig;
        let signature = Self::of_any(sig, &function.attrs)?;
        if let Some(token) = &sig.asyncness {
            return Err(syn::Error::new_spanned(token, waited_for));
        }
        match sig.receiver() {
            Some(receiver) => Err(syn::Error::new_spanned(
                receiver,
                "the host can't call a method: move the function out of the `impl`",
            )),
            None => Ok(signature),
        }
    }

    /// Parses a function or a method, which may be async. The receiver is not part of `inputs`.
    pub fn of_any(sig: &'a syn::Signature, attrs: &[Attribute]) -> syn::Result<Self> {
        if let Some(generic) = sig.generics.params.iter().find(|p| !matches!(p, GenericParam::Lifetime(_))) {
            return Err(syn::Error::new_spanned(generic, "the function can't be generic: use concrete types"));
        }
        if let Some(token) = &sig.unsafety {
            return Err(syn::Error::new_spanned(
                token,
                "the function can't be unsafe: the host guarantees no safety conditions",
            ));
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

    /// Returns whether the function is async.
    pub fn is_async(&self) -> bool {
        self.sig.asyncness.is_some()
    }

    /// Returns the items of a generator; none for other functions.
    pub fn items(&self) -> syn::Result<Option<GeneratorItems<'a>>> {
        let Some(output) = self.output else { return Ok(None) };
        let wrong = |message: &str| Err(syn::Error::new_spanned(output, message));
        if result_of(output).flatten().is_some_and(|success| iterator_of(success).is_some()) {
            return wrong(
                "a generator can't fail as a whole, only its items can: return `impl Iterator<Item = Result<T, E>>`",
            );
        }
        let Some(arguments) = iterator_of(output) else {
            return match output {
                Type::ImplTrait(_) => wrong("a task returns a value, or `impl Iterator<Item = T>` to be a generator"),
                _ => Ok(None),
            };
        };
        let item = match arguments {
            PathArguments::AngleBracketed(arguments) => arguments.args.iter().find_map(|argument| match argument {
                GenericArgument::AssocType(ty) if ty.ident == "Item" => Some(&ty.ty),
                _ => None,
            }),
            _ => None,
        };
        let Some(ty) = item else {
            return wrong("the iterator's item type is missing: write `impl Iterator<Item = T>`");
        };
        match result_of(ty) {
            None => Ok(Some(GeneratorItems { ty, value: ty, may_fail: false })),
            Some(Some(value)) => Ok(Some(GeneratorItems { ty, value, may_fail: true })),
            Some(None) => Err(syn::Error::new_spanned(ty, "an item is a value or a `Result<T, E>`")),
        }
    }

    /// The success type: `T` of `T` or of `Result<T, E>`.
    pub fn success(&self, usage: &str) -> syn::Result<&'a Type> {
        let output = self.output.ok_or_else(|| syn::Error::new_spanned(self.sig, usage))?;
        match result_of(output) {
            None => Ok(output),
            Some(success) => success.ok_or_else(|| syn::Error::new_spanned(output, usage)),
        }
    }

    /// Wraps `call` as a `Result<T, String>`.
    pub fn as_result(&self, call: Tokens, usage: &str) -> syn::Result<Tokens> {
        self.as_result_with(call, usage, quote!(|e| ::std::string::ToString::to_string(&e)))
    }

    /// Like `as_result`, with the function that converts an error to a `String`.
    pub fn as_result_with(&self, call: Tokens, usage: &str, failed: Tokens) -> syn::Result<Tokens> {
        let success = self.success(usage)?;
        let output = self.output.unwrap_or(success);
        let span = at(output);
        Ok(match result_of(output) {
            Some(_) => quote_spanned!(span=> #call.map_err(#failed)),
            None => quote_spanned!(span=> ::core::result::Result::<_, ::std::string::String>::Ok(#call)),
        })
    }
}

fn argument(index: usize, typed: &PatType) -> syn::Result<(String, &Type)> {
    if let Some(condition) = typed.attrs.iter().find(|a| a.path().is_ident("cfg")) {
        let message = "a single parameter can't be conditional: put the `#[cfg]` on the function";
        return Err(syn::Error::new_spanned(condition, message));
    }
    let name = match typed.pat.as_ref() {
        Pat::Ident(ident) => ident.ident.unraw().to_string(),
        _ => format!("argument_{index}"),
    };
    Ok((name, typed.ty.as_ref()))
}

/// The arguments of `Iterator` in `impl Iterator<Item = T>`.
fn iterator_of(output: &Type) -> Option<&PathArguments> {
    let Type::ImplTrait(ty) = output else { return None };
    let mut bounds = ty.bounds.iter().filter_map(|bound| match bound {
        TypeParamBound::Trait(bound) => bound.path.segments.last(),
        _ => None,
    });
    bounds.find(|last| last.ident == "Iterator").map(|last| &last.arguments)
}

/// The first argument of a `Result`, if any; none for other types.
fn result_of(output: &Type) -> Option<Option<&Type>> {
    let Type::Path(path) = output else { return None };
    let last = path.path.segments.last().filter(|s| s.ident == "Result")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return Some(None) };
    Some(arguments.args.iter().find_map(|a| match a {
        GenericArgument::Type(success) => Some(success),
        _ => None,
    }))
}

/// The replacement for a type's lifetimes.
#[derive(Debug, Clone, Copy)]
pub enum Lifetimes {
    /// `'static`, for a type that is named elsewhere.
    Static,
    /// `'_`, inferred by the compiler.
    Inferred,
}

/// Replaces the lifetimes in the type's references and arguments.
pub fn with_lifetimes(ty: &Type, lifetimes: Lifetimes) -> Type {
    let mut ty = ty.clone();
    replace(&mut ty, lifetimes);
    ty
}

fn replace(ty: &mut Type, lifetimes: Lifetimes) {
    let lifetime = |span: Span| match lifetimes {
        Lifetimes::Static => Lifetime::new("'static", span),
        Lifetimes::Inferred => Lifetime::new("'_", span),
    };
    match ty {
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
    // A block comment `/** … */` is one text, whose lines may start with a star.
    let line = |text: String| {
        text.lines().map(|line| line.trim().trim_start_matches('*').trim().to_owned()).find(|line| !line.is_empty())
    };
    texts.into_iter().find_map(line).unwrap_or_default()
}
