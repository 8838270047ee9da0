//! Streams: what a generator yields, item by item, goes to whoever submitted it.
//!
//! A generator is a task whose one return is its stream: an object that is there when there are no more items, or says why
//! there are none. Each item is an object of its own, which the worker of who submitted it, the stream's consumer, holds from
//! the start: none waits here. The generator may be so many items ahead of what was taken, and learns what was by credits.
//! An item counts once, whichever attempt yields it first.

use sandbar_core::{Attempt, Fault, ObjectId, TaskId, WorkerId};

use crate::event::Action;
use crate::places::{ObjectAt, TaskAt, WorkerAt};
use crate::refs::Value;
use crate::scheduler::Scheduler;
use crate::tasks::Stop;

/// What is known of a stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) consumer: WorkerId,
    /// The generator may yield so many items more than were taken.
    pub(crate) buffer: u32,
    /// Items that are objects, or were.
    pub(crate) yielded: u64,
    /// Items that the consumer has taken.
    pub(crate) taken: u64,
}

/// What a generator hands over.
pub(crate) struct Item<V> {
    pub(crate) index: u64,
    pub(crate) object: ObjectId,
    /// Or why there is none.
    pub(crate) value: Result<V, Fault>,
    pub(crate) refs: Vec<ObjectId>,
}

impl<C, V> Scheduler<C, V> {
    /// A task was added that is a generator.
    pub(crate) fn add_stream(&mut self, generator: TaskAt, consumer: Option<WorkerAt>, buffer: u32) {
        let id = self.tasks[generator].id.returns(0);
        if let (Some(object), Some(consumer)) = (self.find_object(id), consumer) {
            let consumer = self.cluster.workers[consumer].id;
            self.objects[object].set_stream(Stream { consumer, buffer: buffer.max(1), yielded: 0, taken: 0 });
        }
    }

    /// Whether a task is a generator whose stream somebody has: it is not begun again once that has ended.
    pub(crate) fn has_stream(&self, task: TaskAt) -> bool {
        self.returned(task, 0).is_some_and(|object| self.objects[object].stream().is_some())
    }

    /// A generator has yielded an item.
    pub(crate) fn yielded(&mut self, id: TaskId, attempt: Attempt, worker: WorkerId, item: Item<V>) {
        let generator = self.generator_in(id, attempt, worker);
        if let Some((task, object)) = generator
            && item.index == 0
        {
            // What was taken of an earlier attempt's it did not hear of.
            self.give_credit(task, object);
        }
        match generator.and_then(|(task, stream)| Some((task, stream, self.taker_of(task, stream, &item)?))) {
            Some((task, stream, consumer)) => self.add_item(task, stream, consumer, item),
            None => self.drop_item(item.object, item.value.ok()),
        }
    }

    /// A generator and its stream, if this attempt of it is in that worker.
    fn generator_in(&self, id: TaskId, attempt: Attempt, worker: WorkerId) -> Option<(TaskAt, ObjectAt)> {
        let worker = self.cluster.find(worker)?;
        let is_there = |at: &TaskAt| self.tasks[*at].worker == Some(worker) && self.tasks[*at].attempt == attempt;
        let task = self.find_task(id).filter(is_there)?;
        Some((task, self.find_object(id.returns(0))?))
    }

    /// Who gets an item, if it is the next that the stream is to have.
    fn taker_of(&self, task: TaskAt, object: ObjectAt, item: &Item<V>) -> Option<WorkerAt> {
        let stream = self.objects[object].stream()?;
        let consumer = self.cluster.find(stream.consumer)?;
        let is_next = item.index == stream.yielded && item.index - stream.taken < u64::from(stream.buffer);
        let is_wanted = self.tasks[task].stop == Stop::No && self.objects[object].is_held_by(stream.consumer);
        let is_new = !self.ids.contains_key(&item.object.0);
        (is_next && is_wanted && is_new).then_some(consumer)
    }

    fn add_item(&mut self, task: TaskAt, stream: ObjectAt, consumer: WorkerAt, item: Item<V>) {
        let Item { object: id, value, refs, .. } = item;
        let job = self.tasks[task].job;
        let contents = self.has_room_for(job, 1).and_then(|()| self.all_usable(job, &refs));
        let fault = match (contents, value) {
            (Ok(contents), Ok(value)) => {
                let at = self.create(id, job, None, Value::Pending, Some(consumer));
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
        let at = self.create(id, job, None, Value::Failed(error), Some(consumer));
        self.send_item(stream, at, consumer);
    }

    /// The consumer's worker is told of an item, which it then holds with what that contains.
    fn send_item(&mut self, stream: ObjectAt, item: ObjectAt, consumer: WorkerAt) {
        self.hold_contents(item, consumer);
        if let Some(stream) = self.objects[stream].stream_mut() {
            stream.yielded += 1;
        }
        let (worker, stream, object) =
            (self.cluster.workers[consumer].id, self.objects[stream].id, self.objects[item].id);
        self.out.push(Action::Item { worker, stream, object });
    }

    fn drop_item(&mut self, object: ObjectId, value: Option<V>) {
        if let Some(value) = value {
            self.out.push(Action::Drop { object, value });
        }
    }

    /// The consumer of a stream has taken so many items of it.
    pub(crate) fn taken(&mut self, id: ObjectId, worker: WorkerId, taken: u64) {
        let Some(object) = self.find_object(id) else { return };
        let Some(stream) = self.objects[object].stream_mut().filter(|stream| stream.consumer == worker) else { return };
        let taken = taken.min(stream.yielded);
        if taken <= stream.taken {
            return;
        }
        stream.taken = taken;
        if let Some(task) = self.find_task(TaskId(id.0)) {
            self.give_credit(task, object);
        }
    }

    /// A generator that is in a worker learns how much of its stream was taken.
    fn give_credit(&mut self, task: TaskAt, object: ObjectAt) {
        let Some(stream) = self.objects[object].stream() else { return };
        let (id, taken) = (self.tasks[task].id, stream.taken);
        if let Some(worker) = self.tasks[task].worker
            && taken > 0
        {
            self.out.push(Action::Credit { worker: self.cluster.workers[worker].id, task: id, taken });
        }
    }

    /// Nobody has a stream any more: its generator is not wanted. What that submitted may be in items that were taken.
    pub(crate) fn close_stream(&mut self, at: ObjectAt) {
        if let Some(task) = self.find_task(TaskId(self.objects[at].id.0)) {
            self.stop(task, Stop::Alone);
        }
    }
}
