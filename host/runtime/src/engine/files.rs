//! Files of jobs as objects: read when a task opens them, a few at a time, while there is memory for them.

use std::collections::VecDeque;
use std::sync::Arc;

use sandbar_core::{Code, Fault, ObjectId};
use sandbar_sched::Event;
use sandbar_store::{ValueKey, ValueMemory};

use super::context::Context;
use super::refs::OpenedFile;
use super::values::{StoredValue, is_stored};
use crate::file_reader::{ReadRequest, ReadResult};
use crate::files::{Content, JobFiles, unknown};

/// Maximum number of files that are read at once.
const READS_MAX: usize = 64;
/// Maximum bytes of files that are read at once. A larger file is read alone.
const READ_BYTES_MAX: u64 = 16 << 20;

/// Files that tasks have opened.
#[derive(Default)]
pub(super) struct OpenedFiles {
    waiting: VecDeque<ReadRequest>,
    reads: usize,
    read_bytes: u64,
    /// A value that was read, and for which there is no memory yet.
    over_limit: Option<(ObjectId, ValueKey)>,
}

impl OpenedFiles {
    /// Returns whether a file that was read can be admitted.
    pub(super) fn can_admit(&self) -> bool {
        self.over_limit.is_none()
    }

    /// A task opens a file of its job.
    pub(super) fn open(
        &mut self,
        cx: &mut Context,
        files: impl Fn(sandbar_core::JobId) -> Option<Arc<JobFiles>>,
        opened: OpenedFile,
    ) {
        let OpenedFile { worker, task, object, number } = opened;
        cx.step(Event::Promised { object, task, worker });
        let job = cx.scheduler.job_of_object(object).filter(|_| cx.scheduler.is_promise_referenced(object));
        let Some(job) = job else { return };
        match files(job).filter(|files| files.bytes(number).is_some()) {
            Some(files) => {
                self.waiting.push_back(ReadRequest { object, job, files, number });
                self.read(cx);
            }
            None => cx.step(Event::Fulfilled { object, value: Err(unknown(number)) }),
        }
    }

    /// Admits files that were read. Returns whether there were any.
    pub(super) fn poll(&mut self, cx: &mut Context) -> bool {
        let mut worked = false;
        while self.retry_admission(cx) {
            let Some(ReadResult { request, content }) = cx.driver.next_file() else { break };
            worked = true;
            self.reads -= 1;
            self.read_bytes -= size(&request);
            let object = request.object;
            match content.and_then(|content| admit(cx, &request, content)) {
                Ok(StoredValue::Local(key, _)) if cx.values.exceeds_limit(key) => {
                    self.over_limit = Some((object, key));
                    cx.values.retry_spill();
                }
                value => cx.step(Event::Fulfilled { object, value }),
            }
        }
        self.read(cx);
        worked
    }

    /// Returns whether the last file has memory, or was refused since there is none.
    fn retry_admission(&mut self, cx: &mut Context) -> bool {
        let Some((object, key)) = self.over_limit else { return true };
        let value = match cx.values.full().cloned() {
            _ if !cx.values.exceeds_limit(key) => Ok(cx.stored(key)),
            Some(full) => {
                cx.values.drop_value(key);
                Err(full)
            }
            None => return false,
        };
        self.over_limit = None;
        cx.step(Event::Fulfilled { object, value });
        true
    }

    /// Reads files that are still referenced, as far as the limits permit.
    fn read(&mut self, cx: &mut Context) {
        while self.over_limit.is_none() && self.reads < READS_MAX {
            let Some(next) = self.waiting.front() else { break };
            let (object, bytes) = (next.object, size(next));
            if self.reads > 0 && self.read_bytes.saturating_add(bytes) > READ_BYTES_MAX {
                break;
            }
            let Some(next) = self.waiting.pop_front() else { break };
            if !cx.scheduler.is_promise_referenced(object) {
                let fault = Fault::new(Code::Cancelled, "no task refers to it any more");
                cx.step(Event::Fulfilled { object, value: Err(fault) });
                continue;
            }
            self.reads += 1;
            self.read_bytes += bytes;
            cx.driver.read_file(next);
        }
    }
}

fn admit(cx: &mut Context, request: &ReadRequest, content: Content) -> Result<StoredValue, Fault> {
    let memory = match content {
        Content::Bytes(bytes) if !is_stored(&bytes) => return Ok(StoredValue::Inline(bytes.into())),
        Content::Bytes(bytes) => ValueMemory::Bytes(bytes.into()),
        Content::Object(object) => ValueMemory::Sealed(object),
    };
    cx.store(request.job, request.object, memory)
}

fn size(request: &ReadRequest) -> u64 {
    request.files.bytes(request.number).unwrap_or(0)
}
