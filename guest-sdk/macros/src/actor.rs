//! Expansion of `#[actor]`.

use proc_macro2::{Group, TokenStream as Tokens, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{Attribute, Ident, ImplItem, ImplItemFn, Item, ItemImpl, PathArguments, Receiver, Type, Visibility};

use crate::signature::Signature;
use crate::span::at;
use crate::task::{check_arguments, identifiers, submit_type, text};

/// Names of generated functions.
const RESERVED_NAMES: [&str; 2] = ["submit", "options"];

/// The kind of an actor's function.
#[derive(Clone, Copy, PartialEq)]
enum FunctionKind {
    New,
    Restore,
    Checkpoint,
    /// Takes `&mut self`: exclusive access.
    Exclusive,
    /// Takes `&self`: shared access.
    Shared,
}

impl FunctionKind {
    fn task_kind(self) -> Ident {
        format_ident!(
            "{}",
            match self {
                FunctionKind::New => "Make",
                FunctionKind::Restore => "Restore",
                FunctionKind::Checkpoint => "Checkpoint",
                FunctionKind::Exclusive => "Method",
                FunctionKind::Shared => "Shared",
            }
        )
    }
}

/// The actor's type.
struct Actor<'a> {
    ty: &'a Type,
    /// The last segment of its path.
    name: &'a Ident,
}

/// A public function of an actor.
struct ActorFunction<'a> {
    function: &'a ImplItemFn,
    kind: FunctionKind,
    signature: Signature<'a>,
    /// Types of the arguments and of the success value, with `Self` replaced.
    types: Vec<Type>,
    success: Type,
    /// Name of the static task definition.
    definition: Ident,
}

/// Expands to the definitions of the actor's functions and its handle type. The caller keeps the `impl` itself.
pub fn expand(item: &Item) -> syn::Result<Tokens> {
    let Item::Impl(item) = item else {
        return Err(syn::Error::new_spanned(item, "#[actor] applies to an inherent `impl Name { … }` block"));
    };
    let actor = Actor::parse(item)?;
    let functions = functions(&actor, item)?;
    check_hooks(&actor, &functions)?;
    let conditions = conditions(&item.attrs);
    let (ty, name) = (actor.ty, actor.name.unraw().to_string());
    let handle = format_ident!("{}Handle", name, span = actor.name.span());
    let definitions =
        functions.iter().map(|function| function.expand_definition(&actor)).collect::<syn::Result<Vec<_>>>()?;
    let constructors = functions
        .iter()
        .filter(|function| function.kind == FunctionKind::New)
        .map(|function| function.expand_constructor(&handle, &name));
    let methods = functions
        .iter()
        .filter(|m| matches!(m.kind, FunctionKind::Exclusive | FunctionKind::Shared))
        .map(|m| m.expand_method(&name));
    let (about, text) = (format!("A handle to a [`{name}`] in a sandbox of its own."), format!("{name}Handle({{}})"));
    Ok(quote! {
        #(#conditions)*
        #[doc = #about]
        ///
        /// A handle is a value like any other: tasks and actors take and return it. The actor lives as long as a handle
        /// to it exists.
        #[derive(Clone)]
        pub struct #handle(::sandbar_guest::__private::ActorRef);
        #(#conditions)*
        const _: () = {
            #(#definitions)*
            impl #ty {
                #(#constructors)*
            }
            #[allow(dead_code, private_interfaces, clippy::too_many_arguments, reason = "the actor's methods determine it")]
            impl #handle {
                #(#methods)*
            }
            impl ::sandbar_guest::ActorHandle for #handle {
                fn from_actor(actor: ::sandbar_guest::__private::ActorRef) -> Self {
                    #handle(actor)
                }
                fn as_actor(&self) -> &::sandbar_guest::__private::ActorRef {
                    &self.0
                }
            }
            impl ::core::fmt::Debug for #handle {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    ::core::write!(f, #text, self.0.number())
                }
            }
            impl ::sandbar_guest::__private::serde::Serialize for #handle {
                fn serialize<S: ::sandbar_guest::__private::serde::Serializer>(
                    &self,
                    serializer: S,
                ) -> ::core::result::Result<S::Ok, S::Error> {
                    ::sandbar_guest::__private::serde::Serialize::serialize(&self.0, serializer)
                }
            }
            impl<'de> ::sandbar_guest::__private::serde::Deserialize<'de> for #handle {
                fn deserialize<D: ::sandbar_guest::__private::serde::Deserializer<'de>>(
                    deserializer: D,
                ) -> ::core::result::Result<Self, D::Error> {
                    ::sandbar_guest::__private::serde::Deserialize::deserialize(deserializer).map(#handle)
                }
            }
        };
    })
}

