//! The client side of joining: exchanges a token for an identity.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::ConnectionError;
use tokio::time::timeout;

use super::environment::EndpointEnvironment;
use super::handshake::peer_chain;
use super::reach::ReachError;
use super::transport;
use crate::blame::Blame;
use crate::channel::{ByteLimit, ChannelError, send_request};
use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::disconnect::{self, DisconnectReason, close};
use crate::identity::{HandshakeSide, Identity, IdentityError, JoinToken, Key, PeerError, TokenError};
use crate::limits::WireLimits;
use crate::name::{Fingerprint, Name, Role};
use crate::protocol::{CERTIFICATES_BYTES_MAX, CloseCode, JoinRefusal, JoinRequest, JoinResponse};
use crate::tls::{SERVER_NAME, authority_among};

/// Why a join or a renewal failed.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// This end rejects the token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The clocks of the two ends differ too much for certificates to be valid at both.
    #[error(
        "the clock here says {ours}, and the cluster's {theirs}: they may differ by {CLOCK_SKEW_S_MAX} s; set the clock"
    )]
    Clock {
        /// This end's clock.
        ours: Timestamp,
        /// The node's clock.
        theirs: Timestamp,
    },
    /// No node was reached at the address.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// The node is not of the token's cluster, or its certificate is not valid.
    #[error("the node at {address} is not a valid node of the token's cluster: {reason}")]
    Peer {
        /// The address.
        address: SocketAddr,
        /// The reason.
        reason: PeerError,
    },
    /// The node refused.
    #[error("the node refused: {refusal}{}", clock_here(refusal, *ours))]
    Refused {
        /// The reason.
        refusal: JoinRefusal,
        /// This end's clock.
        ours: Timestamp,
    },
    /// The request or the answer was not delivered.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The answer does not parse or does not match the request.
    #[error("the node's answer is malformed: {0}")]
    Malformed(String),
    /// This end's key or identity is invalid.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

fn clock_here(refusal: &JoinRefusal, ours: Timestamp) -> String {
    match refusal {
        JoinRefusal::Token(TokenError::Expired { .. } | TokenError::NotYet { .. }) => {
            format!(" (this end's clock says {ours})")
        }
        _ => String::new(),
    }
}

impl JoinError {
    /// Returns the party at fault.
    pub fn blame(&self) -> Blame {
        match self {
            JoinError::Token(error) => error.blame(),
            JoinError::Clock { .. } => Blame::Operator,
            JoinError::Reach(error) => error.blame(),
            JoinError::Peer { reason, .. } => reason.blame(),
            JoinError::Refused {
                refusal: JoinRefusal::Busy | JoinRefusal::Host(_) | JoinRefusal::Unavailable(_),
                ..
            } => Blame::Peer,
            JoinError::Refused { .. } => Blame::Operator,
            JoinError::Channel(error) => error.blame(),
            JoinError::Malformed(_) => Blame::Peer,
            JoinError::Identity(error) => error.blame(),
        }
    }

    /// Returns whether retrying without a change may succeed.
    pub fn may_retry(&self) -> bool {
        match self {
            JoinError::Reach(error) => error.may_retry(),
            JoinError::Refused { refusal: JoinRefusal::Busy | JoinRefusal::Unavailable(_), .. } => true,
            JoinError::Channel(ChannelError::Disconnected(lost)) => lost.may_retry(),
            JoinError::Channel(_) => true,
            _ => false,
        }
    }

    /// Returns the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            JoinError::Token(error) => error.code(),
            JoinError::Clock { .. } => "clock",
            JoinError::Reach(error) => error.code(),
            JoinError::Peer { reason, .. } => reason.code(),
            JoinError::Refused { refusal, .. } => match refusal {
                JoinRefusal::Token(error) => error.code(),
                JoinRefusal::Request(_) => "bad-request",
                JoinRefusal::Name { .. } => "name-taken",
                JoinRefusal::Busy => CloseCode::Busy.as_str(),
                JoinRefusal::NoAuthority => "no-authority",
                JoinRefusal::Host(_) => "host",
                JoinRefusal::Unavailable(_) => "unavailable",
            },
            JoinError::Channel(error) => error.code(),
            JoinError::Malformed(_) => CloseCode::Malformed.as_str(),
            JoinError::Identity(error) => error.code(),
        }
    }
}

