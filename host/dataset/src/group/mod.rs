//! Grouping rows for many models.
//!
//! Training needs all rows of a group in one place and no order among groups:
//! so rows are not sorted and not inserted into one big table. Each block of
//! rows is scattered to 512 partitions by the hash of its keys, one pass; then
//! each partition, which fits a cache, finds its groups and puts every row in
//! its final place, one more pass. Neighbouring partitions of few rows are taken
//! together, up to a unit's worth. A hundred groups and ten million cost about
//! the same. Blocks can be cut in other processes, where rows come to be. What does
//! not fit the memory budget goes to disk between the passes, and no step depends
//! on which thread or block a row came through: blocks are put in the order of
//! their morsels again before groups are made.

mod block;
mod block_builder;
mod block_codec;
mod columns;
mod group_ids;
mod hash;
mod keys;
mod partition;
mod region;
mod rows;
mod spill;
mod unit;

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use arrow_schema::SchemaRef;

use block::Block;
pub use block::MorselGrouper;
pub use block_codec::{BlockWriter, FinishedBlock};
use columns::Columns;
pub use columns::to_float64;
pub use keys::describe_key;
pub use partition::Partitions;
pub use unit::{FailedGroup, HeapUnitMemory, UnitGroup, UnitMemory, UnitShape, WorkUnit};

use crate::DatasetError;

/// Bytes of a block: as much as still lies in a cache when its rows have come
/// and are scattered. Twice as much takes twice the time (measured).
const BLOCK_BYTES: usize = 4 << 20;

/// Rows of a block, at least, however small the memory budget.
const BLOCK_ROWS_MIN: usize = 1 << 10;

/// Blocks that the memory budget is to hold.
const BLOCKS_MIN: usize = 32;

/// Rows of a block, where blocks may take so many bytes together.
fn block_rows(columns: &Columns, bytes_max: usize) -> usize {
    let bytes = BLOCK_BYTES.min(bytes_max / BLOCKS_MIN).saturating_sub(block_codec::HEADER_WORDS * 8);
    (bytes / (columns.row_cells() * 8)).max(BLOCK_ROWS_MIN)
}

/// How rows are grouped, and how groups are handed out.
#[derive(Debug, Clone)]
pub struct Grouping {
    /// The columns whose values, taken together, name a group: numbers,
    /// booleans, strings, binaries, dates, times, decimals. None is one group.
    pub keys: Vec<String>,
    /// The columns a model computes from: numbers, booleans, dates (as days)
    /// and timestamps (as seconds).
    pub features: Vec<String>,
    /// The column a model computes, of the same types.
    pub target: String,
    /// Whether rows of different files are of different groups.
    pub per_file: bool,
    /// The share of each group's rows that is kept for testing, from 0 to
    /// less than 1, rounded up. Groups of two rows and more have at least one
    /// row for training, and one for testing unless the share is 0.
    pub test: f64,
    /// What the choice of test rows depends on, beside the group.
    pub seed: u64,
    /// Groups of fewer rows are skipped.
    pub min_rows: u32,
    /// Bytes of a unit, about: a larger group is a unit by itself.
    pub unit_bytes: usize,
}

impl Default for Grouping {
    fn default() -> Self {
        Grouping {
            keys: Vec::new(),
            features: Vec::new(),
            target: String::new(),
            per_file: false,
            test: 0.25,
            seed: 0,
            min_rows: 1,
            unit_bytes: 4 << 20,
        }
    }
}

/// How much memory grouping may use before it goes to disk.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    /// Bytes of grouped rows that stay in memory. Beside them each
    /// [`MorselGrouper`] holds about 8 MiB.
    pub bytes_max: usize,
    /// The folder of spill files. They have no names, and vanish with the process.
    pub spill_dir: PathBuf,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        MemoryBudget { bytes_max: 1 << 30, spill_dir: std::env::temp_dir() }
    }
}

