//! The tensors of one guest, and the placement of its operations on processor and GPU.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Poll;

use serde::{Deserialize, Serialize};

use crate::gpu::lock;
use crate::remote::{Broker, GpuClient, ReadNumber, RemoteError, RemoteErrorKind, TRANSFER_BYTES_MAX};
use crate::{
    Cancellation, Costs, DenseError, DeviceInfo, DeviceProfile, Dtype, Gpu, Op, OwnedValues, Spec, Tensor, Values, cpu,
};

/// Maximum number of tensors of a guest.
pub const TENSORS_MAX: usize = 1 << 16;
/// Number of concurrent transfers of one read.
const TRANSFERS_MAX: usize = 2;

/// The device that runs operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceChoice {
    /// The device that finishes first, by the cost model.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The GPU, for all operations that it supports.
    Gpu,
}

/// The tensors of one guest.
#[derive(Debug)]
pub struct Session {
    /// Source of GPUs, and the job to request one for. The profile is known before a connection exists.
    broker: Option<(Broker, u64)>,
    profile: Option<Arc<DeviceProfile>>,
    gpu: Option<Gpu>,
    preference: Option<DeviceChoice>,
    choice: DeviceChoice,
    tensors: HashMap<u32, TensorEntry>,
    kernels: HashMap<u32, u32>,
    numbers: u32,
    bytes: u64,
    bytes_max: u64,
    /// Nanoseconds of work on connections that were lost.
    gpu_nanos: u64,
    pending_read: Option<PendingRead>,
    cancellation: Cancellation,
}

/// A tensor in host memory, device memory, or both.
#[derive(Debug)]
struct TensorEntry {
    spec: Spec,
    host: Option<Arc<OwnedValues>>,
    device: Option<u32>,
}

/// An input of an operation.
#[derive(Debug, Clone, Copy)]
pub enum Operand<'a> {
    /// A tensor of the session.
    Tensor(u32),
    /// Borrowed values, used during the call alone.
    Values(Spec, &'a [u8]),
}

/// A read of a tensor's values in progress.
#[derive(Debug)]
struct PendingRead {
    /// The tensor's number on the device, or in the session if its values are in host memory.
    device: u32,
    is_on_host: bool,
    /// Start of the range in the tensor, and the requested and received bytes.
    first: u64,
    requested_bytes: usize,
    received_bytes: usize,
    in_flight: VecDeque<(ReadNumber, usize)>,
}

impl Session {
    /// Creates a session with a limit of tensor bytes and a device preference, if one was given. With a broker it may
    /// use a GPU for the given job.
    pub fn new(broker: Option<(Broker, u64)>, preference: Option<DeviceChoice>, bytes_max: u64) -> Session {
        Session::until(broker, preference, bytes_max, Cancellation::NEVER)
    }

    /// Like [`Session::new`]. Its operations on the processor, and its waits for a GPU, end when `cancellation` says so.
    pub fn until(
        broker: Option<(Broker, u64)>,
        preference: Option<DeviceChoice>,
        bytes_max: u64,
        cancellation: Cancellation,
    ) -> Session {
        let profile = broker.as_ref().and_then(|(broker, _)| broker.profile(cancellation));
        Session {
            broker,
            profile,
            gpu: None,
            preference,
            choice: preference.unwrap_or_default(),
            tensors: HashMap::new(),
            kernels: HashMap::new(),
            numbers: 0,
            bytes: 0,
            bytes_max,
            gpu_nanos: 0,
            pending_read: None,
            cancellation,
        }
    }

    /// Returns the device preference that was given at the start.
    pub fn preference(&self) -> Option<DeviceChoice> {
        self.preference
    }

    /// Returns the properties of the available GPU, if any.
    pub fn about(&self) -> Option<&DeviceInfo> {
        self.profile.as_ref().map(|profile| &profile.about)
    }

    /// Sets the device preference. Without a GPU the processor runs everything.
    pub fn choose(&mut self, choice: DeviceChoice) {
        self.choice = choice;
    }

    /// Whether the GPU is lost.
    pub fn is_lost(&self) -> bool {
        self.gpu
            .as_ref()
            .is_some_and(|gpu| lock(&gpu.remote).lost().is_some_and(|lost| lost.kind == RemoteErrorKind::Lost))
    }

