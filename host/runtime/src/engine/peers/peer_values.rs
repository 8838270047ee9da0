//! Values in messages to and from other nodes.

use std::os::fd::AsFd;
use std::sync::Arc;

use sandbar_core::{Code, Fault, JobId, NodeId, ObjectId, TaskError, VALUE_INLINE_BYTES_MAX};
use sandbar_store::{LendResult, Mapping, ValueMemory};

use super::super::context::Context;
use super::super::values::{StoredValue, is_stored};
use crate::encoding::AlwaysEncodes;
use crate::peer::{PeerMessage, PeerValue};

/// Maximum bytes of the values in a message, of which the size is limited.
pub(super) const VALUE_BYTES_MAX: usize = 256 << 10;
/// Maximum number of objects contained in a value that is sent to another node.
const CONTAINED_MAX: usize = 50_000;

/// A value to send.
pub(super) enum OutgoingValue {
    Value(Vec<u8>),
    /// Its location: a node, the object's id there, and the size.
    Remote {
        node: NodeId,
        object: ObjectId,
        bytes: u64,
    },
    /// An encoded [`TaskError`].
    Failed(Vec<u8>),
}

impl OutgoingValue {
    pub(super) fn failed(error: &TaskError) -> OutgoingValue {
        OutgoingValue::Failed(error.encode())
    }

    pub(super) fn as_message(&self) -> PeerValue<'_> {
        match self {
            OutgoingValue::Value(bytes) => PeerValue::Value(bytes),
            OutgoingValue::Remote { node, object, bytes } => {
                PeerValue::Remote { node: *node, object: *object, bytes: *bytes }
            }
            OutgoingValue::Failed(error) => PeerValue::Failed(error),
        }
    }

    /// Returns whether the receiver needs nothing more of the sender for it.
    pub(super) fn is_complete(&self) -> bool {
        !matches!(self, OutgoingValue::Remote { .. })
    }
}

/// Returns an object's value to send, if it has one.
pub(super) fn outgoing(cx: &mut Context, object: ObjectId) -> Option<OutgoingValue> {
    outgoing_within(cx, object, &mut VALUE_INLINE_BYTES_MAX.clone())
}

/// Like [`outgoing`], with a limit of bytes, which it decrements.
pub(super) fn outgoing_within(cx: &mut Context, object: ObjectId, limit: &mut usize) -> Option<OutgoingValue> {
    let node = cx.node();
    let key = match cx.scheduler.value(object)? {
        Ok(StoredValue::Inline(bytes)) if bytes.len() > *limit => {
            return Some(OutgoingValue::Remote { node, object, bytes: bytes.len() as u64 });
        }
        Ok(StoredValue::Inline(bytes)) => {
            *limit -= bytes.len();
            return Some(OutgoingValue::Value(bytes.to_vec()));
        }
        Ok(StoredValue::Remote(key)) => {
            let Some(((there, id_there), is_missed)) = cx.remote_values.location(*key) else {
                let fault = Fault::new(Code::ObjectLost, format!("the location of object {object} is unknown"));
                return Some(OutgoingValue::failed(&TaskError { fault, chain: Vec::new() }));
            };
            let stays = there == node || cx.peers.contains(there) && !cx.peers.is_draining(there);
            let has_copy = cx.remote_values.local_copy(*key).is_some();
            // The receiver gets the copy of this node if that node has the value no more, or not for long.
            let (node, object) = if has_copy && (is_missed || !stays) { (node, object) } else { (there, id_there) };
            return Some(OutgoingValue::Remote { node, object, bytes: key.bytes });
        }
        Ok(StoredValue::Local(key, _)) => *key,
        Err(error) => return Some(OutgoingValue::failed(error)),
    };
    let bytes = cx.values.view(key).map_or(0, |view| view.bytes);
    if bytes <= VALUE_INLINE_BYTES_MAX.min(*limit) as u64 {
        *limit -= bytes as usize;
        match cx.values.share(key) {
            LendResult::Bytes(bytes) => return Some(OutgoingValue::Value(bytes.to_vec())),
            LendResult::File(file) => {
                if let Ok(mapping) = Mapping::sealed(file.as_fd(), bytes) {
                    return Some(OutgoingValue::Value(mapping.to_vec()));
                }
            }
            // It is being restored: it is in memory by the time it is fetched.
            LendResult::AlreadyLent | LendResult::Pending | LendResult::Lost(_) => {}
        }
    }
    Some(OutgoingValue::Remote { node, object, bytes })
}

/// Returns an object's value and the objects contained in it, unless those are too many for a message: then an error.
pub(super) fn with_contents(cx: &Context, object: ObjectId, value: OutgoingValue) -> (OutgoingValue, Vec<ObjectId>) {
    let contains: Vec<ObjectId> = cx.scheduler.contained_objects(object).collect();
    if contains.len() <= CONTAINED_MAX {
        return (value, contains);
    }
    let message =
        format!("it contains {} objects: a value for another node contains {CONTAINED_MAX} at most", contains.len());
    let error = TaskError { fault: Fault::new(Code::BadOutput, message), chain: Vec::new() };
    (OutgoingValue::failed(&error), Vec::new())
}

/// Stores the value of an object that another node has sent. A remote value is released to `holder` when it is dropped.
pub(super) fn receive(
    cx: &mut Context,
    job: JobId,
    object: ObjectId,
    value: PeerValue<'_>,
    holder: Option<NodeId>,
) -> Result<StoredValue, Arc<TaskError>> {
    if let PeerValue::Value(bytes) = value {
        cx.usage.book(job, |amounts| amounts.network_bytes += bytes.len() as u64);
    }
    match value {
        PeerValue::Value(bytes) if !is_stored(bytes) => Ok(StoredValue::Inline(bytes.into())),
        PeerValue::Value(bytes) => {
            let stored = cx.store(job, object, ValueMemory::Bytes(bytes.into()));
            stored.map_err(|fault| Arc::new(TaskError { fault, chain: Vec::new() }))
        }
        PeerValue::Remote { node, object: id_there, bytes } => {
            Ok(StoredValue::Remote(cx.remote_values.add(object, node, id_there, bytes, holder)))
        }
        PeerValue::Failed(error) => Err(Arc::new(postcard::from_bytes(error).unwrap_or_else(|_| undecodable()))),
    }
}

/// Returns a value that this node does not need, with the objects contained in it, to the node that has lent them.
pub(super) fn return_value(cx: &mut Context, node: NodeId, value: PeerValue<'_>, contains: Vec<ObjectId>) {
    let own = if let PeerValue::Remote { object, .. } = value { Some(object) } else { None };
    for object in contains.into_iter().chain(own) {
        cx.peers.send(node, &PeerMessage::Release(object, 1));
    }
}

fn undecodable() -> TaskError {
    let fault = Fault::new(Code::Host, "the node that had the value sent an invalid error");
    TaskError { fault, chain: Vec::new() }
}
