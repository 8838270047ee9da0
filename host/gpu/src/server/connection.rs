//! A connection: its tensors and kernels, and what it has on its way.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, Mutex};

use sandbar_dense::remote::{
    DROPPED_MAX, FromGpu, INLINE_BYTES_MAX, MOVED_BYTES_MAX, Moved, RemoteError, RemoteErrorKind, ToGpu, now_nanos,
    place, words,
};
use sandbar_dense::{INPUTS_MAX, Spec};
use sandbar_process::socket;
use sandbar_store::SharedMemory;

use super::busy::Queue;
use crate::device::lock;
use crate::{DeviceTensor, GpuError, GuestKernel, Stream};

/// Tensors and kernels of a connection at most.
const TENSORS_MAX: usize = 1 << 20;
const KERNELS_MAX: usize = 256;

type Failed<T> = Result<T, RemoteError>;

/// Somebody who is served.
pub(super) struct Connection {
    answers: Arc<Answers>,
    area: Arc<SharedMemory>,
    queue: Arc<Queue>,
    stream: Stream,
    tensors: HashMap<u32, Failed<DeviceTensor>>,
    kernels: HashMap<u32, Failed<GuestKernel>>,
    /// Messages that came, and that are said to be done once what was submitted is.
    came: u64,
    submitted: u64,
    /// Values that took a place.
    placed: usize,
}

/// What is said to a client, by several threads.
struct Answers {
    socket: OwnedFd,
    /// Values back that took a place.
    placed: Mutex<usize>,
}

