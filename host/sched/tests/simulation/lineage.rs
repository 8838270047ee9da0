//! The model's lineage: which lost objects are reconstructed, and which records are kept.

use std::collections::BTreeSet;

use sandbar_core::TaskId;
use sandbar_sched::{PayloadCallbacks, SubmissionKind, ValueBytes};

use crate::model::{Model, Steps, Task, Value};

/// Accounted bytes, equal to the scheduler's.
const RECORD_BYTES: u64 = 512;
const SOURCE_BYTES: u64 = 32;

/// Three of four values may be lost.
pub const PAYLOAD_CALLBACKS: PayloadCallbacks<u64, u64> = PayloadCallbacks {
    can_be_lost: |value| can_be_lost(*value),
    location: |_| None,
    call_bytes: |_| 0,
    value_bytes: |_| ValueBytes { memory: 8, stored: 0 },
};

fn can_be_lost(value: u64) -> bool {
    !value.is_multiple_of(4)
}

/// An object that a task depended on.
pub enum Source {
    Kept(u64),
    /// An object that exists, or that this task can reconstruct.
    Named(u64, Option<u64>),
}

impl Model {
    /// Keeps the lineage of a task that has succeeded with these values.
    pub fn keep_lineage(&mut self, id: u64, mut values: impl Iterator<Item = u64>) {
        if self.stream(id).is_some() || self.tasks[&id].lineage.is_none() && !values.any(can_be_lost) {
            return;
        }
        let task = &self.tasks[&id];
        let may_run_again = !matches!(task.kind, SubmissionKind::Method(_) | SubmissionKind::Lease)
            && task.retries() < task.retries_max;
        let links = if may_run_again { task.links.clone() } else { Vec::new() };
        let sources = links.into_iter().map(|link| self.source(link)).collect();
        let job = self.tasks[&id].job;
        self.tasks.get_mut(&id).expect("it is known").lineage = Some(sources);
        let is_kept = |(other, task): &(&u64, &Task)| {
            task.job == job && task.lineage.is_some() && (task.has_finished || **other == id)
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
            Value::Pending | Value::Promised | Value::Borrowed => false,
        };
        let producer = self.producer(object).filter(|producer| self.tasks[producer].lineage.is_some());
        if is_kept { Source::Kept(object) } else { Source::Named(object, producer) }
    }

    /// Returns the task that returns an object.
    pub fn producer(&self, object: u64) -> Option<u64> {
        let (id, task) = self.tasks.range(..=object).next_back()?;
        (object < id + u64::from(task.returns)).then_some(*id)
    }

    pub fn drop_lineage(&mut self, id: u64) {
        if self.tasks.get_mut(&id).expect("it is known").lineage.take().is_some() {
            self.step.dropped_lineage.insert(id);
        }
    }

    /// Drops unused lineage. Returns whether there was any.
    pub fn drop_unused_lineage(&mut self) -> bool {
        let sources = self.tasks.values().flat_map(|task| task.lineage.iter().flatten());
        let named = |source: &Source| if let Source::Named(_, producer) = source { *producer } else { None };
        let named: BTreeSet<u64> = sources.filter_map(named).collect();
        let is_used = |id: u64, returns: u32| {
            named.contains(&id) || self.objects.range(id..id + u64::from(returns)).next().is_some()
        };
        let kept = self.tasks.iter().filter(|(_, task)| task.lineage.is_some() && task.has_finished);
        let unused: Vec<u64> = kept.filter(|(id, task)| !is_used(**id, task.returns)).map(|(id, _)| *id).collect();
        unused.iter().for_each(|id| self.drop_lineage(*id));
        !unused.is_empty()
    }

    /// Checks that finished tasks have records only for their lineage or their descendants.
    pub fn check_records(&self, steps: &Steps) {
        let is_needed = |(id, task): &(&u64, &Task)| {
            let has_just = self.step.ended.contains(id) || self.step.dropped_lineage.contains(id);
            !task.has_finished || task.lineage.is_some() || has_just
        };
        let mut needed = BTreeSet::new();
        for (id, _) in self.tasks.iter().filter(is_needed) {
            let up = std::iter::successors(Some(*id), |id| self.tasks[id].parent);
            up.take_while(|id| needed.insert(*id)).for_each(drop);
        }
        for view in steps.tasks() {
            assert!(needed.contains(&view.id.0), "{view:?} should be forgotten");
        }
        for (id, _) in self.tasks.iter().filter(|(_, task)| task.lineage.is_some()) {
            assert!(steps.task(TaskId(*id)).is_some(), "of task {id} lineage should be kept");
        }
    }

    /// Handles the loss of an object's value.
    pub fn lose_value(&mut self, id: u64) {
        let producer = self.producer(id).filter(|producer| self.tasks[producer].lineage.is_some());
        let object = self.objects.get_mut(&id).expect("it was found");
        object.was_ready = true;
        if object.is_borrowed {
            (object.value, object.is_fetching) = (Value::Borrowed, false);
            return;
        }
        match producer {
            Some(producer) => {
                object.value = Value::Pending;
                self.step.lost.push(producer);
            }
            None => object.value = Value::Lost,
        }
    }

    /// Runs a finished task again, or fails its lost returns.
    pub fn reconstruct(&mut self, id: u64) {
        let task = &self.tasks[&id];
        let Some(sources) = task.lineage.as_ref().filter(|_| task.has_finished) else { return };
        let is_there = |source: &Source| match source {
            Source::Kept(_) => true,
            Source::Named(object, producer) => {
                let producer = producer.and_then(|producer| self.tasks[&producer].lineage.as_ref());
                self.objects.contains_key(object) || producer.is_some()
            }
        };
        let is_call = matches!(task.kind, SubmissionKind::Method(_) | SubmissionKind::Lease);
        if is_call || task.retries() >= task.retries_max || !sources.iter().all(is_there) {
            for object in id..id + u64::from(task.returns) {
                if let Some(object) = self.objects.get_mut(&object).filter(|object| object.value == Value::Pending) {
                    object.value = Value::Lost;
                }
            }
            self.step.unrecoverable.push(id);
            return;
        }
        let missing = |source: &Source| match source {
            Source::Named(object, producer) if !self.objects.contains_key(object) => {
                producer.map(|producer| (*object, producer))
            }
            _ => None,
        };
        let missing: Vec<(u64, u64)> = sources.iter().filter_map(missing).collect();
        let job = task.job;
        for (object, producer) in missing {
            self.create(object, job, Value::Pending, None);
            self.objects.get_mut(&object).expect("the object exists").was_ready = true;
            self.step.lost.push(producer);
        }
        for child in self.tasks.values_mut().filter(|task| task.parent == Some(id)) {
            child.is_committed = true;
        }
        let task = self.tasks.get_mut(&id).expect("it is known");
        (task.has_finished, task.is_queued, task.lineage) = (false, false, Some(Vec::new()));
        task.attempt += 1;
        self.step.reconstructed.push(id);
    }
}
