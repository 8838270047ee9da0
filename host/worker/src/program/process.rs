//! The worker process for programs: one thread that runs tasks, each until it waits or finishes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use sandbar_core::{Code, Fault, JobId, Limits, TaskError, TaskId, TaskKind, TaskRequest, WorkerId};
use sandbar_dense::remote::Broker;
use sandbar_process::{ProcessKind, Profile, confine, socket};
use sandbar_sandbox::{Engine, IdleSandboxes, MemoryImage, Program, TaskCall, TaskExecution, TaskOutcome};
use sandbar_store::{Mapping, SharedMemory};

use super::clock::monotonic_nanos;
use super::doorbell::Doorbell;
use super::layout::{MEMORY_BYTES, NO_TASK, rings, words};
use super::messages::{AttemptUsage, Delivery, NodeMessage, StartTask, SubmitTask, TaskRole, WorkerMessage};
use super::node_doorbell::WorkerBell;
use super::objects::{LocalValue, ObjectKey, TaskSlot};
use super::packets::Packet;
use super::ring::{Receiver, TaskReceiver};
use super::runtime::{
    AttemptReport, GeneratorStream, InlineTask, QueuedCall, ResidentActor, RuntimeOptions, TaskContext, TaskServices,
    WorkerRuntime,
};
use crate::compiler::InitialMemory;
use crate::mutex::lock;

/// Spin time of an idle worker before it sleeps: a wake-up takes as long.
const SPIN_TIME: Duration = Duration::from_micros(60);

/// A program, the limits of its tasks, and their kinds.
type WorkerProgram = Result<(Arc<Program>, Limits, Arc<[TaskKind]>), Fault>;

struct Worker {
    engine: Engine,
    memory: Arc<SharedMemory>,
    doorbell: Doorbell,
    node_messages: Receiver,
    tasks: TaskReceiver,
    runtime: Arc<Mutex<WorkerRuntime>>,
    /// Connection to the node's GPU broker.
    broker: Broker,
    programs: FxHashMap<u32, WorkerProgram>,
    idle_sandboxes: IdleSandboxes,
    /// Active tasks by slot, parallel to those of the runtime.
    active: Vec<Option<ActiveTask>>,
    free: Vec<TaskSlot>,
    /// Slot of each task by its number.
    slots: FxHashMap<u64, TaskSlot>,
    /// Assigned attempts that must not start.
    cancelled: Vec<(u64, u32)>,
    frame: Vec<u8>,
    packet: Vec<u8>,
}

struct ActiveTask {
    id: u64,
    running: TaskExecution,
    program: u32,
    nanos: u64,
    /// Time at which it was taken up, before it had a sandbox, and time until which it has run, in nanoseconds.
    started: u64,
    until: u64,
}

impl ActiveTask {
    /// Adds a time span in which it ran.
    fn add_run(&mut self, from: u64, until: u64) {
        self.nanos += until.saturating_sub(from);
        self.until = until;
    }
}

/// Runs a worker for programs until its node closes the socket.
///
/// # Errors
/// Those of the set-up, and of invalid messages of the node.
pub fn run_program_worker() -> io::Result<()> {
    confine::start(ProcessKind::ProgramWorker)?;
    let stdin = io::stdin();
    let mut packet = Vec::new();
    let Some((hello, files)) = socket::receive::<Packet>(stdin.as_fd(), &mut packet)? else { return Ok(()) };
    let Packet::Hello { worker, limits, sandboxes, inline, value_bytes_max } = hello else {
        return Err(io::Error::other("the first message is not a hello"));
    };
    // The node may have ended before this process was set to end with it.
    if socket::is_closed(stdin.as_fd()) {
        return Ok(());
    }
    let mut files = files.into_iter();
    let (Some(memory), Some(event), broker) = (files.next(), files.next(), files.next()) else {
        return Err(io::Error::other("its memory or its event is missing"));
    };
    let memory = Arc::new(SharedMemory::open(memory, MEMORY_BYTES)?);
    let bell = WorkerBell::new(memory.clone(), event);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _entered = runtime.enter();
    let engine = Engine::for_programs(&limits, sandboxes).map_err(io::Error::other)?;
    // Leaked on purpose: the signal handler may use the memory until the process ends.
    let unwanted = Box::leak(Box::new(memory.clone())).atomic(words::TASK_TO_INTERRUPT);
    sandbar_sandbox::install_interrupt_handler(unwanted)?;
    // The first reading of the clock makes system calls that are not allowed later.
    monotonic_nanos();
    confine::confine(&Profile::program_worker(limits.memory_bytes_max, value_bytes_max), || Ok(()))?;
    let (_, node_messages, tasks) = rings(&memory);
    let worker = WorkerId(worker);
    let options = RuntimeOptions { worker, sandboxes: sandboxes as usize, inline, value_bytes_max };
    let runtime = WorkerRuntime::new(memory.clone(), bell, options);
    let mut worker = Worker {
        engine,
        doorbell: Doorbell::at(memory.clone(), words::DOORBELL),
        memory,
        node_messages: Receiver::new(node_messages),
        tasks: TaskReceiver::new(tasks),
        runtime: Arc::new(Mutex::new(runtime)),
        broker: Broker::new(broker),
        programs: FxHashMap::default(),
        idle_sandboxes: IdleSandboxes::default(),
        active: Vec::new(),
        free: Vec::new(),
        slots: FxHashMap::default(),
        cancelled: Vec::new(),
        frame: Vec::new(),
        packet,
    };
    loop {
        if !worker.step()? {
            worker.idle()?;
        }
    }
}

