//! Reports on the walls of confined processes, for people.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::calls::{AllowedCall, OtherCalls};
use crate::confine::{Confined, confine, start};
use crate::files::FileAccess;
use crate::profile::{ProcessKind, Profile};
use crate::walls::{MissingWall, Wall};

/// The walls of a kind of processes on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walls {
    /// The kind.
    pub process: ProcessKind,
    /// Names of the allowed system calls; none if the process can't be confined.
    pub system_calls: Vec<String>,
    /// What another system call does.
    pub other_calls: OtherCalls,
    /// Version of Landlock's interface; `None` if the process may open files.
    pub landlock_abi: Option<u32>,
    /// Its own namespaces.
    pub namespaces: Vec<String>,
    /// Limit of its private memory in bytes.
    pub memory_bytes_max: Option<u64>,
    /// Walls of the profile that do not stand.
    pub missing: Vec<MissingWall>,
}

impl Walls {
    fn new(profile: &Profile<'_>, confined: io::Result<Confined>) -> Walls {
        let calls = profile.allowed_calls().map(AllowedCall::name).collect();
        let (kind, other_calls) = (profile.kind, profile.other_calls);
        match confined {
            Ok(Confined { landlock_abi, has_namespaces, memory_bytes_max, missing }) => {
                let names: &[&str] = if has_namespaces { &["user", "mount"] } else { &[] };
                let namespaces = names.iter().map(|&name| name.to_owned()).collect();
                Walls {
                    process: kind,
                    system_calls: calls,
                    other_calls,
                    landlock_abi,
                    namespaces,
                    memory_bytes_max,
                    missing,
                }
            }
            Err(e) => Walls {
                process: kind,
                system_calls: Vec::new(),
                other_calls,
                landlock_abi: None,
                namespaces: Vec::new(),
                memory_bytes_max: None,
                missing: vec![MissingWall::new(Wall::SystemCalls, &e)],
            },
        }
    }
}

/// The argument with which `host-worker` reports the walls of all kinds of processes on standard output.
pub const WALLS_ARGUMENT: &str = "walls";

/// Maximum bytes of a report.
const REPORT_BYTES_MAX: usize = 64 << 10;

/// Confines a child process of each kind, and writes to standard output which walls stand. Must be called in a process with
/// one thread.
///
/// # Errors
/// Those of the kernel.
pub fn report_walls() -> io::Result<()> {
    let own = std::env::current_exe()?;
    let folders: Vec<&Path> = own.parent().into_iter().collect();
    let profiles = [
        Profile::worker(0),
        Profile::program_worker(0, 0),
        Profile::compiler(u64::MAX, u64::MAX),
        Profile::gpu(FileAccess::Drivers(&folders)),
    ];
    let all = profiles.iter().map(walls_of).collect::<io::Result<Vec<Walls>>>()?;
    io::stdout().write_all(&postcard::to_stdvec(&all).map_err(io::Error::other)?)
}

/// Parses what [`report_walls`] wrote.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if it is malformed.
pub fn parse_walls(report: &[u8]) -> io::Result<Vec<Walls>> {
    postcard::from_bytes(report).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Confines a child process, and returns which walls stand.
fn walls_of(profile: &Profile<'_>) -> io::Result<Walls> {
    let (mut reader, writer) = io::pipe()?;
    // SAFETY: this process has one thread, so that the child may do all that it could.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let confined = start(profile.kind).and_then(|()| confine(profile, || Ok(())));
            let walls = Walls::new(profile, confined.map(|(confined, ())| confined));
            let report = postcard::to_stdvec(&walls).unwrap_or_default();
            // SAFETY: the kernel reads the bytes of the report. The child ends without running destructors of the parent.
            unsafe {
                libc::write(writer.as_raw_fd(), report.as_ptr().cast(), report.len());
                libc::_exit(0)
            }
        }
        child => {
            drop(writer);
            let mut report = Vec::new();
            let read = reader.by_ref().take(REPORT_BYTES_MAX as u64).read_to_end(&mut report);
            // SAFETY: the status is not wanted.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            read?;
            let refused = || Err(io::Error::other("the process ended while it was confined"));
            Ok(postcard::from_bytes(&report).unwrap_or_else(|_| Walls::new(profile, refused())))
        }
    }
}
