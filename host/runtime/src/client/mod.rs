//! Jobs whose first task is a client in this process, not a function of a component.
//!
//! To the scheduler, a client is the worker of the job's first task, which runs until the client ends the job. The client and
//! the runtime exchange the messages of a worker, without a process: see [`line`]. Deliveries go to a [`ClientListener`], which
//! counts references.
//!
//! Non-goals: encoding and decoding of values.

mod line;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sandbar_core::{
    ActorId, Code, Fault, IdAllocator, ObjectId, Seed, TaskError, TaskId, TaskRequest, VALUE_INLINE_BYTES_MAX,
};
use sandbar_jobs::{JobRecorder, LogOutput, LoggedLine};
use sandbar_store::UnsealedFile;
use sandbar_worker::program::{AttemptUsage, SentValue, SubmitTask, WorkerMessage, monotonic_nanos};
use tokio::sync::{AcquireError, SemaphorePermit, oneshot};
use tokio::task::JoinHandle;

use self::line::ClientTask;
pub(super) use self::line::{ClientLine, ClientLink};
pub use self::line::{ClientListener, ObjectValue};
use crate::calls::{Program, ProgramTask};
use crate::engine::{JobOutputs, JobResult, NewJob, RootTask};
use crate::error::ProgramError;
use crate::recording::JobRecording;
use crate::runner::{ProgramRunner, start_fault, summary};
use crate::summary::ProgramSummary;
use crate::thread::RunningJob;

/// Maximum bytes of an encoded task request. Larger arguments are passed as objects.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// A component whose tasks can be called.
#[derive(Debug, Clone)]
pub struct LoadedProgram {
    program: Arc<Program>,
    path: PathBuf,
}

impl LoadedProgram {
    /// Returns the tasks, and the functions of actors. A task is called by its index.
    pub fn tasks(&self) -> &[ProgramTask] {
        &self.program.tasks
    }

    /// Returns the path from which the program was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A job to start for a client.
pub struct ClientJobSpec {
    /// Name of the job's first task, which is the client.
    pub name: String,
    /// Seed from which the seeds of all tasks are derived.
    pub seed: u64,
    /// Recorder of the job.
    pub recorder: JobRecorder,
    /// Receives each line that tasks log, on a thread of its own.
    pub log: Box<dyn FnMut(&LoggedLine) + Send>,
}

impl ProgramRunner {
    /// Compiles a program. Builds it first if it is the folder of a crate.
    ///
    /// # Errors
    /// Fails if the crate can't be built, or the component can't be compiled or is not a program.
    pub async fn load_program(&self, path: &Path) -> Result<LoadedProgram, ProgramError> {
        let program = self.load(path, self.options.limits).await?;
        Ok(LoadedProgram { program, path: path.to_owned() })
    }

