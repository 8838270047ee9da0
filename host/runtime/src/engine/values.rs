//! Values of objects: inline, in the value store, or on another node.

use rustc_hash::FxHashMap;
use sandbar_core::{ActorId, JobId, NodeId, ObjectId, WorkerId};
use sandbar_store::ValueKey;

/// Minimum size of a value that the value store keeps. A smaller one is stored with its object: it takes less memory than a
/// record in the store.
const STORED_BYTES_MIN: usize = 4 << 10;

/// The value of an object.
#[derive(Debug, Clone)]
pub(crate) enum StoredValue {
    Inline(Box<[u8]>),
    /// In the value store, with its size.
    Local(ValueKey, u64),
    /// On another node.
    Remote(RemoteKey),
}

impl StoredValue {
    pub(crate) fn key(&self) -> Option<ValueKey> {
        match self {
            StoredValue::Inline(_) | StoredValue::Remote(_) => None,
            StoredValue::Local(key, _) => Some(*key),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            StoredValue::Inline(bytes) => bytes.len() as u64,
            StoredValue::Local(_, bytes) => *bytes,
            StoredValue::Remote(key) => key.bytes,
        }
    }
}

/// Where a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValuePlace {
    /// With its object.
    Inline,
    Memory,
    Disk,
    /// On another node.
    Remote,
}

/// Returns whether a value in a message goes to the value store.
pub(crate) fn is_stored(bytes: &[u8]) -> bool {
    bytes.len() >= STORED_BYTES_MIN
}

/// A worker that gets the value of an object.
#[derive(Debug)]
pub(crate) struct Recipient {
    pub(in crate::engine) worker: WorkerId,
    /// Job of the task that requested it.
    pub(in crate::engine) job: JobId,
    pub(in crate::engine) object: ObjectId,
    /// Objects contained in the value.
    pub(in crate::engine) contains: Vec<u64>,
}

/// A value on another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RemoteKey {
    pub(in crate::engine) number: u64,
    pub(crate) node: NodeId,
    pub(crate) bytes: u64,
}

/// Values on other nodes, and copies of them on this one.
#[derive(Debug, Default)]
pub(crate) struct RemoteValues {
    pub(in crate::engine) all: FxHashMap<u64, RemoteValue>,
    next: u64,
}

#[derive(Debug)]
pub(in crate::engine) struct RemoteValue {
    /// Object of this node that has the value.
    pub(in crate::engine) object: ObjectId,
    /// Node that has the value, and the object's id there.
    pub(in crate::engine) node: NodeId,
    pub(in crate::engine) id_there: ObjectId,
    pub(in crate::engine) bytes: u64,
    /// Node to which the value is released when it is dropped.
    pub(in crate::engine) holder: Option<NodeId>,
    /// Whether another node could not fetch it, and so gets the copy of this node.
    pub(in crate::engine) is_missed: bool,
    pub(in crate::engine) state: FetchState,
    /// Actor on another node of which the value is a checkpoint.
    pub(in crate::engine) checkpoint_of: Option<ActorId>,
}

#[derive(Debug)]
pub(in crate::engine) enum FetchState {
    NotFetched,
    /// Workers that get the value.
    Fetching(Vec<Recipient>),
    /// A copy on this node.
    Copied(ValueKey),
}

impl RemoteValues {
    pub(in crate::engine) fn len(&self) -> usize {
        self.all.len()
    }

    /// Adds a value of an object, which node `node` has under the id `id_there`. `holder` gets it back when it is dropped.
    pub(in crate::engine) fn add(
        &mut self,
        object: ObjectId,
        node: NodeId,
        id_there: ObjectId,
        bytes: u64,
        holder: Option<NodeId>,
    ) -> RemoteKey {
        let key = RemoteKey { number: self.next, node, bytes };
        self.next += 1;
        let (is_missed, state, checkpoint_of) = (false, FetchState::NotFetched, None);
        let value = RemoteValue { object, node, id_there, bytes, holder, is_missed, state, checkpoint_of };
        self.all.insert(key.number, value);
        key
    }

    /// Returns the copy of a value on this node.
    pub(crate) fn local_copy(&self, key: RemoteKey) -> Option<ValueKey> {
        match self.all.get(&key.number)?.state {
            FetchState::Copied(copy) => Some(copy),
            _ => None,
        }
    }

    /// Returns the location of a value: a node, and the object's id there. The second result is true if another node could
    /// not fetch it.
    pub(in crate::engine) fn location(&self, key: RemoteKey) -> Option<((NodeId, ObjectId), bool)> {
        self.all.get(&key.number).map(|value| ((value.node, value.id_there), value.is_missed))
    }

    /// Marks a value as a checkpoint of an actor.
    pub(in crate::engine) fn mark_checkpoint(&mut self, key: RemoteKey, actor: ActorId) {
        if let Some(value) = self.all.get_mut(&key.number) {
            value.checkpoint_of = Some(actor);
        }
    }

    /// Returns the values without a copy that only a node has, or that are released to it.
    pub(in crate::engine) fn only_on(&self, node: NodeId) -> Vec<RemoteKey> {
        self.keys(|value| {
            let is_of = value.node == node || value.holder == Some(node);
            is_of && !matches!(value.state, FetchState::Copied(_))
        })
    }

    pub(in crate::engine) fn keys(&self, filter: impl Fn(&RemoteValue) -> bool) -> Vec<RemoteKey> {
        let found = self.all.iter().filter(|(_, value)| filter(value));
        let keys = found.map(|(number, value)| RemoteKey { number: *number, node: value.node, bytes: value.bytes });
        let mut keys: Vec<RemoteKey> = keys.collect();
        keys.sort_unstable();
        keys
    }
}
