//! Messages between a node and the workers of a pool.
//!
//! The messages are datagrams on a Unix SEQPACKET socket, each of at most
//! [`FRAME_BYTES_MAX`](sandbar_process::socket::FRAME_BYTES_MAX), encoded with postcard. The node sends
//! [`ToWorker::Hello`] with the files of the shared memory (progress, then the output slots); the worker answers
//! [`FromWorker::Ready`] once it is confined. After that the node sends programs, bindings and calls, and the worker
//! answers each message of calls in order. Small calls are batched into one message, because a message costs as much as
//! a call that does little. Each side ends when it sees the socket closed.
//!
//! Only small data travels in messages. Inputs are memory files that the node lends to the call and does not write
//! until it has the answer. Outputs are written into the slot of the message, either as batches or as the collected
//! form.
//!
//! An input file has the layout `body | header | groups | test targets`, each part starting at a page. The file of a
//! scalar or batch function holds `body | header` of one batch after another. A guest sees only a body, and none of the
//! columns that its results are combined with.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{Fault, Limits};
use sandbar_dense::DeviceChoice;
use sandbar_store::LentSegment;
use serde::{Deserialize, Serialize, Serializer};

/// Maximum bytes of an input or output that travels inside the message.
pub const INLINE_BYTES_MAX: usize = 2 << 10;
/// Bounds of collected output: this many times the output limit of the guest, plus a constant. A byte may become a
/// number, and there are headers.
pub(crate) const COLLECTED_BYTES_A_BYTE: u64 = 8;
pub(crate) const COLLECTED_BYTES_MIN: u64 = 1 << 20;
/// Maximum number of calls in a message, and maximum bytes of their inputs.
pub(crate) const CALLS_MAX: usize = 1024;
pub(crate) const CALLS_BYTES_MAX: usize = 64 << 10;
/// Time after which the remaining calls of a message go back to the queue, so that finished calls do not wait for their
/// answers.
pub(crate) const MESSAGE_TIME_MAX: Duration = Duration::from_millis(10);
/// Alignment in bytes of the parts of an input file.
pub const PART_ALIGNMENT: usize = 4096;

/// A message from the node. The node serializes calls from its queue; the worker deserializes them as [`Call`]s.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToWorker<C = Vec<Call>> {
    /// Files: progress, then `slots` output slots of `slot_bytes` each.
    Hello { limits: Limits, slots: u32, slot_bytes: u64 },
    /// File: compiled code of `code_bytes` bytes.
    Program { program: u32, code_bytes: u64, image_end: u64 },
    /// Binds a function to parameters (a JSON object), limits of its calls, and the plan of the collector of their
    /// batches.
    Binding {
        binding: u32,
        program: u32,
        function: u32,
        params: String,
        limits: Limits,
        #[serde(with = "serde_bytes")]
        plan: Vec<u8>,
        device: Option<DeviceChoice>,
    },
    /// Calls to run one after another, with one slot for their output; ids count from `first`. File: the
    /// payload, if there is only one call and it has one.
    Calls { slot: u32, first: u64, calls: C },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    Ready,
    /// Replies to the first calls of the message with this slot, in order. The worker stops early when an output
    /// occupies the slot, the replies fill a message, or [`MESSAGE_TIME_MAX`] has passed; the remaining calls were not
    /// started.
    Replies {
        slot: u32,
        done: Vec<CallReply>,
    },
}

/// A call as the worker receives it; the node serializes the entries of its queue.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Call<W = CallWork<u64>> {
    pub binding: u32,
    pub seed: u64,
    pub work: W,
}

/// Location of a batch in an input file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchLocation {
    /// Offset of the body in bytes, a multiple of [`PART_ALIGNMENT`].
    pub body_at: u64,
    /// Length of the body in bytes.
    pub body_bytes: u64,
    /// Length of the header in bytes; the header is the part after the body.
    pub header_bytes: u64,
}

