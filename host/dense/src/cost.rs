//! Cost model: the work of an operation, and the time that a device needs for it.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::{DenseError, Dtype, Map, Op, OwnedValues, Spec, Step, Tensor, cpu};

/// Measured rates of a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Nanoseconds from a small request to its result.
    pub fixed_nanos: f64,
    /// Bytes per second of transfers to the device.
    pub up_bytes_s: f64,
    /// Bytes per second of transfers from the device.
    pub down_bytes_s: f64,
    /// Bytes per second that the device reads and writes in its own memory.
    pub memory_bytes_s: f64,
    /// Additions and multiplications per second in matrix products of f16; 0 if unsupported.
    pub f16_operations_s: f64,
    /// The same for f32.
    pub f32_operations_s: f64,
    /// The same for f64.
    pub f64_operations_s: f64,
}

/// Work of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Workload {
    /// Additions and multiplications.
    pub operations: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// Number of additions that a transcendental function counts for.
const FUNCTION_ADDITIONS: f64 = 8.0;

impl Op {
    /// Estimates the work for valid inputs and their outputs.
    pub fn work(&self, inputs: &[Spec], outputs: &[Spec]) -> Workload {
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
            Op::Map(map) => count(&outputs[0]) * map.steps().len() as f64 * FUNCTION_ADDITIONS / 2.0,
            Op::Reduce { .. } => count(&inputs[0]),
            Op::Softmax | Op::LogSumExp => 2.0 * FUNCTION_ADDITIONS * count(&inputs[0]),
            Op::Nearest => 3.0 * count(&inputs[0]) * f64::from(inputs[1].shape.sizes()[0]),
            Op::Histogram { .. } => count(&inputs[0]) * last(1),
            Op::Take | Op::Convert(_) => count(&outputs[0]),
        };
        Workload { operations, bytes }
    }
}

impl Costs {
    /// Typical rates of one processor core, used if not measured. Transfers are free: values are in place.
    pub const PROCESSOR: Costs = Costs {
        fixed_nanos: 500.0,
        up_bytes_s: f64::MAX,
        down_bytes_s: f64::MAX,
        memory_bytes_s: 10e9,
        f16_operations_s: 40e9,
        f32_operations_s: 60e9,
        f64_operations_s: 30e9,
    };

    /// Returns the costs for each of `sharers` concurrent users: a fraction of the rates.
    pub fn shared_by(self, sharers: u32) -> Costs {
        let sharers = f64::from(sharers.max(1));
        Costs {
            fixed_nanos: self.fixed_nanos,
            up_bytes_s: self.up_bytes_s / sharers,
            down_bytes_s: self.down_bytes_s / sharers,
            memory_bytes_s: self.memory_bytes_s / sharers,
            f16_operations_s: self.f16_operations_s / sharers,
            f32_operations_s: self.f32_operations_s / sharers,
            f64_operations_s: self.f64_operations_s / sharers,
        }
    }

    /// Returns the nanoseconds for work in values of a type, without the fixed part.
    pub fn nanos(&self, work: Workload, dtype: Dtype) -> f64 {
        let rate = match dtype {
            Dtype::F16 => self.f16_operations_s,
            Dtype::F32 | Dtype::U32 => self.f32_operations_s,
            Dtype::F64 => self.f64_operations_s,
        };
        1e9 * (work.operations / rate).max(work.bytes / self.memory_bytes_s)
    }
}

/// Matrix size and number of copied values for measuring a processor.
const SIDE: u32 = 256;
const COPY_VALUES: u32 = 1 << 22;

impl Costs {
    /// Measures one core of this processor, in some tens of milliseconds.
    ///
    /// # Errors
    /// Errors of the measured operations.
    pub fn of_processor() -> Result<Costs, DenseError> {
        let op = Op::Product { first_transposed: false, second_transposed: false };
        let rate = |dtype| {
            let spec = Spec::new(dtype, &[SIDE, SIDE])?;
            let square = OwnedValues::zeros(spec);
            let inputs = [Tensor::new(spec, square.values())?, Tensor::new(spec, square.values())?];
            Ok::<_, DenseError>(2.0 * f64::from(SIDE).powi(3) / seconds(&op, &inputs)?)
        };
        let spec = Spec::new(Dtype::F32, &[COPY_VALUES])?;
        let values = OwnedValues::zeros(spec);
        let copy = Op::Map(Map::new(vec![Step::Input(0)])?);
        let copied = seconds(&copy, &[Tensor::new(spec, values.values())?])?;
        Ok(Costs {
            memory_bytes_s: 2.0 * spec.bytes() as f64 / copied,
            f16_operations_s: rate(Dtype::F16)?,
            f32_operations_s: rate(Dtype::F32)?,
            f64_operations_s: rate(Dtype::F64)?,
            ..Costs::PROCESSOR
        })
    }
}

/// Returns the minimum duration of several runs, after a warm-up.
fn seconds(op: &Op, inputs: &[Tensor<'_>]) -> Result<f64, DenseError> {
    let mut least = f64::INFINITY;
    for turn in 0..4 {
        let started = Instant::now();
        cpu::run(op, inputs)?;
        if turn > 0 {
            least = least.min(started.elapsed().as_secs_f64());
        }
    }
    Ok(least)
}
