//! Connections to other nodes.
//!
//! To the scheduler, a peer is a remote node with workers: its *slots*, which can be assigned tasks, and its *proxy worker*,
//! which stands for the peer's scheduler. The proxy worker holds the references of the peer to objects of this node, has the
//! actors that the peer hosts for this node, and gets the calls of actors that the peer owns.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use sandbar_core::{JobId, JobRun, NodeId, TenantId, WorkerId};

use super::limits::{INTRODUCED_JOBS_MAX, check_number};
use crate::calls::Program;
use crate::peer::{JobRoot, PeerLine, PeerMessage};

/// Connections to other nodes, and the workers that stand for them.
#[derive(Default)]
pub(crate) struct Connections {
    all: BTreeMap<NodeId, Connection>,
    /// Slots and proxy workers.
    remote_workers: FxHashMap<WorkerId, NodeId>,
}

struct Connection {
    line: PeerLine,
    proxy_worker: WorkerId,
    /// Numbers of the programs that the peer knows.
    programs: FxHashSet<u32>,
    /// Jobs that the peer knows.
    jobs: BTreeSet<JobId>,
    /// Jobs of other nodes that the peer has introduced.
    introduced: BTreeMap<JobRoot, IntroducedJob>,
    /// Whether the peer drains.
    is_draining: bool,
}

/// Properties of a job that a node introduces.
#[derive(Debug, Clone)]
pub(super) struct IntroducedJob {
    pub(super) tenant: TenantId,
    /// Identity in accounts.
    pub(super) run: JobRun,
    /// Name of its root task.
    pub(super) name: Arc<str>,
}

impl Connections {
    pub(crate) fn is_any(&self) -> bool {
        !self.all.is_empty()
    }

    /// Returns whether a worker stands for another node.
    #[inline]
    pub(crate) fn is_remote(&self, worker: WorkerId) -> bool {
        !self.all.is_empty() && self.remote_workers.contains_key(&worker)
    }

    pub(super) fn node_of(&self, worker: WorkerId) -> Option<NodeId> {
        self.remote_workers.get(&worker).copied()
    }

    pub(super) fn remote_workers(&self) -> usize {
        self.remote_workers.len()
    }

