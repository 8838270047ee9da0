//! The services that a worker offers to one task.

use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Instant;

use sandbar_core::{ActorId, Fault, GroupId, ObjectId, TaskError};
use sandbar_dense::remote::Broker;
use sandbar_dense::{Cancellation, Session};
use sandbar_sandbox::{ActorStep, GetOutcome, Input, Level, NextItem, Refusal, Services, is_interrupted};

use super::WorkerRuntime;
use super::tasks::task_ended;
use crate::mutex::lock;
use crate::program::messages::WorkerMessage;
use crate::program::objects::{LocalValue, ObjectKey, TaskSlot};

/// Maximum number of tasks in an error's chain.
const CHAIN_MAX: usize = 10_000;

/// Ends dense operations of a task that must end, and its waits for a GPU.
const UNTIL_INTERRUPTED: Cancellation = Cancellation::new(is_interrupted);

/// Maximum bytes of an error that a task passes on.
const ERROR_BYTES_MAX: usize = 256 << 10;

/// Services of one task.
pub(in crate::program) struct TaskServices {
    pub runtime: Arc<Mutex<WorkerRuntime>>,
    pub slot: TaskSlot,
    /// The object that was read last.
    pub current_object: Option<(u64, Arc<LocalValue>)>,
    /// Whether it has submitted a task and may not continue yet.
    pub is_held: bool,
    /// Connection to the GPU broker if it may use a GPU, its job, the limit of its tensors in bytes, and its session.
    pub broker: Option<Broker>,
    pub job: u32,
    pub tensor_bytes_max: u64,
    pub dense: Option<Session>,
    /// For an actor: GPU time up to the return of its last call.
    pub gpu_nanos_reported: u64,
}

impl Services for TaskServices {
    fn log(&mut self, level: Level, message: &str) {
        lock(&self.runtime).log(self.slot, level, message);
    }

    fn dense(&mut self) -> Option<&mut Session> {
        let TaskServices { broker, job, tensor_bytes_max, dense, .. } = self;
        let broker = || broker.clone().map(|broker| (broker, u64::from(*job)));
        let session = || Session::until(broker(), None, *tensor_bytes_max, UNTIL_INTERRUPTED);
        Some(dense.get_or_insert_with(session))
    }

    fn gpu_nanos(&self) -> u64 {
        self.dense.as_ref().map_or(0, Session::gpu_nanos)
    }

    fn has_lost_gpu(&self) -> bool {
        self.dense.as_ref().is_some_and(Session::is_lost)
    }

    fn has_lost_tensors(&self) -> bool {
        self.dense.as_ref().is_some_and(Session::has_lost_tensors)
    }

    fn wait_for_gpu(&mut self) {
        lock(&self.runtime).tasks.wait_for_gpu(self.slot);
    }

    fn sleep_until(&mut self, due: Instant) -> Result<(), Refusal> {
        lock(&self.runtime).sleep_until(self.slot, due)
    }

    fn end_sleep(&mut self) {
        if let Some(task) = lock(&self.runtime).tasks.get_mut(self.slot) {
            task.waiting = None;
        }
    }

    fn submit(&mut self, task: u32, returns: u32, request: &[u8]) -> Result<ObjectId, Refusal> {
        lock(&self.runtime).submit(self.slot, task, returns, request)
    }

    fn poll_submitted(&mut self) -> Poll<()> {
        let mut runtime = lock(&self.runtime);
        if self.is_held || runtime.node.holds_jobs() {
            let polled = runtime.tasks.poll_submitted(self.slot);
            self.is_held = polled.is_pending();
            return polled;
        }
        Poll::Ready(())
    }

    fn put(&mut self, parts: &[&[u8]], contained: &[u64]) -> Result<ObjectId, Refusal> {
        lock(&self.runtime).put(self.slot, parts, contained)
    }

    fn begin_wait(&mut self, objects: &[u64], count: u32, nanos: Option<u64>) -> Result<(), Refusal> {
        lock(&self.runtime).begin_wait(self.slot, objects, count as usize, false, nanos)
    }

    fn begin_get(&mut self, object: ObjectId, nanos: Option<u64>) -> Result<(), Refusal> {
        lock(&self.runtime).begin_wait(self.slot, &[object.0], 1, true, nanos)
    }

    fn poll_wait(&mut self) -> Poll<Result<Vec<bool>, Refusal>> {
        lock(&self.runtime).poll_wait(self.slot)
    }

    fn object(&mut self, object: ObjectId) -> Result<(GetOutcome, Input<'_>), Refusal> {
        if self.current_object.as_ref().is_none_or(|(number, _)| *number != object.0) {
            let mut runtime = lock(&self.runtime);
            let task = runtime.tasks.require(self.slot)?;
            let (job, received) = (task.job, task.received.take_if(|(number, _)| *number == object.0));
            let value = received
                .map(|(_, value)| value)
                .or_else(|| runtime.objects.value(ObjectKey::new(job, object.0)).cloned());
            let unknown = || Refusal::bad_request(format!("object {object} is not available; `get` it first"));
            runtime.hold_contained(self.slot, object.0);
            self.current_object = Some((object.0, value.ok_or_else(unknown)?));
        }
        let (_, value) = self.current_object.as_ref().ok_or_else(task_ended)?;
        Ok((value.outcome(), value.input()))
    }

