//! Transactions: conditions, and what is done when they hold or don't.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Bound, Entry, Key, LeaseId, MetaError, MetaLimits, Revision, Span, Value};

/// All of it happens, or nothing, and nobody sees a part of it. What it changes gets one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// These have to hold.
    pub conditions: Vec<Condition>,
    /// What is done if all do, in this order.
    pub then: Vec<Operation>,
    /// What is done if one does not.
    pub otherwise: Vec<Operation>,
}

impl Transaction {
    /// Does nothing yet.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// With a condition more.
    pub fn when(mut self, condition: Condition) -> Transaction {
        self.conditions.push(condition);
        self
    }

    /// With an operation more for when the conditions hold.
    pub fn then(mut self, operation: Operation) -> Transaction {
        self.then.push(operation);
        self
    }

    /// With an operation more for when they don't.
    pub fn otherwise(mut self, operation: Operation) -> Transaction {
        self.otherwise.push(operation);
        self
    }

    /// Whether it is one that a store with these limits takes.
    ///
    /// # Errors
    /// [`MetaError::Limit`] names what is too many or too large, [`MetaError::DuplicateKey`] a key that one branch puts
    /// twice, or puts and deletes.
    pub fn check(&self, limits: &MetaLimits) -> Result<(), MetaError> {
        for count in [self.conditions.len(), self.then.len(), self.otherwise.len()] {
            if count > limits.operations_max {
                return Err(MetaError::limit(Bound::Operations, count, limits.operations_max));
            }
        }
        let values = self.values().map(|value| value.as_bytes().len());
        if let Some(large) = values.clone().find(|bytes| *bytes > limits.value_bytes_max) {
            return Err(MetaError::limit(Bound::ValueBytes, large, limits.value_bytes_max));
        }
        let bytes = values.sum::<usize>() + self.key_bytes();
        if bytes > limits.transaction_bytes_max {
            return Err(MetaError::limit(Bound::TransactionBytes, bytes, limits.transaction_bytes_max));
        }
        check_branch(&self.then)?;
        check_branch(&self.otherwise)
    }

    /// Whether nothing can come of it but an answer.
    pub(crate) fn is_read(&self) -> bool {
        self.then.is_empty() && self.otherwise.is_empty()
    }

    /// The first lease that is named.
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        self.operations().find_map(|operation| match operation {
            Operation::Put { lease, .. } => *lease,
            Operation::Delete(_) => None,
        })
    }

    fn operations(&self) -> impl Iterator<Item = &Operation> + Clone {
        self.then.iter().chain(&self.otherwise)
    }

    fn values(&self) -> impl Iterator<Item = &Value> + Clone {
        let compared = self.conditions.iter().filter_map(|condition| match &condition.test {
            Test::Value(_, value) => Some(value),
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

/// etcd's rule: a key has one version for a revision, so nothing is put twice, or put and deleted, by one transaction.
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

/// What has to hold of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The key.
    pub key: Key,
    /// What has to hold.
    pub test: Test,
}

/// What of an entry is compared, how, and with what. Of a key that is not there all numbers are zero, and no comparison of
/// its value holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Test {
    /// How often it was put since it was made.
    Version(Is, u64),
    /// The transaction that made it.
    CreateRevision(Is, Revision),
    /// The transaction that put it last.
    ModRevision(Is, Revision),
    /// What it holds, compared byte by byte.
    Value(Is, Value),
}

/// How what there is has to be to what is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Is {
    /// The same.
    Equal,
    /// Another.
    NotEqual,
    /// Greater.
    Greater,
    /// Less.
    Less,
}

impl Is {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Is::Equal => ordering.is_eq(),
            Is::NotEqual => ordering.is_ne(),
            Is::Greater => ordering.is_gt(),
            Is::Less => ordering.is_lt(),
        }
    }
}

impl Condition {
    /// The key is there.
    pub fn exists(key: Key) -> Condition {
        Condition { key, test: Test::Version(Is::Greater, 0) }
    }

    /// It is not.
    pub fn absent(key: Key) -> Condition {
        Condition { key, test: Test::Version(Is::Equal, 0) }
    }

    /// The key was not put since that transaction put it, nor deleted: the compare of a compare-and-swap.
    pub fn unchanged(key: Key, mod_revision: Revision) -> Condition {
        Condition { key, test: Test::ModRevision(Is::Equal, mod_revision) }
    }

    /// The key is there and holds this.
    pub fn holds_value(key: Key, value: Value) -> Condition {
        Condition { key, test: Test::Value(Is::Equal, value) }
    }

    /// Whether it holds, by what there is of its key.
    pub(crate) fn holds(&self, entry: Option<&Entry>) -> bool {
        let number = |is: Is, of: fn(&Entry) -> u64, than: u64| is.holds(entry.map_or(0, of).cmp(&than));
        match &self.test {
            Test::Version(is, than) => number(*is, |entry| entry.version, *than),
            Test::CreateRevision(is, than) => number(*is, |entry| entry.create_revision.0, than.0),
            Test::ModRevision(is, than) => number(*is, |entry| entry.mod_revision.0, than.0),
            Test::Value(is, than) => entry.is_some_and(|entry| is.holds(entry.value.cmp(than))),
        }
    }
}

/// What a transaction does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Makes or overwrites an entry.
    Put {
        /// Its key.
        key: Key,
        /// What it holds from now on.
        value: Value,
        /// The lease that takes it along when it ends; `None` frees it of the one that it had.
        lease: Option<LeaseId>,
    },
    /// Deletes all entries of a span.
    Delete(Span),
}

impl Operation {
    /// Puts without a lease.
    pub fn put(key: Key, value: Value) -> Operation {
        Operation::Put { key, value, lease: None }
    }

    /// Puts with one.
    pub fn put_leased(key: Key, value: Value, lease: LeaseId) -> Operation {
        Operation::Put { key, value, lease: Some(lease) }
    }

    /// Deletes one key.
    pub fn delete(key: &Key) -> Operation {
        Operation::Delete(Span::key(key))
    }
}
