//! The registry of a cluster's nodes, in the cluster's store: a key for each member, which ends with the node's lease, and
//! the last assigned number.

use std::time::{Duration, Instant};

use crate::encoding;
use crate::error::ClusterError;
use crate::member::Member;
use sandbar_meta::{
    Condition, Entry, Key, KeyRange, MetaError, MetaStore, MetaValue, Operation, Revision, Transaction,
};

/// Prefix of the keys of members, which end with their names.
pub(crate) const NODES: &str = "nodes/";
const LAST_NUMBER: &str = "numbers/last";
/// Seconds of a node's lease. Without a renewal for this long, nodes that have no connection to it consider it dead.
pub(crate) const LEASE_S: u32 = 4;
/// Maximum wait for a name. A holder that keeps it for longer than its lease is alive.
pub(crate) const NAME_TIME_MAX: Duration = Duration::from_secs(LEASE_S as u64 + 2);
/// Delay between checks of a name.
const NAME_CHECK_DELAY: Duration = Duration::from_millis(500);
/// Maximum attempts to allocate a number, because other nodes allocate at the same time.
const ALLOCATE_ATTEMPTS_MAX: usize = 1000;

fn key(text: &str) -> Result<Key, ClusterError> {
    Ok(Key::new(text.as_bytes().to_vec()).map_err(MetaError::from)?)
}

/// Returns the key of a member.
pub(crate) fn member_key(name: &str) -> Result<Key, ClusterError> {
    key(&format!("{NODES}{name}"))
}

/// Returns the range of the keys of all members.
pub(crate) fn member_keys() -> Result<KeyRange, ClusterError> {
    Ok(KeyRange::prefix(NODES.as_bytes()).map_err(MetaError::from)?)
}

/// Allocates a number, for a node or for more of its workers.
pub(crate) async fn allocate_number(store: &dyn MetaStore) -> Result<u16, ClusterError> {
    let last = key(LAST_NUMBER)?;
    for _ in 0..ALLOCATE_ATTEMPTS_MAX {
        let entry = store.get(&last).await?.entry;
        let previous = match &entry {
            // Starting over would assign numbers twice.
            Some(entry) => postcard::from_bytes::<u16>(entry.value.as_bytes()).map_err(|_| unreadable(&last))?,
            None => 0,
        };
        let number = previous.checked_add(1).ok_or(ClusterError::NumbersExhausted)?;
        let condition = match &entry {
            Some(entry) => Condition::unchanged(last.clone(), entry.mod_revision),
            None => Condition::absent(last.clone()),
        };
        let value = encoding::postcard(format_args!("number {number}"), &number)?;
        let put = Operation::put(last.clone(), MetaValue::new(value));
        match store.transact(Transaction::new().when(condition).then(put)).await {
            Ok(done) if done.succeeded => return Ok(number),
            // Another node allocated it, or this one did and can't know: then one number is lost.
            Ok(_) | Err(MetaError::Unknown { .. }) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(ClusterError::NumbersExhausted)
}

/// Returns all members.
pub(crate) async fn list(store: &dyn MetaStore) -> Result<Vec<Member>, ClusterError> {
    let (members, _) = list_with_revision(store).await?;
    Ok(members)
}

/// Returns all members, and the revision of the read.
pub(crate) async fn list_with_revision(store: &dyn MetaStore) -> Result<(Vec<Member>, Revision), ClusterError> {
    let (entries, revision) = read_all(store, member_keys()?).await?;
    Ok((entries.iter().map(decode).collect::<Result<_, _>>()?, revision))
}

/// Decodes the entry of a member.
pub(crate) fn decode(entry: &Entry) -> Result<Member, ClusterError> {
    serde_json::from_slice(entry.value.as_bytes()).map_err(|_| unreadable(&entry.key))
}

fn unreadable(key: &Key) -> ClusterError {
    ClusterError::Unreadable(key.to_string())
}

/// Reads all entries of a range. Also returns the revision after which to watch it.
pub(crate) async fn read_all(store: &dyn MetaStore, mut range: KeyRange) -> Result<(Vec<Entry>, Revision), MetaError> {
    let (mut entries, mut first_revision) = (Vec::new(), None);
    loop {
        let page = store.range(&range, 0).await?;
        let revision = *first_revision.get_or_insert(page.revision);
        entries.extend(page.entries);
        match page.next {
            Some(next) => range = range.starting_at(&next),
            None => return Ok((entries, revision)),
        }
    }
}

/// Returns the member with this name, and the revision of its entry.
pub(crate) async fn find(store: &dyn MetaStore, name: &str) -> Result<Option<(Member, Revision)>, ClusterError> {
    let Some(entry) = store.get(&member_key(name)?).await?.entry else { return Ok(None) };
    Ok(Some((decode(&entry)?, entry.mod_revision)))
}

/// Waits until no node with another key has the name. A dead node has it until its lease ends.
///
/// # Errors
/// [`ClusterError::NameTaken`] if a node has the name for longer than `time`: it is alive.
pub(crate) async fn wait_for_name(
    store: &dyn MetaStore,
    name: &str,
    key: &str,
    time: Duration,
) -> Result<(), ClusterError> {
    let (since, mut is_logged) = (Instant::now(), false);
    while let Some((other, _)) = find(store, name).await?.filter(|(other, _)| other.key != key) {
        if since.elapsed() > time {
            let Member { name, number, address, .. } = other;
            return Err(ClusterError::NameTaken { name, number, address });
        }
        if !std::mem::replace(&mut is_logged, true) {
            log::info!("{} has this node's name; waiting {LEASE_S} s for the end of its lease", other.describe());
        }
        tokio::time::sleep(NAME_CHECK_DELAY).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sandbar_meta::{MemoryStore, MetaLimits};

    use super::*;
    use crate::member::tests::member;

    async fn put(store: &dyn MetaStore, name: &str, number: u16, key: &str) {
        let value = MetaValue::new(serde_json::to_vec(&member(name, number, key)).unwrap());
        let put = Operation::put(member_key(name).unwrap(), value);
        store.transact(Transaction::new().then(put)).await.unwrap();
    }

    #[tokio::test]
    async fn the_wait_for_a_name_is_bounded() {
        let store = MemoryStore::new(MetaLimits::default(), Arc::new(sandbar_meta::SystemClock::default()));
        let time = Duration::from_millis(1200);
        wait_for_name(&store, "a", "k", time).await.unwrap();
        put(&store, "a", 4, "k").await;
        // An earlier process of the same node does not delay this one.
        wait_for_name(&store, "a", "k", time).await.unwrap();
        let taken = wait_for_name(&store, "a", "other", time).await.unwrap_err();
        assert!(matches!(taken, ClusterError::NameTaken { number: 4, .. }), "{taken}");
        assert!(taken.to_string().contains("127.0.0.1:7414") && taken.to_string().contains("--name"), "{taken}");
        let delete = Operation::delete(&member_key("a").unwrap());
        let waits = wait_for_name(&store, "a", "other", Duration::from_secs(20));
        let ends = async {
            tokio::time::sleep(NAME_CHECK_DELAY).await;
            store.transact(Transaction::new().then(delete)).await.unwrap();
        };
        let (waited, ()) = tokio::join!(waits, ends);
        waited.unwrap();
    }
}
