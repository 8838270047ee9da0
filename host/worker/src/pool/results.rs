//! Results of calls.

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use sandbar_core::{Code, Fault, Function};

/// A line of a guest's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// `debug`, `info`, `warn` or `error`.
    pub level: &'static str,
    /// Text of the line.
    pub message: String,
}

/// Output of a call.
#[derive(Debug)]
pub enum CallProduct {
    /// Validated batches.
    Batches(Vec<RecordBatch>),
    /// Collected output of [`CallWork::Collect`](crate::CallWork::Collect), and the number of rows of a
    /// [stored](crate::Payload::Stored) input. Both are reported by the worker and untrusted.
    Collected(Buffer, u64),
    /// Descriptions of functions, for [`CallWork::Describe`](crate::CallWork::Describe).
    Functions(Vec<Function>),
}

impl Default for CallProduct {
    fn default() -> Self {
        CallProduct::Batches(Vec::new())
    }
}

impl CallProduct {
    fn other(&self) -> Fault {
        let kind = match self {
            CallProduct::Batches(_) => "batches",
            CallProduct::Collected(..) => "collected output",
            CallProduct::Functions(_) => "functions",
        };
        Fault::new(Code::Host, format!("the worker returned {kind} for a call of another kind"))
    }

    /// Returns the batches.
    ///
    /// # Errors
    /// Fails if the output is of another kind.
    pub fn into_batches(self) -> Result<Vec<RecordBatch>, Fault> {
        if let CallProduct::Batches(batches) = self { Ok(batches) } else { Err(self.other()) }
    }

    /// Returns the collected output, and the number of rows of a stored input.
    ///
    /// # Errors
    /// Fails if the output is of another kind.
    pub fn into_collected(self) -> Result<(Buffer, u64), Fault> {
        if let CallProduct::Collected(collected, rows) = self { Ok((collected, rows)) } else { Err(self.other()) }
    }

    /// Returns the descriptions of functions.
    ///
    /// # Errors
    /// Fails if the output is of another kind.
    pub fn into_functions(self) -> Result<Vec<Function>, Fault> {
        if let CallProduct::Functions(functions) = self { Ok(functions) } else { Err(self.other()) }
    }
}

/// Result of a call that did not fail as a whole.
#[derive(Debug, Default)]
pub struct CompletedCall {
    /// Its output.
    pub product: CallProduct,
    /// Groups that ended a worker, each with its fault.
    pub lost_groups: Vec<(u32, Fault)>,
    /// Peak linear memory of the sandbox, in bytes.
    pub memory_bytes: u64,
    /// Run time in the worker, in nanoseconds.
    pub nanos: u64,
}

/// Result of a call.
#[derive(Debug)]
pub struct CallResult {
    /// Log of the call. If the call ended a worker, the log of the group that did so.
    pub log: Vec<LogLine>,
    /// Its output, or its fault.
    pub result: Result<CompletedCall, Fault>,
}

/// Result of a [submitted](super::Pool::submit) call.
#[derive(Debug)]
pub struct SubmissionResult {
    /// Token from the submission.
    pub token: u64,
    /// Result of the call.
    pub called: CallResult,
}

impl From<Fault> for CallResult {
    fn from(fault: Fault) -> Self {
        CallResult { log: Vec::new(), result: Err(fault) }
    }
}
