//! The cluster as the other nodes of this node's runtime.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use sandbar_runtime::{ClusterServices, Program, RuntimePeers, RuntimeStarted};

use crate::cluster::Cluster;
use crate::node_services::NodeServices;

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
    fn services(&self) -> Arc<dyn ClusterServices> {
        self.cluster.services()
    }

    fn started(&self, runtime: RuntimeStarted) {
        if let Some(services) = self.services.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.cluster.runtime_started(runtime, services);
        }
    }

    fn loaded(&self, program: &Arc<Program>, component: File) {
        self.cluster.offer_component(program.compiled.id(), component);
    }
}
