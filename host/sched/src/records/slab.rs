//! A slab: records by key, in chunks that never move, so that growth neither copies nor over-allocates.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use crate::records::keys::SlabKey;

const CHUNK_LEN: usize = 1 << 10;

/// Records, each under its own key until it is removed.
#[derive(Debug)]
pub(crate) struct Slab<P, T> {
    chunks: Vec<Box<[Option<T>; CHUNK_LEN]>>,
    /// Keys of removed records, for reuse.
    free: Vec<u32>,
    /// Number of keys ever used.
    next_unused: u32,
    key: PhantomData<P>,
}

impl<P: SlabKey, T> Slab<P, T> {
    pub(crate) fn new() -> Slab<P, T> {
        Slab { chunks: Vec::new(), free: Vec::new(), next_unused: 0, key: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.next_unused as usize - self.free.len()
    }

    #[inline]
    pub(crate) fn insert(&mut self, record: T) -> P {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        self.chunks[index as usize / CHUNK_LEN][index as usize % CHUNK_LEN] = Some(record);
        P::from_index(index)
    }

    fn grow(&mut self) -> u32 {
        let index = self.next_unused;
        assert!(index < u32::MAX - 1, "no host has memory for as many records");
        if index as usize / CHUNK_LEN == self.chunks.len() {
            let chunk: Box<[Option<T>]> = (0..CHUNK_LEN).map(|_| None).collect();
            let Ok(chunk) = chunk.try_into() else { unreachable!("a chunk has its length") };
            self.chunks.push(chunk);
        }
        self.next_unused += 1;
        index
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: P) -> Option<T> {
        let record = self.chunks[key.index() / CHUNK_LEN][key.index() % CHUNK_LEN].take()?;
        self.free.push(key.index() as u32);
        Some(record)
    }

    #[inline]
    pub(crate) fn get(&self, key: P) -> Option<&T> {
        self.chunks.get(key.index() / CHUNK_LEN)?[key.index() % CHUNK_LEN].as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: P) -> Option<&mut T> {
        self.chunks.get_mut(key.index() / CHUNK_LEN)?[key.index() % CHUNK_LEN].as_mut()
    }

    /// Iterates over the records in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (P, &T)> {
        let records = self.chunks.iter().flat_map(|chunk| chunk.iter());
        (0..self.next_unused).zip(records).filter_map(|(index, record)| Some((P::from_index(index), record.as_ref()?)))
    }

    /// Frees memory if no record is left.
    pub(crate) fn shrink(&mut self) {
        if self.len() == 0 {
            *self = Slab::new();
        }
    }
}

/// Keys that the scheduler keeps refer to existing records.
impl<P: SlabKey, T> Index<P> for Slab<P, T> {
    type Output = T;

    #[inline]
    fn index(&self, key: P) -> &T {
        match &self.chunks[key.index() / CHUNK_LEN][key.index() % CHUNK_LEN] {
            Some(record) => record,
            None => unreachable!("no record has key {}", key.index()),
        }
    }
}

impl<P: SlabKey, T> IndexMut<P> for Slab<P, T> {
    #[inline]
    fn index_mut(&mut self, key: P) -> &mut T {
        match &mut self.chunks[key.index() / CHUNK_LEN][key.index() % CHUNK_LEN] {
            Some(record) => record,
            None => unreachable!("no record has key {}", key.index()),
        }
    }
}

/// Lets a table be indexed by the keys of its slab, the field `records`.
macro_rules! index_records {
    ([$($parameter:ident)?] $table:ty, $key:ty => $record:ty) => {
        impl<$($parameter)?> std::ops::Index<$key> for $table {
            type Output = $record;

            #[inline]
            fn index(&self, at: $key) -> &$record {
                &self.records[at]
            }
        }

        impl<$($parameter)?> std::ops::IndexMut<$key> for $table {
            #[inline]
            fn index_mut(&mut self, at: $key) -> &mut $record {
                &mut self.records[at]
            }
        }
    };
}

pub(crate) use index_records;
