//! Errors after which a task is retried. The name is Ray's `retry_exceptions`, with codes instead of classes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::fault::Code;

/// Errors after which a task is retried, within its number of retries. A cancelled task is never retried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RetryOn {
    /// System failures alone: the task's worker died, or the actor whose method it called.
    #[default]
    System,
    /// All errors.
    All,
    /// System failures, and errors of these codes.
    Codes(CodeSet),
}

impl RetryOn {
    /// Whether an attempt that failed with `code` is retried. `system` marks a system failure, not an error of the
    /// task.
    pub fn allows(self, code: Code, system: bool) -> bool {
        system
            || match self {
                RetryOn::System => false,
                RetryOn::All => true,
                RetryOn::Codes(codes) => codes.contains(code),
            }
    }
}

impl From<Code> for RetryOn {
    fn from(code: Code) -> Self {
        [code].into()
    }
}

impl<const N: usize> From<[Code; N]> for RetryOn {
    fn from(codes: [Code; N]) -> Self {
        codes.into_iter().collect()
    }
}

impl From<&[Code]> for RetryOn {
    fn from(codes: &[Code]) -> Self {
        codes.iter().copied().collect()
    }
}

impl FromIterator<Code> for RetryOn {
    fn from_iter<I: IntoIterator<Item = Code>>(codes: I) -> Self {
        RetryOn::Codes(codes.into_iter().collect())
    }
}

/// A set of error codes, as one bit per code, so that a decoded set contains only known codes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "u64", try_from = "u64")]
pub struct CodeSet(u64);

/// Bits of the known codes.
const KNOWN: u64 = u64::MAX >> (u64::BITS as usize - Code::ALL.len());

impl CodeSet {
    /// Whether the set contains `code`.
    pub fn contains(self, code: Code) -> bool {
        self.0 & bit(code) != 0
    }

    /// Iterates over the codes in the set.
    pub fn iter(self) -> impl Iterator<Item = Code> {
        Code::ALL.iter().copied().filter(move |code| self.contains(*code))
    }
}

fn bit(code: Code) -> u64 {
    1 << code as u32
}

impl FromIterator<Code> for CodeSet {
    fn from_iter<I: IntoIterator<Item = Code>>(codes: I) -> Self {
        CodeSet(codes.into_iter().map(bit).fold(0, |all, bit| all | bit))
    }
}

impl From<CodeSet> for u64 {
    fn from(codes: CodeSet) -> u64 {
        codes.0
    }
}

impl TryFrom<u64> for CodeSet {
    type Error = &'static str;

    fn try_from(bits: u64) -> Result<Self, Self::Error> {
        if bits & !KNOWN == 0 { Ok(CodeSet(bits)) } else { Err("a set of error codes with unknown bits") }
    }
}

impl fmt::Debug for CodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_retried_by_policy() {
        let codes = RetryOn::from([Code::TimeOut, Code::Host]);
        for (retry_on, code, system, again) in [
            (RetryOn::System, Code::WorkerLost, true, true),
            (RetryOn::System, Code::Refused, false, false),
            (RetryOn::All, Code::Refused, false, true),
            (codes, Code::TimeOut, false, true),
            (codes, Code::Host, false, true),
            (codes, Code::Refused, false, false),
            (codes, Code::WorkerLost, true, true),
            ([].into(), Code::Refused, false, false),
            (Code::ALL.into(), Code::Host, false, true),
        ] {
            assert_eq!(retry_on.allows(code, system), again, "{retry_on:?} of {code:?}, system: {system}");
        }
    }

    #[test]
    fn codes_are_read_as_they_were_written() {
        for codes in [&[][..], &[Code::Refused], &[Code::Host, Code::TimeOut], Code::ALL] {
            let retry_on = RetryOn::from(codes);
            let bytes = postcard::to_stdvec(&retry_on).unwrap();
            assert_eq!(postcard::from_bytes::<RetryOn>(&bytes), Ok(retry_on), "{retry_on:?}");
        }
        let bytes = postcard::to_stdvec(&(2u32, u64::MAX)).unwrap();
        assert!(postcard::from_bytes::<RetryOn>(&bytes).is_err(), "codes that there are not");
    }
}
