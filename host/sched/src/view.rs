//! Read-only views of the scheduler's state: for the embedder, for listings, and for tests.

use std::sync::Arc;

use sandbar_core::{
    ActorId, Attempt, GroupId, GroupStrategy, JobId, NodeId, ObjectId, RetryOn, Strategy, TaskError, TaskId, TenantId,
    WorkerId,
};

use crate::actors::Actor;
use crate::event::WorkerKind;
use crate::groups::Group;
use crate::keys::{BundleKey, TaskKey};
use crate::object::{Object, Value};
use crate::resources::ResourceSet;
use crate::scheduler::Scheduler;
use crate::tasks::{FinalState, State, Task};

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    /// Waits for dependencies.
    Pending,
    /// Waits for a worker.
    Queued,
    /// Assigned to a worker.
    Running,
    /// Waits for objects, in its worker.
    Blocked,
    /// Finished with values.
    Succeeded,
    /// Finished with an error.
    Failed,
    /// Finished: it was cancelled.
    Cancelled,
}

/// A task. The record of a finished task is usually removed one step later.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskView<'a> {
    /// The task's id.
    pub id: TaskId,
    /// The task's job.
    pub job: JobId,
    /// Function name, for people.
    pub name: &'a Arc<str>,
    /// State of the task.
    pub state: TaskState,
    /// The task that submitted it, while that task has a record.
    pub parent: Option<TaskId>,
    /// The current attempt, or the next one.
    pub attempt: Attempt,
    /// Nesting depth; 1 for a job's root task.
    pub depth: u32,
    /// The worker that it is assigned to.
    pub worker: Option<WorkerId>,
    /// Scheduling priority; a higher number comes first.
    pub priority: i32,
    /// Maximum number of retries.
    pub retries_max: u32,
    /// Errors that permit a retry.
    pub retry_on: RetryOn,
    /// Requested resources.
    pub demand: &'a ResourceSet,
    /// Placement constraint.
    pub strategy: Strategy,
    /// Number of returned objects.
    pub returns: u32,
}

/// State of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectState {
    /// Its task has not finished, or its value is promised or not fetched yet.
    Pending,
    /// It has a value.
    Ready,
    /// It has an error.
    Failed,
}

/// An object.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectView {
    /// The object's id.
    pub id: ObjectId,
    /// The object's job.
    pub job: JobId,
    /// The task that returns it; `None` for objects that were put or promised.
    pub task: Option<TaskId>,
    /// State of the object.
    pub state: ObjectState,
    /// Number of references from tasks and values.
    pub pins: u32,
    /// Number of references by worker.
    pub holders: Vec<(WorkerId, u32)>,
    /// Objects that its value contains.
    pub contents: Vec<ObjectId>,
}

/// The stream of a generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamView {
    /// The worker that consumes the items.
    pub consumer: WorkerId,
    /// Maximum number of yielded items that are not consumed yet.
    pub buffer: u32,
    /// Number of yielded items.
    pub yielded: u64,
    /// Number of consumed items.
    pub consumed: u64,
}

/// A worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// The worker's id.
    pub id: WorkerId,
    /// The worker's node.
    pub node: NodeId,
    /// Purpose of the worker.
    pub kind: WorkerKind,
    /// Assigned tasks that are not blocked, in execution order.
    pub assigned: Vec<TaskId>,
    /// Assigned tasks that are blocked.
    pub blocked: Vec<TaskId>,
    /// Hosted actors.
    pub actors: Vec<ActorId>,
    /// Whether a recall was sent and not answered yet.
    pub recall_pending: bool,
}

/// State of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActorState {
    /// Its creation task waits for dependencies.
    Pending,
    /// Its creation task waits for a worker or runs.
    Creating,
    /// It accepts calls.
    Alive,
    /// Like `Creating`, after a failure.
    Restarting,
    /// It is dead, and a handle to it exists.
    Dead,
}

