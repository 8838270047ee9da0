//! The node's handle of a worker for programs.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Release, SeqCst};

use rustix::process::{Pid, Signal, kill_process};
use sandbar_core::{Limits, TaskKind, TenantId, WorkerId};
use sandbar_process::socket;
use sandbar_store::{SealedFile, SharedMemory};

use super::doorbell::Doorbell;
use super::layout::{MEMORY_BYTES, NO_TASK, rings, words};
use super::message_sender::MessageSender;
use super::messages::{NodeMessage, StartTask};
use super::node_doorbell::NodeDoorbell;
use super::packets::Packet;
use super::ring::{Receiver, TaskSender};
use crate::GpuProcesses;
use crate::child::WorkerChild;
use crate::compiler::CompiledComponent;

/// The argument with which `host-worker` runs as a worker for programs; standard input is its socket.
pub const PROGRAM_ARGUMENT: &str = "program";

/// Options of workers for programs.
#[derive(Debug, Clone)]
pub struct ProgramWorkerOptions {
    /// Upper bound of the limits of a task.
    pub limits: Limits,
    /// Maximum number of sandboxes in a worker at once.
    pub sandboxes: u32,
    /// Whether a worker itself runs a task that one of its tasks submits and waits for. If not, that task cannot delay
    /// its other tasks.
    pub inline: bool,
    /// Maximum bytes of one value.
    pub value_bytes_max: u64,
    /// Path of the program `host-worker`.
    pub program: PathBuf,
    /// GPUs for tasks that request them.
    pub gpus: Option<Arc<GpuProcesses>>,
}

/// A worker process for programs. Dropping it kills the process.
#[derive(Debug)]
pub struct ProgramWorker {
    child: WorkerChild,
    socket: OwnedFd,
    memory: Arc<SharedMemory>,
    doorbell: Doorbell,
    from_worker: Receiver,
    to_worker: MessageSender,
    tasks: TaskSender,
    /// Packets that wait for room in the socket.
    packets: VecDeque<(Vec<u8>, Vec<SealedFile>)>,
    received: Vec<u8>,
    buffer: Vec<u8>,
    /// Whether the worker has messages or tasks for which it was not woken.
    must_wake: bool,
}

/// Position of an assigned task in the task ring. The task has started when the worker is past that position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskPosition(u32);

impl TaskPosition {
    /// Position of a task that starts when it is assigned, for executors that start every task immediately.
    pub const IMMEDIATE: TaskPosition = TaskPosition(0);

    /// Creates the position of a task that was assigned as the `number`th.
    pub fn new(number: u32) -> TaskPosition {
        TaskPosition(number)
    }

    /// Returns whether the task has started, given the position that the worker has reached.
    pub fn is_started(self, taken: TaskPosition) -> bool {
        taken.0.wrapping_sub(self.0) as i32 >= 0
    }
}

/// Result of polling for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polled {
    /// A message was received.
    Message,
    /// No message is available.
    Empty,
}