    /// Starts a job with the tasks of a program. The caller is the job's first task. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Fails if the node can't run programs.
    pub async fn start_job(
        &self,
        program: &LoadedProgram,
        spec: ClientJobSpec,
        listener: Arc<dyn ClientListener>,
    ) -> Result<ClientJob, ProgramError> {
        let ClientJobSpec { name, seed, recorder, log } = spec;
        let recording = JobRecording::start(recorder, LogOutput::Callback(log)).map_err(start_fault)?;
        let runtime = self.runtime()?;
        let line = ClientLine::new(runtime.handle().doorbell());
        let (sender, started) = oneshot::channel();
        let (start, started_nanos) = (Instant::now(), monotonic_nanos());
        let mut job = runtime.submit(NewJob {
            tenant: recording.tenant(),
            run: recording.run(1),
            program: program.program.clone(),
            root_task: RootTask::Client { name, link: ClientLink::new(line.clone(), listener, sender) },
            seed,
            lasting: None,
            files: Arc::default(),
            outputs: JobOutputs {
                progress: recording.progress(),
                log: recording.log_sender().ok_or(ProgramError::Dropped)?,
                finished: recording.finished_job(),
            },
        });
        drop(runtime);
        let Ok(task) = started.await else {
            let result = wait_for_end(&mut job, &recording, start).await;
            recording.finish(&result);
            return Err(result.err().unwrap_or(ProgramError::Dropped));
        };
        recording.started(job.handle(), job.id());
        let name = recording.name().map(|name| name.as_str().to_owned());
        let is_dropped = Arc::new(AtomicBool::new(false));
        let completion = tokio::spawn(record(job, recording, start, is_dropped.clone()));
        Ok(ClientJob {
            name,
            line,
            task,
            started_nanos,
            ids: Mutex::new(IdAllocator::for_worker(task.worker)),
            submitted: AtomicU64::new(0),
            value_bytes_max: self.options.object_bytes_max,
            is_dropped,
            completion: Mutex::new(Some(completion)),
        })
    }
}

/// Answers queries about a job until it ends, and writes its record.
async fn record(
    mut job: RunningJob,
    recording: JobRecording,
    start: Instant,
    is_dropped: Arc<AtomicBool>,
) -> Result<ProgramSummary, ProgramError> {
    let result = tokio::select! {
        result = wait_for_end(&mut job, &recording, start) => result,
        () = recording.serve() => Err(ProgramError::Stopped),
    };
    // This stops the job and waits for its end.
    drop(job);
    let result = if is_dropped.load(Relaxed) { Err(ProgramError::Dropped) } else { result };
    recording.finish(&result);
    result
}

async fn wait_for_end(
    job: &mut RunningJob,
    recording: &JobRecording,
    start: Instant,
) -> Result<ProgramSummary, ProgramError> {
    let JobResult { result, counters } = job.result().await.ok_or(ProgramError::Dropped)?;
    result.map_err(|error| ProgramError::Task((*error).clone()))?;
    Ok(summary(recording, serde_json::Value::Null, &counters, start))
}

/// A job of a client. Its methods send messages to the node, in order, and wait while too many bytes are queued. Dropping it
/// ends the job: unfinished tasks are cancelled.
#[derive(Debug)]
pub struct ClientJob {
    name: Option<String>,
    line: Arc<ClientLine>,
    task: ClientTask,
    /// Start, in nanoseconds of the monotonic clock.
    started_nanos: u64,
    ids: Mutex<IdAllocator>,
    /// Number of submitted tasks.
    submitted: AtomicU64,
    value_bytes_max: u64,
    is_dropped: Arc<AtomicBool>,
    /// The task that records the job, until [`ClientJob::finish`] awaits it.
    completion: Mutex<Option<JoinHandle<Result<ProgramSummary, ProgramError>>>>,
}

impl ClientJob {
    /// Returns the job's name, or `None` if the job is not recorded.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns whether the job has ended.
    pub fn has_ended(&self) -> bool {
        self.line.is_closed()
    }

    /// Submits a task, by its index in the program. Returns the first of the objects that the task returns, each of which the
    /// client holds once.
    ///
    /// # Errors
    /// Fails if the request is larger than its limit, or the job has ended.
    pub async fn submit(&self, function: u32, returns: u32, request: &TaskRequest<'_>) -> Result<ObjectId, Fault> {
        let request = encode_request(request)?;
        let (task, reserved) = self.allocate(returns, request.len()).await?;
        self.send_submit(task, function, returns, &request, reserved);
        Ok(ObjectId(task))
    }

    /// Submits a generator, by its index in the program. Calls `on_created` with the stream, an object that the client holds
    /// once, and returns the result. The call comes before the submission, and so before the first
    /// [item](ClientListener::item). The delivery of the stream object marks the end of the stream.
    ///
    /// # Errors
    /// Fails if the request is larger than its limit, or the job has ended.
    pub async fn stream<R>(
        &self,
        function: u32,
        request: &TaskRequest<'_>,
        on_created: impl FnOnce(ObjectId) -> R,
    ) -> Result<R, Fault> {
        let request = encode_request(request)?;
        let (task, reserved) = self.allocate(1, request.len()).await?;
        let result = on_created(ObjectId(task));
        self.send_submit(task, function, 1, &request, reserved);
        // It follows a message with reserved bytes.
        self.line.send_now(&WorkerMessage::RequestObject(task, self.task.task.0));
        Ok(result)
    }

