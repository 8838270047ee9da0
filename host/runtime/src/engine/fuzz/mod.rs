//! Fuzz harness: feeds arbitrary messages of workers and peers to an engine. Its workers and peers are in this process.

mod generate;

use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sandbar_core::{ComponentId, JobId, Limits, NodeId, ObjectId, TaskError, TaskKind, TenantId, WorkerId};
use sandbar_sched::{Event, JobLimits, RESOURCE_UNIT, ResourceSet, WorkerKind};
use sandbar_store::{Disk, DiskCompletion, DiskTask, SealedFile, SpillFolder, StoreLimits, ValueStore};
use sandbar_worker::CompiledComponent;
use sandbar_worker::program::{Doorbell, monotonic_nanos};
use tokio::sync::oneshot;

pub use self::generate::said_any;
use self::generate::{PEER_SLOTS, PEERS};
use super::{Driver, Engine, EngineOptions, First, JobOutputs, JobResult, NewJob, WORKERS_MAX};
use crate::client::{ClientLine, ClientLink, ClientListener, ObjectValue};
use crate::file_reader::{ReadRequest, ReadResult};
use crate::link::Link;
use crate::peer::{Callback, NewPeer, PeerLine, RemoteObject};
use crate::{Program, ProgramTask};
use sandbar_jobs::{JobLog, JobQuery, LogOutput};

/// Bytes of the file that comes with a message, if one does.
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
const ROLES: [WorkerKind; 4] =
    [WorkerKind::Driver(JobId(1)), WorkerKind::Driver(JobId(2)), WorkerKind::Tasks, WorkerKind::Actors];

/// Who says something: the clients that are the first tasks of two jobs, a worker for tasks, one for actors, or one of two
/// other nodes. The members' numbers are from 1 on, the tasks of the clients 0 and 1.
#[derive(Debug, Clone, Copy)]
pub struct Saying<'a> {
    /// Which of the six.
    pub who: u8,
    /// Whether a file of a value is there for it.
    pub with_file: bool,
    /// An [`sandbar_worker::program::WorkerMessage`], or what [`said_any`] makes of a node, or any bytes.
    pub message: &'a [u8],
    /// Milliseconds that pass before.
    pub after_ms: u32,
}

/// Has a hub hear what its members say, whose jobs have a program with tasks of these kinds. Says whether all of it made
/// sense: nobody was ended for it.
///
/// # Panics
/// When something of it is left once all jobs and members have ended.
pub fn hear_any<'a>(kinds: &[TaskKind], all: impl IntoIterator<Item = Saying<'a>>) -> bool {
    let Some(mut harness) = Harness::new(kinds) else { return false };
    let mut made_sense = true;
    for saying in all {
        made_sense &= harness.hear(&saying);
    }
    harness.end();
    made_sense
}

struct Harness {
    engine: Engine,
    members: Vec<(WorkerId, Arc<ClientLine>)>,
    /// The other ends of the lines to nodes, once these have said something.
    peers: [Option<PeerLine>; 2],
    /// Of the jobs of the first two.
    results: Vec<oneshot::Receiver<JobResult>>,
    clock: Arc<Mutex<Instant>>,
    doorbell: Doorbell,
    frame: Vec<u8>,
    log: JobLog,
}

impl Harness {
    /// None when the machine has no more of something.
    fn new(kinds: &[TaskKind]) -> Option<Harness> {
        let resources = ResourceSet { cpus: 4 * RESOURCE_UNIT, gpus: RESOURCE_UNIT, ..ResourceSet::default() };
        let doorbell = Doorbell::new().ok()?;
        let options = EngineOptions {
            node: NodeId(0),
            worker_ids: 0..WORKERS_MAX,
            workers: 0,
            on_demand: false,
            resources,
            job_limits: JOB_LIMITS,
            task_limits: Limits::default(),
            memory_bytes_max: MEMORY_BYTES_MAX,
        };
        let limits =
            StoreLimits { memory_bytes_max: MEMORY_BYTES_MAX, files_max: FILES_MAX, job_bytes_max: MEMORY_BYTES_MAX };
        let ring = doorbell.clone();
        let disk = Disk::start(SpillFolder::new(std::env::temp_dir(), None), move || ring.ring()).ok()?;
        let clock = Arc::new(Mutex::new(Instant::now()));
        let driver = Box::new(FuzzDriver { disk, clock: clock.clone() });
        let next_job = Arc::new(AtomicU32::new(1));
        let mut engine = Engine::new(options, ValueStore::new(limits), next_job, Arc::default(), driver);
        let program = Arc::new(program_of(kinds)?);
        let log = JobLog::start(None, LogOutput::Callback(Box::new(|_| {})), TenantId::DEFAULT).ok()?;
        let (mut members, mut results) = (Vec::new(), Vec::new());
        for role in ROLES {
            let (line, link) = connect_client(&doorbell);
            let id = if let WorkerKind::Driver(job) = role {
                let (program, log) = (program.clone(), log.sender());
                let outputs = JobOutputs { progress: Arc::default(), log, finished: Arc::new(OnceLock::new()) };
                let first = First::Client("client".to_owned(), link);
                let (done, result) = oneshot::channel();
                let (tenant, files) = (TenantId::DEFAULT, Arc::default());
                let new = NewJob { tenant, program, first, seed: 7, lasting: None, files, outputs };
                engine.start_job(job, new, done);
                results.push(result);
                WorkerId(job.0)
            } else {
                engine.workers.add_client(&mut engine.cx, role, link)?
            };
            members.push((id, line));
        }
        Some(Harness { engine, members, peers: [None, None], results, clock, doorbell, frame: Vec::new(), log })
    }

