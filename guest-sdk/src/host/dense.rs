//! Dense algebra of a host in this process and thread, for tests: on the processor, as the real one does it there.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::task::Poll;

use sandbar_dense::{Binary, Grouped, Map, Op, Reduction, Session, Spec, Step, Unary};

use crate::bindings::dense as contract;
use crate::bindings::dense::{Dtype, Operand, Operation};
use crate::dense::{DenseError, DenseErrorKind};

/// Bytes that tensors may take.
const TENSOR_BYTES_MAX: u64 = 1 << 30;

thread_local! {
    static SESSION: RefCell<Session> = RefCell::new(Session::new(None, None, TENSOR_BYTES_MAX));
}

/// A tensor of the host's: its number stands where a component has a handle. What a handle is dropped by is not there.
#[derive(Debug)]
pub(crate) struct Tensor(ManuallyDrop<contract::Tensor>);

/// A kernel of the host's.
#[derive(Debug)]
pub(crate) struct Kernel(u32);

fn session<T>(ask: impl FnOnce(&mut Session) -> Result<T, sandbar_dense::DenseError>) -> Result<T, DenseError> {
    SESSION.with_borrow_mut(|session| ask(session)).map_err(|error| {
        let kind = match &error {
            sandbar_dense::DenseError::Memory(_) => DenseErrorKind::Memory,
            sandbar_dense::DenseError::NoGpu => DenseErrorKind::NoGpu,
            _ => DenseErrorKind::Shape,
        };
        DenseError { kind, message: error.to_string() }
    })
}

impl Tensor {
    fn of(number: u32) -> Tensor {
        // SAFETY: a number that the session gave, whose tensor this owns; the handle is not dropped.
        Tensor(ManuallyDrop::new(unsafe { contract::Tensor::from_handle(number) }))
    }

    fn number(&self) -> u32 {
        self.0.handle()
    }

    pub(crate) fn borrow(&self) -> &contract::Tensor {
        &self.0
    }

    pub(crate) fn reshaped(&self, sizes: &[u32]) -> Result<Tensor, DenseError> {
        session(|session| session.reshaped(self.number(), sizes)).map(Tensor::of)
    }

    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), DenseError> {
        session(|session| {
            session.begin_read(self.number(), offset, to.len() as u64)?;
            match session.poll_read(to, true) {
                Poll::Ready(read) => read,
                Poll::Pending => unreachable!("the processor has done it"),
            }
        })
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // At a thread's end the session may be gone.
        let _ = SESSION.try_with(|session| session.borrow_mut().drop_tensor(self.number()));
    }
}

impl Kernel {
    pub(crate) fn dispatch(&self, tensors: &[&Tensor], groups: [u32; 3]) -> Result<(), DenseError> {
        let tensors: Vec<u32> = tensors.iter().map(|tensor| tensor.number()).collect();
        session(|session| session.dispatch(self.0, &tensors, groups))
    }
}

pub(crate) fn make(of: Dtype, sizes: &[u32], values: Option<&[u8]>) -> Result<Tensor, DenseError> {
    session(|session| session.tensor(Spec::new(dtype(of), sizes)?, values)).map(Tensor::of)
}

pub(crate) fn kernel(wgsl: &str) -> Result<Kernel, DenseError> {
    session(|session| session.kernel(wgsl)).map(Kernel)
}

pub(crate) fn get_gpu() -> Option<contract::Gpu> {
    None
}

thread_local! {
    static SAID: Cell<Option<contract::Device>> = const { Cell::new(None) };
}

/// Runs `call` as of a job that says so.
pub(crate) fn with_device<T>(device: contract::Device, call: impl FnOnce() -> T) -> T {
    let before = SAID.replace(Some(device));
    let result = call();
    SAID.set(before);
    result
}

pub(crate) fn job_device() -> Option<contract::Device> {
    SAID.get()
}

pub(crate) fn use_device(_: contract::Device) {}

