//! Watches that fail over to other members.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::sleep;
use tonic::Streaming;

use super::connection::EtcdConnection;
use super::convert::{revision, signed, unsigned};
use super::messages::{WatchCreateRequest, WatchResponse};
use super::rpc;
use super::status::{Failure, failure};
use super::timeouts::Backoff;
use crate::{Change, KeyRange, LimitKind, MetaError, Revision, Watcher};

/// Counts one watcher until it is dropped.
#[derive(Debug)]
pub(super) struct WatcherSlot(Arc<AtomicUsize>);

impl WatcherSlot {
    pub(super) fn take(taken: &Arc<AtomicUsize>, max: usize) -> Result<WatcherSlot, MetaError> {
        let slot = WatcherSlot(taken.clone());
        match taken.fetch_add(1, Ordering::Relaxed) {
            before if before < max => Ok(slot),
            before => Err(MetaError::limit(LimitKind::Watchers, before + 1, max)),
        }
    }
}

impl Drop for WatcherSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) struct EtcdWatcher {
    shared: Arc<EtcdConnection>,
    _slot: WatcherSlot,
    /// Start and end of the range in etcd.
    first_key: Bytes,
    range_end: Bytes,
    /// All changes by transactions before this revision have arrived.
    next: Revision,
    /// Changes of a transaction that is still incomplete.
    partial: Vec<Change>,
    /// Changes of complete transactions, to be delivered.
    ready: VecDeque<Change>,
    stream: Option<(usize, Streaming<WatchResponse>)>,
    was_lost: bool,
    /// Permanent error of the watch.
    ended: Option<MetaError>,
}

impl EtcdWatcher {
    pub(super) fn new(shared: Arc<EtcdConnection>, slot: WatcherSlot, span: &KeyRange, from: Revision) -> EtcdWatcher {
        let (first_key, range_end) = shared.prefix.span(span);
        EtcdWatcher {
            shared,
            _slot: slot,
            first_key,
            range_end,
            next: from.max(Revision::FIRST),
            partial: Vec::new(),
            ready: VecDeque::new(),
            stream: None,
            was_lost: false,
            ended: None,
        }
    }

    /// Opens the watch at any member, from the current position.
    pub(super) async fn open(&mut self) -> Result<(), MetaError> {
        if std::mem::take(&mut self.was_lost) {
            sleep(self.shared.members.pause(&mut Backoff::new(&self.shared.members.times))).await;
        }
        let request = WatchCreateRequest {
            key: self.first_key.clone(),
            range_end: self.range_end.clone(),
            // Starts one revision earlier than needed: for the very revision of a compaction, etcd returns puts but may
            // have lost deletes. Starting before it returns the compaction error instead.
            start_revision: signed(self.next.0.saturating_sub(1).max(1)),
            progress_notify: true,
            fragment: true,
        };
        let (at, (stream, created)) = self.shared.members.watch(|channel| rpc::watch(channel, request.clone())).await?;
        self.partial.clear();
        self.stream = Some((at, stream));
        self.take(at, created)
    }

    /// Handles a response of a member.
    fn take(&mut self, at: usize, response: WatchResponse) -> Result<(), MetaError> {
        if response.compact_revision > 0 {
            let compacted = Revision(unsigned(response.compact_revision));
            return Err(self.end(MetaError::Compacted { from: self.next, compacted }));
        }
        if response.canceled && response.created {
            let endpoint = self.shared.members.name(at).to_owned();
            return Err(self.end(MetaError::Refused { endpoint, reason: response.cancel_reason }));
        }
        if response.canceled {
            self.lose();
            return Ok(());
        }
        let is_progress = response.events.is_empty() && !response.created && !response.fragment;
        if is_progress && self.partial.is_empty() {
            // Progress notifications advance the position of watches on keys that seldom change, so that fail-over does
            // not start from a compacted revision.
            self.next = self.next.max(revision(response.header).next());
        }
        for event in response.events {
            let (revision, change) = self.shared.prefix.change(event);
            if revision < self.next {
                continue;
            }
            if self.partial.first().is_some_and(|first| first.revision() < revision) {
                self.complete();
            }
            self.partial.extend(change);
        }
        if !response.fragment {
            self.complete();
        }
        self.check_size()
    }

    /// Marks the partial transaction as complete.
    fn complete(&mut self) {
        if let Some(last) = self.partial.last() {
            self.next = last.revision().next();
        }
        self.ready.extend(self.partial.drain(..));
    }

    /// A transaction can delete any number of keys.
    fn check_size(&mut self) -> Result<(), MetaError> {
        let bytes: usize = self.partial.iter().map(Change::bytes).sum();
        match self.partial.first() {
            Some(first) if bytes > self.shared.limits.history_bytes_max => {
                let compacted = first.revision();
                Err(self.end(MetaError::Compacted { from: self.next, compacted }))
            }
            _ => Ok(()),
        }
    }

    fn lose(&mut self) {
        if let Some((at, _)) = self.stream.take() {
            self.shared.members.leave(at);
        }
        self.was_lost = true;
    }

    fn end(&mut self, error: MetaError) -> MetaError {
        self.stream = None;
        self.ended = Some(error.clone());
        error
    }

    /// Returns complete transactions, up to the limits of a page.
    fn page(&mut self) -> Vec<Change> {
        let limits = &self.shared.limits;
        let (mut page, mut bytes, mut end) = (0, 0, 0);
        for (i, change) in self.ready.iter().enumerate() {
            let is_first = i == 0 || self.ready[i - 1].revision() != change.revision();
            if is_first {
                end = i;
            }
            (page, bytes) = (page + 1, bytes + change.bytes());
            if (page > limits.page_entries_max || bytes > limits.page_bytes_max) && end > 0 {
                return self.ready.drain(..end).collect();
            }
        }
        self.ready.drain(..).collect()
    }
}

#[async_trait]
impl Watcher for EtcdWatcher {
    async fn next(&mut self) -> Result<Vec<Change>, MetaError> {
        loop {
            if !self.ready.is_empty() {
                return Ok(self.page());
            }
            if let Some(error) = &self.ended {
                return Err(error.clone());
            }
            let Some((at, stream)) = &mut self.stream else {
                self.open().await?;
                continue;
            };
            let at = *at;
            match stream.message().await {
                Ok(Some(response)) => self.take(at, response)?,
                Ok(None) => self.lose(),
                Err(status) => match failure(&status, self.shared.members.name(at), None) {
                    Failure::Final(error) => return Err(self.end(error)),
                    Failure::Maybe(_) | Failure::NotDone(_) => self.lose(),
                },
            }
        }
    }

    fn position(&self) -> Revision {
        self.ready.front().map_or(self.next, Change::revision)
    }
}

impl fmt::Debug for EtcdWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdWatcher({:?}..{:?} from {})", self.first_key, self.range_end, self.position())
    }
}
