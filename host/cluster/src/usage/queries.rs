//! Questions about usage, of this node and of others.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use sandbar_core::{JobRun, NodeId, UsageAmounts};
use sandbar_jobs::now_ms;
use sandbar_wire::{Connection, Name};
use serde::{Deserialize, Serialize};

use super::collection::collect;
use super::report::{ReportRows, UsageQuery, UsageReport};
use super::store::{HOUR_MS, UsageByJob};
use crate::error::ClusterError;
use crate::node_requests::{NodeRequest, request};
use crate::registry;
use crate::state::ClusterState;

/// Maximum time until another node responds with a page.
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum pages of a node.
const PAGES_MAX: usize = 10_000;

/// Usage on a node from some hour on, and the hour of the next page.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UsagePage {
    pub(crate) rows: Vec<PageRow>,
    pub(crate) next: Option<u64>,
}

/// What a run of a job used.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PageRow {
    pub(crate) tenant: String,
    pub(crate) run: JobRun,
    pub(crate) amounts: UsageAmounts,
}

/// Returns a page of what was used on this node.
pub(crate) async fn own_page(cluster: &Arc<ClusterState>, tenant: Option<Name>, since: u64) -> UsagePage {
    collect(cluster).await;
    let state = cluster.clone();
    let read = move || {
        let store = state.usage.store().clone();
        store.page(since, tenant.as_ref().map(Name::as_str))
    };
    let (page, next) = tokio::task::spawn_blocking(read).await.unwrap_or_default();
    let row = |((tenant, run), amounts)| PageRow { tenant, run, amounts };
    UsagePage { rows: page.into_iter().map(row).collect(), next }
}

/// Returns what was used on all nodes.
///
/// # Errors
/// Fails if the store does not respond, or the report is too long.
pub(crate) async fn report(cluster: &Arc<ClusterState>, query: &UsageQuery) -> Result<UsageReport, ClusterError> {
    let (since, until_ms) = (query.since_ms / HOUR_MS, now_ms());
    let mut rows = ReportRows::new(query);
    let mut from = Some(since);
    while let Some(hour) = from {
        let page = own_page(cluster, query.tenant.clone(), hour).await;
        from = page.next;
        rows.add(&cluster.own.name, by_job(page))?;
    }
    let members = registry::list(&*cluster.store).await?;
    let others = members.into_iter().filter(|member| member.name != cluster.own.name);
    let asked = others.map(|member| async move {
        let connection = cluster.connection(NodeId(member.number.into()));
        let pages = match connection {
            Some(connection) => pages_of(&connection, query, since).await,
            None => Err(ClusterError::NotConnected(member.name.clone())),
        };
        (member.name, pages)
    });
    let mut missing_nodes = Vec::new();
    for (node, pages) in join_all(asked).await {
        match pages {
            Ok(pages) => pages.into_iter().try_for_each(|page| rows.add(&node, by_job(page)))?,
            Err(error) => {
                log::debug!("node {node} has not reported its usage: {error}");
                missing_nodes.push(node);
            }
        }
    }
    Ok(UsageReport { since_ms: since * HOUR_MS, until_ms, rows: rows.finish(), missing_nodes })
}

async fn pages_of(connection: &Connection, query: &UsageQuery, since: u64) -> Result<Vec<UsagePage>, ClusterError> {
    let (mut pages, mut from) = (Vec::new(), Some(since));
    while let Some(hour) = from.filter(|_| pages.len() < PAGES_MAX) {
        let to_node = NodeRequest::Usage(query.tenant.clone(), hour);
        let page: UsagePage = request(connection, &to_node, RESPONSE_TIME_MAX).await?;
        // A page ends before the next.
        from = page.next.filter(|next| *next > hour);
        pages.push(page);
    }
    Ok(pages)
}

fn by_job(page: UsagePage) -> UsageByJob {
    page.rows.into_iter().map(|PageRow { tenant, run, amounts }| ((tenant, run), amounts)).collect()
}