pub(crate) fn run(operation: Operation<'_>, operands: &[Operand<'_>]) -> Result<Vec<Tensor>, DenseError> {
    let made = session(|session| {
        let operand = |operand: &Operand<'_>| {
            Ok(match operand {
                Operand::Tensor(tensor) => sandbar_dense::Operand::Tensor(tensor.handle()),
                Operand::Values(values) => {
                    // SAFETY: the caller's bytes, which are looked at before the call returns.
                    let bytes = unsafe { std::slice::from_raw_parts(values.bytes.as_ptr(), values.bytes.len()) };
                    sandbar_dense::Operand::Values(Spec::new(dtype(values.dtype), values.sizes)?, bytes)
                }
            })
        };
        let operands: Vec<_> = operands.iter().map(operand).collect::<Result<_, sandbar_dense::DenseError>>()?;
        session.run(&op(operation)?, &operands)
    })?;
    Ok(made.into_iter().map(Tensor::of).collect())
}

fn dtype(of: Dtype) -> sandbar_dense::Dtype {
    match of {
        Dtype::F16 => sandbar_dense::Dtype::F16,
        Dtype::F32 => sandbar_dense::Dtype::F32,
        Dtype::F64 => sandbar_dense::Dtype::F64,
        Dtype::U32 => sandbar_dense::Dtype::U32,
    }
}

fn op(operation: Operation<'_>) -> Result<Op, sandbar_dense::DenseError> {
    Ok(match operation {
        Operation::Product(contract::Transposed { first, second }) => {
            Op::Product { first_transposed: first, second_transposed: second }
        }
        Operation::GroupedLeastSquares(contract::Grouped { intercept, ridge, pivot_min }) => {
            Op::GroupedLeastSquares(Grouped { intercept, ridge, pivot_min })
        }
        Operation::SolveCholesky => Op::SolveCholesky,
        Operation::SolveQr => Op::SolveQr,
        Operation::Map(steps) => Op::Map(Map::new(steps.iter().map(step).collect())?),
        Operation::Reduce(contract::Reduce { with, along }) => {
            let with = match with {
                contract::Reduction::Sum => Reduction::Sum,
                contract::Reduction::Mean => Reduction::Mean,
                contract::Reduction::Max => Reduction::Max,
                contract::Reduction::Min => Reduction::Min,
                contract::Reduction::ArgMax => Reduction::ArgMax,
                contract::Reduction::ArgMin => Reduction::ArgMin,
            };
            Op::Reduce { with, along }
        }
        Operation::Softmax => Op::Softmax,
        Operation::LogSumExp => Op::LogSumExp,
        Operation::Nearest => Op::Nearest,
        Operation::Histogram(bins) => Op::Histogram { bins },
        Operation::Take => Op::Take,
        Operation::Convert(to) => Op::Convert(dtype(to)),
    })
}

fn step(step: &contract::Step) -> Step {
    match step {
        contract::Step::Input(place) => Step::Input(*place),
        contract::Step::Constant(value) => Step::Constant(*value),
        contract::Step::One(function) => Step::One(match function {
            contract::Unary::Negate => Unary::Negate,
            contract::Unary::Abs => Unary::Abs,
            contract::Unary::Floor => Unary::Floor,
            contract::Unary::Sqrt => Unary::Sqrt,
            contract::Unary::Exp => Unary::Exp,
            contract::Unary::Log => Unary::Log,
            contract::Unary::Tanh => Unary::Tanh,
        }),
        contract::Step::Two(function) => Step::Two(match function {
            contract::Binary::Add => Binary::Add,
            contract::Binary::Subtract => Binary::Subtract,
            contract::Binary::Multiply => Binary::Multiply,
            contract::Binary::Divide => Binary::Divide,
            contract::Binary::Min => Binary::Min,
            contract::Binary::Max => Binary::Max,
            contract::Binary::Pow => Binary::Pow,
            contract::Binary::Less => Binary::Less,
        }),
        contract::Step::Select => Step::Select,
    }
}
