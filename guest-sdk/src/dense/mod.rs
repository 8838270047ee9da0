//! Dense algebra that the host does natively, on its processor or on a GPU: products of matrices, systems of equations, least
//! squares of many groups, functions of each value, what comes of rows and columns.
//!
//! A [`Tensor`] lies in the host's memory or on the GPU, and so does what is made of it: values cross once each way. Where
//! an operation is done is the host's choice, unless [`use_device`] says otherwise; what comes of it is the same within
//! a few units in the last place of its type. What is wrong with an operation is said at once; what goes wrong later, on a
//! GPU, to who reads what should have come of it.
//!
//! ```
//! use sandbar_guest::dense::{Tensor, input};
//!
//! # fn main() -> Result<(), sandbar_guest::dense::DenseError> {
//! let x = Tensor::new(&[2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let gram = x.gram()?; // xᵀ·x, [3, 3]
//! let half = Tensor::map(&(input(0) * 0.5 + 1.0), &[&gram])?;
//! assert_eq!(half.sum(0)?.to_vec::<f32>()?, [36.0, 46.5, 57.0]);
//! # Ok(())
//! # }
//! ```

mod expression;
mod grouped;
mod kernel;

use std::fmt;

use ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

use crate::bindings::dense::{self as contract, Operand, Operation, Reduction, Transposed, Values};
use crate::host::dense as host;

pub use self::expression::{Expression, input};
pub use self::grouped::{Grouped, GroupedFit, Status, grouped_least_squares};
pub use self::kernel::Kernel;
pub use crate::bindings::dense::{Device, Dtype};

/// Values in up to four directions, row by row, which the host has.
#[derive(Debug)]
pub struct Tensor {
    handle: host::Tensor,
    dtype: Dtype,
    sizes: Vec<usize>,
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseError {
    /// What happened.
    pub kind: DenseErrorKind,
    /// In words.
    pub message: String,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DenseErrorKind {
    /// An operation does not take these tensors, or they are none.
    Shape,
    /// There is no room for more tensors.
    Memory,
    /// A kernel is none, or does not take what it is given.
    Kernel,
    /// There is no GPU, and a kernel needs one.
    NoGpu,
    /// What the GPU was given took longer than it may.
    TimeOut,
    /// The GPU is gone, with all that was on it.
    Lost,
}

impl fmt::Display for DenseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DenseError {}

impl From<DenseError> for String {
    fn from(error: DenseError) -> String {
        error.message
    }
}

impl From<contract::Error> for DenseError {
    fn from(error: contract::Error) -> DenseError {
        let kind = match error.code {
            contract::ErrorCode::Shape => DenseErrorKind::Shape,
            contract::ErrorCode::Memory => DenseErrorKind::Memory,
            contract::ErrorCode::Kernel => DenseErrorKind::Kernel,
            contract::ErrorCode::NoGpu => DenseErrorKind::NoGpu,
            contract::ErrorCode::TimeOut => DenseErrorKind::TimeOut,
            contract::ErrorCode::Lost => DenseErrorKind::Lost,
        };
        DenseError { kind, message: error.message }
    }
}

/// Types of values that Rust has.
///
/// # Safety
/// [`Element::DTYPE`] is its type: of any bytes as many as it has are a value, and it has no others.
pub unsafe trait Element: Copy + Default + 'static {
    /// Its type.
    const DTYPE: Dtype;
}

// SAFETY: as it says.
unsafe impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

// SAFETY: as it says.
unsafe impl Element for f64 {
    const DTYPE: Dtype = Dtype::F64;
}

// SAFETY: as it says.
unsafe impl Element for u32 {
    const DTYPE: Dtype = Dtype::U32;
}

/// Values as bytes; wasm32 is little-endian, as hosts are.
pub(crate) fn bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: an element has no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: an element has no padding, and any bytes are one.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// The sizes of a shape as the contract has them: of what has more values than a tensor may, too large ones.
fn directions(sizes: &[usize]) -> Vec<u32> {
    sizes.iter().map(|size| u32::try_from(*size).unwrap_or(u32::MAX)).collect()
}

impl Tensor {
    /// A tensor of these values, row by row.
    ///
    /// # Errors
    /// When they are too few or too many, or there is no room.
    pub fn new<T: Element>(sizes: &[usize], values: &[T]) -> Result<Tensor, DenseError> {
        let handle = host::make(T::DTYPE, &directions(sizes), Some(bytes(values)))?;
        Ok(Tensor { handle, dtype: T::DTYPE, sizes: sizes.to_vec() })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// When there is no room.
    pub fn zeros(dtype: Dtype, sizes: &[usize]) -> Result<Tensor, DenseError> {
        let handle = host::make(dtype, &directions(sizes), None)?;
        Ok(Tensor { handle, dtype, sizes: sizes.to_vec() })
    }

    /// A tensor of an array's values.
    ///
    /// # Errors
    /// When there is no room, or it has more than four directions.
    pub fn of_array<T: Element, D: Dimension>(array: &ArrayBase<impl Data<Elem = T>, D>) -> Result<Tensor, DenseError> {
        match array.as_slice() {
            Some(values) => Tensor::new(array.shape(), values),
            None => Tensor::new(array.shape(), &array.iter().copied().collect::<Vec<T>>()),
        }
    }

    /// What comes of an operation, of which a tensor comes of such a type and shape.
    fn of(
        operation: Operation<'_>,
        operands: &[Operand<'_>],
        dtype: Dtype,
        sizes: Vec<usize>,
    ) -> Result<Tensor, DenseError> {
        let mut made = host::run(operation, operands)?;
        match (made.pop(), made.is_empty()) {
            (Some(handle), true) => Ok(Tensor { handle, dtype, sizes }),
            _ => Err(of_host()),
        }
    }

    fn operand(&self) -> Operand<'_> {
        Operand::Tensor(self.handle.borrow())
    }

    /// How many values it has in each direction.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The type of its values.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How many values it has.
    pub fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same values in another shape.
    ///
    /// # Errors
    /// When that has another number of them, or there is no room for a copy.
    pub fn reshaped(&self, sizes: &[usize]) -> Result<Tensor, DenseError> {
        let handle = self.handle.reshaped(&directions(sizes))?;
        Ok(Tensor { handle, dtype: self.dtype, sizes: sizes.to_vec() })
    }

    /// Waits for its values.
    ///
    /// # Errors
    /// When they are of another type, and what went wrong before.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, DenseError> {
        let mut values = vec![T::default(); self.len()];
        self.read(0, &mut values)?;
        Ok(values)
    }

