//! Cache of hash trees of local objects, computed on first use.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_core::ObjectId;
use tokio::sync::{OnceCell, Semaphore};

use super::{HashTree, Offload, SharedBytes};

type Cell = Arc<OnceCell<Arc<HashTree>>>;

/// Least-recently-used cache of hash trees, bounded in bytes.
#[derive(Debug)]
pub(crate) struct HashTreeCache {
    bytes_max: u64,
    offload: Offload,
    /// Bounds how many trees are computed concurrently.
    makers: Semaphore,
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    all: HashMap<ObjectId, CacheEntry>,
    /// Objects by time of last use, oldest first.
    order: BTreeMap<u64, ObjectId>,
    clock: u64,
    used: u64,
}

#[derive(Debug)]
struct CacheEntry {
    cell: Cell,
    /// Bytes of the object. Another length means another object with the same id.
    bytes: u64,
    weight: u64,
    touched: u64,
}

impl HashTreeCache {
    pub(crate) fn new(bytes_max: u64, builds_max: usize, offload: Offload) -> HashTreeCache {
        HashTreeCache { bytes_max, offload, makers: Semaphore::new(builds_max), state: Mutex::default() }
    }

    /// Returns the tree of an object, and computes it if it is not cached. Returns `None` if that failed.
    pub(crate) async fn get(&self, object: ObjectId, bytes: &SharedBytes) -> Option<Arc<HashTree>> {
        let len = (**bytes).as_ref().len() as u64;
        let cell = self.state().touch(object, len);
        let computed = cell.get_or_try_init(|| async {
            let _permit = self.makers.acquire().await.map_err(drop)?;
            let bytes = bytes.clone();
            self.offload.run(move || Arc::new(HashTree::build((*bytes).as_ref()))).await.ok_or(())
        });
        let tree = computed.await.ok()?.clone();
        self.state().weigh(object, &cell, tree.weight(), self.bytes_max);
        Some(tree)
    }

    /// Stores a tree that was computed elsewhere.
    pub(crate) fn put(&self, object: ObjectId, tree: HashTree) {
        let weight = tree.weight();
        let mut state = self.state();
        state.remove(object);
        let cell = state.touch(object, tree.bytes());
        // Can't fail: the cell is new and empty.
        let _ = cell.set(Arc::new(tree));
        state.weigh(object, &cell, weight, self.bytes_max);
    }

    /// Removes an object.
    pub(crate) fn forget(&self, object: ObjectId) {
        self.state().remove(object);
    }

    /// Returns the bytes of memory used.
    pub(crate) fn used(&self) -> u64 {
        self.state().used
    }

    fn state(&self) -> MutexGuard<'_, CacheState> {
        // Poisoning is harmless: no code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheState {
    fn touch(&mut self, object: ObjectId, bytes: u64) -> Cell {
        if self.all.get(&object).is_some_and(|entry| entry.bytes != bytes) {
            self.remove(object);
        }
        self.clock += 1;
        let touched = self.clock;
        let entry =
            self.all.entry(object).or_insert_with(|| CacheEntry { cell: Cell::default(), bytes, weight: 0, touched });
        self.order.remove(&entry.touched);
        entry.touched = touched;
        self.order.insert(touched, object);
        entry.cell.clone()
    }

    /// Counts a computed tree once, unless it was evicted meanwhile, and evicts the least recently used ones.
    fn weigh(&mut self, object: ObjectId, cell: &Cell, weight: u64, bytes_max: u64) {
        if let Some(entry) = self.all.get_mut(&object).filter(|entry| Arc::ptr_eq(&entry.cell, cell)) {
            self.used += weight - std::mem::replace(&mut entry.weight, weight);
        }
        while self.used > bytes_max {
            let Some((_, oldest)) = self.order.first_key_value() else { return };
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, object: ObjectId) {
        if let Some(entry) = self.all.remove(&object) {
            self.order.remove(&entry.touched);
            self.used -= entry.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(count: usize) -> SharedBytes {
        Arc::new(vec![3; count])
    }

    #[tokio::test]
    async fn the_oldest_go_when_there_is_no_room() {
        let object = bytes(1 << 20);
        let weight = HashTree::build((*object).as_ref()).weight();
        let trees = HashTreeCache::new(2 * weight, 1, Offload::Inline);
        for id in [1, 2, 1, 3] {
            assert_eq!(trees.get(ObjectId(id), &object).await.unwrap().bytes(), 1 << 20);
            assert!(trees.used() <= 2 * weight);
        }
        let is_kept = |id| trees.state().all.contains_key(&ObjectId(id));
        assert_eq!([1, 2, 3].map(is_kept), [true, false, true]);
        trees.forget(ObjectId(1));
        assert_eq!(trees.used(), weight);
        trees.put(ObjectId(3), HashTree::build(&[1; 200_000]));
        assert!(trees.used() < weight);
    }

    #[tokio::test]
    async fn another_object_of_the_same_id_has_another_tree() {
        let trees = HashTreeCache::new(1 << 20, 1, Offload::Threads);
        let first = trees.get(ObjectId(1), &bytes(100_000)).await.unwrap();
        assert!(Arc::ptr_eq(&first, &trees.get(ObjectId(1), &bytes(100_000)).await.unwrap()));
        assert_eq!(trees.get(ObjectId(1), &bytes(100_001)).await.unwrap().bytes(), 100_001);
    }
}
