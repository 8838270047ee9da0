//! The guest's requests to its host. Outside a sandbox, an in-process test host answers them: see [`crate::testing`].

#[cfg(target_family = "wasm")]
#[path = "host/dense_imported.rs"]
pub(crate) mod dense;
#[cfg(target_family = "wasm")]
mod imported;
#[cfg(target_family = "wasm")]
pub(crate) use imported::*;

#[cfg(not(target_family = "wasm"))]
mod actors;
#[cfg(not(target_family = "wasm"))]
mod calls;
#[cfg(not(target_family = "wasm"))]
pub(crate) mod dense;
#[cfg(not(target_family = "wasm"))]
mod files;
#[cfg(not(target_family = "wasm"))]
mod groups;
#[cfg(not(target_family = "wasm"))]
mod local;
#[cfg(not(target_family = "wasm"))]
mod objects;
#[cfg(not(target_family = "wasm"))]
mod streams;
#[cfg(not(target_family = "wasm"))]
pub(crate) use {actors::*, calls::*, files::*, groups::*, local::*, objects::*, streams::*};
