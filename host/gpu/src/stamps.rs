//! How long the device works: it notes the time before and after what is submitted.

use std::sync::{Arc, Mutex};

use crate::device::{Device, lock};

/// Submissions that are timed together at most. A connection's are fewer, since it has few messages on their way.
const SPANS_MAX: u32 = 128;
/// Sets that are used again, at most.
const SETS_KEPT: usize = 8;
const STAMP_BYTES: u64 = size_of::<u64>() as u64;

/// What is told, once all is done, for how many nanoseconds the device worked, where it can tell.
pub(crate) type Then = Box<dyn FnOnce(Option<u64>) + Send>;

/// The times of a stream.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    current: Option<Set>,
    kept: Arc<Mutex<Vec<Set>>>,
}

/// Of each submission two times, and where they come back.
#[derive(Debug)]
struct Set {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    back: wgpu::Buffer,
    spans: u32,
}

impl Stamps {
    /// What follows is timed.
    pub(crate) fn begin(&mut self, device: &Device, encoder: &mut wgpu::CommandEncoder) {
        if !device.has_stamps() {
            return;
        }
        let set = self.current.get_or_insert_with(|| lock(&self.kept).pop().unwrap_or_else(|| Set::new(device)));
        if set.spans < SPANS_MAX {
            encoder.write_timestamp(&set.queries, 2 * set.spans);
        }
    }

    /// What came since it began is to be submitted.
    pub(crate) fn end(&mut self, encoder: &mut wgpu::CommandEncoder) {
        if let Some(set) = self.current.as_mut().filter(|set| set.spans < SPANS_MAX) {
            encoder.write_timestamp(&set.queries, 2 * set.spans + 1);
            set.spans += 1;
        }
    }

    /// All times since they were told last are to be told: [`Told::then`], once that is submitted.
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

/// Times that were submitted.
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
                // The clock of a driver that is reset meanwhile goes back.
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
