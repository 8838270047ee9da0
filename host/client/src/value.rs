//! Encoding and decoding of values and of the references in them.

use std::cell::RefCell;
use std::sync::Arc;

use sandbar_core::{Code, Fault, ObjectId, TaskError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ClientError;
use crate::job_state::JobState;

thread_local! {
    /// References in the value that this thread encodes.
    static ENCODED_REFS: RefCell<Option<EncodedRefs>> = const { RefCell::new(None) };
    /// Job of the value that this thread decodes.
    static DECODING_JOB: RefCell<Option<Arc<JobState>>> = const { RefCell::new(None) };
}

/// References in an encoded value.
#[derive(Debug, Default)]
pub(crate) struct EncodedRefs {
    pub(crate) objects: Vec<ObjectId>,
    /// Type name of the last object's value.
    pub(crate) type_name: &'static str,
    /// The first object of another job.
    pub(crate) foreign: Option<ObjectId>,
    job: usize,
}

/// Returns a number that identifies a live job.
fn job_number(job: &Arc<JobState>) -> usize {
    Arc::as_ptr(job) as usize
}

/// Calls `write`, which encodes a value for a job. Returns its result and the references in the value.
pub(crate) fn capture_refs<R>(job: &Arc<JobState>, write: impl FnOnce() -> R) -> (R, EncodedRefs) {
    let new = EncodedRefs { job: job_number(job), ..EncodedRefs::default() };
    let before = ENCODED_REFS.with_borrow_mut(|refs| refs.replace(new));
    let result = write();
    let refs = ENCODED_REFS.with_borrow_mut(|refs| std::mem::replace(refs, before));
    (result, refs.unwrap_or_default())
}

/// Records a reference of the value being encoded. Returns false outside of an encoding.
pub(crate) fn record_ref<T>(object: ObjectId, job: &Arc<JobState>) -> bool {
    ENCODED_REFS.with_borrow_mut(|refs| {
        let Some(refs) = refs else { return false };
        refs.objects.push(object);
        refs.type_name = std::any::type_name::<T>();
        if refs.job != job_number(job) {
            refs.foreign.get_or_insert(object);
        }
        true
    })
}

/// Returns the job of the value that this thread decodes.
pub(crate) fn decoding_job() -> Option<Arc<JobState>> {
    DECODING_JOB.with_borrow(Clone::clone)
}

/// Encodes a value for a job. Returns the bytes and the references in them.
pub(crate) fn write<T: Serialize + ?Sized>(
    job: &Arc<JobState>,
    value: &T,
) -> Result<(Vec<u8>, EncodedRefs), ClientError> {
    let (bytes, refs) = capture_refs(job, || postcard::to_extend(value, Vec::new()));
    Ok((bytes.map_err(|e| ClientError::Value(e.to_string()))?, refs))
}

/// Decodes an object's value, whose bytes are untrusted.
pub(crate) fn read<T: DeserializeOwned>(job: &Arc<JobState>, object: ObjectId, bytes: &[u8]) -> Result<T, TaskError> {
    let before = DECODING_JOB.with_borrow_mut(|decoding_job| decoding_job.replace(job.clone()));
    let result = postcard::take_from_bytes(bytes);
    DECODING_JOB.with_borrow_mut(|decoding_job| *decoding_job = before);
    let decode_error = |reason: String| {
        let message = format!("object {} is not a {}: {reason}", object.short(), std::any::type_name::<T>());
        TaskError { fault: Fault::new(Code::BadOutput, message), chain: Vec::new() }
    };
    match result {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(decode_error(format!("{} of its {} bytes are left over", rest.len(), bytes.len()))),
        Err(e) => Err(decode_error(e.to_string())),
    }
}
