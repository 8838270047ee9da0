//! Values of tensors in this process's memory.

use half::f16;
use half::slice::HalfFloatSliceExt as _;

use crate::{DenseError, Dtype, Spec};

/// Borrowed values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values<'a> {
    /// Values of [`Dtype::F16`].
    F16(&'a [f16]),
    /// Values of [`Dtype::F32`].
    F32(&'a [f32]),
    /// Values of [`Dtype::F64`].
    F64(&'a [f64]),
    /// Values of [`Dtype::U32`].
    U32(&'a [u32]),
}

/// Owned values of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnedValues {
    /// Values of [`Dtype::F16`].
    F16(Vec<f16>),
    /// Values of [`Dtype::F32`].
    F32(Vec<f32>),
    /// Values of [`Dtype::F64`].
    F64(Vec<f64>),
    /// Values of [`Dtype::U32`].
    U32(Vec<u32>),
}

/// A tensor with its values, whose number and type match its shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tensor<'a> {
    spec: Spec,
    values: Values<'a>,
}

impl<'a> Values<'a> {
    /// Casts bytes in place. Returns `None` if they are misaligned or do not divide into whole values.
    pub fn new(dtype: Dtype, bytes: &'a [u8]) -> Option<Values<'a>> {
        match dtype {
            Dtype::F16 => bytemuck::try_cast_slice(bytes).ok().map(Values::F16),
            Dtype::F32 => bytemuck::try_cast_slice(bytes).ok().map(Values::F32),
            Dtype::F64 => bytemuck::try_cast_slice(bytes).ok().map(Values::F64),
            Dtype::U32 => bytemuck::try_cast_slice(bytes).ok().map(Values::U32),
        }
    }

    /// Returns the bytes of the values.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Values::F16(values) => bytemuck::cast_slice(values),
            Values::F32(values) => bytemuck::cast_slice(values),
            Values::F64(values) => bytemuck::cast_slice(values),
            Values::U32(values) => bytemuck::cast_slice(values),
        }
    }
}

impl Values<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            Values::F16(_) => Dtype::F16,
            Values::F32(_) => Dtype::F32,
            Values::F64(_) => Dtype::F64,
            Values::U32(_) => Dtype::U32,
        }
    }

    /// Converts to another type with rounding; to whole numbers by truncation and saturation.
    pub(crate) fn convert(self, to: Dtype) -> OwnedValues {
        fn each<T: Copy>(values: &[T], to: Dtype, wide: impl Fn(T) -> f64) -> OwnedValues {
            let values = values.iter().map(|value| wide(*value));
            match to {
                Dtype::F16 => OwnedValues::F16(values.map(f16::from_f64).collect()),
                Dtype::F32 => OwnedValues::F32(values.map(|value| value as f32).collect()),
                Dtype::F64 => OwnedValues::F64(values.collect()),
                Dtype::U32 => OwnedValues::U32(values.map(|value| value as u32).collect()),
            }
        }
        match (self, to) {
            // Vectorized conversions.
            (Values::F16(values), Dtype::F32) => OwnedValues::F32(values.to_f32_vec()),
            (Values::F32(values), Dtype::F16) => {
                let mut all = vec![f16::ZERO; values.len()];
                all.convert_from_f32_slice(values);
                OwnedValues::F16(all)
            }
            (Values::F16(values), _) => each(values, to, f16::to_f64),
            (Values::F32(values), _) => each(values, to, f64::from),
            (Values::F64(values), _) => each(values, to, |value| value),
            (Values::U32(values), _) => each(values, to, f64::from),
        }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match self {
            Values::F16(values) => values.len(),
            Values::F32(values) => values.len(),
            Values::F64(values) => values.len(),
            Values::U32(values) => values.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl OwnedValues {
    /// Creates a tensor of zeros.
    pub fn zeros(spec: Spec) -> OwnedValues {
        let count = spec.shape.count();
        match spec.dtype {
            Dtype::F16 => OwnedValues::F16(vec![f16::ZERO; count]),
            Dtype::F32 => OwnedValues::F32(vec![0.0; count]),
            Dtype::F64 => OwnedValues::F64(vec![0.0; count]),
            Dtype::U32 => OwnedValues::U32(vec![0; count]),
        }
    }

    /// Copies values from their bytes, and drops an incomplete value at the end.
    pub fn from_bytes(dtype: Dtype, bytes: &[u8]) -> OwnedValues {
        match dtype {
            Dtype::F16 => {
                OwnedValues::F16(bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect())
            }
            Dtype::F32 => {
                OwnedValues::F32(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
            }
            Dtype::F64 => {
                OwnedValues::F64(bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
            }
            Dtype::U32 => {
                OwnedValues::U32(bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
            }
        }
    }

    /// Borrows the values.
    pub fn values(&self) -> Values<'_> {
        match self {
            OwnedValues::F16(values) => Values::F16(values),
            OwnedValues::F32(values) => Values::F32(values),
            OwnedValues::F64(values) => Values::F64(values),
            OwnedValues::U32(values) => Values::U32(values),
        }
    }
}

impl<'a> Tensor<'a> {
    /// Creates a tensor from values.
    ///
    /// # Errors
    /// Fails if their number or type does not match `spec`.
    pub fn new(spec: Spec, values: Values<'a>) -> Result<Tensor<'a>, DenseError> {
        if (values.dtype(), values.len()) != (spec.dtype, spec.shape.count()) {
            let (count, dtype) = (values.len(), values.dtype());
            return Err(DenseError::Shape(format!("{count} values of {dtype} do not form a tensor {spec}")));
        }
        Ok(Tensor { spec, values })
    }

    /// Returns type and shape.
    pub fn spec(&self) -> Spec {
        self.spec
    }

    /// Returns the values in row-major order.
    pub fn values(&self) -> Values<'a> {
        self.values
    }
}
