//! Classes: what tasks of one function have in common, kept once for all of them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use sandbar_core::RetryOn;

use crate::event::Submission;
use crate::places::{ClassAt, JobAt, ShapeAt};
use crate::queue::Queue;
use crate::slab::Slab;

/// A job keeps classes that have no task any more, for what was measured of them: so many, or as many as are in use.
const UNUSED_MAX: usize = 256;

/// The weight of a new measurement among those before: one in so many.
const SMOOTHING: u64 = 8;

/// What took longer (18 minutes) counts as this: sums of many fit.
const NANOS_MAX: u64 = 1 << 40;

/// What tells classes apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub(crate) job: JobAt,
    pub(crate) name: Arc<str>,
    pub(crate) shape: ShapeAt,
    pub(crate) priority: i32,
    pub(crate) retries_max: u32,
    pub(crate) retry_on: RetryOn,
}

#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) kind: Kind,
    /// Smoothed duration of an attempt in nanoseconds; 0 before there was one.
    nanos: u64,
    /// Tasks that are of it, and those of them that have not ended.
    tasks: u64,
    pub(crate) live: u64,
}

impl Class {
    /// Learns how long an attempt took.
    pub(crate) fn took(&mut self, nanos: u64) {
        let nanos = nanos.clamp(1, NANOS_MAX);
        self.nanos = match self.nanos {
            0 => nanos,
            before if nanos < before => before - (before - nanos) / SMOOTHING,
            before => before + (nanos - before) / SMOOTHING,
        };
    }

    /// Whether a task is of it. A job's last class is asked: it is of this job.
    fn is_of<C>(&self, task: &Submission<C>, queue: &Queue) -> bool {
        let kind = &self.kind;
        (Arc::ptr_eq(&kind.name, &task.name) || kind.name == task.name)
            && kind.priority == task.priority
            && kind.retries_max == task.retries_max
            && kind.retry_on == task.retry_on
            && queue.shape(kind.shape).strategy == task.strategy
            && queue.shape(kind.shape).demand == task.demand
    }

    /// How long an attempt takes, once known.
    pub(crate) fn nanos(&self) -> Option<u64> {
        (self.nanos > 0).then_some(self.nanos)
    }
}

/// The classes of a job.
#[derive(Debug, Default)]
pub(crate) struct OfJob {
    all: Vec<ClassAt>,
    last: Option<ClassAt>,
    /// How many there may be before those without a task are looked for.
    max: usize,
}

#[derive(Debug)]
pub(crate) struct Classes {
    classes: Slab<ClassAt, Class>,
    /// Names are the guests': hashed so that nobody finds many of one hash.
    by_kind: HashMap<Kind, ClassAt, BuildHasherDefault<DefaultHasher>>,
}

impl Classes {
    pub(crate) fn new() -> Classes {
        Classes { classes: Slab::new(), by_kind: HashMap::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }

    pub(crate) fn get(&self, at: ClassAt) -> &Class {
        &self.classes[at]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Class> {
        self.classes.iter().map(|(_, class)| class)
    }

    pub(crate) fn get_mut(&mut self, at: ClassAt) -> &mut Class {
        &mut self.classes[at]
    }

    /// The class of a task, which is of it until [`Classes::leave`].
    pub(crate) fn enter<C>(
        &mut self,
        queue: &mut Queue,
        job: JobAt,
        of_job: &mut OfJob,
        task: &Submission<C>,
    ) -> ClassAt {
        let last = of_job.last.filter(|at| self.classes[*at].is_of(task, queue));
        let at = last.unwrap_or_else(|| self.find(queue, job, of_job, task));
        of_job.last = Some(at);
        self.classes[at].tasks += 1;
        self.classes[at].live += 1;
        at
    }

    fn find<C>(&mut self, queue: &mut Queue, job: JobAt, of_job: &mut OfJob, task: &Submission<C>) -> ClassAt {
        let kind = Kind {
            job,
            name: task.name.clone(),
            shape: queue.use_demand(&task.demand, task.strategy, None),
            priority: task.priority,
            retries_max: task.retries_max,
            retry_on: task.retry_on,
        };
        if let Some(at) = self.by_kind.get(&kind) {
            queue.leave_shape(kind.shape);
            return *at;
        }
        if of_job.all.len() >= of_job.max {
            self.forget_unused(queue, of_job);
            of_job.max = UNUSED_MAX + 2 * of_job.all.len();
        }
        let at = self.classes.insert(Class { kind: kind.clone(), nanos: 0, tasks: 0, live: 0 });
        self.by_kind.insert(kind, at);
        of_job.all.push(at);
        at
    }

    pub(crate) fn leave(&mut self, at: ClassAt) {
        self.classes[at].tasks -= 1;
    }

    fn forget_unused(&mut self, queue: &mut Queue, of_job: &mut OfJob) {
        of_job.last = None;
        let (used, unused) = of_job.all.iter().partition(|at| self.classes[**at].tasks > 0);
        of_job.all = used;
        let unused: Vec<ClassAt> = unused;
        unused.into_iter().for_each(|at| self.remove(queue, at));
    }

    /// Forgets the classes of a job that has ended.
    pub(crate) fn forget(&mut self, queue: &mut Queue, of_job: OfJob) {
        of_job.all.into_iter().for_each(|at| self.remove(queue, at));
        self.classes.shrink();
    }

    fn remove(&mut self, queue: &mut Queue, at: ClassAt) {
        if let Some(class) = self.classes.remove(at) {
            queue.leave_shape(class.kind.shape);
            self.by_kind.remove(&class.kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Place;

    #[test]
    fn durations_are_smoothed() {
        for (took, smoothed) in [
            (&[][..], None),
            (&[0], Some(1)),
            (&[800], Some(800)),
            (&[800, 1600], Some(900)),
            (&[800, 0], Some(701)),
            (&[u64::MAX, u64::MAX], Some(NANOS_MAX)),
        ] {
            let mut queue = Queue::new();
            let kind = Kind {
                job: Place::of(0),
                name: "f".into(),
                shape: queue.use_demand(&Default::default(), Default::default(), None),
                priority: 0,
                retries_max: 0,
                retry_on: RetryOn::System,
            };
            let mut class = Class { kind, nanos: 0, tasks: 0, live: 0 };
            took.iter().for_each(|nanos| class.took(*nanos));
            assert_eq!(class.nanos(), smoothed, "{took:?}");
        }
    }
}
