//! What a connection carries: channels of frames, and requests with their answers.

mod error;
mod frame_decoder;
mod frames;
mod request;

pub use error::{ChannelError, StopReason};
pub use frames::{FrameReceiver, FrameSender, Frames};
pub use request::IncomingRequest;

pub(crate) use request::{ByteLimit, read_whole, send_request, send_response};
