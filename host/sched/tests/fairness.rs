//! Shares of processor time that tenants get in a minute of simulated time, on a machine whose operating system divides its
//! processors evenly between running workers.

mod dsl;

use std::collections::{BTreeMap, VecDeque};

use dsl::*;
use sandbar_core::{JobId, NodeId, Seed, TaskId, TenantId, WorkerId};

const CPUS: u64 = 2;
const MS: u64 = 1_000_000;
/// Time until a requested worker is ready.
const START_MS: u64 = 5;
const MINUTE_MS: u64 = 60_000;
/// Maximum wait of a tenant that uses nothing: the scheduler's patience, the start of a worker, and the interval of ticks.
const WAIT_MS_MAX: u64 = 10 + START_MS + 2;

/// What a tenant submits.
#[derive(Clone, Copy)]
struct Appetite {
    weight: u32,
    /// Number of unfinished tasks that it always has.
    tasks: usize,
    /// Range of the durations of its tasks, in milliseconds of processor time.
    task_ms: (u32, u32),
    priority: i32,
}

struct Tenant {
    appetite: Appetite,
    unfinished: usize,
    /// Used processor time.
    nanos: u64,
    running: usize,
    /// When it last had nothing running.
    idle_since_ms: u64,
    wait_ms_max: u64,
}

struct Machine {
    sched: Scheduler<u64, u64>,
    tenants: Vec<Tenant>,
    seed: Seed,
    now_ms: u64,
    /// Workers that become ready at a time.
    starting: VecDeque<(u64, WorkerKind)>,
    /// Tenant, and assigned tasks in order, of each worker.
    workers: BTreeMap<u32, (usize, VecDeque<TaskId>)>,
    /// Processor time that is left of each task.
    left: BTreeMap<TaskId, u64>,
    next_task: u64,
    next_worker: u32,
}

impl Machine {
    fn new(appetites: &[Appetite], seed: u64) -> Machine {
        let tenant = |appetite: &Appetite| Tenant {
            appetite: *appetite,
            unfinished: 0,
            nanos: 0,
            running: 0,
            idle_since_ms: 0,
            wait_ms_max: 0,
        };
        let mut machine = Machine {
            sched: Scheduler::new(Options::default()),
            tenants: appetites.iter().map(tenant).collect(),
            seed: Seed::new(seed),
            now_ms: 0,
            starting: VecDeque::new(),
            workers: BTreeMap::new(),
            left: BTreeMap::new(),
            next_task: 1_000_000,
            next_worker: 1_000_000,
        };
        let resources = resources(CPUS, 0, 0);
        machine.step(Event::NodeJoined { node: NodeId(1), resources, remote: false, workers: CPUS as u32 });
        for (index, appetite) in (0..).zip(appetites) {
            let (job, tenant) = (JobId(index), TenantId(index.into()));
            let share = TenantShare { weight: appetite.weight, reserved_cpus: 0 };
            machine.step(Event::TenantChanged { tenant, share, limits: TenantLimits::default() });
            machine.step(Event::JobStarted { job, tenant, limits: JobLimits { tasks_max: 1 << 20, ..LIMITS } });
            machine.step(Event::WorkerReady {
                worker: WorkerId(index),
                node: NodeId(1),
                kind: WorkerKind::Driver(job),
            });
            machine.step(Event::Submitted { task: first(index.into(), index) });
        }
        machine
    }

    fn step(&mut self, event: Event<u64, u64>) {
        let mut actions = Vec::new();
        self.sched.set_time(self.now_ms * MS);
        self.sched.step(event, &mut actions);
        for action in actions {
            match action {
                Action::StartWorker { kind, .. } => self.starting.push_back((self.now_ms + START_MS, kind)),
                Action::Run { worker, task, .. } => {
                    if let Some((_, assigned)) = self.workers.get_mut(&worker.0) {
                        assigned.push_back(task);
                    }
                }
                Action::Recall { worker } => {
                    let (_, assigned) = self.workers.get_mut(&worker.0).expect("it is there");
                    let tasks = if assigned.is_empty() { Vec::new() } else { assigned.drain(1..).collect() };
                    self.step(Event::Recalled { worker, tasks });
                }
                _ => {}
            }
        }
    }

    fn submit(&mut self, index: usize) {
        let Appetite { task_ms: (min, max), priority, .. } = self.tenants[index].appetite;
        self.next_task += 1;
        let id = self.next_task;
        let nanos = u64::from(min + self.seed.below(max - min + 1)) * MS;
        self.left.insert(TaskId(id), nanos);
        self.tenants[index].unfinished += 1;
        let parent = Some(parent(index as u64, 0, index as u32));
        self.step(Event::Submitted { task: Submission { job: JobId(index as u32), parent, priority, ..short(id) } });
    }

