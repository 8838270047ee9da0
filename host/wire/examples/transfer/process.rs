//! Child processes of this program, controlled by lines of text.

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

    pub fn send_line(&mut self, line: &str) {
        writeln!(self.to.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Returns the next line of its output; `None` at the end.
    pub fn line(&mut self) -> Option<String> {
        self.from.as_mut().and_then(line)
    }

    /// Takes the output, for another thread to read.
    pub fn take_output(&mut self) -> BufReader<ChildStdout> {
        self.from.take().unwrap()
    }

    /// Closes its input, which ends the process. Returns its remaining output.
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

/// Returns the next line; `None` at the end.
pub fn line(from: &mut BufReader<ChildStdout>) -> Option<String> {
    let mut line = String::new();
    (from.read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
}

/// Returns the next line of this process's input.
pub fn read_line() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
}

/// Returns the processor seconds that this process and another one have used.
pub fn processor_s(other: u32) -> [f64; 2] {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    // After the name, which may contain anything: fields 12 and 13, in hundredths of a second.
    let stat = std::fs::read_to_string(format!("/proc/{other}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    [own, ticks / 100.0]
}