    /// Reports the total number of consumed items of a stream. The generator may yield more.
    pub fn items_consumed(&self, stream: ObjectId, consumed: u64) {
        self.line.send_now(&WorkerMessage::ItemsTaken(stream.0, consumed));
    }

    fn send_submit(&self, task: u64, function: u32, returns: u32, request: &[u8], reserved: SemaphorePermit<'_>) {
        let child = self.submitted.fetch_add(1, Relaxed);
        let seed = Seed::new(self.task.seed).with(&child.to_le_bytes()).value();
        let (parent, attempt) = (self.task.task.0, self.task.attempt.0);
        self.line.send(
            &WorkerMessage::Submit(SubmitTask { task, parent, attempt, function, returns, seed, request }),
            None,
            reserved,
        );
    }

    /// Stores a value that contains these objects. Returns its object, which the client holds once.
    ///
    /// # Errors
    /// Fails if the value is larger than the node's object memory, no memory is available, or the job has ended.
    pub async fn put(&self, value: Vec<u8>, contains: &[ObjectId]) -> Result<ObjectId, Fault> {
        let refs: Vec<u64> = contains.iter().map(|object| object.0).collect();
        let task = self.task.task.0;
        let bytes = value.len();
        if bytes <= VALUE_INLINE_BYTES_MAX {
            let (object, reserved) = self.allocate(1, bytes + 8 * refs.len()).await?;
            self.line.send(
                &WorkerMessage::Put { object, task, value: SentValue::Inline(&value), refs },
                None,
                reserved,
            );
            return Ok(ObjectId(object));
        }
        let max = self.value_bytes_max;
        if bytes as u64 > max {
            let message = format!("a value of {bytes} bytes, the node's objects have {max} bytes of memory");
            return Err(Fault::new(Code::StoreFull, message));
        }
        // The file's bytes count as queued, because the node may not have room for the value yet.
        let (object, reserved) = self.allocate(1, bytes).await?;
        let no_memory = |e: io::Error| Fault::new(Code::Host, format!("there is no memory for a value: {e}"));
        let sealed = tokio::task::spawn_blocking(move || {
            let mut memory = UnsealedFile::new(bytes)?;
            memory.write(&[&value])?;
            memory.seal(bytes as u64)
        });
        let sealed = sealed.await.map_err(|e| no_memory(io::Error::other(e)))?.map_err(no_memory)?;
        self.line.send(
            &WorkerMessage::Put { object, task, value: SentValue::File(bytes as u64, None), refs },
            Some(sealed),
            reserved,
        );
        Ok(ObjectId(object))
    }

    /// Requests the [delivery](ClientListener::delivered) of an object that the client holds. Waits until the message can be
    /// queued, and then sends it only if `is_needed` returns true.
    ///
    /// # Errors
    /// Fails if the job has ended.
    pub async fn request(&self, object: ObjectId, is_needed: impl FnOnce() -> bool) -> Result<(), Fault> {
        let reserved = self.line.reserve(0).await.map_err(job_ended)?;
        if !is_needed() {
            return Ok(());
        }
        self.line.send(&WorkerMessage::RequestObject(object.0, self.task.task.0), None, reserved);
        Ok(())
    }

    /// Releases an object, this many times.
    pub fn release(&self, object: ObjectId, times: u32) {
        self.line.send_now(&WorkerMessage::Release(object.0, times));
    }

    /// Cancels the task that returns an object, and all that it submitted if `recursive`.
    ///
    /// # Errors
    /// Fails if the job has ended.
    pub async fn cancel(&self, object: ObjectId, recursive: bool) -> Result<(), Fault> {
        let reserved = self.line.reserve(0).await.map_err(job_ended)?;
        self.line.send(&WorkerMessage::Cancel(object.0, self.task.task.0, recursive), None, reserved);
        Ok(())
    }

