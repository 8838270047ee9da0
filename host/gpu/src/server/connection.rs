//! A client connection: its tensors and kernels, and its requests.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, Mutex};

use sandbar_dense::remote::{
    DROPS_PER_MESSAGE_MAX, GpuRequest, GpuResponse, INLINE_BYTES_MAX, RemoteError, RemoteErrorKind, TRANSFER_BYTES_MAX,
    TransferData, now_nanos, slot_offset, words,
};
use sandbar_dense::{INPUTS_MAX, Spec};
use sandbar_process::socket;
use sandbar_store::SharedMemory;

use super::submissions::SubmissionQueue;
use crate::device::lock;
use crate::{DeviceTensor, GpuError, GuestKernel, Stream};

/// Maximum numbers of tensors and kernels of a connection.
const TENSORS_MAX: usize = 1 << 20;
const KERNELS_MAX: usize = 256;

type RemoteResult<T> = Result<T, RemoteError>;

/// A connected client.
pub(super) struct Connection {
    responses: Arc<ResponseSender>,
    area: Arc<SharedMemory>,
    queue: Arc<SubmissionQueue>,
    stream: Stream,
    tensors: HashMap<u32, RemoteResult<DeviceTensor>>,
    kernels: HashMap<u32, RemoteResult<GuestKernel>>,
    /// Number of messages received, and of those covered by the last submission.
    received: u64,
    submitted: u64,
    /// Number of upload slots used so far.
    placed: usize,
}

/// Sender of responses, shared by several threads.
struct ResponseSender {
    socket: OwnedFd,
    /// Number of download slots used so far.
    placed: Mutex<usize>,
}

