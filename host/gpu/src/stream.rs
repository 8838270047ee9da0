//! Sequential work on a device.

use std::sync::{Arc, Mutex, mpsc};

use sandbar_dense::{DenseError, Op, Spec};

use crate::GpuError;
use crate::device::{Device, lock};
use crate::kernels::{self, Step};
use crate::memory::PooledBuffer;
use crate::tensor::DeviceTensor;
use crate::timer::{DoneCallback, GpuTimer};

/// Maximum number of dispatches per submission.
const DISPATCHES_MAX: usize = 64;
/// Bytes per download.
const STAGING_BYTES: usize = 8 << 20;
/// Maximum number of staging buffers kept for reuse.
const REUSABLE_STAGING_MAX: usize = 4;
/// Copies consist of whole words.
const WORD: u64 = wgpu::COPY_BUFFER_ALIGNMENT;

/// A sequence of work on a device. Nothing waits for results until they are [downloaded](Stream::download).
pub struct Stream {
    device: Arc<Device>,
    /// Dispatches that are not submitted yet.
    recorded: Vec<Dispatch>,
    /// Buffers for downloads.
    staging: Arc<Mutex<Vec<wgpu::Buffer>>>,
    timer: GpuTimer,
    /// Callback for the completion of the next submission.
    then: Option<DoneCallback>,
}

#[derive(Debug)]
struct Dispatch {
    pipeline: wgpu::ComputePipeline,
    bind_group: wgpu::BindGroup,
    immediates: Vec<u8>,
    grid: [u32; 3],
    /// The referenced buffers, kept from reuse until the submission.
    buffers: Vec<Arc<PooledBuffer>>,
}

impl Stream {
    /// Creates a stream of a device.
    pub fn new(device: Arc<Device>) -> Stream {
        Stream { device, recorded: Vec::new(), staging: Arc::default(), timer: GpuTimer::default(), then: None }
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Allocates a tensor to be [written](Stream::write). Until then it may contain any data that was on this device.
    ///
    /// # Errors
    /// [`GpuError::Memory`], or [`GpuError::Size`] if the tensor is too large.
    pub fn tensor(&self, spec: Spec) -> Result<DeviceTensor, GpuError> {
        self.device.memory.tensor(spec)
    }

    /// Allocates a tensor of zeros.
    ///
    /// # Errors
    /// Errors of [`Stream::tensor`].
    pub fn zeros(&mut self, spec: Spec) -> Result<DeviceTensor, GpuError> {
        let tensor = self.device.memory.tensor(spec)?;
        let mut encoder = self.encoder();
        let kept = self.encode(&mut encoder);
        encoder.clear_buffer(tensor.buffer.raw(), 0, None);
        self.finish(encoder, kept);
        Ok(tensor)
    }

    /// Copies a tensor into another shape.
    ///
    /// # Errors
    /// Errors of [`Stream::tensor`], and if the type or the number of values differs.
    pub fn reshape(&mut self, from: &DeviceTensor, spec: Spec) -> Result<DeviceTensor, GpuError> {
        if (spec.dtype, spec.shape.count()) != (from.spec.dtype, from.spec.shape.count()) {
            return Err(
                DenseError::Shape(format!("{} can't be reshaped to {spec}: it has other values", from.spec)).into()
            );
        }
        let tensor = self.device.memory.tensor(spec)?;
        let mut encoder = self.encoder();
        let kept = self.encode(&mut encoder);
        encoder.copy_buffer_to_buffer(from.buffer.raw(), 0, tensor.buffer.raw(), 0, None);
        self.finish(encoder, kept);
        Ok(tensor)
    }

    fn encoder(&mut self) -> wgpu::CommandEncoder {
        let mut encoder = self.device.inner.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.timer.begin(&self.device, &mut encoder);
        encoder
    }

    /// Submits encoded commands, and releases the buffers that were kept for them.
    fn finish(&mut self, mut encoder: wgpu::CommandEncoder, kept: Vec<Arc<PooledBuffer>>) -> wgpu::SubmissionIndex {
        self.timer.end(&mut encoder);
        let pending = self.then.take().map(|then| (self.timer.resolve(&mut encoder), then));
        let index = self.device.queue.submit([encoder.finish()]);
        drop(kept);
        if let Some((pending, then)) = pending {
            pending.then(&self.device, then);
        }
        index
    }

    /// Calls `then` when the next submission is completed, with the nanoseconds of GPU work since the last such report,
    /// if the device can measure them. The thread that waits for the device calls it before it delivers values of that
    /// submission.
    pub(crate) fn on_next_completion(&mut self, then: impl FnOnce(Option<u64>) + Send + 'static) {
        self.then = Some(Box::new(then));
    }

    /// Writes values into a tensor at an offset in bytes, a multiple of four.
    ///
    /// # Errors
    /// Fails if the device is lost.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn write(&mut self, tensor: &DeviceTensor, offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
        assert!(is_within(tensor, offset, bytes.len()), "{} bytes at {offset} of {}", bytes.len(), tensor.spec);
        // The queue writes these values before the next submission.
        self.submit();
        let (words, rest) = bytes.split_at(bytes.len() - bytes.len() % WORD as usize);
        let buffer = tensor.buffer.raw();
        if !words.is_empty() {
            self.device.queue.write_buffer(buffer, offset, words);
        }
        if !rest.is_empty() {
            let mut word = [0; WORD as usize];
            word[..rest.len()].copy_from_slice(rest);
            self.device.queue.write_buffer(buffer, offset + words.len() as u64, &word);
        }
        self.device.check()
    }

