//! Transfers end to end, over loopback.

mod fetch;
mod hostile;
mod loopback;
mod partial;
mod random;
mod serve;
mod small;
mod world;

use super::{SOCKET_BUFFER_BYTES, TransferTransport, endpoint_for_transfer};
