//! What is said on the wire, and the numbers that stand for it.
//!
//! # Goals
//! Peers know who the other is before either says anything; what a stranger can make a node do or hold is bounded; two
//! versions that do not understand each other say so, by number; nothing that is bulk holds up what is not.
//!
//! # Layers
//! QUIC version 1 with TLS 1.3 and nothing older, X25519, Ed25519. Both ends show a certificate of the cluster's authority;
//! a certificate's only URI is `sandbar://<cluster>/<node or tenant>/<name>`. No session is resumed and no data sent
//! early: both would pass over what a certificate says now. Connections do not move to other addresses.
//!
//! # Versions
//! The application protocol (ALPN) is `sandbar/<version>`, a number from 1 to 255, and a client offers its own alone. A
//! server completes the handshake with each of them: so it learns the client's. Where that is not its own it closes
//! with [`CloseCode::Version`] and a reason that begins with its own protocol, `sandbar/3`, by which the client learns the
//! other. So all versions keep the handshake, this close code, and the beginning of its reason.
//!
//! # Being let in
//! TLS lets through what the authority signed, whatever the time. Then each end looks at the other's certificate once
//! more, and now at its time, its role, its name, and whether it was revoked, and closes with a code and a reason where
//! that is not as it should be. A server that has found nothing opens a unidirectional stream and writes [`WELCOME`];
//! a client counts itself connected when it has read that. Until then a client may send
//! [`handshake_window_bytes`](crate::WireLimits::handshake_window_bytes) and open one stream, and nobody looks at it.
//!
//! # Streams
//! All are bidirectional, but for the welcome. The first byte says what a stream is, and has to come soon:
//!
//! | first byte | what follows |
//! |---|---|
//! | 0 to 63 | the channel of that number: frames both ways, for as long as both like |
//! | 64 | a request; then the end. The answer; then the end |
//! | 65 | to renew: as 64, with a [`RenewRequest`]; the answer is a [`JoinAnswer`] |
//! | 66 | a newer certificate of who opens it, in postcard; then the end. No answer |
//! | 96 to 255 | what the other half of this room makes of it: `t`, 116, is a transfer |
//!
//! A frame is its length, 4 bytes with the least one first, and so many bytes. A length over
//! [`frame_bytes_max`](crate::WireLimits::frame_bytes_max) closes the connection with [`CloseCode::Malformed`] before
//! anything is allocated, and so does a first byte that is none of these.
//!
//! Channel 0 goes first, then 1 and so on, then requests, then all else ([`Channel::priority`], [`REQUEST_PRIORITY`]).
//!
//! # Joining
//! Who has no certificate yet has a join token: it connects with [`JOIN_ALPN`], a certificate that it signed itself, and
//! no claim to be anybody. The server's chain ends with the authority's certificate, whose fingerprint the token names: a
//! client that finds another says nothing. One stream, no first byte: a [`JoinRequest`], the end; a [`JoinAnswer`], the end.
//! Who has a certificate renews it over a connection, without a token, and with the same key.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::identity::TokenError;
use crate::name::{Name, Role};

/// The version that is spoken here.
pub const PROTOCOL_VERSION: u8 = 1;

const ALPN: &str = "sandbar/";
/// The application protocol of those who have no certificate yet.
pub const JOIN_ALPN: &str = "sandbar-join/1";

/// What a server writes when it has let a client in.
pub const WELCOME: u8 = 1;
/// Requests, among streams: behind all channels, before all else.
pub const REQUEST_PRIORITY: i32 = 1;

pub(crate) const REQUEST: u8 = 64;
pub(crate) const RENEW: u8 = 65;
pub(crate) const NEWER: u8 = 66;
/// Streams from this first byte on are handed on as they are.
pub(crate) const RAW: u8 = 96;

/// Messages about certificates are no longer than this, in bytes: a chain is two certificates of about 500.
pub(crate) const CERTIFICATES_BYTES_MAX: usize = 8 << 10;
/// Reasons are cut to this, in bytes, when they are sent and when they are read.
pub(crate) const REASON_BYTES_MAX: usize = 400;

/// Every version's protocol, in the order in which a server looks for them.
pub(crate) fn versions() -> impl Iterator<Item = Vec<u8>> {
    (1..=u8::MAX).map(|version| alpn(version).into_bytes())
}

/// The application protocol of a version.
pub(crate) fn alpn(version: u8) -> String {
    format!("{ALPN}{version}")
}

