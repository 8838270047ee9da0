//! Placement groups: made by a task, there once all of their bundles are placed, and gone when they are removed or with
//! their job. Who is in one ends with it.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{Attempt, Code, Fault, GROUP_BUNDLES_MAX, GroupId, NodeId, Strategy, TaskError, TaskId, WorkerId};

use crate::event::{Action, GroupSpec, Submission, Work};
use crate::far_groups::Trial;
use crate::places::{BundleAt, JobAt, NodeAt, ObjectAt, TaskAt};
use crate::refs::Value;
use crate::resources::Demand;
use crate::scheduler::Scheduler;
use crate::tasks::{Stop, cancelled};

#[derive(Debug)]
pub(crate) struct Group<V> {
    pub(crate) job: JobAt,
    /// In the order in which they were made.
    pub(crate) number: u64,
    pub(crate) spec: GroupSpec,
    /// Where each bundle is placed.
    pub(crate) bundles: Vec<Option<BundleAt>>,
    /// Where those may be placed that are not, once all nodes that were asked have said so.
    pub(crate) trial: Option<Trial>,
    /// The number of the next.
    pub(crate) attempt: Attempt,
    /// Nodes that have refused it, and have not said since what others use there.
    pub(crate) refused: BTreeSet<NodeId>,
    /// The task with which it goes.
    pub(crate) keeper: Option<TaskAt>,
    /// The value that says that it is there, until it is for the first time.
    pub(crate) value: Option<V>,
    /// Names of tasks from the job's first one down to that which made it.
    chain: Vec<String>,
    /// Why it will never be there, or not any more.
    pub(crate) failed: Option<Fault>,
}

#[derive(Debug)]
pub(crate) struct Groups<V> {
    pub(crate) all: BTreeMap<GroupId, Group<V>>,
    /// Those with bundles that are not placed, in order.
    pub(crate) waiting: BTreeMap<u64, GroupId>,
    /// Those that go with a task.
    kept: BTreeSet<(TaskAt, GroupId)>,
    number: u64,
}

impl<V> Groups<V> {
    pub(crate) fn new() -> Groups<V> {
        Groups { all: BTreeMap::new(), waiting: BTreeMap::new(), kept: BTreeSet::new(), number: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.waiting.is_empty() && self.kept.is_empty()
    }

    fn remove(&mut self, id: GroupId) -> Option<Group<V>> {
        let group = self.all.remove(&id)?;
        self.waiting.remove(&group.number);
        if let Some(keeper) = group.keeper {
            self.kept.remove(&(keeper, id));
        }
        Some(group)
    }
}

impl<V> Group<V> {
    /// What people call it.
    pub(crate) fn name(&self, id: GroupId) -> String {
        match &self.spec.name {
            Some(name) => format!("placement group `{name}`"),
            None => format!("placement group {}", id.short()),
        }
    }
}

impl<C, V> Scheduler<C, V> {
    pub(crate) fn create_group(&mut self, id: GroupId, task: TaskId, worker: WorkerId, spec: GroupSpec, value: V) {
        let origin = self.maker_of(id.ready(), task, worker).filter(|_| !self.groups.all.contains_key(&id));
        let Some((task, origin)) = origin else {
            return self.out.push(Action::Drop { object: id.ready(), value });
        };
        if let Err(fault) = self.admit_group(task, origin.job, &spec) {
            self.out.push(Action::Drop { object: id.ready(), value });
            let error = self.error(task, fault);
            self.create_failed(origin, id.ready(), None, error);
            return;
        }
        self.create(id.ready(), origin.job, None, Value::Pending, origin.parent.map(|(_, worker)| worker));
        self.groups.number += 1;
        let group = Group {
            job: origin.job,
            number: self.groups.number,
            bundles: vec![None; spec.bundles.len()],
            trial: None,
            attempt: Attempt(0),
            refused: BTreeSet::new(),
            keeper: spec.near.then_some(task),
            spec,
            value: Some(value),
            chain: self.chain(Some(task)),
            failed: None,
        };
        self.groups.kept.extend(group.keeper.map(|keeper| (keeper, id)));
        self.groups.waiting.insert(group.number, id);
        self.groups.all.insert(id, group);
        self.is_stale = true;
        self.fail_if_infeasible(id);
    }

    fn admit_group(&self, task: TaskAt, job_at: JobAt, spec: &GroupSpec) -> Result<(), Fault> {
        if self.tasks[task].stop != Stop::No {
            return Err(self.stopped(task));
        }
        self.has_room_for(job_at, 1)?;
        let job = &self.jobs[job_at];
        let of_job = self.groups.all.values().filter(|group| group.job == job_at);
        let (groups, max) = (of_job.count() as u64 + 1, job.limits.groups_max);
        if groups > max {
            let message = format!("its job would have {groups} placement groups at once, its limit is {max}");
            return Err(Fault::new(Code::TaskLimit, message));
        }
        let bundles = spec.bundles.len();
        if !(1..=GROUP_BUNDLES_MAX).contains(&bundles) {
            let message = format!("a placement group of {bundles} bundles: it has from 1 to {GROUP_BUNDLES_MAX}");
            return Err(Fault::new(Code::BadRequest, message));
        }
        match spec.bundles.iter().position(Demand::is_nothing) {
            Some(index) => {
                let message = format!("bundle {index} of a placement group asks for nothing");
                Err(Fault::new(Code::BadRequest, message))
            }
            None => Ok(()),
        }
    }

