//! A hub that hears what may be any bytes, for tests. Its members are no processes, but say and are told the same; and so do
//! two other nodes.

mod said;

use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use sandbar_core::{JobId, Limits, NodeId, ObjectId, TaskError, TaskKind, WorkerId};
use sandbar_sched::{Event, JobLimits, RESOURCE_UNIT, ResourceSet, WorkerKind};
use sandbar_store::SealedFile;
use sandbar_worker::CompiledComponent;
use sandbar_worker::program::{Doorbell, ProgramWorkerOptions};
use tokio::sync::oneshot;

pub use self::said::said_any;
use super::files::Opened;
use super::store::Store;
use super::{Asker, First, HubOptions, JobResult, NewJob, State, StoreOptions, WORKERS_MAX};
use crate::client::{Line, Listen, ObjectValue, Seat};
use crate::peer::{NewPeer, PeerLine};
use crate::{Program, ProgramTask};
use sandbar_jobs::{JobLog, JobQuery, LogOutput};

/// Bytes of the file that comes with a message, if one does.
const FILE_BYTES: usize = 9000;
const MEMORY_BYTES_MAX: u64 = 1 << 30;
const JOB_LIMITS: JobLimits = JobLimits {
    tasks_max: 40,
    depth_max: 5,
    objects_max: 80,
    lineage_bytes_max: 10_000,
    groups_max: 4,
    call_bytes_max: 1 << 20,
};
/// The other nodes, and how many tasks each is given at once.
const PEERS: [NodeId; 2] = [NodeId(100), NodeId(101)];
const PEER_SLOTS: u32 = 2;
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
    let Some(mut hearing) = Hearing::begin(kinds) else { return false };
    let mut made_sense = true;
    for saying in all {
        made_sense &= hearing.hear(&saying);
    }
    hearing.end();
    made_sense
}

struct Hearing {
    state: State,
    members: Vec<(WorkerId, Arc<Line>)>,
    /// The other ends of the lines to nodes, once these have said something.
    peers: [Option<PeerLine>; 2],
    /// Of the jobs of the first two.
    results: Vec<oneshot::Receiver<JobResult>>,
    now: Instant,
    frame: Vec<u8>,
    log: JobLog,
}

impl Hearing {
    /// None when the machine has no more of something.
    fn begin(kinds: &[TaskKind]) -> Option<Hearing> {
        let store = StoreOptions {
            memory_bytes_max: MEMORY_BYTES_MAX,
            job_bytes_max: MEMORY_BYTES_MAX,
            folder: std::env::temp_dir(),
            reserve_bytes: None,
        };
        // What the scheduler wants started can't be.
        let program = PathBuf::new();
        let limits = Limits::default();
        let worker_options = ProgramWorkerOptions {
            limits,
            sandboxes: 10,
            inline: true,
            value_bytes_max: MEMORY_BYTES_MAX,
            program,
            gpus: None,
        };
        let resources = ResourceSet { cpus: 4 * RESOURCE_UNIT, gpus: RESOURCE_UNIT, ..ResourceSet::default() };
        let (sender, commands) = channel();
        let doorbell = Doorbell::new().ok()?;
        let asker = Asker { commands: Arc::new(Mutex::new(sender)), doorbell: doorbell.clone() };
        let values = Store::start(&store, doorbell.clone()).ok()?;
        let opened = Opened::start(MEMORY_BYTES_MAX, doorbell.clone()).ok()?;
        let options = HubOptions {
            node: NodeId(0),
            numbers: 0..WORKERS_MAX,
            outside: None,
            workers: 0,
            worker_options,
            resources,
            job_limits: JOB_LIMITS,
            store,
        };
        let mut state = State::new(options, (asker, Arc::new(AtomicU32::new(1))), commands, values, opened);
        state.begin();
        let program = Arc::new(program_of(kinds)?);
        let log = JobLog::start(None, LogOutput::Callback(Box::new(|_| {}))).ok()?;
        let (mut members, mut results) = (Vec::new(), Vec::new());
        for role in ROLES {
            let (line, seat) = seat(&doorbell);
            let id = if let WorkerKind::Driver(job) = role {
                let (program, log) = (program.clone(), log.sender());
                let (given, bars, left) = (Arc::default(), Arc::default(), Arc::new(OnceLock::new()));
                let first = First::Client("client".to_owned(), seat);
                let (done, result) = oneshot::channel();
                state.start_job(job, NewJob { program, first, seed: 7, lasting: None, given, bars, log, left }, done);
                results.push(result);
                WorkerId(job.0)
            } else {
                state.seat(role, seat)?
            };
            members.push((id, line));
        }
        let (now, frame) = (Instant::now(), Vec::new());
        Some(Hearing { state, members, peers: [None, None], results, now, frame, log })
    }

