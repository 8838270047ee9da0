//! Jobs whose first task is a client of this process, rather than a component's.
//!
//! To the scheduler such a client is the worker of the job's first task, which runs until the client ends the job. It is
//! a member of the hub as workers are, and says and is told the same, in bytes; but it has no process: see [`line`].
//! What it is told goes to whoever [listens](Listen). References are counted there, and values are read and written.

mod line;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sandbar_core::{
    ActorId, Code, Fault, IdAllocator, ObjectId, Seed, TaskError, TaskId, TaskRequest, VALUE_INLINE_BYTES_MAX,
};
use sandbar_store::UnsealedFile;
use sandbar_worker::program::{AttemptUsage, SentValue, SubmitTask, WorkerMessage, monotonic_nanos};
use tokio::sync::{AcquireError, SemaphorePermit, oneshot};
use tokio::task::JoinHandle;

use self::line::Begun;
pub(super) use self::line::{Line, Seat};
pub use self::line::{Listen, ObjectValue};
use super::keeping::Keeping;
use crate::calls::{Program, ProgramTask};
use crate::engine::{First, JobOutputs, JobResult, NewJob};
use crate::error::ProgramError;
use crate::runner::ProgramSummary;
use crate::runner::{ProgramRunner, summary};
use crate::thread::RunningJob;
use sandbar_jobs::{JobRecorder, LogOutput, LoggedLine};

/// A task may be submitted with so many bytes of arguments; more goes into objects.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// A component whose tasks can be called.
#[derive(Debug, Clone)]
pub struct LoadedProgram {
    program: Arc<Program>,
    path: PathBuf,
}

impl LoadedProgram {
    /// Its tasks, and what its actors consist of. A task is called by its place among these.
    pub fn tasks(&self) -> &[ProgramTask] {
        &self.program.tasks
    }

    /// Where it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A job that a client is to begin.
pub struct ClientJobSpec {
    /// What the job's first task, which is the client, is called.
    pub name: String,
    /// What each task's seed is a function of.
    pub seed: u64,
    /// What became of it goes there.
    pub keeper: JobRecorder,
    /// Gets each line that tasks log, on a thread of its own.
    pub log: Box<dyn FnMut(&LoggedLine) + Send>,
}

impl ProgramRunner {
    /// Builds a program, if it is the folder of a crate, and compiles it.
    ///
    /// # Errors
    /// When that can't be done.
    pub async fn load_program(&self, path: &Path) -> Result<LoadedProgram, ProgramError> {
        let program = self.load(path, self.options.limits).await?;
        Ok(LoadedProgram { program, path: path.to_owned() })
    }

    /// Begins a job of a program's tasks, the first of which is whoever calls this. Inside a tokio runtime.
    ///
    /// # Errors
    /// When the node can't run programs.
    pub async fn begin_job(
        &self,
        program: &LoadedProgram,
        spec: ClientJobSpec,
        listener: Arc<dyn Listen>,
    ) -> Result<ClientJob, ProgramError> {
        let ClientJobSpec { name, seed, keeper, log } = spec;
        let failed = |e: io::Error| Fault::new(Code::Host, format!("the node can't run programs: {e}"));
        let keeping = Keeping::start(keeper, LogOutput::Callback(log)).map_err(failed)?;
        let runtime = self.runtime()?;
        let line = Line::new(runtime.handle().doorbell());
        let (begins, begun) = oneshot::channel();
        let (started, since) = (Instant::now(), monotonic_nanos());
        let mut job = runtime.submit(NewJob {
            program: program.program.clone(),
            first: First::Client(name, Seat::new(line.clone(), listener, begins)),
            seed,
            lasting: None,
            files: Arc::default(),
            outputs: JobOutputs {
                progress: keeping.bars(),
                log: keeping.log().ok_or(ProgramError::Dropped)?,
                finished: keeping.left(),
            },
        });
        drop(runtime);
        let Ok(begun) = begun.await else {
            let result = ended(&mut job, &keeping, started).await;
            keeping.finish(&result);
            return Err(result.err().unwrap_or(ProgramError::Dropped));
        };
        keeping.begun(job.handle(), job.id());
        let name = keeping.name().map(|name| name.as_str().to_owned());
        let is_dropped = Arc::new(AtomicBool::new(false));
        let over = tokio::spawn(keep(job, keeping, started, is_dropped.clone()));
        Ok(ClientJob {
            name,
            line,
            begun,
            since,
            ids: Mutex::new(IdAllocator::of(begun.worker)),
            children: AtomicU64::new(0),
            value_bytes_max: self.options.object_bytes_max,
            is_dropped,
            over: Mutex::new(Some(over)),
        })
    }
}

/// Has a job's folder answer, and its record written, until it has ended.
async fn keep(
    mut job: RunningJob,
    keeping: Keeping,
    started: Instant,
    is_dropped: Arc<AtomicBool>,
) -> Result<ProgramSummary, ProgramError> {
    let result = tokio::select! {
        result = ended(&mut job, &keeping, started) => result,
        () = keeping.serve() => Err(ProgramError::Stopped),
    };
    // It has ended when that is done.
    drop(job);
    let result = if is_dropped.load(Relaxed) { Err(ProgramError::Dropped) } else { result };
    keeping.finish(&result);
    result
}

async fn ended(job: &mut RunningJob, keeping: &Keeping, started: Instant) -> Result<ProgramSummary, ProgramError> {
    let JobResult { result, counters } = job.result().await.ok_or(ProgramError::Dropped)?;
    result.map_err(|error| ProgramError::Task((*error).clone()))?;
    Ok(summary(keeping, serde_json::Value::Null, &counters, started))
}

/// A job that its client has begun. Its methods say something to the node, in order, and wait while too much of it was not
/// heard yet. Dropping it ends the job: what has not ended is cancelled.
#[derive(Debug)]
pub struct ClientJob {
    name: Option<String>,
    line: Arc<Line>,
    begun: Begun,
    /// When it began, by the machine's clock.
    since: u64,
    ids: Mutex<IdAllocator>,
    /// Tasks submitted so far.
    children: AtomicU64,
    value_bytes_max: u64,
    is_dropped: Arc<AtomicBool>,
    over: Mutex<Option<JoinHandle<Result<ProgramSummary, ProgramError>>>>,
}

impl ClientJob {
    /// What the job is called, if anything is kept of it.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.line.is_closed()
    }

