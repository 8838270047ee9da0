//! What is left of a job that is taken over: each node says what tasks of it returned there.

use std::time::Duration;

use futures::future::join_all;
use sandbar_jobs::JobName;
use sandbar_wire::Connection;

use crate::Inner;
use crate::asks::{Ask, ask};
use sandbar_runtime::Remnant;

/// A node that says nothing for so long is not waited for.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// Of one job no more is taken.
const REMNANTS_MAX: usize = 1_000_000;

/// What there is of a job, on all nodes that are there.
pub(super) async fn gather(inner: &Inner, job: &JobName) -> Vec<Remnant> {
    let others = inner.others().await;
    let mut all: Vec<Remnant> = join_all(others.iter().map(|(_, link)| of_node(link, job))).await.concat();
    if let Some(hub) = inner.hub.get() {
        let mut from = 0;
        while let some = hub.asker.remains(job.as_str(), from).await
            && let Some((next, _)) = some.last()
        {
            from = *next;
            all.extend(some.into_iter().map(|(_, remnant)| remnant));
        }
    }
    all.truncate(REMNANTS_MAX);
    all
}

async fn of_node(link: &Connection, job: &JobName) -> Vec<Remnant> {
    let (mut all, mut from) = (Vec::new(), 0);
    while all.len() < REMNANTS_MAX {
        let asked = Ask::Remains(job.clone(), from);
        let some: Vec<(u64, Remnant)> = ask(link, &asked, ANSWER_TIME_MAX).await.unwrap_or_default();
        // Numbers that do not grow would have no end.
        let Some(next) = some.last().map(|(next, _)| *next).filter(|next| *next > from) else { break };
        from = next;
        all.extend(some.into_iter().map(|(_, remnant)| remnant));
    }
    all
}