    /// Says whether it made sense.
    fn hear(&mut self, saying: &Saying<'_>) -> bool {
        if saying.after_ms > 0 {
            *self.clock.lock().unwrap_or_else(PoisonError::into_inner) += Duration::from_millis(saying.after_ms.into());
            self.engine.tick();
        }
        let at = usize::from(saying.who) % (ROLES.len() + PEERS.len());
        if let Some(peer) = at.checked_sub(ROLES.len()) {
            return self.hear_peer(peer, saying.message);
        }
        if !self.engine.cx.workers.contains_key(&self.members[at].0) {
            if let WorkerKind::Driver(_) = ROLES[at] {
                // Nobody hears it any more.
                return true;
            }
            // Another one is started.
            let (line, link) = connect_client(&self.doorbell);
            let Some(worker) = self.engine.workers.add_client(&mut self.engine.cx, ROLES[at], link) else {
                return true;
            };
            self.members[at] = (worker, line);
        }
        let (id, line) = &self.members[at];
        let file = saying.with_file.then(|| SealedFile::new(&[7; FILE_BYTES]).ok()).flatten();
        line.send_bytes(saying.message.to_vec(), file);
        self.engine.turn(&mut self.frame);
        // A job may end by what is said, and its client with it.
        let has_ended = |result: JobResult| result.counters.lost_workers == 0;
        self.engine.cx.workers.contains_key(id)
            || self.results.get_mut(at).is_some_and(|result| result.try_recv().is_ok_and(has_ended))
    }

    /// A node that the hub has let go of comes back.
    fn hear_peer(&mut self, at: usize, message: &[u8]) -> bool {
        let node = PEERS[at];
        let known = self.peers[at].take().filter(|line| !line.is_closed());
        let mut line = known.unwrap_or_else(|| {
            let doorbell = self.doorbell.clone();
            let (near, mut far) = PeerLine::pair(doorbell.clone(), doorbell);
            let resources = ResourceSet { cpus: u64::from(PEER_SLOTS) * RESOURCE_UNIT, ..ResourceSet::default() };
            self.engine.join(NewPeer { node, resources, slots: PEER_SLOTS, line: near });
            far.send(generate::program());
            far
        });
        line.send(message.to_vec());
        self.engine.turn(&mut self.frame);
        while line.receive().is_some() {}
        let made_sense = !line.is_closed();
        self.peers[at] = made_sense.then_some(line);
        made_sense
    }

    fn end(mut self) {
        let limit = 100;
        let questions = [
            JobQuery::Tasks { limit, state: None, name: None },
            JobQuery::Summary,
            JobQuery::Actors { limit },
            JobQuery::Objects { limit },
            JobQuery::Workers { limit },
            JobQuery::Groups { limit },
            JobQuery::Nodes { limit },
            JobQuery::Memory,
        ];
        for question in questions {
            [1, 2].into_iter().for_each(|job| drop(self.engine.inspect(JobId(job), question.clone())));
        }
        self.peers = [None, None];
        self.engine.turn(&mut self.frame);
        for (worker, _) in &self.members {
            self.engine.lose_worker(*worker, "the test ends");
        }
        [1, 2].into_iter().for_each(|job| self.engine.stop_job(JobId(job)));
        for job in self.engine.cx.detached_jobs.clone().into_values() {
            self.engine.cx.step(Event::JobEnded { job });
        }
        self.engine.tick();
        let Engine { cx, workers, objects, jobs, deadlines, peers, .. } = &self.engine;
        assert!(cx.scheduler.is_empty(), "tasks or objects are left of jobs that have ended");
        assert_eq!(cx.values.usage().values, 0, "values are left of jobs that have ended");
        assert!(!jobs.has_results() && workers.has_no_actors(), "results or actors' workers are left");
        assert!(deadlines.is_empty(), "deadlines are left: {deadlines:?}");
        assert_eq!(objects.len(), 0, "deliveries are left");
        assert_eq!(peers.counts(cx), [0; 8], "state of disconnected nodes is left");
        drop(self.engine);
        self.log.close();
    }
}

