//! Objects that other nodes lend to this one. The lender holds each as often as it has sent it, until it is released as often.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use sandbar_core::{Code, Fault, NodeId, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_sched::Event;

use super::super::context::Context;
use super::super::values::StoredValue;
use crate::peer::PeerMessage;

/// Number of failed fetches after which a value is lost.
const MISSES_MAX: u32 = 3;

const LENDER_LOST: &str = "the node that had it is lost";

/// Borrowed objects.
#[derive(Debug, Default)]
pub(super) struct Borrowed(FxHashMap<ObjectId, Borrow>);

#[derive(Debug)]
struct Borrow {
    lender: NodeId,
    /// How often the lender holds it for this node.
    count: u32,
    /// How often its value was not available at its location.
    misses: u32,
    /// Task of this node for which the lender creates it.
    created_for: Option<TaskId>,
}

impl Borrowed {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn lender(&self, object: ObjectId) -> Option<NodeId> {
        self.0.get(&object).map(|borrow| borrow.lender)
    }

    /// Returns the task for which a lender creates an object.
    pub(super) fn created_for(&self, object: ObjectId) -> Option<TaskId> {
        self.0.get(&object)?.created_for
    }

    /// Adds a reference of a worker, on behalf of a task, to an object that a node has lent once more. The node gets it back
    /// if this node has the object otherwise.
    pub(super) fn add(&mut self, cx: &mut Context, lender: NodeId, object: ObjectId, task: TaskId, worker: WorkerId) {
        let is_new = cx.scheduler.object(object).is_none();
        if is_new && cx.ids.is_own(object.0) {
            // It has been dropped: its consumers get an error.
            return cx.peers.send(lender, &PeerMessage::Release(object, 1));
        }
        cx.step(Event::Borrowed { object, task, worker });
        match self.0.get_mut(&object) {
            Some(borrow) if borrow.lender == lender => borrow.count += 1,
            None if is_new && cx.scheduler.is_borrowed(object) => {
                self.0.insert(object, Borrow { lender, count: 1, misses: 0, created_for: None });
            }
            _ => cx.peers.send(lender, &PeerMessage::Release(object, 1)),
        }
    }

    /// Like [`Borrowed::add`], for an object that the lender creates for a task.
    pub(super) fn add_for(
        &mut self,
        cx: &mut Context,
        lender: NodeId,
        object: ObjectId,
        task: TaskId,
        worker: WorkerId,
    ) {
        self.add(cx, lender, object, task, worker);
        if let Some(borrow) = self.0.get_mut(&object) {
            borrow.created_for = Some(task);
        }
    }

    /// Releases an object: this node has no references left.
    pub(super) fn release(&mut self, cx: &mut Context, object: ObjectId) {
        if let Some(Borrow { lender, count, .. }) = self.0.remove(&object) {
            cx.peers.send(lender, &PeerMessage::Release(object, count));
        }
    }

    /// Requests an object of its lender.
    pub(super) fn request(&mut self, cx: &mut Context, object: ObjectId) {
        let lender = match self.0.get(&object) {
            Some(borrow) if borrow.misses >= MISSES_MAX => Err("its value was not available at its location"),
            Some(borrow) => Ok((borrow.lender, borrow.misses > 0)),
            None => Err(LENDER_LOST),
        };
        match lender {
            Ok((node, is_missed)) => cx.peers.send(node, &PeerMessage::RequestObject(object, is_missed)),
            Err(why) => cx.step_later(Event::BorrowResolved { object, value: Err(lost(why)), refs: Vec::new() }),
        }
    }

    /// The value of an object was not available at its location.
    pub(super) fn missed(&mut self, object: ObjectId) {
        if let Some(borrow) = self.0.get_mut(&object) {
            borrow.misses += 1;
        }
    }

    /// Returns the objects of a lender whose values are not on this node, by id.
    pub(super) fn without_value(&self, cx: &Context, lender: NodeId) -> Vec<ObjectId> {
        let is_remote = |object: &ObjectId| match cx.scheduler.value(*object) {
            Some(Ok(StoredValue::Remote(key))) => cx.remote_values.local_copy(*key).is_none(),
            Some(_) => false,
            None => true,
        };
        let mut objects = self.of_lender(lender);
        objects.retain(is_remote);
        objects
    }

    /// A lender is lost. Values that are on this node stay.
    pub(super) fn lender_lost(&mut self, cx: &mut Context, lender: NodeId) {
        for object in self.of_lender(lender) {
            self.0.remove(&object);
            cx.step(Event::BorrowResolved { object, value: Err(lost(LENDER_LOST)), refs: Vec::new() });
        }
    }

    fn of_lender(&self, lender: NodeId) -> Vec<ObjectId> {
        let of_lender = self.0.iter().filter(|(_, borrow)| borrow.lender == lender);
        let mut objects: Vec<ObjectId> = of_lender.map(|(object, _)| *object).collect();
        objects.sort_unstable();
        objects
    }
}

fn lost(why: &str) -> Arc<TaskError> {
    Arc::new(TaskError { fault: Fault::new(Code::ObjectLost, why), chain: Vec::new() })
}
