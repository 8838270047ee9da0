//! Ctrl-C in a real terminal, signals to a process group, a closed terminal, and Ctrl-Z, at any moment of programs and
//! jobs.
//!
//! `SANDBAR_SIGNALS=200` tests 200 moments of each kind instead of a few; `SANDBAR_SEED` repeats a run.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use sandbar_seeds::{one_seed, seed_of_clock};
use sandbar_tests::{Lab, children, component, is_alive};
use serde_json::Value;

use crate::lifecycle::until;

/// Default number of signals of each kind.
const SIGNALS: usize = 12;
/// Latest moment after the start.
const MOMENT_MAX: Duration = Duration::from_millis(1500);
/// Maximum time until an interrupted command has ended, on a busy machine too.
const END_TIME_MAX: Duration = Duration::from_secs(60);
const CTRL_C: u8 = 3;
const CTRL_Z: u8 = 26;

/// A host in the foreground of a terminal of its own. Dropping it kills it.
struct InTerminal {
    line: String,
    child: Child,
    /// The controlling side of the terminal.
    keyboard: Option<File>,
    is_closed: Arc<AtomicBool>,
    screen: Option<JoinHandle<String>>,
}

impl InTerminal {
    fn start(mut command: Command) -> InTerminal {
        let line = format!("{command:?}");
        let (mut ours, mut theirs) = (-1, -1);
        // SAFETY: the pointers are to two descriptors; name and size are null.
        let opened = unsafe {
            libc::openpty(&raw mut ours, &raw mut theirs, std::ptr::null_mut(), std::ptr::null(), std::ptr::null())
        };
        assert_eq!(opened, 0, "a terminal can be opened");
        // SAFETY: this function owns both descriptors.
        let (ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        // SAFETY: the call sets close-on-exec on a descriptor that is open.
        unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        let copy = || theirs.try_clone().expect("a descriptor can be copied");
        command.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: `take_terminal` makes system calls only, which are allowed between `fork` and `exec`.
        unsafe { command.pre_exec(take_terminal) };
        let child = command.spawn().expect("the host starts");
        drop((command, theirs));
        let reader = ours.try_clone().expect("a descriptor can be copied");
        let is_closed = Arc::<AtomicBool>::default();
        let closes = is_closed.clone();
        let screen = std::thread::spawn(move || read_until(reader, &closes));
        InTerminal { line, child, keyboard: Some(ours), is_closed, screen: Some(screen) }
    }

    /// Closes the terminal, as closing its window does.
    fn close(&mut self) {
        self.keyboard = None;
        self.is_closed.store(true, Relaxed);
    }

    fn types(&mut self, key: u8) {
        self.keyboard.as_mut().expect("it is open").write_all(&[key]).expect("a key can be typed");
    }

    fn group(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed()).expect("an id")
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked")
    }

    /// Waits for the end, and returns what was on the screen.
    fn screen(&mut self) -> String {
        self.screen.take().map_or_else(String::new, |screen| screen.join().unwrap_or_default())
    }
}