impl Worker {
    /// Does one unit of work. Returns false if there is none.
    fn step(&mut self) -> io::Result<bool> {
        self.handle_messages()?;
        let woken = lock(&self.runtime).tasks.next_woken();
        if let Some(slot) = woken {
            self.poll_task(slot)?;
            return Ok(true);
        }
        if self.has_room() && self.tasks.has_frame() && self.start_next()? {
            return Ok(true);
        }
        Ok(false)
    }

    fn has_room(&self) -> bool {
        lock(&self.runtime).tasks.has_room()
    }

    fn idle(&mut self) -> io::Result<()> {
        let mut runtime = lock(&self.runtime);
        if runtime.tasks.any_on_gpu() {
            runtime.node.publish();
            drop(runtime);
            let (node_messages, tasks, room) = (&self.node_messages, &self.tasks, self.has_room());
            self.doorbell.sleep(Some(SPIN_TIME), || node_messages.has_frame() || room && tasks.has_frame());
            lock(&self.runtime).tasks.wake_on_gpu();
            return Ok(());
        }
        drop(runtime);
        if !self.tasks.has_frame() {
            // All assigned tasks have finished or were taken back.
            self.cancelled.clear();
        }
        lock(&self.runtime).node.publish();
        let since = Instant::now();
        while since.elapsed() < SPIN_TIME {
            if self.node_messages.has_frame() || self.tasks.has_frame() && self.has_room() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let deadline = lock(&self.runtime).tasks.first_deadline();
        let time = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let (node_messages, tasks, room) = (&self.node_messages, &self.tasks, self.has_room());
        self.doorbell.sleep(time, || node_messages.has_frame() || room && tasks.has_frame());
        Ok(())
    }

    /// Handles all messages from the node.
    fn handle_messages(&mut self) -> io::Result<()> {
        let mut frame = std::mem::take(&mut self.frame);
        while self.node_messages.next(&mut frame)? {
            match postcard::from_bytes(&frame).map_err(io::Error::other)? {
                NodeMessage::Deliver { job, object, value, contains, requested } => {
                    let value = self.value(ObjectKey::new(job, object), value)?;
                    lock(&self.runtime).delivered(ObjectKey::new(job, object), value, contains, requested);
                }
                NodeMessage::DeliverItem { job, stream, object, value, contains } => {
                    let value = self.value(ObjectKey::new(job, object), value)?;
                    lock(&self.runtime).receive_item(stream, ObjectKey::new(job, object), value, contains);
                }
                NodeMessage::Credit(task, taken) => {
                    if let Some(slot) = self.slots.get(&task) {
                        lock(&self.runtime).credit(*slot, taken);
                    }
                }
                NodeMessage::ReleaseFile(file) => lock(&self.runtime).objects.forget(file),
                NodeMessage::DropMemory(number) => lock(&self.runtime).drop_memory(number),
                NodeMessage::DropDelivery(job, object) => {
                    lock(&self.runtime).release_needed(ObjectKey::new(job, object))
                }
                NodeMessage::Cancel(task, attempt) => self.cancel(task, attempt)?,
                NodeMessage::HoldJob(job, holds) => lock(&self.runtime).tasks.hold_job(job, holds),
                NodeMessage::ResumeOnce(job) => lock(&self.runtime).tasks.resume_once(job),
                NodeMessage::ReportWaits(task) => {
                    if let Some(slot) = self.slots.get(&task) {
                        lock(&self.runtime).report_waits(*slot);
                    }
                }
                NodeMessage::WithdrawCall(actor, task, attempt) => self.withdraw(actor, task, attempt)?,
            }
        }
        self.frame = frame;
        lock(&self.runtime).report_released_files();
        Ok(())
    }

    /// Returns the delivered value, or `None` if it is not available yet.
    fn value(&mut self, key: ObjectKey, value: Delivery<'_>) -> io::Result<Option<Arc<LocalValue>>> {
        Ok(match value {
            Delivery::Value(bytes) => Some(LocalValue::inline(bytes, false)),
            Delivery::Failed(error) => Some(LocalValue::inline(error, true)),
            Delivery::File(bytes, number) => match self.next_file() {
                Ok(file) => {
                    let value = LocalValue::of_file(file, bytes)?;
                    lock(&self.runtime).objects.lend(number, key, &value);
                    Some(value)
                }
                // Too many files are open. The object becomes an error for the tasks that wait for it.
                Err(e) if e.kind() == io::ErrorKind::QuotaExceeded => {
                    let message = format!("the worker can't open its file: {e}; release objects");
                    let error = TaskError { fault: Fault::new(Code::StoreFull, message), chain: Vec::new() };
                    lock(&self.runtime).file_released(number);
                    Some(LocalValue::inline(&postcard::to_stdvec(&error).map_err(io::Error::other)?, true))
                }
                Err(e) => return Err(e),
            },
            Delivery::LentFile(file) => {
                let value = lock(&self.runtime).objects.lent(file);
                Some(value.ok_or_else(|| io::Error::other("a file that was never lent"))?)
            }
            Delivery::Pending => None,
        })
    }

    /// Ends an attempt that is not running at this moment.
    fn cancel(&mut self, task: u64, attempt: u32) -> io::Result<()> {
        let Some(slot) = self.slots.get(&task).copied() else {
            self.cancelled.push((task, attempt));
            return Ok(());
        };
        let runtime = lock(&self.runtime);
        let of_actor = runtime.actors.get(&slot).map(|actor| actor.attempt);
        let same = of_actor.or_else(|| runtime.tasks.get(slot).map(|own| own.attempt)) == Some(attempt);
        drop(runtime);
        if !same {
            return Ok(());
        }
        if let Some(active) = self.active.get_mut(slot).and_then(Option::as_mut) {
            active.until = monotonic_nanos();
        }
        let result = Err(Fault::new(Code::Cancelled, "it was cancelled while it waited"));
        self.finish(slot, TaskOutcome::without_usage(result))
    }

    /// Withdraws a call of an actor.
    fn withdraw(&mut self, actor: u64, task: u64, attempt: u32) -> io::Result<()> {
        // The call may be in the task ring.
        self.cancelled.push((task, attempt));
        let Some(slot) = self.slots.get(&actor).copied() else { return Ok(()) };
        let can_go_on = lock(&self.runtime).withdraw(slot, task, attempt);
        if can_go_on { self.poll_task(slot) } else { Ok(()) }
    }

    /// Receives the next file of a value from the socket.
    fn next_file(&mut self) -> io::Result<OwnedFd> {
        loop {
            match self.receive()? {
                (Packet::File, files) => return files.into_iter().next().ok_or(io::ErrorKind::InvalidData.into()),
                (message, files) => self.load(message, files)?,
            }
        }
    }

    fn receive(&mut self) -> io::Result<(Packet, Vec<OwnedFd>)> {
        socket::receive(io::stdin().as_fd(), &mut self.packet)?.ok_or(io::ErrorKind::BrokenPipe.into())
    }

    fn load(&mut self, message: Packet, files: Vec<OwnedFd>) -> io::Result<()> {
        let wrong = || io::Error::other("something else than a program's code");
        let Packet::Program { program, code_bytes, image_end, initial, limits, kinds } = message else {
            return Err(wrong());
        };
        let mut files = files.into_iter();
        let code = Mapping::sealed(files.next().ok_or_else(wrong)?.as_fd(), code_bytes)?;
        // SAFETY: the node sends code that this build compiled (see `compiler`), in a sealed file.
        let mut loaded = unsafe { self.engine.load_in_place(code, image_end) };
        if let (Ok(loaded), Some(initial)) = (&mut loaded, initial) {
            let InitialMemory { memory_bytes, image_start, image_bytes } = initial;
            let image = Mapping::sealed(files.next().ok_or_else(wrong)?.as_fd(), image_bytes)?;
            self.engine.reuse(loaded, MemoryImage { memory_bytes, image_start, image });
        }
        let loaded = loaded.and_then(|program| match program.has_tasks() {
            true => Ok((Arc::new(program), limits, kinds.into())),
            false => Err(Fault::new(Code::Export, "it has no tasks")),
        });
        self.programs.insert(program, loaded);
        Ok(())
    }

    /// Starts the next assigned task.
    fn start_next(&mut self) -> io::Result<bool> {
        if !self.tasks.has_frame() {
            return Ok(false);
        }
        // Taken before the node can see the start: the node counts the time limit from a later moment.
        let started = monotonic_nanos();
        let mut frame = std::mem::take(&mut self.frame);
        let taken = self.tasks.take(&mut frame)?;
        if taken {
            let begin: StartTask<'_> = postcard::from_bytes(&frame).map_err(io::Error::other)?;
            self.start(begin, started, None)?;
        }
        self.frame = frame;
        Ok(taken)
    }

    fn start(&mut self, begin: StartTask<'_>, started: u64, unannounced: Option<InlineTask>) -> io::Result<()> {
        let StartTask { task, attempt, job, program, function, seed, role, has_gpu, needs, refs, arguments } = begin;
        while !self.programs.contains_key(&program) {
            let (message, files) = self.receive()?;
            self.load(message, files)?;
        }
        let loaded = match &self.programs[&program] {
            Err(fault) => Err(fault.clone()),
            Ok(_) if self.cancelled.contains(&(task, attempt)) => {
                Err(Fault::new(Code::Cancelled, "it was cancelled before it started"))
            }
            Ok((loaded, limits, kinds)) => Ok((loaded.clone(), *limits, kinds.clone())),
        };
        let kinds = loaded.as_ref().map(|(_, _, kinds)| kinds.clone()).unwrap_or_default();
        let mut own = TaskContext::new(task, attempt, job, seed, kinds, needs, unannounced);
        let (loaded, limits) = match loaded {
            Ok((loaded, limits, _)) => (loaded, limits),
            Err(fault) => {
                self.cancelled.retain(|cancelled| *cancelled != (task, attempt));
                lock(&self.runtime).reject(&own, fault);
                return Ok(());
            }
        };
        own.log_left = limits.log_bytes_max;
        lock(&self.runtime).lend(&mut own, &refs);
        if let TaskRole::Generator(buffer) = role {
            own.generator = Some(GeneratorStream::new(buffer));
        }
        if let TaskRole::ActorCall(actor, created_in, is_timed) = role {
            return self.queue_call(
                actor,
                created_in,
                QueuedCall { own, function, arguments: arguments.into(), is_timed },
            );
        }
        let slot = self.free.pop().unwrap_or(self.active.len());
        let call = TaskCall { function, call: task, seed, arguments: arguments.into() };
        let services = Box::new(TaskServices {
            runtime: self.runtime.clone(),
            slot,
            current_object: None,
            is_held: false,
            broker: has_gpu.then(|| self.broker.clone()),
            job,
            tensor_bytes_max: limits.tensor_bytes_max,
            dense: None,
            gpu_nanos_reported: 0,
        });
        let running = match role {
            TaskRole::CreateActor(options) => {
                lock(&self.runtime).actors.insert(slot, ResidentActor::new(attempt, options));
                loaded.create_actor(services, &limits, call)
            }
            _ => loaded.run(&self.idle_sandboxes, JobId(job), services, &limits, call),
        };
        self.insert(slot, ActiveTask { id: task, running, program, nanos: 0, started, until: started });
        lock(&self.runtime).tasks.insert(slot, own);
        self.poll_task(slot)
    }

    /// Queues a call of an actor, unless the actor has left this worker.
    fn queue_call(&mut self, actor: u64, created_in: u32, call: QueuedCall) -> io::Result<()> {
        let mut runtime = lock(&self.runtime);
        let slot = self.slots.get(&actor).copied();
        let slot = slot.filter(|slot| runtime.actors.get(slot).is_some_and(|actor| actor.attempt == created_in));
        let Some(slot) = slot else {
            runtime.drop_call(&call.own);
            return Ok(());
        };
        let can_go_on = runtime.queue_call(slot, call);
        drop(runtime);
        if can_go_on { self.poll_task(slot) } else { Ok(()) }
    }

    fn insert(&mut self, slot: TaskSlot, active: ActiveTask) {
        self.slots.insert(active.id, slot);
        if slot == self.active.len() {
            self.active.push(None);
        }
        self.active[slot] = Some(active);
    }

    /// Runs a task until it waits or finishes, then starts the task that it waits for, if that runs in this worker.
    fn poll_task(&mut self, slot: TaskSlot) -> io::Result<()> {
        let Some(active) = self.active.get_mut(slot).and_then(Option::as_mut) else { return Ok(()) };
        let mut runtime = lock(&self.runtime);
        runtime.unblock(slot);
        let start = monotonic_nanos();
        if let Some(actor) = runtime.actors.get_mut(&slot) {
            actor.start_running(start);
        }
        // A task that was not announced to the node runs on behalf of the task that waits for it.
        let parent = runtime.tasks.get(slot).and_then(|task| Some(task.unannounced.as_ref()?.parent));
        let on_behalf_of = parent.and_then(|parent| runtime.tasks.get(parent)).map_or(active.id, |parent| parent.id);
        drop(runtime);
        self.memory.atomic(words::CURRENT_TASK).store(on_behalf_of, SeqCst);
        self.memory.atomic(words::STEPS).fetch_add(1, Relaxed);
        let polled = active.running.poll(TaskId(on_behalf_of));
        let end = monotonic_nanos();
        active.add_run(start, end);
        self.memory.atomic(words::CURRENT_TASK).store(NO_TASK, SeqCst);
        match polled {
            Poll::Ready(ended) => self.finish(slot, ended),
            Poll::Pending => {
                let mut runtime = lock(&self.runtime);
                runtime.report_taken();
                let inline = runtime.tasks.take_inline();
                let is_on_gpu = runtime.tasks.is_on_gpu(slot);
                let is_idle = runtime.actors.get_mut(&slot).is_some_and(|actor| {
                    actor.stop_running(end);
                    actor.is_idle()
                });
                match inline {
                    Some(task) => {
                        drop(runtime);
                        self.start_inline(task)
                    }
                    // The node need not know: the task continues by itself.
                    None if is_idle || is_on_gpu => Ok(()),
                    None => {
                        runtime.block(slot);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Starts a task in this worker for its waiting parent.
    fn start_inline(&mut self, inline: InlineTask) -> io::Result<()> {
        let started = monotonic_nanos();
        let Ok(WorkerMessage::Submit(submit)) = postcard::from_bytes(&inline.submission) else { return Ok(()) };
        let SubmitTask { task, function, seed, request, .. } = submit;
        let Ok(request) = postcard::from_bytes::<TaskRequest<'_>>(request) else { return Ok(()) };
        let arguments = postcard::to_stdvec(&request.arguments).map_err(io::Error::other)?;
        let Some(program) = self.active[inline.parent].as_ref().map(|active| active.program) else { return Ok(()) };
        let Some(job) = lock(&self.runtime).tasks.get(inline.parent).map(|task| task.job) else { return Ok(()) };
        let (needs, role) = (Vec::new(), TaskRole::Plain);
        let begin = StartTask {
            task,
            attempt: 0,
            job,
            program,
            function,
            seed,
            role,
            has_gpu: false,
            needs,
            refs: Vec::new(),
            arguments: &arguments,
        };
        self.start(begin, started, Some(inline))
    }

    /// Finishes a task.
    fn finish(&mut self, slot: TaskSlot, ended: TaskOutcome) -> io::Result<()> {
        let Some(active) = self.active[slot].take() else { return Ok(()) };
        let ActiveTask { id: task, running, nanos, started, until, .. } = active;
        let waited_nanos = until.saturating_sub(started).saturating_sub(nanos);
        drop(running);
        self.slots.remove(&task);
        self.free.push(slot);
        let mut runtime = lock(&self.runtime);
        let Some(own) = runtime.tasks.remove(slot) else { return Ok(()) };
        let TaskOutcome { result, memory_bytes, gpu_nanos, has_lost_gpu } = ended;
        let usage = AttemptUsage { started, nanos, waited_nanos, gpu_nanos, memory_bytes };
        let report = AttemptReport { usage, lost: has_lost_gpu && result.is_err(), saved: None };
        match runtime.actors.remove(&slot) {
            Some(actor) => {
                let fault = result.err().unwrap_or_else(|| Fault::new(Code::ActorDied, "it has ended"));
                runtime.end_actor(own, actor, fault, report);
            }
            None => runtime.finish(own, result, report),
        }
        Ok(())
    }
}
