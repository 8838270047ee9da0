//! Conversions between our types and etcd's messages. In etcd all keys of a store have its prefix.

use bytes::Bytes;

use super::messages::{
    Compare, CompareResult, CompareTarget, CompareValue, DeleteRangeRequest, Event, EventType, KeyValue, PutRequest,
    RequestKind, RequestOp, ResponseHeader, ResponseKind, ResponseOp, TxnRequest,
};
use crate::key::end_of_prefix;
use crate::{
    Change, CompareOp, Condition, Entry, KEY_BYTES_MAX, Key, KeyRange, LeaseId, MetaValue, Operation, OperationResult,
    Predicate, Revision, Transaction,
};

/// The prefix of all keys of a store. ASCII and not empty, so that keys after all prefixed ones exist.
#[derive(Debug, Clone)]
pub(super) struct Prefix(pub(super) String);

impl Prefix {
    pub(super) fn key(&self, key: &Key) -> Bytes {
        self.join(key.as_bytes())
    }

    /// Returns start and end of a range in etcd.
    pub(super) fn span(&self, span: &KeyRange) -> (Bytes, Bytes) {
        if span.is_empty() {
            // etcd rejects some empty ranges. This is a single key, longer than any valid key.
            return (self.join(&[0; KEY_BYTES_MAX + 1]), Bytes::new());
        }
        let end = match span.end() {
            Some(end) => self.join(end),
            None => end_of_prefix(self.0.as_bytes()).unwrap_or_default().into(),
        };
        (self.join(span.start()), end)
    }

    fn join(&self, bytes: &[u8]) -> Bytes {
        [self.0.as_bytes(), bytes].concat().into()
    }

    /// Strips the prefix. Returns `None` for keys that others put under the prefix and that are not valid.
    fn strip(&self, key: &Bytes) -> Option<Key> {
        key.starts_with(self.0.as_bytes()).then(|| Key::new(key.slice(self.0.len()..)).ok()).flatten()
    }

    pub(super) fn entry(&self, kv: KeyValue) -> Option<Entry> {
        Some(Entry {
            key: self.strip(&kv.key)?,
            value: MetaValue::new(kv.value),
            create_revision: Revision(unsigned(kv.create_revision)),
            mod_revision: Revision(unsigned(kv.mod_revision)),
            version: unsigned(kv.version),
            lease: (kv.lease != 0).then(|| LeaseId(unsigned(kv.lease))),
        })
    }

    /// Returns the revision of an event, and the change, unless its key is not valid.
    pub(super) fn change(&self, event: Event) -> (Revision, Option<Change>) {
        let kind = event.kind();
        let kv = event.kv.unwrap_or_default();
        let revision = Revision(unsigned(kv.mod_revision));
        let change = match kind {
            EventType::Put => self.entry(kv).map(Change::Put),
            EventType::Delete => self.strip(&kv.key).map(|key| Change::Deleted { key, revision }),
        };
        (revision, change)
    }

    pub(super) fn transaction(&self, transaction: &Transaction) -> TxnRequest {
        let operations = |all: &[Operation]| all.iter().map(|operation| self.operation(operation)).collect();
        TxnRequest {
            compare: transaction.conditions.iter().map(|condition| self.condition(condition)).collect(),
            success: operations(&transaction.then),
            failure: operations(&transaction.otherwise),
        }
    }

    fn condition(&self, condition: &Condition) -> Compare {
        let (is, target, than) = match &condition.test {
            Predicate::Version(is, than) => (is, CompareTarget::Version, CompareValue::Version(signed(*than))),
            Predicate::CreateRevision(is, than) => {
                (is, CompareTarget::Create, CompareValue::CreateRevision(signed(than.0)))
            }
            Predicate::ModRevision(is, than) => (is, CompareTarget::Mod, CompareValue::ModRevision(signed(than.0))),
            Predicate::Value(is, than) => {
                (is, CompareTarget::Value, CompareValue::Value(Bytes::copy_from_slice(than.as_bytes())))
            }
        };
        let result = match is {
            CompareOp::Equal => CompareResult::Equal,
            CompareOp::NotEqual => CompareResult::NotEqual,
            CompareOp::Greater => CompareResult::Greater,
            CompareOp::Less => CompareResult::Less,
        };
        Compare { result: result.into(), target: target.into(), key: self.key(&condition.key), than: Some(than) }
    }

    fn operation(&self, operation: &Operation) -> RequestOp {
        let request = match operation {
            Operation::Put { key, value, lease } => RequestKind::Put(PutRequest {
                key: self.key(key),
                value: Bytes::copy_from_slice(value.as_bytes()),
                lease: lease.map_or(0, |lease| signed(lease.0)),
            }),
            Operation::Delete(span) => {
                let (key, range_end) = self.span(span);
                RequestKind::Delete(DeleteRangeRequest { key, range_end })
            }
        };
        RequestOp { request: Some(request) }
    }
}

pub(super) fn outcome(response: ResponseOp) -> OperationResult {
    match response.response {
        Some(ResponseKind::Delete(deleted)) => OperationResult::Deleted(unsigned(deleted.deleted)),
        Some(ResponseKind::Put(_)) | None => OperationResult::Put,
    }
}

pub(super) fn revision(header: Option<ResponseHeader>) -> Revision {
    Revision(header.map_or(0, |header| unsigned(header.revision)))
}

/// Converts a number of etcd, which is never negative.
pub(super) fn unsigned(number: i64) -> u64 {
    number.try_into().unwrap_or(0)
}

/// Converts to a number of etcd. Larger numbers map to the maximum, which no counter reaches.
pub(super) fn signed(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
