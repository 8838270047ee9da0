//! Dense algebra that the host runs natively, on its processor or a GPU: matrix products, linear systems, grouped least
//! squares, element-wise functions and reductions.
//!
//! A [`Tensor`] lies in the host's memory or on the GPU, and so do the results of operations: values cross the boundary
//! once each way. The host chooses the device of an operation, unless [`use_device`] selects one; the results agree
//! within a few units in the last place of their type. The host checks an operation at once. An error of a later run on
//! a GPU is reported when a result is read.
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

mod error;
mod expression;
mod grouped;
mod kernel;

use ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

use crate::bindings::dense::{self as contract, Operand, Operation, Reduction, Transposed, Values};
use crate::host::dense as host;

pub use self::error::{DenseError, DenseErrorKind};
pub use self::expression::{Expression, input};
pub use self::grouped::{GroupedFit, GroupedOptions, Status, grouped_least_squares};
pub use self::kernel::Kernel;
pub use crate::bindings::dense::{Device, Dtype};

/// An array of up to four dimensions in row-major order, owned by the host.
#[derive(Debug)]
pub struct Tensor {
    handle: host::Tensor,
    dtype: Dtype,
    sizes: Vec<usize>,
}

/// Rust types of tensor elements.
///
/// # Safety
/// [`Element::DTYPE`] must be the type's element type, every bit pattern must be a valid value, and the type must have
/// no padding.
pub unsafe trait Element: Copy + Default + 'static {
    /// Its element type.
    const DTYPE: Dtype;
}

// SAFETY: every bit pattern is an `f32`, without padding.
unsafe impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

// SAFETY: every bit pattern is an `f64`, without padding.
unsafe impl Element for f64 {
    const DTYPE: Dtype = Dtype::F64;
}

// SAFETY: every bit pattern is a `u32`, without padding.
unsafe impl Element for u32 {
    const DTYPE: Dtype = Dtype::U32;
}

/// Values as little-endian bytes; wasm32 and the hosts are little-endian.
pub(crate) fn bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: an element has no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: an element has no padding, and every bit pattern is valid.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// The sizes of a shape for the contract. A size beyond 32 bits becomes the maximum, which the host rejects.
fn contract_sizes(sizes: &[usize]) -> Vec<u32> {
    sizes.iter().map(|size| u32::try_from(*size).unwrap_or(u32::MAX)).collect()
}

impl Tensor {
    /// Creates a tensor from values in row-major order.
    ///
    /// # Errors
    /// Reports a wrong number of values, and exhausted memory.
    pub fn new<T: Element>(sizes: &[usize], values: &[T]) -> Result<Tensor, DenseError> {
        let handle = host::make(T::DTYPE, &contract_sizes(sizes), Some(bytes(values)))?;
        Ok(Tensor { handle, dtype: T::DTYPE, sizes: sizes.to_vec() })
    }

    /// Creates a tensor of zeros.
    ///
    /// # Errors
    /// Reports exhausted memory.
    pub fn zeros(dtype: Dtype, sizes: &[usize]) -> Result<Tensor, DenseError> {
        let handle = host::make(dtype, &contract_sizes(sizes), None)?;
        Ok(Tensor { handle, dtype, sizes: sizes.to_vec() })
    }

    /// Creates a tensor from an array.
    ///
    /// # Errors
    /// Reports exhausted memory, and arrays of more than four dimensions.
    pub fn of_array<T: Element, D: Dimension>(array: &ArrayBase<impl Data<Elem = T>, D>) -> Result<Tensor, DenseError> {
        match array.as_slice() {
            Some(values) => Tensor::new(array.shape(), values),
            None => Tensor::new(array.shape(), &array.iter().copied().collect::<Vec<T>>()),
        }
    }

    /// Runs an operation with one result of this type and shape.
    fn from_operation(
        operation: Operation<'_>,
        operands: &[Operand<'_>],
        dtype: Dtype,
        sizes: Vec<usize>,
    ) -> Result<Tensor, DenseError> {
        let mut outputs = host::run(operation, operands)?;
        match (outputs.pop(), outputs.is_empty()) {
            (Some(handle), true) => Ok(Tensor { handle, dtype, sizes }),
            _ => Err(unexpected_result()),
        }
    }

    fn operand(&self) -> Operand<'_> {
        Operand::Tensor(self.handle.borrow())
    }

