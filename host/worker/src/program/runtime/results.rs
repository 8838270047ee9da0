//! Results of finished tasks, and their messages to the node.

use sandbar_core::{Code, Fault, TaskError};
use sandbar_sandbox::Refusal;

use super::WorkerRuntime;
use super::context::{AttemptReport, TaskContext};
use super::limits::{CONTAINED_MAX, RETURNS_MAX};
use super::memory::OutputValue;
use crate::process::shortened;
use crate::program::clock::monotonic_nanos;
use crate::program::messages::{AttemptUsage, ReturnedValues, WorkerMessage};
use crate::program::objects::{LocalValue, ObjectKey, TaskSlot};

/// Maximum bytes of results inside the message; larger results are sent as files.
const INLINE_BYTES_MAX: usize = 128 << 10;

impl WorkerRuntime {
    /// Stores the next result of a task.
    pub(super) fn returned(&mut self, slot: TaskSlot, parts: &[&[u8]], contained: &[u64]) -> Result<(), Refusal> {
        let task = self.tasks.require(slot)?;
        if task.returned.len() >= RETURNS_MAX as usize {
            return Err(Refusal::bad_output(format!("it returns more than {RETURNS_MAX} results")));
        }
        let (mut inline, mut objects) = (0, contained.len());
        for (value, contained) in &task.returned {
            objects += contained.len();
            if let OutputValue::Inline(bytes) = value {
                inline += bytes.len();
            }
        }
        if objects > CONTAINED_MAX {
            let message =
                format!("its results contain {objects} objects, the limit is {CONTAINED_MAX}: `put` some of them");
            return Err(Refusal::bad_output(message));
        }
        let value = self.store_value_within(parts, INLINE_BYTES_MAX.saturating_sub(inline))?;
        self.tasks.require(slot)?.returned.push((value, contained.to_vec()));
        Ok(())
    }

    /// Reports a finished task to the node, and drops its references.
    pub(in crate::program) fn finish(
        &mut self,
        mut own: TaskContext,
        result: Result<(), Fault>,
        report: AttemptReport,
    ) {
        let fails_with = own.fails_with.take();
        let TaskContext { id: task, attempt, job, ref returned, ref unannounced, .. } = own;
        let is_awaited = self.is_awaited(job, task);
        let mut is_delivered = false;
        if let (Ok(()), [(OutputValue::Inline(bytes), refs)]) = (&result, &returned[..])
            && is_awaited
        {
            // The parent in this worker gets the value directly; the node need not deliver it.
            self.objects.set_contained(ObjectKey::new(job, task), refs.clone(), false);
            self.arrived(ObjectKey::new(job, task), LocalValue::inline(bytes, false));
            is_delivered = true;
        }
        let result = match result {
            Ok(()) => self.send_results(returned),
            Err(fault) => {
                self.discard_results(returned);
                Err(fault)
            }
        };
        let returned = result.map_err(|fault| match (fault.code, fails_with) {
            (Code::Refused, Some(error)) => error,
            _ => Box::new(own_error(fault)),
        });
        self.finish_reports(&own);
        let AttemptReport { usage, lost, saved } = report;
        match unannounced.as_ref().map(|task| postcard::from_bytes(&task.submission)) {
            Some(Ok(WorkerMessage::Submit(submit))) => {
                self.node.send(&WorkerMessage::FinishedInline { submit, returned, usage })
            }
            _ => self.node.send(&WorkerMessage::Finished { task, attempt, returned, usage, lost, saved }),
        };
        if is_awaited && !is_delivered {
            self.request_object(job, task);
        }
        self.release_all(&own);
        self.node.publish_in_time();
    }

    /// Returns results for the message that reports them, before which their files are sent.
    fn send_results<'r>(&mut self, returned: &'r [(OutputValue, Vec<u64>)]) -> Result<ReturnedValues<'r>, Fault> {
        let mut values = Vec::with_capacity(returned.len());
        for (value, refs) in returned {
            let failed = |e| Fault::new(Code::Host, format!("a result can't be sent to the node: {e}"));
            values.push((self.send_value(value).map_err(failed)?, refs.clone()));
        }
        Ok(values)
    }

    /// Reports a task that was not started. It holds only the objects that it needs.
    pub(in crate::program) fn reject(&mut self, own: &TaskContext, fault: Fault) {
        let returned = Err(Box::new(own_error(fault)));
        self.node.send(&finished(own, returned));
        self.release_all(own);
        self.node.publish_in_time();
    }
}

/// Returns the message of a finished task without resource usage.
pub(super) fn finished<'a>(
    own: &TaskContext,
    returned: Result<ReturnedValues<'a>, Box<TaskError>>,
) -> WorkerMessage<'a> {
    let usage = AttemptUsage { started: monotonic_nanos(), ..AttemptUsage::default() };
    WorkerMessage::Finished { task: own.id, attempt: own.attempt, returned, usage, lost: false, saved: None }
}

/// Returns an error without a chain of tasks.
fn own_error(fault: Fault) -> TaskError {
    TaskError { fault: shortened(fault), chain: Vec::new() }
}
