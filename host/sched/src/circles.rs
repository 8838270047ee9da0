//! Circles of calls: each waits for the next, and the last for the first, so that none of them ever ends.
//!
//! A circle has a call of an actor in it that has not begun: its actor is in another call, which waits. What a task waits for
//! that has begun only its worker knows, so whoever has the scheduler asks it and hands the answers in. Answers may be old:
//! a task whose objects are all pending still waits for them.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{Code, Fault, JobId, ObjectId, TaskId, WorkerId};

use crate::event::Role;
use crate::places::{ActorAt, TaskAt};
use crate::scheduler::Scheduler;
use crate::tasks::{State, Stop};

/// Tasks that are looked at, at most.
const TASKS_MAX: usize = 10_000;
/// Calls of a circle that its description names.
const NAMED_MAX: usize = 8;

/// What a task that has begun waits for, without a limit of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// Objects, none of which was there.
    pub objects: Vec<ObjectId>,
    /// How many of these it waits for.
    pub needed: usize,
    /// Whether it is a call that keeps later calls of its actor from beginning.
    pub holds_actor: bool,
}

/// A circle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circle {
    /// The job of the call.
    pub job: JobId,
    /// A call in it that has not begun.
    pub call: TaskId,
    /// What waits for what.
    pub fault: Fault,
}

/// The circles that are known, and whom to ask to know of more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Circles {
    /// One at most for each call that has not begun.
    pub found: Vec<Circle>,
    /// Tasks that wait for something unknown, and makers of actors whose calls do.
    pub unknown: Vec<TaskId>,
}

/// Tasks that another waits for: none of those in the same place that are sure to end or not known.
struct Dependency {
    on: Vec<Option<TaskAt>>,
    /// How many of these have to end.
    needed: usize,
}

impl Dependency {
    fn all(on: Vec<Option<TaskAt>>) -> Dependency {
        Dependency { needed: on.len(), on }
    }

    /// Whether so many never end that it does not either.
    fn is_stuck(&self, stuck: &BTreeMap<TaskAt, Dependency>) -> bool {
        let never = self.on.iter().flatten().filter(|at| stuck.contains_key(at)).count();
        never > self.on.len() - self.needed
    }
}

impl<C, V> Scheduler<C, V> {
    /// Actors near enough to be asked that are called while an earlier call has not ended: the task that made each, its
    /// worker, and the first call that this has.
    pub fn busy_actors(&self) -> impl Iterator<Item = (TaskId, WorkerId, TaskId)> {
        self.actors.iter().filter(|(_, actor)| actor.calls > 1).filter_map(|(_, actor)| {
            let worker = &self.cluster.workers[actor.worker?];
            let (maker, first) = (actor.maker?, actor.given.front()?);
            (worker.role != Role::Peer).then_some((self.tasks[maker].id, worker.id, self.tasks[*first].id))
        })
    }

    /// The circles among what these tasks wait for, and what that waits for.
    pub fn circles(&self, waits: &BTreeMap<TaskId, Waits>) -> Circles {
        let mut unknown = BTreeSet::new();
        let mut waiting: BTreeMap<TaskAt, Dependency> = BTreeMap::new();
        let mut left: Vec<TaskAt> = waits.keys().filter_map(|task| self.find_task(*task)).collect();
        let mut seen: BTreeSet<TaskAt> = left.iter().copied().collect();
        while let Some(at) = left.pop() {
            let Some(dependency) = self.dependency(at, waits, &mut unknown) else { continue };
            left.extend(dependency.on.iter().flatten().copied().filter(|at| seen.insert(*at)));
            waiting.insert(at, dependency);
            if seen.len() > TASKS_MAX {
                return Circles::default();
            }
        }
        loop {
            let before = waiting.len();
            let free: Vec<TaskAt> =
                waiting.iter().filter(|(_, on)| !on.is_stuck(&waiting)).map(|(at, _)| *at).collect();
            free.iter().for_each(|at| drop(waiting.remove(at)));
            if waiting.len() == before {
                break;
            }
        }
        Circles { found: self.describe(&waiting, waits), unknown: unknown.into_iter().collect() }
    }

    /// Calls among these that keep later ones of their actor waiting, and a task on a node that is far for which each waits.
    pub fn far_waits(&self, waits: &BTreeMap<TaskId, Waits>) -> Vec<(TaskId, TaskId)> {
        let is_far = |at: &TaskAt| {
            let worker = self.tasks.get(*at).and_then(|task| task.worker);
            worker.is_some_and(|worker| self.cluster.workers[worker].role == Role::Peer)
        };
        let far = |waits: &Waits| {
            let mut producers = waits.objects.iter().filter_map(|object| self.producer(*object)?);
            producers.find(is_far).map(|at| self.tasks[at].id)
        };
        let held = waits.iter().filter(|(_, waits)| waits.holds_actor);
        held.filter_map(|(call, waits)| Some((*call, far(waits)?))).collect()
    }

