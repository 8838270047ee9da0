//! Blocks of rows sorted by partition.

use std::sync::Arc;

use arrow_buffer::Buffer;

use super::hash::PARTITIONS;
use super::rows::RowLayout;
use super::spill_file::SpillFile;

/// Partitions of a block: the hash partitions, and one for rows whose whole key is null.
pub(super) const SLOTS: usize = PARTITIONS + 1;

/// Partition of rows whose only key is null.
pub(super) const NULL_SLOT: usize = PARTITIONS;

/// Block of rows. Its slices are in memory or in a spill file.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) sequence: u64,
    pub(super) number: u32,
    pub(super) file: u32,
    /// Whether each feature and target value is a finite number.
    pub(super) finite: bool,
    pub(super) layout: RowLayout,
    /// Non-empty partitions, in ascending order.
    pub(super) slices: Vec<BlockSlice>,
    pub(super) bytes: usize,
}

/// Rows of one partition in one block.
#[derive(Debug, Clone)]
pub(super) struct BlockSlice {
    pub(super) slot: u16,
    pub(super) rows: u32,
    pub(super) location: SliceLocation,
}

/// Location of a slice's rows and key bytes.
#[derive(Debug, Clone)]
pub(super) enum SliceLocation {
    Memory {
        rows: Buffer,
        keys: Buffer,
    },
    /// `rows` bytes of rows at `at`, followed, at the next multiple of eight, by `keys` bytes of keys.
    Disk {
        file: Arc<SpillFile>,
        at: u64,
        rows: usize,
        keys: usize,
    },
}