/// An actor.
#[derive(Debug, Clone, PartialEq)]
pub struct ActorView<'a> {
    /// The actor's id.
    pub id: ActorId,
    /// The actor's job.
    pub job: JobId,
    /// Name for lookups.
    pub name: Option<&'a Arc<str>>,
    /// Name of the function that created it.
    pub creator: Option<&'a Arc<str>>,
    /// State of the actor.
    pub state: ActorState,
    /// The worker that hosts it.
    pub worker: Option<WorkerId>,
    /// Number of restarts.
    pub restarts: u32,
    /// Calls that are assigned to its worker.
    pub assigned: Vec<TaskId>,
    /// Number of unfinished calls.
    pub calls: u64,
    /// Checkpoint for the next restart.
    pub checkpoint: Option<ObjectId>,
    /// Why it is dead.
    pub death_cause: Option<&'a Arc<TaskError>>,
}

/// Tasks of one function with the same request and options.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassView<'a> {
    /// The job of the tasks.
    pub job: JobId,
    /// Function name, for people.
    pub name: &'a Arc<str>,
    /// Number of unfinished tasks.
    pub live: u64,
}

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView<'a> {
    /// The node's id.
    pub id: NodeId,
    /// Resources of the node.
    pub total: &'a ResourceSet,
    /// Processors that this scheduler has not assigned; negative while unblocked tasks use more than there are.
    pub free_cpus: i128,
    /// Other resources that this scheduler has not assigned.
    pub free_rest: &'a ResourceSet,
    /// External usage of a remote node, as last reported. It may exceed what is free.
    pub external_usage: &'a ResourceSet,
}

/// State of a placement group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupState {
    /// Waits for room.
    Pending,
    /// All bundles are placed.
    Created,
    /// Was created, and waits for room for bundles whose node was lost.
    Rescheduling,
    /// Can never be placed.
    Infeasible,
}

/// A placement group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupView<'a> {
    /// The group's id.
    pub id: GroupId,
    /// The group's job.
    pub job: JobId,
    /// Name, for people.
    pub name: Option<&'a Arc<str>>,
    /// Placement strategy of the bundles.
    pub strategy: GroupStrategy,
    /// State of the group.
    pub state: GroupState,
    /// Bundles, in index order.
    pub bundles: Vec<BundleView<'a>>,
}

/// A bundle of a placement group.
#[derive(Debug, Clone, PartialEq)]
pub struct BundleView<'a> {
    /// Reserved resources.
    pub total: &'a ResourceSet,
    /// The node that has it, its free processors (negative while unblocked tasks use more than there are), and its
    /// other free resources.
    pub placed: Option<(NodeId, i128, &'a ResourceSet)>,
    /// The node on which it is placed once all asked nodes have granted their reservations.
    pub reserving_on: Option<NodeId>,
    /// Tasks and actors in the bundle.
    pub occupants: Vec<TaskId>,
}

impl<C, V> Scheduler<C, V> {
    /// Returns the call of an unfinished task.
    pub fn call(&self, task: TaskId) -> Option<&C> {
        let task = &self.tasks[self.find_task(task)?];
        task.call.as_ref().filter(|_| !task.has_finished())
    }

    /// Returns the value or the error of an object, or `None` while it is pending or if it does not exist.
    pub fn value(&self, object: ObjectId) -> Option<Result<&V, &Arc<TaskError>>> {
        match &self.objects[self.find_object(object)?].value {
            Value::Pending => None,
            Value::Ready(value) => Some(Ok(value)),
            Value::Failed(error) => Some(Err(error)),
        }
    }

