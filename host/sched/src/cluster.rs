//! Nodes and workers: what is where, and what is left of each node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sandbar_core::{ActorId, Attempt, NodeId, TaskId, WorkerId};

use crate::bundles::Bundle;
use crate::event::Role;
use crate::places::{BundleAt, NodeAt, ObjectAt, ShapeAt, TaskAt, WorkerAt};
use crate::queue::{Level, Queue};
use crate::resources::{Demand, Free};
use crate::slab::Slab;
use crate::table::Table;

/// Workers that are far come after those that are not, unless as many tasks are blocked in these.
const FAR_LOAD: u32 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) total: Demand,
    pub(crate) is_far: bool,
    /// It is to go: nothing more is begun.
    pub(crate) is_draining: bool,
    /// What others use of a node that is far, as it has said last: no more than it has, and maybe more than is free.
    pub(crate) others: Demand,
    /// What this scheduler has given to nobody.
    pub(crate) free: Free,
    /// What would be left if all tasks had ended: bundles and actors last.
    pub(crate) at_rest: Free,
    /// Tasks that workers of anybody were given here.
    pub(crate) tasks: usize,
    /// A driver or a placement group waits for room here: nothing else is begun.
    pub(crate) is_held: bool,
    /// Workers that have several actors: of a node that is far, its scheduler.
    actor_workers: Vec<WorkerAt>,
    /// Workers here that run tasks of anybody.
    pub(crate) of_tasks: usize,
    /// Another one was asked for.
    pub(crate) is_hiring: bool,
    /// Actors here.
    pub(crate) actors: usize,
    /// Workers that could begin a task at once, those with the fewest blocked ones first.
    idle: BTreeSet<(u32, WorkerId)>,
}

/// A task that a worker was given. It counts until the worker has said what became of it, also when its job has ended.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) id: TaskId,
    /// None when its job has ended.
    pub(crate) task: Option<TaskAt>,
    pub(crate) shape: ShapeAt,
    /// What it takes of: a bundle, or its node.
    pub(crate) bundle: Option<BundleAt>,
    pub(crate) attempt: Attempt,
    pub(crate) level: Level,
    /// How long it was thought to take.
    pub(crate) nanos: u64,
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) node: NodeAt,
    pub(crate) role: Role,
    /// Tasks that are not blocked, in the order in which they are run.
    pub(crate) given: VecDeque<Given>,
    pub(crate) blocked: Vec<Given>,
    /// Actors that it has, by the tasks that made them.
    pub(crate) residents: BTreeMap<TaskId, Given>,
    pub(crate) leases: Vec<Lease>,
    /// How long `given` were thought to take.
    pub(crate) nanos: u64,
    /// Its tasks were asked back, and it did not answer yet.
    pub(crate) is_recalled: bool,
    /// Tasks were taken from it for another worker, and nothing has ended here since.
    pub(crate) is_robbed: bool,
    /// Objects that it holds.
    pub(crate) holds: Holds,
    /// As which it stands among the idle ones.
    idle: Option<u32>,
    /// As which it stands among those whose tasks can be asked back.
    waiting: Option<Level>,
}

/// Processors that a worker has for all of its tasks of one light shape, as long as it has one that is not blocked.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) shape: ShapeAt,
    pub(crate) bundle: Option<BundleAt>,
    /// How many of `given` it is for.
    pub(crate) count: u32,
}

