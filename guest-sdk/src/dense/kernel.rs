use super::{DenseError, Tensor};
use crate::host::dense as host;

/// A kernel for GPUs that this crate brings, in WGSL: one entry point, whose bindings are arrays of storage in group 0.
///
/// The host validates it, bounds what it reads and writes, and ends what takes too long. It runs where this task has a GPU,
/// and nowhere else: see [`gpu`](super::gpu).
///
/// ```no_run
/// use sandbar_guest::dense::{Kernel, Tensor};
///
/// # fn main() -> Result<(), sandbar_guest::dense::DenseError> {
/// let twice = Kernel::new(
///     "@group(0) @binding(0) var<storage, read_write> values: array<f32>;
///      @compute @workgroup_size(64)
///      fn main(@builtin(global_invocation_id) id: vec3<u32>) {
///          if id.x < arrayLength(&values) { values[id.x] *= 2.0; }
///      }",
/// )?;
/// let values = Tensor::new(&[100], &[1.0_f32; 100])?;
/// twice.dispatch(&[&values], [2, 1, 1])?;
/// assert_eq!(values.to_vec::<f32>()?, [2.0; 100]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Kernel(host::Kernel);

impl Kernel {
    /// A kernel of a text in WGSL.
    ///
    /// # Errors
    /// When there is no GPU, or the text is too long. What else is wrong with it is said to who reads what it should have
    /// written.
    pub fn new(wgsl: &str) -> Result<Kernel, DenseError> {
        Ok(Kernel(host::kernel(wgsl)?))
    }

    /// Runs it bound to tensors, from place 0 on, in so many groups of threads; some time later. It may change them.
    ///
    /// # Errors
    /// When there are too many tensors. What else is wrong is said to who reads one of them.
    pub fn dispatch(&self, tensors: &[&Tensor], groups: [u32; 3]) -> Result<(), DenseError> {
        let handles: Vec<&host::Tensor> = tensors.iter().map(|tensor| &tensor.handle).collect();
        self.0.dispatch(&handles, groups)
    }
}