impl ProgramWorker {
    /// Starts a worker process. The process sets itself up asynchronously, and may be sent messages and tasks
    /// meanwhile. It serves this tenant alone. `role` is shown in process lists.
    ///
    /// # Errors
    /// When the process or its memory cannot be created.
    pub fn start(
        options: &ProgramWorkerOptions,
        id: WorkerId,
        role: &str,
        tenant: TenantId,
        node: &NodeDoorbell,
    ) -> io::Result<ProgramWorker> {
        if options.program.as_os_str().is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no program for workers"));
        }
        let memory = Arc::new(SharedMemory::new(MEMORY_BYTES)?);
        memory.atomic(words::TASK_TO_INTERRUPT).store(NO_TASK, Release);
        memory.atomic(words::CURRENT_TASK).store(NO_TASK, Release);
        let (child, socket) = WorkerChild::start(&options.program, &[PROGRAM_ARGUMENT, role])?;
        let (worker_messages, node_messages, tasks) = rings(&memory);
        let hello = Packet::Hello {
            worker: id.0,
            limits: options.limits,
            sandboxes: options.sandboxes,
            inline: options.inline,
            value_bytes_max: options.value_bytes_max,
        };
        let worker = ProgramWorker {
            child,
            socket,
            doorbell: Doorbell::at(memory.clone(), words::DOORBELL),
            from_worker: Receiver::new(worker_messages),
            to_worker: MessageSender::new(node_messages),
            tasks: TaskSender::new(tasks),
            memory,
            packets: VecDeque::new(),
            received: Vec::new(),
            buffer: Vec::new(),
            must_wake: false,
        };
        let mut buffer = Vec::new();
        // A task requests its own share of a GPU, so there is no further sharing.
        let broker = options.gpus.as_ref().map(|gpus| gpus.broker(tenant, 1)).transpose()?;
        let event = node.worker_event()?;
        let files = [worker.memory.as_fd(), event.as_fd()];
        let files: Vec<_> = files.into_iter().chain(broker.iter().map(AsFd::as_fd)).collect();
        socket::send(&worker.socket, socket::frame(&hello, &mut buffer)?, &files)?;
        Ok(worker)
    }

    /// Returns its process id.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Sends the code of a program that has tasks of these kinds.
    ///
    /// # Errors
    /// When the worker has ended.
    pub fn send_program(
        &mut self,
        program: &CompiledComponent,
        limits: &Limits,
        kinds: Vec<TaskKind>,
    ) -> io::Result<()> {
        let (number, code) = (program.number(), program.code());
        let (code_bytes, image_end) = (code.bytes(), program.image_end());
        let (initial, image) = program.initial().unzip();
        let message = Packet::Program { program: number, code_bytes, image_end, initial, limits: *limits, kinds };
        self.send_files(&message, [code].into_iter().chain(image).cloned().collect())
    }

    fn send_files(&mut self, message: &Packet, files: Vec<SealedFile>) -> io::Result<()> {
        let frame = postcard::to_stdvec(message).map_err(io::Error::other)?;
        self.packets.push_back((frame, files));
        self.send_packets()
    }

    fn send_packets(&mut self) -> io::Result<()> {
        while let Some((frame, files)) = self.packets.front() {
            let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            match socket::send(&self.socket, frame, &files) {
                Ok(()) => self.packets.pop_front(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            };
        }
        Ok(())
    }

    /// Sends a message. The worker receives it before tasks that are assigned later.
    pub fn send(&mut self, message: &NodeMessage<'_>) {
        self.buffer.clear();
        // Writing to a `Vec` cannot fail.
        let _ = postcard::to_io(message, &mut self.buffer);
        self.to_worker.send(&self.buffer);
    }

    /// Like [`ProgramWorker::send`], with a value in a file.
    ///
    /// # Errors
    /// When the worker has ended.
    pub fn send_with_file(&mut self, message: &NodeMessage<'_>, file: &SealedFile) -> io::Result<()> {
        self.send_files(&Packet::File, vec![file.clone()])?;
        self.send(message);
        Ok(())
    }

    /// Assigns a task. Returns `None` when the ring is full, or when earlier messages still wait for room.
    pub fn assign(&mut self, task: &StartTask<'_>) -> Option<TaskPosition> {
        if self.to_worker.has_waiting() {
            return None;
        }
        self.buffer.clear();
        let _ = postcard::to_io(task, &mut self.buffer);
        // Earlier messages must arrive first.
        self.must_wake |= self.to_worker.publish();
        let end = self.tasks.send(&self.buffer)?;
        self.must_wake = true;
        Some(TaskPosition(end))
    }

    /// Returns the position up to which the worker has started its tasks.
    pub fn started_up_to(&self) -> TaskPosition {
        TaskPosition(self.tasks.taken())
    }

    /// Takes back all tasks that have not started: those behind the returned position.
    pub fn reclaim_tasks(&mut self) -> TaskPosition {
        TaskPosition(self.tasks.take_back())
    }

    /// Publishes queued messages and tasks, and wakes the worker.
    ///
    /// # Errors
    /// When the worker has ended.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.packets.is_empty() {
            self.send_packets()?;
        }
        self.must_wake |= self.to_worker.publish();
        if std::mem::take(&mut self.must_wake) {
            self.doorbell.ring();
        }
        Ok(())
    }

    /// Returns whether a message from the worker is available.
    pub fn has_messages(&self) -> bool {
        self.from_worker.has_frame()
    }

    /// Also publishes the messages that the worker has written but not published.
    pub fn claim_unpublished(&self) {
        if self.from_worker.has_unpublished() {
            self.from_worker.claim_all();
        }
    }

    /// Reads the next encoded [`super::WorkerMessage`] into `frame`.
    ///
    /// # Errors
    /// When the ring is corrupt.
    pub fn poll(&mut self, frame: &mut Vec<u8>) -> io::Result<Polled> {
        Ok(if self.from_worker.next(frame)? { Polled::Message } else { Polled::Empty })
    }

    /// Receives the next file that a message refers to; the worker sends it before the message.
    ///
    /// # Errors
    /// When the file is missing.
    pub fn next_file(&mut self) -> io::Result<OwnedFd> {
        let Some((Packet::File, files)) = socket::receive(&self.socket, &mut self.received)? else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a value's file is missing"));
        };
        Ok(files.into_iter().next().ok_or(io::ErrorKind::InvalidData)?)
    }

    /// Grants the worker credit for `bytes` more bytes of files, after the node has accepted as many.
    pub fn credit_file_bytes(&self, bytes: u64) {
        self.memory.atomic(words::FILE_BYTES_CREDITED).fetch_add(bytes, AcqRel);
    }

    /// Marks the worker's memory of this number as reusable: no other process had it.
    pub fn mark_memory_free(&self, number: u32) {
        self.memory.atomic(words::FREE_MEMORY).fetch_or(1 << (number % u64::BITS), AcqRel);
    }

    /// Takes back memory that was marked as reusable, unless the worker has claimed it. Returns whether it succeeded.
    pub fn reclaim_memory(&self, number: u32) -> bool {
        let bit = 1 << (number % u64::BITS);
        self.memory.atomic(words::FREE_MEMORY).fetch_and(!bit, AcqRel) & bit != 0
    }

    /// Sets whether tasks must check after submitting which jobs [are held](NodeMessage::HoldJob). Must be called after
    /// the messages that name these jobs.
    pub fn set_holds(&self, holds: bool) {
        self.memory.atomic(words::JOBS_HELD).store(holds.into(), SeqCst);
    }

    /// Sets whether the node's thread sleeps, so that messages of the worker must wake it.
    pub fn set_node_sleeps(&self, sleeps: bool) {
        self.memory.atomic32(2 * words::NODE_SLEEPS).store(sleeps.into(), SeqCst);
    }

    /// Interrupts the task if the worker runs it. Must be repeated until the task has ended, and be followed by
    /// [`ProgramWorker::end_interrupt`].
    pub fn interrupt(&self, task: u64) {
        self.memory.atomic(words::TASK_TO_INTERRUPT).store(task, SeqCst);
        // Before its first task, a worker may not have installed its handler: the signal would kill it.
        if self.memory.atomic(words::CURRENT_TASK).load(SeqCst) == task
            && let Some(process) = Pid::from_raw(self.child.id() as i32)
        {
            let _ = kill_process(process, Signal::USR1);
        }
    }

    /// Ends the interruption of a task: its next attempt may run in the same worker.
    pub fn end_interrupt(&self, task: u64) {
        let _ = self.memory.atomic(words::TASK_TO_INTERRUPT).compare_exchange(task, NO_TASK, SeqCst, SeqCst);
    }

    /// Returns the task whose code runs, if any, and the number of times the worker has switched to a task.
    pub fn progress(&self) -> (Option<u64>, u64) {
        let read = |word| self.memory.atomic(word).load(SeqCst);
        (Some(read(words::CURRENT_TASK)).filter(|task| *task != NO_TASK), read(words::STEPS))
    }

    /// Returns the actor call whose code runs, or that waits in the actor's code.
    pub fn current_call(&self) -> u64 {
        self.memory.atomic(words::CURRENT_CALL).load(SeqCst)
    }

    /// Returns whether the process has ended.
    pub fn has_exited(&self) -> bool {
        socket::is_closed(self.socket.as_fd())
    }

    /// Kills the process, and describes its exit status.
    pub fn kill(&mut self) -> String {
        self.child.kill()
    }
}
