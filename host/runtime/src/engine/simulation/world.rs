//! The simulated cluster.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash as _, Hasher as _};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use rustc_hash::FxHasher;
use sandbar_core::{Argument, Code, JobId, Limits, NodeId, Seed, TaskId, TaskKind, TenantId, VALUE_INLINE_BYTES_MAX};
use sandbar_jobs::{JobLog, LogOutput};
use sandbar_sched::{Event, JobLimits, RESOURCE_UNIT, ResourceSet};
use sandbar_store::{SpillFolder, StoreLimits, ValueStore};
use sandbar_worker::CompiledComponent;
use sandbar_worker::program::Doorbell;
use tokio::sync::oneshot;

use super::super::Engine;
use super::super::context::EngineOptions;
use super::super::jobs::{JobOutputs, JobResult, NewJob, RootTask};
use super::super::workers::WORKERS_MAX;
use super::driver::{Clock, SimDriver, Surroundings};
use super::leases::LeaseJob;
use super::program::{WITHOUT_ACTORS, decode, expected};
use super::worker::SimWorker;
use crate::calls::{Program, ProgramTask};
use crate::peer::{CachedResult, JobRoot, NewPeer, PeerEnd, PeerLine, RemoteObject};

/// Maximum simulated time of a run. A run without faults takes much less.
const TIME_MAX: Duration = Duration::from_secs(300);
/// Time from the start of a run in which faults happen.
const FAULT_TIME: Duration = Duration::from_millis(400);
/// Slots of a node.
const SLOTS: u32 = 2;
const LIMITS: JobLimits = JobLimits {
    tasks_max: 100_000,
    depth_max: 100,
    objects_max: 100_000,
    lineage_bytes_max: 1 << 20,
    groups_max: 100,
    call_bytes_max: 1 << 20,
};

/// Faults of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) nodes: u32,
    pub(super) worker_crashes: u32,
    pub(super) node_crashes: u32,
    pub(super) disconnects: u32,
    /// Probability, in percent, that a disk task fails.
    pub(super) disk_fails: u32,
    /// Probability, in percent, that a worker can't be started.
    pub(super) start_fails: u32,
    pub(super) small_memory: bool,
}

impl Faults {
    fn is_any(&self) -> bool {
        self.worker_crashes + self.node_crashes + self.disconnects + self.disk_fails + self.start_fails > 0
            || self.small_memory
    }
}

struct Node {
    engine: Engine,
    surroundings: Rc<RefCell<Surroundings>>,
    jobs: Vec<SimJob>,
    leases: LeaseJob,
}

impl Node {
    fn jobs_have_ended(&self) -> bool {
        self.jobs.iter().all(|job| job.outcome.is_some())
    }
}

/// A job: what it runs, and its result.
struct SimJob {
    id: JobId,
    work: JobWork,
    result: oneshot::Receiver<JobResult>,
    outcome: Option<Result<Vec<u8>, String>>,
}

/// What a job runs.
#[derive(Debug, Clone)]
struct JobWork {
    /// Name in the cluster, if another node may take it over.
    name: Option<Arc<str>>,
    /// The node that it was submitted to.
    node: u32,
    seed: u64,
    /// Depth and flags of its root task.
    number: u8,
}

/// A job that another node takes over.
struct Takeover {
    at: Duration,
    work: JobWork,
}

impl JobWork {
    fn expected(&self) -> u64 {
        expected(self.seed, self.number, None)
    }
}

/// A connection of two nodes.
struct Connection {
    ends: [PeerEnd; 2],
    /// Frames in flight, by direction, with the times at which they arrive.
    frames: [VecDeque<(Duration, Vec<u8>)>; 2],
}