    fn object_mapped(&mut self, at: usize, bytes: usize) {
        if let Some((_, value)) = &self.current_object
            && let Some(task) = lock(&self.runtime).tasks.get_mut(self.slot)
        {
            let region = at..at + bytes;
            task.mapped.retain(|(other, _)| other.start < region.start || other.end > region.end);
            task.mapped.push((region, value.clone()));
        }
    }

    fn release(&mut self, objects: &[u64]) -> Result<(), Refusal> {
        self.current_object = None;
        lock(&self.runtime).release(self.slot, objects)
    }

    fn cancel(&mut self, object: ObjectId, recursive: bool) -> Result<(), Refusal> {
        let mut runtime = lock(&self.runtime);
        runtime.announce(self.slot);
        let task = runtime.tasks.require(self.slot)?.id;
        runtime.node.send(&WorkerMessage::Cancel(object.0, task, recursive));
        runtime.node.publish();
        Ok(())
    }

    fn find(&mut self, name: &str) -> Result<ObjectId, Refusal> {
        lock(&self.runtime).find(self.slot, name)
    }

    fn open(&mut self, file: u64) -> Result<ObjectId, Refusal> {
        lock(&self.runtime).open(self.slot, file)
    }

    fn kill(&mut self, actor: ActorId, restart: bool) -> Result<(), Refusal> {
        let mut runtime = lock(&self.runtime);
        runtime.announce(self.slot);
        let task = runtime.tasks.require(self.slot)?.id;
        runtime.node.send(&WorkerMessage::KillActor(actor.0, task, restart));
        runtime.node.publish();
        Ok(())
    }

    fn group(&mut self, request: &[u8]) -> Result<GroupId, Refusal> {
        lock(&self.runtime).group(self.slot, request)
    }

    fn remove_group(&mut self, group: GroupId) -> Result<(), Refusal> {
        lock(&self.runtime).remove_group(self.slot, group)
    }

    fn awaits(&mut self, objects: &[u64]) -> Result<(), Refusal> {
        lock(&self.runtime).awaits(self.slot, objects)
    }

    fn actor_created(&mut self) {
        self.current_object = None;
        lock(&self.runtime).actor_created(self.slot);
    }

    fn poll_next(&mut self) -> Poll<ActorStep> {
        lock(&self.runtime).poll_next(self.slot)
    }

    fn call_returned(&mut self, result: Result<bool, Fault>, memory_bytes: u64) {
        self.current_object = None;
        let gpu_nanos = self.gpu_nanos();
        let since = gpu_nanos.saturating_sub(std::mem::replace(&mut self.gpu_nanos_reported, gpu_nanos));
        lock(&self.runtime).call_returned(self.slot, result, memory_bytes, since);
    }

    fn progress(&mut self, name: &str, done: u64, total: Option<u64>) {
        lock(&self.runtime).progress(self.slot, name, done, total);
    }

    fn fail_with(&mut self, error: &[u8]) -> Result<(), Refusal> {
        if error.len() > ERROR_BYTES_MAX {
            let message = format!("it fails with an error of {} bytes, the limit is {ERROR_BYTES_MAX}", error.len());
            return Err(Refusal::bad_request(message));
        }
        let error = postcard::from_bytes::<TaskError>(error).ok().filter(|error| error.chain.len() <= CHAIN_MAX);
        let malformed = || Refusal::bad_request("it fails with a malformed error");
        let error = error.ok_or_else(malformed)?;
        let mut runtime = lock(&self.runtime);
        runtime.tasks.require(self.slot)?.fails_with = Some(Box::new(error));
        Ok(())
    }

    fn yielded(&mut self, parts: &[&[u8]], contained: &[u64]) -> Result<(), Refusal> {
        lock(&self.runtime).yielded(self.slot, parts, contained)
    }

    fn poll_yielded(&mut self) -> Poll<Result<(), Refusal>> {
        lock(&self.runtime).poll_yielded(self.slot)
    }

    fn begin_item(&mut self, stream: ObjectId, nanos: Option<u64>) -> Result<(), Refusal> {
        lock(&self.runtime).begin_item(self.slot, stream.0, nanos)
    }

    fn poll_item(&mut self, stream: ObjectId) -> Poll<Result<NextItem, Refusal>> {
        lock(&self.runtime).poll_item(self.slot, stream.0)
    }

    fn returned(&mut self, parts: &[&[u8]], contained: &[u64]) -> Result<(), Refusal> {
        lock(&self.runtime).returned(self.slot, parts, contained)
    }
}
