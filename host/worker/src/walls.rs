//! The walls of this machine's confined processes, as a process of the program `host-worker` finds them.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use sandbar_process::{WALLS_ARGUMENT, Walls, parse_walls, spawn};
use tokio::process::Command;

/// Maximum time of the process.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Returns which walls stand for each kind of processes. `program` is `host-worker`, which confines a process of each kind.
///
/// # Errors
/// When the process cannot be started, or reports nothing in time.
pub async fn query_walls(program: &Path) -> io::Result<Vec<Walls>> {
    let mut command = Command::new(program);
    command
        .arg(WALLS_ARGUMENT)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    let child = spawn::in_own_group(|| command.spawn())?;
    let output = tokio::time::timeout(TIME_MAX, child.wait_with_output()).await;
    let output =
        output.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "it did not report its walls in time"))??;
    match output.status.success() {
        true => parse_walls(&output.stdout),
        false => Err(io::Error::other(format!("it ended with {}", output.status))),
    }
}
