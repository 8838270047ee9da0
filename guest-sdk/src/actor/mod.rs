//! Actors: values that keep their state between calls, each in a sandbox of its own.
//!
//! `#[actor]` takes the `impl` of a struct, and generates a handle type that calls its public methods remotely.

mod calls;
mod handle;
mod options;
mod state;
mod waiting;

pub use calls::until_done;
pub use handle::{ActorHandle, ActorRef, CallOptions, Method};
pub use options::Creation;
pub use state::{exclusive, keep, shared};
pub use waiting::Awaited;

pub(crate) use calls::{abandon, begin, resume, within};
pub(crate) use state::is_made;
#[cfg(not(target_family = "wasm"))]
pub(crate) use state::{State, swapped};
