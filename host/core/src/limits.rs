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
