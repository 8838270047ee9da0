//! Collection of the rows of all morsels.

use std::sync::Arc;

use arrow_schema::SchemaRef;

use super::block_codec::{block_rows, is_supported};
use super::columns::Columns;
use super::grouping::Grouping;
use super::morsel_grouper::MorselGrouper;
use super::partition::Partitions;
use super::row_store::{MemoryBudget, RowStore};
use crate::DatasetError;

/// Collects the rows of all morsels. Clones share the rows.
#[derive(Clone)]
pub struct Grouper {
    shared: Arc<RowStore>,
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
        Ok(Grouper { shared: Arc::new(RowStore::new(grouping, columns, files, budget, block_rows)) })
    }

    /// Returns whether rows can arrive as blocks of a [`BlockWriter`](crate::BlockWriter): with one key column of at
    /// most eight bytes, or no key.
    pub fn accepts_blocks(&self) -> bool {
        is_supported(&self.shared.columns)
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
        self.shared.usage()
    }

    /// Ends the collection. Every morsel must be finished.
    pub fn finish(self) -> Result<Partitions, DatasetError> {
        let blocks = self.shared.finish();
        Ok(Partitions::new(self.shared, blocks))
    }
}
