//! Validates a worker's report of a call: the worker may have been taken over by its guest.

use arrow_array::RecordBatch;
use arrow_buffer::{Buffer, MutableBuffer};
use sandbar_core::{Code, Fault, Limits};
use sandbar_store::SharedMemory;

use super::results::{CallProduct, CallResult, CompletedCall, LogLine};
use crate::batches::{BatchReader, malformed};
use crate::process::{BATCH_PREFIX_BYTES, LOG_SPACE_BYTES};
use crate::protocol::{
    CallDelivery, CallReply, CallWork, CollectSpec, FromWorker, Groups, INLINE_BYTES_MAX, Output, Payload,
    collected_bytes_max,
};

/// Converts a worker's reply to a result of `work`. `lost_groups` are the groups that the call lost before.
#[inline]
pub(super) fn unpack(
    work: &CallWork,
    limits: &Limits,
    slot: &SharedMemory,
    done: CallReply,
    lost_groups: Vec<(u32, Fault)>,
) -> CallResult {
    let CallReply { delivered, memory_bytes, nanos } = done;
    let completed = |product| CompletedCall { product, lost_groups, memory_bytes, nanos };
    match delivered {
        None if !matches!(work, CallWork::Describe | CallWork::Collect(..)) => {
            CallResult { log: Vec::new(), result: Ok(completed(CallProduct::default())) }
        }
        None => unpack_some(work, limits, slot, CallDelivery::empty(Ok(())), completed),
        Some(delivered) => unpack_some(work, limits, slot, *delivered, completed),
    }
}

fn unpack_some(
    work: &CallWork,
    limits: &Limits,
    slot: &SharedMemory,
    delivered: CallDelivery,
    completed: impl FnOnce(CallProduct) -> CompletedCall,
) -> CallResult {
    let CallDelivery { result, output, log_bytes, rows } = delivered;
    let bytes_max = match work {
        CallWork::Collect(..) => collected_bytes_max(limits),
        _ => limits.output_bytes_max,
    };
    let result = result.map_err(|fault| *fault);
    match opened(slot, &output, bytes_max.saturating_add(LOG_SPACE_BYTES), log_bytes) {
        Ok((data, end, log)) => {
            let product = result.and_then(|()| product(work, &data, end, rows));
            CallResult { log, result: product.map(completed) }
        }
        Err(malformed) => CallResult::from(result.err().unwrap_or(malformed)),
    }
}

/// Returns an output, the end of its data, and the log after it.
fn opened(
    slot: &SharedMemory,
    output: &Output,
    bytes_max: u64,
    log_bytes: u64,
) -> Result<(Buffer, usize, Vec<LogLine>), Fault> {
    let data = fetch(slot, output, bytes_max)?;
    if log_bytes > LOG_SPACE_BYTES {
        return Err(malformed(format!("its log takes {log_bytes} bytes, the limit is {LOG_SPACE_BYTES}")));
    }
    let end = usize::try_from(log_bytes)
        .ok()
        .and_then(|log| data.len().checked_sub(log))
        .ok_or_else(|| malformed("its log is longer than its whole output"))?;
    let log = log_lines(&data[end..])?;
    Ok((data, end, log))
}

fn product(work: &CallWork, data: &Buffer, end: usize, rows: u64) -> Result<CallProduct, Fault> {
    Ok(match work {
        CallWork::Describe => CallProduct::Functions(postcard::from_bytes(&data[..end]).map_err(malformed)?),
        CallWork::Collect(..) => CallProduct::Collected(data.slice_with_length(0, end), rows),
        _ => CallProduct::Batches(batches(data, end)?),
    })
}

/// Copies a call's output of at most `bytes_max` bytes out of shared memory, before anything reads it.
fn fetch(slot: &SharedMemory, output: &Output, bytes_max: u64) -> Result<Buffer, Fault> {
    match output {
        Output::Inline(bytes) if bytes.len() <= INLINE_BYTES_MAX => Ok(aligned(bytes)),
        Output::Inline(bytes) => {
            Err(Fault::new(Code::Host, format!("a worker sent {} bytes in a message", bytes.len())))
        }
        Output::Slot(bytes) => {
            let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX).min(slot.bytes());
            let Some(bytes) = usize::try_from(*bytes).ok().filter(|bytes| *bytes <= bytes_max) else {
                return Err(Fault::new(Code::Host, format!("a worker claims {bytes} bytes of output of {bytes_max}")));
            };
            let mut copy = MutableBuffer::with_capacity(bytes);
            // SAFETY: the range is the buffer's capacity; its bytes need not be initialised.
            slot.read(0, unsafe { std::slice::from_raw_parts_mut(copy.as_mut_ptr().cast(), bytes) });
            // SAFETY: `read` has just initialised this many bytes.
            unsafe { copy.set_len(bytes) };
            Ok(copy.into())
        }
    }
}

fn aligned(bytes: &[u8]) -> Buffer {
    let mut copy = MutableBuffer::with_capacity(bytes.len());
    copy.extend_from_slice(bytes);
    copy.into()
}

