//! Dense algebra of the test host, in this process and thread: on the processor, with plain loops.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use sandbar_dense::{Binary, GroupedOptions, Map, Op, OwnedValues, Reduction, Spec, Step, Unary, cpu};

use crate::bindings::dense as contract;
use crate::bindings::dense::{Dtype, Operand, Operation};
use crate::dense::{DenseError, DenseErrorKind};

/// Maximum size of all tensors, in bytes.
const TENSOR_BYTES_MAX: u64 = 1 << 30;

thread_local! {
    static SESSION: RefCell<Session> = RefCell::default();
}

/// The tensors of a thread.
#[derive(Default)]
struct Session {
    tensors: HashMap<u32, (Spec, Rc<OwnedValues>)>,
    /// The last tensor number in use.
    last: u32,
    bytes: u64,
}

impl Session {
    fn insert(&mut self, spec: Spec, values: Rc<OwnedValues>) -> u32 {
        self.last += 1;
        self.bytes += spec.bytes();
        self.tensors.insert(self.last, (spec, values));
        self.last
    }

    fn get(&self, tensor: u32) -> Result<(Spec, Rc<OwnedValues>), sandbar_dense::DenseError> {
        self.tensors.get(&tensor).cloned().ok_or(sandbar_dense::DenseError::NoTensor(tensor))
    }

    fn release(&mut self, tensor: u32) {
        if let Some((spec, _)) = self.tensors.remove(&tensor) {
            self.bytes -= spec.bytes();
        }
    }

    /// Rejects tensors that exceed the limit.
    fn reserve(&self, bytes: u64) -> Result<(), sandbar_dense::DenseError> {
        match self.bytes.checked_add(bytes).is_some_and(|all| all <= TENSOR_BYTES_MAX) {
            true => Ok(()),
            false => Err(sandbar_dense::DenseError::Memory(format!(
                "{bytes} more bytes exceed the tests' limit of {TENSOR_BYTES_MAX} bytes for tensors, of which {} are in use",
                self.bytes
            ))),
        }
    }

    fn make(&mut self, spec: Spec, values: Option<&[u8]>) -> Result<u32, sandbar_dense::DenseError> {
        self.reserve(spec.bytes())?;
        let owned = match values {
            Some(values) => read_values(spec, values)?,
            None => OwnedValues::zeros(spec),
        };
        Ok(self.insert(spec, Rc::new(owned)))
    }

    fn run(&mut self, op: &Op, operands: &[(Spec, Rc<OwnedValues>)]) -> Result<Vec<u32>, sandbar_dense::DenseError> {
        let specs: Vec<Spec> = operands.iter().map(|(spec, _)| *spec).collect();
        let outputs = op.outputs(&specs)?;
        self.reserve(outputs.iter().map(Spec::bytes).sum())?;
        let tensors = operands.iter().map(|(spec, values)| sandbar_dense::Tensor::new(*spec, values.values()));
        let inputs = tensors.collect::<Result<Vec<_>, _>>()?;
        let computed = cpu::run(op, &inputs)?;
        Ok(outputs.into_iter().zip(computed).map(|(spec, values)| self.insert(spec, Rc::new(values))).collect())
    }
}

/// Decodes the values of a tensor.
fn read_values(spec: Spec, bytes: &[u8]) -> Result<OwnedValues, sandbar_dense::DenseError> {
    if bytes.len() as u64 != spec.bytes() {
        let message = format!("{} bytes can't be {spec}, which takes {} bytes", bytes.len(), spec.bytes());
        return Err(sandbar_dense::DenseError::Shape(message));
    }
    Ok(OwnedValues::from_bytes(spec.dtype, bytes))
}

/// A tensor of the test host. Its number takes the place of a component's handle. The handle is never dropped, since
/// the host function for that is missing here.
#[derive(Debug)]
pub(crate) struct Tensor(ManuallyDrop<contract::Tensor>);

/// A kernel of the test host, which has no GPU and therefore no kernels.
#[derive(Debug)]
pub(crate) enum Kernel {}