    /// Size of each dimension.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Type of the values.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the same values in another shape.
    ///
    /// # Errors
    /// Reports a shape with another number of values, and exhausted memory.
    pub fn reshaped(&self, sizes: &[usize]) -> Result<Tensor, DenseError> {
        let handle = self.handle.reshaped(&contract_sizes(sizes))?;
        Ok(Tensor { handle, dtype: self.dtype, sizes: sizes.to_vec() })
    }

    /// Waits for the values.
    ///
    /// # Errors
    /// Reports another element type, and errors of earlier operations.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, DenseError> {
        let mut values = vec![T::default(); self.len()];
        self.read(0, &mut values)?;
        Ok(values)
    }

    /// Waits for the values, and returns them as an array.
    ///
    /// # Errors
    /// Like [`Tensor::to_vec`].
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>, DenseError> {
        ArrayD::from_shape_vec(IxDyn(&self.sizes), self.to_vec()?).map_err(|_| unexpected_result())
    }

    /// Waits for the values, and reads those from index `first` on.
    ///
    /// # Errors
    /// Like [`Tensor::to_vec`]; also reports indices out of range.
    pub fn read<T: Element>(&self, first: usize, to: &mut [T]) -> Result<(), DenseError> {
        if T::DTYPE != self.dtype {
            return Err(shape(format!("a tensor of {:?} can't be read as {:?}", self.dtype, T::DTYPE)));
        }
        self.handle.read((first * size_of::<T>()) as u64, bytes_mut(to))
    }

    /// The product of two matrices, `[m, k]` and `[k, n]`, or of each pair in two stacks, `[.., m, k]` and `[.., k,
    /// n]`. A single matrix is multiplied with each matrix of the other stack.
    ///
    /// # Errors
    /// Reports shapes that don't agree.
    pub fn dot(&self, other: &Tensor) -> Result<Tensor, DenseError> {
        self.product(other, Transposed { first: false, second: false })
    }

    /// Like [`Tensor::dot`], with `self` transposed: `[k, m]` and `[k, n]`.
    ///
    /// # Errors
    /// As [`Tensor::dot`].
    pub fn transposed_dot(&self, other: &Tensor) -> Result<Tensor, DenseError> {
        self.product(other, Transposed { first: true, second: false })
    }

    /// Like [`Tensor::dot`], with `other` transposed: `[m, k]` and `[n, k]`.
    ///
    /// # Errors
    /// As [`Tensor::dot`].
    pub fn dot_transposed(&self, other: &Tensor) -> Result<Tensor, DenseError> {
        self.product(other, Transposed { first: false, second: true })
    }

    /// The products of all pairs of columns, `xᵀ·x`. They need twice the digits of the values: usually f64.
    ///
    /// # Errors
    /// As [`Tensor::dot`].
    pub fn gram(&self) -> Result<Tensor, DenseError> {
        self.transposed_dot(self)
    }

    fn product(&self, other: &Tensor, transposed: Transposed) -> Result<Tensor, DenseError> {
        let ([.., a, b], [.., c, d]) = (&self.sizes[..], &other.sizes[..]) else {
            return Err(shape("a matrix needs at least two dimensions".to_owned()));
        };
        let rows = if transposed.first { *b } else { *a };
        let columns = if transposed.second { *c } else { *d };
        let stacked = if self.sizes.len() > 2 { self } else { other };
        let stack = &stacked.sizes[..stacked.sizes.len() - 2];
        let sizes = [stack, &[rows, columns]].concat();
        Tensor::from_operation(Operation::Product(transposed), &[self.operand(), other.operand()], self.dtype, sizes)
    }

    /// The solutions of symmetric positive definite systems `[.., n, n]` for `[.., n, m]`. NaN for other systems.
    ///
    /// # Errors
    /// Reports shapes that don't agree.
    pub fn solve_cholesky(&self, right: &Tensor) -> Result<Tensor, DenseError> {
        let operands = [self.operand(), right.operand()];
        Tensor::from_operation(Operation::SolveCholesky, &operands, self.dtype, right.sizes.clone())
    }

    /// The least-squares solutions of systems `[.., rows, n]`, with at least as many rows as columns, for `[.., rows,
    /// m]`.
    ///
    /// # Errors
    /// Reports shapes that don't agree.
    pub fn solve_least_squares(&self, right: &Tensor) -> Result<Tensor, DenseError> {
        let mut sizes = right.sizes.clone();
        if let ([.., rows, _], [.., unknowns]) = (&mut sizes[..], &self.sizes[..]) {
            *rows = *unknowns;
        }
        Tensor::from_operation(Operation::SolveQr, &[self.operand(), right.operand()], self.dtype, sizes)
    }

    /// Applies an element-wise function. The result has the shape of the first input to which all others broadcast: a
    /// single value, a row `[columns]`, or a column `[.., 1]`.
    ///
    /// # Errors
    /// Reports shapes that don't agree, and functions with too many steps.
    pub fn map(function: &Expression, inputs: &[&Tensor]) -> Result<Tensor, DenseError> {
        let sizes =
            inputs.iter().map(|tensor| &tensor.sizes).find(|to| inputs.iter().all(|from| stretches(&from.sizes, to)));
        let (Some(sizes), Some(first)) = (sizes, inputs.first()) else {
            return Err(shape(
                "`map` needs at least one input, and inputs that broadcast to the shape of one of them".to_owned(),
            ));
        };
        let operands: Vec<Operand<'_>> = inputs.iter().map(|tensor| tensor.operand()).collect();
        Tensor::from_operation(Operation::Map(function.steps()), &operands, first.dtype, sizes.clone())
    }

    /// The sums along a dimension, which the result lacks.
    ///
    /// # Errors
    /// Reports a missing dimension.
    pub fn sum(&self, along: usize) -> Result<Tensor, DenseError> {
        self.reduce(Reduction::Sum, along)
    }

    /// The means along a dimension; NaN for an empty one.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn mean(&self, along: usize) -> Result<Tensor, DenseError> {
        self.reduce(Reduction::Mean, along)
    }

    /// The largest values along a dimension: NaN if one is NaN, -∞ for an empty one.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn max(&self, along: usize) -> Result<Tensor, DenseError> {
        self.reduce(Reduction::Max, along)
    }

    /// The smallest values along a dimension: NaN if one is NaN, ∞ for an empty one.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn min(&self, along: usize) -> Result<Tensor, DenseError> {
        self.reduce(Reduction::Min, along)
    }

    /// The indices of the largest values along a dimension (u32), the first of equal ones.
    ///
    /// # Errors
    /// Like [`Tensor::sum`]; also reports an empty dimension.
    pub fn arg_max(&self, along: usize) -> Result<Tensor, DenseError> {
        self.reduce(Reduction::ArgMax, along)
    }

    /// The indices of the smallest values along a dimension (u32), the first of equal ones.
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
        Tensor::from_operation(Operation::Reduce(contract::Reduce { with, along }), &[self.operand()], dtype, sizes)
    }

    /// The softmax along the last dimension: each exponential divided by their sum.
    ///
    /// # Errors
    /// Reports a tensor without dimensions.
    pub fn softmax(&self) -> Result<Tensor, DenseError> {
        Tensor::from_operation(Operation::Softmax, &[self.operand()], self.dtype, self.sizes.clone())
    }

    /// The logarithm of the sum of the exponentials along the last dimension, which the result lacks.
    ///
    /// # Errors
    /// Reports a tensor without dimensions.
    pub fn log_sum_exp(&self) -> Result<Tensor, DenseError> {
        let sizes = self.sizes.split_last().map_or(Vec::new(), |(_, rest)| rest.to_vec());
        Tensor::from_operation(Operation::LogSumExp, &[self.operand()], self.dtype, sizes)
    }

    /// Converts the values, floats or integers, to another floating-point type. Rust has no f16 type: tensors of f16
    /// come from this conversion. They take half the memory of f32, and GPUs multiply them faster.
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
    /// Reports a type that is not a floating-point type.
    pub fn to(&self, dtype: Dtype) -> Result<Tensor, DenseError> {
        Tensor::from_operation(Operation::Convert(dtype), &[self.operand()], dtype, self.sizes.clone())
    }

    /// For points `[n, d]` (`self`) and centres `[k, d]`: the index of each point's nearest centre (u32, `[n]`), and
    /// the squared distance to it, `[n]`.
    ///
    /// # Errors
    /// Reports shapes that don't agree.
    pub fn nearest(&self, centres: &Tensor) -> Result<(Tensor, Tensor), DenseError> {
        let outputs = host::run(Operation::Nearest, &[self.operand(), centres.operand()])?;
        let Ok([places, squares]) = <[host::Tensor; 2]>::try_from(outputs) else { return Err(unexpected_result()) };
        let sizes = vec![self.sizes.first().copied().unwrap_or_default()];
        Ok((
            Tensor { handle: places, dtype: Dtype::U32, sizes: sizes.clone() },
            Tensor { handle: squares, dtype: self.dtype, sizes },
        ))
    }

    /// For values `[rows, channels]` (`self`) and bins (u32, `[features, rows]`): the sums of the values per bin,
    /// `[features, bins, channels]`. Skips rows whose bin is not less than `bins`.
    ///
    /// # Errors
    /// Reports shapes that don't agree.
    pub fn histogram(&self, bins_of: &Tensor, bins: u32) -> Result<Tensor, DenseError> {
        let sizes = vec![
            bins_of.sizes.first().copied().unwrap_or_default(),
            bins as usize,
            self.sizes.last().copied().unwrap_or_default(),
        ];
        let operands = [bins_of.operand(), self.operand()];
        Tensor::from_operation(Operation::Histogram(bins), &operands, self.dtype, sizes)
    }

    /// Gathers rows by indices (u32, `[m]`): `[m, ..]`. An index out of range gives zeros.
    ///
    /// # Errors
    /// Reports a tensor without dimensions, and indices of another type or shape.
    pub fn take(&self, places: &Tensor) -> Result<Tensor, DenseError> {
        let rest = self.sizes.split_first().map_or(&[][..], |(_, rest)| rest);
        let sizes = [&[places.len()], rest].concat();
        Tensor::from_operation(Operation::Take, &[self.operand(), places.operand()], self.dtype, sizes)
    }
}

