//! The node's side: a worker for programs, as the node holds it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Release, SeqCst};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::futex;
use sandbar_core::{Limits, TaskKind, WorkerId};
use sandbar_process::{confine, socket, spawn};
use sandbar_store::{SealedFile, SharedMemory};
use serde::{Deserialize, Serialize};

use super::PROGRAM_ARGUMENT;
use super::messages::{NodeMessage, StartTask};
use super::ring::{Receiver, RingMemory, Sender, TaskSender};
use crate::GpuProcesses;
use crate::compiler::{CompiledComponent, InitialMemory};

/// Words of a worker's memory, as indices of u64, a line of the caches apart.
pub(super) mod words {
    /// The task that is to end.
    pub const TASK_TO_INTERRUPT: usize = 0;
    /// Whether the worker sleeps.
    pub const DOORBELL: usize = 8;
    pub const WORKER_MESSAGES: usize = 16;
    pub const WORKER_MESSAGES_READ: usize = 24;
    pub const NODE_MESSAGES: usize = 32;
    pub const NODE_MESSAGES_READ: usize = 40;
    pub const TASKS: usize = 48;
    /// The task whose code it runs, and how many it has begun.
    pub const CURRENT_TASK: usize = 56;
    pub const STEPS: usize = 57;
    /// The call of an actor that this is for.
    pub const CURRENT_CALL: usize = 58;
    /// Bytes of files that the node has taken in.
    pub const FILE_BYTES_CREDITED: usize = 64;
    /// Whether tasks of some job that submit are to wait: which, it is told.
    pub const JOBS_HELD: usize = 65;
    /// Which of its memory_pool may be written again, a bit each: who clears it has it.
    pub const FREE_MEMORY: usize = 72;
}

const CONTROL_BYTES: usize = 4096;
const WORKER_RING_BYTES: usize = 2 << 20;
const NODE_RING_BYTES: usize = 1 << 20;
const TASK_RING_BYTES: usize = 1 << 20;
pub(super) const MEMORY_BYTES: usize = CONTROL_BYTES + WORKER_RING_BYTES + NODE_RING_BYTES + TASK_RING_BYTES;
/// The node's doorbell, in a page of its own that all workers have.
pub(super) const DOORBELL_BYTES: usize = 4096;

/// Where the rings of a worker are.
pub(super) fn rings(memory: &Arc<SharedMemory>) -> (RingMemory, RingMemory, RingMemory) {
    let place = |word, read, at, bytes| RingMemory { memory: memory.clone(), word, read, at, bytes };
    let down = CONTROL_BYTES + WORKER_RING_BYTES;
    (
        place(words::WORKER_MESSAGES, words::WORKER_MESSAGES_READ, CONTROL_BYTES, WORKER_RING_BYTES),
        place(words::NODE_MESSAGES, words::NODE_MESSAGES_READ, down, NODE_RING_BYTES),
        place(words::TASKS, 0, down + NODE_RING_BYTES, TASK_RING_BYTES),
    )
}

/// Who sleeps until somebody has something for it. In memory of several processes.
#[derive(Debug, Clone)]
pub struct Doorbell {
    memory: Arc<SharedMemory>,
    /// As an index of u64.
    word: usize,
}

impl Doorbell {
    /// The doorbell of a node.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new() -> io::Result<Doorbell> {
        Ok(Doorbell::at(Arc::new(SharedMemory::new(DOORBELL_BYTES)?), 0))
    }

    pub(super) fn at(memory: Arc<SharedMemory>, word: usize) -> Doorbell {
        Doorbell { memory, word }
    }

    /// Wakes who sleeps. Costs next to nothing when nobody does.
    pub fn ring(&self) {
        let sleeps = self.memory.atomic32(2 * self.word);
        std::sync::atomic::fence(SeqCst);
        if sleeps.load(SeqCst) != 0 && sleeps.swap(0, AcqRel) != 0 {
            let _ = futex::wake(sleeps, futex::Flags::empty(), 1);
        }
    }

    /// Sleeps until it is rung, or for so long, unless `has_some` finds something to do.
    pub fn sleep(&self, time: Option<Duration>, has_some: impl FnOnce() -> bool) {
        let sleeps = self.memory.atomic32(2 * self.word);
        sleeps.store(1, SeqCst);
        std::sync::atomic::fence(SeqCst);
        if !has_some() {
            let time = time.and_then(|time| time.try_into().ok());
            // Woken, over or interrupted: whatever it is, who sleeps looks around.
            let _ = futex::wait(sleeps, futex::Flags::empty(), 1, time.as_ref());
        }
        sleeps.store(0, SeqCst);
    }
}

/// How workers for programs are made.
#[derive(Debug, Clone)]
pub struct ProgramWorkerOptions {
    /// The most that a task may ask for.
    pub limits: Limits,
    /// Sandboxes that a worker may have at once.
    pub sandboxes: u32,
    /// Whether it runs by itself what a task submits and waits for. Otherwise that does not keep it from what else it has.
    pub inline: bool,
    /// Bytes of one value.
    pub value_bytes_max: u64,
    /// The program `host-worker`.
    pub program: PathBuf,
    /// GPUs for tasks that may use some.
    pub gpus: Option<Arc<GpuProcesses>>,
}

