//! Batches and units of groups as inputs of calls.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use sandbar_batch::EncodedBatch;
use sandbar_core::{Code, Fault};
use sandbar_dataset::{UnitGroup, UnitMemory, UnitShape};
use sandbar_store::{SegmentDraft, SegmentPart};
use sandbar_worker::{BatchLocation, GROUP_BYTES, Groups, INLINE_BYTES_MAX, PART_ALIGNMENT, Payload, Pool};

fn encode(batch: &RecordBatch) -> Result<EncodedBatch, Fault> {
    sandbar_batch::encode(batch).map_err(|e| Fault::new(Code::Columns, e.to_string()))
}

/// Room for batches that are to come, at most, in bytes: there may be none.
const AHEAD_BYTES_MAX: usize = 16 << 20;

/// The input of a scalar or batch function: batches, each laid in lent memory as it comes, while it is in a cache.
pub(crate) struct BatchInput {
    /// How many batches there will be, about.
    expected: usize,
    /// The first, while it is the only one and fits a message.
    small: Option<Box<(EncodedBatch, Option<EncodedBatch>)>>,
    draft: Option<SegmentDraft>,
    batches: Vec<BatchLocation>,
    /// The columns beside each batch, if they were given.
    beside: Vec<BatchLocation>,
    end: usize,
}

impl BatchInput {
    pub(crate) fn new(expected: usize) -> BatchInput {
        BatchInput { expected, small: None, draft: None, batches: Vec::new(), beside: Vec::new(), end: 0 }
    }

    /// Where the columns beside each batch were laid: nowhere, unless all came with such.
    pub(crate) fn beside(&self) -> Option<&[BatchLocation]> {
        (!self.beside.is_empty() && self.beside.len() == self.batches.len()).then_some(&self.beside)
    }

    /// Bytes that were laid in lent memory.
    pub(crate) fn bytes(&self) -> usize {
        self.end
    }

    /// Lays the next batch, and the columns that what comes of it is put beside.
    pub(crate) fn push(&mut self, pool: &Pool, batch: &RecordBatch, beside: Option<&RecordBatch>) -> Result<(), Fault> {
        let (encoded, beside) = (encode(batch)?, beside.map(encode).transpose()?);
        if let Some(first) = self.small.take() {
            self.lay_both(pool, &first.0, first.1.as_ref())?;
        } else if self.batches.is_empty() && encoded.header.len() + encoded.body_bytes <= INLINE_BYTES_MAX {
            self.small = Some((encoded, beside).into());
            return Ok(());
        }
        self.lay_both(pool, &encoded, beside.as_ref())
    }

    fn lay_both(&mut self, pool: &Pool, batch: &EncodedBatch, beside: Option<&EncodedBatch>) -> Result<(), Fault> {
        let taken = |batch: &EncodedBatch| batch.body_bytes + batch.header.len().next_multiple_of(PART_ALIGNMENT);
        let of_beside = beside.map_or(0, |beside| taken(beside) + PART_ALIGNMENT);
        // Those that come are of about the same size.
        let more = self.expected.saturating_sub(self.batches.len() + 1) * ((taken(batch) + of_beside) / 16 * 17);
        let at = self.lay(pool, batch, of_beside + more)?;
        self.batches.push(at);
        if let Some(beside) = beside {
            let at = self.lay(pool, beside, more)?;
            self.beside.push(at);
        }
        Ok(())
    }