/// Returns whether a shape broadcasts to another, by the host's rules.
fn stretches(from: &[usize], to: &[usize]) -> bool {
    let is_row = matches!((from, to), ([columns], [.., last]) if columns == last);
    let is_column = matches!((from, to), ([rows @ .., 1], [all @ .., _]) if rows == all);
    from == to || from.iter().product::<usize>() == 1 || is_row || is_column
}

fn shape(message: String) -> DenseError {
    DenseError { kind: DenseErrorKind::Shape, message }
}

fn unexpected_result() -> DenseError {
    shape("the host returned an unexpected number of tensors or values".to_owned())
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Name from its driver.
    pub name: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Whether it supports f16. (Every GPU supports f32.)
    pub has_f16: bool,
    /// Whether it supports f64.
    pub has_f64: bool,
}

/// Returns this task's GPU, if it has one.
pub fn gpu() -> Option<Gpu> {
    let contract::Gpu { name, memory_bytes, has_f16, has_f64 } = host::get_gpu()?;
    Some(Gpu { name, memory_bytes, has_f16, has_f64 })
}

/// Returns the device that the job requests, if it requests one. A function that can also run without dense algebra
/// then uses it.
pub fn job_device() -> Option<Device> {
    host::job_device()
}

/// Selects the device for all later operations.
pub fn use_device(device: Device) {
    host::use_device(device);
}

/// Values in guest memory, which an operation reads in place.
fn values<'a, T: Element>(sizes: &'a [u32], values: &'a [T]) -> Operand<'a> {
    Operand::Values(Values { dtype: T::DTYPE, sizes, bytes: bytes(values) })
}
