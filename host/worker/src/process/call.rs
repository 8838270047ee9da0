//! One call: a fresh sandbox, the services it gets, and what becomes of it.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_buffer::Buffer;
use sandbar_core::{Code, Fault};
use sandbar_sandbox::{Input, Level, NoServices, Program, Refusal, Services};
use sandbar_store::Scratch;

use super::Binding;
use super::collect::Collectors;
use super::fit;
use super::input::CallInput;
use super::outcome::Outcome;
use crate::protocol::{BatchAt, Call, ToCollect, Work, progress};

pub(super) fn run(
    program: &Program,
    binding: &Binding,
    call: &Call,
    file: Option<OwnedFd>,
    collectors: Collectors,
    progress: &Arc<Scratch>,
    outcome: &mut Outcome,
) -> Result<(), Fault> {
    let job = |groups, predict| fit::Job { groups, predict };
    match &call.work {
        Work::Describe => describe(program, binding, call, outcome),
        Work::Process(payload) => {
            process(program, binding, call, CallInput::open(payload, file)?, &[], progress, outcome)
        }
        Work::Collect(payload, to) => {
            let ToCollect { argument, beside } = &**to;
            outcome.collect(collectors(&binding.plan, *argument)?)?;
            process(program, binding, call, CallInput::open(payload, file)?, beside, progress, outcome)?;
            outcome.collected()
        }
        Work::Fit(payload, groups) => {
            let input = CallInput::open(payload, file)?;
            fit::run(program, binding, call, input, job(groups, false), progress, outcome)
        }
        Work::Predict(payload, groups) => {
            let input = CallInput::open(payload, file)?;
            fit::run(program, binding, call, input, job(groups, true), progress, outcome)
        }
    }
}

fn describe(program: &Program, binding: &Binding, call: &Call, outcome: &mut Outcome) -> Result<(), Fault> {
    let mut instance = program.instantiate(Box::new(NoServices), &binding.limits, call.seed)?;
    let functions = instance.describe()?;
    outcome.used_memory(instance.memory_bytes());
    let bytes = postcard::to_stdvec(&functions).map_err(|e| Fault::new(Code::BadOutput, e.to_string()))?;
    if bytes.len() as u64 > binding.limits.output_bytes_max {
        return Err(Fault::new(Code::OutputLimit, format!("its description takes {} bytes", bytes.len())));
    }
    outcome.bytes(&bytes).map_err(Fault::from)
}

/// Runs a function over the batches of its input, one after another in one sandbox. What it makes of them is put beside
/// the columns `beside`, if there are any.
fn process(
    program: &Program,
    binding: &Binding,
    call: &Call,
    input: CallInput,
    beside: &[BatchAt],
    progress: &Scratch,
    outcome: &mut Outcome,
) -> Result<(), Fault> {
    let both = Arc::new((input, AtomicUsize::new(0)));
    let shared = Arc::new(Mutex::new(std::mem::replace(outcome, Outcome::new(binding.limits, None, None))));
    let services = ProcessServices { input: both.clone(), outcome: shared.clone() };
    let result = (|| {
        let mut instance = program.instantiate(Box::new(services), &binding.limits, call.seed)?;
        let (input, at_hand) = &*both;
        let result = instance.open(binding.function, &binding.params, call.seed).and_then(|()| {
            (0..input.batches()).try_for_each(|batch| {
                at_hand.store(batch, Relaxed);
                progress.atomic(progress::STEPS).fetch_add(1, Relaxed);
                let before = lock(&shared).batches();
                if let Some(at) = beside.get(batch) {
                    let (header, body) = input.beside(at)?;
                    lock(&shared).begin_beside(header, &lent(&both, body))?;
                }
                instance.process(input.header(batch))?;
                lock(&shared).end_beside()?;
                // Of several, the node could not tell for which there is nothing.
                let nothing = input.batches() > 1 && lock(&shared).batches() == before;
                if nothing { Err(Fault::new(Code::BadOutput, "it hands back no batch")) } else { Ok(()) }
            })
        });
        lock(&shared).used_memory(instance.memory_bytes());
        drop(instance.into_services());
        result
    })();
    *outcome = std::mem::replace(&mut *lock(&shared), Outcome::new(binding.limits, None, None));
    result
}

/// Bytes of an input, which stays where it is as long as they are there.
fn lent(input: &Arc<(CallInput, AtomicUsize)>, bytes: &[u8]) -> Buffer {
    // SAFETY: the bytes are the input's, and nobody writes them while the call runs.
    unsafe { Buffer::from_custom_allocation(NonNull::from(bytes).cast(), bytes.len(), input.clone()) }
}

struct ProcessServices {
    /// The input, and its batch at hand.
    input: Arc<(CallInput, AtomicUsize)>,
    outcome: Arc<Mutex<Outcome>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Services for ProcessServices {
    fn input(&self) -> Input<'_> {
        let (input, at_hand) = &*self.input;
        input.body(at_hand.load(Relaxed))
    }

    fn emit(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        lock(&self.outcome).batch(header, buffers)
    }

    fn log(&mut self, level: Level, message: &str) {
        lock(&self.outcome).log(level, message);
    }
}