    /// Queues an operation.
    ///
    /// # Errors
    /// [`GpuError::Dense`] if it does not accept the inputs, [`GpuError::Unsupported`] if the device does not support
    /// it, [`GpuError::Memory`], and if the device is lost.
    pub fn run(&mut self, op: &Op, inputs: &[&DeviceTensor]) -> Result<Vec<DeviceTensor>, GpuError> {
        let specs: Vec<Spec> = inputs.iter().map(|tensor| tensor.spec).collect();
        let outputs = op.outputs(&specs)?;
        if !self.device.about().does(op, &specs, &outputs) {
            return Err(GpuError::Unsupported(op.name()));
        }
        let outputs: Vec<DeviceTensor> =
            outputs.into_iter().map(|spec| self.device.memory.tensor(spec)).collect::<Result<_, _>>()?;
        let all: Vec<&DeviceTensor> = outputs.iter().collect();
        for step in kernels::plan(&self.device.memory, self.device.units(), op, inputs, &all)? {
            self.record(step);
        }
        self.device.check()?;
        Ok(outputs)
    }

    pub(crate) fn record(&mut self, step: Step) {
        let pipeline = self.device.pipeline(&step);
        let entries: Vec<wgpu::BindGroupEntry<'_>> = step
            .bindings
            .iter()
            .enumerate()
            .map(|(at, buffer)| wgpu::BindGroupEntry { binding: at as u32, resource: buffer.raw().as_entire_binding() })
            .collect();
        let bind_group = self.device.inner.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        let Step { immediates, grid, bindings, .. } = step;
        self.recorded.push(Dispatch { pipeline, bind_group, immediates, grid, buffers: bindings });
        if self.recorded.len() >= DISPATCHES_MAX {
            self.submit();
        }
    }

    /// Submits the queued work to the device.
    pub fn submit(&mut self) {
        if !self.recorded.is_empty() || self.then.is_some() {
            let mut encoder = self.encoder();
            let kept = self.encode(&mut encoder);
            self.finish(encoder, kept);
        }
    }

