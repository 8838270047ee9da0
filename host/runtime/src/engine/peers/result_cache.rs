//! Cached results of tasks that ran here for the root of a job that another node may take over. The node that takes the job
//! over starts it again, and does not run tasks again whose results are found here.
//!
//! A task is identified across runs by its lineage: its place in its job's tree of tasks, its function, and its arguments.
//! Objects among the arguments count by the lineage of their tasks. A task whose arguments differ in the next run, since tasks
//! finished in another order, is another task.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use sandbar_core::{Argument, JobId, ObjectId, Seed, Strategy, TaskId, TaskKind, WorkerId};
use sandbar_sched::{Event, Outcome, Submission, SubmissionKind};
use sandbar_store::{LendResult, SealedFile};

use super::super::context::Context;
use super::super::effects::{Effect, JobEffect};
use super::super::values::StoredValue;
use super::executor::FinishedTask;
use super::peer_values::receive;
use super::proxy_tasks::ProxyTasks;
use crate::calls::{Program, TaskPayload};
use crate::peer::{CachedResult, CachedValue, JobRoot, PeerValue};

/// Time after the loss of a job's root within which the job may be taken over.
const TAKEOVER_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum number of jobs with cached results.
const JOBS_MAX: usize = 10_000;
/// Part of the memory for objects that cached values may take, beside objects that still exist.
const MEMORY_PART: u64 = 8;
/// Approximate memory of a result beside its values, in bytes.
const RESULT_BYTES: u64 = 200;
/// Maximum bytes of values, and number of results, in one response.
const PAGE_BYTES: usize = 256 << 10;
const PAGE_LEN: usize = 2000;

/// Results of jobs of other nodes, and earlier results of jobs of this node.
#[derive(Default)]
pub(super) struct ResultCache {
    jobs: BTreeMap<Arc<str>, JobResults>,
    /// Names of the jobs, by their roots.
    roots: BTreeMap<JobRoot, Arc<str>>,
    /// Results in the order in which they were added.
    order: VecDeque<(Arc<str>, u64)>,
    /// Values that are not in messages, by the objects here.
    files: FxHashMap<ObjectId, SealedFile>,
    bytes: u64,
    /// Results of earlier runs of jobs of this node that no task has used.
    resumable: FxHashMap<JobId, FxHashMap<NonZeroU64, CachedResult>>,
}

#[derive(Default)]
struct JobResults {
    /// When the job's root was lost.
    root_lost: Option<Instant>,
    /// Results, by a number that grows.
    results: BTreeMap<u64, CachedResult>,
    next: u64,
}

impl ResultCache {
    /// Caches results for the root of a job, with the job's name in the cluster. An earlier root of the job is lost, even if
    /// this node is still connected to it.
    pub(super) fn introduce(&mut self, root: JobRoot, name: &str) {
        let is_full = self.jobs.len() >= JOBS_MAX && !self.jobs.contains_key(name);
        if is_full || self.roots.len() >= JOBS_MAX || self.roots.contains_key(&root) {
            return;
        }
        let name: Arc<str> = name.into();
        self.roots.retain(|_, other| *other != name);
        self.jobs.entry(name.clone()).or_default().root_lost = None;
        self.roots.insert(root, name);
    }

    fn add(&mut self, name: &Arc<str>, result: CachedResult, files: Vec<(ObjectId, SealedFile)>, bytes_max: u64) {
        let Some(of_job) = self.jobs.get_mut(name) else { return };
        // A response has at least one result.
        if result.values.iter().map(CachedValue::message_bytes).sum::<usize>() > 2 * PAGE_BYTES {
            return;
        }
        let (number, bytes) = (of_job.next, bytes_of(&result));
        of_job.results.insert(number, result);
        of_job.next += 1;
        self.order.push_back((name.clone(), number));
        self.files.extend(files);
        self.bytes += bytes;
        while self.bytes > bytes_max
            && let Some((name, number)) = self.order.pop_front()
        {
            let dropped = self.jobs.get_mut(&name).and_then(|of_job| of_job.results.remove(&number));
            dropped.into_iter().for_each(|result| self.dropped(&result));
        }
    }

    fn dropped(&mut self, result: &CachedResult) {
        self.bytes -= bytes_of(result);
        for value in &result.values {
            if let CachedValue::Remote { object, .. } = value {
                self.files.remove(object);
            }
        }
    }

    fn drop_job(&mut self, name: &str) {
        let Some(of_job) = self.jobs.remove(name) else { return };
        of_job.results.values().for_each(|result| self.dropped(result));
        self.order.retain(|(other, _)| **other != *name);
    }

    /// The job of a root has ended.
    pub(super) fn root_ended(&mut self, root: JobRoot) {
        if let Some(name) = self.roots.remove(&root) {
            self.drop_job(&name);
        }
    }

