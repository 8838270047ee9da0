//! Fuzz target: scheduler events, as dishonest workers could cause them.

use std::collections::BTreeSet;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use sandbar_core::{
    ActorId, Attempt, Code, Fault, GroupId, GroupStrategy, JobId, NodeId, ObjectId, RetryOn, Strategy, TaskError,
    TaskId, TenantId, WorkerId,
};
use sandbar_sched::{
    Action, ActorSpec, DailyAmounts, Event, Failure, GroupSpec, JobLimits, Options, Outcome, ParentRef,
    PayloadCallbacks, RESOURCE_UNIT, ResourceSet, Scheduler, Submission, SubmissionKind, TenantLimits, TenantShare,
    ValueBytes, WorkerKind,
};

/// Small ranges of ids, so that most events name something that exists, existed or will exist.
const NODES: u32 = 3;
const WORKERS: u32 = 6;
const JOBS: u32 = 3;
/// Maximum id of tasks, objects, actors and groups.
const ID_MAX: u64 = 60;
/// Jobs that exist from the start. Their root tasks have the ids from 1 on.
const INITIAL_JOBS: u64 = 2;
const STEPS_MAX: usize = 2_000;
const LIMITS: JobLimits = JobLimits {
    tasks_max: 12,
    depth_max: 4,
    objects_max: 20,
    lineage_bytes_max: 3000,
    groups_max: 3,
    call_bytes_max: 1 << 20,
};

type TestEvent = Event<u8, u64>;

/// Decodes events, sends them to a scheduler, and then ends all workers and jobs. Returns whether a task other than the root
/// tasks has run.
///
/// # Panics
/// Panics if an action names a worker that does not exist, if the scheduler does not drop each received value exactly once,
/// or if it has any state left.
pub fn events(bytes: &[u8]) -> bool {
    let mut bytes = Unstructured::new(bytes);
    let mut history = History::default();
    history.start();
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        let Ok(event) = history.event(&mut bytes) else { break };
        history.step(event);
    }
    for worker in history.workers.clone() {
        history.step(Event::WorkerLost { worker, started: Vec::new(), culprit: None });
    }
    for job in (0..JOBS).rev() {
        history.step(Event::JobEnded { job: JobId(job) });
    }
    assert!(history.sched.is_empty(), "the scheduler is not empty");
    assert!(history.borrowed.is_empty(), "borrowed objects are not released: {:?}", history.borrowed);
    assert!(history.values.is_empty(), "values are not dropped: {:?}", history.values);
    history.has_run
}

struct History {
    sched: Scheduler<u8, u64>,
    actions: Vec<Action<u64>>,
    workers: BTreeSet<WorkerId>,
    /// Values that the scheduler has received and not dropped.
    values: BTreeSet<u64>,
    next_value: u64,
    /// Borrowed objects in use.
    borrowed: BTreeSet<ObjectId>,
    /// Reservations requested from nodes.
    reservations: BTreeSet<(GroupId, NodeId, Attempt)>,
    /// Assigned attempts with their workers: many events name one of these.
    assigned: Vec<(TaskId, Attempt, WorkerId)>,
    /// Whether a task other than the root tasks has run.
    has_run: bool,
    now_nanos: u64,
}

impl Default for History {
    fn default() -> History {
        let callbacks = PayloadCallbacks {
            can_be_lost: |value| value % 4 > 0,
            location: |_| None,
            call_bytes: |_| 100,
            value_bytes: |value| ValueBytes { memory: value % 1000, stored: value % 3 * 1000 },
        };
        let options = Options { memory_bytes_max: 100_000, ..Options::default() };
        History {
            sched: Scheduler::with_lineage(options, callbacks),
            actions: Vec::new(),
            workers: BTreeSet::new(),
            values: BTreeSet::new(),
            next_value: 0,
            borrowed: BTreeSet::new(),
            reservations: BTreeSet::new(),
            assigned: Vec::new(),
            has_run: false,
            now_nanos: 0,
        }
    }
}

