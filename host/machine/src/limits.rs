//! Memory limit of this process.
//!
//! The limit is the minimum of the machine's memory, the limits of the process's control groups, and `RLIMIT_AS`. A control
//! group is also limited by each group above it, so all are read, from the process's own group up to the mount point. Version 2 groups have `memory.max` and `memory.high` (above which the kernel slows a process down),
//! version 1 groups `memory.limit_in_bytes`. In a container the mount point is often the process's own group.

use std::fs;
use std::path::{Component, Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// Limit files of a version 2 group.
const LIMITS_2: &[&str] = &["memory.max", "memory.high"];
/// Limit files of a version 1 group.
const LIMITS_1: &[&str] = &["memory.limit_in_bytes"];
/// Version 1 writes "no limit" as a number of at least this size.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// Source of a memory limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryBound {
    /// The machine's memory.
    Machine,
    /// The limit of a control group, read from this file.
    ControlGroup(PathBuf),
    /// `RLIMIT_AS` (`ulimit -v`).
    AddressSpace,
}

/// Returns the memory limit of this process, if one is known.
pub(crate) fn usable_bytes() -> Option<u64> {
    memory_limit().map(|(bytes, _)| bytes)
}

/// Returns the memory limit of this process and its source, if one is known.
pub fn memory_limit() -> Option<(u64, MemoryBound)> {
    let address_space = address_space_bytes().map(|bytes| (bytes, MemoryBound::AddressSpace));
    limit_of(Path::new("/")).into_iter().chain(address_space).min_by_key(|(bytes, _)| *bytes)
}

/// Returns the limit of this process's address space (`RLIMIT_AS`), if it has one.
pub fn address_space_bytes() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Like [`memory_limit`], without `RLIMIT_AS`, for `/proc` and `/sys` below `root`.
fn limit_of(root: &Path) -> Option<(u64, MemoryBound)> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let machine = read("proc/meminfo").lines().find_map(|line| {
        let kib = line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?;
        kib.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let groups = groups(&read("proc/self/cgroup"), &read("proc/self/mountinfo"));
    let limits = groups.iter().flat_map(|group| group.limits(root));
    limits.chain(machine.map(|bytes| (bytes, MemoryBound::Machine))).min_by_key(|(bytes, _)| *bytes)
}

/// A control group with a memory controller, as this process sees it.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    /// Mount point of its hierarchy.
    mount_point: PathBuf,
    /// Path below the mount point.
    path: PathBuf,
    files: &'static [&'static str],
}

impl Group {
    /// Returns the limits of this group and of the groups above it.
    fn limits(&self, root: &Path) -> Vec<(u64, MemoryBound)> {
        let beneath = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
        let folders = self.path.ancestors().map(|path| beneath(&self.mount_point).join(path));
        let files = folders.flat_map(|folder| self.files.iter().map(move |file| folder.join(file)));
        let limit =
            |file: PathBuf| Some((limit_in(&fs::read_to_string(&file).ok()?)?, MemoryBound::ControlGroup(file)));
        files.filter_map(limit).collect()
    }
}

/// Parses the content of a limit file. `max` and the number for "no limit" are `None`.
fn limit_in(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < UNLIMITED_BYTES)
}

/// Finds the memory control groups of a process in its `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn groups(own: &str, mounts: &str) -> Vec<Group> {
    own.lines().filter_map(|line| group(line, mounts)).collect()
}

/// Parses a line like `0::/user.slice` or `4:memory:/docker/1234`.
fn group(line: &str, mounts: &str) -> Option<Group> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let is_version_2 = number == "0" && controllers.is_empty();
    if !is_version_2 && !controllers.split(',').any(|controller| controller == "memory") {
        return None;
    }
    let (mounted, mount_point) = mounts.lines().find_map(|mount| mount_of(mount, is_version_2))?;
    // The mounted group may be below the root of its hierarchy; paths are then relative to it. A path outside it, such as
    // one above the root of a namespace, is invisible.
    let beneath = Path::new(path).strip_prefix(&mounted).unwrap_or(Path::new(""));
    let is_seen = beneath.components().all(|part| matches!(part, Component::Normal(_)));
    let path = if is_seen { beneath.to_owned() } else { PathBuf::new() };
    Some(Group { mount_point, path, files: if is_version_2 { LIMITS_2 } else { LIMITS_1 } })
}

/// Returns the mounted group and the mount point, if a line of `mountinfo` describes a memory hierarchy of this version:
/// `36 35 98:0 /mounted /mount/point rw shared:1 - cgroup cgroup rw,memory`.
fn mount_of(line: &str, is_version_2: bool) -> Option<(PathBuf, PathBuf)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut of_system = file_system.split(' ');
    let (kind, options) = (of_system.next()?, of_system.nth(1).unwrap_or_default());
    let is_it = match kind {
        "cgroup2" => is_version_2,
        "cgroup" => !is_version_2 && options.split(',').any(|option| option == "memory"),
        _ => false,
    };
    let mut fields = mount.split(' ').skip(3);
    let (mounted, mount_point) = (fields.next()?, fields.next()?);
    is_it.then(|| (unescaped(mounted).into(), unescaped(mount_point).into()))
}