impl<'a> Actor<'a> {
    fn parse(item: &'a ItemImpl) -> syn::Result<Self> {
        let refused = |at: &dyn ToTokens, message: &str| Err(syn::Error::new_spanned(at, message));
        if let Some(token) = &item.unsafety {
            return refused(token, "an actor can't be unsafe: the host guarantees no safety conditions");
        }
        if let Some((_, ty, _)) = &item.trait_ {
            return refused(ty, "an actor's methods can't be those of a trait: use an inherent `impl Name { … }`");
        }
        if let Some(generic) = item.generics.params.first() {
            return refused(generic, "an actor can't be generic: use concrete types");
        }
        let last = match item.self_ty.as_ref() {
            Type::Path(path) if path.qself.is_none() => path.path.segments.last(),
            _ => None,
        };
        match last {
            Some(last) if matches!(last.arguments, PathArguments::None) => {
                Ok(Actor { ty: &item.self_ty, name: &last.ident })
            }
            Some(last) => refused(&last.arguments, "an actor's type can't have generic arguments: wrap it in a struct"),
            None => refused(&item.self_ty, "an actor must be a struct or an enum of this crate"),
        }
    }

    /// Replaces `Self`, so that the type can be named outside the `impl`.
    fn replace_self(&self, ty: &Type) -> syn::Result<Type> {
        syn::parse2(replace_self_tokens(ty.to_token_stream(), self.ty))
    }
}

/// Parses all public functions, or returns all their errors.
fn functions<'a>(actor: &Actor<'a>, item: &'a ItemImpl) -> syn::Result<Vec<ActorFunction<'a>>> {
    let candidates = item.items.iter().filter_map(|item| match item {
        ImplItem::Fn(function) => Some(function),
        _ => None,
    });
    let (mut functions, mut wrong) = (Vec::new(), None::<syn::Error>);
    for (place, function) in candidates.enumerate() {
        match ActorFunction::parse(actor, function, place) {
            Ok(function) => functions.extend(function),
            Err(error) => match &mut wrong {
                Some(before) => before.combine(error),
                None => wrong = Some(error),
            },
        }
    }
    wrong.map_or(Ok(functions), Err)
}

/// Rejects an actor without `new`, or with only one of `checkpoint` and `restore`.
fn check_hooks(actor: &Actor<'_>, functions: &[ActorFunction<'_>]) -> syn::Result<()> {
    let find = |kind: FunctionKind| functions.iter().find(|function| function.kind == kind);
    if find(FunctionKind::New).is_none() {
        return Err(syn::Error::new_spanned(actor.ty, "an actor needs a constructor: add `pub fn new(…) -> Self`"));
    }
    match (find(FunctionKind::Checkpoint), find(FunctionKind::Restore)) {
        (None, None) => Ok(()),
        (None, Some(restore)) => {
            Err(restore.wrong("`restore` needs a `checkpoint`: add `pub fn checkpoint(&self) -> …`"))
        }
        (Some(checkpoint), None) => {
            Err(checkpoint.wrong("`checkpoint` needs a `restore`: add `pub fn restore(saved: …) -> Self`"))
        }
        (Some(checkpoint), Some(restore)) => {
            let [takes] = &restore.types[..] else {
                return Err(restore.wrong("`restore` takes one argument: the result of `checkpoint`"));
            };
            let (saved, restored) = (text(&checkpoint.success), text(takes));
            let message = format!("`restore` must take the result of `checkpoint`, `{saved}`");
            if saved == restored {
                Ok(())
            } else {
                Err(syn::Error::new_spanned(restore.signature.inputs[0].1, message))
            }
        }
    }
}

