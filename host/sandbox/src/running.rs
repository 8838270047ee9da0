//! A call of a program's task, which may wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sandbar_core::{Code, Fault, Limits, TaskId};
use wasmtime::Store;
use wasmtime::component::TypedFunc;

use crate::contract::PROGRAM;
use crate::engine::Program;
use crate::fault::fault;
use crate::interrupt;
use crate::services::Services;
use crate::state::State;

/// What is called.
#[derive(Debug, Clone)]
pub struct TaskCall {
    /// Its function's place among the component's tasks.
    pub function: u32,
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

type Run = TypedFunc<(u32, u64, Box<[u8]>), (Result<(), String>,)>;

impl Program {
    /// Whether it has tasks.
    pub fn has_tasks(&self) -> bool {
        self.exports.tasks.is_some()
    }

    /// Begins a call in a fresh sandbox, which does nothing before it is polled. The program is of an engine
    /// [for programs](crate::Engine::for_programs).
    pub fn run(self: &Arc<Self>, services: Box<dyn Services>, limits: &Limits, call: TaskCall) -> Running {
        let (program, limits) = (self.clone(), *limits);
        let call = Box::pin(async move {
            let mut store = program.store(services, &limits, call.seed);
            let result = program.call(&mut store, call).await;
            let state = store.data_mut();
            state.flush_output();
            let result = result.and_then(|answer| answer.map_err(|message| Fault::new(Code::Refused, message)));
            Ended { result, memory_bytes: state.limiter.memory_bytes }
        });
        Running { call }
    }

    async fn call(&self, store: &mut Store<State>, call: TaskCall) -> Result<Result<(), String>, Fault> {
        let TaskCall { function, seed, arguments, .. } = call;
        let called = async {
            let tasks = self.exports.tasks.as_ref().ok_or_else(|| wasmtime::format_err!("it has no tasks"))?;
            let instance = self.pre.instantiate_async(&mut *store).await?;
            let run: Run = instance
                .get_typed_func(&mut *store, tasks.run)
                .map_err(|error| wasmtime::format_err!("a function of its `{PROGRAM}` has another type: {error:#}"))?;
            let (answer,) = run.call_async(&mut *store, (function, seed, arguments)).await?;
            Ok(answer)
        };
        let answer: wasmtime::Result<_> = called.await;
        answer.map_err(|error| fault(store.data_mut(), error))
    }
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
