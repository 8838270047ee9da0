//! Objects that other nodes fetch from this node, and the nodes that have parts of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sandbar_core::{NodeId, ObjectId};
use sandbar_store::Mapping;
use sandbar_wire::{Locations, RootHash};

/// Objects that other nodes fetch from this node. They fetch from each other, too.
#[derive(Default)]
pub(crate) struct SharedObjects {
    objects: Mutex<HashMap<ObjectId, SharedObject>>,
    locations: Mutex<Locations>,
}

struct SharedObject {
    value: Arc<Mapping>,
    root: RootHash,
    last_used: Instant,
}

impl SharedObjects {
    fn objects(&self) -> MutexGuard<'_, HashMap<ObjectId, SharedObject>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nodes that have an object, or parts of it.
    pub(crate) fn locations(&self) -> MutexGuard<'_, Locations> {
        self.locations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, object: ObjectId, value: Arc<Mapping>, root: RootHash) {
        self.objects().insert(object, SharedObject { value, root, last_used: Instant::now() });
    }

    pub(crate) fn contains(&self, object: ObjectId) -> bool {
        self.objects().contains_key(&object)
    }

    /// Returns the value and hash of an object, and marks it as used.
    pub(crate) fn get(&self, object: ObjectId) -> Option<(Arc<Mapping>, RootHash)> {
        let mut objects = self.objects();
        let shared = objects.get_mut(&object)?;
        shared.last_used = Instant::now();
        Some((shared.value.clone(), shared.root))
    }

    /// Removes and returns the objects that were not used for `time`.
    pub(crate) fn evict_idle(&self, time: Duration) -> Vec<ObjectId> {
        let mut evicted = Vec::new();
        self.objects().retain(|object, shared| {
            let is_used = shared.last_used.elapsed() < time;
            evicted.extend((!is_used).then_some(*object));
            is_used
        });
        for object in &evicted {
            self.locations().forget(*object);
        }
        evicted
    }

    /// Removes a lost node from the locations of all objects.
    pub(crate) fn remove_node(&self, node: NodeId) {
        self.locations().remove_node(node);
    }
}
