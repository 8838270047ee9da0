//! Outgoing connections to a node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::ConnectionError;
use tokio::time::timeout;

use super::handshake::peer_chain;
use super::peers::Direction;
use super::reach::ReachError;
use super::state::EndpointState;
use crate::blame::Blame;
use crate::connection::Connection;
use crate::disconnect::{self, DisconnectReason, close};
use crate::identity::{HandshakeSide, PeerError};
use crate::name::{Name, PeerIdentity, Role};
use crate::protocol::{CloseCode, WELCOME, alpn, version_of};
use crate::tls::SERVER_NAME;

/// The peer expected at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedPeer {
    /// The node with this name.
    Node(Name),
    /// Any node of the cluster, for the first connection of a tenant or a new node.
    AnyNode,
}

/// Why a connection was not established.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No node was reached at the address.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// The ends have different protocol versions.
    #[error(
        "{address} uses {}, this end {}; update one of them",
        theirs.map_or("an unknown protocol".to_owned(), alpn), alpn(*ours)
    )]
    Version {
        /// The address.
        address: SocketAddr,
        /// This end's version.
        ours: u8,
        /// The node's version, if it sent one.
        theirs: Option<u8>,
    },
    /// This end rejects the node.
    #[error("the node at {address} is rejected: {reason}")]
    Peer {
        /// The address.
        address: SocketAddr,
        /// The reason.
        reason: PeerError,
    },
    /// The node rejected this end, or disconnected.
    #[error("{address}: {reason}")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// The reason.
        reason: DisconnectReason,
    },
}

impl ConnectError {
    /// Returns the party at fault.
    pub fn blame(&self) -> Blame {
        match self {
            ConnectError::Reach(error) => error.blame(),
            ConnectError::Version { .. } => Blame::Operator,
            ConnectError::Peer { reason, .. } => reason.blame(),
            ConnectError::Refused { reason, .. } => reason.blame(),
        }
    }

    /// Returns the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            ConnectError::Reach(error) => error.code(),
            ConnectError::Version { .. } => CloseCode::Version.as_str(),
            ConnectError::Peer { reason, .. } => reason.code(),
            ConnectError::Refused { reason, .. } => reason.code(),
        }
    }

    /// Returns whether retrying without a change may succeed.
    pub fn may_retry(&self) -> bool {
        match self {
            ConnectError::Reach(error) => error.may_retry(),
            ConnectError::Refused { reason, .. } => reason.may_retry(),
            _ => false,
        }
    }
}

pub(super) async fn connect(
    shared: &Arc<EndpointState>,
    address: SocketAddr,
    expect: &ExpectedPeer,
) -> Result<Connection, ConnectError> {
    let ms = shared.limits.connect_time_ms_max;
    let connecting = try_connect(shared, address, expect);
    let in_time = timeout(Duration::from_millis(ms), connecting).await;
    in_time.unwrap_or(Err(ReachError::Unreachable { address, ms }.into()))
}

async fn try_connect(
    shared: &Arc<EndpointState>,
    address: SocketAddr,
    expect: &ExpectedPeer,
) -> Result<Connection, ConnectError> {
    let bad_address = ReachError::bad_address(address);
    let endpoint = shared.endpoint_for(address).map_err(|e| bad_address(&e))?;
    let connecting = endpoint.connect_with(shared.client.clone(), address, SERVER_NAME);
    let connecting = connecting.map_err(|e| bad_address(&e))?;
    let quinn = connecting.await.map_err(|error| failed(shared, address, error))?;
    let not_let_in = |reason: PeerError| {
        close(&quinn, reason.close_code(), &reason.to_string());
        ConnectError::Peer { address, reason }
    };
    let peer = identify(shared, &quinn, expect).map_err(not_let_in)?;
    let entry = shared.peers.insert(&peer, &quinn, Direction::Outgoing).map_err(not_let_in)?;
    wait_for_welcome(&quinn).await.map_err(|error| failed(shared, address, error))?;
    Ok(Connection::new(quinn, peer, entry, &shared.limits, shared.clone()))
}

fn identify(
    shared: &EndpointState,
    quinn: &quinn::Connection,
    expect: &ExpectedPeer,
) -> Result<PeerIdentity, PeerError> {
    let trust = shared.identity().trust().clone();
    let peer = trust.identify(&peer_chain(quinn), HandshakeSide::Server, shared.environment.clock.now())?;
    if peer.role != Role::Node {
        return Err(PeerError::Role { expected: Role::Node, actual: peer.role });
    }
    match expect {
        ExpectedPeer::Node(expected) if *expected != peer.name => {
            Err(PeerError::Name { expected: expected.clone(), actual: peer.name })
        }
        _ => Ok(peer),
    }
}

/// Waits until the server has admitted this end.
async fn wait_for_welcome(quinn: &quinn::Connection) -> Result<(), ConnectionError> {
    let mut stream = quinn.accept_uni().await?;
    let mut byte = [0];
    match stream.read_exact(&mut byte).await {
        Ok(()) if byte == [WELCOME] => Ok(()),
        Err(quinn::ReadExactError::ReadError(quinn::ReadError::ConnectionLost(lost))) => Err(lost),
        _ => {
            close(quinn, CloseCode::Malformed, "invalid welcome");
            Err(quinn.closed().await)
        }
    }
}

fn failed(shared: &EndpointState, address: SocketAddr, error: ConnectionError) -> ConnectError {
    let (ours, ms) = (shared.environment.version, shared.limits.connect_time_ms_max);
    if let ConnectionError::TransportError(error) = &error {
        let cluster = shared.identity().trust().cluster().clone();
        let reason = match disconnect::alert(error.code) {
            Some(disconnect::UNKNOWN_CA) => PeerError::OtherAuthority { ours: cluster },
            Some(_) => PeerError::Malformed(error.reason.clone()),
            None => return ConnectError::Refused { address, reason: DisconnectReason::Transport(error.to_string()) },
        };
        return ConnectError::Peer { address, reason };
    }
    match DisconnectReason::from(error) {
        DisconnectReason::Silent => ReachError::Unreachable { address, ms }.into(),
        DisconnectReason::Closed { code: CloseCode::Version, reason } => {
            ConnectError::Version { address, ours, theirs: version_of(reason.as_bytes()) }
        }
        DisconnectReason::Alert { alert: disconnect::NO_APPLICATION_PROTOCOL } => {
            ConnectError::Version { address, ours, theirs: None }
        }
        reason => ConnectError::Refused { address, reason },
    }
}