/// What goes over the socket: to the worker, but for files of values.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Packet {
    Hello {
        worker: u32,
        limits: Limits,
        sandboxes: u32,
        inline: bool,
        value_bytes_max: u64,
    },
    /// Files: compiled code, and the image of its memory, if its sandboxes are used again.
    Program {
        program: u32,
        code_bytes: u64,
        image_end: u64,
        initial: Option<InitialMemory>,
        limits: Limits,
        kinds: Vec<TaskKind>,
    },
    /// File: a value, which a message in the ring names.
    File,
}

/// A worker for programs. Dropping it kills the process.
#[derive(Debug)]
pub struct ProgramWorker {
    child: Option<Child>,
    socket: OwnedFd,
    memory: Arc<SharedMemory>,
    doorbell: Doorbell,
    from_worker: Receiver,
    to_worker: Sender,
    tasks: TaskSender,
    /// Frames and files that found no room.
    frames: VecDeque<Vec<u8>>,
    packets: VecDeque<(Vec<u8>, Vec<SealedFile>)>,
    received: Vec<u8>,
    buffer: Vec<u8>,
    /// Whether it was told something that it may sleep over.
    has_unsent: bool,
}

/// Where a task stands that was given: it was begun when the worker is behind that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskPosition(u32);

impl TaskPosition {
    /// Where a task stands that was begun when it was given, of who begins all at once.
    pub const IMMEDIATE: TaskPosition = TaskPosition(0);

    /// Whether it had been begun when the worker was at `taken`.
    pub fn is_started(self, taken: TaskPosition) -> bool {
        taken.0.wrapping_sub(self.0) as i32 >= 0
    }
}

/// What came of listening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polled {
    /// A message.
    Some,
    /// There is none now.
    Nothing,
}

impl ProgramWorker {
    /// Starts a worker. It sets itself up while this returns, and may be told and given things meanwhile. `role` is for who
    /// looks at the machine's processes.
    ///
    /// # Errors
    /// When the process or its memory can't be made.
    pub fn start(
        options: &ProgramWorkerOptions,
        id: WorkerId,
        role: &str,
        node: &Doorbell,
    ) -> io::Result<ProgramWorker> {
        if options.program.as_os_str().is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no program for workers"));
        }
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let memory = Arc::new(SharedMemory::new(MEMORY_BYTES)?);
        memory.atomic(words::TASK_TO_INTERRUPT).store(u64::MAX, Release);
        let mut command = Command::new(&options.program);
        command
            .args([PROGRAM_ARGUMENT, role])
            .env_clear()
            .env("MIMALLOC_ALLOW_THP", "0")
            .env(confine::NODE_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // What a terminal or a shell sends to this process and its group is this process's to heed.
            .process_group(0);
        let child = spawn::in_own_group(|| command.spawn())?;
        // Its end of the socket is its own: that is how its end is seen.
        drop(command);
        let (up, down, tasks) = rings(&memory);
        let hello = Packet::Hello {
            worker: id.0,
            limits: options.limits,
            sandboxes: options.sandboxes,
            inline: options.inline,
            value_bytes_max: options.value_bytes_max,
        };
        let worker = ProgramWorker {
            child: Some(child),
            socket: ours,
            doorbell: Doorbell::at(memory.clone(), words::DOORBELL),
            from_worker: Receiver::new(up),
            to_worker: Sender::closed(down),
            tasks: TaskSender::new(tasks),
            memory,
            frames: VecDeque::new(),
            packets: VecDeque::new(),
            received: Vec::new(),
            buffer: Vec::new(),
            has_unsent: false,
        };
        let mut buffer = Vec::new();
        // Tasks have the share of a GPU that they ask for.
        let broker = options.gpus.as_ref().map(|gpus| gpus.broker(1)).transpose()?;
        let files = [worker.memory.as_fd(), node.memory.as_fd()];
        let files: Vec<_> = files.into_iter().chain(broker.iter().map(AsFd::as_fd)).collect();
        socket::send(&worker.socket, socket::frame(&hello, &mut buffer)?, &files)?;
        Ok(worker)
    }

