//! Surroundings of a simulated node: time, workers, a disk with delays and faults, and requests to other nodes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbar_core::{Code, Fault, NodeId, Seed, TenantId, WorkerId};
use sandbar_sched::WorkerKind;
use sandbar_store::{DiskCompletion, DiskTask, SealedFile, SpillFolder};

use super::super::driver::Driver;
use super::worker::{SimLink, SimWorker};
use crate::file_reader::{ReadRequest, ReadResult};
use crate::link::BoxedWorkerLink;
use crate::peer::{Callback, RemoteObject, TenantComponent};

/// The time of a simulation.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    start: Instant,
    elapsed: Rc<Cell<Duration>>,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { start: Instant::now(), elapsed: Rc::default() }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.elapsed.get()
    }

    pub(super) fn advance(&self, time: Duration) {
        self.elapsed.set(self.elapsed.get() + time);
    }
}

/// Fetched values, with the numbers of their fetches.
pub(super) type Fetched = Arc<Mutex<Vec<(u64, Result<SealedFile, Fault>)>>>;

/// State that a node's driver shares with the simulation.
pub(super) struct Surroundings {
    clock: Clock,
    seed: Seed,
    /// Workers in the order of their start.
    pub(super) workers: Vec<Rc<RefCell<SimWorker>>>,
    /// Fetches that the node has requested.
    pub(super) fetches: Vec<(u64, RemoteObject)>,
    pub(super) fetched: Fetched,
    /// Programs that the node has requested from other nodes: the node, and its number of the program.
    pub(super) loads: Vec<(NodeId, u32)>,
    pub(super) wants_worker_ids: bool,
    /// Disk tasks, with the times at which they complete.
    disk: VecDeque<(Duration, DiskTask)>,
    folder: SpillFolder,
    /// Probabilities, in percent, that a disk task fails, and that a worker can't be started.
    pub(super) faults: [u32; 2],
}

impl Surroundings {
    pub(super) fn new(clock: Clock, seed: Seed, folder: SpillFolder) -> Surroundings {
        Surroundings {
            clock,
            seed,
            workers: Vec::new(),
            fetches: Vec::new(),
            fetched: Fetched::default(),
            loads: Vec::new(),
            wants_worker_ids: false,
            disk: VecDeque::new(),
            folder,
            faults: [0; 2],
        }
    }

    /// Returns whether no disk task, fetch or program load is pending.
    pub(super) fn is_idle(&self) -> bool {
        let is_fetched = self.fetched.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        self.disk.is_empty() && self.fetches.is_empty() && self.loads.is_empty() && is_fetched
    }
}

/// A simulated driver.
pub(super) struct SimDriver(pub(super) Rc<RefCell<Surroundings>>);

impl Driver for SimDriver {
    fn now(&self) -> Instant {
        let surroundings = self.0.borrow();
        surroundings.clock.start + surroundings.clock.elapsed()
    }

    fn monotonic_nanos(&self) -> u64 {
        self.0.borrow().clock.elapsed().as_nanos() as u64
    }

    fn start_worker(&mut self, worker: WorkerId, _: WorkerKind, _: TenantId) -> io::Result<BoxedWorkerLink> {
        let mut surroundings = self.0.borrow_mut();
        let chance = surroundings.faults[1];
        if surroundings.seed.below(100) < chance {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let seed = Seed::new(surroundings.seed.next_u64());
        let started = Rc::new(RefCell::new(SimWorker::new(worker, seed)));
        surroundings.workers.push(started.clone());
        Ok(Box::new(SimLink(started)))
    }

    fn has_peers(&self) -> bool {
        true
    }

    fn request_worker_ids(&mut self) {
        self.0.borrow_mut().wants_worker_ids = true;
    }

    fn fetch(&mut self, number: u64, object: RemoteObject) {
        self.0.borrow_mut().fetches.push((number, object));
    }

    fn on_fetched(&self, number: u64) -> Callback<Result<SealedFile, Fault>> {
        let fetched = self.0.borrow().fetched.clone();
        Box::new(move |value| fetched.lock().unwrap_or_else(PoisonError::into_inner).push((number, value)))
    }

    fn load(&mut self, node: NodeId, program: u32, _: TenantComponent) {
        self.0.borrow_mut().loads.push((node, program));
    }

    // Jobs of the simulation have no files.
    fn read_file(&mut self, _: ReadRequest) {}

    fn next_file(&mut self) -> Option<ReadResult> {
        None
    }

    fn has_files(&self) -> bool {
        false
    }

    fn submit_disk_task(&mut self, task: DiskTask) {
        let mut surroundings = self.0.borrow_mut();
        let delay = Duration::from_micros(u64::from(surroundings.seed.below(20_000)));
        // Tasks complete in order.
        let last = surroundings.disk.back().map_or(Duration::ZERO, |(due, _)| *due);
        let due = last.max(surroundings.clock.elapsed() + delay);
        surroundings.disk.push_back((due, task));
    }

    fn next_disk_completion(&mut self) -> Option<DiskCompletion> {
        let Surroundings { clock, seed, disk, folder, faults, .. } = &mut *self.0.borrow_mut();
        while disk.front().is_some_and(|(due, _)| *due <= clock.elapsed()) {
            let (_, task) = disk.pop_front()?;
            let fails = seed.below(100) < faults[0];
            let completion = match task {
                DiskTask::Write(values) if fails => {
                    let keys = values.into_iter().map(|(key, _)| key).collect();
                    Some(DiskCompletion::Written(keys, Err(Fault::new(Code::StoreFull, "the simulated disk is full"))))
                }
                DiskTask::Read(key, _) if fails => {
                    Some(DiskCompletion::Read(key, Err(io::Error::other("the simulated disk has failed"))))
                }
                task => task.run(folder),
            };
            if completion.is_some() {
                return completion;
            }
        }
        None
    }
}
