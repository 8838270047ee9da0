//! The cluster as the other nodes of this node's runtime, and what this node does for others.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use sandbar_core::{ComponentId, Limits};
use sandbar_functions::FunctionLoader;
use sandbar_runtime::{Outside, Program, RuntimePeers, RuntimeStarted};
use sandbar_train::UnitServer;

use crate::Cluster;

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
    /// Memory for objects, in bytes.
    pub object_bytes_max: u64,
}

impl NodeServices {
    pub(crate) fn component_path(&self, component: ComponentId) -> PathBuf {
        self.components.join(format!("{component}.wasm"))
    }
}

#[derive(Debug)]
struct ClusterPeers {
    cluster: Cluster,
    /// Taken when the runtime starts.
    services: Mutex<Option<NodeServices>>,
}

impl Cluster {
    /// Returns the cluster as the other nodes of a runtime. The node offers `services` once its runtime has started.
    pub fn runtime_peers(&self, services: NodeServices) -> Arc<dyn RuntimePeers> {
        Arc::new(ClusterPeers { cluster: self.clone(), services: Mutex::new(Some(services)) })
    }
}

impl RuntimePeers for ClusterPeers {
    fn services(&self) -> Arc<dyn Outside> {
        self.cluster.outside()
    }

    fn started(&self, runtime: RuntimeStarted) {
        if let Some(services) = self.services.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.cluster.begin(runtime, services);
        }
    }

    fn loaded(&self, program: &Arc<Program>, component: File) {
        self.cluster.know(program.compiled.id(), component);
    }
}
