//! Tasks that end with the future that awaits them: a job that is stopped leaves no work behind.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinError, JoinHandle};

/// A task. Dropping it aborts the task.
pub(crate) struct Spawned<T>(JoinHandle<T>);

/// Spawns a task. Must be called in a tokio runtime.
pub(crate) fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Spawned<T> {
    Spawned(tokio::spawn(work))
}

impl<T> Future for Spawned<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for Spawned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn dropped_tasks_end() {
        assert_eq!(spawn(async { 5 }).await.unwrap(), 5);
        let alive = Arc::new(());
        let held = alive.clone();
        let task = spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(task);
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