    /// One millisecond passes.
    fn tick(&mut self) {
        for index in 0..self.tenants.len() {
            while self.tenants[index].unfinished < self.tenants[index].appetite.tasks {
                self.submit(index);
            }
        }
        while let Some((_, kind)) = self.starting.pop_front_if(|(at, _)| *at <= self.now_ms) {
            let WorkerKind::Tasks(tenant) = kind else { panic!("{kind:?} was requested") };
            self.next_worker += 1;
            let worker = WorkerId(self.next_worker);
            self.workers.insert(worker.0, (tenant.0 as usize, VecDeque::new()));
            self.step(Event::WorkerReady { worker, node: NodeId(1), kind });
        }
        let busy: Vec<u32> =
            self.workers.iter().filter(|(_, (_, tasks))| !tasks.is_empty()).map(|(id, _)| *id).collect();
        let each = MS * CPUS.min(busy.len() as u64) / (busy.len() as u64).max(1);
        self.now_ms += 1;
        self.tenants.iter_mut().for_each(|tenant| tenant.running = 0);
        for worker in busy {
            let mut time = each;
            self.tenants[self.workers[&worker].0].running += 1;
            while time > 0
                && let (index, tasks) = &self.workers[&worker]
                && let Some(task) = tasks.front().copied()
            {
                let (index, left) = (*index, self.left.get_mut(&task).expect("it has time left"));
                let used = time.min(*left);
                (*left, time) = (*left - used, time - used);
                self.tenants[index].nanos += used;
                if *left > 0 {
                    break;
                }
                self.left.remove(&task);
                self.tenants[index].unfinished -= 1;
                self.workers.get_mut(&worker).expect("it is there").1.pop_front();
                let outcome = Outcome::Succeeded(vec![(task.0, Vec::new())]);
                let (attempt, worker) = (sandbar_core::Attempt(0), WorkerId(worker));
                self.step(Event::AttemptFinished { task, attempt, worker, outcome, nanos: MS });
                let driver = WorkerId(index as u32);
                self.step(Event::ReferencesReleased { object: task.returns(0), worker: driver, count: 1 });
            }
        }
        for tenant in &mut self.tenants {
            if tenant.running > 0 {
                tenant.idle_since_ms = self.now_ms;
            }
            tenant.wait_ms_max = tenant.wait_ms_max.max(self.now_ms - tenant.idle_since_ms);
        }
        self.step(Event::Tick);
    }

    /// Returns the processor time of each tenant in a minute, as a part of all.
    fn run(&mut self) -> Vec<f64> {
        (0..MINUTE_MS).for_each(|_| self.tick());
        let all: u64 = self.tenants.iter().map(|tenant| tenant.nanos).sum();
        // Processors are busy. (Workers that finish their tasks within a millisecond get no more in it.)
        assert!(all as f64 > 0.93 * (CPUS * MINUTE_MS * MS) as f64, "{all}");
        self.tenants.iter().map(|tenant| tenant.nanos as f64 / all as f64).collect()
    }
}

/// Returns Jain's index of fairness: 1 if all have the same, 1/n if one has all.
fn jains_index(shares: &[f64]) -> f64 {
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn equal_tenants_get_equal_shares_whatever_they_submit() {
    let appetite = |index: usize| Appetite {
        weight: 100,
        tasks: [1, 2, 7, 40, 500][index % 5],
        task_ms: [(1, 3), (5, 50), (20, 400), (1, 1)][index % 4],
        priority: [0, i32::MAX, i32::MIN][index % 3],
    };
    let appetites: Vec<Appetite> = (0..64).map(appetite).collect();
    let mut machine = Machine::new(&appetites, 41);
    let shares = machine.run();
    let index = jains_index(&shares);
    assert!(index >= 0.97, "{index}: {shares:?}");
    let wait_ms_max = machine.tenants.iter().map(|tenant| tenant.wait_ms_max).max().unwrap();
    // A tenant with the longest tasks waits while all others catch up with one of them.
    assert!(wait_ms_max <= 64 * 400 / CPUS + WAIT_MS_MAX, "{wait_ms_max} ms");
}

#[test]
fn shares_follow_weights() {
    for (tasks, task_ms) in [(20, (1, 3)), (20, (10, 100)), (3, (100, 1000))] {
        let appetite = |weight: u32| Appetite { weight, tasks, task_ms, priority: 0 };
        let shares = Machine::new(&[100, 200, 400].map(appetite), 42).run();
        for (share, weight) in shares.iter().zip([1.0, 2.0, 4.0]) {
            assert!((share * 7.0 / weight - 1.0).abs() <= 0.05, "{tasks} tasks of {task_ms:?} ms: {shares:?}");
        }
    }
}

#[test]
fn a_tenant_with_nothing_running_does_not_wait_for_endless_tasks() {
    let endless = Appetite { weight: 100, tasks: 100, task_ms: (1_000_000, 1_000_000), priority: i32::MAX };
    let modest = Appetite { weight: 100, tasks: 1, task_ms: (20, 20), priority: 0 };
    let mut machine = Machine::new(&[endless, endless, endless, modest], 43);
    machine.run();
    let tenant = &machine.tenants[3];
    assert!(tenant.wait_ms_max <= WAIT_MS_MAX, "{} ms", tenant.wait_ms_max);
    // It is idle for a moment after each task.
    assert!(tenant.nanos as f64 > 0.15 * (CPUS * MINUTE_MS * MS) as f64, "{}", tenant.nanos);
}
