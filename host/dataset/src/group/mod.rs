//! Partitioned grouping of rows for many models.
//!
//! Training needs all rows of a group together, but groups in no particular order. So rows are neither sorted nor
//! inserted into one large hash table. The first pass scatters each block of rows to 512 partitions by the hash of the
//! keys. The second pass finds the groups of each partition, which fits a cache, and copies every row to its final
//! position. Small neighbouring partitions are combined up to the size of a work unit. A hundred groups and ten million
//! cost about the same.
//!
//! Blocks can be built in worker processes, where rows are produced. Blocks over the memory budget are spilled to disk
//! between the passes. The result does not depend on which thread or block a row came through: blocks are sorted into
//! the order of their morsels before groups are formed.

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

/// Maximum bytes of a block: its rows should still be cached when they are scattered. Twice the size takes twice the
/// time (measured).
const BLOCK_BYTES: usize = 4 << 20;

/// Minimum rows of a block, however small the memory budget.
const BLOCK_ROWS_MIN: usize = 1 << 10;

/// Minimum number of blocks that fit the memory budget.
const BLOCKS_MIN: usize = 32;

/// Returns the maximum rows of a block when all blocks share `bytes_max` bytes.
fn block_rows(columns: &Columns, bytes_max: usize) -> usize {
    let bytes = BLOCK_BYTES.min(bytes_max / BLOCKS_MIN).saturating_sub(block_codec::HEADER_WORDS * 8);
    (bytes / (columns.row_cells() * 8)).max(BLOCK_ROWS_MIN)
}

/// Options of grouping.
#[derive(Debug, Clone)]
pub struct Grouping {
    /// Key columns, whose values together identify a group: numbers, booleans, strings, binaries, dates, times or
    /// decimals. Without keys all rows are one group.
    pub keys: Vec<String>,
    /// Feature columns: numbers, booleans, dates (as days) and timestamps (as seconds).
    pub features: Vec<String>,
    /// Target column, of the same types as features.
    pub target: String,
    /// Whether the file is part of the key.
    pub per_file: bool,
    /// Fraction of each group's rows for testing, in [0, 1), rounded up. Groups of two or more rows keep at least one
    /// training row, and at least one test row unless the fraction is 0.
    pub test: f64,
    /// Seed that, with the group's key, determines the test rows.
    pub seed: u64,
    /// Minimum rows of a group; smaller groups are skipped.
    pub min_rows: u32,
    /// Approximate bytes of a work unit. A larger group is a unit of its own.
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

/// Memory limit of grouping and the location of spill files.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    /// Maximum bytes of grouped rows in memory. Each [`MorselGrouper`] holds about 8 MiB in addition.
    pub bytes_max: usize,
    /// Folder of spill files. Spill files are unnamed and vanish with the process.
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
    /// File names, for [`Grouping::per_file`].
    files: Vec<String>,
    budget: MemoryBudget,
    block_rows: usize,
    state: Mutex<GrouperState>,
    /// Notified when memory was freed.
    freed: Condvar,
}

#[derive(Default)]
struct GrouperState {
    blocks: Vec<Block>,
    spilled: Vec<Block>,
    /// Bytes of blocks in memory, including blocks being spilled.
    resident: usize,
    spilled_bytes: u64,
    spilling: bool,
    failed: bool,
    finished: bool,
}

impl Grouper {
    /// Checks the columns of `grouping` against `schema`, the schema of the batches to come. `files` are the names of
    /// the files that morsels refer to by index. With [`Grouping::per_file`] the name is part of a group's key and of
    /// its seed.
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

    /// Returns whether rows can arrive as blocks of a [`BlockWriter`]: with one key column of at most eight bytes, or
    /// no key.
    pub fn accepts_blocks(&self) -> bool {
        block_codec::is_supported(&self.shared.columns)
    }

    /// Starts a morsel. `sequence` is its position among all morsels, `file` the index of its file. Several morsels can
    /// be open at once, each on its own thread.
    pub fn morsel(&self, sequence: u64, file: usize) -> Result<MorselGrouper, DatasetError> {
        if self.shared.grouping.per_file && file >= self.shared.files.len() {
            return Err(DatasetError::internal(format!("file {file} of {} files", self.shared.files.len())));
        }
        MorselGrouper::new(Arc::clone(&self.shared), sequence, file as u32)
    }

    /// Returns the bytes in memory now and the bytes spilled to disk so far.
    pub fn usage(&self) -> (usize, u64) {
        let state = self.shared.lock();
        (state.resident, state.spilled_bytes)
    }

    /// Ends the collection. Every morsel must be finished.
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
    /// Returns the maximum rows of a unit that holds more than one group.
    fn unit_rows(&self) -> usize {
        (self.grouping.unit_bytes / (size_of::<f64>() * self.columns.names.len())).max(1)
    }

    fn lock(&self) -> MutexGuard<'_, GrouperState> {
        // A panic on another thread can't leave the state inconsistent: no statement that changes it panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a block, and spills blocks when memory is nearly used up.
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
