//! Objects that nodes have of each other.

use std::os::fd::AsFd;
use std::sync::Arc;

use sandbar_core::{Code, Fault, JobId, NodeId, ObjectId, TaskError, TaskId, VALUE_INLINE_BYTES_MAX, WorkerId};
use sandbar_sched::Event;
use sandbar_store::{Lending, Mapping, Memory};

use super::super::store::is_kept;
use super::super::{State, Stored};
use crate::program::peer::{Said, Sent, ToHelper, ToOwner};

/// Who lends an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lender {
    /// The owner of tasks that run here.
    Owner(NodeId),
    /// A node that runs tasks of a job of this one.
    Helper(NodeId, JobId),
}

impl Lender {
    pub(super) fn node(self) -> NodeId {
        match self {
            Lender::Owner(node) | Lender::Helper(node, _) => node,
        }
    }
}

/// An object of another node.
#[derive(Debug)]
pub(super) struct Borrowed {
    lender: Lender,
    /// How often that holds it for this node.
    times: u32,
    /// How often its value was not to be had from where it was said to be.
    misses: u32,
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
    Away { node: u32, object: u64, bytes: u64 },
    Failed(Vec<u8>),
}

impl Borrowed {
    pub(super) fn lender(&self) -> Lender {
        self.lender
    }
}

