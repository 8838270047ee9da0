//! Nodes of one process that run tasks for each other, as those of a cluster do.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbar_core::{Code, ComponentId, Fault, Limits, NodeId};
use sandbar_sched::ResourceSet;
use sandbar_store::SealedFile;

use super::{Loaded, NewPeer, Outside, PeerLine, Tell, Wanted};
use crate::calls::Program;
use crate::hub::{Asker, WORKERS_MAX};
use crate::runner::{RuntimePeers, RuntimeStarted};

/// Nodes of this process that know each other. Each has a number of its own.
#[derive(Clone, Default)]
pub struct Neighbours(Arc<Inner>);

#[derive(Default)]
struct Inner {
    hubs: Mutex<BTreeMap<NodeId, Neighbour>>,
    programs: Mutex<HashMap<ComponentId, Arc<Program>>>,
    /// Ranges of numbers that were given out beside those of nodes.
    ranges: AtomicU32,
}

struct Neighbour {
    asker: Asker,
    resources: ResourceSet,
    slots: u32,
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Neighbours").field(&self.hubs().keys().collect::<Vec<_>>()).finish()
    }
}

impl Neighbours {
    /// A node is there. It and all others are told of each other.
    fn enter(&self, node: NodeId, asker: Asker, resources: ResourceSet, slots: u32) {
        let mut hubs = self.hubs();
        for (other, there) in hubs.iter() {
            let (near, far) = PeerLine::pair(asker.doorbell(), there.asker.doorbell());
            let (resources_there, slots_there) = (there.resources.clone(), there.slots);
            asker.join(NewPeer { node: *other, resources: resources_there, slots: slots_there, line: near });
            there.asker.join(NewPeer { node, resources: resources.clone(), slots, line: far });
        }
        hubs.insert(node, Neighbour { asker, resources, slots });
    }

    /// A node is gone.
    pub fn leave(&self, number: u16) {
        self.hubs().remove(&NodeId(number.into()));
    }

    /// A program that some node has.
    fn know(&self, program: &Arc<Program>) {
        let mut programs = self.0.programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.insert(program.compiled.id(), program.clone());
    }

    fn hubs(&self) -> MutexGuard<'_, BTreeMap<NodeId, Neighbour>> {
        self.0.hubs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RuntimePeers for Neighbours {
    fn services(&self) -> Arc<dyn Outside> {
        Arc::new(self.clone())
    }

    fn started(&self, runtime: RuntimeStarted) {
        self.enter(runtime.node, runtime.handle, runtime.resources, runtime.slots);
    }

    fn loaded(&self, program: &Arc<Program>, _: File) {
        self.know(program);
    }
}

impl Outside for Neighbours {
    fn fetch(&self, wanted: Wanted, told: Tell<Result<SealedFile, String>>) {
        let Wanted { node, object, .. } = wanted;
        let asker = self.hubs().get(&node).map(|hub| hub.asker.clone());
        match asker {
            Some(asker) => asker.share(object, told),
            None => told(Err(format!("node {node} is gone"))),
        }
    }

    fn load(&self, _: NodeId, component: ComponentId, _: Limits, told: Tell<Loaded>) {
        let programs = self.0.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = programs.get(&component).cloned();
        drop(programs);
        told(known.ok_or_else(|| Fault::new(Code::Host, format!("no node has component {component}"))));
    }

    /// As many as those of a node, behind all of these.
    fn numbers(&self, told: Tell<Range<u32>>) {
        let next = self.0.ranges.fetch_add(1, Relaxed);
        let first = (u32::from(u16::MAX) - next) * WORKERS_MAX;
        told(first..first + WORKERS_MAX);
    }
}