    /// Returns a task. Its record exists until the step after the one in which it finished, or longer.
    pub fn task(&self, task: TaskId) -> Option<TaskView<'_>> {
        self.find_task(task).map(|at| self.view_task(&self.tasks[at]))
    }

    /// Returns an object. It exists while something refers to it or its task is unfinished.
    pub fn object(&self, object: ObjectId) -> Option<ObjectView> {
        self.find_object(object).map(|at| self.view_object(&self.objects[at]))
    }

    /// Returns the objects that a task's arguments contain, except its dependencies.
    pub fn refs(&self, task: TaskId) -> impl Iterator<Item = ObjectId> {
        let links = self.find_task(task).and_then(|at| self.tasks[at].links.as_ref());
        links.into_iter().flat_map(|links| &links.refs).map(|object| self.objects[*object].id)
    }

    /// Returns the names of a task and its ancestors, from the job's root task down.
    pub fn ancestor_names(&self, task: TaskId) -> Vec<String> {
        self.chain(self.find_task(task))
    }

    /// Returns the stream of a generator's return object.
    pub fn stream(&self, object: ObjectId) -> Option<StreamView> {
        let stream = self.objects[self.find_object(object)?].stream()?;
        let (consumer, buffer) = (stream.consumer, stream.buffer);
        Some(StreamView { consumer, buffer, yielded: stream.yielded, consumed: stream.consumed })
    }

    /// Returns the job of a task.
    pub fn job_of(&self, task: TaskId) -> Option<JobId> {
        self.find_task(task).map(|at| self.jobs[self.tasks[at].job].id)
    }

    /// Returns the job of an object.
    pub fn job_of_object(&self, object: ObjectId) -> Option<JobId> {
        self.find_object(object).map(|at| self.jobs[self.objects[at].job].id)
    }

    /// Returns the objects that the value of an object contains.
    pub fn contained_objects(&self, object: ObjectId) -> impl Iterator<Item = ObjectId> {
        let object = self.find_object(object).map(|at| &self.objects[at]);
        object.into_iter().flat_map(|object| object.contents()).map(|content| self.objects[*content].id)
    }

    /// Returns the id of the task that returns an object.
    pub fn producer(&self, object: ObjectId) -> Option<TaskId> {
        let object = &self.objects[self.find_object(object)?];
        object.index.map(|index| TaskId(object.id.0 - u64::from(index)))
    }

    /// Iterates over the tasks in an arbitrary order.
    pub fn tasks(&self) -> impl Iterator<Item = TaskView<'_>> {
        self.tasks.iter().map(|(_, task)| self.view_task(task))
    }

    /// Iterates over the objects in an arbitrary order.
    pub fn objects(&self) -> impl Iterator<Item = ObjectView> {
        self.objects.iter().map(|(_, object)| self.view_object(object))
    }

    /// Iterates over the objects of a job, the newest first.
    pub fn objects_of(&self, job: JobId) -> impl Iterator<Item = ObjectView> {
        let first = self.job_ids.get(&job).and_then(|at| self.jobs[*at].objects_first);
        let all = std::iter::successors(first, |at| self.objects[*at].after);
        all.map(|at| self.view_object(&self.objects[at]))
    }

    /// Returns the number of a job's objects.
    pub fn count_objects(&self, job: JobId) -> u64 {
        self.job_ids.get(&job).map_or(0, |at| self.jobs[*at].objects)
    }

    /// Iterates over the workers in an arbitrary order.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView> {
        self.cluster.workers.iter().map(|(_, worker)| WorkerView {
            id: worker.id,
            node: self.cluster.nodes[worker.node].id,
            kind: worker.kind,
            assigned: worker.assigned.iter().map(|assigned| assigned.id).collect(),
            blocked: worker.blocked.iter().map(|assigned| assigned.id).collect(),
            actors: worker.actors.keys().map(|task| ActorId(task.0)).collect(),
            recall_pending: worker.recall_pending,
        })
    }

    /// Iterates over the actors of this scheduler in an arbitrary order, without borrowed actors.
    pub fn actors(&self) -> impl Iterator<Item = ActorView<'_>> {
        self.actors.iter().filter(|(_, actor)| !actor.is_borrowed).map(|(_, actor)| self.view_actor(actor))
    }

    /// Returns an actor, while a handle to it or an unfinished call exists.
    pub fn actor(&self, id: ActorId) -> Option<ActorView<'_>> {
        self.actor_ids.get(&id).map(|at| self.view_actor(&self.actors[*at]))
    }

    /// Returns the actor whose method a task calls.
    pub fn actor_of(&self, task: TaskId) -> Option<ActorId> {
        let at = self.find_task(task).filter(|at| self.is_method(*at))?;
        self.tasks[at].actor.map(|actor| self.actors[actor].id)
    }

    fn view_actor<'a>(&'a self, actor: &'a Actor) -> ActorView<'a> {
        let creator = actor.creator.map(|creator| &self.tasks[creator]);
        let state = match creator {
            None if actor.is_borrowed && actor.death_cause.is_none() => ActorState::Alive,
            None => ActorState::Dead,
            Some(creator) => match (creator.state, creator.attempt.0) {
                (State::HostsActor, _) => ActorState::Alive,
                (State::Waiting, 0) => ActorState::Pending,
                (_, 0) => ActorState::Creating,
                _ => ActorState::Restarting,
            },
        };
        ActorView {
            id: actor.id,
            job: self.jobs[actor.job].id,
            name: actor.spec.name.as_ref(),
            creator: creator.map(|creator| &self.classes.get(creator.class).spec.name),
            state,
            worker: creator
                .map_or(actor.worker, |creator| creator.worker)
                .map(|worker| self.cluster.workers[worker].id),
            restarts: creator.map_or(0, |creator| creator.attempt.0),
            assigned: actor.assigned.iter().map(|call| self.tasks[*call].id).collect(),
            calls: actor.calls,
            checkpoint: actor.checkpoint.map(|checkpoint| self.objects[checkpoint].id),
            death_cause: actor.death_cause.as_ref(),
        }
    }

    /// Iterates over the placement groups in id order.
    pub fn groups(&self) -> impl Iterator<Item = GroupView<'_>> {
        self.groups.all.iter().map(|(id, group)| self.view_group(*id, group))
    }

    /// Returns a placement group. It exists until it is removed or its job ends.
    pub fn group(&self, id: GroupId) -> Option<GroupView<'_>> {
        self.groups.all.get(&id).map(|group| self.view_group(id, group))
    }

    /// Returns the group and the index of the bundle that a task or an actor in a worker runs in.
    pub fn bundle_of(&self, task: TaskId) -> Option<(GroupId, u32)> {
        let at = self.tasks[self.find_task(task)?].worker?;
        let worker = &self.cluster.workers[at];
        // Callers usually ask about the task that was assigned last.
        let assigned = match self.cluster.position_from_end(at, task) {
            Some(place) => &worker.assigned[place],
            None => worker.actors.get(&task).or_else(|| worker.blocked.iter().find(|assigned| assigned.id == task))?,
        };
        let bundle = &self.cluster.bundles[assigned.bundle?];
        Some((bundle.group, bundle.index))
    }

    fn view_group<'a>(&'a self, id: GroupId, group: &'a Group<V>) -> GroupView<'a> {
        let is_waiting = self.groups.waiting.contains_key(&group.number);
        let node = |at: BundleKey| self.cluster.nodes[self.cluster.bundles[at].node].id;
        let view = |((total, at), index): ((&'a ResourceSet, Option<BundleKey>), u32)| {
            let bundle = at.map(|at| &self.cluster.bundles[at]);
            BundleView {
                total,
                reserving_on: group
                    .reservation
                    .as_ref()
                    .and_then(|reservation| reservation.bundles.get(&index))
                    .map(|at| node(*at)),
                placed: bundle.map(|at| (self.cluster.nodes[at.node].id, at.free.cpus, &at.free.rest)),
                occupants: at
                    .map_or_else(Vec::new, |at| self.cluster.occupants(at).map(|assigned| assigned.id).collect()),
            }
        };
        // A failed group has no placed bundles.
        let placed = group.bundles.iter().copied().chain(std::iter::repeat(None));
        GroupView {
            id,
            job: self.jobs[group.job].id,
            name: group.spec.name.as_ref(),
            strategy: group.spec.strategy,
            state: match (&group.failed, &group.value) {
                (Some(_), _) => GroupState::Infeasible,
                (None, Some(_)) => GroupState::Pending,
                (None, None) if is_waiting => GroupState::Rescheduling,
                (None, None) => GroupState::Created,
            },
            bundles: group.spec.bundles.iter().zip(placed).zip(0..).map(view).collect(),
        }
    }

    /// Iterates over the nodes in an arbitrary order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeView<'_>> {
        self.cluster.nodes.iter().map(|(_, node)| NodeView {
            id: node.id,
            total: &node.total,
            free_cpus: node.free.cpus,
            free_rest: &node.free.rest,
            external_usage: &node.external_usage,
        })
    }

    /// Iterates over the task classes in an arbitrary order. Several may have one name.
    pub fn classes(&self) -> impl Iterator<Item = ClassView<'_>> {
        self.classes.iter().map(|class| ClassView {
            job: self.jobs[class.spec.job].id,
            name: &class.spec.name,
            live: class.live,
        })
    }

    /// Returns for each job the bytes of the calls of its unfinished tasks, and the limit beyond which the embedder
    /// blocks further submissions.
    pub fn call_bytes(&self) -> impl Iterator<Item = (JobId, u64, u64)> {
        self.jobs.iter().map(|(_, job)| (job.id, job.call_bytes, job.limits.call_bytes_max))
    }

    /// Whether some worker runs a task of the job, as far as the scheduler knows.
    pub fn has_running(&self, job: JobId) -> bool {
        let is_its = |at: &TaskKey| self.jobs[self.tasks[*at].job].id == job;
        let mut assigned =
            self.cluster.workers.iter().flat_map(|(_, worker)| &worker.assigned).filter_map(|assigned| assigned.task);
        // An actor runs one call at a time, the one that was assigned first.
        let mut calls = self.actors.iter().filter_map(|(_, actor)| actor.assigned.front());
        assigned.any(|at| is_its(&at)) || calls.any(|at| is_its(at) && self.tasks[*at].state == State::Assigned)
    }

    /// Returns the tenant of a job that has not ended.
    pub fn tenant_of(&self, job: JobId) -> Option<TenantId> {
        self.job_ids.get(&job).map(|at| self.jobs[*at].tenant)
    }

    /// Iterates over the jobs that have not ended.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, TenantId)> {
        self.jobs.iter().map(|(_, job)| (job.id, job.tenant))
    }

    /// Whether something is ready to run and waits for room.
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
            || !self.pending_actors.is_empty()
            || !self.groups.waiting.is_empty()
            || !self.starting.is_empty()
    }

    /// Whether no state of any job is left.
    pub fn is_empty(&self) -> bool {
        let task_workers =
            self.tasks.len() + self.objects.len() + self.jobs.len() + self.classes.len() + self.queue.shapes();
        let dedicated_workers = self.actors.len() + self.actor_ids.len() + self.names.len();
        task_workers + dedicated_workers + self.ids.len() == 0
            && self.pending_actors.is_empty()
            && self.groups.is_empty()
            && self.cluster.bundles.len() == 0
            && self.queue.is_empty()
            && self.starting.is_empty()
            && self.lineage.unused.is_empty()
            && self.lineage.lost.is_empty()
    }

    fn view_task<'a>(&'a self, task: &'a Task<C>) -> TaskView<'a> {
        let spec = &self.classes.get(task.class).spec;
        let id = |at: TaskKey| self.tasks[at].id;
        TaskView {
            id: task.id,
            job: self.jobs[task.job].id,
            name: &spec.name,
            state: match task.state {
                State::Waiting => TaskState::Pending,
                State::Queued => TaskState::Queued,
                State::Assigned | State::HostsActor => TaskState::Running,
                State::Blocked => TaskState::Blocked,
                State::Finished(FinalState::Succeeded) => TaskState::Succeeded,
                State::Finished(FinalState::Failed) => TaskState::Failed,
                State::Finished(FinalState::Cancelled) => TaskState::Cancelled,
            },
            parent: task.parent.map(id),
            attempt: task.attempt,
            depth: task.depth,
            worker: task.worker.map(|worker| self.cluster.workers[worker].id),
            priority: spec.priority,
            retries_max: spec.retries_max,
            retry_on: spec.retry_on,
            demand: &self.queue.shape(spec.shape).demand,
            strategy: self.queue.shape(spec.shape).strategy,
            returns: task.returns,
        }
    }

    fn view_object(&self, object: &Object<V>) -> ObjectView {
        ObjectView {
            id: object.id,
            job: self.jobs[object.job].id,
            task: object.index.map(|index| TaskId(object.id.0 - u64::from(index))),
            state: match object.value {
                Value::Pending => ObjectState::Pending,
                Value::Ready(_) => ObjectState::Ready,
                Value::Failed(_) => ObjectState::Failed,
            },
            pins: object.pins,
            holders: object.holders().collect(),
            contents: object.contents().iter().map(|content| self.objects[*content].id).collect(),
        }
    }
}
