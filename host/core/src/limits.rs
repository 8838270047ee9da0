//! Every bound that a job may set, with its default.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Limits of one call of a guest's function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Linear memory of an instance, including its input, in bytes. At most 4 GiB.
    pub memory_bytes_max: u64,
    /// Wall time of one batch, or of one group of a trainer, in milliseconds.
    pub time_ms_max: u64,
    /// Bytes of a guest's tensors, in host and GPU memory together.
    pub tensor_bytes_max: u64,
    /// Bytes of a call's output.
    pub output_bytes_max: u64,
    /// Bytes of a call's log; lines beyond are dropped and counted.
    pub log_bytes_max: u64,
    /// Core instances of a component.
    pub instances_max: u32,
    /// Tables of a component.
    pub tables_max: u32,
    /// Elements of each table.
    pub table_elements_max: u32,
    /// Bytes of one model's serialised form.
    pub model_bytes_max: u64,
    /// Number of retries of a call whose worker died.
    pub retries_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes_max: 1 << 30,
            time_ms_max: 60_000,
            tensor_bytes_max: 1 << 30,
            output_bytes_max: 256 << 20,
            log_bytes_max: 64 << 10,
            instances_max: 16,
            tables_max: 8,
            table_elements_max: 20_000,
            model_bytes_max: 128 << 20,
            retries_max: 3,
        }
    }
}

impl Limits {
    /// Returns the smaller value of each limit in `self` and `other`.
    pub fn within(self, other: &Limits) -> Limits {
        Limits {
            memory_bytes_max: self.memory_bytes_max.min(other.memory_bytes_max),
            time_ms_max: self.time_ms_max.min(other.time_ms_max),
            tensor_bytes_max: self.tensor_bytes_max.min(other.tensor_bytes_max),
            output_bytes_max: self.output_bytes_max.min(other.output_bytes_max),
            log_bytes_max: self.log_bytes_max.min(other.log_bytes_max),
            instances_max: self.instances_max.min(other.instances_max),
            tables_max: self.tables_max.min(other.tables_max),
            table_elements_max: self.table_elements_max.min(other.table_elements_max),
            model_bytes_max: self.model_bytes_max.min(other.model_bytes_max),
            retries_max: self.retries_max.min(other.retries_max),
        }
    }

    /// Validates each limit.
    ///
    /// # Errors
    /// The first limit out of its range.
    pub fn check(&self) -> Result<(), LimitError> {
        LimitError::check([
            ("limits.memory_bytes_max", self.memory_bytes_max, 64 << 10..=4 << 30),
            ("limits.time_ms_max", self.time_ms_max, 1..=u64::MAX),
            ("limits.tensor_bytes_max", self.tensor_bytes_max, 0..=1 << 40),
            ("limits.output_bytes_max", self.output_bytes_max, 4 << 10..=64 << 30),
            ("limits.log_bytes_max", self.log_bytes_max, 0..=LOG_BYTES_MAX),
            ("limits.instances_max", self.instances_max.into(), 1..=1000),
            ("limits.tables_max", self.tables_max.into(), 1..=1000),
            ("limits.table_elements_max", self.table_elements_max.into(), 1..=10_000_000),
            ("limits.model_bytes_max", self.model_bytes_max, 1..=u64::MAX),
            ("limits.retries_max", self.retries_max.into(), 0..=100),
        ])
    }
}

/// A limit that is out of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitError {
    /// Name of the limit, with its section if it has one: `limits.time_ms_max`.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// Smallest permitted value.
    pub min: u64,
    /// Largest permitted value.
    pub max: u64,
}

impl LimitError {
    /// Checks values of named limits against their ranges.
    ///
    /// # Errors
    /// The first value out of its range.
    pub fn check(limits: impl IntoIterator<Item = (&'static str, u64, RangeInclusive<u64>)>) -> Result<(), LimitError> {
        match limits.into_iter().find(|(_, value, range)| !range.contains(value)) {
            None => Ok(()),
            Some((name, value, range)) => Err(LimitError { name, value, min: *range.start(), max: *range.end() }),
        }
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimitError { name, value, min, max } = self;
        match *max {
            u64::MAX => write!(f, "`{name}` is {value}, less than {min}"),
            max => write!(f, "`{name}` is {value}, not from {min} to {max}"),
        }
    }
}

impl std::error::Error for LimitError {}

/// Maximum of [`Limits::log_bytes_max`], in bytes.
pub const LOG_BYTES_MAX: u64 = 512 << 10;
