//! Services of the cluster for this node's runtime.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{Fault, NodeId};
use sandbar_runtime::{Callback, ClusterServices, LoadResult, RemoteObject, TenantComponent, WORKERS_MAX};
use sandbar_store::SealedFile;

use crate::state::ClusterState;
use crate::{components, objects, registry};

/// Delay before a failed request to the store for numbers is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Fetches objects and components from other nodes, and allocates numbers.
pub(crate) struct RemoteServices(pub(crate) Arc<ClusterState>);

impl ClusterServices for RemoteServices {
    fn fetch(&self, object: RemoteObject, reply: Callback<Result<SealedFile, Fault>>) {
        let cluster = self.0.clone();
        self.0.handle.spawn(async move { reply(objects::fetch(&cluster, object).await) });
    }

    fn load(&self, node: NodeId, component: TenantComponent, reply: Callback<LoadResult>) {
        let cluster = self.0.clone();
        self.0.handle.spawn(async move { reply(components::load(&cluster, node, component).await) });
    }

    fn worker_ids(&self, reply: Callback<Range<u32>>) {
        let cluster = self.0.clone();
        self.0.handle.spawn(async move {
            loop {
                match registry::allocate_number(&*cluster.store).await {
                    Ok(number) => return reply(worker_numbers(number)),
                    Err(error) => {
                        log::warn!("no numbers can be allocated for more workers, retrying: {error}");
                        tokio::time::sleep(RETRY_DELAY).await;
                    }
                }
            }
        });
    }
}

/// Returns the numbers of workers that belong to a node's number.
fn worker_numbers(number: u16) -> Range<u32> {
    let first = u32::from(number) * WORKERS_MAX;
    first..first + WORKERS_MAX
}
