//! Fuzz harness: feeds arbitrary messages of workers and peers to an engine. Its workers and peers are in this process.

mod generate;

use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sandbar_core::{Fault, JobId, Limits, NodeId, ObjectId, TaskError, TaskKind, TenantId, WorkerId};
use sandbar_sched::{Event, JobLimits, RESOURCE_UNIT, ResourceSet, WorkerKind};
use sandbar_store::{Disk, DiskCompletion, DiskTask, SealedFile, SpillFolder, StoreLimits, ValueStore};
use sandbar_worker::CompiledComponent;
use sandbar_worker::program::{NodeDoorbell, monotonic_nanos};
use tokio::sync::oneshot;

pub use self::generate::generate_peer_message;
use self::generate::{PEER_SLOTS, PEERS};
use super::{Driver, Engine, EngineOptions, JobOutputs, JobResult, NewJob, RootTask, WORKERS_MAX};
use crate::client::{ClientLine, ClientLink, ClientListener, ObjectValue};
use crate::file_reader::{ReadRequest, ReadResult};
use crate::link::BoxedWorkerLink;
use crate::peer::{Callback, NewPeer, PeerLine, RemoteObject, TenantComponent};
use crate::{Program, ProgramTask};
use sandbar_jobs::{JobLog, JobQuery, LogOutput};

/// Bytes of a value's file.
const FILE_BYTES: usize = 9000;
const MEMORY_BYTES_MAX: u64 = 1 << 30;
const FILES_MAX: usize = 1000;
const JOB_LIMITS: JobLimits = JobLimits {
    tasks_max: 40,
    depth_max: 5,
    objects_max: 80,
    lineage_bytes_max: 10_000,
    groups_max: 4,
    call_bytes_max: 1 << 20,
};
/// Kinds of the workers, by sender. The drivers are the clients of two jobs.
const WORKER_KINDS: [WorkerKind; 4] = [
    WorkerKind::Driver(JobId(1)),
    WorkerKind::Driver(JobId(2)),
    WorkerKind::Tasks(TenantId::DEFAULT),
    WorkerKind::Actors(TenantId::DEFAULT),
];

/// A message of a worker or a peer.
#[derive(Debug, Clone, Copy)]
pub struct FuzzInput<'a> {
    /// Sender: the clients of two jobs (0 and 1), a worker for tasks (2) and one for actors (3), two peers (4 and 5). Their
    /// worker ids start at 1. The root task of client `n` has the id `n`.
    pub sender: u8,
    /// Whether the message comes with the file of a value.
    pub with_file: bool,
    /// A [`sandbar_worker::program::WorkerMessage`], the result of [`generate_peer_message`], or arbitrary bytes.
    pub message: &'a [u8],
    /// Milliseconds that pass before the message.
    pub delay_ms: u32,
}

/// Sends an engine the messages, while it runs two jobs of a program with tasks of these kinds. Returns whether all messages
/// are valid: the engine disconnects the sender of an invalid one.
///
/// # Panics
/// Panics if the engine has any state left after all jobs and workers have ended.
pub fn run_fuzz_inputs<'a>(kinds: &[TaskKind], inputs: impl IntoIterator<Item = FuzzInput<'a>>) -> bool {
    let Some(mut harness) = Harness::new(kinds) else { return false };
    let mut is_valid = true;
    for input in inputs {
        is_valid &= harness.run_input(&input);
    }
    harness.finish();
    is_valid
}

struct Harness {
    engine: Engine,
    /// Workers of [`WORKER_KINDS`].
    workers: Vec<(WorkerId, Arc<ClientLine>)>,
    /// The peers' ends of their lines, from their first message on.
    peers: [Option<PeerLine>; 2],
    /// Results of the clients' jobs.
    results: Vec<oneshot::Receiver<JobResult>>,
    clock: Arc<Mutex<Instant>>,
    doorbell: NodeDoorbell,
    frame: Vec<u8>,
    log: JobLog,
}

impl Harness {
    /// Returns `None` if the operating system runs out of files, threads or memory.
    fn new(kinds: &[TaskKind]) -> Option<Harness> {
        Harness::with_log(kinds, LogOutput::Callback(Box::new(|_| {})))
    }

