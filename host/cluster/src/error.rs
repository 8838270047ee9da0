//! Errors of clusters, for users.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sandbar_core::{Code, Fault, LimitError};
use sandbar_meta::MetaError;
use sandbar_wire::{BindError, ChannelError, ConnectError, IdentityError, JoinError, NameError, TokenError};

use crate::component_registry::ComponentError;
use crate::tenants::TenantError;

/// An error of a node or a client of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A folder or file can't be read or written.
    #[error("{}: {_1}", _0.display())]
    Folder(PathBuf, io::Error),
    /// The data folder has neither an authority nor a certificate, and the options name no node to join.
    #[error(
        "{} belongs to no cluster: create one with `host cluster init`, or join one with `--join ADDRESS --token TOKEN` \
         (`host cluster token` creates a token)", _0.display()
    )]
    NoIdentity(PathBuf),
    /// The name of a node or tenant is invalid.
    #[error("`{_0}` is not a valid name of a node or tenant: {_1}")]
    InvalidName(String, NameError),
    /// The key or certificate can't be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The token is invalid.
    #[error(transparent)]
    Token(TokenError),
    /// The founder did not issue a certificate.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The node can't listen at its address.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The operating system reported an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A limit is out of its range.
    #[error(transparent)]
    Limits(#[from] LimitError),
    /// The cluster's store failed.
    #[error("the cluster's store: {0}")]
    Store(#[from] MetaError),
    /// A name does not resolve to an address: the name, and why.
    #[error("{_0}: {_1}")]
    Unresolved(String, String),
    /// No address of a name can be reached: the name, and each address with its error.
    #[error("no address of {_0} can be reached: {}", list(_1))]
    Unreachable(String, Vec<(SocketAddr, ClusterError)>),
    /// An address does not answer within this time.
    #[error("no answer from {_0} within {}; check the address, firewalls (UDP), and whether the node runs", seconds(*_1))]
    NoAnswer(SocketAddr, Duration),
    /// The machine is up, but nothing listens on the port.
    #[error("{_0} refuses: nothing listens on that UDP port; check the address, and whether the node runs")]
    PortClosed(SocketAddr),
    /// The operating system has no route to the address.
    #[error("{_0} can't be reached from this machine: {_1}")]
    NoRoute(SocketAddr, io::Error),
    /// Retries ended after this time: the last error, and the time.
    #[error("{_0}; given up after {}", seconds(*_1))]
    TimedOut(Box<ClusterError>, Duration),
    /// The data folder has a certificate of another cluster than the token's.
    #[error(
        "{} has a certificate of cluster {has}, and the token is for cluster {token}: name another folder with --data",
        folder.display()
    )]
    OtherCluster {
        /// Data folder.
        folder: PathBuf,
        /// Cluster of the certificate.
        has: String,
        /// Cluster of the token.
        token: String,
    },
    /// The data folder has the certificate of another tenant.
    #[error(
        "{} has the certificate of tenant `{has}`, and the token is for tenant `{token}`: name another folder with --data",
        folder.display()
    )]
    OtherTenant {
        /// Data folder.
        folder: PathBuf,
        /// Tenant of the certificate.
        has: String,
        /// Tenant of the token.
        token: String,
    },
    /// The data folder has the certificate of a node of another name.
    #[error(
        "{} has the certificate of node `{has}`: omit --name, or name another folder with --data for `{name}`",
        folder.display()
    )]
    OtherName {
        /// Data folder.
        folder: PathBuf,
        /// Name in the certificate.
        has: String,
        /// Name in the options.
        name: String,
    },
    /// Another living node has the name.
    #[error(
        "the name `{name}` is taken: node {number} at {address} lives; choose another name with --name (and a new --data \
         folder if this one has a certificate), or stop that node"
    )]
    NameTaken {
        /// Name of both nodes.
        name: String,
        /// Number of the other node.
        number: u16,
        /// Address of the other node.
        address: SocketAddr,
    },
    /// A connection can't be established.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A connection or channel failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// No node has that name: the name, and the names of all nodes.
    #[error("there is no node `{_0}`; the nodes are: {_1}")]
    UnknownNode(String, String),
    /// The node is a member, but this node is not connected to it.
    #[error("this node is not connected to node `{_0}`; retry, or run the command on a node that is connected to it")]
    NotConnected(String),
    /// A node can't remove itself.
    #[error("`{_0}` is this node: remove it from another node, or stop it")]
    OwnNode(String),
    /// A node refused a request.
    #[error("{_0}")]
    Refused(String),
    /// A node refused a request of a tenant.
    #[error("{message} [{code}]")]
    Denied {
        /// Stable code.
        code: String,
        /// Why.
        message: String,
    },
    /// A node can't serve a request now.
    #[error("{_0}; try again")]
    RetryLater(String),
    /// A message or value can't be encoded: which one, and why.
    #[error("{_0} can't be encoded: {_1}")]
    Encode(String, String),
    /// A message can't be decoded.
    #[error("the node sent an invalid message: {_0}")]
    Malformed(String),
    /// A long message, or a part of it, did not arrive within this time.
    #[error("a message did not arrive within {}", seconds(*_0))]
    MessageTimedOut(Duration),
    /// The channel was closed before the end of a message.
    #[error("the channel was closed before the end of a message")]
    MessageIncomplete,
    /// A message exceeds its limit, in bytes.
    #[error("a message has more than {_0} bytes")]
    MessageTooLong(u64),
    /// No node responds.
    #[error("no node responds")]
    NoResponse,
    /// A client without a certificate has no token of a tenant.
    #[error(
        "a tenant's token is required for the first connection: create one with `host tenant token NAME`, and pass it \
         with --token"
    )]
    TokenRequired,
    /// A tenant or one of its tokens can't be created, changed or removed.
    #[error(transparent)]
    Tenant(#[from] TenantError),
    /// A component can't be registered, changed or used.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// All node numbers are assigned.
    #[error("the cluster has assigned all of its 65535 numbers")]
    NumbersExhausted,
    /// The node is no longer a member of its cluster.
    #[error("{_0}")]
    Fenced(String),
    /// An entry of the cluster's store can't be decoded.
    #[error("the entry `{0}` of the cluster's store can't be decoded; another version may have written it")]
    Unreadable(String),
}

