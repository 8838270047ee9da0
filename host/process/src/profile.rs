//! Profiles of confined processes: what each kind may do once it is confined.

use serde::{Deserialize, Serialize};

use crate::calls::{AllowedCall, COMPUTING, DRIVING, OtherCalls};
use crate::files::FileAccess;

/// Kinds of processes that handle what tenants have made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessKind {
    /// A worker of job files, which also describes components.
    Worker,
    /// A worker of programs.
    ProgramWorker,
    /// The compiler of a component.
    Compiler,
    /// A process that drives a GPU.
    Gpu,
}

/// What a process may do once it is confined.
#[derive(Debug, Clone)]
pub struct Profile<'a> {
    /// Kind of the process.
    pub kind: ProcessKind,
    /// Allowed system calls, in groups.
    pub calls: &'static [&'static [AllowedCall]],
    /// What happens when it makes another system call.
    pub other_calls: OtherCalls,
    /// Files that it may open.
    pub files: FileAccess<'a>,
    /// Whether it has user and mount namespaces of its own, with an empty root folder.
    pub has_namespaces: bool,
    /// Whether it may start threads.
    pub starts_threads: bool,
    /// Whether its standard error goes nowhere.
    pub silences_stderr: bool,
    /// Limit of a file that it writes, in bytes: memory files, because it can open no others.
    pub file_bytes_max: Option<u64>,
    /// Limit of the private memory that it may write beyond what it has reserved, in bytes.
    pub memory_bytes_max: Option<u64>,
    /// Limit of its address space, in bytes.
    pub address_bytes_max: Option<u64>,
    /// Limit of its processor time, in seconds.
    pub cpu_seconds_max: Option<u64>,
}

impl ProcessKind {
    /// All kinds.
    pub const ALL: [ProcessKind; 4] =
        [ProcessKind::Worker, ProcessKind::ProgramWorker, ProcessKind::Compiler, ProcessKind::Gpu];

    /// Returns its name: `worker`, `program-worker`, `compiler`, `gpu`.
    pub fn name(self) -> &'static str {
        match self {
            ProcessKind::Worker => "worker",
            ProcessKind::ProgramWorker => "program-worker",
            ProcessKind::Compiler => "compiler",
            ProcessKind::Gpu => "gpu",
        }
    }

    /// Returns the maximum number of its open files.
    pub(crate) fn open_files_max(self) -> u64 {
        match self {
            // Files of one call.
            ProcessKind::Worker | ProcessKind::Compiler => 256,
            // Mostly files of values that tasks hold.
            ProcessKind::ProgramWorker => 4096,
            // Sockets and memory of connections, and files that drivers open.
            ProcessKind::Gpu => 4096,
        }
    }

    /// Returns whether it ends with the node's thread that started it. That thread may end before a GPU process, which ends
    /// when its node closes the socket.
    pub(crate) fn ends_with_starting_thread(self) -> bool {
        self != ProcessKind::Gpu
    }
}

/// Bytes that memory files may have beyond the values or memories in them: they are rounded up to large pages.
const FILE_ROOM_BYTES: u64 = 4 << 20;
/// Bytes of the compiler's output.
const COMPILER_FILE_BYTES_MAX: u64 = 1 << 30;

impl Profile<'static> {
    /// Profile of a worker whose sandboxes have up to `sandbox_bytes_max` bytes of memory.
    pub fn worker(sandbox_bytes_max: u64) -> Profile<'static> {
        Profile {
            kind: ProcessKind::Worker,
            calls: COMPUTING,
            other_calls: OtherCalls::Kill,
            files: FileAccess::None,
            has_namespaces: true,
            starts_threads: false,
            silences_stderr: true,
            file_bytes_max: Some(sandbox_bytes_max.saturating_add(FILE_ROOM_BYTES)),
            memory_bytes_max: Some(private_memory_bytes_max()),
            address_bytes_max: None,
            cpu_seconds_max: None,
        }
    }

    /// Profile of a worker of programs, whose sandboxes have up to `sandbox_bytes_max` and whose values up to
    /// `value_bytes_max` bytes.
    pub fn program_worker(sandbox_bytes_max: u64, value_bytes_max: u64) -> Profile<'static> {
        Profile { kind: ProcessKind::ProgramWorker, ..Profile::worker(sandbox_bytes_max.max(value_bytes_max)) }
    }

    /// Profile of the compiler of a component, with limits of its address space and its processor time.
    pub fn compiler(address_bytes_max: u64, cpu_seconds_max: u64) -> Profile<'static> {
        Profile {
            kind: ProcessKind::Compiler,
            silences_stderr: false,
            file_bytes_max: Some(COMPILER_FILE_BYTES_MAX),
            memory_bytes_max: None,
            address_bytes_max: Some(address_bytes_max),
            cpu_seconds_max: Some(cpu_seconds_max),
            ..Profile::worker(0)
        }
    }
}

impl<'a> Profile<'a> {
    /// Profile of a process that drives a GPU, and may read `files`.
    ///
    /// It has no namespaces of its own: drivers reach their devices through `/dev`, `/proc` and `/sys`. A call that is not
    /// allowed fails: drivers try calls that they can do without.
    pub fn gpu(files: FileAccess<'a>) -> Profile<'a> {
        Profile {
            kind: ProcessKind::Gpu,
            calls: DRIVING,
            other_calls: OtherCalls::Fail,
            files,
            has_namespaces: false,
            starts_threads: true,
            silences_stderr: false,
            file_bytes_max: None,
            memory_bytes_max: None,
            address_bytes_max: None,
            cpu_seconds_max: None,
        }
    }

    /// Iterates over the allowed system calls.
    pub fn allowed_calls(&self) -> impl Iterator<Item = &'static AllowedCall> + use<> {
        self.calls.iter().copied().flatten()
    }
}

/// Returns the private memory that a worker may have beyond its reservations, in bytes: twice the machine's memory, because
/// memory counts that a sandbox has and never touched.
fn private_memory_bytes_max() -> u64 {
    // SAFETY: the call reads a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    let pages = u64::try_from(pages).unwrap_or(u64::MAX);
    pages.saturating_mul(2 * rustix::param::page_size() as u64)
}
