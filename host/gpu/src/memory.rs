//! Device memory: a pool of buffers that counts bytes before it allocates them, and reuses returned buffers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::GpuError;

/// Size granularity of buffers, in bytes.
const ALIGNMENT: u64 = 16;

/// The buffer pool of a device.
#[derive(Debug)]
pub(crate) struct Memory {
    device: wgpu::Device,
    limit: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of buffers in use.
    taken: u64,
    /// Bytes of free buffers.
    spare: u64,
    /// Free buffers by size.
    spares: BTreeMap<u64, Vec<wgpu::Buffer>>,
}

/// A buffer in use. It returns to the pool when its last reference is dropped, including those of commands that were
/// not submitted.
#[derive(Debug)]
pub(crate) struct Taken {
    buffer: wgpu::Buffer,
    memory: Arc<Memory>,
}

impl Memory {
    pub(crate) fn new(device: wgpu::Device, limit: u64) -> Arc<Memory> {
        Arc::new(Memory { device, limit, state: Mutex::default() })
    }

    /// Takes a buffer of at least `bytes` bytes. It may contain any data that was on this device.
    ///
    /// # Errors
    /// [`GpuError::Memory`] if it would exceed the limit, or the device has no memory left.
    pub(crate) fn take(self: &Arc<Memory>, bytes: u64) -> Result<Arc<Taken>, GpuError> {
        let size = class(bytes);
        let mut state = self.lock();
        if let Some(buffer) = state.spares.get_mut(&size).and_then(Vec::pop) {
            state.spare -= size;
            state.taken += size;
            return Ok(Arc::new(Taken { buffer, memory: self.clone() }));
        }
        let over = GpuError::Memory { wanted: size, taken: state.taken, limit: self.limit };
        if state.taken.saturating_add(size) > self.limit {
            return Err(over);
        }
        while state.taken + state.spare + size > self.limit {
            state.drop_spares();
        }
        let mut made = self.make(size);
        if made.is_none() && state.spare > 0 {
            while state.spare > 0 {
                state.drop_spares();
            }
            made = self.make(size);
        }
        let buffer = made.ok_or(over)?;
        state.taken += size;
        Ok(Arc::new(Taken { buffer, memory: self.clone() }))
    }

    fn make(&self, size: u64) -> Option<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer =
            self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false });
        pollster::block_on(scope.pop()).is_none().then_some(buffer)
    }

    /// Returns the bytes in use.
    pub(crate) fn taken(&self) -> u64 {
        self.lock().taken
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Frees the largest free buffer.
    fn drop_spares(&mut self) {
        let Some(mut largest) = self.spares.last_entry() else {
            self.spare = 0;
            return;
        };
        match largest.get_mut().pop() {
            Some(buffer) => self.spare -= buffer.size(),
            None => drop(largest.remove()),
        }
    }
}

impl Taken {
    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let size = self.buffer.size();
        let mut state = self.memory.lock();
        state.taken -= size;
        state.spare += size;
        state.spares.entry(size).or_default().push(self.buffer.clone());
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
    fn what_bytes_take() {
        for (bytes, taken) in
            [(0, 16), (1, 16), (16, 16), (17, 32), (256, 256), (257, 288), (1000, 1024), (1 << 30, 1 << 30)]
        {
            assert_eq!(class(bytes), taken, "{bytes}");
        }
        for bytes in (0..100_000).chain([u64::from(u32::MAX), 1 << 34]) {
            assert!(class(bytes) >= bytes && class(bytes) <= bytes + bytes / 8 + ALIGNMENT, "{bytes}");
        }
    }
}
