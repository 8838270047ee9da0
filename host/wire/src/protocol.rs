//! The wire protocol: its versions, streams, close codes and join messages.
//!
//! # Goals
//! Peers authenticate each other before either sends application data. Resources that an unauthenticated client can use
//! are bounded. Incompatible versions report each other's number. Bulk data never delays control messages.
//!
//! # Layers
//! QUIC version 1 with TLS 1.3 only, X25519 and Ed25519. Both ends present a certificate of the cluster's authority,
//! whose only URI is `sandbar://<cluster>/node/<name>` or
//! `sandbar://<cluster>/tenant/<name>/<role in the tenant>/<token>`. Session resumption and 0-RTT data are disabled, as
//! both would bypass the current certificate. Connections do not migrate to other addresses.
//!
//! # Versions
//! The application protocol (ALPN) is `sandbar/<version>`, with a version from 1 to 255. A client offers only its own.
//! A server completes the handshake with every version, and so learns the client's. If it differs, the server closes
//! with [`CloseCode::Version`] and a reason that begins with its own protocol, such as `sandbar/4`, from which the
//! client learns the server's version. All versions therefore keep the handshake, this close code, and the beginning of
//! its reason.
//!
//! # Admission
//! TLS accepts every certificate that the authority signed, whatever the time. Afterwards each end checks the validity
//! period, role, name and revocation of the other's certificate, and closes with a code and a reason if a check fails.
//! A server that admits a client opens a unidirectional stream and writes [`WELCOME`]; the client is connected once it
//! has read that byte. Until then a client may send
//! [`handshake_window_bytes`](crate::WireLimits::handshake_window_bytes) on one stream, which the server does not read.
//!
//! # Streams
//! All streams but the welcome are bidirectional. The first byte is the stream's kind and must arrive within
//! [`stream_head_ms_max`](crate::WireLimits::stream_head_ms_max):
//!
//! | first byte | content |
//! |---|---|
//! | 0 to 63 | the channel with that number: frames in both directions, until each end finishes |
//! | 64 | a request, then the end; back: the answer, then the end |
//! | 65 | a renewal: like 64, with a [`RenewRequest`] and a [`JoinResponse`] |
//! | 66 | the opener's newer certificate in postcard, then the end; no answer |
//! | 96 to 255 | handled by another module of this crate: `t`, 116, is a transfer |
//!
//! A frame is its length, 4 bytes little-endian, and that many bytes. A length over
//! [`frame_bytes_max`](crate::WireLimits::frame_bytes_max) closes the connection with [`CloseCode::Malformed`] before
//! any allocation; so does any other first byte.
//!
//! Channel 0 has the highest priority, then channels 1 to 63, then requests, then everything else
//! ([`Channel::priority`], [`REQUEST_PRIORITY`]).
//!
//! # Joining
//! A client without a certificate has a join token. It connects with [`JOIN_ALPN`] and a self-signed certificate that
//! names no identity. The server's chain ends with the authority's certificate, whose fingerprint the token contains; a
//! client that finds another authority sends nothing. One stream, without a first byte, carries a [`JoinRequest`] and
//! back a [`JoinResponse`], each until the end of the stream. A client that has a certificate renews it over a
//! connection, without a token and with the same key.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::identity::TokenError;
use crate::name::{Name, Role};

/// Protocol version of this program.
pub const PROTOCOL_VERSION: u8 = 4;

const ALPN: &str = "sandbar/";
/// Application protocol of clients that have no certificate yet.
pub const JOIN_ALPN: &str = "sandbar-join/2";

/// Byte that a server writes when it has admitted a client.
pub const WELCOME: u8 = 1;
/// Stream priority of requests: below all channels, above everything else.
pub const REQUEST_PRIORITY: i32 = 1;

pub(crate) const REQUEST: u8 = 64;
pub(crate) const RENEW: u8 = 65;
pub(crate) const NEWER: u8 = 66;
/// First bytes from here on are handled by other modules of this crate.
pub(crate) const RAW: u8 = 96;

