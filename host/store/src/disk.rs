//! The thread that writes values to disk and reads them back, so that no other thread waits for the disk.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;

use sandbar_core::Fault;

use crate::spill::{RestoredValue, SpillFolder, SpillSource, SpilledValue};
use crate::values::ValueKey;

/// Maximum number of tasks in the thread's channel. Further tasks wait in the queues of [`Disk`].
const QUEUED_TASKS_MAX: usize = 8;

/// A task of the disk thread.
#[derive(Debug)]
pub enum DiskTask {
    /// Write these values, all or none.
    Write(Vec<(ValueKey, SpillSource)>),
    /// Read a value back.
    Read(ValueKey, Arc<SpilledValue>),
    /// Free the disk space of a value.
    Free(Arc<SpilledValue>),
}

impl DiskTask {
    /// Performs the task. Freeing disk space has no completion.
    pub fn run(self, folder: &mut SpillFolder) -> Option<DiskCompletion> {
        match self {
            DiskTask::Write(values) => {
                let (keys, sources): (Vec<_>, Vec<_>) = values.into_iter().unzip();
                Some(DiskCompletion::Written(keys, folder.write(&sources)))
            }
            DiskTask::Read(key, spilled) => Some(DiskCompletion::Read(key, spilled.read())),
            DiskTask::Free(_) => None,
        }
    }
}

/// A completed disk task.
#[derive(Debug)]
pub enum DiskCompletion {
    /// These values were written, or none of them.
    Written(Vec<ValueKey>, Result<Vec<SpilledValue>, Fault>),
    /// This value was read, or reading it failed.
    Read(ValueKey, io::Result<RestoredValue>),
}

/// Handle of the disk thread. Dropping it waits for the thread's current task.
#[derive(Debug)]
pub struct Disk {
    tasks: Option<SyncSender<DiskTask>>,
    done: Receiver<DiskCompletion>,
    thread: Option<JoinHandle<()>>,
    /// Read tasks; these come first because tasks wait for the values.
    reads: VecDeque<DiskTask>,
    others: VecDeque<DiskTask>,
}

impl Disk {
    /// Starts the thread. The thread calls `notify` after each completed task.
    ///
    /// # Errors
    /// Fails if the thread can't be started.
    pub fn start(folder: SpillFolder, notify: impl Fn() + Send + 'static) -> io::Result<Disk> {
        let (tasks, received) = sync_channel(QUEUED_TASKS_MAX);
        let (sender, done) = channel();
        let thread = move || run(folder, &received, &sender, notify);
        let thread = std::thread::Builder::new().name("spill".into()).spawn(thread)?;
        Ok(Disk { tasks: Some(tasks), done, thread: Some(thread), reads: VecDeque::new(), others: VecDeque::new() })
    }

    /// Queues a task.
    pub fn submit(&mut self, task: DiskTask) {
        match task {
            DiskTask::Read(..) => self.reads.push_back(task),
            _ => self.others.push_back(task),
        }
        self.send();
    }

    /// Returns the next completed task, if any.
    pub fn next_completion(&mut self) -> Option<DiskCompletion> {
        self.send();
        self.done.try_recv().ok()
    }

    fn send(&mut self) {
        let Some(tasks) = &self.tasks else { return };
        while let Some(task) = self.reads.pop_front().or_else(|| self.others.pop_front()) {
            match tasks.try_send(task) {
                Ok(()) => {}
                Err(TrySendError::Full(task) | TrySendError::Disconnected(task)) => {
                    let queue = if matches!(task, DiskTask::Read(..)) { &mut self.reads } else { &mut self.others };
                    return queue.push_front(task);
                }
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(mut folder: SpillFolder, tasks: &Receiver<DiskTask>, done: &Sender<DiskCompletion>, notify: impl Fn()) {
    for task in tasks {
        if let Some(completion) = task.run(&mut folder) {
            if done.send(completion).is_err() {
                return;
            }
            notify();
        }
    }
}
