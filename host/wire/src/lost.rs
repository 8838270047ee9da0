//! How a connection ended.

use quinn::{ConnectionError, TransportErrorCode};

use crate::blame::Blame;
use crate::protocol::{CloseCode, REASON_BYTES_MAX};

/// Why there is no connection any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The other end closed it, with a code and words of its own.
    #[error("the peer closed the connection and says: {reason} [{code}]")]
    Closed {
        /// Why.
        code: CloseCode,
        /// In its words: made printable, and cut.
        reason: String,
    },
    /// The other end's TLS did not take what this end showed or offered.
    #[error("the peer broke the handshake off: TLS alert {alert}{}", alert_meaning(*alert))]
    Alert {
        /// The alert, as in RFC 8446.
        alert: u8,
    },
    /// Nothing came for too long: it died, or what lies between did.
    #[error("nothing came from the peer for too long")]
    Silent,
    /// The other end was started anew, and knows nothing of the connection.
    #[error("the peer was started anew")]
    Restarted,
    /// This end closed it.
    #[error("this end closed the connection")]
    Local,
    /// The other end is no QUIC that this end understands.
    #[error("QUIC failed: {0}")]
    Transport(String),
}

impl Lost {
    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            Lost::Silent | Lost::Restarted => Blame::Network,
            Lost::Local => Blame::Host,
            Lost::Closed { code: CloseCode::Malformed, .. } => Blame::Host,
            Lost::Closed { .. } | Lost::Alert { .. } | Lost::Transport(_) => Blame::Peer,
        }
    }

    /// The stable text of what happened.
    pub fn code(&self) -> &'static str {
        match self {
            Lost::Closed { code, .. } => code.as_str(),
            Lost::Alert { alert: UNKNOWN_CA } => CloseCode::Untrusted.as_str(),
            Lost::Alert { .. } => "tls-alert",
            Lost::Silent => "silent",
            Lost::Restarted => "restarted",
            Lost::Local => "closed",
            Lost::Transport(_) => "transport",
        }
    }

    /// Whether to connect again by itself may help.
    pub fn may_retry(&self) -> bool {
        match self {
            Lost::Closed { code, .. } => code.may_retry(),
            Lost::Silent | Lost::Restarted => true,
            Lost::Alert { .. } | Lost::Local | Lost::Transport(_) => false,
        }
    }
}

/// The alert in QUIC's error code, RFC 9001 4.8.
pub(crate) fn alert(code: TransportErrorCode) -> Option<u8> {
    u64::from(code).checked_sub(0x100).and_then(|alert| u8::try_from(alert).ok())
}

pub(crate) const UNKNOWN_CA: u8 = 48;
pub(crate) const NO_APPLICATION_PROTOCOL: u8 = 120;

fn alert_meaning(alert: u8) -> &'static str {
    match alert {
        42 | 43 => ", it can't read the certificate",
        UNKNOWN_CA => ", the certificate is not of its cluster's authority; join that cluster first",
        116 => ", it wants a certificate",
        NO_APPLICATION_PROTOCOL => ", it does not do what this end asks for",
        _ => "",
    }
}

/// Words of a peer, for people: without what would move a terminal's cursor.
fn printable(words: &[u8]) -> String {
    let words = &words[..words.len().min(REASON_BYTES_MAX)];
    String::from_utf8_lossy(words).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl From<ConnectionError> for Lost {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) => {
                Lost::Closed { code: close.error_code.into_inner().into(), reason: printable(&close.reason) }
            }
            // Of QUIC itself, where there are too many handshakes, or the endpoint is about to be gone.
            ConnectionError::ConnectionClosed(close) if close.error_code == TransportErrorCode::CONNECTION_REFUSED => {
                Lost::Closed { code: CloseCode::Busy, reason: "it takes nobody in now".to_owned() }
            }
            // QUIC does not show the code of who closes during a handshake: to nobody in particular then.
            ConnectionError::ConnectionClosed(close) if close.error_code == TransportErrorCode::APPLICATION_ERROR => {
                Lost::Closed { code: CloseCode::Slow, reason: "it gave the handshake up, or stops".to_owned() }
            }
            ConnectionError::ConnectionClosed(close) => match alert(close.error_code) {
                Some(alert) => Lost::Alert { alert },
                None => Lost::Transport(printable(close.to_string().as_bytes())),
            },
            ConnectionError::TimedOut => Lost::Silent,
            ConnectionError::Reset => Lost::Restarted,
            ConnectionError::LocallyClosed => Lost::Local,
            other => Lost::Transport(printable(other.to_string().as_bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_nobody_in_now_may_later() {
        let closed = |error_code| {
            let reason = bytes::Bytes::new();
            Lost::from(ConnectionError::ConnectionClosed(quinn::ConnectionClose {
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
        for (words, shown) in [
            (&b"plain"[..], "plain"),
            (b"a\x1b[2Jb\nc", "a [2Jb c"),
            (b"\xff\xfe", "\u{fffd}\u{fffd}"),
            ("über".as_bytes(), "über"),
        ] {
            assert_eq!(printable(words), shown);
        }
        assert_eq!(printable(&[b'x'; 2000]).len(), REASON_BYTES_MAX);
    }
}
