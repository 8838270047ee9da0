//! Records of a job's finished tasks: sums by task name, full records of the first and last tasks of each name, and full
//! records of failed tasks. Their size is bounded for any number of tasks.

mod histogram;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sandbar_core::{TaskError, TaskId, WorkerId};

use self::histogram::Histogram;
use crate::{DurationStats, ErrorRow, NameSummary, RunState, TaskRow};

/// Bounds on the records of a job's tasks.
#[derive(Debug, Clone, Copy)]
pub struct RecordLimits {
    /// Maximum distinct names. Tasks with further names share one entry.
    pub names_max: usize,
    /// Maximum first tasks of each name.
    pub first_max: usize,
    /// Maximum last tasks of each name.
    pub last_max: usize,
    /// Maximum failed tasks of all names.
    pub failed_max: usize,
    /// Maximum full records of all kinds.
    pub records_max: usize,
}

impl Default for RecordLimits {
    fn default() -> RecordLimits {
        RecordLimits { names_max: 1000, first_max: 1000, last_max: 1000, failed_max: 10_000, records_max: 50_000 }
    }
}

/// Name of the entry for tasks beyond [`RecordLimits::names_max`].
const OTHER_NAMES: &str = "(other names)";

/// A finished task.
#[derive(Debug, Clone)]
pub struct TaskRecord {
    /// Id of the task.
    pub id: TaskId,
    /// Task that submitted it, if known.
    pub parent: Option<TaskId>,
    /// Final state. `Pending` and `Running` count as stopped.
    pub state: RunState,
    /// Number of attempts.
    pub attempts: u32,
    /// The last attempt, if it finished in a worker.
    pub last_attempt: Option<AttemptRecord>,
    /// Error of a failed or stopped task.
    pub error: Option<Arc<TaskError>>,
}

/// A finished attempt of a task. Points in time are nanoseconds of the machine's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct AttemptRecord {
    /// The task.
    pub task: TaskId,
    /// Worker that ran the attempt.
    pub worker: WorkerId,
    /// When the task was submitted.
    pub submitted_ns: u64,
    /// When the attempt started.
    pub started_ns: u64,
    /// When the attempt finished.
    pub finished_ns: u64,
    /// Computing time, without the time in which the attempt waited for other tasks.
    pub compute_ns: u64,
    /// GPU time that the attempt waited for.
    pub gpu_ns: u64,
    /// Peak linear memory.
    pub memory_bytes: u64,
    /// Bytes of the arguments, including the objects among them.
    pub bytes_in: u64,
    /// Bytes of the returned values.
    pub bytes_out: u64,
}

/// Records of the finished tasks of one job.
#[derive(Debug)]
pub struct TaskRecords {
    limits: RecordLimits,
    /// Start of the job on the clock of [`AttemptRecord`].
    job_started_ns: u64,
    by_name: HashMap<Arc<str>, usize>,
    groups: Vec<NameGroup>,
    /// Index of the last used group, which is usually the next one as well.
    last_group: usize,
    /// Full records of failed tasks.
    failed: usize,
    /// Full records of all kinds.
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
    /// Durations of last attempts that finished in a worker.
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
    /// Creates empty records of a job that started at `job_started_ns` of the machine's monotonic clock.
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

    /// Returns the start of the job in nanoseconds of the machine's monotonic clock.
    pub fn job_started_ns(&self) -> u64 {
        self.job_started_ns
    }

    /// Counts what an attempt used. The attempt need not be the last of its task.
    pub fn add_attempt(&mut self, name: &Arc<str>, attempt: &AttemptRecord) {
        let index = self.group_index(name);
        let group = &mut self.groups[index];
        group.compute_ns = group.compute_ns.saturating_add(attempt.compute_ns);
        group.gpu_ns = group.gpu_ns.saturating_add(attempt.gpu_ns);
        group.memory_bytes_max = group.memory_bytes_max.max(attempt.memory_bytes);
    }