/// Places of objects that a worker holds, and some that it held before: what is there has to be asked.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    pub(crate) places: Vec<ObjectAt>,
    pub(crate) count: usize,
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Slab<NodeAt, Node>,
    pub(crate) node_ids: BTreeMap<NodeId, NodeAt>,
    pub(crate) bundles: Slab<BundleAt, Bundle>,
    pub(crate) workers: Slab<WorkerAt, Worker>,
    worker_ids: Table<WorkerId, WorkerAt>,
    /// The first node that was not far.
    pub(crate) here: Option<NodeId>,
    /// Workers that are for one actor each.
    of_actors: Table<ActorId, WorkerAt>,
    /// The first idle worker of each node.
    offers: BTreeSet<(u32, WorkerId, NodeAt)>,
    /// Idle workers.
    pub(crate) idle: usize,
    /// Workers that tasks can be asked back from, by the level of the last: the last of these is the first to ask.
    waiting: BTreeSet<(Level, WorkerAt)>,
    /// Workers that were asked and did not answer.
    pub(crate) recalls: usize,
    /// Workers that run tasks of anybody.
    pub(crate) of_tasks: usize,
    /// How often nodes came and went.
    pub(crate) changes: u64,
    /// There is more room than when this was last set back.
    pub(crate) has_more: bool,
}

impl Node {
    /// Whether others use so many processors that what was given here waits for some.
    pub(crate) fn is_crowded(&self) -> bool {
        self.others.cpus > 0 && self.free.cpus < i128::from(self.others.cpus)
    }
}

impl Lease {
    fn is_for(&self, given: &Given) -> bool {
        self.shape == given.shape && self.bundle == given.bundle
    }
}

impl Cluster {
    pub(crate) fn new() -> Cluster {
        Cluster {
            nodes: Slab::new(),
            node_ids: BTreeMap::new(),
            bundles: Slab::new(),
            workers: Slab::new(),
            worker_ids: Table::default(),
            here: None,
            of_actors: Table::default(),
            offers: BTreeSet::new(),
            idle: 0,
            waiting: BTreeSet::new(),
            recalls: 0,
            of_tasks: 0,
            changes: 0,
            has_more: false,
        }
    }

    #[inline]
    pub(crate) fn find(&self, worker: WorkerId) -> Option<WorkerAt> {
        self.worker_ids.get(&worker).copied()
    }

    /// Says whether there was none of this number.
    pub(crate) fn add_node(&mut self, id: NodeId, total: Demand, is_far: bool) -> bool {
        if self.node_ids.contains_key(&id) {
            return false;
        }
        let free = Free::all_of(&total);
        let at = self.nodes.insert(Node {
            id,
            total,
            is_far,
            is_draining: false,
            others: Demand::default(),
            at_rest: free.clone(),
            free,
            tasks: 0,
            is_held: false,
            actor_workers: Vec::new(),
            of_tasks: 0,
            is_hiring: false,
            actors: 0,
            idle: BTreeSet::new(),
        });
        self.node_ids.insert(id, at);
        self.here = self.here.or((!is_far).then_some(id));
        self.changes += 1;
        self.has_more = true;
        true
    }

    /// A node without workers goes.
    pub(crate) fn remove_node(&mut self, id: NodeId) {
        if let Some(at) = self.node_ids.remove(&id) {
            self.nodes.remove(at);
            self.changes += 1;
        }
    }

    pub(crate) fn add_worker(&mut self, id: WorkerId, node: NodeId, role: Role) -> Option<WorkerAt> {
        let node = *self.node_ids.get(&node)?;
        if self.worker_ids.contains_key(&id) {
            return None;
        }
        let at = self.workers.insert(Worker {
            id,
            node,
            role,
            given: VecDeque::new(),
            blocked: Vec::new(),
            residents: BTreeMap::new(),
            leases: Vec::new(),
            nanos: 0,
            is_recalled: false,
            is_robbed: false,
            holds: Holds::default(),
            idle: None,
            waiting: None,
        });
        self.worker_ids.insert(id, at);
        match role {
            Role::Tasks | Role::Driver(_) => {}
            Role::Actors | Role::Peer => {
                self.nodes[node].actor_workers.push(at);
                self.nodes[node].is_hiring = false;
            }
            Role::Actor(actor) => drop(self.of_actors.insert(actor, at)),
        }
        self.of_tasks += usize::from(role == Role::Tasks);
        self.nodes[node].of_tasks += usize::from(role == Role::Tasks);
        self.refresh(at);
        Some(at)
    }

