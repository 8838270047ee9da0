//! Measures time and memory of a queued task: `cargo run --release --example queue -p sandbar-sched -- [TASKS]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use sandbar_core::{Attempt, JobId, NodeId, ObjectId, RetryOn, Strategy, TaskId, TenantId, WorkerId};
use sandbar_sched::{
    Action, Event, JobLimits, Options, Outcome, ParentRef, RESOURCE_UNIT, ResourceSet, Scheduler, Submission,
    SubmissionKind, WorkerKind,
};

/// An allocator that counts allocated bytes.
struct CountingAllocator;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call on to `System` unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = BYTES.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(bytes, Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const DRIVER: WorkerId = WorkerId(1);
const WORKERS: u32 = 8;
const FIRST: TaskId = TaskId(1 << 40);

type Steps = Scheduler<(), ()>;

fn submission(id: TaskId, parent: Option<ParentRef>, name: &Arc<str>, cpus: u64) -> Submission<()> {
    Submission {
        id,
        job: JobId(1),
        parent,
        remote_depth: 0,
        name: name.clone(),
        returns: 1,
        demand: ResourceSet { cpus, ..ResourceSet::default() },
        strategy: Strategy::Default,
        priority: 0,
        retries_max: 3,
        retry_on: RetryOn::System,
        dependencies: Vec::new(),
        refs: Vec::new(),
        kind: SubmissionKind::Function,
        call: (),
    }
}

/// Returns the scheduler of a cluster with one node and a job whose root task runs.
fn started() -> Steps {
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
    let resources = ResourceSet { cpus: u64::from(WORKERS) * RESOURCE_UNIT, ..ResourceSet::default() };
    let ready = |worker, kind| Event::WorkerReady { worker, node, kind };
    let mut events = vec![
        Event::NodeJoined { node, resources, remote: false, workers: 0 },
        Event::JobStarted { job, tenant: TenantId::DEFAULT, limits },
        ready(DRIVER, WorkerKind::Driver(job)),
        Event::Submitted { task: submission(FIRST, None, &Arc::from("main"), 0) },
    ];
    events.extend((0..WORKERS).map(|index| ready(WorkerId(2 + index), WorkerKind::Tasks(TenantId::DEFAULT))));
    events.into_iter().for_each(|event| steps.step(event, &mut Vec::new()));
    steps
}

#[allow(clippy::print_stdout, reason = "this is what it is for")]
fn measure(label: &str, tasks: u64, run: impl FnOnce()) {
    let start = Instant::now();
    run();
    println!("{label:<28} {:>7.0} ns", start.elapsed().as_nanos() as f64 / tasks as f64);
}

/// Finishes all assigned tasks. Returns the number of finished tasks.
fn drain(
    steps: &mut Steps,
    actions: &mut Vec<Action<()>>,
    assigned: &mut VecDeque<(WorkerId, TaskId)>,
    nanos: u64,
) -> u64 {
    let mut ended = 0;
    loop {
        for action in actions.drain(..) {
            match action {
                Action::Run { worker, task, .. } => assigned.push_back((worker, task)),
                Action::TaskFinished { .. } => ended += 1,
                _ => {}
            }
        }
        let Some((worker, task)) = assigned.pop_front() else { return ended };
        let outcome = Outcome::Succeeded(vec![((), Vec::new())]);
        steps.step(Event::AttemptFinished { task, attempt: Attempt(0), worker, outcome, nanos }, actions);
    }
}

fn submitted(steps: &mut Steps, all: impl Iterator<Item = TaskId>, assigned: &mut VecDeque<(WorkerId, TaskId)>) {
    let (name, parent) = ("work".into(), Some(ParentRef { task: FIRST, attempt: Attempt(0), worker: DRIVER }));
    let mut actions = Vec::new();
    for id in all {
        steps.step(Event::Submitted { task: submission(id, parent, &name, RESOURCE_UNIT) }, &mut actions);
        actions.drain(..).for_each(|action| match action {
            Action::Run { worker, task, .. } => assigned.push_back((worker, task)),
            _ => unreachable!("nothing has ended"),
        });
    }
}

/// Submits tasks that take `nanos` each, finishes them, and requests and releases their results.
#[allow(clippy::print_stdout, reason = "this is what it is for")]
fn wave(steps: &mut Steps, first: u64, tasks: u64, nanos: u64) {
    let (mut actions, mut assigned) = (Vec::new(), VecDeque::new());
    let all = (first..first + tasks).map(|index| TaskId(FIRST.0 + index));
    let before = BYTES.load(Relaxed);
    PEAK.store(before, Relaxed);
    measure("submitted", tasks, || submitted(steps, all.clone(), &mut assigned));
    let (bytes, peak) = (BYTES.load(Relaxed) - before, PEAK.load(Relaxed) - before);
    println!("{:<28} {:>7} bytes, {} at the most", "queued", bytes as u64 / tasks, peak as u64 / tasks);
    measure("wanted", tasks, || {
        for id in all.clone() {
            steps.step(Event::ObjectRequested { object: ObjectId(id.0), worker: DRIVER, task: FIRST }, &mut actions);
        }
    });
    measure("finished and delivered", tasks, || assert_eq!(drain(steps, &mut actions, &mut assigned, nanos), tasks));
    measure("released", tasks, || {
        for id in all {
            steps.step(Event::ReferencesReleased { object: ObjectId(id.0), worker: DRIVER, count: 1 }, &mut actions);
            actions.clear();
        }
    });
    assert_eq!((steps.tasks().count(), steps.objects().count()), (1, 1), "what is left is the first task");
}

#[allow(clippy::print_stdout, reason = "this is what it is for")]
fn main() {
    let tasks = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000u64);
    for nanos in [2_000, 20_000_000] {
        let mut steps = started();
        for (wave_of, first) in [("in memory as it comes", 1), ("in memory that was used before", 1 + tasks)] {
            println!("{tasks} tasks of {} µs, {wave_of}", nanos / 1000);
            wave(&mut steps, first, tasks, nanos);
        }
    }
}
