//! Joining a cluster: from a token to an identity.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::ConnectionError;
use tokio::time::timeout;

use super::door::chain;
use super::ground::Ground;
use super::peers::close;
use super::transport;
use crate::blame::Blame;
use crate::channel::{ChannelError, Most, ask};
use crate::clock::{CLOCK_SKEW_S_MAX, Timestamp};
use crate::identity::{Identity, IdentityError, JoinToken, Key, PeerError, Side, TokenError};
use crate::limits::WireLimits;
use crate::lost::{self, Lost};
use crate::name::{Fingerprint, Name, Role};
use crate::protocol::{CERTIFICATES_BYTES_MAX, CloseCode, JoinAnswer, JoinRefusal, JoinRequest};
use crate::tls::{SERVER_NAME, authority_among};

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The token is no good, as this end sees it.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The clocks of the two ends differ too much: what one gives is no good to the other.
    #[error(
        "the clock here says {ours}, and the cluster's {theirs}: they may differ by {CLOCK_SKEW_S_MAX} s; set the clock"
    )]
    Clock {
        /// This end's.
        ours: Timestamp,
        /// The other end's.
        theirs: Timestamp,
    },
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
    /// The node there is not of the token's cluster, or not one that may speak for it now.
    #[error("the node at {address} does not speak for the token's cluster: {reason}")]
    Peer {
        /// Where.
        address: SocketAddr,
        /// What is wrong with it.
        reason: PeerError,
    },
    /// The node there refused.
    #[error("the node refused: {refusal}{}", clock_here(refusal, *ours))]
    Refused {
        /// Why.
        refusal: JoinRefusal,
        /// This end's clock.
        ours: Timestamp,
    },
    /// What was sent did not go through.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The answer is none.
    #[error("the node's answer is malformed: {0}")]
    Malformed(String),
    /// The own key.
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
    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            JoinError::Token(error) => error.blame(),
            JoinError::Clock { .. } | JoinError::Address { .. } => Blame::Operator,
            JoinError::Unreachable { .. } => Blame::Network,
            JoinError::Peer { reason, .. } => reason.blame(),
            JoinError::Refused { refusal: JoinRefusal::Busy | JoinRefusal::Host(_), .. } => Blame::Peer,
            JoinError::Refused { .. } => Blame::Operator,
            JoinError::Channel(error) => error.blame(),
            JoinError::Malformed(_) => Blame::Peer,
            JoinError::Identity(error) => error.blame(),
        }
    }

    /// Whether to try again by itself may help.
    pub fn may_retry(&self) -> bool {
        match self {
            JoinError::Unreachable { .. } | JoinError::Refused { refusal: JoinRefusal::Busy, .. } => true,
            JoinError::Channel(ChannelError::Lost(lost)) => lost.may_retry(),
            JoinError::Channel(_) => true,
            _ => false,
        }
    }

    /// The stable text of what happened.
    pub fn code(&self) -> &'static str {
        match self {
            JoinError::Token(error) => error.code(),
            JoinError::Clock { .. } => "clock",
            JoinError::Address { .. } => "address",
            JoinError::Unreachable { .. } => "unreachable",
            JoinError::Peer { reason, .. } => reason.code(),
            JoinError::Refused { refusal, .. } => match refusal {
                JoinRefusal::Token(error) => error.code(),
                JoinRefusal::Request(_) => "bad-request",
                JoinRefusal::Name { .. } => "name-taken",
                JoinRefusal::Busy => CloseCode::Busy.as_str(),
                JoinRefusal::NoAuthority => "no-authority",
                JoinRefusal::Host(_) => "host",
            },
            JoinError::Channel(error) => error.code(),
            JoinError::Malformed(_) => CloseCode::Malformed.as_str(),
            JoinError::Identity(error) => error.code(),
        }
    }
}