impl History {
    /// Starts a cluster with jobs and workers.
    fn start(&mut self) {
        let resources = ResourceSet { cpus: 2 * RESOURCE_UNIT, gpus: RESOURCE_UNIT, ..ResourceSet::default() };
        self.step(Event::NodeJoined { node: NodeId(0), resources, remote: false, workers: 2 });
        let limits = LIMITS;
        for number in 0..INITIAL_JOBS as u32 {
            self.step(Event::JobStarted { job: JobId(number), tenant: tenant_of(JobId(number)), limits });
        }
        for (number, kind) in (1..).zip([
            WorkerKind::Driver(JobId(0)),
            WorkerKind::Driver(JobId(1)),
            WorkerKind::Tasks(TenantId(0)),
            WorkerKind::Tasks(TenantId(1)),
            WorkerKind::Actors(TenantId(0)),
        ]) {
            self.step(Event::WorkerReady { worker: WorkerId(number), node: NodeId(0), kind });
        }
        for number in 0..INITIAL_JOBS as u32 {
            let id = TaskId(u64::from(number) + 1);
            let task = Submission {
                id,
                job: JobId(number),
                parent: None,
                remote_depth: 0,
                name: "main".into(),
                returns: 1,
                demand: ResourceSet::default(),
                strategy: Strategy::Default,
                priority: 0,
                retries_max: number,
                retry_on: RetryOn::System,
                dependencies: Vec::new(),
                refs: Vec::new(),
                kind: SubmissionKind::Function,
                call: 0,
            };
            self.step(Event::Submitted { task });
        }
    }

