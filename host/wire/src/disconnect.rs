//! The reason that a connection ended.

use quinn::{ConnectionError, TransportErrorCode, VarInt};

use crate::blame::Blame;
use crate::congestion::bypass_for_close;
use crate::protocol::{CloseCode, REASON_BYTES_MAX};

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DisconnectReason {
    /// The peer closed it with a code and a reason.
    #[error("the peer closed the connection: {reason} [{code}]")]
    Closed {
        /// The peer's close code.
        code: CloseCode,
        /// The peer's reason, with control characters replaced, truncated to 400 bytes.
        reason: String,
    },
    /// The peer's TLS rejected the certificate or the protocols of this end.
    #[error("the peer aborted the handshake: TLS alert {alert}{}", alert_meaning(*alert))]
    Alert {
        /// The TLS alert, as in RFC 8446.
        alert: u8,
    },
    /// Idle timeout: the peer died, or the network failed.
    #[error("the peer sent nothing for too long")]
    Silent,
    /// The peer's process was restarted and does not know the connection (stateless reset).
    #[error("the peer was restarted")]
    Restarted,
    /// This end closed it.
    #[error("this end closed the connection")]
    Local,
    /// A QUIC transport error.
    #[error("QUIC failed: {0}")]
    Transport(String),
}

impl DisconnectReason {
    /// Returns the party at fault.
    pub fn blame(&self) -> Blame {
        match self {
            DisconnectReason::Silent | DisconnectReason::Restarted => Blame::Network,
            DisconnectReason::Local => Blame::Host,
            DisconnectReason::Closed { code: CloseCode::Malformed, .. } => Blame::Host,
            DisconnectReason::Closed { .. } | DisconnectReason::Alert { .. } | DisconnectReason::Transport(_) => {
                Blame::Peer
            }
        }
    }

    /// Returns the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            DisconnectReason::Closed { code, .. } => code.as_str(),
            DisconnectReason::Alert { alert: UNKNOWN_CA } => CloseCode::Untrusted.as_str(),
            DisconnectReason::Alert { .. } => "tls-alert",
            DisconnectReason::Silent => "silent",
            DisconnectReason::Restarted => "restarted",
            DisconnectReason::Local => "closed",
            DisconnectReason::Transport(_) => "transport",
        }
    }

    /// Returns whether reconnecting without a change may succeed.
    pub fn may_retry(&self) -> bool {
        match self {
            DisconnectReason::Closed { code, .. } => code.may_retry(),
            DisconnectReason::Silent | DisconnectReason::Restarted => true,
            DisconnectReason::Alert { .. } | DisconnectReason::Local | DisconnectReason::Transport(_) => false,
        }
    }
}

/// Closes a connection with a code, and a reason for the peer's log, truncated to [`REASON_BYTES_MAX`].
pub(crate) fn close(quinn: &quinn::Connection, code: CloseCode, reason: &str) {
    let number = VarInt::from_u64(code.number()).unwrap_or(VarInt::MAX);
    let cut = (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
    bypass_for_close(quinn);
    quinn.close(number, &reason.as_bytes()[..cut]);
}

/// Extracts the TLS alert from a QUIC error code (RFC 9001, section 4.8).
pub(crate) fn alert(code: TransportErrorCode) -> Option<u8> {
    u64::from(code).checked_sub(0x100).and_then(|alert| u8::try_from(alert).ok())
}

pub(crate) const UNKNOWN_CA: u8 = 48;
pub(crate) const NO_APPLICATION_PROTOCOL: u8 = 120;

fn alert_meaning(alert: u8) -> &'static str {
    match alert {
        42 | 43 => ", it can't parse the certificate",
        UNKNOWN_CA => ", the certificate is not from its cluster's authority; join that cluster first",
        116 => ", it requires a certificate",
        NO_APPLICATION_PROTOCOL => ", it does not support this end's protocol",
        _ => "",
    }
}

/// Decodes a peer's text for display: replaces control characters, which could move a terminal's cursor.
fn printable(reason_bytes: &[u8]) -> String {
    let reason_bytes = &reason_bytes[..reason_bytes.len().min(REASON_BYTES_MAX)];
    String::from_utf8_lossy(reason_bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl From<ConnectionError> for DisconnectReason {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => DisconnectReason::Closed {
                code: close.error_code.into_inner().into(),
                reason: printable(&close.reason),
            },
            // QUIC itself sends this code when it has too many handshakes, or when the endpoint shuts down.
            ConnectionError::ConnectionClosed(close) if close.error_code == TransportErrorCode::CONNECTION_REFUSED => {
                DisconnectReason::Closed { code: CloseCode::Busy, reason: "it accepts no connections now".to_owned() }
            }
            // During a handshake QUIC hides the application's close code, as the client is not authenticated yet.
            ConnectionError::ConnectionClosed(close) if close.error_code == TransportErrorCode::APPLICATION_ERROR => {
                DisconnectReason::Closed {
                    code: CloseCode::Slow,
                    reason: "it gave up the handshake, or is shutting down".to_owned(),
                }
            }
            ConnectionError::ConnectionClosed(close) => match alert(close.error_code) {
                Some(alert) => DisconnectReason::Alert { alert },
                None => DisconnectReason::Transport(printable(close.to_string().as_bytes())),
            },
            ConnectionError::TimedOut => DisconnectReason::Silent,
            ConnectionError::Reset => DisconnectReason::Restarted,
            ConnectionError::LocallyClosed => DisconnectReason::Local,
            other => DisconnectReason::Transport(printable(other.to_string().as_bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_refusal_can_be_retried() {
        let closed = |error_code| {
            let reason = bytes::Bytes::new();
            DisconnectReason::from(ConnectionError::ConnectionClosed(quinn::ConnectionClose {
                error_code,
                frame_type: None,
                reason,
            }))
        };
        for (code, shown, may_retry) in [
            (TransportErrorCode::CONNECTION_REFUSED, "busy", true),
            (TransportErrorCode::APPLICATION_ERROR, "slow", true),
            (TransportErrorCode::PROTOCOL_VIOLATION, "transport", false),
            (TransportErrorCode::crypto(UNKNOWN_CA), "untrusted", false),
        ] {
            assert_eq!((closed(code).code(), closed(code).may_retry()), (shown, may_retry), "{code}");
        }
    }

    #[test]
    fn words_of_peers_are_printable() {
        for (reason_bytes, shown) in [
            (&b"plain"[..], "plain"),
            (b"a\x1b[2Jb\nc", "a [2Jb c"),
            (b"\xff\xfe", "\u{fffd}\u{fffd}"),
            ("über".as_bytes(), "über"),
        ] {
            assert_eq!(printable(reason_bytes), shown);
        }
        assert_eq!(printable(&[b'x'; 2000]).len(), REASON_BYTES_MAX);
    }
}
