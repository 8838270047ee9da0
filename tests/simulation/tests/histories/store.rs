//! What a member has, and gives to others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_core::{NodeId, ObjectId};
use sandbar_wire::{Held, SharedBytes, Source, Transfers, Tree};

use crate::shape::{Made, Manner};

pub struct Store {
    has: Mutex<BTreeMap<ObjectId, SharedBytes>>,
    transfers: Transfers,
}

impl Store {
    /// What a member has from the beginning.
    pub fn new(transfers: Transfers, made: &[Made], member: Option<usize>) -> Arc<Store> {
        let store = Store { has: Mutex::default(), transfers };
        let places = made.iter().filter_map(|made| Some((made, made.at.get(member?).copied()??)));
        places.for_each(|(made, manner)| store.place(made, manner));
        Arc::new(store)
    }

    fn place(&self, made: &Made, manner: Manner) {
        let mut bytes = (*made.bytes).clone();
        match manner {
            Manner::Absent => return,
            Manner::Honest => {}
            Manner::Other => bytes.iter_mut().for_each(|byte| *byte = !*byte),
            Manner::Longer => bytes.push(7),
            Manner::Flipped => {
                // It shows the hashes of what it does not send.
                self.transfers.keep_tree(made.object, Tree::of(&bytes));
                if let Some(byte) = bytes.last_mut() {
                    *byte ^= 1;
                }
            }
        }
        self.put(made.object, Arc::new(bytes));
    }

    pub fn put(&self, object: ObjectId, bytes: SharedBytes) {
        self.has().insert(object, bytes);
    }

    fn has(&self) -> MutexGuard<'_, BTreeMap<ObjectId, SharedBytes>> {
        self.has.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Store {
    fn find(&self, _: NodeId, object: ObjectId) -> Held {
        let whole = self.has().get(&object).cloned().map(Held::Whole);
        whole.or_else(|| self.transfers.partial(object).map(Held::Partial)).unwrap_or(Held::NotHere)
    }
}
