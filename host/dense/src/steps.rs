//! Ends operations on the processor early: they check for it after each bounded step.

use crate::DenseError;

/// Simple operations per step. The slowest, powers of numbers, take some 50 ns each; most take less than one.
const STEP_OPERATIONS: u64 = 1 << 21;

/// Tells whether an operation must end without a result.
#[derive(Debug, Clone, Copy)]
pub struct Cancellation(fn() -> bool);

impl Cancellation {
    /// Ends no operation.
    pub const NEVER: Cancellation = Cancellation(|| false);

    /// Ends operations when `is_cancelled` returns true, which is called between steps of about ten milliseconds.
    pub const fn new(is_cancelled: fn() -> bool) -> Cancellation {
        Cancellation(is_cancelled)
    }

    /// Fails if the operation must end.
    pub(crate) fn check(self) -> Result<(), DenseError> {
        if (self.0)() { Err(DenseError::Cancelled) } else { Ok(()) }
    }
}

/// Counts the operations since the last check.
#[derive(Debug)]
pub(crate) struct Steps {
    cancellation: Cancellation,
    left: u64,
}

impl Steps {
    pub(crate) fn new(cancellation: Cancellation) -> Steps {
        Steps { cancellation, left: 0 }
    }

    /// Announces the next simple operations, at most a step's. Checks whether to end if a step has passed.
    #[inline]
    pub(crate) fn next(&mut self, operations: usize) -> Result<(), DenseError> {
        match self.left.checked_sub(operations as u64) {
            Some(left) => self.left = left,
            None => self.check()?,
        }
        Ok(())
    }

    /// Checks whether to end.
    pub(crate) fn check(&mut self) -> Result<(), DenseError> {
        self.left = STEP_OPERATIONS;
        self.cancellation.check()
    }
}
