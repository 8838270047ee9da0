//! One set of tests for all stores: what they answer, histories at random, files whose writer is killed, clusters whose
//! members are.
//!
//! The clusters are real ones of etcd. Where its program is found, and what to do when it is not, says `cluster`.

mod cluster;
mod crash;
mod driver;
mod faults;
mod history;
mod model;
mod random;
mod semantics;
mod tls;
