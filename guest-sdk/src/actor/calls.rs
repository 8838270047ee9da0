//! Calls that wait: futures that go on when the host says so.

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

/// What is said of a call that nothing will ever go on with.
const FOR_NOTHING: &str = "it waits for what is no object: nobody would tell it to go on";

thread_local! {
    static CALLS: RefCell<BTreeMap<u64, Call>> = const { RefCell::new(BTreeMap::new()) };
}

/// A call that waits.
struct Call {
    future: Later,
    seed: u64,
}

/// Begins a call that may wait. Gives whether it has ended.
pub(crate) fn begin(number: u64, future: Later) -> Result<bool, String> {
    go_on(number, Call { future, seed: random::at_hand() })
}

/// Goes on with a call that waits. Gives whether it has ended.
pub(crate) fn resume(number: u64) -> Result<bool, String> {
    let call = CALLS.with_borrow_mut(|calls| calls.remove(&number));
    let call = call.ok_or_else(|| format!("there is no call {number} that waits"))?;
    waiting::tell(number);
    let before = random::seed(call.seed);
    let result = go_on(number, call);
    random::seed(before);
    result
}

/// Forgets a call that waits.
pub(crate) fn abandon(number: u64) {
    let call = CALLS.with_borrow_mut(|calls| calls.remove(&number));
    drop(call);
}

/// Runs something that is part of a call or, if that is none, waits where it is.
pub(crate) fn within<T>(call: Option<u64>, run: impl FnOnce() -> T) -> T {
    /// Puts back what was, also when `run` panics, as in tests.
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
    // Handles that the call dropped are none to wait for.
    release_gone();
    let objects = waiting::awaited(number);
    if objects.is_empty() {
        return Err(FOR_NOTHING.to_owned());
    }
    host::awaits(&objects);
    CALLS.with_borrow_mut(|calls| calls.insert(number, call));
    Ok(false)
}

/// Polls a call's future, again as long as it wakes itself.
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

/// Runs the future of the call of this number to its end, and nothing of the actor meanwhile.
///
/// # Errors
/// Those of the future; when it waits for what is no object.
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

/// Whether a future is to be polled again.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
