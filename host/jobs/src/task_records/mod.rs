//! What is kept of the tasks of a job that have ended: sums of all of them, by name; of each name the first and the last
//! ones in full; and those that failed. So it stays as large as it is whatever the number of tasks.

mod histogram;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sandbar_core::{TaskError, TaskId, WorkerId};

use self::histogram::Histogram;
use crate::{DurationStats, ErrorRow, NameSummary, RunState, TaskRow};

/// How much is kept of the tasks of a job.
#[derive(Debug, Clone, Copy)]
pub struct RecordLimits {
    /// Names that are told apart. Tasks of others count as of one.
    pub names_max: usize,
    /// Of each name, the first so many tasks.
    pub first_max: usize,
    /// Of each name, the last so many.
    pub last_max: usize,
    /// So many that failed, of all names.
    pub failed_max: usize,
    /// All of these.
    pub records_max: usize,
}

impl Default for RecordLimits {
    fn default() -> RecordLimits {
        RecordLimits { names_max: 1000, first_max: 1000, last_max: 1000, failed_max: 10_000, records_max: 50_000 }
    }
}

/// What the tasks are called whose names are too many.
const OTHER_NAMES: &str = "(other names)";

/// A task that has ended.
#[derive(Debug, Clone)]
pub struct TaskRecord {
    pub id: TaskId,
    pub parent: Option<TaskId>,
    pub state: RunState,
    pub attempts: u32,
    /// Its last attempt, if that came to an end in a worker.
    pub last_attempt: Option<AttemptRecord>,
    pub error: Option<Arc<TaskError>>,
}

/// An attempt that has ended. Times are in nanoseconds of the machine's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct AttemptRecord {
    pub task: TaskId,
    pub worker: WorkerId,
    pub submitted_ns: u64,
    pub started_ns: u64,
    pub finished_ns: u64,
    /// How long it computed, and GPUs worked for it.
    pub compute_ns: u64,
    pub gpu_ns: u64,
    pub memory_bytes: u64,
    /// Of its arguments, and of the objects among them.
    pub bytes_in: u64,
    /// Of what it returned.
    pub bytes_out: u64,
}

/// What is kept of the tasks of a job.
#[derive(Debug)]
pub struct TaskRecords {
    limits: RecordLimits,
    /// When the job began, by the clock of [`AttemptRecord`].
    job_started_ns: u64,
    by_name: HashMap<Arc<str>, usize>,
    groups: Vec<NameGroup>,
    /// The group that was needed last: mostly that of the next.
    last_group: usize,
    failed: usize,
    record_count: usize,
}

/// Tasks of one name.
#[derive(Debug)]
struct NameGroup {
    name: Arc<str>,
    succeeded: u64,
    failed: u64,
    stopped: u64,
    attempts: u64,
    /// From begin to end, of those that came to an end in a worker.
    durations: Histogram,
    compute_ns: u64,
    gpu_ns: u64,
    bytes_in: u64,
    bytes_out: u64,
    memory_bytes_max: u64,
    first: Vec<TaskRecord>,
    last: VecDeque<TaskRecord>,
    failures: Vec<TaskRecord>,
}

impl TaskRecords {
    pub fn new(limits: RecordLimits, job_started_ns: u64) -> TaskRecords {
        TaskRecords {
            limits,
            job_started_ns,
            by_name: HashMap::new(),
            groups: Vec::new(),
            last_group: 0,
            failed: 0,
            record_count: 0,
        }
    }

    /// When the job began, in nanoseconds of the machine's monotonic clock.
    pub fn job_started_ns(&self) -> u64 {
        self.job_started_ns
    }

