//! The worker process of a pool: one thread that answers calls until its socket closes.

mod bound_function;
mod call;
mod collect;
mod dense;
mod fit;
mod input;
mod native;
mod outcome;
mod stored;

pub use collect::{BatchCollector, Collect, CollectBuffer, Collectors, not_a_column};
pub use native::NativeHandlers;
pub(crate) use outcome::{BATCH_PREFIX_BYTES, LOG_SPACE_BYTES, Outcome, shortened};
pub use stored::{StoredReader, StoredReaders, StoredRows};

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use sandbar_core::{Code, Fault};
use sandbar_dense::remote::Broker;
use sandbar_process::socket::FRAME_BYTES_MAX;
use sandbar_process::{ProcessKind, Profile, confine, socket};
use sandbar_sandbox::{Engine, Program};
use sandbar_store::{Mapping, SharedMemory};

use self::bound_function::BoundFunction;
use crate::journal;
use crate::protocol::{Call, CallDelivery, CallReply, FromWorker, MESSAGE_TIME_MAX, Output, ToWorker, progress};

/// The argument with which `host-worker` runs as a worker; standard input is its socket.
pub const WORKER_ARGUMENT: &str = "worker";

/// Approximate maximum bytes of the replies of one message.
const DONE_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;

/// Runs a worker until its node closes the socket. Returns only errors of the set-up and of the socket. The node is
/// trusted.
pub fn run_worker(native: NativeHandlers) -> io::Result<()> {
    confine::start(ProcessKind::Worker)?;
    let stdin = io::stdin();
    let socket = stdin.as_fd();
    let (mut received, mut frame) = (Vec::new(), Vec::new());
    // `None` if the node has already ended.
    let Some((hello, files)) = socket::receive::<ToWorker>(socket, &mut received)? else { return Ok(()) };
    let ToWorker::Hello { limits, slots, slot_bytes } = hello else {
        return Err(io::Error::other("the first message is not a hello"));
    };
    let shared = Shared::open(files, slots, slot_bytes)?;
    // WASI's synchronous calls require a tokio runtime; without this one they would start threads.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _entered = runtime.enter();
    let engine = Engine::new(&limits).map_err(io::Error::other)?;
    let journal = shared.progress.clone();
    std::panic::set_hook(Box::new(move |panic| journal::append(&journal, journal::ERROR, &panic.to_string())));
    confine::confine(&Profile::worker(limits.memory_bytes_max), || Ok(()))?;
    socket::send(socket, socket::frame(&FromWorker::Ready, &mut frame)?, &[])?;
    let (programs, bindings) = (HashMap::new(), HashMap::new());
    let mut worker =
        Worker { engine: &engine, native, broker: shared.broker.clone(), shared, programs, bindings, frame };
    while let Some((message, files)) = socket::receive(socket, &mut received)? {
        worker.handle(socket, message, files)?;
    }
    Ok(())
}

/// Memory shared with the node.
struct Shared {
    progress: Arc<SharedMemory>,
    slots: Vec<Arc<SharedMemory>>,
    /// Connection to the node's GPU broker.
    broker: Broker,
}

impl Shared {
    fn open(files: Vec<OwnedFd>, slots: u32, slot_bytes: u64) -> io::Result<Shared> {
        let mut files = files.into_iter();
        let mut next = |bytes| {
            SharedMemory::open(
                files.next().ok_or_else(|| io::Error::other("a file of shared memory is missing"))?,
                bytes,
            )
        };
        let progress = Arc::new(next(journal::BYTES)?);
        let slots = (0..slots).map(|_| next(slot_bytes as usize).map(Arc::new)).collect::<io::Result<_>>()?;
        Ok(Shared { progress, slots, broker: Broker::new(files.next()) })
    }
}

struct Worker<'e> {
    engine: &'e Engine,
    native: NativeHandlers,
    shared: Shared,
    programs: HashMap<u32, Result<Program, Fault>>,
    bindings: HashMap<u32, BoundFunction>,
    broker: Broker,
    /// Buffer of the last sent message.
    frame: Vec<u8>,
}

