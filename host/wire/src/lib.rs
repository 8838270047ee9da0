//! QUIC between authenticated nodes and tenants of a cluster: certificates, framed channels, requests, and object
//! transfers.
//!
//! An [`Authority`] signs the certificates of a cluster's nodes and tenants; [`join`] exchanges a [`JoinToken`] for a
//! certificate. An [`Endpoint`] connects peers that have certificates. A [`Connection`] carries channels of [`Frames`],
//! and requests with their answers. `protocol.rs` documents the wire format.
//!
//! Non-goals: the content of task messages, cluster membership, and object storage.

// Input from a guest, a peer, a file or a user must never panic this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod blame;
mod channel;
mod clock;
mod congestion;
mod connection;
mod connection_state;
mod disconnect;
mod encoding;
mod endpoint;
mod identity;
mod incoming_queues;
mod limits;
mod name;
mod objects;
mod protocol;
mod router;
mod tls;
mod transfer;

pub use blame::Blame;
pub use channel::{ChannelError, FrameReceiver, FrameSender, Frames, IncomingRequest, StopReason};
pub use clock::{CLOCK_SKEW_S_MAX, Clock, SystemClock, Timestamp};
pub use connection::Connection;
pub use disconnect::DisconnectReason;
pub use endpoint::{
    AcceptedTenants, AccessList, Applicant, BindError, CertificateIssuer, ConnectError, Endpoint, EndpointCounts,
    EndpointEnvironment, ExpectedPeer, JoinError, JoinPolicy, ReachError, SOCKET_BUFFER_BYTES, join, transport_config,
};
#[doc(hidden)]
pub use identity::fuzz_join_token;
pub use identity::{
    Authority, CERTIFICATE_LIFETIME_S, CERTIFICATE_LIFETIME_S_MAX, Identity, IdentityError, JoinGrant, JoinToken, Key,
    NodeFolder, PeerError, SigningKey, TOKEN_LIFETIME_S, TOKEN_LIFETIME_S_MAX, TokenError, TrustAnchor,
};
pub use limits::WireLimits;
pub use name::{
    ClusterId, Fingerprint, KeyId, NAME_BYTES_MAX, Name, NameError, PeerIdentity, Principal, PublicKey, Role, Serial,
    Signature, Subject, TenantAccess, TenantRole, TokenId,
};
pub use protocol::{Channel, CloseCode, JOIN_ALPN, JoinRefusal, PROTOCOL_VERSION};
pub use transfer::*;
