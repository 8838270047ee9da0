//! Batches and units of groups as inputs of calls.

use std::io;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use sandbar_batch::Encoded;
use sandbar_core::{Code, Fault};
use sandbar_dataset::{UnitGroup, UnitMemory, UnitShape};
use sandbar_store::{Draft, Part};
use sandbar_worker::{BatchAt, GROUP_BYTES, Groups, INLINE_BYTES_MAX, PART_ALIGNMENT, Payload, Pool};

fn encode(batch: &RecordBatch) -> Result<Encoded, Fault> {
    sandbar_batch::encode(batch).map_err(|e| Fault::new(Code::Columns, e.to_string()))
}

/// Batches as the input of a scalar or batch function.
pub(crate) fn of_batches(pool: &Pool, batches: &[RecordBatch]) -> Result<Payload, Fault> {
    let encoded = batches.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    if let [only] = encoded.as_slice()
        && only.header.len() + only.body_bytes <= INLINE_BYTES_MAX
    {
        return Ok(Payload::Inline { header: only.header.clone(), body: only.body() });
    }
    let (payload, []) = write(pool, &encoded, [])?;
    Ok(payload)
}

/// The memory of a unit, which becomes the input of trainers.
pub(crate) struct UnitInput {
    draft: Draft,
    shape: UnitShape,
    header: Vec<u8>,
    /// Where header, table of groups and test targets go.
    places: [usize; 3],
}

impl UnitInput {
    /// Memory for a unit of this shape, whose columns are those of `schema`.
    pub(crate) fn reserve(pool: &Pool, schema: &Schema, shape: &UnitShape) -> Result<UnitInput, Fault> {
        let column = [0, size_of::<f64>() * shape.rows];
        let header = sandbar_batch::flat_header(schema, shape.rows, &vec![(0, &column[..]); shape.columns])
            .map_err(|e| Fault::new(Code::Columns, e.to_string()))?;
        let lengths = [header.len(), GROUP_BYTES * shape.groups, size_of::<f64>() * shape.test_rows];
        let (places, end) = places(body_bytes(shape), lengths);
        Ok(UnitInput { draft: pool.draft(end).map_err(no_memory)?, shape: *shape, header, places })
    }

    /// The input, now that the numbers are in it.
    pub(crate) fn lend(self, groups: &[UnitGroup]) -> Result<(Payload, Groups), Fault> {
        let mut table = Vec::with_capacity(groups.len() * GROUP_BYTES);
        for group in groups {
            Groups::append(&mut table, group.first_row, group.train_rows, group.test_rows, group.seed);
        }
        let [header_at, table_at, targets_at] = self.places;
        let target_bytes = size_of::<f64>() * self.shape.test_rows;
        let body_bytes = body_bytes(&self.shape);
        let parts = [
            Part::Written(0, body_bytes),
            Part::Bytes(header_at, &self.header),
            Part::Bytes(table_at, &table),
            Part::Written(targets_at, target_bytes),
        ];
        let file = Arc::new(self.draft.lend(&parts).map_err(no_memory)?);
        let (body_bytes, header_bytes) = (body_bytes as u64, self.header.len() as u64);
        let payload = Payload::File { file, batches: vec![BatchAt { body_at: 0, body_bytes, header_bytes }] };
        let groups = Groups {
            count: groups.len() as u32,
            table_at: table_at as u64,
            extra_at: targets_at as u64,
            extra_bytes: target_bytes as u64,
        };
        Ok((payload, groups))
    }
}

impl UnitMemory for UnitInput {
    fn room(&mut self) -> (&mut [f64], &mut [f64]) {
        let (columns, rest) = self.draft.numbers().split_at_mut(self.shape.numbers());
        let targets_at = self.places[2] / size_of::<f64>() - self.shape.numbers();
        (columns, &mut rest[targets_at..][..self.shape.test_rows])
    }
}

fn body_bytes(shape: &UnitShape) -> usize {
    size_of::<f64>() * shape.numbers()
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
        Groups::append(&mut table, *first_row, 0, *rows, 0);
    }
    let mut extra = Vec::new();
    let mut offset = 0u64;
    extra.extend_from_slice(&offset.to_le_bytes());
    for model in models {
        offset += model.len() as u64;
        extra.extend_from_slice(&offset.to_le_bytes());
    }
    models.iter().for_each(|model| extra.extend_from_slice(model));
    let (payload, [table_at, extra_at]) = write(pool, &[encoded], [&table, &extra])?;
    let groups = Groups {
        count: groups.len() as u32,
        table_at: table_at as u64,
        extra_at: extra_at as u64,
        extra_bytes: extra.len() as u64,
    };
    Ok((payload, groups))
}

/// `body | header` of each batch, `others…`, each at a multiple of [`PART_ALIGNMENT`]; says where the others are.
fn write<const N: usize>(pool: &Pool, encoded: &[Encoded], others: [&[u8]; N]) -> Result<(Payload, [usize; N]), Fault> {
    let mut batches = Vec::with_capacity(encoded.len());
    let mut parts = Vec::new();
    let mut end = 0;
    for batch in encoded {
        let ([body_at, header_at], behind) = places(end, [batch.body_bytes, batch.header.len()]);
        parts.extend(batch.buffers.iter().map(|(at, bytes)| Part::Bytes(body_at + at, bytes)));
        parts.push(Part::Bytes(header_at, &batch.header));
        let (body_bytes, header_bytes) = (batch.body_bytes as u64, batch.header.len() as u64);
        batches.push(BatchAt { body_at: body_at as u64, body_bytes, header_bytes });
        end = behind;
    }
    let (places, end) = places(end, others.map(<[u8]>::len));
    parts.extend(places.iter().zip(others).map(|(at, bytes)| Part::Bytes(*at, bytes)));
    let file = Arc::new(pool.draft(end).and_then(|draft| draft.lend(&parts)).map_err(no_memory)?);
    Ok((Payload::File { file, batches }, places))
}

/// Where parts of these lengths start behind what ends at `end`, each aligned, and where the last of them ends.
fn places<const N: usize>(mut end: usize, lengths: [usize; N]) -> ([usize; N], usize) {
    let places = lengths.map(|length| {
        let at = end.next_multiple_of(PART_ALIGNMENT);
        end = at + length;
        at
    });
    (places, end)
}

fn no_memory(error: io::Error) -> Fault {
    Fault::new(Code::Host, format!("memory for the input of a call: {error}"))
}
