//! Transactions: conditions, and operations for both outcomes of the conditions.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Entry, Key, KeyRange, LeaseId, LimitKind, MetaError, MetaLimits, MetaValue, Revision};

/// An atomic and isolated set of operations. All of its changes get one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// Conditions that must all hold for `then`.
    pub conditions: Vec<Condition>,
    /// Operations to run in order if all conditions hold.
    pub then: Vec<Operation>,
    /// Operations to run in order if any condition fails.
    pub otherwise: Vec<Operation>,
}

impl Transaction {
    /// Creates an empty transaction.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// Adds a condition.
    pub fn when(mut self, condition: Condition) -> Transaction {
        self.conditions.push(condition);
        self
    }

    /// Adds an operation for the case that the conditions hold.
    pub fn then(mut self, operation: Operation) -> Transaction {
        self.then.push(operation);
        self
    }

    /// Adds an operation for the case that a condition fails.
    pub fn otherwise(mut self, operation: Operation) -> Transaction {
        self.otherwise.push(operation);
        self
    }

    /// Validates the transaction against a store's limits.
    ///
    /// # Errors
    /// [`MetaError::Limit`] for too many operations or too large values, [`MetaError::DuplicateKey`] for a key that one
    /// branch puts twice, or puts and deletes.
    pub fn check(&self, limits: &MetaLimits) -> Result<(), MetaError> {
        for count in [self.conditions.len(), self.then.len(), self.otherwise.len()] {
            if count > limits.operations_max {
                return Err(MetaError::limit(LimitKind::Operations, count, limits.operations_max));
            }
        }
        let values = self.values().map(|value| value.as_bytes().len());
        if let Some(large) = values.clone().find(|bytes| *bytes > limits.value_bytes_max) {
            return Err(MetaError::limit(LimitKind::ValueBytes, large, limits.value_bytes_max));
        }
        let bytes = values.sum::<usize>() + self.key_bytes();
        if bytes > limits.transaction_bytes_max {
            return Err(MetaError::limit(LimitKind::TransactionBytes, bytes, limits.transaction_bytes_max));
        }
        check_branch(&self.then)?;
        check_branch(&self.otherwise)
    }

    /// Whether the transaction changes nothing.
    pub(crate) fn is_read(&self) -> bool {
        self.then.is_empty() && self.otherwise.is_empty()
    }

    /// Returns the first lease that an operation names.
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        self.operations().find_map(|operation| match operation {
            Operation::Put { lease, .. } => *lease,
            Operation::Delete(_) => None,
        })
    }

    fn operations(&self) -> impl Iterator<Item = &Operation> + Clone {
        self.then.iter().chain(&self.otherwise)
    }

    fn values(&self) -> impl Iterator<Item = &MetaValue> + Clone {
        let compared = self.conditions.iter().filter_map(|condition| match &condition.test {
            Predicate::Value(_, value) => Some(value),
            _ => None,
        });
        compared.chain(self.operations().filter_map(|operation| match operation {
            Operation::Put { value, .. } => Some(value),
            Operation::Delete(_) => None,
        }))
    }

    fn key_bytes(&self) -> usize {
        let of_operations = self.operations().map(|operation| match operation {
            Operation::Put { key, .. } => key.as_bytes().len(),
            Operation::Delete(span) => span.start().len() + span.end().map_or(0, <[u8]>::len),
        });
        let of_conditions = self.conditions.iter().map(|condition| condition.key.as_bytes().len());
        of_conditions.sum::<usize>() + of_operations.sum::<usize>()
    }
}

/// Enforces etcd's rule: a key has one version per revision, so that a transaction must not put it twice, or put and
/// delete it.
fn check_branch(operations: &[Operation]) -> Result<(), MetaError> {
    let mut put = BTreeSet::new();
    for operation in operations {
        if let Operation::Put { key, .. } = operation
            && !put.insert(key)
        {
            return Err(MetaError::DuplicateKey(key.clone()));
        }
    }
    for operation in operations {
        if let Operation::Delete(span) = operation
            && let Some(key) = put.iter().find(|key| span.contains(key))
        {
            return Err(MetaError::DuplicateKey((*key).clone()));
        }
    }
    Ok(())
}

/// A condition on one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The key.
    pub key: Key,
    /// Required predicate.
    pub test: Predicate,
}

/// A comparison of a field of an entry with a constant. The numbers of a missing key are zero, and no comparison of its
/// value holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Predicate {
    /// Number of puts since the entry was created.
    Version(CompareOp, u64),
    /// Revision of the transaction that created the entry.
    CreateRevision(CompareOp, Revision),
    /// Revision of the transaction that last put the entry.
    ModRevision(CompareOp, Revision),
    /// Value, compared byte by byte.
    Value(CompareOp, MetaValue),
}

/// Comparison operator between the entry's field and the constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompareOp {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// Greater.
    Greater,
    /// Less.
    Less,
}

impl CompareOp {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            CompareOp::Equal => ordering.is_eq(),
            CompareOp::NotEqual => ordering.is_ne(),
            CompareOp::Greater => ordering.is_gt(),
            CompareOp::Less => ordering.is_lt(),
        }
    }
}

impl Condition {
    /// The key exists.
    pub fn exists(key: Key) -> Condition {
        Condition { key, test: Predicate::Version(CompareOp::Greater, 0) }
    }

    /// The key does not exist.
    pub fn absent(key: Key) -> Condition {
        Condition { key, test: Predicate::Version(CompareOp::Equal, 0) }
    }

    /// The key was neither put nor deleted since `mod_revision`: the comparison of a compare-and-swap.
    pub fn unchanged(key: Key, mod_revision: Revision) -> Condition {
        Condition { key, test: Predicate::ModRevision(CompareOp::Equal, mod_revision) }
    }

    /// The key exists and has this value.
    pub fn holds_value(key: Key, value: MetaValue) -> Condition {
        Condition { key, test: Predicate::Value(CompareOp::Equal, value) }
    }

    /// Whether the condition holds for the key's entry.
    pub(crate) fn holds(&self, entry: Option<&Entry>) -> bool {
        let number = |is: CompareOp, field: fn(&Entry) -> u64, than: u64| is.holds(entry.map_or(0, field).cmp(&than));
        match &self.test {
            Predicate::Version(is, than) => number(*is, |entry| entry.version, *than),
            Predicate::CreateRevision(is, than) => number(*is, |entry| entry.create_revision.0, than.0),
            Predicate::ModRevision(is, than) => number(*is, |entry| entry.mod_revision.0, than.0),
            Predicate::Value(is, than) => entry.is_some_and(|entry| is.holds(entry.value.cmp(than))),
        }
    }
}

/// An operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Creates or overwrites an entry.
    Put {
        /// Its key.
        key: Key,
        /// New value.
        value: MetaValue,
        /// Lease whose end deletes the entry; `None` detaches it from its lease.
        lease: Option<LeaseId>,
    },
    /// Deletes all entries of a range.
    Delete(KeyRange),
}

impl Operation {
    /// Puts an entry without a lease.
    pub fn put(key: Key, value: MetaValue) -> Operation {
        Operation::Put { key, value, lease: None }
    }

    /// Puts an entry with a lease.
    pub fn put_leased(key: Key, value: MetaValue, lease: LeaseId) -> Operation {
        Operation::Put { key, value, lease: Some(lease) }
    }

    /// Deletes one key.
    pub fn delete(key: &Key) -> Operation {
        Operation::Delete(KeyRange::key(key))
    }
}
