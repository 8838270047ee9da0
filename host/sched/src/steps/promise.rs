//! Promised objects: their values come from the embedder rather than from a task.

use std::sync::Arc;

use sandbar_core::{Fault, GroupId, ObjectId, TaskError, TaskId, WorkerId};

use crate::event::Action;
use crate::records::keys::ObjectKey;
use crate::records::object::ObjectOutcome;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// Whether a promised object that has no value yet is still referenced.
    pub fn is_promise_referenced(&self, object: ObjectId) -> bool {
        self.promised(object).is_some_and(|at| !self.objects[at].is_unreferenced())
    }

    /// Creates a promised object. It exists at least until it is fulfilled.
    pub(crate) fn promise(&mut self, id: ObjectId, task: TaskId, worker: WorkerId) {
        let Some((task, origin)) = self.storing_task(id, task, worker) else { return };
        match self.has_room_for(origin.job, 1) {
            Ok(()) => {
                let worker = origin.worker();
                self.create(id, origin.job, None, ObjectOutcome::Pending, worker);
            }
            Err(fault) => {
                let error = self.error(task, fault);
                self.create_failed(origin, id, None, error);
            }
        }
    }

    /// Sets the value or the error of a promised object. Its job may have ended.
    pub(crate) fn fulfil(&mut self, id: ObjectId, value: Result<V, Fault>) {
        let at = self.promised(id);
        let room = |value: &V| at.map_or(Ok(()), |at| self.has_room_for_values(self.objects[at].job, [value]));
        let value = match value.as_ref().map(room) {
            Ok(Err(fault)) => {
                value.into_iter().for_each(|value| self.work.act(Action::Drop { object: id, value }));
                Err(fault)
            }
            _ => value,
        };
        match (at, value) {
            (Some(at), Ok(value)) => self.set_ready(at, value, Vec::new()),
            (Some(at), Err(fault)) => self.set_failed(at, &Arc::new(TaskError { fault, chain: Vec::new() })),
            (None, Ok(value)) => self.work.act(Action::Drop { object: id, value }),
            (None, Err(_)) => {}
        }
    }

    /// Returns a pending promised object. The objects of placement groups are none.
    fn promised(&self, id: ObjectId) -> Option<ObjectKey> {
        let is_promised = |at: &ObjectKey| {
            let object = &self.objects[*at];
            object.is_pending() && object.index.is_none() && !object.is_borrowed()
        };
        self.ids.find_object(id).filter(is_promised).filter(|_| !self.groups.all.contains_key(&GroupId(id.0)))
    }
}
