//! What a GPU is.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Binary, Costs, Dtype, Map, Op, Spec, Step, Unary};

/// A GPU, as the process that has it describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Described {
    /// What is known of it.
    pub about: About,
    /// What it takes for what it does, where that was measured.
    pub costs: Option<Costs>,
    /// What a processor of its machine takes for the same, measured with it.
    pub processor: Option<Costs>,
    /// Nanoseconds until a process has a device that was found to compute right; 0 where that was not measured.
    pub start_nanos: f64,
}

impl Described {
    /// The same GPU as one of `sharers` workers finds it that use it at once: each has that part of its rates.
    pub fn shared_by(mut self, sharers: u32) -> Described {
        self.costs = self.costs.map(|costs| costs.shared_by(sharers));
        self
    }
}

/// What is known of a GPU without making it work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// As its driver calls it.
    pub name: String,
    /// The driver, and its release.
    pub driver: String,
    /// What it is.
    pub kind: Kind,
    /// Bytes of its own memory, or of the part of the machine's that is its.
    pub memory_bytes: u64,
    /// The most bytes of a tensor that it works on.
    pub tensor_bytes_max: u64,
    /// Whether it computes in f16 and in f64; it does in f32.
    pub has_f16: bool,
    /// As above.
    pub has_f64: bool,
    /// Whether products of f16 are by units for small matrices, which were seen to multiply right.
    pub has_matrix_units: bool,
    /// The most columns of grouped least squares that it does.
    pub grouped_width_max: u32,
    /// Why it may not be used, if it may not.
    pub refused: Option<String>,
}

/// What a GPU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// With memory of its own.
    Discrete,
    /// With a part of the machine's memory.
    Integrated,
    /// A share of one.
    Virtual,
    /// A driver that computes on the processor: no GPU, unless it is asked for.
    Software,
    /// Its driver does not say.
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Discrete => "discrete",
            Kind::Integrated => "integrated",
            Kind::Virtual => "virtual",
            Kind::Software => "software",
            Kind::Other => "other",
        })
    }
}

impl About {
    /// Whether it does an operation on tensors that the operation takes. What it does not do is done by the processor.
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
                // There are no such functions of f64 on GPUs.
                Op::Map(map) => !is_of_f64 || !is_transcendent(map),
                Op::Softmax | Op::LogSumExp => !is_of_f64,
                Op::GroupedLeastSquares(_) => inputs[0].shape.sizes()[0] <= self.grouped_width_max,
                _ => true,
            }
    }
}

/// Whether a function has steps that there are for f32 alone.
fn is_transcendent(map: &Map) -> bool {
    map.steps().iter().any(|step| match step {
        Step::One(Unary::Exp | Unary::Log | Unary::Tanh) | Step::Two(Binary::Pow) => true,
        Step::Constant(value) => !value.is_finite(),
        _ => false,
    })
}
