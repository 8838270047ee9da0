//! Runs one call in a fresh sandbox, with the services that it needs.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use sandbar_core::{Code, Fault};
use sandbar_dense::Session;
use sandbar_dense::remote::Broker;
use sandbar_sandbox::{Input, Level, NoServices, Program, Refusal, Services};
use sandbar_store::SharedMemory;

use super::bound_function::BoundFunction;
use super::dense::Dense;
use super::fit;
use super::input::CallInput;
use super::native::NativeHandlers;
use super::outcome::Outcome;
use super::stored::{self, StoredBody, StoredReader, StoredRows};
use crate::batches::BatchReader;
use crate::mutex::lock;
use crate::protocol::{BatchLocation, Call, CallWork, CollectSpec, Payload, progress};

/// The parts of the process that calls use.
#[derive(Clone, Copy)]
pub(super) struct CallEnvironment<'a> {
    pub native: NativeHandlers,
    pub broker: &'a Broker,
    pub progress: &'a Arc<SharedMemory>,
}

pub(super) fn run(
    program: &Program,
    binding: &BoundFunction,
    call: &Call,
    file: Option<OwnedFd>,
    environment: CallEnvironment<'_>,
    outcome: &mut Outcome,
) -> Result<(), Fault> {
    let CallEnvironment { native, broker, progress } = environment;
    let job = |groups, predict| fit::GroupCall { groups, predict, broker };
    match &call.work {
        CallWork::Describe => describe(program, binding, call, outcome),
        CallWork::Process(payload) => {
            let input = InputBatches::open(payload, file, Vec::new(), native)?;
            process(program, binding, call, input, environment, outcome)
        }
        CallWork::Collect(payload, to) => {
            let CollectSpec { argument, beside } = &**to;
            outcome.collect((native.collectors)(&binding.plan, *argument)?)?;
            let input = InputBatches::open(payload, file, beside.clone(), native)?;
            process(program, binding, call, input, environment, outcome)?;
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

fn describe(program: &Program, binding: &BoundFunction, call: &Call, outcome: &mut Outcome) -> Result<(), Fault> {
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
    /// Batches laid out by the node, and their companion columns, if there are any.
    Encoded(Arc<CallInput>, Vec<BatchLocation>),
    /// Batches that this process reads, and the body of the last one.
    Stored(StoredReader, StoredBody),
}

/// The body of the current batch.
enum Body {
    Encoded(Arc<CallInput>),
    Stored(StoredBody),
}

impl InputBatches {
    fn open(
        payload: &Payload<u64>,
        file: Option<OwnedFd>,
        beside: Vec<BatchLocation>,
        native: NativeHandlers,
    ) -> Result<InputBatches, Fault> {
        match payload {
            Payload::Stored { spec, .. } => {
                let file = file.ok_or_else(|| Fault::new(Code::Host, "the file of a stored input is missing"))?;
                Ok(InputBatches::Stored((native.readers)(spec, file.into())?, StoredBody::default()))
            }
            _ => Ok(InputBatches::Encoded(Arc::new(CallInput::open(payload, file)?), beside)),
        }
    }

    fn body(&self) -> Body {
        match self {
            InputBatches::Encoded(input, _) => Body::Encoded(input.clone()),
            InputBatches::Stored(_, body) => Body::Stored(body.clone()),
        }
    }

    /// Runs `run` on each batch, with its header and its companion columns, while its body is the current one. Each
    /// batch is a step of the call, including reading the next. Returns the number of rows read by this process.
    fn each(
        self,
        progress: &SharedMemory,
        mut run: impl FnMut(&[u8], Option<RecordBatch>) -> Result<(), Fault>,
    ) -> Result<u64, Fault> {
        let begin_step = || progress.atomic(progress::STEPS).fetch_add(1, Relaxed);
        match self {
            InputBatches::Encoded(input, beside) => {
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
                body.set(&encoded);
                run(&encoded.header, beside)?;
                Ok(read + batch.num_rows() as u64)
            }),
        }
    }
}

/// Runs a function over the batches of its input, one after another in one sandbox.
fn process(
    program: &Program,
    binding: &BoundFunction,
    call: &Call,
    batches: InputBatches,
    environment: CallEnvironment<'_>,
    outcome: &mut Outcome,
) -> Result<(), Fault> {
    // With several batches the node cannot tell which of them has no output, so each must have some.
    let for_each = !matches!(&call.work, CallWork::Process(payload) if payload.batches() == 1);
    let shared = Arc::new(Mutex::new(std::mem::replace(outcome, Outcome::new(binding.limits, None, None))));
    let dense = Dense::new(environment.broker, binding);
    let services = ProcessServices { body: batches.body(), outcome: shared.clone(), dense };
    let result = (|| {
        let mut instance = program.instantiate(Box::new(services), &binding.limits, call.seed)?;
        let result = instance.open(binding.function, &binding.params, call.seed).and_then(|()| {
            batches.each(environment.progress, |header, beside| {
                let before = lock(&shared).batches();
                if let Some(beside) = beside {
                    lock(&shared).begin_beside(beside);
                }
                instance.process(header)?;
                lock(&shared).end_beside()?;
                let nothing = for_each && lock(&shared).batches() == before;
                if nothing { Err(Fault::new(Code::BadOutput, "it returned no batch")) } else { Ok(()) }
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

impl Services for ProcessServices {
    fn input(&self) -> Input<'_> {
        match &self.body {
            Body::Encoded(input) => input.shown(),
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