/// Returns the maximum bytes that a call under these limits may collect.
pub(crate) fn collected_bytes_max(limits: &Limits) -> u64 {
    limits.output_bytes_max.saturating_mul(COLLECTED_BYTES_A_BYTE).saturating_add(COLLECTED_BYTES_MIN)
}

/// The groups of a training or prediction call, and their location in the input file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// Number of groups, including those before `first`.
    pub count: u32,
    /// Index of the first group to run.
    pub first: u32,
    /// Offset of the group table in bytes. Each entry has 24 bytes, little-endian: first row, training rows, test rows,
    /// zero (u32 each), seed (u64).
    pub table_at: u64,
    /// Offset of the data of the groups in bytes. For training: their test targets, f64, group after group. For
    /// prediction: `count + 1` offsets (u64), then the stored models.
    pub extra_at: u64,
    /// Length of that data in bytes.
    pub extra_bytes: u64,
    /// Groups to skip, because they are settled already.
    #[serde(with = "ranges")]
    pub without: BTreeSet<u32>,
}

/// Serializes sets of mostly consecutive numbers as runs, each with its first number and length, so that a message
/// holds many. Groups that were settled in order are such numbers.
mod ranges {
    use super::{BTreeSet, Deserialize, Serialize, Serializer};
    use serde::Deserializer;

    pub(super) fn serialize<S: Serializer>(numbers: &BTreeSet<u32>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for number in numbers {
            match ranges.last_mut() {
                Some((first, count)) if number - *first == *count => *count += 1,
                _ => ranges.push((*number, 1)),
            }
        }
        ranges.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<u32>, D::Error> {
        let ranges = Vec::<(u32, u32)>::deserialize(deserializer)?;
        Ok(ranges.into_iter().flat_map(|(first, count)| (first..=u32::MAX).take(count as usize)).collect())
    }
}

/// Bytes of an entry of the group table.
pub const GROUP_BYTES: usize = 24;

impl Groups {
    /// Appends an entry to a group table.
    pub fn append(table: &mut Vec<u8>, first_row: u32, train_rows: u32, test_rows: u32, seed: u64) {
        for number in [first_row, train_rows, test_rows, 0] {
            table.extend_from_slice(&number.to_le_bytes());
        }
        table.extend_from_slice(&seed.to_le_bytes());
    }
}

/// The operation of a call with its input. A worker sees the length of an input file; the file itself travels beside
/// the message.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "F: InputFile", deserialize = "F: Deserialize<'de>"))]
pub enum CallWork<F = Arc<LentSegment>> {
    /// Returns the functions of the component.
    Describe,
    /// Runs a scalar or batch function over each batch.
    Process(Payload<F>),
    /// Runs a scalar or batch function over each batch, and collects its output by the plan of the binding.
    Collect(Payload<F>, Box<CollectSpec>),
    /// Fits groups and scores them on their test rows.
    Fit(Payload<F>, Box<Groups>),
    /// Predicts groups with their stored models.
    Predict(Payload<F>, Box<Groups>),
}

/// How to collect the output of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectSpec {
    /// Argument for the collector, in addition to its plan.
    pub argument: u64,
    /// For a scalar function, the companion columns of each input batch: columns of the same rows, in the same file,
    /// that the guest does not see. Empty for a batch function.
    pub beside: Vec<BatchLocation>,
}

/// The input of a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "F: InputFile", deserialize = "F: Deserialize<'de>"))]
pub enum Payload<F = Arc<LentSegment>> {
    /// A small input, inside the message.
    Inline {
        /// Header of the batch.
        #[serde(with = "serde_bytes")]
        header: Box<[u8]>,
        /// Body of the batch.
        #[serde(with = "serde_bytes")]
        body: Box<[u8]>,
    },
    /// Lent memory with batches and the other data of the call.
    File {
        /// The memory.
        #[serde(serialize_with = "serialize_bytes")]
        file: F,
        /// Its batches: one, or for [`CallWork::Process`] any number, which one sandbox processes one after another.
        batches: Box<[BatchLocation]>,
    },
    /// A file of this machine, for [`CallWork::Process`] and [`CallWork::Collect`], of which a worker reads rows
    /// ([`crate::StoredReaders`]).
    Stored {
        /// The file, which travels beside the message.
        #[serde(skip)]
        file: Option<Arc<File>>,
        /// Encoded description of the rows to read.
        #[serde(with = "serde_bytes")]
        spec: Box<[u8]>,
        /// Maximum number of batches.
        batches: u64,
    },
}

