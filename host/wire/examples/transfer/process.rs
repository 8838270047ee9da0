//! Processes of this program, which say a line at a time.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub struct Process {
    child: Child,
    to: Option<ChildStdin>,
    from: Option<BufReader<ChildStdout>>,
}

impl Process {
    pub fn start(arguments: &[&str]) -> Process {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        Process { child, to, from }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.to.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line that it says; none when it has ended.
    pub fn line(&mut self) -> Option<String> {
        self.from.as_mut().and_then(line)
    }

    /// For another thread to read what it says.
    pub fn take_output(&mut self) -> BufReader<ChildStdout> {
        self.from.take().unwrap()
    }

    /// Its input ends, and with it the process. Gives what it still says.
    pub fn end(mut self) -> String {
        drop(self.to.take());
        let mut rest = String::new();
        while let Some(line) = self.line() {
            rest.push_str(&line);
        }
        assert!(self.child.wait().unwrap().success());
        rest
    }
}

/// The next line; none when there is no more.
pub fn line(from: &mut BufReader<ChildStdout>) -> Option<String> {
    let mut line = String::new();
    (from.read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
}

/// What a process is told, a line at a time.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
}

/// Processor time of processes so far, in seconds: of this one and of another.
pub fn processor_s(other: u32) -> [f64; 2] {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    // Behind the name, which may hold anything: the 12th and 13th field, in hundredths of a second.
    let stat = std::fs::read_to_string(format!("/proc/{other}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    [own, ticks / 100.0]
}
