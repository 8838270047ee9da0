//! Measurement of GPU time: timestamps before and after each submission.

use std::sync::{Arc, Mutex};

use crate::device::{Device, lock};

/// Maximum number of submissions per measurement. A connection has fewer, because its messages in flight are limited.
const SPANS_MAX: u32 = 128;
/// Maximum number of query sets kept for reuse.
const REUSABLE_SETS_MAX: usize = 8;
const STAMP_BYTES: u64 = size_of::<u64>() as u64;

/// Callback that receives the nanoseconds of GPU work, if the device can measure them.
pub(crate) type DoneCallback = Box<dyn FnOnce(Option<u64>) + Send>;

/// Timestamps of a stream.
#[derive(Debug, Default)]
pub(crate) struct GpuTimer {
    current: Option<TimestampSet>,
    reusable: Arc<Mutex<Vec<TimestampSet>>>,
}

/// Two timestamps per submission, and the buffers for reading them.
#[derive(Debug)]
struct TimestampSet {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    back: wgpu::Buffer,
    spans: u32,
}

impl GpuTimer {
    /// Writes the start timestamp of a submission.
    pub(crate) fn begin(&mut self, device: &Device, encoder: &mut wgpu::CommandEncoder) {
        if !device.has_timestamps() {
            return;
        }
        let set =
            self.current.get_or_insert_with(|| lock(&self.reusable).pop().unwrap_or_else(|| TimestampSet::new(device)));
        if set.spans < SPANS_MAX {
            encoder.write_timestamp(&set.queries, 2 * set.spans);
        }
    }

    /// Writes the end timestamp of a submission.
    pub(crate) fn end(&mut self, encoder: &mut wgpu::CommandEncoder) {
        if let Some(set) = self.current.as_mut().filter(|set| set.spans < SPANS_MAX) {
            encoder.write_timestamp(&set.queries, 2 * set.spans + 1);
            set.spans += 1;
        }
    }

    /// Resolves all timestamps since the last call. [`PendingTimestamps::then`] reports them after the submission.
    pub(crate) fn resolve(&mut self, encoder: &mut wgpu::CommandEncoder) -> PendingTimestamps {
        let set = self.current.take();
        if let Some(set) = &set {
            encoder.resolve_query_set(&set.queries, 0..2 * set.spans, &set.resolved, 0);
            encoder.copy_buffer_to_buffer(&set.resolved, 0, &set.back, 0, set.bytes());
        }
        PendingTimestamps { set, reusable: self.reusable.clone() }
    }
}

impl TimestampSet {
    fn new(device: &Device) -> TimestampSet {
        let count = 2 * SPANS_MAX;
        let buffer = |usage| {
            let size = u64::from(count) * STAMP_BYTES;
            device.inner.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
        };
        let ty = wgpu::QueryType::Timestamp;
        TimestampSet {
            queries: device.inner.create_query_set(&wgpu::QuerySetDescriptor { label: None, ty, count }),
            resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
            back: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
            spans: 0,
        }
    }

    fn bytes(&self) -> u64 {
        2 * u64::from(self.spans) * STAMP_BYTES
    }
}

/// Submitted timestamps.
pub(crate) struct PendingTimestamps {
    set: Option<TimestampSet>,
    reusable: Arc<Mutex<Vec<TimestampSet>>>,
}

impl PendingTimestamps {
    pub(crate) fn then(self, device: &Device, then: DoneCallback) {
        let PendingTimestamps { set: Some(set), reusable } = self else {
            return device.queue.on_submitted_work_done(|| then(None));
        };
        let nanos_each = f64::from(device.queue.get_timestamp_period());
        let (back, bytes) = (set.back.clone(), set.bytes());
        back.map_async(wgpu::MapMode::Read, 0..bytes, move |done| {
            let mapped = done.is_ok().then(|| set.back.get_mapped_range(0..bytes).ok()).flatten();
            let nanos = mapped.map(|stamps| {
                let stamps: &[[u64; 2]] = bytemuck::cast_slice(&stamps);
                // The clock goes back if the driver is reset meanwhile.
                let ticks: u64 = stamps.iter().map(|[started, ended]| ended.saturating_sub(*started)).sum();
                (ticks as f64 * nanos_each) as u64
            });
            set.back.unmap();
            let mut reusable = lock(&reusable);
            if reusable.len() < REUSABLE_SETS_MAX {
                reusable.push(TimestampSet { spans: 0, ..set });
            }
            drop(reusable);
            then(nanos);
        });
    }
}
