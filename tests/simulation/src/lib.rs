//! QUIC over a simulated network: the environment of `host/wire` endpoints in a simulation.
//!
//! turmoil moves datagrams between hosts, each with a paused tokio clock. [`Socket`] passes them to QUIC, and drops,
//! duplicates, damages and delays some of them, as [`NetworkFaults`] and a seed determine.
//!
//! A seed reproduces the sender, time, length and delivery of all datagrams, and so everything that the nodes do. It does
//! not reproduce the bytes of keys, certificates and packets, as secrets always use system randomness; their lengths are
//! reproducible.

mod clock;
mod net;
mod random;
mod socket;

pub use clock::SimulatedClock;
pub use net::{EPOCH_S, Net, NetworkFaults};
pub use random::Random;
pub use socket::{Socket, environment};
