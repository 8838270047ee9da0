//! Types and shapes of tensors.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::DenseError;

/// Maximum number of dimensions of a tensor.
pub const RANK_MAX: usize = 4;
/// Maximum number of values of a tensor: devices index them by 32-bit numbers.
pub const VALUES_MAX: u64 = 1 << 31;

/// The type of a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dtype {
    /// IEEE 754 binary16, summed in binary32.
    F16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Unsigned 32-bit integers: indices and bins.
    U32,
}

impl Dtype {
    /// Returns the bytes of one value.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F16 => 2,
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::F64 => 8,
        }
    }

    /// Whether the type is a float.
    pub fn is_float(self) -> bool {
        self != Dtype::U32
    }

    /// Returns the name of the type.
    pub fn as_str(self) -> &'static str {
        match self {
            Dtype::F16 => "f16",
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::U32 => "u32",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The size of a tensor in each dimension, in row-major order: values of the last dimension are adjacent.
///
/// The product of the sizes is at most [`VALUES_MAX`]. Sizes may be zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct Shape {
    rank: u8,
    sizes: [u32; RANK_MAX],
}

impl Shape {
    /// Creates a shape; no sizes at all are the shape of a single value.
    ///
    /// # Errors
    /// [`DenseError::Shape`] for more than [`RANK_MAX`] dimensions or more than [`VALUES_MAX`] values.
    pub fn new(sizes: &[u32]) -> Result<Shape, DenseError> {
        let wrong = |why: String| DenseError::Shape(format!("{sizes:?} is not a valid shape: {why}"));
        if sizes.len() > RANK_MAX {
            return Err(wrong(format!("it has {} dimensions, the maximum is {RANK_MAX}", sizes.len())));
        }
        let count = sizes.iter().try_fold(1_u64, |count, size| count.checked_mul((*size).into()));
        if count.is_none_or(|count| count > VALUES_MAX) {
            return Err(wrong(format!("it has more than {VALUES_MAX} values")));
        }
        let mut all = [1; RANK_MAX];
        all[..sizes.len()].copy_from_slice(sizes);
        Ok(Shape { rank: sizes.len() as u8, sizes: all })
    }

    /// Creates a shape whose sizes are known to be valid.
    pub(crate) fn from_sizes<const N: usize>(sizes: [u32; N]) -> Shape {
        const { assert!(N <= RANK_MAX) };
        let mut all = [1; RANK_MAX];
        all[..N].copy_from_slice(&sizes);
        Shape { rank: N as u8, sizes: all }
    }

    /// Returns the sizes.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes[..self.rank.into()]
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank.into()
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.sizes().iter().map(|size| *size as usize).product()
    }

    /// Returns the size of the last dimension; 1 for a single value.
    pub fn last(&self) -> usize {
        self.sizes().last().map_or(1, |size| *size as usize)
    }

    /// Interprets the shape as a stack of matrices: their number, rows and columns. `None` below two dimensions.
    pub fn matrices(&self) -> Option<(usize, usize, usize)> {
        let [stack @ .., rows, columns] = self.sizes() else { return None };
        Some((stack.iter().map(|size| *size as usize).product(), *rows as usize, *columns as usize))
    }
}

impl TryFrom<Vec<u32>> for Shape {
    type Error = DenseError;

    fn try_from(sizes: Vec<u32>) -> Result<Shape, DenseError> {
        Shape::new(&sizes)
    }
}

impl From<Shape> for Vec<u32> {
    fn from(shape: Shape) -> Vec<u32> {
        shape.sizes().to_vec()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.sizes())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Type and shape of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    /// Type of the values.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Shape,
}

impl Spec {
    /// Creates a spec.
    ///
    /// # Errors
    /// Errors of [`Shape::new`].
    pub fn new(dtype: Dtype, sizes: &[u32]) -> Result<Spec, DenseError> {
        Ok(Spec { dtype, shape: Shape::new(sizes)? })
    }

    /// Returns the bytes of the values.
    pub fn bytes(&self) -> u64 {
        self.shape.count() as u64 * self.dtype.bytes()
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
