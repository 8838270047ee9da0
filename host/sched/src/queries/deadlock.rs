//! Deadlock detection among actor calls: cycles in the wait-for graph.
//!
//! Every cycle contains an actor call that has not started, because its actor is in another call that waits. Only the
//! worker of a started task knows what that task waits for, so the embedder collects [`WaitSet`]s from workers and
//! passes them in. A wait set may be out of date: a task whose objects are all pending still waits for them.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{Code, Fault, JobId, ObjectId, TaskId, WorkerId};

use crate::event::WorkerKind;
use crate::records::keys::{ActorKey, TaskKey};
use crate::records::tasks::{Cancellation, TaskPhase};
use crate::scheduler::Scheduler;

/// Maximum number of tasks that one search visits.
const TASKS_MAX: usize = 10_000;
/// Maximum number of calls that the description of a deadlock names.
const NAMED_MAX: usize = 8;

/// The objects that a started task waits for without a time limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitSet {
    /// Objects, all of which were pending.
    pub objects: Vec<ObjectId>,
    /// Number of these objects that the task waits for.
    pub needed: usize,
    /// Whether the task is an actor call that blocks later calls of its actor.
    pub holds_actor: bool,
}

/// A deadlock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// The job of the call.
    pub job: JobId,
    /// A call in the cycle that has not started.
    pub call: TaskId,
    /// Describes the cycle.
    pub fault: Fault,
}

/// Result of a search: the deadlocks, and the tasks whose wait sets would continue it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadlockSearch {
    /// Deadlocks, at most one for each call that has not started.
    pub deadlocks: Vec<Deadlock>,
    /// Tasks whose wait sets are missing, and creation tasks of actors whose calls' wait sets are missing.
    pub unresolved: Vec<TaskId>,
}

/// Tasks that one task waits for. `None` stands for a task that is unknown or sure to finish.
struct Dependency {
    on: Vec<Option<TaskKey>>,
    /// Number of these that must finish.
    needed: usize,
}

impl Dependency {
    fn all(on: Vec<Option<TaskKey>>) -> Dependency {
        Dependency { needed: on.len(), on }
    }

    /// Whether too many of the tasks never finish for this one to finish.
    fn is_stuck(&self, stuck: &BTreeMap<TaskKey, Dependency>) -> bool {
        let never = self.on.iter().flatten().filter(|at| stuck.contains_key(at)).count();
        never > self.on.len() - self.needed
    }
}

impl<C, V> Scheduler<C, V> {
    /// Iterates over local actors that have calls waiting behind an unfinished one: the creation task, the worker, and
    /// the first assigned call.
    pub fn busy_actors(&self) -> impl Iterator<Item = (TaskId, WorkerId, TaskId)> {
        self.actors.iter().filter(|(_, actor)| actor.calls > 1).filter_map(|(_, actor)| {
            let worker = &self.cluster.workers[actor.worker?];
            let (creator, first) = (actor.creator?, actor.assigned.front()?);
            (worker.kind != WorkerKind::PeerProxy).then_some((self.tasks[creator].id, worker.id, self.tasks[*first].id))
        })
    }

    /// Finds the cycles that are reachable from these wait sets.
    pub fn find_deadlocks(&self, waits: &BTreeMap<TaskId, WaitSet>) -> DeadlockSearch {
        let mut unknown = BTreeSet::new();
        let mut waiting: BTreeMap<TaskKey, Dependency> = BTreeMap::new();
        let mut left: Vec<TaskKey> = waits.keys().filter_map(|task| self.ids.find_task(*task)).collect();
        let mut seen: BTreeSet<TaskKey> = left.iter().copied().collect();
        while let Some(at) = left.pop() {
            let Some(dependency) = self.dependency(at, waits, &mut unknown) else { continue };
            left.extend(dependency.on.iter().flatten().copied().filter(|at| seen.insert(*at)));
            waiting.insert(at, dependency);
            if seen.len() > TASKS_MAX {
                return DeadlockSearch::default();
            }
        }
        loop {
            let before = waiting.len();
            let free: Vec<TaskKey> =
                waiting.iter().filter(|(_, on)| !on.is_stuck(&waiting)).map(|(at, _)| *at).collect();
            free.iter().for_each(|at| drop(waiting.remove(at)));
            if waiting.len() == before {
                break;
            }
        }
        DeadlockSearch { deadlocks: self.describe(&waiting, waits), unresolved: unknown.into_iter().collect() }
    }

    /// Returns the actor calls that block later calls of their actor while they wait for a task on a remote node, each
    /// with one such task.
    pub fn remote_waits(&self, waits: &BTreeMap<TaskId, WaitSet>) -> Vec<(TaskId, TaskId)> {
        let is_remote = |at: &TaskKey| {
            let worker = self.tasks.get(*at).and_then(|task| task.worker);
            worker.is_some_and(|worker| self.cluster.workers[worker].kind == WorkerKind::PeerProxy)
        };
        let remote = |waits: &WaitSet| {
            let mut producers = waits.objects.iter().filter_map(|object| self.pending_producer(*object)?);
            producers.find(is_remote).map(|at| self.tasks[at].id)
        };
        let held = waits.iter().filter(|(_, waits)| waits.holds_actor);
        held.filter_map(|(call, waits)| Some((*call, remote(waits)?))).collect()
    }

