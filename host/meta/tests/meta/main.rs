//! The test suite of all stores: responses, random histories, crashes of a file's writer, faults of cluster members.
//!
//! The clusters are real etcd processes. See `cluster` for how the program is found.

mod cluster;
mod crash;
mod driver;
mod faults;
mod history;
mod model;
mod random;
mod semantics;
mod tls;
