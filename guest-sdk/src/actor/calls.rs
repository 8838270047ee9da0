//! Asynchronous calls of actors: futures that the host resumes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::waiting;
use crate::registry::Later;
use crate::task::release_gone;
use crate::{host, random};

/// The error of a call that nothing will resume.
const FOR_NOTHING: &str =
    "the call awaits a future that no object completes, and the host could not resume it; await only `ObjectRef`s";

thread_local! {
    static CALLS: RefCell<BTreeMap<u64, Call>> = const { RefCell::new(BTreeMap::new()) };
}

/// A waiting call.
struct Call {
    future: Later,
    seed: u64,
}

/// Starts a call that may wait. Returns whether it has finished.
pub(crate) fn begin(number: u64, future: Later) -> Result<bool, String> {
    go_on(number, Call { future, seed: random::at_hand() })
}

/// Resumes a waiting call. Returns whether it has finished.
pub(crate) fn resume(number: u64) -> Result<bool, String> {
    let call = CALLS.with_borrow_mut(|calls| calls.remove(&number));
    let call = call.ok_or_else(|| format!("call {number} is not waiting"))?;
    waiting::tell(number);
    let before = random::seed(call.seed);
    let result = go_on(number, call);
    random::seed(before);
    result
}

/// Drops a waiting call.
pub(crate) fn abandon(number: u64) {
    let call = CALLS.with_borrow_mut(|calls| calls.remove(&number));
    drop(call);
}

/// Runs `run` with `call` as the current call. Without a call, awaiting an object blocks.
pub(crate) fn within<T>(call: Option<u64>, run: impl FnOnce() -> T) -> T {
    /// Restores the previous call, also when `run` panics, as in tests.
    struct Before(Option<u64>);

    impl Drop for Before {
        fn drop(&mut self) {
            waiting::on_behalf_of(self.0);
        }
    }

    let _before = Before(waiting::on_behalf_of(call));
    run()
}

fn go_on(number: u64, mut call: Call) -> Result<bool, String> {
    if let Poll::Ready(result) = poll(number, call.future.as_mut()) {
        return result.map(|()| true);
    }
    // Drops handles first: the call must not wait for objects that it has dropped.
    release_gone();
    let objects = waiting::awaited(number);
    if objects.is_empty() {
        return Err(FOR_NOTHING.to_owned());
    }
    host::awaits(&objects);
    CALLS.with_borrow_mut(|calls| calls.insert(number, call));
    Ok(false)
}

/// Polls a call's future, and repeats while the future wakes itself.
fn poll<F: Future + ?Sized>(number: u64, mut future: Pin<&mut F>) -> Poll<F::Output> {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    loop {
        let polled = within(Some(number), || future.as_mut().poll(&mut Context::from_waker(&waker)));
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
        release_gone();
        if waiting::awaited(number).is_empty() {
            return Err(FOR_NOTHING.to_owned());
        }
        waiting::wait(number);
    }
}

/// Whether the future needs another poll.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
