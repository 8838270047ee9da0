//! The step: what happened is noted, its consequences follow, and then whoever has room begins.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandbar_core::{ActorId, JobId, ObjectId, TaskError, TaskId, WorkerId};

use crate::actors::{Actor, Names};
use crate::classes::Classes;
use crate::cluster::Cluster;
use crate::event::{Action, Event, Role};
use crate::groups::Groups;
use crate::jobs::Job;
use crate::lineage::{Inspect, ToDo};
use crate::place_actors::Unplaced;
use crate::places::{ActorAt, JobAt, NodeAt, ObjectAt, TaskAt, WorkerAt};
use crate::queue::{Level, Queue};
use crate::refs::Object;
use crate::slab::Slab;
use crate::streams::Item;
use crate::table::Table;
use crate::tasks::{State, Task};

/// How a scheduler decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// A worker is given about so many nanoseconds of work in advance.
    pub window_nanos: u64,
    /// One that is far, so many.
    pub far_window_nanos: u64,
    /// And no more tasks than this.
    pub window_max: u32,
    /// A worker that has several has no more actors than this.
    pub actors_max: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { window_nanos: 1_000_000, far_window_nanos: 10_000_000, window_max: 1024, actors_max: 1000 }
    }
}

/// What runs where, who refers to what. `C` is what tasks call, `V` the values of objects; it looks at neither.
#[derive(Debug)]
pub struct Scheduler<C, V> {
    pub(crate) options: Options,
    pub(crate) inspect: Inspect<C, V>,
    pub(crate) ids: Table<u64, Entry>,
    pub(crate) tasks: Slab<TaskAt, Task<C>>,
    pub(crate) objects: Slab<ObjectAt, Object<V>>,
    pub(crate) actors: Slab<ActorAt, Actor>,
    pub(crate) actor_ids: Table<ActorId, ActorAt>,
    pub(crate) names: Names,
    pub(crate) unplaced: Unplaced,
    pub(crate) groups: Groups<V>,
    pub(crate) jobs: Slab<JobAt, Job>,
    pub(crate) job_ids: Table<JobId, JobAt>,
    pub(crate) classes: Classes,
    pub(crate) queue: Queue,
    pub(crate) cluster: Cluster,
    /// Jobs whose first task could be begun, in a worker that is there.
    pub(crate) starting: BTreeSet<JobId>,
    /// Nodes where one of these waits for room, or a placement group.
    pub(crate) held: Vec<NodeAt>,
    /// Tasks that were ever added.
    pub(crate) number: u64,
    /// Tasks that ended in this step or the one before.
    pub(crate) ended: Vec<(TaskAt, TaskId)>,

    // What is left to do in a step.
    /// Tasks that fail, and why.
    pub(crate) failing: Vec<(TaskAt, Arc<TaskError>)>,
    /// Objects that nothing may refer to any more.
    pub(crate) forgotten: Vec<ObjectAt>,
    pub(crate) lineage: ToDo,
    /// Objects that came and that workers wait for.
    pub(crate) awaited: Vec<ObjectAt>,
    /// The worker whose tasks have changed.
    pub(crate) touched: Option<WorkerAt>,
    /// The first in order of the tasks that can be begun since this step.
    pub(crate) newest: Option<(Level, TaskAt)>,
    /// Something may find a place now that found none before.
    pub(crate) is_stale: bool,
    pub(crate) out: Vec<Action<V>>,
}

/// What goes by a number: a task, the first object that it returns, or both.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) task: Option<TaskAt>,
    pub(crate) object: Option<ObjectAt>,
}

impl<C, V> Scheduler<C, V> {
    /// Of a cluster without nodes. No value may be lost.
    pub fn new(options: Options) -> Scheduler<C, V> {
        Scheduler::with_lineage(options, Inspect::default())
    }

    /// Of a cluster without nodes. What was lost of what may be is made again.
    pub fn with_lineage(options: Options, inspect: Inspect<C, V>) -> Scheduler<C, V> {
        Scheduler {
            options,
            inspect,
            ids: Table::default(),
            tasks: Slab::new(),
            objects: Slab::new(),
            actors: Slab::new(),
            actor_ids: Table::default(),
            names: Names::default(),
            unplaced: Unplaced::default(),
            groups: Groups::new(),
            jobs: Slab::new(),
            job_ids: Table::default(),
            classes: Classes::new(),
            queue: Queue::new(),
            cluster: Cluster::new(),
            starting: BTreeSet::new(),
            held: Vec::new(),
            number: 0,
            ended: Vec::new(),
            failing: Vec::new(),
            forgotten: Vec::new(),
            lineage: ToDo::default(),
            awaited: Vec::new(),
            touched: None,
            newest: None,
            is_stale: false,
            out: Vec::new(),
        }
    }

    /// Takes what happened, and says what to do, behind what `actions` say already. What the actions name is there until
    /// the next step: do them before.
    pub fn step(&mut self, event: Event<C, V>, actions: &mut Vec<Action<V>>) {
        std::mem::swap(&mut self.out, actions);
        self.forget_ended();
        self.take_in(event);
        self.settle();
        loop {
            self.dispatch();
            if self.failing.is_empty() && self.forgotten.is_empty() {
                break;
            }
            self.settle();
        }
        if let Some(touched) = self.touched.take() {
            self.cluster.refresh(touched);
        }
        self.rebalance();
        self.deliver_awaited();
        std::mem::swap(&mut self.out, actions);
    }

