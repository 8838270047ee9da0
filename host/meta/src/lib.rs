//! What must survive of a cluster: nodes, leases, jobs, tenants, named actors, in one small store.
//!
//! [`MetaStore`] is etcd's model (version 3): keys and values, transactions that compare before they change, leases that take
//! their keys with them, watches that give every change in order. A revision counts the transactions that changed something.
//! Three stores pass one set of tests: [`Memory`], the twin that the others are measured against, [`Redb`], a file of this
//! node's, which needs no set-up, and [`Etcd`], a cluster of etcd that outlives any node.
//!
//! Non-goals: what changes with every task, and where objects lie, which stay with their owners; reads of old revisions;
//! users and passwords.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod answer;
mod clock;
mod error;
mod etcd;
mod file;
mod key;
mod leases;
mod limits;
mod log;
mod memory;
mod store;
mod transaction;

pub use answer::{Change, Entry, Got, Granted, KeptAlive, LeaseId, Outcome, Page, Revision, Revoked, Transacted};
pub use clock::{Clock, ManualClock, SystemClock};
pub use error::{Bound, MetaError};
pub use etcd::{Etcd, EtcdAddress, EtcdTimes, EtcdTls};
pub use file::Redb;
pub use key::{KEY_BYTES_MAX, Key, Span, Value};
pub use limits::MetaLimits;
pub use memory::Memory;
pub use store::{MetaStore, Watcher};
pub use transaction::{Condition, Is, Operation, Test, Transaction};