/// The version in a protocol, or at the beginning of a reason.
pub(crate) fn version_of(text: &[u8]) -> Option<u8> {
    let rest = text.strip_prefix(ALPN.as_bytes())?;
    let digits = rest.iter().position(|c| !c.is_ascii_digit()).unwrap_or(rest.len());
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// A channel of a connection. What the numbers stand for is for those who open them: the lower, the sooner it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel(u8);

impl Channel {
    /// How many there are.
    pub const COUNT: u8 = 64;

    /// One of the channels.
    ///
    /// # Panics
    /// Where there is none of that number. Channels are constants.
    pub const fn new(number: u8) -> Channel {
        assert!(number < Channel::COUNT, "channels are numbered from 0 to 63");
        Channel(number)
    }

    /// Which one.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Among the streams of a connection; the highest is sent first.
    pub fn priority(self) -> i32 {
        i32::from(Channel::COUNT - self.0) + REQUEST_PRIORITY
    }

    pub(crate) fn of_head(head: u8) -> Option<Channel> {
        (head < Channel::COUNT).then_some(Channel(head))
    }
}

macro_rules! close_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a connection was closed. The numbers are what is sent, and never change their meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum CloseCode {
            $($(#[$doc])* $name,)*
            /// A number that is none of these.
            Other(u64),
        }

        impl CloseCode {
            /// Every code that is sent.
            pub const ALL: &'static [CloseCode] = &[$(CloseCode::$name),*];

            /// The number that is sent.
            pub fn number(self) -> u64 {
                match self {
                    $(CloseCode::$name => $number,)*
                    CloseCode::Other(number) => number,
                }
            }

            /// The stable text of the code.
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
    /// Nobody needs it any more.
    Done = 0, "done";
    /// The end that closed stops. Come back later.
    Stopping = 1, "stopping";
    /// The ends speak different versions: the reason begins with that of the end that closed. Update one of them.
    Version = 2, "version";
    /// The certificate is not of this cluster's authority, or does not say who it is for. Join the cluster.
    Untrusted = 3, "untrusted";
    /// The certificate has ended or not begun, by the clock of the end that closed, which the reason shows. Set the
    /// clock, renew or join again.
    Expired = 4, "expired";
    /// The certificate or its name was revoked: the node was removed. Join again, if that was not meant.
    Revoked = 5, "revoked";
    /// A tenant came where a node is due, or the other way round.
    Role = 6, "role";
    /// Somebody else than expected. The address is wrong, or was given to another.
    Name = 7, "name";
    /// The same name connected again, or has a newer certificate. Who gets this does not connect again by itself: two
    /// processes with one identity would push each other out for ever.
    Replaced = 8, "replaced";
    /// There are as many connections as there may be. Come back later.
    Busy = 9, "busy";
    /// What was sent is not this protocol. One of the ends has a fault.
    Malformed = 10, "malformed";
    /// What had to come did not come in time.
    Slow = 11, "slow";
}

impl CloseCode {
    /// Whether to connect again by itself may help.
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

/// Why a stream was stopped or reset. Numbers of their own: a stream is not its connection.
pub(crate) mod stream_code {
    /// Nobody is interested any more.
    pub(crate) const DROPPED: u32 = 0;
    /// There are as many as there may be.
    pub(crate) const BUSY: u32 = 1;
    /// More bytes than there may be.
    pub(crate) const TOO_LONG: u32 = 2;
    /// It did not come in time.
    pub(crate) const SLOW: u32 = 3;
    /// Nobody here does what was asked for.
    pub(crate) const NOBODY: u32 = 4;
}

/// What a stranger asks for.
#[derive(Clone, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The token, as text. It is a secret.
    pub token: String,
    /// As what. It has to be the token's.
    pub role: Role,
    /// Under which name. A tenant's has to be the token's.
    pub name: Name,
    /// A certificate signing request (PKCS #10, DER) with the key of the connection.
    pub request: Vec<u8>,
}

/// What a peer asks for that has a certificate.
#[derive(Clone, Serialize, Deserialize)]
pub struct RenewRequest {
    /// A certificate signing request (PKCS #10, DER) with the key of the connection.
    pub request: Vec<u8>,
}

/// What comes of it.
pub type JoinAnswer = Result<Granted, JoinRefusal>;

/// A certificate, and all that proves it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Granted {
    /// The certificate (DER).
    pub certificate: Vec<u8>,
    /// The authority's (DER).
    pub authority: Vec<u8>,
    /// The clock of who granted it.
    pub clock: Timestamp,
}

/// Why there is no certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum JoinRefusal {
    /// The token does not allow it.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The request is malformed, or is not for the key of the connection.
    #[error("the certificate signing request is no good: {0}")]
    Request(String),
    /// The name can't be had.
    #[error("the name {name:?} can't be had: {reason}")]
    Name {
        /// Which.
        name: Name,
        /// Why not.
        reason: String,
    },
    /// It got a certificate just now.
    #[error("there was a certificate just now; ask again in some seconds")]
    Busy,
    /// The node has no authority.
    #[error("that node does not have the cluster's authority; ask one that does")]
    NoAuthority,
    /// The node could not do it.
    #[error("that node failed: {0}")]
    Host(String),
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
            ("sandbar-join/1", None),
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
