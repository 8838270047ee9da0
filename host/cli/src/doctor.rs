//! `host doctor`: checks of this machine. The code that a node uses reads each limit.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sandbar_node::Fault;
use sandbar_node::machine::{
    self, DiskSpace, GpuOptions, INSTALL_TARGET, LANDLOCK_ABI, MemoryBound, PROGRAM_ADDRESS_BYTES,
};

use serde::Serialize;

use crate::error::CliError;
use crate::output;
use crate::remedy::{FILES_LEAST, FILES_USUAL, can_be_written};
use crate::table::size;
use crate::walls::{line, missing};

/// Memory, in bytes, below which a warning is shown.
const MEMORY_USUAL_BYTES: u64 = 1 << 30;
/// Disk space, in bytes, below which a warning is shown.
const SPACE_USUAL_BYTES: u64 = 1 << 30;
/// Default size of a UDP socket's buffer on Linux, in bytes.
const UDP_USUAL_BYTES: u64 = 208 << 10;

/// The severity of a finding, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// No action is needed.
    Ok,
    /// A feature is slower or does not work.
    Warn,
    /// Jobs or programs fail.
    Bad,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Bad => "bad",
        }
    }
}

/// A finding.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// The value found.
    value: String,
    /// The consequence and the remedy.
    remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, value: impl Into<String>) -> Check {
        Check { name, verdict: Verdict::Ok, value: value.into(), remedy: None }
    }

    fn warn(name: &'static str, value: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { name, verdict: Verdict::Warn, value: value.into(), remedy: Some(remedy.into()) }
    }

    fn bad(name: &'static str, value: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { verdict: Verdict::Bad, ..Check::warn(name, value, remedy) }
    }

    fn line(&self) -> String {
        let remedy = self.remedy.as_ref().map_or_else(String::new, |remedy| format!(": {remedy}"));
        format!("{:<5} {:<13} {}{remedy}\n", self.verdict.word(), self.name, self.value)
    }
}

#[derive(Serialize)]
struct Report {
    /// Returns the most severe verdict.
    verdict: Verdict,
    checks: Vec<Check>,
}