pub(super) struct World {
    random: Seed,
    clock: Clock,
    faults: Faults,
    fault_times: Vec<(Duration, Fault)>,
    nodes: BTreeMap<u32, Node>,
    connections: BTreeMap<(u32, u32), Connection>,
    /// Broken connections, and when they are made again.
    broken: Vec<(Duration, u32, u32)>,
    /// Fetches under way: when, by which node and its number, and what.
    fetches: Vec<(Duration, u32, u64, RemoteObject)>,
    loads: Vec<(Duration, u32, NodeId, u32)>,
    takeovers: Vec<Takeover>,
    next_range: u32,
    program: Arc<Program>,
    /// Whether jobs have no actors, and can be taken over.
    is_lasting: bool,
    doorbell: Doorbell,
    log: JobLog,
    frame: Vec<u8>,
    /// Hash of all that nodes have sent to each other, and when.
    sent: FxHasher,
    prints: bool,
    _folder: tempfile::TempDir,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    CrashWorker,
    CrashNode,
    Disconnect,
}

impl World {
    pub(super) fn new(mut random: Seed, faults: Faults, prints: bool) -> World {
        let clock = Clock::new();
        let folder = tempfile::tempdir().unwrap();
        let is_lasting = random.below(2) == 0;
        let program = programs()[usize::from(is_lasting)].clone();
        let log = JobLog::start(None, LogOutput::Callback(Box::new(|_| {})), TenantId::DEFAULT).unwrap();
        let mut fault_times = Vec::new();
        for (count, fault) in [
            (faults.worker_crashes, Fault::CrashWorker),
            (faults.node_crashes, Fault::CrashNode),
            (faults.disconnects, Fault::Disconnect),
        ] {
            for _ in 0..count {
                let at = FAULT_TIME.mul_f64(f64::from(random.below(1000)) / 1000.0);
                fault_times.push((at, fault));
            }
        }
        fault_times.sort_by_key(|(at, _)| *at);
        let mut world = World {
            random,
            clock,
            faults,
            fault_times,
            nodes: BTreeMap::new(),
            connections: BTreeMap::new(),
            broken: Vec::new(),
            fetches: Vec::new(),
            loads: Vec::new(),
            takeovers: Vec::new(),
            next_range: 100,
            program,
            is_lasting,
            doorbell: Doorbell::new().unwrap(),
            log,
            frame: Vec::new(),
            sent: FxHasher::default(),
            prints,
            _folder: folder,
        };
        for node in 1..=faults.nodes {
            world.add_node(node);
        }
        for a in 1..=faults.nodes {
            for b in a + 1..=faults.nodes {
                world.connect(a, b);
            }
        }
        world
    }

    fn add_node(&mut self, number: u32) {
        let folder = SpillFolder::new(self._folder.path().join(number.to_string()), Some(0));
        let seed = Seed::new(self.random.next_u64());
        let mut surroundings = Surroundings::new(self.clock.clone(), seed, folder);
        surroundings.faults = [self.faults.disk_fails, self.faults.start_fails];
        let surroundings = Rc::new(RefCell::new(surroundings));
        let memory_bytes_max = if self.faults.small_memory { 300_000 } else { 1 << 30 };
        let options = EngineOptions {
            node: NodeId(number),
            worker_ids: number * WORKERS_MAX..(number + 1) * WORKERS_MAX,
            workers: SLOTS as usize,
            on_demand: false,
            resources: ResourceSet { cpus: u64::from(SLOTS) * RESOURCE_UNIT, ..ResourceSet::default() },
            job_limits: LIMITS,
            task_limits: Limits::default(),
            memory_bytes_max,
        };
        let limits = StoreLimits { memory_bytes_max, files_max: 1000, job_bytes_max: u64::MAX };
        let next_job = Arc::new(AtomicU32::new(1));
        let leases_id = JobId(next_job.fetch_add(1, Relaxed));
        let driver = Box::new(SimDriver(surroundings.clone()));
        let mut engine = Engine::new(options, ValueStore::new(limits), next_job, Arc::default(), driver);
        let leases = LeaseJob::start(&mut engine, leases_id, tenant_of(number));
        self.nodes.insert(number, Node { engine, surroundings, jobs: Vec::new(), leases });
        let (seed, depth) = (self.random.next_u64(), 1 + self.random.below(3) as u8);
        let name = self.is_lasting.then(|| Arc::from(format!("job-{number}")));
        let number_of_task = if self.is_lasting { depth | WITHOUT_ACTORS } else { depth };
        self.start_job(number, JobWork { name, node: number, seed, number: number_of_task }, Vec::new());
    }

