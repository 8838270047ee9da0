//! What is usual on this machine: folders, and shares of its memory.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use sandbar_worker::{GpuLimits, GpuMachine};

use crate::memory::usable_bytes;

/// Share of the machine's memory that grouped rows may take before they spill.
const MEMORY_SHARE: f64 = 0.4;
/// Share that objects of programs may take.
const OBJECTS_SHARE: f64 = 0.3;
/// Share of memory for the stored bytes of morsels in flight. Decoded morsels are several times as large.
const READING_SHARE: f64 = 0.25;
const MEMORY_FALLBACK_BYTES: u64 = 1 << 30;
/// What the host and its workers take beside rows while they read large row groups, about.
const READING_BYTES: u64 = 160 << 20;

/// The program of workers and of the compiler: it is installed beside this one.
///
/// # Errors
/// When it is not there.
pub fn worker() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|e| format!("where this program is can't be found out: {e}"))?;
    let worker = this.with_file_name("host-worker");
    if worker.is_file() {
        Ok(worker)
    } else {
        Err(format!("{} is missing: install `host-worker` beside this program", worker.display()))
    }
}

/// The folders of functions that come with this program, of those that are there: `share/sandbar/udfs` beside the folder
/// that it is installed in, and `udfs` of the checkout that it was built from.
pub fn shipped() -> Vec<PathBuf> {
    let installed = std::env::current_exe().ok();
    let installed = installed.as_deref().and_then(Path::parent).and_then(Path::parent);
    let installed = installed.map(|prefix| prefix.join("share/sandbar/udfs"));
    let own = checkout().map(|checkout| checkout.join("udfs"));
    installed.into_iter().chain(own).filter(|folder| folder.is_dir()).collect()
}

/// The checkout that this program was built from, if it is there.
pub fn checkout() -> Option<PathBuf> {
    Path::new(MANIFEST).parent().filter(|folder| folder.is_dir()).map(Path::to_owned)
}

/// The `Cargo.toml` of the checkout this program was built from; `.cargo/config.toml` says why not by cargo's own words.
const MANIFEST: &str = match option_env!("SANDBAR_MANIFEST") {
    Some(manifest) => manifest,
    None => concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"),
};

/// The GPUs of this machine, as jobs may use them: none where no device is there that could be one.
///
/// # Errors
/// When the program that has them is not there.
pub fn gpus(limits: GpuOptions) -> Result<Option<Arc<GpuMachine>>, String> {
    let GpuOptions { is_software, memory_bytes_max, time_max } = limits;
    if !is_software && !DEVICES.iter().any(|device| Path::new(device).exists()) {
        return Ok(None);
    }
    let program = worker()?.with_file_name("host-gpu");
    if !program.is_file() {
        return Err(format!("{} is missing: install `host-gpu` beside this program", program.display()));
    }
    let limits = GpuLimits { program, is_software, memory_bytes_max, time_max };
    Ok(Some(GpuMachine::new(limits, &cache_folder()?)))
}

/// One of these is where drivers have something to drive.
const DEVICES: &[&str] = &["/dev/dri", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd"];

/// What jobs may use of GPUs.
#[derive(Debug, Clone, Copy)]
pub struct GpuOptions {
    /// Whether drivers that compute on the processor count as GPUs: then they alone do.
    pub is_software: bool,
    /// Bytes that the tensors of a job may take on one.
    pub memory_bytes_max: u64,
    /// How long a piece of work may take.
    pub time_max: Duration,
}

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions { is_software: false, memory_bytes_max: u64::MAX, time_max: Duration::from_secs(10) }
    }
}

/// The user's folder for what can be made again: no other user's, who could put native code into it.
///
/// # Errors
/// When it is another user's.
pub fn cache_folder() -> Result<PathBuf, String> {
    CACHE.make()
}

/// As [`cache_folder`], which may not be there yet: nothing is made.
///
/// # Errors
/// When it is another user's.
pub fn find_cache_folder() -> Result<PathBuf, String> {
    CACHE.find()
}

/// The user's folder for what is kept of jobs: no other user's, who could read and answer in their place.
///
/// # Errors
/// When it is another user's.
pub fn state_folder() -> Result<PathBuf, String> {
    STATE.make()
}

/// As [`state_folder`], which may not be there yet: nothing is made.
///
/// # Errors
/// When it is another user's.
pub fn find_state_folder() -> Result<PathBuf, String> {
    STATE.find()
}

const CACHE: OwnFolder = OwnFolder { variable: "XDG_CACHE_HOME", in_home: ".cache", temporary: "sandbar" };
const STATE: OwnFolder = OwnFolder { variable: "XDG_STATE_HOME", in_home: ".local/state", temporary: "sandbar-state" };

/// A folder of the user's own: where `variable` says, or in the home, or, without one, in the temporary folder.
struct OwnFolder {
    variable: &'static str,
    in_home: &'static str,
    temporary: &'static str,
}

impl OwnFolder {
    fn find(&self) -> Result<PathBuf, String> {
        let (folder, _) = self.place();
        refuse_of_others(&folder, geteuid().as_raw(), self.variable)?;
        Ok(folder)
    }

    /// The same, which is made in the temporary folder, where others may make one as well.
    fn make(&self) -> Result<PathBuf, String> {
        if let (folder, true) = self.place() {
            // A cache that can't be written is slower, not wrong.
            let _ = DirBuilder::new().mode(0o700).create(folder);
        }
        self.find()
    }

