//! Concurrent processing of the morsels of a scan, with the output in the order of morsels.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use sandbar_jobs::JobProgress;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::error::TrainError;

/// Maximum items of a morsel that are buffered. Later morsels wait for the first one to be consumed.
const BUFFERED_ITEMS_MAX: usize = 2;

/// Output of one morsel.
pub(crate) type MorselItems<T> = BoxStream<'static, Result<T, TrainError>>;

/// Processes morsels concurrently, and returns their items in the order of morsels. A slow consumer slows the
/// processing.
pub(crate) struct OrderedMorsels<T> {
    morsels: usize,
    concurrency: usize,
    /// Number of started morsels.
    started: usize,
    process: Box<dyn Fn(usize) -> MorselItems<T> + Send + Sync>,
    running: VecDeque<MorselTask<T>>,
    progress: Arc<JobProgress>,
}

/// The task of a morsel. Dropping it aborts the task.
struct MorselTask<T> {
    morsel: usize,
    items: mpsc::Receiver<Result<T, TrainError>>,
    /// `None` once it was joined.
    task: Option<JoinHandle<()>>,
}

impl<T> Drop for MorselTask<T> {
    fn drop(&mut self) {
        self.task.iter().for_each(JoinHandle::abort);
    }
}

impl<T: Send + 'static> OrderedMorsels<T> {
    /// Processes `morsels` morsels with `process`, up to `concurrency` at a time, and reports completed ones to
    /// `progress`. Must be used in a tokio runtime.
    pub(crate) fn new(
        morsels: usize,
        concurrency: usize,
        progress: Arc<JobProgress>,
        process: impl Fn(usize) -> MorselItems<T> + Send + Sync + 'static,
    ) -> OrderedMorsels<T> {
        let process = Box::new(process);
        OrderedMorsels { morsels, concurrency, started: 0, process, running: VecDeque::new(), progress }
    }

    /// Returns the next item and its morsel. Must not be called again after an error.
    pub(crate) async fn next(&mut self) -> Option<(usize, Result<T, TrainError>)> {
        loop {
            while self.started < self.morsels && self.running.len() < self.concurrency {
                let task = spawn(self.started, (self.process)(self.started));
                self.running.push_back(task);
                self.started += 1;
            }
            let first = self.running.front_mut()?;
            if let Some(item) = first.items.recv().await {
                return Some((first.morsel, item));
            }
            let joined = match first.task.take() {
                Some(task) => task.await,
                None => Ok(()),
            };
            let morsel = first.morsel;
            self.running.pop_front();
            if let Err(e) = joined {
                return Some((morsel, Err(e.into())));
            }
            self.progress.complete_part();
        }
    }
}

fn spawn<T: Send + 'static>(morsel: usize, mut output: MorselItems<T>) -> MorselTask<T> {
    let (sender, items) = mpsc::channel(BUFFERED_ITEMS_MAX);
    let task = tokio::spawn(async move {
        while let Some(item) = output.next().await {
            let has_failed = item.is_err();
            if sender.send(item).await.is_err() || has_failed {
                return;
            }
        }
    });
    MorselTask { morsel, items, task: Some(task) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use futures::stream;

    use super::*;

    /// Returns `count` items of a morsel: pairs of its number and theirs. Later morsels are faster.
    fn items(morsel: usize, count: usize) -> BoxStream<'static, (usize, usize)> {
        let item = move |number| async move {
            tokio::time::sleep(Duration::from_millis(5 - morsel.min(5) as u64)).await;
            (morsel, number)
        };
        stream::iter(0..count).then(item).boxed()
    }

    #[tokio::test]
    async fn items_come_in_the_order_of_morsels() {
        for concurrency in [1, 3, 100] {
            let process = |morsel| items(morsel, morsel % 4).map(Ok).boxed();
            let progress: Arc<JobProgress> = Arc::default();
            let mut morsels = OrderedMorsels::new(7, concurrency, progress.clone(), process);
            let mut received = Vec::new();
            while let Some((morsel, item)) = morsels.next().await {
                let item = item.unwrap();
                assert_eq!(item.0, morsel);
                received.push(item);
            }
            let expected: Vec<_> = (0..7).flat_map(|m| (0..m % 4).map(move |number| (m, number))).collect();
            assert_eq!((received, progress.parts().0), (expected, 7), "concurrency {concurrency}");
        }
    }

    #[tokio::test]
    async fn an_error_follows_the_items_before_it() {
        let process = |morsel| {
            let failing = move |item| if item == (1, 2) { Err(TrainError::Invalid("no".to_owned())) } else { Ok(item) };
            items(morsel, 4).map(failing).boxed()
        };
        let mut morsels = OrderedMorsels::new(3, 3, Arc::default(), process);
        for expected in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)] {
            assert_eq!(morsels.next().await.unwrap().1.unwrap(), expected);
        }
        assert!(matches!(morsels.next().await, Some((1, Err(TrainError::Invalid(_))))));
    }

    #[tokio::test]
    async fn a_slow_consumer_slows_the_processing() {
        static PRODUCED: AtomicUsize = AtomicUsize::new(0);
        let process = |_| {
            let count = |number: usize| Ok(PRODUCED.fetch_add(1, Relaxed).max(number));
            stream::iter(0..1000).map(count).boxed()
        };
        let mut morsels = OrderedMorsels::new(10, 2, Arc::default(), process);
        morsels.next().await.unwrap().1.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        // One more item of each morsel waits to be sent.
        let produced = PRODUCED.load(Relaxed);
        assert!(produced <= 1 + 2 * (BUFFERED_ITEMS_MAX + 1), "{produced} items");
    }
}
