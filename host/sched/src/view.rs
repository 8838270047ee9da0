//! What can be seen of a scheduler: for whoever does what it says, for lists, and for tests.

use std::sync::Arc;

use sandbar_core::{
    ActorId, Attempt, GroupId, GroupStrategy, JobId, NodeId, ObjectId, RetryOn, Strategy, TaskError, TaskId, TenantId,
    WorkerId,
};

use crate::actors::Actor;
use crate::event::Role;
use crate::groups::Group;
use crate::places::{BundleAt, TaskAt};
use crate::refs::{Object, Value};
use crate::resources::Demand;
use crate::scheduler::Scheduler;
use crate::tasks::{End, State, Task};

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    /// It waits for objects that it needs.
    Pending,
    /// It waits for a worker.
    Queued,
    /// A worker was given it.
    Running,
    /// It waits for objects, in its worker.
    Blocked,
    /// It has ended, with values.
    Succeeded,
    /// It has ended, with an error.
    Failed,
    /// It has ended: it was cancelled.
    Stopped,
}

/// A task. Those that have ended are mostly there for one step more.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskView<'a> {
    /// Its id.
    pub id: TaskId,
    /// Its job.
    pub job: JobId,
    /// For people.
    pub name: &'a Arc<str>,
    /// Where it is.
    pub state: TaskState,
    /// Who submitted it, while that is known.
    pub parent: Option<TaskId>,
    /// The attempt at hand, or the next.
    pub attempt: Attempt,
    /// 1 of a job's first task.
    pub depth: u32,
    /// Who was given it.
    pub worker: Option<WorkerId>,
    /// What comes first: higher numbers.
    pub priority: i32,
    /// How often it is begun again, and after which errors.
    pub retries_max: u32,
    /// As above.
    pub retry_on: RetryOn,
    /// What it takes of a node.
    pub demand: &'a Demand,
    /// Where it is to run.
    pub strategy: Strategy,
    /// How many objects it returns.
    pub returns: u32,
}

/// What is known of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectState {
    /// Its task has not ended, or its value was only promised.
    Pending,
    /// There is a value.
    Ready,
    /// There is an error.
    Failed,
}

/// An object.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectView {
    /// Its id.
    pub id: ObjectId,
    /// Its job.
    pub job: JobId,
    /// Which task returns it; none of what was put or promised.
    pub task: Option<TaskId>,
    /// What is known of it.
    pub state: ObjectState,
    /// Tasks and values that refer to it.
    pub pins: u32,
    /// Workers that hold it, and how often.
    pub holds: Vec<(WorkerId, u32)>,
    /// What its value contains.
    pub contents: Vec<ObjectId>,
}

/// What a generator returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamView {
    /// Who takes its items.
    pub consumer: WorkerId,
    /// The generator may yield so many items more than were taken.
    pub buffer: u32,
    /// Items that were yielded.
    pub yielded: u64,
    /// Items that were taken.
    pub taken: u64,
}

/// A worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// Its id.
    pub id: WorkerId,
    /// Where it is.
    pub node: NodeId,
    /// What it is for.
    pub role: Role,
    /// Tasks that it was given and that are not blocked, in order.
    pub given: Vec<TaskId>,
    /// Tasks that it was given and that are blocked.
    pub blocked: Vec<TaskId>,
    /// Actors that it has.
    pub actors: Vec<ActorId>,
    /// Whether its tasks were asked back.
    pub is_recalled: bool,
}

/// Where an actor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActorState {
    /// It waits for objects that it is made with.
    Pending,
    /// It waits for a worker with room, or is being made.
    Creating,
    /// It can be called.
    Alive,
    /// As `Creating`, after it had died.
    Restarting,
    /// It has died, and somebody has a handle to it.
    Dead,
}

/// An actor.
#[derive(Debug, Clone, PartialEq)]
pub struct ActorView<'a> {
    /// Its id.
    pub id: ActorId,
    /// Its job.
    pub job: JobId,
    /// By which it is found.
    pub name: Option<&'a Arc<str>>,
    /// What made it, for people.
    pub maker: Option<&'a Arc<str>>,
    /// Where it is.
    pub state: ActorState,
    /// The worker that has it.
    pub worker: Option<WorkerId>,
    /// How often it was begun anew.
    pub restarts: u32,
    /// Calls that its worker was given.
    pub given: Vec<TaskId>,
    /// Calls that have not ended.
    pub calls: u64,
    /// What it is begun anew with.
    pub saved: Option<ObjectId>,
    /// Why it is dead.
    pub died: Option<&'a Arc<TaskError>>,
}

