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
mod grouper;
mod grouping;
mod hash;
mod keys;
mod morsel_grouper;
mod partition;
mod region;
mod row_store;
mod rows;
mod spill;
mod spill_file;
mod unit;

pub use block_codec::{BlockWriter, FinishedBlock};
pub use columns::to_float64;
pub use grouper::Grouper;
pub use grouping::Grouping;
pub use keys::describe_key;
pub use morsel_grouper::MorselGrouper;
pub use partition::Partitions;
pub use row_store::MemoryBudget;
pub use unit::{FailedGroup, HeapUnitMemory, UnitGroup, UnitMemory, UnitShape, WorkUnit};