    /// A task of this name has ended.
    pub fn add(&mut self, name: &Arc<str>, record: TaskRecord) {
        let index = self.group_index(name);
        let (limits, group) = (self.limits, &mut self.groups[index]);
        group.count(&record);
        let has_room = self.record_count < limits.records_max;
        self.record_count += usize::from(has_room);
        if record.state == RunState::Failed && self.failed < limits.failed_max && has_room {
            self.failed += 1;
            group.failures.push(record);
        } else if group.first.len() < limits.first_max && has_room {
            group.first.push(record);
        } else if group.last.len() < limits.last_max && has_room {
            group.last.push_back(record);
        } else {
            // One comes, one goes, if there is one.
            self.record_count -= usize::from(has_room);
            if group.last.pop_front().is_some() {
                group.last.push_back(record);
            }
        }
    }

    /// A task of this name, which had succeeded and was begun again, has ended again.
    pub fn replace(&mut self, name: &Arc<str>, record: TaskRecord) {
        let index = self.group_index(name);
        let group = &mut self.groups[index];
        let is_same = |other: &TaskRecord| other.id == record.id;
        let replaced = match group.first.iter().position(is_same) {
            Some(index) => Some(group.first.remove(index)),
            None => group.last.iter().position(is_same).and_then(|index| group.last.remove(index)),
        };
        self.record_count -= usize::from(replaced.is_some());
        // What it took counts: it took that.
        let attempts = replaced.map_or(record.attempts.saturating_sub(1), |replaced| replaced.attempts);
        group.attempts = group.attempts.saturating_sub(attempts.into());
        group.succeeded = group.succeeded.saturating_sub(1);
        self.add(name, record);
    }

    /// So many tasks of this name end with their job, without a record.
    pub fn add_stopped(&mut self, name: &Arc<str>, count: u64) {
        if count > 0 {
            let index = self.group_index(name);
            self.groups[index].stopped += count;
        }
    }

    /// Of which place the group of a name is.
    fn group_index(&mut self, name: &Arc<str>) -> usize {
        if self.groups.get(self.last_group).is_some_and(|group| Arc::ptr_eq(&group.name, name)) {
            return self.last_group;
        }
        if let Some(index) = self.by_name.get(name) {
            self.last_group = *index;
            return *index;
        }
        let is_full = self.groups.len() >= self.limits.names_max;
        let name: Arc<str> = if is_full { OTHER_NAMES.into() } else { name.clone() };
        self.last_group = match self.by_name.get(&name) {
            Some(index) => *index,
            None => {
                self.groups.push(NameGroup::new(name.clone()));
                self.by_name.insert(name, self.groups.len() - 1);
                self.groups.len() - 1
            }
        };
        self.last_group
    }

    /// What is kept in full, by name, in no order that means anything.
    fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &TaskRecord)> {
        self.groups.iter().flat_map(|group| {
            let all = group.first.iter().chain(&group.last).chain(&group.failures);
            all.map(|record| (&group.name, record))
        })
    }

    /// Those of these that are `wanted`, the ones that ended last first.
    pub fn rows(&self, limit: usize, filter: impl Fn(&str, RunState) -> bool) -> Vec<TaskRow> {
        let mut all: Vec<_> = self.iter().filter(|(name, record)| filter(name, record.state)).collect();
        all.sort_unstable_by_key(|(_, record)| {
            std::cmp::Reverse((record.last_attempt.map(|attempt| attempt.finished_ns), record.id))
        });
        all.into_iter().take(limit).map(|(name, record)| self.row(name, record)).collect()
    }

    fn row(&self, name: &Arc<str>, record: &TaskRecord) -> TaskRow {
        let since = |time: u64| time.saturating_sub(self.job_started_ns);
        let TaskRecord { id, parent, state, attempts, last_attempt, error } = record;
        TaskRow {
            id: id.short(),
            name: name.as_ref().to_owned(),
            state: *state,
            waits_for: None,
            parent: parent.map(TaskId::short),
            attempts: *attempts,
            worker: last_attempt.map(|attempt| attempt.worker.0),
            submitted_ns: last_attempt.map(|attempt| since(attempt.submitted_ns)),
            begun_ns: last_attempt.map(|attempt| since(attempt.started_ns)),
            ended_ns: last_attempt.map(|attempt| since(attempt.finished_ns)),
            computed_ns: last_attempt.map(|attempt| attempt.compute_ns),
            gpu_ns: last_attempt.map(|attempt| attempt.gpu_ns),
            bytes_in: last_attempt.map(|attempt| attempt.bytes_in),
            bytes_out: last_attempt.map(|attempt| attempt.bytes_out),
            memory_bytes: last_attempt.map(|attempt| attempt.memory_bytes),
            error: error.as_ref().map(|error| ErrorRow::from_error(error)),
        }
    }

    /// What all tasks of a name came to, the names in the order in which they came up. Nothing of those that live.
    pub fn summaries(&self) -> Vec<NameSummary> {
        self.groups.iter().map(NameGroup::summary).collect()
    }
}

