//! Streams of the items that generators yield.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sandbar_core::{Code, Fault, ObjectId, TaskError};

use crate::job_state::JobState;
use crate::object::ObjectRef;

/// The items of a generator: a task that returns `impl Iterator<Item = T>`, or an iterator of `Result<T, E>`. See
/// [`TaskCall::stream`](crate::TaskCall::stream).
///
/// Each item is a ready object. The generator waits while its buffer is full of untaken items. The client reports taken
/// items when they make up half of the buffer, or when it waits for the next item or for an object. Taken items stay
/// valid. Dropping the stream ends the generator.
///
/// A stream is not a value: the submitter of the generator takes its items, and can pass the items on.
#[must_use = "dropping it ends its generator"]
pub struct ObjectStream<T> {
    /// The number of items, ready when the generator has ended.
    end: ObjectRef<u64>,
    is_over: bool,
    items: PhantomData<fn() -> T>,
}

impl<T> ObjectStream<T> {
    /// Opens the stream of a generator that is about to be submitted.
    pub(crate) fn open(stream: ObjectId, buffer: u32, job: &Arc<JobState>) -> ObjectStream<T> {
        job.table.open_stream(stream, buffer);
        ObjectStream { end: ObjectRef::new(stream, job), is_over: false, items: PhantomData }
    }

    /// Waits for the next item in the order of the generator. Returns `None` after the last item. An error is the last
    /// item: the generator's own, the reason why it was ended, or the end of its job.
    ///
    /// Cancel safe: dropping the future, as `select!` does, loses no item.
    pub async fn next(&mut self) -> Option<Result<ObjectRef<T>, TaskError>> {
        if self.is_over {
            return None;
        }
        match poll_fn(|context| self.poll_item(context)).await {
            Some(item) => Some(Ok(item)),
            None => {
                let end = self.end.get().await;
                self.is_over = true;
                end.err().map(Err)
            }
        }
    }

    /// Like [`ObjectStream::next`], with a time limit. Returns an error of [`Code::GetTimeOut`] if no item is ready in
    /// time; the stream stays usable.
    pub async fn next_timeout(&mut self, timeout: Duration) -> Option<Result<ObjectRef<T>, TaskError>> {
        tokio::time::timeout(timeout, self.next()).await.unwrap_or_else(|_| {
            let fault = Fault::new(Code::GetTimeOut, format!("the stream has no item after {timeout:?}"));
            Some(Err(TaskError { fault, chain: Vec::new() }))
        })
    }

    fn poll_item(&self, context: &Context<'_>) -> Poll<Option<ObjectRef<T>>> {
        let job = self.end.job();
        let (item, must_report) = job.table.poll_item(self.end.number(), context);
        if must_report {
            job.report_taken();
        }
        item.map(|item| item.map(|item| ObjectRef::adopt(item, job)))
    }
}

impl<T> Drop for ObjectStream<T> {
    fn drop(&mut self) {
        // The drop of `end`, which follows, ends the generator.
        let job = self.end.job();
        job.release_all(job.table.close_stream(self.end.number()));
    }
}

impl<T> fmt::Debug for ObjectStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectStream({})", self.end.number().short())
    }
}
