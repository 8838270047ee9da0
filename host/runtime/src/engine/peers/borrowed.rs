//! Objects that nodes have of each other.

use std::os::fd::AsFd;
use std::sync::Arc;

use sandbar_core::{Code, Fault, JobId, NodeId, ObjectId, TaskError, TaskId, VALUE_INLINE_BYTES_MAX, WorkerId};
use sandbar_sched::Event;
use sandbar_store::{LendResult, Mapping, ValueMemory};
use sandbar_wire::Priority;

use super::super::store::is_kept;
use super::super::{State, Stored};
use crate::peer::{PeerMessage, PeerValue};

/// An object of another node.
#[derive(Debug)]
pub(super) struct Borrowed {
    /// The node that lends it.
    lender: NodeId,
    /// How often that holds it for this node.
    times: u32,
    /// How often its value was not to be had from where it was said to be.
    misses: u32,
    /// The task of this node that has its lender make it.
    made_for: Option<TaskId>,
}

/// After so many misses a value is lost.
const MISSES_MAX: u32 = 3;
/// Bytes of values that go with a message: each frame has its limit.
pub(super) const ATTACHED_BYTES_MAX: usize = 256 << 10;
/// Objects that a value may contain which goes to another node: as above.
const CONTAINED_MAX: usize = 50_000;

/// What is sent of an object.
pub(super) enum Sending {
    Value(Vec<u8>),
    Away { node: NodeId, object: ObjectId, bytes: u64 },
    Failed(Vec<u8>),
}

impl Sending {
    pub(super) fn failed(error: &TaskError) -> Sending {
        Sending::Failed(postcard::to_stdvec(error).unwrap_or_default())
    }

    pub(super) fn as_sent(&self) -> PeerValue<'_> {
        match self {
            Sending::Value(bytes) => PeerValue::Value(bytes),
            Sending::Away { node, object, bytes } => PeerValue::Remote { node: *node, object: *object, bytes: *bytes },
            Sending::Failed(error) => PeerValue::Failed(error),
        }
    }

    /// Whether who gets it needs its sender for it no more.
    pub(super) fn is_whole(&self) -> bool {
        !matches!(self, Sending::Away { .. })
    }
}

impl State {
    /// A worker holds an object once more that a node lends, on behalf of a task. What is there already otherwise, that node
    /// has back.
    pub(super) fn borrow(&mut self, lender: NodeId, object: ObjectId, task: TaskId, worker: WorkerId) {
        let is_new = self.sched.object(object).is_none();
        if is_new && self.is_own_number(object.0) {
            // It is no more: who takes it is told so.
            return self.peers.say(lender, &PeerMessage::Release(object, 1));
        }
        self.step(Event::Borrowed { object, task, worker });
        match self.peers.borrowed.get_mut(&object) {
            Some(borrowed) if borrowed.lender == lender => borrowed.times += 1,
            None if is_new && self.sched.is_borrowed(object) => {
                self.peers.borrowed.insert(object, Borrowed { lender, times: 1, misses: 0, made_for: None });
            }
            _ => self.peers.say(lender, &PeerMessage::Release(object, 1)),
        }
    }

    /// As above, of what a node is to make for a task.
    pub(super) fn borrow_for(&mut self, lender: NodeId, object: ObjectId, task: TaskId, worker: WorkerId) {
        self.borrow(lender, object, task, worker);
        if let Some(borrowed) = self.peers.borrowed.get_mut(&object) {
            borrowed.made_for = Some(task);
        }
    }

    pub(super) fn lender_of(&self, object: ObjectId) -> Option<NodeId> {
        self.peers.borrowed.get(&object).map(|borrowed| borrowed.lender)
    }

    /// Nobody here refers to an object of another node any more.
    pub(in super::super) fn returned(&mut self, object: ObjectId) {
        if let Some(Borrowed { lender, times, .. }) = self.peers.borrowed.remove(&object) {
            self.peers.say(lender, &PeerMessage::Release(object, times));
        }
    }