    /// A worker goes, and gives back what its tasks took.
    pub(crate) fn remove_worker(&mut self, at: WorkerAt, queue: &mut Queue) -> Option<Worker> {
        self.set_recalled(at, false);
        let (given, blocked) = (self.workers[at].given.len(), self.workers[at].blocked.len());
        let given: Vec<Given> = (0..given).filter_map(|_| self.take_given(at, 0, queue)).collect();
        let blocked: Vec<Given> = (0..blocked).filter_map(|_| self.take_blocked(at, 0, queue)).collect();
        let residents: Vec<TaskId> = self.workers[at].residents.keys().copied().collect();
        let residents = residents.into_iter().filter_map(|id| Some((id, self.move_out(at, id, queue)?))).collect();
        let worker = &self.workers[at];
        self.worker_ids.remove(&worker.id);
        match worker.role {
            Role::Actors | Role::Peer => self.nodes[worker.node].actor_workers.retain(|other| *other != at),
            Role::Actor(actor) if self.of_actors.get(&actor) == Some(&at) => drop(self.of_actors.remove(&actor)),
            _ => {}
        }
        self.of_tasks -= usize::from(worker.role == Role::Tasks);
        self.nodes[worker.node].of_tasks -= usize::from(worker.role == Role::Tasks);
        self.set_idle(at, None);
        self.set_waiting(at, None);
        let mut worker = self.workers.remove(at)?;
        worker.given = given.into();
        worker.blocked = blocked;
        worker.residents = residents;
        Some(worker)
    }

    /// What made an actor stays with its worker, and has what it asked for as long.
    pub(crate) fn move_in(&mut self, at: WorkerAt, given: Given, queue: &mut Queue) {
        queue.use_shape(given.shape);
        let (demand, node) = (&queue.shape(given.shape).demand, self.workers[at].node);
        self.free_mut(node, given.bundle).take(demand);
        if given.bundle.is_none() {
            self.nodes[node].at_rest.take(demand);
        }
        self.nodes[node].actors += 1;
        self.workers[at].residents.insert(given.id, given);
    }

    /// An actor is not the worker's any more.
    pub(crate) fn move_out(&mut self, at: WorkerAt, id: TaskId, queue: &mut Queue) -> Option<Given> {
        let given = self.workers[at].residents.remove(&id)?;
        let demand = &queue.shape(given.shape).demand;
        let node = self.workers[at].node;
        self.free_mut(node, given.bundle).give(demand);
        if given.bundle.is_none() {
            self.nodes[node].at_rest.give(demand);
        }
        self.nodes[node].actors -= 1;
        self.has_more = true;
        queue.leave_shape(given.shape);
        Some(given)
    }

    /// Gives a task to a worker, behind its others, and takes of its node what that needs.
    pub(crate) fn give(&mut self, at: WorkerAt, given: Given, queue: &mut Queue) {
        queue.use_shape(given.shape);
        self.begin(at, &given, queue);
        self.workers[at].given.push_back(given);
    }

    /// As [`Cluster::give`], of a task that runs already.
    pub(crate) fn give_first(&mut self, at: WorkerAt, given: Given, queue: &mut Queue) {
        queue.use_shape(given.shape);
        self.begin(at, &given, queue);
        self.workers[at].given.push_front(given);
    }

    /// Where a task lies among those that a worker was given and that are not blocked.
    pub(crate) fn position(&self, at: WorkerAt, task: TaskId) -> Option<usize> {
        self.workers[at].given.iter().position(|given| given.id == task)
    }

    /// As [`Cluster::position`], of what was given late.
    pub(crate) fn position_from_end(&self, at: WorkerAt, task: TaskId) -> Option<usize> {
        self.workers[at].given.iter().rposition(|given| given.id == task)
    }

    /// Where a task lies among the blocked ones of a worker; the last was blocked last.
    pub(crate) fn position_blocked(&self, at: WorkerAt, task: TaskId) -> Option<usize> {
        self.workers[at].blocked.iter().rposition(|given| given.id == task)
    }

