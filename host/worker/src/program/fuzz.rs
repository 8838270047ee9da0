//! What a guest, or a process that one has taken over, may do to others, as bytes that may be any: for tests.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use sandbar_core::{Code, Fault, IdAllocator, TaskKind, WorkerId};
use sandbar_sandbox::Services;
use sandbar_store::SharedMemory;

use super::ring::{Receiver, RingMemory, Sender, TaskReceiver, TaskSender};
use super::runtime::{AttemptReport, TaskContext, TaskServices, WorkerRuntime, lock};
use super::worker::{Doorbell, MEMORY_BYTES, rings};

/// What a task asks for: which of its imports as a byte, and what it hands over. Gives what its worker says to the node for
/// that, each an [`super::WorkerMessage`]; none where the task is refused, or there is no memory. It is the first attempt of a task of
/// a job, on the worker of a number, and the program has tasks of these kinds.
pub fn fuzz_task_request(
    (worker, job, task): (WorkerId, u32, u64),
    kinds: &[TaskKind],
    bytes: &[u8],
) -> Option<Vec<Vec<u8>>> {
    let (which, handed) = bytes.split_first()?;
    let memory = Arc::new(SharedMemory::new(MEMORY_BYTES).ok()?);
    let mut heard = Receiver::new(rings(&memory).0);
    let mut runtime = WorkerRuntime::new(memory, Doorbell::new().ok()?, IdAllocator::of(worker), 1, true);
    runtime.insert_task(0, TaskContext::new(task, 0, job, 0, kinds.into(), Vec::new(), None));
    let runtime = Arc::new(Mutex::new(runtime));
    let mut services = TaskServices {
        runtime: runtime.clone(),
        slot: 0,
        at_hand: None,
        is_held: false,
        broker: None,
        job: 0,
        tensor_bytes_max: 0,
        dense: None,
        gpu_nanos_told: 0,
    };
    let mut ended = None;
    match which % 6 {
        0 => {
            let (function, handed) = handed.split_first()?;
            let (returns, request) = handed.split_first_chunk()?;
            services.submit((*function).into(), u32::from_le_bytes(*returns), request).ok()?;
        }
        1 => drop(services.group(handed).ok()?),
        2 => drop(services.find(&String::from_utf8_lossy(handed)).ok()?),
        3 => {
            let (value, contained) = value(handed)?;
            services.put(&[value], &contained).ok()?;
        }
        4 => {
            let (value, contained) = value(handed)?;
            services.returned(&[value], &contained).ok()?;
            ended = Some(Ok(()));
        }
        _ => {
            services.fails_with(handed).ok()?;
            ended = Some(Err(Fault::new(Code::Refused, "it fails with what another has failed with")));
        }
    }
    let mut runtime = lock(&runtime);
    if let (Some(result), Some(own)) = (ended, runtime.remove_task(0)) {
        runtime.finish(own, result, AttemptReport::default());
    }
    runtime.publish();
    let (mut said, mut frame) = (Vec::new(), Vec::new());
    while heard.next(&mut frame).ok()? {
        said.push(frame.clone());
    }
    Some(said)
}

/// How many objects a value contains as a byte, these, and its bytes.
fn value(handed: &[u8]) -> Option<(&[u8], Vec<u64>)> {
    let (count, mut rest) = handed.split_first()?;
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

/// What the two sides of rings do, and what else is done to their memory, as bytes. Says whether frames were passed.
///
/// # Panics
/// When a frame comes out that did not go in, or a second time, or in another order, or not at all, while nobody else
/// writes to the memory; and when a reader finds more there than there is room for, whoever does.
pub fn fuzz_rings(bytes: &[u8]) -> bool {
    let Ok(memory) = SharedMemory::new(CONTROL_BYTES + 2 * RING_BYTES) else { return false };
    let memory = Arc::new(memory);
    let place = |word, at| RingMemory {
        memory: memory.clone(),
        word,
        read: word + 1,
        at: CONTROL_BYTES + at,
        bytes: RING_BYTES,
    };
    let (told, given) = (place(0, 0), place(8, RING_BYTES));
    let mut told = Told {
        sender: Sender::new(told.clone()),
        receiver: Receiver::new(told),
        unpublished: Vec::new(),
        published: VecDeque::new(),
    };
    let mut given =
        Given { giver: TaskSender::new(given.clone()), taker: TaskReceiver::new(given), frames: VecDeque::new() };
    let (mut bytes, mut number, mut passed, mut is_honest) = (bytes.iter().copied(), 0u32, 0, true);
    while let Some(what) = bytes.next() {
        let mut frame = || {
            number += 1;
            let length = usize::from(bytes.next().unwrap_or(0));
            number.to_le_bytes().into_iter().cycle().take(length).collect::<Vec<u8>>()
        };
        let passes = match what % 16 {
            0..=3 => told.write(frame()),
            4 => told.publish(),
            5 => told.take_back(is_honest),
            6 => told.claim_all(),
            7 | 8 => told.next(is_honest),
            9..=11 => given.give(frame()),
            12 => given.take_back(is_honest),
            13 | 14 => given.take(is_honest),
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
        // Who reads what makes no sense ends the other.
        let Ok(passes) = passes else {
            assert!(!is_honest, "frames are not where they should be, and nobody else was there");
            return passed > 0;
        };
        passed += passes;
    }
    passed > 0
}

/// A ring whose writer may take its last frames back, and what should be in it.
struct Told {
    sender: Sender,
    receiver: Receiver,
    /// With where they stand.
    unpublished: Vec<(u32, Vec<u8>)>,
    published: VecDeque<Vec<u8>>,
}

impl Told {
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

/// A ring whose writer may take back what was not taken, and what should be in it.
struct Given {
    giver: TaskSender,
    taker: TaskReceiver,
    frames: VecDeque<Vec<u8>>,
}

impl Given {
    fn give(&mut self, frame: Vec<u8>) -> io::Result<usize> {
        if self.giver.give(&frame).is_some() {
            self.frames.push_back(frame);
        }
        Ok(0)
    }

    fn take_back(&mut self, is_honest: bool) -> io::Result<usize> {
        let before = self.giver.taken();
        assert!(self.giver.take_back() == before || !is_honest, "what was taken is not what was taken before");
        self.frames.clear();
        Ok(0)
    }

    fn take(&mut self, is_honest: bool) -> io::Result<usize> {
        read(is_honest, &mut self.frames, self.taker.has_frame(), |frame| self.taker.take(frame))
    }
}

/// Reads a frame, which should be the first of these; and all of them where somebody else has written to the memory.
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
