//! Values that no task makes: promised when one asks for them, and there once whoever has the scheduler has made them.

use std::sync::Arc;

use sandbar_core::{Fault, GroupId, ObjectId, TaskError, TaskId, WorkerId};

use crate::event::Action;
use crate::places::ObjectAt;
use crate::refs::Value;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Whether somebody still refers to an object whose value was promised and is not there.
    pub fn is_promise_wanted(&self, object: ObjectId) -> bool {
        self.promised(object).is_some_and(|at| !self.objects[at].is_forgotten())
    }

    /// A task asks for a value. Its object stays, whoever refers to it, until that is there.
    pub(crate) fn promise(&mut self, id: ObjectId, task: TaskId, worker: WorkerId) {
        let Some((task, origin)) = self.maker_of(id, task, worker) else { return };
        match self.has_room_for(origin.job, 1) {
            Ok(()) => {
                let worker = origin.parent.map(|(_, worker)| worker);
                self.create(id, origin.job, None, Value::Pending, worker);
            }
            Err(fault) => {
                let error = self.error(task, fault);
                self.create_failed(origin, id, None, error);
            }
        }
    }

    /// It is known what became of a value. Its job may have ended by then.
    pub(crate) fn fulfil(&mut self, id: ObjectId, value: Result<V, Fault>) {
        match (self.promised(id), value) {
            (Some(at), Ok(value)) => self.set_ready(at, value, Vec::new()),
            (Some(at), Err(fault)) => self.set_failed(at, &Arc::new(TaskError { fault, chain: Vec::new() })),
            (None, Ok(value)) => self.out.push(Action::Drop { object: id, value }),
            (None, Err(_)) => {}
        }
    }

    /// An object whose value is to come, and that no task returns: those of placement groups have theirs already.
    fn promised(&self, id: ObjectId) -> Option<ObjectAt> {
        let is_promised = |at: &ObjectAt| {
            let object = &self.objects[*at];
            object.is_pending() && object.index.is_none() && !object.is_borrowed()
        };
        self.find_object(id).filter(is_promised).filter(|_| !self.groups.all.contains_key(&GroupId(id.0)))
    }
}
