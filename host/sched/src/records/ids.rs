//! Tasks and objects by id.

use sandbar_core::{ObjectId, TaskId};

use crate::records::id_table::IdTable;
use crate::records::keys::{ObjectKey, TaskKey};

/// Keys of tasks and objects by id. A task and its first return have the same number.
#[derive(Debug, Default)]
pub(crate) struct Ids(IdTable<u64, Entry>);

#[derive(Debug, Default, Clone, Copy)]
struct Entry {
    task: Option<TaskKey>,
    object: Option<ObjectKey>,
}

impl Ids {
    #[inline]
    pub(crate) fn find_task(&self, id: TaskId) -> Option<TaskKey> {
        self.0.get(&id.0)?.task
    }

    #[inline]
    pub(crate) fn find_object(&self, id: ObjectId) -> Option<ObjectKey> {
        self.0.get(&id.0)?.object
    }

    /// Whether a task or an object has this number.
    #[inline]
    pub(crate) fn is_used(&self, number: u64) -> bool {
        self.0.contains_key(&number)
    }

    #[inline]
    pub(crate) fn insert_task(&mut self, id: TaskId, at: TaskKey) {
        self.0.entry(id.0).or_default().task = Some(at);
    }

    #[inline]
    pub(crate) fn insert_object(&mut self, id: ObjectId, at: ObjectKey) {
        self.0.entry(id.0).or_default().object = Some(at);
    }

    #[inline]
    pub(crate) fn remove_task(&mut self, id: TaskId) {
        self.remove(id.0, |entry| entry.task = None);
    }

    #[inline]
    pub(crate) fn remove_object(&mut self, id: ObjectId) {
        self.remove(id.0, |entry| entry.object = None);
    }

    #[inline]
    fn remove(&mut self, number: u64, clear: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.0.get_mut(&number) {
            clear(entry);
            if entry.task.is_none() && entry.object.is_none() {
                self.0.remove(&number);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Frees memory that was used for many more ids.
    pub(crate) fn shrink(&mut self) {
        if self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to_fit();
        }
    }
}