    /// Starts a job on a node, with results of an earlier run.
    fn start_job(&mut self, node: u32, work: JobWork, results: Vec<CachedResult>) {
        let Some(on) = self.nodes.get_mut(&node) else { return };
        let number = [work.number];
        // Three arguments mark a root task.
        let arguments = [Argument::Value(&number), Argument::Missing, Argument::Missing];
        let arguments = postcard::to_stdvec(&arguments[..]).unwrap();
        let outputs =
            JobOutputs { progress: Arc::default(), log: self.log.sender(), finished: Arc::new(OnceLock::new()) };
        let (done, result) = oneshot::channel();
        let new = NewJob {
            tenant: tenant_of(work.node),
            program: self.program.clone(),
            root_task: RootTask::Function { function: 0, arguments: arguments.into() },
            seed: work.seed,
            lasting: work.name.clone().map(|name| (name, results)),
            files: Arc::default(),
            outputs,
        };
        let id = on.engine.cx.ids.next_job();
        on.engine.start_job(id, new, done);
        on.jobs.push(SimJob { id, work, result, outcome: None });
    }

    /// Another node takes over jobs of nodes that have crashed, with what the others have of their results. Returns whether
    /// there were any.
    fn take_over(&mut self, now: Duration) -> bool {
        let (due, later): (Vec<Takeover>, Vec<Takeover>) =
            std::mem::take(&mut self.takeovers).into_iter().partition(|takeover| takeover.at <= now);
        self.takeovers = later;
        let worked = !due.is_empty();
        for Takeover { work, .. } in due {
            let (Some(name), false) = (work.name.clone(), self.nodes.is_empty()) else { continue };
            let mut results = Vec::new();
            for node in self.nodes.values() {
                let mut from = 0;
                loop {
                    let page = node.engine.cached_results(&name, from);
                    let Some((next, _)) = page.last() else { break };
                    from = *next;
                    results.extend(page.into_iter().map(|(_, result)| result));
                }
            }
            let pick = self.random.below(self.nodes.len() as u32) as usize;
            let Some(node) = self.nodes.keys().nth(pick).copied() else { continue };
            if self.prints {
                eprintln!("{now:?}: node {node} takes over {name} with {} results", results.len());
            }
            self.start_job(node, work, results);
        }
        worked
    }

    fn connect(&mut self, a: u32, b: u32) {
        if !self.nodes.contains_key(&a) || !self.nodes.contains_key(&b) {
            return;
        }
        let resources = ResourceSet { cpus: u64::from(SLOTS) * RESOURCE_UNIT, ..ResourceSet::default() };
        let mut ends = Vec::new();
        for (at, other) in [(a, b), (b, a)] {
            let (line, end) = PeerLine::with_connection(self.doorbell.clone());
            let peer = NewPeer { node: NodeId(other), resources: resources.clone(), slots: SLOTS, line };
            self.nodes.get_mut(&at).unwrap().engine.join(peer);
            ends.push(end);
        }
        let Ok(ends) = <[PeerEnd; 2]>::try_from(ends) else { return };
        self.connections.insert((a, b), Connection { ends, frames: Default::default() });
    }

    /// Runs until all jobs have ended. Returns a hash of what has happened.
    ///
    /// # Errors
    /// An invariant is violated.
    pub(super) fn run(mut self) -> Result<u64, String> {
        let mut last_tick = Duration::ZERO;
        let mut quiet_since = Duration::ZERO;
        loop {
            self.clock.advance(Duration::from_micros(50 + u64::from(self.random.below(400))));
            let now = self.clock.elapsed();
            if now > TIME_MAX {
                return Err(self.time_out_error());
            }
            self.inject_faults(now);
            let is_tick = now - last_tick >= Duration::from_millis(1);
            if is_tick {
                last_tick = now;
            }
            let mut worked = false;
            for number in self.nodes.keys().copied().collect::<Vec<_>>() {
                worked |= self.run_node(number, now, is_tick)?;
            }
            worked |= self.run_network(now);
            worked |= self.take_over(now);
            if worked {
                quiet_since = now;
            }
            // Only waiting root tasks are left. 60 ms cover work that takes several rounds.
            if now - quiet_since > Duration::from_millis(60) && self.is_quiet() && self.fault_times.is_empty() {
                self.check_references()?;
                let released = self.release_roots();
                if !released && self.nodes.values().all(Node::jobs_have_ended) {
                    break;
                }
                quiet_since = now;
            }
        }
        self.check_results()?;
        self.check_empty()?;
        self.clock.elapsed().hash(&mut self.sent);
        Ok(self.sent.finish())
    }

