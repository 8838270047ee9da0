//! What a node asks another: for the store that it has, and what its objects are.

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{ComponentId, NodeId, ObjectId};
use sandbar_jobs::JobName;
use sandbar_meta::{Change, Key, KeyRange, LeaseId, MetaError, MetaStore, Revision, Transaction};
use sandbar_wire::{Connection, IncomingRequest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Inner, objects, programs};

/// A watcher's answer is given after this at the latest, with no changes.
const WATCH_TIME: Duration = Duration::from_secs(5);

/// What a node asks another.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    Get(Key),
    Range(KeyRange, u64),
    Transact(Transaction),
    Grant(u32),
    KeepAlive(LeaseId),
    Revoke(LeaseId),
    /// The next changes of a span from a revision on, and from which on to ask next.
    Watch(KeyRange, Revision),
    /// What an object is that the node has.
    Describe(u64),
    /// Whom to fetch an object from that was described, after these were given up.
    Holders(u64, Vec<NodeId>),
    /// All of an object that was described was fetched, or it was given up.
    Fetched(u64, bool),
    /// Some of what tasks of a job returned, which is taken over: from this number on.
    Remains(JobName, u64),
    /// The node is to go.
    Drain,
    /// A component is to be kept, of the node that asks, so that it can be had when that one is gone.
    Copy(ComponentId),
}

/// Asks a node.
pub(super) async fn ask<T: DeserializeOwned>(
    connection: &Connection,
    asked: &Ask,
    time: Duration,
) -> Result<T, String> {
    let request = postcard::to_stdvec(asked).map_err(|e| e.to_string())?;
    let answer = connection.request(&request, time).await.map_err(|e| e.to_string())?;
    postcard::from_bytes(&answer).map_err(|e| e.to_string())
}

/// Answers a request of a node.
pub(super) async fn answer(inner: Arc<Inner>, node: Option<NodeId>, mut request: IncomingRequest) {
    let Ok(bytes) = request.read().await else { return };
    let Ok(asked) = postcard::from_bytes::<Ask>(&bytes) else { return };
    let store = &*inner.store;
    let answer = match asked {
        Ask::Get(key) => postcard::to_stdvec(&store.get(&key).await),
        Ask::Range(span, limit) => postcard::to_stdvec(&store.range(&span, limit as usize).await),
        Ask::Transact(transaction) => postcard::to_stdvec(&store.transact(transaction).await),
        Ask::Grant(ttl_s) => postcard::to_stdvec(&store.grant(ttl_s).await),
        Ask::KeepAlive(lease) => postcard::to_stdvec(&store.keep_alive(lease).await),
        Ask::Revoke(lease) => postcard::to_stdvec(&store.revoke(lease).await),
        Ask::Watch(span, from) => postcard::to_stdvec(&watched(store, &span, from).await),
        Ask::Copy(component) => {
            postcard::to_stdvec(&programs::have(&inner, node, component).await.map_err(|fault| fault.to_string()))
        }
        Ask::Remains(job, from) => {
            let some = match inner.hub.get() {
                Some(hub) => hub.asker.remains(job.as_str(), from).await,
                None => Vec::new(),
            };
            postcard::to_stdvec(&some)
        }
        Ask::Drain => {
            inner.asked_to_drain.notify_one();
            postcard::to_stdvec(&())
        }
        Ask::Describe(object) => postcard::to_stdvec(&objects::describe(&inner, ObjectId(object)).await),
        Ask::Holders(object, gone) => {
            let holders = node.map(|node| objects::holders(&inner, node, ObjectId(object), &gone));
            postcard::to_stdvec(&holders.unwrap_or_default())
        }
        Ask::Fetched(object, is_whole) => {
            if let Some(node) = node {
                objects::fetched(&inner, node, ObjectId(object), is_whole);
            }
            postcard::to_stdvec(&())
        }
    };
    if let Ok(answer) = answer {
        // Who asked may be gone.
        let _ = request.answer(&answer).await;
    }
}

async fn watched(store: &dyn MetaStore, span: &KeyRange, from: Revision) -> Result<(Vec<Change>, Revision), MetaError> {
    let mut watcher = store.watch(span, from).await?;
    match tokio::time::timeout(WATCH_TIME, watcher.next()).await {
        Ok(changes) => Ok((changes?, watcher.position())),
        Err(_) => Ok((Vec::new(), watcher.position().max(from))),
    }
}
