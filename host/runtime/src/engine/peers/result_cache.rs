//! What tasks returned here that were given by the root of a job which may be taken over, kept beyond that: whoever takes
//! the job over begins it anew, and does not run again what is found here.
//!
//! A task is known again by its lineage: its place in its job's tree of tasks, what it calls, and with what. Objects among its
//! arguments count by the lineage of the tasks that made them. So a task whose arguments are others the next time, because
//! tasks ended in another order, is another task.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use sandbar_core::{Argument, JobId, ObjectId, Seed, Strategy, TaskId, TaskKind, WorkerId};
use sandbar_sched::{Event, Outcome, Submission, SubmissionKind};
use sandbar_store::{LendResult, SealedFile};

use super::super::{State, Stored};
use crate::Program;
use crate::calls::Call;
use crate::peer::{JobRoot, PeerValue, Remnant, RemnantValue, Tell};

/// For so long after its last root is gone a job may be taken over.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(60);
/// Of more jobs nothing is kept.
const JOBS_MAX: usize = 10_000;
/// Of the memory for objects, this part may be in such values that nobody else needs.
const MEMORY_PART: u64 = 8;
/// What one takes beside its values, about.
const REMNANT_BYTES: u64 = 200;
/// Values, and results, that are told of at once.
const PAGE_BYTES: usize = 256 << 10;
const PAGE_LEN: usize = 2000;

/// Results of jobs of other nodes.
#[derive(Default)]
pub(super) struct Remains {
    jobs: BTreeMap<Arc<str>, OfJob>,
    /// Who runs which.
    roots: BTreeMap<JobRoot, Arc<str>>,
    /// The first come first.
    order: VecDeque<(Arc<str>, u64)>,
    /// Values that are not in messages, by what they are called here.
    files: FxHashMap<ObjectId, SealedFile>,
    bytes: u64,
}

#[derive(Default)]
struct OfJob {
    /// Since when nobody runs it.
    since: Option<Instant>,
    /// By a number that grows.
    all: BTreeMap<u64, Remnant>,
    next: u64,
}

impl Remains {
    /// A node runs a job from now on, which is called so in its cluster. Another root of that job was taken over: its node is
    /// gone, which this one may not know yet.
    pub(super) fn introduce(&mut self, root: JobRoot, name: &str) {
        let is_full = self.jobs.len() >= JOBS_MAX && !self.jobs.contains_key(name);
        if is_full || self.roots.len() >= JOBS_MAX || self.roots.contains_key(&root) {
            return;
        }
        let name: Arc<str> = name.into();
        self.roots.retain(|_, other| *other != name);
        self.jobs.entry(name.clone()).or_default().since = None;
        self.roots.insert(root, name);
    }

    fn name_of(&self, root: JobRoot) -> Option<Arc<str>> {
        self.roots.get(&root).cloned()
    }

    fn keep(&mut self, name: &Arc<str>, remnant: Remnant, files: Vec<(ObjectId, SealedFile)>, bytes_max: u64) {
        let Some(of_job) = self.jobs.get_mut(name) else { return };
        // It is told in one message.
        if remnant.returned.iter().map(RemnantValue::bytes_here).sum::<usize>() > 2 * PAGE_BYTES {
            return;
        }
        let (number, bytes) = (of_job.next, bytes_of(&remnant));
        of_job.all.insert(number, remnant);
        of_job.next += 1;
        self.order.push_back((name.clone(), number));
        self.files.extend(files);
        self.bytes += bytes;
        while self.bytes > bytes_max
            && let Some((name, number)) = self.order.pop_front()
        {
            let dropped = self.jobs.get_mut(&name).and_then(|of_job| of_job.all.remove(&number));
            dropped.into_iter().for_each(|remnant| self.dropped(&remnant));
        }
    }

    fn dropped(&mut self, remnant: &Remnant) {
        self.bytes -= bytes_of(remnant);
        for value in &remnant.returned {
            if let RemnantValue::Away { object, .. } = value {
                self.files.remove(object);
            }
        }
    }

    fn drop_job(&mut self, name: &str) {
        let Some(of_job) = self.jobs.remove(name) else { return };
        of_job.all.values().for_each(|remnant| self.dropped(remnant));
        self.order.retain(|(other, _)| **other != *name);
    }

    /// A job of this root has ended.
    pub(super) fn root_ended(&mut self, root: JobRoot) {
        if let Some(name) = self.roots.remove(&root) {
            self.drop_job(&name);
        }
    }

    /// The roots are gone for which this holds.
    pub(super) fn lose_roots(&mut self, is_gone: impl Fn(&JobRoot) -> bool) {
        for (_, name) in self.roots.extract_if(.., |root, _| is_gone(root)).collect::<Vec<_>>() {
            if let Some(of_job) = self.jobs.get_mut(&name) {
                of_job.since = Some(Instant::now());
            }
        }
    }

