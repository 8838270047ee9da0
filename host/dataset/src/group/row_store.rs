//! Rows of all morsels, as blocks in memory and in spill files.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::block::Block;
use super::columns::Columns;
use super::grouping::Grouping;
use super::spill::spill;
use crate::DatasetError;

/// Memory limit of grouping and the location of spill files.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    /// Maximum bytes of grouped rows in memory. Each [`MorselGrouper`](crate::MorselGrouper) holds about 8 MiB in
    /// addition.
    pub bytes_max: usize,
    /// Folder of spill files. Spill files are unnamed and vanish with the process.
    pub spill_dir: PathBuf,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        MemoryBudget { bytes_max: 1 << 30, spill_dir: std::env::temp_dir() }
    }
}

/// Rows that a grouper, its morsels and its partitions share.
pub(super) struct RowStore {
    pub(super) grouping: Grouping,
    pub(super) columns: Arc<Columns>,
    /// File names, for [`Grouping::per_file`].
    pub(super) files: Vec<String>,
    pub(super) budget: MemoryBudget,
    pub(super) block_rows: usize,
    state: Mutex<StoredBlocks>,
    /// Notified when memory was freed.
    freed: Condvar,
}

#[derive(Default)]
struct StoredBlocks {
    blocks: Vec<Block>,
    spilled: Vec<Block>,
    /// Bytes of blocks in memory, including blocks being spilled.
    resident: usize,
    spilled_bytes: u64,
    spilling: bool,
    failed: bool,
    finished: bool,
}

impl RowStore {
    pub(super) fn new(
        grouping: Grouping,
        columns: Arc<Columns>,
        files: Vec<String>,
        budget: MemoryBudget,
        block_rows: usize,
    ) -> RowStore {
        RowStore { grouping, columns, files, budget, block_rows, state: Mutex::default(), freed: Condvar::new() }
    }

    /// Returns the maximum rows of a unit that holds more than one group.
    pub(super) fn unit_rows(&self) -> usize {
        (self.grouping.unit_bytes / (size_of::<f64>() * self.columns.names.len())).max(1)
    }

    fn lock(&self) -> MutexGuard<'_, StoredBlocks> {
        // A panic on another thread can't leave the state inconsistent: no statement that changes it panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes in memory now and the bytes spilled to disk so far.
    pub(super) fn usage(&self) -> (usize, u64) {
        let state = self.lock();
        (state.resident, state.spilled_bytes)
    }

    /// Ends the collection and returns all blocks.
    pub(super) fn finish(&self) -> Vec<Block> {
        let mut state = self.lock();
        state.finished = true;
        let mut blocks = std::mem::take(&mut state.blocks);
        blocks.append(&mut state.spilled);
        blocks
    }

    /// Adds a block, and spills blocks when memory is nearly used up.
    pub(super) fn add(&self, block: Block) -> Result<(), DatasetError> {
        let mut state = self.lock();
        while state.spilling && state.resident + block.bytes > self.budget.bytes_max && !state.failed {
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.finished {
            return Err(DatasetError::internal("a morsel was not finished before the grouping was"));
        }
        state.resident += block.bytes;
        state.blocks.push(block);
        if state.spilling || state.failed || state.resident <= self.budget.bytes_max / 8 * 7 {
            return Ok(());
        }
        // Half of the budget is spilled, so that other threads can fill the rest meanwhile. They wait if the disk is
        // slower than they are.
        state.spilling = true;
        let mut spill_bytes = 0;
        let mut spill_count = 0;
        while spill_count < state.blocks.len() && (spill_count == 0 || spill_bytes < self.budget.bytes_max / 2) {
            spill_bytes += state.blocks[spill_count].bytes;
            spill_count += 1;
        }
        let mut blocks: Vec<Block> = state.blocks.drain(..spill_count).collect();
        drop(state);
        let written = spill(&mut blocks, &self.budget.spill_dir);
        let mut state = self.lock();
        state.spilling = false;
        state.resident -= spill_bytes;
        state.spilled_bytes += spill_bytes as u64;
        state.failed |= written.is_err();
        state.spilled.append(&mut blocks);
        self.freed.notify_all();
        written
    }
}
