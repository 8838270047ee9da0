//! Imports for dense algebra: translates the contract's types to those of a [`Session`].

use std::future::poll_fn;
use std::task::Poll;

use sandbar_core::ObjectId;
use sandbar_dense::{
    Binary, DenseError, DeviceChoice, Dtype, GroupedOptions, Map, Op, Operand, Reduction, Session, Spec, Step, Unary,
};
use wasmtime::component::{ComponentType, Lift, LinkerInstance, Lower, Resource, ResourceType, WasmList, WasmStr};
use wasmtime::{Error, Result};

use crate::imports::{Context, Destination, TEXT_BYTES_MAX, detached, text};
use crate::services::Refusal;
use crate::state::SandboxState;

/// Maximum number of operands of an operation, and of steps of a function.
const OPERANDS_MAX: usize = 64;
const STEPS_MAX: usize = 4096;

/// A tensor and a kernel of a session. Their handles are the session's numbers.
struct Tensor;
struct Kernel;

macro_rules! mirrored {
    ($name:ident = $text:literal of $of:ty { $($case:ident = $word:literal),* }) => {
        #[derive(ComponentType, Lift, Clone, Copy)]
        #[component(enum)]
        #[repr(u8)]
        #[expect(dead_code, reason = "only lifted from a guest")]
        enum $name {
            $(#[component(name = $word)] $case,)*
        }

        impl From<$name> for $of {
            fn from(of: $name) -> $of {
                match of { $($name::$case => <$of>::$case,)* }
            }
        }
    };
}

mirrored!(WitDtype = "dtype" of Dtype { F16 = "f16", F32 = "f32", F64 = "f64", U32 = "u32" });
mirrored!(WitUnary = "unary" of Unary {
    Negate = "negate", Abs = "abs", Floor = "floor", Sqrt = "sqrt", Exp = "exp", Log = "log", Tanh = "tanh"
});
mirrored!(WitBinary = "binary" of Binary {
    Add = "add", Subtract = "subtract", Multiply = "multiply", Divide = "divide", Min = "min", Max = "max", Pow = "pow",
    Less = "less"
});
mirrored!(WitReduction = "reduction" of Reduction {
    Sum = "sum", Mean = "mean", Max = "max", Min = "min", ArgMax = "arg-max", ArgMin = "arg-min"
});

#[derive(ComponentType, Lift, Lower, Clone, Copy)]
#[component(enum)]
#[repr(u8)]
enum WitDevice {
    #[component(name = "auto")]
    Auto,
    #[component(name = "cpu")]
    Cpu,
    #[component(name = "gpu")]
    Gpu,
}

impl From<WitDevice> for DeviceChoice {
    fn from(device: WitDevice) -> DeviceChoice {
        match device {
            WitDevice::Auto => DeviceChoice::Auto,
            WitDevice::Cpu => DeviceChoice::Cpu,
            WitDevice::Gpu => DeviceChoice::Gpu,
        }
    }
}

impl From<DeviceChoice> for WitDevice {
    fn from(choice: DeviceChoice) -> WitDevice {
        match choice {
            DeviceChoice::Auto => WitDevice::Auto,
            DeviceChoice::Cpu => WitDevice::Cpu,
            DeviceChoice::Gpu => WitDevice::Gpu,
        }
    }
}

#[derive(ComponentType, Lower, Clone, Copy)]
#[component(enum)]
#[repr(u8)]
enum WitCode {
    #[component(name = "shape")]
    Shape,
    #[component(name = "memory")]
    Memory,
    #[component(name = "kernel")]
    Kernel,
    #[component(name = "no-gpu")]
    NoGpu,
    #[component(name = "time-out")]
    TimeOut,
    #[component(name = "lost")]
    Lost,
}

#[derive(ComponentType, Lower)]
#[component(record)]
struct WitError {
    code: WitCode,
    message: String,
}

impl From<DenseError> for WitError {
    fn from(error: DenseError) -> WitError {
        let code = match &error {
            DenseError::Memory(_) => WitCode::Memory,
            DenseError::Kernel(_) => WitCode::Kernel,
            DenseError::NoGpu => WitCode::NoGpu,
            DenseError::TimeOut(_) => WitCode::TimeOut,
            DenseError::Lost(_) => WitCode::Lost,
            _ => WitCode::Shape,
        };
        WitError { code, message: error.to_string() }
    }
}

#[derive(ComponentType, Lift)]
#[component(record)]
struct WitValues {
    dtype: WitDtype,
    sizes: WasmList<u32>,
    bytes: WasmList<u8>,
}

#[derive(ComponentType, Lift)]
#[component(variant)]
enum WitOperand {
    #[component(name = "tensor")]
    Tensor(Resource<Tensor>),
    #[component(name = "values")]
    Values(WitValues),
}

#[derive(ComponentType, Lift, Clone, Copy)]
#[component(record)]
struct WitTransposed {
    first: bool,
    second: bool,
}

#[derive(ComponentType, Lift, Clone, Copy)]
#[component(record)]
struct WitGrouped {
    intercept: bool,
    ridge: f64,
    #[component(name = "pivot-min")]
    pivot_min: f64,
}

#[derive(ComponentType, Lift, Clone, Copy)]
#[component(record)]
struct WitReduce {
    with: WitReduction,
    along: u8,
}

#[derive(ComponentType, Lift, Clone, Copy)]
#[component(variant)]
enum WitStep {
    #[component(name = "input")]
    Input(u8),
    #[component(name = "constant")]
    Constant(f64),
    #[component(name = "one")]
    One(WitUnary),
    #[component(name = "two")]
    Two(WitBinary),
    #[component(name = "select")]
    Select,
}

#[derive(ComponentType, Lift)]
#[component(variant)]
enum WitOperation {
    #[component(name = "product")]
    Product(WitTransposed),
    #[component(name = "grouped-least-squares")]
    GroupedLeastSquares(WitGrouped),
    #[component(name = "solve-cholesky")]
    SolveCholesky,
    #[component(name = "solve-qr")]
    SolveQr,
    #[component(name = "map")]
    Map(WasmList<WitStep>),
    #[component(name = "reduce")]
    Reduce(WitReduce),
    #[component(name = "softmax")]
    Softmax,
    #[component(name = "log-sum-exp")]
    LogSumExp,
    #[component(name = "nearest")]
    Nearest,
    #[component(name = "histogram")]
    Histogram(u32),
    #[component(name = "take")]
    Take,
    #[component(name = "convert")]
    Convert(WitDtype),
}

#[derive(ComponentType, Lower)]
#[component(record)]
struct WitGpu {
    name: String,
    #[component(name = "memory-bytes")]
    memory_bytes: u64,
    #[component(name = "has-f16")]
    has_f16: bool,
    #[component(name = "has-f64")]
    has_f64: bool,
}

/// The return value of an import: a result, or an error for the guest to handle.
type GuestResult<T> = (std::result::Result<T, WitError>,);
type Tensors = Vec<Resource<Tensor>>;

pub(crate) fn imports(linker: &mut LinkerInstance<'_, SandboxState>, waits: bool) -> Result<()> {
    linker.resource("tensor", ResourceType::host::<Tensor>(), |mut store, number| {
        dropped(store.data_mut(), |session| session.drop_tensor(number));
        Ok(())
    })?;
    linker.resource("kernel", ResourceType::host::<Kernel>(), |mut store, number| {
        dropped(store.data_mut(), |session| session.drop_kernel(number));
        Ok(())
    })?;
    linker.func_wrap(
        "[static]tensor.make",
        |mut store: Context<'_>,
         (dtype, sizes, values): (WitDtype, WasmList<u32>, Option<WasmList<u8>>)|
         -> Result<GuestResult<Resource<Tensor>>> {
            let sizes = shape_sizes(&store, &sizes);
            // SAFETY: the guest waits for this call.
            let values = values.map(|values| unsafe { detached(&store, &values) });
            let created = Spec::new(dtype.into(), &sizes).map(|spec| (spec, values));
            new_tensor(store.data_mut(), |session| created.and_then(|(spec, values)| session.tensor(spec, values)))
        },
    )?;
    linker.func_wrap(
        "[static]tensor.from-input",
        |mut store: Context<'_>, (dtype, sizes, offset): (WitDtype, WasmList<u32>, u64)| {
            let sizes = shape_sizes(&store, &sizes);
            // SAFETY: the input does not change while its guest waits for this call.
            let part = unsafe { part(&store.data().services.input().bytes, dtype, &sizes, offset) };
            new_tensor(store.data_mut(), |session| part.and_then(|(spec, part)| session.tensor(spec, Some(part))))
        },
    )?;
    linker.func_wrap(
        "[static]tensor.from-object",
        |mut store: Context<'_>, (dtype, sizes, object, offset): (WitDtype, WasmList<u32>, u64, u64)| {
            let sizes = shape_sizes(&store, &sizes);
            let (_, object) = store.data_mut().services.object(ObjectId(object))?;
            // SAFETY: the services keep the object that was read last.
            let part = unsafe { part(&object.bytes, dtype, &sizes, offset) };
            new_tensor(store.data_mut(), |session| part.and_then(|(spec, part)| session.tensor(spec, Some(part))))
        },
    )?;
    linker.func_wrap(
        "[method]tensor.reshaped",
        |mut store: Context<'_>, (tensor, sizes): (Resource<Tensor>, WasmList<u32>)| {
            let sizes = shape_sizes(&store, &sizes);
            new_tensor(store.data_mut(), |session| session.reshape(tensor.rep(), &sizes))
        },
    )?;
    linker.func_wrap("run", |store: Context<'_>, (operation, operands): (WitOperation, WasmList<WitOperand>)| {
        run(store, operation, operands)
    })?;
    linker.func_wrap("[static]kernel.make", |mut store: Context<'_>, (wgsl,): (WasmStr,)| {
        let wgsl = text(&store, &wgsl, TEXT_BYTES_MAX)?;
        let state = store.data_mut();
        let created = session(state)?.kernel(&wgsl);
        let created = created.map(|number| {
            state.handles += 1;
            Resource::<Kernel>::new_own(number)
        });
        Ok((created.map_err(WitError::from),))
    })?;
    linker.func_wrap(
        "[method]kernel.dispatch",
        |mut store: Context<'_>,
         (kernel, tensors, x, y, z): (Resource<Kernel>, Vec<Resource<Tensor>>, u32, u32, u32)|
         -> Result<GuestResult<()>> {
            let tensors: Vec<u32> = tensors.iter().map(Resource::rep).collect();
            let done = session(store.data_mut())?.dispatch(kernel.rep(), &tensors, [x, y, z]);
            Ok((done.map_err(WitError::from),))
        },
    )?;
    linker.func_wrap("get-gpu", |mut store: Context<'_>, (): ()| -> Result<(Option<WitGpu>,)> {
        let gpu = session(store.data_mut())?.about().map(|about| WitGpu {
            name: about.name.clone(),
            memory_bytes: about.memory_bytes,
            has_f16: about.has_f16,
            has_f64: about.has_f64,
        });
        Ok((gpu,))
    })?;
    linker.func_wrap("job-device", |mut store: Context<'_>, (): ()| -> Result<(Option<WitDevice>,)> {
        let preference = store.data_mut().services.dense().and_then(|session| session.preference());
        Ok((preference.map(WitDevice::from),))
    })?;
    linker.func_wrap("use-device", |mut store: Context<'_>, (device,): (WitDevice,)| -> Result<()> {
        session(store.data_mut())?.choose(device.into());
        Ok(())
    })?;
    if waits { reading_later(linker) } else { reading(linker) }
}

