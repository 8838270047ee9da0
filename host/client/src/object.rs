//! Handles to objects, and what is asked of them.

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
use crate::job::OfJob;
use crate::table::{Outcome, Waiter};
use crate::types::Type;
use crate::{ClientError, value};

/// A handle to an immutable value that is there or will be: what a task returns, or what [`Job::put`](crate::Job::put)
/// stored.
///
/// It is cheap to clone, and an argument or a part of one like any other value, of tasks of the same job. The object is
/// kept as long as someone has a handle to it, and its job has not ended.
pub struct ObjectRef<T> {
    handle: Arc<Handle>,
    of: PhantomData<fn() -> T>,
}

/// All handles that were cloned from one.
struct Handle {
    object: ObjectId,
    job: Arc<OfJob>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.job.release(self.object);
    }
}

impl<T> ObjectRef<T> {
    /// A handle to an object that is made just now.
    pub(crate) fn made(object: ObjectId, job: &Arc<OfJob>) -> ObjectRef<T> {
        job.table.made(object);
        ObjectRef::held(object, job)
    }

    /// A handle to an object that is counted as held by it.
    pub(crate) fn held(object: ObjectId, job: &Arc<OfJob>) -> ObjectRef<T> {
        ObjectRef { handle: Arc::new(Handle { object, job: job.clone() }), of: PhantomData }
    }

    pub(crate) fn number(&self) -> ObjectId {
        self.handle.object
    }

    pub(crate) fn job(&self) -> &Arc<OfJob> {
        &self.handle.job
    }

    /// Waits for the value, as the bytes that it is.
    ///
    /// # Errors
    /// As [`ObjectRef::get`].
    pub async fn get_bytes(&self) -> Result<ObjectValue, TaskError> {
        self.outcome().await.map_err(|error| TaskError::clone(&error))
    }

    /// Ends the task that the object comes of, and those that it submitted if `recursive`: their objects are errors of
    /// [`Code::Cancelled`] then. Of an object that is there already nothing changes. A call of an actor that computes ends with
    /// the actor, which begins anew if it may.
    pub async fn cancel(&self, recursive: bool) {
        // Of a job that has ended all is cancelled.
        let _ = self.job().link().cancel(self.number(), recursive).await;
    }

    /// Writes its number into a value, by itself as what is called so.
    pub(crate) fn write<S: Serializer>(&self, name: &'static str, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() || !value::capture::<T>(self.number(), self.job()) {
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
            self.ask().await;
        }
        waiter.value().await
    }

    /// Has the node tell of it. Of a job that has ended, everybody was told.
    async fn ask(&self) {
        let (job, object) = (self.job(), self.number());
        job.tell_taken();
        let _ = job.link().want(object, || job.table.asks(object)).await;
    }
}

impl<T: DeserializeOwned> ObjectRef<T> {
    /// Waits for the value.
    ///
    /// # Errors
    /// Why there is none: its task failed, or one that it needed; and [`Code::BadOutput`] when it is no `T`.
    pub async fn get(&self) -> Result<T, TaskError> {
        let bytes = self.get_bytes().await?;
        value::read(self.job(), self.number(), &bytes)
    }

    /// As [`ObjectRef::get`], for so long at most.
    ///
    /// # Errors
    /// As `get`; [`Code::GetTimeOut`] when nothing is known of it by then.
    pub async fn get_timeout(&self, timeout: Duration) -> Result<T, TaskError> {
        tokio::time::timeout(timeout, self.get()).await.unwrap_or_else(|_| {
            let message = format!("object {} was not there within {timeout:?}", self.number().short());
            Err(TaskError { fault: Fault::new(Code::GetTimeOut, message), chain: Vec::new() })
        })
    }
}

