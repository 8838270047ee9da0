use super::{DenseError, Tensor};
use crate::host::dense as host;

/// A kernel for GPUs in WGSL: one entry point, whose bindings are storage arrays in group 0.
///
/// The host validates the kernel, checks the bounds of its accesses, and ends it when it takes too long. It runs on the
/// GPU of this task, and nowhere else: see [`gpu`](super::gpu).
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
    /// Creates a kernel from WGSL source.
    ///
    /// # Errors
    /// Reports a missing GPU, and source that is too long. Other errors in the source are reported when a tensor that
    /// the kernel writes is read.
    pub fn new(wgsl: &str) -> Result<Kernel, DenseError> {
        Ok(Kernel(host::kernel(wgsl)?))
    }

    /// Runs the kernel later, with tensors bound from binding 0 on, in a grid of workgroups. The kernel may change the
    /// tensors.
    ///
    /// # Errors
    /// Reports too many tensors. Other errors are reported when one of the tensors is read.
    pub fn dispatch(&self, tensors: &[&Tensor], groups: [u32; 3]) -> Result<(), DenseError> {
        let handles: Vec<&host::Tensor> = tensors.iter().map(|tensor| &tensor.handle).collect();
        self.0.dispatch(&handles, groups)
    }
}
