//! Jobs, and the submission of their tasks.

use std::path::Path;
use std::sync::Arc;

use sandbar_core::{ObjectId, RequestOptions, STREAM_BUFFER, TaskKind};
use sandbar_node::{ClientJob, JobRecorder, LoadedProgram, LoggedLine, ProgramSummary, ProgramTask};
use serde::Serialize;

use crate::actor::{Actor, ActorCall};
use crate::arguments::{ArgumentList, Arguments};
use crate::object::{ObjectRef, Returned};
use crate::options::TaskOptions;
use crate::stream::ObjectStream;
use crate::table::{Released, Table, TableListener};
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
    of: Arc<OfJob>,
}

/// State that a job and the handles to its objects share.
#[doc(hidden)]
#[derive(Debug)]
pub struct OfJob {
    pub(crate) table: Arc<Table>,
    link: ClientJob,
    program: LoadedProgram,
}

impl OfJob {
    pub(crate) fn link(&self) -> &ClientJob {
        &self.link
    }

    /// Releases a dropped handle's hold on an object.
    pub(crate) fn release(&self, object: ObjectId) {
        self.release_all(self.table.release(object));
    }

    /// Releases objects at the node.
    pub(crate) fn release_all(&self, released: Released) {
        released.into_iter().for_each(|(object, times)| self.link.release(object, times));
    }

    /// Returns a task and its index in the program, or the names of the available tasks.
    pub(crate) fn find(&self, name: &str, is_one: fn(TaskKind) -> bool) -> Result<(u32, &ProgramTask), String> {
        let ones = || self.program.tasks().iter().zip(0..).filter(|(task, _)| is_one(task.kind));
        let found = ones().find(|(task, _)| &*task.name == name);
        found.map(|(task, place)| (place, task)).ok_or_else(|| {
            let there: Vec<&str> = ones().map(|(task, _)| &*task.name).collect();
            if there.is_empty() { "none".to_owned() } else { there.join(", ") }
        })
    }

    /// Submits a call of a task or of an actor method.
    pub(crate) async fn call<R: Returned>(
        self: &Arc<OfJob>,
        (function, task): (u32, &ProgramTask),
        options: Option<Box<RequestOptions>>,
        actor: Option<ObjectId>,
        arguments: impl Arguments,
    ) -> Result<R, ClientError> {
        let list = ArgumentList::of(self, task, &arguments)?;
        let first = self.link.submit(function, R::COUNT, &list.request(options, actor)).await?;
        Ok(R::made(first, self))
    }

    /// Submits a generator.
    async fn generate<T>(
        self: &Arc<OfJob>,
        (function, task): (u32, &ProgramTask),
        options: Option<Box<RequestOptions>>,
        arguments: impl Arguments,
    ) -> Result<ObjectStream<T>, ClientError> {
        let buffer = options.as_ref().map_or(STREAM_BUFFER, |options| options.buffer());
        let list = ArgumentList::of(self, task, &arguments)?;
        let request = list.request(options, None);
        Ok(self.link.stream(function, &request, |stream| ObjectStream::made(stream, buffer, self)).await?)
    }

