//! Inputs of calls: batches, and work units of groups.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use sandbar_batch::EncodedBatch;
use sandbar_core::{Code, Fault};
use sandbar_dataset::{UnitGroup, UnitMemory, UnitShape};
use sandbar_store::{SegmentDraft, SegmentPart};
use sandbar_worker::{BatchLocation, GROUP_BYTES, Groups, INLINE_BYTES_MAX, JobCalls, PART_ALIGNMENT, Payload};

fn encode(batch: &RecordBatch) -> Result<EncodedBatch, Fault> {
    sandbar_batch::encode(batch).map_err(|e| Fault::new(Code::Columns, e.to_string()))
}

/// Maximum bytes of memory to reserve for batches that are expected but may not arrive.
const RESERVED_BYTES_MAX: usize = 16 << 20;

/// The input of a scalar or batch function. Each batch is written to lent memory as it arrives, while it is in a cache.
pub(crate) struct BatchInput {
    /// Estimated number of batches.
    expected_batches: usize,
    /// The first batch, while it is the only one and fits a message.
    inline: Option<Box<EncodedInput>>,
    draft: Option<SegmentDraft>,
    batches: Vec<BatchLocation>,
    /// Companion columns of the batches that have any.
    companions: Vec<BatchLocation>,
    /// End of the written data, in bytes.
    end: usize,
}

/// An encoded batch with its companion columns.
struct EncodedInput {
    batch: EncodedBatch,
    companions: Option<EncodedBatch>,
}

impl BatchInput {
    pub(crate) fn new(expected_batches: usize) -> BatchInput {
        BatchInput { expected_batches, inline: None, draft: None, batches: Vec::new(), companions: Vec::new(), end: 0 }
    }

    /// Returns the locations of the companion columns, if the input is in lent memory and each batch has them.
    pub(crate) fn companions(&self) -> Option<&[BatchLocation]> {
        (!self.companions.is_empty() && self.companions.len() == self.batches.len()).then_some(&self.companions)
    }

    /// Returns the bytes that are written to lent memory.
    pub(crate) fn bytes(&self) -> usize {
        self.end
    }

    /// Appends a batch and its companion columns, which the output of a scalar function is collected with.
    pub(crate) fn push(
        &mut self,
        calls: &JobCalls,
        batch: &RecordBatch,
        companions: Option<&RecordBatch>,
    ) -> Result<(), Fault> {
        let input = EncodedInput { batch: encode(batch)?, companions: companions.map(encode).transpose()? };
        if let Some(first) = self.inline.take() {
            self.write(calls, &first)?;
        } else if self.batches.is_empty() && input.batch.header.len() + input.batch.body_bytes <= INLINE_BYTES_MAX {
            self.inline = Some(input.into());
            return Ok(());
        }
        self.write(calls, &input)
    }

    fn write(&mut self, calls: &JobCalls, EncodedInput { batch, companions }: &EncodedInput) -> Result<(), Fault> {
        let bytes = |batch: &EncodedBatch| batch.body_bytes + batch.header.len().next_multiple_of(PART_ALIGNMENT);
        let companion_bytes = companions.as_ref().map_or(0, |companions| bytes(companions) + PART_ALIGNMENT);
        // Expected batches are about as large as this one.
        let remaining = self.expected_batches.saturating_sub(self.batches.len() + 1);
        let following_bytes = remaining * ((bytes(batch) + companion_bytes) / 16 * 17);
        let location = self.write_batch(calls, batch, companion_bytes + following_bytes)?;
        self.batches.push(location);
        if let Some(companions) = companions {
            let location = self.write_batch(calls, companions, following_bytes)?;
            self.companions.push(location);
        }
        Ok(())
    }

    /// Writes a batch, and reserves memory for about `following_bytes` bytes after it.
    fn write_batch(
        &mut self,
        calls: &JobCalls,
        batch: &EncodedBatch,
        following_bytes: usize,
    ) -> Result<BatchLocation, Fault> {
        let ([body_at, header_at], end) = part_offsets(self.end, [batch.body_bytes, batch.header.len()]);
        let capacity = end + following_bytes.min(RESERVED_BYTES_MAX);
        let draft = match self.draft.take() {
            None => calls.draft(capacity),
            Some(draft) if end <= draft.bytes() => Ok(draft),
            Some(draft) => draft.copy_with_capacity(capacity.max(2 * self.end)),
        };
        let draft = self.draft.insert(draft.map_err(no_memory)?);
        let buffers = batch.buffers.iter().map(|(at, bytes)| SegmentPart::Bytes(body_at + at, bytes));
        let mut parts = buffers.chain([SegmentPart::Bytes(header_at, &batch.header)]);
        parts.try_for_each(|part| draft.put(&part)).map_err(no_memory)?;
        let (body_bytes, header_bytes) = (batch.body_bytes as u64, batch.header.len() as u64);
        self.end = end;
        Ok(BatchLocation { body_at: body_at as u64, body_bytes, header_bytes })
    }