impl<'a> ActorFunction<'a> {
    /// None for a private function.
    fn parse(actor: &Actor<'a>, function: &'a ImplItemFn, place: usize) -> syn::Result<Option<Self>> {
        let sig = &function.sig;
        let name = sig.ident.unraw().to_string();
        if RESERVED_NAMES.contains(&name.as_str()) {
            let message = format!("`{}::{name}` is generated by #[actor]: rename this function", actor.name);
            return Err(syn::Error::new_spanned(&sig.ident, message));
        }
        if !matches!(function.vis, Visibility::Public(_)) {
            return Ok(None);
        }
        let signature = Signature::of_any(sig, &function.attrs)?;
        if let Some(ty @ Type::ImplTrait(_)) = signature.output {
            let message = "a method can't be a generator, only a #[task] can: return a value or a `Result`";
            return Err(syn::Error::new_spanned(ty, message));
        }
        let kind = function_kind(&name, function)?;
        check_arguments("method", sig, &signature)?;
        let types = signature.inputs.iter().map(|(_, ty)| actor.replace_self(ty)).collect::<syn::Result<_>>()?;
        let success = match signature.output {
            None => syn::parse_quote!(()),
            Some(_) => actor.replace_self(signature.success("a method returns a value or a Result of one")?)?,
        };
        let definition = format_ident!("__SANDBAR_TASK_{place}");
        let function = ActorFunction { function, kind, signature, types, success, definition };
        if matches!(kind, FunctionKind::New | FunctionKind::Restore) && text(&function.success) != text(actor.ty) {
            return Err(match function.signature.output {
                Some(output) => {
                    syn::Error::new_spanned(output, format!("`{name}` must return `Self` or a `Result` of it"))
                }
                None => function.wrong(&format!("`{name}` must return the actor: add `-> Self`")),
            });
        }
        Ok(Some(function))
    }

    fn wrong(&self, message: &str) -> syn::Error {
        syn::Error::new_spanned(&self.function.sig.ident, message)
    }

