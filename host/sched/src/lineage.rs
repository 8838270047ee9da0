//! Objects whose values are gone.

use std::sync::Arc;

use sandbar_core::{Code, Fault, ObjectId, TaskError, WorkerId};

use crate::event::Action;
use crate::refs::Value;
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    /// The value of an object is gone. Those `waiters` were to be told of it, and were not.
    pub(crate) fn lose_object(&mut self, id: ObjectId, waiters: &[WorkerId]) {
        let Some(at) = self.find_object(id) else { return };
        if !matches!(self.objects[at].value, Value::Ready(_)) {
            return;
        }
        let fault = Fault::new(Code::ObjectLost, format!("the value of object {id} is gone"));
        let error = Arc::new(TaskError { fault, chain: Vec::new() });
        let object = &mut self.objects[at];
        let contents = object.take_contents();
        if let Value::Ready(value) = std::mem::replace(&mut object.value, Value::Failed(error)) {
            self.out.push(Action::Drop { object: id, value });
        }
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
        if self.objects[at].has_waiters() {
            self.awaited.push(at);
        }
        contents.iter().for_each(|content| self.unpin(*content));
    }
}
