//! Connected nodes of one process, for tests.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_core::{Code, ComponentId, Fault, NodeId};
use sandbar_sched::ResourceSet;
use sandbar_store::SealedFile;

use super::{Callback, ClusterServices, LoadResult, NewPeer, PeerLine, RemoteObject, TenantComponent};
use crate::calls::Program;
use crate::engine::WORKERS_MAX;
use crate::runner::{RuntimePeers, RuntimeStarted};
use crate::thread::RuntimeHandle;

/// Connected nodes of this process. Each has an id of its own.
#[derive(Clone, Default)]
pub struct InProcessPeers(Arc<Inner>);

#[derive(Default)]
struct Inner {
    nodes: Mutex<BTreeMap<NodeId, InProcessNode>>,
    programs: Mutex<HashMap<ComponentId, Arc<Program>>>,
    /// Number of allocated ranges of worker ids, besides each node's own range.
    ranges: AtomicU32,
}

struct InProcessNode {
    handle: RuntimeHandle,
    resources: ResourceSet,
    slots: u32,
}

impl std::fmt::Debug for InProcessPeers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("InProcessPeers").field(&self.nodes().keys().collect::<Vec<_>>()).finish()
    }
}

impl InProcessPeers {
    /// Adds a node, and connects it with all others.
    fn add(&self, node: NodeId, handle: RuntimeHandle, resources: ResourceSet, slots: u32) {
        let mut nodes = self.nodes();
        for (other, peer) in nodes.iter() {
            let (local, remote) = PeerLine::pair(handle.doorbell(), peer.handle.doorbell());
            let (peer_resources, peer_slots) = (peer.resources.clone(), peer.slots);
            handle.connect(NewPeer { node: *other, resources: peer_resources, slots: peer_slots, line: local });
            peer.handle.connect(NewPeer { node, resources: resources.clone(), slots, line: remote });
        }
        nodes.insert(node, InProcessNode { handle, resources, slots });
    }

    /// Removes a node.
    pub fn remove(&self, number: u16) {
        self.nodes().remove(&NodeId(number.into()));
    }

    /// Adds a program that a node has.
    fn add_program(&self, program: &Arc<Program>) {
        let mut programs = self.0.programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.insert(program.compiled.id(), program.clone());
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<NodeId, InProcessNode>> {
        self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RuntimePeers for InProcessPeers {
    fn services(&self) -> Arc<dyn ClusterServices> {
        Arc::new(self.clone())
    }

    fn started(&self, runtime: RuntimeStarted) {
        self.add(runtime.node, runtime.handle, runtime.resources, runtime.slots);
    }

    fn loaded(&self, program: &Arc<Program>, _: File) {
        self.add_program(program);
    }
}

impl ClusterServices for InProcessPeers {
    fn fetch(&self, object: RemoteObject, reply: Callback<Result<SealedFile, Fault>>) {
        let RemoteObject { node, object, .. } = object;
        let handle = self.nodes().get(&node).map(|other| other.handle.clone());
        match handle {
            Some(handle) => handle.share(object, reply),
            None => reply(Err(Fault::new(Code::Host, format!("node {node} is lost")))),
        }
    }

    fn load(&self, _: NodeId, component: TenantComponent, reply: Callback<LoadResult>) {
        let component = component.component;
        let programs = self.0.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let program = programs.get(&component).cloned();
        drop(programs);
        reply(program.ok_or_else(|| Fault::new(Code::Host, format!("no node has component {component}"))));
    }

    /// Allocates ranges of the size of a node's own, from the highest ids downwards.
    fn worker_ids(&self, reply: Callback<Range<u32>>) {
        let next = self.0.ranges.fetch_add(1, Relaxed);
        let first = (u32::from(u16::MAX) - next) * WORKERS_MAX;
        reply(first..first + WORKERS_MAX);
    }
}
