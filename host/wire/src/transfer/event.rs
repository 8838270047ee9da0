//! Events of fetches, for the application's accounting of holders.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use sandbar_core::{NodeId, ObjectId};
use tokio::sync::mpsc;

use super::HolderError;

/// An event of a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferEvent {
    /// A holder sent wrong bytes, which were discarded unread.
    BadChunk {
        /// The holder.
        holder: NodeId,
        /// The object.
        object: ObjectId,
        /// Byte range in the object.
        range: Range<u64>,
    },
    /// A holder was dropped.
    HolderDropped {
        /// The holder.
        holder: NodeId,
        /// The object.
        object: ObjectId,
        /// The reason.
        error: HolderError,
    },
}

/// Sender of events. Events that the channel has no room for are dropped and counted.
#[derive(Debug, Default)]
pub(crate) struct EventSender {
    to: Option<mpsc::Sender<TransferEvent>>,
    lost: AtomicU64,
}

impl EventSender {
    pub(crate) fn new(to: Option<mpsc::Sender<TransferEvent>>) -> EventSender {
        EventSender { to, lost: AtomicU64::new(0) }
    }

    pub(crate) fn send(&self, event: TransferEvent) {
        if self.to.as_ref().is_some_and(|to| to.try_send(event).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
