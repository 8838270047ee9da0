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
pub(crate) struct Fold {
    /// By what they say.
    known: HashMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    since: Instant,
    /// Who said it first in this window.
    who: String,
    /// How often it was said besides, by whom last, and whether by several.
    times: u64,
    last: String,
    by_several: bool,
}

impl Fold {
    /// A line, and who says it. Gives it if it is to be shown now.
    pub(crate) fn add(&mut self, now: Instant, who: &str, line: &str) -> Option<String> {
        if let Some(known) = self.known.get_mut(line) {
            known.times += 1;
            known.by_several |= known.who != who;
            who.clone_into(&mut known.last);
            return None;
        }
        if line.len() <= LINE_BYTES_MAX && self.known.len() < LINES_MAX {
            let known = Known { since: now, who: who.to_owned(), times: 0, last: String::new(), by_several: false };
            self.known.insert(line.to_owned(), known);
        }
        Some(format!("{who} {line}"))
    }

    /// Lines whose window is over: those that were said again, with how often.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<String> {
        self.take(|known| now.saturating_duration_since(known.since) >= WINDOW)
    }

    /// All that is left to be shown.
    pub(crate) fn finish(&mut self) -> Vec<String> {
        self.take(|_| true)
    }

    fn take(&mut self, is_over: impl Fn(&Known) -> bool) -> Vec<String> {
        let mut over: Vec<_> = self.known.extract_if(|_, known| is_over(known)).collect();
        over.sort_unstable_by_key(|(_, known)| known.since);
        over.retain(|(_, known)| known.times > 0);
        over.into_iter().map(|(line, known)| known.words(&line)).collect()
    }
}

impl Known {
    fn words(&self, line: &str) -> String {
        match (self.times, self.by_several) {
            (1, _) => format!("{} {line}", self.last),
            (times, true) => format!("{} {line} [repeated {times} times across tasks]", self.last),
            (times, false) => format!("{} {line} [repeated {times} times]", self.last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown of lines that are said at a second, each by somebody, and of those that are left.
    fn shown(said: &[(u64, &str, &str)]) -> Vec<String> {
        let (start, mut fold, mut all) = (Instant::now(), Fold::default(), Vec::new());
        for (second, who, line) in said {
            let now = start + Duration::from_secs(*second);
            all.extend(fold.due(now));
            all.extend(fold.add(now, who, line));
        }
        all.push("|".to_owned());
        all.extend(fold.finish());
        all
    }

    #[test]
    fn lines_that_are_alike_are_counted() {
        for (said, expected) in [
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
            assert_eq!(shown(said), expected, "{said:?}");
        }
    }

    #[test]
    fn what_is_known_is_bounded() {
        let (now, mut fold) = (Instant::now(), Fold::default());
        for line in 0..2 * LINES_MAX {
            assert!(fold.add(now, "a", &line.to_string()).is_some());
        }
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        assert!(fold.add(now, "a", &long).is_some() && fold.add(now, "a", &long).is_some());
        assert!(fold.known.len() <= LINES_MAX);
    }
}
