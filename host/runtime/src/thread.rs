//! The runtime's thread. It owns the engine, performs the engine's IO, and handles requests of other threads.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use sandbar_core::{Code, Fault, JobId, NodeId, ObjectId, TenantId, WorkerId};
use sandbar_jobs::{ActorRow, JobQuery, JobResponse};
use sandbar_machine::raise_file_limit;
use sandbar_sched::{DailyAmounts, WorkerKind};
use sandbar_store::{Disk, DiskCompletion, DiskTask, SealedFile, SpillFolder, StoreLimits, ValueStore};
use sandbar_worker::CallJob;
use sandbar_worker::program::{NodeDoorbell, ProgramWorker, ProgramWorkerOptions, monotonic_nanos};
use tokio::sync::oneshot;

use crate::engine::{Driver, Engine, EngineOptions, JobResult, JobUsage, NewJob};
use crate::file_reader::{FileReader, ReadRequest, ReadResult};
use crate::lease_request::{LeaseId, LeaseRequest, LeaseState};
use crate::link::BoxedWorkerLink;
use crate::peer::{CachedResult, Callback, ClusterServices, LoadResult, NewPeer, RemoteObject, TenantComponent};
use crate::policy::TenantPolicy;

/// Time that the thread polls before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// Interval of ticks while workers have work, and while they have none.
const TICK: Duration = Duration::from_millis(1);
const IDLE_TICK: Duration = Duration::from_millis(100);
/// Number of open files that are reserved for other uses than values.
const OTHER_FILES: u64 = 1000;
/// Maximum number of open files of values.
const FILES_MAX: u64 = 1 << 20;

/// Options of a runtime.
#[derive(Clone)]
pub(crate) struct RuntimeOptions {
    pub(crate) engine: EngineOptions,
    pub(crate) workers: ProgramWorkerOptions,
    /// Services of other nodes, in a cluster.
    pub(crate) peers: Option<Arc<dyn ClusterServices>>,
    pub(crate) store: StoreOptions,
}

/// Options of the value store.
#[derive(Debug, Clone)]
pub(crate) struct StoreOptions {
    /// Folder of values on disk.
    pub(crate) folder: PathBuf,
    /// Disk space to keep free, in bytes; `None` for the default.
    pub(crate) reserve_bytes: Option<u64>,
}

pub(crate) enum Request {
    StartJob(JobId, NewJob, oneshot::Sender<JobResult>),
    /// The runtime replies whether it accepts the job.
    StartCallJob(JobId, CallJob, SyncSender<Result<(), Fault>>),
    EndCallJob(JobId),
    Lease(LeaseRequest),
    ReturnLease(LeaseId),
    /// Stop a job, unless it has ended. The runtime drops the sender in reply.
    StopJob(JobId, SyncSender<()>),
    Inspect(JobId, JobQuery, oneshot::Sender<JobResponse>),
    Connect(NewPeer),
    Share(ObjectId, Callback<Result<SealedFile, Fault>>),
    AddWorkerIds(Range<u32>),
    SetTenant(TenantId, TenantPolicy),
    ChargeTenant(TenantId, DailyAmounts),
    StartDay,
    TakeUsage(oneshot::Sender<Vec<JobUsage>>),
    /// A value was fetched, by its number.
    Fetched(u64, Result<SealedFile, Fault>),
    /// A program of a node was loaded, by its number.
    Loaded(NodeId, u32, LoadResult),
    CachedResults(Arc<str>, u64, Callback<Vec<(u64, CachedResult)>>),
    DetachedActors(TenantId, oneshot::Sender<Vec<ActorRow>>),
    EndDetachedActor(TenantId, String, oneshot::Sender<bool>),
    KeepTenants(BTreeSet<TenantId>),
    Drain(Callback<()>),
    Shutdown,
}

/// A runtime with its thread. Dropping it ends all jobs and workers.
#[derive(Debug)]
pub(crate) struct Runtime {
    handle: RuntimeHandle,
    thread: Option<JoinHandle<()>>,
}

/// Sends requests to a runtime, which may have shut down.
#[derive(Debug, Clone)]
pub struct RuntimeHandle {
    requests: Arc<Mutex<Sender<Request>>>,
    doorbell: NodeDoorbell,
    next_job: Arc<AtomicU32>,
    pub(crate) leases: Arc<LeaseState>,
}

impl RuntimeHandle {
    /// Queries a job.
    pub(crate) async fn inspect(&self, job: JobId, query: JobQuery) -> JobResponse {
        let (sender, response) = oneshot::channel();
        self.send(Request::Inspect(job, query, sender));
        response.await.unwrap_or_else(|_| JobResponse::Refused("the node shuts down".to_owned()))
    }