    /// Whether tensors or kernels of the session are lost with their GPU, for any reason.
    pub fn has_lost_tensors(&self) -> bool {
        let is_lost = self.gpu.as_ref().is_some_and(|gpu| lock(&gpu.remote).lost().is_some());
        is_lost && !(self.kernels.is_empty() && self.tensors.values().all(|entry| entry.device.is_none()))
    }

    /// Returns the connection to the GPU. Connects on first use, and reconnects if a connection was lost without
    /// tensors on it.
    fn connect(&mut self) -> Option<Gpu> {
        let is_lost = self.gpu.as_ref().is_some_and(|gpu| lock(&gpu.remote).lost().is_some());
        if is_lost && !self.has_lost_tensors() {
            self.gpu_nanos = self.gpu_nanos();
            self.gpu = None;
        }
        if self.gpu.is_none() {
            let (broker, job) = self.broker.as_ref()?;
            let mut gpu = broker.gpu(*job, self.cancellation)?;
            gpu.user = lock(&gpu.remote).add_user();
            gpu.cancellation = self.cancellation;
            self.gpu = Some(gpu);
        }
        self.gpu.clone()
    }

    /// Returns the bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the nanoseconds that the GPU worked for the session, as far as results arrived.
    pub fn gpu_nanos(&self) -> u64 {
        let now = self.gpu.as_ref().map_or(0, |gpu| lock(&gpu.remote).busy_nanos(gpu.user));
        self.gpu_nanos.saturating_add(now)
    }

    /// Creates a tensor from values, or of zeros.
    ///
    /// # Errors
    /// Fails without enough memory, or if the number of bytes does not match.
    pub fn tensor(&mut self, spec: Spec, values: Option<&[u8]>) -> Result<u32, DenseError> {
        if let Some(values) = values
            && values.len() as u64 != spec.bytes()
        {
            return Err(DenseError::Shape(format!(
                "{} bytes do not form a {spec}, which takes {}",
                values.len(),
                spec.bytes()
            )));
        }
        self.check_capacity(spec.bytes(), 1)?;
        let owned =
            values.map_or_else(|| OwnedValues::zeros(spec), |values| OwnedValues::from_bytes(spec.dtype, values));
        Ok(self.insert_tensor(TensorEntry { spec, host: Some(Arc::new(owned)), device: None }))
    }

    fn insert_tensor(&mut self, entry: TensorEntry) -> u32 {
        self.numbers += 1;
        self.bytes += entry.spec.bytes();
        self.tensors.insert(self.numbers, entry);
        self.numbers
    }

    /// Returns type and shape of a tensor.
    ///
    /// # Errors
    /// Fails if the tensor does not exist.
    pub fn spec(&self, tensor: u32) -> Result<Spec, DenseError> {
        Ok(self.entry(tensor)?.spec)
    }

    fn entry(&self, tensor: u32) -> Result<&TensorEntry, DenseError> {
        self.tensors.get(&tensor).ok_or(DenseError::NoTensor(tensor))
    }

    /// Checks the limits for more bytes and tensors.
    fn check_capacity(&self, bytes: u64, tensors: usize) -> Result<(), DenseError> {
        if self.tensors.len() + tensors > TENSORS_MAX {
            return Err(DenseError::Memory(format!("more than {TENSORS_MAX} tensors")));
        }
        match self.bytes.checked_add(bytes).is_some_and(|all| all <= self.bytes_max) {
            true => Ok(()),
            false => Err(DenseError::Memory(format!(
                "{bytes} bytes do not fit beside the {} bytes of other tensors, the limit is {} (tensor_bytes_max)",
                self.bytes, self.bytes_max
            ))),
        }
    }

    /// Drops a tensor.
    pub fn drop_tensor(&mut self, tensor: u32) {
        if let Some(entry) = self.tensors.remove(&tensor) {
            self.bytes -= entry.spec.bytes();
            if let (Some(device), Some(gpu)) = (entry.device, &self.gpu) {
                lock(&gpu.remote).drop_tensor(device);
            }
        }
    }

