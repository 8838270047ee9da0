//! The hub: one thread that has the scheduler and the workers.

mod act;
mod actors;
mod any;
mod circles;
mod deadlines;
mod files;
mod groups;
mod hear;
mod holds;
mod jobs;
mod keep;
mod look;
mod peers;
mod store;
mod unmet;
mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use sandbar_core::{ActorId, IdAllocator, JobId, NodeId, ObjectId, TaskError, TaskId, TenantId, WorkerId};
use sandbar_jobs::{AttemptRecord, JobQuery, JobResponse, LogSender, ProgressBars, TaskRecords};
use sandbar_machine::raise_file_limit;
use sandbar_sched::{Action, Event, JobLimits, PayloadCallbacks, ResourceSet, Scheduler, ValueLocation, WorkerKind};
use sandbar_store::{SealedFile, ValueKey};
use sandbar_worker::program::{Doorbell, ProgramWorkerOptions, monotonic_nanos};
use tokio::sync::oneshot;

use self::actors::HOME;
pub use self::any::{Saying, hear_any, said_any};
use self::circles::Circles;
use self::deadlines::Deadlines;
use self::files::Opened;
use self::holds::Holds;
use self::peers::{AwayKey, Lasting, Peers};
use self::store::Store;
pub(crate) use self::store::StoreOptions;
use self::unmet::Unmet;
use super::calls::{Call, Names, Program};
use super::client::Seat;
use super::files::Given;
use super::members::Member;
use super::peer::{Fetched, Loaded, NewPeer, Outside, Remnant, Tell};

/// The hub looks again for so long before it sleeps.
const LOOK_AGAIN: Duration = Duration::from_micros(100);
/// How often workers are looked after, while they have something to do and while they have not.
const TICK: Duration = Duration::from_millis(1);
const IDLE_TICK: Duration = Duration::from_millis(100);

/// A node has so many numbers for workers at a time: see [`WorkerId`].
pub const WORKERS_MAX: u32 = 1 << 12;
/// When it has so few left, it asks for more.
const NUMBERS_LEFT_MIN: u32 = WORKERS_MAX / 4;

/// How a hub is made.
#[derive(Clone)]
pub(crate) struct HubOptions {
    /// The node's number.
    pub(crate) node: NodeId,
    /// Numbers of workers: no other node gives out the same.
    pub(crate) numbers: Range<u32>,
    /// What there is of other nodes.
    pub(crate) outside: Option<Arc<dyn Outside>>,
    /// Workers that run tasks.
    pub(crate) workers: usize,
    pub(crate) worker_options: ProgramWorkerOptions,
    pub(crate) resources: ResourceSet,
    pub(crate) job_limits: JobLimits,
    pub(crate) store: StoreOptions,
}

/// A job to be run.
pub(crate) struct NewJob {
    pub(crate) program: Arc<Program>,
    pub(crate) first: First,
    pub(crate) seed: u64,
    /// If another node may take it over: what its cluster calls it, and what its tasks returned before.
    pub(crate) lasting: Option<(Arc<str>, Vec<Remnant>)>,
    /// The files that its tasks may open.
    pub(crate) given: Arc<Given>,
    /// Gets how far its tasks say that they are.
    pub(crate) bars: Arc<ProgressBars>,
    /// Gets each line that its tasks log.
    pub(crate) log: LogSender,
    /// Gets what is kept of its tasks when it has ended, or the node does: before anybody is told.
    pub(crate) left: Arc<OnceLock<Left>>,
}

/// The first task of a job.
pub(crate) enum First {
    /// A function of its program, with a list of [`sandbar_core::Argument`], in postcard.
    Function(u32, Box<[u8]>),
    /// A client, with the task's name.
    Client(String, Seat),
}

/// What came of a job.
#[derive(Debug)]
pub(crate) struct JobResult {
    /// What its first task returned.
    pub(crate) result: Result<Vec<u8>, Arc<TaskError>>,
    pub(crate) counts: Counts,
}

/// What is left of a job.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) records: TaskRecords,
    pub(crate) counts: Counts,
}

enum Command {
    /// Gets what the job's first task returns.
    Start(JobId, NewJob, oneshot::Sender<JobResult>),
    /// Ends a job, if it has not ended, and says so by dropping that.
    End(JobId, SyncSender<()>),
    Look(JobId, JobQuery, oneshot::Sender<JobResponse>),
    /// There is a connection to another node.
    Join(NewPeer),
    /// Another node wants a value.
    Share(ObjectId, Tell<Result<SealedFile, String>>),
    /// More numbers for workers.
    Numbers(Range<u32>),
    /// A value has come from another node, or will not.
    Fetched(Fetched),
    /// A program of another node, by its number, is there, or can't be had.
    Loaded(NodeId, u32, Loaded),
    /// Some of what there is of a job that is taken over, from a number on.
    Remains(Arc<str>, u64, Tell<Vec<(u64, Remnant)>>),
    /// The node is to go: who asks is told when it may.
    Leave(Tell<()>),
    Stop,
}