impl NameGroup {
    fn new(name: Arc<str>) -> NameGroup {
        NameGroup {
            name,
            succeeded: 0,
            failed: 0,
            stopped: 0,
            attempts: 0,
            durations: Histogram::default(),
            compute_ns: 0,
            gpu_ns: 0,
            bytes_in: 0,
            bytes_out: 0,
            memory_bytes_max: 0,
            first: Vec::new(),
            last: VecDeque::new(),
            failures: Vec::new(),
        }
    }

    fn count(&mut self, record: &TaskRecord) {
        match record.state {
            RunState::Succeeded => self.succeeded += 1,
            RunState::Failed => self.failed += 1,
            RunState::Stopped | RunState::Pending | RunState::Running => self.stopped += 1,
        }
        self.attempts += u64::from(record.attempts);
        let Some(attempt) = &record.last_attempt else { return };
        self.durations.add(attempt.finished_ns.saturating_sub(attempt.started_ns));
        self.compute_ns = self.compute_ns.saturating_add(attempt.compute_ns);
        self.gpu_ns = self.gpu_ns.saturating_add(attempt.gpu_ns);
        self.bytes_in = self.bytes_in.saturating_add(attempt.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(attempt.bytes_out);
        self.memory_bytes_max = self.memory_bytes_max.max(attempt.memory_bytes);
    }

    fn summary(&self) -> NameSummary {
        let durations = &self.durations;
        NameSummary {
            succeeded: self.succeeded,
            failed: self.failed,
            stopped: self.stopped,
            attempts: self.attempts,
            took_ns: (!durations.is_empty()).then(|| DurationStats {
                min: durations.min(),
                mean: durations.mean(),
                p50: durations.quantile(0.5),
                p95: durations.quantile(0.95),
                p99: durations.quantile(0.99),
                max: durations.max(),
            }),
            computed_ns: self.compute_ns,
            gpu_ns: self.gpu_ns,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            memory_bytes_max: self.memory_bytes_max,
            ..NameSummary::new(&self.name)
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbar_core::{Code, Fault};

    use super::*;

    const LIMITS: RecordLimits =
        RecordLimits { names_max: 3, first_max: 2, last_max: 3, failed_max: 2, records_max: 12 };

    fn record(id: u64, state: RunState) -> TaskRecord {
        let attempt = AttemptRecord {
            task: TaskId(id),
            worker: WorkerId(1),
            submitted_ns: 10 * id,
            started_ns: 10 * id + 1,
            finished_ns: 10 * id + 5,
            compute_ns: 3,
            gpu_ns: 2,
            memory_bytes: id,
            bytes_in: 2,
            bytes_out: 1,
        };
        let error = TaskError { fault: Fault::new(Code::Trap, "it trapped"), chain: vec!["main".into()] };
        let error = (state == RunState::Failed).then(|| Arc::new(error));
        TaskRecord { id: TaskId(id), parent: None, state, attempts: 1, last_attempt: Some(attempt), error }
    }

    /// Which tasks are kept of these, each a name and whether it succeeds: `f` or, failed, `f!`.
    fn kept(tasks: &[&str]) -> Vec<String> {
        let mut records = TaskRecords::new(LIMITS, 0);
        for (id, task) in (0..).zip(tasks) {
            let name = task.trim_end_matches('!');
            let state = if name == *task { RunState::Succeeded } else { RunState::Failed };
            records.add(&name.into(), record(id, state));
        }
        let rows = records.rows(usize::MAX, |_, _| true);
        assert_eq!(rows.len(), records.record_count);
        rows.iter().rev().map(|row| format!("{} {}", row.id.trim_start_matches("0-"), row.name)).collect()
    }

    #[test]
    fn first_last_and_failed_tasks_are_kept() {
        for (tasks, expected) in [
            (&["f"; 4][..], &["0 f", "1 f", "2 f", "3 f"][..]),
            (&["f"; 9], &["0 f", "1 f", "6 f", "7 f", "8 f"]),
            (&["f!", "f", "f", "f", "f", "f", "f", "f"], &["0 f", "1 f", "2 f", "5 f", "6 f", "7 f"]),
            (&["f!"; 8], &["0 f", "1 f", "2 f", "3 f", "5 f", "6 f", "7 f"]),
            (&["f", "g", "f", "g"], &["0 f", "1 g", "2 f", "3 g"]),
            (&["f", "g", "h", "i", "j"], &["0 f", "1 g", "2 h", "3 (other names)", "4 (other names)"]),
        ] {
            assert_eq!(kept(tasks), expected, "{tasks:?}");
        }
    }

    #[test]
    fn all_records_together_are_bounded() {
        let tasks: Vec<&str> = (0..100).map(|task| ["f", "g", "h", "i", "f!"][task % 5]).collect();
        assert_eq!(kept(&tasks).len(), LIMITS.records_max);
    }

    #[test]
    fn a_repeated_task_counts_once() {
        let mut records = TaskRecords::new(LIMITS, 0);
        let name: Arc<str> = "f".into();
        (1..=6).for_each(|id| records.add(&name, record(id, RunState::Succeeded)));
        // The first, the last, and one that is not kept.
        for (id, attempts) in [(1, 3), (6, 3), (3, 2)] {
            records.replace(&name, TaskRecord { attempts, ..record(id, RunState::Succeeded) });
        }
        records.replace(&name, TaskRecord { attempts: 4, ..record(6, RunState::Failed) });
        let [sum] = &records.summaries()[..] else { panic!("one name") };
        assert_eq!((sum.succeeded, sum.failed, sum.attempts), (5, 1, 3 + 4 + 2 + 3));
        let all: Vec<u64> = records.iter().map(|(_, record)| record.id.0).collect();
        assert_eq!((all.len(), records.record_count), (5, 5), "{all:?}");
    }

    #[test]
    fn sums_cover_all_tasks() {
        let mut records = TaskRecords::new(LIMITS, 5);
        let name: Arc<str> = "f".into();
        (1..=100).for_each(|id| records.add(&name, record(id, RunState::Succeeded)));
        records.add(&name, record(101, RunState::Failed));
        records.add(&name, TaskRecord { last_attempt: None, ..record(102, RunState::Stopped) });
        records.add_stopped(&name, 7);
        let all = records.summaries();
        let [sum] = &all[..] else { panic!("{all:?}") };
        assert_eq!((sum.succeeded, sum.failed, sum.stopped, sum.attempts), (100, 1, 8, 102));
        assert_eq!((sum.bytes_in, sum.bytes_out, sum.computed_ns, sum.memory_bytes_max), (202, 101, 303, 101));
        let durations = sum.took_ns.unwrap();
        assert_eq!((durations.min, durations.mean, durations.p50, durations.max), (4, 4, 4, 4));
        let last = &records.rows(1, |_, state| state == RunState::Succeeded)[0];
        assert_eq!((last.begun_ns, last.ended_ns, last.worker), (Some(996), Some(1000), Some(1)));
    }
}