    /// Lets go of what nobody has asked for in time.
    pub(super) fn let_go(&mut self, now: Instant) {
        let is_over = |of_job: &OfJob| of_job.since.is_some_and(|since| now - since > TAKEN_OVER_WITHIN);
        let over: Vec<Arc<str>> =
            self.jobs.iter().filter(|(_, of_job)| is_over(of_job)).map(|(name, _)| name.clone()).collect();
        over.iter().for_each(|name| self.drop_job(name));
    }

    /// Some of what there is of a job, from this number on, each with the number behind it.
    fn page(&self, name: &str, from: u64) -> Vec<(u64, Remnant)> {
        let of_job = self.jobs.get(name).into_iter();
        let mut bytes = 0;
        let mut is_room = |remnant: &Remnant| {
            let before = bytes;
            bytes += remnant.returned.iter().map(RemnantValue::bytes_here).sum::<usize>();
            before < PAGE_BYTES
        };
        let all = of_job.flat_map(|of_job| of_job.all.range(from..));
        let some = all.take(PAGE_LEN).take_while(|(_, remnant)| is_room(remnant));
        some.map(|(number, remnant)| (number + 1, remnant.clone())).collect()
    }

    /// A value that is kept.
    pub(super) fn file(&self, object: ObjectId) -> Option<SealedFile> {
        self.files.get(&object).cloned()
    }
}

fn bytes_of(remnant: &Remnant) -> u64 {
    REMNANT_BYTES + remnant.returned.iter().map(RemnantValue::bytes).sum::<u64>()
}

/// A job that may be taken over, as the node has it that runs it.
pub(in super::super) struct Lasting {
    /// What its cluster calls it.
    pub(in super::super) name: Arc<str>,
    /// What its tasks returned before.
    remnants: FxHashMap<NonZeroU64, Remnant>,
}

impl Lasting {
    /// None of a program with actors: what their methods do to them would not be done again.
    pub(in super::super) fn of(program: &Program, name: Arc<str>, remnants: Vec<Remnant>) -> Option<Lasting> {
        let has_actors = program.tasks.iter().any(|task| task.kind == TaskKind::Make);
        let remnants = remnants.into_iter().map(|remnant| (remnant.lineage, remnant)).collect();
        (!has_actors).then_some(Lasting { name, remnants })
    }
}

impl State {
    /// What a task is in each run of its job; none where that is not known, or does not matter.
    pub(in super::super) fn lineage(
        &self,
        job: JobId,
        (seed, function): (u64, u32),
        arguments: &[u8],
        refs: &[ObjectId],
    ) -> Option<NonZeroU64> {
        self.jobs.get(&job)?.lasting.as_ref().filter(|_| refs.is_empty())?;
        lineage(seed, function, arguments, |object| {
            let maker = self.sched.producer(object)?;
            Some((self.sched.call(maker)?.lineage?, object.0.checked_sub(maker.0)?))
        })
    }

    /// Nodes that have something of a job which was taken over learn that this one runs it now: they keep that until it ends.
    pub(in super::super) fn take_over(&mut self, job: JobId) {
        let lasting = self.jobs.get(&job).and_then(|job| job.lasting.as_ref());
        let Some(lasting) = lasting.filter(|lasting| !lasting.remnants.is_empty()) else { return };
        let (name, root) = (lasting.name.clone(), self.root(job));
        self.peers.remains.introduce(root, &name);
        for node in self.peers.all.keys().copied().collect::<Vec<_>>() {
            self.introduce(node, job);
        }
    }

    /// Nothing is left here any more of a job that this node has run.
    pub(in super::super) fn forget_remains(&mut self, job: JobId) {
        let root = self.root(job);
        self.peers.remains.root_ended(root);
    }

    /// Lets go of what is left of jobs that nobody has taken over.
    pub(in super::super) fn let_go_of_remains(&mut self, now: Instant) {
        self.peers.remains.let_go(now);
    }