    /// Submits a task, by its place in its program. Gives the first of the objects that it returns, each of which the client
    /// holds once.
    ///
    /// # Errors
    /// When its arguments are too long, or the job has ended.
    pub async fn submit(&self, function: u32, returns: u32, request: &TaskRequest<'_>) -> Result<ObjectId, Fault> {
        let request = written(request)?;
        let (task, room) = self.number(returns, request.len()).await?;
        self.say_submitted(task, (function, returns), &request, room);
        Ok(ObjectId(task))
    }

    /// Submits a generator, by its place in its program. Gives what is `made` of its stream, an object which the client holds
    /// once: before it is submitted, so that no [item](Listen::item) is told of any earlier. That there are no more
    /// items is told as of an object that the client wants.
    ///
    /// # Errors
    /// When its arguments are too long, or the job has ended.
    pub async fn stream<R>(
        &self,
        function: u32,
        request: &TaskRequest<'_>,
        made: impl FnOnce(ObjectId) -> R,
    ) -> Result<R, Fault> {
        let request = written(request)?;
        let (task, room) = self.number(1, request.len()).await?;
        let made = made(ObjectId(task));
        self.say_submitted(task, (function, 1), &request, room);
        // Beside a message that there was room for.
        self.line.say_now(&WorkerMessage::RequestObject(task, self.begun.task.0));
        Ok(made)
    }

    /// The client has taken so many items of a stream, all in all: its generator may yield more.
    pub fn took(&self, stream: ObjectId, taken: u64) {
        self.line.say_now(&WorkerMessage::ItemsTaken(stream.0, taken));
    }

    fn say_submitted(&self, task: u64, (function, returns): (u32, u32), request: &[u8], room: SemaphorePermit<'_>) {
        let child = self.children.fetch_add(1, Relaxed);
        let seed = Seed::new(self.begun.seed).with(&child.to_le_bytes()).value();
        let (parent, attempt) = (self.begun.task.0, self.begun.attempt.0);
        self.line.say(
            &WorkerMessage::Submit(SubmitTask { task, parent, attempt, function, returns, seed, request }),
            None,
            room,
        );
    }

    /// Stores a value, which contains these objects. Gives its object, which the client holds once.
    ///
    /// # Errors
    /// When it is larger than all objects may be, there is no memory for it, or the job has ended.
    pub async fn put(&self, value: Vec<u8>, contains: &[ObjectId]) -> Result<ObjectId, Fault> {
        let refs: Vec<u64> = contains.iter().map(|object| object.0).collect();
        let task = self.begun.task.0;
        let bytes = value.len();
        if bytes <= VALUE_INLINE_BYTES_MAX {
            let (object, room) = self.number(1, bytes + 8 * refs.len()).await?;
            self.line.say(&WorkerMessage::Put { object, task, value: SentValue::Inline(&value), refs }, None, room);
            return Ok(ObjectId(object));
        }
        let max = self.value_bytes_max;
        if bytes as u64 > max {
            let message = format!("a value of {bytes} bytes, the node's objects have {max} bytes of memory");
            return Err(Fault::new(Code::StoreFull, message));
        }
        // What lies in its file counts as said, too: the node may have no room for it yet.
        let (object, room) = self.number(1, bytes).await?;
        let no_memory = |e: io::Error| Fault::new(Code::Host, format!("there is no memory for a value: {e}"));
        let sealed = tokio::task::spawn_blocking(move || {
            let mut memory = UnsealedFile::new(bytes)?;
            memory.write(&[&value])?;
            memory.seal(bytes as u64)
        });
        let sealed = sealed.await.map_err(|e| no_memory(io::Error::other(e)))?.map_err(no_memory)?;
        self.line.say(
            &WorkerMessage::Put { object, task, value: SentValue::File(bytes as u64, None), refs },
            Some(sealed),
            room,
        );
        Ok(ObjectId(object))
    }

