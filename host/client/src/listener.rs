//! Deliveries of the node to a job.

use std::sync::{Arc, OnceLock, Weak};

use sandbar_core::ObjectId;
use sandbar_node::ClientListener;

use crate::job_state::JobState;
use crate::table::{Outcome, ReleasedObjects, Table};

/// Receives the node's deliveries and puts them in the table.
#[derive(Debug, Default)]
pub(crate) struct TableListener {
    pub(crate) table: Arc<Table>,
    /// The job. The node delivers nothing before it is set.
    pub(crate) job: OnceLock<Weak<JobState>>,
}

impl TableListener {
    /// Releases objects whose handles were dropped before their delivery.
    fn release_all(&self, released: ReleasedObjects) {
        if let Some(job) = self.job.get().and_then(Weak::upgrade).filter(|_| !released.is_empty()) {
            job.release_all(released);
        }
    }
}

impl ClientListener for TableListener {
    fn delivered(&self, object: ObjectId, outcome: Outcome, contains: Vec<ObjectId>) {
        self.release_all(self.table.add_delivery(object, outcome, contains));
    }

    fn item(&self, stream: ObjectId, item: ObjectId, outcome: Option<Outcome>, contains: Vec<ObjectId>) {
        self.release_all(self.table.add_item(stream, item, outcome, contains));
    }

    fn flush(&self) {
        self.table.wake();
    }

    fn ended(&self) {
        self.table.end();
    }
}