    fn run_node(&mut self, number: u32, now: Duration, is_tick: bool) -> Result<bool, String> {
        let Some(node) = self.nodes.get_mut(&number) else { return Ok(false) };
        let mut worked = node.engine.poll(&mut self.frame);
        if is_tick {
            node.engine.tick();
        }
        let leases = node.leases.run(&mut node.engine, &mut self.random, now, SLOTS);
        worked |= leases.map_err(|error| format!("node {number}: {error}"))?;
        let workers: Vec<Rc<RefCell<SimWorker>>> = node.surroundings.borrow().workers.clone();
        for worker in workers {
            let mut worker = worker.borrow_mut();
            worked |= !worker.is_idle();
            worker.run(now);
            if let Some(error) = worker.errors.first() {
                return Err(format!("node {number}, worker {}: {error}", worker.id));
            }
        }
        node.surroundings.borrow_mut().workers.retain(|worker| !worker.borrow().is_killed);
        let fetched =
            std::mem::take(&mut *node.surroundings.borrow().fetched.lock().unwrap_or_else(PoisonError::into_inner));
        for (fetch, value) in fetched {
            worked = true;
            node.engine.fetched(fetch, value);
        }
        let usage = node.engine.cx.values.usage();
        // Each waiting message and each fetch holds one value in excess of the limit.
        let excess_bytes = 40 * VALUE_INLINE_BYTES_MAX as u64;
        if usage.memory_bytes > node.engine.cx.options.memory_bytes_max + excess_bytes {
            return Err(format!("node {number} has {} bytes of values in memory", usage.memory_bytes));
        }
        for job in &mut node.jobs {
            if let Ok(result) = job.result.try_recv() {
                job.outcome = Some(result.result.map_err(|error| error.to_string()));
            }
        }
        let mut surroundings = node.surroundings.borrow_mut();
        for (fetch, object) in surroundings.fetches.drain(..) {
            let delay = Duration::from_micros(u64::from(self.random.below(5000)));
            self.fetches.push((now + delay, number, fetch, object));
        }
        for (owner, program) in surroundings.loads.drain(..) {
            let delay = Duration::from_micros(u64::from(self.random.below(5000)));
            self.loads.push((now + delay, number, owner, program));
        }
        let wants_ids = std::mem::take(&mut surroundings.wants_worker_ids);
        drop(surroundings);
        if wants_ids {
            let first = self.next_range * WORKERS_MAX;
            self.next_range += 1;
            node.engine.add_worker_ids(first..first + WORKERS_MAX);
        }
        Ok(worked)
    }

