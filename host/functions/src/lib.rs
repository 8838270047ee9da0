//! Functions of components: from `PATH#function` to a function that workers can call.
//!
//! Goals: a crate is built only if a source changed; a component is compiled and described once; a model file is data,
//! so that no path in it is opened. Non-goals: the rows and tasks that functions are called with.

// Lint: input from a guest, a peer, a file or a user must not be able to end this process.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

mod bound;
mod build;
mod error;
mod find;
mod inspect;
mod loader;
mod model_functions;
mod origin;

pub use bound::{BoundFunction, FunctionParams, JobFunctions, NamedComponent, decode_schema, log_lines, without_each};
pub use build::{BuildError, BuildReporter, INSTALL_TARGET, Toolchain, build_crate, toolchain};
pub use error::FunctionError;
pub use find::find_component;
pub use inspect::{Inspected, InspectedFunction, InspectedParameter};
pub use loader::{FunctionLoader, LoadedComponent, LoaderOptions, cached_component};
pub use model_functions::{ModelComponent, ModelComponents, ModelFunctions};
pub use origin::{FunctionOrigin, keep_component};
