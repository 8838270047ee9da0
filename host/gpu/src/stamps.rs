//! Measurement of GPU time: timestamps before and after each submission.

use std::sync::{Arc, Mutex};

use crate::device::{Device, lock};

/// Maximum number of submissions per measurement. A connection has fewer, because its messages in flight are limited.
const SPANS_MAX: u32 = 128;
/// Maximum number of query sets kept for reuse.
const SETS_KEPT: usize = 8;
const STAMP_BYTES: u64 = size_of::<u64>() as u64;

/// Callback that receives the nanoseconds of GPU work, if the device can measure them.
pub(crate) type Then = Box<dyn FnOnce(Option<u64>) + Send>;

/// Timestamps of a stream.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    current: Option<Set>,
    kept: Arc<Mutex<Vec<Set>>>,
}

/// Two timestamps per submission, and the buffers for reading them.
#[derive(Debug)]
struct Set {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    back: wgpu::Buffer,
    spans: u32,
}

impl Stamps {
    /// Writes the start timestamp of a submission.
    pub(crate) fn begin(&mut self, device: &Device, encoder: &mut wgpu::CommandEncoder) {
        if !device.has_stamps() {
            return;
        }
        let set = self.current.get_or_insert_with(|| lock(&self.kept).pop().unwrap_or_else(|| Set::new(device)));
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
    pub(crate) fn tell(&mut self, encoder: &mut wgpu::CommandEncoder) -> Told {
        let set = self.current.take();
        if let Some(set) = &set {
            encoder.resolve_query_set(&set.queries, 0..2 * set.spans, &set.resolved, 0);
            encoder.copy_buffer_to_buffer(&set.resolved, 0, &set.back, 0, set.bytes());
        }
        Told { set, kept: self.kept.clone() }
    }
}

impl Set {
    fn new(device: &Device) -> Set {
        let count = 2 * SPANS_MAX;
        let buffer = |usage| {
            let size = u64::from(count) * STAMP_BYTES;
            device.inner.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
        };
        let ty = wgpu::QueryType::Timestamp;
        Set {
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
pub(crate) struct Told {
    set: Option<Set>,
    kept: Arc<Mutex<Vec<Set>>>,
}

impl Told {
    pub(crate) fn then(self, device: &Device, then: Then) {
        let Told { set: Some(set), kept } = self else {
            return device.queue.on_submitted_work_done(|| then(None));
        };
        let nanos_each = f64::from(device.queue.get_timestamp_period());
        let (back, bytes) = (set.back.clone(), set.bytes());
        back.map_async(wgpu::MapMode::Read, 0..bytes, move |done| {
            let mapped = done.is_ok().then(|| set.back.get_mapped_range(0..bytes).ok()).flatten();
            let nanos = mapped.map(|stamps| {
                let stamps: &[[u64; 2]] = bytemuck::cast_slice(&stamps);
                // The clock goes back if the driver is reset meanwhile.
                let ticks: u64 = stamps.iter().map(|[begun, ended]| ended.saturating_sub(*begun)).sum();
                (ticks as f64 * nanos_each) as u64
            });
            set.back.unmap();
            let mut kept = lock(&kept);
            if kept.len() < SETS_KEPT {
                kept.push(Set { spans: 0, ..set });
            }
            drop(kept);
            then(nanos);
        });
    }
}
