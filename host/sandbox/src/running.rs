//! A call of a program's task, which may wait.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sandbar_core::{Code, Fault, JobId, Limits, TaskId};
use wasmtime::Store;
use wasmtime::component::TypedFunc;

use crate::contract::PROGRAM;
use crate::fault::fault;
use crate::interrupt;
use crate::program::Program;
use crate::reuse::IdleSandboxes;
use crate::sandbox::{GuestResult, Run, Sandbox, TaskFunctions};
use crate::services::{ActorStep, Services};
use crate::state::SandboxState;
use crate::task_call::TaskCall;

/// Outcome of a task's execution.
#[derive(Debug)]
pub struct TaskOutcome {
    /// Success, or the fault.
    pub result: Result<(), Fault>,
    /// Peak linear memory of its sandbox, in bytes.
    pub memory_bytes: u64,
    /// GPU time in nanoseconds, of work for which it waited.
    pub gpu_nanos: u64,
    /// Whether its GPU was lost through no fault of its own.
    pub has_lost_gpu: bool,
}

impl TaskOutcome {
    /// Returns an outcome without resource usage.
    pub fn without_usage(result: Result<(), Fault>) -> TaskOutcome {
        TaskOutcome { result, memory_bytes: 0, gpu_nanos: 0, has_lost_gpu: false }
    }
}

/// The execution of a task's call in its own sandbox. Each poll runs it until it waits or finishes. Dropping it ends
/// the call and the sandbox.
pub struct TaskExecution {
    call: Pin<Box<dyn Future<Output = TaskOutcome>>>,
    program: Arc<Program>,
}

type Resume = TypedFunc<(u64,), GuestResult>;
type Abandon = TypedFunc<(u64,), ()>;

impl Program {
    /// Returns whether it has tasks.
    pub fn has_tasks(&self) -> bool {
        self.exports.tasks.is_some()
    }

