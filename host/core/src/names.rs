//! Suggestions for mistyped names.

/// Returns ` (did you mean `NAME`?)` for the name among `known` that is close to `typed`, or an empty string.
pub fn hint<S: AsRef<str>>(typed: &str, known: &[S]) -> String {
    did_you_mean(typed, known).map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"))
}

/// Returns the name that differs from `typed` by case alone, else by one edit, else, for longer names, by two.
pub fn did_you_mean<'a, S: AsRef<str>>(typed: &str, known: &'a [S]) -> Option<&'a str> {
    let folded: Vec<char> = typed.to_lowercase().chars().collect();
    let within = |name: &str| {
        let name: Vec<char> = name.to_lowercase().chars().collect();
        let edits_max = if folded.len().min(name.len()) < TWO_EDITS_CHARS { 1 } else { 2 };
        edits(&folded, &name, edits_max)
    };
    let candidates = known.iter().map(AsRef::as_ref).filter_map(|name| Some((within(name)?, name)));
    // `min_by_key` returns the first of several equally close names.
    candidates.min_by_key(|(edits, _)| *edits).map(|(_, name)| name)
}

/// Minimum length, in characters, of names that are suggested for two edits.
const TWO_EDITS_CHARS: usize = 6;
/// Maximum length, in characters, of names that are compared.
const NAME_CHARS_MAX: usize = 256;

/// Returns the number of insertions, removals, replacements and swaps of characters that turn `a` into `b`, if at most
/// `max`.
fn edits(a: &[char], b: &[char], max: usize) -> Option<usize> {
    if a == b {
        return Some(0);
    }
    if a.len().abs_diff(b.len()) > max || a.len().min(b.len()) < 2 || a.len().max(b.len()) > NAME_CHARS_MAX {
        return None;
    }
    // Rows of the table of edit distances between prefixes of `a` and of `b`: two rows back, one row back, and the
    // current row.
    let (mut older, mut old): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=b.len()).collect());
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = old[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(old[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(older[j - 2] + 1);
            }
        }
        (older, old) = (old, row);
    }
    Some(old[b.len()]).filter(|edits| *edits <= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_nearly_fit_are_suggested() {
        let known = ["fare_amount", "PULocationID", "tip", "a", "models"];
        for (typed, expected) in [
            ("pulocationid", Some("PULocationID")),
            ("fare_amont", Some("fare_amount")),
            ("fare_amounts", Some("fare_amount")),
            ("fare-amount", Some("fare_amount")),
            ("fare_amuont", Some("fare_amount")),
            ("far_amuont", Some("fare_amount")),
            ("model", Some("models")),
            ("tpi", Some("tip")),
            ("tpx", None),
            ("fare", None),
            ("b", None),
            ("", None),
        ] {
            assert_eq!(did_you_mean(typed, &known), expected, "{typed}");
        }
        assert_eq!(hint("tpi", &known), " (did you mean `tip`?)");
        assert_eq!(hint("fare", &known), "");
        assert_eq!(did_you_mean(&"x".repeat(1 << 20), &["y".repeat(1 << 20)]), None);
    }
}
