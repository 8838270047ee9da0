//! Consequences of an event: dependent failures, and removal of unreferenced objects and lineage.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{Code, Strategy};
use sandbar_sched::{Action, ResourceSet, SubmissionKind};

use crate::lineage::Source;
use crate::model::{Model, Object, Steps, Task, Value, fits};

impl Model {
    /// Applies the consequences of the current event.
    pub fn settle(&mut self, actions: &[Action<u64>], steps: &Steps) {
        let ended: BTreeSet<u64> = actions
            .iter()
            .filter_map(|action| if let Action::TaskFinished { task, .. } = action { Some(task.0) } else { None })
            .collect();
        for action in actions {
            if let Action::Run { worker, task, .. } = action {
                self.step.run.insert(task.0, worker.0);
            }
        }
        self.end_groups_of_task(&ended);
        self.handle_reserve_actions(actions);
        self.place_groups(steps);
        loop {
            // Tasks with lost dependencies are found after these were reconstructed or failed.
            let found = if self.step.lost.is_empty() { &ended } else { &BTreeSet::new() };
            self.fail_for_dependencies(found);
            self.fail_infeasible();
            let failed: Vec<u64> = self.step.failed.keys().filter(|id| !self.tasks[id].has_finished).copied().collect();
            if failed.is_empty() {
                self.drop_unreferenced();
                if !self.step.failed.keys().all(|id| self.tasks[id].has_finished) {
                    continue;
                }
                match self.step.lost.pop() {
                    Some(lost) => self.reconstruct(lost),
                    None => break,
                }
                continue;
            }
            for id in failed {
                let returns = u64::from(self.tasks[&id].returns);
                let pending = |object: &&mut Object| object.value == Value::Pending;
                for object in id..id + returns {
                    // The handle of an actor may have its value already.
                    if let Some(object_is) = self.objects.get_mut(&object).filter(pending) {
                        object_is.value = Value::Failed;
                        self.step.ready.insert(object);
                    }
                }
                self.drop_lineage(id);
                self.end(id);
            }
        }
        for (id, object) in self.objects.iter_mut().filter(|(_, object)| !object.value.is_pending()) {
            for (worker, times) in std::mem::take(&mut object.wants) {
                self.step.delivered.insert((worker, *id), times);
            }
        }
        let delivered: Vec<((u32, u64), u32)> = self.step.delivered.iter().map(|(key, times)| (*key, *times)).collect();
        for ((worker, id), times) in delivered {
            if let Value::Ready(_, contents) = self.objects[&id].value.clone() {
                self.hold_contents(&contents, worker, times);
            }
        }
    }

    /// Fails the waiting tasks with failed dependencies. Tasks with lost dependencies fail only if the scheduler found
    /// them.
    pub fn fail_for_dependencies(&mut self, ended: &BTreeSet<u64>) {
        let mut failing = Vec::new();
        for (id, task) in self.tasks.iter().filter(|(_, task)| !task.has_finished && task.worker.is_none()) {
            let has = |was_ready: bool| {
                let mut dependencies = task.dependencies.iter().map(|need| &self.objects[need]);
                dependencies
                    .any(|need| need.was_ready == was_ready && matches!(need.value, Value::Failed | Value::Lost))
            };
            if has(false) || has(true) && ended.contains(id) {
                failing.push(*id);
            }
        }
        failing.into_iter().for_each(|id| {
            self.step.failed.entry(id).or_default();
        });
    }

