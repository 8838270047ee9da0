//! What the hub asks of its cluster.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{ComponentId, Limits, NodeId};
use sandbar_store::SealedFile;

use super::{Inner, members, objects, programs};
use sandbar_runtime::{Loaded, Outside, Tell, WORKERS_MAX, Wanted};

/// A store that has no number to give is asked again after this.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The other nodes of a cluster.
pub(super) struct Others(pub(super) Arc<Inner>);

impl Outside for Others {
    fn fetch(&self, wanted: Wanted, told: Tell<Result<SealedFile, String>>) {
        let inner = self.0.clone();
        self.0.handle.spawn(async move { told(objects::fetch(&inner, wanted).await) });
    }

    fn load(&self, node: NodeId, component: ComponentId, limits: Limits, told: Tell<Loaded>) {
        let inner = self.0.clone();
        self.0.handle.spawn(async move { told(programs::load(&inner, node, component, limits).await) });
    }

    fn numbers(&self, told: Tell<Range<u32>>) {
        let inner = self.0.clone();
        self.0.handle.spawn(async move {
            loop {
                match members::number(&*inner.store).await {
                    Ok(number) => return told(workers_of(number)),
                    Err(error) => {
                        log::warn!("there are no numbers for more workers yet: {error}");
                        tokio::time::sleep(TRY_AGAIN).await;
                    }
                }
            }
        });
    }
}

/// The numbers of workers that come with a node's number.
fn workers_of(number: u16) -> Range<u32> {
    let first = u32::from(number) * WORKERS_MAX;
    first..first + WORKERS_MAX
}
