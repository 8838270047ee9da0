//! Why a node is not in a cluster.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sandbar_meta::MetaError;
use sandbar_wire::{BindError, ChannelError, ConnectError, IdentityError, JoinError, NameError, TokenError};

use super::reach::seconds;

/// Why a node is not in a cluster, or does not learn something of it.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A folder can't be written.
    #[error("{}: {_1}", _0.display())]
    Folder(PathBuf, io::Error),
    /// The node has neither an authority nor a certificate, and was told of nobody who could give it one.
    #[error(
        "{} is of no cluster: begin one with `host cluster init`, or join one with `--join ADDRESS --token TOKEN` \
         (`host cluster token` makes a token)", _0.display()
    )]
    NoWay(PathBuf),
    /// What it is to be called.
    #[error("`{_0}` is no name of a node or a tenant: {_1}")]
    Name(String, NameError),
    /// Its key and certificate.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The token.
    #[error(transparent)]
    Token(TokenError),
    /// Joining.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// Its address.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Limits that contradict each other.
    #[error("{0}")]
    Limits(String),
    /// The cluster's store.
    #[error("the cluster's store: {0}")]
    Store(#[from] MetaError),
    /// A name stands for no address.
    #[error("{_0}: {_1}")]
    Nowhere(String, String),
    /// None of the addresses that a name stands for can be used.
    #[error("no address of {_0} can be used: {}", each(_1))]
    Unreached(String, Vec<(SocketAddr, ClusterError)>),
    /// Nothing comes back from an address.
    #[error("no answer from {_0} within {}; look at the address, at firewalls (UDP), and whether the node runs", seconds(*_1))]
    NoAnswer(SocketAddr, Duration),
    /// The machine is there, and nothing listens.
    #[error("{_0} refuses: nothing listens on that UDP port; look at the address, and whether the node runs")]
    Closed(SocketAddr),
    /// The system can't send there.
    #[error("{_0} can't be reached from this machine: {_1}")]
    NoRoute(SocketAddr, io::Error),
    /// It was tried for so long.
    #[error("{_0}; given up after {}", seconds(*_1))]
    GaveUp(Box<ClusterError>, Duration),
    /// The folder has the certificate of another cluster than the token is for.
    #[error(
        "{} has a certificate of cluster {has}, and the token is for cluster {token}: name another folder with --data",
        folder.display()
    )]
    OtherCluster {
        /// The folder.
        folder: PathBuf,
        /// Whose certificate it has.
        has: String,
        /// Which cluster the token is for.
        token: String,
    },
    /// The folder has the certificate of a node of another name.
    #[error(
        "{} has the certificate of node `{has}`: leave --name away, or name another folder with --data for `{name}`",
        folder.display()
    )]
    OtherName {
        /// The folder.
        folder: PathBuf,
        /// What the certificate says.
        has: String,
        /// What was asked for.
        name: String,
    },
    /// Another living node has the name.
    #[error(
        "the name `{name}` is taken: node {number} at {address} has it and lives; choose another with --name (a new --data \
         folder where this one has a certificate already), or end that node"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The number of the node that has it.
        number: u16,
        /// Where that one is.
        address: SocketAddr,
    },
    /// Another node can't be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Or does not say what it should.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// There is no node of that name.
    #[error("there is no node `{_0}`; there are: {_1}")]
    NoNode(String, String),
    /// It is there, but not to be talked to now.
    #[error("there is no connection to node `{_0}` now; try again, or ask on a node that has one")]
    NoLink(String),
    /// A node is not removed by itself.
    #[error("`{_0}` is this node: remove it by another one, or end it")]
    Itself(String),
    /// A node does not do what it was asked.
    #[error("{_0}")]
    Refused(String),
    /// Nor now.
    #[error("{_0}; try again")]
    Later(String),
    /// What a node says makes no sense.
    #[error("the node says something that makes no sense: {_0}")]
    Malformed(String),
    /// No node answers.
    #[error("no node answers")]
    Silent,
    /// Who asks is no tenant.
    #[error("a token of a tenant is needed the first time: `host cluster token --tenant NAME` makes one, for --token")]
    NoTenant,
    /// There are no numbers left for nodes.
    #[error("the cluster has had as many nodes as it can give numbers to")]
    NoNumbers,
    /// The node is not in the cluster any more.
    #[error("{_0}")]
    Fenced(String),
    /// What is in the store is none of ours.
    #[error("the cluster's store has `{0}`, which is no node: is it another version's?")]
    Unreadable(String),
}

impl ClusterError {
    /// Whether to try again by itself may help: nobody answered, or who did can't do it now.
    pub fn may_retry(&self) -> bool {
        match self {
            ClusterError::Connect(error) => error.may_retry(),
            ClusterError::Join(error) => error.may_retry(),
            ClusterError::Unreached(_, tries) => tries.iter().any(|(_, error)| error.may_retry()),
            ClusterError::Channel(ChannelError::Disconnected(lost)) => lost.may_retry(),
            ClusterError::Channel(_)
            | ClusterError::Nowhere(..)
            | ClusterError::NoAnswer(..)
            | ClusterError::Closed(_)
            | ClusterError::NoRoute(..)
            | ClusterError::Later(_)
            | ClusterError::Silent
            | ClusterError::Store(MetaError::Unavailable { .. } | MetaError::Unknown { .. }) => true,
            _ => false,
        }
    }
}

/// Each address with why it can't be used.
fn each(tries: &[(SocketAddr, ClusterError)]) -> String {
    let of_one = |(address, error): &(SocketAddr, ClusterError)| {
        let words = error.to_string();
        if words.contains(&address.to_string()) { words } else { format!("{address}: {words}") }
    };
    tries.iter().map(of_one).collect::<Vec<_>>().join("; ")
}
