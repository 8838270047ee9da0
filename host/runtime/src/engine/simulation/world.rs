//! The simulated cluster.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash as _, Hasher as _};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use rustc_hash::FxHasher;
use sandbar_core::{Argument, JobId, JobRun, Limits, NodeId, Seed, TaskKind, TenantId, VALUE_INLINE_BYTES_MAX};
use sandbar_jobs::{JobLog, LogOutput};
use sandbar_sched::{JobLimits, RESOURCE_UNIT, ResourceSet};
use sandbar_store::{SpillFolder, StoreLimits, ValueStore};
use sandbar_worker::CompiledComponent;
use sandbar_worker::program::NodeDoorbell;
use tokio::sync::oneshot;

use super::super::Engine;
use super::super::context::EngineOptions;
use super::super::jobs::{JobOutputs, JobResult, NewJob, RootTask};
use super::super::workers::WORKERS_MAX;
use super::driver::{Clock, SimDriver, Surroundings};
use super::leases::LeaseJob;
use super::liar::Liar;
use super::program::{DEPTH_MAX, WITHOUT_ACTORS, expected};
use super::worker::SimWorker;
use crate::calls::{Program, ProgramTask};
use crate::peer::{CachedResult, PeerEnd, RemoteObject};

/// Maximum simulated time of a run. A run without faults takes much less.
pub(super) const TIME_MAX: Duration = Duration::from_secs(300);
/// Time from the start of a run in which faults happen.
const FAULT_TIME: Duration = Duration::from_millis(400);
/// Slots of a node.
pub(super) const SLOTS: u32 = 2;
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
    /// Whether a node lies to the others, until it is expelled.
    pub(super) has_liar: bool,
}

impl Faults {
    pub(super) fn is_any(&self) -> bool {
        self.worker_crashes + self.node_crashes + self.disconnects + self.disk_fails + self.start_fails > 0
            || self.small_memory
            || self.has_liar
    }
}

pub(super) struct Node {
    pub(super) engine: Engine,
    pub(super) surroundings: Rc<RefCell<Surroundings>>,
    pub(super) jobs: Vec<SimJob>,
    pub(super) leases: LeaseJob,
}

impl Node {
    pub(super) fn jobs_have_ended(&self) -> bool {
        self.jobs.iter().all(|job| job.outcome.is_some())
    }
}

/// A job: what it runs, and its result.
pub(super) struct SimJob {
    pub(super) id: JobId,
    pub(super) work: JobWork,
    pub(super) result: oneshot::Receiver<JobResult>,
    pub(super) outcome: Option<Result<Vec<u8>, String>>,
}

/// What a job runs.
#[derive(Debug, Clone)]
pub(super) struct JobWork {
    /// Name in the cluster, if another node may take it over.
    pub(super) name: Option<Arc<str>>,
    /// The node that it was submitted to.
    pub(super) node: u32,
    pub(super) seed: u64,
    /// Depth and flags of its root task.
    pub(super) number: u8,
}

/// A job that another node takes over.
pub(super) struct Takeover {
    pub(super) at: Duration,
    pub(super) work: JobWork,
}

impl JobWork {
    pub(super) fn expected(&self) -> u64 {
        expected(self.seed, self.number, None)
    }
}

/// A connection of two nodes.
pub(super) struct Connection {
    pub(super) ends: [PeerEnd; 2],
    /// Frames in flight, by direction, with the times at which they arrive.
    pub(super) frames: [VecDeque<(Duration, Vec<u8>)>; 2],
}

