//! Fuzz harnesses: feed arbitrary bytes of a guest, or of a process that it has taken over, to the worker's runtime and
//! to the rings.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use sandbar_core::{Code, Fault, TaskKind, WorkerId};
use sandbar_sandbox::Services;
use sandbar_store::SharedMemory;

use super::layout::{MEMORY_BYTES, rings};
use super::node_doorbell::{NodeDoorbell, WorkerBell};
use super::ring::{Receiver, RingMemory, Sender, TaskReceiver, TaskSender};
use super::runtime::{AttemptReport, RuntimeOptions, TaskContext, TaskServices, WorkerRuntime};
use crate::mutex::lock;

/// Feeds a task's request to a worker runtime: the first byte selects the import, the rest is its argument. Returns the
/// encoded [`super::WorkerMessage`]s that the worker sends to the node; `None` if the request is refused or there is no
/// memory. The task is the first attempt of a task of `job`, in the worker of the given id, whose program has tasks of
/// these kinds.
pub fn fuzz_task_request(
    worker: WorkerId,
    job: u32,
    task: u64,
    kinds: &[TaskKind],
    bytes: &[u8],
) -> Option<Vec<Vec<u8>>> {
    let (which, argument) = bytes.split_first()?;
    let memory = Arc::new(SharedMemory::new(MEMORY_BYTES).ok()?);
    let mut messages = Receiver::new(rings(&memory).0);
    let options = RuntimeOptions { worker, sandboxes: 1, inline: true, value_bytes_max: u64::MAX };
    let bell = WorkerBell::new(memory.clone(), NodeDoorbell::new().ok()?.worker_event().ok()?);
    let mut runtime = WorkerRuntime::new(memory, bell, options);
    runtime.tasks.insert(0, TaskContext::new(task, 0, job, 0, kinds.into(), Vec::new(), None));
    let runtime = Arc::new(Mutex::new(runtime));
    let mut services = TaskServices {
        runtime: runtime.clone(),
        slot: 0,
        current_object: None,
        is_held: false,
        broker: None,
        job: 0,
        tensor_bytes_max: 0,
        dense: None,
        gpu_nanos_reported: 0,
    };
    let mut result = None;
    match which % 6 {
        0 => {
            let (function, argument) = argument.split_first()?;
            let (returns, request) = argument.split_first_chunk()?;
            services.submit((*function).into(), u32::from_le_bytes(*returns), request).ok()?;
        }
        1 => drop(services.group(argument).ok()?),
        2 => drop(services.find(&String::from_utf8_lossy(argument)).ok()?),
        3 => {
            let (value, contained) = value(argument)?;
            services.put(&[value], &contained).ok()?;
        }
        4 => {
            let (value, contained) = value(argument)?;
            services.returned(&[value], &contained).ok()?;
            result = Some(Ok(()));
        }
        _ => {
            services.fail_with(argument).ok()?;
            result = Some(Err(Fault::new(Code::Refused, "it fails with the error of another task")));
        }
    }
    let mut runtime = lock(&runtime);
    if let (Some(result), Some(own)) = (result, runtime.tasks.remove(0)) {
        runtime.finish(own, result, AttemptReport::default());
    }
    runtime.node.publish();
    let (mut sent, mut frame) = (Vec::new(), Vec::new());
    while messages.next(&mut frame).ok()? {
        sent.push(frame.clone());
    }
    Some(sent)
}

/// Parses a value: the number of contained objects as a byte, these objects, and the value's bytes.
fn value(argument: &[u8]) -> Option<(&[u8], Vec<u64>)> {
    let (count, mut rest) = argument.split_first()?;
    let mut contained = Vec::new();
    for _ in 0..*count {
        let (object, behind) = rest.split_first_chunk()?;
        contained.push(u64::from_le_bytes(*object));
        rest = behind;
    }
    Some((rest, contained))
}

const CONTROL_BYTES: usize = 4096;
const RING_BYTES: usize = 512;

