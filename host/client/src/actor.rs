//! Actors: creation, lookup, calls and termination.

use std::sync::Arc;

use sandbar_core::{ActorId, ObjectId, RequestOptions, TaskError, TaskKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ClientError;
use crate::arguments::Arguments;
use crate::encode::ACTOR;
use crate::job_state::JobState;
use crate::object::{ObjectRef, ResultRefs};
use crate::options::{ActorOptions, CallOptions};
use crate::task_call::submit;

/// The value of an actor's handle: the handle of the existing actor, if one had the name already.
#[derive(Debug, Deserialize)]
struct ActorValue(Option<ObjectRef<ActorValue>>);

/// An actor to create: see [`Job::actor`](crate::Job::actor).
#[derive(Debug, Clone)]
#[must_use = "the actor is created only when the call is submitted"]
pub struct ActorCall<'a> {
    job: &'a Arc<JobState>,
    actor_type: &'a str,
    options: Option<Box<RequestOptions>>,
}

impl<'a> ActorCall<'a> {
    pub(crate) fn new(job: &'a Arc<JobState>, actor_type: &'a str) -> ActorCall<'a> {
        ActorCall { job, actor_type, options: None }
    }

    /// Sets the options of the actor.
    pub fn options(mut self, options: ActorOptions) -> Self {
        self.options = Some(Box::new(options.0));
        self
    }

    /// Creates the actor with its `new`, which takes a tuple of values and object references. Returns a handle at once;
    /// [`Actor::ready`] returns the outcome.
    ///
    /// # Errors
    /// No such actor type exists; its `new` takes other arguments; the job has ended.
    pub async fn submit(&self, arguments: impl Arguments) -> Result<Actor, ClientError> {
        let name = format!("{}.new", self.actor_type);
        let (index, task) = method(self.job, &name, |kind| kind == TaskKind::Make)?;
        let handle = submit(self.job, index, task, self.options.clone(), None, arguments).await?;
        Ok(Actor { handle, actor_type: self.actor_type.into(), options: None })
    }
}

/// A handle to an actor. The actor lives until its last handle is dropped and its calls have ended.
///
/// Cheap to clone. A task of the same job takes it as an argument or as a part of one.
#[derive(Debug, Clone)]
pub struct Actor {
    handle: ObjectRef<ActorValue>,
    actor_type: Arc<str>,
    options: Option<Box<RequestOptions>>,
}

impl Actor {
    pub(crate) async fn find(job: &Arc<JobState>, actor_type: &str, name: &str) -> Result<Actor, ClientError> {
        method(job, &format!("{actor_type}.new"), |kind| kind == TaskKind::Make)?;
        let found: ObjectRef<ObjectRef<ActorValue>> = ObjectRef::new(job.link.find_actor(name).await?, job);
        Ok(Actor { handle: found.get().await?, actor_type: actor_type.into(), options: None })
    }

    /// Calls a method. The calls of one client start in the order in which the client makes them.
    ///
    /// # Errors
    /// No such method exists; it takes or returns other types; the job has ended.
    pub async fn call<R: ResultRefs>(&self, name: &str, arguments: impl Arguments) -> Result<R, ClientError> {
        let job = self.handle.job();
        let name = format!("{}.{name}", self.actor_type);
        let (index, task) = method(job, &name, |kind| matches!(kind, TaskKind::Method | TaskKind::Shared))?;
        if R::COUNT != task.count {
            let (returns, requested) = (task.returns.clone(), format!("{} objects", R::COUNT));
            return Err(ClientError::Returns { task: name, returns, requested });
        }
        R::check(&name, &task.returns)?;
        submit(job, index, task, self.options.clone(), Some(self.handle.number()), arguments).await
    }

    /// Returns a handle whose calls have these options.
    #[must_use = "the options apply to the returned handle only"]
    pub fn with(&self, options: CallOptions) -> Actor {
        Actor { options: Some(Box::new(options.0)), ..self.clone() }
    }

    /// Waits until the actor is created.
    ///
    /// # Errors
    /// Why the actor could not be created.
    pub async fn ready(&self) -> Result<(), TaskError> {
        let mut handle = self.handle.clone();
        while let ActorValue(Some(other)) = handle.get().await? {
            handle = other;
        }
        Ok(())
    }

    /// Kills the actor. Its unfinished calls fail with [`Code::ActorDied`](crate::Code::ActorDied).
    pub async fn kill(&self) {
        self.end(false).await;
    }

    /// Kills the actor and restarts it if it has restarts left ([`ActorOptions::max_restarts`]).
    pub async fn restart(&self) {
        self.end(true).await;
    }

    async fn end(&self, restart: bool) {
        // All actors of an ended job have ended.
        let _ = self.handle.job().link.kill_actor(ActorId(self.number().0), restart).await;
    }

    fn number(&self) -> ObjectId {
        self.handle.number()
    }
}

/// Passes a handle to a task.
impl Serialize for Actor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.handle.write(ACTOR, serializer)
    }
}

/// A handle in a value that a task returned, to an actor whose type the value does not state.
///
/// It keeps the actor alive, and is an argument or a part of one, as an [`Actor`] is.
#[derive(Debug, Clone)]
pub struct ActorRef(ObjectRef<ActorValue>);

impl ActorRef {
    /// Returns a handle to call the actor as one of this type. Calls fail if the actor is of another type.
    ///
    /// # Errors
    /// No such actor type exists.
    pub fn typed(&self, actor_type: &str) -> Result<Actor, ClientError> {
        method(self.0.job(), &format!("{actor_type}.new"), |kind| kind == TaskKind::Make)?;
        Ok(Actor { handle: self.0.clone(), actor_type: actor_type.into(), options: None })
    }
}

impl Serialize for ActorRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.write(ACTOR, serializer)
    }
}

impl<'de> Deserialize<'de> for ActorRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ObjectRef::deserialize(deserializer).map(ActorRef)
    }
}

fn method<'j>(
    job: &'j JobState,
    name: &str,
    is_kind: fn(TaskKind) -> bool,
) -> Result<(u32, &'j sandbar_node::ProgramTask), ClientError> {
    job.find(name, is_kind).map_err(|available| ClientError::NoMethod { name: name.to_owned(), available })
}
