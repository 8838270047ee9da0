//! The model's streams, and the simulated generators and consumers.

use std::collections::BTreeMap;

use sandbar_core::{Attempt, Code, Fault, ObjectId, TaskId, WorkerId};
use sandbar_sched::{Event, Submission, SubmissionKind};

use crate::cluster::History;
use crate::model::{Model, Steps, Task, Value};

pub struct Stream {
    pub consumer: u32,
    pub buffer: u64,
    pub yielded: u64,
    pub consumed: u64,
}

impl Model {
    /// Returns the stream of a generator, while it is referenced.
    pub fn stream(&self, generator: u64) -> Option<&Stream> {
        self.objects.get(&generator)?.stream.as_ref()
    }

    fn stream_mut(&mut self, generator: u64) -> Option<&mut Stream> {
        self.objects.get_mut(&generator)?.stream.as_mut()
    }

    /// Iterates over the referenced streams, by generator.
    pub fn streams(&self) -> impl Iterator<Item = (u64, &Stream)> {
        self.objects.iter().filter_map(|(id, object)| Some((*id, object.stream.as_ref()?)))
    }

    pub fn add_stream(&mut self, task: &Submission<u64>, consumer: Option<u32>) {
        if let (SubmissionKind::Generator(buffer), Some(consumer)) = (&task.kind, consumer) {
            let stream = Stream { consumer, buffer: u64::from(*buffer).max(1), yielded: 0, consumed: 0 };
            self.objects.get_mut(&task.id.0).expect("it was created").stream = Some(stream);
        }
    }

    pub fn yielded(
        &mut self,
        (id, attempt, worker): (TaskId, u32, WorkerId),
        index: u64,
        object: u64,
        value: Option<u64>,
        refs: &[ObjectId],
    ) {
        self.values.add(value);
        let is_at_it = |task: &Task| task.attempt == attempt;
        let cancellation = self.running(worker, id).filter(|task| is_at_it(task)).map(|task| task.cancellation);
        if cancellation.is_some() && index == 0 {
            self.credit(id.0);
        }
        if cancellation != Some(0) || !self.take_item(id.0, index, object, value, refs) {
            self.step.dropped.extend(value);
        }
    }

    pub fn consumed(&mut self, id: u64, worker: u32, consumed: u64) {
        let Some(stream) = self.stream_mut(id).filter(|stream| stream.consumer == worker) else { return };
        let consumed = consumed.min(stream.yielded);
        if consumed > stream.consumed {
            stream.consumed = consumed;
            self.credit(id);
        }
    }

    /// Expects a credit for a generator that is in a worker.
    fn credit(&mut self, id: u64) {
        if let Some(worker) = self.tasks.get(&id).and_then(|task| task.worker)
            && let Some(stream) = self.stream(id).filter(|stream| stream.consumed > 0)
        {
            self.step.credits.insert((worker, id, stream.consumed));
        }
    }

    /// Handles an item. Returns whether it is the next one of its stream.
    fn take_item(&mut self, id: u64, index: u64, object: u64, value: Option<u64>, refs: &[ObjectId]) -> bool {
        let Some(stream) = self.stream(id) else { return false };
        let (consumer, buffer, consumed) = (stream.consumer, stream.buffer, stream.consumed);
        let is_held = self.objects.get(&id).is_some_and(|object| object.holds.contains_key(&consumer));
        if index != stream.yielded || index >= consumed + buffer || self.is_known(object) || !is_held {
            return false;
        }
        let job = self.tasks[&id].job;
        let is_good = self.job_objects(job) < self.jobs[&job].limits.objects_max && self.of_job(job, refs);
        let contents: Vec<u64> = refs.iter().map(|id| id.0).collect();
        match value.filter(|_| is_good) {
            Some(value) => {
                self.create(object, job, Value::Ready(value, contents.clone()), Some(consumer));
                self.hold_contents(&contents, consumer, 1);
            }
            None => {
                self.step.dropped.extend(value);
                self.create(object, job, Value::Failed, Some(consumer));
            }
        }
        self.stream_mut(id).expect("it was found").yielded += 1;
        self.step.items.insert((consumer, id, object));
        true
    }

    pub fn hold_contents(&mut self, contents: &[u64], worker: u32, times: u32) {
        for content in contents {
            let content = self.objects.get_mut(content).expect("it is contained");
            *content.holds.entry(worker).or_default() += u64::from(times);
        }
    }

    /// Returns unreferenced streams whose generators still run.
    pub fn closed(&self, pins: &BTreeMap<u64, u32>) -> Vec<u64> {
        let is_closed = |(id, _): &(u64, &Stream)| {
            let object = &self.objects[id];
            let is_referenced = !object.holds.is_empty() || pins.contains_key(id);
            object.value == Value::Pending && !is_referenced && self.tasks[id].cancellation == 0
        };
        self.streams().filter(is_closed).map(|(id, _)| id).collect()
    }

    pub fn check_streams(&self, steps: &Steps) {
        for (id, stream) in self.streams() {
            let view = steps.stream(ObjectId(id)).expect("it is a stream");
            assert_eq!((view.consumer.0, u64::from(view.buffer)), (stream.consumer, stream.buffer));
            assert_eq!((view.yielded, view.consumed), (stream.yielded, stream.consumed));
            assert!(stream.consumed <= stream.yielded && stream.yielded <= stream.consumed + stream.buffer);
        }
    }
}

impl History {
    /// A generator yields items, in rare cases with wrong indices.
    pub fn yield_item(&mut self, worker: u32, task: TaskId, attempt: Attempt) {
        let job = self.model.tasks.get(&task.0).map(|task| task.job);
        for _ in 0..1 + self.seed.below(4) {
            self.number += 10;
            let next = self.yields.entry((task.0, attempt.0)).or_default();
            let ahead = self.model.stream(task.0).map_or(0, |stream| stream.consumed + stream.buffer);
            if *next >= ahead && self.seed.below(10) > 0 {
                return;
            }
            let index = *next;
            *next += 1;
            let index = if self.chance(3) { index + 1 } else { index };
            let (number, refs) = (self.number, self.some_objects(job, 20));
            let value = if self.chance(90) { Ok(number) } else { Err(Fault::new(Code::StoreFull, "no room")) };
            let (object, worker) = (ObjectId(number), WorkerId(worker));
            self.event(Event::Yielded { task, attempt, worker, index, object, value, refs });
        }
    }

    /// A consumer consumes items.
    pub fn take_items(&mut self) {
        let is_anything = self.chance(20);
        let has_some = |(id, stream): (u64, &Stream)| (is_anything || stream.consumed < stream.yielded).then_some(id);
        let all: Vec<u64> = self.model.streams().filter_map(has_some).collect();
        let Some(id) = self.pick(&all) else { return };
        let Some(&Stream { consumer, consumed, .. }) = self.model.stream(id) else { return };
        let (stream, consumed) = (ObjectId(id), consumed + u64::from(self.seed.below(4)));
        let consumer = if self.chance(95) { consumer } else { 1 + self.seed.below(5) };
        self.event(Event::ItemsConsumed { stream, worker: WorkerId(consumer), consumed });
    }
}