/// Feeds operations on both sides of rings, and damage to their memory, to the ring code. Returns whether any frame was
/// passed.
///
/// # Panics
/// When a frame is read that was not written, or is duplicated, reordered or lost, while nothing else writes to the
/// memory; and when a reader finds more frames than the memory can hold, in any case.
pub fn fuzz_rings(bytes: &[u8]) -> bool {
    let Ok(memory) = SharedMemory::new(CONTROL_BYTES + 2 * RING_BYTES) else { return false };
    let memory = Arc::new(memory);
    let ring = |word, at| RingMemory {
        memory: memory.clone(),
        word,
        read: word + 1,
        at: CONTROL_BYTES + at,
        bytes: RING_BYTES,
    };
    let (messages, tasks) = (ring(0, 0), ring(8, RING_BYTES));
    let mut messages = MessageRing {
        sender: Sender::new(messages.clone()),
        receiver: Receiver::new(messages),
        unpublished: Vec::new(),
        published: VecDeque::new(),
    };
    let mut tasks = TaskRing {
        sender: TaskSender::new(tasks.clone()),
        receiver: TaskReceiver::new(tasks),
        frames: VecDeque::new(),
    };
    let (mut bytes, mut number, mut passed, mut is_honest) = (bytes.iter().copied(), 0u32, 0, true);
    while let Some(operation) = bytes.next() {
        let mut frame = || {
            number += 1;
            let length = usize::from(bytes.next().unwrap_or(0));
            number.to_le_bytes().into_iter().cycle().take(length).collect::<Vec<u8>>()
        };
        let passes = match operation % 16 {
            0..=3 => messages.write(frame()),
            4 => messages.publish(),
            5 => messages.take_back(is_honest),
            6 => messages.claim_all(),
            7 | 8 => messages.next(is_honest),
            9..=11 => tasks.send(frame()),
            12 => tasks.take_back(is_honest),
            13 | 14 => tasks.take(is_honest),
            _ => {
                is_honest = false;
                let mut word = || (0..8).fold(0, |word, _| word << 8 | u64::from(bytes.next().unwrap_or(0)));
                let (at, value) = (word(), word());
                match at % 8 {
                    word @ 0..4 => memory.atomic([0, 1, 8, 9][word as usize]).store(value, SeqCst),
                    _ => memory.write(CONTROL_BYTES + (at / 8) as usize % (2 * RING_BYTES - 8), &value.to_le_bytes()),
                }
                Ok(0)
            }
        };
        // A reader that finds invalid memory ends the other side.
        let Ok(passes) = passes else {
            assert!(!is_honest, "frames are misplaced although only honest writers ran");
            return passed > 0;
        };
        passed += passes;
    }
    passed > 0
}

/// A ring whose writer may take its last frame back, and its expected content.
struct MessageRing {
    sender: Sender,
    receiver: Receiver,
    /// Unpublished frames with their positions.
    unpublished: Vec<(u32, Vec<u8>)>,
    published: VecDeque<Vec<u8>>,
}

impl MessageRing {
    fn write(&mut self, frame: Vec<u8>) -> io::Result<usize> {
        if let Some(at) = self.sender.write(&frame) {
            self.unpublished.push((at, frame));
        }
        Ok(0)
    }

    fn publish(&mut self) -> io::Result<usize> {
        self.sender.publish();
        self.published.extend(self.unpublished.drain(..).map(|(_, frame)| frame));
        Ok(0)
    }

    fn claim_all(&mut self) -> io::Result<usize> {
        self.receiver.claim_all();
        self.published.extend(self.unpublished.drain(..).map(|(_, frame)| frame));
        Ok(0)
    }

    fn take_back(&mut self, is_honest: bool) -> io::Result<usize> {
        let Some((at, _)) = self.unpublished.pop() else { return Ok(0) };
        let is_back = self.sender.take_back(at);
        assert!(is_back || !is_honest, "a frame that the reader may not have yet can't be taken back");
        Ok(0)
    }

    fn next(&mut self, is_honest: bool) -> io::Result<usize> {
        read(is_honest, &mut self.published, self.receiver.has_frame(), |frame| self.receiver.next(frame))
    }
}

/// A ring whose writer may take back frames that were not received, and its expected content.
struct TaskRing {
    sender: TaskSender,
    receiver: TaskReceiver,
    frames: VecDeque<Vec<u8>>,
}

impl TaskRing {
    fn send(&mut self, frame: Vec<u8>) -> io::Result<usize> {
        if self.sender.send(&frame).is_some() {
            self.frames.push_back(frame);
        }
        Ok(0)
    }

    fn take_back(&mut self, is_honest: bool) -> io::Result<usize> {
        let before = self.sender.taken();
        assert!(self.sender.take_back() == before || !is_honest, "what was taken is not what was taken before");
        self.frames.clear();
        Ok(0)
    }

    fn take(&mut self, is_honest: bool) -> io::Result<usize> {
        read(is_honest, &mut self.frames, self.receiver.has_frame(), |frame| self.receiver.take(frame))
    }
}

/// Reads a frame and compares it with the first expected one; after damage, reads all frames.
fn read(
    is_honest: bool,
    expected: &mut VecDeque<Vec<u8>>,
    has_some: bool,
    mut next: impl FnMut(&mut Vec<u8>) -> io::Result<bool>,
) -> io::Result<usize> {
    let mut frame = Vec::new();
    if is_honest {
        assert_eq!(has_some, !expected.is_empty());
        let passed = next(&mut frame)?.then_some(frame);
        assert_eq!(passed, expected.pop_front());
        return Ok(usize::from(passed.is_some()));
    }
    let mut passed = 0;
    while next(&mut frame)? {
        passed += 1;
        assert!(passed * 8 <= RING_BYTES && frame.len() <= RING_BYTES, "more than there is room for");
    }
    Ok(passed)
}
