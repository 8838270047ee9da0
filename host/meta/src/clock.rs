//! The time that leases are measured by.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Time since some moment that stays the same. Tests and simulations bring their own, [`ManualClock`].
#[async_trait]
pub trait Clock: fmt::Debug + Send + Sync {
    /// How long ago that moment is. Never goes back.
    fn now(&self) -> Duration;

    /// Waits until it is this long ago.
    async fn sleep_until(&self, moment: Duration);
}

/// The time of this process. It is tokio's, so that it stands still where a runtime's time is paused.
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

/// Time that goes on only when it is told to.
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
    /// Lets so much time go by, and wakes who waited for it.
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
        // The sender lives as long as we do.
        let _ = self.now.subscribe().wait_for(|now| *now >= moment).await;
    }
}
