//! A call of a program's task, which may wait.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sandbar_core::{Code, Fault, JobId, Limits, TaskId};
use wasmtime::Store;
use wasmtime::component::{Instance, TypedFunc};

use crate::contract::PROGRAM;
use crate::engine::Program;
use crate::fault::fault;
use crate::interrupt;
use crate::reuse::{IdleSandboxes, Sandbox};
use crate::services::{Next, Services};
use crate::state::State;

/// What is called.
#[derive(Debug, Clone)]
pub struct TaskCall {
    /// Its function's place among the component's tasks.
    pub function: u32,
    /// Its number, by which an actor knows it.
    pub call: u64,
    /// Its randomness is a function of it.
    pub seed: u64,
    /// Its arguments: a list of [`sandbar_core::Argument`], in postcard.
    pub arguments: Box<[u8]>,
}

/// What came of a call.
#[derive(Debug)]
pub struct Ended {
    /// Whether it went well.
    pub result: Result<(), Fault>,
    /// Most linear memory its sandbox had, in bytes.
    pub memory_bytes: u64,
    /// For how many nanoseconds GPUs worked for it, as far as it waited for them.
    pub gpu_nanos: u64,
    /// Whether its GPU was lost, for a reason that is not its own.
    pub has_lost_gpu: bool,
}

impl Ended {
    /// It was ended before it took anything that is known.
    pub fn without_cost(result: Result<(), Fault>) -> Ended {
        Ended { result, memory_bytes: 0, gpu_nanos: 0, has_lost_gpu: false }
    }
}

/// A task's call in a sandbox of its own. It goes on when it is polled, until it waits or has ended. Dropping it ends it,
/// and the sandbox.
pub struct Running {
    call: Pin<Box<dyn Future<Output = Ended>>>,
}

type Answer = (Result<bool, String>,);
type Run = TypedFunc<(u32, u64, u64, Box<[u8]>), Answer>;
type Resume = TypedFunc<(u64,), Answer>;
type Abandon = TypedFunc<(u64,), ()>;

/// What a program exports, of one instance of it.
pub(crate) struct Calls {
    run: Run,
    instance: Instance,
}

impl Program {
    /// Whether it has tasks.
    pub fn has_tasks(&self) -> bool {
        self.exports.tasks.is_some()
    }

    /// Begins a call in a fresh sandbox, which does nothing before it is polled: an idle one of the same job,
    /// if there is one, which then is idle again. The program is of an engine [for programs](crate::Engine::for_programs).
    pub fn run(
        self: &Arc<Self>,
        (idle, job): (&IdleSandboxes, JobId),
        services: Box<dyn Services>,
        limits: &Limits,
        call: TaskCall,
    ) -> Running {
        let (program, idle, limits) = (self.clone(), idle.clone(), *limits);
        Running::of(async move {
            let sandbox = match idle.take(job, &program) {
                Some(mut sandbox) => {
                    sandbox.store.data_mut().serve(services, call.seed);
                    Ok(sandbox)
                }
                None => program.sandbox(services, &limits, call.seed).await,
            };
            let mut sandbox = match sandbox {
                Ok(sandbox) => sandbox,
                Err(fault) => return Ended::without_cost(Err(fault)),
            };
            let called = sandbox.first_call(call).await;
            let ended_well = called.is_ok();
            let ended = ended(&mut sandbox.store, called);
            if ended_well {
                idle.keep(job, &program, sandbox);
            }
            ended
        })
    }

    /// As [`Program::run`], of a call that makes an actor: the sandbox stays, and does what it is
    /// [to do next](Services::poll_next), until one of its calls traps.
    pub fn make(self: &Arc<Self>, services: Box<dyn Services>, limits: &Limits, call: TaskCall) -> Running {
        let (program, limits) = (self.clone(), *limits);
        Running::of(async move {
            let mut sandbox = match program.sandbox(services, &limits, call.seed).await {
                Ok(sandbox) => sandbox,
                Err(fault) => return Ended::without_cost(Err(fault)),
            };
            let called = match sandbox.first_call(call).await {
                Ok(Ok(())) => program.stay(&mut sandbox.store, &sandbox.calls).await.map(Ok),
                called => called,
            };
            ended(&mut sandbox.store, called)
        })
    }