    /// Like [`Harness::new`], with an output for the lines of both jobs.
    fn with_log(kinds: &[TaskKind], log: LogOutput) -> Option<Harness> {
        let resources = ResourceSet { cpus: 4 * RESOURCE_UNIT, gpus: RESOURCE_UNIT, ..ResourceSet::default() };
        let doorbell = NodeDoorbell::new().ok()?;
        let options = EngineOptions {
            node: NodeId(0),
            worker_ids: 0..WORKERS_MAX,
            workers: 0,
            resources,
            job_limits: JOB_LIMITS,
            task_limits: Limits::default(),
            memory_bytes_max: MEMORY_BYTES_MAX,
            task_bytes_max: MEMORY_BYTES_MAX,
        };
        let limits = StoreLimits { memory_bytes_max: MEMORY_BYTES_MAX, files_max: FILES_MAX };
        let ring = doorbell.clone();
        let disk = Disk::start(SpillFolder::new(std::env::temp_dir(), None), move || ring.ring()).ok()?;
        let clock = Arc::new(Mutex::new(Instant::now()));
        let driver = Box::new(FuzzDriver { disk, clock: clock.clone() });
        let next_job = Arc::new(AtomicU32::new(1));
        let mut engine = Engine::new(options, ValueStore::new(limits), next_job, Arc::default(), driver);
        let program = Arc::new(program_with_tasks(kinds)?);
        let log = JobLog::start(None, log, TenantId::DEFAULT).ok()?;
        let (mut workers, mut results) = (Vec::new(), Vec::new());
        for kind in WORKER_KINDS {
            let (line, link) = connect_client(&doorbell);
            let id = if let WorkerKind::Driver(job) = kind {
                let (program, log) = (program.clone(), log.sender());
                let outputs = JobOutputs { progress: Arc::default(), log, finished: Arc::new(OnceLock::new()) };
                let root_task = RootTask::Client { name: "client".to_owned(), link };
                let (done, result) = oneshot::channel();
                let (tenant, run, files) = Default::default();
                let new = NewJob { tenant, run, program, root_task, seed: 7, lasting: None, files, outputs };
                engine.start_job(job, new, done);
                results.push(result);
                WorkerId(job.0)
            } else {
                engine.workers.add_client(&mut engine.cx, kind, link)?
            };
            workers.push((id, line));
        }
        Some(Harness { engine, workers, peers: [None, None], results, clock, doorbell, frame: Vec::new(), log })
    }

    /// Sends a message. Returns whether it is valid.
    fn run_input(&mut self, input: &FuzzInput<'_>) -> bool {
        if input.delay_ms > 0 {
            *self.clock.lock().unwrap_or_else(PoisonError::into_inner) += Duration::from_millis(input.delay_ms.into());
            self.engine.tick();
        }
        let at = usize::from(input.sender) % (WORKER_KINDS.len() + PEERS.len());
        if let Some(peer) = at.checked_sub(WORKER_KINDS.len()) {
            return self.run_peer_input(peer, input.message);
        }
        if !self.engine.cx.workers.contains_key(&self.workers[at].0) {
            if let WorkerKind::Driver(_) = WORKER_KINDS[at] {
                // The job has ended: nothing receives the client's messages.
                return true;
            }
            // Replaces the worker.
            let (line, link) = connect_client(&self.doorbell);
            let Some(worker) = self.engine.workers.add_client(&mut self.engine.cx, WORKER_KINDS[at], link) else {
                return true;
            };
            self.workers[at] = (worker, line);
        }
        let (id, line) = &self.workers[at];
        let file = input.with_file.then(|| SealedFile::new(&[7; FILE_BYTES]).ok()).flatten();
        line.send_bytes(input.message.to_vec(), file);
        self.engine.poll(&mut self.frame);
        // A valid message may end a job, and with it the client.
        let has_ended = |result: JobResult| result.counters.lost_workers == 0;
        self.engine.cx.workers.contains_key(id)
            || self.results.get_mut(at).is_some_and(|result| result.try_recv().is_ok_and(has_ended))
    }