fn reading(linker: &mut LinkerInstance<'_, SandboxState>) -> Result<()> {
    linker.func_wrap("[method]tensor.read", |mut store: Context<'_>, (tensor, offset, region): Read| {
        let Destination { address, len } = Destination::of(&store, &region);
        let session = session(store.data_mut())?;
        let read = session.begin_read(tensor.rep(), offset, len as u64).and_then(|()| {
            // SAFETY: the guest's own bytes, which nothing else references while it waits for this call.
            match session.poll_read(unsafe { std::slice::from_raw_parts_mut(address, len) }, true) {
                Poll::Ready(read) => read,
                Poll::Pending => Err(DenseError::Lost("the read did not finish".to_owned())),
            }
        });
        Ok((read.map_err(WitError::from),))
    })
}

type Read = (Resource<Tensor>, u64, WasmList<u8>);

fn reading_later(linker: &mut LinkerInstance<'_, SandboxState>) -> Result<()> {
    linker.func_wrap_async("[method]tensor.read", |mut store: Context<'_>, (tensor, offset, region): Read| {
        Box::new(async move {
            let Destination { address, len } = Destination::of(&store, &region);
            // Stored as an integer, because a pointer may not be held across a wait.
            let to = address as usize;
            if let Err(error) = session(store.data_mut())?.begin_read(tensor.rep(), offset, len as u64) {
                return Ok((Err(WitError::from(error)),));
            }
            let read = poll_fn(|_| {
                let services = &mut store.data_mut().services;
                let Some(session) = services.dense() else { return Poll::Ready(Err(DenseError::NoTensor(0))) };
                // SAFETY: the guest's own bytes, which do not move while it waits for this call.
                let read = session.poll_read(unsafe { std::slice::from_raw_parts_mut(to as *mut u8, len) }, false);
                if read.is_pending() {
                    services.wait_for_gpu();
                }
                read
            });
            Ok((read.await.map_err(WitError::from),))
        })
    })
}