    /// Stops a job, and blocks until it has ended.
    fn stop_job(&self, job: JobId) {
        let (sender, stopped) = sync_channel(0);
        self.send(Request::StopJob(job, sender));
        // Nothing is sent: the runtime drops the sender.
        let _ = stopped.recv();
    }

    /// Changes a tenant's share of the node, and its limits.
    pub fn set_tenant(&self, tenant: TenantId, policy: TenantPolicy) {
        self.send(Request::SetTenant(tenant, policy));
    }

    /// Adds to what a tenant has used of its budgets today, before the runtime started.
    pub fn charge_tenant(&self, tenant: TenantId, used: DailyAmounts) {
        self.send(Request::ChargeTenant(tenant, used));
    }

    /// Tells that a day begins: the budgets of tenants are renewed.
    pub fn start_day(&self) {
        self.send(Request::StartDay);
    }

    /// Returns what jobs have used on this node since the last call.
    pub async fn take_usage(&self) -> Vec<JobUsage> {
        let (sender, usage) = oneshot::channel();
        self.send(Request::TakeUsage(sender));
        usage.await.unwrap_or_default()
    }

    /// Connects another node.
    pub fn connect(&self, peer: NewPeer) {
        self.send(Request::Connect(peer));
    }

    /// Returns the doorbell that wakes the runtime.
    pub fn doorbell(&self) -> NodeDoorbell {
        self.doorbell.clone()
    }

    /// Shares the value of an object with another node.
    pub fn share(&self, object: ObjectId, reply: Callback<Result<SealedFile, Fault>>) {
        self.send(Request::Share(object, reply));
    }

    /// Returns a page of cached results of a job, for the node that takes the job over: results from the number `from` on, each
    /// with the number of the next one.
    pub async fn cached_results(&self, name: &str, from: u64) -> Vec<(u64, CachedResult)> {
        let (sender, results) = oneshot::channel();
        self.send(Request::CachedResults(name.into(), from, Box::new(move |page| drop(sender.send(page)))));
        results.await.unwrap_or_default()
    }

    /// Lists the actors of a tenant on this node that outlive the jobs that created them.
    pub async fn detached_actors(&self, tenant: TenantId) -> Vec<ActorRow> {
        let (sender, actors) = oneshot::channel();
        self.send(Request::DetachedActors(tenant, sender));
        actors.await.unwrap_or_default()
    }

    /// Ends the actor of a tenant on this node that has this name or short id and outlives the job that created it. Returns
    /// whether there is one.
    pub async fn end_detached_actor(&self, tenant: TenantId, actor: String) -> bool {
        let (sender, ended) = oneshot::channel();
        self.send(Request::EndDetachedActor(tenant, actor, sender));
        ended.await.unwrap_or(false)
    }

    /// Ends the actors of other tenants than these. The machine's own user keeps its actors.
    pub fn keep_tenants(&self, tenants: BTreeSet<TenantId>) {
        self.send(Request::KeepTenants(tenants));
    }

    /// Drains the node. Returns once no other node needs it, and no job of its own runs.
    pub async fn drain(&self) {
        let (sender, drained) = oneshot::channel();
        self.send(Request::Drain(Box::new(move |()| _ = sender.send(()))));
        // An error means that the runtime has shut down, and is not needed.
        let _ = drained.await;
    }

    /// Returns the id of another job.
    pub(crate) fn next_job(&self) -> JobId {
        JobId(self.next_job.fetch_add(1, Relaxed))
    }

    pub(crate) fn send(&self, request: Request) {
        // A runtime that has shut down drops requests and their senders, so that no caller waits.
        let _ = self.requests.lock().unwrap_or_else(PoisonError::into_inner).send(request);
        self.doorbell.ring();
    }
}

/// A running job. Dropping it stops the job.
pub(crate) struct RunningJob {
    id: JobId,
    handle: RuntimeHandle,
    result: oneshot::Receiver<JobResult>,
    has_ended: bool,
}

impl RunningJob {
    pub(crate) fn id(&self) -> JobId {
        self.id
    }

    pub(crate) fn handle(&self) -> RuntimeHandle {
        self.handle.clone()
    }

    /// Returns the job's result, or `None` if the runtime shuts down first.
    pub(crate) async fn result(&mut self) -> Option<JobResult> {
        let result = (&mut self.result).await;
        self.has_ended = true;
        result.ok()
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        if !self.has_ended {
            self.handle.stop_job(self.id);
        }
    }
}

