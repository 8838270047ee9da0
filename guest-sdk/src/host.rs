//! The guest's requests to its host. Outside a sandbox, an in-process test host answers them: see [`crate::testing`].

#[cfg(target_family = "wasm")]
#[path = "host/dense_imported.rs"]
pub(crate) mod dense;
#[cfg(target_family = "wasm")]
mod imported;
#[cfg(target_family = "wasm")]
pub(crate) use imported::*;

#[cfg(not(target_family = "wasm"))]
mod actor;
#[cfg(not(target_family = "wasm"))]
mod actors;
#[cfg(not(target_family = "wasm"))]
mod call;
#[cfg(not(target_family = "wasm"))]
mod calls;
#[cfg(not(target_family = "wasm"))]
pub(crate) mod dense;
#[cfg(not(target_family = "wasm"))]
mod encoded_value;
#[cfg(not(target_family = "wasm"))]
mod files;
#[cfg(not(target_family = "wasm"))]
mod groups;
#[cfg(not(target_family = "wasm"))]
mod local;
#[cfg(not(target_family = "wasm"))]
mod objects;
#[cfg(not(target_family = "wasm"))]
mod program_host;
#[cfg(not(target_family = "wasm"))]
mod requests;
#[cfg(not(target_family = "wasm"))]
mod steps;
#[cfg(not(target_family = "wasm"))]
mod streams;
#[cfg(not(target_family = "wasm"))]
pub(crate) use {actors::*, calls::*, files::*, groups::*, local::*, objects::*, requests::*, streams::*};