    /// Says whether it made sense.
    fn hear(&mut self, saying: &Saying<'_>) -> bool {
        if saying.after_ms > 0 {
            self.now += Duration::from_millis(saying.after_ms.into());
            self.state.look_after(self.now);
        }
        let at = usize::from(saying.who) % (ROLES.len() + PEERS.len());
        if let Some(peer) = at.checked_sub(ROLES.len()) {
            return self.hear_peer(peer, saying.message);
        }
        if !self.state.members.contains_key(&self.members[at].0) {
            if let WorkerKind::Driver(_) = ROLES[at] {
                // Nobody hears it any more.
                return true;
            }
            // Another one is started.
            let (line, seat) = seat(&self.state.doorbell);
            let Some(worker) = self.state.seat(ROLES[at], seat) else { return true };
            self.members[at] = (worker, line);
        }
        let (id, line) = &self.members[at];
        let file = saying.with_file.then(|| SealedFile::new(&[7; FILE_BYTES]).ok()).flatten();
        line.say_bytes(saying.message.to_vec(), file);
        self.state.turn(&mut self.frame);
        // A job may end by what is said, and its client with it.
        let has_ended = |result: JobResult| result.counts.lost == 0;
        self.state.members.contains_key(id)
            || self.results.get_mut(at).is_some_and(|result| result.try_recv().is_ok_and(has_ended))
    }

    /// A node that the hub has let go of comes back.
    fn hear_peer(&mut self, at: usize, message: &[u8]) -> bool {
        let node = PEERS[at];
        let known = self.peers[at].take().filter(|line| !line.is_closed());
        let mut line = known.unwrap_or_else(|| {
            let doorbell = self.state.doorbell.clone();
            let (near, mut far) = PeerLine::pair(doorbell.clone(), doorbell);
            let resources = ResourceSet { cpus: u64::from(PEER_SLOTS) * RESOURCE_UNIT, ..ResourceSet::default() };
            self.state.join(NewPeer { node, resources, slots: PEER_SLOTS, line: near });
            far.say(said::program());
            far
        });
        line.say(message.to_vec());
        self.state.turn(&mut self.frame);
        while line.hear().is_some() {}
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
            [1, 2].into_iter().for_each(|job| drop(self.state.look(JobId(job), question.clone())));
        }
        self.peers = [None, None];
        self.state.turn(&mut self.frame);
        for (worker, _) in &self.members {
            self.state.lose(*worker, "it is over");
        }
        [1, 2].into_iter().for_each(|job| self.state.stop_job(JobId(job)));
        self.state.step(Event::JobEnded { job: super::HOME });
        self.state.look_after(self.now);
        let State { sched, store, deadlines, results, of_actors, .. } = &self.state;
        assert!(sched.is_empty(), "something is left of jobs that have ended");
        assert_eq!(store.values.usage().values, 0, "values are left of jobs that have ended");
        assert!(results.is_empty() && of_actors.is_empty(), "{} results are left", results.len());
        assert!(deadlines.is_empty(), "deadlines are left: {deadlines:?}");
        assert_eq!(self.state.peers.left(), [0; 8], "something is left of nodes that are gone");
        drop(self.state);
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

fn seat(doorbell: &Doorbell) -> (Arc<Line>, Seat) {
    let line = Line::new(doorbell.clone());
    (line.clone(), Seat::new(line, Arc::new(Nobody), oneshot::channel().0))
}

struct Nobody;

impl Listen for Nobody {
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