fn run(
    mut store: Context<'_>,
    operation: WitOperation,
    operands: WasmList<WitOperand>,
) -> Result<GuestResult<Tensors>> {
    if operands.len() > OPERANDS_MAX {
        return Err(Error::from(Refusal::bad_request(format!(
            "it runs an operation on {} operands, the limit is {OPERANDS_MAX}",
            operands.len()
        ))));
    }
    let lifted = operands.iter(&mut store)?.collect::<Result<Vec<_>>>()?;
    let op = match op(&mut store, operation)? {
        Ok(op) => op,
        Err(error) => return Ok((Err(error.into()),)),
    };
    let mut operands = Vec::with_capacity(lifted.len());
    for operand in &lifted {
        operands.push(match operand {
            WitOperand::Tensor(tensor) => Operand::Tensor(tensor.rep()),
            WitOperand::Values(values) => match Spec::new(values.dtype.into(), &shape_sizes(&store, &values.sizes)) {
                // SAFETY: the guest waits for this call.
                Ok(spec) => Operand::Values(spec, unsafe { detached(&store, &values.bytes) }),
                Err(error) => return Ok((Err(error.into()),)),
            },
        });
    }
    let state = store.data_mut();
    let created = session(state)?.run(&op, &operands);
    let created = created.map(|numbers| {
        state.handles += numbers.len();
        numbers.into_iter().map(Resource::new_own).collect()
    });
    Ok((created.map_err(WitError::from),))
}