    /// Whether a task may run where it wants to. Gives what it has to wait for.
    pub(crate) fn admit_strategy(&self, job: JobAt, submission: &Submission<C>) -> Result<Option<ObjectAt>, Fault> {
        let bad = |message: &str| Err(Fault::new(Code::BadRequest, message));
        match submission.strategy {
            Strategy::Default => Ok(None),
            _ if matches!(submission.work, Work::Method(_)) => bad("is a call of an actor, which runs where that is"),
            Strategy::Spread | Strategy::Node { .. } => Ok(None),
            Strategy::Group { group, bundle } => {
                if let Some(fault) = self.group_fault(group, bundle, &submission.demand) {
                    return Err(fault);
                }
                let record = &self.groups.all[&group];
                if record.job != job {
                    return bad(&format!("{} is of another job", record.name(group)));
                }
                Ok(record.value.as_ref().and_then(|_| self.find_object(group.ready())))
            }
        }
    }

    /// Why nothing that asks for so much will ever run in a group.
    pub(crate) fn group_fault(&self, id: GroupId, bundle: Option<u32>, demand: &Demand) -> Option<Fault> {
        let Some(group) = self.groups.all.get(&id) else {
            let message = format!("placement group {} is not there, or not any more", id.short());
            return Some(Fault::new(Code::GroupRemoved, message));
        };
        if let Some(fault) = &group.failed {
            return Some(fault.clone());
        }
        let all: Vec<&Demand> = match bundle {
            None => group.spec.bundles.iter().collect(),
            Some(index) => group.spec.bundles.get(index as usize).into_iter().collect(),
        };
        if all.iter().any(|total| demand.is_within(total)) {
            return None;
        }
        let (name, count) = (group.name(id), group.spec.bundles.len());
        Some(match bundle {
            Some(index) if all.is_empty() => {
                Fault::new(Code::BadRequest, format!("{name} has no bundle {index}: it has {count}, from 0 on"))
            }
            Some(index) => {
                Fault::new(Code::Infeasible, demand.beyond(&format!("bundle {index} of {name} has no"), &all))
            }
            None => Fault::new(Code::Infeasible, demand.beyond(&format!("no bundle of {name} has"), &all)),
        })
    }

    /// Why a task ends that is to: it was cancelled, or its group is gone.
    pub(crate) fn stopped(&self, at: TaskAt) -> Fault {
        let shape = self.queue.shape(self.classes.get(self.tasks[at].class).kind.shape);
        let Strategy::Group { group, bundle } = shape.strategy else { return cancelled() };
        if !self.groups.all.contains_key(&group) {
            // It was there when the task came.
            return Fault::new(Code::GroupRemoved, format!("placement group {} was removed", group.short()));
        }
        self.group_fault(group, bundle, &shape.demand).unwrap_or_else(cancelled)
    }

    pub(crate) fn remove_group(&mut self, id: GroupId, task: TaskId, worker: WorkerId) {
        let Some(worker) = self.cluster.find(worker) else { return };
        let Some(task) = self.find_task(task).filter(|at| self.tasks[*at].worker == Some(worker)) else { return };
        let job = self.tasks[task].job;
        if self.groups.all.get(&id).is_some_and(|group| group.job == job) {
            self.take_away(id);
        }
    }

    fn take_away(&mut self, id: GroupId) {
        let Some(group) = self.groups.all.get(&id) else { return };
        let fault = Fault::new(Code::GroupRemoved, format!("{} was removed", group.name(id)));
        self.close_group(id, fault);
        self.groups.remove(id);
    }

    /// A task has ended, and with it go the groups that go with it.
    pub(crate) fn end_kept_groups(&mut self, task: TaskAt) {
        let all = (task, GroupId(0))..=(task, GroupId(u64::MAX));
        while let Some((_, id)) = self.groups.kept.range(all.clone()).next().copied() {
            self.take_away(id);
        }
    }

    /// A group is not there any more, and who is in it ends.
    pub(crate) fn close_group(&mut self, id: GroupId, fault: Fault) {
        let Some(group) = self.groups.all.get_mut(&id) else { return };
        self.groups.waiting.remove(&group.number);
        group.failed = Some(fault.clone());
        let error = TaskError { fault, chain: std::mem::take(&mut group.chain) };
        let (value, bundles) = (group.value.take(), group.take_bundles());
        for task in self.unplace(bundles, None) {
            self.stop(task, Stop::Alone);
        }
        self.fail_infeasible_tasks();
        if let Some(value) = value {
            self.out.push(Action::Drop { object: id.ready(), value });
            if let Some(object) = self.find_object(id.ready()) {
                self.set_failed(object, &error.into());
            }
        }
    }

    /// Bundles that were on a node that is gone are placed anew, with all others of their group that lie nowhere.
    pub(crate) fn lose_bundles(&mut self, node: NodeAt) {
        for bundle in self.cluster.lose_bundles(node) {
            if let Some(group) = self.groups.all.get_mut(&bundle.group) {
                group.bundles[bundle.index as usize] = None;
                self.groups.waiting.insert(group.number, bundle.group);
                self.give_up_trial(bundle.group, None);
            }
        }
        self.forget_refusals(self.cluster.nodes[node].id);
    }

    /// The groups of a job go with it, and with them its tasks, which are forgotten.
    pub(crate) fn end_groups(&mut self, job: JobAt) {
        let of_job = self.groups.all.iter().filter(|(_, group)| group.job == job);
        for id in of_job.map(|(id, _)| *id).collect::<Vec<GroupId>>() {
            let Some(mut group) = self.groups.remove(id) else { continue };
            self.unplace(group.take_bundles(), None);
            if let Some(value) = group.value {
                self.out.push(Action::Drop { object: id.ready(), value });
            }
        }
    }
}