    /// Waits for its values, as an array.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>, DenseError> {
        ArrayD::from_shape_vec(IxDyn(&self.sizes), self.to_vec()?).map_err(|_| of_host())
    }

    /// Waits for its values, and reads those from one on.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`], and when it has no such values.
    pub fn read<T: Element>(&self, first: usize, to: &mut [T]) -> Result<(), DenseError> {
        if T::DTYPE != self.dtype {
            return Err(shape(format!("a tensor of {:?} is read as {:?}", self.dtype, T::DTYPE)));
        }
        self.handle.read((first * size_of::<T>()) as u64, bytes_mut(to))
    }

    /// The product of two matrices, `[m, k]` and `[k, n]`; of stacks of them, `[.., m, k]` and `[.., k, n]`, that of each
    /// pair, where a matrix alone is multiplied with each of the other's.
    ///
    /// # Errors
    /// When their shapes don't agree.
    pub fn dot(&self, other: &Tensor) -> Result<Tensor, DenseError> {
        self.product(other, Transposed { first: false, second: false })
    }

    /// As [`Tensor::dot`], of this one transposed: `[k, m]` and `[k, n]`.
    ///
    /// # Errors
    /// As [`Tensor::dot`].
    pub fn transposed_dot(&self, other: &Tensor) -> Result<Tensor, DenseError> {
        self.product(other, Transposed { first: true, second: false })
    }

    /// As [`Tensor::dot`], of the other one transposed: `[m, k]` and `[n, k]`.
    ///
    /// # Errors
    /// As [`Tensor::dot`].
    pub fn dot_transposed(&self, other: &Tensor) -> Result<Tensor, DenseError> {
        self.product(other, Transposed { first: false, second: true })
    }

    /// The products of its columns, `xᵀ·x`. They have twice the digits of what they are made of: of f64, mostly.
    ///
    /// # Errors
    /// As [`Tensor::dot`].
    pub fn gram(&self) -> Result<Tensor, DenseError> {
        self.transposed_dot(self)
    }

    fn product(&self, other: &Tensor, transposed: Transposed) -> Result<Tensor, DenseError> {
        let ([.., a, b], [.., c, d]) = (&self.sizes[..], &other.sizes[..]) else {
            return Err(shape("matrices have two directions".to_owned()));
        };
        let rows = if transposed.first { *b } else { *a };
        let columns = if transposed.second { *c } else { *d };
        let stacked = if self.sizes.len() > 2 { self } else { other };
        let stack = &stacked.sizes[..stacked.sizes.len() - 2];
        let sizes = [stack, &[rows, columns]].concat();
        Tensor::of(Operation::Product(transposed), &[self.operand(), other.operand()], self.dtype, sizes)
    }