/// A hub's thread. Dropping it ends all jobs and workers.
#[derive(Debug)]
pub(crate) struct Hub {
    asker: Asker,
    next_job: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

/// Asks a hub, which may have ended.
#[derive(Debug, Clone)]
pub struct Asker {
    commands: Arc<Mutex<Sender<Command>>>,
    doorbell: Doorbell,
}

impl Asker {
    /// What a hub sees of a job.
    pub(crate) async fn look(&self, job: JobId, question: JobQuery) -> JobResponse {
        let (answer, answered) = oneshot::channel();
        self.command(Command::Look(job, question, answer));
        answered.await.unwrap_or_else(|_| JobResponse::Refused("the node ends".to_owned()))
    }

    /// Ends a job. It has ended when this returns.
    fn end(&self, job: JobId) {
        let (ended, is_over) = sync_channel(0);
        self.command(Command::End(job, ended));
        // Nothing is ever sent: it is dropped, by the hub or with it.
        let _ = is_over.recv();
    }

    /// There is a connection to another node.
    pub fn join(&self, peer: NewPeer) {
        self.command(Command::Join(peer));
    }

    /// What wakes it.
    pub fn doorbell(&self) -> Doorbell {
        self.doorbell.clone()
    }

    /// Has a value of the hub's node `told` to somebody, whatever comes of it.
    pub fn share(&self, object: ObjectId, told: Tell<Result<SealedFile, String>>) {
        self.command(Command::Share(object, told));
    }

    /// Some of what tasks of a job returned here, which is taken over: from this number on, each with the number behind it.
    pub async fn remains(&self, name: &str, from: u64) -> Vec<(u64, Remnant)> {
        let (tell, told) = oneshot::channel();
        self.command(Command::Remains(name.into(), from, Box::new(move |some| drop(tell.send(some)))));
        told.await.unwrap_or_default()
    }

    /// The node is to go. It is done with once no other node needs it, and no job of its own runs.
    pub async fn leave(&self) {
        let (tell, told) = oneshot::channel();
        let told_once = move |()| {
            let _ = tell.send(());
        };
        self.command(Command::Leave(Box::new(told_once)));
        // A hub that has ended is not needed.
        let _ = told.await;
    }

    fn command(&self, command: Command) {
        // A hub that has ended drops what it is asked, and who asked is told by that.
        let _ = self.commands.lock().unwrap_or_else(PoisonError::into_inner).send(command);
        self.doorbell.ring();
    }
}

/// A job that a hub runs. Dropping it ends the job.
pub(crate) struct RunningJob {
    id: JobId,
    asker: Asker,
    result: oneshot::Receiver<JobResult>,
    has_ended: bool,
}

impl RunningJob {
    pub(crate) fn id(&self) -> JobId {
        self.id
    }

    /// Who is asked about it, for as long as it lives, and longer.
    pub(crate) fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// What comes of it; nothing if its hub ends before.
    pub(crate) async fn result(&mut self) -> Option<JobResult> {
        let result = (&mut self.result).await;
        self.has_ended = true;
        result.ok()
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        if !self.has_ended {
            self.asker.end(self.id);
        }
    }
}

/// What was done for a job so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) submitted: u64,
    /// Tasks that another node had run before the job was taken over.
    pub(crate) resumed: u64,
    /// Attempts that ended with an error.
    pub(crate) failed: u64,
    /// Attempts that were under way on workers and nodes that are gone.
    pub(crate) lost_attempts: u64,
    /// Workers that ended while they ran something.
    pub(crate) lost: u64,
    /// Other nodes that went away while they had tasks.
    pub(crate) lost_nodes: u64,
    /// Bytes of objects that went to disk meanwhile, and that came back: of all jobs.
    pub(crate) spilled_bytes: u64,
    pub(crate) restored_bytes: u64,
}

impl Hub {
    /// Starts it, and its workers.
    ///
    /// # Errors
    /// When there is no memory, or no thread.
    pub(crate) fn start(options: HubOptions) -> io::Result<Hub> {
        let (commands, received) = channel();
        let doorbell = Doorbell::new()?;
        let asker = Asker { commands: Arc::new(Mutex::new(commands)), doorbell };
        let next_job = Arc::new(AtomicU32::new(1));
        let (doorbell, own) = (asker.doorbell.clone(), asker.clone());
        let jobs = next_job.clone();
        let store = Store::start(&options.store, doorbell.clone())?;
        let opened = Opened::start(options.store.memory_bytes_max, doorbell)?;
        let thread = std::thread::Builder::new()
            .name("hub".into())
            .spawn(move || State::new(options, (own, jobs), received, store, opened).run())?;
        Ok(Hub { asker, next_job, thread: Some(thread) })
    }