    /// Wants to be told of an object that the client holds: see [`Listen::delivered`]. Once there is room to say so, it is
    /// said if it `still` is so.
    ///
    /// # Errors
    /// When the job has ended.
    pub async fn want(&self, object: ObjectId, still: impl FnOnce() -> bool) -> Result<(), Fault> {
        let room = self.line.room_for(0).await.map_err(over)?;
        if !still() {
            return Ok(());
        }
        self.line.say(&WorkerMessage::RequestObject(object.0, self.begun.task.0), None, room);
        Ok(())
    }

    /// The client holds an object so many times less.
    pub fn release(&self, object: ObjectId, times: u32) {
        self.line.say_now(&WorkerMessage::Release(object.0, times));
    }

    /// Ends the task that an object comes of, and all that it submitted if `recursive`.
    ///
    /// # Errors
    /// When the job has ended.
    pub async fn cancel(&self, object: ObjectId, recursive: bool) -> Result<(), Fault> {
        let room = self.line.room_for(0).await.map_err(over)?;
        self.line.say(&WorkerMessage::Cancel(object.0, self.begun.task.0, recursive), None, room);
        Ok(())
    }

    /// Looks for the actor of a name. Gives an object whose value is its handle, and which the client holds once.
    ///
    /// # Errors
    /// When the job has ended.
    pub async fn find_actor(&self, name: &str) -> Result<ObjectId, Fault> {
        let (object, room) = self.number(1, name.len()).await?;
        let (task, attempt) = (self.begun.task.0, self.begun.attempt.0);
        self.line.say(&WorkerMessage::FindActor { object, task, attempt, name }, None, room);
        Ok(ObjectId(object))
    }

    /// Ends an actor whose handle the client holds, for good, or to begin anew.
    ///
    /// # Errors
    /// When the job has ended.
    pub async fn kill(&self, actor: ActorId, restart: bool) -> Result<(), Fault> {
        let room = self.line.room_for(0).await.map_err(over)?;
        self.line.say(&WorkerMessage::KillActor(actor.0, restart), None, room);
        Ok(())
    }

    /// Ends the job well, and waits until it has. What has not ended of it is cancelled.
    ///
    /// # Errors
    /// When it has ended otherwise before.
    pub async fn end(&self) -> Result<ProgramSummary, ProgramError> {
        // A task that returns nothing.
        self.finish(Ok(vec![(SentValue::Inline(&[]), Vec::new())]));
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner).take();
        over.ok_or(ProgramError::Dropped)?.await?
    }

    /// Ends the job, and does not wait.
    pub fn stop(&self) {
        if !self.has_ended() {
            self.is_dropped.store(true, Relaxed);
            let fault = Fault::new(Code::Cancelled, "its client let go of it");
            self.finish(Err(Box::new(TaskError { fault, chain: Vec::new() })));
        }
    }

    fn finish(&self, returned: Result<Vec<(SentValue<'_>, Vec<u64>)>, Box<TaskError>>) {
        let TaskId(task) = self.begun.task;
        let message = WorkerMessage::Finished {
            task,
            attempt: self.begun.attempt.0,
            returned,
            usage: AttemptUsage {
                started: self.since,
                waited_nanos: monotonic_nanos().saturating_sub(self.since),
                ..AttemptUsage::default()
            },
            lost: false,
            saved: None,
        };
        self.line.say_now(&message);
    }

    /// Room for a message of about so many bytes, and the first of `count` numbers for what it names.
    async fn number(&self, count: u32, bytes: usize) -> Result<(u64, SemaphorePermit<'_>), Fault> {
        let none = || Fault::new(Code::TaskLimit, "the client has no more numbers to give");
        let number = self.ids.lock().unwrap_or_else(PoisonError::into_inner).take(count).ok_or_else(none)?;
        let room = self.line.room_for(bytes).await.map_err(over)?;
        Ok((number, room))
    }
}

impl Drop for ClientJob {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A request, if it is no longer than those may be.
fn written(request: &TaskRequest<'_>) -> Result<Vec<u8>, Fault> {
    let request = postcard::to_stdvec(request).map_err(|e| Fault::new(Code::BadRequest, e.to_string()))?;
    if request.len() > REQUEST_BYTES_MAX {
        let message = format!(
            "a task is submitted with {} bytes of arguments; {REQUEST_BYTES_MAX} are allowed: `put` what is larger",
            request.len()
        );
        return Err(Fault::new(Code::BadRequest, message));
    }
    Ok(request)
}

fn over(_: AcquireError) -> Fault {
    Fault::new(Code::Cancelled, "its job has ended")
}