    /// Returns a tensor with the same values in another shape.
    ///
    /// # Errors
    /// Fails if the number of values differs, or a copy does not fit.
    pub fn reshape(&mut self, tensor: u32, sizes: &[u32]) -> Result<u32, DenseError> {
        let entry = self.entry(tensor)?;
        let spec = Spec::new(entry.spec.dtype, sizes)?;
        if spec.shape.count() != entry.spec.shape.count() {
            return Err(DenseError::Shape(format!(
                "{} can't be reshaped to {spec}: it has another number of values",
                entry.spec
            )));
        }
        if let Some(host) = entry.host.clone() {
            self.check_capacity(spec.bytes(), 1)?;
            return Ok(self.insert_tensor(TensorEntry { spec, host: Some(host), device: None }));
        }
        // A device tensor has one shape: its values are copied.
        self.check_capacity(spec.bytes(), 1)?;
        let device = entry.device.ok_or(DenseError::NoTensor(tensor))?;
        let Some(gpu) = self.gpu.clone() else { return Err(DenseError::NoTensor(tensor)) };
        let results = gpu.lock().reshape(device, spec).map_err(convert_error)?;
        Ok(self.insert_tensor(TensorEntry { spec, host: None, device: Some(results) }))
    }

    /// Runs an operation, or queues it on the GPU.
    ///
    /// # Errors
    /// Fails if the operation does not accept the inputs, or its outputs do not fit. Errors of queued operations are
    /// reported by reads of their outputs.
    pub fn run(&mut self, op: &Op, operands: &[Operand<'_>]) -> Result<Vec<u32>, DenseError> {
        let spec = |operand: &Operand<'_>| match operand {
            Operand::Tensor(tensor) => self.spec(*tensor),
            Operand::Values(spec, bytes) if spec.bytes() == bytes.len() as u64 => Ok(*spec),
            Operand::Values(spec, bytes) => {
                let reason = format!("{} bytes do not form a {spec}, which takes {}", bytes.len(), spec.bytes());
                Err(DenseError::Shape(reason))
            }
        };
        let specs: Vec<Spec> = operands.iter().map(spec).collect::<Result<_, _>>()?;
        let outputs = op.outputs(&specs)?;
        // The processor computes f16 with copies in f32.
        let copied = |spec: &&Spec| spec.dtype == Dtype::F16;
        let copies: u64 = specs.iter().chain(&outputs).filter(copied).map(|spec| 2 * spec.bytes()).sum();
        let bytes: u64 = outputs.iter().map(Spec::bytes).sum();
        self.check_capacity(bytes.saturating_add(copies), outputs.len())?;
        let prefers_device = self.prefers_device(op, operands, &specs, &outputs);
        match if prefers_device { self.connect() } else { None } {
            Some(gpu) => self.run_on_device(&gpu, op, operands, outputs),
            None => self.run_on_host(op, operands, outputs),
        }
    }