impl Runtime {
    /// Starts the runtime, and its workers unless they start on demand.
    ///
    /// # Errors
    /// Fails if memory or a thread can't be created.
    pub(crate) fn start(options: RuntimeOptions) -> io::Result<Runtime> {
        let (requests, received) = channel();
        let doorbell = NodeDoorbell::new()?;
        let next_job = Arc::new(AtomicU32::new(1));
        let requests = Arc::new(Mutex::new(requests));
        let handle = RuntimeHandle { requests, doorbell, next_job: next_job.clone(), leases: Arc::default() };
        let RuntimeOptions { engine: engine_options, workers, peers, store } = options;
        let memory_bytes_max = engine_options.memory_bytes_max;
        let driver = ThreadDriver::start(handle.clone(), workers, peers, &store, memory_bytes_max)?;
        let values = ValueStore::new(store_limits(memory_bytes_max));
        let is_contended = handle.leases.is_contended.clone();
        let work = move || {
            // Each large value is a file.
            raise_file_limit();
            let doorbell = driver.handle.doorbell();
            let engine = Engine::new(engine_options, values, next_job, is_contended, Box::new(driver));
            EventLoop { engine, requests: received, doorbell }.run();
        };
        let thread = std::thread::Builder::new().name("runtime".into()).spawn(work)?;
        Ok(Runtime { handle, thread: Some(thread) })
    }

    /// Runs a job.
    pub(crate) fn submit(&self, job: NewJob) -> RunningJob {
        let id = self.handle.next_job();
        let (sender, result) = oneshot::channel();
        self.handle.send(Request::StartJob(id, job, sender));
        RunningJob { id, handle: self.handle.clone(), result, has_ended: false }
    }

