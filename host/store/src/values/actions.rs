//! Actions that the value store decides on and its owner performs.

use sandbar_core::WorkerId;

use super::reuse::WriterAction;
use super::value::ValueKey;
use crate::disk::DiskTask;

/// An action that the store's owner performs.
#[derive(Debug)]
pub enum StoreAction {
    /// Tell a worker to forget a value's file.
    Forget(WorkerId, ValueKey),
    /// Instruct a writer about its memory of this number.
    Writer(WorkerId, u32, WriterAction),
    /// Run a disk task.
    Disk(DiskTask),
}
