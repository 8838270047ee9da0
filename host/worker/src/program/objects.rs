//! The objects that a worker's tasks know of.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;
use sandbar_sandbox::{Bytes, Got, Input};
use sandbar_store::Mapping;

/// A task's place in its worker.
pub(super) type Slot = usize;

/// An object of a job.
pub(super) type Key = (u32, u64);

/// What there is of an object.
#[derive(Debug)]
pub(super) struct Value {
    pub bytes: ValueBytes,
    /// Whether it is an error.
    pub failed: bool,
}

#[derive(Debug)]
pub(super) enum ValueBytes {
    Own(Vec<u8>),
    File(Mapping, OwnedFd),
}

impl Value {
    pub(super) fn inline(bytes: &[u8], failed: bool) -> Arc<Value> {
        Arc::new(Value { bytes: ValueBytes::Own(bytes.to_vec()), failed })
    }

    /// Of a sealed file's first bytes.
    pub(super) fn of_file(file: OwnedFd, bytes: u64) -> io::Result<Arc<Value>> {
        let mapping = Mapping::sealed(file.as_fd(), bytes)?;
        Ok(Arc::new(Value { bytes: ValueBytes::File(mapping, file), failed: false }))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            ValueBytes::Own(bytes) => bytes,
            ValueBytes::File(mapping, _) => mapping,
        }
    }

    pub(super) fn got(&self) -> Got {
        let bytes = self.bytes().len() as u64;
        if self.failed { Got::Failed(bytes) } else { Got::Value(bytes) }
    }

    pub(super) fn input(&self) -> Input<'_> {
        let file = match &self.bytes {
            ValueBytes::Own(_) => None,
            ValueBytes::File(_, file) => Some((file.as_fd(), 0)),
        };
        Input { bytes: Bytes::Lent(self.bytes()), file }
    }
}

/// What a worker knows of an object.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub value: Option<Arc<Value>>,
    /// Whether the node was asked for it.
    pub wanted: bool,
    /// Tasks here that hold or need it, and values here that contain it.
    holds: u32,
    /// How often this worker holds it, as the node sees it.
    pub held: u32,
    /// Whether it is known what its value contains, which is there or was.
    pub is_known: bool,
    /// What its value contains.
    contains: Vec<u64>,
    /// Tasks that wait for it, or did: where they are, or were, and which.
    pub waiters: Vec<(Slot, u64)>,
}

/// The objects that tasks here hold, need or want.
#[derive(Debug, Default)]
pub(super) struct Objects {
    entries: FxHashMap<Key, Entry>,
    /// Those that nobody here holds any more, and how often the node thinks that this worker does.
    pub gone: Vec<(u64, u32)>,
    /// Files that the node has lent, until it wants them forgotten: what each is the value of.
    lent: FxHashMap<u64, (Key, Arc<Value>)>,
    /// Those that were forgotten, while tasks have them in use.
    leaving: Vec<(u64, Weak<Value>)>,
}

impl Objects {
    pub(super) fn value(&self, key: Key) -> Option<&Arc<Value>> {
        self.entries.get(&key)?.value.as_ref()
    }

    /// Whether it is known what became of an object; for who wants its value, whether that is here.
    pub(super) fn is_there(&self, key: Key, with_value: bool) -> bool {
        self.entries.get(&key).is_some_and(|entry| entry.value.is_some() || entry.is_known && !with_value)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Entry> {
        self.entries.get(&key)
    }

    pub(super) fn entry(&mut self, key: Key) -> &mut Entry {
        self.entries.entry(key).or_default()
    }

    /// A task holds or needs it.
    pub(super) fn hold(&mut self, key: Key) {
        self.entry(key).holds += 1;
    }

    /// A task made it, and holds it, as the node knows.
    pub(super) fn made(&mut self, key: Key) {
        let entry = self.entry(key);
        entry.holds += 1;
        entry.held += 1;
    }

    /// What its value contains; the node has this worker hold each of them once more if it says so itself.
    pub(super) fn contains(&mut self, key: Key, contained: Vec<u64>, by_node: bool) {
        for object in &contained {
            let entry = self.entry((key.0, *object));
            entry.holds += 1;
            entry.held += u32::from(by_node);
        }
        let entry = self.entry(key);
        (entry.contains, entry.is_known) = (contained, true);
    }

    /// The node says what a value contains, and if it was `wanted` has this worker hold each of that once more. The value of
    /// an object may come again as another one, that was made anew: what is here stays what it was.
    pub(super) fn delivered(&mut self, key: Key, contained: Vec<u64>, wanted: bool, is_new: bool) {
        let entry = self.entry(key);
        if entry.is_known && entry.contains == contained {
            let times = u32::from(wanted);
            return contained.iter().for_each(|object| self.entry((key.0, *object)).held += times);
        }
        let unneeded = if is_new || !entry.is_known {
            let before = std::mem::take(&mut entry.contains);
            self.contains(key, contained, wanted);
            before
        } else {
            for object in &contained {
                let entry = self.entry((key.0, *object));
                entry.holds += 1;
                entry.held += u32::from(wanted);
            }
            contained
        };
        unneeded.into_iter().for_each(|object| self.release((key.0, object)));
    }

    /// The node has lent a file.
    pub(super) fn lend(&mut self, file: u64, key: Key, value: &Arc<Value>) {
        self.lent.insert(file, (key, value.clone()));
    }

    /// A file that was lent before.
    pub(super) fn lent(&self, file: u64) -> Option<Arc<Value>> {
        self.lent.get(&file).map(|(_, value)| value.clone())
    }

    /// The node wants a file forgotten. Who wants its value asks for it again.
    pub(super) fn forget(&mut self, file: u64) {
        let Some((key, value)) = self.lent.remove(&file) else { return };
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.value.as_ref().is_some_and(|own| Arc::ptr_eq(own, &value))
        {
            (entry.value, entry.wanted) = (None, false);
        }
        self.leaving.push((file, Arc::downgrade(&value)));
    }

    /// Files that were forgotten and that no task has in use any more.
    pub(super) fn forgotten(&mut self) -> impl Iterator<Item = u64> + use<> {
        let gone = self.leaving.extract_if(.., |(_, value)| value.strong_count() == 0);
        gone.map(|(file, _)| file).collect::<Vec<_>>().into_iter()
    }

    /// What the value of an object contains.
    pub(super) fn contained(&self, key: Key) -> &[u64] {
        self.entries.get(&key).map_or(&[], |entry| &entry.contains)
    }

    /// A task holds or needs it no more. Who is not held by anybody is forgotten, with what only that contained.
    pub(super) fn release(&mut self, key: Key) {
        let mut left = vec![key.1];
        while let Some(object) = left.pop() {
            let key = (key.0, object);
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            entry.holds = entry.holds.saturating_sub(1);
            if entry.holds > 0 {
                continue;
            }
            if let Some(entry) = self.entries.remove(&key) {
                if entry.held > 0 {
                    self.gone.push((object, entry.held));
                }
                left.extend(entry.contains);
            }
        }
    }

    /// Its value has come. Gives who waits for it; none if nobody here wants it any more.
    pub(super) fn arrived(&mut self, key: Key, value: Arc<Value>) -> Vec<(Slot, u64)> {
        let entry = self.entry(key);
        entry.value = Some(value);
        std::mem::take(&mut entry.waiters)
    }
}
