//! What every room shares: ids, limits, errors.
//!
//! Non-goal: anything with a heavy dependency. This room compiles to every
//! target and names neither Arrow nor wasmtime.

mod fault;
mod function;
mod ids;
mod limits;
mod seed;

pub use fault::{Blame, Code, Fault};
pub use function::{Function, Kind};
pub use ids::ComponentId;
pub use limits::{LOG_BYTES_MAX, Limits};
pub use seed::{Seed, Split};