impl ClusterError {
    /// Returns whether retrying without a change may succeed.
    pub fn may_retry(&self) -> bool {
        match self {
            ClusterError::Connect(error) => error.may_retry(),
            ClusterError::Join(error) => error.may_retry(),
            ClusterError::Unreachable(_, attempts) => attempts.iter().any(|(_, error)| error.may_retry()),
            ClusterError::Channel(ChannelError::Disconnected(reason)) => reason.may_retry(),
            ClusterError::Channel(_)
            | ClusterError::Unresolved(..)
            | ClusterError::NoAnswer(..)
            | ClusterError::PortClosed(_)
            | ClusterError::NoRoute(..)
            | ClusterError::RetryLater(_)
            | ClusterError::MessageTimedOut(_)
            | ClusterError::MessageIncomplete
            | ClusterError::NoResponse
            | ClusterError::Store(MetaError::Unavailable { .. } | MetaError::Unknown { .. }) => true,
            _ => false,
        }
    }
}

/// A fault of this host, for a task or job that needs the cluster.
impl From<ClusterError> for Fault {
    fn from(error: ClusterError) -> Fault {
        host_fault(error)
    }
}

/// Creates a fault of the host.
pub(crate) fn host_fault(reason: impl Display) -> Fault {
    Fault::new(Code::Host, reason.to_string())
}

/// Lists each address with its error.
fn list(attempts: &[(SocketAddr, ClusterError)]) -> String {
    let describe = |(address, error): &(SocketAddr, ClusterError)| {
        let message = error.to_string();
        if message.contains(&address.to_string()) { message } else { format!("{address}: {message}") }
    };
    attempts.iter().map(describe).collect::<Vec<_>>().join("; ")
}

/// Formats a time in whole seconds, at least 1.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.0} s", time.as_secs_f64().max(1.0))
}
