//! The reference semantics of a store, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Included, Unbounded};
use std::time::Duration;

use crate::change_log::Commit;
use crate::leases::Leases;
use crate::{
    Change, Entry, EntryPage, Key, KeyRange, LeaseId, MetaError, MetaLimits, Operation, OperationResult, Revision,
    TransactResponse, Transaction,
};

/// The state of a store, except for history and watchers.
#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) revision: Revision,
    pub(super) entries: BTreeMap<Key, Entry>,
    pub(super) leases: Leases,
    /// Keys of each lease that has keys.
    attached: BTreeMap<LeaseId, BTreeSet<Key>>,
    next_lease: u64,
    /// Bytes of all keys and values.
    bytes: u64,
    limits: MetaLimits,
}

impl StoreState {
    pub(super) fn new(limits: MetaLimits) -> StoreState {
        StoreState {
            revision: Revision::FIRST,
            entries: BTreeMap::new(),
            leases: Leases::default(),
            attached: BTreeMap::new(),
            next_lease: 1,
            bytes: 0,
            limits,
        }
    }

    pub(super) fn range(&self, span: &KeyRange, limit: usize) -> EntryPage {
        let mut page = EntryPage { revision: self.revision, entries: Vec::new(), next: None };
        let entries_max = self.limits.page_entries(limit);
        let mut bytes = 0;
        for entry in self.entries_in(span) {
            bytes += entry.bytes();
            let is_full = page.entries.len() == entries_max || bytes > self.limits.page_bytes_max;
            if is_full && !page.entries.is_empty() {
                page.next = Some(entry.key.clone());
                break;
            }
            page.entries.push(entry.clone());
        }
        page
    }

    /// Executes a transaction. Returns the response, and the changes if there are any.
    pub(super) fn transact(
        &mut self,
        transaction: &Transaction,
    ) -> Result<(TransactResponse, Option<Commit>), MetaError> {
        let succeeded =
            transaction.conditions.iter().all(|condition| condition.holds(self.entries.get(&condition.key)));
        let operations = if succeeded { &transaction.then } else { &transaction.otherwise };
        self.check(operations)?;
        let revision = self.revision.next();
        let mut changes = Vec::new();
        let outcomes = operations.iter().map(|operation| self.apply(operation, revision, &mut changes)).collect();
        let commit = self.commit(changes);
        Ok((TransactResponse { revision: self.revision, succeeded, outcomes }, commit))
    }

    pub(super) fn begin_lease(&mut self, ttl_s: u32, now: Duration) -> LeaseId {
        let lease = LeaseId(self.next_lease);
        self.next_lease += 1;
        self.leases.begin(lease, ttl_s, now);
        lease
    }

    pub(super) fn end_lease(&mut self, lease: LeaseId) -> Option<Commit> {
        self.leases.end(lease);
        let keys = self.attached.remove(&lease).unwrap_or_default();
        let revision = self.revision.next();
        let mut changes = Vec::new();
        keys.iter().for_each(|key| self.delete(key, revision, &mut changes));
        self.commit(changes)
    }

    /// Validates all operations before any is applied.
    fn check(&self, operations: &[Operation]) -> Result<(), MetaError> {
        let mut put = 0;
        for operation in operations {
            if let Operation::Put { key, value, lease } = operation {
                if let Some(lease) = lease.filter(|lease| !self.leases.contains(*lease)) {
                    return Err(MetaError::LeaseNotFound(lease));
                }
                put += (key.as_bytes().len() + value.as_bytes().len()) as u64;
            }
        }
        self.limits.check_space(self.bytes, put)
    }

    fn apply(&mut self, operation: &Operation, revision: Revision, changes: &mut Vec<Change>) -> OperationResult {
        match operation {
            Operation::Put { key, value, lease } => {
                let before = self.entries.get(key);
                let entry = Entry {
                    key: key.clone(),
                    value: value.clone(),
                    create_revision: before.map_or(revision, |before| before.create_revision),
                    mod_revision: revision,
                    version: before.map_or(0, |before| before.version) + 1,
                    lease: *lease,
                };
                self.remove(key);
                self.bytes += entry.bytes() as u64;
                if let Some(lease) = lease {
                    self.attached.entry(*lease).or_default().insert(key.clone());
                }
                self.entries.insert(key.clone(), entry.clone());
                changes.push(Change::Put(entry));
                OperationResult::Put
            }
            Operation::Delete(span) => {
                let keys: Vec<Key> = self.entries_in(span).map(|entry| entry.key.clone()).collect();
                keys.iter().for_each(|key| self.delete(key, revision, changes));
                OperationResult::Deleted(keys.len() as u64)
            }
        }
    }

    fn delete(&mut self, key: &Key, revision: Revision, changes: &mut Vec<Change>) {
        self.remove(key);
        changes.push(Change::Deleted { key: key.clone(), revision });
    }

    fn remove(&mut self, key: &Key) {
        let Some(entry) = self.entries.remove(key) else { return };
        self.bytes -= entry.bytes() as u64;
        if let Some(lease) = entry.lease
            && let Some(keys) = self.attached.get_mut(&lease)
        {
            keys.remove(key);
        }
    }

    fn commit(&mut self, changes: Vec<Change>) -> Option<Commit> {
        if changes.is_empty() {
            return None;
        }
        self.revision = self.revision.next();
        Some(changes.into())
    }

    fn entries_in(&self, span: &KeyRange) -> impl Iterator<Item = &Entry> {
        let all = self.entries.range::<[u8], _>((Included(span.start()), Unbounded));
        all.map(|(_, entry)| entry).take_while(|entry| span.contains(&entry.key))
    }
}
