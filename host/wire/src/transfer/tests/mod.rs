//! End-to-end tests of transfers over loopback.

mod fetch;
mod hostile;
mod loopback;
mod partial;
mod random;
mod serve;
mod small;
mod world;

use crate::{SOCKET_BUFFER_BYTES, WireLimits};