    /// Sends a message of a peer, which reconnects first if the engine has disconnected it. Returns whether the message is
    /// valid.
    fn run_peer_input(&mut self, at: usize, message: &[u8]) -> bool {
        let node = PEERS[at];
        let connected = self.peers[at].take().filter(|line| !line.is_closed());
        let mut line = connected.unwrap_or_else(|| {
            let doorbell = self.doorbell.clone();
            let (local, mut remote) = PeerLine::pair(doorbell.clone(), doorbell);
            let resources = ResourceSet { cpus: u64::from(PEER_SLOTS) * RESOURCE_UNIT, ..ResourceSet::default() };
            self.engine.join(NewPeer { node, resources, slots: PEER_SLOTS, line: local });
            remote.send(generate::program_message());
            remote
        });
        line.send(message.to_vec());
        self.engine.poll(&mut self.frame);
        while line.receive().is_some() {}
        let is_valid = !line.is_closed();
        self.peers[at] = is_valid.then_some(line);
        is_valid
    }

    /// Inspects the jobs, ends all jobs, workers and peers, and checks that the engine has no state left.
    fn finish(mut self) {
        let limit = 100;
        let queries = [
            JobQuery::Tasks { limit, state: None, name: None },
            JobQuery::Summary,
            JobQuery::Actors { limit },
            JobQuery::Objects { limit },
            JobQuery::Workers { limit },
            JobQuery::Groups { limit },
            JobQuery::Nodes { limit },
            JobQuery::Memory,
        ];
        for query in queries {
            [1, 2].into_iter().for_each(|job| drop(self.engine.inspect(JobId(job), query.clone())));
        }
        self.peers = [None, None];
        self.engine.poll(&mut self.frame);
        for (worker, _) in &self.workers {
            self.engine.lose_worker(*worker, "the test ends", None);
        }
        [1, 2].into_iter().for_each(|job| self.engine.stop_job(JobId(job)));
        for job in self.engine.cx.detached_jobs.clone().into_values() {
            self.engine.cx.step(Event::JobEnded { job });
        }
        self.engine.tick();
        let Engine { cx, workers, objects, jobs, deadlines, peers, .. } = &self.engine;
        assert!(cx.scheduler.is_empty(), "the scheduler has tasks or objects of ended jobs");
        assert_eq!(cx.values.usage().values, 0, "the store has values of ended jobs");
        assert!(!jobs.has_results() && workers.has_no_actors(), "results or workers of actors are left");
        assert!(deadlines.is_empty(), "deadlines are left: {deadlines:?}");
        assert_eq!(objects.len(), 0, "deliveries are left");
        assert_eq!(peers.counts(cx), [0; 8], "state of disconnected nodes is left");
        drop(self.engine);
        self.log.close();
    }
}

/// Returns a program with tasks of these kinds. Its code never runs.
fn program_with_tasks(kinds: &[TaskKind]) -> Option<Program> {
    let task = |kind: &TaskKind| {
        let name = match kind {
            TaskKind::Task => "task",
            TaskKind::Generator => "generator",
            TaskKind::Make => "Actor.new",
            TaskKind::Method => "Actor.method",
            TaskKind::Shared => "Actor.shared",
            TaskKind::Checkpoint => "Actor.checkpoint",
            TaskKind::Restore => "Actor.restore",
        };
        ProgramTask { name: name.into(), arguments: Vec::new(), returns: "i64".to_owned(), count: 1, kind: *kind }
    };
    let tasks = kinds.iter().map(task).collect();
    Some(Program { compiled: Arc::new(CompiledComponent::placeholder().ok()?), limits: Limits::default(), tasks })
}

fn connect_client(doorbell: &NodeDoorbell) -> (Arc<ClientLine>, ClientLink) {
    let line = ClientLine::new(doorbell.clone());
    (line.clone(), ClientLink::new(line, Arc::new(IgnoringListener), oneshot::channel().0))
}

/// Driver with the harness's clock. It starts no workers.
struct FuzzDriver {
    disk: Disk,
    clock: Arc<Mutex<Instant>>,
}

