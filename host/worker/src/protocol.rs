//! What node and worker say to each other.
//!
//! Over a Unix SEQPACKET socket, one message a datagram of at most
//! [`FRAME_BYTES_MAX`](sandbar_process::socket::FRAME_BYTES_MAX), in postcard. The node says [`ToWorker::Hello`] with the
//! files of the shared memory (progress, then the output slots), the worker
//! answers [`FromWorker::Ready`] once it is confined. From then on the node
//! sends programs, bindings and calls; the worker answers each message of calls,
//! in order. Small calls travel many to a message: a message costs as much as a
//! call that does little. Whichever sees the socket closed ends.
//!
//! Data does not travel in messages, unless it is small: inputs are memory files
//! that the node lends to the call and writes no more until it has its answer,
//! outputs are written into the message's slot, as they are or as what the worker
//! collects of them.
//!
//! An input file is `body | header | groups | test targets`, each part starting
//! at a page, or for a scalar or batch function `body | header` of one batch
//! after another. A guest sees a body only, and none of what its results are put
//! beside.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{Fault, Limits};
use sandbar_dense::Choice;
use sandbar_store::LentSegment;
use serde::{Deserialize, Serialize, Serializer};

/// Inputs and outputs up to this many bytes travel in the message.
pub const INLINE_BYTES_MAX: usize = 2 << 10;
/// What is collected may take this many times what a guest may hand back, and so many bytes besides: a byte may
/// become a number, and there are headers.
pub(crate) const COLLECTED_BYTES_A_BYTE: u64 = 8;
pub(crate) const COLLECTED_BYTES_MIN: u64 = 1 << 20;
/// Most calls in a message, and most bytes of their inputs.
pub(crate) const CALLS_MAX: usize = 1024;
pub(crate) const CALLS_BYTES_MAX: usize = 64 << 10;
/// Calls of a message that were not begun after this go back, for nobody to wait long for the answers of the others.
pub(crate) const MESSAGE_TIME_MAX: Duration = Duration::from_millis(10);
/// Parts of an input file start at a multiple of this.
pub const PART_ALIGNMENT: usize = 4096;

/// What the node says. It sends calls as they wait, and the worker gets them as [`Call`]s.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToWorker<C = Vec<Call>> {
    /// Files: progress, then `slots` output slots of `slot_bytes` each.
    Hello { limits: Limits, slots: u32, slot_bytes: u64 },
    /// File: compiled code of `code_bytes`.
    Program { program: u32, code_bytes: u64, image_end: u64 },
    /// Names a function with its parameters (a JSON object), the limits of its calls, and the plan of what collects
    /// their batches.
    Binding {
        binding: u32,
        program: u32,
        function: u32,
        params: String,
        limits: Limits,
        #[serde(with = "serde_bytes")]
        plan: Vec<u8>,
        device: Option<Choice>,
    },
    /// Calls to be run one after another, with a slot for their output; their ids count from `first`.
    /// File: the payload of the only call, if it is one.
    Calls { slot: u32, first: u64, calls: C },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    Ready,
    /// What came of the first of the calls that the message with this slot asked for, in order: of all
    /// of them, unless they hand back more than a message and one slot hold. The others were not begun.
    Replies {
        slot: u32,
        done: Vec<CallReply>,
    },
}

/// A call as the worker has it; the node sends what lies in its queue.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Call<W = CallWork<u64>> {
    pub binding: u32,
    pub seed: u64,
    pub work: W,
}

/// Where a batch lies in an input file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchLocation {
    /// Where its body starts, a multiple of [`PART_ALIGNMENT`].
    pub body_at: u64,
    /// Length of the body.
    pub body_bytes: u64,
    /// Length of the header, in the part behind the body.
    pub header_bytes: u64,
}

/// The most that a call under these limits may make of its batches.
pub(crate) fn collected_bytes_max(limits: &Limits) -> u64 {
    limits.output_bytes_max.saturating_mul(COLLECTED_BYTES_A_BYTE).saturating_add(COLLECTED_BYTES_MIN)
}

/// The groups of a training or prediction call, and where they are in its input file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// Number of groups, those before the first included.
    pub count: u32,
    /// The first that is to be run.
    pub first: u32,
    /// Where their table starts: for each group 24 bytes, little-endian: first
    /// row, training rows, test rows, zero (u32 each), seed (u64).
    pub table_at: u64,
    /// Where what belongs to each group starts. For training: its test targets,
    /// f64, all groups' one after another. For prediction: `count + 1` offsets
    /// (u64) and then the stored models.
    pub extra_at: u64,
    /// Length of that.
    pub extra_bytes: u64,
    /// Groups that are not to be run: they are settled already.
    #[serde(with = "ranges")]
    pub without: BTreeSet<u32>,
}

