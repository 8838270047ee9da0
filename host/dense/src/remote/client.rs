//! The client side of a connection to a GPU's process.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::task::Poll;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sandbar_process::socket;
use sandbar_store::SharedMemory;

use super::{
    AREA_BYTES, DROPS_PER_MESSAGE_MAX, GpuRequest, GpuResponse, INLINE_BYTES_MAX, KillReason, MESSAGES_MAX,
    RemoteError, RemoteErrorKind, SLOTS, TRANSFER_BYTES_MAX, TransferData, now_nanos, slot_offset, words,
};
use crate::{Cancellation, Op, Spec};

/// Maximum time between two checks whether to end a wait. A signal ends it at once.
const WAIT_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// A connection to the process that owns a GPU.
#[derive(Debug)]
pub struct GpuClient {
    socket: OwnedFd,
    area: SharedMemory,
    /// Number of messages sent, and completed.
    sent: u64,
    done: u64,
    /// Last allocated number of a tensor, kernel or user.
    numbers: u32,
    /// Uploads: number of slots used so far, and the messages whose slots are still in use.
    upload_slots: usize,
    writes: VecDeque<u64>,
    /// Reads by their message's number, and the number of slots used for downloads so far.
    reads: VecDeque<(u64, ReadState)>,
    download_slots: usize,
    /// Tensors and kernels to drop with the next message.
    dropped: Vec<u32>,
    dropped_kernels: Vec<u32>,
    /// Current user, the first message of each recent user, and the nanoseconds of GPU work for each user.
    user: u32,
    users: VecDeque<(u64, u32)>,
    busy: HashMap<u32, u64>,
    lost: Option<RemoteError>,
    /// Ends waits of the current user.
    cancellation: Cancellation,
    frame: Vec<u8>,
    received: Vec<u8>,
}

/// State of a read.
#[derive(Debug)]
enum ReadState {
    Pending,
    /// The values, with their slot if they are not inline.
    Answered(Result<(TransferData, usize), RemoteError>),
    /// Nobody wants the values. The slot is occupied until they arrive.
    Abandoned,
    Taken,
}

/// A requested read, to be [polled](GpuClient::poll_read) until it completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadNumber(u64);

impl GpuClient {
    /// Wraps a connection that the node created; the socket is non-blocking.
    ///
    /// # Errors
    /// Fails if the shared memory is invalid.
    pub fn new(socket: OwnedFd, area: OwnedFd) -> io::Result<GpuClient> {
        Ok(GpuClient {
            socket,
            area: SharedMemory::open(area, AREA_BYTES)?,
            sent: 0,
            done: 0,
            numbers: 0,
            upload_slots: 0,
            writes: VecDeque::new(),
            reads: VecDeque::new(),
            download_slots: 0,
            dropped: Vec::new(),
            dropped_kernels: Vec::new(),
            user: 0,
            users: VecDeque::new(),
            busy: HashMap::new(),
            lost: None,
            cancellation: Cancellation::NEVER,
            frame: Vec::new(),
            received: Vec::new(),
        })
    }

    /// Returns the error with which the connection was lost, if it was.
    pub fn lost(&self) -> Option<&RemoteError> {
        self.lost.as_ref()
    }

    /// Registers a guest and returns its number. The node may end the process of a connection without users.
    pub fn add_user(&mut self) -> u32 {
        self.area.atomic(words::USERS).fetch_add(1, AcqRel);
        let user = self.number();
        self.busy.insert(user, 0);
        user
    }

    /// Attributes the following requests to this guest.
    pub fn set_user(&mut self, user: u32) {
        self.user = user;
    }

    /// Ends the following waits when `cancellation` says so.
    pub(crate) fn set_cancellation(&mut self, cancellation: Cancellation) {
        self.cancellation = cancellation;
    }

    /// Returns the nanoseconds that the GPU worked for a guest, for completed requests, as the GPU's process reports
    /// them.
    pub fn busy_nanos(&self, user: u32) -> u64 {
        self.busy.get(&user).copied().unwrap_or_default()
    }

    /// Unregisters a guest. The duration of its pending work is not reported.
    pub fn remove_user(&mut self, user: u32) {
        self.busy.remove(&user);
        self.area.atomic(words::USERS).fetch_sub(1, AcqRel);
    }

    /// Processes pending messages, to detect a lost connection.
    pub(crate) fn poll_messages(&mut self) {
        let _ = self.receive(false);
    }