    /// What a task returned that another node gave is kept, if somebody may ask for it.
    pub(super) fn keep_remnant(&mut self, id: TaskId, lineage: NonZeroU64, (returns, nanos): (u32, u64)) {
        let root = self.sched.job_of(id).and_then(|job| self.peers.seats.root(job));
        let Some(name) = root.and_then(|root| self.peers.remains.name_of(root)) else { return };
        let (mut returned, mut files) = (Vec::new(), Vec::new());
        for object in (0..returns).map(|index| id.returns(index)) {
            if self.sched.contained_objects(object).next().is_some() {
                return;
            }
            let file = match self.sched.value(object) {
                Some(Ok(Stored::Inline(bytes))) => {
                    returned.push(RemnantValue::Value(bytes.to_vec()));
                    continue;
                }
                Some(Ok(Stored::Kept(key, _))) => match self.store.values.share(*key) {
                    LendResult::Bytes(bytes) => SealedFile::new(&bytes).ok(),
                    LendResult::File(file) => Some(file),
                    LendResult::AlreadyLent | LendResult::Pending | LendResult::Lost(_) => None,
                },
                _ => None,
            };
            let Some(file) = file else { return };
            returned.push(RemnantValue::Away { node: self.options.node, object, bytes: file.bytes() });
            files.push((object, file));
        }
        let bytes_max = self.options.store.memory_bytes_max / MEMORY_PART;
        self.peers.remains.keep(&name, Remnant { lineage, nanos, returned }, files, bytes_max);
    }

    /// Tells some of what there is of a job that somebody takes over.
    pub(in super::super) fn tell_remains(&self, name: &str, from: u64, told: Tell<Vec<(u64, Remnant)>>) {
        told(self.peers.remains.page(name, from));
    }

    /// What a task returned before, if it is known, and can be made again if it is not to be had after all.
    fn remnant_of(&mut self, task: &Submission<Call>) -> Option<Remnant> {
        let lasting = self.jobs.get_mut(&task.job)?.lasting.as_mut()?;
        let is_open = match task.strategy {
            Strategy::Default | Strategy::Spread => true,
            Strategy::Node { .. } | Strategy::Group { .. } => false,
        };
        let lineage =
            task.call.lineage.filter(|_| task.kind == SubmissionKind::Function && is_open && task.retries_max > 0)?;
        lasting.remnants.remove(&lineage).filter(|remnant| remnant.returned.len() == task.returns as usize)
    }

    /// Ends a task with what it returned before its job was taken over. Gives it back, if it is to be run.
    pub(in super::super) fn resume(&mut self, worker: WorkerId, task: Submission<Call>) -> Option<Submission<Call>> {
        let Some(remnant) = self.remnant_of(&task) else { return Some(task) };
        let mut values = Vec::with_capacity(remnant.returned.len());
        for (value, index) in remnant.returned.iter().zip(0..) {
            let sent = match value {
                RemnantValue::Value(bytes) => PeerValue::Value(bytes),
                RemnantValue::Away { node, object, bytes } => {
                    PeerValue::Remote { node: *node, object: *object, bytes: *bytes }
                }
            };
            match self.received(task.job, task.id.returns(index), sent, None) {
                Ok(value) => values.push((value, Vec::new())),
                Err(_) => {
                    values.iter().for_each(|(value, _)| self.discard(value));
                    return Some(task);
                }
            }
        }
        if let Some(job) = self.jobs.get_mut(&task.job) {
            job.counts.resumed += 1;
        }
        let task = Submission { strategy: Strategy::Default, ..task };
        self.step(Event::FinishedInline { task, worker, outcome: Outcome::Succeeded(values), nanos: remnant.nanos });
        None
    }
}

