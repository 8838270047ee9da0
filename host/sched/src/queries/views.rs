//! Views of tasks, objects, actors, groups, workers and nodes.

use std::sync::Arc;

use sandbar_core::{ActorId, Fault, GroupId, JobId, ObjectId, TaskError, TaskId, TenantId};

use crate::records::actors::Actor;
use crate::records::groups::Group;
use crate::records::keys::{BundleKey, TaskKey};
use crate::records::object::{Object, ObjectOutcome};
use crate::records::resources::ResourceSet;
use crate::records::tasks::{FinalState, Task, TaskPhase};
use crate::scheduler::Scheduler;
use crate::views::{
    ActorState, ActorView, BundleView, ClassView, GroupState, GroupView, NodeView, ObjectState, ObjectView, StreamView,
    TaskState, TaskView, WorkerView,
};

impl<C, V> Scheduler<C, V> {
    /// Returns the call of an unfinished task.
    pub fn call(&self, task: TaskId) -> Option<&C> {
        let task = &self.tasks[self.ids.find_task(task)?];
        task.call.as_ref().filter(|_| !task.has_finished())
    }

    /// Returns the value or the error of an object, or `None` while it is pending or if it does not exist.
    pub fn value(&self, object: ObjectId) -> Option<Result<&V, &Arc<TaskError>>> {
        match &self.objects[self.ids.find_object(object)?].value {
            ObjectOutcome::Pending => None,
            ObjectOutcome::Ready(value) => Some(Ok(value)),
            ObjectOutcome::Failed(error) => Some(Err(error)),
        }
    }

