//! Steps with names and durations, and child processes whose failures carry advice.
//!
//! Progress goes to stderr and results to stdout, so the stdout of a child that only reports progress is redirected to
//! stderr.

use std::fmt;
use std::io::{self, Write as _};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The command line is invalid: exit code 2.
    Usage(String),
    /// A step failed: exit code 1.
    Step(String),
}

impl Failure {
    /// Returns the exit code of this failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Step(_) => 1,
            Self::Usage(_) => 2,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Step(message) => f.write_str(message),
        }
    }
}

/// Result of a step.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// Returns a failed step with this message.
pub fn fail<T>(message: impl Into<String>) -> Result<T> {
    Err(Failure::Step(message.into()))
}

/// Adds the attempted operation and its file to an I/O error.
pub trait Context<T> {
    /// `doing` completes the sentence "cannot …".
    fn context(self, doing: impl fmt::Display) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Failure::Step(format!("cannot {doing}: {error}")))
    }
}

/// Writes one line of progress to stderr. A closed stderr is ignored.
pub fn report(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "xtask: {line}");
}

/// Runs `work` and reports its name before and its duration after.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    report(format_args!("{name} ..."));
    let started = Instant::now();
    let result = work();
    let outcome = if result.is_ok() { "done in" } else { "FAILED after" };
    report(format_args!("{name}: {outcome} {}", Seconds(started.elapsed())));
    result
}

/// Runs `command` as a step with visible output. A failure's message ends with `advice`.
pub fn run(command: &mut Command, advice: &str) -> Result {
    let line = display(command);
    step(&line, || {
        let status = command.status().map_err(|error| not_started(command, &error))?;
        if status.success() { Ok(()) } else { fail(format!("`{line}` {}\n{advice}", ExitDescription(status))) }
    })
}

/// Like [`run`], for programs of this workspace: their exit code 2 is a [`Failure::Usage`].
pub fn run_own(command: &mut Command, advice: &str) -> Result {
    let line = display(command);
    step(&line, || {
        let status = command.status().map_err(|error| not_started(command, &error))?;
        let message = format!("`{line}` {}\n{advice}", ExitDescription(status));
        match status.code() {
            Some(0) => Ok(()),
            Some(2) => Err(Failure::Usage(message)),
            _ => Err(Failure::Step(message)),
        }
    })
}

/// Like [`run`], for a child that reports progress on stdout.
pub fn run_quiet_stdout(command: &mut Command, advice: &str) -> Result {
    run(command.stdout(Stdio::from(io::stderr())), advice)
}

/// Runs `command` and returns its stdout; a failure's message contains its stderr.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|error| not_started(command, &error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    fail(format!("`{}` {}\n{stderr}", display(command), ExitDescription(output.status)))
}

/// Formats the command as one would type it, without its environment.
pub fn display(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let name = program.rsplit('/').next().unwrap_or_default();
    let mut line = name.to_owned();
    for arg in command.get_args() {
        let arg = arg.to_string_lossy();
        line.push(' ');
        if arg.is_empty() || arg.contains(char::is_whitespace) {
            line.push_str(&format!("'{arg}'"));
        } else {
            line.push_str(&arg);
        }
    }
    line
}

/// Describes why a child process did not start.
pub fn not_started(command: &Command, error: &io::Error) -> Failure {
    let program = command.get_program().to_string_lossy();
    Failure::Step(match error.kind() {
        io::ErrorKind::NotFound => format!("`{program}` is not installed, or not in PATH"),
        _ => format!("`{}` could not be started: {error}", display(command)),
    })
}

/// Exit status in words: "failed with exit code 101", "was killed (signal: 9)".
pub struct ExitDescription(pub ExitStatus);

impl fmt::Display for ExitDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.code() {
            Some(code) => write!(f, "failed with exit code {code}"),
            None => write!(f, "was killed ({})", self.0),
        }
    }
}

/// Duration for people: "12 ms", "3.4 s", "2 min 05 s".
pub struct Seconds(pub Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        match seconds {
            s if s < 1.0 => write!(f, "{:.0} ms", s * 1e3),
            s if s < 100.0 => write!(f, "{s:.1} s"),
            s => write!(f, "{} min {:02} s", s as u64 / 60, s as u64 % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        for (ms, expected) in [(4, "4 ms"), (1_500, "1.5 s"), (99_900, "99.9 s"), (125_000, "2 min 05 s")] {
            assert_eq!(Seconds(Duration::from_millis(ms)).to_string(), expected);
        }
    }

    #[test]
    fn a_command_is_shown_as_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["test", "two words", ""]);
        assert_eq!(display(&command), "cargo test 'two words' ''");
    }

    #[test]
    fn a_missing_program_is_named() {
        let failure = capture(&mut Command::new("no-such-program-here")).unwrap_err();
        assert_eq!(failure.to_string(), "`no-such-program-here` is not installed, or not in PATH");
        assert_eq!(failure.exit_code(), 1);
    }

    #[test]
    fn usage_errors_of_own_programs_are_usage_errors() {
        for (code, expected) in [("exit 2", Some(2)), ("exit 7", Some(1)), ("exit 0", None)] {
            let result = run_own(Command::new("sh").args(["-c", code]), "advice");
            assert_eq!(result.err().map(|failure| failure.exit_code()), expected, "{code}");
        }
    }

    #[test]
    fn a_failed_program_is_reported_with_its_code_and_stderr() {
        let failure = capture(Command::new("sh").args(["-c", "echo oh >&2; exit 3"])).unwrap_err();
        assert_eq!(failure.to_string(), "`sh -c 'echo oh >&2; exit 3'` failed with exit code 3\noh");
    }
}