    /// Lays a batch where `more` bytes are to follow, about.
    fn lay(&mut self, pool: &Pool, batch: &EncodedBatch, more: usize) -> Result<BatchLocation, Fault> {
        let ([body_at, header_at], end) = places(self.end, [batch.body_bytes, batch.header.len()]);
        let wanted = end + more.min(AHEAD_BYTES_MAX);
        let draft = match self.draft.take() {
            None => pool.draft(wanted),
            Some(draft) if end <= draft.bytes() => Ok(draft),
            Some(draft) => draft.copy_with_capacity(wanted.max(2 * self.end)),
        };
        let draft = self.draft.insert(draft.map_err(no_memory)?);
        let buffers = batch.buffers.iter().map(|(at, bytes)| SegmentPart::Bytes(body_at + at, bytes));
        let mut parts = buffers.chain([SegmentPart::Bytes(header_at, &batch.header)]);
        parts.try_for_each(|part| draft.put(&part)).map_err(no_memory)?;
        let (body_bytes, header_bytes) = (batch.body_bytes as u64, batch.header.len() as u64);
        self.end = end;
        Ok(BatchLocation { body_at: body_at as u64, body_bytes, header_bytes })
    }

    /// The input, of one batch or more.
    pub(crate) fn finish(self) -> Result<Payload, Fault> {
        if let Some((only, _)) = self.small.map(|small| *small) {
            return Ok(Payload::Inline { body: only.body().into(), header: only.header.into() });
        }
        let draft = self.draft.ok_or_else(|| Fault::new(Code::Host, "a call of no batches"))?;
        Ok(Payload::File { file: Arc::new(draft.lend()), batches: self.batches.into() })
    }
}

/// The memory of a unit, which becomes the input of trainers.
pub(crate) struct UnitInput {
    draft: SegmentDraft,
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
    pub(crate) fn lend(mut self, groups: &[UnitGroup]) -> Result<(Payload, Groups), Fault> {
        let mut table = Vec::with_capacity(groups.len() * GROUP_BYTES);
        for group in groups {
            Groups::append(&mut table, group.first_row, group.train_rows, group.test_rows, group.seed);
        }
        let [header_at, table_at, targets_at] = self.places;
        let target_bytes = size_of::<f64>() * self.shape.test_rows;
        let body_bytes = body_bytes(&self.shape);
        let parts = [
            SegmentPart::Written(0, body_bytes),
            SegmentPart::Bytes(header_at, &self.header),
            SegmentPart::Bytes(table_at, &table),
            SegmentPart::Written(targets_at, target_bytes),
        ];
        parts.iter().try_for_each(|part| self.draft.put(part)).map_err(no_memory)?;
        let file = Arc::new(self.draft.lend());
        let (body_bytes, header_bytes) = (body_bytes as u64, self.header.len() as u64);
        let payload = Payload::File { file, batches: [BatchLocation { body_at: 0, body_bytes, header_bytes }].into() };
        let groups = Groups {
            count: groups.len() as u32,
            table_at: table_at as u64,
            extra_at: targets_at as u64,
            extra_bytes: target_bytes as u64,
            first: 0,
            without: BTreeSet::new(),
        };
        Ok((payload, groups))
    }
}

impl UnitMemory for UnitInput {
    fn buffers(&mut self) -> (&mut [f64], &mut [f64]) {
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
    let lengths = [encoded.body_bytes, encoded.header.len(), table.len(), extra.len()];
    let ([_, header_at, table_at, extra_at], end) = places(0, lengths);
    let buffers = encoded.buffers.iter().map(|(at, bytes)| SegmentPart::Bytes(*at, bytes));
    let others = [(header_at, &encoded.header), (table_at, &table), (extra_at, &extra)];
    let mut parts = buffers.chain(others.map(|(at, bytes)| SegmentPart::Bytes(at, bytes)));
    let mut draft = pool.draft(end).map_err(no_memory)?;
    parts.try_for_each(|part| draft.put(&part)).map_err(no_memory)?;
    let (body_bytes, header_bytes) = (encoded.body_bytes as u64, encoded.header.len() as u64);
    let batches = [BatchLocation { body_at: 0, body_bytes, header_bytes }].into();
    let payload = Payload::File { file: Arc::new(draft.lend()), batches };
    let groups = Groups {
        count: groups.len() as u32,
        table_at: table_at as u64,
        extra_at: extra_at as u64,
        extra_bytes: extra.len() as u64,
        first: 0,
        without: BTreeSet::new(),
    };
    Ok((payload, groups))
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
