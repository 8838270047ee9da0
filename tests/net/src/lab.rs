//! A temporary folder to run the host in, and the result of a run.

use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::paths;

/// Longest run of the host before a test fails, on a loaded machine too.
const RUN_TIME_MAX: Duration = Duration::from_secs(240);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A temporary folder of one test. Dropping it removes it.
pub struct Lab {
    folder: TempDir,
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Lab {
    /// Creates an empty folder.
    ///
    /// # Panics
    /// Panics if the folder can't be created.
    pub fn new() -> Lab {
        let folder = tempfile::Builder::new().prefix("sandbar-test-").tempdir().expect("a temporary folder");
        fs::create_dir(folder.path().join("tmp")).expect("a folder in it");
        Lab { folder }
    }

    /// Returns the path of `name` in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file, and creates its parent folders.
    ///
    /// # Panics
    /// Panics if the file can't be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("a folder can be made");
        fs::write(&path, content).expect("a file can be written");
        path
    }

    /// Returns the names of all files and folders inside, sorted. Leaves out the host's job records (`state/`) and the
    /// temporary folder (`tmp/`) itself.
    ///
    /// # Panics
    /// Panics if the folder can't be read.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        list(self.folder.path(), "", &mut names);
        names.retain(|name| name != "tmp/" && !name.starts_with("state/"));
        names.sort();
        names
    }

    /// Returns a command that runs the host with these arguments in this folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(paths::host());
        command.args(arguments).current_dir(self.folder.path());
        command.env("XDG_CACHE_HOME", paths::cache()).env("XDG_STATE_HOME", self.path("state"));
        command.env("TMPDIR", self.path("tmp")).env("NO_COLOR", "1");
        if let Some(lavapipe) = paths::lavapipe() {
            command.env("SANDBAR_LAVAPIPE", lavapipe);
        }
        command
    }

    /// Starts the host.
    ///
    /// # Panics
    /// Panics if the host does not start.
    pub fn start(&self, arguments: &[&str]) -> Running {
        Running::new(self.command(arguments))
    }

    /// Adds a tenant on the node with the data folder `data`, unless it exists, and creates a token of it with these
    /// further arguments.
    ///
    /// # Panics
    /// Panics if no token is created.
    pub fn tenant_token(&self, data: &str, tenant: &str, more: &[&str]) -> String {
        let _may_exist = self.host(&["tenant", "add", tenant, "--data", data]);
        let line = [&["tenant", "token", tenant, "--data", data], more].concat();
        self.host(&line).expect_code(0).stdout.trim().to_owned()
    }

    /// Runs the host to its end.
    ///
    /// # Panics
    /// Panics if the host does not start or does not end.
    pub fn host(&self, arguments: &[&str]) -> CommandOutput {
        self.start(arguments).wait()
    }
}

fn list(folder: &Path, prefix: &str, names: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("the folder can be read").flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            names.push(format!("{name}/"));
            list(&entry.path(), &format!("{name}/"), names);
        } else {
            names.push(name);
        }
    }
}

/// A running host. Dropping it kills it.
pub struct Running {
    line: String,
    child: Child,
    stdout: CapturedOutput,
    stderr: CapturedOutput,
    since: Instant,
}

