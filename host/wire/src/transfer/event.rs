//! What happens while objects are fetched, for whoever keeps account of holders.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use sandbar_core::{NodeId, ObjectId};
use tokio::sync::mpsc;

use super::HolderError;

/// Something that happened while an object was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferEvent {
    /// A holder sent wrong bytes. They were seen by nobody.
    BadChunk {
        /// Who.
        holder: NodeId,
        /// Of which object.
        object: ObjectId,
        /// Which bytes of it.
        range: Range<u64>,
    },
    /// A holder was given up.
    HolderGone {
        /// Who.
        holder: NodeId,
        /// For which object.
        object: ObjectId,
        /// Why.
        error: HolderError,
    },
}

/// Where events go. A receiver that does not keep up loses some, which are counted.
#[derive(Debug, Default)]
pub(crate) struct Events {
    to: Option<mpsc::Sender<TransferEvent>>,
    lost: AtomicU64,
}

impl Events {
    pub(crate) fn to(to: Option<mpsc::Sender<TransferEvent>>) -> Events {
        Events { to, lost: AtomicU64::new(0) }
    }

    pub(crate) fn tell(&self, event: TransferEvent) {
        if self.to.as_ref().is_some_and(|to| to.try_send(event).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
