//! Where actors are: one that asks for a processor or more has a worker to itself, others share some. On a node that is far
//! all are its scheduler's, which has workers of its own.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{ActorId, Strategy};

use crate::event::{Action, Role};
use crate::places::{NodeAt, ShapeAt, TaskAt, WorkerAt};
use crate::queue::Level;
use crate::resources::UNIT;
use crate::scheduler::Scheduler;
use crate::tasks::State;

/// What makes actors that have no place yet, by what they take of a node, in order.
#[derive(Debug, Default)]
pub(crate) struct Unplaced {
    shapes: BTreeMap<ShapeAt, BTreeSet<(Level, u64, TaskAt)>>,
    places: BTreeMap<TaskAt, (ShapeAt, Level, u64)>,
}

impl Unplaced {
    fn insert(&mut self, shape: ShapeAt, level: Level, number: u64, at: TaskAt) {
        self.shapes.entry(shape).or_default().insert((level, number, at));
        self.places.insert(at, (shape, level, number));
    }

    pub(crate) fn remove(&mut self, at: TaskAt) {
        let Some((shape, level, number)) = self.places.remove(&at) else { return };
        if let Some(line) = self.shapes.get_mut(&shape) {
            line.remove(&(level, number, at));
            if line.is_empty() {
                self.shapes.remove(&shape);
            }
        }
    }

    fn first(&self, shape: ShapeAt) -> Option<TaskAt> {
        self.shapes.get(&shape)?.first().map(|(.., at)| *at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }
}

impl<C, V> Scheduler<C, V> {
    /// What makes an actor has what it needs.
    pub(crate) fn enqueue_maker(&mut self, at: TaskAt) {
        self.tasks[at].state = State::Queued;
        let task = &self.tasks[at];
        let class = self.classes.get(task.class);
        let (shape, level, number) = (class.kind.shape, task.level(class), task.number);
        self.unplaced.insert(shape, level, number, at);
        self.is_stale = true;
        if !self.is_feasible(shape) {
            self.failing.push((at, self.infeasible(at, shape)));
        }
    }

    /// Finds places for actors, in order, of each kind up to the first that finds none.
    pub(crate) fn place_actors(&mut self) {
        if self.unplaced.is_empty() {
            return;
        }
        let mut shapes: Vec<ShapeAt> = self.unplaced.shapes.keys().copied().collect();
        shapes.sort_by_key(|shape| self.unplaced.shapes[shape].first().copied());
        for shape in shapes {
            while let Some(at) = self.unplaced.first(shape) {
                if self.is_lacking(at) {
                    self.unplaced.remove(at);
                    self.lacks(at);
                    continue;
                }
                let Some(worker) = self.worker_for(at, shape) else { break };
                self.unplaced.remove(at);
                self.give(worker, at, shape, self.options.window_nanos);
            }
        }
    }

    /// A worker with room for an actor. Where there is none a worker is asked for, if a node has room.
    fn worker_for(&mut self, maker: TaskAt, shape: ShapeAt) -> Option<WorkerAt> {
        let is_alone = self.queue.shape(shape).demand.cpus >= UNIT;
        let spreads = self.queue.shape(shape).strategy == Strategy::Spread;
        let rank = |node: NodeAt| {
            let record = &self.cluster.nodes[node];
            (record.is_far && !spreads, record.actors, node)
        };
        let nodes = self.cluster.node_ids.values().copied().filter(|node| self.has_room(*node, shape, None));
        let mut nodes: Vec<(bool, usize, NodeAt)> = nodes.map(rank).collect();
        nodes.sort_unstable();
        let id = ActorId(self.tasks[maker].id.0);
        let own = self.cluster.worker_of_actor(id).filter(|_| is_alone);
        let fits = |worker: &WorkerAt| nodes.iter().any(|(.., node)| *node == self.cluster.workers[*worker].node);
        if let Some(worker) = own.filter(fits) {
            return Some(worker);
        }
        // A worker that is nearer.
        let mut is_awaited = false;
        for (.., node) in nodes {
            let (best, count) = self.cluster.actor_workers(node);
            let has_room = best.filter(|(load, _)| *load < self.options.actors_max as usize);
            if self.cluster.nodes[node].is_far {
                match has_room {
                    Some((_, worker)) if !is_awaited => return Some(worker),
                    // Or its scheduler has not said that it is there.
                    _ => continue,
                }
            }
            if is_alone {
                if own.is_none() {
                    self.hire_for(id, node);
                }
                return None;
            }
            let total = self.cluster.nodes[node].total.cpus.div_ceil(UNIT).max(1);
            // A worker for each processor, before any has two actors.
            if let Some((load, worker)) = has_room
                && (load == 0 || count as u64 >= total)
            {
                return Some(worker);
            }
            if !self.cluster.nodes[node].is_hiring {
                self.cluster.nodes[node].is_hiring = true;
                self.out.push(Action::Hire { node: self.cluster.nodes[node].id, role: Role::Actors });
            }
            if let Some((_, worker)) = has_room {
                return Some(worker);
            }
            is_awaited = true;
        }
        None
    }

    /// Asks for a worker for one actor, unless that was done.
    fn hire_for(&mut self, id: ActorId, node: NodeAt) {
        let Some(at) = self.actor_ids.get(&id).copied() else { return };
        let is_hired = self.actors[at].hired_on.is_some_and(|node| self.cluster.node_ids.contains_key(&node));
        if !is_hired {
            let node = self.cluster.nodes[node].id;
            self.actors[at].hired_on = Some(node);
            self.out.push(Action::Hire { node, role: Role::Actor(id) });
        }
    }

    /// Actors fail that no node can ever have room for, after nodes came or went.
    pub(crate) fn fail_infeasible_actors(&mut self) {
        for shape in self.unplaced.shapes.keys().copied().collect::<Vec<_>>() {
            if self.is_feasible(shape) {
                continue;
            }
            while let Some(at) = self.unplaced.first(shape) {
                self.unplaced.remove(at);
                self.tasks[at].state = State::Waiting;
                self.failing.push((at, self.infeasible(at, shape)));
            }
        }
    }
}
