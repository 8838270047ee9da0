//! Records of attempts.

use sandbar_core::{TaskId, WorkerId};
use sandbar_jobs::AttemptRecord;
use sandbar_worker::program::AttemptUsage;

use super::context::Context;
use crate::calls::TaskPayload;

/// Returns the record of an attempt, of untrusted usage.
pub(super) fn attempt_record(
    cx: &Context,
    worker: WorkerId,
    task: TaskId,
    call: Option<&TaskPayload>,
    usage: &AttemptUsage,
    bytes_out: u64,
) -> AttemptRecord {
    let started = usage.started.min(cx.time.nanos);
    let finished = started.saturating_add(usage.nanos).saturating_add(usage.waited_nanos).min(cx.time.nanos);
    AttemptRecord {
        task,
        worker,
        // A task that started in its parent's worker is submitted late.
        submitted_ns: call.map_or(started, |call| call.submitted.min(started)),
        started_ns: started,
        finished_ns: finished,
        compute_ns: usage.nanos.min(cx.time.nanos),
        gpu_ns: usage.gpu_nanos,
        memory_bytes: usage.memory_bytes,
        bytes_in: call.map_or(0, |call| cx.input_bytes(call)),
        bytes_out,
    }
}
