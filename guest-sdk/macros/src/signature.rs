//! What an attribute needs to know of the function under it.

use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{Attribute, Expr, FnArg, GenericArgument, Ident, ItemFn, Lit, Meta, Pat, PathArguments, ReturnType, Type};

/// A function's name, arguments, result and documentation.
pub struct Signature<'a> {
    pub ident: &'a Ident,
    /// Name and type of each argument.
    pub inputs: Vec<(String, &'a Type)>,
    pub output: Option<&'a Type>,
    /// The first line of the documentation.
    pub about: String,
    function: &'a ItemFn,
}

impl<'a> Signature<'a> {
    /// Refuses what the host can't call, pointing at it.
    pub fn parse(function: &'a ItemFn) -> syn::Result<Self> {
        let sig = &function.sig;
        if let Some(generic) = sig.generics.type_params().next() {
            return Err(syn::Error::new_spanned(generic, "the host calls one function, not a family: give the types"));
        }
        if let Some(token) = &sig.asyncness {
            return Err(syn::Error::new_spanned(token, "the host calls it and waits: it can't be async"));
        }
        let inputs = sig.inputs.iter().enumerate().map(|(i, input)| argument(i, input)).collect::<syn::Result<_>>()?;
        let output = match &sig.output {
            ReturnType::Default => None,
            ReturnType::Type(_, output) => Some(output.as_ref()),
        };
        Ok(Signature { ident: &sig.ident, inputs, output, about: first_line(&function.attrs), function })
    }

    /// The type returned on success: `T` of `T` or of `Result<T, E>`.
    pub fn success(&self, usage: &str) -> syn::Result<&'a Type> {
        let output = self.output.ok_or_else(|| syn::Error::new_spanned(&self.function.sig, usage))?;
        match result_of(output) {
            None => Ok(output),
            Some(success) => success.ok_or_else(|| syn::Error::new_spanned(output, usage)),
        }
    }

    /// `call` as a `Result<T, String>`.
    pub fn as_result(&self, call: Tokens, usage: &str) -> syn::Result<Tokens> {
        self.success(usage)?;
        let fallible = self.output.and_then(result_of).is_some();
        Ok(if fallible {
            quote!(#call.map_err(|e| ::std::string::ToString::to_string(&e)))
        } else {
            quote!(::core::result::Result::Ok(#call))
        })
    }
}

fn argument(index: usize, input: &FnArg) -> syn::Result<(String, &Type)> {
    match input {
        FnArg::Receiver(receiver) => Err(syn::Error::new_spanned(receiver, "the host calls functions, not methods")),
        FnArg::Typed(typed) => {
            let name = match typed.pat.as_ref() {
                Pat::Ident(ident) => ident.ident.to_string().trim_start_matches("r#").to_owned(),
                _ => format!("argument_{index}"),
            };
            Ok((name, typed.ty.as_ref()))
        }
    }
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

fn first_line(attributes: &[Attribute]) -> String {
    let line = attributes.iter().filter(|a| a.path().is_ident("doc")).find_map(|a| match &a.meta {
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    line.unwrap_or_default().trim().to_owned()
}