    fn run_network(&mut self, now: Duration) -> bool {
        let mut worked = false;
        for connection in self.connections.values_mut() {
            for from in 0..2 {
                while let Some(frame) = connection.ends[from].try_next_outgoing() {
                    worked = true;
                    let delay = Duration::from_micros(u64::from(self.random.below(2000)));
                    // Frames arrive in order.
                    let last = connection.frames[from].back().map_or(Duration::ZERO, |(at, _)| *at);
                    frame.hash(&mut self.sent);
                    connection.frames[from].push_back((last.max(now + delay), frame));
                }
                while connection.frames[from].front().is_some_and(|(at, _)| *at <= now) {
                    worked = true;
                    let (_, frame) = connection.frames[from].pop_front().unwrap();
                    connection.ends[1 - from].push_incoming(frame);
                }
            }
        }
        // An engine that rejects a message disconnects.
        let closed = self.connections.iter().filter(|(_, connection)| connection.ends.iter().any(PeerEnd::is_closed));
        for (a, b) in closed.map(|(nodes, _)| *nodes).collect::<Vec<_>>() {
            self.connections.remove(&(a, b));
            self.broken.push((now + Duration::from_millis(50), a, b));
        }
        for (at, a, b) in std::mem::take(&mut self.broken) {
            if at <= now {
                self.connect(a, b);
            } else {
                self.broken.push((at, a, b));
            }
        }
        for (at, number, fetch, object) in std::mem::take(&mut self.fetches) {
            if at > now {
                self.fetches.push((at, number, fetch, object));
                continue;
            }
            worked = true;
            self.fetch(number, fetch, object);
        }
        for (at, number, owner, program) in std::mem::take(&mut self.loads) {
            if at > now {
                self.loads.push((at, number, owner, program));
            } else if let Some(node) = self.nodes.get_mut(&number) {
                worked = true;
                node.engine.loaded(owner, program, Ok(self.program.clone()));
            }
        }
        worked
    }

    fn fetch(&mut self, number: u32, fetch: u64, object: RemoteObject) {
        let Some(node) = self.nodes.get(&number) else { return };
        let fetched = node.surroundings.borrow().fetched.clone();
        let reply = move |value| fetched.lock().unwrap_or_else(PoisonError::into_inner).push((fetch, value));
        let pair = (number.min(object.node.0), number.max(object.node.0));
        match self.nodes.get_mut(&object.node.0).filter(|_| self.connections.contains_key(&pair)) {
            Some(other) => other.engine.share(object.object, Box::new(reply)),
            None => reply(Err(sandbar_core::Fault::new(Code::Host, "the node is not connected"))),
        }
    }

    fn inject_faults(&mut self, now: Duration) {
        while self.fault_times.first().is_some_and(|(at, _)| *at <= now) {
            let (_, fault) = self.fault_times.remove(0);
            if self.prints {
                eprintln!("{now:?}: {fault:?}");
            }
            match fault {
                Fault::CrashWorker => {
                    let workers: Vec<_> =
                        self.nodes.values().flat_map(|node| node.surroundings.borrow().workers.clone()).collect();
                    let index = self.random.below(workers.len().max(1) as u32) as usize;
                    if let Some(worker) = workers.get(index) {
                        worker.borrow_mut().crash();
                    }
                }
                Fault::CrashNode => self.crash_node(),
                Fault::Disconnect => {
                    let index = self.random.below(self.connections.len().max(1) as u32) as usize;
                    if let Some(nodes) = self.connections.keys().nth(index).copied() {
                        self.connections.remove(&nodes);
                        self.broken.push((now + Duration::from_millis(50), nodes.0, nodes.1));
                    }
                }
            }
        }
    }

    /// Crashes a random node, unless it is the last one.
    fn crash_node(&mut self) {
        if self.nodes.len() < 2 {
            return;
        }
        let index = self.random.below(self.nodes.len() as u32) as usize;
        let Some(number) = self.nodes.keys().nth(index).copied() else { return };
        let Some(crashed) = self.nodes.remove(&number) else { return };
        let lasting = crashed.jobs.into_iter().filter(|job| job.outcome.is_none() && job.work.name.is_some());
        for job in lasting {
            let at = self.clock.elapsed() + Duration::from_millis(20 + u64::from(self.random.below(100)));
            self.takeovers.push(Takeover { at, work: job.work });
        }
        self.connections.retain(|(a, b), _| *a != number && *b != number);
        self.broken.retain(|(_, a, b)| *a != number && *b != number);
    }