/// Examines the machine. Builds and fetches nothing, and leaves nothing behind.
pub(crate) async fn run(as_json: bool, software_gpu: bool) -> Result<ExitCode, CliError> {
    let mut checks = vec![programs(), kernel()];
    checks.extend(confinement());
    checks.extend(walls().await);
    checks.extend([memory(), addresses(), swap(), huge_pages(), overcommit(), files(), processors()]);
    checks.extend([temporary_folder(), cache_folder(), state_folder()]);
    checks.extend(gpus(software_gpu).await);
    checks.extend([compiler().await, udp()]);
    let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
    match as_json {
        true => output::json(&Report { verdict, checks })?,
        false => output::print(&checks.iter().map(Check::line).collect::<String>())?,
    }
    Ok(if verdict == Verdict::Bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn programs() -> Check {
    const NAME: &str = "programs";
    match machine::worker() {
        Ok(worker) => Check::ok(NAME, worker.display().to_string()),
        Err(fault) => Check::bad(NAME, "no host-worker", fault.message),
    }
}

fn kernel() -> Check {
    const NAME: &str = "kernel";
    let version = machine::kernel_version().unwrap_or_else(|| "unknown".to_owned());
    if machine::reports_written_pages() {
        return Check::ok(NAME, version);
    }
    let remedy =
        "the kernel does not report written pages, so that resetting a sandbox takes longer; use Linux 6.7 or newer";
    Check::warn(NAME, version, remedy)
}

fn confinement() -> [Check; 2] {
    let support = machine::confinement_support();
    let seccomp = match support.seccomp {
        true => Check::ok("seccomp", "on"),
        false => Check::bad("seccomp", "off", "no worker starts: run on a kernel with CONFIG_SECCOMP_FILTER"),
    };
    const LANDLOCK: &str = "landlock";
    let landlock = match support.landlock_abi {
        Some(abi) if abi >= LANDLOCK_ABI => Check::ok(LANDLOCK, format!("version {abi}")),
        Some(abi) => {
            let remedy = "a compromised GPU driver has more access to devices; use Linux 6.10 or newer for version 5";
            Check::warn(LANDLOCK, format!("version {abi}"), remedy)
        }
        None => {
            let remedy = "a compromised GPU driver can open this user's files: add `landlock` to the kernel's \
                          `lsm=` parameter, on Linux 5.13 or newer";
            Check::warn(LANDLOCK, "off", remedy)
        }
    };
    [seccomp, landlock]
}

/// Checks each kind of processes that handle what tenants have made. seccomp and Landlock have checks of their own.
async fn walls() -> Vec<Check> {
    const NAME: &str = "walls";
    let all = match machine::walls().await {
        Ok(all) => all,
        Err(fault) => return vec![Check::bad(NAME, "unknown", fault.message)],
    };
    let check = |walls: &machine::Walls| {
        let value = format!("{}: {}", walls.process.name(), line(walls));
        match missing(std::slice::from_ref(walls)) {
            missing if missing.is_empty() => Check::ok(NAME, value),
            missing => Check::warn(NAME, value, missing.join("; ")),
        }
    };
    all.iter().map(check).collect()
}

fn memory() -> Check {
    const NAME: &str = "memory";
    let Some((bytes, bound)) = machine::memory_limit() else {
        return Check::warn(NAME, "unknown", "grouped rows get 1 GiB: set --memory and --object-memory");
    };
    let bound = match bound {
        MemoryBound::Machine => "the machine's".to_owned(),
        MemoryBound::ControlGroup(file) => format!("the limit in {}", file.display()),
        MemoryBound::AddressSpace => "ulimit -v".to_owned(),
    };
    let (rows, objects) = (size(machine::memory_for_rows()), size(machine::memory_for_objects()));
    let value = format!("{} ({bound}); {rows} for rows, {objects} for objects", size(bytes));
    if bytes >= MEMORY_USUAL_BYTES {
        return Check::ok(NAME, value);
    }
    Check::warn(NAME, value, "little: raise the limit, or use fewer --workers")
}

fn addresses() -> Check {
    const NAME: &str = "addresses";
    match machine::address_space_bytes() {
        Some(bytes) if bytes < PROGRAM_ADDRESS_BYTES => {
            let needed = size(PROGRAM_ADDRESS_BYTES);
            let remedy = format!("a worker for programs reserves {needed} of addresses: `ulimit -v unlimited`");
            Check::bad(NAME, size(bytes), remedy)
        }
        Some(bytes) => Check::ok(NAME, size(bytes)),
        None => Check::ok(NAME, "not limited"),
    }
}

fn swap() -> Check {
    match machine::may_swap() {
        false => Check::ok("swap", "off"),
        true => Check::warn("swap", "on", "resetting a sandbox takes longer (`swapoff -a` turns it off)"),
    }
}

fn huge_pages() -> Check {
    const NAME: &str = "huge pages";
    const REMEDY: &str =
        "large inputs take longer to map: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`";
    match machine::huge_pages() {
        Some(setting) if setting == "never" => Check::warn(NAME, setting, REMEDY),
        Some(setting) => Check::ok(NAME, setting),
        None => Check::warn(NAME, "none", "large inputs take longer to map: the kernel makes none"),
    }
}

fn overcommit() -> Check {
    const NAME: &str = "overcommit";
    match machine::overcommit() {
        Some(2) => {
            let remedy = "the kernel counts memory that is reserved and not used: `sysctl vm.overcommit_memory=0`, or a \
                          larger vm.overcommit_ratio";
            Check::warn(NAME, "2 (strict)", remedy)
        }
        Some(mode) => Check::ok(NAME, mode.to_string()),
        None => Check::ok(NAME, "unknown"),
    }
}

fn files() -> Check {
    const NAME: &str = "open files";
    let Some(files) = machine::raise_file_limit() else { return Check::ok(NAME, "not limited") };
    let value = format!("{files} (the hard limit: the host raises its own to it)");
    let remedy = format!("raise it (`ulimit -Hn {FILES_USUAL}`, or LimitNOFILE={FILES_USUAL} of a unit)");
    match files {
        0..FILES_LEAST => Check::bad(NAME, value, format!("too few for a node: {remedy}")),
        FILES_LEAST..FILES_USUAL => {
            Check::warn(NAME, value, format!("few for many workers, files or objects: {remedy}"))
        }
        _ => Check::ok(NAME, value),
    }
}

fn processors() -> Check {
    let cores = machine::cores();
    Check::ok(
        "processors",
        match machine::online_cores() {
            Some(online) if online > cores => {
                format!("{cores} of {online} (affinity, or a control group's quota): as many workers")
            }
            _ => format!("{cores}: as many workers"),
        },
    )
}

fn temporary_folder() -> Check {
    const NAME: &str = "TMPDIR";
    let folder = std::env::temp_dir();
    let named = folder.display().to_string();
    if !can_be_written(&folder) {
        let remedy = "rows and objects that do not fit in memory can't go there: set TMPDIR to a writable folder";
        let why = if folder.exists() { "can't be written" } else { "is not there" };
        return Check::bad(NAME, format!("{named} {why}"), remedy);
    }
    let Ok(space) = DiskSpace::query(&folder) else { return Check::ok(NAME, named) };
    let value = format!("{named} ({} free)", size(space.free_bytes));
    if machine::is_in_memory(&folder) {
        return Check::warn(NAME, value, "files there stay in memory: set TMPDIR to a folder on a disk");
    }
    if space.free_bytes < space.reserve_bytes.saturating_add(SPACE_USUAL_BYTES) {
        let reserve = size(space.reserve_bytes);
        let remedy = format!(
            "little space, of which spilled objects leave {reserve} free (--disk-reserve): set TMPDIR to a folder on a larger disk"
        );
        return Check::warn(NAME, value, remedy);
    }
    Check::ok(NAME, value)
}

fn cache_folder() -> Check {
    let check = own_folder("cache", "XDG_CACHE_HOME", machine::find_cache_folder());
    check.unwrap_or_else(|value| {
        let remedy = "trainers can't be stored for later predictions: set XDG_CACHE_HOME to a writable folder";
        Check::bad("cache", value, remedy)
    })
}

fn state_folder() -> Check {
    let check = own_folder("state", "XDG_STATE_HOME", machine::find_state_folder());
    check.unwrap_or_else(|value| {
        let remedy = "programs are not recorded: set XDG_STATE_HOME to a writable folder";
        Check::warn("state", value, remedy)
    })
}

/// Returns a folder of the user, or why it can't be written.
fn own_folder(name: &'static str, variable: &'static str, found: Result<PathBuf, Fault>) -> Result<Check, String> {
    let folder = match found {
        Ok(folder) => folder,
        Err(fault) => return Ok(Check::bad(name, "another user's", fault.message)),
    };
    let named = folder.display();
    // The first write creates the folder.
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    if !can_be_written(there) {
        return Err(format!("{named} can't be written"));
    }
    let space = DiskSpace::query(there).map_err(|e| format!("{named}: {e}"))?;
    let state = if there == folder { "" } else { "not there yet, " };
    let value = format!("{named} ({state}{} free)", size(space.free_bytes));
    if space.free_bytes < SPACE_USUAL_BYTES {
        return Ok(Check::warn(name, value, format!("little space: set {variable} to a folder on a larger disk")));
    }
    Ok(Check::ok(name, value))
}

async fn gpus(is_software: bool) -> Vec<Check> {
    const NAME: &str = "gpu";
    let options = GpuOptions { is_software, ..GpuOptions::default() };
    let found = match machine::gpus(options) {
        Err(fault) => return vec![Check::warn(NAME, "no host-gpu", fault.message)],
        Ok(None) => return vec![Check::ok(NAME, "none: dense algebra runs on the CPU")],
        Ok(Some(machine)) => match machine.list_unmeasured().await {
            Ok(gpus) => gpus.into_iter().map(|gpu| (machine.is_usable(&gpu), gpu)).collect::<Vec<_>>(),
            Err(e) => return vec![Check::warn(NAME, "can't query drivers", e.to_string())],
        },
    };
    if found.is_empty() {
        return vec![Check::ok(NAME, "no Vulkan driver reports one: dense algebra runs on the CPU")];
    }
    let checks = found.into_iter().map(|(is_usable, gpu)| {
        let about = &gpu.about;
        let value = format!("{} ({}, {}, {})", about.name, about.kind, size(about.memory_bytes), about.driver);
        match (&about.refused, is_usable) {
            (Some(why), _) => Check::warn(NAME, value, format!("not used: {why}")),
            (None, false) => Check::ok(NAME, format!("{value}; not used: not a GPU")),
            (None, true) if gpu.costs.is_none() => {
                Check::ok(NAME, format!("{value}; not measured yet: run `host gpu list`"))
            }
            (None, true) => Check::ok(NAME, value),
        }
    });
    checks.collect()
}

async fn compiler() -> Check {
    const NAME: &str = "compiler";
    const RUST: &str = "crates can't be built here, but components can run: install Rust from https://rustup.rs";
    let machine::Toolchain { cargo, rustc, target, has_target } = machine::toolchain().await;
    match (cargo, rustc) {
        (None, _) => Check::warn(NAME, "no cargo in PATH", RUST),
        (_, None) => Check::warn(NAME, "no rustc in PATH", RUST),
        (Some(cargo), Some(rustc)) if has_target => Check::ok(NAME, format!("{cargo}; {rustc}; {target}")),
        (_, Some(rustc)) => {
            let value = format!("{rustc}, without {target}");
            Check::warn(NAME, value, format!("crates can't be built here: {INSTALL_TARGET}"))
        }
    }
}

fn udp() -> Check {
    const NAME: &str = "UDP buffers";
    let Some(buffers) = machine::udp_buffers() else { return Check::ok(NAME, "unknown") };
    let value = format!("{} to receive, {} to send", size(buffers.receive_bytes), size(buffers.send_bytes));
    if buffers.receive_bytes.min(buffers.send_bytes) >= UDP_USUAL_BYTES {
        return Check::ok(NAME, value);
    }
    let remedy = format!(
        "nodes of a cluster lose packets: `sysctl net.core.rmem_default={UDP_USUAL_BYTES} \
         net.core.wmem_default={UDP_USUAL_BYTES}`"
    );
    Check::warn(NAME, value, remedy)
}
