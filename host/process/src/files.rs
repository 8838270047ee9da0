//! Files of confined processes: Landlock.

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};

/// Files that GPU drivers read: the drivers, their settings, and descriptions of devices.
const READ_BY_DRIVERS: &[&str] =
    &["/usr", "/lib", "/lib64", "/etc", "/opt", "/sys", "/proc", "/run/nvidia-persistenced", "/dev/shm"];
/// Devices of GPU drivers, and pseudo-devices.
const DEVICES: &[&str] = &[
    "/dev/dri",
    "/dev/kfd",
    "/dev/nvidia0",
    "/dev/nvidia1",
    "/dev/nvidia2",
    "/dev/nvidia3",
    "/dev/nvidia4",
    "/dev/nvidia5",
    "/dev/nvidia6",
    "/dev/nvidia7",
    "/dev/nvidiactl",
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-caps",
    "/dev/dxg",
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
];

/// Files that a process may open after it is confined.
#[derive(Debug, Clone, Copy)]
pub enum FileAccess<'a> {
    /// None.
    None,
    /// Files of drivers and files below these folders, to read, and devices.
    Drivers(&'a [&'a Path]),
}

/// Restricts the files that the calling thread and its later threads may open, their TCP ports, and, from Linux 6.12 on,
/// signals and abstract sockets to processes outside. Returns whether the restriction is in force: a kernel without
/// Landlock (before 5.13) enforces nothing, and an older one less.
///
/// # Errors
/// Those of the kernel.
pub(crate) fn restrict(access: FileAccess<'_>) -> io::Result<bool> {
    restricted(access).map_err(io::Error::other)
}

fn restricted(access: FileAccess<'_>) -> Result<bool, RulesetError> {
    let all = AccessFs::from_all(ABI::V5);
    // Drivers may run helper programs while they load.
    let handled = if matches!(access, FileAccess::None) { all } else { all & !AccessFs::Execute };
    let mut rules = Ruleset::default()
        .handle_access(handled)?
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(Scope::from_all(ABI::V6))?
        .create()?;
    if let FileAccess::Drivers(own) = access {
        let read = AccessFs::from_read(ABI::V5) & !AccessFs::Execute;
        let readable = READ_BY_DRIVERS.iter().map(Path::new).chain(own.iter().copied());
        let devices = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir | AccessFs::IoctlDev;
        rules = rules.add_rules(path_beneath_rules(readable, read))?.add_rules(path_beneath_rules(DEVICES, devices))?;
    }
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}