    /// Returns a task. Its record exists until the step after the one in which it finished, or longer.
    pub fn task(&self, task: TaskId) -> Option<TaskView<'_>> {
        self.ids.find_task(task).map(|at| self.view_task(&self.tasks[at]))
    }

    /// Returns an object. It exists while something refers to it or its task is unfinished.
    pub fn object(&self, object: ObjectId) -> Option<ObjectView> {
        self.ids.find_object(object).map(|at| self.view_object(&self.objects[at]))
    }

    /// Returns the objects that a task's arguments contain, except its dependencies.
    pub fn refs(&self, task: TaskId) -> impl Iterator<Item = ObjectId> {
        let links = self.ids.find_task(task).and_then(|at| self.tasks[at].links.as_ref());
        links.into_iter().flat_map(|links| &links.refs).map(|object| self.objects[*object].id)
    }

    /// Returns the names of a task and its ancestors, from the job's root task down.
    pub fn ancestor_names(&self, task: TaskId) -> Vec<String> {
        self.chain(self.ids.find_task(task))
    }

    /// Returns the stream of a generator's return object.
    pub fn stream(&self, object: ObjectId) -> Option<StreamView> {
        let stream = self.objects[self.ids.find_object(object)?].stream()?;
        let (consumer, buffer) = (stream.consumer, stream.buffer);
        Some(StreamView { consumer, buffer, yielded: stream.yielded, consumed: stream.consumed })
    }

    /// Returns the job of a task.
    pub fn job_of(&self, task: TaskId) -> Option<JobId> {
        self.ids.find_task(task).map(|at| self.jobs[self.tasks[at].job].id)
    }

    /// Returns the job of an object.
    pub fn job_of_object(&self, object: ObjectId) -> Option<JobId> {
        self.ids.find_object(object).map(|at| self.jobs[self.objects[at].job].id)
    }

    /// Returns the objects that the value of an object contains.
    pub fn contained_objects(&self, object: ObjectId) -> impl Iterator<Item = ObjectId> {
        let object = self.ids.find_object(object).map(|at| &self.objects[at]);
        object.into_iter().flat_map(|object| object.contents()).map(|content| self.objects[*content].id)
    }

    /// Returns the id of the task that returns an object.
    pub fn producer(&self, object: ObjectId) -> Option<TaskId> {
        let object = &self.objects[self.ids.find_object(object)?];
        object.index.map(|index| TaskId(object.id.0 - u64::from(index)))
    }

    /// Iterates over the tasks in an arbitrary order.
    pub fn tasks(&self) -> impl Iterator<Item = TaskView<'_>> {
        self.tasks.iter().map(|task| self.view_task(task))
    }

    /// Iterates over the objects in an arbitrary order.
    pub fn objects(&self) -> impl Iterator<Item = ObjectView> {
        self.objects.iter().map(|(_, object)| self.view_object(object))
    }

    /// Iterates over the objects of a job, the newest first.
    pub fn objects_of(&self, job: JobId) -> impl Iterator<Item = ObjectView> {
        let first = self.jobs.find(job).and_then(|at| self.jobs[at].objects_first);
        let all = std::iter::successors(first, |at| self.objects[*at].after);
        all.map(|at| self.view_object(&self.objects[at]))
    }

    /// Returns the number of a job's objects.
    pub fn count_objects(&self, job: JobId) -> u64 {
        self.jobs.find(job).map_or(0, |at| self.jobs[at].usage.objects)
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
        self.actors.find(id).map(|at| self.view_actor(&self.actors[at]))
    }

    /// Returns the actor whose method a task calls.
    pub fn actor_of(&self, task: TaskId) -> Option<ActorId> {
        let at = self.ids.find_task(task).filter(|at| self.is_method(*at))?;
        self.tasks[at].actor.map(|actor| self.actors[actor].id)
    }

    fn view_actor<'a>(&'a self, actor: &'a Actor) -> ActorView<'a> {
        let creator = actor.creator.map(|creator| &self.tasks[creator]);
        let state = match creator {
            None if actor.is_borrowed && actor.death_cause.is_none() => ActorState::Alive,
            None => ActorState::Dead,
            Some(creator) => match (creator.state, creator.attempt.0) {
                (TaskPhase::HostsActor, _) => ActorState::Alive,
                (TaskPhase::Waiting, 0) => ActorState::Pending,
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
        let at = self.tasks[self.ids.find_task(task)?].worker?;
        let worker = &self.cluster.workers[at];
        // Callers usually query the task that was assigned last.
        let assigned = match self.cluster.position_from_end(at, task) {
            Some(place) => &worker.assigned[place],
            None => worker.actors.get(&task).or_else(|| worker.blocked.iter().find(|assigned| assigned.id == task))?,
        };
        let bundle = &self.cluster.bundles[assigned.bundle?];
        Some((bundle.group, bundle.index))
    }

    fn view_group<'a>(&'a self, id: GroupId, group: &'a Group<V>) -> GroupView<'a> {
        let is_waiting = self.groups.is_waiting(group);
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

    /// Returns the jobs whose tasks must wait before they submit more, with the bytes of the unfinished tasks of the job or of
    /// its tenant, and their limit. Jobs that `are_held` already wait until a quarter of these bytes is free.
    pub fn held_submissions(&self, are_held: impl Fn(JobId) -> bool) -> impl Iterator<Item = (JobId, u64, u64)> {
        self.jobs.iter().filter_map(move |job| {
            let (is_held, tenant) = (are_held(job.id), &self.cluster.tenants[job.tenant]);
            let of_job = (job.usage.call_bytes, job.limits.call_bytes_max);
            let exceeds = |(bytes, max): &(u64, u64)| if is_held { *bytes > max / 4 * 3 } else { bytes > max };
            [of_job, tenant.queued_bytes()].into_iter().find(exceeds).map(|(bytes, max)| (job.id, bytes, max))
        })
    }

    /// Whether some worker runs a task of the job, as far as the scheduler knows.
    pub fn has_running(&self, job: JobId) -> bool {
        let is_its = |at: &TaskKey| self.jobs[self.tasks[*at].job].id == job;
        let mut assigned =
            self.cluster.workers.iter().flat_map(|(_, worker)| &worker.assigned).filter_map(|assigned| assigned.task);
        // An actor runs one call at a time, the one that was assigned first.
        let mut calls = self.actors.iter().filter_map(|(_, actor)| actor.assigned.front());
        assigned.any(|at| is_its(&at)) || calls.any(|at| is_its(at) && self.tasks[*at].state == TaskPhase::Assigned)
    }

    /// Returns the tenant of a job that has not ended.
    pub fn tenant_of(&self, job: JobId) -> Option<TenantId> {
        self.jobs.find(job).map(|at| self.cluster.tenants[self.jobs[at].tenant].id)
    }

    /// Returns whether a task may use an object: it is of the task's job, or of that of the actor whose method it is, or the
    /// handle of a detached actor of its tenant.
    pub fn may_use(&self, task: TaskId, object: ObjectId) -> bool {
        let task = self.ids.find_task(task);
        task.is_some_and(|task| self.usable(object, |object| self.is_within_reach(object, task)).is_ok())
    }

    /// Checks whether a tenant may start a job today.
    ///
    /// # Errors
    /// The budget that the tenant has used up.
    pub fn check_budget(&self, tenant: TenantId) -> Result<(), Fault> {
        self.cluster.tenants.find(tenant).map_or(Ok(()), |at| self.cluster.tenants.check_budget(at))
    }

    /// Iterates over the jobs that have not ended.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, TenantId)> {
        self.jobs.iter().map(|job| (job.id, self.cluster.tenants[job.tenant].id))
    }

    /// Whether something is ready to run and waits for room.
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
            || !self.actors.pending.is_empty()
            || self.groups.has_waiting()
            || self.jobs.has_starting()
    }

    /// Whether no state of any job is left.
    pub fn is_empty(&self) -> bool {
        self.tasks.len() + self.objects.len() + self.ids.len() + self.classes.len() + self.queue.shapes() == 0
            && self.actors.is_empty()
            && self.jobs.is_empty()
            && self.cluster.tenants.is_unused()
            && self.groups.is_empty()
            && self.cluster.bundles.len() == 0
            && self.queue.is_empty()
            && self.work.is_settled()
    }

    fn view_task<'a>(&'a self, task: &'a Task<C>) -> TaskView<'a> {
        let spec = &self.classes.get(task.class).spec;
        let id = |at: TaskKey| self.tasks[at].id;
        TaskView {
            id: task.id,
            job: self.jobs[task.job].id,
            name: &spec.name,
            state: match task.state {
                TaskPhase::Waiting => TaskState::Pending,
                TaskPhase::Queued => TaskState::Queued,
                TaskPhase::Assigned | TaskPhase::HostsActor => TaskState::Running,
                TaskPhase::Blocked => TaskState::Blocked,
                TaskPhase::Finished(FinalState::Succeeded) => TaskState::Succeeded,
                TaskPhase::Finished(FinalState::Failed) => TaskState::Failed,
                TaskPhase::Finished(FinalState::Cancelled) => TaskState::Cancelled,
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
                ObjectOutcome::Pending => ObjectState::Pending,
                ObjectOutcome::Ready(_) => ObjectState::Ready,
                ObjectOutcome::Failed(_) => ObjectState::Failed,
            },
            pins: object.pins,
            holders: object.holders().map(|holder| (holder.worker, holder.times)).collect(),
            contents: object.contents().iter().map(|content| self.objects[*content].id).collect(),
        }
    }
}
