//! State that a store shares with its tasks.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use redb::Database;
use tokio::sync::Notify;

use super::schema::StoreFile;
use crate::change_log::ChangeLog;
use crate::leases::Leases;
use crate::{Clock, MetaError, MetaLimits};

#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) file: StoreFile,
    pub(super) database: Database,
    pub(super) limits: MetaLimits,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) leases: Mutex<Leases>,
    /// Signals that the next expiry time may have changed.
    pub(super) leases_changed: Notify,
    pub(super) log: Arc<ChangeLog>,
    /// Error after which the store rejects all writes.
    pub(super) fatal_error: OnceLock<MetaError>,
}

impl StoreState {
    pub(super) fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