    fn hear(hearing: &mut Hearing, who: u8, message: &WorkerMessage<'_>) {
        let bytes = postcard::to_stdvec(message).unwrap();
        let saying = Saying { who, with_file: false, message: &bytes, after_ms: 0 };
        assert!(hearing.hear(&saying), "{message:?}");
    }

    fn submit(hearing: &mut Hearing, who: u8, (task, parent): (u64, u64), request: &TaskRequest<'_>) {
        let request = postcard::to_stdvec(request).unwrap();
        let submit = SubmitTask { task, parent, attempt: 0, function: 0, returns: 1, seed: 7, request: &request };
        hear(hearing, who, &WorkerMessage::Submit(submit));
    }

    /// One client submits a task, the other says that this may take a moment only.
    #[test]
    fn nobody_says_how_long_the_tasks_of_others_may_take() {
        let mut hearing = Hearing::begin(&[TaskKind::Task]).unwrap();
        let task = 1 << 40;
        for (who, timeout_ms) in [(0, None), (1, Some(1))] {
            let options = Some(Box::new(RequestOptions { timeout_ms, ..RequestOptions::default() }));
            submit(&mut hearing, who, (task, who.into()), &TaskRequest { options, ..TaskRequest::default() });
        }
        assert_eq!(hearing.state.sched.job_of(TaskId(task)), Some(JobId(1)));
        assert!(hearing.state.deadlines.is_empty());
        hearing.end();
    }

    /// Has a client do so much of something, and looks at why it can't have this object; others go on meanwhile.
    fn check(words: &str, object: u64, does: impl FnOnce(&mut Hearing)) {
        let mut hearing = Hearing::begin(&[TaskKind::Task]).unwrap();
        does(&mut hearing);
        let error = match hearing.state.sched.value(ObjectId(object)) {
            Some(Err(error)) => error.to_string(),
            other => panic!("{words}: {other:?}"),
        };
        assert!(error.contains(words) && error.ends_with("[task-limit]"), "{error}");
        let task = 2 << 40;
        submit(&mut hearing, 1, (task, 1), &TaskRequest::default());
        assert_eq!(hearing.state.sched.job_of(TaskId(task)), Some(JobId(2)));
        assert!(hearing.state.sched.value(ObjectId(task)).is_none(), "what others submit fails");
        hearing.end();
    }

    #[test]
    fn what_is_over_a_limit_of_its_job_fails_and_others_go_on() {
        let first = 1 << 40;
        let waits = TaskRequest { arguments: vec![Argument::Object(ObjectId(first))], ..TaskRequest::default() };
        check("would be one of 41 tasks at once, its job's limit is 40", first + 39, |hearing| {
            submit(hearing, 0, (first, 0), &TaskRequest::default());
            (1..60).for_each(|task| submit(hearing, 0, (first + task, 0), &waits));
        });
        check("would be nested 6 deep, its job's limit is 5", first + 4, |hearing| {
            submit(hearing, 0, (first, 0), &TaskRequest::default());
            for task in first..first + 4 {
                submit(hearing, TASKS, (task + 1, task), &TaskRequest::default());
                hear(hearing, TASKS, &WorkerMessage::Blocked(task, true));
            }
        });
        check("its job would have 81 objects at once, its limit is 80", first + 79, |hearing| {
            for object in first..first + 100 {
                hear(
                    hearing,
                    0,
                    &WorkerMessage::Put { object, task: 0, value: SentValue::Inline(b"kept"), refs: Vec::new() },
                );
            }
        });
        check("its job would have 5 placement groups at once, its limit is 4", first + 4, |hearing| {
            let bundles = vec![sandbar_core::Bundle { cpus: 1.0, ..Default::default() }];
            let request = postcard::to_stdvec(&GroupRequest { bundles, ..GroupRequest::default() }).unwrap();
            for group in first..first + 5 {
                hear(hearing, 0, &WorkerMessage::CreateGroup { group, task: 0, request: &request });
            }
        });
    }
}
