//! The contract's bindings, generated.
#![allow(missing_docs, clippy::all, reason = "generated")]

wit_bindgen::generate!({
    path: "../wit/sandbar.wit",
    world: "with-tasks",
    ownership: Borrowing { duplicate_if_necessary: false },
});

pub use exports::sandbar::udf::{guest, program};
#[cfg(target_family = "wasm")]
pub use sandbar::udf::{data, groups};
pub use sandbar::udf::{dense, log, tasks};

#[cfg(target_family = "wasm")]
use crate::export::Component;

// Elsewhere the names of the exports are none that a linker takes, and no host calls them.
#[cfg(target_family = "wasm")]
export!(Component with_types_in self);