/// Requests a certificate for a key from the node at an address, with a role and name that the token allows.
///
/// Sends nothing, in particular not the token, before the node has presented a certificate of the token's authority.
///
/// # Errors
/// The token is invalid, no node responds, or the node is of another cluster or refuses.
pub async fn join(
    environment: EndpointEnvironment,
    address: SocketAddr,
    token: &JoinToken,
    key: Arc<Key>,
    role: Role,
    name: &Name,
    limits: &WireLimits,
) -> Result<Identity, JoinError> {
    let bad_address = ReachError::bad_address(address);
    limits.check().map_err(|e| bad_address(&e))?;
    token.check_grant(role, name)?;
    token.check_time(environment.clock.now())?;
    let (socket, runtime) = (environment.socket.clone(), environment.runtime.clone());
    let config = transport::plain_endpoint(&environment, limits);
    let endpoint = quinn::Endpoint::new_with_abstract_socket(config, None, socket, runtime);
    let endpoint = endpoint.map_err(|e| bad_address(&e))?;
    let client = transport::joiner(limits, &key, token.authority())?;
    let connecting = endpoint.connect_with(client, address, SERVER_NAME).map_err(|e| bad_address(&e))?;
    let ms = limits.connect_time_ms_max;
    let unreachable = || ReachError::Unreachable { address, ms };
    let connected = timeout(Duration::from_millis(ms), connecting).await.map_err(|_| unreachable())?;
    let quinn = connected.map_err(|error| match error {
        ConnectionError::TimedOut => unreachable().into(),
        ConnectionError::TransportError(error) if disconnect::alert(error.code) == Some(disconnect::UNKNOWN_CA) => {
            let reason = PeerError::OtherAuthority { ours: token.cluster().clone() };
            JoinError::Peer { address, reason }
        }
        other => match DisconnectReason::from(other) {
            DisconnectReason::Alert { alert: disconnect::NO_APPLICATION_PROTOCOL } => {
                JoinError::Refused { refusal: JoinRefusal::NoAuthority, ours: environment.clock.now() }
            }
            reason => ChannelError::Disconnected(reason).into(),
        },
    })?;
    let request = JoinRequest { token: token.to_text(), name: name.clone(), role, request: key.request()? };
    let joined = exchange(&quinn, &environment, address, token, key, &request, limits).await;
    close(&quinn, CloseCode::Done, "joined");
    // Bounded wait for the close packet to go out before the socket is dropped.
    let _ = timeout(Duration::from_millis(200), endpoint.wait_idle()).await;
    joined
}

async fn exchange(
    quinn: &quinn::Connection,
    environment: &EndpointEnvironment,
    address: SocketAddr,
    token: &JoinToken,
    key: Arc<Key>,
    request: &JoinRequest,
    limits: &WireLimits,
) -> Result<Identity, JoinError> {
    let chain = peer_chain(quinn);
    let other = || PeerError::OtherAuthority { ours: token.cluster().clone() };
    let verified = authority_among(&chain, token.authority()).ok_or_else(other);
    let verified = verified.and_then(|trust| trust.identify(&chain, HandshakeSide::Server, environment.clock.now()));
    verified.map_err(|reason| JoinError::Peer { address, reason })?;
    let bytes = postcard::to_stdvec(request).map_err(|e| JoinError::Malformed(e.to_string()))?;
    let max = ByteLimit { kind: "answer", bytes: CERTIFICATES_BYTES_MAX as u32, limit: "a constant" };
    let time = Duration::from_millis(limits.join_time_ms_max);
    let response = send_request(quinn, &[&bytes], max, time).await?;
    let identity = accept_certificate(&response, key, token.authority(), environment.clock.now())?;
    match (identity.own().role, &identity.own().name) == (request.role, &request.name) {
        true => Ok(identity),
        false => Err(JoinError::Malformed(format!("the certificate is for {}", identity.own()))),
    }
}

/// Decodes and checks an answer.
pub(super) fn accept_certificate(
    response: &[u8],
    key: Arc<Key>,
    authority: Fingerprint,
    now: Timestamp,
) -> Result<Identity, JoinError> {
    let response: JoinResponse = postcard::from_bytes(response).map_err(|e| JoinError::Malformed(e.to_string()))?;
    let issued = response.map_err(|refusal| JoinError::Refused { refusal, ours: now })?;
    if issued.clock.abs_diff(now) > Duration::from_secs(CLOCK_SKEW_S_MAX) {
        return Err(JoinError::Clock { ours: now, theirs: issued.clock });
    }
    if Fingerprint::from_certificate(&issued.authority) != authority {
        return Err(JoinError::Malformed("it is from another authority".to_owned()));
    }
    Ok(Identity::new(key, issued.certificate, issued.authority, now)?)
}