    /// Finds the actor with a name. Returns an object whose value is the actor's handle. The client holds the object once.
    ///
    /// # Errors
    /// Fails if the job has ended.
    pub async fn find_actor(&self, name: &str) -> Result<ObjectId, Fault> {
        let (object, reserved) = self.allocate(1, name.len()).await?;
        let (task, attempt) = (self.task.task.0, self.task.attempt.0);
        self.line.send(&WorkerMessage::FindActor { object, task, attempt, name }, None, reserved);
        Ok(ObjectId(object))
    }

    /// Ends an actor whose handle the client holds, or restarts it if `restart`.
    ///
    /// # Errors
    /// Fails if the job has ended.
    pub async fn kill_actor(&self, actor: ActorId, restart: bool) -> Result<(), Fault> {
        let reserved = self.line.reserve(0).await.map_err(job_ended)?;
        self.line.send(&WorkerMessage::KillActor(actor.0, self.task.task.0, restart), None, reserved);
        Ok(())
    }

    /// Ends the job successfully, and waits for its end. Unfinished tasks are cancelled.
    ///
    /// # Errors
    /// Fails if the job was stopped or failed before.
    pub async fn finish(&self) -> Result<ProgramSummary, ProgramError> {
        // The first task returns an empty value.
        self.send_finished(Ok(vec![(SentValue::Inline(&[]), Vec::new())]));
        let completion = self.completion.lock().unwrap_or_else(PoisonError::into_inner).take();
        completion.ok_or(ProgramError::Dropped)?.await?
    }

    /// Cancels the job, and does not wait for its end.
    pub fn stop(&self) {
        if !self.has_ended() {
            self.is_dropped.store(true, Relaxed);
            let fault = Fault::new(Code::Cancelled, "its client disconnected");
            self.send_finished(Err(Box::new(TaskError { fault, chain: Vec::new() })));
        }
    }

    fn send_finished(&self, returned: Result<Vec<(SentValue<'_>, Vec<u64>)>, Box<TaskError>>) {
        let TaskId(task) = self.task.task;
        let message = WorkerMessage::Finished {
            task,
            attempt: self.task.attempt.0,
            returned,
            usage: AttemptUsage {
                started: self.started_nanos,
                waited_nanos: monotonic_nanos().saturating_sub(self.started_nanos),
                ..AttemptUsage::default()
            },
            lost: false,
            saved: None,
        };
        self.line.send_now(&message);
    }

    /// Allocates `count` ids, and reserves the bytes of a message of about this size. Returns the first id.
    async fn allocate(&self, count: u32, bytes: usize) -> Result<(u64, SemaphorePermit<'_>), Fault> {
        let exhausted = || Fault::new(Code::TaskLimit, "the client has used all its object ids: start another job");
        let first = self.ids.lock().unwrap_or_else(PoisonError::into_inner).take(count).ok_or_else(exhausted)?;
        let reserved = self.line.reserve(bytes).await.map_err(job_ended)?;
        Ok((first, reserved))
    }
}

impl Drop for ClientJob {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Encodes a request.
///
/// # Errors
/// Fails if it is larger than [`REQUEST_BYTES_MAX`].
fn encode_request(request: &TaskRequest<'_>) -> Result<Vec<u8>, Fault> {
    let request = postcard::to_stdvec(request).map_err(|e| Fault::new(Code::BadRequest, e.to_string()))?;
    if request.len() > REQUEST_BYTES_MAX {
        let message = format!(
            "a task is submitted with {} bytes of arguments, the limit is {REQUEST_BYTES_MAX}: store larger values with \
             `put`, and pass their objects",
            request.len()
        );
        return Err(Fault::new(Code::BadRequest, message));
    }
    Ok(request)
}

fn job_ended(_: AcquireError) -> Fault {
    Fault::new(Code::Cancelled, "its job has ended")
}