impl Answers {
    /// A client that does not take its answers, of which few may be on their way, is none.
    fn say(&self, message: &FromGpu) {
        let mut frame = Vec::new();
        let said = socket::frame(message, &mut frame).and_then(|frame| socket::send(&self.socket, frame, &[]));
        if said.is_err() {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Values are there, of the read of this message.
    fn values(&self, read: u64, area: &SharedMemory, values: Failed<&[u8]>) {
        // Places are told in the order in which they are taken.
        let mut placed = lock(&self.placed);
        let values = values.map(|values| {
            if values.len() <= INLINE_BYTES_MAX {
                return Moved::Inline(values.to_vec());
            }
            area.write(place(*placed, true), values);
            *placed += 1;
            Moved::Placed(values.len() as u32)
        });
        self.say(&FromGpu::Values { read, values });
    }
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, area: Arc<SharedMemory>, queue: Arc<Queue>) -> io::Result<Connection> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Connection {
            answers: Arc::new(Answers { socket, placed: Mutex::default() }),
            area,
            stream: Stream::new(queue.device.clone()),
            queue,
            tensors: HashMap::new(),
            kernels: HashMap::new(),
            came: 0,
            submitted: 0,
            placed: 0,
        })
    }

    /// Does what it is asked for until it is closed, or makes no sense.
    pub(super) fn serve(mut self) {
        self.serve_until_closed();
        self.area.atomic(words::CLOSED).store(1, Release);
    }

    fn serve_until_closed(&mut self) {
        let mut received = Vec::new();
        loop {
            match socket::receive(&self.answers.socket, &mut received) {
                Ok(Some((message, _))) => {
                    self.came += 1;
                    self.area.atomic(words::MAKING_SINCE).store(now_nanos(), Release);
                    let done = self.handle(message);
                    self.area.atomic(words::MAKING_SINCE).store(0, Release);
                    if done.is_err() {
                        return;
                    }
                }
                // Nothing more is asked for at once: what was goes to the device.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.submitted < self.came => self.submit(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if self.wait().is_err() {
                        return;
                    }
                }
                // It is gone, or makes no sense.
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, poll};
        match poll(&mut [PollFd::new(&self.answers.socket, PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Has the device begin all that was asked for. Once it is done the client is told so.
    fn submit(&mut self) {
        self.submits();
        self.stream.submit();
    }

    /// What the stream submits next is all that was asked for.
    fn submits(&mut self) {
        self.submitted = self.came;
        let (answers, queue, message) = (self.answers.clone(), self.queue.clone(), self.came);
        self.stream.tell_when_done(move |nanos| {
            let was_first = queue.done();
            answers.say(&FromGpu::Done { message, nanos: nanos.unwrap_or(was_first) });
        });
        self.queue.submits(&self.area);
    }

    /// An error of a client that makes no sense.
    fn handle(&mut self, message: ToGpu) -> Failed<()> {
        match message {
            ToGpu::Tensor { tensor, spec, is_written } => {
                let made = if is_written { self.stream.tensor(spec) } else { self.stream.zeros(spec) };
                self.keep(tensor, made.map_err(said))
            }
            ToGpu::User => {
                // What was asked for before is another's time.
                self.submit();
                Ok(())
            }
            ToGpu::Reshape { from, tensor, spec } => {
                let made = self.tensor(from).and_then(|from| self.stream.reshaped(&from, spec).map_err(said));
                self.keep(tensor, made)
            }
            ToGpu::Write { tensor, offset, values } => self.write(tensor, offset, &values),
            ToGpu::Run { op, inputs, outputs } => {
                if inputs.len() > INPUTS_MAX || outputs.len() > INPUTS_MAX {
                    return Err(senseless("so many tensors"));
                }
                let found: Failed<Vec<DeviceTensor>> = inputs.iter().map(|input| self.tensor(*input)).collect();
                let made = found.and_then(|inputs| {
                    let made = self.stream.run(&op, &inputs.iter().collect::<Vec<_>>()).map_err(said)?;
                    if made.len() == outputs.len() { Ok(made) } else { Err(senseless("another number of results")) }
                });
                match made {
                    Ok(made) => {
                        outputs.into_iter().zip(made).try_for_each(|(output, made)| self.keep(output, Ok(made)))
                    }
                    Err(error) => outputs.into_iter().try_for_each(|output| self.keep(output, Err(error.clone()))),
                }
            }
            ToGpu::Kernel { kernel, wgsl } => {
                if self.kernels.len() >= KERNELS_MAX {
                    return Err(senseless("so many kernels"));
                }
                let made = self.queue.device.guest_kernel(&wgsl).map_err(said);
                self.kernels.insert(kernel, made);
                Ok(())
            }
            ToGpu::Dispatch { kernel, bindings, grid } => {
                let found: Failed<Vec<DeviceTensor>> = bindings.iter().map(|tensor| self.tensor(*tensor)).collect();
                let kernel = self.kernels.get(&kernel).ok_or_else(|| senseless("a kernel that is none"))?;
                let done = found.and_then(|tensors| {
                    let kernel = kernel.as_ref().map_err(Clone::clone)?;
                    self.stream.dispatch(kernel, &tensors.iter().collect::<Vec<_>>(), grid).map_err(said)
                });
                if let Err(error) = done {
                    // Nobody can tell what it would have written: all that it was bound to.
                    for tensor in bindings {
                        self.tensors.insert(tensor, Err(error.clone()));
                    }
                }
                // What takes long is to be seen by itself.
                self.submit();
                Ok(())
            }
            ToGpu::Read { tensor, offset, bytes } => self.read(tensor, offset, bytes as usize),
            ToGpu::Drop { tensors } => {
                if tensors.len() > DROPPED_MAX {
                    return Err(senseless("so many tensors"));
                }
                for tensor in tensors {
                    self.tensors.remove(&tensor);
                }
                Ok(())
            }
            ToGpu::DropKernel { kernel } => {
                self.kernels.remove(&kernel);
                Ok(())
            }
        }
    }

    fn keep(&mut self, number: u32, tensor: Failed<DeviceTensor>) -> Failed<()> {
        if self.tensors.len() >= TENSORS_MAX {
            return Err(senseless("so many tensors"));
        }
        self.tensors.insert(number, tensor);
        Ok(())
    }

    fn tensor(&self, number: u32) -> Failed<DeviceTensor> {
        self.tensors.get(&number).cloned().unwrap_or_else(|| Err(senseless("a tensor that is none")))
    }

    fn write(&mut self, number: u32, offset: u64, values: &Moved) -> Failed<()> {
        let mut placed = Vec::new();
        let values = match values {
            Moved::Inline(values) => values.as_slice(),
            Moved::Placed(bytes) => {
                let bytes = *bytes as usize;
                if bytes > MOVED_BYTES_MAX {
                    return Err(senseless("so many bytes"));
                }
                let at = place(self.placed, false);
                self.placed += 1;
                placed.reserve_exact(bytes);
                let space: &mut [MaybeUninit<u8>] = &mut placed.spare_capacity_mut()[..bytes];
                &*self.area.read(at, space)
            }
        };
        // A tensor that failed takes nothing; who reads it is told why.
        let Ok(tensor) = self.tensor(number) else { return Ok(()) };
        is_within(tensor.spec(), offset, values.len())?;
        let written = self.stream.write(&tensor, offset, values).map_err(said);
        // Memory for values on their way is given back as they arrive.
        self.submit();
        written
    }

    fn read(&mut self, number: u32, offset: u64, bytes: usize) -> Failed<()> {
        if bytes > MOVED_BYTES_MAX {
            return Err(senseless("so many bytes"));
        }
        let read = self.came;
        let tensor = match self.tensor(number) {
            Ok(tensor) => tensor,
            Err(error) => {
                self.answers.values(read, &self.area, Err(error));
                return Ok(());
            }
        };
        is_within(tensor.spec(), offset, bytes)?;
        let (answers, area) = (self.answers.clone(), self.area.clone());
        self.submits();
        self.stream.begin_download(&tensor, offset, bytes, move |values| {
            answers.values(read, &area, values.map_err(said));
        });
        // It may have been done before its values were asked for: nobody waits for the device then.
        self.queue.look();
        Ok(())
    }
}

fn is_within(spec: Spec, offset: u64, bytes: usize) -> Failed<()> {
    match offset.is_multiple_of(4) && offset.checked_add(bytes as u64).is_some_and(|end| end <= spec.bytes()) {
        true => Ok(()),
        false => Err(senseless("values that are outside of their tensor")),
    }
}

fn senseless(what: &str) -> RemoteError {
    RemoteError { kind: RemoteErrorKind::Request, message: format!("the GPU was asked for {what}") }
}

fn said(error: GpuError) -> RemoteError {
    let kind = match &error {
        GpuError::Memory { .. } => RemoteErrorKind::Memory,
        GpuError::Kernel(_) => RemoteErrorKind::Kernel,
        GpuError::Lost(_) | GpuError::Unusable(_) => RemoteErrorKind::Lost,
        GpuError::Dense(_) | GpuError::NotHere(_) | GpuError::Size { .. } => RemoteErrorKind::Request,
    };
    RemoteError { kind, message: error.to_string() }
}