fn log_lines(bytes: &[u8]) -> Result<Vec<LogLine>, Fault> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let lines: Vec<(u8, String)> = postcard::from_bytes(bytes).map_err(malformed)?;
    Ok(lines.into_iter().map(|(level, message)| LogLine::new(level, message)).collect())
}

impl LogLine {
    /// Creates a line. Levels from 0 to 2 are debug, info and warn; all others are errors.
    pub(super) fn new(level: u8, message: String) -> LogLine {
        let level = ["debug", "info", "warn"].get(usize::from(level)).copied().unwrap_or("error");
        LogLine { level, message }
    }
}

/// Decodes batches in the layout of `process::outcome`, as untrusted input.
fn batches(data: &Buffer, end: usize) -> Result<Vec<RecordBatch>, Fault> {
    let mut out = Vec::new();
    let mut reader = BatchReader::default();
    let mut at = 0usize;
    while at < end {
        let number = |at: usize| {
            data.get(at..at + 8).map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
        };
        let lengths = number(at)
            .zip(number(at + 8))
            .and_then(|(h, b)| Some((usize::try_from(h).ok()?, usize::try_from(b).ok()?)));
        let (header_bytes, body_bytes) = lengths.ok_or_else(|| malformed("it ends in the middle of a batch"))?;
        let body_at = (at + BATCH_PREFIX_BYTES).checked_add(header_bytes).and_then(|b| b.checked_next_multiple_of(64));
        let next = body_at.and_then(|b| b.checked_add(body_bytes)).filter(|next| *next <= end);
        let (Some(body_at), Some(next)) = (body_at, next) else {
            return Err(malformed("it ends in the middle of a batch"));
        };
        let header = &data[at + BATCH_PREFIX_BYTES..at + BATCH_PREFIX_BYTES + header_bytes];
        out.push(reader.read(header, &data.slice_with_length(body_at, body_bytes))?);
        at = next;
    }
    Ok(out)
}