impl Sending {
    pub(super) fn as_sent(&self) -> Sent<'_> {
        match self {
            Sending::Value(bytes) => Sent::Value(bytes),
            Sending::Away { node, object, bytes } => Sent::Away { node: *node, object: *object, bytes: *bytes },
            Sending::Failed(error) => Sent::Failed(error),
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
    pub(super) fn borrow(&mut self, lender: Lender, object: ObjectId, task: TaskId, worker: WorkerId) {
        let is_new = self.sched.object(object).is_none();
        self.step(Event::Borrowed { object, task, worker });
        match self.peers.borrowed.get_mut(&object) {
            Some(borrowed) if borrowed.lender == lender => borrowed.times += 1,
            None if is_new && self.sched.is_borrowed(object) => {
                self.peers.borrowed.insert(object, Borrowed { lender, times: 1, misses: 0 });
            }
            _ => self.give_back(lender, object, 1),
        }
    }

    fn give_back(&mut self, lender: Lender, object: ObjectId, times: u32) {
        match lender {
            Lender::Owner(node) => self.peers.say(node, &Said::Helper(ToOwner::Release(object.0, times))),
            Lender::Helper(node, job) => {
                self.peers.say(node, &Said::Owner(ToHelper::Release(job.0, object.0, times)));
            }
        }
    }

    /// Nobody here refers to an object of another node any more.
    pub(in super::super) fn returned(&mut self, object: ObjectId) {
        if let Some(Borrowed { lender, times, .. }) = self.peers.borrowed.remove(&object) {
            self.give_back(lender, object, times);
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
            Ok((Lender::Owner(node), missed)) => self.peers.say(node, &Said::Helper(ToOwner::Want(object.0, missed))),
            Ok((Lender::Helper(node, job), missed)) => {
                self.peers.say(node, &Said::Owner(ToHelper::Want(job.0, object.0, missed)));
            }
            Err(why) => self.events.push_back(Event::Arrived { object, value: Err(lost(why)), refs: Vec::new() }),
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
        let of_node = self.peers.borrowed.iter().filter(|(_, borrowed)| borrowed.lender.node() == node);
        let mut all: Vec<ObjectId> = of_node.map(|(object, _)| *object).filter(|id| is_elsewhere(*id)).collect();
        all.sort_unstable();
        all
    }

    /// A node that has lent objects is gone.
    pub(super) fn lose_lent(&mut self, node: NodeId) {
        let of_node = self.peers.borrowed.iter().filter(|(_, borrowed)| borrowed.lender.node() == node);
        let mut all: Vec<ObjectId> = of_node.map(|(object, _)| *object).collect();
        all.sort_unstable();
        for object in all {
            self.peers.borrowed.remove(&object);
            // What is there already stays.
            self.step(Event::Arrived { object, value: Err(lost(GONE)), refs: Vec::new() });
        }
    }

    /// A lender says what there is of an object.
    pub(super) fn arrived(&mut self, lender: Lender, object: ObjectId, sent: Sent<'_>, contains: &[u64]) {
        let is_lent = self.peers.borrowed.get(&object).is_some_and(|borrowed| borrowed.lender == lender);
        let keeper = self.sched.job_of_object(object).and_then(|job| self.keeper(job));
        let Some((task, worker)) = keeper.filter(|_| is_lent) else {
            contains.iter().for_each(|content| self.give_back(lender, ObjectId(*content), 1));
            return;
        };
        let refs: Vec<ObjectId> = contains.iter().copied().map(ObjectId).collect();
        refs.iter().for_each(|content| self.borrow(lender, *content, task, worker));
        let Some(job) = self.sched.job_of_object(object) else { return };
        let value = self.received(job, object, sent, None);
        if let Ok(Stored::Away(key)) = &value {
            self.fetch(*key);
        }
        self.step(Event::Arrived { object, value, refs: refs.clone() });
        self.steps(refs.into_iter().map(|object| Event::Released { object, worker, times: 1 }));
    }

    /// A value with what it contains, or why that does not go to another node.
    pub(super) fn sendable(&self, value: Sending, contains: Vec<u64>) -> (Sending, Vec<u64>) {
        if contains.len() <= CONTAINED_MAX {
            return (value, contains);
        }
        let words = format!("it contains {} objects: to another node go {CONTAINED_MAX} at most", contains.len());
        let error = TaskError { fault: Fault::new(Code::BadOutput, words), chain: Vec::new() };
        (Sending::Failed(postcard::to_stdvec(&error).unwrap_or_default()), Vec::new())
    }

    /// The first task of a job, and its worker, if it runs: on their behalf things are held.
    fn keeper(&self, job: JobId) -> Option<(TaskId, WorkerId)> {
        if let Some(job) = self.jobs.get(&job) {
            return Some((job.first, job.driver));
        }
        let seat = *self.peers.guest_jobs.get(&job)?;
        Some((self.peers.guests.get(&seat)?.first, seat))
    }

    /// A value that another node has sent, of an object here. What is away is released there when it is dropped, if a
    /// `holder` is named.
    pub(super) fn received(
        &mut self,
        job: JobId,
        object: ObjectId,
        sent: Sent<'_>,
        holder: Option<(NodeId, JobId)>,
    ) -> Result<Stored, Arc<TaskError>> {
        match sent {
            Sent::Value(bytes) if !is_kept(bytes) => Ok(Stored::Inline(bytes.into())),
            Sent::Value(bytes) => {
                let added = self.store.values.add(job, object, Memory::Bytes(bytes.into()));
                added
                    .map(|key| Stored::Kept(key, bytes.len() as u64))
                    .map_err(|fault| Arc::new(TaskError { fault, chain: Vec::new() }))
            }
            Sent::Away { node, object: name, bytes } => {
                Ok(Stored::Away(self.peers.aways.add(object, NodeId(node), ObjectId(name), bytes, holder)))
            }
            Sent::Failed(error) => Err(Arc::new(postcard::from_bytes(error).unwrap_or_else(|_| unreadable()))),
        }
    }

    /// What is to be sent of an object, if anything is known of it.
    pub(super) fn sending(&mut self, object: ObjectId) -> Option<Sending> {
        self.sending_within(object, &mut VALUE_INLINE_BYTES_MAX.clone())
    }

    /// As above, if values may have so many bytes: fewer afterwards.
    pub(super) fn sending_within(&mut self, object: ObjectId, room: &mut usize) -> Option<Sending> {
        let here = self.options.node.0;
        let key = match self.sched.value(object)? {
            Ok(Stored::Inline(bytes)) if bytes.len() > *room => {
                return Some(Sending::Away { node: here, object: object.0, bytes: bytes.len() as u64 });
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
            Err(error) => return Some(Sending::Failed(postcard::to_stdvec(&**error).unwrap_or_default())),
        };
        let bytes = self.store.values.view(key).map_or(0, |view| view.bytes);
        if bytes <= VALUE_INLINE_BYTES_MAX.min(*room) as u64 {
            *room -= bytes as usize;
            match self.store.values.share(key) {
                Lending::Bytes(bytes) => return Some(Sending::Value(bytes.to_vec())),
                Lending::File(file) => {
                    if let Ok(mapping) = Mapping::sealed(file.as_fd(), bytes) {
                        return Some(Sending::Value(mapping.to_vec()));
                    }
                }
                // It is on its way from disk: until it is fetched it will be there.
                Lending::Same | Lending::Later | Lending::Gone(_) => {}
            }
        }
        Some(Sending::Away { node: here, object: object.0, bytes })
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
