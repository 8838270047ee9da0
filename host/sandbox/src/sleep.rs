//! Sleeping.
//!
//! A sleep takes its requested time by the machine's clock. In an engine for programs it is a wait like that for an
//! object ([`Services::sleep_until`](crate::Services::sleep_until)): other tasks of the worker run meanwhile. Elsewhere
//! the worker's thread sleeps, which the node's limit on the call's time bounds.
//!
//! This module defines `wasi:clocks/monotonic-clock` and the blocking functions of `wasi:io/poll`. Those of
//! wasmtime-wasi wait on a tokio timer, which never fires in a worker: nothing drives its runtime.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use wasmtime::component::{Linker, LinkerInstance, Resource};
use wasmtime::{Result, StoreContextMut};
use wasmtime_wasi::p2::bindings::io::poll::Host as _;
use wasmtime_wasi::p2::{DynPollable, subscribe};

use crate::clock::Clock;
use crate::services::Refusal;
use crate::state::SandboxState;

/// WASI version that wasmtime-wasi defines; functions of the same name are replaced.
const MONOTONIC_CLOCK: &str = "wasi:clocks/monotonic-clock@0.2.12";
const POLL: &str = "wasi:io/poll@0.2.12";

/// Defines the clock and blocking functions, replacing those of wasmtime-wasi. `waits` is whether blocking suspends the
/// task.
pub(crate) fn imports(linker: &mut Linker<SandboxState>, waits: bool) -> Result<()> {
    linker.allow_shadowing(true);
    let mut clock = linker.instance(MONOTONIC_CLOCK)?;
    clock.func_wrap("subscribe-duration", |mut store: Store<'_>, (nanos,): (u64,)| {
        Ok((subscribed(store.data_mut(), |_| nanos)?,))
    })?;
    clock.func_wrap("subscribe-instant", |mut store: Store<'_>, (when,): (u64,)| {
        Ok((subscribed(store.data_mut(), |now| when.saturating_sub(now))?,))
    })?;
    let mut poll = linker.instance(POLL)?;
    if waits {
        waiting(&mut poll)?
    } else {
        blocking(&mut poll)?
    }
    linker.allow_shadowing(false);
    Ok(())
}

type Store<'a> = StoreContextMut<'a, SandboxState>;

/// Creates a pollable of a sleep whose length depends on the sandbox's time.
fn subscribed(state: &mut SandboxState, nanos: impl FnOnce(u64) -> u64) -> Result<Resource<DynPollable>> {
    let wasi = state.wasi();
    let sleep = wasi.clock.sleep(nanos(wasi.clock.now_nanos()));
    let sleep = wasi.table.push(sleep)?;
    subscribe(&mut wasi.table, sleep)
}

fn waiting(linker: &mut LinkerInstance<'_, SandboxState>) -> Result<()> {
    linker.func_wrap_async("poll", |mut store: Store<'_>, (pollables,): (Vec<Resource<DynPollable>>,)| {
        Box::new(async move { Ok((wait(store.data_mut(), pollables).await?,)) })
    })?;
    linker.func_wrap_async("[method]pollable.block", |mut store: Store<'_>, (pollable,): (Resource<DynPollable>,)| {
        Box::new(async move { wait(store.data_mut(), vec![pollable]).await.map(drop) })
    })
}

fn blocking(linker: &mut LinkerInstance<'_, SandboxState>) -> Result<()> {
    linker.func_wrap("poll", |mut store: Store<'_>, (pollables,): (Vec<Resource<DynPollable>>,)| {
        Ok((block(store.data_mut(), pollables)?,))
    })?;
    linker.func_wrap("[method]pollable.block", |mut store: Store<'_>, (pollable,): (Resource<DynPollable>,)| {
        block(store.data_mut(), vec![pollable]).map(drop)
    })
}

/// Suspends the task until one of the pollables is ready. Returns the indices of the ready ones.
async fn wait(state: &mut SandboxState, pollables: Vec<Resource<DynPollable>>) -> Result<Vec<u32>> {
    let (services, wasi) = state.services_and_wasi();
    let clock = wasi.clock.clone();
    let mut polled = pin!(wasi.table.poll(pollables));
    let mut sleeps = false;
    let ready = poll_fn(|context| match poll_once(polled.as_mut(), &clock, context) {
        (Poll::Ready(ready), _) => Poll::Ready(ready),
        (Poll::Pending, due) => {
            sleeps = true;
            match due.ok_or_else(never).and_then(|due| services.sleep_until(due)) {
                Ok(()) => Poll::Pending,
                Err(refusal) => Poll::Ready(Err(refusal.into())),
            }
        }
    });
    let ready = ready.await;
    if sleeps {
        services.end_sleep();
    }
    ready
}

/// Like [`wait`], but blocks this thread.
fn block(state: &mut SandboxState, pollables: Vec<Resource<DynPollable>>) -> Result<Vec<u32>> {
    let wasi = state.wasi();
    let clock = wasi.clock.clone();
    let mut polled = pin!(wasi.table.poll(pollables));
    loop {
        match poll_once(polled.as_mut(), &clock, &mut Context::from_waker(Waker::noop())) {
            (Poll::Ready(ready), _) => return ready,
            (Poll::Pending, Some(due)) => std::thread::sleep(due.saturating_duration_since(Instant::now())),
            (Poll::Pending, None) => return Err(never().into()),
        }
    }
}

/// Polls once. Also returns the earliest end of the polled sleeps.
fn poll_once<T>(
    polled: Pin<&mut impl Future<Output = T>>,
    clock: &Clock,
    context: &mut Context<'_>,
) -> (Poll<T>, Option<Instant>) {
    clock.take_due();
    let polled = polled.poll(context);
    (polled, clock.take_due())
}

fn never() -> Refusal {
    Refusal::bad_request("it waits for something that never happens: the only events of a sandbox are ends of sleeps")
}