    /// Roots are lost.
    pub(super) fn roots_lost(&mut self, now: Instant, is_lost: impl Fn(&JobRoot) -> bool) {
        for (_, name) in self.roots.extract_if(.., |root, _| is_lost(root)).collect::<Vec<_>>() {
            if let Some(of_job) = self.jobs.get_mut(&name) {
                of_job.root_lost = Some(now);
            }
        }
    }

    /// Drops results of jobs that no node has taken over in time.
    pub(super) fn expire(&mut self, now: Instant) {
        let is_expired = |of_job: &JobResults| {
            of_job.root_lost.is_some_and(|lost| now.saturating_duration_since(lost) > TAKEOVER_TIME_MAX)
        };
        let expired: Vec<Arc<str>> =
            self.jobs.iter().filter(|(_, of_job)| is_expired(of_job)).map(|(name, _)| name.clone()).collect();
        expired.iter().for_each(|name| self.drop_job(name));
    }

    /// Returns results of a job from a number on, each with the number after it.
    pub(super) fn page(&self, name: &str, from: u64) -> Vec<(u64, CachedResult)> {
        let of_job = self.jobs.get(name).into_iter();
        let mut bytes = 0;
        let mut has_room = |result: &CachedResult| {
            let before = bytes;
            bytes += result.values.iter().map(CachedValue::message_bytes).sum::<usize>();
            before < PAGE_BYTES
        };
        let all = of_job.flat_map(|of_job| of_job.results.range(from..));
        let page = all.take(PAGE_LEN).take_while(|(_, result)| has_room(result));
        page.map(|(number, result)| (number + 1, result.clone())).collect()
    }

    /// Returns the value of a cached result, by its object.
    pub(super) fn file(&self, object: ObjectId) -> Option<SealedFile> {
        self.files.get(&object).cloned()
    }

    /// Caches the results of a finished task, if its job may be taken over.
    pub(super) fn task_finished(&mut self, cx: &mut Context, proxies: &ProxyTasks, finished: &FinishedTask) {
        let FinishedTask { task, lineage, returns, nanos } = *finished;
        let root = cx.scheduler.job_of(task).and_then(|job| proxies.remote_root(job));
        let Some(name) = root.and_then(|root| self.roots.get(&root)).cloned() else { return };
        let (mut returned, mut files) = (Vec::new(), Vec::new());
        for object in (0..returns).map(|index| task.returns(index)) {
            if cx.scheduler.contained_objects(object).next().is_some() {
                return;
            }
            let file = match cx.scheduler.value(object) {
                Some(Ok(StoredValue::Inline(bytes))) => {
                    returned.push(CachedValue::Inline(bytes.to_vec()));
                    continue;
                }
                Some(Ok(StoredValue::Local(key, _))) => match cx.values.share(*key) {
                    LendResult::Bytes(bytes) => SealedFile::new(&bytes).ok(),
                    LendResult::File(file) => Some(file),
                    LendResult::AlreadyLent | LendResult::Pending | LendResult::Lost(_) => None,
                },
                _ => None,
            };
            let Some(file) = file else { return };
            returned.push(CachedValue::Remote { node: cx.node(), object, bytes: file.bytes() });
            files.push((object, file));
        }
        let bytes_max = cx.options.memory_bytes_max / MEMORY_PART;
        self.add(&name, CachedResult { lineage, nanos, values: returned }, files, bytes_max);
    }

    /// Adds results of an earlier run of a job of this node.
    pub(super) fn resume_job(&mut self, job: JobId, results: Vec<CachedResult>) {
        if !results.is_empty() {
            self.resumable.insert(job, results.into_iter().map(|result| (result.lineage, result)).collect());
        }
    }

    /// Returns whether a job of this node has results of an earlier run.
    pub(super) fn is_resumed(&self, job: JobId) -> bool {
        self.resumable.contains_key(&job)
    }

    /// A job of this node has ended.
    pub(super) fn job_ended(&mut self, job: JobId) {
        self.resumable.remove(&job);
    }

    /// Finishes a task with its result of an earlier run. Returns the task if it has none.
    pub(super) fn resume_task(
        &mut self,
        cx: &mut Context,
        worker: WorkerId,
        task: Submission<TaskPayload>,
    ) -> Option<Submission<TaskPayload>> {
        let Some(result) = self.result_of(&task) else { return Some(task) };
        let mut values = Vec::with_capacity(result.values.len());
        for (value, index) in result.values.iter().zip(0..) {
            let value = match value {
                CachedValue::Inline(bytes) => PeerValue::Value(bytes),
                CachedValue::Remote { node, object, bytes } => {
                    PeerValue::Remote { node: *node, object: *object, bytes: *bytes }
                }
            };
            match receive(cx, task.job, task.id.returns(index), value, None) {
                Ok(value) => values.push((value, Vec::new())),
                Err(_) => {
                    values.iter().for_each(|(value, _)| cx.discard(value));
                    return Some(task);
                }
            }
        }
        cx.push(Effect::Job(JobEffect::Resumed(task.job)));
        let task = Submission { strategy: Strategy::Default, ..task };
        cx.step(Event::FinishedInline { task, worker, outcome: Outcome::Succeeded(values), nanos: result.nanos });
        None
    }