    /// A task that was not blocked is not the worker's any more.
    pub(crate) fn take_given(&mut self, at: WorkerAt, position: usize, queue: &mut Queue) -> Option<Given> {
        let given = self.workers[at].given.remove(position)?;
        self.pause(at, &given, queue);
        self.leave(at, &given, queue);
        Some(given)
    }

    /// A task that was blocked is not the worker's any more.
    pub(crate) fn take_blocked(&mut self, at: WorkerAt, position: usize, queue: &mut Queue) -> Option<Given> {
        let worker = &mut self.workers[at];
        let given = (position < worker.blocked.len()).then(|| worker.blocked.remove(position))?;
        self.leave(at, &given, queue);
        Some(given)
    }

    /// A task takes no more of a node than processors, and they were given back.
    fn leave(&mut self, at: WorkerAt, given: &Given, queue: &mut Queue) {
        let (shape, worker) = (queue.shape(given.shape), &self.workers[at]);
        let node = worker.node;
        self.nodes[node].tasks -= usize::from(worker.role == Role::Tasks);
        if !shape.is_light {
            self.free_mut(node, given.bundle).give_rest(&shape.demand);
            self.has_more = true;
        }
        queue.leave_shape(given.shape);
    }

    /// A task gives its processors away. Gives its place in the table.
    pub(crate) fn block(&mut self, at: WorkerAt, position: usize, queue: &Queue) -> Option<TaskAt> {
        let given = self.workers[at].given.remove(position)?;
        self.pause(at, &given, queue);
        let task = given.task;
        self.workers[at].blocked.push(given);
        task
    }

    /// A task goes on, whether there are processors or not.
    pub(crate) fn unblock(&mut self, at: WorkerAt, position: usize, queue: &Queue) -> Option<TaskAt> {
        let given = self.workers[at].blocked.remove(position);
        let task = given.task;
        self.go_on(at, &given, queue);
        self.workers[at].given.push_front(given);
        task
    }

    fn begin(&mut self, at: WorkerAt, given: &Given, queue: &Queue) {
        let (shape, worker) = (queue.shape(given.shape), &self.workers[at]);
        let node = worker.node;
        self.nodes[node].tasks += usize::from(worker.role == Role::Tasks);
        if !shape.is_light {
            self.free_mut(node, given.bundle).take_rest(&shape.demand);
        }
        self.go_on(at, given, queue);
    }

    /// Takes processors for a task, or none where others of its shape run here: a worker runs one at a time. But what makes an
    /// actor has from the start what that has.
    fn go_on(&mut self, at: WorkerAt, given: &Given, queue: &Queue) {
        let worker = &mut self.workers[at];
        worker.nanos += given.nanos;
        let shape = queue.shape(given.shape);
        if shape.is_light && !worker.role.has_actors() {
            if let Some(lease) = worker.leases.iter_mut().find(|lease| lease.is_for(given)) {
                lease.count += 1;
                return;
            }
            worker.leases.push(Lease { shape: given.shape, bundle: given.bundle, count: 1 });
        }
        let node = worker.node;
        self.free_mut(node, given.bundle).cpus -= i128::from(shape.demand.cpus);
    }

    /// Gives the processors of a task back, unless others of its shape are left here.
    fn pause(&mut self, at: WorkerAt, given: &Given, queue: &Queue) {
        let worker = &mut self.workers[at];
        worker.nanos -= given.nanos;
        let shape = queue.shape(given.shape);
        if shape.is_light
            && !worker.role.has_actors()
            && let Some(position) = worker.leases.iter().position(|lease| lease.is_for(given))
        {
            worker.leases[position].count -= 1;
            if worker.leases[position].count > 0 {
                return;
            }
            worker.leases.swap_remove(position);
        }
        let node = worker.node;
        self.free_mut(node, given.bundle).cpus += i128::from(shape.demand.cpus);
        self.has_more = true;
    }

    /// Idle workers, one of each node: those with the least load first.
    pub(crate) fn offers(&self) -> impl Iterator<Item = (u32, WorkerId, NodeAt)> {
        self.offers.iter().copied()
    }

