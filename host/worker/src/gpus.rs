//! The processes that have GPUs, as the node holds them: one for each job and GPU, started when a worker first wants one for
//! that job, and ended when none has had one for a while.
//!
//! So what a job's work does to its process, others do not notice. A process is looked at as long as it is
//! there: what takes longer than it may costs it its life, and so does a driver that is lost. Who was connected finds the
//! connection closed, and may get another, to a new process.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sandbar_dense::remote::{FromBroker, GpuOptions, GpuProcess, LIST_ARGUMENT, Looked, SOFTWARE_ARGUMENT, ToBroker};
use sandbar_dense::{Described, Kind};
use sandbar_process::{socket, spawn};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;

use crate::compiler::keep;

/// Processes are looked at so often.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(50);
/// A process that no guest uses is kept for so long: the next one need not wait.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// Drivers that have not said by then which GPUs there are never will.
const LIST_TIME_MAX: Duration = Duration::from_secs(60);
/// Processes of a node at most, and connections of one.
const PROCESSES_MAX: usize = 32;
const CONNECTIONS_MAX: usize = 256;
/// A process that ends before one is connected to it is started again, so often.
const CONNECT_TRIES: u32 = 3;
/// Longest description of all GPUs.
const LIST_BYTES_MAX: usize = 1 << 20;
/// What a process of drivers finds in its environment: where they are, and what they leave alone.
const PASSED_ON: &[&str] =
    &["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "LD_LIBRARY_PATH", "SANDBAR_LAVAPIPE", "HOME", "XDG_CACHE_HOME"];

/// Which GPUs a node's jobs may use, and how.
#[derive(Debug, Clone)]
pub struct GpuLimits {
    /// The program `host-gpu`.
    pub program: PathBuf,
    /// Whether drivers that compute on the processor count as GPUs: then they alone do.
    pub is_software: bool,
    /// Bytes that the tensors of a job may take on one GPU.
    pub memory_bytes_max: u64,
    /// How long a piece of work may take.
    pub time_max: Duration,
}

/// The GPUs of a machine.
#[derive(Debug)]
pub struct Machine {
    limits: GpuLimits,
    /// The file that says what was found before.
    kept: PathBuf,
    found: OnceCell<Vec<Described>>,
}

/// What was found, and what that is true of.
#[derive(Serialize, Deserialize)]
struct Found {
    of: String,
    gpus: Vec<Described>,
}

/// The processes that have GPUs.
#[derive(Debug)]
pub struct Gpus {
    machine: Arc<Machine>,
    processes: Mutex<Vec<Kept>>,
    /// Whose turn it is to start one.
    starting: Mutex<()>,
    /// Where they are looked after, whoever asks.
    runtime: Handle,
}

#[derive(Debug)]
struct Kept {
    job: u64,
    /// The GPU's place.
    place: usize,
    process: GpuProcess,
    idle_since: Option<Instant>,
}

/// A way to a GPU: what that is, its process's socket, and memory that is shared with it.
type Connection = (Described, [OwnedFd; 2]);

impl Machine {
    /// The GPUs of this machine, which are looked for when somebody first asks; what is found is kept in `folder`.
    pub fn new(limits: GpuLimits, folder: &Path) -> Arc<Machine> {
        let name = if limits.is_software { "gpus-software.json" } else { "gpus.json" };
        Arc::new(Machine { limits, kept: folder.join(name), found: OnceCell::new() })
    }

    /// Those that there are, measured, each with its place: those that may not be used as well, with why. As they were found
    /// since the machine began, or else now, which takes drivers a second or more.
    ///
    /// # Errors
    /// When drivers can't be asked.
    pub async fn all(&self) -> io::Result<&[Described]> {
        let find = async || match self.found_before() {
            Some(gpus) => Ok(gpus),
            None => self.find().await,
        };
        self.found.get_or_try_init(find).await.map(Vec::as_slice)
    }

    /// As [`Machine::all`], found and measured now.
    ///
    /// # Errors
    /// As [`Machine::all`].
    pub async fn look_again(&self) -> io::Result<&[Described]> {
        self.found.get_or_try_init(|| self.find()).await.map(Vec::as_slice)
    }

    /// All GPUs, with costs if they were measured since the machine started. Measures and stores nothing.
    ///
    /// # Errors
    /// As [`Machine::all`].
    pub async fn glance(&self) -> io::Result<Vec<Described>> {
        match self.found_before() {
            Some(gpus) => Ok(gpus),
            None => list(&self.limits, false).await,
        }
    }

    async fn find(&self) -> io::Result<Vec<Described>> {
        let gpus = list(&self.limits, true).await?;
        // A driver that is installed next is to be found.
        if !gpus.is_empty() {
            let found = Found { of: self.identity(), gpus };
            // Where it can't be kept it is found again.
            let _ = serde_json::to_vec(&found).map(|bytes| keep(&self.kept, &bytes));
            return Ok(found.gpus);
        }
        Ok(gpus)
    }

    fn found_before(&self) -> Option<Vec<Described>> {
        let found: Found = serde_json::from_slice(&std::fs::read(&self.kept).ok()?).ok()?;
        (found.of == self.identity()).then_some(found.gpus)
    }

    /// What a machine was found to have is true of: this run of it, this program, and these drivers.
    fn identity(&self) -> String {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let program =
            std::fs::metadata(&self.limits.program).and_then(|program| Ok((program.len(), program.modified()?)));
        let drivers: Vec<_> = PASSED_ON.iter().map(std::env::var_os).collect();
        format!("{} {:?} {drivers:?}", boot.trim(), program.ok())
    }

    /// The first of those that jobs may use.
    async fn first(&self) -> Option<Described> {
        let place = *self.usable().await.first()?;
        self.all().await.ok()?.get(place).cloned()
    }

    /// The places of those that jobs may use.
    pub async fn usable(&self) -> Vec<usize> {
        // Where they can't be asked there are none.
        let all = self.all().await.unwrap_or_default().iter().enumerate();
        all.filter(|(_, gpu)| self.is_usable(gpu)).map(|(place, _)| place).collect()
    }

    /// Whether jobs may use a GPU.
    pub fn is_usable(&self, gpu: &Described) -> bool {
        gpu.about.refused.is_none() && (gpu.about.kind == Kind::Software) == self.limits.is_software
    }
}

/// The GPUs that the program lists, measured if that is wanted.
async fn list(limits: &GpuLimits, measured: bool) -> io::Result<Vec<Described>> {
    let mut command = tokio::process::Command::from(command(limits));
    command
        .arg(LIST_ARGUMENT)
        .args(measured.then_some("--measure"))
        .args(limits.is_software.then_some(SOFTWARE_ARGUMENT));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = spawn::in_own_group(|| command.spawn())?.wait_with_output();
    let output = tokio::time::timeout(LIST_TIME_MAX, output).await;
    let output = output.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "a GPU's driver does not come back"))??;
    if !output.status.success() || output.stdout.len() > LIST_BYTES_MAX {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{}: {}", output.status, words.trim())));
    }
    serde_json::from_slice(&output.stdout).map_err(io::Error::other)
}