impl Driver for FuzzDriver {
    fn now(&self) -> Instant {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn monotonic_nanos(&self) -> u64 {
        monotonic_nanos()
    }

    fn start_worker(&mut self, _: WorkerId, _: WorkerKind, _: TenantId) -> io::Result<BoxedWorkerLink> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn has_peers(&self) -> bool {
        false
    }

    fn request_worker_ids(&mut self) {}

    // Fetched values never arrive.
    fn fetch(&mut self, _: u64, _: RemoteObject) {}

    fn on_fetched(&self, _: u64) -> Callback<Result<SealedFile, Fault>> {
        Box::new(|_| {})
    }

    fn load(&mut self, _: NodeId, _: u32, _: TenantComponent) {}

    // Jobs of the harness have no files.
    fn read_file(&mut self, _: ReadRequest) {}

    fn next_file(&mut self) -> Option<ReadResult> {
        None
    }

    fn has_files(&self) -> bool {
        false
    }

    fn submit_disk_task(&mut self, task: DiskTask) {
        self.disk.submit(task);
    }

    fn next_disk_completion(&mut self) -> Option<DiskCompletion> {
        self.disk.next_completion()
    }
}

/// Listener that drops all values.
struct IgnoringListener;

impl ClientListener for IgnoringListener {
    fn delivered(&self, _: ObjectId, _: Result<ObjectValue, Arc<TaskError>>, _: Vec<ObjectId>) {}

    fn item(&self, _: ObjectId, _: ObjectId, _: Option<Result<ObjectValue, Arc<TaskError>>>, _: Vec<ObjectId>) {}

    fn flush(&self) {}

    fn ended(&self) {}
}

#[cfg(test)]
mod tests {
    use sandbar_core::{Argument, GroupRequest, RequestOptions, TaskId, TaskRequest};
    use sandbar_worker::program::{AttemptUsage, SentValue, SubmitTask, WorkerMessage};

    use super::*;

    const TASKS: u8 = 2;

    fn send(harness: &mut Harness, sender: u8, message: &WorkerMessage<'_>) {
        let bytes = postcard::to_stdvec(message).unwrap();
        let input = FuzzInput { sender, with_file: false, message: &bytes, delay_ms: 0 };
        assert!(harness.run_input(&input), "{message:?}");
    }

    fn submit(harness: &mut Harness, sender: u8, task: u64, parent: u64, request: &TaskRequest<'_>) {
        let request = postcard::to_stdvec(request).unwrap();
        let submit = SubmitTask { task, parent, attempt: 0, function: 0, returns: 1, seed: 7, request: &request };
        send(harness, sender, &WorkerMessage::Submit(submit));
    }

    /// One client submits a task, the other a task of the same id with a time limit.
    #[test]
    fn a_client_cannot_set_the_time_limit_of_another_clients_task() {
        let mut harness = Harness::new(&[TaskKind::Task]).unwrap();
        let task = 1 << 40;
        for (sender, timeout_ms) in [(0, None), (1, Some(1))] {
            let options = Some(Box::new(RequestOptions { timeout_ms, ..RequestOptions::default() }));
            submit(&mut harness, sender, task, sender.into(), &TaskRequest { options, ..TaskRequest::default() });
        }
        assert_eq!(harness.engine.cx.scheduler.job_of(TaskId(task)), Some(JobId(1)));
        assert!(harness.engine.deadlines.is_empty());
        harness.finish();
    }

    /// A client names the other client's tasks in messages of each kind that changes or reports something.
    #[test]
    fn a_worker_speaks_for_its_own_tasks_only() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let logged = lines.clone();
        let output = LogOutput::Callback(Box::new(move |line| {
            // The node logs too.
            if line.task.is_some() {
                logged.lock().unwrap_or_else(PoisonError::into_inner).push(line.line.clone());
            }
        }));
        let mut harness = Harness::with_log(&[TaskKind::Task], output).unwrap();
        let (root, task, unused) = (0, 1 << 40, 2 << 40);
        let options = Some(Box::new(RequestOptions { timeout_ms: Some(60_000), ..RequestOptions::default() }));
        submit(&mut harness, 0, task, root, &TaskRequest { options, ..TaskRequest::default() });
        send(&mut harness, 0, &WorkerMessage::Log(root, 1, "its own"));
        let state = |harness: &Harness| harness.engine.cx.scheduler.task(TaskId(task)).map(|view| view.state);
        let before = state(&harness).expect("a task");

