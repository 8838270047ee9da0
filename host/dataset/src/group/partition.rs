//! The partitions of all rows, each of which becomes units on its own.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::SchemaRef;

use super::Shared;
use super::assign::{Piece, assign};
use super::block::{Block, NULL_SLOT, Place, SLOTS};
use super::unit::{Unit, UnitMemory, UnitShape, units_of};
use crate::DatasetError;

/// What one block has for a partition, wherever it is.
struct Part {
    file: u32,
    finite: bool,
    rows: u32,
    place: Place,
}

/// All rows, by partition.
pub struct Partitions {
    shared: Arc<Shared>,
    /// Emptied as partitions are consumed, which frees their memory.
    parts: Vec<Mutex<Vec<Part>>>,
    rows: u64,
}

impl Partitions {
    pub(super) fn new(shared: Arc<Shared>, mut blocks: Vec<Block>) -> Self {
        let per_file = shared.grouping.per_file;
        blocks.sort_by_key(|b| (if per_file { b.file } else { 0 }, b.sequence, b.number));
        let mut parts: Vec<Vec<Part>> = (0..SLOTS).map(|_| Vec::new()).collect();
        let mut rows = 0;
        for block in blocks {
            let file = if per_file { block.file } else { 0 };
            for slice in block.slices {
                rows += u64::from(slice.rows);
                let part = Part { file, finite: block.finite, rows: slice.rows, place: slice.place };
                parts[usize::from(slice.slot)].push(part);
            }
        }
        Partitions { shared, parts: parts.into_iter().map(Mutex::new).collect(), rows }
    }

    /// How many partitions there are, the same for every job.
    #[allow(clippy::len_without_is_empty, reason = "there are always as many")]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Rows of all partitions.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows of a partition that was not consumed yet.
    pub fn rows_of(&self, partition: usize) -> u64 {
        let parts = self.parts[partition].lock().unwrap_or_else(PoisonError::into_inner);
        parts.iter().map(|p| u64::from(p.rows)).sum()
    }

    /// The columns of units: features, then the target.
    pub fn schema(&self) -> &SchemaRef {
        &self.shared.columns.output
    }

    /// The groups of a partition, in units, each in memory that `reserve` gives
    /// for it. Consumes the partition: a second call gives none. Several
    /// partitions may be asked for at once.
    ///
    /// # Panics
    ///
    /// If there is no such partition, or memory has less room than its unit takes.
    pub fn units<M: UnitMemory, E: From<DatasetError>>(
        &self,
        partition: usize,
        reserve: impl FnMut(&UnitShape) -> Result<M, E>,
    ) -> Result<Vec<Unit<M>>, E> {
        let parts = std::mem::take(&mut *self.parts[partition].lock().unwrap_or_else(PoisonError::into_inner));
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        let pieces = self.load(parts)?;
        let columns = &self.shared.columns;
        let groups = assign(&pieces, &columns.kind, columns.row_words())?;
        let key_is_null = partition == NULL_SLOT;
        units_of(groups, pieces, &self.shared, key_is_null, reserve)
    }

    /// Brings the parts of a partition to memory: those that were spilled to
    /// one file lie there side by side and take one read.
    fn load(&self, parts: Vec<Part>) -> Result<Vec<Piece>, DatasetError> {
        let folder = &self.shared.budget.spill_dir;
        let mut regions: Vec<(Arc<super::spill::SpillFile>, u64, u64, Buffer)> = Vec::new();
        for part in &parts {
            let Place::Disk { file, at, words, bytes } = &part.place else { continue };
            let end = at + (words * 8 + bytes) as u64;
            match regions.iter_mut().find(|r| Arc::ptr_eq(&r.0, file)) {
                Some(region) => (region.1, region.2) = (region.1.min(*at), region.2.max(end)),
                None => regions.push((Arc::clone(file), *at, end, Buffer::from_vec(Vec::<u64>::new()))),
            }
        }
        for (file, from, end, buffer) in &mut regions {
            *buffer = file.read(*from, (*end - *from) as usize, folder)?;
        }
        let piece = |part: Part| {
            let (words, bytes) = match part.place {
                Place::Memory { words, bytes } => (words, bytes),
                Place::Disk { file, at, words, bytes } => {
                    let region = regions.iter().find(|r| Arc::ptr_eq(&r.0, &file));
                    let (from, buffer) =
                        region.map(|r| (r.1, &r.3)).ok_or_else(|| DatasetError::internal("a lost spill file"))?;
                    let at = (at - from) as usize;
                    (ScalarBuffer::new(buffer.clone(), at / 8, words), buffer.slice_with_length(at + words * 8, bytes))
                }
            };
            Ok(Piece { file: part.file, finite: part.finite, rows: part.rows as usize, words, bytes })
        };
        parts.into_iter().map(piece).collect()
    }
}
