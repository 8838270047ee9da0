//! Connecting to a node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::ConnectionError;
use tokio::time::timeout;

use super::Shared;
use super::door::chain;
use super::peers::{Direction, close};
use crate::blame::Blame;
use crate::connection::Connection;
use crate::identity::{PeerError, Side};
use crate::lost::{self, Lost};
use crate::name::{Name, PeerIdentity, Role};
use crate::protocol::{CloseCode, WELCOME, alpn, version_of};
use crate::tls::SERVER_NAME;

/// Whom one expects to find at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// This node.
    Node(Name),
    /// Any node of the cluster: the first that a tenant or a new node talks to.
    AnyNode,
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No packet can be sent there.
    #[error("{address} can't be connected to: {reason}")]
    Address {
        /// Where.
        address: SocketAddr,
        /// Why not.
        reason: String,
    },
    /// Nobody answers.
    #[error(
        "no answer from {address} within {ms} ms; look at the address, at firewalls (UDP), and whether the node runs"
    )]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// How long it was waited for.
        ms: u64,
    },
    /// The two ends speak different versions.
    #[error(
        "{address} speaks {}, this end {}; update one of them",
        theirs.map_or("nothing that is known here".to_owned(), alpn), alpn(*ours)
    )]
    Version {
        /// Where.
        address: SocketAddr,
        /// This end's.
        ours: u8,
        /// The other end's, if it said so.
        theirs: Option<u8>,
    },
    /// The node there is not what this end wants.
    #[error("the node at {address} is not let in: {reason}")]
    Peer {
        /// Where.
        address: SocketAddr,
        /// Why not.
        reason: PeerError,
    },
    /// The node there does not let this end in, or went away.
    #[error("{address}: {lost}")]
    Refused {
        /// Where.
        address: SocketAddr,
        /// How it said so.
        lost: Lost,
    },
}

impl ConnectError {
    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            ConnectError::Address { .. } | ConnectError::Version { .. } => Blame::Operator,
            ConnectError::Unreachable { .. } => Blame::Network,
            ConnectError::Peer { reason, .. } => reason.blame(),
            ConnectError::Refused { lost, .. } => lost.blame(),
        }
    }

    /// The stable text of what happened.
    pub fn code(&self) -> &'static str {
        match self {
            ConnectError::Address { .. } => "address",
            ConnectError::Unreachable { .. } => "unreachable",
            ConnectError::Version { .. } => CloseCode::Version.as_str(),
            ConnectError::Peer { reason, .. } => reason.code(),
            ConnectError::Refused { lost, .. } => lost.code(),
        }
    }

    /// Whether to try again by itself may help.
    pub fn may_retry(&self) -> bool {
        match self {
            ConnectError::Unreachable { .. } => true,
            ConnectError::Refused { lost, .. } => lost.may_retry(),
            _ => false,
        }
    }
}

pub(super) async fn connect(
    shared: &Arc<Shared>,
    address: SocketAddr,
    expect: &Expect,
) -> Result<Connection, ConnectError> {
    let ms = shared.limits.connect_time_ms_max;
    let connecting = try_connect(shared, address, expect);
    let in_time = timeout(Duration::from_millis(ms), connecting).await;
    in_time.unwrap_or(Err(ConnectError::Unreachable { address, ms }))
}

async fn try_connect(shared: &Arc<Shared>, address: SocketAddr, expect: &Expect) -> Result<Connection, ConnectError> {
    let wrong_address = |reason: String| ConnectError::Address { address, reason };
    let endpoint = shared.towards(address).map_err(|e| wrong_address(e.to_string()))?;
    let connecting = endpoint.connect_with(shared.client.clone(), address, SERVER_NAME);
    let connecting = connecting.map_err(|e| wrong_address(e.to_string()))?;
    let quinn = connecting.await.map_err(|error| failed(shared, address, error))?;
    let not_let_in = |reason: PeerError| {
        close(&quinn, reason.close_code(), &reason.to_string());
        ConnectError::Peer { address, reason }
    };
    let peer = identify(shared, &quinn, expect).map_err(not_let_in)?;
    let entry = shared.peers.enter(&peer, &quinn, Direction::Outgoing).map_err(not_let_in)?;
    be_welcome(&quinn).await.map_err(|error| failed(shared, address, error))?;
    Ok(Connection::new(quinn, peer, entry, &shared.limits, shared.clone()))
}

fn identify(shared: &Shared, quinn: &quinn::Connection, expect: &Expect) -> Result<PeerIdentity, PeerError> {
    let trust = shared.identity().trust().clone();
    let peer = trust.identify(&chain(quinn), Side::Server, shared.ground.clock.now())?;
    if peer.role != Role::Node {
        return Err(PeerError::Role { wanted: Role::Node, got: peer.role });
    }
    match expect {
        Expect::Node(wanted) if *wanted != peer.name => Err(PeerError::Name { wanted: wanted.clone(), got: peer.name }),
        _ => Ok(peer),
    }
}

/// Waits until the other end has looked at this one.
async fn be_welcome(quinn: &quinn::Connection) -> Result<(), ConnectionError> {
    let mut stream = quinn.accept_uni().await?;
    let mut said = [0];
    match stream.read_exact(&mut said).await {
        Ok(()) if said == [WELCOME] => Ok(()),
        Err(quinn::ReadExactError::ReadError(quinn::ReadError::ConnectionLost(lost))) => Err(lost),
        _ => {
            close(quinn, CloseCode::Malformed, "that is no welcome");
            Err(quinn.closed().await)
        }
    }
}

fn failed(shared: &Shared, address: SocketAddr, error: ConnectionError) -> ConnectError {
    let (ours, ms) = (shared.ground.version, shared.limits.connect_time_ms_max);
    if let ConnectionError::TransportError(error) = &error {
        let cluster = shared.identity().trust().cluster().clone();
        let reason = match lost::alert(error.code) {
            Some(lost::UNKNOWN_CA) => PeerError::OtherAuthority { ours: cluster },
            Some(_) => PeerError::Malformed(error.reason.clone()),
            None => return ConnectError::Refused { address, lost: Lost::Transport(error.to_string()) },
        };
        return ConnectError::Peer { address, reason };
    }
    match Lost::from(error) {
        Lost::Silent => ConnectError::Unreachable { address, ms },
        Lost::Closed { code: CloseCode::Version, reason } => {
            ConnectError::Version { address, ours, theirs: version_of(reason.as_bytes()) }
        }
        Lost::Alert { alert: lost::NO_APPLICATION_PROTOCOL } => ConnectError::Version { address, ours, theirs: None },
        lost => ConnectError::Refused { address, lost },
    }
}