    /// Returns the input, which must have at least one batch.
    pub(crate) fn finish(self) -> Result<Payload, Fault> {
        if let Some(EncodedInput { batch, .. }) = self.inline.map(|inline| *inline) {
            return Ok(Payload::Inline { body: batch.body().into(), header: batch.header.into() });
        }
        let draft = self.draft.ok_or_else(|| Fault::new(Code::Host, "a call without batches"))?;
        Ok(Payload::File { file: Arc::new(draft.lend()), batches: self.batches.into() })
    }
}

/// The memory of a work unit, which becomes the input of trainers.
pub(crate) struct UnitInput {
    draft: SegmentDraft,
    shape: UnitShape,
    header: Vec<u8>,
    /// Offsets of the header, the group table and the test targets.
    offsets: [usize; 3],
}

impl UnitInput {
    /// Allocates memory for a unit of this shape, with the columns of `schema`.
    pub(crate) fn reserve(calls: &JobCalls, schema: &Schema, shape: &UnitShape) -> Result<UnitInput, Fault> {
        let column = [0, size_of::<f64>() * shape.rows];
        let header = sandbar_batch::flat_header(schema, shape.rows, &vec![(0, &column[..]); shape.columns])
            .map_err(|e| Fault::new(Code::Columns, e.to_string()))?;
        let lengths = [header.len(), GROUP_BYTES * shape.groups, size_of::<f64>() * shape.test_rows];
        let (offsets, end) = part_offsets(body_bytes(shape), lengths);
        Ok(UnitInput { draft: calls.draft(end).map_err(no_memory)?, shape: *shape, header, offsets })
    }

    /// Returns the input, once the numbers are written.
    pub(crate) fn lend(mut self, groups: &[UnitGroup]) -> Result<(Payload, Groups), Fault> {
        let mut table = Vec::with_capacity(groups.len() * GROUP_BYTES);
        for group in groups {
            Groups::append(&mut table, group.first_row, group.train_rows, group.test_rows, group.seed);
        }
        let [header_at, table_at, targets_at] = self.offsets;
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
        let targets_at = self.offsets[2] / size_of::<f64>() - self.shape.numbers();
        (columns, &mut rest[targets_at..][..self.shape.test_rows])
    }
}

fn body_bytes(shape: &UnitShape) -> usize {
    size_of::<f64>() * shape.numbers()
}

/// A group to predict: its range of rows, and its stored model.
pub(crate) struct PredictionGroup<'a> {
    pub first_row: u32,
    pub rows: u32,
    pub model: &'a [u8],
}

/// Writes the input of a prediction: the rows of groups, with the stored model of each.
pub(crate) fn prediction_input(
    calls: &JobCalls,
    batch: &RecordBatch,
    groups: &[PredictionGroup<'_>],
) -> Result<(Payload, Groups), Fault> {
    let encoded = encode(batch)?;
    let mut table = Vec::with_capacity(groups.len() * GROUP_BYTES);
    for group in groups {
        Groups::append(&mut table, group.first_row, 0, group.rows, 0);
    }
    let mut extra = Vec::new();
    let mut offset = 0u64;
    extra.extend_from_slice(&offset.to_le_bytes());
    for group in groups {
        offset += group.model.len() as u64;
        extra.extend_from_slice(&offset.to_le_bytes());
    }
    groups.iter().for_each(|group| extra.extend_from_slice(group.model));
    let lengths = [encoded.body_bytes, encoded.header.len(), table.len(), extra.len()];
    let ([_, header_at, table_at, extra_at], end) = part_offsets(0, lengths);
    let buffers = encoded.buffers.iter().map(|(at, bytes)| SegmentPart::Bytes(*at, bytes));
    let others = [(header_at, &encoded.header), (table_at, &table), (extra_at, &extra)];
    let mut parts = buffers.chain(others.map(|(at, bytes)| SegmentPart::Bytes(at, bytes)));
    let mut draft = calls.draft(end).map_err(no_memory)?;
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

/// Lays out parts of these lengths after `end`, each aligned. Returns their offsets, and the end of the last.
fn part_offsets<const N: usize>(mut end: usize, lengths: [usize; N]) -> ([usize; N], usize) {
    let offsets = lengths.map(|length| {
        let offset = end.next_multiple_of(PART_ALIGNMENT);
        end = offset + length;
        offset
    });
    (offsets, end)
}

fn no_memory(error: io::Error) -> Fault {
    Fault::new(Code::Host, format!("allocating memory for the input of a call: {error}"))
}
