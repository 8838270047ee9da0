//! Results of finished tasks, and their messages to the node.

use sandbar_core::{Code, Fault, TaskError};
use sandbar_sandbox::{Level, Refusal};

use super::objects::CONTAINED_MAX;
use super::{OutputValue, RETURNS_MAX, TaskContext, WorkerRuntime, task_gone};
use crate::process::shortened;
use crate::program::clock::monotonic_nanos;
use crate::program::messages::{AttemptUsage, ReturnedValues, SentValue, WorkerMessage};
use crate::program::objects::{LocalValue, TaskSlot};

/// Resource usage of an attempt, and its effects on its actor.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::program) struct AttemptReport {
    pub usage: AttemptUsage,
    /// Whether it failed because its GPU was lost, or its actor ended with it.
    pub lost: bool,
    /// Object with the checkpoint of the actor after this call.
    pub saved: Option<u64>,
}

/// Maximum bytes of results inside the message; larger results are sent as files.
const INLINE_BYTES_MAX: usize = 128 << 10;

impl WorkerRuntime {
    /// Stores the next result of a task.
    pub(super) fn returned(&mut self, slot: TaskSlot, parts: &[&[u8]], contained: &[u64]) -> Result<(), Refusal> {
        let task = self.task(slot).ok_or_else(task_gone)?;
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
        let task = self.task(slot).ok_or_else(task_gone)?;
        task.returned.push((value, contained.to_vec()));
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
        let values: ReturnedValues<'_> = returned
            .iter()
            .map(|(value, refs)| match value {
                OutputValue::Inline(bytes) => (SentValue::Inline(bytes), refs.clone()),
                OutputValue::File(file) => (file.named(), refs.clone()),
            })
            .collect();
        let is_awaited = self.is_awaited(job, task);
        let mut is_delivered = false;
        if let (Ok(()), [(OutputValue::Inline(bytes), refs)]) = (&result, &returned[..])
            && is_awaited
        {
            // The parent in this worker gets the value directly; the node need not deliver it.
            self.objects.set_contained((job, task), refs.clone(), false);
            self.arrived((job, task), LocalValue::inline(bytes, false));
            is_delivered = true;
        }
        let files = returned.iter().filter_map(|(value, _)| match value {
            OutputValue::Inline(_) => None,
            OutputValue::File(file) => Some(file),
        });
        let mut sent = Ok(());
        for file in files {
            match &result {
                // Files are sent before the message that refers to them.
                Ok(()) => sent = sent.and_then(|()| self.send_file(file)),
                Err(_) => self.discard(file),
            }
        }
        let result = result.and_then(|()| {
            sent.map_err(|e: std::io::Error| Fault::new(Code::Host, format!("a result can't be sent to the node: {e}")))
        });
        let returned = result.map(|()| values).map_err(|fault| match (fault.code, fails_with) {
            (Code::Refused, Some(error)) => error,
            _ => Box::new(own_error(fault)),
        });
        self.flush_progress(&own);
        if own.log_dropped > 0 {
            let line = format!("({} lines more were dropped: `limits.log_bytes_max` is reached)", own.log_dropped);
            self.send(&WorkerMessage::Log(task, Level::Warn as u8, &line));
        }
        let AttemptReport { usage, lost, saved } = report;
        match unannounced.as_ref().map(|(_, frame)| postcard::from_bytes(frame)) {
            Some(Ok(WorkerMessage::Submit(submit))) => {
                self.send(&WorkerMessage::FinishedInline { submit, returned, usage })
            }
            _ => self.send(&WorkerMessage::Finished { task, attempt, returned, usage, lost, saved }),
        };
        if is_awaited && !is_delivered {
            self.request_object(job, task);
        }
        self.release_all(&own);
        self.publish_in_time();
    }

    /// Reports a task that was not started. It holds only the objects that it needs.
    pub(in crate::program) fn reject(&mut self, own: &TaskContext, fault: Fault) {
        let returned = Err(Box::new(own_error(fault)));
        self.send(&finished(own, returned));
        self.release_all(own);
        self.publish_in_time();
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
