//! Decoding of submitted tasks.

use std::io;
use std::num::NonZeroU32;
use std::time::Duration;

use sandbar_core::{ActorOptions, Attempt, RequestOptions, STREAM_BUFFER, Strategy, TaskId, TaskKind, WorkerId};
use sandbar_sched::{ParentRef, ResourceSet, Submission, SubmissionKind};
use sandbar_worker::program::SubmitTask;

use super::actors::actor_spec;
use super::context::Context;
use super::effects::Effect;
use super::peers::{Peers, default_retries, lineage_of, too_large_for_peers};
use crate::calls::{DecodedRequest, TaskPayload, actor_demand, default_demand, demand};

/// Default number of retries of a task.
const RETRIES: u32 = 3;
/// Where a submitted task starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartLocation {
    /// Where the scheduler places it.
    Any,
    /// In its parent's worker, which has started it.
    Parent,
}

/// Decodes a submitted task. Returns `None` if its parent no longer exists: it has no children.
///
/// # Errors
/// The message is malformed, or calls a function of another kind.
pub(super) fn decode(
    cx: &mut Context,
    peers: &Peers,
    worker: WorkerId,
    submit: &SubmitTask<'_>,
    start_location: StartLocation,
) -> io::Result<Option<Submission<TaskPayload>>> {
    let DecodedRequest { options, actor, arguments, needs, refs } =
        DecodedRequest::decode(submit.request).map_err(io::Error::other)?;
    let parent = TaskId(submit.parent);
    let program = cx.scheduler.call(parent).map(|call| call.program.clone());
    let (Some(program), Some(job)) = (program, cx.scheduler.job_of(parent)) else { return Ok(None) };
    let function = program.tasks.get(submit.function as usize).ok_or_else(|| invalid("an unknown function"))?;
    let default_actor = ActorOptions::default();
    let actor_options = options.as_ref().and_then(|options| options.actor.as_deref()).unwrap_or(&default_actor);
    let (kind, creation) = match (function.kind, actor) {
        (TaskKind::Task, None) => (SubmissionKind::Function, None),
        (TaskKind::Generator, None) => {
            let buffer = options.as_ref().map_or(STREAM_BUFFER, |options| options.buffer());
            (SubmissionKind::Generator(buffer), None)
        }
        (TaskKind::Make, None) => {
            let name = options.as_ref().and_then(|options| options.name.as_deref());
            let kind = SubmissionKind::ActorCreation(Box::new(actor_spec(cx, job, name, actor_options)));
            (kind, Some(Box::new(program.creation(submit.function, actor_options.clone(), name.map(str::to_owned)))))
        }
        (TaskKind::Method | TaskKind::Shared, Some(actor)) => {
            peers.meet_actor(cx, actor);
            (SubmissionKind::Method(actor), None)
        }
        _ => return Err(invalid("a function that is called as what it is not")),
    };
    let options = options.as_deref();
    let own_name = options.and_then(|options| options.name.clone()).filter(|_| function.kind != TaskKind::Make);
    let name = match own_name {
        Some(name) => cx.ids.names.intern(name),
        None => function.name.clone(),
    };
    let id = TaskId(submit.task);
    let timeout_ms = options.and_then(|options| options.timeout_ms);
    // The id may be that of another task.
    if let Some(limit) = timeout_ms.filter(|_| cx.scheduler.task(id).is_none()) {
        cx.push(Effect::Limit(id, Duration::from_millis(limit)));
    }
    let default_options = RequestOptions::default();
    let chosen = options.unwrap_or(&default_options);
    let demand = match &kind {
        SubmissionKind::Function | SubmissionKind::Generator(_) => options.map_or_else(default_demand, demand),
        SubmissionKind::ActorCreation(_) => actor_demand(chosen),
        SubmissionKind::Method(_) | SubmissionKind::Lease => ResourceSet::default(),
    };
    let is_large = too_large_for_peers(submit.returns, needs.len() + refs.len(), arguments.len()).is_some();
    let stays = cx.peers.is_any() && start_location == StartLocation::Any && is_large;
    Ok(Some(Submission {
        id,
        job,
        parent: Some(ParentRef { task: parent, attempt: Attempt(submit.attempt), worker }),
        remote_depth: 0,
        name,
        returns: submit.returns,
        demand,
        strategy: match &kind {
            SubmissionKind::Method(_) => Strategy::Default,
            _ if stays => Strategy::Node { node: cx.node(), soft: false },
            _ => chosen.strategy,
        },
        priority: chosen.priority,
        retries_max: chosen.max_retries.unwrap_or(match &kind {
            SubmissionKind::Function | SubmissionKind::Generator(_) => RETRIES,
            SubmissionKind::ActorCreation(_) | SubmissionKind::Lease => 0,
            SubmissionKind::Method(actor) => default_retries(cx, *actor),
        }),
        retry_on: chosen.retry_on,
        call: TaskPayload {
            function: submit.function,
            timeout_ms: timeout_ms.and_then(|limit| NonZeroU32::new(limit.clamp(1, u32::MAX.into()) as u32)),
            seed: submit.seed,
            lineage: lineage_of(cx, job, submit.seed, submit.function, &arguments, &refs),
            arguments,
            program,
            needs: needs.as_slice().into(),
            refs: match &kind {
                SubmissionKind::Function | SubmissionKind::Generator(_) | SubmissionKind::Lease => Box::new([]),
                SubmissionKind::ActorCreation(_) | SubmissionKind::Method(_) => refs.as_slice().into(),
            },
            creation,
            submitted: cx.time.nanos,
        },
        kind,
        dependencies: needs,
        refs,
    }))
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_owned())
}