/// Maximum bytes of a message about certificates. A chain is two certificates of about 500 bytes each.
pub(crate) const CERTIFICATES_BYTES_MAX: usize = 8 << 10;
/// Maximum bytes of a close reason. Longer reasons are truncated when sent and when received.
pub(crate) const REASON_BYTES_MAX: usize = 400;

/// Returns the application protocols of all versions, in the server's order of preference.
pub(crate) fn versions() -> impl Iterator<Item = Vec<u8>> {
    (1..=u8::MAX).map(|version| alpn(version).into_bytes())
}

/// Returns the application protocol of a version.
pub(crate) fn alpn(version: u8) -> String {
    format!("{ALPN}{version}")
}

/// Parses the version of an application protocol, or of a reason that begins with one.
pub(crate) fn version_of(text: &[u8]) -> Option<u8> {
    let rest = text.strip_prefix(ALPN.as_bytes())?;
    let digits = rest.iter().position(|c| !c.is_ascii_digit()).unwrap_or(rest.len());
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// A channel number of a connection. Its meaning is the application's; lower numbers are sent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel(u8);

impl Channel {
    /// Number of channels.
    pub const COUNT: u8 = 64;

    /// Creates a channel number in a constant.
    ///
    /// # Panics
    /// If `number` is 64 or more.
    pub const fn new(number: u8) -> Channel {
        assert!(number < Channel::COUNT, "channels are numbered from 0 to 63");
        Channel(number)
    }

    /// Returns the number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Returns the stream's priority; QUIC sends higher ones first.
    pub fn priority(self) -> i32 {
        i32::from(Channel::COUNT - self.0) + REQUEST_PRIORITY
    }

    pub(crate) fn of_head(head: u8) -> Option<Channel> {
        (head < Channel::COUNT).then_some(Channel(head))
    }
}

macro_rules! close_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a connection was closed. The numbers are the wire format and never change their meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum CloseCode {
            $($(#[$doc])* $name,)*
            /// A number that this version does not know.
            Other(u64),
        }

        impl CloseCode {
            /// Every code that this version sends.
            pub const ALL: &'static [CloseCode] = &[$(CloseCode::$name),*];

            /// Returns the number on the wire.
            pub fn number(self) -> u64 {
                match self {
                    $(CloseCode::$name => $number,)*
                    CloseCode::Other(number) => number,
                }
            }

            /// Returns the stable text of the code.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(CloseCode::$name => $text,)*
                    CloseCode::Other(_) => "other",
                }
            }
        }

        impl From<u64> for CloseCode {
            fn from(number: u64) -> Self {
                match number {
                    $($number => CloseCode::$name,)*
                    _ => CloseCode::Other(number),
                }
            }
        }
    };
}

close_codes! {
    /// The connection is no longer needed.
    Done = 0, "done";
    /// The closing end shuts down. Retry later.
    Stopping = 1, "stopping";
    /// The ends have different protocol versions; the reason begins with the closing end's. Update one of them.
    Version = 2, "version";
    /// The certificate is not of this cluster's authority, or names no identity. Join the cluster.
    Untrusted = 3, "untrusted";
    /// The certificate is expired or not yet valid, by the closing end's clock, which the reason shows. Set the clock,
    /// renew or join again.
    Expired = 4, "expired";
    /// The certificate is revoked: the node or the tenant was removed, or the tenant's token was revoked.
    Revoked = 5, "revoked";
    /// The peer is a tenant where a node is expected, or the other way round.
    Role = 6, "role";
    /// The peer has another name than expected. The address is wrong or was reassigned.
    Name = 7, "name";
    /// The same name connected again, has a newer certificate, or is connected with another key. The closed end must not
    /// reconnect automatically: two processes with one identity would replace each other forever.
    Replaced = 8, "replaced";
    /// The connection limit is reached. Retry later.
    Busy = 9, "busy";
    /// The data violates the protocol. One of the ends has a bug.
    Malformed = 10, "malformed";
    /// A deadline passed.
    Slow = 11, "slow";
}

