//! Who is in a cluster: a key for each node, which goes with its lease.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbar_core::NodeId;
use sandbar_meta::{
    Change, Condition, Entry, Key, KeyRange, MetaError, MetaStore, MetaValue, Operation, Revision, Transaction,
};
use sandbar_wire::{Applicant, Clock, Identity, Name, NodeFolder, RevocationList, Role, SystemClock};
use serde::{Deserialize, Serialize};

use super::store::Founder;
use super::{ClusterError, Inner, jobs, links};
use sandbar_runtime::Amounts;

/// Under which nodes are, by name, and the last number that was given out.
const NODES: &str = "nodes/";
/// Under which the names are of those that were removed.
const REMOVED: &str = "removed/";
const LAST_NUMBER: &str = "numbers/last";
/// A node that says nothing for so long is gone, for those that have no connection to it.
const LEASE_S: u32 = 4;
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// A name that another node has for longer than its lease is that one's.
pub(super) const NAME_TIME_MAX: Duration = Duration::from_secs(LEASE_S as u64 + 2);
/// What did not work is tried again after this.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// A certificate that could not be renewed is asked for again after this.
const RENEW_AGAIN: Duration = Duration::from_secs(10);
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
    /// The SHA-256 of its public key, in hexadecimal: two nodes of one name have different ones.
    #[serde(default)]
    pub key: String,
}

impl Member {
    /// Whether this node's process may have the name in the place of another: of the same key, and begun before.
    fn may_follow(&self, other: &Member) -> bool {
        other.number == self.number || (other.key == self.key && other.number < self.number)
    }

    /// For people.
    fn words(&self) -> String {
        format!("node `{}` (number {}, {})", self.name, self.number, self.address)
    }
}

/// Nodes that are there, as far as their founder knows: nobody else gets a certificate of their names.
#[derive(Debug, Default)]
pub(super) struct Living(Mutex<Vec<Member>>);

impl Living {
    fn set(&self, members: impl Iterator<Item = Member>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = members.collect();
    }

    /// Whether somebody may have a certificate of a name.
    pub(super) fn admit(&self, applicant: &Applicant<'_>) -> Result<(), String> {
        if applicant.role != Role::Node {
            return Ok(());
        }
        let (name, key) = (applicant.name.as_str(), applicant.key.to_string());
        let members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match members.iter().find(|member| member.name == name && member.key != key) {
            None => Ok(()),
            Some(other) => Err(format!(
                "node {} at {} has it and lives; choose another with --name, or end that node",
                other.number, other.address
            )),
        }
    }
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
        let before = match &entry {
            // To begin anew would give numbers twice.
            Some(entry) => postcard::from_bytes::<u16>(entry.value.as_bytes()).map_err(|_| unreadable(&last))?,
            None => 0,
        };
        let number = before.checked_add(1).ok_or(ClusterError::NoNumbers)?;
        let condition = match &entry {
            Some(entry) => Condition::unchanged(last.clone(), entry.mod_revision),
            None => Condition::absent(last.clone()),
        };
        let put = Operation::put(last.clone(), MetaValue::new(postcard::to_stdvec(&number).unwrap_or_default()));
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
    let (entries, revision) = all(store, KeyRange::prefix(NODES.as_bytes())?).await?;
    let member = |entry: &Entry| parse(entry.value.as_bytes()).ok_or_else(|| unreadable(&entry.key));
    Ok((entries.iter().map(member).collect::<Result<_, _>>()?, revision))
}

