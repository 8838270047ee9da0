//! What tasks ask for and no node has left, said once.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sandbar_core::JobId;
use sandbar_jobs::LogEntry;
use sandbar_sched::DemandSource;

use super::State;

/// How often it is looked for. What is not met twice is said.
const LOOK: Duration = Duration::from_secs(1);
/// So many things are said.
const SAID_MAX: usize = 100;
/// The level of what is worth a look.
const WARN: u8 = 2;

/// What is not met, as of the last look.
#[derive(Debug, Default)]
pub(super) struct Unmet {
    last: Option<Instant>,
    /// The first of each line that is, and groups.
    before: HashSet<DemandSource>,
    said: HashSet<(JobId, String)>,
}

impl State {
    /// Says what has not been met for a while: once of each job and demand.
    pub(super) fn say_unmet(&mut self, now: Instant) {
        if self.unmet.last.is_some_and(|last| now - last < LOOK) {
            return;
        }
        self.unmet.last = Some(now);
        let unmet = self.sched.unmet_demands();
        for at in &unmet {
            let is_stuck = self.unmet.before.contains(&first(at.source));
            // The same demand, whatever is left of it.
            let asked = at.reason.split(',').next().unwrap_or_default().to_owned();
            if is_stuck && self.unmet.said.len() < SAID_MAX && self.unmet.said.insert((at.job, asked)) {
                let line = match at.source {
                    DemandSource::Tasks(_, 1) => format!("a task waits for {}", at.reason),
                    DemandSource::Tasks(_, waiting) => format!("{waiting} tasks wait for {}", at.reason),
                    DemandSource::Group(group) => format!("placement group {} waits: {}", group.short(), at.reason),
                };
                if let Some(job) = self.jobs.get(&at.job) {
                    job.log.send(LogEntry { task: None, level: WARN, line: &line });
                }
            }
        }
        self.unmet.before = unmet.into_iter().map(|at| first(at.source)).collect();
    }
}

/// However many wait behind it.
fn first(what: DemandSource) -> DemandSource {
    match what {
        DemandSource::Tasks(first, _) => DemandSource::Tasks(first, 0),
        group => group,
    }
}