fn op(store: &mut Context<'_>, operation: WitOperation) -> Result<std::result::Result<Op, DenseError>> {
    Ok(Ok(match operation {
        WitOperation::Product(WitTransposed { first, second }) => {
            Op::Product { first_transposed: first, second_transposed: second }
        }
        WitOperation::GroupedLeastSquares(WitGrouped { intercept, ridge, pivot_min }) => {
            Op::GroupedLeastSquares(GroupedOptions { intercept, ridge, pivot_min })
        }
        WitOperation::SolveCholesky => Op::SolveCholesky,
        WitOperation::SolveQr => Op::SolveQr,
        WitOperation::Map(steps) => {
            if steps.len() > STEPS_MAX {
                return Err(Error::from(Refusal::bad_request(format!(
                    "it maps a function of {} steps, the limit is {STEPS_MAX}",
                    steps.len()
                ))));
            }
            let steps = steps.iter(store)?.collect::<Result<Vec<WitStep>>>()?;
            let steps = steps.into_iter().map(|step| match step {
                WitStep::Input(input) => Step::Input(input),
                WitStep::Constant(value) => Step::Constant(value),
                WitStep::One(function) => Step::One(function.into()),
                WitStep::Two(function) => Step::Two(function.into()),
                WitStep::Select => Step::Select,
            });
            match Map::new(steps.collect()) {
                Ok(map) => Op::Map(map),
                Err(error) => return Ok(Err(error)),
            }
        }
        WitOperation::Reduce(WitReduce { with, along }) => Op::Reduce { with: with.into(), along },
        WitOperation::Softmax => Op::Softmax,
        WitOperation::LogSumExp => Op::LogSumExp,
        WitOperation::Nearest => Op::Nearest,
        WitOperation::Histogram(bins) => Op::Histogram { bins },
        WitOperation::Take => Op::Take,
        WitOperation::Convert(to) => Op::Convert(to.into()),
    }))
}

/// Returns the tensors of a guest.
fn session(state: &mut SandboxState) -> Result<&mut Session> {
    let refused = || Refusal::bad_request("this call has no tensors: it only describes its functions");
    state.services.dense().ok_or_else(|| Error::from(refused()))
}

fn new_tensor(
    state: &mut SandboxState,
    create: impl FnOnce(&mut Session) -> std::result::Result<u32, DenseError>,
) -> Result<GuestResult<Resource<Tensor>>> {
    let created = create(session(state)?);
    let created = created.map(|number| {
        state.handles += 1;
        Resource::new_own(number)
    });
    Ok((created.map_err(WitError::from),))
}

/// Handles the drop of a guest's handle.
fn dropped(state: &mut SandboxState, drop: impl FnOnce(&mut Session)) {
    state.handles = state.handles.saturating_sub(1);
    if let Some(session) = state.services.dense() {
        drop(session);
    }
}

/// Returns the sizes of a shape, truncated to one more than the maximum rank, which is rejected all the same.
fn shape_sizes(store: &Context<'_>, sizes: &WasmList<u32>) -> Vec<u32> {
    let sizes = sizes.as_le_slice(store);
    sizes[..sizes.len().min(sandbar_dense::RANK_MAX + 1)].to_vec()
}

/// Returns the bytes of a tensor within other bytes, no longer tied to the store.
///
/// # Safety
/// The bytes belong to the owner of the store, and stay valid until the tensor has been copied.
unsafe fn part<'a>(
    bytes: &[u8],
    dtype: WitDtype,
    sizes: &[u32],
    offset: u64,
) -> std::result::Result<(Spec, &'a [u8]), DenseError> {
    let spec = Spec::new(dtype.into(), sizes)?;
    let part = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)?.get(..spec.bytes() as usize));
    let outside = || DenseError::Shape(format!("{spec} at byte {offset} is not within {} bytes", bytes.len()));
    let part = part.ok_or_else(outside)?;
    // SAFETY: the caller guarantees that the bytes stay valid.
    Ok((spec, unsafe { std::slice::from_raw_parts(part.as_ptr(), part.len()) }))
}