    /// Somebody here wants an object of another node.
    pub(in super::super) fn ask(&mut self, object: ObjectId) {
        let lender = match self.peers.borrowed.get(&object) {
            Some(borrowed) if borrowed.misses >= MISSES_MAX => Err("it was not to be had from where it was said to be"),
            Some(borrowed) => Ok((borrowed.lender, borrowed.misses > 0)),
            None => Err(GONE),
        };
        match lender {
            Ok((node, missed)) => self.peers.say(node, &PeerMessage::RequestObject(object, missed)),
            Err(why) => {
                self.events.push_back(Event::BorrowResolved { object, value: Err(lost(why)), refs: Vec::new() })
            }
        }
    }

    /// The value of an object is not where it was said to be.
    pub(super) fn missed(&mut self, object: ObjectId) {
        if let Some(borrowed) = self.peers.borrowed.get_mut(&object) {
            borrowed.misses += 1;
        }
    }

    /// Objects that a node has lent whose values are not here.
    pub(super) fn lent_by(&self, node: NodeId) -> Vec<ObjectId> {
        let is_elsewhere = |object: ObjectId| match self.sched.value(object) {
            Some(Ok(Stored::Away(key))) => self.away(*key).1.is_none(),
            Some(_) => false,
            None => true,
        };
        let of_node = self.peers.borrowed.iter().filter(|(_, borrowed)| borrowed.lender == node);
        let mut all: Vec<ObjectId> = of_node.map(|(object, _)| *object).filter(|id| is_elsewhere(*id)).collect();
        all.sort_unstable();
        all
    }

    /// A node that has lent objects is gone.
    pub(super) fn lose_lent(&mut self, node: NodeId) {
        let of_node = self.peers.borrowed.iter().filter(|(_, borrowed)| borrowed.lender == node);
        let mut all: Vec<ObjectId> = of_node.map(|(object, _)| *object).collect();
        all.sort_unstable();
        for object in all {
            self.peers.borrowed.remove(&object);
            // What is there already stays.
            self.step(Event::BorrowResolved { object, value: Err(lost(GONE)), refs: Vec::new() });
        }
    }