/// Collects the rows of all morsels. Clones share the rows.
#[derive(Clone)]
pub struct Grouper {
    shared: Arc<GrouperShared>,
}

pub(crate) struct GrouperShared {
    grouping: Grouping,
    columns: Arc<Columns>,
    /// The names of the files, for [`Grouping::per_file`].
    files: Vec<String>,
    budget: MemoryBudget,
    block_rows: usize,
    state: Mutex<GrouperState>,
    /// Told when memory was freed.
    freed: Condvar,
}

#[derive(Default)]
struct GrouperState {
    blocks: Vec<Block>,
    spilled: Vec<Block>,
    /// Bytes of blocks in memory, those being written included.
    resident: usize,
    spilled_bytes: u64,
    spilling: bool,
    failed: bool,
    finished: bool,
}

impl Grouper {
    /// Checks the columns of `grouping` against `schema`, that of the batches
    /// to come. `files` are the names of the files that morsels refer to by
    /// index; they are part of a group's key, and of its seed, when groups are
    /// per file.
    pub fn new(
        grouping: Grouping,
        schema: &SchemaRef,
        files: Vec<String>,
        budget: MemoryBudget,
    ) -> Result<Grouper, DatasetError> {
        let columns = Arc::new(Columns::new(&grouping, schema)?);
        let block_rows = block_rows(&columns, budget.bytes_max);
        let (state, freed) = (Mutex::default(), Condvar::new());
        Ok(Grouper { shared: Arc::new(GrouperShared { grouping, columns, files, budget, block_rows, state, freed }) })
    }

    /// Whether rows can come as the blocks of a [`BlockWriter`]: when the key is one column of a number, or none.
    pub fn accepts_blocks(&self) -> bool {
        block_codec::is_supported(&self.shared.columns)
    }

    /// Begins a morsel: `sequence` says where its rows belong among those of
    /// all morsels, and `file` which file they are from. Several morsels may
    /// be taken in at once, each on its own thread.
    pub fn morsel(&self, sequence: u64, file: usize) -> Result<MorselGrouper, DatasetError> {
        if self.shared.grouping.per_file && file >= self.shared.files.len() {
            return Err(DatasetError::internal(format!("file {file} of {} files", self.shared.files.len())));
        }
        MorselGrouper::new(Arc::clone(&self.shared), sequence, file as u32)
    }

    /// Bytes in memory now, and bytes that were written to disk so far.
    pub fn usage(&self) -> (usize, u64) {
        let state = self.shared.lock();
        (state.resident, state.spilled_bytes)
    }

    /// Ends the taking in: every morsel must be finished.
    pub fn finish(self) -> Result<Partitions, DatasetError> {
        let mut state = self.shared.lock();
        state.finished = true;
        let mut blocks = std::mem::take(&mut state.blocks);
        blocks.append(&mut state.spilled);
        drop(state);
        Ok(Partitions::new(self.shared, blocks))
    }
}

impl GrouperShared {
    /// Rows of a unit, unless it is one larger group.
    fn unit_rows(&self) -> usize {
        (self.grouping.unit_bytes / (size_of::<f64>() * self.columns.names.len())).max(1)
    }

    fn lock(&self) -> MutexGuard<'_, GrouperState> {
        // A panic elsewhere leaves the state as it was between two statements
        // that can't panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a block in, and makes room where there is none.
    fn add(&self, block: Block) -> Result<(), DatasetError> {
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
        // Half is written, so that the others can go on meanwhile. They fill
        // what is left, and wait if the disk is slower than they are.
        state.spilling = true;
        let mut spill_bytes = 0;
        let mut spill_count = 0;
        while spill_count < state.blocks.len() && (spill_count == 0 || spill_bytes < self.budget.bytes_max / 2) {
            spill_bytes += state.blocks[spill_count].bytes;
            spill_count += 1;
        }
        let mut blocks: Vec<Block> = state.blocks.drain(..spill_count).collect();
        drop(state);
        let written = spill::spill(&mut blocks, &self.budget.spill_dir);
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
