//! Actors: values that keep their state between calls, each in a sandbox of its own.
//!
//! `#[actor]` takes the `impl` of a struct, and generates a handle type that calls its public methods remotely.

mod calls;
mod handle;
mod options;
mod state;
mod waiters;

pub use calls::until_done;
pub use handle::{ActorHandle, ActorRef, CallOptions, Method};
pub use options::Creation;
pub use state::{shared_state, store_actor, with_exclusive_state};
pub use waiters::ObjectFuture;

pub(crate) use calls::{abandon, resume, start, with_current_call};
pub(crate) use state::is_actor;
#[cfg(not(target_family = "wasm"))]
pub(crate) use state::{ActorState, swap_state};