    /// By which idle workers are chosen: the least first.
    pub(crate) fn load(&self, at: WorkerAt) -> (u32, WorkerId) {
        let worker = &self.workers[at];
        let distance = if self.nodes[worker.node].is_far { FAR_LOAD } else { 0 };
        (distance + worker.blocked.len() as u32, worker.id)
    }

    /// Of the workers of a node that have several actors: the one with the fewest, with those that are being made, and how
    /// many workers these are.
    pub(crate) fn actor_workers(&self, node: NodeAt) -> (Option<(usize, WorkerAt)>, usize) {
        let workers = self.nodes[node].actor_workers.iter().copied();
        let load = |at: WorkerAt| self.workers[at].residents.len() + self.workers[at].given.len();
        (workers.clone().map(|at| (load(at), at)).min(), workers.count())
    }

    /// The worker that is for one actor.
    pub(crate) fn worker_of_actor(&self, actor: ActorId) -> Option<WorkerAt> {
        self.of_actors.get(&actor).copied()
    }

    /// Whether a worker is idle, and does not stand among those yet.
    pub(crate) fn could_be_idle(&self, at: WorkerAt) -> bool {
        let worker = &self.workers[at];
        worker.given.is_empty() && worker.idle.is_none() && worker.role == Role::Tasks
    }

    pub(crate) fn has_idle(&self, node: NodeAt) -> bool {
        !self.nodes[node].idle.is_empty()
    }

    /// The worker whose last task comes after all that others were given last, and that task's level.
    pub(crate) fn last_waiting(&self) -> Option<(Level, WorkerAt)> {
        self.waiting.last().copied()
    }

    /// Workers that tasks can be asked back from.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = WorkerAt> {
        self.waiting.iter().map(|(_, worker)| *worker)
    }

    pub(crate) fn set_recalled(&mut self, at: WorkerAt, is_recalled: bool) {
        let worker = &mut self.workers[at];
        match (worker.is_recalled, is_recalled) {
            (false, true) => self.recalls += 1,
            (true, false) => self.recalls -= 1,
            _ => {}
        }
        worker.is_recalled = is_recalled;
        self.refresh(at);
    }

    /// Learns what a worker can do, after what it was given has changed.
    pub(crate) fn refresh(&mut self, at: WorkerAt) {
        let worker = &self.workers[at];
        if worker.role != Role::Tasks {
            return;
        }
        let idle = worker.given.is_empty().then_some(self.load(at).0);
        let can_wait = worker.given.len() > 1 && !worker.is_recalled;
        let waiting = can_wait.then(|| worker.given.back().map(|given| given.level)).flatten();
        if idle != worker.idle {
            self.set_idle(at, idle);
        }
        if waiting != self.workers[at].waiting {
            self.set_waiting(at, waiting);
        }
    }

    fn set_idle(&mut self, at: WorkerAt, idle: Option<u32>) {
        let worker = &mut self.workers[at];
        let before = std::mem::replace(&mut worker.idle, idle);
        let (id, node_at) = (worker.id, worker.node);
        let node = &mut self.nodes[node_at];
        let offer = node.idle.first().copied();
        if let Some(load) = before {
            node.idle.remove(&(load, id));
            self.idle -= 1;
        }
        if let Some(load) = idle {
            node.idle.insert((load, id));
            self.idle += 1;
            self.has_more = true;
        }
        let new = node.idle.first().copied();
        if new != offer {
            offer.map(|(load, id)| self.offers.remove(&(load, id, node_at)));
            new.map(|(load, id)| self.offers.insert((load, id, node_at)));
        }
    }

    fn set_waiting(&mut self, at: WorkerAt, waiting: Option<Level>) {
        if let Some(level) = std::mem::replace(&mut self.workers[at].waiting, waiting) {
            self.waiting.remove(&(level, at));
        }
        if let Some(level) = waiting {
            self.waiting.insert((level, at));
        }
    }
}
