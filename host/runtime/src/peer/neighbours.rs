//! Connected nodes in one process, like those of a cluster.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_core::{Code, ComponentId, Fault, Limits, NodeId};
use sandbar_sched::ResourceSet;
use sandbar_store::SealedFile;

use super::{ClusterServices, Loaded, NewPeer, PeerLine, RemoteObject, Tell};
use crate::calls::Program;
use crate::engine::WORKERS_MAX;
use crate::runner::{RuntimePeers, RuntimeStarted};
use crate::thread::RuntimeHandle;

/// Connected nodes of this process. Each has its own id.
#[derive(Clone, Default)]
pub struct Neighbours(Arc<Inner>);

#[derive(Default)]
struct Inner {
    nodes: Mutex<BTreeMap<NodeId, Neighbour>>,
    programs: Mutex<HashMap<ComponentId, Arc<Program>>>,
    /// Number of ranges of worker ids that were allocated beside those of nodes.
    ranges: AtomicU32,
}

struct Neighbour {
    handle: RuntimeHandle,
    resources: ResourceSet,
    slots: u32,
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Neighbours").field(&self.nodes().keys().collect::<Vec<_>>()).finish()
    }
}

impl Neighbours {
    /// Adds a node, and connects it with all others.
    fn enter(&self, node: NodeId, handle: RuntimeHandle, resources: ResourceSet, slots: u32) {
        let mut nodes = self.nodes();
        for (other, there) in nodes.iter() {
            let (near, far) = PeerLine::pair(handle.doorbell(), there.handle.doorbell());
            let (resources_there, slots_there) = (there.resources.clone(), there.slots);
            handle.connect(NewPeer { node: *other, resources: resources_there, slots: slots_there, line: near });
            there.handle.connect(NewPeer { node, resources: resources.clone(), slots, line: far });
        }
        nodes.insert(node, Neighbour { handle, resources, slots });
    }

    /// Removes a node.
    pub fn leave(&self, number: u16) {
        self.nodes().remove(&NodeId(number.into()));
    }

    /// Adds a program that a node has.
    fn know(&self, program: &Arc<Program>) {
        let mut programs = self.0.programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.insert(program.compiled.id(), program.clone());
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<NodeId, Neighbour>> {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RuntimePeers for Neighbours {
    fn services(&self) -> Arc<dyn ClusterServices> {
        Arc::new(self.clone())
    }

    fn started(&self, runtime: RuntimeStarted) {
        self.enter(runtime.node, runtime.handle, runtime.resources, runtime.slots);
    }

    fn loaded(&self, program: &Arc<Program>, _: File) {
        self.know(program);
    }
}

impl ClusterServices for Neighbours {
    fn fetch(&self, wanted: RemoteObject, told: Tell<Result<SealedFile, String>>) {
        let RemoteObject { node, object, .. } = wanted;
        let handle = self.nodes().get(&node).map(|other| other.handle.clone());
        match handle {
            Some(handle) => handle.share(object, told),
            None => told(Err(format!("node {node} is lost"))),
        }
    }

    fn load(&self, _: NodeId, component: ComponentId, _: Limits, told: Tell<Loaded>) {
        let programs = self.0.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = programs.get(&component).cloned();
        drop(programs);
        told(known.ok_or_else(|| Fault::new(Code::Host, format!("no node has component {component}"))));
    }

    /// Ranges of the size of a node's, from the end.
    fn worker_ids(&self, told: Tell<Range<u32>>) {
        let next = self.0.ranges.fetch_add(1, Relaxed);
        let first = (u32::from(u16::MAX) - next) * WORKERS_MAX;
        told(first..first + WORKERS_MAX);
    }
}
