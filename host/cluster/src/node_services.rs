//! What a node does for the other nodes of its cluster.

use std::path::PathBuf;
use std::sync::Arc;

use sandbar_core::{ComponentId, Limits};
use sandbar_functions::FunctionLoader;
use sandbar_train::{JobRunnerOptions, UnitServer};
use sandbar_worker::Pool;

/// Services of this node for the others.
#[derive(Debug)]
pub struct NodeServices {
    /// Compiles the components of other nodes.
    pub functions: FunctionLoader,
    /// Folder for the components of other nodes.
    pub components: PathBuf,
    /// Trains units of other nodes.
    pub units: UnitServer,
    /// Maximum limits of a task.
    pub limits: Limits,
    /// Workers of job files.
    pub pool: Arc<Pool>,
    /// Options of job files.
    pub job_options: JobRunnerOptions,
    /// Memory for objects, in bytes.
    pub object_bytes_max: u64,
}

impl NodeServices {
    pub(crate) fn component_path(&self, component: ComponentId) -> PathBuf {
        self.components.join(format!("{component}.wasm"))
    }
}
