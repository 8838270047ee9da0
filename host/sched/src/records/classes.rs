//! Task classes: the common properties of tasks of one function with equal options, stored once.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use sandbar_core::RetryOn;

use crate::event::{Submission, SubmissionKind};
use crate::records::keys::{ClassKey, JobKey, ShapeKey, TenantKey};
use crate::records::level::Level;
use crate::records::queue::{Queue, Request};
use crate::records::slab::Slab;

/// Number of unused classes that a job keeps for their measured durations, besides one for each class in use.
const UNUSED_MAX: usize = 256;

/// Inverse weight of a new measurement in the smoothed duration.
const SMOOTHING: u64 = 8;

/// Maximum duration of a measurement (18 minutes), so that sums do not overflow.
const NANOS_MAX: u64 = 1 << 40;

/// Identity of a class.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClassSpec {
    pub(crate) job: JobKey,
    pub(crate) name: Arc<str>,
    pub(crate) shape: ShapeKey,
    pub(crate) priority: i32,
    pub(crate) retries_max: u32,
    pub(crate) retry_on: RetryOn,
}

#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) spec: ClassSpec,
    /// Smoothed duration of an attempt in nanoseconds; 0 before the first measurement.
    nanos: u64,
    /// Numbers of task records and of unfinished tasks.
    tasks: u64,
    pub(crate) live: u64,
}

impl Class {
    /// Adds a measured duration of an attempt.
    pub(crate) fn record_duration(&mut self, nanos: u64) {
        let nanos = nanos.clamp(1, NANOS_MAX);
        self.nanos = match self.nanos {
            0 => nanos,
            before if nanos < before => before - (before - nanos) / SMOOTHING,
            before => before + (nanos - before) / SMOOTHING,
        };
    }

    /// Whether a submission of the class's job belongs to the class.
    fn is_of<C>(&self, task: &Submission<C>, queue: &Queue) -> bool {
        let spec = &self.spec;
        (Arc::ptr_eq(&spec.name, &task.name) || spec.name == task.name)
            && spec.priority == task.priority
            && spec.retries_max == task.retries_max
            && spec.retry_on == task.retry_on
            && queue.shape(spec.shape).strategy == task.strategy
            && queue.shape(spec.shape).demand == task.demand
            && queue.shape(spec.shape).is_lease == (task.kind == SubmissionKind::Lease)
    }

    /// Returns the dispatch level of tasks of this depth.
    pub(crate) fn level(&self, depth: u32) -> Level {
        Level::new(self.spec.priority, depth)
    }

    /// Returns the expected duration of an attempt, if one was measured.
    pub(crate) fn nanos(&self) -> Option<u64> {
        (self.nanos > 0).then_some(self.nanos)
    }
}

/// The classes of a job.
#[derive(Debug, Default)]
pub(crate) struct JobClasses {
    all: Vec<ClassKey>,
    last: Option<ClassKey>,
    /// Number of classes at which those without tasks are removed.
    max: usize,
}

#[derive(Debug)]
pub(crate) struct Classes {
    classes: Slab<ClassKey, Class>,
    /// Names come from guests, so the hasher resists collisions that are made on purpose.
    by_spec: HashMap<ClassSpec, ClassKey, BuildHasherDefault<DefaultHasher>>,
}

impl Classes {
    pub(crate) fn new() -> Classes {
        Classes { classes: Slab::new(), by_spec: HashMap::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }

    pub(crate) fn get(&self, at: ClassKey) -> &Class {
        &self.classes[at]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Class> {
        self.classes.iter().map(|(_, class)| class)
    }

    pub(crate) fn get_mut(&mut self, at: ClassKey) -> &mut Class {
        &mut self.classes[at]
    }

    /// Returns the class of a submission and counts one more task, until [`Classes::leave`].
    pub(crate) fn enter<C>(
        &mut self,
        queue: &mut Queue,
        (job, tenant): (JobKey, TenantKey),
        of_job: &mut JobClasses,
        task: &Submission<C>,
    ) -> ClassKey {
        let last = of_job.last.filter(|at| self.classes[*at].is_of(task, queue));
        let at = last.unwrap_or_else(|| self.find(queue, (job, tenant), of_job, task));
        of_job.last = Some(at);
        self.classes[at].tasks += 1;
        self.classes[at].live += 1;
        at
    }

    fn find<C>(
        &mut self,
        queue: &mut Queue,
        (job, tenant): (JobKey, TenantKey),
        of_job: &mut JobClasses,
        task: &Submission<C>,
    ) -> ClassKey {
        let spec = ClassSpec {
            job,
            name: task.name.clone(),
            shape: queue.use_request(Request::new(tenant, &task.demand, task.strategy, &task.kind)),
            priority: task.priority,
            retries_max: task.retries_max,
            retry_on: task.retry_on,
        };
        if let Some(at) = self.by_spec.get(&spec) {
            queue.leave_shape(spec.shape);
            return *at;
        }
        if of_job.all.len() >= of_job.max {
            self.forget_unused(queue, of_job);
            of_job.max = UNUSED_MAX + 2 * of_job.all.len();
        }
        let at = self.classes.insert(Class { spec: spec.clone(), nanos: 0, tasks: 0, live: 0 });
        self.by_spec.insert(spec, at);
        of_job.all.push(at);
        at
    }

    pub(crate) fn leave(&mut self, at: ClassKey) {
        self.classes[at].tasks -= 1;
    }

    fn forget_unused(&mut self, queue: &mut Queue, of_job: &mut JobClasses) {
        of_job.last = None;
        let (used, unused) = of_job.all.iter().partition(|at| self.classes[**at].tasks > 0);
        of_job.all = used;
        let unused: Vec<ClassKey> = unused;
        unused.into_iter().for_each(|at| self.remove(queue, at));
    }

    /// Removes the classes of a job that has ended.
    pub(crate) fn forget(&mut self, queue: &mut Queue, of_job: JobClasses) {
        of_job.all.into_iter().for_each(|at| self.remove(queue, at));
        self.classes.shrink();
    }

    fn remove(&mut self, queue: &mut Queue, at: ClassKey) {
        if let Some(class) = self.classes.remove(at) {
            queue.leave_shape(class.spec.shape);
            self.by_spec.remove(&class.spec);
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbar_core::Strategy;

    use super::*;
    use crate::records::keys::SlabKey;

    #[test]
    fn durations_are_smoothed() {
        for (record_duration, smoothed) in [
            (&[][..], None),
            (&[0], Some(1)),
            (&[800], Some(800)),
            (&[800, 1600], Some(900)),
            (&[800, 0], Some(701)),
            (&[u64::MAX, u64::MAX], Some(NANOS_MAX)),
        ] {
            let mut queue = Queue::new();
            let spec = ClassSpec {
                job: SlabKey::from_index(0),
                name: "f".into(),
                shape: queue.use_request(Request::new(
                    SlabKey::from_index(0),
                    &Default::default(),
                    Strategy::Default,
                    &SubmissionKind::Function,
                )),
                priority: 0,
                retries_max: 0,
                retry_on: RetryOn::System,
            };
            let mut class = Class { spec, nanos: 0, tasks: 0, live: 0 };
            record_duration.iter().for_each(|nanos| class.record_duration(*nanos));
            assert_eq!(class.nanos(), smoothed, "{record_duration:?}");
        }
    }
}