impl ResponseSender {
    /// Sends a response. Disconnects a client that does not receive its responses, whose number is limited.
    fn send(&self, message: &GpuResponse) {
        let mut frame = Vec::new();
        let remote_error = socket::frame(message, &mut frame).and_then(|frame| socket::send(&self.socket, frame, &[]));
        if remote_error.is_err() {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Sends the values of a read.
    fn values(&self, read: u64, area: &SharedMemory, values: RemoteResult<&[u8]>) {
        // The client assigns slots in the order of the messages.
        let mut placed = lock(&self.placed);
        let values = values.map(|values| {
            if values.len() <= INLINE_BYTES_MAX {
                return TransferData::Inline(values.to_vec());
            }
            area.write(slot_offset(*placed, true), values);
            *placed += 1;
            TransferData::Slot(values.len() as u32)
        });
        self.send(&GpuResponse::Values { read, values });
    }
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, area: Arc<SharedMemory>, queue: Arc<SubmissionQueue>) -> io::Result<Connection> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Connection {
            responses: Arc::new(ResponseSender { socket, placed: Mutex::default() }),
            area,
            stream: Stream::new(queue.device.clone()),
            queue,
            tensors: HashMap::new(),
            kernels: HashMap::new(),
            received: 0,
            submitted: 0,
            placed: 0,
        })
    }

    /// Handles requests until the connection closes or a request is invalid.
    pub(super) fn serve(mut self) {
        self.serve_until_closed();
        self.area.atomic(words::CLOSED).store(1, Release);
    }

    fn serve_until_closed(&mut self) {
        let mut received = Vec::new();
        loop {
            match socket::receive(&self.responses.socket, &mut received) {
                Ok(Some((message, _))) => {
                    self.received += 1;
                    self.area.atomic(words::COMPILING_SINCE).store(now_nanos(), Release);
                    let done = self.handle(message);
                    self.area.atomic(words::COMPILING_SINCE).store(0, Release);
                    if done.is_err() {
                        return;
                    }
                }
                // No request is waiting: submits the received ones to the device.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.submitted < self.received => self.submit(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if self.wait().is_err() {
                        return;
                    }
                }
                // The client disconnected, or sent an invalid message.
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, poll};
        match poll(&mut [PollFd::new(&self.responses.socket, PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Submits all received requests, and reports their completion to the client.
    fn submit(&mut self) {
        self.register_submission();
        self.stream.submit();
    }

    /// Registers the next submission of the stream, which covers all received requests.
    fn register_submission(&mut self) {
        self.submitted = self.received;
        let (responses, queue, message) = (self.responses.clone(), self.queue.clone(), self.received);
        self.stream.on_next_completion(move |nanos| {
            let was_first = queue.done();
            responses.send(&GpuResponse::Done { message, nanos: nanos.unwrap_or(was_first) });
        });
        self.queue.register_submission(&self.area);
    }

    /// Handles a request. An error closes the connection.
    fn handle(&mut self, message: GpuRequest) -> RemoteResult<()> {
        match message {
            GpuRequest::Tensor { tensor, spec, is_written } => {
                let result = if is_written { self.stream.tensor(spec) } else { self.stream.zeros(spec) };
                self.insert(tensor, result.map_err(remote_error))
            }
            GpuRequest::User => {
                // Earlier work counts for the previous user.
                self.submit();
                Ok(())
            }
            GpuRequest::Reshape { from, tensor, spec } => {
                let result = self.tensor(from).and_then(|from| self.stream.reshape(&from, spec).map_err(remote_error));
                self.insert(tensor, result)
            }
            GpuRequest::Write { tensor, offset, values } => self.write(tensor, offset, &values),
            GpuRequest::Run { op, inputs, outputs } => {
                if inputs.len() > INPUTS_MAX || outputs.len() > INPUTS_MAX {
                    return Err(invalid_request("too many tensors"));
                }
                let found: RemoteResult<Vec<DeviceTensor>> = inputs.iter().map(|input| self.tensor(*input)).collect();
                let result = found.and_then(|inputs| {
                    let result = self.stream.run(&op, &inputs.iter().collect::<Vec<_>>()).map_err(remote_error)?;
                    if result.len() == outputs.len() {
                        Ok(result)
                    } else {
                        Err(invalid_request("another number of results"))
                    }
                });
                match result {
                    Ok(result) => {
                        outputs.into_iter().zip(result).try_for_each(|(output, result)| self.insert(output, Ok(result)))
                    }
                    Err(error) => outputs.into_iter().try_for_each(|output| self.insert(output, Err(error.clone()))),
                }
            }
            GpuRequest::Kernel { kernel, wgsl } => {
                if self.kernels.len() >= KERNELS_MAX {
                    return Err(invalid_request("too many kernels"));
                }
                let result = self.queue.device.guest_kernel(&wgsl).map_err(remote_error);
                self.kernels.insert(kernel, result);
                Ok(())
            }
            GpuRequest::Dispatch { kernel, bindings, grid } => {
                let found: RemoteResult<Vec<DeviceTensor>> =
                    bindings.iter().map(|tensor| self.tensor(*tensor)).collect();
                let kernel = self.kernels.get(&kernel).ok_or_else(|| invalid_request("unknown kernel"))?;
                let done = found.and_then(|tensors| {
                    let kernel = kernel.as_ref().map_err(Clone::clone)?;
                    self.stream.dispatch(kernel, &tensors.iter().collect::<Vec<_>>(), grid).map_err(remote_error)
                });
                if let Err(error) = done {
                    // The kernel may have written to any of its bindings: all of them fail.
                    for tensor in bindings {
                        self.tensors.insert(tensor, Err(error.clone()));
                    }
                }
                // A separate submission makes a long run visible by itself.
                self.submit();
                Ok(())
            }
            GpuRequest::Read { tensor, offset, bytes } => self.read(tensor, offset, bytes as usize),
            GpuRequest::Drop { tensors } => {
                if tensors.len() > DROPS_PER_MESSAGE_MAX {
                    return Err(invalid_request("too many tensors"));
                }
                for tensor in tensors {
                    self.tensors.remove(&tensor);
                }
                Ok(())
            }
            GpuRequest::DropKernel { kernel } => {
                self.kernels.remove(&kernel);
                Ok(())
            }
        }
    }

    fn insert(&mut self, number: u32, tensor: RemoteResult<DeviceTensor>) -> RemoteResult<()> {
        if self.tensors.len() >= TENSORS_MAX {
            return Err(invalid_request("too many tensors"));
        }
        self.tensors.insert(number, tensor);
        Ok(())
    }

    fn tensor(&self, number: u32) -> RemoteResult<DeviceTensor> {
        self.tensors.get(&number).cloned().unwrap_or_else(|| Err(invalid_request("unknown tensor")))
    }

    fn write(&mut self, number: u32, offset: u64, values: &TransferData) -> RemoteResult<()> {
        let mut placed = Vec::new();
        let values = match values {
            TransferData::Inline(values) => values.as_slice(),
            TransferData::Slot(bytes) => {
                let bytes = *bytes as usize;
                if bytes > TRANSFER_BYTES_MAX {
                    return Err(invalid_request("too many bytes"));
                }
                let at = slot_offset(self.placed, false);
                self.placed += 1;
                placed.reserve_exact(bytes);
                let space: &mut [MaybeUninit<u8>] = &mut placed.spare_capacity_mut()[..bytes];
                &*self.area.read(at, space)
            }
        };
        // A failed tensor ignores writes; reads report its error.
        let Ok(tensor) = self.tensor(number) else { return Ok(()) };
        is_within(tensor.spec(), offset, values.len())?;
        let written = self.stream.write(&tensor, offset, values).map_err(remote_error);
        // Frees the queue's upload memory as values arrive.
        self.submit();
        written
    }

    fn read(&mut self, number: u32, offset: u64, bytes: usize) -> RemoteResult<()> {
        if bytes > TRANSFER_BYTES_MAX {
            return Err(invalid_request("too many bytes"));
        }
        let read = self.received;
        let tensor = match self.tensor(number) {
            Ok(tensor) => tensor,
            Err(error) => {
                self.responses.values(read, &self.area, Err(error));
                return Ok(());
            }
        };
        is_within(tensor.spec(), offset, bytes)?;
        let (responses, area) = (self.responses.clone(), self.area.clone());
        self.register_submission();
        self.stream.begin_download(&tensor, offset, bytes, move |values| {
            responses.values(read, &area, values.map_err(remote_error));
        });
        // The download may have completed already, while no thread waits for the device.
        self.queue.run_callbacks();
        Ok(())
    }
}

fn is_within(spec: Spec, offset: u64, bytes: usize) -> RemoteResult<()> {
    match offset.is_multiple_of(4) && offset.checked_add(bytes as u64).is_some_and(|end| end <= spec.bytes()) {
        true => Ok(()),
        false => Err(invalid_request("values out of bounds of their tensor")),
    }
}

fn invalid_request(reason: &str) -> RemoteError {
    RemoteError { kind: RemoteErrorKind::Request, message: format!("invalid GPU request: {reason}") }
}

fn remote_error(error: GpuError) -> RemoteError {
    let kind = match &error {
        GpuError::Memory { .. } => RemoteErrorKind::Memory,
        GpuError::Kernel(_) => RemoteErrorKind::Kernel,
        GpuError::Lost(_) | GpuError::Unusable(_) => RemoteErrorKind::Lost,
        GpuError::Dense(_) | GpuError::Unsupported(_) | GpuError::Size { .. } => RemoteErrorKind::Request,
    };
    RemoteError { kind, message: error.to_string() }
}
