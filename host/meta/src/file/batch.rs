//! Execution of several requests in one transaction of the file.

use redb::{ReadableTable as _, ReadableTableMetadata as _, Table, WriteTransaction};

use super::record;
use super::schema::{self, ATTACHED, ENTRIES, HISTORY, LEASES, META, StoreCounters, StoreFile};
use super::write_request::{WriteRequest, WriteResponse};
use crate::change_log::{ChangeLog, Commit};
use crate::{
    Change, Entry, GrantResponse, KeyRange, LeaseId, MetaError, MetaLimits, Operation, OperationResult, Revision,
    RevokeResponse, TransactResponse, Transaction,
};

/// The open tables of a write transaction.
pub(super) struct Batch<'t> {
    file: &'t StoreFile,
    limits: &'t MetaLimits,
    meta: Table<'t, &'static str, u64>,
    entries: Table<'t, &'static [u8], &'static [u8]>,
    history: Table<'t, u64, &'static [u8]>,
    leases: Table<'t, u64, u32>,
    attached: Table<'t, (u64, &'static [u8]), ()>,
    numbers: StoreCounters,
    /// Whether anything must be committed.
    is_changed: bool,
    commits: Vec<Commit>,
}

impl<'t> Batch<'t> {
    pub(super) fn new(
        file: &'t StoreFile,
        limits: &'t MetaLimits,
        write: &'t WriteTransaction,
    ) -> Result<Batch<'t>, MetaError> {
        let tables = || {
            let meta = write.open_table(META)?;
            let numbers = StoreCounters::read(&meta)?;
            Ok::<_, redb::Error>(Batch {
                file,
                limits,
                meta,
                entries: write.open_table(ENTRIES)?,
                history: write.open_table(HISTORY)?,
                leases: write.open_table(LEASES)?,
                attached: write.open_table(ATTACHED)?,
                numbers,
                is_changed: false,
                commits: Vec::new(),
            })
        };
        tables().map_err(|e| file.fault("write", e))
    }

    /// Executes a request. The outer error is the file's; it aborts the transaction.
    pub(super) fn execute(&mut self, request: &WriteRequest) -> Result<Result<WriteResponse, MetaError>, MetaError> {
        match request {
            WriteRequest::Transact(transaction) => Ok(self.transact(transaction)?.map(WriteResponse::Transact)),
            WriteRequest::Grant(ttl_s) => Ok(self.grant(*ttl_s)?.map(WriteResponse::Grant)),
            WriteRequest::Revoke(lease) => {
                let existed = self.end_lease(*lease)?;
                let revoked = RevokeResponse { revision: self.numbers.revision };
                Ok(if existed {
                    Ok(WriteResponse::Revoke(*lease, revoked))
                } else {
                    Err(MetaError::LeaseNotFound(*lease))
                })
            }
            WriteRequest::ExpireLeases => Ok(Ok(WriteResponse::Expired)),
        }
    }

    /// Ends a lease. Returns whether it existed.
    pub(super) fn end_lease(&mut self, lease: LeaseId) -> Result<bool, MetaError> {
        if self.leases.remove(lease.0).map_err(|e| self.file.fault("write", e))?.is_none() {
            return Ok(false);
        }
        self.is_changed = true;
        let revision = self.numbers.revision.next();
        let mut changes = Vec::new();
        for key in self.attached_to(lease)? {
            if let Some(entry) = schema::entry(self.file, &self.entries, &key)? {
                self.delete(entry, revision, &mut changes)?;
            }
        }
        self.commit(changes)?;
        Ok(true)
    }

    /// Writes the batch's counters and compacts the history. Returns the changes, or `None` if nothing must be
    /// committed.
    pub(super) fn finish(mut self, log: &ChangeLog) -> Result<Option<Vec<Commit>>, MetaError> {
        if !self.is_changed {
            return Ok(None);
        }
        self.numbers.compacted = log.compacted_by(&self.commits);
        let file = self.file;
        let mut write = || {
            while self.history.first()?.is_some_and(|(first, _)| first.value() <= self.numbers.compacted.0) {
                self.history.pop_first()?;
            }
            self.numbers.write(&mut self.meta)
        };
        write().map_err(|e| file.fault("write", e))?;
        Ok(Some(self.commits))
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<Result<TransactResponse, MetaError>, MetaError> {
        let mut succeeded = true;
        for condition in &transaction.conditions {
            let entry = schema::entry(self.file, &self.entries, condition.key.as_bytes())?;
            succeeded = succeeded && condition.holds(entry.as_ref());
        }
        let operations = if succeeded { &transaction.then } else { &transaction.otherwise };
        if let Err(refused) = self.check(operations)? {
            return Ok(Err(refused));
        }
        let revision = self.numbers.revision.next();
        let (mut outcomes, mut changes) = (Vec::with_capacity(operations.len()), Vec::new());
        for operation in operations {
            outcomes.push(match operation {
                Operation::Put { key, value, lease } => {
                    let before = schema::entry(self.file, &self.entries, key.as_bytes())?;
                    let entry = Entry {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision: before.as_ref().map_or(revision, |before| before.create_revision),
                        mod_revision: revision,
                        version: before.as_ref().map_or(0, |before| before.version) + 1,
                        lease: *lease,
                    };
                    self.put(entry, before, &mut changes)?;
                    OperationResult::Put
                }
                Operation::Delete(span) => OperationResult::Deleted(self.delete_all(span, revision, &mut changes)?),
            });
        }
        self.commit(changes)?;
        Ok(Ok(TransactResponse { revision: self.numbers.revision, succeeded, outcomes }))
    }

    /// Validates all operations before any is applied.
    fn check(&self, operations: &[Operation]) -> Result<Result<(), MetaError>, MetaError> {
        let mut put = 0;
        for operation in operations {
            let Operation::Put { key, value, lease } = operation else { continue };
            put += (key.as_bytes().len() + value.as_bytes().len()) as u64;
            if let Some(lease) = lease
                && self.leases.get(lease.0).map_err(|e| self.file.fault("read", e))?.is_none()
            {
                return Ok(Err(MetaError::LeaseNotFound(*lease)));
            }
        }
        Ok(self.limits.check_space(self.numbers.bytes, put))
    }

    fn put(&mut self, entry: Entry, before: Option<Entry>, changes: &mut Vec<Change>) -> Result<(), MetaError> {
        let bytes = record::encode_entry(&entry).map_err(|e| self.file.damaged(e))?;
        self.entries.insert(entry.key.as_bytes(), &*bytes).map_err(|e| self.file.fault("write", e))?;
        if let Some(before) = before {
            self.numbers.bytes = self.numbers.bytes.saturating_sub(before.bytes() as u64);
            self.detach(&before)?;
        }
        self.numbers.bytes += entry.bytes() as u64;
        if let Some(lease) = entry.lease {
            let attached = self.attached.insert((lease.0, entry.key.as_bytes()), ());
            attached.map_err(|e| self.file.fault("write", e))?;
        }
        changes.push(Change::Put(entry));
        Ok(())
    }

    fn delete_all(&mut self, span: &KeyRange, revision: Revision, changes: &mut Vec<Change>) -> Result<u64, MetaError> {
        let entries = schema::entries(self.file, &self.entries, span)?.collect::<Result<Vec<_>, _>>()?;
        let count = entries.len() as u64;
        for entry in entries {
            self.delete(entry, revision, changes)?;
        }
        Ok(count)
    }

    fn delete(&mut self, entry: Entry, revision: Revision, changes: &mut Vec<Change>) -> Result<(), MetaError> {
        self.entries.remove(entry.key.as_bytes()).map_err(|e| self.file.fault("write", e))?;
        self.numbers.bytes = self.numbers.bytes.saturating_sub(entry.bytes() as u64);
        self.detach(&entry)?;
        changes.push(Change::Deleted { key: entry.key, revision });
        Ok(())
    }

    fn detach(&mut self, entry: &Entry) -> Result<(), MetaError> {
        if let Some(lease) = entry.lease {
            let detached = self.attached.remove((lease.0, entry.key.as_bytes()));
            detached.map_err(|e| self.file.fault("write", e))?;
        }
        Ok(())
    }

    fn attached_to(&self, lease: LeaseId) -> Result<Vec<Vec<u8>>, MetaError> {
        let read = || {
            let mut keys = Vec::new();
            for row in self.attached.range((lease.0, &[][..])..)? {
                let (row, ()) = row.map(|(row, unit)| (row, unit.value()))?;
                let (row_lease, key) = row.value();
                if row_lease != lease.0 {
                    break;
                }
                keys.push(key.to_vec());
            }
            Ok::<_, redb::Error>(keys)
        };
        read().map_err(|e| self.file.fault("read", e))
    }

    fn grant(&mut self, ttl_s: u32) -> Result<Result<GrantResponse, MetaError>, MetaError> {
        let count = self.leases.len().map_err(|e| self.file.fault("read", e))?;
        if let Err(refused) = self.limits.check_lease(ttl_s, usize::try_from(count).unwrap_or(usize::MAX)) {
            return Ok(Err(refused));
        }
        let lease = LeaseId(self.numbers.next_lease);
        self.numbers.next_lease += 1;
        self.is_changed = true;
        self.leases.insert(lease.0, ttl_s).map_err(|e| self.file.fault("write", e))?;
        Ok(Ok(GrantResponse { revision: self.numbers.revision, lease, ttl_s }))
    }

    /// Assigns a revision to changes, if there are any.
    fn commit(&mut self, changes: Vec<Change>) -> Result<(), MetaError> {
        if changes.is_empty() {
            return Ok(());
        }
        let revision = self.numbers.revision.next();
        let bytes = record::encode_changes(revision, &changes).map_err(|e| self.file.damaged(e))?;
        self.history.insert(revision.0, &*bytes).map_err(|e| self.file.fault("write", e))?;
        self.numbers.revision = revision;
        self.is_changed = true;
        self.commits.push(changes.into());
        Ok(())
    }
}
