//! Records by place: memory in pieces that never move, so that growing costs neither a copy nor slack.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use crate::places::Place;

const PIECE: usize = 1 << 10;

/// Records, each at a place of its own until it is removed.
#[derive(Debug)]
pub(crate) struct Slab<P, T> {
    pieces: Vec<Box<[Option<T>; PIECE]>>,
    /// Places that were given before.
    free: Vec<u32>,
    /// The first place that was never given.
    fresh: u32,
    place: PhantomData<P>,
}

impl<P: Place, T> Slab<P, T> {
    pub(crate) fn new() -> Slab<P, T> {
        Slab { pieces: Vec::new(), free: Vec::new(), fresh: 0, place: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.fresh as usize - self.free.len()
    }

    #[inline]
    pub(crate) fn insert(&mut self, record: T) -> P {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        self.pieces[index as usize / PIECE][index as usize % PIECE] = Some(record);
        P::of(index)
    }

    fn grow(&mut self) -> u32 {
        let index = self.fresh;
        assert!(index < u32::MAX - 1, "no host has memory for as many records");
        if index as usize / PIECE == self.pieces.len() {
            let piece: Box<[Option<T>]> = (0..PIECE).map(|_| None).collect();
            let Ok(piece) = piece.try_into() else { unreachable!("a piece has its length") };
            self.pieces.push(piece);
        }
        self.fresh += 1;
        index
    }

    #[inline]
    pub(crate) fn remove(&mut self, place: P) -> Option<T> {
        let record = self.pieces[place.index() / PIECE][place.index() % PIECE].take()?;
        self.free.push(place.index() as u32);
        Some(record)
    }

    #[inline]
    pub(crate) fn get(&self, place: P) -> Option<&T> {
        self.pieces.get(place.index() / PIECE)?[place.index() % PIECE].as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, place: P) -> Option<&mut T> {
        self.pieces.get_mut(place.index() / PIECE)?[place.index() % PIECE].as_mut()
    }

    /// By place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (P, &T)> {
        let records = self.pieces.iter().flat_map(|piece| piece.iter());
        (0..self.fresh).zip(records).filter_map(|(index, record)| Some((P::of(index), record.as_ref()?)))
    }

    /// Gives memory back, once nothing is left.
    pub(crate) fn shrink(&mut self) {
        if self.len() == 0 {
            *self = Slab::new();
        }
    }
}

/// A place that someone keeps is one where something lies.
impl<P: Place, T> Index<P> for Slab<P, T> {
    type Output = T;

    #[inline]
    fn index(&self, place: P) -> &T {
        match &self.pieces[place.index() / PIECE][place.index() % PIECE] {
            Some(record) => record,
            None => unreachable!("nothing lies at {}", place.index()),
        }
    }
}

impl<P: Place, T> IndexMut<P> for Slab<P, T> {
    #[inline]
    fn index_mut(&mut self, place: P) -> &mut T {
        match &mut self.pieces[place.index() / PIECE][place.index() % PIECE] {
            Some(record) => record,
            None => unreachable!("nothing lies at {}", place.index()),
        }
    }
}
