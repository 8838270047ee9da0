//! Placement of CPU-intensive work.

/// Where CPU-intensive work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// On tokio's blocking threads.
    Threads,
    /// Inline, for single-threaded simulations.
    Inline,
}

impl Offload {
    /// Runs the work. Returns `None` if it panicked or the runtime shuts down.
    pub(crate) async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        match self {
            Offload::Threads => tokio::task::spawn_blocking(work).await.ok(),
            Offload::Inline => Some(work()),
        }
    }
}
