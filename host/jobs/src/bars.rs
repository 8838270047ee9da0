//! How far the tasks of a job say that they are with what: sums over the tasks that say the same name.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sandbar_core::TaskId;

use crate::ProgressRow;

/// Names of one job. What is said of others is not shown.
const NAMES_MAX: usize = 16;
/// Bytes of a name.
const NAME_BYTES_MAX: usize = 64;
/// Tasks that say something at once: what more of them say is not shown until others have ended.
const LIVE_MAX: usize = 1000;

/// What is said by all tasks of a job.
#[derive(Debug, Default)]
pub struct ProgressBars(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    bars: Vec<Bar>,
    /// What tasks said last that have not ended.
    live: Vec<Live>,
}

#[derive(Debug)]
struct Bar {
    name: String,
    /// Of tasks that have ended.
    ended: Said,
    began: Instant,
    last: Instant,
}

#[derive(Debug)]
struct Live {
    task: TaskId,
    bar: usize,
    said: Said,
}

/// So much, of so much if that is known.
#[derive(Debug, Clone, Copy)]
struct Said {
    done: u64,
    total: Option<u64>,
}

impl Said {
    fn plus(self, more: Said) -> Said {
        let total = self.total.zip(more.total).map(|(a, b)| a.saturating_add(b));
        Said { done: self.done.saturating_add(more.done), total }
    }
}

impl ProgressBars {
    /// A task says how far it is. Names may be any.
    pub fn say(&self, task: TaskId, name: &str, done: u64, total: Option<u64>) {
        let State { bars, live } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, said, now) = (shortened(name), Said { done, total }, Instant::now());
        let bar = match bars.iter().position(|bar| bar.name == name) {
            Some(bar) => bar,
            None if bars.len() < NAMES_MAX => {
                let ended = Said { done: 0, total: Some(0) };
                bars.push(Bar { name: name.to_owned(), ended, began: now, last: now });
                bars.len() - 1
            }
            None => return,
        };
        match live.iter().position(|live| live.task == task && live.bar == bar) {
            Some(at) => live[at].said = said,
            None if live.len() < LIVE_MAX => live.push(Live { task, bar, said }),
            None => return,
        }
        bars[bar].last = now;
    }

    /// A task has ended for good.
    pub fn ended(&self, task: TaskId) {
        let State { bars, live } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|live| {
            if live.task == task {
                bars[live.bar].ended = bars[live.bar].ended.plus(live.said);
            }
            live.task != task
        });
    }

    /// What was said so far, by names in the order in which they came.
    pub fn rows(&self) -> Vec<ProgressRow> {
        let State { bars, live } = &*self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |(place, bar): (usize, &Bar)| {
            let own = live.iter().filter(|live| live.bar == place);
            let Said { done, total } = own.fold(bar.ended, |sum, live| sum.plus(live.said));
            ProgressRow { name: bar.name.clone(), done, total, seconds: (bar.last - bar.began).as_secs_f64() }
        };
        bars.iter().enumerate().map(row).collect()
    }
}

fn shortened(name: &str) -> &str {
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
    fn tasks_that_say_the_same_name_are_summed() {
        let bars = ProgressBars::default();
        bars.say(TaskId(1), "a", 1, Some(10));
        bars.say(TaskId(1), "a", 5, Some(10));
        bars.say(TaskId(2), "a", 7, Some(20));
        bars.say(TaskId(2), "b", 3, None);
        check(&bars, &[("a", 12, Some(30)), ("b", 3, None)]);
        bars.ended(TaskId(1));
        bars.ended(TaskId(1));
        bars.say(TaskId(2), "a", 20, Some(20));
        check(&bars, &[("a", 25, Some(30)), ("b", 3, None)]);
        bars.say(TaskId(3), "b", 1, Some(1));
        check(&bars, &[("a", 25, Some(30)), ("b", 4, None)]);
    }

    #[test]
    fn names_and_tasks_are_bounded() {
        let bars = ProgressBars::default();
        for i in 0..10 * LIVE_MAX as u64 {
            bars.say(TaskId(i), &format!("{}{i}", "ä".repeat(100)), u64::MAX, Some(u64::MAX));
            bars.say(TaskId(i), &i.to_string(), i, None);
        }
        let rows = bars.rows();
        assert_eq!(rows.len(), NAMES_MAX);
        assert!(rows[0].name.len() <= NAME_BYTES_MAX && rows[0].done == u64::MAX, "{rows:?}");
    }
}
