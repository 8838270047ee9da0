//! Reports of usage, for operators and tenants.

use std::collections::BTreeMap;

use sandbar_core::{JobRun, UsageAmounts};
use sandbar_wire::Name;
use serde::{Deserialize, Serialize};

use super::store::UsageByJob;
use crate::error::ClusterError;

/// Maximum rows of a report.
const ROWS_MAX: usize = 20_000;
/// Text of jobs without an id of their own.
const OTHER_JOBS: &str = "(other jobs)";

/// What a row of a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UsageBy {
    /// A run of a job of a tenant, on all nodes.
    #[default]
    Job,
    /// A tenant, on all nodes.
    Tenant,
    /// A tenant on a node.
    Node,
}

/// A question about usage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageQuery {
    /// One tenant only.
    pub tenant: Option<Name>,
    /// One job only: its id, or the last part of it.
    pub job: Option<String>,
    /// Milliseconds since 1970. The whole hour counts.
    pub since_ms: u64,
    /// Subject of a row.
    pub by: UsageBy,
}

/// A row of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// Name of the tenant; `local` for jobs of a node's own user.
    pub tenant: String,
    /// Id of the job, and number of its run, in reports of jobs.
    pub job: Option<String>,
    /// Number of the job's run.
    pub run: Option<u32>,
    /// Name of the node, in reports of nodes.
    pub node: Option<String>,
    /// What was used.
    #[serde(flatten)]
    pub amounts: UsageAmounts,
}

/// What was used in a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReport {
    /// Start of the time, in milliseconds since 1970: that of an hour.
    pub since_ms: u64,
    /// End of the time, in milliseconds since 1970.
    pub until_ms: u64,
    /// The rows, in order.
    pub rows: Vec<UsageRow>,
    /// Nodes of the cluster that did not respond: what was used there is missing.
    pub missing_nodes: Vec<String>,
}

type RowKey = (String, Option<JobRun>, Option<String>);

/// The rows of a report in the making.
#[derive(Debug)]
pub(super) struct ReportRows<'q> {
    query: &'q UsageQuery,
    rows: BTreeMap<RowKey, UsageAmounts>,
}

impl<'q> ReportRows<'q> {
    pub(super) fn new(query: &'q UsageQuery) -> ReportRows<'q> {
        ReportRows { query, rows: BTreeMap::new() }
    }

    /// Adds what was used on a node.
    ///
    /// # Errors
    /// There are too many rows.
    pub(super) fn add(&mut self, node: &str, used: UsageByJob) -> Result<(), ClusterError> {
        let is_asked = |job: &JobRun| {
            let named = |text: &String| job.id == *text || job.id.rsplit('-').next() == Some(text);
            self.query.job.as_ref().is_none_or(named)
        };
        for ((tenant, job), amounts) in used {
            if !is_asked(&job) {
                continue;
            }
            let key = match self.query.by {
                UsageBy::Job => (tenant, Some(job), None),
                UsageBy::Tenant => (tenant, None, None),
                UsageBy::Node => (tenant, None, Some(node.to_owned())),
            };
            self.rows.entry(key).or_default().add(&amounts);
        }
        if self.rows.len() > ROWS_MAX {
            let message = format!(
                "the report has more than {ROWS_MAX} rows: ask for one tenant (--tenant), a shorter time (--since) or sums of \
                 tenants (--by tenant)"
            );
            return Err(ClusterError::Refused(message));
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Vec<UsageRow> {
        let row = |((tenant, job, node), amounts): (RowKey, UsageAmounts)| {
            let run = job.as_ref().map(|job| job.run).filter(|run| *run > 0);
            let job = job.map(|job| if job.id.is_empty() { OTHER_JOBS.to_owned() } else { job.id });
            UsageRow { tenant, job, run, node, amounts }
        };
        self.rows.into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(by: UsageBy, job: Option<&str>) -> Vec<String> {
        let query = UsageQuery { tenant: None, job: job.map(str::to_owned), since_ms: 0, by };
        let mut rows = ReportRows::new(&query);
        let second = JobRun { id: "20260131-235959-123-4f3a9c".to_owned(), run: 2 };
        for (node, tenant, run, cpu_ns) in [
            ("n1", "ada", second.clone(), 1),
            ("n2", "ada", second, 2),
            ("n2", "ada", JobRun::default(), 4),
            ("n2", "bob", JobRun::first("train"), 8),
        ] {
            let used = [((tenant.to_owned(), run), UsageAmounts { cpu_ns, ..UsageAmounts::default() })];
            rows.add(node, used.into()).unwrap();
        }
        let text = |UsageRow { tenant, job, run, node, amounts }: UsageRow| {
            let job = [job, run.map(|run| run.to_string()), node].into_iter().flatten();
            format!("{tenant} {} {}", job.collect::<Vec<_>>().join(" "), amounts.cpu_ns)
        };
        rows.finish().into_iter().map(text).collect()
    }

    #[test]
    fn rows_are_summed_as_asked() {
        let all = ["ada (other jobs) 4", "ada 20260131-235959-123-4f3a9c 2 3", "bob train 1 8"];
        assert_eq!(rows(UsageBy::Job, None), all);
        assert_eq!(rows(UsageBy::Job, Some("4f3a9c")), all[1..2]);
        assert_eq!(rows(UsageBy::Tenant, None), ["ada  7", "bob  8"]);
        assert_eq!(rows(UsageBy::Node, None), ["ada n1 1", "ada n2 6", "bob n2 8"]);
        assert_eq!(rows(UsageBy::Node, Some("other")), [""; 0]);
    }
}
