//! Errors of channels and requests.

use quinn::{ConnectionError, ReadError, WriteError};

use crate::blame::Blame;
use crate::disconnect::DisconnectReason;
use crate::protocol::stream_code;

/// Why a frame, a request or an answer was not delivered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The connection ended.
    #[error(transparent)]
    Disconnected(#[from] DisconnectReason),
    /// The peer stopped the stream.
    #[error("the peer stopped the stream: {0}")]
    Stopped(StopReason),
    /// The peer sent more than the limit allows.
    #[error("{kind} too long: {bytes} bytes received, at most {max} allowed (`wire.{limit}`)")]
    TooLong {
        /// Kind of message: frame, request or answer.
        kind: &'static str,
        /// Its length in bytes, as far as known.
        bytes: u64,
        /// Maximum length in bytes.
        max: u64,
        /// Name of the limit.
        limit: &'static str,
    },
    /// This end tried to send more than the limit allows.
    #[error("{kind} too long: {bytes} bytes, at most {max} allowed (`wire.{limit}`); send it in parts")]
    Oversized {
        /// Kind of message.
        kind: &'static str,
        /// Its length in bytes.
        bytes: u64,
        /// Maximum length in bytes.
        max: u64,
        /// Name of the limit.
        limit: &'static str,
    },
    /// The stream ended in the middle of a frame.
    #[error("the peer ended a channel in the middle of a frame")]
    Truncated,
    /// A deadline passed.
    #[error("{kind} did not arrive completely within {ms} ms (`wire.{limit}`)")]
    Slow {
        /// Kind of message.
        kind: &'static str,
        /// Time waited, in milliseconds.
        ms: u64,
        /// Name of the limit.
        limit: &'static str,
    },
}

/// Why the peer stopped a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// The peer no longer needs the stream.
    #[error("it is no longer needed")]
    Dropped,
    /// A limit on concurrent streams is reached.
    #[error("its limit of streams is reached")]
    Busy,
    /// The content was too long.
    #[error("it was too long")]
    TooLong,
    /// The content was too slow.
    #[error("it was too slow")]
    Slow,
    /// The peer does not handle this kind of stream.
    #[error("it does not handle this kind of stream")]
    Unhandled,
}

impl ChannelError {
    /// Returns the party at fault.
    pub fn blame(&self) -> Blame {
        match self {
            ChannelError::Disconnected(lost) => lost.blame(),
            ChannelError::Oversized { .. } => Blame::Host,
            _ => Blame::Peer,
        }
    }

    /// Returns the stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            ChannelError::Disconnected(lost) => lost.code(),
            ChannelError::Stopped(_) => "stopped",
            ChannelError::TooLong { .. } => "too-long",
            ChannelError::Oversized { .. } => "oversized",
            ChannelError::Truncated => "cut",
            ChannelError::Slow { .. } => "slow",
        }
    }
}

impl From<u64> for StopReason {
    fn from(code: u64) -> Self {
        match u32::try_from(code) {
            Ok(stream_code::BUSY) => StopReason::Busy,
            Ok(stream_code::TOO_LONG) => StopReason::TooLong,
            Ok(stream_code::SLOW) => StopReason::Slow,
            Ok(stream_code::UNHANDLED) => StopReason::Unhandled,
            _ => StopReason::Dropped,
        }
    }
}

impl From<ConnectionError> for ChannelError {
    fn from(error: ConnectionError) -> Self {
        ChannelError::Disconnected(error.into())
    }
}

impl From<WriteError> for ChannelError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => ChannelError::Stopped(code.into_inner().into()),
            WriteError::ConnectionLost(lost) => lost.into(),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => ChannelError::Stopped(StopReason::Dropped),
        }
    }
}

impl From<ReadError> for ChannelError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => ChannelError::Stopped(code.into_inner().into()),
            ReadError::ConnectionLost(lost) => lost.into(),
            ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => {
                ChannelError::Stopped(StopReason::Dropped)
            }
        }
    }
}
