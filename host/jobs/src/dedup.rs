//! Deduplication of log lines: the first line is shown at once, and its repeats as one line with their count.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time after the first line in which equal lines are counted instead of shown.
pub(crate) const WINDOW: Duration = Duration::from_secs(5);
/// Maximum tracked lines. Further lines are shown without deduplication.
const LINES_MAX: usize = 1000;
/// Maximum bytes of a tracked line. Longer lines are shown without deduplication.
const LINE_BYTES_MAX: usize = 1000;

/// Deduplicates the log lines of several tasks.
#[derive(Debug, Default)]
pub(crate) struct LogDeduplicator {
    /// Tracked lines by their text.
    lines: HashMap<String, RepeatedLine>,
}

#[derive(Debug)]
struct RepeatedLine {
    first_shown: Instant,
    /// Source of the line that was shown.
    source: String,
    /// Number of equal lines since.
    repeats: u64,
    /// Source of the last repeat.
    last_source: String,
    /// Whether a repeat has another source than the line that was shown.
    has_several_sources: bool,
}

impl LogDeduplicator {
    /// Returns the text to show, or `None` if the line repeats one that was shown in its window.
    pub(crate) fn add(&mut self, now: Instant, source: &str, line: &str) -> Option<String> {
        if let Some(repeated) = self.lines.get_mut(line) {
            repeated.repeats += 1;
            repeated.has_several_sources |= repeated.source != source;
            source.clone_into(&mut repeated.last_source);
            return None;
        }
        if line.len() <= LINE_BYTES_MAX && self.lines.len() < LINES_MAX {
            let repeated = RepeatedLine {
                first_shown: now,
                source: source.to_owned(),
                repeats: 0,
                last_source: String::new(),
                has_several_sources: false,
            };
            self.lines.insert(line.to_owned(), repeated);
        }
        Some(format!("{source} {line}"))
    }

    /// Removes the lines whose window is over, and returns a summary of each that was repeated.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<String> {
        self.take_where(|repeated| now.saturating_duration_since(repeated.first_shown) >= WINDOW)
    }

    /// Removes all lines, and returns a summary of each that was repeated.
    pub(crate) fn take_all(&mut self) -> Vec<String> {
        self.take_where(|_| true)
    }

    fn take_where(&mut self, is_due: impl Fn(&RepeatedLine) -> bool) -> Vec<String> {
        let mut due: Vec<_> = self.lines.extract_if(|_, repeated| is_due(repeated)).collect();
        due.sort_unstable_by_key(|(_, repeated)| repeated.first_shown);
        due.retain(|(_, repeated)| repeated.repeats > 0);
        due.into_iter().map(|(line, repeated)| repeated.summary(&line)).collect()
    }
}

impl RepeatedLine {
    fn summary(&self, line: &str) -> String {
        match (self.repeats, self.has_several_sources) {
            (1, _) => format!("{} {line}", self.last_source),
            (times, true) => format!("{} {line} [repeated {times} times across tasks]", self.last_source),
            (times, false) => format!("{} {line} [repeated {times} times]", self.last_source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the displayed text of lines with a time in seconds and a source, then `|`, then the rest.
    fn shown(lines: &[(u64, &str, &str)]) -> Vec<String> {
        let (start, mut deduplicator, mut all) = (Instant::now(), LogDeduplicator::default(), Vec::new());
        for (second, source, line) in lines {
            let now = start + Duration::from_secs(*second);
            all.extend(deduplicator.take_due(now));
            all.extend(deduplicator.add(now, source, line));
        }
        all.push("|".to_owned());
        all.extend(deduplicator.take_all());
        all
    }

    #[test]
    fn repeated_lines_are_counted() {
        for (lines, expected) in [
            (&[(0, "a", "x"), (0, "b", "y")][..], &["a x", "b y", "|"][..]),
            (&[(0, "a", "x"), (1, "b", "x")], &["a x", "|", "b x"]),
            (&[(0, "a", "x"), (1, "b", "x"), (2, "c", "x")], &["a x", "|", "c x [repeated 2 times across tasks]"]),
            (&[(0, "a", "x"), (1, "a", "x"), (2, "a", "x")], &["a x", "|", "a x [repeated 2 times]"]),
            // The window is over: the next equal line is shown and starts a new one.
            (
                &[(0, "a", "x"), (1, "b", "x"), (2, "c", "x"), (5, "d", "x"), (6, "e", "x")],
                &["a x", "c x [repeated 2 times across tasks]", "d x", "|", "e x"],
            ),
            (&[(0, "a", "x"), (5, "a", "x")], &["a x", "a x", "|"]),
        ] {
            assert_eq!(shown(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn tracked_lines_are_bounded() {
        let (now, mut deduplicator) = (Instant::now(), LogDeduplicator::default());
        for line in 0..2 * LINES_MAX {
            assert!(deduplicator.add(now, "a", &line.to_string()).is_some());
        }
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        assert!(deduplicator.add(now, "a", &long).is_some() && deduplicator.add(now, "a", &long).is_some());
        assert!(deduplicator.lines.len() <= LINES_MAX);
    }
}
