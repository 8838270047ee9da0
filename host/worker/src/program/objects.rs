//! The objects that the tasks of a worker hold, need or request.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;
use sandbar_sandbox::{GetOutcome, Input, InputBytes};
use sandbar_store::Mapping;

/// Maximum bytes of stored values of which this worker keeps copies. Further ones are requested from the node when they are
/// read.
const COPIES_BYTES_MAX: usize = 16 << 20;

/// Index of a task in its worker.
pub(super) type TaskSlot = usize;

/// Key of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ObjectKey {
    pub job: u32,
    /// Number of the object.
    pub object: u64,
}

impl ObjectKey {
    pub(super) fn new(job: u32, object: u64) -> ObjectKey {
        ObjectKey { job, object }
    }

    /// Returns the key of another object of the same job.
    fn sibling(self, object: u64) -> ObjectKey {
        ObjectKey { object, ..self }
    }
}

/// References to an object that the worker releases together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectRelease {
    pub object: u64,
    /// Number of references that the node counts.
    pub times: u32,
}

/// A task that waits for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiter {
    pub slot: TaskSlot,
    /// Number of the task. The slot may hold another task by now.
    pub task: u64,
}

/// A value or an error in the worker's memory.
#[derive(Debug)]
pub(super) struct LocalValue {
    pub bytes: LocalBytes,
    /// Whether it is an error.
    pub failed: bool,
}

#[derive(Debug)]
pub(super) enum LocalBytes {
    Own(Vec<u8>),
    File(Mapping, OwnedFd),
}

impl LocalValue {
    pub(super) fn inline(bytes: &[u8], failed: bool) -> Arc<LocalValue> {
        Arc::new(LocalValue { bytes: LocalBytes::Own(bytes.to_vec()), failed })
    }

    /// Maps the first bytes of a sealed file.
    pub(super) fn of_file(file: OwnedFd, bytes: u64) -> io::Result<Arc<LocalValue>> {
        let mapping = Mapping::sealed(file.as_fd(), bytes)?;
        Ok(Arc::new(LocalValue { bytes: LocalBytes::File(mapping, file), failed: false }))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            LocalBytes::Own(bytes) => bytes,
            LocalBytes::File(mapping, _) => mapping,
        }
    }

    pub(super) fn outcome(&self) -> GetOutcome {
        let bytes = self.bytes().len() as u64;
        if self.failed { GetOutcome::Failed(bytes) } else { GetOutcome::Value(bytes) }
    }

    pub(super) fn input(&self) -> Input<'_> {
        let file = match &self.bytes {
            LocalBytes::Own(_) => None,
            LocalBytes::File(_, file) => Some((file.as_fd(), 0)),
        };
        Input { bytes: InputBytes::Lent(self.bytes()), file }
    }
}

/// State of an object in this worker.
#[derive(Debug, Default)]
pub(super) struct ObjectEntry {
    pub value: Option<Arc<LocalValue>>,
    /// Whether it was requested from the node.
    pub requested: bool,
    /// Number of tasks of this worker that hold or need it, and of local values that contain it.
    holds: u32,
    /// Number of references that the node counts for this worker.
    pub held: u32,
    /// Whether the objects that its value contains are known, because the value is or was local.
    pub is_known: bool,
    /// Objects that its value contains.
    contains: Vec<u64>,
    /// Bytes of the copy of a stored value.
    copy_bytes: usize,
    /// Tasks that wait or waited for it.
    pub waiters: Vec<Waiter>,
}

impl ObjectEntry {
    /// Registers a task that waits for the object, unless it was registered last.
    pub(super) fn add_waiter(&mut self, waiter: Waiter) {
        if self.waiters.last() != Some(&waiter) {
            self.waiters.push(waiter);
        }
    }

    /// Adds a reference that the node counts, unless it counts one already. Returns whether it was added.
    pub(super) fn retain(&mut self) -> bool {
        let is_new = self.held == 0;
        self.held += u32::from(is_new);
        is_new
    }

    /// Marks the object as requested from the node. Returns whether to request it now.
    pub(super) fn request(&mut self) -> bool {
        !std::mem::replace(&mut self.requested, true)
    }
}

/// The objects of a worker.
#[derive(Debug, Default)]
pub(super) struct ObjectTable {
    entries: FxHashMap<ObjectKey, ObjectEntry>,
    /// Objects that nothing in this worker holds any longer.
    pub released: Vec<ObjectRelease>,
    /// Lent files, with the value that each holds, until the node requests their release.
    lent: FxHashMap<u64, (ObjectKey, Arc<LocalValue>)>,
    /// Values of files whose release was requested, while tasks use them.
    forgotten_in_use: Vec<(u64, Weak<LocalValue>)>,
    /// Bytes of the copies of stored values.
    copies_bytes: usize,
}

impl ObjectTable {
    pub(super) fn value(&self, key: ObjectKey) -> Option<&Arc<LocalValue>> {
        self.entries.get(&key)?.value.as_ref()
    }

    /// Returns whether the outcome of an object is known; with `with_value`, whether its value is local.
    pub(super) fn is_there(&self, key: ObjectKey, with_value: bool) -> bool {
        self.entries.get(&key).is_some_and(|entry| entry.value.is_some() || entry.is_known && !with_value)
    }

    pub(super) fn get(&self, key: ObjectKey) -> Option<&ObjectEntry> {
        self.entries.get(&key)
    }

    pub(super) fn entry(&mut self, key: ObjectKey) -> &mut ObjectEntry {
        self.entries.entry(key).or_default()
    }