/// Fuzz harness: validates arbitrary bytes as a worker's message and as the content of its output slot, for each kind
/// of call.
#[doc(hidden)]
pub fn fuzz_unpack(message: &[u8], slot: &[u8]) -> Vec<CallResult> {
    let Ok(memory) = SharedMemory::new(slot.len().max(1)) else { return Vec::new() };
    memory.write(0, slot);
    let input = || Payload::Inline { header: [].into(), body: [].into() };
    let works = [
        CallWork::Describe,
        CallWork::Process(input()),
        CallWork::Collect(input(), CollectSpec { argument: 0, beside: Vec::new() }.into()),
        CallWork::Fit(input(), Groups::default().into()),
    ];
    let done_with = |work| {
        let Ok(FromWorker::Replies { done, .. }) = postcard::from_bytes(message) else { return Vec::new() };
        done.into_iter().map(|done| unpack(work, &Limits::default(), &memory, done, Vec::new())).collect()
    };
    works.iter().flat_map(done_with).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Float64Array, StringArray};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use sandbar_sandbox::Level;

    use super::*;
    use crate::process::Outcome;

    const SLOT_BYTES: usize = 64 << 10;

    fn process() -> CallWork {
        CallWork::Process(Payload::Inline { header: [].into(), body: [].into() })
    }

    fn collect() -> CallWork {
        let payload = Payload::Inline { header: [].into(), body: [].into() };
        CallWork::Collect(payload, CollectSpec { argument: 0, beside: Vec::new() }.into())
    }

    fn fit() -> CallWork {
        let groups = Groups::default();
        CallWork::Fit(Payload::Inline { header: [].into(), body: [].into() }, groups.into())
    }

    fn batch(rows: usize) -> RecordBatch {
        let numbers = Float64Array::from_iter((0..rows).map(|row| (row % 3 > 0).then_some(row as f64)));
        let texts = StringArray::from_iter_values((0..rows).map(|row| "abc".repeat(row % 4)));
        RecordBatch::try_from_iter([("x", Arc::new(numbers) as ArrayRef), ("s", Arc::new(texts))]).unwrap()
    }

    /// Returns the delivery of a worker for batches with these numbers of rows, and optionally a log line.
    fn delivered(rows: &[usize], log: bool) -> (Arc<SharedMemory>, Option<Box<CallDelivery>>) {
        let slot = Arc::new(SharedMemory::new(SLOT_BYTES).unwrap());
        let mut outcome = Outcome::new(Limits::default(), Some(slot.clone()), None);
        for rows in rows {
            let encoded = sandbar_batch::encode(&batch(*rows)).unwrap();
            let buffers: Vec<&[u8]> = encoded.buffers.iter().map(|(_, bytes)| bytes.as_slice()).collect();
            outcome.batch(&encoded.header, &buffers).unwrap();
        }
        if log {
            outcome.log(Level::Warn, "careful");
        }
        (slot, outcome.deliver(Ok(())))
    }

    fn unpacked(
        work: &CallWork,
        limits: &Limits,
        slot: &SharedMemory,
        delivered: Option<Box<CallDelivery>>,
    ) -> CallResult {
        let done = CallReply { delivered, memory_bytes: 3, nanos: 4 };
        let lost_groups = vec![(7, malformed("lost"))];
        let called = unpack(work, limits, slot, done, lost_groups.clone());
        if let Ok(CompletedCall { lost_groups: lost, memory_bytes, nanos, .. }) = &called.result {
            assert_eq!((lost, *memory_bytes, *nanos), (&lost_groups, 3, 4));
        }
        called
    }

    #[test]
    fn results_of_calls_arrive() {
        for (rows, log) in [(&[][..], false), (&[], true), (&[3], false), (&[0, 700, 1], true), (&[900, 900], false)] {
            let (slot, delivered) = delivered(rows, log);
            assert_eq!(delivered.is_none(), rows.is_empty() && !log);
            let unpack = |delivered| unpacked(&process(), &Limits::default(), &slot, delivered);
            let mut bad = delivered.clone().unwrap_or_else(|| CallDelivery::empty(Ok(())).into());
            bad.result = Err(malformed("on purpose").into());
            let failed = unpack(Some(bad));
            assert!(failed.result.is_err());
            let called = unpack(delivered);
            assert_eq!(failed.log, called.log);
            assert_eq!(
                called.result.unwrap().product.into_batches().unwrap(),
                rows.iter().map(|rows| batch(*rows)).collect::<Vec<_>>(),
                "{rows:?}"
            );
            let line = LogLine { level: "warn", message: "careful".to_owned() };
            assert_eq!(called.log, if log { vec![line] } else { Vec::new() });
        }
    }

    #[test]
    fn collected_output_is_bounded() {
        let limits = Limits { output_bytes_max: 1000, ..Limits::default() };
        let (collected, other) = (collected_bytes_max(&limits) + LOG_SPACE_BYTES, 1000 + LOG_SPACE_BYTES);
        let slot = SharedMemory::new(collected as usize + 10).unwrap();
        slot.write(0, b"something");
        for (work, bytes, log_bytes, expected) in [
            (collect(), 9, 0, Ok(&b"something"[..])),
            (collect(), 0, 0, Ok(b"")),
            (collect(), collected + 1, 0, Err(format!("claims {} bytes", collected + 1))),
            (collect(), 9, 10, Err("its log is longer".to_owned())),
            (process(), other + 1, 0, Err(format!("claims {} bytes", other + 1))),
        ] {
            let delivered = CallDelivery { result: Ok(()), output: Output::Slot(bytes), log_bytes, rows: 5 };
            match (unpacked(&work, &limits, &slot, Some(delivered.into())).result, expected) {
                (Ok(completed), Ok(bytes)) => {
                    let (collected, rows) = completed.product.into_collected().unwrap();
                    assert_eq!((collected.as_slice(), rows), (bytes, 5));
                }
                (Err(fault), Err(expected_text)) => assert!(fault.message.contains(&expected_text), "{fault}"),
                (actual, expected) => panic!("{actual:?} instead of {expected:?}"),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn damage_is_found_or_harmless(
            rows in vec(0usize..200, 0..4),
            log in any::<bool>(),
            damage in vec((any::<u16>(), any::<u8>()), 0..6),
            claim in proptest::option::of(any::<u64>()),
        ) {
            let (slot, mut delivered) = delivered(&rows, log);
            let none = || CallDelivery::empty(Ok(())).into();
            let CallDelivery { output, log_bytes, .. } = &mut **delivered.get_or_insert_with(none);
            for (at, value) in damage {
                // Half of the damage is at the start, where the lengths are.
                let at = usize::from(if value % 2 == 0 { at } else { at % 256 });
                match output {
                    Output::Inline(bytes) if bytes.is_empty() => {}
                    Output::Inline(bytes) => {
                        let at = at % bytes.len();
                        bytes[at] = value;
                    }
                    Output::Slot(_) => slot.write(at % SLOT_BYTES, &[value]),
                }
            }
            match (claim, output) {
                (Some(claim), Output::Slot(bytes)) if claim % 2 == 0 => *bytes = claim >> (claim % 64),
                (Some(claim), _) => *log_bytes = claim >> (claim % 64),
                (None, _) => {}
            }
            for work in [process(), fit(), CallWork::Describe, collect()] {
                let called = unpacked(&work, &Limits::default(), &slot, delivered.clone());
                if let Ok(completed) = called.result {
                    for column in completed.product.into_batches().iter().flatten().flat_map(RecordBatch::columns) {
                        column.to_data().validate_full().unwrap();
                    }
                }
            }
        }

        #[test]
        fn bytes_are_a_message_or_an_error(bytes in vec(any::<u8>(), 0..300)) {
            if let Ok(FromWorker::Replies { done, .. }) = postcard::from_bytes(&bytes) {
                prop_assert!(done.len() <= bytes.len());
            }
        }
    }
}