    /// Encodes the queued dispatches. Returns the buffers that they refer to, to be kept until the submission: another
    /// stream would write to them.
    #[must_use]
    fn encode(&mut self, encoder: &mut wgpu::CommandEncoder) -> Vec<Arc<PooledBuffer>> {
        if self.recorded.is_empty() {
            return Vec::new();
        }
        let mut kept = Vec::new();
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for dispatch in self.recorded.drain(..) {
            pass.set_pipeline(&dispatch.pipeline);
            pass.set_bind_group(0, &dispatch.bind_group, &[]);
            if !dispatch.immediates.is_empty() {
                pass.set_immediates(0, &dispatch.immediates);
            }
            let [x, y, z] = dispatch.grid;
            pass.dispatch_workgroups(x, y, z);
            kept.extend(dispatch.buffers);
        }
        kept
    }

    /// Waits for all queued work.
    ///
    /// # Errors
    /// Fails if the device is lost.
    pub fn wait(&mut self) -> Result<(), GpuError> {
        let mut encoder = self.encoder();
        let kept = self.encode(&mut encoder);
        // The submission includes pending writes.
        let index = self.finish(encoder, kept);
        self.wait_for(index)
    }

    fn wait_for(&self, index: wgpu::SubmissionIndex) -> Result<(), GpuError> {
        let waited = self.device.inner.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout: None });
        self.device.check()?;
        waited.map(drop).map_err(lost)
    }

    /// Waits for a tensor's values, and copies them from an offset in bytes on, a multiple of four.
    ///
    /// # Errors
    /// Fails if the device is lost.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn download(&mut self, tensor: &DeviceTensor, offset: u64, to: &mut [u8]) -> Result<(), GpuError> {
        let mut from = offset;
        for part in to.chunks_mut(STAGING_BYTES) {
            let (sender, pending) = mpsc::channel();
            let sender = move |values: Result<&[u8], GpuError>| drop(sender.send(values.map(<[u8]>::to_vec)));
            let index = self.begin_download(tensor, from, part.len(), sender);
            self.wait_for(index)?;
            part.copy_from_slice(&pending.recv().map_err(lost)??);
            from += part.len() as u64;
        }
        Ok(())
    }

    /// Requests `bytes` bytes of a tensor's values from an offset on, a multiple of four. The thread that waits for the
    /// device passes them to `then`.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    pub fn begin_download(
        &mut self,
        tensor: &DeviceTensor,
        offset: u64,
        bytes: usize,
        then: impl FnOnce(Result<&[u8], GpuError>) + Send + 'static,
    ) -> wgpu::SubmissionIndex {
        assert!(is_within(tensor, offset, bytes), "{bytes} bytes at {offset} of {}", tensor.spec);
        let copied = (bytes as u64).next_multiple_of(WORD);
        let staging = self.staging(copied);
        let mut encoder = self.encoder();
        let kept = self.encode(&mut encoder);
        if copied > 0 {
            encoder.copy_buffer_to_buffer(tensor.buffer.raw(), offset, &staging, 0, copied);
        }
        let index = self.finish(encoder, kept);
        let (kept, mapped) = (self.staging.clone(), staging.clone());
        staging.map_async(wgpu::MapMode::Read, 0..copied.max(WORD), move |done| {
            let view = done.map_err(lost).and_then(|()| mapped.get_mapped_range(0..copied.max(WORD)).map_err(lost));
            match view {
                Ok(view) => then(Ok(&view[..bytes])),
                Err(error) => return then(Err(error)),
            }
            mapped.unmap();
            let mut kept = lock(&kept);
            if kept.len() < REUSABLE_STAGING_MAX {
                kept.push(mapped);
            }
        });
        index
    }

    fn staging(&self, bytes: u64) -> wgpu::Buffer {
        let mut kept = lock(&self.staging);
        if let Some(at) = kept.iter().position(|buffer| buffer.size() >= bytes) {
            return kept.swap_remove(at);
        }
        kept.pop();
        self.device.inner.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.max(4096).next_power_of_two(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    }
}

fn is_within(tensor: &DeviceTensor, offset: u64, bytes: usize) -> bool {
    let end = offset.checked_add(bytes as u64);
    offset.is_multiple_of(WORD) && end.is_some_and(|end| end <= tensor.spec.bytes())
}

fn lost(why: impl ToString) -> GpuError {
    GpuError::Lost(why.to_string())
}