    fn take_in(&mut self, event: Event<C, V>) {
        match event {
            Event::NodeJoined { node, resources, far } => {
                if self.cluster.add_node(node, resources, far) {
                    self.fail_infeasible();
                }
            }
            Event::NodeDraining { node } => self.drain_node(node),
            Event::NodeLoad { node, others } => self.load_node(node, &others),
            Event::NodeLost { node } => self.lose_node(node),
            Event::WorkerReady { worker, node, role } => {
                if let Some(at) = self.cluster.add_worker(worker, node, role) {
                    match role {
                        Role::Tasks => {}
                        Role::Driver(job) => self.add_driver(job, at),
                        Role::Actors | Role::Actor(_) | Role::Peer => self.is_stale = true,
                    }
                }
            }
            Event::WorkerLost { worker, begun } => self.lose_worker(worker, &begun),
            Event::JobStarted { job, tenant, limits } => self.start_job(job, tenant, limits),
            Event::JobEnded { job } => self.end_job(job),
            Event::Submitted { task } => self.submit(task),
            Event::Seated { task, worker } => self.seat(task, worker),
            Event::ActorBorrowed { actor, worker } => self.borrow_actor(actor, worker),
            Event::RanInline { task, worker, outcome, nanos } => self.ran_inline(task, worker, outcome, nanos),
            Event::BeganInline { task, worker } => self.began_inline(task, worker),
            Event::Put { object, task, worker, value, refs } => self.put(object, task, worker, value, &refs),
            Event::PutFailed { object, task, worker, fault } => self.put_failed(object, task, worker, fault),
            Event::Yielded { task, attempt, worker, index, object, value, refs } => {
                self.yielded(task, attempt, worker, Item { index, object, value, refs });
            }
            Event::Taken { stream, worker, taken } => self.taken(stream, worker, taken),
            Event::Promised { object, task, worker } => self.promise(object, task, worker),
            Event::Fulfilled { object, value } => self.fulfil(object, value),
            Event::Borrowed { object, task, worker } => self.borrow(object, task, worker),
            Event::Arrived { object, value, refs } => self.arrive(object, value, &refs),
            Event::Finished { task, attempt, worker, outcome, nanos } => {
                self.finished(task, attempt, worker, outcome, nanos);
            }
            Event::Blocked { task, worker, blocked } => self.block(task, worker, blocked),
            Event::Wanted { object, worker, task } => self.want(object, worker, task),
            Event::Held { object, worker, task } => self.hold_for(object, worker, task),
            Event::Released { object, worker, times } => self.release(object, worker, times),
            Event::Cancelled { task, recursive } => self.cancel(task, recursive),
            Event::Doomed { call, fault } => self.doom(call, fault),
            Event::Recalled { worker, tasks } => self.recalled(worker, &tasks),
            Event::ObjectLost { object, waiters } => self.lose_object(object, &waiters),
            Event::Killed { actor, restart } => self.kill_actor(actor, restart),
            Event::GroupCreated { group, task, worker, spec, value } => {
                self.create_group(group, task, worker, spec, value);
            }
            Event::GroupRemoved { group, task, worker } => self.remove_group(group, task, worker),
            Event::SetAside { group, node, attempt, done } => self.answer(group, node, attempt, done),
            Event::Saved { actor, attempt, worker, object } => self.save_actor(actor, attempt, worker, object),
        }
    }

    /// What follows from what failed, from what is not referred to any more, and from what was lost.
    fn settle(&mut self) {
        loop {
            if let Some((task, error)) = self.failing.pop() {
                self.fail(task, error);
            } else if let Some(object) = self.forgotten.pop() {
                self.drop_forgotten(object);
            } else if let Some(task) = self.lineage.unused.pop() {
                self.drop_unused_lineage(task);
            } else if let Some(task) = self.lineage.lost.pop() {
                self.make_again(task);
            } else {
                break;
            }
        }
    }

    /// The worker for the first task of a job is there.
    fn add_driver(&mut self, job: JobId, worker: WorkerAt) {
        let Some(at) = self.job_ids.get(&job) else { return };
        let record = &mut self.jobs[*at];
        if record.driver.is_some() {
            return;
        }
        record.driver = Some(worker);
        if record.first.is_some_and(|first| self.tasks[first].state == State::Queued) {
            self.starting.insert(job);
            self.is_stale = true;
        }
    }

    fn block(&mut self, id: TaskId, worker: WorkerId, is_blocked: bool) {
        let Some(at) = self.cluster.find(worker) else { return };
        if let Some(task) = self.find_task(id).filter(|task| self.is_method(*task)) {
            let task = &mut self.tasks[task];
            if task.worker == Some(at) {
                task.state = if is_blocked { State::Blocked } else { State::Given };
            }
            return;
        }
        let place = if is_blocked { self.cluster.position(at, id) } else { self.cluster.position_blocked(at, id) };
        let Some(place) = place else { return };
        let (task, state) = if is_blocked {
            (self.cluster.block(at, place, &self.queue), State::Blocked)
        } else {
            (self.cluster.unblock(at, place, &self.queue), State::Given)
        };
        if let Some(task) = task {
            self.tasks[task].state = state;
        }
        self.changed(at);
    }

    #[inline]
    pub(crate) fn find_task(&self, id: TaskId) -> Option<TaskAt> {
        self.ids.get(&id.0)?.task
    }

    #[inline]
    pub(crate) fn find_object(&self, id: ObjectId) -> Option<ObjectAt> {
        self.ids.get(&id.0)?.object
    }

    /// A number has lost one of its meanings.
    pub(crate) fn forget_id(&mut self, number: u64, forget: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.ids.get_mut(&number) {
            forget(entry);
            if entry.task.is_none() && entry.object.is_none() {
                self.ids.remove(&number);
            }
        }
    }
}
