//! Batches and units of groups as inputs of calls.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use sandbar_batch::Encoded;
use sandbar_core::{Code, Fault};
use sandbar_dataset::Unit;
use sandbar_store::{Lent, Part};
use sandbar_worker::{Groups, Payload, Pool};

/// Inputs up to this size go inside the message.
const INLINE_BYTES_MAX: usize = 2 << 10;
const PAGE: usize = 4096;
const GROUP_BYTES: usize = 24;

fn encode(batch: &RecordBatch) -> Result<Encoded, Fault> {
    sandbar_batch::encode(batch).map_err(|e| Fault::new(Code::Columns, e.to_string()))
}

/// A batch as the input of a scalar or batch function.
pub(crate) fn of_batch(pool: &Pool, batch: &RecordBatch) -> Result<Payload, Fault> {
    let encoded = encode(batch)?;
    if encoded.header.len() + encoded.body_bytes <= INLINE_BYTES_MAX {
        let body = encoded.body();
        return Ok(Payload::Inline { header: encoded.header, body });
    }
    let (file, _) = write(pool, &encoded, &[])?;
    Ok(Payload::File { file, body_bytes: encoded.body_bytes as u64, header_bytes: encoded.header.len() as u64 })
}

/// The groups of a unit as the input of trainers.
pub(crate) fn of_unit(pool: &Pool, unit: &Unit) -> Result<(Payload, Groups), Fault> {
    let encoded = encode(&unit.batch)?;
    let mut table = Vec::with_capacity(unit.groups.len() * GROUP_BYTES);
    for group in &unit.groups {
        for number in [group.first_row, group.train_rows, group.test_rows, 0] {
            table.extend_from_slice(&number.to_le_bytes());
        }
        table.extend_from_slice(&group.seed.to_le_bytes());
    }
    let targets = Buffer::from_slice_ref(&unit.test_targets);
    with_groups(pool, &encoded, unit.groups.len(), &table, &targets)
}

/// Rows of groups with the stored model of each.
pub(crate) fn of_models(
    pool: &Pool,
    batch: &RecordBatch,
    groups: &[(u32, u32)],
    models: &[&[u8]],
) -> Result<(Payload, Groups), Fault> {
    let encoded = encode(batch)?;
    let mut table = Vec::with_capacity(groups.len() * GROUP_BYTES);
    for (first_row, rows) in groups {
        for number in [*first_row, 0, *rows, 0, 0, 0] {
            table.extend_from_slice(&number.to_le_bytes());
        }
    }
    let mut extra = Vec::new();
    let mut offset = 0u64;
    extra.extend_from_slice(&offset.to_le_bytes());
    for model in models {
        offset += model.len() as u64;
        extra.extend_from_slice(&offset.to_le_bytes());
    }
    models.iter().for_each(|model| extra.extend_from_slice(model));
    with_groups(pool, &encoded, groups.len(), &table, &extra)
}

fn with_groups(
    pool: &Pool,
    encoded: &Encoded,
    count: usize,
    table: &[u8],
    extra: &[u8],
) -> Result<(Payload, Groups), Fault> {
    let (file, places) = write(pool, encoded, &[table, extra])?;
    let payload =
        Payload::File { file, body_bytes: encoded.body_bytes as u64, header_bytes: encoded.header.len() as u64 };
    let groups = Groups {
        count: count as u32,
        table_at: places[0] as u64,
        extra_at: places[1] as u64,
        extra_bytes: extra.len() as u64,
    };
    Ok((payload, groups))
}

/// `body | header | others…`, each from a page on; says where the others are.
fn write(pool: &Pool, encoded: &Encoded, others: &[&[u8]]) -> Result<(Arc<Lent>, Vec<usize>), Fault> {
    let mut parts: Vec<Part<'_>> = encoded.buffers.iter().map(|(at, bytes)| Part { at: *at, bytes }).collect();
    let mut end = encoded.body_bytes.next_multiple_of(PAGE);
    let mut places = Vec::new();
    for bytes in std::iter::once(&encoded.header.as_slice()).chain(others) {
        places.push(end);
        parts.push(Part { at: end, bytes });
        end = (end + bytes.len()).next_multiple_of(PAGE);
    }
    places.remove(0);
    Ok((pool.lend(end, &parts)?, places))
}
