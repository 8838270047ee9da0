//! Warnings of resources that tasks and placement groups request and no node has free.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use sandbar_core::{JobId, TenantId};
use sandbar_sched::DemandSource;

use super::context::Context;
use super::effects::{Effect, JobEffect};

/// Interval of the checks. A demand that two checks find is warned of.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of warnings of a job.
const WARNINGS_MAX: usize = 20;

/// Unmet demands of the last check.
#[derive(Debug, Default)]
pub(super) struct UnmetDemands {
    last: Option<Instant>,
    /// Groups, and the first task of each queue.
    unmet: HashSet<DemandSource>,
    /// Demands of each job that were warned of.
    warned: BTreeMap<JobId, BTreeSet<String>>,
}

impl UnmetDemands {
    /// Warns of demands that are unmet for a while, once for each job and demand.
    pub(super) fn tick(&mut self, cx: &mut Context) {
        let now = cx.time.now;
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            return;
        }
        self.last = Some(now);
        self.warned.retain(|job, _| cx.scheduler.tenant_of(*job).is_some());
        let unmet = cx.scheduler.unmet_demands();
        for demand in &unmet {
            let is_stuck = self.unmet.contains(&first(demand.source));
            // Without the free resources, which change.
            let requested = demand.reason.split(',').next().unwrap_or_default();
            let warned = self.warned.entry(demand.job).or_default();
            if is_stuck && warned.len() < WARNINGS_MAX && warned.insert(requested.to_owned()) {
                // What is free tells a tenant what others use.
                let is_tenant = cx.scheduler.tenant_of(demand.job) != Some(TenantId::DEFAULT);
                let reason = if is_tenant { requested } else { &demand.reason };
                let line = match demand.source {
                    DemandSource::Tasks(_, 1) => format!("a task waits for {reason}"),
                    DemandSource::Tasks(_, waiting) => format!("{waiting} tasks wait for {reason}"),
                    DemandSource::Group(group) => format!("placement group {} waits: {reason}", group.short()),
                };
                cx.push(Effect::Job(JobEffect::Warn(demand.job, line)));
            }
        }
        self.unmet = unmet.into_iter().map(|demand| first(demand.source)).collect();
    }
}

/// Returns the source without the number of tasks.
fn first(source: DemandSource) -> DemandSource {
    match source {
        DemandSource::Tasks(first, _) => DemandSource::Tasks(first, 0),
        group => group,
    }
}