fn session<T>(run: impl FnOnce(&mut Session) -> Result<T, sandbar_dense::DenseError>) -> Result<T, DenseError> {
    SESSION.with_borrow_mut(|session| run(session)).map_err(|error| {
        let kind = match &error {
            sandbar_dense::DenseError::Memory(_) => DenseErrorKind::Memory,
            sandbar_dense::DenseError::NoGpu => DenseErrorKind::NoGpu,
            _ => DenseErrorKind::Shape,
        };
        DenseError { kind, message: error.to_string() }
    })
}

impl Tensor {
    fn from_number(number: u32) -> Tensor {
        // SAFETY: the session issued the number, and this value owns its tensor; the handle is never dropped.
        Tensor(ManuallyDrop::new(unsafe { contract::Tensor::from_handle(number) }))
    }

    fn number(&self) -> u32 {
        self.0.handle()
    }

    pub(crate) fn borrow(&self) -> &contract::Tensor {
        &self.0
    }

    pub(crate) fn reshaped(&self, sizes: &[u32]) -> Result<Tensor, DenseError> {
        session(|session| {
            let (old, values) = session.get(self.number())?;
            let spec = Spec::new(old.dtype, sizes)?;
            if spec.shape.count() != old.shape.count() {
                let message = format!("{old} can't be reshaped to {spec}: the number of values differs");
                return Err(sandbar_dense::DenseError::Shape(message));
            }
            session.reserve(spec.bytes())?;
            Ok(session.insert(spec, values))
        })
        .map(Tensor::from_number)
    }

    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), DenseError> {
        session(|session| {
            let (spec, values) = session.get(self.number())?;
            let first = usize::try_from(offset).ok().filter(|first| first.is_multiple_of(4));
            let from = first.and_then(|first| values.values().bytes().get(first..)?.get(..to.len()));
            let Some(from) = from else {
                let bytes = to.len();
                let message = format!(
                    "{bytes} bytes at offset {offset} are outside {spec}, or the offset is not a multiple of 4"
                );
                return Err(sandbar_dense::DenseError::Shape(message));
            };
            to.copy_from_slice(from);
            Ok(())
        })
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // At the end of a thread, the session may have been destroyed already.
        let _ = SESSION.try_with(|session| session.borrow_mut().release(self.number()));
    }
}

impl Kernel {
    pub(crate) fn dispatch(&self, _: &[&Tensor], _: [u32; 3]) -> Result<(), DenseError> {
        match *self {}
    }
}

pub(crate) fn make(sdk_dtype: Dtype, sizes: &[u32], values: Option<&[u8]>) -> Result<Tensor, DenseError> {
    session(|session| session.make(Spec::new(dtype(sdk_dtype), sizes)?, values)).map(Tensor::from_number)
}

pub(crate) fn kernel(_: &str) -> Result<Kernel, DenseError> {
    session(|_| Err(sandbar_dense::DenseError::NoGpu))
}

pub(crate) fn get_gpu() -> Option<contract::Gpu> {
    None
}

thread_local! {
    static JOB_DEVICE: Cell<Option<contract::Device>> = const { Cell::new(None) };
}

/// Runs `call` with `device` as the job's device.
pub(crate) fn with_device<T>(device: contract::Device, call: impl FnOnce() -> T) -> T {
    let before = JOB_DEVICE.replace(Some(device));
    let result = call();
    JOB_DEVICE.set(before);
    result
}

pub(crate) fn job_device() -> Option<contract::Device> {
    JOB_DEVICE.get()
}

pub(crate) fn use_device(_: contract::Device) {}

pub(crate) fn run(operation: Operation<'_>, operands: &[Operand<'_>]) -> Result<Vec<Tensor>, DenseError> {
    let outputs = session(|session| {
        let operand = |operand: &Operand<'_>| match operand {
            Operand::Tensor(tensor) => session.get(tensor.handle()),
            Operand::Values(values) => {
                let spec = Spec::new(dtype(values.dtype), values.sizes)?;
                Ok((spec, Rc::new(read_values(spec, values.bytes)?)))
            }
        };
        let operands = operands.iter().map(operand).collect::<Result<Vec<_>, sandbar_dense::DenseError>>()?;
        session.run(&op(operation)?, &operands)
    })?;
    Ok(outputs.into_iter().map(Tensor::from_number).collect())
}

fn dtype(sdk_dtype: Dtype) -> sandbar_dense::Dtype {
    match sdk_dtype {
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
            Op::GroupedLeastSquares(GroupedOptions { intercept, ridge, pivot_min })
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