/// `host-gpu`, with what drivers need of the environment and no more.
fn command(limits: &GpuLimits) -> Command {
    let mut command = Command::new(&limits.program);
    // In a group of its own, as workers: see `pool/link.rs`.
    command.env_clear().stderr(Stdio::null()).process_group(0);
    for name in PASSED_ON {
        if let Some(value) = std::env::var_os(name) {
            command.env(OsStr::new(name), value);
        }
    }
    // Drivers keep what they compiled in the user's folders.
    command.env("MESA_SHADER_CACHE_DISABLE", "1").env("__GL_SHADER_DISK_CACHE", "0");
    command
}

impl Gpus {
    /// Those of a machine. To be made within a runtime.
    pub fn new(machine: Arc<Machine>) -> Arc<Gpus> {
        let (processes, starting) = (Mutex::default(), Mutex::default());
        let gpus = Arc::new(Gpus { machine, processes, starting, runtime: Handle::current() });
        tokio::spawn(look(Arc::downgrade(&gpus)));
        gpus
    }

    /// A socket for a worker's [`Broker`](sandbar_dense::remote::Broker): by it the worker gets connections. `sharers`
    /// workers use a GPU at once, for what costs are told to each.
    ///
    /// # Errors
    /// When there are no more files.
    pub fn broker(self: &Arc<Gpus>, sharers: usize) -> io::Result<OwnedFd> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let _entered = self.runtime.enter();
        // SAFETY: an owned descriptor that nothing but the `AsyncFd` closes or replaces.
        let ours = unsafe { AsyncFd::register_with_interest(ours, Interest::READABLE) }.map_err(io::Error::other)?;
        self.runtime.spawn(broker(self.clone(), ours, u32::try_from(sharers).unwrap_or(u32::MAX)));
        Ok(theirs)
    }

    /// A connection for a job to the GPU that has the fewest. None where there is no GPU, or no room for a process more, or
    /// where the driver makes no device.
    async fn connect(&self, job: u64) -> Option<Connection> {
        let places = self.machine.usable().await;
        for _ in 0..CONNECT_TRIES {
            let mut processes = self.processes.lock().await;
            let place = least_used(&processes, job, &places)?;
            if let Some(at) = of(&processes, job, place) {
                let kept = &mut processes[at];
                if kept.process.connections() >= CONNECTIONS_MAX {
                    return None;
                }
                kept.idle_since = None;
                match kept.process.connect() {
                    Ok((socket, area)) => return Some((kept.process.described().clone(), [socket, area])),
                    // It has ended, and was not looked at since.
                    Err(_) => drop(processes.remove(at)),
                }
            }
            // Those that there are, are looked at while another starts.
            drop(processes);
            if self.start(job, place).await == Started::NoRoom {
                return None;
            }
        }
        None
    }

    /// Starts a process for a job, unless another has meanwhile.
    async fn start(&self, job: u64, place: usize) -> Started {
        let _turn = self.starting.lock().await;
        let mut processes = self.processes.lock().await;
        if of(&processes, job, place).is_some() {
            return Started::Ready;
        }
        if processes.len() >= PROCESSES_MAX {
            // One that nobody uses makes room.
            let Some(unused) = processes.iter().position(|kept| !kept.process.is_used()) else {
                return Started::NoRoom;
            };
            processes.remove(unused);
        }
        drop(processes);
        let Ok(process) = self.process(place).await else { return Started::Failed };
        self.processes.lock().await.push(Kept { job, place, process, idle_since: None });
        Started::Ready
    }

    async fn process(&self, place: usize) -> io::Result<GpuProcess> {
        let limits = self.machine.limits.clone();
        let found = self.machine.all().await?.get(place);
        let (costs, processor) = (found.and_then(|gpu| gpu.costs), found.and_then(|gpu| gpu.processor));
        let GpuLimits { is_software, memory_bytes_max, .. } = limits;
        let options = GpuOptions { place, is_software, memory_bytes_max, costs, processor };
        let started = tokio::task::spawn_blocking(move || GpuProcess::start(&mut command(&limits), &options));
        started.await.map_err(io::Error::other)?
    }
}

