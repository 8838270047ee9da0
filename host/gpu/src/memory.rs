//! Device memory: a pool of buffers that counts bytes before it allocates them, and reuses returned buffers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::GpuError;

/// Size granularity of buffers, in bytes.
const ALIGNMENT: u64 = 16;

/// The buffer pool of a device.
#[derive(Debug)]
pub(crate) struct BufferPool {
    device: wgpu::Device,
    limit: u64,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    /// Bytes of buffers in use.
    used: u64,
    /// Bytes of free buffers.
    free_bytes: u64,
    /// Free buffers by size.
    free: BTreeMap<u64, Vec<wgpu::Buffer>>,
}

/// A buffer in use. It returns to the pool when its last reference is dropped, including those of commands that were
/// not submitted.
#[derive(Debug)]
pub(crate) struct PooledBuffer {
    buffer: wgpu::Buffer,
    memory: Arc<BufferPool>,
}

impl BufferPool {
    pub(crate) fn new(device: wgpu::Device, limit: u64) -> Arc<BufferPool> {
        Arc::new(BufferPool { device, limit, state: Mutex::default() })
    }

    /// Takes a buffer of at least `bytes` bytes. It may contain any data that was on this device.
    ///
    /// # Errors
    /// [`GpuError::Memory`] if it would exceed the limit, or the device has no memory left.
    pub(crate) fn take(self: &Arc<BufferPool>, bytes: u64) -> Result<Arc<PooledBuffer>, GpuError> {
        let size = class(bytes);
        let mut state = self.lock();
        if let Some(buffer) = state.free.get_mut(&size).and_then(Vec::pop) {
            state.free_bytes -= size;
            state.used += size;
            return Ok(Arc::new(PooledBuffer { buffer, memory: self.clone() }));
        }
        let over = GpuError::Memory { requested: size, used: state.used, limit: self.limit };
        if state.used.saturating_add(size) > self.limit {
            return Err(over);
        }
        while state.used + state.free_bytes + size > self.limit {
            state.drop_largest();
        }
        let mut created = self.create(size);
        if created.is_none() && state.free_bytes > 0 {
            while state.free_bytes > 0 {
                state.drop_largest();
            }
            created = self.create(size);
        }
        let buffer = created.ok_or(over)?;
        state.used += size;
        Ok(Arc::new(PooledBuffer { buffer, memory: self.clone() }))
    }

    fn create(&self, size: u64) -> Option<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer =
            self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false });
        pollster::block_on(scope.pop()).is_none().then_some(buffer)
    }

    /// Returns the bytes in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.lock().used
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// Frees the largest free buffer.
    fn drop_largest(&mut self) {
        let Some(mut largest) = self.free.last_entry() else {
            self.free_bytes = 0;
            return;
        };
        match largest.get_mut().pop() {
            Some(buffer) => self.free_bytes -= buffer.size(),
            None => drop(largest.remove()),
        }
    }
}

impl PooledBuffer {
    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let size = self.buffer.size();
        let mut state = self.memory.lock();
        state.used -= size;
        state.free_bytes += size;
        state.free.entry(size).or_default().push(self.buffer.clone());
    }
}

/// Rounds up to one of eight size classes between two powers of two.
fn class(bytes: u64) -> u64 {
    let bytes = bytes.max(1);
    let step = (bytes.next_power_of_two() / 16).max(ALIGNMENT);
    bytes.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_allocations() {
        for (bytes, used) in
            [(0, 16), (1, 16), (16, 16), (17, 32), (256, 256), (257, 288), (1000, 1024), (1 << 30, 1 << 30)]
        {
            assert_eq!(class(bytes), used, "{bytes}");
        }
        for bytes in (0..100_000).chain([u64::from(u32::MAX), 1 << 34]) {
            assert!(class(bytes) >= bytes && class(bytes) <= bytes + bytes / 8 + ALIGNMENT, "{bytes}");
        }
    }
}
