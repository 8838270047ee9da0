//! A call of a program's task, which may wait.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sandbar_core::{Code, Fault, Limits, TaskId};
use wasmtime::Store;
use wasmtime::component::{Instance, TypedFunc};

use crate::contract::PROGRAM;
use crate::engine::Program;
use crate::fault::fault;
use crate::interrupt;
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
}

/// A task's call in a sandbox of its own. It goes on when it is polled, until it waits or has ended. Dropping it ends it,
/// and resets the sandbox for the next.
pub struct Running {
    call: Pin<Box<dyn Future<Output = Ended>>>,
}

type Answer = (Result<bool, String>,);
type Run = TypedFunc<(u32, u64, u64, Box<[u8]>), Answer>;
type Resume = TypedFunc<(u64,), Answer>;
type Abandon = TypedFunc<(u64,), ()>;

/// What a program exports, of one instance of it.
struct Calls {
    run: Run,
    instance: Instance,
}

impl Program {
    /// Whether it has tasks.
    pub fn has_tasks(&self) -> bool {
        self.exports.tasks.is_some()
    }

    /// Begins a call in a fresh sandbox, which does nothing before it is polled. The program is of an engine
    /// [for programs](crate::Engine::for_programs).
    pub fn run(self: &Arc<Self>, services: Box<dyn Services>, limits: &Limits, call: TaskCall) -> Running {
        self.begin(services, limits, call, false)
    }

    /// As [`Program::run`], of a call that makes an actor: the sandbox stays, and does what it is
    /// [to do next](Services::poll_next), until one of its calls traps.
    pub fn make(self: &Arc<Self>, services: Box<dyn Services>, limits: &Limits, call: TaskCall) -> Running {
        self.begin(services, limits, call, true)
    }

    fn begin(self: &Arc<Self>, services: Box<dyn Services>, limits: &Limits, call: TaskCall, stays: bool) -> Running {
        let (program, limits) = (self.clone(), *limits);
        let call = Box::pin(async move {
            let mut store = program.store(services, &limits, call.seed);
            let called = match program.first_call(&mut store, call).await {
                Ok((_, Err(message))) => Ok(Err(message)),
                Ok((calls, Ok(()))) if stays => program.stay(&mut store, &calls).await.map(Ok),
                called => called.map(|(_, answer)| answer),
            };
            let result = called.map_err(|error| fault(store.data_mut(), error));
            let state = store.data_mut();
            state.flush_output();
            let result = result.and_then(|answer| answer.map_err(|message| Fault::new(Code::Refused, message)));
            Ended { result, memory_bytes: state.limiter.memory_bytes }
        });
        Running { call }
    }

    async fn first_call(
        &self,
        store: &mut Store<State>,
        call: TaskCall,
    ) -> wasmtime::Result<(Calls, Result<(), String>)> {
        let tasks = self.exports.tasks.as_ref().ok_or_else(|| wasmtime::format_err!("it has no tasks"))?;
        let instance = self.pre.instantiate_async(&mut *store).await?;
        let run: Run = instance.get_typed_func(&mut *store, tasks.run).map_err(of_another_type)?;
        let (answer,) = run.call_async(&mut *store, arguments(call)).await?;
        let answer = match answer {
            Ok(false) => Err("it waits, and is no method of an actor".to_owned()),
            answer => answer.map(|_| ()),
        };
        Ok((Calls { run, instance }, answer))
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
            let answer = answer.map_err(|message| Fault::new(Code::Refused, message));
            state.services.answered(answer, state.limiter.memory_bytes);
        }
    }
}

fn arguments(call: TaskCall) -> (u32, u64, u64, Box<[u8]>) {
    let TaskCall { function, call, seed, arguments } = call;
    (function, call, seed, arguments)
}

fn of_another_type(error: wasmtime::Error) -> wasmtime::Error {
    wasmtime::format_err!("a function of its `{PROGRAM}` has another type: {error:#}")
}

impl Running {
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
