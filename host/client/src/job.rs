//! Jobs of a client: start, tasks and actors, stored values, end.

use std::path::Path;
use std::sync::Arc;

use sandbar_core::ObjectId;
use sandbar_node::{JobRecorder, LoadedProgram, LoggedLine, ProgramSummary, ProgramTask};
use serde::Serialize;

use crate::actor::{Actor, ActorCall};
use crate::job_state::JobState;
use crate::listener::TableListener;
use crate::object::ObjectRef;
use crate::task_call::TaskCall;
use crate::{ClientError, value};

/// A component with tasks to call: see [`Client::program`](crate::Client::program).
#[derive(Debug, Clone)]
pub struct Program(pub(crate) LoadedProgram);

impl Program {
    /// Returns the tasks: names, arguments and return types. `Counter.new` creates an actor `Counter`; `Counter.add` is
    /// one of its methods.
    pub fn tasks(&self) -> &[ProgramTask] {
        self.0.tasks()
    }

    /// Returns the path from which the program was loaded.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Options of a job.
#[must_use]
pub struct JobOptions {
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) log: Box<dyn FnMut(&LoggedLine) + Send>,
}

impl JobOptions {
    /// Returns options with a job name. The name also names the first task, the client, in errors and lists.
    pub fn named(name: impl Into<String>) -> JobOptions {
        JobOptions { name: name.into(), seed: 0, log: Box::new(|_| {}) }
    }

    /// Sets the seed from which the seeds of all tasks are derived. Default: 0.
    pub fn seed(mut self, seed: u64) -> JobOptions {
        self.seed = seed;
        self
    }

    /// Calls `log` with each line that tasks log, on a thread of its own. Lines wait while a call runs; excess lines
    /// are dropped. `host jobs logs` shows all lines.
    pub fn on_log(mut self, log: impl FnMut(&LoggedLine) + Send + 'static) -> JobOptions {
        self.log = Box::new(log);
        self
    }
}

impl std::fmt::Debug for JobOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobOptions").field("name", &self.name).field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// A job: tasks of one program, which this process submits. Dropping the job ends it: unfinished tasks are cancelled,
/// and their objects become errors.
#[derive(Debug)]
pub struct Job {
    state: Arc<JobState>,
}

impl Job {
    /// Starts a job of a client.
    pub(crate) async fn start(
        node: &sandbar_node::Node,
        program: &Program,
        options: JobOptions,
        recorder: JobRecorder,
    ) -> Result<Job, ClientError> {
        let JobOptions { name, seed, log } = options;
        let listener = Arc::new(TableListener::default());
        let spec = sandbar_node::ClientJobSpec { name, seed, recorder, log };
        let link = node.programs().start_job(&program.0, spec, listener.clone()).await?;
        let state = Arc::new(JobState { table: listener.table.clone(), link, program: program.0.clone() });
        // This is the only caller of `set`, so it can't fail.
        let _ = listener.job.set(Arc::downgrade(&state));
        Ok(Job { state })
    }

    /// Returns the job's name in `host jobs`, or `None` if the job is not recorded.
    pub fn name(&self) -> Option<&str> {
        self.state.link.name()
    }

    /// Returns whether the job has ended: it was stopped, or its node ended.
    pub fn has_ended(&self) -> bool {
        self.state.link.has_ended()
    }

    /// Returns a call of a task, to submit.
    pub fn task<'a>(&'a self, name: &'a str) -> TaskCall<'a> {
        TaskCall::new(&self.state, name)
    }

    /// Returns a call that creates an actor of this type.
    pub fn actor<'a>(&'a self, actor_type: &'a str) -> ActorCall<'a> {
        ActorCall::new(&self.state, actor_type)
    }

    /// Returns the actor of this type with this name. The actor belongs to this job, or is detached.
    ///
    /// # Errors
    /// No such actor or type exists.
    pub async fn find_actor(&self, actor_type: &str, name: &str) -> Result<Actor, ClientError> {
        Actor::find(&self.state, actor_type, name).await
    }

    /// Stores a value that any number of tasks can take. If memory and disk have no room for the value, its object is
    /// an error.
    ///
    /// # Errors
    /// The value can't be encoded; it is larger than the limit of an object; the job has ended.
    pub async fn put<T: Serialize>(&self, value: &T) -> Result<ObjectRef<T>, ClientError> {
        let (bytes, refs) = value::write(&self.state, value)?;
        if let Some(object) = refs.foreign {
            return Err(ClientError::OtherJob { object: object.short(), task: "put".to_owned() });
        }
        self.put_bytes(bytes, &refs.objects).await
    }

    pub(crate) async fn put_bytes<T>(&self, bytes: Vec<u8>, objects: &[ObjectId]) -> Result<ObjectRef<T>, ClientError> {
        let object = self.state.link.put(bytes, objects).await?;
        Ok(ObjectRef::new(object, &self.state))
    }

    /// Ends the job and returns its summary. Unfinished tasks are cancelled, and waits for their objects return errors.
    ///
    /// # Errors
    /// The job was ended before: by `host jobs stop`, or with its node.
    pub async fn end(self) -> Result<ProgramSummary, ClientError> {
        Ok(self.state.link.finish().await?)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.state.link.stop();
    }
}
