//! One call: a fresh sandbox, the services it gets, and what becomes of it.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatch;
use sandbar_core::{Code, Fault};
use sandbar_dense::Session;
use sandbar_dense::remote::Broker;
use sandbar_sandbox::{Input, Level, NoServices, Program, Refusal, Services};
use sandbar_store::SharedMemory;

use super::fit;
use super::input::CallInput;
use super::outcome::Outcome;
use super::stored::{self, StoredBody, StoredReader, StoredRows};
use super::{Binding, Dense, NativeHandlers};
use crate::batches::BatchReader;
use crate::protocol::{BatchLocation, Call, Payload, CollectSpec, CallWork, progress};

pub(super) fn run(
    program: &Program,
    binding: &Binding,
    call: &Call,
    file: Option<OwnedFd>,
    (native, broker): (NativeHandlers, &Broker),
    progress: &Arc<SharedMemory>,
    outcome: &mut Outcome,
) -> Result<(), Fault> {
    let job = |groups, predict| fit::GroupCall { groups, predict, broker };
    match &call.work {
        CallWork::Describe => describe(program, binding, call, outcome),
        CallWork::Process(payload) => {
            let input = InputBatches::open(payload, file, Vec::new(), native)?;
            process(program, binding, call, (input, broker), progress, outcome)
        }
        CallWork::Collect(payload, to) => {
            let CollectSpec { argument, beside } = &**to;
            outcome.collect((native.collectors)(&binding.plan, *argument)?)?;
            let input = InputBatches::open(payload, file, beside.clone(), native)?;
            process(program, binding, call, (input, broker), progress, outcome)?;
            outcome.collected()
        }
        CallWork::Fit(payload, groups) => {
            let input = CallInput::open(payload, file)?;
            fit::run(program, binding, call, input, job(groups, false), progress, outcome)
        }
        CallWork::Predict(payload, groups) => {
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

/// The batches of a call's input.
enum InputBatches {
    /// Laid out by the node, and the columns that stand beside each, if there are any.
    Laid(Arc<CallInput>, Vec<BatchLocation>),
    /// To be read here, and the body of the one that was read last.
    Stored(StoredReader, StoredBody),
}

/// The body of the batch at hand.
enum Body {
    Laid(Arc<CallInput>),
    Stored(StoredBody),
}

impl InputBatches {
    fn open(
        payload: &Payload<u64>,
        file: Option<OwnedFd>,
        beside: Vec<BatchLocation>,
        native: NativeHandlers,
    ) -> Result<Batches, Fault> {
        match payload {
            Payload::Stored { how, .. } => {
                let file = file.ok_or_else(|| Fault::new(Code::Host, "the file of a stored input is missing"))?;
                Ok(InputBatches::Stored((native.readers)(how, file.into())?, StoredBody::default()))
            }
            _ => Ok(InputBatches::Laid(Arc::new(CallInput::open(payload, file)?), beside)),
        }
    }

    fn body(&self) -> Body {
        match self {
            InputBatches::Laid(input, _) => Body::Laid(input.clone()),
            InputBatches::Stored(_, body) => Body::Stored(body.clone()),
        }
    }

    /// Has `run` run each, with its header and the columns that stand beside it, while its body is the one at hand: a
    /// step of the call, with reading the next. Gives how many rows were read here.
    fn each(
        self,
        progress: &SharedMemory,
        mut run: impl FnMut(&[u8], Option<RecordBatch>) -> Result<(), Fault>,
    ) -> Result<u64, Fault> {
        let begin_step = || progress.atomic(progress::STEPS).fetch_add(1, Relaxed);
        match self {
            InputBatches::Laid(input, beside) => {
                let mut reader = BatchReader::default();
                for batch in 0..input.batches() {
                    begin_step();
                    let beside = beside.get(batch).map(|at| input.beside(at, &mut reader)).transpose()?;
                    run(input.show(batch), beside)?;
                }
                Ok(0)
            }
            InputBatches::Stored(mut reader, body) => reader.try_fold(0, |read, rows| {
                let StoredRows { batch, beside } = rows?;
                begin_step();
                if batch.num_rows() == 0 {
                    return Ok(read);
                }
                let encoded = stored::encode(&batch)?;
                body.lay(&encoded);
                run(&encoded.header, beside)?;
                Ok(read + batch.num_rows() as u64)
            }),
        }
    }
}

/// Runs a function over the batches of its input, one after another in one sandbox.
fn process(
    program: &Program,
    binding: &Binding,
    call: &Call,
    (batches, broker): (InputBatches, &Broker),
    progress: &SharedMemory,
    outcome: &mut Outcome,
) -> Result<(), Fault> {
    // Where the node could not tell for which batch there is nothing, there has to be something for each.
    let for_each = !matches!(&call.work, CallWork::Process(payload) if payload.batches() == 1);
    let shared = Arc::new(Mutex::new(std::mem::replace(outcome, Outcome::new(binding.limits, None, None))));
    let dense = Dense::new(broker, binding);
    let services = ProcessServices { body: batches.body(), outcome: shared.clone(), dense };
    let result = (|| {
        let mut instance = program.instantiate(Box::new(services), &binding.limits, call.seed)?;
        let result = instance.open(binding.function, &binding.params, call.seed).and_then(|()| {
            batches.each(progress, |header, beside| {
                let before = lock(&shared).batches();
                if let Some(beside) = beside {
                    lock(&shared).begin_beside(beside);
                }
                instance.process(header)?;
                lock(&shared).end_beside()?;
                let nothing = for_each && lock(&shared).batches() == before;
                if nothing { Err(Fault::new(Code::BadOutput, "it hands back no batch")) } else { Ok(()) }
            })
        });
        lock(&shared).used_memory(instance.memory_bytes());
        drop(instance.into_services());
        result
    })();
    *outcome = std::mem::replace(&mut *lock(&shared), Outcome::new(binding.limits, None, None));
    outcome.read(result?);
    Ok(())
}

struct ProcessServices {
    body: Body,
    outcome: Arc<Mutex<Outcome>>,
    dense: Dense,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Services for ProcessServices {
    fn input(&self) -> Input<'_> {
        match &self.body {
            Body::Laid(input) => input.shown(),
            Body::Stored(body) => body.shown(),
        }
    }

    fn dense(&mut self) -> Option<&mut Session> {
        Some(self.dense.session())
    }

    fn emit(&mut self, header: &[u8], buffers: &[&[u8]]) -> Result<(), Refusal> {
        lock(&self.outcome).batch(header, buffers)
    }

    fn log(&mut self, level: Level, message: &str) {
        lock(&self.outcome).log(level, message);
    }
}
