//! The objects of a member.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_core::{NodeId, ObjectId};
use sandbar_wire::{HashTree, HeldObject, ObjectSource, SharedBytes, Transfers};

use crate::scenario::{HolderBehavior, TestObject};

pub struct Store {
    has: Mutex<BTreeMap<ObjectId, SharedBytes>>,
    transfers: Transfers,
}

impl Store {
    /// Creates a member's store with its initial objects.
    pub fn new(transfers: Transfers, test_object: &[TestObject], member: Option<usize>) -> Arc<Store> {
        let store = Store { has: Mutex::default(), transfers };
        let places =
            test_object.iter().filter_map(|test_object| Some((test_object, test_object.at.get(member?).copied()??)));
        places.for_each(|(test_object, behavior)| store.place(test_object, behavior));
        Arc::new(store)
    }

    fn place(&self, test_object: &TestObject, behavior: HolderBehavior) {
        let mut bytes = (*test_object.bytes).clone();
        match behavior {
            HolderBehavior::Absent => return,
            HolderBehavior::Honest => {}
            HolderBehavior::Other => bytes.iter_mut().for_each(|byte| *byte = !*byte),
            HolderBehavior::Longer => bytes.push(7),
            HolderBehavior::Flipped => {
                // Serves the hashes of the right bytes, and then a wrong byte.
                self.transfers.keep_tree(test_object.object, HashTree::build(&bytes));
                if let Some(byte) = bytes.last_mut() {
                    *byte ^= 1;
                }
            }
        }
        self.put(test_object.object, Arc::new(bytes));
    }

    pub fn put(&self, object: ObjectId, bytes: SharedBytes) {
        self.has().insert(object, bytes);
    }

    fn has(&self) -> MutexGuard<'_, BTreeMap<ObjectId, SharedBytes>> {
        self.has.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectSource for Store {
    fn find(&self, _: NodeId, object: ObjectId) -> HeldObject {
        let whole = self.has().get(&object).cloned().map(HeldObject::Whole);
        whole.or_else(|| self.transfers.partial(object).map(HeldObject::Partial)).unwrap_or(HeldObject::NotFound)
    }
}
