//! Every bound that a job may set, with its default.

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
    /// Returns a message that names the first limit out of range, and the range.
    pub fn check(&self) -> Result<(), String> {
        let bounds = [
            ("memory_bytes_max", self.memory_bytes_max, 64 << 10, 4 << 30),
            ("time_ms_max", self.time_ms_max, 1, u64::MAX),
            ("tensor_bytes_max", self.tensor_bytes_max, 0, 1 << 40),
            ("output_bytes_max", self.output_bytes_max, 4 << 10, 64 << 30),
            ("log_bytes_max", self.log_bytes_max, 0, LOG_BYTES_MAX),
            ("instances_max", u64::from(self.instances_max), 1, 1000),
            ("tables_max", u64::from(self.tables_max), 1, 1000),
            ("table_elements_max", u64::from(self.table_elements_max), 1, 10_000_000),
            ("model_bytes_max", self.model_bytes_max, 1, u64::MAX),
            ("retries_max", u64::from(self.retries_max), 0, 100),
        ];
        match bounds.iter().find(|(_, value, min, max)| !(min..=max).contains(&value)) {
            None => Ok(()),
            Some((name, value, min, u64::MAX)) => Err(format!("`limits.{name}` is {value}, less than {min}")),
            Some((name, value, min, max)) => Err(format!("`limits.{name}` is {value}, not from {min} to {max}")),
        }
    }
}

/// Maximum of [`Limits::log_bytes_max`], in bytes.
pub const LOG_BYTES_MAX: u64 = 512 << 10;
