//! GPUs, as their process describes them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Binary, Costs, Dtype, Map, Op, Spec, Step, Unary};

/// A GPU with its measured performance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// Properties of the GPU.
    pub about: DeviceInfo,
    /// Measured costs of its operations.
    pub costs: Option<Costs>,
    /// Costs of one processor core of the same machine, measured along with it.
    pub processor: Option<Costs>,
    /// Nanoseconds to start a process with a device that passed its checks; 0 if not measured.
    pub start_nanos: f64,
}

impl DeviceProfile {
    /// Returns the profile for one of `sharers` workers that use the GPU at once: each gets that fraction of its rates.
    pub fn shared_by(mut self, sharers: u32) -> DeviceProfile {
        self.costs = self.costs.map(|costs| costs.shared_by(sharers));
        self
    }
}

/// Properties of a GPU, known without running work on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Name from the driver.
    pub name: String,
    /// Driver and its release.
    pub driver: String,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Bytes of its own memory, or of its part of the machine's memory.
    pub memory_bytes: u64,
    /// Maximum bytes of one tensor.
    pub tensor_bytes_max: u64,
    /// Whether it computes in f16. Every GPU computes in f32.
    pub has_f16: bool,
    /// Whether it computes in f64.
    pub has_f64: bool,
    /// Whether products of f16 use matrix units, which passed a check.
    pub has_matrix_units: bool,
    /// Maximum number of columns of grouped least squares.
    pub grouped_width_max: u32,
    /// Reason why the GPU must not be used; `None` if it may be.
    pub refused: Option<String>,
}

/// Kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the machine's memory.
    Integrated,
    /// A share of a GPU.
    Virtual,
    /// A driver that computes on the processor; used only on request.
    Software,
    /// The driver does not report the kind.
    Other,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DeviceKind::Discrete => "discrete",
            DeviceKind::Integrated => "integrated",
            DeviceKind::Virtual => "virtual",
            DeviceKind::Software => "software",
            DeviceKind::Other => "other",
        })
    }
}

impl DeviceInfo {
    /// Whether the GPU supports an operation on valid inputs. The processor runs the others.
    pub fn does(&self, op: &Op, inputs: &[Spec], outputs: &[Spec]) -> bool {
        let takes = |spec: &Spec| {
            spec.bytes() <= self.tensor_bytes_max
                && match spec.dtype {
                    Dtype::F16 => self.has_f16,
                    Dtype::F64 => self.has_f64,
                    Dtype::F32 | Dtype::U32 => true,
                }
        };
        let is_of_f64 = inputs.iter().any(|spec| spec.dtype == Dtype::F64);
        inputs.iter().chain(outputs).all(takes)
            && match op {
                // GPUs have no such functions of f64.
                Op::Map(map) => !is_of_f64 || !is_f32_only(map),
                Op::Softmax | Op::LogSumExp => !is_of_f64,
                Op::GroupedLeastSquares(_) => inputs[0].shape.sizes()[0] <= self.grouped_width_max,
                _ => true,
            }
    }
}

/// Whether a function has steps that exist for f32 alone.
fn is_f32_only(map: &Map) -> bool {
    map.steps().iter().any(|step| match step {
        Step::One(Unary::Exp | Unary::Log | Unary::Tanh) | Step::Two(Binary::Pow) => true,
        Step::Constant(value) => !value.is_finite(),
        _ => false,
    })
}
