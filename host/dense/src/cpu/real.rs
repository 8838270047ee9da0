//! The two types for computation.

#[cfg(feature = "faer")]
use faer::traits::RealField;
use half::f16;
use half::slice::HalfFloatSliceExt as _;
use num_traits::Float;
#[cfg(not(feature = "faer"))]
use num_traits::NumAssign;

use crate::{Dtype, OwnedValues};

/// The bound that faer needs, where it is enabled.
#[cfg(not(feature = "faer"))]
pub(super) trait RealField: NumAssign {}

#[cfg(not(feature = "faer"))]
impl<T: Float + NumAssign> RealField for T {}

/// f32 or f64.
pub(super) trait Real: RealField + Float {
    fn from_f64(value: f64) -> Self;
    fn wide(self) -> f64;
    /// Wraps values as a float type.
    fn owned(values: Vec<Self>, dtype: Dtype) -> OwnedValues;
}

impl Real for f64 {
    fn from_f64(value: f64) -> f64 {
        value
    }

    fn wide(self) -> f64 {
        self
    }

    fn owned(values: Vec<f64>, _: Dtype) -> OwnedValues {
        OwnedValues::F64(values)
    }
}

impl Real for f32 {
    fn from_f64(value: f64) -> f32 {
        value as f32
    }

    fn wide(self) -> f64 {
        self.into()
    }

    fn owned(values: Vec<f32>, dtype: Dtype) -> OwnedValues {
        if dtype == Dtype::F32 {
            return OwnedValues::F32(values);
        }
        let mut halves = vec![f16::ZERO; values.len()];
        halves.convert_from_f32_slice(&values);
        OwnedValues::F16(halves)
    }
}
