//! The worker's side: one thread that runs tasks, each until it waits or has ended.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use sandbar_core::{Code, Fault, IdAllocator, JobId, Limits, TaskError, TaskId, TaskKind, TaskRequest, WorkerId};
use sandbar_dense::remote::Broker;
use sandbar_process::{confine, socket};
use sandbar_sandbox::{Ended, Engine, IdleSandboxes, Initial, Program, Running, TaskCall};
use sandbar_store::{Mapping, SharedMemory};

use super::clock::monotonic_nanos;
use super::messages::{AttemptUsage, Delivery, NodeMessage, StartTask, SubmitTask, TaskRole, WorkerMessage};
use super::objects::{LocalValue, ObjectKey, TaskSlot};
use super::ring::{Receiver, TaskReceiver};
use super::runtime::{
    AttemptReport, GeneratorStream, QueuedCall, ResidentActor, TaskContext, TaskServices, WorkerRuntime, lock,
};
use super::worker::{DOORBELL_BYTES, Doorbell, MEMORY_BYTES, Packet, rings, words};
use crate::compiler::InitialMemory;

/// The argument with which `host-worker` is a worker for programs; its socket is standard input.
pub const PROGRAM_ARGUMENT: &str = "program";

/// Who has nothing to do looks again for so long before it sleeps: to be woken takes as long.
const SPIN_TIME: Duration = Duration::from_micros(60);

/// Files of values that tasks here have got, and hold.
const FILES_MAX: u64 = 4096;

/// A program with the limits of its tasks, and what they are.
type WorkerProgram = Result<(Arc<Program>, Limits, Arc<[TaskKind]>), Fault>;

struct Worker {
    engine: Engine,
    memory: Arc<SharedMemory>,
    doorbell: Doorbell,
    node_messages: Receiver,
    tasks: TaskReceiver,
    runtime: Arc<Mutex<WorkerRuntime>>,
    /// Whom to ask for a GPU.
    broker: Broker,
    programs: FxHashMap<u32, WorkerProgram>,
    idle_sandboxes: IdleSandboxes,
    /// By their rings, as the runtime's.
    active: Vec<Option<ActiveTask>>,
    free: Vec<TaskSlot>,
    /// Where each task is that is here.
    slots: FxHashMap<u64, TaskSlot>,
    /// Attempts that are not to be begun, of those that it was given.
    cancelled: Vec<(u64, u32)>,
    frame: Vec<u8>,
    packet: Vec<u8>,
}

struct ActiveTask {
    id: u64,
    running: Running,
    program: u32,
    nanos: u64,
    /// When it was taken up, before its sandbox was there, and until when it has run, in nanoseconds.
    started: u64,
    until: u64,
}

impl ActiveTask {
    /// It has run for a while.
    fn add_run(&mut self, from: u64, until: u64) {
        self.nanos += until.saturating_sub(from);
        self.until = until;
    }
}