/// All entries of a span, and the revision from which on changes are news.
pub(super) async fn all(store: &dyn MetaStore, mut span: KeyRange) -> Result<(Vec<Entry>, Revision), MetaError> {
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

/// Who has a name, if anybody has.
async fn holder(store: &dyn MetaStore, name: &str) -> Result<Option<(Member, Revision)>, ClusterError> {
    let key = key(&format!("{NODES}{name}"))?;
    let Some(entry) = store.get(&key).await?.entry else { return Ok(None) };
    let member = parse(entry.value.as_bytes()).ok_or_else(|| unreadable(&key))?;
    Ok(Some((member, entry.mod_revision)))
}

/// Waits until no node of another key has a name: one that has died has it until its lease ends.
///
/// # Errors
/// When it has the name for longer than that: it lives.
pub(super) async fn await_name(
    store: &dyn MetaStore,
    name: &str,
    key: &str,
    time: Duration,
) -> Result<(), ClusterError> {
    let (since, mut said) = (Instant::now(), false);
    while let Some((other, _)) = holder(store, name).await?.filter(|(other, _)| other.key != key) {
        if since.elapsed() > time {
            let Member { name, number, address, .. } = other;
            return Err(ClusterError::NameTaken { name, number, address });
        }
        if !std::mem::replace(&mut said, true) {
            log::info!("{} has this node's name; waiting {LEASE_S} s for the end of its lease", other.words());
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
    Ok(())
}

/// Says that a node is there for as long as it is, and connects it to those that were there before it.
pub(super) async fn keep(inner: Arc<Inner>, member: Member) {
    tokio::join!(stay(&inner, &member), follow(&inner, &member), shut_out(&inner), jobs::keep(&inner));
}

/// Has the node's key there.
async fn stay(inner: &Inner, member: &Member) {
    let mut health = Health::default();
    loop {
        // Whatever ails the store, it is tried again: meanwhile the node's connections stay.
        match stay_once(inner, member, &mut health).await {
            Ok(()) => log::warn!("the lease of this node ended: others did not hear of it for {LEASE_S} s"),
            Err(ClusterError::Fenced(why)) => return inner.fence(why),
            Err(ClusterError::Later(why)) => log::warn!("{why}"),
            Err(error) => health.fails(&error),
        }
        if let Some(why) = inner.founder.as_ref().and_then(|founder| founder.shut_out()) {
            return inner.fence(why);
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// Whether the store answers, as far as was told.
#[derive(Debug, Default)]
struct Health {
    fails_since: Option<Instant>,
}

impl Health {
    fn fails(&mut self, error: &impl std::fmt::Display) {
        if self.fails_since.is_none() {
            self.fails_since = Some(Instant::now());
            log::warn!(
                "the cluster's store is lost: {error}; what runs goes on, no node can come and no job be taken over"
            );
        }
    }

    fn works(&mut self) {
        if let Some(since) = self.fails_since.take() {
            log::info!("the cluster's store answers again, after {:.1} s", since.elapsed().as_secs_f64());
        }
    }
}

/// Until the lease ends.
///
/// # Errors
/// When the store fails, or, as [`ClusterError::Fenced`], another node has the name.
async fn stay_once(inner: &Inner, member: &Member, health: &mut Health) -> Result<(), ClusterError> {
    let store = &*inner.store;
    let own = key(&format!("{NODES}{}", member.name))?;
    let mut holds = match holder(store, &member.name).await? {
        None => Condition::absent(own.clone()),
        Some((other, revision)) if member.may_follow(&other) => Condition::unchanged(own.clone(), revision),
        Some((other, _)) => return Err(replaced(&other)),
    };
    // One that lasts still has the jobs that this node runs.
    let before = *inner.lease.lock().unwrap_or_else(PoisonError::into_inner);
    let lasts = match before {
        Some(lease) => store.keep_alive(lease).await.is_ok().then_some(lease),
        None => None,
    };
    let lease = match lasts {
        Some(lease) => lease,
        None => store.grant(LEASE_S).await?.lease,
    };
    *inner.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease);
    let mut state = inner.state.subscribe();
    loop {
        let said = Member { state: *state.borrow_and_update(), ..member.clone() };
        let value = MetaValue::new(serde_json::to_vec(&said).unwrap_or_default());
        let put = Operation::Put { key: own.clone(), value, lease: Some(lease) };
        let done = store.transact(Transaction::new().when(holds).then(put)).await?;
        if !done.succeeded {
            return Err(ClusterError::Later("another node wrote this node's name".to_owned()));
        }
        holds = Condition::unchanged(own.clone(), done.revision);
        health.works();
        while tokio::time::timeout(KEEP_ALIVE, state.changed()).await.is_err() {
            match store.keep_alive(lease).await {
                Ok(_) => health.works(),
                Err(MetaError::LeaseNotFound(_)) => return Ok(()),
                // It lasts some of these.
                Err(error) => {
                    health.fails(&error);
                    if let Some(why) = inner.founder.as_ref().and_then(|founder| founder.shut_out()) {
                        return Err(ClusterError::Fenced(why));
                    }
                }
            }
        }
    }
}

fn replaced(by: &Member) -> ClusterError {
    ClusterError::Fenced(format!("{} has its name now: this node was gone for longer than its lease", by.words()))
}

/// Takes a node out of the cluster for good: its certificate is not good any more.
pub(super) async fn remove(store: &dyn MetaStore, name: &Name) -> Result<(), ClusterError> {
    let put = Operation::put(key(&format!("{REMOVED}{name}"))?, MetaValue::new(Vec::new()));
    let delete = Operation::delete(&key(&format!("{NODES}{name}"))?);
    store.transact(Transaction::new().then(put).then(delete)).await?;
    Ok(())
}

/// Has nothing to do with nodes that were removed.
async fn shut_out(inner: &Inner) {
    loop {
        if let Err(error) = shut_out_once(inner).await {
            log::debug!("the nodes that were removed are looked at again: {error}");
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

async fn shut_out_once(inner: &Inner) -> Result<(), ClusterError> {
    let span = KeyRange::prefix(REMOVED.as_bytes())?;
    loop {
        let (entries, revision) = all(&*inner.store, span.clone()).await?;
        let name =
            |entry: &Entry| std::str::from_utf8(entry.key.as_bytes()).ok()?.strip_prefix(REMOVED)?.parse::<Name>().ok();
        let names: BTreeSet<_> = entries.iter().filter_map(name).map(|name| (Role::Node, name)).collect();
        if names.iter().any(|(_, name)| name.as_str() == inner.own.name) {
            inner.fence("it was removed from its cluster (`host nodes remove`)".to_owned());
        }
        inner.endpoint.revoke(RevocationList { names, ..RevocationList::default() });
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
    let mut told = BTreeMap::new();
    loop {
        // Whatever fails is tried anew from the start.
        if let Err(error) = follow_once(inner, own, &mut told).await {
            log::debug!("the cluster's nodes are looked at again: {error}");
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// Tells of nodes that came, went or drain since it was told last.
fn tell(told: &mut BTreeMap<NodeId, Member>, known: &BTreeMap<NodeId, Member>, own: &Member) {
    for (node, member) in known.iter().filter(|(_, member)| member.name != own.name) {
        match told.get(node) {
            None => log::info!("{} is in the cluster", member.words()),
            Some(before) if before.state != member.state => log::info!("{} is {} now", member.words(), member.state),
            Some(_) => {}
        }
    }
    let is_gone = |(node, member): &(&NodeId, &Member)| !known.contains_key(node) && member.name != own.name;
    for (_, member) in told.iter().filter(is_gone) {
        match member.state {
            MemberState::Draining => log::info!("{} is out of the cluster: it was to go", member.words()),
            MemberState::Ready => {
                log::warn!("{} is out of the cluster: it left, or its lease of {LEASE_S} s ended", member.words());
            }
        }
    }
    told.clone_from(known);
}

async fn follow_once(
    inner: &Arc<Inner>,
    own: &Member,
    told: &mut BTreeMap<NodeId, Member>,
) -> Result<(), ClusterError> {
    let (members, revision) = look(&*inner.store).await?;
    let mut known: BTreeMap<NodeId, Member> = members.into_iter().map(|m| (NodeId(m.number.into()), m)).collect();
    let mut watcher = inner.store.watch(&KeyRange::prefix(NODES.as_bytes())?, revision.next()).await?;
    loop {
        tell(told, &known, own);
        inner.living.set(known.values().cloned());
        // One of the same name that came later, or of another key.
        if let Some(other) = known.values().find(|other| other.name == own.name && !own.may_follow(other)) {
            inner.fence(replaced(other).to_string());
        }
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
                    // A name has one node.
                    known.retain(|_, other| other.name != member.name);
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
        match renew_once(&inner, &folder, founder).await {
            Ok(new) => renew_at = new.renew_at(),
            Err(error) => {
                log::warn!(
                    "the node's certificate could not be renewed: {error}; trying again every {} s",
                    RENEW_AGAIN.as_secs()
                );
                tokio::time::sleep(RENEW_AGAIN).await;
            }
        }
    }
}

async fn renew_once(inner: &Inner, folder: &NodeFolder, founder: &Founder) -> Result<Identity, ClusterError> {
    let new = inner.endpoint.renew(&founder.connection().await?).await?;
    folder.save(&new)?;
    inner.endpoint.set_identity(&new)?;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use sandbar_meta::{MemoryStore, MetaLimits};

    use super::*;

    fn member(name: &str, number: u16, key: &str) -> Member {
        Member {
            name: name.to_owned(),
            number,
            address: ([127, 0, 0, 1], 7410 + number).into(),
            version: "1".to_owned(),
            resources: Amounts::default(),
            slots: 1,
            state: MemberState::Ready,
            key: key.to_owned(),
        }
    }

    #[test]
    fn a_name_goes_from_a_process_to_the_next_of_its_key_alone() {
        let own = member("a", 5, "k");
        for (other, expected) in [
            (member("a", 5, "k"), true),
            (member("a", 4, "k"), true),
            // Of a copy of this node's folder, started later.
            (member("a", 6, "k"), false),
            (member("a", 4, "other"), false),
            (member("a", 6, "other"), false),
            // Of a version that did not say.
            (member("a", 4, ""), false),
        ] {
            assert_eq!(own.may_follow(&other), expected, "{other:?}");
        }
    }

    async fn put(store: &dyn MetaStore, member: &Member) {
        let value = MetaValue::new(serde_json::to_vec(member).unwrap());
        let key = key(&format!("{NODES}{}", member.name)).unwrap();
        store.transact(Transaction::new().then(Operation::put(key, value))).await.unwrap();
    }

    #[tokio::test]
    async fn a_name_is_waited_for_and_not_for_ever() {
        let store = MemoryStore::new(MetaLimits::default(), Arc::new(sandbar_meta::SystemClock::default()));
        let time = Duration::from_millis(1200);
        await_name(&store, "a", "k", time).await.unwrap();
        put(&store, &member("a", 4, "k")).await;
        // Its own process before this one needs no wait.
        await_name(&store, "a", "k", time).await.unwrap();
        let taken = await_name(&store, "a", "other", time).await.unwrap_err();
        assert!(matches!(taken, ClusterError::NameTaken { number: 4, .. }), "{taken}");
        assert!(taken.to_string().contains("127.0.0.1:7414") && taken.to_string().contains("--name"), "{taken}");
        let delete = Operation::delete(&key("nodes/a").unwrap());
        let waits = await_name(&store, "a", "other", Duration::from_secs(20));
        let ends = async {
            tokio::time::sleep(TRY_AGAIN).await;
            store.transact(Transaction::new().then(delete)).await.unwrap();
        };
        let (waited, ()) = tokio::join!(waits, ends);
        waited.unwrap();
    }

    #[test]
    fn the_founder_gives_no_certificate_of_a_living_nodes_name() {
        let (key, other) = (sandbar_wire::KeyId([1; 32]), sandbar_wire::KeyId([2; 32]));
        let living = Living::default();
        living.set([member("a", 4, &key.to_string())].into_iter());
        for (role, name, key, is_admitted) in [
            (Role::Node, "a", other, false),
            // It renews its certificate.
            (Role::Node, "a", key, true),
            (Role::Node, "b", other, true),
            (Role::Tenant, "a", other, true),
        ] {
            let name = name.parse().unwrap();
            let address = ([127, 0, 0, 1], 1).into();
            let applicant = Applicant { role, name: &name, key, token: None, address };
            assert_eq!(living.admit(&applicant).is_ok(), is_admitted, "{applicant:?}");
        }
    }
}
