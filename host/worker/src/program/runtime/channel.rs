//! The worker's channel to its node: messages in a ring, files over the socket, and words in shared memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use sandbar_process::socket;
use sandbar_sandbox::Refusal;
use sandbar_store::SharedMemory;

use crate::program::layout::{rings, words};
use crate::program::messages::{SubmitTask, WorkerMessage};
use crate::program::node_doorbell::WorkerBell;
use crate::program::objects::TaskSlot;
use crate::program::packets::Packet;
use crate::program::ring::Sender;

use super::limits::refuse_interrupted;

/// Number of messages, and age of the first, at which messages are published to the node.
const UNPUBLISHED_MAX: u32 = 16;
const UNPUBLISHED_TIME_MAX: Duration = Duration::from_micros(50);
/// Interval of attempts to write a message into a full ring.
const FULL_RING_INTERVAL: Duration = Duration::from_micros(20);
/// Maximum bytes of files that the node has not accepted yet. Tasks that store more wait.
const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// Interval at which a task that waits for such credit checks for it.
const CREDIT_INTERVAL: Duration = Duration::from_micros(50);

/// The worker's end of the connection to its node.
pub(in crate::program) struct NodeChannel {
    messages: Sender,
    /// Memory shared with the node.
    memory: Arc<SharedMemory>,
    bell: WorkerBell,
    /// The message written last.
    frame: Vec<u8>,
    packet: Vec<u8>,
    /// Number of written messages that the node can't see yet, and the time of the first.
    unpublished: u32,
    unpublished_since: Instant,
    /// The message written last, if it submitted a task that can be taken back.
    last_submission: Option<LastSubmission>,
    /// Bytes of files sent so far.
    file_bytes_sent: u64,
}

/// A submission that the node may not have received yet.
#[derive(Debug, Clone, Copy)]
struct LastSubmission {
    /// Position in the ring.
    at: u32,
    parent: TaskSlot,
    task: u64,
}

impl NodeChannel {
    pub(super) fn new(memory: Arc<SharedMemory>, bell: WorkerBell) -> NodeChannel {
        NodeChannel {
            messages: Sender::new(rings(&memory).0),
            memory,
            bell,
            frame: Vec::new(),
            packet: Vec::new(),
            unpublished: 0,
            unpublished_since: Instant::now(),
            last_submission: None,
            file_bytes_sent: 0,
        }
    }

    /// Writes a message, which the node receives once it is published.
    pub(in crate::program) fn send(&mut self, message: &WorkerMessage<'_>) {
        self.write(message);
    }

    /// Writes the submission of a task. With `can_take_back`, the task can be [taken back](NodeChannel::take_back) for
    /// its parent.
    pub(super) fn send_submission(&mut self, submit: SubmitTask<'_>, parent: TaskSlot, can_take_back: bool) {
        let task = submit.task;
        let at = self.write(&WorkerMessage::Submit(submit));
        self.last_submission = can_take_back.then_some(LastSubmission { at, parent, task });
    }

    /// Writes a message. Returns its position in the ring.
    fn write(&mut self, message: &WorkerMessage<'_>) -> u32 {
        self.last_submission = None;
        self.frame.clear();
        // Writing to a `Vec` cannot fail.
        let _ = postcard::to_io(message, &mut self.frame);
        let at = loop {
            match self.messages.write(&self.frame) {
                Some(at) => break at,
                None => {
                    // Either the node reads the ring, or it has ended and ends this process as well.
                    self.messages.publish();
                    self.bell.ring();
                    std::thread::sleep(FULL_RING_INTERVAL);
                }
            }
        };
        if self.unpublished == 0 {
            self.unpublished_since = Instant::now();
        }
        self.unpublished += 1;
        at
    }

    /// Takes back the task that was submitted last, if `parent` submitted it and the node has not received it. Returns
    /// its encoded [`WorkerMessage::Submit`].
    pub(super) fn take_back(&mut self, parent: TaskSlot, task: u64) -> Option<Vec<u8>> {
        let last = self.last_submission.filter(|last| last.parent == parent && last.task == task)?;
        if !self.messages.take_back(last.at) {
            return None;
        }
        (self.last_submission, self.unpublished) = (None, self.unpublished.saturating_sub(1));
        // The message written last is this submission.
        Some(std::mem::take(&mut self.frame))
    }

    /// Publishes the written messages, if they are many or old.
    pub(super) fn publish_in_time(&mut self) {
        if self.unpublished >= UNPUBLISHED_MAX || self.unpublished_since.elapsed() > UNPUBLISHED_TIME_MAX {
            self.publish();
        }
    }

    /// Publishes the written messages.
    pub(in crate::program) fn publish(&mut self) {
        if self.unpublished > 0 {
            self.unpublished = 0;
            self.last_submission = None;
            self.messages.publish();
            self.bell.ring();
        }
    }

    /// Sends the file of a value over the socket. The next message that refers to a file means this one.
    pub(super) fn send_file(&mut self, file: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
        socket::send(io::stdin().as_fd(), socket::frame(&Packet::File, &mut self.packet)?, &[file])?;
        self.file_bytes_sent += bytes;
        Ok(())
    }

    /// Waits until the node has accepted the files sent so far, that is, until it has room in memory or on disk, or
    /// reports that it has none. All tasks of this worker wait meanwhile, at most as long as the disk takes for these
    /// bytes.
    ///
    /// # Errors
    /// When the task that stores a value must end.
    pub(super) fn wait_for_credit(&mut self) -> Result<(), Refusal> {
        while self.file_bytes_sent.saturating_sub(self.word(words::FILE_BYTES_CREDITED).load(Acquire)) > AHEAD_BYTES_MAX
        {
            refuse_interrupted()?;
            self.publish();
            self.bell.ring();
            std::thread::sleep(CREDIT_INTERVAL);
        }
        Ok(())
    }

    /// Returns the bit set of the worker's memories that may be written again.
    pub(super) fn free_memory(&self) -> &AtomicU64 {
        self.word(words::FREE_MEMORY)
    }

    /// Returns whether the node holds any job.
    pub(super) fn holds_jobs(&self) -> bool {
        self.word(words::JOBS_HELD).load(Relaxed) != 0
    }

    /// Shows the node which task's code runs.
    pub(super) fn show_current_task(&self, task: u64) {
        self.word(words::CURRENT_TASK).store(task, SeqCst);
    }

    /// Shows the node which actor call's code runs.
    pub(super) fn show_current_call(&self, call: Option<u64>) {
        self.word(words::CURRENT_CALL).store(call.unwrap_or(u64::MAX), Relaxed);
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        self.memory.atomic(word)
    }
}