    /// A new sandbox.
    async fn sandbox(&self, services: Box<dyn Services>, limits: &Limits, seed: u64) -> Result<Sandbox, Fault> {
        let mut store = self.store(services, limits, seed);
        match self.calls(&mut store).await {
            Ok(calls) => Ok(Sandbox::new(store, calls)),
            Err(error) => Err(fault(store.data_mut(), error)),
        }
    }

    async fn calls(&self, store: &mut Store<State>) -> wasmtime::Result<Calls> {
        let tasks = self.exports.tasks.as_ref().ok_or_else(|| wasmtime::format_err!("it has no tasks"))?;
        let instance = self.pre.instantiate_async(&mut *store).await?;
        let run: Run = instance.get_typed_func(&mut *store, tasks.run).map_err(of_another_type)?;
        Ok(Calls { run, instance })
    }

    /// An actor does what it is to do, one thing after another.
    async fn stay(&self, store: &mut Store<State>, calls: &Calls) -> wasmtime::Result<()> {
        let tasks = self.exports.tasks.as_ref().ok_or_else(|| wasmtime::format_err!("it has no tasks"))?;
        let resume: Resume = calls.instance.get_typed_func(&mut *store, tasks.resume).map_err(of_another_type)?;
        let abandon: Abandon = calls.instance.get_typed_func(&mut *store, tasks.abandon).map_err(of_another_type)?;
        store.data_mut().services.made();
        loop {
            let next = poll_fn(|_| store.data_mut().services.poll_next()).await;
            store.data_mut().limiter.begin();
            let (answer,) = match next {
                Next::Run(call) => calls.run.call_async(&mut *store, arguments(call)).await?,
                Next::Resume(call) => resume.call_async(&mut *store, (call,)).await?,
                Next::Abandon(call) => {
                    abandon.call_async(&mut *store, (call,)).await?;
                    continue;
                }
            };
            let state = store.data_mut();
            state.flush_output();
            let has_lost_tensors = state.services.has_lost_tensors();
            // A call that failed by that fails as the actor's end has it.
            if !has_lost_tensors || answer.is_ok() {
                let answer = answer.map_err(|message| Fault::new(Code::Refused, message));
                state.services.answered(answer, state.limiter.memory_bytes);
            }
            if has_lost_tensors {
                return Err(wasmtime::format_err!("what it had on its GPU is lost"));
            }
        }
    }
}

impl Sandbox {
    async fn first_call(&mut self, call: TaskCall) -> wasmtime::Result<Result<(), String>> {
        let (answer,) = self.calls.run.call_async(&mut self.store, arguments(call)).await?;
        Ok(match answer {
            Ok(false) => Err("it waits, and is no method of an actor".to_owned()),
            answer => answer.map(drop),
        })
    }
}

/// What came of a call.
fn ended(store: &mut Store<State>, called: wasmtime::Result<Result<(), String>>) -> Ended {
    let result = called.map_err(|error| fault(store.data_mut(), error));
    let state = store.data_mut();
    state.flush_output();
    let result = result.and_then(|answer| answer.map_err(|message| Fault::new(Code::Refused, message)));
    let services = &state.services;
    let (gpu_nanos, has_lost_gpu) = (services.gpu_nanos(), services.has_lost_gpu());
    Ended { result, memory_bytes: state.limiter.memory_bytes, gpu_nanos, has_lost_gpu }
}

fn arguments(call: TaskCall) -> (u32, u64, u64, Box<[u8]>) {
    let TaskCall { function, call, seed, arguments } = call;
    (function, call, seed, arguments)
}

fn of_another_type(error: wasmtime::Error) -> wasmtime::Error {
    wasmtime::format_err!("a function of its `{PROGRAM}` has another type: {error:#}")
}

impl Running {
    fn of(call: impl Future<Output = Ended> + 'static) -> Running {
        Running { call: Box::pin(call) }
    }

    /// Goes on until the call waits for something ([`Services::poll_wait`]) or has ended, on behalf of a task: who wants that
    /// ended ends this.
    pub fn poll(&mut self, task: TaskId) -> Poll<Ended> {
        let poll = || self.call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let (polled, ended) = interrupt::on_behalf_of(task.0, poll);
        // It ended with a trap; that it was to end says more.
        let why = || Fault::new(Code::Cancelled, "it was ended while it ran");
        polled.map(|call| if ended { Ended { result: Err(why()), ..call } } else { call })
    }
}
