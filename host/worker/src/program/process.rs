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
use sandbar_store::{Mapping, Scratch};

use super::clock::monotonic_nanos;
use super::desk::{Cost, Desk, Outflow, Queued, Resident, TaskDesk, TaskServices, lock};
use super::link::{BELL_BYTES, Bell, MEMORY_BYTES, Packet, places, words};
use super::messages::{Begin, BeginRole, Delivery, Down, Submit, Took, Up};
use super::objects::{Key, Slot, Value};
use super::ring::{Receiver, Taker};
use crate::compiler::InitialMemory;

/// The argument with which `host-worker` is a worker for programs; its socket is standard input.
pub const PROGRAM_ARGUMENT: &str = "program";

/// Who has nothing to do looks again for so long before it sleeps: to be woken takes as long.
const LOOK_AGAIN: Duration = Duration::from_micros(60);

/// Files of values that tasks here have got, and hold.
const FILES_MAX: u64 = 4096;

/// A program with the limits of its tasks, and what they are.
type Loaded = Result<(Arc<Program>, Limits, Arc<[TaskKind]>), Fault>;

struct Worker {
    engine: Engine,
    memory: Arc<Scratch>,
    bell: Bell,
    down: Receiver,
    tasks: Taker,
    desk: Arc<Mutex<Desk>>,
    /// Whom to ask for a GPU.
    broker: Broker,
    programs: FxHashMap<u32, Loaded>,
    idle_sandboxes: IdleSandboxes,
    /// By their places, as the desk's.
    active: Vec<Option<Active>>,
    free: Vec<Slot>,
    /// Where each task is that is here.
    slots: FxHashMap<u64, Slot>,
    /// Attempts that are not to be begun, of those that it was given.
    cancelled: Vec<(u64, u32)>,
    frame: Vec<u8>,
    packet: Vec<u8>,
}

struct Active {
    id: u64,
    running: Running,
    program: u32,
    nanos: u64,
    /// When it was taken up, before its sandbox was there, and until when it has run, in nanoseconds.
    begun: u64,
    until: u64,
}

