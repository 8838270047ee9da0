//! Encoding and decoding of values and of the references in them.

use std::cell::RefCell;
use std::sync::Arc;

use sandbar_core::{Code, Fault, ObjectId, TaskError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job_state::JobState;

thread_local! {
    /// References in the value that this thread encodes.
    static WRITTEN: RefCell<Option<Written>> = const { RefCell::new(None) };
    /// Job of the value that this thread decodes.
    static READ: RefCell<Option<Arc<JobState>>> = const { RefCell::new(None) };
}

/// References in an encoded value.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) objects: Vec<ObjectId>,
    /// Type name of the last object's value.
    pub(crate) of: &'static str,
    /// The first object of another job.
    pub(crate) foreign: Option<ObjectId>,
    job: usize,
}

/// Returns a number that identifies a live job.
fn place(job: &Arc<JobState>) -> usize {
    Arc::as_ptr(job) as usize
}

/// Calls `write`, which encodes a value for a job. Returns its result and the references in the value.
pub(crate) fn captured<R>(job: &Arc<JobState>, write: impl FnOnce() -> R) -> (R, Written) {
    let new = Written { job: place(job), ..Written::default() };
    let before = WRITTEN.with_borrow_mut(|written| written.replace(new));
    let result = write();
    let written = WRITTEN.with_borrow_mut(|written| std::mem::replace(written, before));
    (result, written.unwrap_or_default())
}

/// Records a reference of the value being encoded. Returns false outside of an encoding.
pub(crate) fn capture<T>(object: ObjectId, job: &Arc<JobState>) -> bool {
    WRITTEN.with_borrow_mut(|written| {
        let Some(written) = written else { return false };
        written.objects.push(object);
        written.of = std::any::type_name::<T>();
        if written.job != place(job) {
            written.foreign.get_or_insert(object);
        }
        true
    })
}

/// Job of the value that this thread decodes.
pub(crate) fn reader() -> Option<Arc<JobState>> {
    READ.with_borrow(Clone::clone)
}

/// Encodes a value for a job. Returns the bytes and the references in them.
pub(crate) fn write<T: Serialize + ?Sized>(job: &Arc<JobState>, value: &T) -> Result<(Vec<u8>, Written), String> {
    let (bytes, written) = captured(job, || postcard::to_extend(value, Vec::new()));
    Ok((bytes.map_err(|e| e.to_string())?, written))
}

/// Decodes an object's value, whose bytes are untrusted.
pub(crate) fn read<T: DeserializeOwned>(job: &Arc<JobState>, object: ObjectId, bytes: &[u8]) -> Result<T, TaskError> {
    let before = READ.with_borrow_mut(|reader| reader.replace(job.clone()));
    let result = postcard::take_from_bytes(bytes);
    READ.with_borrow_mut(|reader| *reader = before);
    let wrong = |what: String| {
        let message = format!("object {} is not a {}: {what}", object.short(), std::any::type_name::<T>());
        TaskError { fault: Fault::new(Code::BadOutput, message), chain: Vec::new() }
    };
    match result {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(wrong(format!("{} of its {} bytes are left over", rest.len(), bytes.len()))),
        Err(e) => Err(wrong(e.to_string())),
    }
}