    fn is_quiet(&self) -> bool {
        let is_idle = |node: &Node| {
            let surroundings = node.surroundings.borrow();
            node.leases.has_ended()
                && surroundings.is_idle()
                && surroundings.workers.iter().all(|worker| worker.borrow().is_idle())
        };
        let no_frames = |connection: &Connection| connection.frames.iter().all(VecDeque::is_empty);
        self.broken.is_empty()
            && self.takeovers.is_empty()
            && self.fetches.is_empty()
            && self.loads.is_empty()
            && self.nodes.values().all(is_idle)
            && self.connections.values().all(no_frames)
    }

    /// Checks that the engines have no state of the tasks that root tasks submitted. The root tasks have released all
    /// references.
    fn check_references(&self) -> Result<(), String> {
        for (number, node) in &self.nodes {
            let cx = &node.engine.cx;
            let surroundings = node.surroundings.borrow();
            let waiting = surroundings.workers.iter().filter(|worker| worker.borrow().waits_for_quiescence).count();
            if node.jobs.iter().filter(|job| job.outcome.is_none()).count() > waiting {
                return Err(format!("node {number}: its job neither waits nor has ended: {}", self.describe(*number)));
            }
            let is_result =
                |task: TaskId| node.engine.peers.is_proxy(task) || cx.jobs.values().any(|job| job.first == task);
            for (job, tenant) in cx.scheduler.jobs() {
                let root = node.engine.peers.remote_root(job).unwrap_or(JobRoot { node: NodeId(*number), job });
                let mut jobs = self.nodes.get(&root.node.0).into_iter().flat_map(|node| &node.jobs);
                if let Some(job) = jobs.find(|other| other.id == root.job && tenant != tenant_of(other.work.node)) {
                    return Err(format!("node {number}: a job of node {} is of tenant {tenant}", job.work.node));
                }
                let left = cx.scheduler.objects_of(job).find(|object| object.task.is_none_or(|task| !is_result(task)));
                if let Some(left) = left {
                    let nodes: Vec<String> = self.nodes.keys().map(|number| self.describe(*number)).collect();
                    return Err(format!("node {number}: an object is left: {left:?}; {}", nodes.join("; ")));
                }
            }
            let values = cx.values.usage().values;
            if values > 0 {
                return Err(format!("node {number}: {values} values are left"));
            }
            let [executor, _, borrowed, remote, missed, checkpoints, reservations, _] = node.engine.peers.counts(cx);
            let left = [executor, borrowed, remote, missed, checkpoints, reservations];
            if left != [0; 6] {
                return Err(format!(
                    "node {number} has {left:?} (hosted tasks, borrowed objects, remote values, missed values, \
                     checkpoints, reservations) left"
                ));
            }
        }
        Ok(())
    }

    fn release_roots(&mut self) -> bool {
        let mut released = false;
        for node in self.nodes.values() {
            for worker in &node.surroundings.borrow().workers {
                let mut worker = worker.borrow_mut();
                released |= worker.waits_for_quiescence;
                worker.release_root();
            }
        }
        released
    }

