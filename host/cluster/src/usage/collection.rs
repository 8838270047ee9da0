//! Collection of usage from the runtime, and the days of budgets.

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::UsageAmounts;
use sandbar_jobs::now_ms;
use sandbar_runtime::{DailyAmounts, RuntimeHandle};
use sandbar_wire::Name;

use super::store::HOUR_MS;
use crate::jobs::tenant_id;
use crate::state::ClusterState;

/// Interval at which usage is written: what was used since is lost when the node's process is killed.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval at which the node checks whether another day has begun.
const DAY_CHECK_INTERVAL: Duration = Duration::from_secs(1);
const DAY_MS: u64 = 24 * HOUR_MS;

/// Tells a runtime that has started what tenants have used today.
pub(crate) fn charge_today(cluster: &ClusterState, runtime: &RuntimeHandle) {
    for (tenant, used) in cluster.usage.store().today() {
        let Ok(tenant) = tenant.parse::<Name>() else { continue };
        let UsageAmounts { cpu_ns, gpu_ns, network_bytes, log_bytes, .. } = used;
        let used = DailyAmounts { cpu_nanos: cpu_ns, gpu_nanos: gpu_ns, network_bytes, log_bytes };
        runtime.charge_tenant(tenant_id(&tenant), used);
    }
}

/// Writes usage from time to time, and renews the budgets of tenants every day. Never returns.
pub(crate) async fn maintain(cluster: Arc<ClusterState>) {
    let (mut day, mut is_due) = (now_ms() / DAY_MS, tokio::time::interval(WRITE_INTERVAL));
    loop {
        if tokio::time::timeout(DAY_CHECK_INTERVAL, is_due.tick()).await.is_ok() {
            collect(&cluster).await;
        }
        let today = now_ms() / DAY_MS;
        if today != day
            && let Some(runtime) = cluster.runtime.get()
        {
            day = today;
            collect(&cluster).await;
            runtime.handle.start_day();
        }
    }
}

/// Writes what was used up to now.
pub(crate) async fn collect(cluster: &Arc<ClusterState>) {
    // Usage taken from the runtime must reach the store, even if the caller was dropped.
    let _ = cluster.handle.spawn(collect_now(cluster.clone())).await;
}

async fn collect_now(cluster: Arc<ClusterState>) {
    let collecting = cluster.usage.collecting.lock().await;
    let used = match cluster.runtime.get() {
        Some(runtime) => runtime.handle.take_usage().await,
        None => Vec::new(),
    };
    let tenants = cluster.tenants.all();
    cluster.usage.remember(tenants.keys().map(|name| (tenant_id(name), name.clone())));
    let state = cluster.clone();
    let write = move || {
        let mut store = state.usage.store();
        for job in used {
            store.add(&state.usage.name(job.tenant), job.run, &job.amounts);
        }
        if let Err(error) = store.write(now_ms()) {
            log::error!("the usage of tenants can't be written to the node's folder, retrying: {error}");
        }
    };
    // A slow disk must not block other requests.
    let _ = tokio::task::spawn_blocking(write).await;
    drop(collecting);
}