        let request = postcard::to_stdvec(&TaskRequest::default()).unwrap();
        let submission =
            |task, parent| SubmitTask { task, parent, attempt: 0, function: 0, returns: 1, seed: 7, request: &request };
        let (usage, value) = (AttemptUsage::default(), SentValue::Inline(b"forged"));
        let returned = || Ok(vec![(value, Vec::new())]);
        let forged = [
            WorkerMessage::StartedInline(submission(task, 1)),
            WorkerMessage::StartedInline(submission(unused, root)),
            WorkerMessage::Submit(submission(unused, root)),
            WorkerMessage::Log(root, 1, "forged"),
            WorkerMessage::Log(task, 3, "forged"),
            WorkerMessage::Cancel(task, root, true),
            WorkerMessage::Put { object: unused, task: root, value, refs: Vec::new() },
            WorkerMessage::Blocked(task, true),
            WorkerMessage::FinishedInline { submit: submission(task, 1), returned: returned(), usage },
            WorkerMessage::Finished { task, attempt: 0, returned: returned(), usage, lost: false, saved: None },
            WorkerMessage::Log(task, 3, "forged at the end"),
        ];
        for message in &forged {
            send(&mut harness, 1, message);
            assert_eq!(state(&harness), Some(before), "{message:?}");
            assert!(!harness.engine.deadlines.is_empty(), "the task has no time limit any more: {message:?}");
            assert!(harness.engine.cx.scheduler.object(ObjectId(unused)).is_none(), "{message:?}");
        }
        harness.finish();
        assert_eq!(*lines.lock().unwrap_or_else(PoisonError::into_inner), ["its own"]);
    }

    /// Sends the messages of `send_all`. Checks that this object fails with an error that contains `text`, and that the
    /// other job continues.
    fn check(text: &str, object: u64, send_all: impl FnOnce(&mut Harness)) {
        let mut harness = Harness::new(&[TaskKind::Task]).unwrap();
        send_all(&mut harness);
        let error = match harness.engine.cx.scheduler.value(ObjectId(object)) {
            Some(Err(error)) => error.to_string(),
            other => panic!("{text}: {other:?}"),
        };
        assert!(error.contains(text) && error.ends_with("[task-limit]"), "{error}");
        let task = 2 << 40;
        submit(&mut harness, 1, task, 1, &TaskRequest::default());
        assert_eq!(harness.engine.cx.scheduler.job_of(TaskId(task)), Some(JobId(2)));
        assert!(harness.engine.cx.scheduler.value(ObjectId(task)).is_none(), "a task of the other job fails");
        harness.finish();
    }

    #[test]
    fn requests_over_a_limit_of_their_job_fail_and_other_jobs_continue() {
        let first = 1 << 40;
        let waits = TaskRequest { arguments: vec![Argument::Object(ObjectId(first))], ..TaskRequest::default() };
        check("would be one of 41 tasks at once, its job's limit is 40", first + 39, |harness| {
            submit(harness, 0, first, 0, &TaskRequest::default());
            (1..60).for_each(|task| submit(harness, 0, first + task, 0, &waits));
        });
        check("would be nested 6 deep, its job's limit is 5", first + 4, |harness| {
            submit(harness, 0, first, 0, &TaskRequest::default());
            for task in first..first + 4 {
                submit(harness, TASKS, task + 1, task, &TaskRequest::default());
                send(harness, TASKS, &WorkerMessage::Blocked(task, true));
            }
        });
        check("its job would have 81 objects at once, its limit is 80", first + 79, |harness| {
            for object in first..first + 100 {
                send(
                    harness,
                    0,
                    &WorkerMessage::Put { object, task: 0, value: SentValue::Inline(b"kept"), refs: Vec::new() },
                );
            }
        });
        check("its job would have 5 placement groups at once, its limit is 4", first + 4, |harness| {
            let bundles = vec![sandbar_core::Bundle { cpus: 1.0, ..Default::default() }];
            let request = postcard::to_stdvec(&GroupRequest { bundles, ..GroupRequest::default() }).unwrap();
            for group in first..first + 5 {
                send(harness, 0, &WorkerMessage::CreateGroup { group, task: 0, request: &request });
            }
        });
    }
}