    /// Takes a task's result of an earlier run, if the task can be run again should the values not be available.
    fn result_of(&mut self, task: &Submission<TaskPayload>) -> Option<CachedResult> {
        let results = self.resumable.get_mut(&task.job)?;
        let is_open = match task.strategy {
            Strategy::Default | Strategy::Spread => true,
            Strategy::Node { .. } | Strategy::Group { .. } => false,
        };
        let lineage =
            task.call.lineage.filter(|_| task.kind == SubmissionKind::Function && is_open && task.retries_max > 0)?;
        results.remove(&lineage).filter(|result| result.values.len() == task.returns as usize)
    }
}

fn bytes_of(result: &CachedResult) -> u64 {
    RESULT_BYTES + result.values.iter().map(CachedValue::bytes).sum::<u64>()
}

/// Returns whether jobs of a program may use results of earlier runs. Actors' methods have effects that must happen again.
pub(in crate::engine) fn is_resumable(program: &Program) -> bool {
    !program.tasks.iter().any(|task| task.kind == TaskKind::Make)
}

/// Returns the lineage of a task, or `None` if it is unknown, or its job can't be taken over.
pub(in crate::engine) fn lineage_of(
    cx: &Context,
    job: JobId,
    seed: u64,
    function: u32,
    arguments: &[u8],
    refs: &[ObjectId],
) -> Option<NonZeroU64> {
    cx.jobs.get(&job)?.cluster_name.as_ref().filter(|_| refs.is_empty())?;
    lineage(seed, function, arguments, |object| {
        let task: TaskId = cx.scheduler.producer(object)?;
        Some((cx.scheduler.call(task)?.lineage?, object.0.checked_sub(task.0)?))
    })
}

/// Returns the lineage of a task by its seed, which depends on its place in the tree of tasks, its function, and its
/// arguments. `produced_by` returns the lineage of an object's task, and the object's index among its results.
fn lineage(
    seed: u64,
    function: u32,
    arguments: &[u8],
    produced_by: impl Fn(ObjectId) -> Option<(NonZeroU64, u64)>,
) -> Option<NonZeroU64> {
    let arguments: Vec<Argument<'_>> = postcard::from_bytes(arguments).ok()?;
    let mut lineage = Seed::new(0).with(&[seed, function.into()].map(u64::to_le_bytes).concat());
    for argument in arguments {
        lineage = match argument {
            Argument::Value(bytes) => lineage.with(&[0]).with(bytes),
            Argument::Json(text) => lineage.with(&[1]).with(text.as_bytes()),
            Argument::Missing => lineage.with(&[2]),
            Argument::ReturnsJson => lineage.with(&[3]),
            Argument::Object(object) => {
                let (task, index) = produced_by(object)?;
                lineage.with(&task.get().to_le_bytes()).with(&index.to_le_bytes())
            }
        };
    }
    NonZeroU64::new(lineage.value())
}

#[cfg(test)]
mod tests {
    use sandbar_core::NodeId;

    use super::*;

    const JOB: &str = "20260131-235959-123-4f3a9c";

    fn root(node: u16) -> JobRoot {
        JobRoot { node: NodeId(node.into()), job: JobId(1) }
    }

    fn result(lineage: u64, bytes: usize) -> CachedResult {
        let lineage = NonZeroU64::new(lineage).unwrap();
        CachedResult { lineage, nanos: 1, values: vec![CachedValue::Inline(vec![7; bytes])] }
    }

    /// Returns the lineages of a job's results, read page by page.
    fn all(cache: &ResultCache, name: &str) -> Vec<u64> {
        let (mut all, mut from) = (Vec::new(), 0);
        while let some = cache.page(name, from)
            && let Some((next, _)) = some.last()
        {
            assert!(*next > from);
            from = *next;
            all.extend(some.iter().map(|(_, cached)| cached.lineage.get()));
        }
        all
    }

