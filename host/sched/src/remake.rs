//! Objects whose values are gone: made again, with all that is gone of what they were made of, or errors.

use std::sync::Arc;

use sandbar_core::{Code, Fault, ObjectId, TaskError, WorkerId};

use crate::event::Action;
use crate::lineage::Source;
use crate::places::{ObjectAt, TaskAt};
use crate::refs::Value;
use crate::scheduler::Scheduler;
use crate::tasks::{Links, State};

impl<C, V> Scheduler<C, V> {
    /// The value of an object is gone. Those `waiters` were to be told of it, and were not.
    pub(crate) fn lose_object(&mut self, id: ObjectId, waiters: &[WorkerId]) {
        let Some(at) = self.find_object(id) else { return };
        let was_ready = matches!(self.objects[at].value, Value::Ready(_));
        let contents = if was_ready { self.objects[at].take_contents() } else { Box::default() };
        for worker in waiters {
            if self.cluster.find(*worker).is_none() {
                continue;
            }
            // It was to hold what the value contains.
            for content in &contents {
                self.release(self.objects[*content].id, *worker, 1);
            }
            self.objects[at].wait(*worker);
        }
        if was_ready {
            self.lose_value(at);
        } else if self.objects[at].has_waiters() {
            match self.objects[at].is_pending() {
                true => self.ask(at),
                false => self.awaited.push(at),
            }
        }
        contents.iter().for_each(|content| self.unpin(*content));
    }

    fn lose_value(&mut self, at: ObjectAt) {
        let object = &mut self.objects[at];
        if let Value::Ready(value) = std::mem::replace(&mut object.value, Value::Pending) {
            self.out.push(Action::Drop { object: object.id, value });
        }
        if self.objects[at].is_borrowed() {
            return self.ask_again(at);
        }
        match self.returned_by(&self.objects[at]).filter(|maker| self.tasks[*maker].lineage.is_some()) {
            Some(maker) => self.lineage.lost.push(maker),
            None => {
                let what = match self.objects[at].index {
                    None => "what was put is not made again".to_owned(),
                    Some(_) if self.objects[at].stream().is_some() => "a stream is not made again".to_owned(),
                    Some(_) => format!(
                        "how it was made is not kept: its task was cancelled or failed since, or its job had more than {} \
                         bytes of that to keep",
                        self.jobs[self.objects[at].job].limits.lineage_bytes_max
                    ),
                };
                let error = Arc::new(TaskError { fault: lost(self.objects[at].id, &what), chain: Vec::new() });
                self.set_failed(at, &error);
            }
        }
    }

    /// A task that has ended is begun again, for what was lost of what it returned. If it has not ended it is under way
    /// already: several losses cost one attempt.
    pub(crate) fn make_again(&mut self, at: TaskAt) {
        if !self.tasks.get(at).is_some_and(|task| task.has_ended() && task.lineage.is_some()) {
            return;
        }
        if let Err(why) = self.can_make_again(at) {
            return self.fail_lost(at, &why);
        }
        let Some(lineage) = self.take_sources(at) else { return };
        let needs: Box<[ObjectAt]> = lineage.needs.iter().filter_map(|source| self.obtain(source)).collect();
        let refs: Box<[ObjectAt]> = lineage.refs.iter().filter_map(|source| self.obtain(source)).collect();
        lineage.needs.iter().chain(&lineage.refs).for_each(|source| self.let_go(source));
        let task = &mut self.tasks[at];
        if needs.len() + refs.len() > 0 {
            task.links = Some(Box::new(Links { needs, refs }));
        }
        task.attempt.0 += 1;
        (task.state, task.is_again) = (State::Waiting, true);
        self.jobs[task.job].tasks += 1;
        self.classes.get_mut(task.class).live += 1;
        self.count_call(at);
        self.settle_children(at);
        self.ready(at);
    }

    /// Whether a task that has ended can be begun again, or why not.
    fn can_make_again(&self, at: TaskAt) -> Result<(), String> {
        let task = &self.tasks[at];
        let retries_max = self.classes.get(task.class).kind.retries_max;
        if task.attempt.0 >= retries_max {
            let times = u64::from(task.attempt.0) + 1;
            return Err(match times {
                1 => "its task may not be begun again (max_retries 0)".to_owned(),
                _ => format!("its task was begun {times} times, as often as it may be (max_retries {retries_max})"),
            });
        }
        if task.call.is_none() {
            return Err("what a method of an actor has returned is not made again".to_owned());
        }
        let Some(lineage) = &task.lineage else { return Err("how it was made is not kept".to_owned()) };
        match lineage.needs.iter().chain(&lineage.refs).find_map(|source| self.missing(at, source)) {
            Some(missing) => Err(format!("object {missing}, of which it was made, is not there any more")),
            None => Ok(()),
        }
    }

    /// The object of a task's lineage, if it can't be had.
    fn missing(&self, at: TaskAt, source: &Source) -> Option<ObjectId> {
        let Source::Named(id, maker) = source else { return None };
        let is_there = match self.find_object(*id) {
            Some(object) => self.objects[object].job == self.tasks[at].job || self.is_of_all(&self.objects[object]),
            None => maker.is_some_and(|(maker, number)| {
                let task = self.tasks.get(maker).filter(|task| task.number == number);
                task.is_some_and(|task| task.lineage.is_some())
            }),
        };
        (!is_there).then_some(*id)
    }

    /// Pins an object of which a task is made again. One that is not there is made again before.
    fn obtain(&mut self, source: &Source) -> Option<ObjectAt> {
        let at = match source {
            Source::Kept(object) => *object,
            Source::Named(id, maker) => match (self.find_object(*id), maker) {
                (Some(object), _) => object,
                (None, Some((maker, _))) => {
                    let task = &self.tasks[*maker];
                    let index = (id.0 - task.id.0) as u32;
                    let object = self.create(*id, task.job, Some(index), Value::Pending, None);
                    self.use_lineage(*maker);
                    self.lineage.lost.push(*maker);
                    object
                }
                (None, None) => return None,
            },
        };
        self.pin(at);
        Some(at)
    }

    /// What was lost of what a task returned stays so.
    fn fail_lost(&mut self, at: TaskAt, why: &str) {
        for index in 0..self.tasks[at].returns {
            if let Some(object) = self.pending_return(at, index) {
                let error = self.error(at, lost(self.objects[object].id, why));
                self.set_failed(object, &error);
            }
        }
    }

    /// Has a task that has left its line wait again, or fail, if something that it needs is not there any more. Says
    /// whether that is so.
    pub(crate) fn lacks(&mut self, at: TaskAt) -> bool {
        if !self.is_lacking(at) {
            return false;
        }
        self.tasks[at].state = State::Waiting;
        self.ready(at);
        true
    }

    /// Whether something is not there any more that a task needs.
    #[inline]
    pub(crate) fn is_lacking(&self, at: TaskAt) -> bool {
        let needs = self.tasks[at].links.iter().flat_map(|links| &links.needs);
        needs.into_iter().any(|need| !matches!(self.objects[*need].value, Value::Ready(_)))
    }
}

fn lost(object: ObjectId, why: &str) -> Fault {
    Fault::new(Code::ObjectLost, format!("the value of object {object} is gone, and {why}"))
}
