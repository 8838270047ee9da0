//! What a tenant gets of a node.

use std::time::Duration;

use sandbar_sched::TenantLimits;

/// What a tenant gets of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TenantPolicy {
    /// Weight relative to other tenants, at least 1.
    pub weight: u32,
    /// Processors that the tenant can always use.
    pub reserved_cpus: f64,
    /// What it may use at once, and in a day.
    pub limits: TenantLimits,
    /// Maximum time of a run of a program.
    pub job_time_max: Duration,
}
