//! Cached results of a job that is taken over: results of its tasks that nodes still have.

use std::time::Duration;

use futures::future::join_all;
use sandbar_jobs::JobName;
use sandbar_runtime::CachedResult;
use sandbar_wire::Connection;

use crate::node_requests::{NodeRequest, request};
use crate::state::ClusterState;

/// Maximum time until a node responds. A silent node is skipped.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum results of a job.
const RESULTS_MAX: usize = 1_000_000;

/// Collects the cached results of a job from all living nodes.
pub(crate) async fn collect(cluster: &ClusterState, job: &JobName) -> Vec<CachedResult> {
    let peers = cluster.ready_peers().await;
    let of_peers = peers.iter().map(|(_, connection)| from_node(connection, job));
    let mut all: Vec<CachedResult> = join_all(of_peers).await.concat();
    if let Some(runtime) = cluster.runtime.get() {
        let mut from = 0;
        while let page = runtime.handle.cached_results(job.as_str(), from).await
            && let Some((next, _)) = page.last()
        {
            from = *next;
            all.extend(page.into_iter().map(|(_, result)| result));
        }
    }
    all.truncate(RESULTS_MAX);
    all
}

async fn from_node(connection: &Connection, job: &JobName) -> Vec<CachedResult> {
    let (mut all, mut from) = (Vec::new(), 0);
    while all.len() < RESULTS_MAX {
        let page = NodeRequest::CachedResults(job.clone(), from);
        let page: Vec<(u64, CachedResult)> = request(connection, &page, RESPONSE_TIME_MAX).await.unwrap_or_default();
        // Numbers that do not grow would never end.
        let Some(next) = page.last().map(|(next, _)| *next).filter(|next| *next > from) else { break };
        from = next;
        all.extend(page.into_iter().map(|(_, result)| result));
    }
    all
}