    /// Reports taken items to the node. Called before a wait, which may depend on them.
    pub(crate) fn report_taken(&self) {
        self.table.unreported().into_iter().for_each(|(stream, taken)| self.link.items_consumed(stream, taken));
    }
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
        let of = Arc::new(OfJob { table: listener.table.clone(), link, program: program.0.clone() });
        // This is the only caller of `set`, so it can't fail.
        let _ = listener.job.set(Arc::downgrade(&of));
        Ok(Job { of })
    }

    /// Returns the job's name in `host jobs`, or `None` if the job is not recorded.
    pub fn name(&self) -> Option<&str> {
        self.of.link.name()
    }

    /// Returns whether the job has ended: it was stopped, or its node ended.
    pub fn has_ended(&self) -> bool {
        self.of.link.has_ended()
    }

    /// Returns a call of a task, to submit.
    pub fn task<'a>(&'a self, name: &'a str) -> TaskCall<'a> {
        TaskCall { job: &self.of, name, options: None }
    }

    /// Returns a call that creates an actor of the type `of`.
    pub fn actor<'a>(&'a self, of: &'a str) -> ActorCall<'a> {
        ActorCall::new(&self.of, of)
    }

    /// Returns the actor of the type `of` with this name, of this job or detached.
    ///
    /// # Errors
    /// No such actor or type exists.
    pub async fn find_actor(&self, of: &str, name: &str) -> Result<Actor, ClientError> {
        Actor::find(&self.of, of, name).await
    }

    /// Stores a value that any number of tasks can take. If memory and disk have no room for the value, its object is
    /// an error.
    ///
    /// # Errors
    /// The value can't be encoded; it is larger than the limit of an object; the job has ended.
    pub async fn put<T: Serialize>(&self, value: &T) -> Result<ObjectRef<T>, ClientError> {
        let (bytes, written) = value::write(&self.of, value).map_err(ClientError::Value)?;
        if let Some(object) = written.foreign {
            return Err(ClientError::OtherJob { object: object.short(), task: "put".to_owned() });
        }
        self.put_bytes(bytes, &written.objects).await
    }

    pub(crate) async fn put_bytes<T>(&self, bytes: Vec<u8>, objects: &[ObjectId]) -> Result<ObjectRef<T>, ClientError> {
        let object = self.of.link.put(bytes, objects).await?;
        Ok(ObjectRef::made(object, &self.of))
    }

    /// Ends the job and returns its summary. Unfinished tasks are cancelled, and waits for their objects return errors.
    ///
    /// # Errors
    /// The job was ended before: by `host jobs stop`, or with its node.
    pub async fn end(self) -> Result<ProgramSummary, ClientError> {
        Ok(self.of.link.finish().await?)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.of.link.stop();
    }
}

/// A call of a task: see [`Job::task`].
#[derive(Debug, Clone)]
#[must_use = "nothing is run until it is submitted"]
pub struct TaskCall<'a> {
    job: &'a Arc<OfJob>,
    name: &'a str,
    options: Option<Box<RequestOptions>>,
}

impl TaskCall<'_> {
    /// Sets the options of the task.
    pub fn options(mut self, options: TaskOptions) -> Self {
        self.options = Some(Box::new(options.0));
        self
    }

    /// Submits the task with a tuple of values and object references. Returns a handle to the result, or a tuple of
    /// handles, as soon as the node has room for the submission.
    ///
    /// # Errors
    /// No such task exists; it takes or returns other types; the job has ended.
    pub async fn submit<R: Returned>(&self, arguments: impl Arguments) -> Result<R, ClientError> {
        let (place, task) = self.find()?;
        if task.kind == TaskKind::Generator {
            return Err(ClientError::Generator { task: self.name.to_owned(), items: task.returns.clone() });
        }
        if R::COUNT != task.count {
            let (of, asked) = (task.returns.clone(), format!("{} objects", R::COUNT));
            return Err(ClientError::Returns { task: self.name.to_owned(), returns: of, asked });
        }
        R::check(&task.name, &task.returns)?;
        self.job.call((place, task), self.options.clone(), None, arguments).await
    }

    /// Submits a generator, as [`TaskCall::submit`] submits a task. Returns the stream of its items.
    ///
    /// # Errors
    /// No such task exists; it is not a generator; it takes or yields other types; the job has ended.
    pub async fn stream<T>(&self, arguments: impl Arguments) -> Result<ObjectStream<T>, ClientError> {
        let (place, task) = self.find()?;
        if task.kind != TaskKind::Generator {
            return Err(ClientError::NoGenerator { task: self.name.to_owned(), returns: task.returns.clone() });
        }
        ObjectRef::<T>::check(&task.name, &task.returns)?;
        self.job.generate((place, task), self.options.clone(), arguments).await
    }

    fn find(&self) -> Result<(u32, &ProgramTask), ClientError> {
        let found = self.job.find(self.name, |kind| matches!(kind, TaskKind::Task | TaskKind::Generator));
        found.map_err(|there| ClientError::NoTask { name: self.name.to_owned(), there })
    }
}