    /// Whether the GPU should run the operation: for [`DeviceChoice::Auto`] if it finishes first, including transfers.
    fn prefers_device(&self, op: &Op, operands: &[Operand<'_>], specs: &[Spec], outputs: &[Spec]) -> bool {
        let Some(profile) = &self.profile else { return false };
        if self.choice == DeviceChoice::Cpu || !profile.about.does(op, specs, outputs) {
            return false;
        }
        let Some(costs) = profile.costs.filter(|_| self.choice == DeviceChoice::Auto) else { return true };
        let (mut up, mut down) = (0.0, 0.0);
        for (operand, spec) in operands.iter().zip(specs) {
            match operand {
                Operand::Values(..) => up += spec.bytes() as f64,
                Operand::Tensor(tensor) => match self.tensors.get(tensor) {
                    Some(TensorEntry { device: None, .. }) => up += spec.bytes() as f64,
                    Some(TensorEntry { host: None, .. }) => down += spec.bytes() as f64,
                    _ => {}
                },
            }
        }
        let (work, dtype) = (op.work(specs, outputs), float(specs));
        // Outputs are needed on the host if all inputs came from there.
        let back = if down > 0.0 { 0.0 } else { outputs.iter().map(|spec| spec.bytes() as f64).sum() };
        let move_nanos = |bytes: f64, rate: f64| 1e9 * bytes / rate;
        let is_blocking = if up > 0.0 || down == 0.0 { costs.fixed_nanos } else { 0.0 };
        let device = is_blocking
            + costs.nanos(work, dtype)
            + move_nanos(up, costs.up_bytes_s)
            + move_nanos(back, costs.down_bytes_s);
        let processor = profile.processor.unwrap_or(Costs::PROCESSOR);
        let host = processor.fixed_nanos
            + processor.nanos(work, dtype)
            + move_nanos(down, costs.down_bytes_s)
            + if down > 0.0 { costs.fixed_nanos } else { 0.0 };
        device < host && (self.gpu.is_some() || self.is_worth_start(host - device, profile.start_nanos))
    }

    /// Whether the time saved by this and earlier operations justifies starting the GPU's process.
    fn is_worth_start(&self, saved_nanos: f64, start_nanos: f64) -> bool {
        self.broker.as_ref().is_none_or(|(broker, job)| broker.is_worth_start(*job, saved_nanos, start_nanos))
    }

    fn run_on_device(
        &mut self,
        gpu: &Gpu,
        op: &Op,
        operands: &[Operand<'_>],
        outputs: Vec<Spec>,
    ) -> Result<Vec<u32>, DenseError> {
        let mut lent = Vec::new();
        let queued = self.queue_on_device(gpu, op, operands, outputs.len(), &mut lent);
        let mut remote = gpu.lock();
        lent.into_iter().for_each(|device| remote.drop_tensor(device));
        drop(remote);
        let entry = queued?.into_iter().zip(outputs).map(|(device, spec)| TensorEntry {
            spec,
            host: None,
            device: Some(device),
        });
        let entry: Vec<TensorEntry> = entry.collect();
        Ok(entry.into_iter().map(|entry| self.insert_tensor(entry)).collect())
    }

    /// Uploads the inputs of an operation and queues it. Appends the tensors that are needed for it alone to `lent`.
    fn queue_on_device(
        &mut self,
        gpu: &Gpu,
        op: &Op,
        operands: &[Operand<'_>],
        outputs: usize,
        lent: &mut Vec<u32>,
    ) -> Result<Vec<u32>, DenseError> {
        let mut inputs = Vec::new();
        for operand in operands {
            inputs.push(match operand {
                Operand::Tensor(tensor) => self.upload(gpu, *tensor)?,
                Operand::Values(spec, bytes) => {
                    let device = gpu.lock().tensor(*spec, Some(bytes)).map_err(convert_error)?;
                    lent.push(device);
                    device
                }
            });
        }
        gpu.lock().run(op, &inputs, outputs).map_err(convert_error)
    }

    /// Returns a tensor's number on the device, and uploads it if needed.
    fn upload(&mut self, gpu: &Gpu, tensor: u32) -> Result<u32, DenseError> {
        let entry = self.entry(tensor)?;
        if let Some(device) = entry.device {
            return Ok(device);
        }
        let host = entry.host.as_ref().ok_or(DenseError::NoTensor(tensor))?;
        let device = gpu.lock().tensor(entry.spec, Some(host.values().bytes())).map_err(convert_error)?;
        if let Some(entry) = self.tensors.get_mut(&tensor) {
            entry.device = Some(device);
        }
        Ok(device)
    }

    fn run_on_host(&mut self, op: &Op, operands: &[Operand<'_>], outputs: Vec<Spec>) -> Result<Vec<u32>, DenseError> {
        // Uses aligned values in place, and copies others.
        let mut copies: Vec<(usize, Spec, Arc<OwnedValues>)> = Vec::new();
        for (at, operand) in operands.iter().enumerate() {
            match operand {
                Operand::Tensor(tensor) => copies.push((at, self.spec(*tensor)?, self.download(*tensor)?)),
                Operand::Values(spec, bytes) if Values::new(spec.dtype, bytes).is_none() => {
                    copies.push((at, *spec, Arc::new(OwnedValues::from_bytes(spec.dtype, bytes))));
                }
                Operand::Values(..) => {}
            }
        }
        let inputs: Vec<Tensor<'_>> = operands
            .iter()
            .enumerate()
            .map(|(at, operand)| match (copies.iter().find(|(index, ..)| *index == at), operand) {
                (Some((_, spec, owned)), _) => Tensor::new(*spec, owned.values()),
                (None, Operand::Values(spec, bytes)) => match Values::new(spec.dtype, bytes) {
                    Some(values) => Tensor::new(*spec, values),
                    None => Err(DenseError::Shape(format!("the values of {spec} are misaligned"))),
                },
                (None, Operand::Tensor(tensor)) => Err(DenseError::NoTensor(*tensor)),
            })
            .collect::<Result<_, _>>()?;
        let results = cpu::run_until(op, &inputs, self.cancellation)?;
        let entry = results.into_iter().zip(outputs).map(|(owned, spec)| (spec, Some(Arc::new(owned))));
        let entry: Vec<TensorEntry> = entry.map(|(spec, host)| TensorEntry { spec, host, device: None }).collect();
        Ok(entry.into_iter().map(|entry| self.insert_tensor(entry)).collect())
    }

    /// Returns a tensor's values in host memory, and downloads them if needed.
    fn download(&mut self, tensor: u32) -> Result<Arc<OwnedValues>, DenseError> {
        let entry = self.entry(tensor)?;
        if let Some(host) = &entry.host {
            return Ok(host.clone());
        }
        let spec = entry.spec;
        let mut bytes = vec![0; spec.bytes() as usize];
        self.begin_read(tensor, 0, bytes.len() as u64)?;
        match self.poll_read(&mut bytes, true) {
            Poll::Ready(read) => read?,
            Poll::Pending => return Err(DenseError::NoTensor(tensor)),
        }
        let host = Arc::new(OwnedValues::from_bytes(spec.dtype, &bytes));
        if let Some(entry) = self.tensors.get_mut(&tensor) {
            entry.host = Some(host.clone());
        }
        Ok(host)
    }

    /// Starts a read of `bytes` bytes of a tensor's values from `offset` on, a multiple of four, for
    /// [`Session::poll_read`].
    ///
    /// # Errors
    /// Fails if the tensor does not exist, or the range is invalid.
    pub fn begin_read(&mut self, tensor: u32, offset: u64, bytes: u64) -> Result<(), DenseError> {
        self.cancel_read();
        let entry = self.entry(tensor)?;
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > entry.spec.bytes()) || !offset.is_multiple_of(4) {
            let reason =
                format!("{bytes} bytes at {offset} are not within {}, or do not start at a multiple of 4", entry.spec);
            return Err(DenseError::Shape(reason));
        }
        let device = match (&entry.host, entry.device) {
            (None, Some(device)) => device,
            _ => {
                self.pending_read = Some(PendingRead::on_host(tensor, offset));
                return Ok(());
            }
        };
        let in_flight = VecDeque::new();
        self.pending_read = Some(PendingRead {
            device,
            is_on_host: false,
            first: offset,
            requested_bytes: 0,
            received_bytes: 0,
            in_flight,
        });
        Ok(())
    }

    /// Continues the read into `to`, which has the requested length. With `is_blocking` it blocks until the read is complete;
    /// otherwise the caller polls again.
    ///
    /// # Errors
    /// Errors of the operations that computed the tensor, or of the connection.
    pub fn poll_read(&mut self, to: &mut [u8], is_blocking: bool) -> Poll<Result<(), DenseError>> {
        let Some(pending_read) = &mut self.pending_read else { return Poll::Ready(Err(DenseError::NoTensor(0))) };
        if pending_read.is_on_host {
            let (tensor, first) = (pending_read.device, pending_read.first as usize);
            self.pending_read = None;
            let copied = self.entry(tensor).map(|entry| {
                if let Some(from) =
                    entry.host.as_ref().and_then(|host| host.values().bytes().get(first..first + to.len()))
                {
                    to.copy_from_slice(from);
                }
            });
            return Poll::Ready(copied);
        }
        let Some(gpu) = &self.gpu else { return Poll::Ready(Err(DenseError::NoTensor(pending_read.device))) };
        let mut remote = gpu.lock();
        let read = loop {
            match pending_read.step(&mut remote, to, is_blocking) {
                Err(error) => break Err(convert_error(error)),
                Ok(true) if pending_read.received_bytes == to.len() => break Ok(()),
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
            }
        };
        drop(remote);
        self.cancel_read();
        Poll::Ready(read)
    }

    fn cancel_read(&mut self) {
        if let (Some(pending_read), Some(gpu)) = (self.pending_read.take(), &self.gpu) {
            let mut remote = gpu.lock();
            pending_read.in_flight.into_iter().for_each(|(number, _)| remote.abandon(number));
        }
    }

    /// Creates a kernel from WGSL text.
    ///
    /// # Errors
    /// Fails without a GPU. Errors of the text are reported by reads of the kernel's outputs.
    pub fn kernel(&mut self, wgsl: &str) -> Result<u32, DenseError> {
        let gpu = self.connect().ok_or(DenseError::NoGpu)?;
        if wgsl.len() > crate::remote::KERNEL_BYTES_MAX {
            let max = crate::remote::KERNEL_BYTES_MAX;
            return Err(DenseError::Kernel(format!("a kernel of {} bytes, the maximum is {max}", wgsl.len())));
        }
        if self.kernels.len() >= KERNELS_MAX {
            return Err(DenseError::Kernel(format!("more than {KERNELS_MAX} kernels")));
        }
        let device = gpu.lock().kernel(wgsl).map_err(convert_error)?;
        self.numbers += 1;
        self.kernels.insert(self.numbers, device);
        Ok(self.numbers)
    }

    /// Queues a run of a kernel on a grid of thread groups. The kernel may change the bound tensors.
    ///
    /// # Errors
    /// Fails if the kernel or a tensor does not exist.
    pub fn dispatch(&mut self, kernel: u32, tensors: &[u32], grid: [u32; 3]) -> Result<(), DenseError> {
        let gpu = self.connect().ok_or(DenseError::NoGpu)?;
        let kernel = *self.kernels.get(&kernel).ok_or(DenseError::NoTensor(kernel))?;
        if tensors.len() > crate::remote::BINDINGS_MAX {
            let max = crate::remote::BINDINGS_MAX;
            return Err(DenseError::Kernel(format!("{} tensors, the maximum is {max}", tensors.len())));
        }
        let mut bindings = Vec::new();
        for tensor in tensors {
            bindings.push(self.upload(&gpu, *tensor)?);
        }
        gpu.lock().dispatch(kernel, &bindings, grid).map_err(convert_error)?;
        for tensor in tensors {
            // The host's copy is outdated.
            if let Some(entry) = self.tensors.get_mut(tensor) {
                entry.host = None;
            }
        }
        Ok(())
    }

    /// Drops a kernel.
    pub fn drop_kernel(&mut self, kernel: u32) {
        if let (Some(device), Some(gpu)) = (self.kernels.remove(&kernel), &self.gpu) {
            lock(&gpu.remote).drop_kernel(device);
        }
    }
}

/// Maximum number of kernels of a guest.
pub const KERNELS_MAX: usize = 64;

impl PendingRead {
    fn on_host(tensor: u32, first: u64) -> PendingRead {
        PendingRead {
            device: tensor,
            is_on_host: true,
            first,
            requested_bytes: 0,
            received_bytes: 0,
            in_flight: VecDeque::new(),
        }
    }

    /// Requests the next part, or receives one. Returns whether it made progress.
    fn step(&mut self, remote: &mut GpuClient, to: &mut [u8], is_blocking: bool) -> Result<bool, RemoteError> {
        if self.received_bytes == to.len() {
            return Ok(true);
        }
        if self.requested_bytes < to.len() && self.in_flight.len() < TRANSFERS_MAX {
            let bytes = (to.len() - self.requested_bytes).min(TRANSFER_BYTES_MAX);
            if let Some(number) = remote.begin_read(self.device, self.first + self.requested_bytes as u64, bytes)? {
                self.in_flight.push_back((number, bytes));
                self.requested_bytes += bytes;
                return Ok(true);
            }
        }
        // Without a transfer of its own, it waits until others receive theirs.
        let Some((number, bytes)) = self.in_flight.front().copied() else { return Ok(false) };
        match remote.poll_read(number, &mut to[self.received_bytes..self.received_bytes + bytes], is_blocking) {
            Poll::Pending => Ok(false),
            Poll::Ready(read) => {
                self.in_flight.pop_front();
                self.received_bytes += bytes;
                read.map(|()| true)
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.cancel_read();
        let Some(gpu) = &self.gpu else { return };
        // Nothing below waits.
        let mut remote = lock(&gpu.remote);
        self.tensors.values().filter_map(|entry| entry.device).for_each(|device| remote.drop_tensor(device));
        self.kernels.values().for_each(|device| remote.drop_kernel(*device));
        remote.remove_user(gpu.user);
    }
}

/// Returns the type that the operation computes in.
fn float(specs: &[Spec]) -> Dtype {
    specs.iter().map(|spec| spec.dtype).find(|dtype| dtype.is_float()).unwrap_or(Dtype::F32)
}

fn convert_error(error: RemoteError) -> DenseError {
    match error.kind {
        RemoteErrorKind::Memory => DenseError::Memory(error.message),
        RemoteErrorKind::Kernel => DenseError::Kernel(error.message),
        RemoteErrorKind::TimeOut => DenseError::TimeOut(error.message),
        RemoteErrorKind::Request => DenseError::Shape(error.message),
        RemoteErrorKind::Lost => DenseError::Lost(error.message),
        RemoteErrorKind::Cancelled => DenseError::Cancelled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceKind, GroupedOptions};

    /// Profile of an NVIDIA H100 and a core beside it, as measured, with the start time of a process.
    fn profile(sharers: u32) -> Arc<DeviceProfile> {
        let about = DeviceInfo {
            name: "a GPU".to_owned(),
            driver: String::new(),
            kind: DeviceKind::Discrete,
            memory_bytes: 80 << 30,
            tensor_bytes_max: 2 << 30,
            has_f16: true,
            has_f64: true,
            has_matrix_units: true,
            grouped_width_max: 64,
            refused: None,
        };
        let costs = Costs {
            fixed_nanos: 120e3,
            up_bytes_s: 12e9,
            down_bytes_s: 4e9,
            memory_bytes_s: 2e12,
            f16_operations_s: 100e12,
            f32_operations_s: 25e12,
            f64_operations_s: 8e12,
        };
        let profile = DeviceProfile { about, costs: Some(costs), processor: Some(Costs::PROCESSOR), start_nanos: 2e9 };
        Arc::new(profile.shared_by(sharers))
    }

    fn session(sharers: u32) -> Session {
        let mut session = Session::new(Some((Broker::new(None), 1)), None, 1 << 30);
        session.profile = Some(profile(sharers));
        session
    }

    /// Returns the number of equal operations in a row after which the GPU runs them, if ever.
    fn operations_until_device(sharers: u32, op: &Op, specs: &[Spec]) -> Option<u32> {
        let mut session = session(sharers);
        let inputs: Vec<u32> = specs.iter().map(|spec| session.tensor(*spec, None).unwrap()).collect();
        let operands: Vec<Operand<'_>> = inputs.into_iter().map(Operand::Tensor).collect();
        let outputs = op.outputs(specs).unwrap();
        (1..=1000).find(|_| session.prefers_device(op, &operands, specs, &outputs))
    }

    #[test]
    fn a_gpu_is_started_when_it_would_have_saved_its_start() {
        let spec = |dtype, sizes: &[u32]| Spec::new(dtype, sizes).unwrap();
        let product = Op::Product { first_transposed: false, second_transposed: false };
        let square = |side| [spec(Dtype::F32, &[side, side]), spec(Dtype::F32, &[side, side])];
        let fits = Op::GroupedLeastSquares(GroupedOptions { intercept: true, ridge: 0.0, pivot_min: 0.0 });
        let groups = [spec(Dtype::F64, &[8, 64_000]), spec(Dtype::F64, &[64_000]), spec(Dtype::U32, &[1001])];
        // On one core a product of size 4096 takes 2.3 s, of size 1024 36 ms, and of size 64 9 µs. A thousand fits take
        // a few milliseconds, on an unshared GPU little less; with sixteen workers sharing the bus, they take longer.
        for (name, sharers, op, specs, expected) in [
            ("a product that takes longer than a start", 1, &product, &square(4096)[..], Some(1)),
            ("products that take as long together", 1, &product, &square(1024), Some(60)),
            ("small products", 1, &product, &square(64), None),
            ("fits whose values are moved, shared by all workers", 16, &fits, &groups, None),
        ] {
            assert_eq!(operations_until_device(sharers, op, specs), expected, "{name}");
        }
    }
}