/// Tasks that are called the same and ask for the same.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassView<'a> {
    /// Their job.
    pub job: JobId,
    /// For people.
    pub name: &'a Arc<str>,
    /// How many of them have not ended.
    pub live: u64,
}

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView<'a> {
    /// Its id.
    pub id: NodeId,
    /// What it has.
    pub total: &'a Demand,
    /// Processors that this scheduler has given to nobody; below 0 where tasks went on that had given theirs away.
    pub free_cpus: i128,
    /// All else that it has given to nobody.
    pub free_rest: &'a Demand,
    /// What of that others use, of a node that is far, as it has said last. It may be more than is left.
    pub others: &'a Demand,
}

/// Where a placement group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupState {
    /// It waits for room.
    Pending,
    /// Each bundle is on a node.
    Created,
    /// It was there, and waits for room for bundles whose node is gone.
    Rescheduling,
    /// It can never be placed.
    Infeasible,
}

/// A placement group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupView<'a> {
    /// Its id.
    pub id: GroupId,
    /// Its job.
    pub job: JobId,
    /// For people.
    pub name: Option<&'a Arc<str>>,
    /// How its bundles lie on nodes.
    pub strategy: GroupStrategy,
    /// Where it is.
    pub state: GroupState,
    /// Its bundles, in order.
    pub bundles: Vec<BundleView<'a>>,
}

/// A bundle of a placement group.
#[derive(Debug, Clone, PartialEq)]
pub struct BundleView<'a> {
    /// What is set aside.
    pub total: &'a Demand,
    /// On which node, and what of it is left: processors (below 0 where tasks went on that had given theirs away), and all
    /// else.
    pub placed: Option<(NodeId, i128, &'a Demand)>,
    /// On which node it is placed once all nodes that were asked for room have said that they have set it aside.
    pub asked: Option<NodeId>,
    /// Tasks and actors that were given it.
    pub occupants: Vec<TaskId>,
}

impl<C, V> Scheduler<C, V> {
    /// What a task calls, until it has ended.
    pub fn call(&self, task: TaskId) -> Option<&C> {
        let task = &self.tasks[self.find_task(task)?];
        task.call.as_ref().filter(|_| !task.has_ended())
    }

    /// The value of an object, or why there is none; nothing while that is not known, or when there is no such object.
    pub fn value(&self, object: ObjectId) -> Option<Result<&V, &Arc<TaskError>>> {
        match &self.objects[self.find_object(object)?].value {
            Value::Pending => None,
            Value::Ready(value) => Some(Ok(value)),
            Value::Failed(error) => Some(Err(error)),
        }
    }

