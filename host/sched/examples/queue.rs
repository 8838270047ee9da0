//! What a queued task takes, in time and memory: `cargo run --release --example queue -p sandbar-sched -- [TASKS]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use sandbar_core::{Attempt, JobId, NodeId, ObjectId, RetryOn, Strategy, TaskId, TenantId, WorkerId};
use sandbar_sched::{Action, Demand, Event, JobLimits, Options, Outcome, Role, Scheduler, Submission, UNIT, Work};

/// Counts what is allocated.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to `System` as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = BYTES.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(bytes, Relaxed);
        // SAFETY: as whoever calls this promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as whoever calls this promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DRIVER: WorkerId = WorkerId(1);
const WORKERS: u32 = 8;
const FIRST: TaskId = TaskId(1 << 40);

type Steps = Scheduler<(), ()>;

fn submission(id: TaskId, parent: Option<(TaskId, Attempt, WorkerId)>, name: &Arc<str>, cpus: u64) -> Submission<()> {
    Submission {
        id,
        job: JobId(1),
        parent,
        below: 0,
        name: name.clone(),
        returns: 1,
        demand: Demand { cpus, ..Demand::default() },
        strategy: Strategy::Default,
        priority: 0,
        retries_max: 3,
        retry_on: RetryOn::System,
        needs: Vec::new(),
        refs: Vec::new(),
        work: Work::Task,
        call: (),
    }
}

/// A cluster of one node, and a job whose first task runs.
fn begun() -> Steps {
    let mut steps = Scheduler::new(Options::default());
    let (node, job) = (NodeId(1), JobId(1));
    let limits = JobLimits {
        tasks_max: u64::MAX,
        depth_max: 100,
        objects_max: u64::MAX,
        lineage_bytes_max: 1 << 20,
        call_bytes_max: u64::MAX,
        groups_max: 0,
    };
    let resources = Demand { cpus: u64::from(WORKERS) * UNIT, ..Demand::default() };
    let ready = |worker, role| Event::WorkerReady { worker, node, role };
    let mut events = vec![
        Event::NodeJoined { node, resources, far: false },
        Event::JobStarted { job, tenant: TenantId::DEFAULT, limits },
        ready(DRIVER, Role::Driver(job)),
        Event::Submitted { task: submission(FIRST, None, &Arc::from("main"), 0) },
    ];
    events.extend((0..WORKERS).map(|index| ready(WorkerId(2 + index), Role::Tasks)));
    events.into_iter().for_each(|event| steps.step(event, &mut Vec::new()));
    steps
}

#[allow(clippy::print_stdout, reason = "this is what it is for")]
fn measure(what: &str, tasks: u64, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    println!("{what:<28} {:>7.0} ns", start.elapsed().as_nanos() as f64 / tasks as f64);
}

/// Runs what waits, and says how many have ended.
fn drain(
    steps: &mut Steps,
    actions: &mut Vec<Action<()>>,
    given: &mut VecDeque<(WorkerId, TaskId)>,
    nanos: u64,
) -> u64 {
    let mut ended = 0;
    loop {
        for action in actions.drain(..) {
            match action {
                Action::Run { worker, task, .. } => given.push_back((worker, task)),
                Action::Ended { .. } => ended += 1,
                _ => {}
            }
        }
        let Some((worker, task)) = given.pop_front() else { return ended };
        let outcome = Outcome::Succeeded(vec![((), Vec::new())]);
        steps.step(Event::Finished { task, attempt: Attempt(0), worker, outcome, nanos }, actions);
    }
}

fn submitted(steps: &mut Steps, all: impl Iterator<Item = TaskId>, given: &mut VecDeque<(WorkerId, TaskId)>) {
    let (name, parent) = ("work".into(), Some((FIRST, Attempt(0), DRIVER)));
    let mut actions = Vec::new();
    for id in all {
        steps.step(Event::Submitted { task: submission(id, parent, &name, UNIT) }, &mut actions);
        actions.drain(..).for_each(|action| match action {
            Action::Run { worker, task, .. } => given.push_back((worker, task)),
            _ => unreachable!("nothing has ended"),
        });
    }
}

/// Submits tasks that take `nanos` each, has them run, and looks at their results.
#[allow(clippy::print_stdout, reason = "this is what it is for")]
fn wave(steps: &mut Steps, first: u64, tasks: u64, nanos: u64) {
    let (mut actions, mut given) = (Vec::new(), VecDeque::new());
    let all = (first..first + tasks).map(|index| TaskId(FIRST.0 + index));
    let before = BYTES.load(Relaxed);
    PEAK.store(before, Relaxed);
    measure("submitted", tasks, || submitted(steps, all.clone(), &mut given));
    let (bytes, peak) = (BYTES.load(Relaxed) - before, PEAK.load(Relaxed) - before);
    println!("{:<28} {:>7} bytes, {} at the most", "queued", bytes as u64 / tasks, peak as u64 / tasks);
    measure("wanted", tasks, || {
        for id in all.clone() {
            steps.step(Event::Wanted { object: ObjectId(id.0), worker: DRIVER, task: FIRST }, &mut actions);
        }
    });
    measure("finished and delivered", tasks, || assert_eq!(drain(steps, &mut actions, &mut given, nanos), tasks));
    measure("released", tasks, || {
        for id in all {
            steps.step(Event::Released { object: ObjectId(id.0), worker: DRIVER, times: 1 }, &mut actions);
            actions.clear();
        }
    });
    assert_eq!((steps.tasks().count(), steps.objects().count()), (1, 1), "what is left is the first task");
}

#[allow(clippy::print_stdout, reason = "this is what it is for")]
fn main() {
    let tasks = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000u64);
    for nanos in [2_000, 20_000_000] {
        let mut steps = begun();
        for (wave_of, first) in [("in memory as it comes", 1), ("in memory that was used before", 1 + tasks)] {
            println!("{tasks} tasks of {} µs, {wave_of}", nanos / 1000);
            wave(&mut steps, first, tasks, nanos);
        }
    }
}