    /// The solutions of systems `[.., n, n]`, symmetric and positive definite, for `[.., n, m]`. Of others they are NaN.
    ///
    /// # Errors
    /// When their shapes don't agree.
    pub fn solve_cholesky(&self, right: &Tensor) -> Result<Tensor, DenseError> {
        let operands = [self.operand(), right.operand()];
        Tensor::of(Operation::SolveCholesky, &operands, self.dtype, right.sizes.clone())
    }

    /// The least squares solutions of systems `[.., rows, n]`, no fewer rows than columns, for `[.., rows, m]`.
    ///
    /// # Errors
    /// When their shapes don't agree.
    pub fn solve_least_squares(&self, right: &Tensor) -> Result<Tensor, DenseError> {
        let mut sizes = right.sizes.clone();
        if let ([.., rows, _], [.., unknowns]) = (&mut sizes[..], &self.sizes[..]) {
            *rows = *unknowns;
        }
        Tensor::of(Operation::SolveQr, &[self.operand(), right.operand()], self.dtype, sizes)
    }

    /// A function of each value of some tensors, of the shape of the first to which all others can be stretched: others are
    /// one value, a row `[columns]`, or a column `[.., 1]`.
    ///
    /// # Errors
    /// When their shapes don't agree, or the function has too many steps.
    pub fn map(function: &Expression, inputs: &[&Tensor]) -> Result<Tensor, DenseError> {
        let sizes =
            inputs.iter().map(|tensor| &tensor.sizes).find(|to| inputs.iter().all(|of| stretches(&of.sizes, to)));
        let (Some(sizes), Some(first)) = (sizes, inputs.first()) else {
            return Err(shape("a function of tensors whose shapes don't agree, or of none".to_owned()));
        };
        let operands: Vec<Operand<'_>> = inputs.iter().map(|tensor| tensor.operand()).collect();
        Tensor::of(Operation::Map(function.steps()), &operands, first.dtype, sizes.clone())
    }

    /// The sums along a direction, which the result lacks.
    ///
    /// # Errors
    /// When there is no such direction.
    pub fn sum(&self, along: usize) -> Result<Tensor, DenseError> {
        self.reduce(Reduction::Sum, along)
    }