/// What came of starting a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Started {
    Ready,
    /// It ended while it began, or makes no device.
    Failed,
    NoRoom,
}

/// The process of a job for a GPU, if there is one.
fn of(processes: &[Kept], job: u64, place: usize) -> Option<usize> {
    processes.iter().position(|kept| (kept.job, kept.place) == (job, place))
}

/// The GPU with the fewest connections; of several the one where the job has some already.
fn least_used(processes: &[Kept], job: u64, places: &[usize]) -> Option<usize> {
    let connections = |place: usize, is_counted: &dyn Fn(&Kept) -> bool| -> usize {
        let there = processes.iter().filter(|kept| kept.place == place && is_counted(kept));
        there.map(|kept| kept.process.connections()).sum()
    };
    let use_of = |place: &&usize| (connections(**place, &|_| true), connections(**place, &|kept| kept.job != job));
    places.iter().min_by_key(use_of).copied()
}

/// Gives a worker connections, until it closes its socket.
async fn broker(gpus: Arc<Gpus>, worker: AsyncFd<OwnedFd>, sharers: u32) {
    let (mut received, mut frame) = (Vec::new(), Vec::new());
    loop {
        let Ok(mut ready) = worker.readable().await else { return };
        let asked = match ready.try_io(|socket| socket::receive(socket, &mut received)) {
            Ok(Ok(Some((asked, _)))) => asked,
            Err(_would_block) => continue,
            Ok(_) => return,
        };
        let (described, connection) = match asked {
            ToBroker::Describe => (gpus.machine.first().await.map(|gpu| gpu.shared_by(sharers)), None),
            ToBroker::Connect { job } => gpus.connect(job).await.unzip(),
        };
        let files = connection.iter().flatten().map(AsFd::as_fd);
        let said = socket::frame(&FromBroker(described), &mut frame)
            .and_then(|frame| socket::send(&worker, frame, &files.collect::<Vec<_>>()));
        if said.is_err() {
            return;
        }
    }
}

/// Looks at processes until nobody can ask for one any more.
async fn look(gpus: Weak<Gpus>) {
    let mut tick = tokio::time::interval(LOOKED_AT_EVERY);
    loop {
        tick.tick().await;
        let Some(gpus) = gpus.upgrade() else { return };
        let time_max = gpus.machine.limits.time_max;
        gpus.processes.lock().await.retain_mut(|kept| {
            let is_well = kept.process.look(time_max) == Looked::Well;
            if kept.process.is_used() {
                kept.idle_since = None;
                return is_well;
            }
            is_well && kept.idle_since.get_or_insert_with(Instant::now).elapsed() < KEPT_FOR
        });
    }
}
