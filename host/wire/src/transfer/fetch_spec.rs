//! Parameters and statistics of a fetch.

use std::fmt;
use std::sync::Arc;

use sandbar_core::{NodeId, ObjectId};

use super::{FailedHolders, Holder, HolderFinder, Priority, RootHash};

/// Parameters of a fetch.
#[derive(Clone)]
pub struct FetchSpec {
    /// The object.
    pub object: ObjectId,
    /// Its length in bytes, as announced by its owner.
    pub bytes: u64,
    /// Its hash, as announced by its owner.
    pub root: RootHash,
    /// Its holders, best first.
    pub holders: Vec<Holder>,
    /// The priority.
    pub priority: Priority,
    /// Finds more holders when these have failed.
    pub finder: Option<Arc<dyn HolderFinder>>,
}

impl fmt::Debug for FetchSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("FetchSpec");
        fields.field("object", &self.object).field("bytes", &self.bytes).field("root", &self.root);
        fields.field("holders", &self.holders).field("priority", &self.priority).finish_non_exhaustive()
    }
}

/// Statistics of a fetch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FetchReport {
    /// Bytes received from each holder, including hashes and discarded data.
    pub from: Vec<(NodeId, u64)>,
    /// Dropped holders and the reasons.
    pub failed: FailedHolders,
    /// Pieces taken over from a slow holder.
    pub stolen: u64,
}