/// Gets a certificate for a key from the node at an address, as a role and under a name that the token allows.
///
/// Nothing is said, the token least of all, before the node has shown a certificate of the authority that the token names.
///
/// # Errors
/// When the token is no good, nobody answers, it is another cluster, or the node refuses.
pub async fn join(
    ground: Ground,
    address: SocketAddr,
    token: &JoinToken,
    key: Arc<Key>,
    (role, name): (Role, &Name),
    limits: &WireLimits,
) -> Result<Identity, JoinError> {
    limits.check().map_err(|reason| JoinError::Address { address, reason })?;
    token.check_grant(role, name)?;
    token.check_time(ground.clock.now())?;
    let wrong_address = |reason: String| JoinError::Address { address, reason };
    let (socket, runtime) = (ground.socket.clone(), ground.runtime.clone());
    let config = transport::plain_endpoint(&ground, limits);
    let endpoint = quinn::Endpoint::new_with_abstract_socket(config, None, socket, runtime);
    let endpoint = endpoint.map_err(|e| wrong_address(e.to_string()))?;
    let client = transport::joiner(limits, &key, token.authority())?;
    let connecting = endpoint.connect_with(client, address, SERVER_NAME).map_err(|e| wrong_address(e.to_string()))?;
    let ms = limits.connect_time_ms_max;
    let unreachable = || JoinError::Unreachable { address, ms };
    let connected = timeout(Duration::from_millis(ms), connecting).await.map_err(|_| unreachable())?;
    let quinn = connected.map_err(|error| match error {
        ConnectionError::TimedOut => unreachable(),
        ConnectionError::TransportError(error) if lost::alert(error.code) == Some(lost::UNKNOWN_CA) => {
            let reason = PeerError::OtherAuthority { ours: token.cluster().clone() };
            JoinError::Peer { address, reason }
        }
        other => match Lost::from(other) {
            Lost::Alert { alert: lost::NO_APPLICATION_PROTOCOL } => {
                JoinError::Refused { refusal: JoinRefusal::NoAuthority, ours: ground.clock.now() }
            }
            lost => ChannelError::Lost(lost).into(),
        },
    })?;
    let request = JoinRequest { token: token.to_text(), name: name.clone(), role, request: key.request()? };
    let joined = talk(&quinn, &ground, address, token, key, &request, limits).await;
    close(&quinn, CloseCode::Done, "thank you");
    // So that it is told before this end's socket is gone; not for long, whatever it does.
    let _ = timeout(Duration::from_millis(200), endpoint.wait_idle()).await;
    joined
}

async fn talk(
    quinn: &quinn::Connection,
    ground: &Ground,
    address: SocketAddr,
    token: &JoinToken,
    key: Arc<Key>,
    request: &JoinRequest,
    limits: &WireLimits,
) -> Result<Identity, JoinError> {
    let chain = chain(quinn);
    let other = || PeerError::OtherAuthority { ours: token.cluster().clone() };
    let speaks = authority_among(&chain, token.authority()).ok_or_else(other);
    let speaks = speaks.and_then(|trust| trust.identify(&chain, Side::Server, ground.clock.now()));
    speaks.map_err(|reason| JoinError::Peer { address, reason })?;
    let bytes = postcard::to_stdvec(request).map_err(|e| JoinError::Malformed(e.to_string()))?;
    let most = Most { what: "answer", bytes: CERTIFICATES_BYTES_MAX as u32, limit: "a constant" };
    let time = Duration::from_millis(limits.join_time_ms_max);
    let answer = ask(quinn, &[&bytes], most, time).await?;
    let identity = granted(&answer, key, token.authority(), ground.clock.now())?;
    match (identity.own().role, &identity.own().name) == (request.role, &request.name) {
        true => Ok(identity),
        false => Err(JoinError::Malformed(format!("the certificate is for {}", identity.own()))),
    }
}

/// What an answer gives.
pub(super) fn granted(
    answer: &[u8],
    key: Arc<Key>,
    authority: Fingerprint,
    now: Timestamp,
) -> Result<Identity, JoinError> {
    let answer: JoinAnswer = postcard::from_bytes(answer).map_err(|e| JoinError::Malformed(e.to_string()))?;
    let granted = answer.map_err(|refusal| JoinError::Refused { refusal, ours: now })?;
    if granted.clock.apart(now) > Duration::from_secs(CLOCK_SKEW_S_MAX) {
        return Err(JoinError::Clock { ours: now, theirs: granted.clock });
    }
    if Fingerprint::of(&granted.authority) != authority {
        return Err(JoinError::Malformed("it is of another authority".to_owned()));
    }
    Ok(Identity::new(key, granted.certificate, granted.authority, now)?)
}
