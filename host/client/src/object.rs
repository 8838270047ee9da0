//! Object handles: reading, cancelling and waiting.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{Code, Fault, ObjectId, TaskError};
use sandbar_node::ObjectValue;
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

use crate::encode::OBJECT;
use crate::job_state::JobState;
use crate::table::{Outcome, Waiter};
use crate::types::Type;
use crate::{ClientError, value};

/// A handle to an immutable value that exists or will exist: the result of a task, or a value that
/// [`Job::put`](crate::Job::put) stored. Cheap to clone. A task of the same job takes it as an argument or as a part of
/// one. The node keeps the object until the last handle is dropped or the job ends.
pub struct ObjectRef<T> {
    handle: Arc<Handle>,
    value: PhantomData<fn() -> T>,
}

/// State that the clones of a handle share. Dropping it releases the object.
struct Handle {
    object: ObjectId,
    job: Arc<JobState>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.job.release(self.object);
    }
}

impl<T> ObjectRef<T> {
    /// Returns a handle to a new object.
    pub(crate) fn new(object: ObjectId, job: &Arc<JobState>) -> ObjectRef<T> {
        job.table.add_new(object);
        ObjectRef::adopt(object, job)
    }

    /// Returns a handle to an object. The table has counted the reference already.
    pub(crate) fn adopt(object: ObjectId, job: &Arc<JobState>) -> ObjectRef<T> {
        ObjectRef { handle: Arc::new(Handle { object, job: job.clone() }), value: PhantomData }
    }

    pub(crate) fn number(&self) -> ObjectId {
        self.handle.object
    }

    pub(crate) fn job(&self) -> &Arc<JobState> {
        &self.handle.job
    }

    /// Waits for the value and returns its encoded bytes.
    ///
    /// # Errors
    /// As [`ObjectRef::get`].
    pub async fn get_bytes(&self) -> Result<ObjectValue, TaskError> {
        self.outcome().await.map_err(|error| TaskError::clone(&error))
    }

    /// Cancels the task that computes the object, and its child tasks if `recursive`: their objects become errors of
    /// [`Code::Cancelled`]. Does nothing if the object exists. Cancelling a running call of an actor ends the actor,
    /// which restarts if it has restarts left.
    pub async fn cancel(&self, recursive: bool) {
        // All tasks of an ended job are cancelled.
        let _ = self.job().link.cancel(self.number(), recursive).await;
    }

    /// Writes the object's number into a value, as a newtype struct of the given name.
    pub(crate) fn write<S: Serializer>(&self, name: &'static str, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() || !value::record_ref::<T>(self.number(), self.job()) {
            return Err(ser::Error::custom("a reference can only be written into a value of a task or an object"));
        }
        serializer.serialize_newtype_struct(name, &self.number().0)
    }

    async fn outcome(&self) -> Outcome {
        let (job, object) = (self.job(), self.number());
        if let Some(outcome) = job.table.outcome(object) {
            return outcome;
        }
        let waiter = Waiter::for_value();
        if !job.table.watch(object, &waiter) {
            self.request().await;
        }
        waiter.value().await
    }

    /// Requests the object from the node. Does nothing if the job has ended: all its outcomes are delivered.
    async fn request(&self) {
        let (job, object) = (self.job(), self.number());
        job.report_taken();
        let _ = job.link.request(object, || job.table.mark_requested(object)).await;
    }
}

impl<T: DeserializeOwned> ObjectRef<T> {
    /// Waits for the value.
    ///
    /// # Errors
    /// The failure of the object's task or of a task that it needed; [`Code::BadOutput`] if the value is not a `T`.
    pub async fn get(&self) -> Result<T, TaskError> {
        let bytes = self.get_bytes().await?;
        value::read(self.job(), self.number(), &bytes)
    }

    /// Like [`ObjectRef::get`], with a time limit.
    ///
    /// # Errors
    /// As `get`; [`Code::GetTimeOut`] if the object is not ready in time.
    pub async fn get_timeout(&self, timeout: Duration) -> Result<T, TaskError> {
        tokio::time::timeout(timeout, self.get()).await.unwrap_or_else(|_| {
            let message = format!("object {} is not ready after {timeout:?}", self.number().short());
            Err(TaskError { fault: Fault::new(Code::GetTimeOut, message), chain: Vec::new() })
        })
    }
}