    /// A lender says what there is of an object, which is waited for as much as this.
    pub(super) fn arrived(
        &mut self,
        lender: NodeId,
        object: ObjectId,
        (sent, priority): (PeerValue<'_>, Priority),
        refs: Vec<ObjectId>,
    ) {
        let job = self.sched.job_of_object(object).filter(|_| self.lender_of(object) == Some(lender));
        let seat = job.and_then(|job| self.seat_in(lender, job));
        let (Some(job), Some(seat), Some(worker)) = (job, seat, self.peers.anchor(lender)) else {
            refs.into_iter().for_each(|content| self.peers.say(lender, &PeerMessage::Release(content, 1)));
            return;
        };
        refs.iter().for_each(|content| self.borrow(lender, *content, seat, worker));
        let value = self.received(job, object, sent, None);
        let made_for = self.peers.borrowed.get(&object).and_then(|borrowed| borrowed.made_for);
        let value = match (value, made_for.filter(|task| self.sched.task(*task).is_some())) {
            (Err(error), Some(task)) => Err(Arc::new(self.with_names(task, error.as_ref().clone()))),
            (value, _) => value,
        };
        if let Ok(Stored::Away(key)) = &value {
            self.fetch(*key, priority);
        }
        self.step(Event::BorrowResolved { object, value, refs: refs.clone() });
        self.steps(refs.into_iter().map(|object| Event::ReferencesReleased { object, worker, count: 1 }));
    }

    /// A node is to be told of an object that it wanted, or of what a task returned that it gave.
    pub(in super::super) fn lend(&mut self, anchor: WorkerId, object: ObjectId) {
        if let Some(task) = self.peers.returns.get(&object).copied() {
            return self.returned_here(task);
        }
        let Some(node) = self.peers.far.get(&anchor).copied() else { return };
        let Some(value) = self.sending(object) else { return };
        let contains = self.sched.contained_objects(object).collect();
        let (value, contains) = self.sendable(value, contains);
        self.peers.say(node, &PeerMessage::ObjectValue { object, value: value.as_sent(), contains });
    }

    /// As above: it can't have it.
    pub(in super::super) fn refuse_peer(&mut self, anchor: WorkerId, object: ObjectId, error: &TaskError) {
        let Some(node) = self.peers.far.get(&anchor).copied() else { return };
        let value = Sending::failed(error);
        self.peers.say(node, &PeerMessage::ObjectValue { object, value: value.as_sent(), contains: Vec::new() });
    }

    /// A value with what it contains, or why that does not go to another node.
    pub(super) fn sendable(&self, value: Sending, contains: Vec<ObjectId>) -> (Sending, Vec<ObjectId>) {
        if contains.len() <= CONTAINED_MAX {
            return (value, contains);
        }
        let words = format!("it contains {} objects: to another node go {CONTAINED_MAX} at most", contains.len());
        let error = TaskError { fault: Fault::new(Code::BadOutput, words), chain: Vec::new() };
        (Sending::failed(&error), Vec::new())
    }

    /// A value that another node has sent, of an object here. What is away is released there when it is dropped, if a
    /// `holder` is named.
    pub(super) fn received(
        &mut self,
        job: JobId,
        object: ObjectId,
        sent: PeerValue<'_>,
        holder: Option<NodeId>,
    ) -> Result<Stored, Arc<TaskError>> {
        match sent {
            PeerValue::Value(bytes) if !is_kept(bytes) => Ok(Stored::Inline(bytes.into())),
            PeerValue::Value(bytes) => {
                let added = self.store.values.add(job, object, ValueMemory::Bytes(bytes.into()));
                added
                    .map(|key| Stored::Kept(key, bytes.len() as u64))
                    .map_err(|fault| Arc::new(TaskError { fault, chain: Vec::new() }))
            }
            PeerValue::Remote { node, object: name, bytes } => {
                Ok(Stored::Away(self.peers.aways.add(object, node, name, bytes, holder)))
            }
            PeerValue::Failed(error) => Err(Arc::new(postcard::from_bytes(error).unwrap_or_else(|_| unreadable()))),
        }
    }

    /// What is to be sent of an object, if anything is known of it.
    pub(super) fn sending(&mut self, object: ObjectId) -> Option<Sending> {
        self.sending_within(object, &mut VALUE_INLINE_BYTES_MAX.clone())
    }

    /// As above, if values may have so many bytes: fewer afterwards.
    pub(super) fn sending_within(&mut self, object: ObjectId, room: &mut usize) -> Option<Sending> {
        let here = self.options.node;
        let key = match self.sched.value(object)? {
            Ok(Stored::Inline(bytes)) if bytes.len() > *room => {
                return Some(Sending::Away { node: here, object, bytes: bytes.len() as u64 });
            }
            Ok(Stored::Inline(bytes)) => {
                *room -= bytes.len();
                return Some(Sending::Value(bytes.to_vec()));
            }
            Ok(Stored::Away(key)) => {
                let key = *key;
                return Some(self.sending_away(key, object));
            }
            Ok(Stored::Kept(key, _)) => *key,
            Err(error) => return Some(Sending::failed(error)),
        };
        let bytes = self.store.values.view(key).map_or(0, |view| view.bytes);
        if bytes <= VALUE_INLINE_BYTES_MAX.min(*room) as u64 {
            *room -= bytes as usize;
            match self.store.values.share(key) {
                LendResult::Bytes(bytes) => return Some(Sending::Value(bytes.to_vec())),
                LendResult::File(file) => {
                    if let Ok(mapping) = Mapping::sealed(file.as_fd(), bytes) {
                        return Some(Sending::Value(mapping.to_vec()));
                    }
                }
                // It is on its way from disk: until it is fetched it will be there.
                LendResult::AlreadyLent | LendResult::Pending | LendResult::Lost(_) => {}
            }
        }
        Some(Sending::Away { node: here, object, bytes })
    }
}

const GONE: &str = "the node that had it is gone";

fn lost(why: &str) -> Arc<TaskError> {
    Arc::new(TaskError { fault: Fault::new(Code::ObjectLost, why), chain: Vec::new() })
}

fn unreadable() -> TaskError {
    let fault = Fault::new(Code::Host, "the node that had it did not say why there is no value");
    TaskError { fault, chain: Vec::new() }
}