impl<T> Clone for ObjectRef<T> {
    fn clone(&self) -> Self {
        ObjectRef { handle: self.handle.clone(), of: PhantomData }
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
        let Some(job) = value::reader().filter(|_| !deserializer.is_human_readable()) else {
            return Err(de::Error::custom("a reference can only be read from a value of a task or an object"));
        };
        let object = ObjectId(u64::deserialize(deserializer)?);
        job.table.hold(object);
        Ok(ObjectRef { handle: Arc::new(Handle { object, job }), of: PhantomData })
    }
}

/// Waits until `count` of these objects are there, with a value or an error, or until the time is over. Gives those that
/// are, `count` at most, and the rest, both in the order given.
pub async fn wait<T>(
    objects: &[ObjectRef<T>],
    count: usize,
    timeout: Option<Duration>,
) -> (Vec<ObjectRef<T>>, Vec<ObjectRef<T>>) {
    let count = count.min(objects.len());
    let waiter = Waiter::for_objects(count);
    let missing: Vec<_> = objects.iter().filter(|object| !object.job().table.watch(object.number(), &waiter)).collect();
    let there = async {
        for object in missing {
            if waiter.is_done() {
                return;
            }
            object.ask().await;
        }
        waiter.all().await;
    };
    match timeout {
        // Whether they are all there in time is looked at below.
        Some(timeout) => _ = tokio::time::timeout(timeout, there).await,
        None => there.await,
    }
    let (mut ready, mut rest) = (Vec::with_capacity(count), Vec::with_capacity(objects.len() - count));
    for object in objects {
        let is_ready = ready.len() < count && object.job().table.is_there(object.number());
        if is_ready { &mut ready } else { &mut rest }.push(object.clone());
    }
    (ready, rest)
}

/// What a submission gives: a handle to each object that the task returns, one or a tuple of them.
pub trait Returned: Sized {
    /// How many there are.
    #[doc(hidden)]
    const COUNT: u32;

    /// Checks what a task is said to return, as far as its type is known here.
    #[doc(hidden)]
    fn check(task: &str, returns: &str) -> Result<(), ClientError>;

    #[doc(hidden)]
    fn made(first: ObjectId, job: &Arc<OfJob>) -> Self;
}

/// Whether a task returns what is asked of it.
fn check_type<T>(task: &str, returns: &Type, text: &str) -> Result<(), ClientError> {
    let asked = std::any::type_name::<T>();
    if !returns.contradicts(&Type::parse(asked)) {
        return Ok(());
    }
    Err(ClientError::Returns { task: task.to_owned(), returns: text.to_owned(), asked: asked.to_owned() })
}

impl<T> Returned for ObjectRef<T> {
    const COUNT: u32 = 1;

    fn check(task: &str, returns: &str) -> Result<(), ClientError> {
        check_type::<T>(task, &Type::parse(returns), returns)
    }

    fn made(first: ObjectId, job: &Arc<OfJob>) -> Self {
        ObjectRef::made(first, job)
    }
}

macro_rules! several {
    ($($count:literal: $($type:ident $place:tt),*;)*) => {$(
        impl<$($type),*> Returned for ($(ObjectRef<$type>,)*) {
            const COUNT: u32 = $count;

            fn check(task: &str, returns: &str) -> Result<(), ClientError> {
                let Type::Tuple(all) = Type::parse(returns) else { return Ok(()) };
                $(check_type::<$type>(task, all.get($place).unwrap_or(&Type::Other), returns)?;)*
                Ok(())
            }

            fn made(first: ObjectId, job: &Arc<OfJob>) -> Self {
                ($(ObjectRef::<$type>::made(ObjectId(first.0 + $place), job),)*)
            }
        }
    )*};
}

several! {
    2: A 0, B 1;
    3: A 0, B 1, C 2;
    4: A 0, B 1, C 2, D 3;
    5: A 0, B 1, C 2, D 3, E 4;
    6: A 0, B 1, C 2, D 3, E 4, F 5;
    7: A 0, B 1, C 2, D 3, E 4, F 5, G 6;
    8: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
}