    /// Runs a job.
    pub(crate) fn submit(&self, job: NewJob) -> RunningJob {
        let id = JobId(self.next_job.fetch_add(1, Relaxed));
        let (done, result) = oneshot::channel();
        self.asker.command(Command::Start(id, job, done));
        RunningJob { id, asker: self.asker.clone(), result, has_ended: false }
    }

    /// Who is asked, for as long as it lives, and longer.
    pub(crate) fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// What wakes it.
    pub(crate) fn doorbell(&self) -> Doorbell {
        self.asker.doorbell.clone()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.asker.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The value of an object.
#[derive(Debug, Clone)]
enum Stored {
    Inline(Box<[u8]>),
    /// By the store, so many bytes.
    Kept(ValueKey, u64),
    /// By another node.
    Away(AwayKey),
}

/// What the store keeps may be lost with the disk, what lies beside its object may not.
const PAYLOAD_CALLBACKS: PayloadCallbacks<Call, Stored> = PayloadCallbacks {
    can_be_lost: |value| !matches!(value, Stored::Inline(_)),
    location: |value| match value {
        Stored::Inline(_) => None,
        Stored::Kept(_, bytes) => Some(ValueLocation { node: None, bytes: *bytes }),
        Stored::Away(away) => Some(ValueLocation { node: Some(away.node), bytes: away.bytes }),
    },
    call_bytes: |call| call.bytes(),
};

impl Stored {
    fn key(&self) -> Option<ValueKey> {
        match self {
            Stored::Inline(_) | Stored::Away(_) => None,
            Stored::Kept(key, _) => Some(*key),
        }
    }
}

struct Job {
    first: TaskId,
    driver: WorkerId,
    done: Option<oneshot::Sender<JobResult>>,
    lasting: Option<Lasting>,
    log: LogSender,
    records: TaskRecords,
    left: Arc<OnceLock<Left>>,
    given: Arc<Given>,
    bars: Arc<ProgressBars>,
    counts: Counts,
    /// Bytes that had gone to disk when it began, and come back.
    moved_before: [u64; 2],
}

struct State {
    options: HubOptions,
    doorbell: Doorbell,
    /// Asks this hub.
    asker: Asker,
    next_job: Arc<AtomicU32>,
    peers: Peers,
    commands: Receiver<Command>,
    sched: Scheduler<Call, Stored>,
    store: Store,
    opened: Opened,
    members: BTreeMap<WorkerId, Member>,
    jobs: FxHashMap<JobId, Job>,
    ids: IdAllocator,
    /// Numbers of workers to come: the first of the first range is the next.
    numbers: VecDeque<Range<u32>>,
    /// More were asked for.
    wants_numbers: bool,
    /// Who gives out the numbers of jobs' first tasks: no worker.
    own: WorkerId,
    names: Names,
    deadlines: Deadlines,
    actions: Vec<Action<Stored>>,
    /// What first tasks of jobs returned.
    results: FxHashMap<ObjectId, Stored>,
    /// Jobs whose first tasks have ended in this step.
    done: Vec<(JobId, Result<(), Arc<TaskError>>)>,
    /// The job of who asked for an object last.
    asking: Option<JobId>,
    /// What came of actions.
    events: VecDeque<Event<Call, Stored>>,
    /// Workers of actors that have one for themselves.
    of_actors: FxHashMap<ActorId, WorkerId>,
    /// Workers that the scheduler asked for.
    wanted: Vec<WorkerKind>,
    failed_starts: u32,
    /// The time of what is heard now, in nanoseconds of the machine's monotonic clock.
    clock: u64,
    /// The attempt of which the scheduler is told now.
    ran: Option<AttemptRecord>,
    /// Tasks that wait for a time, as their workers say.
    asleep: FxHashSet<TaskId>,
    unmet: Unmet,
    circles: Circles,
    holds: Holds,
    stopping: bool,
}

impl State {
    fn new(
        options: HubOptions,
        (asker, next_job): (Asker, Arc<AtomicU32>),
        commands: Receiver<Command>,
        store: Store,
        opened: Opened,
    ) -> State {
        let numbers = options.numbers.clone();
        let own = WorkerId(numbers.start);
        State {
            doorbell: asker.doorbell.clone(),
            asker,
            next_job,
            peers: Peers::default(),
            commands,
            sched: Scheduler::with_lineage(sandbar_sched::Options::default(), PAYLOAD_CALLBACKS),
            store,
            opened,
            members: BTreeMap::new(),
            jobs: FxHashMap::default(),
            ids: IdAllocator::of(own),
            own,
            // Workers' numbers start behind it.
            numbers: std::iter::once(numbers.start + 1..numbers.end).collect(),
            wants_numbers: false,
            names: Names::default(),
            deadlines: Deadlines::default(),
            actions: Vec::new(),
            results: FxHashMap::default(),
            done: Vec::new(),
            asking: None,
            events: VecDeque::new(),
            of_actors: FxHashMap::default(),
            wanted: Vec::new(),
            failed_starts: 0,
            clock: monotonic_nanos(),
            ran: None,
            asleep: FxHashSet::default(),
            unmet: Unmet::default(),
            circles: Circles::default(),
            holds: Holds::default(),
            stopping: false,
            options,
        }
    }

    /// The number of another worker, if there are any left. Before there are none, more are asked for.
    fn number_worker(&mut self) -> Option<WorkerId> {
        let left: u32 = self.numbers.iter().map(|range| range.end - range.start).sum();
        if left < NUMBERS_LEFT_MIN
            && !self.wants_numbers
            && let Some(outside) = &self.options.outside
        {
            self.wants_numbers = true;
            let asker = self.asker.clone();
            outside.numbers(Box::new(move |range| asker.command(Command::Numbers(range))));
        }
        let first = self.numbers.front_mut()?;
        let number = first.next();
        if first.start == first.end {
            self.numbers.pop_front();
        }
        number.map(WorkerId)
    }

    /// Whether this hub itself has given out a number of a task or an object, as of jobs' first tasks, if anybody has.
    fn is_own_number(&self, number: u64) -> bool {
        IdAllocator::issuer(number) == self.own
    }

    fn number_job(&self) -> JobId {
        JobId(self.next_job.fetch_add(1, Relaxed))
    }

    fn run(mut self) {
        // Each large object is a file.
        raise_file_limit();
        self.begin();
        let mut frame = Vec::new();
        let (mut last_work, mut last_tick) = (Instant::now(), Instant::now());
        while !self.stopping {
            let worked = self.turn(&mut frame);
            let now = Instant::now();
            if now - last_tick >= TICK {
                last_tick = now;
                self.look_after(now);
            }
            if worked {
                last_work = now;
            } else if now - last_work < LOOK_AGAIN {
                std::thread::yield_now();
            } else {
                self.sleep();
            }
        }
        for (id, job) in std::mem::take(&mut self.jobs) {
            self.leave(id, job);
        }
    }

    fn begin(&mut self) {
        self.step(Event::NodeJoined {
            node: self.options.node,
            resources: self.options.resources.clone(),
            remote: false,
        });
        let limits = self.options.job_limits;
        self.step(Event::JobStarted { job: HOME, tenant: TenantId::DEFAULT, limits });
        self.replace_missing();
    }

    /// Sleeps until somebody says something, or it is time to look around.
    fn sleep(&mut self) {
        let is_busy = self.members.values().any(Member::is_busy);
        let now = Instant::now();
        let time = if is_busy { TICK } else { IDLE_TICK };
        let mut command = None;
        self.doorbell.sleep(Some(time), || {
            command = self.commands.try_recv().ok();
            let is_heard =
                |member: &Member| member.held.is_none() && member.link.has_some() && !self.is_held_client(member, now);
            command.is_some() || self.opened.has_some() || self.peers.has_some() || self.members.values().any(is_heard)
        });
        command.into_iter().for_each(|command| self.obey(command));
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start(id, job, done) => self.start_job(id, job, done),
            Command::End(id, ended) => {
                self.stop_job(id);
                drop(ended);
            }
            // Who asked may be gone.
            Command::Look(job, question, answer) => drop(answer.send(self.look(job, question))),
            Command::Join(new) => self.join(new),
            Command::Share(object, told) => self.share(object, told),
            Command::Fetched(fetched) => self.fetched(fetched),
            Command::Numbers(range) => {
                self.wants_numbers = false;
                self.numbers.push_back(range);
            }
            Command::Loaded(node, program, loaded) => self.loaded(node, program, loaded),
            Command::Remains(name, from, told) => self.tell_remains(&name, from, told),
            Command::Leave(told) => self.set_out(told),
            Command::Stop => self.stopping = true,
        }
    }

    /// Hears everybody, and does what comes of it.
    fn turn(&mut self, frame: &mut Vec<u8>) -> bool {
        let mut worked = false;
        while let Ok(command) = self.commands.try_recv() {
            worked = true;
            self.obey(command);
        }
        let workers: Vec<WorkerId> = self.members.keys().copied().collect();
        for worker in workers {
            worked |= self.hear(worker, frame);
        }
        worked |= self.hear_peers();
        worked |= self.hear_disk();
        worked |= self.hear_files();
        self.carry_out();
        for member in self.members.values_mut() {
            if let Err(e) = member.link.flush() {
                member.broken.get_or_insert_with(|| e.to_string());
            }
        }
        self.peers.flush();
        worked
    }
}
