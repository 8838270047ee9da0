//! What a worker says of tasks that have ended.

use sandbar_core::{Code, Fault, TaskError};
use sandbar_sandbox::{Level, Refusal};

use super::objects::CONTAINED_MAX;
use super::{Desk, RETURNS_MAX, Returned, TaskDesk, gone};
use crate::process::shortened;
use crate::program::clock::monotonic_nanos;
use crate::program::messages::{ReturnedUp, Took, Up, ValueUp};
use crate::program::objects::{Slot, Value};

/// What a task took, and what else became of its actor.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::program) struct Cost {
    pub took: Took,
    /// It failed since its GPU was lost, or its actor ended with it.
    pub lost: bool,
    /// The object that its actor was saved in after it.
    pub saved: Option<u64>,
}

/// Bytes of results that go with the message that a task has ended; more lie in files of their own.
const INLINE_BYTES_MAX: usize = 128 << 10;

impl Desk {
    /// Takes the next result of a task.
    pub(super) fn returned(&mut self, slot: Slot, parts: &[&[u8]], contained: &[u64]) -> Result<(), Refusal> {
        let task = self.task(slot).ok_or_else(gone)?;
        if task.returned.len() >= RETURNS_MAX as usize {
            return Err(Refusal::bad_output(format!("it returns more than {RETURNS_MAX} results")));
        }
        let (mut inline, mut objects) = (0, contained.len());
        for (value, contained) in &task.returned {
            objects += contained.len();
            if let Returned::Inline(bytes) = value {
                inline += bytes.len();
            }
        }
        if objects > CONTAINED_MAX {
            let message =
                format!("its results contain {objects} objects, the limit is {CONTAINED_MAX}: `put` some of them");
            return Err(Refusal::bad_output(message));
        }
        let value = self.keep_beside(parts, INLINE_BYTES_MAX.saturating_sub(inline))?;
        let task = self.task(slot).ok_or_else(gone)?;
        task.returned.push((value, contained.to_vec()));
        Ok(())
    }

    /// Says what came of a task, which holds nothing any more then.
    pub(in crate::program) fn ended(&mut self, mut own: TaskDesk, result: Result<(), Fault>, cost: Cost) {
        let fails_with = own.fails_with.take();
        let TaskDesk { id: task, attempt, job, ref returned, ref unannounced, .. } = own;
        let values: ReturnedUp<'_> = returned
            .iter()
            .map(|(value, refs)| match value {
                Returned::Inline(bytes) => (ValueUp::Inline(bytes), refs.clone()),
                Returned::File(file) => (file.named(), refs.clone()),
            })
            .collect();
        let is_awaited = self.is_awaited(job, task);
        let mut is_told = false;
        if let (Ok(()), [(Returned::Inline(bytes), refs)]) = (&result, &returned[..])
            && is_awaited
        {
            // By its parent here: the node need not say what it is.
            self.objects.contains((job, task), refs.clone(), false);
            self.arrived((job, task), Value::inline(bytes, false));
            is_told = true;
        }
        let files = returned.iter().filter_map(|(value, _)| match value {
            Returned::Inline(_) => None,
            Returned::File(file) => Some(file),
        });
        let mut sent = Ok(());
        for file in files {
            match &result {
                // Before the message that names them.
                Ok(()) => sent = sent.and_then(|()| self.send_file(file)),
                Err(_) => self.discard(file),
            }
        }
        let result = result.and_then(|()| {
            sent.map_err(|e: std::io::Error| Fault::new(Code::Host, format!("a result can't be handed over: {e}")))
        });
        let returned = result.map(|()| values).map_err(|fault| match (fault.code, fails_with) {
            (Code::Refused, Some(error)) => error,
            _ => Box::new(by_itself(fault)),
        });
        self.tell_progress(&own);
        if own.log_dropped > 0 {
            let line = format!("({} lines more were dropped: `limits.log_bytes_max` is reached)", own.log_dropped);
            self.say(&Up::Log(task, Level::Warn as u8, &line));
        }
        let Cost { took, lost, saved } = cost;
        match unannounced.as_ref().map(|(_, frame)| postcard::from_bytes(frame)) {
            Some(Ok(Up::Submit(submit))) => self.say(&Up::Ran { submit, returned, took }),
            _ => self.say(&Up::Finished { task, attempt, returned, took, lost, saved }),
        };
        if is_awaited && !is_told {
            self.want(job, task);
        }
        self.release_all(&own);
        self.publish_in_time();
    }

    /// Says that a task was not begun: it holds nothing, but for what it needs.
    pub(in crate::program) fn refused(&mut self, own: &TaskDesk, fault: Fault) {
        let returned = Err(Box::new(by_itself(fault)));
        self.say(&finished(own, returned));
        self.release_all(own);
        self.publish_in_time();
    }
}

/// What says that a task has ended that took nothing.
pub(super) fn finished<'a>(own: &TaskDesk, returned: Result<ReturnedUp<'a>, Box<TaskError>>) -> Up<'a> {
    let took = Took { begun: monotonic_nanos(), ..Took::default() };
    Up::Finished { task: own.id, attempt: own.attempt, returned, took, lost: false, saved: None }
}

/// A failure that is the task's own.
fn by_itself(fault: Fault) -> TaskError {
    TaskError { fault: shortened(fault), chain: Vec::new() }
}
