//! What goes on in a process, on standard error: a node's log, a line an event; of other commands what a user waits for.
//!
//! ```text
//! 2026-11-26T19:48:13.123Z INFO  connected to node `b` (number 2, 10.0.0.2:7410)
//! ```
//!
//! One place of the code says so many lines at once, and then a line a second: peers may be the cause of as many as they like.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use chrono::{SecondsFormat, Utc};
use clap::ValueEnum;
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::output;

/// Lines of one place that are shown at once, and how many more in a second.
const BURST: f64 = 10.0;
const PER_SECOND: f64 = 1.0;
/// A line is no longer, in characters: peers choose some of its words.
const LINE_CHARS_MAX: usize = 2000;
/// Whose lines are shown: not those of libraries.
const OWN: [&str; 2] = ["sandbar_", "host"];

/// Events that a node's log has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// What ends the node.
    Error,
    /// What went wrong: nodes and workers that died, peers that were refused, a store that does not answer.
    Warn,
    /// What changed: nodes that came and went, jobs that began and ended.
    #[default]
    Info,
    /// What failed and is tried again.
    Debug,
}

/// Whose log it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A node's: each line with a time and a level.
    Node(LogLevel),
    /// A command's, which may be quiet: what it waits for, and what went wrong, in words alone.
    Command { is_quiet: bool },
}

/// Lines that a command shows, by the module that says them: of nothing else is its user to know.
const OF_COMMANDS: [(&str, Level); 3] = [
    ("sandbar_node::cluster::reach", Level::Info),
    ("sandbar_node::cluster", Level::Warn),
    ("sandbar_node::jobs", Level::Warn),
];

/// Has this process say what goes on from now on.
pub(crate) fn start(form: Form) {
    let level = match form {
        Form::Node(LogLevel::Error) => LevelFilter::Error,
        Form::Node(LogLevel::Warn) => LevelFilter::Warn,
        Form::Node(LogLevel::Debug) => LevelFilter::Debug,
        Form::Node(LogLevel::Info) | Form::Command { .. } => LevelFilter::Info,
    };
    // A process has one, and it is set here alone.
    let logger = Box::new(Logger { form, rates: Mutex::default() });
    if log::set_boxed_logger(logger).is_ok() {
        log::set_max_level(level);
    }
}

struct Logger {
    form: Form,
    rates: Mutex<HashMap<(&'static str, u32), Rate>>,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_shown(self.form, metadata.target(), metadata.level())
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let place = (record.file_static().unwrap_or_default(), record.line().unwrap_or_default());
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left_out) = rates.entry(place).or_insert_with(Rate::new).take(Instant::now()) else { return };
        drop(rates);
        let text = line(&record.args().to_string(), left_out);
        match self.form {
            Form::Node(_) => {
                let time = Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true);
                // A line at once, whoever else writes there. Nobody has to listen.
                let _ = std::io::stderr().write_all(format!("{time} {:<5} {text}\n", record.level()).as_bytes());
            }
            Form::Command { .. } if record.level() <= Level::Warn => output::talk(&format!("warning: {text}")),
            Form::Command { .. } => output::talk(&text),
        }
    }

    fn flush(&self) {}
}

fn is_shown(form: Form, target: &str, level: Level) -> bool {
    match form {
        Form::Node(_) => OWN.iter().any(|own| target.starts_with(own)),
        Form::Command { is_quiet } => {
            let of = OF_COMMANDS.iter().find(|(module, _)| target.starts_with(module));
            of.is_some_and(|(_, most)| level <= *most) && (level <= Level::Warn || !is_quiet)
        }
    }
}

/// A line, with how many like it were left out before it.
fn line(words: &str, left_out: u64) -> String {
    let words = output::plain(words).replace('\n', " ");
    let mut text: String = words.chars().take(LINE_CHARS_MAX).collect();
    if text.len() < words.len() {
        text.push('…');
    }
    if left_out > 0 {
        text.push_str(&format!(" ({left_out} more like it were left out before)"));
    }
    text
}

/// How many lines a place may still say.
#[derive(Debug)]
struct Rate {
    left: f64,
    since: Instant,
    left_out: u64,
}

impl Rate {
    fn new() -> Rate {
        Rate { left: BURST, since: Instant::now(), left_out: 0 }
    }

    /// Whether there may be a line now: how many there might have been since the last one.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        (self.left, self.since) = ((self.left + passed * PER_SECOND).min(BURST), now);
        if self.left < 1.0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_that_repeat_are_left_out_and_counted() {
        let (mut rate, begun) = (Rate::new(), Instant::now());
        for _ in 0..BURST as u64 {
            assert_eq!(rate.take(begun), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(rate.take(begun), None);
        }
        assert_eq!(rate.take(begun + Duration::from_secs(1)), Some(1000));
        assert_eq!(rate.take(begun + Duration::from_secs(1)), None);
        assert_eq!(rate.take(begun + Duration::from_secs(2)), Some(1));
    }

    #[test]
    fn commands_say_what_they_wait_for_and_nodes_all() {
        let (node, command) = (Form::Node(LogLevel::Info), |is_quiet| Form::Command { is_quiet });
        for (form, target, level, expected) in [
            (node, "sandbar_node::program::hub::workers", Level::Warn, true),
            (node, "sandbar_wire::endpoint::accept", Level::Info, true),
            (node, "host::cluster", Level::Info, true),
            // Of `main.rs`.
            (node, "host", Level::Error, true),
            (node, "rustls::conn", Level::Warn, false),
            (command(false), "sandbar_node::cluster::reach", Level::Info, true),
            (command(true), "sandbar_node::cluster::reach", Level::Info, false),
            (command(true), "sandbar_node::cluster::reach", Level::Warn, true),
            (command(false), "sandbar_node::cluster::links", Level::Info, false),
            (command(false), "sandbar_node::jobs::keeper", Level::Warn, true),
            (command(false), "sandbar_node::program::hub::workers", Level::Warn, false),
        ] {
            assert_eq!(is_shown(form, target, level), expected, "{form:?} {target} {level}");
        }
    }

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(line("a\nb\u{1b}[2J", 0), "a b\\u{1b}[2J");
        assert_eq!(line("a", 3), "a (3 more like it were left out before)");
        assert_eq!(line(&"x".repeat(5000), 0).chars().count(), LINE_CHARS_MAX + 1);
    }
}
