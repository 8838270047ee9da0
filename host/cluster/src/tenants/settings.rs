//! Settings of a tenant.

use std::time::Duration;

use sandbar_core::LimitError;
use sandbar_runtime::{DailyAmounts, TenantLimits, TenantPolicy};
use serde::{Deserialize, Serialize};

/// Settings of a tenant. Operators change them; settings that a stored record lacks have their defaults.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantSettings {
    /// Share of each node relative to the weights of other tenants: 1 to 1000.
    pub weight: u32,
    /// CPUs of each node that the tenant can always use, whatever other tenants do.
    pub reserved_cpus: f64,
    /// Maximum unfinished tasks on each node. Further ones fail.
    pub tasks_max: u64,
    /// Maximum actors on each node, with those that outlive their jobs. Further ones fail.
    pub actors_max: u64,
    /// Maximum bytes of the memory of each node's own process for tasks, calls, objects and small values. Submissions wait
    /// once unfinished tasks take half of them.
    pub memory_bytes_max: u64,
    /// Maximum bytes of objects on each node, in memory and on disk. Further values fail.
    pub object_bytes_max: u64,
    /// Maximum unfinished jobs. Further jobs are refused.
    pub jobs_max: u32,
    /// Maximum finished jobs in the cluster's store. The jobs that ended first are dropped.
    pub finished_jobs_max: u32,
    /// Maximum bytes of finished jobs in the cluster's store. The jobs that ended first are dropped.
    pub finished_job_bytes_max: u64,
    /// Maximum bytes of one component.
    pub component_bytes_max: u64,
    /// Maximum components that a node stores. The least recently used ones are evicted.
    pub components_max: u32,
    /// Maximum bytes of the components that a node stores. The least recently used ones are evicted.
    pub components_bytes_max: u64,
    /// Maximum bytes of one file.
    pub file_bytes_max: u64,
    /// Maximum bytes of the files that a node stores. The least recently used ones that no job needs are evicted.
    pub files_bytes_max: u64,
    /// Maximum seconds of CPU time on each node in a day (UTC). Beyond it, further tasks fail, and running ones go on. `None`
    /// is no maximum, here and below.
    pub cpu_seconds_per_day_max: Option<u64>,
    /// Maximum seconds of GPU time on each node in a day, likewise.
    pub gpu_seconds_per_day_max: Option<u64>,
    /// Maximum bytes that each node receives from other nodes in a day, likewise.
    pub network_bytes_per_day_max: Option<u64>,
    /// Maximum bytes of log lines on each node in a day, likewise.
    pub log_bytes_per_day_max: Option<u64>,
    /// Maximum seconds of a run of a program. Then it ends.
    pub job_seconds_max: Option<u64>,
}

impl Default for TenantSettings {
    fn default() -> TenantSettings {
        TenantSettings {
            weight: 100,
            reserved_cpus: 0.0,
            tasks_max: 1_000_000,
            actors_max: 1000,
            memory_bytes_max: 512 << 20,
            object_bytes_max: 16 << 30,
            jobs_max: 64,
            finished_jobs_max: 1000,
            finished_job_bytes_max: 16 << 20,
            component_bytes_max: 64 << 20,
            components_max: 64,
            components_bytes_max: 256 << 20,
            file_bytes_max: 4 << 30,
            files_bytes_max: 16 << 30,
            cpu_seconds_per_day_max: None,
            gpu_seconds_per_day_max: None,
            network_bytes_per_day_max: None,
            log_bytes_per_day_max: None,
            job_seconds_max: None,
        }
    }
}

/// Maximum of [`TenantSettings::reserved_cpus`].
const RESERVED_CPUS_MAX: f64 = 1_000_000.0;
/// Maximum seconds and bytes of a budget.
const BUDGET_MAX: u64 = 1 << 50;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

impl TenantSettings {
    /// Returns what the tenant gets of a node.
    pub(crate) fn policy(&self) -> TenantPolicy {
        let TenantSettings { weight, reserved_cpus, .. } = *self;
        let TenantSettings { tasks_max, actors_max, memory_bytes_max, object_bytes_max, .. } = *self;
        let nanos = |seconds: Option<u64>| seconds.map_or(u64::MAX, |seconds| seconds.saturating_mul(NANOS_PER_SECOND));
        let daily_max = DailyAmounts {
            cpu_nanos: nanos(self.cpu_seconds_per_day_max),
            gpu_nanos: nanos(self.gpu_seconds_per_day_max),
            network_bytes: self.network_bytes_per_day_max.unwrap_or(u64::MAX),
            log_bytes: self.log_bytes_per_day_max.unwrap_or(u64::MAX),
        };
        let limits = TenantLimits { tasks_max, actors_max, memory_bytes_max, object_bytes_max, daily_max };
        let job_time_max = self.job_seconds_max.map_or(Duration::MAX, Duration::from_secs);
        TenantPolicy { weight, reserved_cpus, limits, job_time_max }
    }