    /// A task, until the step after that in which it ended.
    pub fn task(&self, task: TaskId) -> Option<TaskView<'_>> {
        self.find_task(task).map(|at| self.view_task(&self.tasks[at]))
    }

    /// An object, while something refers to it or its task has not ended.
    pub fn object(&self, object: ObjectId) -> Option<ObjectView> {
        self.find_object(object).map(|at| self.view_object(&self.objects[at]))
    }

    /// Objects that the arguments of a task contain, besides those that it needs.
    pub fn refs(&self, task: TaskId) -> impl Iterator<Item = ObjectId> {
        let links = self.find_task(task).and_then(|at| self.tasks[at].links.as_ref());
        links.into_iter().flat_map(|links| &links.refs).map(|object| self.objects[*object].id)
    }

    /// Names of the tasks from a job's first one down to this.
    pub fn names(&self, task: TaskId) -> Vec<String> {
        self.chain(self.find_task(task))
    }

    /// The stream that an object is, while something refers to it or its generator has not ended.
    pub fn stream(&self, object: ObjectId) -> Option<StreamView> {
        let stream = self.objects[self.find_object(object)?].stream()?;
        let (consumer, buffer) = (stream.consumer, stream.buffer);
        Some(StreamView { consumer, buffer, yielded: stream.yielded, taken: stream.taken })
    }

    /// The job of a task, until the step after that in which it ended.
    pub fn job_of(&self, task: TaskId) -> Option<JobId> {
        self.find_task(task).map(|at| self.jobs[self.tasks[at].job].id)
    }

    /// The job of an object.
    pub fn job_of_object(&self, object: ObjectId) -> Option<JobId> {
        self.find_object(object).map(|at| self.jobs[self.objects[at].job].id)
    }

    /// The objects that the value of an object contains.
    pub fn contained(&self, object: ObjectId) -> impl Iterator<Item = ObjectId> {
        let object = self.find_object(object).map(|at| &self.objects[at]);
        object.into_iter().flat_map(|object| object.contents()).map(|content| self.objects[*content].id)
    }

    /// The task that returns an object, or returned it.
    pub fn maker(&self, object: ObjectId) -> Option<TaskId> {
        let object = &self.objects[self.find_object(object)?];
        object.index.map(|index| TaskId(object.id.0 - u64::from(index)))
    }

    /// Tasks, in no order that means anything.
    pub fn tasks(&self) -> impl Iterator<Item = TaskView<'_>> {
        self.tasks.iter().map(|(_, task)| self.view_task(task))
    }

    /// Objects, in no order that means anything.
    pub fn objects(&self) -> impl Iterator<Item = ObjectView> {
        self.objects.iter().map(|(_, object)| self.view_object(object))
    }

    /// The objects of a job, the last one made first.
    pub fn objects_of(&self, job: JobId) -> impl Iterator<Item = ObjectView> {
        let first = self.job_ids.get(&job).and_then(|at| self.jobs[*at].objects_first);
        let all = std::iter::successors(first, |at| self.objects[*at].after);
        all.map(|at| self.view_object(&self.objects[at]))
    }

    /// How many objects a job has.
    pub fn count_objects(&self, job: JobId) -> u64 {
        self.job_ids.get(&job).map_or(0, |at| self.jobs[*at].objects)
    }

    /// Workers, in no order that means anything.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView> {
        self.cluster.workers.iter().map(|(_, worker)| WorkerView {
            id: worker.id,
            node: self.cluster.nodes[worker.node].id,
            role: worker.role,
            given: worker.given.iter().map(|given| given.id).collect(),
            blocked: worker.blocked.iter().map(|given| given.id).collect(),
            actors: worker.residents.keys().map(|task| ActorId(task.0)).collect(),
            is_recalled: worker.is_recalled,
        })
    }

    /// Actors, in no order that means anything: not those of other schedulers.
    pub fn actors(&self) -> impl Iterator<Item = ActorView<'_>> {
        self.actors.iter().filter(|(_, actor)| !actor.is_borrowed).map(|(_, actor)| self.view_actor(actor))
    }

    /// An actor, while somebody has a handle to it or a call of it is left.
    pub fn actor(&self, id: ActorId) -> Option<ActorView<'_>> {
        self.actor_ids.get(&id).map(|at| self.view_actor(&self.actors[*at]))
    }

    /// The actor whose method a task calls.
    pub fn actor_of(&self, task: TaskId) -> Option<ActorId> {
        let at = self.find_task(task).filter(|at| self.is_method(*at))?;
        self.tasks[at].actor.map(|actor| self.actors[actor].id)
    }

    fn view_actor<'a>(&'a self, actor: &'a Actor) -> ActorView<'a> {
        let maker = actor.maker.map(|maker| &self.tasks[maker]);
        let state = match maker {
            None if actor.is_borrowed && actor.died.is_none() => ActorState::Alive,
            None => ActorState::Dead,
            Some(maker) => match (maker.state, maker.attempt.0) {
                (State::Resident, _) => ActorState::Alive,
                (State::Waiting, 0) => ActorState::Pending,
                (_, 0) => ActorState::Creating,
                _ => ActorState::Restarting,
            },
        };
        ActorView {
            id: actor.id,
            job: self.jobs[actor.job].id,
            name: actor.spec.name.as_ref(),
            maker: maker.map(|maker| &self.classes.get(maker.class).kind.name),
            state,
            worker: maker.map_or(actor.worker, |maker| maker.worker).map(|worker| self.cluster.workers[worker].id),
            restarts: maker.map_or(0, |maker| maker.attempt.0),
            given: actor.given.iter().map(|call| self.tasks[*call].id).collect(),
            calls: actor.calls,
            saved: actor.saved.map(|saved| self.objects[saved].id),
            died: actor.died.as_ref(),
        }
    }

    /// Placement groups, by number.
    pub fn groups(&self) -> impl Iterator<Item = GroupView<'_>> {
        self.groups.all.iter().map(|(id, group)| self.view_group(*id, group))
    }

    /// A placement group, until it is removed or goes with its job.
    pub fn group(&self, id: GroupId) -> Option<GroupView<'_>> {
        self.groups.all.get(&id).map(|group| self.view_group(id, group))
    }

    /// The bundle that a task or an actor was given, by its group and its place there, while it is in a worker and the group
    /// is there.
    pub fn bundle_of(&self, task: TaskId) -> Option<(GroupId, u32)> {
        let at = self.tasks[self.find_task(task)?].worker?;
        let worker = &self.cluster.workers[at];
        // What was given last is asked for most.
        let given = match self.cluster.position_from_end(at, task) {
            Some(place) => &worker.given[place],
            None => worker.residents.get(&task).or_else(|| worker.blocked.iter().find(|given| given.id == task))?,
        };
        let bundle = &self.cluster.bundles[given.bundle?];
        Some((bundle.group, bundle.index))
    }

    fn view_group<'a>(&'a self, id: GroupId, group: &'a Group<V>) -> GroupView<'a> {
        let is_waiting = self.groups.waiting.contains_key(&group.number);
        let node = |at: BundleAt| self.cluster.nodes[self.cluster.bundles[at].node].id;
        let view = |((total, at), index): ((&'a Demand, Option<BundleAt>), u32)| {
            let bundle = at.map(|at| &self.cluster.bundles[at]);
            BundleView {
                total,
                asked: group.trial.as_ref().and_then(|trial| trial.bundles.get(&index)).map(|at| node(*at)),
                placed: bundle.map(|at| (self.cluster.nodes[at.node].id, at.free.cpus, &at.free.rest)),
                occupants: at.map_or_else(Vec::new, |at| self.cluster.occupants(at).map(|given| given.id).collect()),
            }
        };
        // Of one that failed nothing is placed.
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

    /// Nodes, in no order that means anything.
    pub fn nodes(&self) -> impl Iterator<Item = NodeView<'_>> {
        self.cluster.nodes.iter().map(|(_, node)| NodeView {
            id: node.id,
            total: &node.total,
            free_cpus: node.free.cpus,
            free_rest: &node.free.rest,
            others: &node.others,
        })
    }

    /// Classes of tasks, in no order that means anything. Several may have one name.
    pub fn classes(&self) -> impl Iterator<Item = ClassView<'_>> {
        self.classes.iter().map(|class| ClassView {
            job: self.jobs[class.kind.job].id,
            name: &class.kind.name,
            live: class.live,
        })
    }

    /// Of each job, the bytes of what its tasks call that have not ended, and how many they may be before who submits more is
    /// to wait.
    pub fn call_bytes(&self) -> impl Iterator<Item = (JobId, u64, u64)> {
        self.jobs.iter().map(|(_, job)| (job.id, job.call_bytes, job.limits.call_bytes_max))
    }

    /// Whether a worker runs a task of a job, as far as is known here.
    pub fn has_running(&self, job: JobId) -> bool {
        let is_its = |at: &TaskAt| self.jobs[self.tasks[*at].job].id == job;
        let mut given =
            self.cluster.workers.iter().flat_map(|(_, worker)| &worker.given).filter_map(|given| given.task);
        // An actor runs one call at a time, the first that it was given.
        let mut calls = self.actors.iter().filter_map(|(_, actor)| actor.given.front());
        given.any(|at| is_its(&at)) || calls.any(|at| is_its(at) && self.tasks[*at].state == State::Given)
    }

    /// Jobs that have not ended.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, TenantId)> {
        self.jobs.iter().map(|(_, job)| (job.id, job.tenant))
    }

    /// Whether nothing is kept of any job.
    pub fn is_empty(&self) -> bool {
        let of_tasks =
            self.tasks.len() + self.objects.len() + self.jobs.len() + self.classes.len() + self.queue.shapes();
        let of_actors = self.actors.len() + self.actor_ids.len() + self.names.len();
        of_tasks + of_actors + self.ids.len() == 0
            && self.unplaced.is_empty()
            && self.groups.is_empty()
            && self.cluster.bundles.len() == 0
            && self.queue.is_empty()
            && self.starting.is_empty()
            && self.lineage.unused.is_empty()
            && self.lineage.lost.is_empty()
    }

    fn view_task<'a>(&'a self, task: &'a Task<C>) -> TaskView<'a> {
        let kind = &self.classes.get(task.class).kind;
        let id = |at: TaskAt| self.tasks[at].id;
        TaskView {
            id: task.id,
            job: self.jobs[task.job].id,
            name: &kind.name,
            state: match task.state {
                State::Waiting => TaskState::Pending,
                State::Queued => TaskState::Queued,
                State::Given | State::Resident => TaskState::Running,
                State::Blocked => TaskState::Blocked,
                State::Ended(End::Succeeded) => TaskState::Succeeded,
                State::Ended(End::Failed) => TaskState::Failed,
                State::Ended(End::Stopped) => TaskState::Stopped,
            },
            parent: task.parent.map(id),
            attempt: task.attempt,
            depth: task.depth,
            worker: task.worker.map(|worker| self.cluster.workers[worker].id),
            priority: kind.priority,
            retries_max: kind.retries_max,
            retry_on: kind.retry_on,
            demand: &self.queue.shape(kind.shape).demand,
            strategy: self.queue.shape(kind.shape).strategy,
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
            holds: object.holders().collect(),
            contents: object.contents().iter().map(|content| self.objects[*content].id).collect(),
        }
    }
}