impl<T> Clone for ObjectRef<T> {
    fn clone(&self) -> Self {
        ObjectRef { handle: self.handle.clone(), value: PhantomData }
    }
}

impl<T> PartialEq for ObjectRef<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number() == other.number() && Arc::ptr_eq(self.job(), other.job())
    }
}

impl<T> Eq for ObjectRef<T> {}

impl<T> Hash for ObjectRef<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number().hash(state);
    }
}

impl<T> fmt::Debug for ObjectRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectRef({})", self.number().short())
    }
}

impl<T> Serialize for ObjectRef<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.write(OBJECT, serializer)
    }
}

impl<'de, T> Deserialize<'de> for ObjectRef<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Some(job) = value::decoding_job().filter(|_| !deserializer.is_human_readable()) else {
            return Err(de::Error::custom("a reference can only be read from a value of a task or an object"));
        };
        let object = ObjectId(u64::deserialize(deserializer)?);
        job.table.hold(object);
        Ok(ObjectRef { handle: Arc::new(Handle { object, job }), value: PhantomData })
    }
}

/// Waits until `count` of the objects are ready, with a value or an error, or until the timeout. Returns the ready
/// ones, at most `count`, and the rest, both in the given order.
pub async fn wait<T>(
    objects: &[ObjectRef<T>],
    count: usize,
    timeout: Option<Duration>,
) -> (Vec<ObjectRef<T>>, Vec<ObjectRef<T>>) {
    let count = count.min(objects.len());
    let waiter = Waiter::for_objects(count);
    let missing: Vec<_> = objects.iter().filter(|object| !object.job().table.watch(object.number(), &waiter)).collect();
    let wait_for_ready = async {
        for object in missing {
            if waiter.is_done() {
                return;
            }
            object.request().await;
        }
        waiter.all().await;
    };
    match timeout {
        // The loop below checks which objects are ready.
        Some(timeout) => _ = tokio::time::timeout(timeout, wait_for_ready).await,
        None => wait_for_ready.await,
    }
    let (mut ready, mut rest) = (Vec::with_capacity(count), Vec::with_capacity(objects.len() - count));
    for object in objects {
        let is_ready = ready.len() < count && object.job().table.is_ready(object.number());
        if is_ready { &mut ready } else { &mut rest }.push(object.clone());
    }
    (ready, rest)
}

/// The result of a submission: a handle to each object that the task returns, one or a tuple of them.
pub trait ResultRefs: Sized {
    /// Number of objects.
    #[doc(hidden)]
    const COUNT: u32;

    /// Checks the task's declared return types, as far as the client knows them.
    #[doc(hidden)]
    fn check(task: &str, returns: &str) -> Result<(), ClientError>;

    /// Returns handles to consecutive new objects.
    #[doc(hidden)]
    fn new(first: ObjectId, job: &Arc<JobState>) -> Self;
}

/// Checks that a task's return type matches the requested type.
fn check_type<T>(task: &str, returns: &Type, text: &str) -> Result<(), ClientError> {
    let requested = std::any::type_name::<T>();
    if !returns.contradicts(&Type::parse(requested)) {
        return Ok(());
    }
    Err(ClientError::Returns { task: task.to_owned(), returns: text.to_owned(), requested: requested.to_owned() })
}

impl<T> ResultRefs for ObjectRef<T> {
    const COUNT: u32 = 1;

    fn check(task: &str, returns: &str) -> Result<(), ClientError> {
        check_type::<T>(task, &Type::parse(returns), returns)
    }

    fn new(first: ObjectId, job: &Arc<JobState>) -> Self {
        ObjectRef::new(first, job)
    }
}

macro_rules! tuples {
    ($($count:literal: $($type:ident $index:tt),*;)*) => {$(
        impl<$($type),*> ResultRefs for ($(ObjectRef<$type>,)*) {
            const COUNT: u32 = $count;

            fn check(task: &str, returns: &str) -> Result<(), ClientError> {
                let Type::Tuple(all) = Type::parse(returns) else { return Ok(()) };
                $(check_type::<$type>(task, all.get($index).unwrap_or(&Type::Other), returns)?;)*
                Ok(())
            }

            fn new(first: ObjectId, job: &Arc<JobState>) -> Self {
                ($(ObjectRef::<$type>::new(ObjectId(first.0 + $index), job),)*)
            }
        }
    )*};
}

sandbar_core::for_result_tuples!(tuples);