    fn step(&mut self, event: TestEvent) {
        match &event {
            Event::WorkerReady { worker, .. } => drop(self.workers.insert(*worker)),
            Event::WorkerLost { worker, .. } => drop(self.workers.remove(worker)),
            _ => {}
        }
        let borrowed = if let Event::Borrowed { object, .. } = &event { Some(*object) } else { None };
        let mut actions = std::mem::take(&mut self.actions);
        self.sched.step(event, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Run { worker, task, attempt } => {
                    assert!(self.workers.contains(&worker) && self.sched.call(task).is_some());
                    // The first assignments are those of the root tasks.
                    self.has_run |= self.assigned.len() as u64 >= INITIAL_JOBS;
                    self.assigned.push((task, attempt, worker));
                }
                Action::Recall { worker }
                | Action::Interrupt { worker, .. }
                | Action::Withdraw { worker, .. }
                | Action::Refuse { worker, .. } => assert!(self.workers.contains(&worker)),
                Action::Credit { worker, .. } => assert!(self.workers.contains(&worker)),
                Action::Deliver { worker, object, .. } | Action::DeliverItem { worker, object, .. } => {
                    assert!(self.workers.contains(&worker) && self.sched.value(object).is_some());
                }
                Action::Drop { value, .. } => assert!(self.values.remove(&value), "value {value} is dropped twice"),
                Action::ReleaseBorrow { object } => {
                    assert!(self.borrowed.remove(&object), "object {object} is not borrowed, or is released twice");
                }
                Action::FetchBorrowed { object } => {
                    assert!(self.borrowed.contains(&object), "object {object} is not borrowed")
                }
                Action::ReserveBundles { group, node, attempt, .. } => {
                    self.reservations.insert((group, node, attempt));
                }
                Action::ReleaseBundles { group, node, attempt } => {
                    assert!(
                        self.reservations.remove(&(group, node, attempt)),
                        "node {node} has no such reservation, or it is released twice"
                    );
                }
                Action::StartWorker { .. } | Action::TaskFinished { .. } | Action::JobDone { .. } => {}
            }
        }
        self.actions = actions;
        self.borrowed.extend(borrowed.filter(|object| self.sched.is_borrowed(*object)));
    }

    fn event(&mut self, bytes: &mut Unstructured<'_>) -> Result<TestEvent> {
        let (task, assigned_attempt, worker) = self.task(bytes)?;
        let object = ObjectId(bytes.int_in_range(1..=ID_MAX)?);
        // Events that end many tasks are rare.
        let is_rare = bytes.ratio(1, 24)?;
        let is_first = task.0 <= INITIAL_JOBS;
        Ok(match bytes.int_in_range(if is_rare { 0..=6 } else { 7..=48 })? {
            11..=13 | 18 if is_first && !bytes.ratio(1, 64)? => Event::Submitted { task: self.submission(bytes)? },
            0 => Event::NodeJoined {
                node: node(bytes)?,
                resources: demand(bytes, 4)?,
                remote: bytes.arbitrary()?,
                workers: bytes.int_in_range(0..=3)?,
            },
            1 if bytes.ratio(1, 8)? => Event::NodeDraining { node: node(bytes)? },
            1 => Event::NodeLost { node: node(bytes)? },
            // The runtime chooses worker ids, and uses each once.
            2 | 3 if !self.workers.contains(&worker) => {
                let job = job(bytes)?;
                let kinds = [
                    WorkerKind::Tasks(tenant_of(job)),
                    WorkerKind::RemoteTasks,
                    WorkerKind::Driver(job),
                    WorkerKind::Actors(tenant_of(job)),
                    WorkerKind::Actor(ActorId(task.0)),
                    WorkerKind::PeerProxy,
                ];
                Event::WorkerReady { worker, node: node(bytes)?, kind: *bytes.choose(&kinds)? }
            }
            4 => {
                let started = if bytes.arbitrary()? { vec![task] } else { Vec::new() };
                Event::WorkerLost { worker, started, culprit: bytes.arbitrary::<bool>()?.then_some(task) }
            }
            5 if bytes.ratio(1, 4)? => {
                let share = TenantShare { weight: bytes.arbitrary()?, reserved_cpus: bytes.arbitrary()? };
                let limits = TenantLimits {
                    tasks_max: bytes.arbitrary::<u8>()?.into(),
                    actors_max: bytes.arbitrary::<u8>()?.into(),
                    memory_bytes_max: bytes.arbitrary::<u16>()?.into(),
                    object_bytes_max: bytes.arbitrary::<u16>()?.into(),
                    daily_max: daily(bytes)?,
                };
                Event::TenantChanged { tenant: tenant_of(job(bytes)?), share, limits }
            }
            5 if bytes.ratio(1, 4)? => Event::TenantCharged { tenant: tenant_of(job(bytes)?), used: daily(bytes)? },
            5 if bytes.ratio(1, 8)? => Event::DayStarted,
            5 => {
                let job = job(bytes)?;
                Event::JobStarted { job, tenant: tenant_of(job), limits: LIMITS }
            }
            // The job of detached actors does not end.
            6 => Event::JobEnded { job: JobId(bytes.int_in_range(1..=JOBS - 1)?) },
            7 => Event::FinishedInline {
                task: self.submission(bytes)?,
                worker,
                outcome: self.outcome(bytes)?,
                nanos: bytes.arbitrary()?,
            },
            8 => Event::StartedInline { task: self.submission(bytes)?, worker },
            9 => Event::Put { object, task, worker, value: self.value(), refs: objects(bytes)? },
            10 => Event::PutFailed { object, task, worker, fault: Fault::new(Code::MemoryLimit, "the store is full") },
            11..=13 => {
                let outcome = self.outcome(bytes)?;
                Event::AttemptFinished { task, attempt: assigned_attempt, worker, outcome, nanos: bytes.arbitrary()? }
            }
            14 => Event::Blocked { task, worker, blocked: bytes.arbitrary()? },
            15 => Event::ObjectRequested { object, worker, task },
            16 => Event::ReferenceAdded { object, worker, task },
            17 => Event::ReferencesReleased { object, worker, count: bytes.arbitrary()? },
            18 => Event::Cancelled { task, recursive: bytes.arbitrary()? },
            19 => Event::Recalled { worker, tasks: vec![task, TaskId(object.0)] },
            20 => Event::ObjectLost { object, waiters: if bytes.arbitrary()? { vec![worker] } else { Vec::new() } },
            21 => Event::Killed { actor: ActorId(object.0), restart: bytes.arbitrary()? },
            23 | 24 => {
                let (attempt, index, value) = (assigned_attempt, bytes.int_in_range(0..=3)?, self.value());
                Event::Yielded { task, attempt, worker, index, object, value: Ok(value), refs: objects(bytes)? }
            }
            25 => {
                let stream = ObjectId(if bytes.arbitrary()? { task.0 } else { object.0 });
                Event::ItemsConsumed { stream, worker, consumed: bytes.int_in_range(0..=4)? }
            }
            22 => Event::Checkpointed { actor: ActorId(task.0), attempt: assigned_attempt, worker, object },
            26 | 27 => {
                let (group, value) = (GroupId(object.0), self.value());
                Event::GroupCreated { group, task, worker, spec: group_spec(bytes)?, value }
            }
            28 => Event::GroupRemoved { group: GroupId(object.0), task, worker },
            29 | 30 => Event::Promised { object, task, worker },
            31 if bytes.arbitrary()? => Event::Fulfilled { object, value: Ok(self.value()) },
            31 => Event::Fulfilled { object, value: Err(Fault::new(Code::ObjectLost, "the object is lost")) },
            32 => Event::Borrowed { object, task, worker },
            33 if bytes.arbitrary()? => {
                Event::BorrowResolved { object, value: Ok(self.value()), refs: objects(bytes)? }
            }
            33 => {
                let error = TaskError { fault: Fault::new(Code::ObjectLost, "the object is lost"), chain: Vec::new() };
                Event::BorrowResolved { object, value: Err(Arc::new(error)), refs: Vec::new() }
            }
            34 => Event::ProxyTaskStarted { task: Submission { parent: None, ..self.submission(bytes)? }, worker },
            36 => Event::NodeLoad { node: node(bytes)?, external_usage: demand(bytes, 8)? },
            37..=40 if let Some((group, node, attempt)) = self.reservations.last() => {
                let (group, node, attempt) = (*group, *node, *attempt);
                Event::ReserveReply { group, node, attempt, granted: bytes.ratio(3, 4)? }
            }
            37 => {
                let (group, attempt) = (GroupId(object.0), attempt(bytes)?);
                Event::ReserveReply { group, node: node(bytes)?, attempt, granted: bytes.arbitrary()? }
            }
            35 => Event::ActorBorrowed { actor: ActorId(object.0), worker },
            41 => {
                self.now_nanos = self.now_nanos.saturating_add(bytes.arbitrary()?);
                self.sched.set_time(self.now_nanos);
                Event::Tick
            }
            _ => Event::Submitted { task: self.submission(bytes)? },
        })
    }

    fn value(&mut self) -> u64 {
        self.next_value += 1;
        self.values.insert(self.next_value);
        self.next_value
    }

    fn outcome(&mut self, bytes: &mut Unstructured<'_>) -> Result<Outcome<u64>> {
        if bytes.ratio(1, 4)? {
            let error = TaskError { fault: Fault::new(Code::Trap, "the guest trapped"), chain: Vec::new() };
            return Ok(Outcome::Failed(Failure { error: Arc::new(error), system: bytes.arbitrary()? }));
        }
        let count = *bytes.choose(&[1, 1, 1, 1, 2, 0])?;
        let values = (0..count).map(|_| Ok((self.value(), objects(bytes)?)));
        Ok(Outcome::Succeeded(values.collect::<Result<_>>()?))
    }

    /// Returns an attempt of a task and a worker: in most cases one of the last assigned attempts, with its worker.
    fn task(&self, bytes: &mut Unstructured<'_>) -> Result<(TaskId, Attempt, WorkerId)> {
        if !self.assigned.is_empty() && bytes.ratio(3, 4)? {
            let last = self.assigned.len().saturating_sub(8);
            return bytes.choose(&self.assigned[last..]).copied();
        }
        let (task, worker) = (bytes.int_in_range(1..=ID_MAX)?, bytes.int_in_range(1..=WORKERS)?);
        Ok((TaskId(task), attempt(bytes)?, WorkerId(worker)))
    }

    fn submission(&self, bytes: &mut Unstructured<'_>) -> Result<Submission<u8>> {
        let id = TaskId(bytes.int_in_range(1..=ID_MAX)?);
        let parent = match bytes.ratio(1, 8)? {
            true => None,
            false => {
                let (task, attempt, worker) = self.task(bytes)?;
                Some(ParentRef { task, attempt, worker })
            }
        };
        let parent_job = parent.and_then(|parent| self.sched.job_of(parent.task)).unwrap_or(JobId(0));
        let name = bytes.ratio(1, 4)?.then(|| "named".into());
        // The embedder chooses a job of the same tenant.
        let is_same_tenant = tenant_of(parent_job) == tenant_of(JobId(0));
        let detached = (bytes.ratio(1, 4)? && is_same_tenant).then_some(JobId(0));
        let spec = ActorSpec { name, detached, restarts_max: bytes.int_in_range(0..=2)?, calls_max: 3 };
        let actor = ActorId(bytes.int_in_range(1..=ID_MAX)?);
        let generator = SubmissionKind::Generator(bytes.int_in_range(0..=2)?);
        let kinds = [
            SubmissionKind::Function,
            SubmissionKind::Function,
            generator,
            SubmissionKind::ActorCreation(Box::new(spec)),
            SubmissionKind::Method(actor),
        ];
        Ok(Submission {
            id,
            job: if bytes.ratio(1, 8)? { job(bytes)? } else { parent_job },
            parent,
            remote_depth: 0,
            name: "f".into(),
            returns: *bytes.choose(&[1, 1, 1, 2, 0, u32::MAX])?,
            demand: demand(bytes, 1)?,
            strategy: strategy(bytes)?,
            priority: *bytes.choose(&[0, 0, 1, i32::MIN])?,
            retries_max: bytes.int_in_range(0..=2)?,
            retry_on: *bytes.choose(&[RetryOn::System, RetryOn::All, Code::Trap.into(), [].into()])?,
            dependencies: objects(bytes)?,
            refs: objects(bytes)?,
            kind: bytes.choose(&kinds)?.clone(),
            call: 0,
        })
    }
}

