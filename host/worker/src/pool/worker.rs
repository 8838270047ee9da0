//! The node's handle of one worker process.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sandbar_core::TenantId;
use sandbar_process::socket;
use sandbar_store::SharedMemory;
use serde::Serialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::binding::Binding;
use super::options::PoolOptions;
use super::results::LogLine;
use crate::child::WorkerChild;
use crate::process::LOG_SPACE_BYTES;
use crate::protocol::{FromWorker, ToWorker, collected_bytes_max, progress};
use crate::{WORKER_ARGUMENT, journal};

/// Output slots of a worker: the maximum number of messages with calls in flight.
pub(super) const SLOTS: usize = 4;
/// Maximum time for a worker to become ready.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Bytes of a slot that stay allocated after use; pages behind them return to the kernel.
const SLOT_KEPT_BYTES: usize = 16 << 20;

/// A running worker. Dropping it kills the process.
pub(super) struct WorkerProcess {
    child: WorkerChild,
    tenant: TenantId,
    socket: AsyncFd<OwnedFd>,
    progress: Arc<SharedMemory>,
    slots: Vec<SharedMemory>,
    /// Buffers of the last received and the last sent message.
    received: Vec<u8>,
    frame: Vec<u8>,
    programs: HashSet<u32>,
    bindings: HashSet<u64>,
    /// Id of the binding of the last call, which is mostly the binding of the next.
    last_binding: Option<u64>,
}

impl WorkerProcess {
    /// Starts a worker for a tenant, and waits until it is confined and ready.
    pub(super) async fn start(options: &PoolOptions, tenant: TenantId) -> io::Result<WorkerProcess> {
        let progress = Arc::new(SharedMemory::new(journal::BYTES)?);
        let slot_bytes = collected_bytes_max(&options.limits).saturating_add(LOG_SPACE_BYTES);
        let slots = (0..SLOTS).map(|_| SharedMemory::new(slot_bytes as usize)).collect::<io::Result<Vec<_>>>()?;
        let (child, ours) = WorkerChild::start(&options.program, &[WORKER_ARGUMENT])?;
        let socket = register(ours, Interest::READABLE)?;
        let mut process = WorkerProcess {
            child,
            tenant,
            socket,
            progress,
            slots,
            received: Vec::new(),
            frame: Vec::new(),
            programs: HashSet::new(),
            bindings: HashSet::new(),
            last_binding: None,
        };
        let hello: ToWorker = ToWorker::Hello { limits: options.limits, slots: SLOTS as u32, slot_bytes };
        // All workers of a pool fit models at once, so they share the GPU.
        let broker = options.gpus.as_ref().map(|gpus| gpus.broker(tenant, options.workers)).transpose()?;
        let files = std::iter::once(process.progress.as_fd()).chain(process.slots.iter().map(AsFd::as_fd));
        let files: Vec<_> = files.chain(broker.iter().map(AsFd::as_fd)).collect();
        send(&process.socket, socket::frame(&hello, &mut process.frame)?, &files).await?;
        match tokio::time::timeout(START_TIME_MAX, process.receive()).await {
            Ok(Ok(FromWorker::Ready)) => Ok(process),
            Ok(Ok(FromWorker::Replies { .. })) => Err(io::Error::other("it answered before it was ready")),
            Ok(Err(e)) => Err(io::Error::new(e.kind(), format!("{} before it was ready ({e})", process.kill()))),
            Err(_) => Err(io::Error::other(format!("it was not ready within {} s", START_TIME_MAX.as_secs()))),
        }
    }

    /// Returns the tenant that the worker serves, from its start to its end.
    pub(super) fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Returns the worker's process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) async fn send<C: Serialize>(
        &mut self,
        message: &ToWorker<C>,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        send(&self.socket, socket::frame(message, &mut self.frame)?, files).await
    }

    /// Returns whether this binding is that of the last call.
    pub(super) fn is_last_binding(&self, binding: &Binding) -> bool {
        self.last_binding == Some(binding.id)
    }

    /// Sends the function of a binding, unless the worker has it.
    pub(super) async fn send_binding(&mut self, binding: &Binding) -> io::Result<()> {
        self.last_binding = Some(binding.id);
        if self.bindings.contains(&binding.id) {
            return Ok(());
        }
        let program = binding.program.number();
        if self.programs.insert(program) {
            let code = binding.program.code();
            let (code_bytes, image_end) = (code.bytes(), binding.program.image_end());
            let message: ToWorker = ToWorker::Program { program, code_bytes, image_end };
            self.send(&message, &[code.as_fd()]).await?;
        }
        self.bindings.insert(binding.id);
        let message: ToWorker = ToWorker::Binding {
            binding: binding.id as u32,
            program,
            function: binding.function,
            params: binding.params.clone(),
            limits: binding.limits,
            plan: binding.plan.clone(),
            device: binding.device,
        };
        self.send(&message, &[]).await
    }

    /// Returns the next message, or an error when the worker has ended.
    pub(super) async fn receive(&mut self) -> io::Result<FromWorker> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| socket::receive(socket, &mut self.received)) {
                Ok(Ok(Some((message, _)))) => return Ok(message),
                Ok(Ok(None)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(Err(e)) => return Err(e),
                Err(_would_block) => {}
            }
        }
    }

    pub(super) fn slot(&self, index: usize) -> &SharedMemory {
        &self.slots[index]
    }

    /// Gives memory of a slot back to the kernel after an output of `bytes` bytes, if that was large.
    pub(super) fn release(&self, index: usize, bytes: usize) {
        if bytes > SLOT_KEPT_BYTES {
            // Failing to give memory back is harmless.
            let _ = self.slots[index].discard(SLOT_KEPT_BYTES);
        }
    }

    /// Returns the current call, its group if it has one, and a counter that changes when either does.
    pub(super) fn progress(&self) -> (u64, Option<u32>, u64) {
        let read = |index| self.progress.atomic(index).load(Relaxed);
        let group = u32::try_from(read(progress::GROUP)).ok();
        (read(progress::CALL), group, read(progress::STEPS))
    }

    /// Returns the shared memory of the progress.
    pub(super) fn progress_memory(&self) -> Arc<SharedMemory> {
        self.progress.clone()
    }

    /// Returns the log lines of the current call or group.
    pub(super) fn logged(&self) -> Vec<LogLine> {
        journal::read(&self.progress).into_iter().map(|(level, message)| LogLine::new(level, message)).collect()
    }

    /// Kills the process, and describes its exit status.
    pub(super) fn kill(&mut self) -> String {
        self.child.kill()
    }
}

/// Returns how many calls, batches and groups the worker reports as started.
pub(super) fn steps(progress: &SharedMemory) -> u64 {
    progress.atomic(progress::STEPS).load(Relaxed)
}

/// Registers a socket with tokio. Interest in writing causes a wake-up whenever the other side reads.
fn register(socket: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor that only the `AsyncFd` closes or replaces.
    unsafe { AsyncFd::register_with_interest(socket, interest) }.map_err(io::Error::other)
}

async fn send(socket: &AsyncFd<OwnedFd>, frame: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let send = |socket: &OwnedFd| socket::send(socket, frame, files);
    match send(socket.get_ref()) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
        sent => return sent,
    }
    // The socket is full, which is rare.
    let socket = register(socket.get_ref().try_clone()?, Interest::WRITABLE)?;
    loop {
        let mut ready = socket.writable().await?;
        match ready.try_io(|socket| send(socket.get_ref())) {
            Ok(sent) => return sent,
            Err(_would_block) => {}
        }
    }
}
