//! Partitions of all rows, each of which is converted to work units on its own.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;

use super::block::{Block, NULL_SLOT, SLOTS, SliceLocation};
use super::group_ids::{LoadedSlice, assign};
use super::row_store::RowStore;
use super::rows::RowLayout;
use super::spill_file::SpillFile;
use super::unit::{UnitMemory, UnitShape, WorkUnit, build_units};
use crate::DatasetError;

/// Rows of a partition in one block, in memory or in a spill file.
struct PartitionSlice {
    file: u32,
    sequence: u64,
    finite: bool,
    layout: RowLayout,
    rows: u32,
    location: SliceLocation,
}

/// All rows, by partition.
pub struct Partitions {
    shared: Arc<RowStore>,
    partitions: Vec<Partition>,
}

/// Neighbouring slots whose rows together fit a unit, or a single slot.
struct Partition {
    rows: u64,
    /// Whether this is the partition of rows whose only key is null.
    key_is_null: bool,
    /// Slices of each slot. Consuming the partition empties the list and frees the memory.
    slots: Mutex<Vec<Vec<PartitionSlice>>>,
}

impl Partitions {
    pub(super) fn new(shared: Arc<RowStore>, mut blocks: Vec<Block>) -> Self {
        let per_file = shared.grouping.per_file;
        blocks.sort_by_key(|b| (if per_file { b.file } else { 0 }, b.sequence, b.number));
        let mut parts = vec![0; SLOTS];
        blocks.iter().flat_map(|block| &block.slices).for_each(|slice| parts[usize::from(slice.slot)] += 1);
        let mut slots: Vec<Vec<PartitionSlice>> = parts.into_iter().map(Vec::with_capacity).collect();
        for block in blocks {
            let file = if per_file { block.file } else { 0 };
            for slice in block.slices {
                let Block { sequence, finite, layout, .. } = block;
                let part =
                    PartitionSlice { file, sequence, finite, layout, rows: slice.rows, location: slice.location };
                slots[usize::from(slice.slot)].push(part);
            }
        }
        let unit_rows = shared.unit_rows() as u64;
        let mut partitions: Vec<Partition> = Vec::new();
        for (slot, parts) in slots.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty()) {
            let rows = parts.iter().map(|p| u64::from(p.rows)).sum();
            let key_is_null = slot == NULL_SLOT;
            match partitions.last_mut().filter(|last| last.rows + rows <= unit_rows && !key_is_null) {
                Some(last) => {
                    last.rows += rows;
                    last.slots.get_mut().unwrap_or_else(PoisonError::into_inner).push(parts);
                }
                None => partitions.push(Partition { rows, key_is_null, slots: Mutex::new(vec![parts]) }),
            }
        }
        Partitions { shared, partitions }
    }

    /// Returns the number of partitions.
    pub fn len(&self) -> usize {
        self.partitions.len()
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Returns the rows of a partition, consumed or not.
    pub fn rows_of(&self, partition: usize) -> u64 {
        self.partitions[partition].rows
    }

    /// Returns the approximate rows of a unit. A partition with more rows has a single slot.
    pub fn unit_rows(&self) -> u64 {
        self.shared.unit_rows() as u64
    }

    /// Returns the schema of units: features, then the target.
    pub fn schema(&self) -> &SchemaRef {
        &self.shared.columns.output
    }

    /// Returns the groups of a partition as units, each in memory that `reserve` provides. Consumes the partition: a
    /// second call returns none. Several partitions can be read concurrently.
    ///
    /// # Panics
    ///
    /// If the partition does not exist, or the memory is smaller than its unit.
    pub fn units<M: UnitMemory, E: From<DatasetError>>(
        &self,
        partition: usize,
        reserve: impl FnMut(&UnitShape) -> Result<M, E>,
    ) -> Result<Vec<WorkUnit<M>>, E> {
        let partition = &self.partitions[partition];
        let slots = std::mem::take(&mut *partition.slots.lock().unwrap_or_else(PoisonError::into_inner));
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        let mut slices = Vec::new();
        for parts in slots {
            slices.extend(self.load(parts)?);
        }
        // The sort is stable: within a file slots stay in order, which keeps the working set small.
        slices.sort_by_key(|slice| slice.file);
        let columns = &self.shared.columns;
        let groups = assign(&slices, &columns.kind, columns.row_cells(), partition.key_is_null)?;
        build_units(groups, slices, &self.shared, partition.key_is_null, reserve)
    }

    /// Loads the slices of a slot into memory. Slices in one spill file are adjacent there and take one read.
    fn load(&self, parts: Vec<PartitionSlice>) -> Result<Vec<LoadedSlice>, DatasetError> {
        let folder = &self.shared.budget.spill_dir;
        let mut regions: Vec<SpillRegion> = Vec::new();
        for part in &parts {
            let SliceLocation::Disk { file, at, rows, keys } = &part.location else { continue };
            let end = at + (rows.next_multiple_of(8) + keys) as u64;
            match regions.iter_mut().find(|region| Arc::ptr_eq(&region.file, file)) {
                Some(region) => (region.first, region.end) = (region.first.min(*at), region.end.max(end)),
                None => {
                    let bytes = Buffer::from_vec(Vec::<u64>::new());
                    regions.push(SpillRegion { file: Arc::clone(file), first: *at, end, bytes });
                }
            }
        }
        for SpillRegion { file, first, end, bytes } in &mut regions {
            *bytes = file.read(*first, (*end - *first) as usize, folder)?;
        }
        let slice = |part: PartitionSlice| {
            let (cells, keys) = match part.location {
                SliceLocation::Memory { rows, keys } => (rows, keys),
                SliceLocation::Disk { file, at, rows, keys } => {
                    let region = regions.iter().find(|region| Arc::ptr_eq(&region.file, &file));
                    let region = region.ok_or_else(|| DatasetError::internal("a lost spill file"))?;
                    let at = (at - region.first) as usize;
                    let keys = region.bytes.slice_with_length(at + rows.next_multiple_of(8), keys);
                    (region.bytes.slice_with_length(at, rows), keys)
                }
            };
            let PartitionSlice { file, sequence, finite, layout, rows, .. } = part;
            Ok(LoadedSlice { file, sequence, finite, layout, rows: rows as usize, cells, keys })
        };
        parts.into_iter().map(slice).collect()
    }
}

/// The part of a spill file that a slot's slices take, and its bytes once they are read.
struct SpillRegion {
    file: Arc<SpillFile>,
    first: u64,
    end: u64,
    bytes: Buffer,
}