pub(super) struct World {
    pub(super) random: Seed,
    pub(super) clock: Clock,
    pub(super) faults: Faults,
    pub(super) fault_times: Vec<(Duration, Fault)>,
    pub(super) nodes: BTreeMap<u32, Node>,
    pub(super) connections: BTreeMap<(u32, u32), Connection>,
    /// Broken connections, and when they are made again.
    pub(super) broken: Vec<(Duration, u32, u32)>,
    /// Fetches under way: when, by which node and its number, and what.
    pub(super) fetches: Vec<(Duration, u32, u64, RemoteObject)>,
    pub(super) loads: Vec<(Duration, u32, NodeId, u32)>,
    pub(super) takeovers: Vec<Takeover>,
    pub(super) next_range: u32,
    pub(super) program: Arc<Program>,
    pub(super) liar: Option<Liar>,
    /// Whether jobs have no actors, and can be taken over.
    pub(super) is_lasting: bool,
    pub(super) doorbell: NodeDoorbell,
    pub(super) log: JobLog,
    pub(super) frame: Vec<u8>,
    /// Hash of all that nodes have sent to each other, and when.
    pub(super) sent: FxHasher,
    pub(super) prints: bool,
    folder: tempfile::TempDir,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    CrashWorker,
    CrashNode,
    Disconnect,
    ExpelLiar,
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
            (u32::from(faults.has_liar), Fault::ExpelLiar),
        ] {
            for _ in 0..count {
                let at = FAULT_TIME.mul_f64(f64::from(random.below(1000)) / 1000.0);
                fault_times.push((at, fault));
            }
        }
        let liar = faults.has_liar.then(|| Liar::new(1 + random.below(faults.nodes)));
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
            liar,
            is_lasting,
            doorbell: NodeDoorbell::new().unwrap(),
            log,
            frame: Vec::new(),
            sent: FxHasher::default(),
            prints,
            folder,
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
        let folder = self.folder.path().join(number.to_string());
        std::fs::create_dir(&folder).unwrap();
        let folder = SpillFolder::new(folder, Some(0));
        let seed = Seed::new(self.random.next_u64());
        let mut surroundings = Surroundings::new(self.clock.clone(), seed, folder);
        surroundings.faults = [self.faults.disk_fails, self.faults.start_fails];
        let surroundings = Rc::new(RefCell::new(surroundings));
        let memory_bytes_max = if self.faults.small_memory { 300_000 } else { 1 << 30 };
        let options = EngineOptions {
            node: NodeId(number),
            worker_ids: number * WORKERS_MAX..(number + 1) * WORKERS_MAX,
            workers: SLOTS,
            resources: ResourceSet { cpus: u64::from(SLOTS) * RESOURCE_UNIT, ..ResourceSet::default() },
            job_limits: LIMITS,
            task_limits: Limits::default(),
            memory_bytes_max,
            task_bytes_max: u64::MAX,
        };
        let limits = StoreLimits { memory_bytes_max, files_max: 1000 };
        let next_job = Arc::new(AtomicU32::new(1));
        let leases_id = JobId(next_job.fetch_add(1, Relaxed));
        let driver = Box::new(SimDriver(surroundings.clone()));
        let mut engine = Engine::new(options, ValueStore::new(limits), next_job, Arc::default(), driver);
        let leases = LeaseJob::start(&mut engine, leases_id, tenant_of(number));
        self.nodes.insert(number, Node { engine, surroundings, jobs: Vec::new(), leases });
        let (seed, depth) = (self.random.next_u64(), 1 + self.random.below(DEPTH_MAX.into()) as u8);
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
            run: JobRun::first(work.name.as_deref().unwrap_or_default()),
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
            let wrong_value = worker.wrong_values.first().filter(|_| !self.faults.has_liar);
            if let Some(error) = worker.errors.first().or(wrong_value) {
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
        resources: ResourceSet { cpus: u64::from(processors) * RESOURCE_UNIT, ..ResourceSet::default() },
        job_limits: LIMITS,
        task_limits: Limits::default(),
        memory_bytes_max,
        task_bytes_max: u64::MAX,
    };
    let values = ValueStore::new(StoreLimits { memory_bytes_max, files_max: 1000 });
    let driver = Box::new(SimDriver(Rc::new(RefCell::new(surroundings))));
    Engine::new(options, values, Arc::new(AtomicU32::new(1)), Arc::default(), driver)
}

/// Returns the tenant of the job of a node.
pub(super) fn tenant_of(node: u32) -> TenantId {
    TenantId(1000 + u64::from(node))
}