    fn number(&mut self) -> u32 {
        self.numbers = self.numbers.wrapping_add(1);
        self.numbers
    }

    /// Creates a tensor from values, or of zeros. Blocks while too many messages are in flight.
    ///
    /// # Errors
    /// Fails if the connection is lost, or the wait was cancelled.
    pub fn tensor(&mut self, spec: Spec, values: Option<&[u8]>) -> Result<u32, RemoteError> {
        let tensor = self.number();
        let sent = self.send_tensor(tensor, spec, values);
        if sent.is_err() {
            self.drop_tensor(tensor);
        }
        sent.map(|()| tensor)
    }

    fn send_tensor(&mut self, tensor: u32, spec: Spec, values: Option<&[u8]>) -> Result<(), RemoteError> {
        self.send(&GpuRequest::Tensor { tensor, spec, is_written: values.is_some() })?;
        let mut offset = 0;
        for part in values.unwrap_or_default().chunks(TRANSFER_BYTES_MAX) {
            let values = if part.len() <= INLINE_BYTES_MAX {
                TransferData::Inline(part.to_vec())
            } else {
                while self.writes.len() >= SLOTS {
                    self.receive(true)?;
                }
                self.area.write(slot_offset(self.upload_slots, false), part);
                self.upload_slots += 1;
                TransferData::Slot(part.len() as u32)
            };
            let is_placed = matches!(values, TransferData::Slot(_));
            self.send(&GpuRequest::Write { tensor, offset, values })?;
            if is_placed {
                self.writes.push_back(self.sent);
            }
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// Creates a tensor with the values of another in another shape.
    ///
    /// # Errors
    /// Fails if the connection is lost.
    pub fn reshape(&mut self, from: u32, spec: Spec) -> Result<u32, RemoteError> {
        let tensor = self.number();
        self.send(&GpuRequest::Reshape { from, tensor, spec })?;
        Ok(tensor)
    }

    /// Queues an operation with this number of outputs.
    ///
    /// # Errors
    /// Fails if the connection is lost.
    pub fn run(&mut self, op: &Op, inputs: &[u32], outputs: usize) -> Result<Vec<u32>, RemoteError> {
        let outputs: Vec<u32> = (0..outputs).map(|_| self.number()).collect();
        self.send(&GpuRequest::Run { op: op.clone(), inputs: inputs.to_vec(), outputs: outputs.clone() })?;
        Ok(outputs)
    }

    /// Creates a kernel from its text.
    ///
    /// # Errors
    /// Fails if the connection is lost.
    pub fn kernel(&mut self, wgsl: &str) -> Result<u32, RemoteError> {
        let kernel = self.number();
        self.send(&GpuRequest::Kernel { kernel, wgsl: wgsl.to_owned() })?;
        Ok(kernel)
    }

    /// Queues a run of a kernel.
    ///
    /// # Errors
    /// Fails if the connection is lost.
    pub fn dispatch(&mut self, kernel: u32, bindings: &[u32], grid: [u32; 3]) -> Result<(), RemoteError> {
        self.send(&GpuRequest::Dispatch { kernel, bindings: bindings.to_vec(), grid })
    }

    /// Requests at most [`TRANSFER_BYTES_MAX`] bytes of a tensor's values. Returns `None` while all slots are occupied
    /// by reads that are pending or not received.
    ///
    /// # Errors
    /// Fails if the connection is lost.
    pub fn begin_read(&mut self, tensor: u32, offset: u64, bytes: usize) -> Result<Option<ReadNumber>, RemoteError> {
        if self.reads.len() >= SLOTS {
            self.receive(false)?;
            if self.reads.len() >= SLOTS {
                return Ok(None);
            }
        }
        self.send(&GpuRequest::Read { tensor, offset, bytes: bytes as u32 })?;
        self.reads.push_back((self.sent, ReadState::Pending));
        Ok(Some(ReadNumber(self.sent)))
    }

    /// Receives the values of a read, once, if they have arrived; with `waits` it blocks until then.
    ///
    /// # Errors
    /// Errors of the operations that computed the tensor, or of the connection.
    pub fn poll_read(&mut self, read: ReadNumber, to: &mut [u8], waits: bool) -> Poll<Result<(), RemoteError>> {
        loop {
            let twice = || Poll::Ready(Err(lost_error("values were taken twice")));
            match self.read_state(read) {
                None | Some(ReadState::Taken | ReadState::Abandoned) => return twice(),
                Some(ReadState::Pending) => {
                    let received = self.receive(waits);
                    let still_pending = matches!(self.read_state(read), Some(ReadState::Pending));
                    match received {
                        Err(lost) if still_pending => return Poll::Ready(Err(lost)),
                        Ok(false) if still_pending => return Poll::Pending,
                        _ => {}
                    }
                }
                Some(read_state) => {
                    let ReadState::Answered(response) = std::mem::replace(read_state, ReadState::Taken) else {
                        return twice();
                    };
                    let taken = response.and_then(|(data, slot)| self.take(&data, slot, to));
                    self.remove_taken();
                    return Poll::Ready(taken);
                }
            }
        }
    }

    fn read_state(&mut self, read: ReadNumber) -> Option<&mut ReadState> {
        self.reads.iter_mut().find(|(number, _)| *number == read.0).map(|(_, read_state)| read_state)
    }

    /// Abandons a read, without waiting for its values.
    pub fn abandon(&mut self, read: ReadNumber) {
        let is_lost = self.lost.is_some();
        if let Some(read_state) = self.read_state(read) {
            *read_state = match read_state {
                ReadState::Pending if !is_lost => ReadState::Abandoned,
                _ => ReadState::Taken,
            };
        }
        self.remove_taken();
    }

    fn take(&mut self, data: &TransferData, slot: usize, to: &mut [u8]) -> Result<(), RemoteError> {
        match data {
            TransferData::Inline(values) if values.len() == to.len() => to.copy_from_slice(values),
            TransferData::Slot(bytes) if *bytes as usize == to.len() && to.len() <= TRANSFER_BYTES_MAX => {
                // SAFETY: writing initialised bytes through a view of possibly uninitialised ones keeps them
                // initialised.
                let to = unsafe { &mut *(std::ptr::from_mut(to) as *mut [MaybeUninit<u8>]) };
                self.area.read(slot, to);
            }
            _ => return Err(lost_error("it sent other values than were requested")),
        }
        Ok(())
    }

    fn remove_taken(&mut self) {
        while matches!(self.reads.front(), Some((_, ReadState::Taken))) {
            self.reads.pop_front();
        }
    }

    /// Drops a tensor. Drops are batched, and sent before the next request at the latest. Does not wait.
    pub fn drop_tensor(&mut self, tensor: u32) {
        self.dropped.push(tensor);
        if self.dropped.len() >= DROPS_PER_MESSAGE_MAX && self.has_room() {
            // A lost connection has lost its tensors as well.
            let _ = self.send_dropped();
        }
    }

    /// Drops a kernel, like [`GpuClient::drop_tensor`].
    pub fn drop_kernel(&mut self, kernel: u32) {
        self.dropped_kernels.push(kernel);
    }

    fn send_dropped(&mut self) -> Result<(), RemoteError> {
        while !self.dropped.is_empty() {
            let first = self.dropped.len().saturating_sub(DROPS_PER_MESSAGE_MAX);
            let tensors = self.dropped.split_off(first);
            self.send_message(&GpuRequest::Drop { tensors: tensors.clone() })
                .inspect_err(|_| self.dropped.extend(tensors))?;
        }
        while let Some(kernel) = self.dropped_kernels.pop() {
            self.send_message(&GpuRequest::DropKernel { kernel }).inspect_err(|_| self.dropped_kernels.push(kernel))?;
        }
        Ok(())
    }

    /// Returns whether another message can be sent without waiting for completions.
    fn has_room(&self) -> bool {
        self.sent - self.done < MESSAGES_MAX
    }

    fn send(&mut self, message: &GpuRequest) -> Result<(), RemoteError> {
        self.send_dropped()?;
        if self.users.back().is_none_or(|(_, last)| *last != self.user) {
            self.send_message(&GpuRequest::User)?;
            self.users.push_back((self.sent + 1, self.user));
            // Later reports never concern messages that are that old.
            while self.users.len() > MESSAGES_MAX as usize + 1 {
                self.users.pop_front();
            }
        }
        self.send_message(message)
    }

    /// Sends a message once the number of messages in flight allows it.
    fn send_message(&mut self, message: &GpuRequest) -> Result<(), RemoteError> {
        while !self.has_room() {
            self.receive(true)?;
        }
        let mut frame = std::mem::take(&mut self.frame);
        let sent = match socket::frame(message, &mut frame) {
            Ok(frame) => self.send_frame(frame),
            Err(e) => Err(lost_error(&e.to_string())),
        };
        self.frame = frame;
        sent?;
        self.sent += 1;
        Ok(())
    }

    fn send_frame(&mut self, frame: &[u8]) -> Result<(), RemoteError> {
        loop {
            if let Some(lost) = &self.lost {
                return Err(lost.clone());
            }
            match socket::send(&self.socket, frame, &[]) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::IN | PollFlags::OUT)?,
                Err(_) => return Err(self.mark_lost()),
            }
            self.receive(false)?;
        }
    }