/// Runs a worker for programs until its node closes the socket.
///
/// # Errors
/// Of its set-up, and of what its node says.
pub fn run_program_worker() -> io::Result<()> {
    confine::leave_signals_to_node()?;
    confine::end_with_parent()?;
    confine::limit_resources(FILES_MAX)?;
    let stdin = io::stdin();
    let mut packet = Vec::new();
    let Some((hello, files)) = socket::receive::<Packet>(stdin.as_fd(), &mut packet)? else { return Ok(()) };
    let Packet::Hello { worker, limits, sandboxes, inline, value_bytes_max } = hello else {
        return Err(io::Error::other("the first message is not a hello"));
    };
    // A node that ended before this process could be told to end with it.
    if socket::is_closed(stdin.as_fd()) {
        return Ok(());
    }
    let mut files = files.into_iter();
    let (Some(memory), Some(doorbell), broker) = (files.next(), files.next(), files.next()) else {
        return Err(io::Error::other("its memory is missing"));
    };
    let memory = Arc::new(SharedMemory::open(memory, MEMORY_BYTES)?);
    let node = Doorbell::at(Arc::new(SharedMemory::open(doorbell, DOORBELL_BYTES)?), 0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _entered = runtime.enter();
    let engine = Engine::for_programs(&limits, sandboxes).map_err(io::Error::other)?;
    // The process ends before its memory does.
    let unwanted = Box::leak(Box::new(memory.clone())).atomic(words::TASK_TO_INTERRUPT);
    sandbar_sandbox::interruptible(unwanted)?;
    // What finds the clock asks the system for it the first time, which is not allowed later.
    monotonic_nanos();
    confine::silence()?;
    confine::seccomp()?;
    let (_, down, tasks) = rings(&memory);
    let mut runtime =
        WorkerRuntime::new(memory.clone(), node, IdAllocator::of(WorkerId(worker)), sandboxes as usize, inline);
    runtime.value_bytes_max = value_bytes_max;
    let mut worker = Worker {
        engine,
        doorbell: Doorbell::at(memory.clone(), words::DOORBELL),
        memory,
        node_messages: Receiver::new(down),
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
    worker.memory.atomic(words::CURRENT_TASK).store(u64::MAX, SeqCst);
    loop {
        if !worker.step()? {
            worker.idle()?;
        }
    }
}

impl Worker {
    /// Does one thing, if there is any to do.
    fn step(&mut self) -> io::Result<bool> {
        self.handle_messages()?;
        let mut runtime = lock(&self.runtime);
        runtime.wake_expired();
        runtime.release_submitters();
        let woken = runtime.woken.pop();
        drop(runtime);
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
        let runtime = lock(&self.runtime);
        runtime.alive < runtime.room
    }

    fn idle(&mut self) -> io::Result<()> {
        let mut runtime = lock(&self.runtime);
        if !runtime.wait_for_gpu.is_empty() {
            runtime.publish();
            drop(runtime);
            let (node_messages, tasks, room) = (&self.node_messages, &self.tasks, self.has_room());
            self.doorbell.sleep(Some(SPIN_TIME), || node_messages.has_frame() || room && tasks.has_frame());
            let mut runtime = lock(&self.runtime);
            let waited = std::mem::take(&mut runtime.wait_for_gpu);
            runtime.woken.extend(waited);
            return Ok(());
        }
        drop(runtime);
        if !self.tasks.has_frame() {
            // The others have ended, or were taken back.
            self.cancelled.clear();
        }
        lock(&self.runtime).publish();
        let since = Instant::now();
        while since.elapsed() < SPIN_TIME {
            if self.node_messages.has_frame() || self.tasks.has_frame() && self.has_room() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let deadline = lock(&self.runtime).first_deadline();
        let time = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let (node_messages, tasks, room) = (&self.node_messages, &self.tasks, self.has_room());
        self.doorbell.sleep(time, || node_messages.has_frame() || room && tasks.has_frame());
        Ok(())
    }

    /// Reads what the node says.
    fn handle_messages(&mut self) -> io::Result<()> {
        let mut frame = std::mem::take(&mut self.frame);
        while self.node_messages.next(&mut frame)? {
            match postcard::from_bytes(&frame).map_err(io::Error::other)? {
                NodeMessage::Deliver { job, object, value, contains, wanted } => {
                    let value = self.value((job, object), value)?;
                    lock(&self.runtime).delivered((job, object), value, contains, wanted);
                }
                NodeMessage::DeliverItem { job, stream, object, value, contains } => {
                    let value = self.value((job, object), value)?;
                    lock(&self.runtime).receive_item(stream, (job, object), value, contains);
                }
                NodeMessage::Credit(task, taken) => {
                    if let Some(slot) = self.slots.get(&task) {
                        lock(&self.runtime).credit(*slot, taken);
                    }
                }
                NodeMessage::ReleaseFile(file) => lock(&self.runtime).objects.forget(file),
                NodeMessage::DropMemory(number) => lock(&self.runtime).close(number),
                NodeMessage::DropDelivery(job, object) => lock(&self.runtime).unneeded((job, object)),
                NodeMessage::Cancel(task, attempt) => self.cancel(task, attempt)?,
                NodeMessage::HoldJob(job, holds) => lock(&self.runtime).hold_job(job, holds),
                NodeMessage::ResumeOnce(job) => lock(&self.runtime).resume_once(job),
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

    /// What is delivered, if that is more than a promise.
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
                // Tasks here have too many in use at once: this one is an error to whoever wants it.
                Err(e) if e.kind() == io::ErrorKind::QuotaExceeded => {
                    let message = format!("the worker has no room for it: {e}; let go of objects");
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

    /// An attempt is to end, which does not run now.
    fn cancel(&mut self, task: u64, attempt: u32) -> io::Result<()> {
        let Some(slot) = self.slots.get(&task).copied() else {
            self.cancelled.push((task, attempt));
            return Ok(());
        };
        let mut runtime = lock(&self.runtime);
        let of_actor = runtime.actors.get(&slot).map(|resident| resident.attempt);
        let same = of_actor.or_else(|| runtime.task(slot).map(|own| own.attempt)) == Some(attempt);
        drop(runtime);
        if !same {
            return Ok(());
        }
        if let Some(active) = self.active.get_mut(slot).and_then(Option::as_mut) {
            active.until = monotonic_nanos();
        }
        let result = Err(Fault::new(Code::Cancelled, "it was ended while it waited"));
        self.finish(slot, Ended::without_cost(result))
    }

    /// A call of an actor is not wanted any more.
    fn withdraw(&mut self, actor: u64, task: u64, attempt: u32) -> io::Result<()> {
        // It may be among what was given, and not taken yet.
        self.cancelled.push((task, attempt));
        let Some(slot) = self.slots.get(&actor).copied() else { return Ok(()) };
        let can_go_on = lock(&self.runtime).withdraw(slot, task, attempt);
        if can_go_on { self.poll_task(slot) } else { Ok(()) }
    }

    /// The next file that comes over the socket, of a value.
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
        // SAFETY: the node hands over what this build compiled (see `compiler`), in a sealed file of its own.
        let mut loaded = unsafe { self.engine.load_in_place(code, image_end) };
        if let (Ok(loaded), Some(initial)) = (&mut loaded, initial) {
            let InitialMemory { memory_bytes, image_start, image_bytes } = initial;
            let image = Mapping::sealed(files.next().ok_or_else(wrong)?.as_fd(), image_bytes)?;
            self.engine.reuse(loaded, Initial { memory_bytes, image_start, image });
        }
        let loaded = loaded.and_then(|program| match program.has_tasks() {
            true => Ok((Arc::new(program), limits, kinds.into())),
            false => Err(Fault::new(Code::Export, "it has no tasks")),
        });
        self.programs.insert(program, loaded);
        Ok(())
    }

    /// Begins the next task that was given.
    fn start_next(&mut self) -> io::Result<bool> {
        if !self.tasks.has_frame() {
            return Ok(false);
        }
        // Before the node can see it: from then on it counts the time that a task may take.
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

    fn start(
        &mut self,
        begin: StartTask<'_>,
        started: u64,
        unannounced: Option<(TaskSlot, Vec<u8>)>,
    ) -> io::Result<()> {
        let StartTask { task, attempt, job, program, function, seed, role, has_gpu, needs, refs, arguments } = begin;
        while !self.programs.contains_key(&program) {
            let (message, files) = self.receive()?;
            self.load(message, files)?;
        }
        let loaded = match &self.programs[&program] {
            Err(fault) => Err(fault.clone()),
            Ok(_) if self.cancelled.contains(&(task, attempt)) => Err(Fault::new(Code::Cancelled, "it was not begun")),
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
        if let TaskRole::ActorCall(actor, made_in, is_timed) = role {
            return self.queue_call(
                actor,
                made_in,
                QueuedCall { own, function, arguments: arguments.into(), is_timed },
            );
        }
        let slot = self.free.pop().unwrap_or(self.active.len());
        let call = TaskCall { function, call: task, seed, arguments: arguments.into() };
        let services = Box::new(TaskServices {
            runtime: self.runtime.clone(),
            slot,
            at_hand: None,
            is_held: false,
            broker: has_gpu.then(|| self.broker.clone()),
            job,
            tensor_bytes_max: limits.tensor_bytes_max,
            dense: None,
            gpu_nanos_told: 0,
        });
        let running = match role {
            TaskRole::MakeActor(options) => {
                lock(&self.runtime).actors.insert(slot, ResidentActor::new(attempt, options));
                loaded.make(services, &limits, call)
            }
            _ => loaded.run((&self.idle_sandboxes, JobId(job)), services, &limits, call),
        };
        self.insert(slot, ActiveTask { id: task, running, program, nanos: 0, started, until: started });
        lock(&self.runtime).seat(slot, own);
        self.poll_task(slot)
    }

    /// A call of an actor that is here, or was.
    fn queue_call(&mut self, actor: u64, made_in: u32, call: QueuedCall) -> io::Result<()> {
        let mut runtime = lock(&self.runtime);
        let slot = self.slots.get(&actor).copied();
        let slot = slot.filter(|slot| runtime.actors.get(slot).is_some_and(|actor| actor.attempt == made_in));
        let Some(slot) = slot else {
            runtime.drop_call(&call.own);
            return Ok(());
        };
        let can_go_on = runtime.queue(slot, call);
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

    /// Runs a task until it waits or has ended, and what it waits for, if that is to be run here.
    fn poll_task(&mut self, slot: TaskSlot) -> io::Result<()> {
        let Some(active) = self.active.get_mut(slot).and_then(Option::as_mut) else { return Ok(()) };
        let mut runtime = lock(&self.runtime);
        runtime.unblock(slot);
        // What the node does not know of yet runs on behalf of who waits for it.
        let parent = runtime.task(slot).and_then(|task| Some(task.unannounced.as_ref()?.0));
        let behalf = parent.and_then(|parent| runtime.task(parent)).map_or(active.id, |parent| parent.id);
        drop(runtime);
        self.memory.atomic(words::CURRENT_TASK).store(behalf, SeqCst);
        self.memory.atomic(words::STEPS).fetch_add(1, Relaxed);
        let start = monotonic_nanos();
        let polled = active.running.poll(TaskId(behalf));
        active.add_run(start, monotonic_nanos());
        self.memory.atomic(words::CURRENT_TASK).store(u64::MAX, SeqCst);
        match polled {
            Poll::Ready(ended) => self.finish(slot, ended),
            Poll::Pending => {
                let mut runtime = lock(&self.runtime);
                runtime.report_taken();
                let inline = runtime.inline.take();
                let is_on_gpu = runtime.wait_for_gpu.contains(&slot);
                let is_idle = runtime.actors.get(&slot).is_some_and(|resident| resident.is_idle());
                match inline {
                    Some((parent, frame)) => {
                        drop(runtime);
                        self.start_inline(parent, frame)
                    }
                    // As if it went on by itself.
                    None if is_idle || is_on_gpu => Ok(()),
                    None => {
                        runtime.block(slot);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Begins a task that its parent waits for.
    fn start_inline(&mut self, parent: TaskSlot, frame: Vec<u8>) -> io::Result<()> {
        let started = monotonic_nanos();
        let Ok(WorkerMessage::Submit(submit)) = postcard::from_bytes(&frame) else { return Ok(()) };
        let SubmitTask { task, function, seed, request, .. } = submit;
        let Ok(request) = postcard::from_bytes::<TaskRequest<'_>>(request) else { return Ok(()) };
        let arguments = postcard::to_stdvec(&request.arguments).map_err(io::Error::other)?;
        let Some(program) = self.active[parent].as_ref().map(|active| active.program) else { return Ok(()) };
        let Some(job) = lock(&self.runtime).task(parent).map(|task| task.job) else { return Ok(()) };
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
        self.start(begin, started, Some((parent, frame.clone())))
    }

    /// A task has ended.
    fn finish(&mut self, slot: TaskSlot, ended: Ended) -> io::Result<()> {
        let Some(active) = self.active[slot].take() else { return Ok(()) };
        let ActiveTask { id: task, running, nanos, started, until, .. } = active;
        let waited_nanos = until.saturating_sub(started).saturating_sub(nanos);
        drop(running);
        self.slots.remove(&task);
        self.free.push(slot);
        let mut runtime = lock(&self.runtime);
        let Some(own) = runtime.remove_task(slot) else { return Ok(()) };
        let Ended { result, memory_bytes, gpu_nanos, has_lost_gpu } = ended;
        let usage = AttemptUsage { started, nanos, waited_nanos, gpu_nanos, memory_bytes };
        let report = AttemptReport { usage, lost: has_lost_gpu && result.is_err(), saved: None };
        match runtime.actors.remove(&slot) {
            Some(resident) => {
                let fault = result.err().unwrap_or_else(|| Fault::new(Code::ActorDied, "it has ended"));
                runtime.end_actor(own, resident, fault, report);
            }
            None => runtime.finish(own, result, report),
        }
        Ok(())
    }
}
