//! Expansion of `#[actor]`.

use proc_macro2::{Group, TokenStream as Tokens, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{Attribute, Ident, ImplItem, ImplItemFn, Item, ItemImpl, PathArguments, Receiver, Type, Visibility};

use crate::at;
use crate::signature::Signature;
use crate::task::{check_arguments, own, taken_as, text};

/// Names of generated functions.
const TAKEN: [&str; 2] = ["submit", "options"];

/// The kind of an actor's function.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    New,
    Restore,
    Checkpoint,
    /// Takes `&mut self`: exclusive access.
    Alone,
    /// Takes `&self`: shared access.
    Beside,
}

impl Role {
    fn kind(self) -> Ident {
        format_ident!(
            "{}",
            match self {
                Role::New => "Make",
                Role::Restore => "Restore",
                Role::Checkpoint => "Checkpoint",
                Role::Alone => "Method",
                Role::Beside => "Shared",
            }
        )
    }
}

/// The actor's type.
struct Actor<'a> {
    of: &'a Type,
    /// The last segment of its path.
    name: &'a Ident,
}

/// A public function of an actor.
struct Member<'a> {
    function: &'a ImplItemFn,
    role: Role,
    signature: Signature<'a>,
    /// Types of the arguments and of the success value, with `Self` replaced.
    types: Vec<Type>,
    success: Type,
    /// Name of the static task definition.
    offered: Ident,
}

/// Expands to the definitions of the actor's functions and its handle type. The caller keeps the `impl` itself.
pub fn expand(item: &Item) -> syn::Result<Tokens> {
    let Item::Impl(item) = item else {
        return Err(syn::Error::new_spanned(item, "#[actor] applies to an inherent `impl Name { … }` block"));
    };
    let actor = Actor::parse(item)?;
    let members = members(&actor, item)?;
    check_hooks(&actor, &members)?;
    let conditions = conditions(&item.attrs);
    let (of, name) = (actor.of, actor.name.unraw().to_string());
    let handle = format_ident!("{}Handle", name, span = actor.name.span());
    let announced = members.iter().map(|member| member.announced(&actor)).collect::<syn::Result<Vec<_>>>()?;
    let made = members.iter().filter(|member| member.role == Role::New).map(|member| member.made(&handle, &name));
    let methods = members.iter().filter(|m| matches!(m.role, Role::Alone | Role::Beside)).map(|m| m.called(&name));
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
            #(#announced)*
            impl #of {
                #(#made)*
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
        if let Some((_, of, _)) = &item.trait_ {
            return refused(of, "an actor's methods can't be those of a trait: use an inherent `impl Name { … }`");
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
                Ok(Actor { of: &item.self_ty, name: &last.ident })
            }
            Some(last) => refused(&last.arguments, "an actor's type can't have generic arguments: wrap it in a struct"),
            None => refused(&item.self_ty, "an actor must be a struct or an enum of this crate"),
        }
    }

    /// Replaces `Self`, so that the type can be named outside the `impl`.
    fn named(&self, of: &Type) -> syn::Result<Type> {
        syn::parse2(without_self(of.to_token_stream(), self.of))
    }
}

/// Parses all public functions, or returns all their errors.
fn members<'a>(actor: &Actor<'a>, item: &'a ItemImpl) -> syn::Result<Vec<Member<'a>>> {
    let functions = item.items.iter().filter_map(|item| match item {
        ImplItem::Fn(function) => Some(function),
        _ => None,
    });
    let (mut members, mut wrong) = (Vec::new(), None::<syn::Error>);
    for (place, function) in functions.enumerate() {
        match Member::parse(actor, function, place) {
            Ok(member) => members.extend(member),
            Err(error) => match &mut wrong {
                Some(before) => before.combine(error),
                None => wrong = Some(error),
            },
        }
    }
    wrong.map_or(Ok(members), Err)
}

