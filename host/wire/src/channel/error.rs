//! What can go wrong with a channel or a request.

use quinn::{ConnectionError, ReadError, WriteError};

use crate::blame::Blame;
use crate::lost::Lost;
use crate::protocol::stream_code;

/// Why a frame, a request or an answer did not go through.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The connection is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The other end wants no more of this channel, or does not do what was asked for.
    #[error("the peer stopped it: {0}")]
    Stopped(Stop),
    /// The other end sent something longer than there may be.
    #[error("a {what} of {bytes} bytes came, and {most} are the most (`wire.{limit}`)")]
    TooLong {
        /// Which: frame, request, answer.
        what: &'static str,
        /// Its bytes, as far as they are known.
        bytes: u64,
        /// The most.
        most: u64,
        /// The limit.
        limit: &'static str,
    },
    /// This end would send something longer than there may be.
    #[error("a {what} of {bytes} bytes is more than {most} (`wire.{limit}`); send it in parts")]
    Oversized {
        /// Which.
        what: &'static str,
        /// Its bytes.
        bytes: u64,
        /// The most.
        most: u64,
        /// The limit.
        limit: &'static str,
    },
    /// It ended in the middle.
    #[error("the peer ended a channel in the middle of a frame")]
    Cut,
    /// It did not come in time.
    #[error("{what} did not come whole within {ms} ms (`wire.{limit}`)")]
    Slow {
        /// What.
        what: &'static str,
        /// How long it was waited for.
        ms: u64,
        /// The limit.
        limit: &'static str,
    },
}

/// Why a stream was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Nobody is interested any more.
    #[error("nobody is interested any more")]
    Dropped,
    /// There are as many as there may be.
    #[error("it has as many as it may")]
    Busy,
    /// It was too long.
    #[error("it was too long")]
    TooLong,
    /// It did not come in time.
    #[error("it did not come in time")]
    Slow,
    /// Nobody there does that.
    #[error("nobody there does that")]
    Nobody,
}

impl ChannelError {
    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            ChannelError::Lost(lost) => lost.blame(),
            ChannelError::Oversized { .. } => Blame::Host,
            _ => Blame::Peer,
        }
    }

    /// The stable text of what happened.
    pub fn code(&self) -> &'static str {
        match self {
            ChannelError::Lost(lost) => lost.code(),
            ChannelError::Stopped(_) => "stopped",
            ChannelError::TooLong { .. } => "too-long",
            ChannelError::Oversized { .. } => "oversized",
            ChannelError::Cut => "cut",
            ChannelError::Slow { .. } => "slow",
        }
    }
}

impl From<u64> for Stop {
    fn from(code: u64) -> Self {
        match u32::try_from(code) {
            Ok(stream_code::BUSY) => Stop::Busy,
            Ok(stream_code::TOO_LONG) => Stop::TooLong,
            Ok(stream_code::SLOW) => Stop::Slow,
            Ok(stream_code::NOBODY) => Stop::Nobody,
            _ => Stop::Dropped,
        }
    }
}

impl From<ConnectionError> for ChannelError {
    fn from(error: ConnectionError) -> Self {
        ChannelError::Lost(error.into())
    }
}

impl From<WriteError> for ChannelError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => ChannelError::Stopped(code.into_inner().into()),
            WriteError::ConnectionLost(lost) => lost.into(),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => ChannelError::Stopped(Stop::Dropped),
        }
    }
}

impl From<ReadError> for ChannelError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => ChannelError::Stopped(code.into_inner().into()),
            ReadError::ConnectionLost(lost) => lost.into(),
            ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => {
                ChannelError::Stopped(Stop::Dropped)
            }
        }
    }
}