impl Running {
    /// Starts `command` with an empty standard input.
    ///
    /// # Panics
    /// Panics if the command does not start.
    pub fn new(mut command: Command) -> Running {
        let argument_list: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let line = format!("host {}", argument_list.join(" "));
        // SAFETY: `reset_signals` makes system calls only, which are allowed between `fork` and `exec`.
        unsafe { command.pre_exec(reset_signals) };
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|e| panic!("{line}: {e}"));
        let (stdout, stderr) =
            (CapturedOutput::capture(child.stdout.take()), CapturedOutput::capture(child.stderr.take()));
        Running { line, child, stdout, stderr, since: Instant::now() }
    }

    /// Returns the process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the process has ended.
    ///
    /// # Panics
    /// Panics if the status can't be read.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the status of a child can be read").is_some()
    }

    /// Returns whether the process still runs. Bounds loops of a test beside the process by the time limit of
    /// [`Running::wait`].
    ///
    /// # Panics
    /// Panics if the status can't be read, or if the process has run for longer than [`Running::wait`] allows.
    pub fn is_running(&mut self) -> bool {
        assert!(
            self.since.elapsed() < RUN_TIME_MAX,
            "{} did not end within {RUN_TIME_MAX:?}: {}",
            self.line,
            self.stderr_so_far()
        );
        !self.has_ended()
    }

    /// Returns what the process has written to standard error so far.
    ///
    /// # Panics
    /// Panics if the thread that reads standard error has panicked.
    pub fn stderr_so_far(&self) -> String {
        self.stderr.so_far()
    }

    /// Sends SIGINT, as Ctrl-C does.
    ///
    /// # Panics
    /// Panics if the signal can't be sent.
    pub fn interrupt(&self) {
        let process = Pid::from_raw(self.child.id().cast_signed()).expect("a process has an id");
        kill_process(process, Signal::INT).expect("the host can be sent a signal");
    }

    /// Kills the process without warning and waits for it.
    ///
    /// # Panics
    /// Panics if the process can't be killed.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Waits for the process to end, and returns its output.
    ///
    /// # Panics
    /// Panics if the process does not end within the time limit.
    pub fn wait(mut self) -> CommandOutput {
        let status = loop {
            match self.child.try_wait().expect("the status of a child can be read") {
                Some(status) => break status,
                None if self.since.elapsed() > RUN_TIME_MAX => {
                    let _ = self.child.kill();
                    panic!("{} did not end within {RUN_TIME_MAX:?}", self.line);
                }
                None => std::thread::sleep(POLL_INTERVAL),
            }
        };
        let (stdout, stderr) = (self.stdout.whole(), self.stderr.whole());
        CommandOutput { line: self.line.clone(), status, stdout, stderr, duration: self.since.elapsed() }
    }
}

/// Resets SIGHUP and SIGINT to their default actions. Under `nohup`, or in the background of a shell (`&`), a test
/// inherits ignored signals, and the host would lose signals sent before it installs its handlers.
fn reset_signals() -> io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT] {
        // SAFETY: the call sets the default action, not a handler.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Output of a process, read by a thread.
struct CapturedOutput {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl CapturedOutput {
    fn capture(pipe: Option<impl Read + Send + 'static>) -> CapturedOutput {
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let read = bytes.clone();
        let reader = pipe.map(|pipe| std::thread::spawn(move || read_into(pipe, &read)));
        CapturedOutput { bytes, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("no reader panics")).into_owned()
    }

    fn whole(&mut self) -> String {
        let _ = self.reader.take().map(JoinHandle::join);
        self.so_far()
    }
}

/// Reads to the end or to an error, and keeps the bytes read before an error.
fn read_into(mut pipe: impl Read, bytes: &Mutex<Vec<u8>>) {
    let mut part = [0; 8192];
    while let Ok(read @ 1..) = pipe.read(&mut part) {
        bytes.lock().expect("no reader panics").extend_from_slice(&part[..read]);
    }
}

/// Result of a run of the host.
#[derive(Debug)]
pub struct CommandOutput {
    /// The command line.
    pub line: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output: data.
    pub stdout: String,
    /// Standard error: messages.
    pub stderr: String,
    /// Duration of the run.
    pub duration: Duration,
}

impl CommandOutput {
    /// Checks the exit code.
    ///
    /// # Panics
    /// Panics if the exit code differs.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> CommandOutput {
        assert_eq!(self.status.code(), Some(code), "{}: {}\n{}{}", self.line, self.status, self.stdout, self.stderr);
        self
    }

    /// Checks that standard error contains each of `argument_list`.
    ///
    /// # Panics
    /// Panics if one is missing.
    #[track_caller]
    pub fn expect_stderr(self, argument_list: &[&str]) -> CommandOutput {
        for word in argument_list {
            assert!(self.stderr.contains(word), "{}: `{word}` is not in\n{}", self.line, self.stderr);
        }
        self
    }

    /// Parses standard output as JSON.
    ///
    /// # Panics
    /// Panics if standard output is not JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{}: {e}: {}", self.line, self.stdout))
    }
}

/// Returns the ids of the processes whose parent is `process`.
pub fn children(process: u32) -> Vec<u32> {
    let parent = |id: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name, in parentheses, may contain spaces and parentheses.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let ids =
        fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    ids.filter(|id| parent(*id) == Some(process)).collect()
}

/// Returns the processor time of a process's first thread, or zero if the process does not exist.
pub fn processor_time(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Returns whether a process with this id exists and has not ended.
pub fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