/// Sets of numbers most of which follow each other, as those of groups do that were settled in turn: as the first and the
/// count of each run, so that a message holds many.
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

/// Bytes of a group in the table.
pub const GROUP_BYTES: usize = 24;

impl Groups {
    /// Appends a group to a table.
    pub fn append(table: &mut Vec<u8>, first_row: u32, train_rows: u32, test_rows: u32, seed: u64) {
        for number in [first_row, train_rows, test_rows, 0] {
            table.extend_from_slice(&number.to_le_bytes());
        }
        table.extend_from_slice(&seed.to_le_bytes());
    }
}

/// What a call does, and with what. To a worker the file of an input is its length: the file itself travels beside
/// the message.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "F: InputFile", deserialize = "F: Deserialize<'de>"))]
pub enum CallWork<F = Arc<LentSegment>> {
    /// Asks the component for its functions.
    Describe,
    /// Runs a scalar or batch function over each batch.
    Process(Payload<F>),
    /// Runs a scalar or batch function over each batch, and collects what it hands back by the binding's plan.
    Collect(Payload<F>, Box<CollectSpec>),
    /// Fits groups, and scores them on their test rows.
    Fit(Payload<F>, Box<Groups>),
    /// Predicts groups with their stored models.
    Predict(Payload<F>, Box<Groups>),
}

/// How batches are collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectSpec {
    /// What the collector gets beside its plan.
    pub argument: u64,
    /// Of a scalar function, for each batch of the input, the columns that its results stand beside: in the same file,
    /// where the guest does not see them. Empty for a batch function.
    pub beside: Vec<BatchLocation>,
}

/// The input of a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "F: InputFile", deserialize = "F: Deserialize<'de>"))]
pub enum Payload<F = Arc<LentSegment>> {
    /// A small one.
    Inline {
        /// The batch's header.
        #[serde(with = "serde_bytes")]
        header: Box<[u8]>,
        /// The batch's body.
        #[serde(with = "serde_bytes")]
        body: Box<[u8]>,
    },
    /// Lent memory: batches, and what the call needs besides.
    File {
        /// The memory.
        #[serde(serialize_with = "serialize_bytes")]
        file: F,
        /// Its batches: one, or for [`CallWork::Process`] any number, which one sandbox is given one after another.
        batches: Box<[BatchLocation]>,
    },
    /// A file of this machine, for [`CallWork::Process`] and [`CallWork::Collect`]: a worker reads rows of it
    /// ([`crate::StoredReaders`]).
    Stored {
        /// The file, which travels beside the message.
        #[serde(skip)]
        file: Option<Arc<File>>,
        /// How it is to be read.
        #[serde(with = "serde_bytes")]
        how: Box<[u8]>,
        /// In how many batches, at most.
        batches: u64,
    },
}

impl<F> Payload<F> {
    /// How many batches there are, at most.
    pub(crate) fn batches(&self) -> u64 {
        match self {
            Payload::Inline { .. } => 1,
            Payload::File { batches, .. } => batches.len() as u64,
            Payload::Stored { batches, .. } => *batches,
        }
    }
}

/// What the file of an input is known by.
pub trait InputFile {
    /// Its length.
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

/// What came of a call. As small as can be where that is nothing: then a thousand of them are in a message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CallReply {
    /// None of a call that went well and has nothing to hand back.
    pub delivered: Option<Box<CallDelivery>>,
    /// Most linear memory of its sandbox, in bytes.
    pub memory_bytes: u64,
    pub nanos: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CallDelivery {
    pub result: Result<(), Box<Fault>>,
    pub output: Output,
    /// Length of the log behind the output's data, as postcard.
    pub log_bytes: u64,
    /// Rows of a stored input that the function was given.
    pub rows: u64,
}

impl CallDelivery {
    /// What came of a call that did no more than fail, or not.
    pub(crate) fn empty(result: Result<(), Fault>) -> CallDelivery {
        CallDelivery { result: result.map_err(Box::new), output: Output::Inline(Vec::new()), log_bytes: 0, rows: 0 }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Output {
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// So many bytes from the start of the message's slot.
    Slot(u64),
}

/// Where the progress of a worker is in its shared memory, as indices of u64. The journal follows.
pub(crate) mod progress {
    /// The call at hand.
    pub const CALL: usize = 0;
    /// The group at hand, or [`NO_GROUP`].
    pub const GROUP: usize = 1;
    /// Counts calls, batches and groups begun.
    pub const STEPS: usize = 2;
    /// Bytes of the [journal](crate::journal).
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
