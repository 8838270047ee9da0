//! Tensors in device memory.

use std::sync::Arc;

use sandbar_dense::Spec;

use crate::GpuError;
use crate::memory::{BufferPool, PooledBuffer};

/// A tensor in device memory.
#[derive(Debug, Clone)]
pub struct DeviceTensor {
    pub(crate) spec: Spec,
    pub(crate) buffer: Arc<PooledBuffer>,
}

impl DeviceTensor {
    /// Returns type and shape.
    pub fn spec(&self) -> Spec {
        self.spec
    }

    /// Binds the tensor's bytes alone, without the memory behind them, for guests' kernels.
    pub(crate) fn binding(&self) -> wgpu::BindingResource<'_> {
        let size = std::num::NonZero::new(self.spec.bytes().next_multiple_of(4));
        wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: self.buffer.raw(), offset: 0, size })
    }
}

/// Memory of a device's tensors.
#[derive(Debug)]
pub(crate) struct TensorMemory {
    pool: Arc<BufferPool>,
    tensor_bytes_max: u64,
}

impl TensorMemory {
    pub(crate) fn new(pool: Arc<BufferPool>, tensor_bytes_max: u64) -> TensorMemory {
        TensorMemory { pool, tensor_bytes_max }
    }

    /// Returns the bytes of all tensors.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.pool.used_bytes()
    }

    /// Allocates a tensor with arbitrary values.
    pub(crate) fn tensor(&self, spec: Spec) -> Result<DeviceTensor, GpuError> {
        let (bytes, max) = (spec.bytes(), self.tensor_bytes_max);
        if bytes > max {
            return Err(GpuError::Size { spec, bytes, max });
        }
        Ok(DeviceTensor { spec, buffer: self.pool.take(spec.bytes())? })
    }
}