    /// Adds a reference of a task that holds or needs the object.
    pub(super) fn hold(&mut self, key: ObjectKey) {
        self.entry(key).holds += 1;
    }

    /// Adds a reference of the task that created the object; the node counts it as well.
    pub(super) fn created(&mut self, key: ObjectKey) {
        let entry = self.entry(key);
        entry.holds += 1;
        entry.held += 1;
    }

    /// Sets the objects that a value contains. With `by_node`, the node counts each of them once more for this worker.
    pub(super) fn set_contained(&mut self, key: ObjectKey, contained: Vec<u64>, by_node: bool) {
        for object in &contained {
            let entry = self.entry(key.sibling(*object));
            entry.holds += 1;
            entry.held += u32::from(by_node);
        }
        let entry = self.entry(key);
        (entry.contains, entry.is_known) = (contained, true);
    }

    /// Records a value that a task has stored, and keeps a copy if there is room.
    pub(super) fn stored(&mut self, key: ObjectKey, bytes: &[u8], contained: Vec<u64>) {
        self.set_contained(key, contained, false);
        if self.copies_bytes + bytes.len() <= COPIES_BYTES_MAX {
            self.copies_bytes += bytes.len();
            let entry = self.entry(key);
            (entry.value, entry.copy_bytes) = (Some(LocalValue::inline(bytes, false)), bytes.len());
        }
    }

    /// Returns the number of objects.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Records a delivery: the objects that the value contains, each of which the node counts once more for this worker
    /// if the object was `requested`. A value that is already local stays, also if lineage has computed another one.
    pub(super) fn delivered(&mut self, key: ObjectKey, contained: Vec<u64>, requested: bool, is_new: bool) {
        let entry = self.entry(key);
        if entry.is_known && entry.contains == contained {
            let times = u32::from(requested);
            return contained.iter().for_each(|object| self.entry(key.sibling(*object)).held += times);
        }
        let unneeded = if is_new || !entry.is_known {
            let before = std::mem::take(&mut entry.contains);
            self.set_contained(key, contained, requested);
            before
        } else {
            for object in &contained {
                let entry = self.entry(key.sibling(*object));
                entry.holds += 1;
                entry.held += u32::from(requested);
            }
            contained
        };
        unneeded.into_iter().for_each(|object| self.release(key.sibling(object)));
    }

    /// Records a file that the node has lent.
    pub(super) fn lend(&mut self, file: u64, key: ObjectKey, value: &Arc<LocalValue>) {
        self.lent.insert(file, (key, value.clone()));
    }

    /// Returns the value of a lent file.
    pub(super) fn lent(&self, file: u64) -> Option<Arc<LocalValue>> {
        self.lent.get(&file).map(|(_, value)| value.clone())
    }

    /// Removes a file whose release the node requests. A task that needs the value requests it again.
    pub(super) fn forget(&mut self, file: u64) {
        let Some((key, value)) = self.lent.remove(&file) else { return };
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.value.as_ref().is_some_and(|own| Arc::ptr_eq(own, &value))
        {
            (entry.value, entry.requested) = (None, false);
        }
        self.forgotten_in_use.push((file, Arc::downgrade(&value)));
    }

    /// Removes and returns the files whose release was requested and that no task uses any longer.
    pub(super) fn forgotten(&mut self) -> impl Iterator<Item = u64> + use<> {
        let released = self.forgotten_in_use.extract_if(.., |(_, value)| value.strong_count() == 0);
        released.map(|(file, _)| file).collect::<Vec<_>>().into_iter()
    }

    /// Returns the objects that an object's value contains.
    pub(super) fn contained(&self, key: ObjectKey) -> &[u64] {
        self.entries.get(&key).map_or(&[], |entry| &entry.contains)
    }

    /// Drops a reference. Objects without references are removed, with objects that only they contained.
    pub(super) fn release(&mut self, key: ObjectKey) {
        let mut left = vec![key.object];
        while let Some(object) = left.pop() {
            let key = key.sibling(object);
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            entry.holds = entry.holds.saturating_sub(1);
            if entry.holds > 0 {
                continue;
            }
            if let Some(entry) = self.entries.remove(&key) {
                self.copies_bytes -= entry.copy_bytes;
                if entry.held > 0 {
                    self.released.push(ObjectRelease { object, times: entry.held });
                }
                left.extend(entry.contains);
            }
        }
    }

    /// Stores the value of an object. Returns the tasks that wait for it.
    pub(super) fn arrived(&mut self, key: ObjectKey, value: Arc<LocalValue>) -> Vec<Waiter> {
        let entry = self.entry(key);
        entry.value = Some(value);
        std::mem::take(&mut entry.waiters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values beyond the limit have no copies here, until others are released.
    #[test]
    fn copies_of_stored_values_are_limited() {
        const BYTES: usize = 4000;
        let (mut objects, value) = (ObjectTable::default(), vec![7; BYTES]);
        let key = |number: usize| ObjectKey::new(1, number as u64);
        let count = COPIES_BYTES_MAX / BYTES;
        for number in 0..2 * count {
            objects.created(key(number));
            objects.stored(key(number), &value, Vec::new());
            assert_eq!(objects.is_there(key(number), true), number < count, "{number}");
            assert!(objects.is_there(key(number), false));
        }
        (0..count).for_each(|number| objects.release(key(number)));
        objects.created(key(0));
        objects.stored(key(0), &value, Vec::new());
        assert_eq!(
            (objects.value(key(0)).map(|value| value.bytes().len()), objects.copies_bytes),
            (Some(BYTES), BYTES)
        );
    }
}
