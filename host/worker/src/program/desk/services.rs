//! What one task asks of its worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Instant;

use sandbar_core::{ActorId, Fault, GroupId, ObjectId, TaskError};
use sandbar_dense::Session;
use sandbar_dense::remote::Broker;
use sandbar_sandbox::{Following, Got, Input, Level, Next, Refusal, Services};

use super::{Desk, gone};
use crate::program::messages::Up;
use crate::program::objects::{Slot, Value};

/// Tasks that an error may name.
const CHAIN_MAX: usize = 10_000;

/// Bytes of an error that a task passes on.
const ERROR_BYTES_MAX: usize = 256 << 10;

/// What one task gets.
pub(in crate::program) struct TaskServices {
    pub desk: Arc<Mutex<Desk>>,
    pub slot: Slot,
    /// The object that was asked for last.
    pub at_hand: Option<(u64, Arc<Value>)>,
    /// It has submitted, and may not go on yet.
    pub is_held: bool,
    /// Who has a GPU for it, if it may use one, what its tensors may take, and these.
    pub broker: Option<Broker>,
    pub job: u32,
    pub tensor_bytes_max: u64,
    pub dense: Option<Session>,
    /// Of an actor: how long GPUs had worked for it when its last call was answered.
    pub gpu_nanos_told: u64,
}

