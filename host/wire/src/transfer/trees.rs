//! Hash trees of objects that are here, made when they are first asked for and kept while there is room.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_core::ObjectId;
use tokio::sync::{OnceCell, Semaphore};

use super::serve::SharedBytes;
use super::{Offload, Tree};

type Cell = Arc<OnceCell<Arc<Tree>>>;

/// The trees used last, as many as there is room for.
#[derive(Debug)]
pub(crate) struct Trees {
    bytes_max: u64,
    offload: Offload,
    /// Bounds how many are made at once.
    makers: Semaphore,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    all: HashMap<ObjectId, Kept>,
    /// Which was used when, oldest first.
    order: BTreeMap<u64, ObjectId>,
    clock: u64,
    used: u64,
}

#[derive(Debug)]
struct Kept {
    cell: Cell,
    /// Bytes of the object: another object of the same id is another one's.
    bytes: u64,
    weight: u64,
    touched: u64,
}

impl Trees {
    pub(crate) fn new(bytes_max: u64, made_max: usize, offload: Offload) -> Trees {
        Trees { bytes_max, offload, makers: Semaphore::new(made_max), state: Mutex::default() }
    }

    /// The tree of an object. Nothing when making it failed.
    pub(crate) async fn of(&self, object: ObjectId, bytes: &SharedBytes) -> Option<Arc<Tree>> {
        let len = (**bytes).as_ref().len() as u64;
        let cell = self.state().touch(object, len);
        let made = cell.get_or_try_init(|| async {
            let _turn = self.makers.acquire().await.map_err(drop)?;
            let bytes = bytes.clone();
            self.offload.run(move || Arc::new(Tree::of((*bytes).as_ref()))).await.ok_or(())
        });
        let tree = made.await.ok()?.clone();
        self.state().weigh(object, &cell, tree.weight(), self.bytes_max);
        Some(tree)
    }

    /// Keeps a tree that was made elsewhere.
    pub(crate) fn put(&self, object: ObjectId, tree: Tree) {
        let weight = tree.weight();
        let mut state = self.state();
        state.remove(object);
        let cell = state.touch(object, tree.bytes());
        // Just made, and empty.
        let _ = cell.set(Arc::new(tree));
        state.weigh(object, &cell, weight, self.bytes_max);
    }

    /// An object is no more.
    pub(crate) fn forget(&self, object: ObjectId) {
        self.state().remove(object);
    }

    /// Bytes that they take.
    pub(crate) fn used(&self) -> u64 {
        self.state().used
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn touch(&mut self, object: ObjectId, bytes: u64) -> Cell {
        if self.all.get(&object).is_some_and(|kept| kept.bytes != bytes) {
            self.remove(object);
        }
        self.clock += 1;
        let touched = self.clock;
        let kept = self.all.entry(object).or_insert_with(|| Kept { cell: Cell::default(), bytes, weight: 0, touched });
        self.order.remove(&kept.touched);
        kept.touched = touched;
        self.order.insert(touched, object);
        kept.cell.clone()
    }

    /// Counts a tree that was made, unless it was dropped or counted meanwhile, and drops those used longest ago.
    fn weigh(&mut self, object: ObjectId, cell: &Cell, weight: u64, bytes_max: u64) {
        if let Some(kept) = self.all.get_mut(&object).filter(|kept| Arc::ptr_eq(&kept.cell, cell)) {
            self.used += weight - std::mem::replace(&mut kept.weight, weight);
        }
        while self.used > bytes_max {
            let Some((_, oldest)) = self.order.first_key_value() else { return };
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, object: ObjectId) {
        if let Some(kept) = self.all.remove(&object) {
            self.order.remove(&kept.touched);
            self.used -= kept.weight;
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
        let weight = Tree::of((*object).as_ref()).weight();
        let trees = Trees::new(2 * weight, 1, Offload::Inline);
        for id in [1, 2, 1, 3] {
            assert_eq!(trees.of(ObjectId(id), &object).await.unwrap().bytes(), 1 << 20);
            assert!(trees.used() <= 2 * weight);
        }
        let is_kept = |id| trees.state().all.contains_key(&ObjectId(id));
        assert_eq!([1, 2, 3].map(is_kept), [true, false, true]);
        trees.forget(ObjectId(1));
        assert_eq!(trees.used(), weight);
        trees.put(ObjectId(3), Tree::of(&[1; 200_000]));
        assert!(trees.used() < weight);
    }

    #[tokio::test]
    async fn another_object_of_the_same_id_has_another_tree() {
        let trees = Trees::new(1 << 20, 1, Offload::Threads);
        let first = trees.of(ObjectId(1), &bytes(100_000)).await.unwrap();
        assert!(Arc::ptr_eq(&first, &trees.of(ObjectId(1), &bytes(100_000)).await.unwrap()));
        assert_eq!(trees.of(ObjectId(1), &bytes(100_001)).await.unwrap().bytes(), 100_001);
    }
}