    /// Starts a call in a fresh sandbox, or in an idle one of the same job, which becomes idle again afterwards.
    /// Nothing runs before the first poll. The program must belong to an engine [for
    /// programs](crate::Engine::for_programs).
    pub fn run(
        self: &Arc<Self>,
        idle: &IdleSandboxes,
        job: JobId,
        services: Box<dyn Services>,
        limits: &Limits,
        call: TaskCall,
    ) -> TaskExecution {
        let (program, idle, limits) = (self.clone(), idle.clone(), *limits);
        TaskExecution::new(self, async move {
            let sandbox = match idle.take(job, &program) {
                Some(mut sandbox) => {
                    sandbox.store.data_mut().serve(services, call.seed);
                    Ok(sandbox)
                }
                None => program.sandbox(services, &limits, call.seed).await,
            };
            let mut sandbox = match sandbox {
                Ok(sandbox) => sandbox,
                Err(fault) => return TaskOutcome::without_usage(Err(fault)),
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

    /// Like [`Program::run`], for a call that creates an actor: the sandbox stays, and executes its [next
    /// steps](Services::poll_next) until one of its calls traps.
    pub fn create_actor(
        self: &Arc<Self>,
        services: Box<dyn Services>,
        limits: &Limits,
        call: TaskCall,
    ) -> TaskExecution {
        let (program, limits) = (self.clone(), *limits);
        TaskExecution::new(self, async move {
            let mut sandbox = match program.sandbox(services, &limits, call.seed).await {
                Ok(sandbox) => sandbox,
                Err(fault) => return TaskOutcome::without_usage(Err(fault)),
            };
            let called = match sandbox.first_call(call).await {
                Ok(Ok(())) => program.stay(&mut sandbox.store, &sandbox.calls).await.map(Ok),
                called => called,
            };
            ended(&mut sandbox.store, called)
        })
    }

    /// Creates a sandbox.
    async fn sandbox(&self, services: Box<dyn Services>, limits: &Limits, seed: u64) -> Result<Sandbox, Fault> {
        let mut store = self.store(services, limits, seed);
        store.call_hook(|_, _| interrupt::check());
        match self.calls(&mut store).await {
            Ok(calls) => Ok(Sandbox::new(store, calls)),
            Err(error) => Err(fault(store.data_mut(), error)),
        }
    }

    async fn calls(&self, store: &mut Store<SandboxState>) -> wasmtime::Result<TaskFunctions> {
        let tasks = self.exports.tasks.as_ref().ok_or_else(|| wasmtime::format_err!("it has no tasks"))?;
        let instance = self.pre.instantiate_async(&mut *store).await?;
        let run: Run = instance.get_typed_func(&mut *store, tasks.run).map_err(of_another_type)?;
        Ok(TaskFunctions { run, instance })
    }

    /// Executes the steps of an actor, one after another.
    async fn stay(&self, store: &mut Store<SandboxState>, calls: &TaskFunctions) -> wasmtime::Result<()> {
        let tasks = self.exports.tasks.as_ref().ok_or_else(|| wasmtime::format_err!("it has no tasks"))?;
        let resume: Resume = calls.instance.get_typed_func(&mut *store, tasks.resume).map_err(of_another_type)?;
        let abandon: Abandon = calls.instance.get_typed_func(&mut *store, tasks.abandon).map_err(of_another_type)?;
        store.data_mut().services.actor_created();
        loop {
            let next = poll_fn(|_| store.data_mut().services.poll_next()).await;
            store.data_mut().limiter.begin();
            let (outcome,) = match next {
                ActorStep::Run(call) => calls.run.call_async(&mut *store, arguments(call)).await?,
                ActorStep::Resume(call) => resume.call_async(&mut *store, (call,)).await?,
                ActorStep::Abandon(call) => {
                    abandon.call_async(&mut *store, (call,)).await?;
                    continue;
                }
            };
            let state = store.data_mut();
            state.flush_output();
            let has_lost_tensors = state.services.has_lost_tensors();
            // A call that failed because of lost tensors is reported by the end of the actor.
            if !has_lost_tensors || outcome.is_ok() {
                let outcome = outcome.map_err(|message| Fault::new(Code::Refused, message));
                state.services.call_returned(outcome, state.limiter.memory_bytes);
            }
            if has_lost_tensors {
                return Err(wasmtime::format_err!("its tensors on the GPU are lost"));
            }
        }
    }
}

impl Sandbox {
    async fn first_call(&mut self, call: TaskCall) -> wasmtime::Result<Result<(), String>> {
        let (outcome,) = self.calls.run.call_async(&mut self.store, arguments(call)).await?;
        Ok(match outcome {
            Ok(false) => Err("it waits, but is not a method of an actor".to_owned()),
            outcome => outcome.map(drop),
        })
    }
}

/// Converts the return of a call to an outcome.
fn ended(store: &mut Store<SandboxState>, called: wasmtime::Result<Result<(), String>>) -> TaskOutcome {
    let result = called.map_err(|error| fault(store.data_mut(), error));
    let state = store.data_mut();
    state.flush_output();
    let result = result.and_then(|outcome| outcome.map_err(|message| Fault::new(Code::Refused, message)));
    let services = &state.services;
    let (gpu_nanos, has_lost_gpu) = (services.gpu_nanos(), services.has_lost_gpu());
    TaskOutcome { result, memory_bytes: state.limiter.memory_bytes, gpu_nanos, has_lost_gpu }
}

fn arguments(call: TaskCall) -> (u32, u64, u64, Box<[u8]>) {
    let TaskCall { function, call, seed, arguments } = call;
    (function, call, seed, arguments)
}

fn of_another_type(error: wasmtime::Error) -> wasmtime::Error {
    wasmtime::format_err!("a function of its `{PROGRAM}` has another type: {error:#}")
}

impl TaskExecution {
    fn new(program: &Arc<Program>, call: impl Future<Output = TaskOutcome> + 'static) -> TaskExecution {
        TaskExecution { call: Box::pin(call), program: program.clone() }
    }

    /// Runs until the call waits ([`Services::poll_wait`]) or finishes, on behalf of `task`: interrupting that task
    /// ends this call.
    pub fn poll(&mut self, task: TaskId) -> Poll<TaskOutcome> {
        let poll = || self.call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let (polled, ended) = interrupt::run_on_behalf_of(task.0, &self.program.functions, poll);
        // The call ended with a trap or a failed import; the interruption is the more specific cause.
        let why = || Fault::new(Code::Cancelled, "it was cancelled while it ran");
        polled.map(|call| if ended { TaskOutcome { result: Err(why()), ..call } } else { call })
    }
}
