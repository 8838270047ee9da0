//! Generated bindings of the contract. `tests/bindings` writes them and detects outdated ones.
#![allow(
    missing_docs,
    unused_imports,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::undocumented_unsafe_blocks,
    reason = "generated"
)]

include!("bindings/with_tasks.rs");

pub use exports::sandbar::udf::{guest, parameters, program};
#[cfg(target_family = "wasm")]
pub use sandbar::udf::{data, groups};
pub use sandbar::udf::{dense, log, tasks};