/// What a task is of this seed, which is a function of its place in the tree of tasks, that calls this. An object is `made` by
/// a task of which this is known, in this place of what that returns.
fn lineage(
    seed: u64,
    function: u32,
    arguments: &[u8],
    made: impl Fn(ObjectId) -> Option<(NonZeroU64, u64)>,
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
                let (maker, place) = made(object)?;
                lineage.with(&maker.get().to_le_bytes()).with(&place.to_le_bytes())
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

    fn remnant(lineage: u64, bytes: usize) -> Remnant {
        let lineage = NonZeroU64::new(lineage).unwrap();
        Remnant { lineage, nanos: 1, returned: vec![RemnantValue::Value(vec![7; bytes])] }
    }

    /// Those of a job, as they are told.
    fn all(remains: &Remains, name: &str) -> Vec<u64> {
        let (mut all, mut from) = (Vec::new(), 0);
        while let some = remains.page(name, from)
            && let Some((next, _)) = some.last()
        {
            assert!(*next > from);
            from = *next;
            all.extend(some.iter().map(|(_, remnant)| remnant.lineage.get()));
        }
        all
    }

    #[test]
    fn a_task_is_known_by_its_place_its_function_and_its_arguments() {
        let made = |object: ObjectId| match object.0 {
            10..20 => Some((NonZeroU64::new(77)?, object.0 - 10)),
            20..30 => Some((NonZeroU64::new(78)?, object.0 - 20)),
            _ => None,
        };
        let of = |seed, function, arguments: &[Argument<'_>]| {
            lineage(seed, function, &postcard::to_stdvec(arguments).unwrap(), made)
        };
        let different = [
            of(1, 1, &[]),
            of(2, 1, &[]),
            of(1, 2, &[]),
            of(1, 1, &[Argument::Value(b"a")]),
            of(1, 1, &[Argument::Value(b"b")]),
            of(1, 1, &[Argument::Json("a")]),
            of(1, 1, &[Argument::Value(b"a"), Argument::Missing]),
            of(1, 1, &[Argument::Missing, Argument::Value(b"a")]),
            of(1, 1, &[Argument::Object(ObjectId(10))]),
            of(1, 1, &[Argument::Object(ObjectId(11))]),
            of(1, 1, &[Argument::Object(ObjectId(20))]),
        ];
        for (at, lineage) in different.iter().enumerate() {
            assert!(lineage.is_some() && !different[..at].contains(lineage), "{at}");
        }
        assert_eq!(of(1, 1, &[Argument::Object(ObjectId(10))]), different[8]);
        assert_eq!(of(1, 1, &[Argument::Object(ObjectId(30))]), None, "nobody knows what made it");
        assert_eq!(lineage(1, 1, &[9, 9], made), None);
    }

    #[test]
    fn what_is_kept_goes_with_the_last_root_or_for_want_of_room() {
        let mut remains = Remains::default();
        let name: Arc<str> = JOB.into();
        remains.keep(&name, remnant(1, 1), Vec::new(), 1 << 20);
        assert!(all(&remains, JOB).is_empty(), "nobody has named the job");
        remains.introduce(root(1), JOB);
        (1..=5).for_each(|lineage| remains.keep(&name, remnant(lineage, 100), Vec::new(), 1 << 20));
        assert_eq!(all(&remains, JOB), [1, 2, 3, 4, 5]);
        // The first go first.
        remains.keep(&name, remnant(6, 100), Vec::new(), 3 * (REMNANT_BYTES + 100));
        assert_eq!(all(&remains, JOB), [4, 5, 6]);
        // Its root is gone, another one takes it over in time.
        remains.lose_roots(|gone| *gone == root(1));
        remains.let_go(Instant::now());
        remains.introduce(root(2), JOB);
        remains.let_go(Instant::now() + 2 * TAKEN_OVER_WITHIN);
        assert_eq!(all(&remains, JOB), [4, 5, 6]);
        remains.root_ended(root(1));
        assert_eq!(all(&remains, JOB), [4, 5, 6], "that is not its root");
        remains.root_ended(root(2));
        assert!(all(&remains, JOB).is_empty() && remains.jobs.is_empty() && remains.order.is_empty());
        assert_eq!(remains.bytes, 0);
        // Another one takes it over before this node knows that its root is gone.
        for root in [root(1), root(2)] {
            remains.introduce(root, JOB);
            remains.keep(&name, remnant(1, 1), Vec::new(), 1 << 20);
        }
        remains.root_ended(root(2));
        assert!(all(&remains, JOB).is_empty(), "nobody waits for what the first root has left");
        remains.lose_roots(|gone| *gone == root(1));
        assert!(remains.jobs.is_empty() && remains.roots.is_empty());
        // Or nobody does.
        remains.introduce(root(3), JOB);
        remains.keep(&name, remnant(1, 1), Vec::new(), 1 << 20);
        remains.lose_roots(|gone| gone.node == root(3).node);
        remains.let_go(Instant::now() + 2 * TAKEN_OVER_WITHIN);
        assert!(remains.jobs.is_empty() && remains.bytes == 0);
    }

    #[test]
    fn many_are_told_in_pages_and_files_go_with_them() {
        let mut remains = Remains::default();
        let name: Arc<str> = JOB.into();
        remains.introduce(root(1), JOB);
        let many = 2 * PAGE_LEN as u64 + 1;
        (1..=many).for_each(|lineage| remains.keep(&name, remnant(lineage, 1), Vec::new(), 1 << 30));
        (1..=3).for_each(|more| remains.keep(&name, remnant(many + more, PAGE_BYTES), Vec::new(), 1 << 30));
        assert_eq!(all(&remains, JOB), (1..=many + 3).collect::<Vec<u64>>());
        let (object, file) = (ObjectId(5), SealedFile::new(&[1, 2, 3]).unwrap());
        let away = RemnantValue::Away { node: root(1).node, object, bytes: 3 };
        let remnant = Remnant { returned: vec![away], ..remnant(1, 0) };
        remains.keep(&name, remnant, vec![(object, file)], 1 << 30);
        assert_eq!(remains.file(object).map(|file| file.bytes()), Some(3));
        remains.root_ended(root(1));
        assert!(remains.file(object).is_none());
    }
}
