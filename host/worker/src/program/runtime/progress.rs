//! Progress reports of tasks, forwarded to the node at a limited rate.

use std::time::{Duration, Instant};

use super::{TaskContext, WorkerRuntime};
use crate::program::messages::WorkerMessage;
use crate::program::objects::TaskSlot;

/// Maximum number of names of one task. Progress under further names is dropped.
const NAMES_MAX: usize = 8;
/// Maximum bytes of a name; longer names are truncated.
const NAME_BYTES_MAX: usize = 64;
/// Minimum interval between reports of one name to the node.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// The last progress that a task reported under a name.
#[derive(Debug)]
pub(super) struct NamedProgress {
    name: String,
    done: u64,
    total: Option<u64>,
    reported_at: Option<Instant>,
    /// Whether the node has received it.
    is_reported: bool,
}

impl NamedProgress {
    fn message<'a>(&'a self, task: u64) -> WorkerMessage<'a> {
        WorkerMessage::NamedProgress { task, name: &self.name, done: self.done, total: self.total }
    }
}

impl WorkerRuntime {
    /// Records the progress of a task.
    pub(super) fn progress(&mut self, slot: TaskSlot, name: &str, done: u64, total: Option<u64>) {
        let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
        let Some(task) = self.task(slot) else { return };
        let place = match task.progress.iter().position(|known| known.name == name) {
            Some(place) => place,
            None if task.progress.len() < NAMES_MAX => {
                let name = name.to_owned();
                task.progress.push(NamedProgress { name, done, total, reported_at: None, is_reported: false });
                task.progress.len() - 1
            }
            None => return,
        };
        let (id, own) = (task.id, &mut task.progress[place]);
        (own.done, own.total, own.is_reported) = (done, total, false);
        if own.reported_at.is_some_and(|reported_at| reported_at.elapsed() < REPORT_INTERVAL) {
            return;
        }
        (own.reported_at, own.is_reported) = (Some(Instant::now()), true);
        self.announce(slot);
        self.send(&WorkerMessage::NamedProgress { task: id, name, done, total });
        self.publish_in_time();
    }

    /// Sends the progress of a finished task that the node has not received.
    pub(super) fn flush_progress(&mut self, own: &TaskContext) {
        for progress in own.progress.iter().filter(|progress| !progress.is_reported) {
            self.send(&progress.message(own.id));
        }
    }
}
