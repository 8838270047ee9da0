//! Who is in a cluster: a key for each node, which goes with its lease.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sandbar_core::NodeId;
use sandbar_meta::{
    Change, Condition, Entry, Key, MetaError, MetaStore, Operation, Revision, Span, Transaction, Value,
};
use sandbar_wire::{Clock, Identity, Name, NodeFolder, Revoked, Role, SystemClock};
use serde::{Deserialize, Serialize};

use super::store::Founder;
use super::{ClusterError, Inner, jobs, links};
use crate::program::Amounts;

/// Under which nodes are, by name, and the last number that was given out.
const NODES: &str = "nodes/";
/// Under which the names are of those that were removed.
const REMOVED: &str = "removed/";
const LAST_NUMBER: &str = "numbers/last";
/// A node that says nothing for so long is gone, for those that have no connection to it.
const LEASE_S: u32 = 4;
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// What did not work is tried again after this.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// How often it is tried to get a number: others get one at the same time.
const TRIES_MAX: usize = 1000;

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// What it is called.
    pub name: String,
    /// Its number, which no other node ever had.
    pub number: u16,
    /// Where it is reached.
    pub address: SocketAddr,
    /// The version of its program.
    pub version: String,
    /// What tasks may ask it for.
    pub resources: Amounts,
    /// Tasks that run there at once.
    pub slots: u32,
    /// Whether it takes tasks.
    #[serde(default)]
    pub state: MemberState,
}

/// What a node is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It takes tasks.
    #[default]
    Ready,
    /// It is to go: it takes none, and goes when it is not needed any more.
    Draining,
}

impl std::fmt::Display for MemberState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            MemberState::Ready => "ready",
            MemberState::Draining => "draining",
        })
    }
}

fn key(text: &str) -> Result<Key, ClusterError> {
    Key::new(text.as_bytes().to_vec()).map_err(ClusterError::from)
}