/// Rejects an actor without `new`, or with only one of `checkpoint` and `restore`.
fn check_hooks(actor: &Actor<'_>, members: &[Member<'_>]) -> syn::Result<()> {
    let find = |role: Role| members.iter().find(|member| member.role == role);
    if find(Role::New).is_none() {
        return Err(syn::Error::new_spanned(actor.of, "an actor needs a constructor: add `pub fn new(…) -> Self`"));
    }
    match (find(Role::Checkpoint), find(Role::Restore)) {
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
            let (given, taken) = (text(&checkpoint.success), text(takes));
            let message = format!("`restore` must take the result of `checkpoint`, `{given}`");
            if given == taken { Ok(()) } else { Err(syn::Error::new_spanned(restore.signature.inputs[0].1, message)) }
        }
    }
}

impl<'a> Member<'a> {
    /// None for a private function.
    fn parse(actor: &Actor<'a>, function: &'a ImplItemFn, place: usize) -> syn::Result<Option<Self>> {
        let sig = &function.sig;
        let name = sig.ident.unraw().to_string();
        if TAKEN.contains(&name.as_str()) {
            let message = format!("`{}::{name}` is generated by #[actor]: rename this function", actor.name);
            return Err(syn::Error::new_spanned(&sig.ident, message));
        }
        if !matches!(function.vis, Visibility::Public(_)) {
            return Ok(None);
        }
        let signature = Signature::of_any(sig, &function.attrs)?;
        if let Some(of @ Type::ImplTrait(_)) = signature.output {
            let message = "a method can't be a generator, only a #[task] can: return a value or a `Result`";
            return Err(syn::Error::new_spanned(of, message));
        }
        let role = role(&name, function)?;
        check_arguments("method", sig, &signature)?;
        let types = signature.inputs.iter().map(|(_, of)| actor.named(of)).collect::<syn::Result<_>>()?;
        let success = match signature.output {
            None => syn::parse_quote!(()),
            Some(_) => actor.named(signature.success("a method returns a value or a Result of one")?)?,
        };
        let offered = format_ident!("__SANDBAR_OFFERED_{place}");
        let member = Member { function, role, signature, types, success, offered };
        if matches!(role, Role::New | Role::Restore) && text(&member.success) != text(actor.of) {
            return Err(match member.signature.output {
                Some(output) => {
                    syn::Error::new_spanned(output, format!("`{name}` must return `Self` or a `Result` of it"))
                }
                None => member.wrong(&format!("`{name}` must return the actor: add `-> Self`")),
            });
        }
        Ok(Some(member))
    }

    fn wrong(&self, message: &str) -> syn::Error {
        syn::Error::new_spanned(&self.function.sig.ident, message)
    }

