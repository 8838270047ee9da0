//! How nodes talk to each other: QUIC between peers that have proved who they are.
//!
//! An [`Authority`] signs who is a node or a tenant of a cluster; who has a [`JoinToken`] gets a certificate by [`join`]. An
//! [`Endpoint`] connects those who have one. A [`Connection`] has channels of [`Frames`], and requests with answers.
//! `protocol.rs` says what goes over the wire.
//!
//! Non-goals: what is said about tasks, who is a member, where objects are stored.

// Nothing that a guest, a peer, a file or a user says may end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod blame;
mod channel;
mod clock;
mod connection;
mod endpoint;
mod identity;
mod limits;
mod lost;
mod name;
mod objects;
mod protocol;
mod router;
mod tls;
mod transfer;

pub use blame::Blame;
pub use channel::{ChannelError, FrameReceiver, FrameSender, Frames, Request, Stop};
pub use clock::{CLOCK_SKEW_S_MAX, Clock, SystemClock, Timestamp};
pub use connection::Connection;
pub use endpoint::{
    Admit, Applicant, BindError, ConnectError, Endpoint, EndpointCounts, Expect, Ground, JoinError, Registry, Revoked,
    SOCKET_BUFFER_BYTES, join, transport_config,
};
pub use identity::{
    Authority, CERTIFICATE_LIFETIME_S, CERTIFICATE_LIFETIME_S_MAX, Grant, Identity, IdentityError, JoinToken, Key,
    NodeFolder, PeerError, TOKEN_LIFETIME_S, TOKEN_LIFETIME_S_MAX, TokenError, Trust,
};
pub use limits::WireLimits;
pub use lost::Lost;
pub use name::{
    ClusterId, Fingerprint, KeyId, NAME_BYTES_MAX, Name, NameError, PeerIdentity, Role, Serial, Subject, TokenId,
};
pub use protocol::{Channel, CloseCode, JOIN_ALPN, JoinRefusal, PROTOCOL_VERSION};
pub use transfer::*;