    /// Handles messages of the GPU's process; with `waits` it blocks until there is one. Returns whether there was any.
    fn receive(&mut self, waits: bool) -> Result<bool, RemoteError> {
        let mut received_any = false;
        loop {
            if let Some(lost) = &self.lost {
                return Err(lost.clone());
            }
            match socket::receive(&self.socket, &mut self.received) {
                Ok(Some((message, _))) => {
                    self.handle(message)?;
                    received_any = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && (received_any || !waits) => return Ok(received_any),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                Ok(None) | Err(_) => return Err(self.mark_lost()),
            }
        }
    }

    fn handle(&mut self, message: GpuResponse) -> Result<(), RemoteError> {
        match message {
            GpuResponse::Done { message, nanos } if message <= self.sent => {
                self.add_busy_time(message, nanos);
                // Several threads of the process report completions, possibly out of order.
                self.done = self.done.max(message);
                while self.writes.front().is_some_and(|message| *message <= self.done) {
                    self.writes.pop_front();
                }
                Ok(())
            }
            GpuResponse::Values { read, values } => {
                let slot = slot_offset(self.download_slots, true);
                self.download_slots += usize::from(matches!(values, Ok(TransferData::Slot(_))));
                match self.read_state(ReadNumber(read)) {
                    Some(read_state @ ReadState::Pending) => {
                        *read_state = ReadState::Answered(values.map(|data| (data, slot)));
                        Ok(())
                    }
                    Some(read_state @ ReadState::Abandoned) => {
                        *read_state = ReadState::Taken;
                        self.remove_taken();
                        Ok(())
                    }
                    _ => Err(self.protocol_error()),
                }
            }
            GpuResponse::Done { .. } => Err(self.protocol_error()),
        }
    }

    /// Adds GPU time to the user that sent this message.
    fn add_busy_time(&mut self, message: u64, nanos: u64) {
        let user = self.users.iter().rfind(|(first, _)| *first <= message);
        if let Some(busy) = user.and_then(|(_, user)| self.busy.get_mut(user)) {
            *busy = busy.saturating_add(nanos);
        }
    }

    /// Waits for the socket, for a short time.
    fn wait(&mut self, flags: PollFlags) -> Result<(), RemoteError> {
        self.cancellation
            .check()
            .map_err(|cancelled| RemoteError { kind: RemoteErrorKind::Cancelled, message: cancelled.to_string() })?;
        let socket = self.socket.as_fd();
        match poll(&mut [PollFd::new(&socket, flags)], Some(&WAIT_MAX)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(_) => Err(self.mark_lost()),
        }
    }

    fn protocol_error(&mut self) -> RemoteError {
        self.lost.get_or_insert_with(|| lost_error("it makes no sense")).clone()
    }

    /// Records the loss of the process, which ended by itself or was killed by the node.
    fn mark_lost(&mut self) -> RemoteError {
        if let Some(lost) = &self.lost {
            return lost.clone();
        }
        let since = self.area.atomic(words::BUSY_SINCE).load(Acquire);
        if since > 0 {
            // The GPU was working on the first message that is not completed.
            self.add_busy_time(self.done + 1, now_nanos().saturating_sub(since));
        }
        let why = self.area.atomic(words::KILL_REASON).load(Acquire);
        let error = if why == KillReason::OwnWork as u64 {
            let message = "the GPU's work took longer than its limit (--gpu-time) and was killed".to_owned();
            RemoteError { kind: RemoteErrorKind::TimeOut, message }
        } else if why == KillReason::OthersWork as u64 {
            lost_error(
                "its process was killed because other work of this job on it took longer than its limit (--gpu-time)",
            )
        } else {
            lost_error("its process ended")
        };
        self.lost.get_or_insert(error).clone()
    }
}

fn lost_error(reason: &str) -> RemoteError {
    RemoteError { kind: RemoteErrorKind::Lost, message: format!("the GPU is lost: {reason}") }
}
