//! Membership of this node: it holds its key and lease in the cluster's store, connects to other members, and renews its
//! certificate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::{NodeId, TenantId};
use sandbar_meta::{Change, Condition, MetaError, MetaValue, Operation, Transaction};
use sandbar_wire::{
    AccessList, CERTIFICATE_LIFETIME_S, Clock, Connection, Identity, KeyId, Name, NodeFolder, Principal, SystemClock,
};

use crate::error::ClusterError;
use crate::jobs::{hold_leases, tenant_id};
use crate::member::{Member, MemberState};
use crate::registry::{self, LEASE_S};
use crate::state::ClusterState;
use crate::tenants::{bind_name, observe_access};
use crate::{connections, encoding};

/// Interval at which the lease is renewed.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a failed operation is retried.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Attempts to remove what is stored of removed tenants, and the time between them.
const REMOVALS_MAX: u32 = 60;
const REMOVAL_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a failed renewal of the certificate is retried.
const RENEW_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Keeps the node a member, and connects it to the members that joined before it. Never returns.
pub(crate) async fn maintain(cluster: Arc<ClusterState>, own: Member) {
    tokio::join!(hold_membership(&cluster, &own), connect_members(&cluster, &own), hold_leases(&cluster));
}

/// Holds the node's key in the store.
async fn hold_membership(cluster: &ClusterState, own: &Member) {
    let mut health = StoreHealth::default();
    loop {
        // While the store fails, the node's connections stay.
        match hold_membership_once(cluster, own, &mut health).await {
            Ok(()) => log::warn!("the lease of this node has expired: it was not renewed for {LEASE_S} s"),
            Err(ClusterError::Fenced(reason)) => return cluster.membership.fence(reason),
            Err(ClusterError::RetryLater(reason)) => log::warn!("{reason}"),
            Err(error) => health.record_failure(&error),
        }
        if let Some(reason) = exclusion(cluster) {
            return cluster.membership.fence(reason);
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Returns why this node is no longer a member, if the founder rejects it for that.
fn exclusion(cluster: &ClusterState) -> Option<String> {
    cluster.membership.founder.as_ref().and_then(|founder| founder.exclusion())
}

/// Whether the store responds, as far as it was logged.
#[derive(Debug, Default)]
struct StoreHealth {
    failing_since: Option<Instant>,
}

impl StoreHealth {
    fn record_failure(&mut self, error: &impl std::fmt::Display) {
        if self.failing_since.is_none() {
            self.failing_since = Some(Instant::now());
            log::warn!(
                "the cluster's store is unavailable: {error}; running tasks continue, but no node can join and no job is \
                 taken over"
            );
        }
    }

    fn record_success(&mut self) {
        if let Some(since) = self.failing_since.take() {
            log::info!("the cluster's store responds again, after {:.1} s", since.elapsed().as_secs_f64());
        }
    }
}

/// Holds the node's key until its lease expires.
///
/// # Errors
/// Fails if the store fails, or, with [`ClusterError::Fenced`], if another node has the name.
async fn hold_membership_once(
    cluster: &ClusterState,
    own: &Member,
    health: &mut StoreHealth,
) -> Result<(), ClusterError> {
    let store = &*cluster.store;
    let key = registry::member_key(&own.name)?;
    let mut condition = match registry::find(store, &own.name).await? {
        None => Condition::absent(key.clone()),
        Some((other, revision)) if own.may_replace(&other) => Condition::unchanged(key.clone(), revision),
        Some((other, _)) => return Err(replaced(&other)),
    };
    // A lease that has not expired still holds the jobs of this node.
    let renewed = match cluster.membership.lease() {
        Some(lease) => store.keep_alive(lease).await.is_ok().then_some(lease),
        None => None,
    };
    let lease = match renewed {
        Some(lease) => lease,
        None => store.grant(LEASE_S).await?.lease,
    };
    cluster.membership.set_lease(Some(lease));
    let mut state = cluster.membership.state.subscribe();
    loop {
        let published = Member { state: *state.borrow_and_update(), ..own.clone() };
        let value = encoding::json("the record of this node", &published)?;
        let put = Operation::put_leased(key.clone(), MetaValue::new(value), lease);
        let done = store.transact(Transaction::new().when(condition).then(put)).await?;
        if !done.succeeded {
            return Err(ClusterError::RetryLater(
                "another process has changed this node's key in the store".to_owned(),
            ));
        }
        condition = Condition::unchanged(key.clone(), done.revision);
        health.record_success();
        while tokio::time::timeout(KEEP_ALIVE_INTERVAL, state.changed()).await.is_err() {
            match store.keep_alive(lease).await {
                Ok(_) => health.record_success(),
                Err(MetaError::LeaseNotFound(_)) => return Ok(()),
                // The lease outlives some failed renewals.
                Err(error) => {
                    health.record_failure(&error);
                    if let Some(reason) = exclusion(cluster) {
                        return Err(ClusterError::Fenced(reason));
                    }
                }
            }
        }
    }
}

fn replaced(by: &Member) -> ClusterError {
    let by = by.describe();
    ClusterError::Fenced(format!("{by} has its name now: this node did not renew its lease for {LEASE_S} s"))
}

/// Keeps what this node accepts up to date. Fences this node if it was removed. Never returns.
pub(crate) async fn observe_identities(cluster: Arc<ClusterState>, own: KeyId) {
    let on_change = |accepted: &AccessList| {
        forget_removed_tenants(&cluster);
        apply_settings(&cluster);
        if accepted.revoked_keys.contains(&own) {
            cluster.membership.fence("it was removed from its cluster (`host nodes remove`)".to_owned());
        }
    };
    observe_access(&*cluster.store, &cluster.network.endpoint, &cluster.tenants, on_change).await;
}

/// Tells the runtime, once it has started, each tenant's share of the node and its limits. Actors of removed tenants end.
pub(crate) fn apply_settings(cluster: &ClusterState) {
    let Some(runtime) = cluster.runtime.get() else { return };
    for (tenant, settings) in &*cluster.tenants.all() {
        runtime.handle.set_tenant(tenant_id(tenant), settings.policy());
    }
    runtime.handle.keep_tenants(cluster.tenants.all().keys().map(tenant_id).collect());
}

/// Removes what this node stores of tenants that no longer exist.
fn forget_removed_tenants(cluster: &Arc<ClusterState>) {
    let tenants = cluster.tenants.all();
    let ids: BTreeSet<TenantId> = tenants.keys().map(tenant_id).collect();
    cluster.components.programs().remove_others(|id| ids.contains(&id));
    let cluster = cluster.clone();
    tokio::spawn(async move {
        // Jobs that end now may still write their records.
        for _ in 0..REMOVALS_MAX {
            let cluster = cluster.clone();
            let remove = move || {
                // A tenant of that name may exist again.
                let tenants = cluster.tenants.all();
                let exists = |name: &Name| tenants.contains_key(name);
                cluster.usage.mark_removed(exists);
                cluster.tenant_components.remove_others(exists)
                    | cluster.tenant_files.remove_others(exists)
                    | cluster.jobs.remove_others(exists)
            };
            // Each attempt removes all there is: the last one finds nothing.
            if !tokio::task::spawn_blocking(remove).await.unwrap_or(false) {
                return;
            }
            tokio::time::sleep(REMOVAL_INTERVAL).await;
        }
    });
}

/// Revokes the node's lease, which deletes its key. Other nodes learn at once that it has left.
pub(crate) async fn revoke_lease(cluster: &ClusterState) {
    if let Some(lease) = cluster.membership.set_lease(None) {
        // If this fails, the lease expires.
        let _ = tokio::time::timeout(KEEP_ALIVE_INTERVAL, cluster.store.revoke(lease)).await;
    }
}

/// Connects to members with lower numbers. Members with higher numbers connect to this node.
async fn connect_members(cluster: &Arc<ClusterState>, own: &Member) {
    let mut logged = BTreeMap::new();
    loop {
        if let Err(error) = connect_members_once(cluster, own, &mut logged).await {
            log::debug!("the members are read again: {error}");
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn connect_members_once(
    cluster: &Arc<ClusterState>,
    own: &Member,
    logged: &mut BTreeMap<NodeId, Member>,
) -> Result<(), ClusterError> {
    let (members, revision) = registry::list_with_revision(&*cluster.store).await?;
    let mut members: BTreeMap<NodeId, Member> = members.into_iter().map(|m| (NodeId(m.number.into()), m)).collect();
    let mut watcher = cluster.store.watch(&registry::member_keys()?, revision.next()).await?;
    loop {
        log_changes(logged, &members, own);
        // A process with this name that started later, or has another key.
        if let Some(other) = members.values().find(|other| other.name == own.name && !own.may_replace(other)) {
            cluster.membership.fence(replaced(other).to_string());
        }
        // A member with this name and a lower number is an earlier process of this node.
        let must_connect = |member: &Member| member.number < own.number && member.name != own.name;
        for (node, member) in members.iter().filter(|(_, member)| must_connect(member)) {
            if cluster.connection(*node).is_none() {
                connections::connect_peer(cluster, member.clone());
            }
        }
        let changes = match tokio::time::timeout(RETRY_DELAY, watcher.next()).await {
            Ok(changes) => changes?,
            Err(_) => continue,
        };
        for change in changes {
            match change {
                Change::Put(entry) => {
                    let member = registry::decode(&entry)?;
                    // A name has one node.
                    members.retain(|_, other| other.name != member.name);
                    members.insert(NodeId(member.number.into()), member);
                }
                Change::Deleted { key, .. } => {
                    members.retain(|_, member| registry::member_key(&member.name).is_ok_and(|other| other != key));
                }
            }
        }
    }
}

/// Logs the members that joined, left or drain since the last call.
fn log_changes(logged: &mut BTreeMap<NodeId, Member>, members: &BTreeMap<NodeId, Member>, own: &Member) {
    for (node, member) in members.iter().filter(|(_, member)| member.name != own.name) {
        match logged.get(node) {
            None => log::info!("{} is in the cluster", member.describe()),
            Some(before) if before.state != member.state => log::info!("{} is {} now", member.describe(), member.state),
            Some(_) => {}
        }
    }
    let has_left = |(node, member): &(&NodeId, &Member)| !members.contains_key(node) && member.name != own.name;
    for (_, member) in logged.iter().filter(has_left) {
        match member.state {
            MemberState::Draining => log::info!("{} has left the cluster after draining", member.describe()),
            MemberState::Ready => {
                let member = member.describe();
                log::warn!("{member} has left the cluster, or its lease of {LEASE_S} s has expired");
            }
        }
    }
    logged.clone_from(members);
}

/// Renews the node's certificate before it expires.
pub(crate) async fn renew_certificate(cluster: Arc<ClusterState>, folder: NodeFolder, identity: Identity) {
    let mut renew_at = identity.renew_at();
    loop {
        let now = SystemClock.now();
        tokio::time::sleep(Duration::from_secs(renew_at.0.saturating_sub(now.0).max(1))).await;
        if SystemClock.now() < renew_at {
            continue;
        }
        match renew_certificate_once(&cluster, &folder).await {
            Ok(renewed) => renew_at = renewed.renew_at(),
            Err(error) => {
                let delay = RENEW_RETRY_DELAY.as_secs();
                log::warn!("the node's certificate can't be renewed, retrying every {delay} s: {error}");
                tokio::time::sleep(RENEW_RETRY_DELAY).await;
            }
        }
    }
}

async fn renew_certificate_once(cluster: &ClusterState, folder: &NodeFolder) -> Result<Identity, ClusterError> {
    let endpoint = &cluster.network.endpoint;
    let renewed = match (&cluster.authority, issuer(cluster).await?) {
        (Some(authority), _) => {
            let (key, now) = (folder.key()?, SystemClock.now());
            let principal = Principal::Node(
                cluster.own.name.parse().map_err(|e| ClusterError::InvalidName(cluster.own.name.clone(), e))?,
            );
            let lifetime = Duration::from_secs(CERTIFICATE_LIFETIME_S);
            let certificate = authority.certify(&key.request()?, &principal, lifetime, now)?;
            let renewed = Identity::new(key, certificate, authority.trust().certificate().to_vec(), now)?;
            let own = renewed.own();
            bind_name(&*cluster.store, &own.name, own.key, own.expires, now).await?;
            renewed
        }
        (None, Some(issuer)) => endpoint.renew(&issuer).await?,
        (None, None) => return Err(ClusterError::RetryLater("no connected node has the authority".to_owned())),
    };
    folder.save(&renewed)?;
    endpoint.set_identity(&renewed)?;
    Ok(renewed)
}

/// Returns a connection to a node that has the cluster's authority.
async fn issuer(cluster: &ClusterState) -> Result<Option<Connection>, ClusterError> {
    let members = registry::list(&*cluster.store).await?;
    let mut issuers = members.iter().filter(|member| member.has_authority);
    Ok(issuers.find_map(|member| cluster.connection(NodeId(member.number.into()))))
}
