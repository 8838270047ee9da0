//! Connections of the simulated nodes, and faults.

use std::hash::Hash as _;
use std::sync::PoisonError;
use std::time::Duration;

use sandbar_core::{Code, NodeId};
use sandbar_sched::{RESOURCE_UNIT, ResourceSet};

use super::world::{Connection, Fault, Node, SLOTS, Takeover, World};
use crate::peer::{NewPeer, PeerEnd, PeerLine, RemoteObject};

impl World {
    pub(super) fn connect(&mut self, a: u32, b: u32) {
        if !self.nodes.contains_key(&a) || !self.nodes.contains_key(&b) {
            return;
        }
        let resources = ResourceSet { cpus: u64::from(SLOTS) * RESOURCE_UNIT, ..ResourceSet::default() };
        let mut ends = Vec::new();
        for (at, other) in [(a, b), (b, a)] {
            let (line, end) = PeerLine::with_connection(self.doorbell.clone());
            let peer = NewPeer { node: NodeId(other), resources: resources.clone(), slots: SLOTS, line };
            self.nodes.get_mut(&at).unwrap().engine.join(peer);
            ends.push(end);
        }
        let Ok(ends) = <[PeerEnd; 2]>::try_from(ends) else { return };
        self.connections.insert((a, b), Connection { ends, frames: Default::default() });
    }

    pub(super) fn run_network(&mut self, now: Duration) -> bool {
        let mut worked = false;
        for (nodes, connection) in &mut self.connections {
            for (from, sender) in [(0, nodes.0), (1, nodes.1)] {
                while let Some(mut frame) = connection.ends[from].try_next_outgoing() {
                    worked = true;
                    if let Some(liar) = self.liar.as_mut().filter(|liar| liar.node() == sender) {
                        frame = liar.change(&mut self.random, frame);
                    }
                    let delay = Duration::from_micros(u64::from(self.random.below(2000)));
                    // Frames arrive in order.
                    let last = connection.frames[from].back().map_or(Duration::ZERO, |(at, _)| *at);
                    frame.hash(&mut self.sent);
                    connection.frames[from].push_back((last.max(now + delay), frame));
                }
                while connection.frames[from].front().is_some_and(|(at, _)| *at <= now) {
                    worked = true;
                    let (_, frame) = connection.frames[from].pop_front().unwrap();
                    connection.ends[1 - from].push_incoming(frame);
                }
            }
        }
        // An engine that rejects a message disconnects.
        let closed = self.connections.iter().filter(|(_, connection)| connection.ends.iter().any(PeerEnd::is_closed));
        for (a, b) in closed.map(|(nodes, _)| *nodes).collect::<Vec<_>>() {
            self.connections.remove(&(a, b));
            self.broken.push((now + Duration::from_millis(50), a, b));
        }
        for (at, a, b) in std::mem::take(&mut self.broken) {
            if at <= now {
                self.connect(a, b);
            } else {
                self.broken.push((at, a, b));
            }
        }
        for (at, number, fetch, object) in std::mem::take(&mut self.fetches) {
            if at > now {
                self.fetches.push((at, number, fetch, object));
                continue;
            }
            worked = true;
            self.fetch(number, fetch, object);
        }
        for (at, number, owner, program) in std::mem::take(&mut self.loads) {
            if at > now {
                self.loads.push((at, number, owner, program));
            } else if let Some(node) = self.nodes.get_mut(&number) {
                worked = true;
                node.engine.loaded(owner, program, Ok(self.program.clone()));
            }
        }
        worked
    }

    fn fetch(&mut self, number: u32, fetch: u64, object: RemoteObject) {
        let Some(node) = self.nodes.get(&number) else { return };
        let fetched = node.surroundings.borrow().fetched.clone();
        let reply = move |value| fetched.lock().unwrap_or_else(PoisonError::into_inner).push((fetch, value));
        let pair = (number.min(object.node.0), number.max(object.node.0));
        match self.nodes.get_mut(&object.node.0).filter(|_| self.connections.contains_key(&pair)) {
            Some(other) => other.engine.share(object.object, Box::new(reply)),
            None => reply(Err(sandbar_core::Fault::new(Code::Host, "the node is not connected"))),
        }
    }

    pub(super) fn inject_faults(&mut self, now: Duration) {
        while self.fault_times.first().is_some_and(|(at, _)| *at <= now) {
            let (_, fault) = self.fault_times.remove(0);
            if self.prints {
                eprintln!("{now:?}: {fault:?}");
            }
            match fault {
                Fault::CrashWorker => {
                    let workers: Vec<_> =
                        self.nodes.values().flat_map(|node| node.surroundings.borrow().workers.clone()).collect();
                    let index = self.random.below(workers.len().max(1) as u32) as usize;
                    if let Some(worker) = workers.get(index) {
                        worker.borrow_mut().crash();
                    }
                }
                Fault::CrashNode => self.crash_node(),
                Fault::ExpelLiar => {
                    if let Some(liar) = self.liar.take() {
                        self.remove_node(liar.node());
                    }
                }
                Fault::Disconnect => {
                    let index = self.random.below(self.connections.len().max(1) as u32) as usize;
                    if let Some(nodes) = self.connections.keys().nth(index).copied() {
                        self.connections.remove(&nodes);
                        self.broken.push((now + Duration::from_millis(50), nodes.0, nodes.1));
                    }
                }
            }
        }
    }

    /// Crashes a random node, unless it is the last one.
    fn crash_node(&mut self) {
        if self.nodes.len() < 2 {
            return;
        }
        let index = self.random.below(self.nodes.len() as u32) as usize;
        let Some(number) = self.nodes.keys().nth(index).copied() else { return };
        let Some(crashed) = self.remove_node(number) else { return };
        let lasting = crashed.jobs.into_iter().filter(|job| job.outcome.is_none() && job.work.name.is_some());
        for job in lasting {
            let at = self.clock.elapsed() + Duration::from_millis(20 + u64::from(self.random.below(100)));
            self.takeovers.push(Takeover { at, work: job.work });
        }
    }

    fn remove_node(&mut self, number: u32) -> Option<Node> {
        self.connections.retain(|(a, b), _| *a != number && *b != number);
        self.broken.retain(|(_, a, b)| *a != number && *b != number);
        self.nodes.remove(&number)
    }
}
