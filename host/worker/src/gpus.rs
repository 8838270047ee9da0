//! The node's handles of GPU processes: one process per job and GPU, started on the job's first request and stopped
//! when idle.
//!
//! A separate process per job isolates jobs from each other's GPU faults. Each process is checked periodically: it is
//! killed when a piece of work exceeds its time limit or when its driver is lost. Its clients then see a closed
//! connection and may request another one, to a new process.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sandbar_core::TenantId;
use sandbar_dense::remote::{
    BrokerRequest, BrokerResponse, GpuOptions, GpuProcess, LIST_ARGUMENT, ProcessState, SOFTWARE_ARGUMENT,
};
use sandbar_dense::{DeviceKind, DeviceProfile};
use sandbar_machine::write_atomically;
use sandbar_process::{socket, spawn};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;

/// Interval between checks of the processes.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time after which an idle process is stopped. Until then, a new client need not wait for a start.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum time for drivers to list the GPUs.
const LIST_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum number of processes per node, and of connections per process.
const PROCESSES_MAX: usize = 32;
const CONNECTIONS_MAX: usize = 256;
/// Number of attempts to start a process and connect to it.
const CONNECT_TRIES: u32 = 3;
/// Maximum bytes of the description of all GPUs.
const LIST_BYTES_MAX: usize = 1 << 20;
/// Environment variables that a GPU process inherits: locations of drivers, and their settings.
const ENVIRONMENT_PASSED: &[&str] =
    &["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "LD_LIBRARY_PATH", "SANDBAR_LAVAPIPE", "HOME", "XDG_CACHE_HOME"];

/// The GPUs that the jobs of a node may use, and their limits.
#[derive(Debug, Clone)]
pub struct GpuLimits {
    /// Path of the program `host-gpu`.
    pub program: PathBuf,
    /// Whether software drivers count as GPUs. If so, only they do.
    pub is_software: bool,
    /// Maximum bytes of a job's tensors on one GPU.
    pub memory_bytes_max: u64,
    /// Maximum time of one piece of work.
    pub time_max: Duration,
}

/// The GPUs of a machine.
#[derive(Debug)]
pub struct GpuMachine {
    limits: GpuLimits,
    /// The cache file of the listed GPUs.
    cache_file: PathBuf,
    found: OnceCell<Vec<DeviceProfile>>,
}

/// Cached list of GPUs, with the identity of the machine for which it holds.
#[derive(Serialize, Deserialize)]
struct CachedGpus {
    of: String,
    gpus: Vec<DeviceProfile>,
}

/// The GPU processes of a node.
#[derive(Debug)]
pub struct GpuProcesses {
    machine: Arc<GpuMachine>,
    processes: Mutex<Vec<JobProcess>>,
    /// Serializes starts of processes.
    starting: Mutex<()>,
    /// The runtime that drives the connections, whichever thread requests them.
    runtime: Handle,
}

#[derive(Debug)]
struct JobProcess {
    job: TenantJob,
    /// Index of the GPU.
    place: usize,
    process: GpuProcess,
    idle_since: Option<Instant>,
}

/// A job by its number, which a worker tells, and the tenant of that worker: a worker reaches jobs of its tenant only.
type TenantJob = (TenantId, u64);

/// A connection to a GPU: its description, the socket of its process, and the memory shared with it.
type Connection = (DeviceProfile, [OwnedFd; 2]);

impl GpuMachine {
    /// Creates the list of GPUs, which is filled on first use and cached in `folder`.
    pub fn new(limits: GpuLimits, folder: &Path) -> Arc<GpuMachine> {
        let name = if limits.is_software { "gpus-software.json" } else { "gpus.json" };
        Arc::new(GpuMachine { limits, cache_file: folder.join(name), found: OnceCell::new() })
    }

    /// Returns all GPUs with their measured costs, including refused GPUs with the reason. The list comes from the
    /// cache if the machine has not restarted since; otherwise drivers are queried, which takes a second or more.
    ///
    /// # Errors
    /// When the drivers cannot be queried.
    pub async fn all(&self) -> io::Result<&[DeviceProfile]> {
        let find = async || match self.cached() {
            Some(gpus) => Ok(gpus),
            None => self.find().await,
        };
        self.found.get_or_try_init(find).await.map(Vec::as_slice)
    }

    /// Like [`GpuMachine::all`], but lists and measures the GPUs again.
    ///
    /// # Errors
    /// Those of [`GpuMachine::all`].
    pub async fn measure_again(&self) -> io::Result<&[DeviceProfile]> {
        self.found.get_or_try_init(|| self.find()).await.map(Vec::as_slice)
    }

    /// Returns all GPUs, with costs if they were measured since the machine started. Measures and stores nothing.
    ///
    /// # Errors
    /// Those of [`GpuMachine::all`].
    pub async fn list_unmeasured(&self) -> io::Result<Vec<DeviceProfile>> {
        match self.cached() {
            Some(gpus) => Ok(gpus),
            None => list(&self.limits, false).await,
        }
    }

    async fn find(&self) -> io::Result<Vec<DeviceProfile>> {
        let gpus = list(&self.limits, true).await?;
        // An empty list is not cached, so that a driver that is installed later is found.
        if !gpus.is_empty() {
            let found = CachedGpus { of: self.identity(), gpus };
            // Without a cache file, the next process lists the GPUs again.
            let _ = serde_json::to_vec(&found).map(|bytes| write_atomically(&self.cache_file, &bytes));
            return Ok(found.gpus);
        }
        Ok(gpus)
    }

    fn cached(&self) -> Option<Vec<DeviceProfile>> {
        let found: CachedGpus = serde_json::from_slice(&std::fs::read(&self.cache_file).ok()?).ok()?;
        (found.of == self.identity()).then_some(found.gpus)
    }

    /// Returns the identity for which a cached list holds: this boot of the machine, this program and these drivers.
    fn identity(&self) -> String {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let program =
            std::fs::metadata(&self.limits.program).and_then(|program| Ok((program.len(), program.modified()?)));
        let drivers: Vec<_> = ENVIRONMENT_PASSED.iter().map(std::env::var_os).collect();
        format!("{} {:?} {drivers:?}", boot.trim(), program.ok())
    }

    /// Returns the first GPU that jobs may use.
    async fn first(&self) -> Option<DeviceProfile> {
        let place = *self.usable().await.first()?;
        self.all().await.ok()?.get(place).cloned()
    }

    /// Returns the indices of the GPUs that jobs may use.
    pub async fn usable(&self) -> Vec<usize> {
        // A machine whose drivers cannot be queried has no usable GPU.
        let all = self.all().await.unwrap_or_default().iter().enumerate();
        all.filter(|(_, gpu)| self.is_usable(gpu)).map(|(place, _)| place).collect()
    }

    /// Returns whether jobs may use a GPU.
    pub fn is_usable(&self, gpu: &DeviceProfile) -> bool {
        gpu.about.refused.is_none() && (gpu.about.kind == DeviceKind::Software) == self.limits.is_software
    }
}

/// Runs the program to list the GPUs, with measurements if `measured`.
async fn list(limits: &GpuLimits, measured: bool) -> io::Result<Vec<DeviceProfile>> {
    let mut command = tokio::process::Command::from(command(limits));
    command
        .arg(LIST_ARGUMENT)
        .args(measured.then_some("--measure"))
        .args(limits.is_software.then_some(SOFTWARE_ARGUMENT));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = spawn::in_own_group(|| command.spawn())?.wait_with_output();
    let output = tokio::time::timeout(LIST_TIME_MAX, output).await;
    let output =
        output.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the GPU drivers did not answer in time"))??;
    if !output.status.success() || output.stdout.len() > LIST_BYTES_MAX {
        let error_text = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{}: {}", output.status, error_text.trim())));
    }
    serde_json::from_slice(&output.stdout).map_err(io::Error::other)
}

/// Returns the command of `host-gpu`, with only the environment that drivers need.
fn command(limits: &GpuLimits) -> Command {
    let mut command = Command::new(&limits.program);
    // Its own process group, for the same reason as workers: see `child.rs`.
    command.env_clear().stderr(Stdio::null()).process_group(0);
    for name in ENVIRONMENT_PASSED {
        if let Some(value) = std::env::var_os(name) {
            command.env(OsStr::new(name), value);
        }
    }
    // Disables the drivers' shader caches, which lie in the user's folders.
    command.env("MESA_SHADER_CACHE_DISABLE", "1").env("__GL_SHADER_DISK_CACHE", "0");
    command
}

impl GpuProcesses {
    /// Creates the handles for the GPUs of a machine. Must be called within a tokio runtime.
    pub fn new(machine: Arc<GpuMachine>) -> Arc<GpuProcesses> {
        let (processes, starting) = (Mutex::default(), Mutex::default());
        let gpus = Arc::new(GpuProcesses { machine, processes, starting, runtime: Handle::current() });
        tokio::spawn(watch(Arc::downgrade(&gpus)));
        gpus
    }

    /// Returns a socket for a worker's [`Broker`](sandbar_dense::remote::Broker), through which the worker obtains
    /// connections for jobs of its tenant. `sharers` is the number of workers that use a GPU at once; the costs reported to each are scaled by
    /// it.
    ///
    /// # Errors
    /// When no more files can be opened.
    pub fn broker(self: &Arc<GpuProcesses>, tenant: TenantId, sharers: usize) -> io::Result<OwnedFd> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let _entered = self.runtime.enter();
        // SAFETY: an owned descriptor that only the `AsyncFd` closes or replaces.
        let ours = unsafe { AsyncFd::register_with_interest(ours, Interest::READABLE) }.map_err(io::Error::other)?;
        self.runtime.spawn(broker(self.clone(), ours, tenant, u32::try_from(sharers).unwrap_or(u32::MAX)));
        Ok(theirs)
    }

    /// Connects a job to the usable GPU with the fewest connections. Returns `None` if there is no usable GPU, no room
    /// for another process, or no device from the driver.
    async fn connect(&self, job: TenantJob) -> Option<Connection> {
        let places = self.machine.usable().await;
        for _ in 0..CONNECT_TRIES {
            let mut processes = self.processes.lock().await;
            let place = least_used(&processes, job, &places)?;
            if let Some(at) = position(&processes, job, place) {
                let entry = &mut processes[at];
                if entry.process.connections() >= CONNECTIONS_MAX {
                    return None;
                }
                entry.idle_since = None;
                match entry.process.connect() {
                    Ok((socket, area)) => return Some((entry.process.profile().clone(), [socket, area])),
                    // The process has ended since the last check.
                    Err(_) => drop(processes.remove(at)),
                }
            }
            // Releases the lock, so that the other processes are checked while one starts.
            drop(processes);
            if self.start(job, place).await == StartResult::NoRoom {
                return None;
            }
        }
        None
    }

    /// Starts a process for a job, unless another caller has started it meanwhile.
    async fn start(&self, job: TenantJob, place: usize) -> StartResult {
        let _guard = self.starting.lock().await;
        let mut processes = self.processes.lock().await;
        if position(&processes, job, place).is_some() {
            return StartResult::Ready;
        }
        if processes.len() >= PROCESSES_MAX {
            // Stops an unused process to make room.
            let Some(unused) = processes.iter().position(|entry| !entry.process.is_used()) else {
                return StartResult::NoRoom;
            };
            processes.remove(unused);
        }
        drop(processes);
        let Ok(process) = self.process(place).await else { return StartResult::Failed };
        self.processes.lock().await.push(JobProcess { job, place, process, idle_since: None });
        StartResult::Ready
    }

    async fn process(&self, place: usize) -> io::Result<GpuProcess> {
        let limits = self.machine.limits.clone();
        let found = self.machine.all().await?.get(place);
        let (costs, processor) = (found.and_then(|gpu| gpu.costs), found.and_then(|gpu| gpu.processor));
        let GpuLimits { is_software, memory_bytes_max, .. } = limits;
        let options = GpuOptions { index: place, is_software, memory_bytes_max, costs, processor };
        let started = tokio::task::spawn_blocking(move || GpuProcess::start(&mut command(&limits), &options));
        started.await.map_err(io::Error::other)?
    }
}

