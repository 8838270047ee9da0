//! Asynchronous calls of actors: futures that the host resumes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::waiters;
use crate::registry::CallFuture;
use crate::task::release_dropped;
use crate::{host, random};

/// The error of a call that nothing will resume.
const NOTHING_TO_AWAIT: &str =
    "the call awaits a future that no object completes, and the host could not resume it; await only `ObjectRef`s";

thread_local! {
    static CALLS: RefCell<BTreeMap<u64, PendingCall>> = const { RefCell::new(BTreeMap::new()) };
}

/// A waiting call.
struct PendingCall {
    future: CallFuture,
    seed: u64,
}

/// Starts a call that may wait. Returns whether it has finished.
pub(crate) fn start(number: u64, future: CallFuture) -> Result<bool, String> {
    advance(number, PendingCall { future, seed: random::current_seed() })
}

/// Resumes a waiting call. Returns whether it has finished.
pub(crate) fn resume(number: u64) -> Result<bool, String> {
    let call = CALLS.with_borrow_mut(|calls| calls.remove(&number));
    let call = call.ok_or_else(|| format!("call {number} is not waiting"))?;
    waiters::wake_ready(number);
    let before = random::set_seed(call.seed);
    let result = advance(number, call);
    random::set_seed(before);
    result
}

/// Drops a waiting call.
pub(crate) fn abandon(number: u64) {
    let call = CALLS.with_borrow_mut(|calls| calls.remove(&number));
    drop(call);
}

/// Runs `run` with `call` as the current call. Without a call, awaiting an object blocks.
pub(crate) fn with_current_call<T>(call: Option<u64>, run: impl FnOnce() -> T) -> T {
    /// Restores the previous call, also when `run` panics, as in tests.
    struct RestoreCall(Option<u64>);

    impl Drop for RestoreCall {
        fn drop(&mut self) {
            waiters::set_current_call(self.0);
        }
    }

    let _restore = RestoreCall(waiters::set_current_call(call));
    run()
}

fn advance(number: u64, mut call: PendingCall) -> Result<bool, String> {
    if let Poll::Ready(result) = poll(number, call.future.as_mut()) {
        return result.map(|()| true);
    }
    // Drops handles first: the call must not wait for objects that it has dropped.
    release_dropped();
    let objects = waiters::awaited_objects(number);
    if objects.is_empty() {
        return Err(NOTHING_TO_AWAIT.to_owned());
    }
    host::awaits(&objects);
    CALLS.with_borrow_mut(|calls| calls.insert(number, call));
    Ok(false)
}

/// Polls a call's future, and repeats while the future wakes itself.
fn poll<F: Future + ?Sized>(number: u64, mut future: Pin<&mut F>) -> Poll<F::Output> {
    let woken = Arc::new(WakeFlag::default());
    let waker = Waker::from(woken.clone());
    loop {
        let polled = with_current_call(Some(number), || future.as_mut().poll(&mut Context::from_waker(&waker)));
        if polled.is_ready() || !woken.0.swap(false, Ordering::Relaxed) {
            return polled;
        }
    }
}

/// Runs a call's future to its end, with no other call of the actor in between.
///
/// # Errors
/// The errors of the future, or a future that awaits something other than an object.
pub fn until_done<T>(number: u64, future: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = poll(number, future.as_mut()) {
            return result;
        }
        release_dropped();
        if waiters::awaited_objects(number).is_empty() {
            return Err(NOTHING_TO_AWAIT.to_owned());
        }
        waiters::wait(number);
    }
}

/// Whether the future needs another poll.
#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