    /// The means along a direction; of none NaN.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn mean(&self, along: usize) -> Result<Tensor, DenseError> {
        self.reduce(Reduction::Mean, along)
    }

    /// The largest along a direction, NaN where one is; of none -∞.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn max(&self, along: usize) -> Result<Tensor, DenseError> {
        self.reduce(Reduction::Max, along)
    }

    /// The smallest along a direction, NaN where one is; of none ∞.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn min(&self, along: usize) -> Result<Tensor, DenseError> {
        self.reduce(Reduction::Min, along)
    }

    /// The places of the largest along a direction (u32), of several the first.
    ///
    /// # Errors
    /// As [`Tensor::sum`], and when that is empty.
    pub fn arg_max(&self, along: usize) -> Result<Tensor, DenseError> {
        self.reduce(Reduction::ArgMax, along)
    }

    /// The places of the smallest along a direction (u32), of several the first.
    ///
    /// # Errors
    /// As [`Tensor::arg_max`].
    pub fn arg_min(&self, along: usize) -> Result<Tensor, DenseError> {
        self.reduce(Reduction::ArgMin, along)
    }

    fn reduce(&self, with: Reduction, along: usize) -> Result<Tensor, DenseError> {
        let mut sizes = self.sizes.clone();
        if along < sizes.len() {
            sizes.remove(along);
        }
        let dtype = if matches!(with, Reduction::ArgMax | Reduction::ArgMin) { Dtype::U32 } else { self.dtype };
        let along = u8::try_from(along).unwrap_or(u8::MAX);
        Tensor::of(Operation::Reduce(contract::Reduce { with, along }), &[self.operand()], dtype, sizes)
    }

    /// The shares of the exponentials in their sum, along the last direction.
    ///
    /// # Errors
    /// When it has no direction.
    pub fn softmax(&self) -> Result<Tensor, DenseError> {
        Tensor::of(Operation::Softmax, &[self.operand()], self.dtype, self.sizes.clone())
    }

    /// The logarithm of the sum of the exponentials along the last direction, which the result lacks.
    ///
    /// # Errors
    /// When it has no direction.
    pub fn log_sum_exp(&self) -> Result<Tensor, DenseError> {
        let sizes = self.sizes.split_last().map_or(Vec::new(), |(_, rest)| rest.to_vec());
        Tensor::of(Operation::LogSumExp, &[self.operand()], self.dtype, sizes)
    }

    /// The same values as floats of another type; from whole numbers, too. There are no values of f16 in Rust: tensors of them
    /// are made this way, take half of the memory, and GPUs multiply them sooner.
    ///
    /// ```
    /// # use sandbar_guest::dense::{Dtype, Tensor};
    /// # fn main() -> Result<(), sandbar_guest::dense::DenseError> {
    /// let x = Tensor::new(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?.to(Dtype::F16)?;
    /// assert_eq!(x.dot(&x)?.to(Dtype::F32)?.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When that is not a type of floats.
    pub fn to(&self, dtype: Dtype) -> Result<Tensor, DenseError> {
        Tensor::of(Operation::Convert(dtype), &[self.operand()], dtype, self.sizes.clone())
    }

    /// Of points `[n, d]`, this one, and centres `[k, d]`: the place of the nearest centre of each (u32, `[n]`), and the square
    /// of the distance to it, `[n]`.
    ///
    /// # Errors
    /// When their shapes don't agree.
    pub fn nearest(&self, centres: &Tensor) -> Result<(Tensor, Tensor), DenseError> {
        let made = host::run(Operation::Nearest, &[self.operand(), centres.operand()])?;
        let Ok([places, squares]) = <[host::Tensor; 2]>::try_from(made) else { return Err(of_host()) };
        let sizes = vec![self.sizes.first().copied().unwrap_or_default()];
        Ok((
            Tensor { handle: places, dtype: Dtype::U32, sizes: sizes.clone() },
            Tensor { handle: squares, dtype: self.dtype, sizes },
        ))
    }

    /// Of values `[rows, channels]`, this one, and bins (u32, `[features, rows]`): the sums of the values of each bin,
    /// `[features, bins, channels]`. A row whose bin is not below `bins` is left out.
    ///
    /// # Errors
    /// When their shapes don't agree.
    pub fn histogram(&self, bins_of: &Tensor, bins: u32) -> Result<Tensor, DenseError> {
        let sizes = vec![
            bins_of.sizes.first().copied().unwrap_or_default(),
            bins as usize,
            self.sizes.last().copied().unwrap_or_default(),
        ];
        let operands = [bins_of.operand(), self.operand()];
        Tensor::of(Operation::Histogram(bins), &operands, self.dtype, sizes)
    }

    /// The rows at some places (u32, `[m]`): `[m, ..]`, zeros where there is none.
    ///
    /// # Errors
    /// When it has no direction, or places are none.
    pub fn take(&self, places: &Tensor) -> Result<Tensor, DenseError> {
        let rest = self.sizes.split_first().map_or(&[][..], |(_, rest)| rest);
        let sizes = [&[places.len()], rest].concat();
        Tensor::of(Operation::Take, &[self.operand(), places.operand()], self.dtype, sizes)
    }
}

/// Whether a shape can be stretched to another, as the host has it.
fn stretches(of: &[usize], to: &[usize]) -> bool {
    let is_row = matches!((of, to), ([columns], [.., last]) if columns == last);
    let is_column = matches!((of, to), ([rows @ .., 1], [all @ .., _]) if rows == all);
    of == to || of.iter().product::<usize>() == 1 || is_row || is_column
}

fn shape(message: String) -> DenseError {
    DenseError { kind: DenseErrorKind::Shape, message }
}

fn of_host() -> DenseError {
    shape("the host gave something else than was asked for".to_owned())
}

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// As its driver calls it.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Whether it computes in f16, and in f64; it does in f32.
    pub has_f16: bool,
    /// As above.
    pub has_f64: bool,
}

/// The GPU that this task has, if it has one.
pub fn gpu() -> Option<Gpu> {
    let contract::Gpu { name, memory_bytes, has_f16, has_f64 } = host::get_gpu()?;
    Some(Gpu { name, memory_bytes, has_f16, has_f64 })
}

/// Where the job says that operations are to be done, if it does: a function that could do without leaves them to the host
/// then.
pub fn job_device() -> Option<Device> {
    host::job_device()
}

/// Where operations are to be done from here on.
pub fn use_device(device: Device) {
    host::use_device(device);
}

/// Values that lie here, which an operation looks at in place.
fn values<'a, T: Element>(sizes: &'a [u32], values: &'a [T]) -> Operand<'a> {
    Operand::Values(Values { dtype: T::DTYPE, sizes, bytes: bytes(values) })
}