impl CloseCode {
    /// Returns whether reconnecting without a change may succeed.
    pub fn may_retry(self) -> bool {
        matches!(self, CloseCode::Done | CloseCode::Stopping | CloseCode::Busy | CloseCode::Slow)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseCode::Other(number) => write!(f, "code {number}"),
            known => f.write_str(known.as_str()),
        }
    }
}

/// Why a stream was stopped or reset. These numbers are independent of [`CloseCode`].
pub(crate) mod stream_code {
    /// The receiver no longer needs the stream.
    pub(crate) const DROPPED: u32 = 0;
    /// A limit on concurrent streams is reached.
    pub(crate) const BUSY: u32 = 1;
    /// The content exceeds its maximum length.
    pub(crate) const TOO_LONG: u32 = 2;
    /// A deadline passed.
    pub(crate) const SLOW: u32 = 3;
    /// The receiver does not handle this kind of stream, or dropped the request.
    pub(crate) const UNHANDLED: u32 = 4;
}

/// A client's request for its first certificate.
#[derive(Clone, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The token, as text. It is a secret.
    pub token: String,
    /// Requested role. It must match the token's.
    pub role: Role,
    /// Requested name. For a tenant it must match the token's.
    pub name: Name,
    /// Certificate signing request (PKCS #10, DER) for the connection's key.
    pub request: Vec<u8>,
}

/// A connected peer's request for its next certificate.
#[derive(Clone, Serialize, Deserialize)]
pub struct RenewRequest {
    /// Certificate signing request (PKCS #10, DER) for the connection's key.
    pub request: Vec<u8>,
}

/// Answer to a [`JoinRequest`] or a [`RenewRequest`].
pub type JoinResponse = Result<IssuedCertificate, JoinRefusal>;

/// An issued certificate and the certificate of its authority.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IssuedCertificate {
    /// The certificate (DER).
    pub certificate: Vec<u8>,
    /// The authority's certificate (DER).
    pub authority: Vec<u8>,
    /// The issuing node's clock.
    pub clock: Timestamp,
}

/// Why no certificate was issued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum JoinRefusal {
    /// The token does not allow it.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The signing request is malformed, or is for another key than the connection's.
    #[error("the certificate signing request is invalid: {0}")]
    Request(String),
    /// The name is not available.
    #[error("the name {name:?} is not available: {reason}")]
    Name {
        /// The requested name.
        name: Name,
        /// The reason.
        reason: String,
    },
    /// The peer's last renewal is less than a second ago.
    #[error("a certificate was issued less than a second ago; retry in some seconds")]
    Busy,
    /// The node does not have the authority's key.
    #[error("that node does not have the cluster's authority; ask one that does")]
    NoAuthority,
    /// The node failed to issue it.
    #[error("that node failed: {0}")]
    Host(String),
    /// The node can't read or write the cluster's state now.
    #[error("that node can't reach the cluster's store now, retry later: {0}")]
    Unavailable(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_codes_keep_their_numbers() {
        for (number, code) in CloseCode::ALL.iter().enumerate() {
            assert_eq!(CloseCode::from(number as u64), *code);
            assert_eq!(code.number(), number as u64);
        }
        let more = CloseCode::ALL.len() as u64;
        assert_eq!(CloseCode::from(more), CloseCode::Other(more));
    }

    #[test]
    fn versions_are_read() {
        for (text, version) in [
            ("sandbar/1", Some(1)),
            ("sandbar/255", Some(255)),
            ("sandbar/256", None),
            ("sandbar/3 is spoken here", Some(3)),
            ("sandbar/", None),
            ("sandbar/x", None),
            ("sandbar-join/2", None),
            ("h3", None),
            ("", None),
        ] {
            assert_eq!(version_of(text.as_bytes()), version, "{text}");
        }
        assert!(versions().all(|protocol| version_of(&protocol).is_some()));
    }

    #[test]
    fn control_comes_before_requests_and_these_before_bulk() {
        let priorities: Vec<i32> = (0..Channel::COUNT).map(|n| Channel::new(n).priority()).collect();
        assert!(priorities.is_sorted_by(|a, b| a > b));
        assert!(priorities.iter().all(|p| *p > REQUEST_PRIORITY) && REQUEST_PRIORITY > 0);
    }
}