    /// Checks each setting against its range.
    ///
    /// # Errors
    /// The first setting out of its range.
    pub fn check(&self) -> Result<(), LimitError> {
        // A range of whole numbers: any other value counts as out of it.
        let is_in_range = (0.0..=RESERVED_CPUS_MAX).contains(&self.reserved_cpus);
        let reserved_cpus = if is_in_range { self.reserved_cpus as u64 } else { u64::MAX };
        LimitError::check([
            ("weight", self.weight.into(), 1..=1000),
            ("reserved_cpus", reserved_cpus, 0..=RESERVED_CPUS_MAX as u64),
            ("tasks_max", self.tasks_max, 1..=4_000_000),
            ("actors_max", self.actors_max, 0..=1_000_000),
            ("memory_bytes_max", self.memory_bytes_max, 1 << 20..=1 << 40),
            ("object_bytes_max", self.object_bytes_max, 0..=1 << 50),
            ("jobs_max", self.jobs_max.into(), 0..=100_000),
            ("finished_jobs_max", self.finished_jobs_max.into(), 0..=100_000),
            ("finished_job_bytes_max", self.finished_job_bytes_max, 0..=1 << 40),
            ("component_bytes_max", self.component_bytes_max, 1..=256 << 20),
            ("components_max", self.components_max.into(), 1..=100_000),
            ("components_bytes_max", self.components_bytes_max, self.component_bytes_max..=1 << 40),
            ("file_bytes_max", self.file_bytes_max, 0..=1 << 50),
            ("files_bytes_max", self.files_bytes_max, self.file_bytes_max..=1 << 50),
            ("cpu_seconds_per_day_max", self.cpu_seconds_per_day_max.unwrap_or(0), 0..=BUDGET_MAX),
            ("gpu_seconds_per_day_max", self.gpu_seconds_per_day_max.unwrap_or(0), 0..=BUDGET_MAX),
            ("network_bytes_per_day_max", self.network_bytes_per_day_max.unwrap_or(0), 0..=BUDGET_MAX),
            ("log_bytes_per_day_max", self.log_bytes_per_day_max.unwrap_or(0), 0..=BUDGET_MAX),
            ("job_seconds_max", self.job_seconds_max.unwrap_or(1), 1..=BUDGET_MAX),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_ranges() {
        let default = TenantSettings::default;
        for (settings, wrong) in [
            (default(), None),
            (TenantSettings { weight: 0, ..default() }, Some("weight")),
            (TenantSettings { weight: 1001, ..default() }, Some("weight")),
            (TenantSettings { reserved_cpus: 0.5, ..default() }, None),
            (TenantSettings { reserved_cpus: -0.5, ..default() }, Some("reserved_cpus")),
            (TenantSettings { reserved_cpus: f64::NAN, ..default() }, Some("reserved_cpus")),
            (TenantSettings { reserved_cpus: f64::INFINITY, ..default() }, Some("reserved_cpus")),
            (TenantSettings { jobs_max: 0, ..default() }, None),
            (TenantSettings { component_bytes_max: 0, ..default() }, Some("component_bytes_max")),
            (TenantSettings { cpu_seconds_per_day_max: Some(0), ..default() }, None),
            (TenantSettings { job_seconds_max: Some(0), ..default() }, Some("job_seconds_max")),
            (TenantSettings { log_bytes_per_day_max: Some(u64::MAX), ..default() }, Some("log_bytes_per_day_max")),
            (TenantSettings { components_bytes_max: 1 << 20, ..default() }, Some("components_bytes_max")),
            (TenantSettings { files_bytes_max: 1 << 30, ..default() }, Some("files_bytes_max")),
        ] {
            assert_eq!(settings.check().err().map(|e| e.name), wrong, "{settings:?}");
        }
    }

    #[test]
    fn stored_settings_may_lack_fields() {
        let settings: TenantSettings = serde_json::from_str(r#"{"weight":7,"of_a_later_version":1}"#).unwrap();
        assert_eq!(settings, TenantSettings { weight: 7, ..TenantSettings::default() });
    }
}
