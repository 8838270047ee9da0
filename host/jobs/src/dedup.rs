//! Repeated lines folded: the first of them is shown at once, of those like it how many there were, now and then.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines that are alike are told of once in so long.
pub(crate) const WINDOW: Duration = Duration::from_secs(5);
/// Lines that are known at once, and how long they may be. Others are shown as they come.
const LINES_MAX: usize = 1000;
const LINE_BYTES_MAX: usize = 1000;

/// Folds lines of several tasks.
#[derive(Debug, Default)]
pub(crate) struct LogDeduplicator {
    /// By what they say.
    lines: HashMap<String, RepeatedLine>,
}

#[derive(Debug)]
struct RepeatedLine {
    first_shown: Instant,
    /// Who said it first in this window.
    source: String,
    /// How often it was said besides, by whom last, and whether by several.
    repeats: u64,
    last_source: String,
    has_several_sources: bool,
}

impl LogDeduplicator {
    /// A line, and who says it. Gives it if it is to be shown now.
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

    /// Lines whose window is over: those that were said again, with how often.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<String> {
        self.take_where(|repeated| now.saturating_duration_since(repeated.first_shown) >= WINDOW)
    }

    /// All that is left to be shown.
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

    /// What is shown of lines that are said at a second, each by somebody, and of those that are left.
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
            // The window is over, and the next begins with who says it next.
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
