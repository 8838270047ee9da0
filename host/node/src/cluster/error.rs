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
    #[error("`{_0}` is no name of a node: {_1}")]
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
    /// Another node can't be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Or does not say what it should.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// There are no numbers left for nodes.
    #[error("the cluster has had as many nodes as it can give numbers to")]
    NoNumbers,
    /// What is in the store is none of ours.
    #[error("the cluster's store has `{0}`, which is no node: is it another version's?")]
    Unreadable(String),
}
