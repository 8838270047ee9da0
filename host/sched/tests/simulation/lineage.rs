//! What should be made again, and what is kept for that.

use std::collections::BTreeSet;

use sandbar_core::TaskId;
use sandbar_sched::{Inspect, Work};

use crate::model::{Model, Steps, Task, Value};

/// As the scheduler counts.
const RECORD_BYTES: u64 = 512;
const SOURCE_BYTES: u64 = 32;

/// Most values may be lost.
pub const INSPECT: Inspect<u64, u64> =
    Inspect { can_be_lost: |value| can_be_lost(*value), lies: |_| None, call_bytes: |_| 0 };

fn can_be_lost(value: u64) -> bool {
    !value.is_multiple_of(4)
}

/// An object that a task was made of.
pub enum Source {
    Kept(u64),
    /// There, or made again by this task.
    Named(u64, Option<u64>),
}

impl Model {
    /// A task has succeeded with these values, and is about to end.
    pub fn keep_lineage(&mut self, id: u64, mut values: impl Iterator<Item = u64>) {
        if self.streams.contains_key(&id) || self.tasks[&id].lineage.is_none() && !values.any(can_be_lost) {
            return;
        }
        let task = &self.tasks[&id];
        let may_run_again = !matches!(task.work, Work::Method(_)) && task.attempt < task.retries_max;
        let links = if may_run_again { task.links.clone() } else { Vec::new() };
        let sources = links.into_iter().map(|link| self.source(link)).collect();
        let job = self.tasks[&id].job;
        self.tasks.get_mut(&id).expect("it is known").lineage = Some(sources);
        let is_kept = |(other, task): &(&u64, &Task)| {
            task.job == job && task.lineage.is_some() && (task.has_ended || **other == id)
        };
        loop {
            let kept: Vec<(u64, u64)> =
                self.tasks.iter().filter(is_kept).map(|(id, task)| (task.number, *id)).collect();
            let sources = |id: &u64| self.tasks[id].lineage.as_ref().map_or(0, Vec::len) as u64;
            let bytes: u64 = kept.iter().map(|(_, id)| RECORD_BYTES + SOURCE_BYTES * sources(id)).sum();
            if bytes <= self.jobs[&job].limits.lineage_bytes_max {
                return;
            }
            let first = kept.into_iter().min().expect("it takes something");
            self.drop_lineage(first.1);
        }
    }

    fn source(&self, object: u64) -> Source {
        let is_kept = match &self.objects[&object].value {
            Value::Ready(value, _) => !can_be_lost(*value),
            Value::Failed | Value::Lost => true,
            Value::Pending | Value::Promised | Value::Away => false,
        };
        let maker = self.maker(object).filter(|maker| self.tasks[maker].lineage.is_some());
        if is_kept { Source::Kept(object) } else { Source::Named(object, maker) }
    }

    /// The task that returns an object.
    pub fn maker(&self, object: u64) -> Option<u64> {
        let (id, task) = self.tasks.range(..=object).next_back()?;
        (object < id + u64::from(task.returns)).then_some(*id)
    }

    pub fn drop_lineage(&mut self, id: u64) {
        if self.tasks.get_mut(&id).expect("it is known").lineage.take().is_some() {
            self.step.unkept.insert(id);
        }
    }

    /// Drops the lineage of which nothing is there. Says whether there was any.
    pub fn drop_unused_lineage(&mut self) -> bool {
        let sources = self.tasks.values().flat_map(|task| task.lineage.iter().flatten());
        let named = |source: &Source| if let Source::Named(_, maker) = source { *maker } else { None };
        let named: BTreeSet<u64> = sources.filter_map(named).collect();
        let is_used = |id: u64, returns: u32| {
            named.contains(&id) || self.objects.range(id..id + u64::from(returns)).next().is_some()
        };
        let kept = self.tasks.iter().filter(|(_, task)| task.lineage.is_some() && task.has_ended);
        let unused: Vec<u64> = kept.filter(|(id, task)| !is_used(**id, task.returns)).map(|(id, _)| *id).collect();
        unused.iter().for_each(|id| self.drop_lineage(*id));
        !unused.is_empty()
    }

    /// There is no record of a task that has ended but for its lineage, or of what ties others together; all others are
    /// forgotten by the next step.
    pub fn check_records(&self, steps: &Steps) {
        let is_wanted = |(id, task): &(&u64, &Task)| {
            let has_just = self.step.ended.contains(id) || self.step.unkept.contains(id);
            !task.has_ended || task.lineage.is_some() || has_just
        };
        let mut wanted = BTreeSet::new();
        for (id, _) in self.tasks.iter().filter(is_wanted) {
            let up = std::iter::successors(Some(*id), |id| self.tasks[id].parent);
            up.take_while(|id| wanted.insert(*id)).for_each(drop);
        }
        for view in steps.tasks() {
            assert!(wanted.contains(&view.id.0), "{view:?} should be forgotten");
        }
        for (id, _) in self.tasks.iter().filter(|(_, task)| task.lineage.is_some()) {
            assert!(steps.task(TaskId(*id)).is_some(), "of task {id} lineage should be kept");
        }
    }

    /// The value of an object is gone.
    pub fn lose_value(&mut self, id: u64) {
        let maker = self.maker(id).filter(|maker| self.tasks[maker].lineage.is_some());
        let object = self.objects.get_mut(&id).expect("it was found");
        object.was_ready = true;
        if object.is_borrowed {
            (object.value, object.is_asked) = (Value::Away, false);
            return;
        }
        match maker {
            Some(maker) => {
                object.value = Value::Pending;
                self.step.lost.push(maker);
            }
            None => object.value = Value::Lost,
        }
    }

    /// Begins a task again that has ended, or says that what was lost of what it returned stays so.
    pub fn make_again(&mut self, id: u64) {
        let task = &self.tasks[&id];
        let Some(sources) = task.lineage.as_ref().filter(|_| task.has_ended) else { return };
        let is_there = |source: &Source| match source {
            Source::Kept(_) => true,
            Source::Named(object, maker) => {
                let maker = maker.and_then(|maker| self.tasks[&maker].lineage.as_ref());
                self.objects.contains_key(object) || maker.is_some()
            }
        };
        let is_call = matches!(task.work, Work::Method(_));
        if is_call || task.attempt >= task.retries_max || !sources.iter().all(is_there) {
            for object in id..id + u64::from(task.returns) {
                if let Some(object) = self.objects.get_mut(&object).filter(|object| object.value == Value::Pending) {
                    object.value = Value::Lost;
                }
            }
            self.step.given_up.push(id);
            return;
        }
        let missing = |source: &Source| match source {
            Source::Named(object, maker) if !self.objects.contains_key(object) => maker.map(|maker| (*object, maker)),
            _ => None,
        };
        let missing: Vec<(u64, u64)> = sources.iter().filter_map(missing).collect();
        let job = task.job;
        for (object, maker) in missing {
            self.create(object, job, Value::Pending, None);
            self.objects.get_mut(&object).expect("it was made").was_ready = true;
            self.step.lost.push(maker);
        }
        for child in self.tasks.values_mut().filter(|task| task.parent == Some(id)) {
            child.is_settled = true;
        }
        let task = self.tasks.get_mut(&id).expect("it is known");
        (task.has_ended, task.stands, task.lineage) = (false, false, Some(Vec::new()));
        task.attempt += 1;
        self.step.made_again.push(id);
    }
}