    /// Returns the wait of a task, or `None` if the task makes progress as far as is known.
    fn dependency(
        &self,
        at: TaskKey,
        waits: &BTreeMap<TaskId, WaitSet>,
        unknown: &mut BTreeSet<TaskId>,
    ) -> Option<Dependency> {
        let task = self.tasks.get(at).filter(|task| task.cancellation == Cancellation::None)?;
        match (task.state, waits.get(&task.id)) {
            (TaskPhase::Assigned | TaskPhase::Blocked, Some(waits)) => {
                let pending: Vec<_> =
                    waits.objects.iter().filter_map(|object| self.pending_producer(*object)).collect();
                let there = waits.objects.len() - pending.len();
                let needed = waits.needed.saturating_sub(there).min(pending.len());
                Some(Dependency { on: pending, needed })
            }
            (TaskPhase::Assigned | TaskPhase::Queued, None) if self.is_method(at) => {
                self.call_dependency(at, task.actor?, waits, unknown)
            }
            (TaskPhase::Waiting, _) => {
                let dependencies = task.links.iter().flat_map(|links| &links.dependencies);
                let pending = dependencies.filter_map(|need| self.pending_producer(self.objects[*need].id)).collect();
                Some(Dependency::all(pending))
            }
            (TaskPhase::Blocked, None) => {
                // The wait sets of an actor's calls are requested by the actor's creation task.
                let creator = task.actor.filter(|_| self.is_method(at)).and_then(|actor| self.actors[actor].creator);
                unknown.insert(creator.map_or(task.id, |creator| self.tasks[creator].id));
                None
            }
            _ => None,
        }
    }

    /// Returns the wait of a call that has its dependencies but has not started.
    fn call_dependency(
        &self,
        at: TaskKey,
        actor_at: ActorKey,
        waits: &BTreeMap<TaskId, WaitSet>,
        unknown: &mut BTreeSet<TaskId>,
    ) -> Option<Dependency> {
        let (task, actor) = (&self.tasks[at], &self.actors[actor_at]);
        if task.is_gated {
            let first = actor.gates.get(&task.parent?)?.values().next().filter(|first| **first != at)?;
            return Some(Dependency::all(vec![Some(*first)]));
        }
        let creator = actor.creator?;
        if self.tasks[creator].state != TaskPhase::HostsActor {
            return Some(Dependency::all(vec![Some(creator)]));
        }
        let holds = |call: &&TaskKey| {
            **call != at && waits.get(&self.tasks[**call].id).is_some_and(|wait_set| wait_set.holds_actor)
        };
        let holders: Vec<_> = actor.assigned.iter().filter(holds).map(|call| Some(*call)).collect();
        if holders.is_empty() {
            unknown.insert(self.tasks[creator].id);
        }
        Some(Dependency::all(holders))
    }

    /// Returns the task that produces a pending object (`Some(None)` if no known task does), or `None` if the object is
    /// not pending.
    fn pending_producer(&self, object: ObjectId) -> Option<Option<TaskKey>> {
        let object = &self.objects[self.ids.find_object(object)?];
        let creator = || object.index.and_then(|index| self.ids.find_task(TaskId(object.id.0 - u64::from(index))));
        object.is_pending().then(creator)
    }

    fn describe(&self, stuck: &BTreeMap<TaskKey, Dependency>, waits: &BTreeMap<TaskId, WaitSet>) -> Vec<Deadlock> {
        let mut visited = BTreeSet::new();
        let mut found = Vec::new();
        for start in stuck.keys() {
            let mut path = vec![*start];
            let cycle = loop {
                let last = path[path.len() - 1];
                let next = stuck[&last].on.iter().flatten().find(|at| stuck.contains_key(at));
                let Some(next) = next.filter(|next| !visited.contains(*next)) else { break None };
                match path.iter().position(|at| at == next) {
                    Some(first) => break Some(path.split_off(first)),
                    None => path.push(*next),
                }
            };
            visited.extend(path);
            let Some(mut cycle) = cycle else { continue };
            visited.extend(&cycle);
            let is_call = |at: &TaskKey| self.is_method(*at) && !waits.contains_key(&self.tasks[*at].id);
            let Some(first) = cycle.iter().position(is_call) else { continue };
            cycle.rotate_left(first);
            let call = &self.tasks[cycle[0]];
            found.push(Deadlock { job: self.jobs[call.job].id, call: call.id, fault: self.fault_of(&cycle) });
        }
        found
    }

    /// Describes a cycle that begins with a call that has not started.
    fn fault_of(&self, cycle: &[TaskKey]) -> Fault {
        let name = |at: &TaskKey| {
            let task = &self.tasks[*at];
            format!("`{}` ({})", self.classes.get(task.class).spec.name, task.id.short())
        };
        let mut names: Vec<String> = cycle.iter().chain(&cycle[..1]).map(name).collect();
        if names.len() > NAMED_MAX {
            let left_out = names.len() - NAMED_MAX;
            names.splice(NAMED_MAX / 2..names.len() - NAMED_MAX / 2, [format!("{left_out} more")]);
        }
        let message = format!(
            "it would wait for ever: its actor is in another call, and they wait for each other: {}; make one of these \
             methods `async`, and have it wait by `.await`",
            names.join(", which waits for ").replacen(", which", "", 1)
        );
        Fault::new(Code::Deadlock, message)
    }
}