pub(in crate::program) fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Services for TaskServices {
    fn log(&mut self, level: Level, message: &str) {
        let mut desk = lock(&self.desk);
        let Some(task) = desk.task(self.slot) else { return };
        let cost = message.len() as u64 + 16;
        if cost > task.log_left {
            task.log_dropped += 1;
            return desk.announce(self.slot);
        }
        task.log_left -= cost;
        let id = task.id;
        desk.announce(self.slot);
        desk.say(&Up::Log(id, level as u8, message));
    }

    fn dense(&mut self) -> Option<&mut Session> {
        let TaskServices { broker, job, tensor_bytes_max, dense, .. } = self;
        let broker = || broker.clone().map(|broker| (broker, u64::from(*job)));
        Some(dense.get_or_insert_with(|| Session::new(broker(), None, *tensor_bytes_max)))
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

    fn waits_for_gpu(&mut self) {
        lock(&self.desk).waits_for_gpu(self.slot);
    }

    fn sleep_until(&mut self, due: Instant) -> Result<(), Refusal> {
        lock(&self.desk).sleep_until(self.slot, due)
    }

    fn woke(&mut self) {
        if let Some(task) = lock(&self.desk).task(self.slot) {
            task.waiting = None;
        }
    }

    fn submit(&mut self, task: u32, returns: u32, request: &[u8]) -> Result<ObjectId, Refusal> {
        lock(&self.desk).submit(self.slot, task, returns, request)
    }

    fn poll_submitted(&mut self) -> Poll<()> {
        let mut desk = lock(&self.desk);
        if self.is_held || desk.holds_jobs() {
            let polled = desk.poll_submitted(self.slot);
            self.is_held = polled.is_pending();
            return polled;
        }
        Poll::Ready(())
    }

    fn put(&mut self, parts: &[&[u8]], contained: &[u64]) -> Result<ObjectId, Refusal> {
        lock(&self.desk).put(self.slot, parts, contained)
    }

    fn begin_wait(&mut self, objects: &[u64], count: u32, nanos: Option<u64>) -> Result<(), Refusal> {
        lock(&self.desk).begin_wait(self.slot, objects, (count as usize, false), nanos)
    }

    fn begin_get(&mut self, object: ObjectId, nanos: Option<u64>) -> Result<(), Refusal> {
        lock(&self.desk).begin_wait(self.slot, &[object.0], (1, true), nanos)
    }

    fn poll_wait(&mut self) -> Poll<Result<Vec<bool>, Refusal>> {
        lock(&self.desk).poll_wait(self.slot)
    }

    fn object(&mut self, object: ObjectId) -> Result<(Got, Input<'_>), Refusal> {
        if self.at_hand.as_ref().is_none_or(|(number, _)| *number != object.0) {
            let mut desk = lock(&self.desk);
            let task = desk.task(self.slot).ok_or_else(gone)?;
            let (job, got) = (task.job, task.got.take_if(|(number, _)| *number == object.0));
            let value = got.map(|(_, value)| value).or_else(|| desk.objects.value((job, object.0)).cloned());
            let unknown = || Refusal::bad_request(format!("object {object} is not there; `get` it first"));
            desk.hold_contained(self.slot, object.0);
            self.at_hand = Some((object.0, value.ok_or_else(unknown)?));
        }
        let (_, value) = self.at_hand.as_ref().ok_or_else(gone)?;
        Ok((value.got(), value.input()))
    }

    fn mapped(&mut self, at: usize, bytes: usize) {
        if let Some((_, value)) = &self.at_hand
            && let Some(task) = lock(&self.desk).task(self.slot)
        {
            let region = at..at + bytes;
            task.mapped.retain(|(other, _)| other.start < region.start || other.end > region.end);
            task.mapped.push((region, value.clone()));
        }
    }

    fn release(&mut self, objects: &[u64]) -> Result<(), Refusal> {
        self.at_hand = None;
        lock(&self.desk).release(self.slot, objects);
        Ok(())
    }

    fn cancel(&mut self, object: ObjectId, recursive: bool) -> Result<(), Refusal> {
        let mut desk = lock(&self.desk);
        desk.announce(self.slot);
        let task = desk.task(self.slot).ok_or_else(gone)?.id;
        desk.say(&Up::Cancel(object.0, task, recursive));
        desk.publish();
        Ok(())
    }

    fn find(&mut self, name: &str) -> Result<ObjectId, Refusal> {
        lock(&self.desk).find(self.slot, name)
    }

    fn open(&mut self, file: u64) -> Result<ObjectId, Refusal> {
        lock(&self.desk).open(self.slot, file)
    }

    fn kill(&mut self, actor: ActorId, restart: bool) -> Result<(), Refusal> {
        let mut desk = lock(&self.desk);
        desk.announce(self.slot);
        desk.say(&Up::Kill(actor.0, restart));
        desk.publish();
        Ok(())
    }

    fn group(&mut self, request: &[u8]) -> Result<GroupId, Refusal> {
        lock(&self.desk).group(self.slot, request)
    }

    fn remove_group(&mut self, group: GroupId) -> Result<(), Refusal> {
        lock(&self.desk).remove_group(self.slot, group)
    }

    fn awaits(&mut self, objects: &[u64]) -> Result<(), Refusal> {
        lock(&self.desk).awaits(self.slot, objects)
    }

    fn made(&mut self) {
        self.at_hand = None;
        lock(&self.desk).made(self.slot);
    }

    fn poll_next(&mut self) -> Poll<Next> {
        lock(&self.desk).poll_next(self.slot)
    }

    fn answered(&mut self, answer: Result<bool, Fault>, memory_bytes: u64) {
        self.at_hand = None;
        let gpu_nanos = self.gpu_nanos();
        let since = gpu_nanos.saturating_sub(std::mem::replace(&mut self.gpu_nanos_told, gpu_nanos));
        lock(&self.desk).answered(self.slot, answer, (memory_bytes, since));
    }

    fn progress(&mut self, name: &str, done: u64, total: Option<u64>) {
        lock(&self.desk).progress(self.slot, name, done, total);
    }

    fn fails_with(&mut self, error: &[u8]) -> Result<(), Refusal> {
        if error.len() > ERROR_BYTES_MAX {
            let message = format!("it fails with an error of {} bytes, the limit is {ERROR_BYTES_MAX}", error.len());
            return Err(Refusal::bad_request(message));
        }
        let error = postcard::from_bytes::<TaskError>(error).ok().filter(|error| error.chain.len() <= CHAIN_MAX);
        let malformed = || Refusal::bad_request("it fails with what is no error");
        let error = error.ok_or_else(malformed)?;
        let mut desk = lock(&self.desk);
        desk.task(self.slot).ok_or_else(gone)?.fails_with = Some(Box::new(error));
        Ok(())
    }

    fn yielded(&mut self, parts: &[&[u8]], contained: &[u64]) -> Result<(), Refusal> {
        lock(&self.desk).yielded(self.slot, parts, contained)
    }

    fn poll_yielded(&mut self) -> Poll<Result<(), Refusal>> {
        lock(&self.desk).poll_yielded(self.slot)
    }

    fn begin_item(&mut self, stream: ObjectId, nanos: Option<u64>) -> Result<(), Refusal> {
        lock(&self.desk).begin_item(self.slot, stream.0, nanos)
    }

    fn poll_item(&mut self, stream: ObjectId) -> Poll<Result<Following, Refusal>> {
        lock(&self.desk).poll_item(self.slot, stream.0)
    }

    fn returned(&mut self, parts: &[&[u8]], contained: &[u64]) -> Result<(), Refusal> {
        lock(&self.desk).returned(self.slot, parts, contained)
    }
}
