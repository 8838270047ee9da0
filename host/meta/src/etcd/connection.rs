//! The connection to a cluster, which a store shares with its watchers.

use super::convert::Prefix;
use super::members::Members;
use crate::MetaLimits;

#[derive(Debug)]
pub(super) struct EtcdConnection {
    pub(super) members: Members,
    pub(super) prefix: Prefix,
    pub(super) limits: MetaLimits,
}