    pub(crate) fn handle(&self) -> RuntimeHandle {
        self.handle.clone()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.handle.send(Request::Shutdown);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the limits of the value store, as far as this process may open files.
pub(crate) fn store_limits(memory_bytes_max: u64) -> StoreLimits {
    let files = getrlimit(Resource::Nofile).maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
    StoreLimits { memory_bytes_max, files_max: files.saturating_sub(OTHER_FILES).max(files / 2) as usize }
}

/// The thread's work.
struct EventLoop {
    engine: Engine,
    requests: Receiver<Request>,
    doorbell: NodeDoorbell,
}

impl EventLoop {
    fn run(mut self) {
        let mut frame = Vec::new();
        let (mut last_work, mut last_tick) = (Instant::now(), Instant::now());
        loop {
            let mut worked = false;
            while let Ok(request) = self.requests.try_recv() {
                worked = true;
                if !self.handle(request) {
                    return self.engine.close();
                }
            }
            worked |= self.engine.poll(&mut frame);
            let now = Instant::now();
            if now - last_tick >= TICK {
                last_tick = now;
                self.engine.tick();
            }
            if worked {
                last_work = now;
            } else if now - last_work < SPIN_TIME {
                std::thread::yield_now();
            } else if let Some(request) = self.sleep()
                && !self.handle(request)
            {
                return self.engine.close();
            }
        }
    }

    /// Sleeps until there is work, or a tick is due. May return a request.
    fn sleep(&mut self) -> Option<Request> {
        let time = if self.engine.is_busy() { TICK } else { IDLE_TICK };
        let EventLoop { engine, requests, doorbell } = self;
        let mut request = None;
        doorbell.sleep(Some(time), || {
            engine.announce_sleep(true);
            request = requests.try_recv().ok();
            request.is_some() || engine.has_input()
        });
        engine.announce_sleep(false);
        request
    }

    /// Handles a request. Returns false if the runtime shuts down.
    fn handle(&mut self, request: Request) -> bool {
        let engine = &mut self.engine;
        match request {
            Request::StartJob(id, job, result) => engine.start_job(id, job, result),
            // The thread that starts it waits.
            Request::StartCallJob(id, job, reply) => drop(reply.send(engine.start_call_job(id, job))),
            Request::EndCallJob(id) => engine.end_call_job(id),
            Request::Lease(request) => engine.request_lease(request),
            Request::ReturnLease(id) => engine.return_lease(id),
            Request::StopJob(id, stopped) => {
                engine.stop_job(id);
                drop(stopped);
            }
            // The sender of the query may be gone.
            Request::Inspect(job, query, response) => drop(response.send(engine.inspect(job, query))),
            Request::Connect(peer) => engine.join(peer),
            Request::Share(object, reply) => engine.share(object, reply),
            Request::AddWorkerIds(ids) => engine.add_worker_ids(ids),
            Request::SetTenant(tenant, policy) => engine.set_tenant(tenant, &policy),
            Request::ChargeTenant(tenant, used) => engine.charge_tenant(tenant, used),
            Request::StartDay => engine.start_day(),
            Request::TakeUsage(sender) => drop(sender.send(engine.take_usage())),
            Request::Fetched(number, fetched) => engine.fetched(number, fetched),
            Request::Loaded(node, program, loaded) => engine.loaded(node, program, loaded),
            Request::CachedResults(name, from, reply) => reply(engine.cached_results(&name, from)),
            Request::DetachedActors(tenant, sender) => drop(sender.send(engine.detached_actors(tenant))),
            Request::EndDetachedActor(tenant, actor, sender) => {
                // Nobody may wait for it any more.
                let _ = sender.send(engine.end_detached_actor(tenant, &actor));
            }
            Request::KeepTenants(tenants) => engine.keep_tenants(&tenants),
            Request::Drain(reply) => engine.drain(reply),
            Request::Shutdown => return false,
        }
        true
    }
}

/// Performs the engine's IO. Other threads return their results as requests.
pub(crate) struct ThreadDriver {
    handle: RuntimeHandle,
    workers: ProgramWorkerOptions,
    peers: Option<Arc<dyn ClusterServices>>,
    disk: Disk,
    reader: FileReader,
}

impl ThreadDriver {
    fn start(
        handle: RuntimeHandle,
        workers: ProgramWorkerOptions,
        peers: Option<Arc<dyn ClusterServices>>,
        store: &StoreOptions,
        file_bytes_max: u64,
    ) -> io::Result<ThreadDriver> {
        let folder = SpillFolder::new(store.folder.clone(), store.reserve_bytes);
        let [disk, reader] = [handle.doorbell(), handle.doorbell()];
        let disk = Disk::start(folder, move || disk.ring())?;
        let reader = FileReader::start(file_bytes_max, move || reader.ring())?;
        Ok(ThreadDriver { handle, workers, peers, disk, reader })
    }
}

impl Driver for ThreadDriver {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn monotonic_nanos(&self) -> u64 {
        monotonic_nanos()
    }

    fn start_worker(&mut self, worker: WorkerId, kind: WorkerKind, tenant: TenantId) -> io::Result<BoxedWorkerLink> {
        let name = match kind {
            WorkerKind::Tasks(_) | WorkerKind::RemoteTasks => "tasks",
            WorkerKind::Driver(_) => "driver",
            WorkerKind::Actors(_) => "actors",
            WorkerKind::Actor(_) => "actor",
            WorkerKind::PeerProxy => "peer",
            WorkerKind::Leases => "leases",
        };
        // Children of one actor must not occupy a worker that others share.
        let options = ProgramWorkerOptions { inline: !matches!(kind, WorkerKind::Actors(_)), ..self.workers.clone() };
        Ok(Box::new(ProgramWorker::start(&options, worker, name, tenant, &self.handle.doorbell)?))
    }

    fn has_peers(&self) -> bool {
        self.peers.is_some()
    }

    fn request_worker_ids(&mut self) {
        if let Some(peers) = &self.peers {
            let handle = self.handle.clone();
            peers.worker_ids(Box::new(move |ids| handle.send(Request::AddWorkerIds(ids))));
        }
    }

    fn fetch(&mut self, number: u64, object: RemoteObject) {
        let reply = self.on_fetched(number);
        match &self.peers {
            Some(peers) => peers.fetch(object, reply),
            None => reply(Err(Fault::new(Code::Host, "this node is not in a cluster"))),
        }
    }

    fn on_fetched(&self, number: u64) -> Callback<Result<SealedFile, Fault>> {
        let handle = self.handle.clone();
        Box::new(move |fetched| handle.send(Request::Fetched(number, fetched)))
    }

    fn load(&mut self, node: NodeId, program: u32, component: TenantComponent) {
        if let Some(peers) = &self.peers {
            let handle = self.handle.clone();
            let reply = move |loaded| handle.send(Request::Loaded(node, program, loaded));
            peers.load(node, component, Box::new(reply));
        }
    }

    fn read_file(&mut self, request: ReadRequest) {
        self.reader.read(request);
    }

    fn next_file(&mut self) -> Option<ReadResult> {
        self.reader.next_result()
    }

    fn has_files(&self) -> bool {
        self.reader.has_results()
    }

    fn submit_disk_task(&mut self, task: DiskTask) {
        self.disk.submit(task);
    }

    fn next_disk_completion(&mut self) -> Option<DiskCompletion> {
        self.disk.next_completion()
    }
}
