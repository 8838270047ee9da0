//! QUIC over a network that is simulated: what an endpoint of `host/wire` stands on in a simulation.
//!
//! turmoil moves datagrams between hosts, each with a paused clock of tokio's; [`Socket`] gives them to QUIC, and loses,
//! doubles, damages and delays some of them on the way, as a [`Weather`] and a seed say.
//!
//! What a seed repeats: which datagrams are sent by whom, when, how long they are and what becomes of them, and so all that
//! the nodes do. What it does not: the bytes of keys, certificates and packets, as secrets are always drawn from the
//! system; their lengths are the same ones.

mod clock;
mod net;
mod random;
mod socket;

pub use clock::SimulatedClock;
pub use net::{EPOCH_S, Net, Weather};
pub use random::Random;
pub use socket::{Socket, ground};