    /// What a task waits for; none if it goes on by itself, as far as is known.
    fn dependency(
        &self,
        at: TaskAt,
        waits: &BTreeMap<TaskId, Waits>,
        unknown: &mut BTreeSet<TaskId>,
    ) -> Option<Dependency> {
        let task = self.tasks.get(at).filter(|task| task.stop == Stop::No)?;
        match (task.state, waits.get(&task.id)) {
            (State::Given | State::Blocked, Some(waits)) => {
                let pending: Vec<_> = waits.objects.iter().filter_map(|object| self.producer(*object)).collect();
                let there = waits.objects.len() - pending.len();
                let needed = waits.needed.saturating_sub(there).min(pending.len());
                Some(Dependency { on: pending, needed })
            }
            (State::Given | State::Queued, None) if self.is_method(at) => self.turn_of(at, task.actor?, waits, unknown),
            (State::Waiting, _) => {
                let needs = task.links.iter().flat_map(|links| &links.needs);
                let pending = needs.filter_map(|need| self.producer(self.objects[*need].id)).collect();
                Some(Dependency::all(pending))
            }
            (State::Blocked, None) => {
                // Workers are asked about an actor's calls by the task that made the actor.
                let maker = task.actor.filter(|_| self.is_method(at)).and_then(|actor| self.actors[actor].maker);
                unknown.insert(maker.map_or(task.id, |maker| self.tasks[maker].id));
                None
            }
            _ => None,
        }
    }

    /// What a call waits for that has not begun, though it has what it needs.
    fn turn_of(
        &self,
        at: TaskAt,
        actor_at: ActorAt,
        waits: &BTreeMap<TaskId, Waits>,
        unknown: &mut BTreeSet<TaskId>,
    ) -> Option<Dependency> {
        let (task, actor) = (&self.tasks[at], &self.actors[actor_at]);
        if task.is_gated {
            let first = actor.gates.get(&task.parent?)?.values().next().filter(|first| **first != at)?;
            return Some(Dependency::all(vec![Some(*first)]));
        }
        let maker = actor.maker?;
        if self.tasks[maker].state != State::Resident {
            return Some(Dependency::all(vec![Some(maker)]));
        }
        let holds = |call: &&TaskAt| **call != at && waits.get(&self.tasks[**call].id).is_some_and(|of| of.holds_actor);
        let holders: Vec<_> = actor.given.iter().filter(holds).map(|call| Some(*call)).collect();
        if holders.is_empty() {
            unknown.insert(self.tasks[maker].id);
        }
        Some(Dependency::all(holders))
    }

    /// The task that a pending object comes of, if one does; none of an object that is not pending.
    fn producer(&self, object: ObjectId) -> Option<Option<TaskAt>> {
        let object = &self.objects[self.find_object(object)?];
        let maker = || object.index.and_then(|index| self.find_task(TaskId(object.id.0 - u64::from(index))));
        object.is_pending().then(maker)
    }

    fn describe(&self, stuck: &BTreeMap<TaskAt, Dependency>, waits: &BTreeMap<TaskId, Waits>) -> Vec<Circle> {
        let mut told = BTreeSet::new();
        let mut found = Vec::new();
        for start in stuck.keys() {
            let mut path = vec![*start];
            let circle = loop {
                let last = path[path.len() - 1];
                let next = stuck[&last].on.iter().flatten().find(|at| stuck.contains_key(at));
                let Some(next) = next.filter(|next| !told.contains(*next)) else { break None };
                match path.iter().position(|at| at == next) {
                    Some(first) => break Some(path.split_off(first)),
                    None => path.push(*next),
                }
            };
            told.extend(path);
            let Some(mut circle) = circle else { continue };
            told.extend(&circle);
            let is_call = |at: &TaskAt| self.is_method(*at) && !waits.contains_key(&self.tasks[*at].id);
            let Some(first) = circle.iter().position(is_call) else { continue };
            circle.rotate_left(first);
            let call = &self.tasks[circle[0]];
            found.push(Circle { job: self.jobs[call.job].id, call: call.id, fault: self.fault_of(&circle) });
        }
        found
    }

    /// Of a circle that begins with a call that has not begun.
    fn fault_of(&self, circle: &[TaskAt]) -> Fault {
        let name = |at: &TaskAt| {
            let task = &self.tasks[*at];
            format!("`{}` ({})", self.classes.get(task.class).kind.name, task.id.short())
        };
        let mut names: Vec<String> = circle.iter().chain(&circle[..1]).map(name).collect();
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
