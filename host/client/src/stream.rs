//! Streams of the items that generators yield.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sandbar_core::{Code, Fault, ObjectId, TaskError};

use crate::job::OfJob;
use crate::object::ObjectRef;

/// What a generator yields, item by item: a task that returns `impl Iterator<Item = T>`, or one of `Result<T, E>`. See
/// [`TaskCall::stream`](crate::TaskCall::stream).
///
/// Each item is an object that is there. The generator goes on while items are taken, and waits when there are as many as its
/// buffer has room for that were not: of those taken it learns when they are half of that, or when its client waits for the
/// next, or for an object. Items that were taken stay what they are. Dropping the stream ends the generator.
///
/// A stream is no value: who has submitted the generator takes its items, and passes on these.
#[must_use = "dropping it ends its generator"]
pub struct ObjectStream<T> {
    /// What is there when there are no more items: how many there were.
    end: ObjectRef<u64>,
    is_over: bool,
    items: PhantomData<fn() -> T>,
}

impl<T> ObjectStream<T> {
    /// The stream of a generator that is submitted next.
    pub(crate) fn made(stream: ObjectId, buffer: u32, job: &Arc<OfJob>) -> ObjectStream<T> {
        job.table.open_stream(stream, buffer);
        ObjectStream { end: ObjectRef::made(stream, job), is_over: false, items: PhantomData }
    }

    /// Waits for the next item, in the order in which they were yielded; none when there are no more. An error is the last:
    /// the generator's own, why it was ended, or that its job has ended.
    ///
    /// Whoever does not wait for it to the end, as in `select!`, loses no item.
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

    /// As [`ObjectStream::next`], for so long at most: it is an error of [`Code::GetTimeOut`] when there is no item by then,
    /// and the stream goes on.
    pub async fn next_timeout(&mut self, timeout: Duration) -> Option<Result<ObjectRef<T>, TaskError>> {
        tokio::time::timeout(timeout, self.next()).await.unwrap_or_else(|_| {
            let fault = Fault::new(Code::GetTimeOut, format!("the stream has no item after {timeout:?}"));
            Some(Err(TaskError { fault, chain: Vec::new() }))
        })
    }

    fn poll_item(&self, context: &Context<'_>) -> Poll<Option<ObjectRef<T>>> {
        let job = self.end.job();
        let (item, is_to_be_told) = job.table.poll_item(self.end.number(), context);
        if is_to_be_told {
            job.tell_taken();
        }
        item.map(|item| item.map(|item| ObjectRef::held(item, job)))
    }
}

impl<T> Drop for ObjectStream<T> {
    fn drop(&mut self) {
        // Its generator ends with the handle, which goes next.
        let job = self.end.job();
        job.let_go(job.table.close_stream(self.end.number()));
    }
}

impl<T> fmt::Debug for ObjectStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectStream({})", self.end.number().short())
    }
}