    fn conditions(&self) -> Vec<&'a Attribute> {
        conditions(&self.function.attrs)
    }

    /// The static definition of the task, with the function that runs it.
    fn expand_definition(&self, actor: &Actor<'_>) -> syn::Result<Tokens> {
        let ActorFunction { kind, signature, types, success, definition, .. } = self;
        let (conditions, task_kind, about) = (self.conditions(), kind.task_kind(), &signature.about);
        let name = format!("{}.{}", actor.name.unraw(), signature.name);
        let names = signature.inputs.iter().map(|(name, _)| name);
        let texts = types.iter().map(text);
        let returns = match kind {
            FunctionKind::New | FunctionKind::Restore => text(actor.ty),
            _ => text(success),
        };
        let run = format_ident!("__sandbar_run");
        let (body, returned, entry_point) = match (kind, signature.is_async()) {
            (FunctionKind::Shared, true) => {
                (self.async_body(actor)?, quote!(::sandbar_guest::__private::CallFuture), quote!(Async))
            }
            _ => (self.blocking_body(actor)?, quote!(()), quote!(Blocking)),
        };
        let arguments = format_ident!("__sandbar_arguments");
        Ok(quote! {
            #(#conditions)*
            static #definition: ::sandbar_guest::__private::TaskDefinition = {
                fn #run(
                    #arguments: &::sandbar_guest::__private::Arguments<'_>,
                ) -> ::core::result::Result<#returned, ::std::string::String> {
                    #body
                }
                ::sandbar_guest::__private::TaskDefinition::actor_function(
                    #name,
                    ::sandbar_guest::__private::TaskKind::#task_kind,
                    #about,
                    &[#((#names, #texts)),*],
                    #returns,
                    ::sandbar_guest::__private::EntryPoint::#entry_point(#run),
                )
            };
            #(#conditions)*
            ::sandbar_guest::__private::inventory::submit!(&#definition);
        })
    }

    /// The body that runs the function to its end.
    fn blocking_body(&self, actor: &Actor<'_>) -> syn::Result<Tokens> {
        let (ty, success) = (actor.ty, &self.success);
        let [arguments, results, state] = names();
        let values: Vec<Tokens> = self.decoded_arguments().collect();
        let return_value = quote_spanned!(at(success)=> ::sandbar_guest::__private::return_value::<#success>(#results));
        Ok(match self.kind {
            FunctionKind::New | FunctionKind::Restore => {
                let call = self.call(actor, quote!(#(#values),*))?;
                quote!(::sandbar_guest::__private::store_actor::<#ty>(#call?))
            }
            FunctionKind::Checkpoint | FunctionKind::Shared => {
                let call = self.call(actor, quote!(&#state #(, #values)*))?;
                quote! {
                    let #state = ::sandbar_guest::__private::shared_state::<#ty>()?;
                    let #results = #call?;
                    #return_value
                }
            }
            FunctionKind::Exclusive => {
                let call = self.call(actor, quote!(#state #(, #values)*))?;
                let body = quote!(let #results = #call?; #return_value);
                let body = match self.signature.is_async() {
                    true => quote!(::sandbar_guest::__private::until_done(#arguments.call(), async { #body })),
                    false => body,
                };
                quote!(::sandbar_guest::__private::with_exclusive_state::<#ty, ()>(|#state| { #body }))
            }
        })
    }

    /// The body that creates the function's future, which may wait while other calls run.
    fn async_body(&self, actor: &Actor<'_>) -> syn::Result<Tokens> {
        let (ty, success, values) = (actor.ty, &self.success, self.decoded_arguments());
        let [_, results, state] = names();
        let own: Vec<Ident> = (0..self.types.len()).map(|i| format_ident!("__sandbar_argument_{i}")).collect();
        let call = self.call(actor, quote!(&#state #(, #own)*))?;
        let return_value = quote_spanned!(at(success)=> ::sandbar_guest::__private::return_value::<#success>(#results));
        Ok(quote! {
            let #state = ::sandbar_guest::__private::shared_state::<#ty>()?;
            #(let #own = #values;)*
            ::core::result::Result::Ok(::std::boxed::Box::pin(async move {
                let #results = #call?;
                #return_value
            }))
        })
    }

    /// Expressions that decode the arguments.
    fn decoded_arguments(&self) -> impl Iterator<Item = Tokens> {
        let [arguments, ..] = names();
        let types = self.types.iter().enumerate();
        types.map(move |(i, ty)| quote_spanned!(at(ty)=> #arguments.take::<#ty>(#i)?))
    }

    /// The call, as a `Result`.
    fn call(&self, actor: &Actor<'_>, with: Tokens) -> syn::Result<Tokens> {
        let (ty, ident) = (actor.ty, self.signature.ident);
        let waits = self.signature.is_async().then(|| quote!(.await));
        let call = quote!(<#ty>::#ident(#with)#waits);
        match self.signature.output {
            Some(_) => self.signature.as_result_with(call, "", quote!(::sandbar_guest::__private::report_error)),
            None => Ok(quote!(::core::result::Result::<_, ::std::string::String>::Ok(#call))),
        }
    }

    /// The functions that create the actor remotely.
    fn expand_constructor(&self, handle: &Ident, name: &str) -> Tokens {
        let ActorFunction { types, definition, .. } = self;
        let (conditions, own, submit_type) = (self.conditions(), self.parameter_names(), types.iter().map(submit_type));
        let about = format!("Creates a remote [`{name}`] from these arguments: values, or objects in place of values.");
        let as_function = quote!(fn(#(#types),*));
        quote! {
            #(#conditions)*
            #[doc = #about]
            #[allow(dead_code, private_interfaces, clippy::too_many_arguments, reason = "`new` determines it")]
            pub fn submit(#(#own: #submit_type),*) -> #handle {
                ::sandbar_guest::__private::Task::<#as_function, #handle>::new(&#definition).submit(#(#own),*)
            }

            #(#conditions)*
            /// Options of the actor, if they differ from the defaults.
            #[allow(dead_code, private_interfaces, reason = "most actors use the default options")]
            pub fn options() -> ::sandbar_guest::Creation<#as_function, #handle> {
                ::sandbar_guest::Creation::new(&#definition)
            }
        }
    }

    /// The handle's method that calls the function remotely.
    fn expand_method(&self, actor: &str) -> Tokens {
        let ActorFunction { signature, types, success, definition, .. } = self;
        let (conditions, own, submit_type, ident) =
            (self.conditions(), self.parameter_names(), types.iter().map(submit_type), signature.ident);
        let documented = self.function.attrs.iter().filter(|a| a.path().is_ident("doc"));
        let about = format!("Calls [`{actor}::{}`].", signature.name);
        let results = quote!(::sandbar_guest::ObjectRef<#success>);
        quote! {
            #(#conditions)*
            #(#documented)*
            ///
            #[doc = #about]
            pub fn #ident(&self #(, #own: #submit_type)*) -> #results {
                ::sandbar_guest::__private::Method::<fn(#(#types),*), #results>::new(&#definition, &self.0).submit(#(#own),*)
            }
        }
    }

    fn parameter_names(&self) -> Vec<Ident> {
        let names: Vec<String> = self.signature.inputs.iter().map(|(name, _)| name.clone()).collect();
        identifiers(&names, self.signature.ident.span())
    }
}

/// Variable names. With the macro's own hygiene, a user's tasks of the same names could shadow them.
fn names() -> [Ident; 3] {
    ["__sandbar_arguments", "__sandbar_results", "__sandbar_state"].map(|name| format_ident!("{name}"))
}

fn conditions(attrs: &[Attribute]) -> Vec<&Attribute> {
    attrs.iter().filter(|a| a.path().is_ident("cfg")).collect()
}

/// Returns the kind of a public function, from its name and its receiver.
fn function_kind(name: &str, function: &ImplItemFn) -> syn::Result<FunctionKind> {
    let sig = &function.sig;
    let refused = |at: &dyn ToTokens, message: &str| Err(syn::Error::new_spanned(at, message));
    let hook = match name {
        "new" => Some(FunctionKind::New),
        "restore" => Some(FunctionKind::Restore),
        "checkpoint" => Some(FunctionKind::Checkpoint),
        _ => None,
    };
    if let (Some(_), Some(token)) = (hook, &sig.asyncness) {
        return refused(token, &format!("`{name}` can't be async: it runs alone; wait with `get` instead of `.await`"));
    }
    let by = |receiver: &Receiver| match (&receiver.reference, &receiver.mutability, &receiver.colon_token) {
        (Some(_), None, None) => Some(FunctionKind::Shared),
        (Some(_), Some(_), None) => Some(FunctionKind::Exclusive),
        _ => None,
    };
    let receiver = sig.receiver().map(|receiver| (receiver, by(receiver)));
    match (hook, receiver) {
        (Some(FunctionKind::Checkpoint), Some((_, Some(FunctionKind::Shared)))) if sig.inputs.len() == 1 => {
            Ok(FunctionKind::Checkpoint)
        }
        (Some(FunctionKind::Checkpoint), _) => refused(&sig.inputs, "`checkpoint` takes `&self` and no arguments"),
        (Some(hook), None) => Ok(hook),
        (Some(_), Some((receiver, _))) => {
            refused(receiver, &format!("`{name}` creates the actor, so it can't take `self`"))
        }
        (None, Some((_, Some(kind)))) => Ok(kind),
        (None, Some((receiver, None))) => {
            refused(receiver, "a method can't consume the actor: take `&self` or `&mut self`")
        }
        (None, None) => {
            let message = "an actor's public function without `self` can't be called: make it private or `pub(crate)`";
            refused(&sig.ident, message)
        }
    }
}

/// Replaces `Self` in tokens.
fn replace_self_tokens(tokens: Tokens, ty: &Type) -> Tokens {
    let replaced = tokens.into_iter().map(|token| match token {
        TokenTree::Ident(ident) if ident == "Self" => quote_spanned!(ident.span()=> #ty),
        TokenTree::Group(group) => {
            let mut inner = Group::new(group.delimiter(), replace_self_tokens(group.stream(), ty));
            inner.set_span(group.span());
            TokenTree::from(inner).into()
        }
        other => other.into(),
    });
    replaced.collect()
}