    fn conditions(&self) -> Vec<&'a Attribute> {
        conditions(&self.function.attrs)
    }

    /// The static definition of the task, with the function that runs it.
    fn announced(&self, actor: &Actor<'_>) -> syn::Result<Tokens> {
        let Member { role, signature, types, success, offered, .. } = self;
        let (conditions, kind, about) = (self.conditions(), role.kind(), &signature.about);
        let name = format!("{}.{}", actor.name.unraw(), signature.name);
        let names = signature.inputs.iter().map(|(name, _)| name);
        let texts = types.iter().map(text);
        let returns = match role {
            Role::New | Role::Restore => text(actor.of),
            _ => text(success),
        };
        let run = format_ident!("__sandbar_run");
        let (body, returned, how) = match (role, signature.is_async()) {
            (Role::Beside, true) => (self.later(actor)?, quote!(::sandbar_guest::__private::Later), quote!(Later)),
            _ => (self.now(actor)?, quote!(()), quote!(Now)),
        };
        let arguments = format_ident!("__sandbar_arguments");
        Ok(quote! {
            #(#conditions)*
            static #offered: ::sandbar_guest::__private::Offered = {
                fn #run(
                    #arguments: &::sandbar_guest::__private::Arguments<'_>,
                ) -> ::core::result::Result<#returned, ::std::string::String> {
                    #body
                }
                ::sandbar_guest::__private::Offered::of_actor(
                    #name,
                    ::sandbar_guest::__private::TaskKind::#kind,
                    #about,
                    &[#((#names, #texts)),*],
                    #returns,
                    ::sandbar_guest::__private::Run::#how(#run),
                )
            };
            #(#conditions)*
            ::sandbar_guest::__private::inventory::submit!(&#offered);
        })
    }

    /// The body that runs the function to its end.
    fn now(&self, actor: &Actor<'_>) -> syn::Result<Tokens> {
        let (of, success) = (actor.of, &self.success);
        let [arguments, results, state] = names();
        let taken: Vec<Tokens> = self.taken().collect();
        let hand_over = quote_spanned!(at(success)=> ::sandbar_guest::__private::hand_over::<#success>(#results));
        Ok(match self.role {
            Role::New | Role::Restore => {
                let call = self.call(actor, quote!(#(#taken),*))?;
                quote!(::sandbar_guest::__private::keep::<#of>(#call?))
            }
            Role::Checkpoint | Role::Beside => {
                let call = self.call(actor, quote!(&#state #(, #taken)*))?;
                quote! {
                    let #state = ::sandbar_guest::__private::shared::<#of>()?;
                    let #results = #call?;
                    #hand_over
                }
            }
            Role::Alone => {
                let call = self.call(actor, quote!(#state #(, #taken)*))?;
                let body = quote!(let #results = #call?; #hand_over);
                let body = match self.signature.is_async() {
                    true => quote!(::sandbar_guest::__private::until_done(#arguments.call(), async { #body })),
                    false => body,
                };
                quote!(::sandbar_guest::__private::exclusive::<#of, ()>(|#state| { #body }))
            }
        })
    }

    /// The body that creates the function's future, which may wait while other calls run.
    fn later(&self, actor: &Actor<'_>) -> syn::Result<Tokens> {
        let (of, success, taken) = (actor.of, &self.success, self.taken());
        let [_, results, state] = names();
        let own: Vec<Ident> = (0..self.types.len()).map(|i| format_ident!("__sandbar_argument_{i}")).collect();
        let call = self.call(actor, quote!(&#state #(, #own)*))?;
        let hand_over = quote_spanned!(at(success)=> ::sandbar_guest::__private::hand_over::<#success>(#results));
        Ok(quote! {
            let #state = ::sandbar_guest::__private::shared::<#of>()?;
            #(let #own = #taken;)*
            ::core::result::Result::Ok(::std::boxed::Box::pin(async move {
                let #results = #call?;
                #hand_over
            }))
        })
    }

    /// Expressions that decode the arguments.
    fn taken(&self) -> impl Iterator<Item = Tokens> {
        let [arguments, ..] = names();
        let types = self.types.iter().enumerate();
        types.map(move |(i, of)| quote_spanned!(at(of)=> #arguments.take::<#of>(#i)?))
    }

    /// The call, as a `Result`.
    fn call(&self, actor: &Actor<'_>, with: Tokens) -> syn::Result<Tokens> {
        let (of, ident) = (actor.of, self.signature.ident);
        let waits = self.signature.is_async().then(|| quote!(.await));
        let call = quote!(<#of>::#ident(#with)#waits);
        match self.signature.output {
            Some(_) => self.signature.as_result_with(call, "", quote!(::sandbar_guest::__private::failed)),
            None => Ok(quote!(::core::result::Result::<_, ::std::string::String>::Ok(#call))),
        }
    }

    /// The functions that create the actor remotely.
    fn made(&self, handle: &Ident, name: &str) -> Tokens {
        let Member { types, offered, .. } = self;
        let (conditions, own, taken_as) = (self.conditions(), self.own(), types.iter().map(taken_as));
        let about = format!("Creates a remote [`{name}`] from these arguments: values, or objects in place of values.");
        let as_function = quote!(fn(#(#types),*));
        quote! {
            #(#conditions)*
            #[doc = #about]
            #[allow(dead_code, private_interfaces, clippy::too_many_arguments, reason = "`new` determines it")]
            pub fn submit(#(#own: #taken_as),*) -> #handle {
                ::sandbar_guest::__private::Task::<#as_function, #handle>::new(&#offered).submit(#(#own),*)
            }

            #(#conditions)*
            /// Options of the actor, if they differ from the defaults.
            #[allow(dead_code, private_interfaces, reason = "most actors use the default options")]
            pub fn options() -> ::sandbar_guest::Creation<#as_function, #handle> {
                ::sandbar_guest::Creation::new(&#offered)
            }
        }
    }

    /// The handle's method that calls the function remotely.
    fn called(&self, actor: &str) -> Tokens {
        let Member { signature, types, success, offered, .. } = self;
        let (conditions, own, taken_as, ident) =
            (self.conditions(), self.own(), types.iter().map(taken_as), signature.ident);
        let documented = self.function.attrs.iter().filter(|a| a.path().is_ident("doc"));
        let about = format!("Calls [`{actor}::{}`].", signature.name);
        let results = quote!(::sandbar_guest::ObjectRef<#success>);
        quote! {
            #(#conditions)*
            #(#documented)*
            ///
            #[doc = #about]
            pub fn #ident(&self #(, #own: #taken_as)*) -> #results {
                ::sandbar_guest::__private::Method::<fn(#(#types),*), #results>::new(&#offered, &self.0).submit(#(#own),*)
            }
        }
    }

    fn own(&self) -> Vec<Ident> {
        let names: Vec<String> = self.signature.inputs.iter().map(|(name, _)| name.clone()).collect();
        own(&names, self.signature.ident.span())
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
fn role(name: &str, function: &ImplItemFn) -> syn::Result<Role> {
    let sig = &function.sig;
    let refused = |at: &dyn ToTokens, message: &str| Err(syn::Error::new_spanned(at, message));
    let hook = match name {
        "new" => Some(Role::New),
        "restore" => Some(Role::Restore),
        "checkpoint" => Some(Role::Checkpoint),
        _ => None,
    };
    if let (Some(_), Some(token)) = (hook, &sig.asyncness) {
        return refused(token, &format!("`{name}` can't be async: it runs alone; wait with `get` instead of `.await`"));
    }
    let by = |receiver: &Receiver| match (&receiver.reference, &receiver.mutability, &receiver.colon_token) {
        (Some(_), None, None) => Some(Role::Beside),
        (Some(_), Some(_), None) => Some(Role::Alone),
        _ => None,
    };
    let taken = sig.receiver().map(|receiver| (receiver, by(receiver)));
    match (hook, taken) {
        (Some(Role::Checkpoint), Some((_, Some(Role::Beside)))) if sig.inputs.len() == 1 => Ok(Role::Checkpoint),
        (Some(Role::Checkpoint), _) => refused(&sig.inputs, "`checkpoint` takes `&self` and no arguments"),
        (Some(hook), None) => Ok(hook),
        (Some(_), Some((receiver, _))) => {
            refused(receiver, &format!("`{name}` creates the actor, so it can't take `self`"))
        }
        (None, Some((_, Some(role)))) => Ok(role),
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
fn without_self(tokens: Tokens, of: &Type) -> Tokens {
    let replaced = tokens.into_iter().map(|token| match token {
        TokenTree::Ident(ident) if ident == "Self" => quote_spanned!(ident.span()=> #of),
        TokenTree::Group(group) => {
            let mut inner = Group::new(group.delimiter(), without_self(group.stream(), of));
            inner.set_span(group.span());
            TokenTree::from(inner).into()
        }
        other => other.into(),
    });
    replaced.collect()
}