/// A program with tasks of these kinds, whose code nobody runs.
fn program_of(kinds: &[TaskKind]) -> Option<Program> {
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

fn connect_client(doorbell: &Doorbell) -> (Arc<ClientLine>, ClientLink) {
    let line = ClientLine::new(doorbell.clone());
    (line.clone(), ClientLink::new(line, Arc::new(Nobody), oneshot::channel().0))
}

/// Driver whose time is set by the harness. It starts no workers.
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

    fn start_worker(&mut self, _: WorkerId, _: WorkerKind) -> io::Result<Link> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn has_peers(&self) -> bool {
        false
    }

    fn request_worker_ids(&mut self) {}

    // The value never arrives.
    fn fetch(&mut self, _: u64, _: RemoteObject) {}

    fn on_fetched(&self, _: u64) -> Callback<Result<SealedFile, String>> {
        Box::new(|_| {})
    }

    fn load(&mut self, _: NodeId, _: u32, _: ComponentId, _: Limits) {}

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

struct Nobody;

impl ClientListener for Nobody {
    fn delivered(&self, _: ObjectId, _: Result<ObjectValue, Arc<TaskError>>, _: Vec<ObjectId>) {}

    fn item(&self, _: ObjectId, _: ObjectId, _: Option<Result<ObjectValue, Arc<TaskError>>>, _: Vec<ObjectId>) {}

    fn flush(&self) {}

    fn ended(&self) {}
}

#[cfg(test)]
mod tests {
    use sandbar_core::{Argument, GroupRequest, RequestOptions, TaskId, TaskRequest};
    use sandbar_worker::program::{SentValue, SubmitTask, WorkerMessage};

    use super::*;

    const TASKS: u8 = 2;

    fn hear(harness: &mut Harness, who: u8, message: &WorkerMessage<'_>) {
        let bytes = postcard::to_stdvec(message).unwrap();
        let saying = Saying { who, with_file: false, message: &bytes, after_ms: 0 };
        assert!(harness.hear(&saying), "{message:?}");
    }

    fn submit(harness: &mut Harness, who: u8, (task, parent): (u64, u64), request: &TaskRequest<'_>) {
        let request = postcard::to_stdvec(request).unwrap();
        let submit = SubmitTask { task, parent, attempt: 0, function: 0, returns: 1, seed: 7, request: &request };
        hear(harness, who, &WorkerMessage::Submit(submit));
    }

    /// One client submits a task, the other says that this may take a moment only.
    #[test]
    fn nobody_says_how_long_the_tasks_of_others_may_take() {
        let mut harness = Harness::new(&[TaskKind::Task]).unwrap();
        let task = 1 << 40;
        for (who, timeout_ms) in [(0, None), (1, Some(1))] {
            let options = Some(Box::new(RequestOptions { timeout_ms, ..RequestOptions::default() }));
            submit(&mut harness, who, (task, who.into()), &TaskRequest { options, ..TaskRequest::default() });
        }
        assert_eq!(harness.engine.cx.scheduler.job_of(TaskId(task)), Some(JobId(1)));
        assert!(harness.engine.deadlines.is_empty());
        harness.end();
    }

    /// Has a client do so much of something, and looks at why it can't have this object; others go on meanwhile.
    fn check(words: &str, object: u64, does: impl FnOnce(&mut Harness)) {
        let mut harness = Harness::new(&[TaskKind::Task]).unwrap();
        does(&mut harness);
        let error = match harness.engine.cx.scheduler.value(ObjectId(object)) {
            Some(Err(error)) => error.to_string(),
            other => panic!("{words}: {other:?}"),
        };
        assert!(error.contains(words) && error.ends_with("[task-limit]"), "{error}");
        let task = 2 << 40;
        submit(&mut harness, 1, (task, 1), &TaskRequest::default());
        assert_eq!(harness.engine.cx.scheduler.job_of(TaskId(task)), Some(JobId(2)));
        assert!(harness.engine.cx.scheduler.value(ObjectId(task)).is_none(), "what others submit fails");
        harness.end();
    }

    #[test]
    fn what_is_over_a_limit_of_its_job_fails_and_others_go_on() {
        let first = 1 << 40;
        let waits = TaskRequest { arguments: vec![Argument::Object(ObjectId(first))], ..TaskRequest::default() };
        check("would be one of 41 tasks at once, its job's limit is 40", first + 39, |harness| {
            submit(harness, 0, (first, 0), &TaskRequest::default());
            (1..60).for_each(|task| submit(harness, 0, (first + task, 0), &waits));
        });
        check("would be nested 6 deep, its job's limit is 5", first + 4, |harness| {
            submit(harness, 0, (first, 0), &TaskRequest::default());
            for task in first..first + 4 {
                submit(harness, TASKS, (task + 1, task), &TaskRequest::default());
                hear(harness, TASKS, &WorkerMessage::Blocked(task, true));
            }
        });
        check("its job would have 81 objects at once, its limit is 80", first + 79, |harness| {
            for object in first..first + 100 {
                hear(
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
                hear(harness, 0, &WorkerMessage::CreateGroup { group, task: 0, request: &request });
            }
        });
    }
}
