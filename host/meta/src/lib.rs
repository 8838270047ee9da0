//! The metadata store of a cluster: nodes, leases, jobs, tenants and named actors.
//!
//! [`MetaStore`] follows etcd's model (version 3): keys and values, transactions that compare before they write, leases
//! that delete their keys when they end, and watches that deliver every change in order. A revision counts the
//! transactions that changed something. Three stores pass one test suite: [`MemoryStore`], the reference
//! implementation; [`RedbStore`], a local file that needs no set-up; and [`EtcdStore`], an etcd cluster that outlives
//! any node.
//!
//! Non-goals: data that changes with every task, locations of objects (their owners keep them), reads of old revisions,
//! users and passwords.

// Input of a guest, a peer, a file or a user must not end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod change_log;
mod clock;
mod error;
mod etcd;
mod file;
mod key;
mod leases;
mod limits;
mod memory;
mod response;
mod store;
mod transaction;

pub use clock::{Clock, ManualClock, SystemClock};
pub use error::{LimitKind, MetaError};
pub use etcd::{EtcdAddress, EtcdStore, EtcdTimeouts, EtcdTls};
pub use file::RedbStore;
pub use key::{KEY_BYTES_MAX, Key, KeyError, KeyRange, MetaValue};
pub use limits::MetaLimits;
pub use memory::MemoryStore;
pub use response::{
    Change, Entry, EntryPage, GetResponse, GrantResponse, KeepAliveResponse, LeaseId, OperationResult, Revision,
    RevokeResponse, TransactResponse,
};
pub use store::{MetaStore, Watcher};
pub use transaction::{CompareOp, Condition, Operation, Predicate, Transaction};
