//! What follows of what happened: tasks that fail for others, and objects and lineage that nobody needs any more.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{Code, Strategy};
use sandbar_sched::{Action, Demand, Work};

use crate::lineage::Source;
use crate::model::{Model, Object, Steps, Task, Value, fits};

impl Model {
    /// What follows.
    pub fn settle(&mut self, actions: &[Action<u64>], steps: &Steps) {
        let ended: BTreeSet<u64> = actions
            .iter()
            .filter_map(|action| if let Action::Ended { task, .. } = action { Some(task.0) } else { None })
            .collect();
        for action in actions {
            if let Action::Run { worker, task, .. } = action {
                self.step.run.insert(task.0, worker.0);
            }
        }
        self.end_kept_groups(&ended);
        self.ask_nodes(actions);
        self.place_groups(steps);
        loop {
            // What is found to lack something is found after that was made again, or could not be.
            let found = if self.step.lost.is_empty() { &ended } else { &BTreeSet::new() };
            self.fail_for_needs(found);
            self.fail_infeasible();
            let failed: Vec<u64> = self.step.failed.keys().filter(|id| !self.tasks[id].has_ended).copied().collect();
            if failed.is_empty() {
                self.drop_forgotten();
                if !self.step.failed.keys().all(|id| self.tasks[id].has_ended) {
                    continue;
                }
                match self.step.lost.pop() {
                    Some(lost) => self.make_again(lost),
                    None => break,
                }
                continue;
            }
            for id in failed {
                let returns = u64::from(self.tasks[&id].returns);
                let pending = |object: &&mut Object| object.value == Value::Pending;
                for object in id..id + returns {
                    // The handle of an actor is there as soon as it was made once, or was.
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
                self.step.told.insert((worker, *id), times);
            }
        }
        let told: Vec<((u32, u64), u32)> = self.step.told.iter().map(|(key, times)| (*key, *times)).collect();
        for ((worker, id), times) in told {
            if let Value::Ready(_, contents) = self.objects[&id].value.clone() {
                self.hold_contents(&contents, worker, times);
            }
        }
    }

    /// Tasks that wait and need what failed. Of those that need what was lost, the ones that are found to.
    pub fn fail_for_needs(&mut self, ended: &BTreeSet<u64>) {
        let mut failing = Vec::new();
        for (id, task) in self.tasks.iter().filter(|(_, task)| !task.has_ended && task.worker.is_none()) {
            let has = |was_ready: bool| {
                let mut needs = task.needs.iter().map(|need| &self.objects[need]);
                needs.any(|need| need.was_ready == was_ready && matches!(need.value, Value::Failed | Value::Lost))
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
        let (mut failing, mut gone) = (Vec::new(), Vec::new());
        let waits = |task: &Task| !task.has_ended && task.worker.is_none() && self.has_needs(task);
        for (id, task) in self.tasks.iter().filter(|(_, task)| waits(task)) {
            let job = &self.jobs[&task.job];
            let nodes: Vec<&Demand> = match (job.first == Some(*id), job.driver) {
                (false, _) => self.nodes.values().collect(),
                (true, Some(driver)) => vec![&self.nodes[&self.workers[&driver].node]],
                (true, None) => Vec::new(),
            };
            if self.group_is_gone(task.strategy) {
                gone.push(*id);
            } else if task.strategy == Strategy::Default {
                if !nodes.is_empty() && !nodes.iter().any(|total| fits(&task.demand, total.cpus.into(), total)) {
                    failing.push(*id);
                }
            } else if !self.nodes.is_empty() && !self.could_be_there(task) {
                failing.push(*id);
            }
        }
        failing.into_iter().for_each(|id| self.fail(id, Code::Infeasible));
        gone.into_iter().for_each(|id| self.fail_of_group(id));
    }

    /// Whether a task waits for no object, as far as it is known to.
    pub fn has_needs(&self, task: &Task) -> bool {
        let mut needs = task.needs.iter().map(|need| &self.objects[need]);
        needs.all(|need| !need.value.is_pending() || need.was_ready && task.stands)
    }

    /// How many tasks and values refer to each object.
    pub fn pins(&self) -> BTreeMap<u64, u32> {
        let mut pins = BTreeMap::new();
        let live = self.tasks.values().filter(|task| !task.has_ended);
        for task in live {
            let called = if let Work::Method(actor) = &task.work { Some(&actor.0) } else { None };
            task.links.iter().chain(called).for_each(|id| *pins.entry(*id).or_default() += 1);
        }
        self.actors.values().filter_map(|actor| actor.saved).for_each(|id| *pins.entry(id).or_default() += 1);
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

    /// As `stop`, of what may have been begun in this step before it was found that something else can't be.
    fn stop_late(&mut self, id: u64) {
        let task = self.tasks.get_mut(&id).expect("it is known");
        match self.step.run.get(&id).filter(|_| task.worker.is_none()) {
            Some(worker) => {
                task.stop = task.stop.max(1);
                self.step.interrupted.insert((*worker, id));
            }
            None => self.stop(id, 1),
        }
    }

    pub fn drop_forgotten(&mut self) {
        loop {
            let pins = self.pins();
            let is_kept = |id: &u64, object: &Object| {
                let will_come = object.value.is_pending() && object.value != Value::Away;
                will_come || !object.holds.is_empty() || pins.contains_key(id)
            };
            let forgotten: Vec<u64> =
                self.objects.iter().filter(|(id, object)| !is_kept(id, object)).map(|(id, _)| *id).collect();
            let closed = self.closed(&pins);
            let is_failing = |id: &u64| self.tasks[id].worker.is_none() && self.step.failed.contains_key(id);
            if forgotten.is_empty() && closed.iter().all(is_failing) && !self.drop_unused_lineage() {
                return;
            }
            closed.into_iter().for_each(|id| self.stop_late(id));
            for id in forgotten {
                let object = self.objects.remove(&id).expect("it was found");
                self.streams.remove(&id);
                self.lent.remove(&id);
                self.step.returned.extend(object.is_borrowed.then_some(id));
                if let Value::Ready(value, _) = object.value {
                    self.step.dropped.insert(value);
                }
                if self.actors.contains_key(&id) && !self.tasks[&id].has_ended {
                    self.stop_late(id);
                }
                for (worker, times) in object.wants {
                    *self.step.refused.entry((worker, id)).or_default() += times;
                }
            }
        }
    }
}
