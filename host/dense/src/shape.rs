//! What a tensor is: the type of its values, and how many there are in each direction.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::DenseError;

/// Directions of a tensor at most.
pub const RANK_MAX: usize = 4;
/// Values of a tensor at most: each has a number of 32 bits on a device.
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
    /// Whole numbers of 32 bits: places and bins.
    U32,
}

impl Dtype {
    /// Bytes of a value.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F16 => 2,
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::F64 => 8,
        }
    }

    /// Whether its values are not whole numbers.
    pub fn is_float(self) -> bool {
        self != Dtype::U32
    }

    /// Its name.
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

/// How many values a tensor has in each direction. They lie row by row: those of the last direction beside each other.
///
/// Its product is within [`VALUES_MAX`], and a direction may be empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct Shape {
    rank: u8,
    sizes: [u32; RANK_MAX],
}

impl Shape {
    /// A shape of these sizes; none at all is that of a single value.
    ///
    /// # Errors
    /// [`DenseError::Shape`] when there are more than [`RANK_MAX`], or more values than [`VALUES_MAX`].
    pub fn new(sizes: &[u32]) -> Result<Shape, DenseError> {
        let wrong = |why: String| DenseError::Shape(format!("{sizes:?} is no tensor's shape: {why}"));
        if sizes.len() > RANK_MAX {
            return Err(wrong(format!("it has {} directions, {RANK_MAX} may be", sizes.len())));
        }
        let count = sizes.iter().try_fold(1_u64, |count, size| count.checked_mul((*size).into()));
        if count.is_none_or(|count| count > VALUES_MAX) {
            return Err(wrong(format!("it has more than {VALUES_MAX} values")));
        }
        let mut all = [1; RANK_MAX];
        all[..sizes.len()].copy_from_slice(sizes);
        Ok(Shape { rank: sizes.len() as u8, sizes: all })
    }

    /// As above, of what is known to be one.
    pub(crate) fn of<const N: usize>(sizes: [u32; N]) -> Shape {
        const { assert!(N <= RANK_MAX) };
        let mut all = [1; RANK_MAX];
        all[..N].copy_from_slice(&sizes);
        Shape { rank: N as u8, sizes: all }
    }

    /// Its sizes.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes[..self.rank.into()]
    }

    /// How many directions it has.
    pub fn rank(&self) -> usize {
        self.rank.into()
    }

    /// How many values it has.
    pub fn count(&self) -> usize {
        self.sizes().iter().map(|size| *size as usize).product()
    }

    /// The size of the last direction, 1 if there is none.
    pub fn last(&self) -> usize {
        self.sizes().last().map_or(1, |size| *size as usize)
    }

    /// As a stack of matrices: how many, and the rows and columns of each. None if it has no two directions.
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

/// A tensor, but for its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spec {
    /// The type of its values.
    pub dtype: Dtype,
    /// How many there are.
    pub shape: Shape,
}

impl Spec {
    /// A tensor of these sizes.
    ///
    /// # Errors
    /// As [`Shape::new`].
    pub fn new(dtype: Dtype, sizes: &[u32]) -> Result<Spec, DenseError> {
        Ok(Spec { dtype, shape: Shape::new(sizes)? })
    }

    /// Bytes of its values.
    pub fn bytes(&self) -> u64 {
        self.shape.count() as u64 * self.dtype.bytes()
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