fn node(bytes: &mut Unstructured<'_>) -> Result<NodeId> {
    Ok(NodeId(bytes.int_in_range(0..=NODES - 1)?))
}

fn daily(bytes: &mut Unstructured<'_>) -> Result<DailyAmounts> {
    let amount: u8 = bytes.arbitrary()?;
    Ok(DailyAmounts { cpu_nanos: amount.into(), log_bytes: amount.into(), ..DailyAmounts::MAX })
}

fn job(bytes: &mut Unstructured<'_>) -> Result<JobId> {
    Ok(JobId(bytes.int_in_range(0..=JOBS - 1)?))
}

/// Returns the tenant of a job: there are two.
fn tenant_of(job: JobId) -> TenantId {
    TenantId(u64::from(job.0 % 2))
}

fn attempt(bytes: &mut Unstructured<'_>) -> Result<Attempt> {
    Ok(Attempt(*bytes.choose(&[0, 0, 0, 1, 2])?))
}

fn objects(bytes: &mut Unstructured<'_>) -> Result<Vec<ObjectId>> {
    let count = *bytes.choose(&[0, 0, 0, 1, 2])?;
    (0..count).map(|_| Ok(ObjectId(bytes.int_in_range(1..=ID_MAX)?))).collect()
}

fn strategy(bytes: &mut Unstructured<'_>) -> Result<Strategy> {
    let group = GroupId(bytes.int_in_range(1..=ID_MAX)?);
    let in_group = Strategy::Group { group, bundle: *bytes.choose(&[None, Some(0), Some(1)])? };
    let on_node = Strategy::Node { node: node(bytes)?, soft: bytes.arbitrary()? };
    Ok(*bytes.choose(&[Strategy::Default, Strategy::Default, Strategy::Spread, on_node, in_group, in_group])?)
}

fn group_spec(bytes: &mut Unstructured<'_>) -> Result<GroupSpec> {
    use GroupStrategy::{Pack, Spread, StrictPack, StrictSpread};
    let bundles = (0..bytes.int_in_range(0..=3)?).map(|_| demand(bytes, 1)).collect::<Result<_>>()?;
    Ok(GroupSpec {
        local_only: bytes.ratio(1, 4)?,
        name: None,
        strategy: *bytes.choose(&[Pack, Spread, StrictPack, StrictSpread])?,
        bundles,
    })
}

/// Returns a demand of at most `cpus_max` CPUs and one GPU.
fn demand(bytes: &mut Unstructured<'_>, cpus_max: u64) -> Result<ResourceSet> {
    let (cpus, gpus) =
        (bytes.int_in_range(0..=2 * cpus_max)? * RESOURCE_UNIT / 2, *bytes.choose(&[0, 0, 0, 1])? * RESOURCE_UNIT);
    Ok(ResourceSet { cpus, gpus, ..ResourceSet::default() })
}
