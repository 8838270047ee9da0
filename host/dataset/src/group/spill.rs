//! Spilling of blocks.
//!
//! Several blocks are written together, partition by partition, so that all rows of a partition in one file are one
//! range and take one read.

use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use super::block::{Block, SLOTS, SliceLocation};
use super::spill_file::SpillFile;
use crate::DatasetError;

/// Bytes of the write buffer.
const WRITE_BYTES: usize = 1 << 20;

/// Writes the rows of `blocks` to a new file in `folder`, and updates their locations. Frees the blocks' memory.
pub(super) fn spill(blocks: &mut [Block], folder: &Path) -> Result<(), DatasetError> {
    write(blocks, folder).map_err(|source| DatasetError::Io {
        action: "can't spill rows to",
        path: folder.to_owned(),
        source,
    })
}

fn write(blocks: &mut [Block], folder: &Path) -> io::Result<()> {
    let file = Arc::new(SpillFile::create(folder)?);
    let mut out = BufWriter::with_capacity(WRITE_BYTES, file.writer());
    let mut next = vec![0; blocks.len()];
    let mut at = 0;
    for slot in 0..SLOTS {
        for (block, next) in blocks.iter_mut().zip(&mut next) {
            let Some(slice) = block.slices.get_mut(*next).filter(|s| usize::from(s.slot) == slot) else { continue };
            *next += 1;
            let location = match &slice.location {
                SliceLocation::Memory { rows, keys } => {
                    out.write_all(rows)?;
                    out.write_all(&[0; 8][..rows.len().next_multiple_of(8) - rows.len()])?;
                    out.write_all(keys)?;
                    SliceLocation::Disk { file: Arc::clone(&file), at, rows: rows.len(), keys: keys.len() }
                }
                SliceLocation::Disk { .. } => continue,
            };
            if let SliceLocation::Disk { rows, keys, .. } = &location {
                at += (rows.next_multiple_of(8) + keys) as u64;
            }
            slice.location = location;
        }
    }
    out.flush()
}
