//! Placement groups: created by a task, ready when all bundles are placed, and removed by a task or with their job.
//! Tasks and actors in a removed group are cancelled.

use sandbar_core::{Code, Fault, GROUP_BUNDLES_MAX, GroupId, Strategy, TaskError, TaskId, WorkerId};

use crate::event::{Action, GroupSpec, Submission, SubmissionKind};
use crate::records::groups::Group;
use crate::records::keys::{JobKey, NodeKey, ObjectKey, TaskKey};
use crate::records::object::ObjectOutcome;
use crate::records::resources::ResourceSet;
use crate::records::tasks::{Cancellation, cancelled};
use crate::scheduler::Scheduler;

impl<C, V> Scheduler<C, V> {
    pub(crate) fn create_group(&mut self, id: GroupId, task: TaskId, worker: WorkerId, spec: GroupSpec, value: V) {
        let origin = self.storing_task(id.ready(), task, worker).filter(|_| !self.groups.all.contains_key(&id));
        let Some((task, origin)) = origin else {
            return self.work.act(Action::Drop { object: id.ready(), value });
        };
        if let Err(fault) = self.admit_group(task, origin.job, &spec) {
            self.work.act(Action::Drop { object: id.ready(), value });
            let error = self.error(task, fault);
            self.create_failed(origin, id.ready(), None, error);
            return;
        }
        self.create(id.ready(), origin.job, None, ObjectOutcome::Pending, origin.worker());
        let owner = (origin.job, self.jobs[origin.job].tenant);
        self.groups.insert(id, Group::new(owner, task, self.chain(Some(task)), spec, value));
        self.work.needs_dispatch = true;
        self.fail_if_infeasible(id);
    }

    fn admit_group(&self, task: TaskKey, job_at: JobKey, spec: &GroupSpec) -> Result<(), Fault> {
        if self.tasks[task].cancellation != Cancellation::None {
            return Err(self.cancellation_fault(task));
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
        match spec.bundles.iter().position(ResourceSet::is_zero) {
            Some(index) => {
                let message = format!("bundle {index} of a placement group requests no resources");
                Err(Fault::new(Code::BadRequest, message))
            }
            None => Ok(()),
        }
    }

    /// Checks the placement strategy of a submission. Returns the object that the task must wait for.
    pub(crate) fn admit_strategy<D>(
        &self,
        job: JobKey,
        submission: &Submission<D>,
    ) -> Result<Option<ObjectKey>, Fault> {
        let bad = |message: &str| Err(Fault::new(Code::BadRequest, message));
        match submission.strategy {
            Strategy::Default => Ok(None),
            _ if matches!(submission.kind, SubmissionKind::Method(_)) => {
                bad("is an actor call, which must not have a placement strategy: it runs where the actor is")
            }
            Strategy::Spread | Strategy::Node { .. } => Ok(None),
            Strategy::Group { group, bundle } => {
                let record = self.groups.all.get(&group).filter(|record| record.job == job);
                let record = record.ok_or_else(|| missing_group(group))?;
                match self.group_fault(group, bundle, &submission.demand) {
                    Some(fault) => Err(fault),
                    None => Ok(record.value.as_ref().and_then(|_| self.ids.find_object(group.ready()))),
                }
            }
        }
    }

    /// Returns why a request can never be satisfied in a group, if so.
    pub(crate) fn group_fault(&self, id: GroupId, bundle: Option<u32>, demand: &ResourceSet) -> Option<Fault> {
        let Some(group) = self.groups.all.get(&id) else { return Some(missing_group(id)) };
        if let Some(fault) = &group.failed {
            return Some(fault.clone());
        }
        let all: Vec<&ResourceSet> = match bundle {
            None => group.spec.bundles.iter().collect(),
            Some(index) => group.spec.bundles.get(index as usize).into_iter().collect(),
        };
        if all.iter().any(|total| demand.fits_in(total)) {
            return None;
        }
        let (name, count) = (group.name(id), group.spec.bundles.len());
        Some(match bundle {
            Some(index) if all.is_empty() => {
                Fault::new(Code::BadRequest, format!("{name} has no bundle {index}: it has {count}, from 0 on"))
            }
            Some(index) => {
                Fault::new(Code::Infeasible, demand.shortage(&format!("bundle {index} of {name} has no"), &all))
            }
            None => Fault::new(Code::Infeasible, demand.shortage(&format!("no bundle of {name} has"), &all)),
        })
    }

    /// Returns why a task is cancelled: by a request, or because its group was removed.
    pub(crate) fn cancellation_fault(&self, at: TaskKey) -> Fault {
        let shape = self.queue.shape(self.classes.get(self.tasks[at].class).spec.shape);
        let Strategy::Group { group, bundle } = shape.strategy else { return cancelled() };
        if !self.groups.all.contains_key(&group) {
            // The group existed when the task was submitted.
            return Fault::new(Code::GroupRemoved, format!("placement group {} was removed", group.short()));
        }
        self.group_fault(group, bundle, &shape.demand).unwrap_or_else(cancelled)
    }

    pub(crate) fn remove_group(&mut self, id: GroupId, task: TaskId, worker: WorkerId) {
        let Some(worker) = self.cluster.workers.find(worker) else { return };
        let Some(task) = self.ids.find_task(task).filter(|at| self.tasks[*at].worker == Some(worker)) else { return };
        let job = self.tasks[task].job;
        if self.groups.all.get(&id).is_some_and(|group| group.job == job) {
            self.delete_group(id);
        }
    }

    fn delete_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.all.get(&id) else { return };
        let fault = Fault::new(Code::GroupRemoved, format!("{} was removed", group.name(id)));
        self.close_group(id, fault);
        self.groups.remove(id);
    }

