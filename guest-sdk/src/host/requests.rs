//! Requests of tasks that start or end calls and actors.

use sandbar_core::{Argument, Code, Fault, ObjectId, TaskError, TaskRequest};

use super::call::{Call, CallState};
use super::program_host::host;
use super::steps::settle;
use crate::bindings::program::TaskKind;
use crate::bindings::tasks::Outcome;
use crate::registry;

pub(crate) fn submit(function: u32, returns: u32, request: &[u8]) -> u64 {
    let TaskRequest { options, actor, arguments, refs } =
        postcard::from_bytes(request).expect("a request is written by `submit`");
    let definition = registry::task(function).expect("a task's index is in the list");
    let needs = arguments.iter().filter_map(|argument| match argument {
        Argument::Object(object) => Some(object.0),
        _ => None,
    });
    let needs: Vec<u64> = needs.collect();
    let refs: Vec<u64> = refs.iter().map(|object| object.0).collect();
    let arguments = postcard::to_stdvec(&arguments).expect("arguments are bytes and numbers");
    let options = options.map(|options| *options).unwrap_or_default();
    let first = host(|host| {
        let chain = host.chain_to(options.name.as_deref().unwrap_or(definition.name));
        host.pin(&refs);
        host.pin(&needs);
        let first = host.add(Outcome::TimeOut, Vec::new(), Vec::new());
        (1..returns).for_each(|_| _ = host.add(Outcome::TimeOut, Vec::new(), Vec::new()));
        let call = Call { definition, chain, arguments, needs, refs, returns, actor: None, state: CallState::Queued };
        host.calls.insert(first, call);
        let misplaced = host.admit_strategy(&options);
        let refused = match (definition.kind, actor) {
            (TaskKind::Task | TaskKind::Generator, _) => misplaced,
            (TaskKind::Make, _) if misplaced.is_some() => misplaced,
            (TaskKind::Make, _) => host.admit_actor(first, options),
            (_, Some(ObjectId(handle))) => host.admit_method(first, handle),
            (_, None) => Some(Fault::new(Code::BadRequest, "a method call needs an actor's handle")),
        };
        if let Some(fault) = refused {
            let chain = host.calls[&first].chain.clone();
            host.finish(first, Err(TaskError { fault, chain }));
        }
        first
    });
    settle();
    first
}

/// Does not end a running call.
pub(crate) fn cancel(object: u64, _recursive: bool) {
    host(|host| {
        host.is_there(object);
        let call = host.calls.range(..=object).next_back();
        let call = call.filter(|(first, call)| object - **first < u64::from(call.returns));
        if let Some((&first, Call { chain, actor, .. })) = call {
            let fault = Fault::new(Code::Cancelled, "it was cancelled");
            let error = TaskError { fault, chain: chain.clone() };
            match actor.filter(|actor| *actor == first) {
                Some(actor) => host.kill(actor, false),
                None => host.stop(first, error),
            }
        }
    });
    settle();
}

pub(crate) fn kill(actor: u64, restart: bool) {
    host(|host| {
        let actor = host.resolve_alias(actor);
        host.kill(actor, restart);
    });
    settle();
}
