//! The clock that measures leases.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Time since a fixed moment. Tests and simulations use [`ManualClock`].
#[async_trait]
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the time since that moment. Monotonic.
    fn now(&self) -> Duration;

    /// Waits until that time.
    async fn sleep_until(&self, moment: Duration);
}

/// The time of this process. Uses tokio's clock, so that it stops where a runtime's time is paused.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock { start: Instant::now() }
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    async fn sleep_until(&self, moment: Duration) {
        sleep_until(self.start + moment).await;
    }
}

/// A clock that only [`ManualClock::advance`] moves.
#[derive(Debug)]
pub struct ManualClock {
    now: watch::Sender<Duration>,
}

impl Default for ManualClock {
    fn default() -> Self {
        ManualClock { now: watch::Sender::new(Duration::ZERO) }
    }
}

impl ManualClock {
    /// Advances the time and wakes the waiters whose time has come.
    pub fn advance(&self, time: Duration) {
        self.now.send_modify(|now| *now += time);
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.borrow()
    }

    async fn sleep_until(&self, moment: Duration) {
        // The sender lives as long as `self`.
        let _ = self.now.subscribe().wait_for(|now| *now >= moment).await;
    }
}
