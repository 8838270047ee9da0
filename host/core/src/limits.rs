//! Every bound that a job may set, in one place, with its default.

use serde::{Deserialize, Serialize};

/// What one call of a guest's function may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Linear memory of an instance, input included. At most 4 GiB.
    pub memory_bytes_max: u64,
    /// Wall time of one batch, or of one group of a trainer.
    pub time_ms_max: u64,
    /// Bytes that a guest's tensors may take, wherever they are.
    pub tensor_bytes_max: u64,
    /// Bytes a call may hand back.
    pub output_bytes_max: u64,
    /// Bytes a call may log; what is over is dropped, and counted.
    pub log_bytes_max: u64,
    /// Core instances a component may consist of.
    pub instances_max: u32,
    /// Tables a component may have.
    pub tables_max: u32,
    /// Elements of each table.
    pub table_elements_max: u32,
    /// Bytes of one model's serialised form.
    pub model_bytes_max: u64,
    /// How often a call is run again when its worker dies under it.
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
    /// No more of anything than another's.
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

    /// Whether each is one that can be kept.
    ///
    /// # Errors
    /// Names the first that can't, and what it may be.
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
        match bounds.iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
            None => Ok(()),
            Some((name, value, least, u64::MAX)) => Err(format!("`limits.{name}` is {value}, less than {least}")),
            Some((name, value, least, most)) => Err(format!("`limits.{name}` is {value}, not from {least} to {most}")),
        }
    }
}

/// The most that [`Limits::log_bytes_max`] may be.
pub const LOG_BYTES_MAX: u64 = 512 << 10;
