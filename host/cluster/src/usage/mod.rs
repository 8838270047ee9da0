//! Usage of jobs and tenants: collected from the runtime, kept in files of this node, and reported.

mod collection;
mod node_usage;
mod queries;
mod report;
mod store;

pub(crate) use self::collection::{charge_today, collect, maintain};
pub(crate) use self::node_usage::NodeUsage;
#[cfg(test)]
pub(crate) use self::queries::{PageRow, UsagePage};
pub(crate) use self::queries::{own_page, report};
pub use self::report::{UsageBy, UsageQuery, UsageReport, UsageRow};
