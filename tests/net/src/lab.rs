//! A folder to run the host in, and what came of it.

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

use crate::places;

/// A host that takes longer hangs, whatever the machine has to do besides.
const RUN_TIME_MAX: Duration = Duration::from_secs(240);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A folder of a test's own, removed with it.
pub struct Lab {
    folder: TempDir,
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Lab {
    /// An empty one.
    ///
    /// # Panics
    /// When the folder can't be made.
    pub fn new() -> Lab {
        let folder = tempfile::Builder::new().prefix("sandbar-test-").tempdir().expect("a temporary folder");
        fs::create_dir(folder.path().join("tmp")).expect("a folder in it");
        Lab { folder }
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file, and the folders it is in.
    ///
    /// # Panics
    /// When it can't be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("a folder can be made");
        fs::write(&path, content).expect("a file can be written");
        path
    }

    /// Names of all files and folders in it, sorted, but for the folder of
    /// temporary files while that is empty, and for what the host keeps of jobs.
    ///
    /// # Panics
    /// When the folder can't be read.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        list(self.folder.path(), "", &mut names);
        names.retain(|name| name != "tmp/" && !name.starts_with("state/"));
        names.sort();
        names
    }

    /// The host with these arguments, to be run in this folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(places::host());
        command.args(arguments).current_dir(self.folder.path());
        command.env("XDG_CACHE_HOME", places::cache()).env("XDG_STATE_HOME", self.path("state"));
        command.env("TMPDIR", self.path("tmp")).env("NO_COLOR", "1");
        if let Some(lavapipe) = places::lavapipe() {
            command.env("SANDBAR_LAVAPIPE", lavapipe);
        }
        command
    }

    /// Starts the host.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(&self, arguments: &[&str]) -> Running {
        Running::new(self.command(arguments))
    }

    /// Runs the host to its end.
    ///
    /// # Panics
    /// When it does not end.
    pub fn host(&self, arguments: &[&str]) -> Ended {
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

/// A host that runs. Dropping it kills it.
pub struct Running {
    line: String,
    child: Child,
    stdout: Output,
    stderr: Output,
    since: Instant,
}

impl Running {
    /// Starts `command`, which reads nothing.
    ///
    /// # Panics
    /// When it does not start.
    pub fn new(mut command: Command) -> Running {
        let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let line = format!("host {}", words.join(" "));
        // SAFETY: `heed_signals` makes system calls, which it may between `fork` and `exec`, and nothing else.
        unsafe { command.pre_exec(heed_signals) };
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|e| panic!("{line}: {e}"));
        let (stdout, stderr) = (Output::of(child.stdout.take()), Output::of(child.stderr.take()));
        Running { line, child, stdout, stderr, since: Instant::now() }
    }

    /// Its process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// When it can't be asked.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_some()
    }

    /// Whether it has not ended: what a test does beside it does not go on for ever.
    ///
    /// # Panics
    /// When it can't be asked, and when it runs for longer than [`Running::wait`] would wait.
    pub fn is_running(&mut self) -> bool {
        assert!(
            self.since.elapsed() < RUN_TIME_MAX,
            "{} did not end within {RUN_TIME_MAX:?}: {}",
            self.line,
            self.talk()
        );
        !self.has_ended()
    }

    /// What it has written to standard error so far.
    ///
    /// # Panics
    /// When the thread that reads it has panicked.
    pub fn talk(&self) -> String {
        self.stderr.so_far()
    }

    /// What Ctrl-C sends.
    ///
    /// # Panics
    /// When it can't be sent.
    pub fn interrupt(&self) {
        let process = Pid::from_raw(self.child.id().cast_signed()).expect("a process has an id");
        kill_process(process, Signal::INT).expect("the host can be sent a signal");
    }

    /// Ends it as a power cut does.
    ///
    /// # Panics
    /// When it can't be.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end.
    pub fn wait(mut self) -> Ended {
        let status = loop {
            match self.child.try_wait().expect("a child can be asked") {
                Some(status) => break status,
                None if self.since.elapsed() > RUN_TIME_MAX => {
                    let _ = self.child.kill();
                    panic!("{} did not end within {RUN_TIME_MAX:?}", self.line);
                }
                None => std::thread::sleep(LOOK_AGAIN),
            }
        };
        let (stdout, stderr) = (self.stdout.whole(), self.stderr.whole());
        Ended { line: self.line.clone(), status, stdout, stderr, took: self.since.elapsed() }
    }
}

/// Tests may run under `nohup`, or behind a shell's `&`, whose programs ignore these signals from their start on: what comes
/// before the host listens would be lost.
fn heed_signals() -> io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT] {
        // SAFETY: no handler is set, what the signal does by itself is.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The output of a process, which a thread reads.
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Output {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Output {
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let read = bytes.clone();
        let reader = pipe.map(|pipe| std::thread::spawn(move || read_into(pipe, &read)));
        Output { bytes, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("no reader panics")).into_owned()
    }

    fn whole(&mut self) -> String {
        let _ = self.reader.take().map(JoinHandle::join);
        self.so_far()
    }
}

/// Reads to the end, or to an error: what was read before that is what there is.
fn read_into(mut pipe: impl Read, bytes: &Mutex<Vec<u8>>) {
    let mut part = [0; 8192];
    while let Ok(read @ 1..) = pipe.read(&mut part) {
        bytes.lock().expect("no reader panics").extend_from_slice(&part[..read]);
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Ended {
    /// The command line.
    pub line: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its data.
    pub stdout: String,
    /// Its talk.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

impl Ended {
    /// Checks how it ended.
    ///
    /// # Panics
    /// When it ended otherwise.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Ended {
        assert_eq!(self.status.code(), Some(code), "{}: {}\n{}{}", self.line, self.status, self.stdout, self.stderr);
        self
    }

    /// Checks that its talk has each of `words`.
    ///
    /// # Panics
    /// When one is missing.
    #[track_caller]
    pub fn expect_talk(self, words: &[&str]) -> Ended {
        for word in words {
            assert!(self.stderr.contains(word), "{}: `{word}` is not in\n{}", self.line, self.stderr);
        }
        self
    }

    /// What it printed, as JSON.
    ///
    /// # Panics
    /// When it printed something else.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{}: {e}: {}", self.line, self.stdout))
    }
}

/// Processes whose parent is `process`.
pub fn children(process: u32) -> Vec<u32> {
    let parent = |id: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name, in parentheses, may hold anything.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let ids =
        fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    ids.filter(|id| parent(*id) == Some(process)).collect()
}

/// Processor time of the main thread of a process; zero if the process has ended.
pub fn processor_time(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Whether there is a process of this id that has not ended.
pub fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