    fn check_results(&self) -> Result<(), String> {
        for (number, node) in &self.nodes {
            for (job, outcome) in node.jobs.iter().filter_map(|job| Some((job, job.outcome.as_ref()?))) {
                let expected = job.work.expected();
                let error = match outcome {
                    Ok(bytes) if decode(bytes) == Some(expected) => continue,
                    Ok(bytes) => {
                        let result = decode(bytes);
                        return Err(format!("node {number}: the result is {result:?}, not {expected}"));
                    }
                    Err(error) => error,
                };
                let codes = [Code::WorkerLost, Code::ObjectLost, Code::ActorDied, Code::StoreFull, Code::Host];
                let is_explained = codes.iter().any(|code| error.contains(&format!("[{}]", code.as_str())));
                if !self.faults.is_any() || !is_explained {
                    return Err(format!("node {number}: the job failed: {error}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that the engines have no state of jobs that have ended.
    fn check_empty(&mut self) -> Result<(), String> {
        for (number, node) in &mut self.nodes {
            for job in node.engine.cx.detached_jobs.clone().into_values() {
                node.engine.cx.step(Event::JobEnded { job });
            }
            node.engine.run_effects();
            let Engine { cx, workers, objects, jobs, deadlines, peers, .. } = &node.engine;
            // The last count, of connected proxy workers, is not zero.
            let [executor, proxies, borrowed, remote, missed, checkpoints, reservations, _] = peers.counts(cx);
            let left = [executor, proxies, borrowed, remote, missed, checkpoints, reservations, objects.len()];
            if left != [0; 8] || cx.values.usage().values > 0 || jobs.has_results() {
                return Err(format!("node {number}: state {left:?} is left after its jobs have ended"));
            }
            if !cx.scheduler.is_empty() || !workers.has_no_actors() || !deadlines.is_empty() {
                let (tasks, actors) = (cx.scheduler.is_empty(), workers.has_no_actors());
                return Err(format!(
                    "node {number}: scheduler empty {tasks}, no actors {actors}, {deadlines:?}, {:?} {:?} {:?}",
                    cx.scheduler.tasks().collect::<Vec<_>>(),
                    cx.scheduler.objects().collect::<Vec<_>>(),
                    cx.scheduler.jobs().collect::<Vec<_>>()
                ));
            }
        }
        Ok(())
    }

    fn time_out_error(&self) -> String {
        let nodes: Vec<String> = self.nodes.keys().map(|number| self.describe(*number)).collect();
        format!("jobs have not ended after {TIME_MAX:?}: {}", nodes.join("; "))
    }

    fn describe(&self, number: u32) -> String {
        let Some(node) = self.nodes.get(&number) else { return String::new() };
        let cx = &node.engine.cx;
        let tasks: Vec<String> = cx
            .scheduler
            .tasks()
            .take(20)
            .map(|view| format!("{} {} {:?} on {:?}", view.id, view.name, view.state, view.worker))
            .collect();
        let counts = node.engine.peers.counts(cx);
        let outcome = node.jobs_have_ended();
        format!("node {number} (ended: {outcome}, peers: {counts:?}): {tasks:?}")
    }
}

/// Returns the programs of all simulations, with and without actors. Messages have their numbers.
fn programs() -> [Arc<Program>; 2] {
    static PROGRAMS: OnceLock<[Arc<Program>; 2]> = OnceLock::new();
    let functions = [
        ("task", TaskKind::Task),
        ("generator", TaskKind::Generator),
        ("Actor.new", TaskKind::Make),
        ("Actor.call", TaskKind::Method),
    ];
    let task = |(name, kind): &(&str, TaskKind)| ProgramTask {
        name: (*name).into(),
        arguments: Vec::new(),
        returns: "u64".to_owned(),
        count: 1,
        kind: *kind,
    };
    let program = |functions: &[(&str, TaskKind)]| {
        let compiled = Arc::new(CompiledComponent::placeholder().unwrap());
        let tasks = functions.iter().map(task).collect();
        Arc::new(Program { compiled, limits: Limits::default(), tasks })
    };
    PROGRAMS.get_or_init(|| [program(&functions), program(&functions[..2])]).clone()
}

/// Returns an engine without workers, of a node with this number of processors.
pub(in crate::engine) fn idle_engine(processors: u32) -> Engine {
    let surroundings = Surroundings::new(Clock::new(), Seed::new(0), SpillFolder::new(std::env::temp_dir(), Some(0)));
    let memory_bytes_max = 1 << 20;
    let options = EngineOptions {
        node: NodeId(1),
        worker_ids: 0..WORKERS_MAX,
        workers: 0,
        on_demand: true,
        resources: ResourceSet { cpus: u64::from(processors) * RESOURCE_UNIT, ..ResourceSet::default() },
        job_limits: LIMITS,
        task_limits: Limits::default(),
        memory_bytes_max,
    };
    let values = ValueStore::new(StoreLimits { memory_bytes_max, files_max: 1000, job_bytes_max: u64::MAX });
    let driver = Box::new(SimDriver(Rc::new(RefCell::new(surroundings))));
    Engine::new(options, values, Arc::new(AtomicU32::new(1)), Arc::default(), driver)
}

/// Returns the tenant of the job of a node.
fn tenant_of(node: u32) -> TenantId {
    TenantId(1000 + u64::from(node))
}