impl Worker<'_> {
    fn handle(&mut self, socket: BorrowedFd<'_>, message: ToWorker, files: Vec<OwnedFd>) -> io::Result<()> {
        match message {
            ToWorker::Hello { .. } => Err(io::Error::other("a second hello")),
            ToWorker::Program { program, code_bytes, image_end } => {
                let loaded = files
                    .first()
                    .ok_or_else(|| io::Error::other("a program without its code"))
                    .and_then(|file| Mapping::sealed(file.as_fd(), code_bytes));
                let loaded = match loaded {
                    // SAFETY: the node sends code that this build compiled (see `compiler`), in a sealed file.
                    Ok(code) => unsafe { self.engine.load_in_place(code, image_end) },
                    Err(e) => Err(Fault::new(Code::Host, format!("its code can't be read: {e}"))),
                };
                self.programs.insert(program, loaded);
                Ok(())
            }
            ToWorker::Binding { binding, program, function, params, limits, plan, device } => {
                let function = BoundFunction { program, function, params, limits, plan, device };
                self.bindings.insert(binding, function);
                Ok(())
            }
            ToWorker::Calls { slot, first, calls } => {
                let mut file = files.into_iter().next();
                let mut done = Vec::with_capacity(calls.len());
                let (mut bytes, mut nanos) = (0, 0);
                for (call, id) in calls.into_iter().zip(first..) {
                    let one = self.run(id, &call, slot, file.take());
                    bytes += one.inline_bytes();
                    nanos += u128::from(one.nanos);
                    let slot_is_taken = one.delivered.as_ref().is_some_and(|d| matches!(d.output, Output::Slot(_)));
                    done.push(one);
                    if slot_is_taken || bytes > DONE_BYTES_MAX || nanos > MESSAGE_TIME_MAX.as_nanos() {
                        break;
                    }
                }
                let done = FromWorker::Replies { slot, done };
                socket::send(socket, socket::frame(&done, &mut self.frame)?, &[])
            }
        }
    }

    fn run(&self, id: u64, call: &Call, slot: u32, file: Option<OwnedFd>) -> CallReply {
        let steps = self.shared.progress.atomic(progress::STEPS);
        self.shared.progress.atomic(progress::CALL).store(id, Relaxed);
        self.shared.progress.atomic(progress::GROUP).store(progress::NO_GROUP, Relaxed);
        journal::clear(&self.shared.progress);
        steps.fetch_add(1, Relaxed);
        let start = Instant::now();
        let done = self.program(call).map(|(program, binding)| {
            let slot = self.shared.slots.get(slot as usize).cloned();
            let mut outcome = Outcome::new(binding.limits, slot, Some(self.shared.progress.clone()));
            let progress = &self.shared.progress;
            let environment = call::CallEnvironment { native: self.native, broker: &self.broker, progress };
            let result = call::run(program, binding, call, file, environment, &mut outcome);
            let memory_bytes = outcome.memory_bytes();
            let delivered = outcome.deliver(result);
            CallReply { delivered, memory_bytes, nanos: start.elapsed().as_nanos() as u64 }
        });
        done.unwrap_or_else(|fault| {
            let delivered = CallDelivery::empty(Err(fault));
            CallReply { delivered: Some(delivered.into()), memory_bytes: 0, nanos: 0 }
        })
    }

    fn program(&self, call: &Call) -> Result<(&Program, &BoundFunction), Fault> {
        let unknown = || Fault::new(Code::Host, "the call names a program that was not sent");
        let binding = self.bindings.get(&call.binding).ok_or_else(unknown)?;
        match self.programs.get(&binding.program).ok_or_else(unknown)? {
            Ok(program) => Ok((program, binding)),
            Err(fault) => Err(fault.clone()),
        }
    }
}

impl CallReply {
    /// Returns the approximate bytes of the reply in a message.
    fn inline_bytes(&self) -> usize {
        64 + self.delivered.as_ref().map_or(0, |delivered| {
            let output = match &delivered.output {
                Output::Inline(bytes) => bytes.len(),
                Output::Slot(_) => 0,
            };
            output + delivered.result.as_ref().err().map_or(0, |fault| fault.message.len())
        })
    }
}
