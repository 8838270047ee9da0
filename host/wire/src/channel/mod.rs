//! What goes over a connection: frames of channels, and requests with their answers.

mod error;
mod frames;
mod request;
mod unframe;

pub use error::{ChannelError, Stop};
pub use frames::{FrameReceiver, FrameSender, Frames};
pub use request::Request;

pub(crate) use request::{Most, ask, read_whole, tell};
