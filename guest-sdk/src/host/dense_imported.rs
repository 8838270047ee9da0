//! The contract's imports for dense algebra.

use crate::bindings::dense as contract;
use crate::bindings::dense::{Dtype, Operand, Operation};
use crate::dense::DenseError;

pub(crate) use crate::bindings::dense::{get_gpu, job_device, use_device};

/// A tensor of the host.
#[derive(Debug)]
pub(crate) struct Tensor(contract::Tensor);

/// A kernel of the host.
#[derive(Debug)]
pub(crate) struct Kernel(contract::Kernel);

pub(crate) fn make(dtype: Dtype, sizes: &[u32], values: Option<&[u8]>) -> Result<Tensor, DenseError> {
    Ok(Tensor(contract::Tensor::make(dtype, sizes, values)?))
}

pub(crate) fn run(operation: Operation<'_>, operands: &[Operand<'_>]) -> Result<Vec<Tensor>, DenseError> {
    Ok(contract::run(operation, operands)?.into_iter().map(Tensor).collect())
}

pub(crate) fn kernel(wgsl: &str) -> Result<Kernel, DenseError> {
    Ok(Kernel(contract::Kernel::make(wgsl)?))
}

impl Tensor {
    pub(crate) fn borrow(&self) -> &contract::Tensor {
        &self.0
    }

    pub(crate) fn reshaped(&self, sizes: &[u32]) -> Result<Tensor, DenseError> {
        Ok(Tensor(self.0.reshaped(sizes)?))
    }

    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), DenseError> {
        // SAFETY: `to` is borrowed mutably; the slice only carries address and length to the host.
        Ok(self.0.read(offset, unsafe { std::slice::from_raw_parts(to.as_mut_ptr(), to.len()) })?)
    }
}

impl Kernel {
    pub(crate) fn dispatch(&self, tensors: &[&Tensor], [x, y, z]: [u32; 3]) -> Result<(), DenseError> {
        let tensors: Vec<&contract::Tensor> = tensors.iter().map(|tensor| tensor.borrow()).collect();
        Ok(self.0.dispatch(&tensors, x, y, z)?)
    }
}