/// Result of starting a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartResult {
    Ready,
    /// The process ended during its start, or cannot create a device.
    Failed,
    NoRoom,
}

/// Returns the position of a job's process for a GPU, if there is one.
fn position(processes: &[JobProcess], job: TenantJob, place: usize) -> Option<usize> {
    processes.iter().position(|entry| (entry.job, entry.place) == (job, place))
}

/// Returns the GPU with the fewest connections; among several, the one that the job already uses.
fn least_used(processes: &[JobProcess], job: TenantJob, places: &[usize]) -> Option<usize> {
    let connections = |place: usize, is_counted: &dyn Fn(&JobProcess) -> bool| -> usize {
        let there = processes.iter().filter(|entry| entry.place == place && is_counted(entry));
        there.map(|entry| entry.process.connections()).sum()
    };
    let use_of = |place: &&usize| (connections(**place, &|_| true), connections(**place, &|entry| entry.job != job));
    places.iter().min_by_key(use_of).copied()
}

/// Hands connections to a worker until it closes its socket.
async fn broker(gpus: Arc<GpuProcesses>, worker: AsyncFd<OwnedFd>, tenant: TenantId, sharers: u32) {
    let (mut received, mut frame) = (Vec::new(), Vec::new());
    loop {
        let Ok(mut ready) = worker.readable().await else { return };
        let request = match ready.try_io(|socket| socket::receive(socket, &mut received)) {
            Ok(Ok(Some((request, _)))) => request,
            Err(_would_block) => continue,
            Ok(_) => return,
        };
        let (described, connection) = match request {
            BrokerRequest::Describe => (gpus.machine.first().await.map(|gpu| gpu.shared_by(sharers)), None),
            BrokerRequest::Connect { job } => gpus.connect((tenant, job)).await.unzip(),
        };
        let files = connection.iter().flatten().map(AsFd::as_fd);
        let sent = socket::frame(&BrokerResponse(described), &mut frame)
            .and_then(|frame| socket::send(&worker, frame, &files.collect::<Vec<_>>()));
        if sent.is_err() {
            return;
        }
    }
}

/// Checks the processes until their owner is dropped.
async fn watch(gpus: Weak<GpuProcesses>) {
    let mut tick = tokio::time::interval(CHECK_INTERVAL);
    loop {
        tick.tick().await;
        let Some(gpus) = gpus.upgrade() else { return };
        let time_max = gpus.machine.limits.time_max;
        gpus.processes.lock().await.retain_mut(|entry| {
            let is_well = entry.process.check(time_max) == ProcessState::Healthy;
            if entry.process.is_used() {
                entry.idle_since = None;
                return is_well;
            }
            is_well && entry.idle_since.get_or_insert_with(Instant::now).elapsed() < IDLE_TIME_MAX
        });
    }
}