    /// Records a finished task, whose attempts were counted.
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
            // The new record replaces the oldest of the last ones, if the name has any.
            self.record_count -= usize::from(has_room);
            if group.last.pop_front().is_some() {
                group.last.push_back(record);
            }
        }
    }

    /// Records the repeated run of a task that had succeeded before, in place of its previous record.
    pub fn replace(&mut self, name: &Arc<str>, record: TaskRecord) {
        let index = self.group_index(name);
        let group = &mut self.groups[index];
        let is_same = |other: &TaskRecord| other.id == record.id;
        let replaced = match group.first.iter().position(is_same) {
            Some(index) => Some(group.first.remove(index)),
            None => group.last.iter().position(is_same).and_then(|index| group.last.remove(index)),
        };
        self.record_count -= usize::from(replaced.is_some());
        // The resources of the previous run stay in the sums, because they were used. Without a previous record, all
        // attempts but the last are assumed to be counted already.
        let attempts = replaced.map_or(record.attempts.saturating_sub(1), |replaced| replaced.attempts);
        group.attempts = group.attempts.saturating_sub(attempts.into());
        group.succeeded = group.succeeded.saturating_sub(1);
        self.add(name, record);
    }

    /// Counts tasks that stopped with their job and have no record.
    pub fn add_stopped(&mut self, name: &Arc<str>, count: u64) {
        if count > 0 {
            let index = self.group_index(name);
            self.groups[index].stopped += count;
        }
    }

    /// Returns the index of a name's group. Creates the group if necessary.
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

    /// Iterates over the full records with their names, in no particular order.
    fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &TaskRecord)> {
        self.groups.iter().flat_map(|group| {
            let all = group.first.iter().chain(&group.last).chain(&group.failures);
            all.map(|record| (&group.name, record))
        })
    }

    /// Returns rows of at most `limit` full records whose name and state satisfy `filter`, the last finished first.
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

    /// Returns a summary per name, in the order of the first finished tasks. Unfinished tasks are not counted.
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
        self.bytes_in = self.bytes_in.saturating_add(attempt.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(attempt.bytes_out);
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

    /// Returns the tasks with full records, given the name of each: `f` if it succeeds, `f!` if it fails.
    fn full_records(tasks: &[&str]) -> Vec<String> {
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
    fn first_last_and_failed_tasks_have_full_records() {
        for (tasks, expected) in [
            (&["f"; 4][..], &["0 f", "1 f", "2 f", "3 f"][..]),
            (&["f"; 9], &["0 f", "1 f", "6 f", "7 f", "8 f"]),
            (&["f!", "f", "f", "f", "f", "f", "f", "f"], &["0 f", "1 f", "2 f", "5 f", "6 f", "7 f"]),
            (&["f!"; 8], &["0 f", "1 f", "2 f", "3 f", "5 f", "6 f", "7 f"]),
            (&["f", "g", "f", "g"], &["0 f", "1 g", "2 f", "3 g"]),
            (&["f", "g", "h", "i", "j"], &["0 f", "1 g", "2 h", "3 (other names)", "4 (other names)"]),
        ] {
            assert_eq!(full_records(tasks), expected, "{tasks:?}");
        }
    }

    #[test]
    fn all_records_together_are_bounded() {
        let tasks: Vec<&str> = (0..100).map(|task| ["f", "g", "h", "i", "f!"][task % 5]).collect();
        assert_eq!(full_records(&tasks).len(), LIMITS.records_max);
    }

    #[test]
    fn a_repeated_task_counts_once() {
        let mut records = TaskRecords::new(LIMITS, 0);
        let name: Arc<str> = "f".into();
        (1..=6).for_each(|id| records.add(&name, record(id, RunState::Succeeded)));
        // A first task, a last task, and one without a full record.
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
        let mut add = |record: TaskRecord| {
            let attempt = record.last_attempt.unwrap();
            records.add_attempt(&name, &attempt);
            records.add(&name, record);
        };
        (1..=100).for_each(|id| add(record(id, RunState::Succeeded)));
        add(record(101, RunState::Failed));
        // An attempt that is not the last one of its task.
        let failed = AttemptRecord { compute_ns: 1000, ..record(102, RunState::Failed).last_attempt.unwrap() };
        records.add_attempt(&name, &failed);
        records.add(&name, TaskRecord { last_attempt: None, ..record(102, RunState::Stopped) });
        records.add_stopped(&name, 7);
        let all = records.summaries();
        let [sum] = &all[..] else { panic!("{all:?}") };
        assert_eq!((sum.succeeded, sum.failed, sum.stopped, sum.attempts), (100, 1, 8, 102));
        assert_eq!((sum.bytes_in, sum.bytes_out, sum.computed_ns, sum.memory_bytes_max), (202, 101, 1303, 102));
        let durations = sum.took_ns.unwrap();
        assert_eq!((durations.min, durations.mean, durations.p50, durations.max), (4, 4, 4, 4));
        let last = &records.rows(1, |_, state| state == RunState::Succeeded)[0];
        assert_eq!((last.begun_ns, last.ended_ns, last.worker), (Some(996), Some(1000), Some(1)));
    }
}