/// Decodes a path of `mountinfo`, where blanks are written as `\040`.
fn unescaped(path: &str) -> String {
    let mut parts = path.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii) {
            Some(byte) => text.extend([byte as char].into_iter().chain(part[3..].chars())),
            None => text.extend(['\\'].into_iter().chain(part.chars())),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory";
    const V2: &str = "35 31 0:32 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate";
    const GIB: u64 = 1 << 30;

    /// Computes the limit for a machine with this `MemTotal` in GiB, `/proc/self/cgroup`, `/proc/self/mountinfo` and files.
    fn usable(memory: u64, own: &str, mounts: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        if memory > 0 {
            write("proc/meminfo", &format!("MemFree: 5 kB\nMemTotal:       {} kB\n", memory * GIB / 1024));
        }
        write("proc/self/cgroup", own);
        write("proc/self/mountinfo", mounts);
        files.iter().for_each(|(path, text)| write(path, text));
        limit_of(root.path()).map(|(bytes, _)| bytes)
    }

    #[test]
    fn the_lowest_limit_applies() {
        let none_1 = "9223372036854771712\n";
        for (label, found, expected) in [
            ("nothing is known", usable(0, "", "", &[]), None),
            ("no groups", usable(8, "", "", &[]), Some(8 * GIB)),
            ("version 2", usable(8, "0::/\n", V2, &[("sys/fs/cgroup/memory.max", "1000\n")]), Some(1000)),
            ("version 2, no limit", usable(8, "0::/\n", V2, &[("sys/fs/cgroup/memory.max", "max\n")]), Some(8 * GIB)),
            (
                "more than the machine has",
                usable(1, "0::/\n", V2, &[("sys/fs/cgroup/memory.max", "8589934592\n")]),
                Some(GIB),
            ),
            (
                "a group below, whose parent has less",
                usable(
                    8,
                    "0::/a/b\n",
                    V2,
                    &[("sys/fs/cgroup/a/b/memory.max", "3000\n"), ("sys/fs/cgroup/a/memory.max", "2000\n")],
                ),
                Some(2000),
            ),
            (
                "systemd's MemoryHigh",
                usable(
                    8,
                    "0::/s.slice/x.service\n",
                    V2,
                    &[
                        ("sys/fs/cgroup/s.slice/x.service/memory.max", "3000\n"),
                        ("sys/fs/cgroup/s.slice/x.service/memory.high", "2500\n"),
                    ],
                ),
                Some(2500),
            ),
            ("another group's", usable(8, "0::/a\n", V2, &[("sys/fs/cgroup/b/memory.max", "3000\n")]), Some(8 * GIB)),
            (
                "version 1",
                usable(
                    8,
                    "5:cpu:/\n4:memory:/a\n0::/\n",
                    V1,
                    &[
                        ("sys/fs/cgroup/memory/memory.limit_in_bytes", none_1),
                        ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000\n"),
                    ],
                ),
                Some(1000),
            ),
            (
                "version 1, no limit",
                usable(8, "4:memory:/\n", V1, &[("sys/fs/cgroup/memory/memory.limit_in_bytes", none_1)]),
                Some(8 * GIB),
            ),
            (
                "version 1, no limit, and nothing else is known",
                usable(0, "4:memory:/\n", V1, &[("sys/fs/cgroup/memory/memory.limit_in_bytes", none_1)]),
                None,
            ),
            (
                "a container that sees its own group as the root, and the host's path",
                usable(
                    8,
                    "4:memory:/docker/12\n",
                    &V1.replace(" / ", " /docker/12 "),
                    &[("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n")],
                ),
                Some(1000),
            ),
            (
                "a path that is not mounted",
                usable(
                    8,
                    "4:memory:/elsewhere\n",
                    &V1.replace(" / ", " /docker/12 "),
                    &[("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n")],
                ),
                Some(1000),
            ),
            (
                "a group above the namespace's root",
                usable(8, "0::/../x\n", V2, &[("sys/fs/cgroup/memory.max", "1000\n"), ("sys/fs/x/memory.max", "5\n")]),
                Some(1000),
            ),
            (
                "both versions, and controllers together",
                usable(
                    8,
                    "4:cpu,memory:/a\n0::/b\n",
                    &format!("{V1},cpu\n{}", V2.replace("cgroup rw,r", "cgroup/unified rw,r")),
                    &[
                        ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2000\n"),
                        ("sys/fs/cgroup/unified/b/memory.max", "1000\n"),
                    ],
                ),
                Some(1000),
            ),
            (
                "a mount point with a blank",
                usable(
                    8,
                    "0::/\n",
                    &V2.replace("/sys/fs/cgroup", "/my\\040groups"),
                    &[("my groups/memory.max", "1000")],
                ),
                Some(1000),
            ),
            ("no number", usable(8, "0::/\n", V2, &[("sys/fs/cgroup/memory.max", "many\n")]), Some(8 * GIB)),
            ("lines that are none", usable(8, "x\n0:\n:::\n", "1 2 - \n - cgroup2\n", &[]), Some(8 * GIB)),
        ] {
            assert_eq!(found, expected, "{label}");
        }
    }

    #[test]
    fn this_machine_has_usable_memory() {
        assert!(usable_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
