//! What an operation costs, and where it costs least.

use serde::{Deserialize, Serialize};

use crate::{Dtype, Op, Spec};

/// What a device takes for what it does. Measured when it is first used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Nanoseconds from asking for a little thing to having what comes of it.
    pub fixed_nanos: f64,
    /// Bytes a second to the device, and back.
    pub up_bytes_s: f64,
    /// As above.
    pub down_bytes_s: f64,
    /// Bytes a second that it reads and writes in its own memory.
    pub memory_bytes_s: f64,
    /// Additions and multiplications a second in products of matrices of f16, f32 and f64; 0 of what it does not do.
    pub f16_operations_s: f64,
    /// As above.
    pub f32_operations_s: f64,
    /// As above.
    pub f64_operations_s: f64,
}

/// What there is to do for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Additions and multiplications.
    pub operations: f64,
    /// Bytes that are read and written.
    pub bytes: f64,
}

/// Additions that a function which is no addition counts for.
const FUNCTION: f64 = 8.0;

impl Op {
    /// What there is to do, of inputs that it takes and what comes of them.
    pub fn work(&self, inputs: &[Spec], outputs: &[Spec]) -> Work {
        let count = |spec: &Spec| spec.shape.count() as f64;
        let bytes = inputs.iter().chain(outputs).map(|spec| spec.bytes() as f64).sum();
        let last = |at: usize| inputs[at].shape.last() as f64;
        let operations = match self {
            Op::Product { first_transposed, .. } => {
                let (_, rows, columns) = inputs[0].shape.matrices().unwrap_or_default();
                2.0 * count(&outputs[0]) * if *first_transposed { rows } else { columns } as f64
            }
            Op::GroupedLeastSquares(_) => {
                let width = f64::from(inputs[0].shape.sizes()[0]) + 1.0;
                let groups = count(&outputs[1]);
                count(&inputs[1]) * width * (width + 4.0) + groups * width * width * width
            }
            Op::SolveCholesky | Op::SolveQr => {
                let (stack, rows, unknowns) = inputs[0].shape.matrices().unwrap_or_default();
                let (n, rows) = (unknowns as f64, rows as f64);
                2.0 * stack as f64 * rows * n * (n + last(1))
            }
            Op::Map(map) => count(&outputs[0]) * map.steps().len() as f64 * FUNCTION / 2.0,
            Op::Reduce { .. } => count(&inputs[0]),
            Op::Softmax | Op::LogSumExp => 2.0 * FUNCTION * count(&inputs[0]),
            Op::Nearest => 3.0 * count(&inputs[0]) * f64::from(inputs[1].shape.sizes()[0]),
            Op::Histogram { .. } => count(&inputs[0]) * last(1),
            Op::Take => count(&outputs[0]),
        };
        Work { operations, bytes }
    }
}

impl Costs {
    /// What a processor of these days takes, one core of it: what it does is done where values are.
    pub const PROCESSOR: Costs = Costs {
        fixed_nanos: 500.0,
        up_bytes_s: f64::INFINITY,
        down_bytes_s: f64::INFINITY,
        memory_bytes_s: 10e9,
        f16_operations_s: 40e9,
        f32_operations_s: 60e9,
        f64_operations_s: 30e9,
    };

    /// Nanoseconds that work takes in values of a type, but for the fixed part.
    pub fn nanos(&self, work: Work, dtype: Dtype) -> f64 {
        let rate = match dtype {
            Dtype::F16 => self.f16_operations_s,
            Dtype::F32 | Dtype::U32 => self.f32_operations_s,
            Dtype::F64 => self.f64_operations_s,
        };
        1e9 * (work.operations / rate).max(work.bytes / self.memory_bytes_s)
    }
}