impl<F> Payload<F> {
    /// Returns the maximum number of batches.
    pub(crate) fn batches(&self) -> u64 {
        match self {
            Payload::Inline { .. } => 1,
            Payload::File { batches, .. } => batches.len() as u64,
            Payload::Stored { batches, .. } => *batches,
        }
    }
}

/// A file of an input, reduced to what is serialized.
pub trait InputFile {
    /// Returns its length in bytes.
    fn bytes(&self) -> u64;
}

impl InputFile for Arc<LentSegment> {
    fn bytes(&self) -> u64 {
        LentSegment::bytes(self) as u64
    }
}

impl InputFile for u64 {
    fn bytes(&self) -> u64 {
        *self
    }
}

fn serialize_bytes<S: Serializer>(file: &impl InputFile, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(file.bytes())
}

/// Result of a call. The encoding of an empty result is small, so that a message holds a thousand of them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CallReply {
    /// `None` for a successful call without output.
    pub delivered: Option<Box<CallDelivery>>,
    /// Peak linear memory of the sandbox, in bytes.
    pub memory_bytes: u64,
    pub nanos: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CallDelivery {
    pub result: Result<(), Box<Fault>>,
    pub output: Output,
    /// Length in bytes of the log after the output's data, encoded with postcard.
    pub log_bytes: u64,
    /// Number of rows of a stored input that the function received.
    pub rows: u64,
}

impl CallDelivery {
    /// Returns a delivery without output.
    pub(crate) fn empty(result: Result<(), Fault>) -> CallDelivery {
        CallDelivery { result: result.map_err(Box::new), output: Output::Inline(Vec::new()), log_bytes: 0, rows: 0 }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Output {
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Number of bytes from the start of the message's slot.
    Slot(u64),
}

/// Layout of a worker's progress in shared memory, as indices of u64. The journal follows.
pub(crate) mod progress {
    /// Id of the current call.
    pub const CALL: usize = 0;
    /// Index of the current group, or [`NO_GROUP`].
    pub const GROUP: usize = 1;
    /// Number of calls, batches and groups started.
    pub const STEPS: usize = 2;
    /// Length of the [journal](crate::journal) in bytes.
    pub const JOURNAL: usize = 3;
    pub const NO_GROUP: u64 = u64::MAX;
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_set;
    use proptest::prelude::*;

    use super::*;

    fn sent(without: BTreeSet<u32>) -> (usize, Groups) {
        let bytes = postcard::to_stdvec(&Groups { without, ..Groups::default() }).unwrap();
        (bytes.len(), postcard::from_bytes(&bytes).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn groups_arrive_as_they_are(few in btree_set(0u32..30, 0..30), any in btree_set(any::<u32>(), 0..5)) {
            let without: BTreeSet<u32> = few.into_iter().chain(any).chain([u32::MAX - 1, u32::MAX]).collect();
            prop_assert_eq!(sent(without.clone()).1.without, without);
        }
    }

    #[test]
    fn a_message_holds_the_groups_that_calls_before_have_settled() {
        let without: BTreeSet<u32> = (0..1_000_000).filter(|group| group % 1000 != 7).collect();
        let (bytes, groups) = sent(without.clone());
        assert!(bytes < sandbar_process::socket::FRAME_BYTES_MAX / 10, "{bytes} bytes");
        assert_eq!(groups.without, without);
    }
}
