//! The clock of a sandbox.
//!
//! A guest has no access to the machine's time: its clock starts at zero, moves by [`TICK_NANOS`] with each reading,
//! and by the length of each sleep once that is over. So a call that is run again reads the same times, and a loop that
//! waits for the clock to move terminates.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use wasmtime_wasi::p2::Pollable;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock};

/// Step of the clock at each reading, in nanoseconds.
const TICK_NANOS: u64 = 1_000;

/// The clock of one sandbox, in nanoseconds since its first reading.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock(Arc<ClockTimes>);

#[derive(Debug, Default)]
struct ClockTimes {
    now: AtomicU64,
    /// Earliest end of the sleeps that were polled since this value was taken.
    due: Mutex<Option<Instant>>,
}

impl Clock {
    fn read(&self) -> u64 {
        self.0.now.fetch_add(TICK_NANOS, Relaxed)
    }

    /// Returns the time without moving the clock.
    pub(crate) fn now_nanos(&self) -> u64 {
        self.0.now.load(Relaxed)
    }

    /// Takes the earliest end of the sleeps that were polled since the last call.
    pub(crate) fn take_due(&self) -> Option<Instant> {
        self.due().take()
    }

    fn due(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a sleep that starts now.
    pub(crate) fn sleep(&self, nanos: u64) -> Sleep {
        let until = self.now_nanos().saturating_add(nanos);
        // A sleep whose end exceeds the machine's clock never ends.
        Sleep { clock: self.clone(), until, due: Instant::now().checked_add(Duration::from_nanos(nanos)) }
    }
}

impl HostMonotonicClock for Clock {
    fn resolution(&self) -> u64 {
        TICK_NANOS
    }

    fn now(&self) -> u64 {
        self.read()
    }
}

impl HostWallClock for Clock {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(TICK_NANOS)
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.read())
    }
}

/// A sleep, until a time of the sandbox's clock and a time of the machine's clock.
pub(crate) struct Sleep {
    clock: Clock,
    until: u64,
    due: Option<Instant>,
}

impl Sleep {
    fn poll(&self) -> Poll<()> {
        if self.due.is_some_and(|due| Instant::now() >= due) {
            self.clock.0.now.fetch_max(self.until, Relaxed);
            return Poll::Ready(());
        }
        let mut first = self.clock.due();
        *first = first.into_iter().chain(self.due).min();
        Poll::Pending
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Sleep {
    async fn ready(&mut self) {
        poll_fn(|_| self.poll()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_moves_by_readings_and_sleeps() {
        let clock = Clock::default();
        assert_eq!([clock.read(), clock.read(), clock.read()], [0, TICK_NANOS, 2 * TICK_NANOS]);
        let sleep = clock.sleep(5_000_000);
        while sleep.poll().is_pending() {
            let due = clock.take_due().unwrap();
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        assert_eq!(clock.read(), 3 * TICK_NANOS + 5_000_000);
    }

    #[test]
    fn the_first_of_several_sleeps_is_due() {
        let clock = Clock::default();
        let sleeps = [u64::MAX, 60_000_000_000, 3_600_000_000_000].map(|nanos| clock.sleep(nanos));
        assert!(sleeps.iter().all(|sleep| sleep.poll().is_pending()));
        assert_eq!(clock.take_due(), sleeps[1].due);
        assert!(clock.sleep(0).poll().is_ready());
    }
}
