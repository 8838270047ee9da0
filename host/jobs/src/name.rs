//! Names of jobs, which sort by submission time and have a short form for people.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// Name of a job: its submission time to the millisecond in UTC, and six random hexadecimal digits:
/// `20260131-235959-123-4f3a9c`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(String);

const TIME_CHARS: usize = "20260131-235959-123".len();
const DIGITS: usize = 6;

impl JobName {
    /// Generates a name with the current time.
    pub fn generate() -> JobName {
        // `RandomState` has random keys, which make the hash random.
        JobName::from_parts(Utc::now(), RandomState::new().hash_one(0u8))
    }

    fn from_parts(time: DateTime<Utc>, random: u64) -> JobName {
        JobName(format!("{}-{:06x}", time.format("%Y%m%d-%H%M%S-%3f"), random & 0xff_ffff))
    }

    /// Returns the digits at the end of the name, which users see and type.
    pub fn short(&self) -> &str {
        &self.0[TIME_CHARS + 1..]
    }

    /// Returns the full name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether `text` is the full name, or a non-empty prefix of the short name.
    pub fn matches(&self, text: &str) -> bool {
        self.0 == text || !text.is_empty() && self.short().starts_with(text)
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for JobName {
    type Err = String;

    fn from_str(text: &str) -> Result<JobName, String> {
        let is_valid = text.len() == TIME_CHARS + 1 + DIGITS
            && text.bytes().zip(b"00000000-000000-000-ffffff").all(|(byte, kind)| match kind {
                b'0' => byte.is_ascii_digit(),
                b'f' => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
                other => byte == *other,
            });
        is_valid.then(|| JobName(text.to_owned())).ok_or_else(|| format!("`{text}` is not the name of a job"))
    }
}

impl TryFrom<String> for JobName {
    type Error = String;

    fn try_from(text: String) -> Result<JobName, String> {
        text.parse()
    }
}

impl From<JobName> for String {
    fn from(name: JobName) -> String {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_time_and_parse() {
        let at = |ms: i64, random| JobName::from_parts(DateTime::from_timestamp_millis(ms).unwrap(), random);
        let names = [at(0, 0xff_ffff), at(1, 0), at(999, 7), at(1_769_903_999_123, 0xab4f_3a9c), at(1 << 41, 1)];
        assert!(names.is_sorted());
        assert_eq!(names[3].as_str(), "20260131-235959-123-4f3a9c");
        for name in &names {
            assert_eq!(name.as_str().parse().as_ref(), Ok(name));
        }
    }

    #[test]
    fn invalid_names_are_rejected() {
        for text in
            ["", ".", "..", "20260131-235959-123-4f3a9", "20260131-235959-123-4F3A9C", "20260131/235959-123-4f3a9c"]
        {
            assert!(text.parse::<JobName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_prefix_of_the_digits_matches() {
        let name: JobName = "20260131-235959-123-4f3a9c".parse().unwrap();
        for (text, expected) in [
            ("4f3a9c", true),
            ("4f", true),
            ("", false),
            ("3a", false),
            ("2026", false),
            ("20260131-235959-123-4f3a9c", true),
        ] {
            assert_eq!(name.matches(text), expected, "{text}");
        }
    }
}