    #[test]
    fn lineage_depends_on_place_function_and_arguments() {
        let produced_by = |object: ObjectId| match object.0 {
            10..20 => Some((NonZeroU64::new(77)?, object.0 - 10)),
            20..30 => Some((NonZeroU64::new(78)?, object.0 - 20)),
            _ => None,
        };
        let lineage_of_call = |seed, function, arguments: &[Argument<'_>]| {
            lineage(seed, function, &postcard::to_stdvec(arguments).unwrap(), produced_by)
        };
        let different = [
            lineage_of_call(1, 1, &[]),
            lineage_of_call(2, 1, &[]),
            lineage_of_call(1, 2, &[]),
            lineage_of_call(1, 1, &[Argument::Value(b"a")]),
            lineage_of_call(1, 1, &[Argument::Value(b"b")]),
            lineage_of_call(1, 1, &[Argument::Json("a")]),
            lineage_of_call(1, 1, &[Argument::Value(b"a"), Argument::Missing]),
            lineage_of_call(1, 1, &[Argument::Missing, Argument::Value(b"a")]),
            lineage_of_call(1, 1, &[Argument::Object(ObjectId(10))]),
            lineage_of_call(1, 1, &[Argument::Object(ObjectId(11))]),
            lineage_of_call(1, 1, &[Argument::Object(ObjectId(20))]),
        ];
        for (at, lineage) in different.iter().enumerate() {
            assert!(lineage.is_some() && !different[..at].contains(lineage), "{at}");
        }
        assert_eq!(lineage_of_call(1, 1, &[Argument::Object(ObjectId(10))]), different[8]);
        assert_eq!(lineage_of_call(1, 1, &[Argument::Object(ObjectId(30))]), None, "the object's task is unknown");
        assert_eq!(lineage(1, 1, &[9, 9], produced_by), None);
    }

    #[test]
    fn results_are_dropped_with_the_last_root_or_beyond_the_limit() {
        let mut cache = ResultCache::default();
        let name: Arc<str> = JOB.into();
        cache.add(&name, result(1, 1), Vec::new(), 1 << 20);
        assert!(all(&cache, JOB).is_empty(), "no root has introduced the job");
        cache.introduce(root(1), JOB);
        (1..=5).for_each(|lineage| cache.add(&name, result(lineage, 100), Vec::new(), 1 << 20));
        assert_eq!(all(&cache, JOB), [1, 2, 3, 4, 5]);
        // The oldest are dropped first.
        cache.add(&name, result(6, 100), Vec::new(), 3 * (RESULT_BYTES + 100));
        assert_eq!(all(&cache, JOB), [4, 5, 6]);
        // The root is lost, and another node takes the job over in time.
        cache.roots_lost(Instant::now(), |lost_root| *lost_root == root(1));
        cache.expire(Instant::now());
        cache.introduce(root(2), JOB);
        cache.expire(Instant::now() + 2 * TAKEOVER_TIME_MAX);
        assert_eq!(all(&cache, JOB), [4, 5, 6]);
        cache.root_ended(root(1));
        assert_eq!(all(&cache, JOB), [4, 5, 6], "that is not its root");
        cache.root_ended(root(2));
        assert!(all(&cache, JOB).is_empty() && cache.jobs.is_empty() && cache.order.is_empty());
        assert_eq!(cache.bytes, 0);
        // Another node takes the job over before this node notices the loss of its root.
        for root in [root(1), root(2)] {
            cache.introduce(root, JOB);
            cache.add(&name, result(1, 1), Vec::new(), 1 << 20);
        }
        cache.root_ended(root(2));
        assert!(all(&cache, JOB).is_empty(), "results of the first root are dropped, too");
        cache.roots_lost(Instant::now(), |lost_root| *lost_root == root(1));
        assert!(cache.jobs.is_empty() && cache.roots.is_empty());
        // No node takes the job over.
        cache.introduce(root(3), JOB);
        cache.add(&name, result(1, 1), Vec::new(), 1 << 20);
        cache.roots_lost(Instant::now(), |lost_root| lost_root.node == root(3).node);
        cache.expire(Instant::now() + 2 * TAKEOVER_TIME_MAX);
        assert!(cache.jobs.is_empty() && cache.bytes == 0);
    }

    #[test]
    fn pages_are_bounded_and_files_are_dropped_with_their_results() {
        let mut cache = ResultCache::default();
        let name: Arc<str> = JOB.into();
        cache.introduce(root(1), JOB);
        let many = 2 * PAGE_LEN as u64 + 1;
        (1..=many).for_each(|lineage| cache.add(&name, result(lineage, 1), Vec::new(), 1 << 30));
        (1..=3).for_each(|more| cache.add(&name, result(many + more, PAGE_BYTES), Vec::new(), 1 << 30));
        assert_eq!(all(&cache, JOB), (1..=many + 3).collect::<Vec<u64>>());
        let (object, file) = (ObjectId(5), SealedFile::new(&[1, 2, 3]).unwrap());
        let remote = CachedValue::Remote { node: root(1).node, object, bytes: 3 };
        let result = CachedResult { values: vec![remote], ..result(1, 0) };
        cache.add(&name, result, vec![(object, file)], 1 << 30);
        assert_eq!(cache.file(object).map(|file| file.bytes()), Some(3));
        cache.root_ended(root(1));
        assert!(cache.file(object).is_none());
    }
}