    /// Where it is, and whether that is in the temporary folder.
    fn place(&self) -> (PathBuf, bool) {
        let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        match from(self.variable).or_else(|| from("HOME").map(|home| home.join(self.in_home))) {
            Some(base) => (base.join("sandbar"), false),
            None => (std::env::temp_dir().join(format!("{}-{}", self.temporary, geteuid().as_raw())), true),
        }
    }
}

/// Refuses a folder, and a link to one, of somebody else than `user` and root.
fn refuse_of_others(folder: &Path, user: u32, variable: &str) -> Result<(), String> {
    for found in [fs::symlink_metadata(folder), fs::metadata(folder)].into_iter().flatten() {
        let owner = found.uid();
        if owner != user && owner != 0 {
            return Err(format!(
                "the folder {} belongs to another user (of id {owner}); set {variable} to a folder of your own",
                folder.display()
            ));
        }
    }
    Ok(())
}

/// Raises the number of files that this process may have open to the most that it may be: sockets of workers, files
/// that are read, and large objects each are one. Gives that number, where there is one.
pub fn raise_file_limit() -> Option<u64> {
    let files = getrlimit(Resource::Nofile);
    // The hard limit is one that a process may set.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    getrlimit(Resource::Nofile).current
}

/// Names of a folder that are looked through for suggestions.
const SUGGESTED_FROM_MAX: usize = 10_000;

/// That a path leads to nothing: what was looked for, where, and what is there that is called nearly so.
pub fn missing(what: &str, path: &Path) -> String {
    let hint = sandbar_core::hint(&path.display().to_string(), &names_beside(path));
    format!("there is no {what} `{}` {}{hint}", path.display(), relative_to(path))
}

/// What a path is relative to, in words.
pub(crate) fn relative_to(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(folder) if path.is_relative() => {
            format!("in {} (paths are relative to the folder that the host runs in)", folder.display())
        }
        _ => "on this machine".to_owned(),
    }
}

/// The paths beside one that is not there, as it would be written.
pub(crate) fn names_beside(path: &Path) -> Vec<String> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let read = fs::read_dir(if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    let entries = read.into_iter().flatten().take(SUGGESTED_FROM_MAX).flatten();
    let mut names: Vec<String> = entries.map(|entry| folder.join(entry.file_name()).display().to_string()).collect();
    names.sort();
    names
}

/// Bytes that grouped rows may take.
pub fn memory_for_rows() -> u64 {
    usable_bytes().map_or(MEMORY_FALLBACK_BYTES, rows_share)
}

/// What rows get of so many bytes: less than their share where that would leave too little to read files.
fn rows_share(bytes: u64) -> u64 {
    let share = (bytes as f64 * MEMORY_SHARE) as u64;
    share.min(bytes.saturating_sub(READING_BYTES).max(bytes / 8))
}

/// Number of morsels to read concurrently: one more than workers, fewer if their bytes would exceed [`READING_SHARE`].
pub(crate) fn morsels_at_once(workers: usize, morsel_bytes: u64) -> usize {
    at_once(memory(READING_SHARE), workers, morsel_bytes)
}

fn at_once(bytes: u64, workers: usize, morsel_bytes: u64) -> usize {
    usize::try_from(bytes / morsel_bytes.max(1)).unwrap_or(usize::MAX).clamp(1, workers + 1)
}

/// Bytes that objects of programs may take.
pub fn memory_for_objects() -> u64 {
    memory(OBJECTS_SHARE)
}

/// A share of what this process may use.
fn memory(share: f64) -> u64 {
    usable_bytes().map_or(MEMORY_FALLBACK_BYTES, |bytes| (bytes as f64 * share) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_memory_is_left_to_the_reading_of_files() {
        const MIB: u64 = 1 << 20;
        for (usable, rows) in [(100, 12), (160, 20), (200, 40), (260, 100), (300, 120), (1000, 400), (100_000, 40_000)]
        {
            assert_eq!(rows_share(usable * MIB) / MIB, rows, "{usable} MiB");
        }
    }

    #[test]
    fn few_large_morsels_are_read_at_once_where_there_is_little_memory() {
        const MIB: u64 = 1 << 20;
        for (mib, workers, morsel_mib, expected) in [
            (30, 2, 26, 1),
            (10, 2, 26, 1),
            (64, 2, 26, 2),
            (1000, 2, 26, 3),
            (1000, 16, 200, 5),
            (0, 1, 0, 1),
            (5, 1, 0, 2),
        ] {
            assert_eq!(at_once(mib * MIB, workers, morsel_mib * MIB), expected, "{mib} {workers} {morsel_mib}");
        }
    }

    #[test]
    fn caches_of_others_are_refused() {
        let folder = std::env::temp_dir().join(format!("sandbar-test-owner-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        // Root's are nobody's: as root it is given away.
        let _ = std::os::unix::fs::chown(&folder, Some(1234), None);
        let owner = fs::metadata(&folder).unwrap().uid();
        let missing = folder.join("missing");
        for (folder, user, refused) in [(&folder, owner, false), (&folder, owner + 1, true), (&missing, owner, false)] {
            assert_eq!(
                refuse_of_others(folder, user, "XDG_CACHE_HOME").is_err(),
                refused,
                "{} of {user}",
                folder.display()
            );
        }
        fs::remove_dir(&folder).unwrap();
    }
}
