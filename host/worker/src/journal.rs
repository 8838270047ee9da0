//! Log lines of the current call or group, kept in the progress memory. After a worker is killed, the node reads them
//! there.
//!
//! Each line is encoded as level (u8), length (u32, little-endian), text.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use sandbar_core::LOG_BYTES_MAX;
use sandbar_store::SharedMemory;

use crate::protocol::progress;

const AT: usize = 4096;
/// Maximum bytes of the journal: the log limit of a call, which counts more for each line than the line takes here.
const BYTES_MAX: usize = LOG_BYTES_MAX as usize;
const HEAD_BYTES: usize = 5;
/// Level of an error.
pub(crate) const ERROR: u8 = 3;
/// Bytes of progress and journal together.
pub(crate) const BYTES: usize = AT + BYTES_MAX;

/// Clears the journal (worker side).
pub(crate) fn clear(memory: &SharedMemory) {
    memory.atomic(progress::JOURNAL).store(0, Relaxed);
}

/// Appends a line if it fits (worker side).
pub(crate) fn append(memory: &SharedMemory, level: u8, message: &str) {
    let at = memory.atomic(progress::JOURNAL).load(Relaxed) as usize;
    let end = at.saturating_add(HEAD_BYTES).saturating_add(message.len());
    if end <= BYTES_MAX {
        let length = (message.len() as u32).to_le_bytes();
        memory.write(AT + at, &[level, length[0], length[1], length[2], length[3]]);
        memory.write(AT + at + HEAD_BYTES, message.as_bytes());
        memory.atomic(progress::JOURNAL).store(end as u64, Release);
    }
}

/// Reads the lines (node side). A worker may have written any bytes there.
pub(crate) fn read(memory: &SharedMemory) -> Vec<(u8, String)> {
    let bytes = memory.atomic(progress::JOURNAL).load(Acquire).min(BYTES_MAX as u64) as usize;
    let mut copy = vec![MaybeUninit::uninit(); bytes];
    let mut rest: &[u8] = memory.read(AT, &mut copy);
    let mut lines = Vec::new();
    while let Some(([level, length @ ..], behind)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let Some((message, behind)) = behind.split_at_checked(u32::from_le_bytes(*length) as usize) else { break };
        lines.push((*level, String::from_utf8_lossy(message).into_owned()));
        rest = behind;
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_last_lines_are_read(before in vec(".{0,9}", 0..3), lines in vec((0u8..4, ".{0,40}"), 0..20)) {
            let memory = SharedMemory::new(BYTES).unwrap();
            before.iter().for_each(|message| append(&memory, 0, message));
            clear(&memory);
            lines.iter().for_each(|(level, message)| append(&memory, *level, message));
            prop_assert_eq!(read(&memory), lines);
        }

        #[test]
        fn any_bytes_are_some_lines(bytes in vec(any::<u8>(), 0..300), claim in any::<u64>()) {
            let memory = SharedMemory::new(BYTES).unwrap();
            memory.write(AT, &bytes);
            for claim in [claim, claim % 400] {
                memory.atomic(progress::JOURNAL).store(claim, Relaxed);
                let taken: usize = read(&memory).iter().map(|_| HEAD_BYTES).sum();
                prop_assert!(taken <= BYTES_MAX);
            }
        }
    }

    #[test]
    fn lines_that_do_not_fit_are_dropped() {
        let memory = SharedMemory::new(BYTES).unwrap();
        let long = "x".repeat(BYTES_MAX - 2 * HEAD_BYTES);
        for message in [&long, "y", "", "z"] {
            append(&memory, 1, message);
        }
        assert_eq!(read(&memory), [(1, long), (1, String::new())]);
    }
}