/// Takes the next number, for a node or for more of its workers.
pub(super) async fn number(store: &dyn MetaStore) -> Result<u16, ClusterError> {
    let last = key(LAST_NUMBER)?;
    for _ in 0..TRIES_MAX {
        let entry = store.get(&last).await?.entry;
        let before = entry.as_ref().and_then(|entry| postcard::from_bytes::<u16>(entry.value.as_bytes()).ok());
        let number = before.unwrap_or(0).checked_add(1).ok_or(ClusterError::NoNumbers)?;
        let condition = match &entry {
            Some(entry) => Condition::unchanged(last.clone(), entry.mod_revision),
            None => Condition::absent(last.clone()),
        };
        let put = Operation::put(last.clone(), Value::new(postcard::to_stdvec(&number).unwrap_or_default()));
        match store.transact(Transaction::new().when(condition).then(put)).await {
            Ok(done) if done.succeeded => return Ok(number),
            // Others took it. One that perhaps was taken here, and is not used, is lost: there are more.
            Ok(_) | Err(MetaError::Unknown { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(ClusterError::NoNumbers)
}

/// All members.
pub(super) async fn list(store: &dyn MetaStore) -> Result<Vec<Member>, ClusterError> {
    let (members, _) = look(store).await?;
    Ok(members)
}

async fn look(store: &dyn MetaStore) -> Result<(Vec<Member>, Revision), ClusterError> {
    let (entries, revision) = all(store, Span::prefix(NODES.as_bytes())?).await?;
    let member = |entry: &Entry| parse(entry.value.as_bytes()).ok_or_else(|| unreadable(&entry.key));
    Ok((entries.iter().map(member).collect::<Result<_, _>>()?, revision))
}

/// All entries of a span, and the revision from which on changes are news.
pub(super) async fn all(store: &dyn MetaStore, mut span: Span) -> Result<(Vec<Entry>, Revision), MetaError> {
    let (mut entries, mut from) = (Vec::new(), None);
    loop {
        let page = store.range(&span, 0).await?;
        let revision = *from.get_or_insert(page.revision);
        entries.extend(page.entries);
        match page.next {
            Some(next) => span = span.starting_at(&next),
            None => return Ok((entries, revision)),
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Member> {
    serde_json::from_slice(bytes).ok()
}

fn unreadable(key: &Key) -> ClusterError {
    ClusterError::Unreadable(String::from_utf8_lossy(key.as_bytes()).into_owned())
}

/// Says that a node is there for as long as it is, and connects it to those that were there before it.
pub(super) async fn keep(inner: Arc<Inner>, member: Member) {
    tokio::join!(stay(&inner, &member), follow(&inner, &member), shut_out(&inner), jobs::keep(&inner));
}

/// Has the node's key there.
async fn stay(inner: &Inner, member: &Member) {
    loop {
        // Whatever ails the store, it is tried again: meanwhile the node's connections stay.
        let _ = stay_once(inner, member).await;
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// Until the lease ends.
async fn stay_once(inner: &Inner, member: &Member) -> Result<(), ClusterError> {
    let store = &*inner.store;
    let lease = store.grant(LEASE_S).await?.lease;
    *inner.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease);
    let own = key(&format!("{NODES}{}", member.name))?;
    let mut state = inner.state.subscribe();
    loop {
        let said = Member { state: *state.borrow_and_update(), ..member.clone() };
        let value = Value::new(serde_json::to_vec(&said).unwrap_or_default());
        let put = Operation::Put { key: own.clone(), value, lease: Some(lease) };
        store.transact(Transaction::new().then(put)).await?;
        while tokio::time::timeout(KEEP_ALIVE, state.changed()).await.is_err() {
            match store.keep_alive(lease).await {
                Ok(_) => {}
                Err(MetaError::LeaseNotFound(_)) => return Ok(()),
                // It lasts some of these.
                Err(_) => {}
            }
        }
    }
}

/// Takes a node out of the cluster for good: its certificate is not good any more.
pub(super) async fn remove(store: &dyn MetaStore, name: &Name) -> Result<(), ClusterError> {
    let put = Operation::put(key(&format!("{REMOVED}{name}"))?, Value::new(Vec::new()));
    let delete = Operation::delete(&key(&format!("{NODES}{name}"))?);
    store.transact(Transaction::new().then(put).then(delete)).await?;
    Ok(())
}

/// Has nothing to do with nodes that were removed.
async fn shut_out(inner: &Inner) {
    loop {
        let _ = shut_out_once(inner).await;
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

async fn shut_out_once(inner: &Inner) -> Result<(), ClusterError> {
    let span = Span::prefix(REMOVED.as_bytes())?;
    loop {
        let (entries, revision) = all(&*inner.store, span.clone()).await?;
        let name =
            |entry: &Entry| std::str::from_utf8(entry.key.as_bytes()).ok()?.strip_prefix(REMOVED)?.parse::<Name>().ok();
        let names = entries.iter().filter_map(name).map(|name| (Role::Node, name)).collect();
        inner.endpoint.revoke(Revoked { names, ..Revoked::default() });
        let mut watcher = inner.store.watch(&span, revision.next()).await?;
        watcher.next().await?;
    }
}

/// The node's key is gone from here on.
pub(super) async fn leave(inner: &Inner) {
    let lease = inner.lease.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(lease) = lease {
        // Otherwise it ends by itself.
        let _ = tokio::time::timeout(KEEP_ALIVE, inner.store.revoke(lease)).await;
    }
}

/// Connects to members of lower numbers: those of higher ones connect to this.
async fn follow(inner: &Arc<Inner>, own: &Member) {
    loop {
        // Whatever fails is tried anew from the start.
        let _ = follow_once(inner, own).await;
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

async fn follow_once(inner: &Arc<Inner>, own: &Member) -> Result<(), ClusterError> {
    let (members, revision) = look(&*inner.store).await?;
    let mut known: BTreeMap<NodeId, Member> = members.into_iter().map(|m| (NodeId(m.number.into()), m)).collect();
    let mut watcher = inner.store.watch(&Span::prefix(NODES.as_bytes())?, revision.next()).await?;
    loop {
        // What is there under its own name is of the process before this one.
        let is_to_dial = |member: &Member| member.number < own.number && member.name != own.name;
        for (node, member) in known.iter().filter(|(_, member)| is_to_dial(member)) {
            if inner.link(*node).is_none() {
                links::dial(inner, member.clone());
            }
        }
        let changes = match tokio::time::timeout(TRY_AGAIN, watcher.next()).await {
            Ok(changes) => changes?,
            Err(_) => continue,
        };
        for change in changes {
            match change {
                Change::Put(entry) => {
                    let member = parse(entry.value.as_bytes()).ok_or_else(|| unreadable(&entry.key))?;
                    known.insert(NodeId(member.number.into()), member);
                }
                Change::Deleted { key, .. } => {
                    let name = String::from_utf8_lossy(key.as_bytes()).into_owned();
                    known.retain(|_, member| format!("{NODES}{}", member.name) != name);
                }
            }
        }
    }
}

/// Keeps the node's certificate from ending.
pub(super) async fn renew(inner: Arc<Inner>, folder: NodeFolder, identity: Identity, founder: Option<Arc<Founder>>) {
    let mut renew_at = identity.renew_at();
    loop {
        let now = SystemClock.now();
        tokio::time::sleep(Duration::from_secs(renew_at.0.saturating_sub(now.0).max(1))).await;
        if SystemClock.now() < renew_at {
            continue;
        }
        let Some(founder) = &founder else { return };
        let Ok(connection) = founder.connection().await else { continue };
        let Ok(new) = inner.endpoint.renew(&connection).await else { continue };
        if folder.save(&new).is_ok() && inner.endpoint.show(&new).is_ok() {
            renew_at = new.renew_at();
        }
    }
}