impl Drop for InTerminal {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the screen until the terminal is closed, or no process has it open.
fn read_until(mut reader: File, is_closed: &AtomicBool) -> String {
    let (mut bytes, mut some) = (Vec::new(), [0; 4096]);
    let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while !is_closed.load(Relaxed) {
        let is_ready = poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&moment));
        if is_ready.is_ok_and(|ready| ready == 0) {
            continue;
        }
        match reader.read(&mut some) {
            Ok(count @ 1..) => bytes.extend_from_slice(&some[..count]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Makes standard input the controlling terminal of a new session, and resets the signals that terminals send.
fn take_terminal() -> std::io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTSTP] {
        // SAFETY: the call sets the default action, not a handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: the system calls affect this process and its terminal only.
    let taken = unsafe { libc::setsid() != -1 && libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) == 0 };
    if taken { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Kind of interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interruption {
    CtrlC,
    TwoCtrlC,
    TermToGroup,
    TermTwice,
    TerminalCloses,
}

impl Interruption {
    fn code(self) -> i32 {
        match self {
            Interruption::CtrlC | Interruption::TwoCtrlC => 130,
            Interruption::TermToGroup | Interruption::TermTwice => 143,
            Interruption::TerminalCloses => 129,
        }
    }

    fn act(self, host: &mut InTerminal) {
        let term = |host: &InTerminal| kill_process_group(host.group(), Signal::TERM);
        match self {
            Interruption::CtrlC => host.types(CTRL_C),
            Interruption::TwoCtrlC => {
                host.types(CTRL_C);
                std::thread::sleep(Duration::from_millis(20));
                host.types(CTRL_C);
            }
            // The process may have ended before the second signal.
            Interruption::TermToGroup => drop(term(host)),
            // As `timeout` does.
            Interruption::TermTwice => drop((term(host), term(host))),
            Interruption::TerminalCloses => host.close(),
        }
    }
}

/// A program or a job that does not end by itself: its name and further arguments.
type EndlessProgram = (&'static str, &'static [&'static str]);

#[rustfmt::skip]
const PROGRAMS: &[EndlessProgram] = &[
    ("tests/programs/tasks#spins",          &[]),
    ("tests/programs/tasks#endless",        &["--arg", "depth=2", "--arg", "width=20"]),
    ("tests/programs/tasks#stores",         &["--arg", "bytes=100000", "--arg", "kept=400", "--object-memory", "20MiB"]),
    ("tests/programs/tasks#sleeps_beside",  &["--arg", "count=100", "--arg", "ms=100000000"]),
    ("tests/programs/actors#never_returns", &["--arg", "cpus=1"]),
    ("tests/programs/streams#taken_by_many", &["--arg", "tasks=4", "--arg", "items=1000000000", "--arg", "steps=0"]),
];

fn random() -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(one_seed(seed_of_clock()))
}

fn times() -> usize {
    std::env::var("SANDBAR_SIGNALS").map_or(SIGNALS, |times| times.parse().expect("a number"))
}

/// Returns the command of a program, or of a job that trains endlessly.
fn command(lab: &Lab, (program, more): EndlessProgram) -> Command {
    let (folder, task) = program.split_once('#').expect("a task");
    let program = format!("{}#{task}", component(folder).display());
    lab.command(&[&["submit", &program][..], more].concat())
}

fn training(lab: &Lab) -> Command {
    let rows: String = (0..400).map(|row| format!("{},{row},{}\n", row % 40, 2 * row)).collect();
    lab.write("rows.csv", format!("k,x,y\n{rows}"));
    let udf = component("tests/hostile/polite");
    let job = format!(
        "[input]\npaths = [\"rows.csv\"]\n[train]\ngroup_by = [\"k\"]\nfeatures = [\"x\"]\ntarget = \"y\"\n\
         models = [{{ udf = \"{}#fit_loops\" }}]\n[output]\npath = \"out.parquet\"\n",
        udf.display()
    );
    lab.write("job.toml", job);
    lab.command(&["submit", "job.toml", "--set", "limits.time_ms_max=600000"])
}

/// Interrupts a command at a moment after its start. Returns its screen.
fn interrupt(lab: &Lab, command: Command, interruption: Interruption, moment: Duration) -> String {
    let mut host = InTerminal::start(command);
    let (started, mut processes) = (Instant::now(), BTreeSet::new());
    let mut is_interrupted = false;
    let status = loop {
        if let Some(status) = host.status() {
            break status;
        }
        assert!(started.elapsed() < END_TIME_MAX, "{} goes on after {interruption:?} at {moment:?}", host.line);
        processes.extend(children(host.child.id()));
        if !is_interrupted && started.elapsed() >= moment {
            interruption.act(&mut host);
            is_interrupted = true;
        }
    };
    host.keyboard = None;
    let screen = host.screen();
    let context = format!("{} after {interruption:?} at {moment:?}: {status}\n{screen}", host.line);
    // Before the host has installed its handler, the signal kills it: shells report the same code for both.
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    assert!(is_interrupted && code == Some(interruption.code()), "{context}");
    assert!(!screen.contains("lost"), "a worker is blamed: {context}");
    until(&context, || !processes.iter().any(|process| is_alive(*process)));
    let jobs = jobs(lab);
    let is_stopped = |job: &Value| job["state"] == "stopped" && job["counts"]["lost_workers"] == 0;
    assert!(jobs.iter().all(is_stopped), "{context}{jobs:?}");
    screen
}

fn jobs(lab: &Lab) -> Vec<Value> {
    lab.host(&["jobs", "list", "--json"]).expect_code(0).json()["jobs"].as_array().cloned().unwrap_or_default()
}

/// Interrupts programs, and every third time a training job, at random moments.
fn interrupt_at_random(hows: &[Interruption]) {
    let mut random = random();
    for time in 0..times() {
        let moment = MOMENT_MAX.mul_f64(random.next_u64() as f64 / u64::MAX as f64);
        let (lab, interruption) = (Lab::new(), hows[time % hows.len()]);
        if time % 3 == 2 {
            let command = training(&lab);
            let before = lab.names();
            interrupt(&lab, command, interruption, moment);
            assert_eq!(lab.names(), before, "{interruption:?} at {moment:?} leaves something");
        } else {
            let program = PROGRAMS[(time - time / 3) % PROGRAMS.len()];
            interrupt(&lab, command(&lab, program), interruption, moment);
            assert_eq!(
                lab.names(),
                Vec::<String>::new(),
                "{program:?} {interruption:?} at {moment:?} leaves something"
            );
        }
    }
}

#[test]
fn ctrl_c_in_a_terminal_stops_a_job_at_any_moment() {
    interrupt_at_random(&[Interruption::CtrlC, Interruption::CtrlC, Interruption::CtrlC, Interruption::TwoCtrlC]);
}

#[test]
fn sigterm_to_its_group_stops_a_job_at_any_moment() {
    interrupt_at_random(&[Interruption::TermToGroup, Interruption::TermToGroup, Interruption::TermTwice]);
}

#[test]
fn a_terminal_that_closes_stops_a_job() {
    for program in &PROGRAMS[..3] {
        let lab = Lab::new();
        interrupt(&lab, command(&lab, *program), Interruption::TerminalCloses, Duration::from_millis(700));
    }
}

/// The message of an interruption describes the state of the work.
#[test]
fn an_interruption_describes_the_state_of_the_work() {
    let lab = Lab::new();
    let screen = interrupt(&lab, command(&lab, PROGRAMS[0]), Interruption::CtrlC, Duration::from_secs(2));
    let name = jobs(&lab)[0]["id"].as_str().expect("a name").to_owned();
    assert!(screen.contains(&format!("interrupted: job {} is stopped", &name[name.len() - 6..])), "{screen}");
    let screen = interrupt(&lab, training(&lab), Interruption::CtrlC, Duration::from_secs(2));
    assert!(screen.contains("interrupted: nothing was written"), "{screen}");
}

/// The record of a stopped job has the time of its end, not of its last message.
#[test]
fn a_record_has_the_time_of_the_end() {
    let lab = Lab::new();
    let moment = Duration::from_millis(2500);
    interrupt(&lab, command(&lab, PROGRAMS[0]), Interruption::TermTwice, moment);
    let job = &jobs(&lab)[0];
    let duration =
        job["ended_ms"].as_u64().zip(job["submitted_ms"].as_u64()).map(|(ended, submitted)| ended - submitted);
    assert!(duration.is_some_and(|duration| (1500..20_000).contains(&duration)), "{job}");
}

/// Ctrl-Z suspends the host without causing a time-out; `fg` resumes it.
#[test]
fn a_suspended_job_goes_on_afterwards() {
    let lab = Lab::new();
    let program = format!("{}#tree", component("tests/programs/tasks").display());
    let host_command =
        lab.command(&["submit", &program, "--arg", "depth=2", "--arg", "width=40", "--arg", "steps=3000000"]);
    // A shell that resumes its suspended command once the test has looked at it. A second Ctrl-Z, sent because
    // the first seemed lost, may suspend the command again.
    const SHELL: &str = "set -m; \"$0\" \"$@\"; : > suspended; until [ -e seen ]; do sleep 0.1; done; \
                         status=147; while [ $status = 147 -o $status = 148 ]; do fg %1; status=$?; done; exit $status";
    let mut command = Command::new("bash");
    command.args(["-c", SHELL]).arg(host_command.get_program()).args(host_command.get_args());
    command.current_dir(lab.path("")).envs(host_command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut shell = InTerminal::start(command);
    let host = |shell: &InTerminal| children(shell.child.id()).first().copied();
    until("there are workers", || host(&shell).is_some_and(|host| children(host).len() >= 2));
    let process = host(&shell).expect("it runs");
    // A Ctrl-Z while a worker starts may be lost, and is typed again.
    let mut typed: Option<Instant> = None;
    until("it is suspended", || {
        if typed.is_none_or(|typed| typed.elapsed() > Duration::from_millis(300)) {
            shell.types(CTRL_Z);
            typed = Some(Instant::now());
        }
        lab.path("suspended").exists()
    });
    let is_suspended = |process: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    assert!(is_suspended(process), "the host");
    assert!(!children(process).into_iter().any(is_suspended), "a worker is suspended");
    // Timeouts of what the host waits for would pass in this time.
    std::thread::sleep(Duration::from_secs(1));
    lab.write("seen", "");
    until("it ends", || shell.status().is_some());
    let status = shell.status().expect("it has ended");
    let screen = shell.screen();
    assert!(status.success() && screen.contains("succeeded: 1641 tasks"), "{status}\n{screen}");
}

/// While a crate is built, cargo handles the signal.
#[test]
fn ctrl_c_while_a_crate_is_built_ends_cargo() {
    let lab = Lab::new();
    lab.write("slow/Cargo.toml", "");
    let cargo = lab.write("cargo", "#!/bin/sh\nsleep 600 &\necho $$ $! > ids.new\nmv ids.new ids\nwait\n");
    std::fs::set_permissions(&cargo, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it can be run");
    let mut command = lab.command(&["submit", "slow"]);
    command.env("CARGO", &cargo).stdin(Stdio::null());
    let mut host = InTerminal::start(command);
    let ids = lab.path("slow/ids");
    until("cargo runs", || ids.exists());
    host.types(CTRL_C);
    until("it ends", || host.status().is_some());
    assert_eq!(host.status().and_then(|status| status.code()), Some(130));
    let ids = std::fs::read_to_string(&ids).expect("cargo has written it");
    until("cargo ends", || !ids.split_whitespace().any(|id| id.parse().is_ok_and(is_alive)));
    assert!(jobs(&lab).iter().all(|job| job["state"] == "stopped"));
}