    pub fn fail_infeasible(&mut self) {
        let (mut failing, mut removed) = (Vec::new(), Vec::new());
        let waits = |task: &Task| !task.has_finished && task.worker.is_none() && self.dependencies_ready(task);
        for (id, task) in self.tasks.iter().filter(|(_, task)| waits(task)) {
            let job = &self.jobs[&task.job];
            let nodes: Vec<&ResourceSet> = match (job.first == Some(*id), job.driver) {
                (false, _) => self.nodes.values().map(|node| &node.resources).collect(),
                (true, Some(driver)) => vec![&self.nodes[&self.workers[&driver].node].resources],
                (true, None) => Vec::new(),
            };
            if self.group_is_removed(task.strategy) {
                removed.push(*id);
            } else if task.strategy == Strategy::Default {
                if !nodes.is_empty() && !nodes.iter().any(|total| fits(&task.demand, total.cpus.into(), total)) {
                    failing.push(*id);
                }
            } else if !self.nodes.is_empty() && !self.has_feasible_node(task) {
                failing.push(*id);
            }
        }
        failing.into_iter().for_each(|id| self.fail(id, Code::Infeasible));
        removed.into_iter().for_each(|id| self.fail_of_group(id));
    }

    /// Whether a task waits for no object, as far as the scheduler knows.
    pub fn dependencies_ready(&self, task: &Task) -> bool {
        let mut dependencies = task.dependencies.iter().map(|need| &self.objects[need]);
        dependencies.all(|need| !need.value.is_pending() || need.was_ready && task.is_queued)
    }

    /// Returns the number of references to each object from tasks and values.
    pub fn pins(&self) -> BTreeMap<u64, u32> {
        let mut pins = BTreeMap::new();
        let live = self.tasks.values().filter(|task| !task.has_finished);
        for task in live {
            let called = if let SubmissionKind::Method(actor) = &task.kind { Some(&actor.0) } else { None };
            task.links.iter().chain(called).for_each(|id| *pins.entry(*id).or_default() += 1);
        }
        self.actors.values().filter_map(|actor| actor.checkpoint).for_each(|id| *pins.entry(id).or_default() += 1);
        for source in self.tasks.values().flat_map(|task| task.lineage.iter().flatten()) {
            if let Source::Kept(id) = source {
                *pins.entry(*id).or_default() += 1;
            }
        }
        for object in self.objects.values() {
            if let Value::Ready(_, contents) = &object.value {
                contents.iter().for_each(|id| *pins.entry(*id).or_default() += 1);
            }
        }
        pins
    }

    /// Like `cancel_task`, for a task that may have started in this step before another failure was found.
    fn cancel_late(&mut self, id: u64) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        match self.step.run.get(&id).filter(|_| task.worker.is_none()) {
            Some(worker) => {
                task.cancellation = task.cancellation.max(1);
                self.step.interrupted.insert((*worker, id));
            }
            None => self.cancel_task(id, 1),
        }
    }

    pub fn drop_unreferenced(&mut self) {
        loop {
            let pins = self.pins();
            let is_kept = |id: &u64, object: &Object| {
                let will_come = object.value.is_pending() && object.value != Value::Borrowed;
                will_come || !object.holds.is_empty() || pins.contains_key(id)
            };
            let unreferenced: Vec<u64> =
                self.objects.iter().filter(|(id, object)| !is_kept(id, object)).map(|(id, _)| *id).collect();
            let closed = self.closed(&pins);
            let is_failing = |id: &u64| self.tasks[id].worker.is_none() && self.step.failed.contains_key(id);
            if unreferenced.is_empty() && closed.iter().all(is_failing) && !self.drop_unused_lineage() {
                return;
            }
            closed.into_iter().for_each(|id| self.cancel_late(id));
            for id in unreferenced {
                let object = self.objects.remove(&id).expect("it was found");
                self.borrowed_actors.remove(&id);
                self.step.returned.extend(object.is_borrowed.then_some(id));
                if let Value::Ready(value, _) = object.value {
                    self.step.dropped.insert(value);
                }
                if self.actors.contains_key(&id) && !self.tasks[&id].has_finished {
                    self.cancel_late(id);
                }
                for (worker, times) in object.wants {
                    *self.step.refused.entry((worker, id)).or_default() += times;
                }
            }
        }
    }
}