impl Active {
    /// It has run for a while.
    fn ran(&mut self, from: u64, until: u64) {
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
    let (Some(memory), Some(bell), broker) = (files.next(), files.next(), files.next()) else {
        return Err(io::Error::other("its memory is missing"));
    };
    let memory = Arc::new(Scratch::open(memory, MEMORY_BYTES)?);
    let node = Bell::at(Arc::new(Scratch::open(bell, BELL_BYTES)?), 0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _entered = runtime.enter();
    let engine = Engine::for_programs(&limits, sandboxes).map_err(io::Error::other)?;
    // The process ends before its memory does.
    let unwanted = Box::leak(Box::new(memory.clone())).atomic(words::UNWANTED);
    sandbar_sandbox::interruptible(unwanted)?;
    // What finds the clock asks the system for it the first time, which is not allowed later.
    monotonic_nanos();
    confine::silence()?;
    confine::seccomp()?;
    let (_, down, tasks) = places(&memory);
    let mut desk = Desk::new(memory.clone(), node, IdAllocator::of(WorkerId(worker)), sandboxes as usize, inline);
    desk.value_bytes_max = value_bytes_max;
    let mut worker = Worker {
        engine,
        bell: Bell::at(memory.clone(), words::BELL),
        memory,
        down: Receiver::new(down),
        tasks: Taker::new(tasks),
        desk: Arc::new(Mutex::new(desk)),
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
    worker.memory.atomic(words::AT_HAND).store(u64::MAX, SeqCst);
    loop {
        if !worker.turn()? {
            worker.idle()?;
        }
    }
}

impl Worker {
    /// Does one thing, if there is any to do.
    fn turn(&mut self) -> io::Result<bool> {
        self.listen()?;
        let mut desk = lock(&self.desk);
        desk.wake_late();
        desk.release_submitters();
        let woken = desk.woken.pop();
        drop(desk);
        if let Some(slot) = woken {
            self.go_on(slot)?;
            return Ok(true);
        }
        if self.has_room() && self.tasks.has_some() && self.begin_next()? {
            return Ok(true);
        }
        Ok(false)
    }

    fn has_room(&self) -> bool {
        let desk = lock(&self.desk);
        desk.alive < desk.room
    }

    fn idle(&mut self) -> io::Result<()> {
        let mut desk = lock(&self.desk);
        if !desk.wait_for_gpu.is_empty() {
            desk.publish();
            drop(desk);
            let (down, tasks, room) = (&self.down, &self.tasks, self.has_room());
            self.bell.sleep(Some(LOOK_AGAIN), || down.has_some() || room && tasks.has_some());
            let mut desk = lock(&self.desk);
            let waited = std::mem::take(&mut desk.wait_for_gpu);
            desk.woken.extend(waited);
            return Ok(());
        }
        drop(desk);
        if !self.tasks.has_some() {
            // The others have ended, or were taken back.
            self.cancelled.clear();
        }
        lock(&self.desk).publish();
        let since = Instant::now();
        while since.elapsed() < LOOK_AGAIN {
            if self.down.has_some() || self.tasks.has_some() && self.has_room() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let deadline = lock(&self.desk).first_deadline();
        let time = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let (down, tasks, room) = (&self.down, &self.tasks, self.has_room());
        self.bell.sleep(time, || down.has_some() || room && tasks.has_some());
        Ok(())
    }

    /// Reads what the node says.
    fn listen(&mut self) -> io::Result<()> {
        let mut frame = std::mem::take(&mut self.frame);
        while self.down.next(&mut frame)? {
            match postcard::from_bytes(&frame).map_err(io::Error::other)? {
                Down::Deliver { job, object, value, contains, wanted } => {
                    let value = self.value((job, object), value)?;
                    lock(&self.desk).delivered((job, object), value, contains, wanted);
                }
                Down::Item { job, stream, object, value, contains } => {
                    let value = self.value((job, object), value)?;
                    lock(&self.desk).item_came(stream, (job, object), value, contains);
                }
                Down::Credit(task, taken) => {
                    if let Some(slot) = self.slots.get(&task) {
                        lock(&self.desk).credit(*slot, taken);
                    }
                }
                Down::Forget(file) => lock(&self.desk).objects.forget(file),
                Down::Close(number) => lock(&self.desk).close(number),
                Down::Unneeded(job, object) => lock(&self.desk).unneeded((job, object)),
                Down::Cancel(task, attempt) => self.cancel(task, attempt)?,
                Down::Hold(job, holds) => lock(&self.desk).hold_job(job, holds),
                Down::GoOn(job) => lock(&self.desk).go_on_once(job),
                Down::AskWaits(task) => {
                    if let Some(slot) = self.slots.get(&task) {
                        lock(&self.desk).say_waits(*slot);
                    }
                }
                Down::Withdraw(actor, task, attempt) => self.withdraw(actor, task, attempt)?,
            }
        }
        self.frame = frame;
        lock(&self.desk).tell_forgotten();
        Ok(())
    }

    /// What is delivered, if that is more than a promise.
    fn value(&mut self, key: Key, value: Delivery<'_>) -> io::Result<Option<Arc<Value>>> {
        Ok(match value {
            Delivery::Value(bytes) => Some(Value::inline(bytes, false)),
            Delivery::Failed(error) => Some(Value::inline(error, true)),
            Delivery::File(bytes, number) => match self.next_file() {
                Ok(file) => {
                    let value = Value::of_file(file, bytes)?;
                    lock(&self.desk).objects.lend(number, key, &value);
                    Some(value)
                }
                // Tasks here have too many in use at once: this one is an error to whoever wants it.
                Err(e) if e.kind() == io::ErrorKind::QuotaExceeded => {
                    let message = format!("the worker has no room for it: {e}; let go of objects");
                    let error = TaskError { fault: Fault::new(Code::StoreFull, message), chain: Vec::new() };
                    lock(&self.desk).forgot(number);
                    Some(Value::inline(&postcard::to_stdvec(&error).map_err(io::Error::other)?, true))
                }
                Err(e) => return Err(e),
            },
            Delivery::Same(file) => {
                let value = lock(&self.desk).objects.lent(file);
                Some(value.ok_or_else(|| io::Error::other("a file that was never lent"))?)
            }
            Delivery::Later => None,
        })
    }

    /// An attempt is to end, which does not run now.
    fn cancel(&mut self, task: u64, attempt: u32) -> io::Result<()> {
        let Some(slot) = self.slots.get(&task).copied() else {
            self.cancelled.push((task, attempt));
            return Ok(());
        };
        let mut desk = lock(&self.desk);
        let of_actor = desk.residents.get(&slot).map(|resident| resident.attempt);
        let same = of_actor.or_else(|| desk.task(slot).map(|own| own.attempt)) == Some(attempt);
        drop(desk);
        if !same {
            return Ok(());
        }
        if let Some(active) = self.active.get_mut(slot).and_then(Option::as_mut) {
            active.until = monotonic_nanos();
        }
        let result = Err(Fault::new(Code::Cancelled, "it was ended while it waited"));
        self.end(slot, Ended::without_cost(result))
    }

    /// A call of an actor is not wanted any more.
    fn withdraw(&mut self, actor: u64, task: u64, attempt: u32) -> io::Result<()> {
        // It may be among what was given, and not taken yet.
        self.cancelled.push((task, attempt));
        let Some(slot) = self.slots.get(&actor).copied() else { return Ok(()) };
        let can_go_on = lock(&self.desk).withdraw(slot, task, attempt);
        if can_go_on { self.go_on(slot) } else { Ok(()) }
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
    fn begin_next(&mut self) -> io::Result<bool> {
        if !self.tasks.has_some() {
            return Ok(false);
        }
        // Before the node can see it: from then on it counts the time that a task may take.
        let begun = monotonic_nanos();
        let mut frame = std::mem::take(&mut self.frame);
        let taken = self.tasks.take(&mut frame)?;
        if taken {
            let begin: Begin<'_> = postcard::from_bytes(&frame).map_err(io::Error::other)?;
            self.begin(begin, begun, None)?;
        }
        self.frame = frame;
        Ok(taken)
    }

    fn begin(&mut self, begin: Begin<'_>, begun: u64, unannounced: Option<(Slot, Vec<u8>)>) -> io::Result<()> {
        let Begin { task, attempt, job, program, function, seed, role, has_gpu, needs, refs, arguments } = begin;
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
        let mut own = TaskDesk::new(task, attempt, job, seed, kinds, needs, unannounced);
        let (loaded, limits) = match loaded {
            Ok((loaded, limits, _)) => (loaded, limits),
            Err(fault) => {
                self.cancelled.retain(|cancelled| *cancelled != (task, attempt));
                lock(&self.desk).refused(&own, fault);
                return Ok(());
            }
        };
        own.log_left = limits.log_bytes_max;
        lock(&self.desk).lend(&mut own, &refs);
        if let BeginRole::Generate(buffer) = role {
            own.generator = Some(Outflow::new(buffer));
        }
        if let BeginRole::Call(actor, made_in, is_timed) = role {
            return self.call(actor, made_in, Queued { own, function, arguments: arguments.into(), is_timed });
        }
        let slot = self.free.pop().unwrap_or(self.active.len());
        let call = TaskCall { function, call: task, seed, arguments: arguments.into() };
        let services = Box::new(TaskServices {
            desk: self.desk.clone(),
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
            BeginRole::Make(options) => {
                lock(&self.desk).residents.insert(slot, Resident::new(attempt, options));
                loaded.make(services, &limits, call)
            }
            _ => loaded.run((&self.idle_sandboxes, JobId(job)), services, &limits, call),
        };
        self.place(slot, Active { id: task, running, program, nanos: 0, begun, until: begun });
        lock(&self.desk).seat(slot, own);
        self.go_on(slot)
    }

    /// A call of an actor that is here, or was.
    fn call(&mut self, actor: u64, made_in: u32, call: Queued) -> io::Result<()> {
        let mut desk = lock(&self.desk);
        let slot = self.slots.get(&actor).copied();
        let slot = slot.filter(|slot| desk.residents.get(slot).is_some_and(|actor| actor.attempt == made_in));
        let Some(slot) = slot else {
            desk.drop_call(&call.own);
            return Ok(());
        };
        let can_go_on = desk.queue(slot, call);
        drop(desk);
        if can_go_on { self.go_on(slot) } else { Ok(()) }
    }

    fn place(&mut self, slot: Slot, active: Active) {
        self.slots.insert(active.id, slot);
        if slot == self.active.len() {
            self.active.push(None);
        }
        self.active[slot] = Some(active);
    }

    /// Runs a task until it waits or has ended, and what it waits for, if that is to be run here.
    fn go_on(&mut self, slot: Slot) -> io::Result<()> {
        let Some(active) = self.active.get_mut(slot).and_then(Option::as_mut) else { return Ok(()) };
        let mut desk = lock(&self.desk);
        desk.unblock(slot);
        // What the node does not know of yet runs on behalf of who waits for it.
        let parent = desk.task(slot).and_then(|task| Some(task.unannounced.as_ref()?.0));
        let behalf = parent.and_then(|parent| desk.task(parent)).map_or(active.id, |parent| parent.id);
        drop(desk);
        self.memory.atomic(words::AT_HAND).store(behalf, SeqCst);
        self.memory.atomic(words::STEPS).fetch_add(1, Relaxed);
        let start = monotonic_nanos();
        let polled = active.running.poll(TaskId(behalf));
        active.ran(start, monotonic_nanos());
        self.memory.atomic(words::AT_HAND).store(u64::MAX, SeqCst);
        match polled {
            Poll::Ready(ended) => self.end(slot, ended),
            Poll::Pending => {
                let mut desk = lock(&self.desk);
                desk.tell_taken();
                let inline = desk.inline.take();
                let is_on_gpu = desk.wait_for_gpu.contains(&slot);
                let is_idle = desk.residents.get(&slot).is_some_and(|resident| resident.is_idle());
                match inline {
                    Some((parent, frame)) => {
                        drop(desk);
                        self.begin_inline(parent, frame)
                    }
                    // As if it went on by itself.
                    None if is_idle || is_on_gpu => Ok(()),
                    None => {
                        desk.block(slot);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Begins a task that its parent waits for.
    fn begin_inline(&mut self, parent: Slot, frame: Vec<u8>) -> io::Result<()> {
        let begun = monotonic_nanos();
        let Ok(Up::Submit(submit)) = postcard::from_bytes(&frame) else { return Ok(()) };
        let Submit { task, function, seed, request, .. } = submit;
        let Ok(request) = postcard::from_bytes::<TaskRequest<'_>>(request) else { return Ok(()) };
        let arguments = postcard::to_stdvec(&request.arguments).map_err(io::Error::other)?;
        let Some(program) = self.active[parent].as_ref().map(|active| active.program) else { return Ok(()) };
        let Some(job) = lock(&self.desk).task(parent).map(|task| task.job) else { return Ok(()) };
        let (needs, role) = (Vec::new(), BeginRole::Task);
        let begin = Begin {
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
        self.begin(begin, begun, Some((parent, frame.clone())))
    }

    /// A task has ended.
    fn end(&mut self, slot: Slot, ended: Ended) -> io::Result<()> {
        let Some(active) = self.active[slot].take() else { return Ok(()) };
        let Active { id: task, running, nanos, begun, until, .. } = active;
        let waited = until.saturating_sub(begun).saturating_sub(nanos);
        drop(running);
        self.slots.remove(&task);
        self.free.push(slot);
        let mut desk = lock(&self.desk);
        let Some(own) = desk.leave(slot) else { return Ok(()) };
        let Ended { result, memory_bytes, gpu_nanos, has_lost_gpu } = ended;
        let took = Took { begun, nanos, waited, gpu_nanos, memory_bytes };
        let cost = Cost { took, lost: has_lost_gpu && result.is_err(), saved: None };
        match desk.residents.remove(&slot) {
            Some(resident) => {
                let fault = result.err().unwrap_or_else(|| Fault::new(Code::ActorDied, "it has ended"));
                desk.end_actor(own, resident, fault, cost);
            }
            None => desk.ended(own, result, cost),
        }
        Ok(())
    }
}
