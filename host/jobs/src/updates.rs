//! Notification of the followers of a running job.

use std::sync::Arc;

use tokio::sync::watch;

/// Notifies followers in this process that the log or the progress of a running job has changed. Clones notify the same
/// followers.
#[derive(Debug, Clone, Default)]
pub struct JobUpdates(Arc<watch::Sender<()>>);

impl JobUpdates {
    /// Returns a receiver of later changes. Several changes may be received as one.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }

    pub(crate) fn notify(&self) {
        // A later subscriber reads the current state first.
        if self.0.receiver_count() > 0 {
            self.0.send_replace(());
        }
    }
}
