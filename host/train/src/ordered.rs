//! What is made of the morsels of a scan, in their order, by several at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use sandbar_jobs::JobProgress;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::error::TrainError;

/// Items of a morsel that are made before they are taken: those of the next morsels wait meanwhile.
const AHEAD_MAX: usize = 2;

/// What is made of one morsel.
pub(crate) type Items<T> = BoxStream<'static, Result<T, TrainError>>;

/// Gives what is made of all morsels, those of the first one first, however many are made at once. Who takes slowly slows
/// the making.
pub(crate) struct Ordered<T> {
    morsels: usize,
    at_once: usize,
    begun: usize,
    make: Box<dyn Fn(usize) -> Items<T> + Send + Sync>,
    queue: VecDeque<Making<T>>,
    progress: Arc<JobProgress>,
}

/// A morsel that is being made. Dropping it ends that.
struct Making<T> {
    morsel: usize,
    made: mpsc::Receiver<Result<T, TrainError>>,
    task: Option<JoinHandle<()>>,
}

impl<T> Drop for Making<T> {
    fn drop(&mut self) {
        self.task.iter().for_each(JoinHandle::abort);
    }
}

impl<T: Send + 'static> Ordered<T> {
    /// Of so many morsels, so many of which `make` makes at once. Counts those that are done. Inside a tokio runtime.
    pub(crate) fn new(
        morsels: usize,
        at_once: usize,
        progress: Arc<JobProgress>,
        make: impl Fn(usize) -> Items<T> + Send + Sync + 'static,
    ) -> Ordered<T> {
        Ordered { morsels, at_once, begun: 0, make: Box::new(make), queue: VecDeque::new(), progress }
    }

    /// The next item, and the morsel that it is of. What follows an error is not to be asked for.
    pub(crate) async fn next(&mut self) -> Option<(usize, Result<T, TrainError>)> {
        loop {
            while self.begun < self.morsels && self.queue.len() < self.at_once {
                let making = begin(self.begun, (self.make)(self.begun));
                self.queue.push_back(making);
                self.begun += 1;
            }
            let first = self.queue.front_mut()?;
            if let Some(item) = first.made.recv().await {
                return Some((first.morsel, item));
            }
            let ended = match first.task.take() {
                Some(task) => task.await,
                None => Ok(()),
            };
            let morsel = first.morsel;
            self.queue.pop_front();
            if let Err(e) = ended {
                return Some((morsel, Err(e.into())));
            }
            self.progress.complete_part();
        }
    }
}

fn begin<T: Send + 'static>(morsel: usize, mut items: Items<T>) -> Making<T> {
    let (sender, made) = mpsc::channel(AHEAD_MAX);
    let task = tokio::spawn(async move {
        while let Some(item) = items.next().await {
            let has_failed = item.is_err();
            if sender.send(item).await.is_err() || has_failed {
                return;
            }
        }
    });
    Making { morsel, made, task: Some(task) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use futures::stream;

    use super::*;

    /// Items of each morsel: its number and theirs. Later morsels are quicker.
    fn items(morsel: usize, count: usize) -> BoxStream<'static, (usize, usize)> {
        let item = move |at| async move {
            tokio::time::sleep(Duration::from_millis(5 - morsel.min(5) as u64)).await;
            (morsel, at)
        };
        stream::iter(0..count).then(item).boxed()
    }

    #[tokio::test]
    async fn items_come_in_the_order_of_morsels() {
        for at_once in [1, 3, 100] {
            let make = |morsel| items(morsel, morsel % 4).map(Ok).boxed();
            let progress: Arc<JobProgress> = Arc::default();
            let mut made = Ordered::new(7, at_once, progress.clone(), make);
            let mut got = Vec::new();
            while let Some((morsel, item)) = made.next().await {
                let item = item.unwrap();
                assert_eq!(item.0, morsel);
                got.push(item);
            }
            let expected: Vec<_> = (0..7).flat_map(|m| (0..m % 4).map(move |at| (m, at))).collect();
            assert_eq!((got, progress.parts().0), (expected, 7), "{at_once} at once");
        }
    }

    #[tokio::test]
    async fn an_error_comes_behind_what_was_made_before() {
        let make = |morsel| {
            let failing = move |item| if item == (1, 2) { Err(TrainError::Invalid("no".to_owned())) } else { Ok(item) };
            items(morsel, 4).map(failing).boxed()
        };
        let mut made = Ordered::new(3, 3, Arc::default(), make);
        for expected in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)] {
            assert_eq!(made.next().await.unwrap().1.unwrap(), expected);
        }
        assert!(matches!(made.next().await, Some((1, Err(TrainError::Invalid(_))))));
    }

    #[tokio::test]
    async fn who_takes_slowly_slows_the_making() {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let make = |_| {
            let count = |at: usize| Ok(MADE.fetch_add(1, Relaxed).max(at));
            stream::iter(0..1000).map(count).boxed()
        };
        let mut made = Ordered::new(10, 2, Arc::default(), make);
        made.next().await.unwrap().1.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        // One more of each waits to be sent.
        assert!(MADE.load(Relaxed) <= 1 + 2 * (AHEAD_MAX + 1), "{} were made", MADE.load(Relaxed));
    }
}