    pub(super) fn proxy_worker(&self, node: NodeId) -> Option<WorkerId> {
        self.all.get(&node).map(|peer| peer.proxy_worker)
    }

    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.all.contains_key(&node)
    }

    /// Returns the connected nodes, by id.
    pub(in crate::engine) fn nodes(&self) -> Vec<NodeId> {
        self.all.keys().copied().collect()
    }

    pub(super) fn add(&mut self, node: NodeId, line: PeerLine, proxy_worker: WorkerId) {
        let (programs, jobs, introduced) = Default::default();
        let connection = Connection { line, proxy_worker, programs, jobs, introduced, is_draining: false };
        self.all.insert(node, connection);
        self.add_worker(proxy_worker, node);
    }

    pub(super) fn add_worker(&mut self, worker: WorkerId, node: NodeId) {
        self.remote_workers.insert(worker, node);
    }

    /// Removes a node. Returns whether it was connected.
    pub(super) fn remove(&mut self, node: NodeId) -> bool {
        self.remote_workers.retain(|_, remote_node| *remote_node != node);
        self.all.remove(&node).is_some()
    }

    pub(super) fn is_draining(&self, node: NodeId) -> bool {
        self.all.get(&node).is_some_and(|peer| peer.is_draining)
    }

    /// Marks a node as draining. Returns whether it is connected.
    pub(super) fn drain(&mut self, node: NodeId) -> bool {
        let peer = self.all.get_mut(&node);
        peer.map(|peer| peer.is_draining = true).is_some()
    }

    /// Returns whether messages are available, or a connection has ended.
    pub(in crate::engine) fn has_messages(&self) -> bool {
        self.all.values().any(|peer| peer.line.has_messages())
    }

    pub(in crate::engine) fn next_frame(&self, node: NodeId) -> Option<Vec<u8>> {
        self.all.get(&node)?.line.receive()
    }

    pub(in crate::engine) fn is_closed(&self, node: NodeId) -> bool {
        self.all.get(&node).is_some_and(|peer| peer.line.is_closed())
    }

    /// Sends the queued messages.
    pub(in crate::engine) fn flush(&mut self) {
        self.all.values_mut().for_each(|peer| peer.line.flush());
    }

    /// Queues a message, unless the node is not connected.
    pub(super) fn send(&mut self, node: NodeId, message: &PeerMessage<'_>) {
        let Some(peer) = self.all.get_mut(&node) else { return };
        match postcard::to_stdvec(message) {
            Ok(frame) => peer.line.send(frame),
            Err(error) => log::error!("a message to node {node} can't be encoded: {error}"),
        }
    }

    /// Describes a program of a tenant to a node that does not know it.
    pub(super) fn introduce_program(&mut self, node: NodeId, tenant: TenantId, program: &Program) {
        let (component, limits) = (program.compiled.id(), program.limits);
        let program = program.compiled.number();
        if self.all.get_mut(&node).is_some_and(|peer| peer.programs.insert(program)) {
            self.send(node, &PeerMessage::Program { program, tenant, component, limits });
        }
    }

    /// Returns whether a node is connected and does not know a job. Afterwards it knows it.
    pub(super) fn must_introduce(&mut self, node: NodeId, job: JobId) -> bool {
        self.all.get_mut(&node).is_some_and(|peer| peer.jobs.insert(job))
    }

    /// A node has introduced a job.
    ///
    /// # Errors
    /// The node has introduced too many jobs.
    pub(super) fn introduced(&mut self, node: NodeId, root: JobRoot, job: IntroducedJob) -> io::Result<()> {
        let Some(peer) = self.all.get_mut(&node) else { return Ok(()) };
        check_number(peer.introduced.len(), INTRODUCED_JOBS_MAX, "jobs")?;
        peer.introduced.insert(root, job);
        Ok(())
    }

    /// Returns the number of jobs that nodes have introduced, and of those that were introduced to nodes.
    #[cfg(test)]
    pub(in crate::engine) fn introductions(&self) -> usize {
        self.all.values().map(|peer| peer.introduced.len() + peer.jobs.len()).sum()
    }

    /// Returns a job that a node has introduced.
    pub(super) fn introduction(&self, node: NodeId, root: JobRoot) -> Option<&IntroducedJob> {
        self.all.get(&node)?.introduced.get(&root)
    }

    /// A node needs nothing more of a job that it has introduced.
    pub(super) fn forget_introduction(&mut self, node: NodeId, root: JobRoot) {
        if let Some(peer) = self.all.get_mut(&node) {
            peer.introduced.remove(&root);
        }
    }

    /// Removes a job that a node knows. Returns whether it knew it.
    pub(super) fn forget_job(&mut self, node: NodeId, job: JobId) -> bool {
        self.all.get_mut(&node).is_some_and(|peer| peer.jobs.remove(&job))
    }
}

#[cfg(test)]
mod tests {
    use sandbar_worker::program::NodeDoorbell;

    use super::*;

    #[test]
    fn a_node_introduces_a_limited_number_of_jobs() {
        let node = NodeId(2);
        let mut connections = Connections::default();
        let (line, _end) = PeerLine::with_connection(NodeDoorbell::new().unwrap());
        connections.add(node, line, WorkerId(1));
        let root = |job: usize| JobRoot { node, job: JobId(job as u32) };
        let mut introduce = |job| {
            let introduced = IntroducedJob { tenant: TenantId::DEFAULT, run: JobRun::default(), name: "job".into() };
            connections.introduced(node, root(job), introduced)
        };
        for job in 0..INTRODUCED_JOBS_MAX {
            introduce(job).unwrap();
        }
        assert_eq!(introduce(INTRODUCED_JOBS_MAX).unwrap_err().to_string(), "more than 10000 jobs");
        connections.forget_introduction(node, root(0));
        assert_eq!(connections.introductions(), INTRODUCED_JOBS_MAX - 1);
    }
}