    /// Removes the groups that are removed with a task.
    pub(crate) fn end_groups_of_task(&mut self, task: TaskKey) {
        while let Some(id) = self.groups.owned_by(task) {
            self.delete_group(id);
        }
    }

    /// Closes a group: releases its bundles and cancels the tasks in it.
    pub(crate) fn close_group(&mut self, id: GroupId, fault: Fault) {
        self.groups.remove_waiting(id);
        let Some(group) = self.groups.all.get_mut(&id) else { return };
        group.failed = Some(fault.clone());
        let error = TaskError { fault, chain: std::mem::take(&mut group.chain) };
        let (value, bundles) = (group.value.take(), group.take_bundles());
        for task in self.release_bundles(bundles, None) {
            self.cancel_task(task, Cancellation::Task);
        }
        self.fail_infeasible_tasks();
        if let Some(value) = value {
            self.work.act(Action::Drop { object: id.ready(), value });
            if let Some(object) = self.ids.find_object(id.ready()) {
                self.set_failed(object, &error.into());
            }
        }
    }

    /// Unplaces the bundles of a lost node. They are placed again, together with other unplaced bundles of their
    /// groups.
    pub(crate) fn lose_bundles(&mut self, node: NodeKey) {
        for bundle in self.cluster.lose_bundles(node) {
            if let Some(group) = self.groups.all.get_mut(&bundle.group) {
                group.bundles[bundle.index as usize] = None;
                self.groups.set_waiting(bundle.group);
                self.cancel_reservation(bundle.group, None);
            }
        }
        self.forget_refusals(self.cluster.nodes[node].id);
    }

    /// Removes the groups of a job, whose tasks are removed already.
    pub(crate) fn end_groups(&mut self, job: JobKey) {
        let of_job = self.groups.all.iter().filter(|(_, group)| group.job == job);
        for id in of_job.map(|(id, _)| *id).collect::<Vec<GroupId>>() {
            let Some(mut group) = self.groups.remove(id) else { continue };
            self.release_bundles(group.take_bundles(), None);
            if let Some(value) = group.value {
                self.work.act(Action::Drop { object: id.ready(), value });
            }
        }
    }
}

/// Returns the error of a request for a group that does not exist in the job.
fn missing_group(id: GroupId) -> Fault {
    Fault::new(Code::GroupRemoved, format!("placement group {} does not exist or was removed", id.short()))
}