    /// Its process.
    pub fn process_id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Hands over a program's code, which has tasks of these kinds.
    ///
    /// # Errors
    /// When the worker is gone.
    pub fn send_program(&mut self, program: &CompiledComponent, limits: &Limits, kinds: Vec<TaskKind>) -> io::Result<()> {
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

    /// Tells it something, before what it is given from then on.
    pub fn send(&mut self, message: &NodeMessage<'_>) {
        self.buffer.clear();
        // To memory, which grows.
        let _ = postcard::to_io(message, &mut self.buffer);
        self.has_unsent = true;
        if !self.frames.is_empty() || self.to_worker.write(&self.buffer).is_none() {
            self.frames.push_back(self.buffer.clone());
        }
    }

    /// As [`ProgramWorker::tell`], of a value that lies in a file.
    ///
    /// # Errors
    /// When the worker is gone.
    pub fn send_with_file(&mut self, message: &NodeMessage<'_>, file: &SealedFile) -> io::Result<()> {
        self.send_files(&Packet::File, vec![file.clone()])?;
        self.send(message);
        Ok(())
    }

    /// Gives it a task; none when there is no room, or what it was told before has not found any.
    pub fn assign(&mut self, task: &StartTask<'_>) -> Option<TaskPosition> {
        if !self.frames.is_empty() {
            return None;
        }
        self.buffer.clear();
        let _ = postcard::to_io(task, &mut self.buffer);
        // What it was told comes first.
        self.to_worker.publish();
        let end = self.tasks.send(&self.buffer)?;
        self.has_unsent = true;
        Some(TaskPosition(end))
    }

    /// How far it has begun what it was given.
    pub fn started_up_to(&self) -> TaskPosition {
        TaskPosition(self.tasks.taken())
    }

    /// Takes back what it has not begun: what is given behind what this gives.
    pub fn reclaim_tasks(&mut self) -> TaskPosition {
        TaskPosition(self.tasks.take_back())
    }

    /// Lets it know what it was told and given.
    ///
    /// # Errors
    /// When the worker is gone.
    pub fn flush(&mut self) -> io::Result<()> {
        while let Some(frame) = self.frames.front() {
            if self.to_worker.write(frame).is_none() {
                break;
            }
            self.frames.pop_front();
        }
        if !self.packets.is_empty() {
            self.send_packets()?;
        }
        if std::mem::take(&mut self.has_unsent) {
            self.to_worker.publish();
            self.doorbell.ring();
        }
        Ok(())
    }

    /// Whether it said something.
    pub fn has_messages(&self) -> bool {
        self.from_worker.has_frame()
    }

    /// Takes what it said for itself so far, too.
    pub fn claim_unpublished(&self) {
        if self.from_worker.has_unpublished() {
            self.from_worker.claim_all();
        }
    }

    /// The next message, an [`super::WorkerMessage`], in `frame`.
    ///
    /// # Errors
    /// When the worker makes no sense.
    pub fn poll(&mut self, frame: &mut Vec<u8>) -> io::Result<Polled> {
        Ok(if self.from_worker.next(frame)? { Polled::Message } else { Polled::Empty })
    }

    /// The next file that a message named: it was sent before the message.
    ///
    /// # Errors
    /// When there is none.
    pub fn next_file(&mut self) -> io::Result<OwnedFd> {
        let Some((Packet::File, files)) = socket::receive(&self.socket, &mut self.received)? else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a value's file is missing"));
        };
        Ok(files.into_iter().next().ok_or(io::ErrorKind::InvalidData)?)
    }

    /// So many bytes of files that it sent are taken in: it may send as many more.
    pub fn credit_file_bytes(&self, bytes: u64) {
        self.memory.atomic(words::FILE_BYTES_CREDITED).fetch_add(bytes, AcqRel);
    }

    /// Nobody but the worker had its memory of this number: it may be written again.
    pub fn mark_memory_free(&self, number: u32) {
        self.memory.atomic(words::FREE_MEMORY).fetch_or(1 << (number % u64::BITS), AcqRel);
    }

    /// Takes memory back that may be written again, unless the worker has taken it before. Says whether it did.
    pub fn reclaim_memory(&self, number: u32) -> bool {
        let bit = 1 << (number % u64::BITS);
        self.memory.atomic(words::FREE_MEMORY).fetch_and(!bit, AcqRel) & bit != 0
    }

    /// Whether a task that submits is to look which jobs [are held](NodeMessage::HoldJob). To be said once it was told of these.
    pub fn set_holds(&self, holds: bool) {
        self.memory.atomic(words::JOBS_HELD).store(holds.into(), SeqCst);
    }

    /// Ends the task if its code runs. To be done again until it has ended.
    pub fn interrupt(&self, task: u64) {
        self.memory.atomic(words::TASK_TO_INTERRUPT).store(task, SeqCst);
        if let Some(process) = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32)) {
            let _ = kill_process(process, Signal::USR1);
        }
    }

    /// The task whose code it runs, if it runs any, and how many it has begun.
    pub fn progress(&self) -> (Option<u64>, u64) {
        let read = |word| self.memory.atomic(word).load(SeqCst);
        (Some(read(words::CURRENT_TASK)).filter(|task| *task != u64::MAX), read(words::STEPS))
    }

    /// The call of an actor whose code it runs, or that waits in the actor's code.
    pub fn current_call(&self) -> u64 {
        self.memory.atomic(words::CURRENT_CALL).load(SeqCst)
    }

    /// Whether the process has ended.
    pub fn has_exited(&self) -> bool {
        socket::is_closed(self.socket.as_fd())
    }

    /// Ends the process and says how it ended.
    pub fn kill(&mut self) -> String {
        let Some(mut child) = self.child.take() else { return "it ended".into() };
        let _ = child.kill();
        child.wait().map_or_else(|e| e.to_string(), |status| status.to_string())
    }
}

impl Drop for ProgramWorker {
    fn drop(&mut self) {
        self.kill();
    }
}
