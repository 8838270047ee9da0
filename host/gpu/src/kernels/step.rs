//! Launches of kernels.

use std::sync::Arc;

use sandbar_dense::Dtype;

use super::kernel::Kernel;
use super::wgsl::arithmetic;
use crate::memory::PooledBuffer;

/// Maximum number of thread groups in one dimension of a grid.
const GRID_MAX: u64 = 65_535;

/// One launch of a kernel.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) kernel: Kernel,
    /// Buffers bound from binding 0 on. The kernel writes to the last `written` ones.
    pub(crate) bindings: Vec<Arc<PooledBuffer>>,
    pub(crate) written: usize,
    pub(crate) immediates: Vec<u8>,
    pub(crate) grid: [u32; 3],
}

/// Returns a grid of at least this many groups.
pub(super) fn grid(groups: u64) -> [u32; 3] {
    // The number of values is at most 2³¹, so both dimensions are within the limit.
    let x = groups.clamp(1, GRID_MAX);
    [x as u32, groups.div_ceil(x).max(1) as u32, 1]
}

/// Parameters of a kernel in the order of its text: values in the arithmetic type come first.
#[derive(Debug, Default)]
pub(super) struct Immediates(Vec<u8>);

impl Immediates {
    pub(super) fn value(mut self, dtype: Dtype, value: f64) -> Immediates {
        match arithmetic(dtype) {
            Dtype::F64 => self.0.extend(value.to_le_bytes()),
            _ => self.0.extend((value as f32).to_le_bytes()),
        }
        self
    }

    pub(super) fn size(mut self, size: usize) -> Immediates {
        self.0.extend((size as u32).to_le_bytes());
        self
    }

    /// Returns the bytes, padded to the alignment of their struct.
    pub(super) fn bytes(mut self, dtype: Dtype) -> Vec<u8> {
        let alignment = if dtype == Dtype::F64 { 8 } else { 4 };
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self.0
    }
}
