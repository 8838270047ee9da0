//! Recycled buffers for encoding calls and values.

use std::cell::Cell;

use super::value::Scratch;

/// Maximum capacity of a recycled buffer, in bytes.
const RECYCLED_BYTES_MAX: usize = 1 << 20;

/// Buffers of a call under construction.
#[derive(Default)]
pub(super) struct CallBuffers {
    pub(super) request: Vec<u8>,
    /// Objects that the arguments contain.
    pub(super) refs: Vec<u64>,
    pub(super) scratch: Scratch,
}

thread_local! {
    /// Recycled buffers; none while they are in use.
    static BUFFERS: Cell<Option<Box<CallBuffers>>> = const { Cell::new(None) };
}

impl CallBuffers {
    pub(super) fn take() -> Box<CallBuffers> {
        BUFFERS.take().unwrap_or_default()
    }

    pub(super) fn recycle(mut self: Box<Self>) {
        self.request.clear();
        self.refs.clear();
        if self.scratch.bytes.capacity() > RECYCLED_BYTES_MAX {
            self.scratch.bytes = Vec::new();
        }
        BUFFERS.set(Some(self));
    }
}

/// Calls `call` with a recycled scratch buffer.
pub(super) fn with_scratch<T>(call: impl FnOnce(&mut Scratch) -> T) -> T {
    let mut buffers = CallBuffers::take();
    let result = call(&mut buffers.scratch);
    buffers.recycle();
    result
}
