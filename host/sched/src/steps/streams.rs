//! Streams: the items that a generator yields, delivered one by one to its consumer.
//!
//! A generator is a task whose only return is its stream, an object that gets its value when the generator finishes.
//! The consumer is the worker of the task that submitted the generator. Each item is an object of its own, which the
//! consumer holds from the start, so that no item waits here. The generator may be a buffer ahead of the consumer;
//! credits report the number of consumed items to it. An item counts once, whichever attempt yields it first.

use sandbar_core::{Attempt, ObjectId, TaskId, WorkerId};

use crate::event::Action;
use crate::records::keys::{ObjectKey, TaskKey, WorkerKey};
use crate::records::object::ObjectOutcome;
use crate::records::streams::{Item, Stream};
use crate::records::tasks::Cancellation;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Adds the stream of a new generator.
    pub(crate) fn add_stream(&mut self, generator: TaskKey, consumer: Option<WorkerKey>, buffer: u32) {
        let id = self.tasks[generator].id.returns(0);
        if let (Some(object), Some(consumer)) = (self.ids.find_object(id), consumer) {
            let consumer = self.cluster.workers[consumer].id;
            self.objects[object].set_stream(Stream { consumer, buffer: buffer.max(1), yielded: 0, consumed: 0 });
        }
    }

    /// Whether a task is a generator with an existing stream. Such a task is not reconstructed.
    pub(crate) fn has_stream(&self, task: TaskKey) -> bool {
        self.returned(task, 0).is_some_and(|object| self.objects[object].stream().is_some())
    }

    /// Handles an item that a generator yields.
    pub(crate) fn yielded(&mut self, id: TaskId, attempt: Attempt, worker: WorkerId, item: Item<V>) {
        let generator = self.generator_in(id, attempt, worker);
        if let Some((task, object)) = generator
            && item.index == 0
        {
            // A new attempt has not received the credits of earlier ones.
            self.send_credit(task, object);
        }
        match generator.and_then(|(task, stream)| Some((task, stream, self.consumer_of(task, stream, &item)?))) {
            Some((task, stream, consumer)) => self.add_item(task, stream, consumer, item),
            None => self.drop_item(item.object, item.value.ok()),
        }
    }

    /// Returns a generator and its stream, if this attempt is in the given worker.
    fn generator_in(&self, id: TaskId, attempt: Attempt, worker: WorkerId) -> Option<(TaskKey, ObjectKey)> {
        let worker = self.cluster.workers.find(worker)?;
        let is_there = |at: &TaskKey| self.tasks[*at].worker == Some(worker) && self.tasks[*at].attempt == attempt;
        let task = self.ids.find_task(id).filter(is_there)?;
        Some((task, self.ids.find_object(id.returns(0))?))
    }

    /// Returns the consumer of an item, if it is the stream's next one and wanted.
    fn consumer_of(&self, task: TaskKey, object: ObjectKey, item: &Item<V>) -> Option<WorkerKey> {
        let stream = self.objects[object].stream()?;
        let consumer = self.cluster.workers.find(stream.consumer)?;
        let is_next = item.index == stream.yielded && item.index - stream.consumed < u64::from(stream.buffer);
        let is_consumed =
            self.tasks[task].cancellation == Cancellation::None && self.objects[object].is_held_by(stream.consumer);
        let is_new = !self.ids.is_used(item.object.0);
        (is_next && is_consumed && is_new).then_some(consumer)
    }

    fn add_item(&mut self, task: TaskKey, stream: ObjectKey, consumer: WorkerKey, item: Item<V>) {
        let Item { object: id, value, refs, .. } = item;
        let job = self.tasks[task].job;
        let room = self.has_room_for(job, 1).and_then(|()| self.has_room_for_values(job, value.as_ref().ok()));
        let contents = room.and_then(|()| self.all_usable(job, &refs));
        let fault = match (contents, value) {
            (Ok(contents), Ok(value)) => {
                let at = self.create(id, job, None, ObjectOutcome::Pending, Some(consumer));
                self.set_ready(at, value, contents);
                return self.send_item(stream, at, consumer);
            }
            (Err(fault), value) => {
                self.drop_item(id, value.ok());
                fault
            }
            (Ok(_), Err(fault)) => fault,
        };
        let error = self.error(task, fault);
        let at = self.create(id, job, None, ObjectOutcome::Failed(error), Some(consumer));
        self.send_item(stream, at, consumer);
    }

    /// Delivers an item to the consumer's worker, which then holds its contents.
    fn send_item(&mut self, stream: ObjectKey, item: ObjectKey, consumer: WorkerKey) {
        self.hold_contents(item, consumer);
        if let Some(stream) = self.objects[stream].stream_mut() {
            stream.yielded += 1;
        }
        let (worker, stream, object) =
            (self.cluster.workers[consumer].id, self.objects[stream].id, self.objects[item].id);
        self.work.act(Action::DeliverItem { worker, stream, object });
    }

    fn drop_item(&mut self, object: ObjectId, value: Option<V>) {
        if let Some(value) = value {
            self.work.act(Action::Drop { object, value });
        }
    }

    /// Records the number of consumed items.
    pub(crate) fn consume_items(&mut self, id: ObjectId, worker: WorkerId, consumed: u64) {
        let Some(object) = self.ids.find_object(id) else { return };
        let Some(stream) = self.objects[object].stream_mut().filter(|stream| stream.consumer == worker) else { return };
        let consumed = consumed.min(stream.yielded);
        if consumed <= stream.consumed {
            return;
        }
        stream.consumed = consumed;
        if let Some(task) = self.ids.find_task(TaskId(id.0)) {
            self.send_credit(task, object);
        }
    }

    /// Reports the number of consumed items to the worker of a generator.
    fn send_credit(&mut self, task: TaskKey, object: ObjectKey) {
        let Some(stream) = self.objects[object].stream() else { return };
        let (id, consumed) = (self.tasks[task].id, stream.consumed);
        if let Some(worker) = self.tasks[task].worker
            && consumed > 0
        {
            self.work.act(Action::Credit { worker: self.cluster.workers[worker].id, task: id, consumed });
        }
    }

    /// Cancels the generator of a stream without references. Its children keep running: consumed items may contain
    /// their returns.
    pub(crate) fn close_stream(&mut self, at: ObjectKey) {
        if let Some(task) = self.ids.find_task(TaskId(self.objects[at].id.0)) {
            self.cancel_task(task, Cancellation::Task);
        }
    }
}
