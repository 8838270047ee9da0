//! Reports of tasks to the node: their logs and their progress.

use sandbar_sandbox::Level;

use super::WorkerRuntime;
use super::context::TaskContext;
use crate::program::messages::WorkerMessage;
use crate::program::objects::TaskSlot;

/// Bytes that each line counts for in addition to its text.
const LINE_BYTES: u64 = 16;

impl WorkerRuntime {
    /// Forwards a line of a task's log, within the limit of the log.
    pub(super) fn log(&mut self, slot: TaskSlot, level: Level, message: &str) {
        let Some(task) = self.tasks.get_mut(slot) else { return };
        let cost = message.len() as u64 + LINE_BYTES;
        if cost > task.log_left {
            task.log_dropped += 1;
            return self.announce(slot);
        }
        task.log_left -= cost;
        let id = task.id;
        self.announce(slot);
        self.node.send(&WorkerMessage::Log(id, level as u8, message));
    }

    /// Records the progress of a task, and reports it if its last report is old enough.
    pub(super) fn progress(&mut self, slot: TaskSlot, name: &str, done: u64, total: Option<u64>) {
        let Some(task) = self.tasks.get_mut(slot) else { return };
        let id = task.id;
        let Some(name) = task.progress.record(name, done, total) else { return };
        self.announce(slot);
        self.node.send(&WorkerMessage::Progress { task: id, name, done, total });
        self.node.publish_in_time();
    }

    /// Reports the progress of a finished task that the node has not received, and the number of dropped lines.
    pub(super) fn finish_reports(&mut self, own: &TaskContext) {
        for progress in own.progress.unreported() {
            let (name, done, total) = (progress.name.as_str(), progress.done, progress.total);
            self.node.send(&WorkerMessage::Progress { task: own.id, name, done, total });
        }
        if own.log_dropped > 0 {
            let line = format!("({} lines more were dropped: `limits.log_bytes_max` is reached)", own.log_dropped);
            self.node.send(&WorkerMessage::Log(own.id, Level::Warn as u8, &line));
        }
    }
}
