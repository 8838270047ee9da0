//! Progress that the tasks of a job report: one bar for each name, with the sum over the tasks that report it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sandbar_core::TaskId;

use crate::rows::ProgressRow;
use crate::updates::JobUpdates;

/// Maximum bars of one job. Reports under further names are dropped.
const BARS_MAX: usize = 16;
/// Maximum bytes of a name. Longer names are truncated.
const NAME_BYTES_MAX: usize = 64;
/// Maximum reports of unfinished tasks, one per task and bar. Further ones are dropped until a task finishes.
const ENTRIES_MAX: usize = 1000;

/// Progress of all tasks of a job.
#[derive(Debug, Default)]
pub struct ProgressBars {
    state: Mutex<ProgressState>,
    /// Notified of each report.
    updates: JobUpdates,
}

#[derive(Debug, Default)]
struct ProgressState {
    bars: Vec<Bar>,
    /// Latest report of each unfinished task to each bar.
    entries: Vec<TaskProgress>,
}

#[derive(Debug)]
struct Bar {
    name: String,
    /// Sum over finished tasks.
    finished: ReportedAmount,
    first_report: Instant,
    last_report: Instant,
}

#[derive(Debug)]
struct TaskProgress {
    task: TaskId,
    bar: usize,
    amount: ReportedAmount,
}

#[derive(Debug, Clone, Copy)]
struct ReportedAmount {
    done: u64,
    /// `None` if unknown.
    total: Option<u64>,
}

impl ReportedAmount {
    fn plus(self, other: ReportedAmount) -> ReportedAmount {
        let total = self.total.zip(other.total).map(|(a, b)| a.saturating_add(b));
        ReportedAmount { done: self.done.saturating_add(other.done), total }
    }
}

impl ProgressBars {
    /// Creates progress without bars, which notifies `updates` of each report.
    pub fn new(updates: JobUpdates) -> ProgressBars {
        ProgressBars { state: Mutex::default(), updates }
    }

    /// Records a task's progress, which replaces its previous report under that name. `name` is untrusted.
    pub fn report(&self, task: TaskId, name: &str, done: u64, total: Option<u64>) {
        let ProgressState { bars, entries } = &mut *self.state();
        let (name, amount, now) = (truncate_name(name), ReportedAmount { done, total }, Instant::now());
        let bar = match bars.iter().position(|bar| bar.name == name) {
            Some(bar) => bar,
            None if bars.len() < BARS_MAX => {
                let finished = ReportedAmount { done: 0, total: Some(0) };
                bars.push(Bar { name: name.to_owned(), finished, first_report: now, last_report: now });
                bars.len() - 1
            }
            None => return,
        };
        match entries.iter().position(|entry| entry.task == task && entry.bar == bar) {
            Some(index) => entries[index].amount = amount,
            None if entries.len() < ENTRIES_MAX => entries.push(TaskProgress { task, bar, amount }),
            None => return,
        }
        bars[bar].last_report = now;
        self.updates.notify();
    }

    /// Moves the task's last reports to the sums of finished tasks. Must be called once no attempt follows.
    pub fn finish_task(&self, task: TaskId) {
        let ProgressState { bars, entries } = &mut *self.state();
        entries.retain(|entry| {
            if entry.task == task {
                bars[entry.bar].finished = bars[entry.bar].finished.plus(entry.amount);
            }
            entry.task != task
        });
    }

    /// Returns a row per name, in the order of the first reports.
    pub fn rows(&self) -> Vec<ProgressRow> {
        let ProgressState { bars, entries } = &*self.state();
        let row = |(index, bar): (usize, &Bar)| {
            let of_bar = entries.iter().filter(|entry| entry.bar == index);
            let ReportedAmount { done, total } = of_bar.fold(bar.finished, |sum, entry| sum.plus(entry.amount));
            ProgressRow {
                name: bar.name.clone(),
                done,
                total,
                seconds: (bar.last_report - bar.first_report).as_secs_f64(),
            }
        };
        bars.iter().enumerate().map(row).collect()
    }

    fn state(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn truncate_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bars: &ProgressBars, expected: &[(&str, u64, Option<u64>)]) {
        let rows = bars.rows();
        let rows: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.done, row.total)).collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn reports_with_one_name_are_summed() {
        let bars = ProgressBars::default();
        bars.report(TaskId(1), "a", 1, Some(10));
        bars.report(TaskId(1), "a", 5, Some(10));
        bars.report(TaskId(2), "a", 7, Some(20));
        bars.report(TaskId(2), "b", 3, None);
        check(&bars, &[("a", 12, Some(30)), ("b", 3, None)]);
        bars.finish_task(TaskId(1));
        bars.finish_task(TaskId(1));
        bars.report(TaskId(2), "a", 20, Some(20));
        check(&bars, &[("a", 25, Some(30)), ("b", 3, None)]);
        bars.report(TaskId(3), "b", 1, Some(1));
        check(&bars, &[("a", 25, Some(30)), ("b", 4, None)]);
    }

    #[test]
    fn each_report_notifies() {
        let updates = JobUpdates::default();
        let mut receiver = updates.subscribe();
        let bars = ProgressBars::new(updates);
        assert!(!receiver.has_changed().unwrap());
        bars.report(TaskId(1), "a", 1, None);
        assert!(receiver.has_changed().unwrap());
        receiver.mark_unchanged();
        bars.finish_task(TaskId(1));
        assert!(!receiver.has_changed().unwrap(), "the sums are the same");
    }

    #[test]
    fn names_and_tasks_are_bounded() {
        let bars = ProgressBars::default();
        for i in 0..10 * ENTRIES_MAX as u64 {
            bars.report(TaskId(i), &format!("{}{i}", "ä".repeat(100)), u64::MAX, Some(u64::MAX));
            bars.report(TaskId(i), &i.to_string(), i, None);
        }
        let rows = bars.rows();
        assert_eq!(rows.len(), BARS_MAX);
        assert!(rows[0].name.len() <= NAME_BYTES_MAX && rows[0].done == u64::MAX, "{rows:?}");
    }
}
