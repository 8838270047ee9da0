//! The log on standard error: one line per event for a node; progress and failures for other commands.
//!
//! ```text
//! 2026-11-26T19:48:13.123Z INFO  connected to node `b` (number 2, 10.0.0.2:7410)
//! ```
//!
//! Each call site is limited to 10 lines at once and then one line per second, because peers can cause any number of
//! lines.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use chrono::{SecondsFormat, Utc};
use clap::ValueEnum;
use log::{Level, LevelFilter, Log, Metadata, Record};
use sandbar_node::log_targets;

use crate::output;
use crate::plain::plain;

/// Number of lines of one call site that are shown at once, and of further ones per second.
const BURST: f64 = 10.0;
const PER_SECOND: f64 = 1.0;
/// Maximum length of a line, in characters: peers choose some of its words.
const LINE_CHARS_MAX: usize = 2000;
/// Prefixes of the modules whose lines are shown; lines of libraries are not.
const OWN: [&str; 2] = ["sandbar_", "host"];

/// Lowest severity that a node's log shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Errors that stop the node.
    Error,
    /// Failures: dead nodes and workers, rejected peers, a store that does not respond.
    Warn,
    /// Changes: nodes that join or leave, jobs that start or end.
    #[default]
    Info,
    /// Failures that are retried.
    Debug,
}

/// The kind of log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// A node's log: each line has a time and a level.
    Node(LogLevel),
    /// A command's log: progress and failures, without time and level.
    Command { is_quiet: bool },
}

/// Targets whose lines a command shows, each with its most verbose level. The first match applies.
const SHOWN_BY_COMMANDS: [(&str, Level); 3] = [
    (log_targets::CONNECTION_ATTEMPTS, Level::Info),
    (log_targets::CLUSTER, Level::Warn),
    (log_targets::JOBS, Level::Warn),
];

/// Starts the log of this process.
pub(crate) fn start(format: LogFormat) {
    let level = match format {
        LogFormat::Node(LogLevel::Error) => LevelFilter::Error,
        LogFormat::Node(LogLevel::Warn) => LevelFilter::Warn,
        LogFormat::Node(LogLevel::Debug) => LevelFilter::Debug,
        LogFormat::Node(LogLevel::Info) | LogFormat::Command { .. } => LevelFilter::Info,
    };
    // Only this call sets the logger of the process, so it does not fail.
    let logger = Box::new(Logger { format, rates: Mutex::default() });
    if log::set_boxed_logger(logger).is_ok() {
        log::set_max_level(level);
    }
}

struct Logger {
    format: LogFormat,
    rates: Mutex<HashMap<(&'static str, u32), Rate>>,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_shown(self.format, metadata.target(), metadata.level())
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let call_site = (record.file_static().unwrap_or_default(), record.line().unwrap_or_default());
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(suppressed) = rates.entry(call_site).or_insert_with(Rate::new).take(Instant::now()) else { return };
        drop(rates);
        let text = line(&record.args().to_string(), suppressed);
        match self.format {
            LogFormat::Node(_) => {
                let time = Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true);
                // One write per line keeps lines whole. A closed stderr is ignored.
                let _ = std::io::stderr().write_all(format!("{time} {:<5} {text}\n", record.level()).as_bytes());
            }
            LogFormat::Command { .. } if record.level() <= Level::Warn => output::message(&format!("warning: {text}")),
            LogFormat::Command { .. } => output::message(&text),
        }
    }

    fn flush(&self) {}
}

fn is_shown(format: LogFormat, target: &str, level: Level) -> bool {
    match format {
        LogFormat::Node(_) => OWN.iter().any(|own| target.starts_with(own)),
        LogFormat::Command { is_quiet } => {
            let shown = SHOWN_BY_COMMANDS.iter().find(|(prefix, _)| target.starts_with(prefix));
            shown.is_some_and(|(_, max_level)| level <= *max_level) && (level <= Level::Warn || !is_quiet)
        }
    }
}

/// Formats a line with the number of suppressed lines before it.
fn line(line_text: &str, suppressed: u64) -> String {
    let line_text = plain(line_text).replace('\n', " ");
    let mut text: String = line_text.chars().take(LINE_CHARS_MAX).collect();
    if text.len() < line_text.len() {
        text.push('…');
    }
    if suppressed > 0 {
        text.push_str(&format!(" ({suppressed} similar lines suppressed)"));
    }
    text
}

/// Rate limit of one call site.
#[derive(Debug)]
struct Rate {
    left: f64,
    since: Instant,
    suppressed: u64,
}

impl Rate {
    fn new() -> Rate {
        Rate { left: BURST, since: Instant::now(), suppressed: 0 }
    }

    /// Takes one line from the limit. Returns the number of suppressed lines since the last shown one, or `None` to
    /// suppress this line.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        (self.left, self.since) = ((self.left + passed * PER_SECOND).min(BURST), now);
        if self.left < 1.0 {
            self.suppressed += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_that_repeat_are_left_out_and_counted() {
        let (mut rate, start) = (Rate::new(), Instant::now());
        for _ in 0..BURST as u64 {
            assert_eq!(rate.take(start), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(rate.take(start), None);
        }
        assert_eq!(rate.take(start + Duration::from_secs(1)), Some(1000));
        assert_eq!(rate.take(start + Duration::from_secs(1)), None);
        assert_eq!(rate.take(start + Duration::from_secs(2)), Some(1));
    }

    #[test]
    fn commands_show_attempts_and_nodes_show_all() {
        let (node, command) = (LogFormat::Node(LogLevel::Info), |is_quiet| LogFormat::Command { is_quiet });
        let attempts = log_targets::CONNECTION_ATTEMPTS;
        let module_of = |prefix: &str| format!("{prefix}::module");
        let (cluster, jobs) = (&module_of(log_targets::CLUSTER), &module_of(log_targets::JOBS));
        let runtime = &module_of(log_targets::RUNTIME);
        for (format, target, level, expected) in [
            (node, runtime.as_str(), Level::Warn, true),
            (node, "sandbar_wire::endpoint::accept", Level::Info, true),
            (node, "host::cluster", Level::Info, true),
            // Lines of `main.rs`.
            (node, "host", Level::Error, true),
            (node, "rustls::conn", Level::Warn, false),
            (command(false), attempts, Level::Info, true),
            (command(true), attempts, Level::Info, false),
            (command(true), attempts, Level::Warn, true),
            (command(false), cluster, Level::Info, false),
            (command(false), cluster, Level::Warn, true),
            (command(false), jobs, Level::Warn, true),
            (command(false), runtime, Level::Warn, false),
        ] {
            assert_eq!(is_shown(format, target, level), expected, "{format:?} {target} {level}");
        }
    }

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(line("a\nb\u{1b}[2J", 0), "a b\\u{1b}[2J");
        assert_eq!(line("a", 3), "a (3 similar lines suppressed)");
        assert_eq!(line(&"x".repeat(5000), 0).chars().count(), LINE_CHARS_MAX + 1);
    }
}
