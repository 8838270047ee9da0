//! The two types that are computed in.

use std::ops::{Add, Div, Mul, Neg, Sub};

use faer::traits::RealField;
use half::f16;
use half::slice::HalfFloatSliceExt as _;

use crate::{Dtype, Owned};

/// f32 or f64.
pub(super) trait Real:
    RealField
    + Copy
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    const ZERO: Self;
    const ONE: Self;
    const NAN: Self;
    const INFINITY: Self;

    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
    fn is_nan(self) -> bool;
    fn abs(self) -> Self;
    fn floor(self) -> Self;
    fn sqrt(self) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn tanh(self) -> Self;
    fn powf(self, power: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// As values of a type of floats.
    fn owned(values: Vec<Self>, dtype: Dtype) -> Owned;
}

macro_rules! real {
    ($type:ident, $owned:expr) => {
        impl Real for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NAN: Self = $type::NAN;
            const INFINITY: Self = $type::INFINITY;

            fn of(value: f64) -> Self {
                value as $type
            }
            fn wide(self) -> f64 {
                self.into()
            }
            fn is_nan(self) -> bool {
                $type::is_nan(self)
            }
            fn abs(self) -> Self {
                $type::abs(self)
            }
            fn floor(self) -> Self {
                $type::floor(self)
            }
            fn sqrt(self) -> Self {
                $type::sqrt(self)
            }
            fn exp(self) -> Self {
                $type::exp(self)
            }
            fn ln(self) -> Self {
                $type::ln(self)
            }
            fn tanh(self) -> Self {
                $type::tanh(self)
            }
            fn powf(self, power: Self) -> Self {
                if self < 0.0 { $type::NAN } else { $type::powf(self, power) }
            }
            fn min(self, other: Self) -> Self {
                $type::min(self, other)
            }
            fn max(self, other: Self) -> Self {
                $type::max(self, other)
            }
            fn owned(values: Vec<Self>, dtype: Dtype) -> Owned {
                $owned(values, dtype)
            }
        }
    };
}

real!(f64, |values, _| Owned::F64(values));
real!(f32, |values: Vec<f32>, dtype| match dtype {
    Dtype::F16 => {
        let mut halves = vec![f16::ZERO; values.len()];
        halves.convert_from_f32_slice(&values);
        Owned::F16(halves)
    }
    _ => Owned::F32(values),
});
