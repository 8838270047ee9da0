//! Why a node is not in a cluster.

use std::io;
use std::path::PathBuf;

use sandbar_meta::MetaError;
use sandbar_wire::{BindError, ChannelError, ConnectError, IdentityError, JoinError, NameError, TokenError};

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
    /// What is in the store is none of ours.
    #[error("the cluster's store has `{0}`, which is no node: is it another version's?")]
    Unreadable(String),
}
