//! Walls that a kernel may lack.

use serde::{Deserialize, Serialize};

/// A wall that a kernel may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wall {
    /// seccomp. Without it, no process starts.
    SystemCalls,
    /// Landlock.
    Files,
    /// User and mount namespaces.
    Namespaces,
}

/// A wall that does not stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingWall {
    /// The wall.
    pub wall: Wall,
    /// Why it does not stand.
    pub reason: String,
}

impl MissingWall {
    pub(crate) fn new(wall: Wall, reason: &impl ToString) -> MissingWall {
        MissingWall { wall, reason: reason.to_string() }
    }

    /// Returns what to do about it.
    pub fn remedy(&self) -> &'static str {
        match self.wall {
            Wall::SystemCalls => "run on a kernel with CONFIG_SECCOMP_FILTER",
            Wall::Files => "add `landlock` to the kernel's `lsm=` parameter, on Linux 5.13 or newer",
            Wall::Namespaces => {
                "allow user namespaces: `sysctl user.max_user_namespaces=10000`, on Ubuntu also \
                 `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, in a container a seccomp profile with `unshare` and \
                 `mount`"
            }
        }
    }
}

impl Wall {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Wall::SystemCalls => "system calls",
            Wall::Files => "files",
            Wall::Namespaces => "namespaces",
        }
    }
}
