//! Changes of tenants, tokens and names of nodes in the cluster's store.
//!
//! Each change of what nodes accept also changes one key, on whose revision it is conditional: changes happen one after
//! another, and a copy of the records is current while that key has the revision at which it was read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use sandbar_meta::{Condition, Entry, Key, MetaStore, MetaValue, Operation, Revision, TransactResponse, Transaction};
use sandbar_wire::{
    AcceptedTenants, AccessList, CLOCK_SKEW_S_MAX, JoinRefusal, JoinToken, KeyId, Name, Timestamp, TokenError, TokenId,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::TenantError;
use super::keys::{self, names_key, node_token_key, removed_key, tenant_key, token_key};
use super::records::{NodeName, NodeTokenRecord, RemovedKey, Tenant, TenantRecord, TenantToken, TokenUse};
use super::settings::TenantSettings;
use crate::encoding;
use crate::error::ClusterError;
use crate::jobs::tenant_keys as keys_of_tenant;
use crate::registry::{member_key, read_all};

/// Maximum tenants of a cluster: each node has a copy of all.
const TENANTS_MAX: usize = 1000;
/// Maximum tokens of a tenant whose certificates may be valid.
const TOKENS_MAX: usize = 256;
/// Maximum attempts of a change, because others change records at the same time.
const ATTEMPTS_MAX: usize = 50;

/// What nodes accept, and the settings of tenants.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) accepted: AccessList,
    pub(crate) settings: BTreeMap<Name, TenantSettings>,
    /// Revision before which all changes are included.
    pub(crate) revision: Revision,
}

/// Reads what nodes accept, unless nothing has changed since `known`.
pub(crate) async fn read_access(
    store: &dyn MetaStore,
    known: Option<Revision>,
) -> Result<Option<Access>, ClusterError> {
    let changed = store.get(&keys::changed_key()?).await?;
    let last = changed.entry.map_or(Revision(0), |entry| entry.mod_revision);
    if known.is_some_and(|known| last <= known) {
        return Ok(None);
    }
    let tenants = read_all(store, keys::tenant_keys()?).await?.0;
    let (tokens, _) = read_all(store, keys::token_keys(None)?).await?;
    let (removed, _) = read_all(store, keys::removed_keys()?).await?;
    let mut settings = BTreeMap::new();
    for entry in &tenants {
        let Some(name) = keys::rest(&entry.key, keys::TENANTS).and_then(|name| name.parse().ok()) else { continue };
        settings.insert(name, decode::<TenantRecord>(entry)?.settings);
    }
    // A token of a tenant that was removed meanwhile is not accepted.
    let mut accepted: BTreeMap<Name, BTreeSet<TokenId>> =
        settings.keys().map(|name: &Name| (name.clone(), BTreeSet::new())).collect();
    for entry in &tokens {
        let id = keys::rest(&entry.key, keys::TOKENS).and_then(|rest| rest.split_once('/'));
        let Some((Ok(tenant), Ok(id))) = id.map(|(tenant, id)| (tenant.parse::<Name>(), id.parse())) else { continue };
        if let Some(tokens) = accepted.get_mut(&tenant) {
            tokens.insert(id);
        }
    }
    let revoked_keys = removed.iter().filter_map(|entry| keys::rest(&entry.key, keys::REMOVED)?.parse().ok());
    let accepted = AccessList { revoked_keys: revoked_keys.collect(), tenants: AcceptedTenants::Tokens(accepted) };
    Ok(Some(Access { accepted, settings, revision: changed.revision }))
}

/// Returns the condition that a tenant exists.
pub(crate) fn exists(name: &Name) -> Result<Condition, ClusterError> {
    Ok(Condition::exists(tenant_key(name)?))
}

/// Adds a tenant.
pub(crate) async fn add(
    store: &dyn MetaStore,
    name: &Name,
    settings: TenantSettings,
    now: Timestamp,
) -> Result<(), ClusterError> {
    settings.check().map_err(TenantError::from)?;
    let plan = || {
        async move {
            let key = tenant_key(name)?;
            let tenants = read_all(store, keys::tenant_keys()?).await?.0;
            if tenants.iter().any(|entry| entry.key == key) {
                return Err(TenantError::Exists(name.clone()).into());
            }
            if tenants.len() >= TENANTS_MAX {
                return Err(TenantError::TenantLimit(tenants.len()).into());
            }
            Ok((vec![put(key, &TenantRecord { created: now, settings })?], ()))
        }
        .boxed()
    };
    change(store, plan).await
}

/// Replaces settings of a tenant by what `set` returns for the present ones. Returns the new settings.
pub(crate) async fn set(
    store: &dyn MetaStore,
    name: &Name,
    set: &(dyn Fn(TenantSettings) -> TenantSettings + Sync),
) -> Result<TenantSettings, ClusterError> {
    let plan = || {
        async move {
            let (record, _) = find_tenant(store, name).await?;
            let settings = set(record.settings);
            settings.check().map_err(TenantError::from)?;
            Ok((vec![put(tenant_key(name)?, &TenantRecord { settings, ..record })?], settings))
        }
        .boxed()
    };
    change(store, plan).await
}

/// Removes a tenant, its tokens and its jobs.
pub(crate) async fn remove(store: &dyn MetaStore, name: &Name) -> Result<(), ClusterError> {
    let plan = || {
        async move {
            find_tenant(store, name).await?;
            let ranges = [keys::token_keys(Some(name))?, keys_of_tenant(name)?];
            let operations = [Operation::delete(&tenant_key(name)?)].into_iter();
            Ok((operations.chain(ranges.map(Operation::Delete)).collect(), ()))
        }
        .boxed()
    };
    change(store, plan).await
}

/// Returns all tenants, or the one of a name, in the order of their names.
pub(crate) async fn list(store: &dyn MetaStore, only: Option<&Name>) -> Result<Vec<Tenant>, ClusterError> {
    let tenants = match only {
        Some(name) => store.get(&tenant_key(name)?).await?.entry.into_iter().collect(),
        None => read_all(store, keys::tenant_keys()?).await?.0,
    };
    let mut all = Vec::new();
    for entry in &tenants {
        let Some(name) = keys::rest(&entry.key, keys::TENANTS).and_then(|name| name.parse().ok()) else { continue };
        let TenantRecord { created, settings } = decode(entry)?;
        let mut tokens = tokens(store, &name).await?;
        tokens.sort_by_key(|token| token.issued);
        all.push(Tenant { name, created, settings, tokens });
    }
    match only {
        Some(name) if all.is_empty() => Err(TenantError::Unknown(name.clone()).into()),
        _ => Ok(all),
    }
}

/// Stores a new token of a tenant, and drops those that are over.
pub(crate) async fn create_token(
    store: &dyn MetaStore,
    tenant: &Name,
    token: &TenantToken,
    now: Timestamp,
) -> Result<(), ClusterError> {
    let plan = || {
        async move {
            find_tenant(store, tenant).await?;
            let (over, valid): (Vec<_>, Vec<_>) =
                tokens(store, tenant).await?.into_iter().partition(|token| token.is_over(now));
            if valid.len() >= TOKENS_MAX {
                return Err(TenantError::TokenLimit(tenant.clone(), valid.len()).into());
            }
            let mut operations = vec![put(token_key(tenant, token.id)?, token)?];
            // As many as a transaction may have; the others are dropped later.
            for token in over.iter().take(TOKENS_MAX / 4) {
                operations.push(Operation::delete(&token_key(tenant, token.id)?));
            }
            Ok((operations, ()))
        }
        .boxed()
    };
    change(store, plan).await
}

/// Revokes a token of a tenant, unless `may_revoke` refuses.
pub(crate) async fn revoke_token(
    store: &dyn MetaStore,
    tenant: &Name,
    id: TokenId,
    may_revoke: &(dyn Fn(&TenantToken) -> Result<(), TenantError> + Sync),
) -> Result<(), ClusterError> {
    let plan = || {
        async move {
            find_tenant(store, tenant).await?;
            let key = token_key(tenant, id)?;
            let entry = store.get(&key).await?.entry;
            let entry = entry.ok_or_else(|| TenantError::UnknownToken(tenant.clone(), id))?;
            may_revoke(&decode(&entry)?)?;
            Ok((vec![Operation::delete(&key)], ()))
        }
        .boxed()
    };
    change(store, plan).await
}

/// Revokes a token of nodes: no certificate is issued for it any more.
pub(crate) async fn revoke_node_token(store: &dyn MetaStore, id: TokenId) -> Result<(), ClusterError> {
    let put = put(node_token_key(id)?, &NodeTokenRecord { used_by: None })?;
    store.transact(Transaction::new().then(put)).await?;
    Ok(())
}

/// Removes a node for good: its certificates are revoked, and its name is free.
pub(crate) async fn remove_node(store: &dyn MetaStore, name: &Name, key: KeyId) -> Result<(), ClusterError> {
    let plan = || {
        async move {
            let removed = put(removed_key(key)?, &RemovedKey { name: name.to_string() })?;
            let names = [names_key(name)?, member_key(name.as_str())?];
            let deleted = names.iter().map(Operation::delete);
            Ok(([removed].into_iter().chain(deleted).collect(), ()))
        }
        .boxed()
    };
    change(store, plan).await
}

/// Binds a node's name to its key, as [`admit_node`] does, without a token.
pub(crate) async fn bind_name(
    store: &dyn MetaStore,
    name: &Name,
    key: KeyId,
    expires: Timestamp,
    now: Timestamp,
) -> Result<(), ClusterError> {
    let refused = |refusal| match refusal {
        JoinRefusal::Unavailable(reason) => ClusterError::RetryLater(reason),
        other => ClusterError::Refused(other.to_string()),
    };
    admit_node(store, name, key, None, expires, now).await.map_err(refused)
}

/// Decides whether a certificate for a node's name and key may be issued. From then on, until the certificate expires or
/// the node is removed, the name belongs to the key.
pub(crate) async fn admit_node(
    store: &dyn MetaStore,
    name: &Name,
    key: KeyId,
    token: Option<&JoinToken>,
    expires: Timestamp,
    now: Timestamp,
) -> Result<(), JoinRefusal> {
    for _ in 0..ATTEMPTS_MAX {
        let refused = |reason: String| JoinRefusal::Name { name: name.clone(), reason };
        let name_key = names_key(name).map_err(unavailable)?;
        let removed = removed_key(key).map_err(unavailable)?;
        if store.get(&removed).await.map_err(unavailable)?.entry.is_some() {
            return Err(refused("the key in its folder is that of a removed node; use a new folder".to_owned()));
        }
        let entry = store.get(&name_key).await.map_err(unavailable)?.entry;
        let before = entry.as_ref().map(decode::<NodeName>).transpose().map_err(unavailable)?;
        let skew = Duration::from_secs(CLOCK_SKEW_S_MAX);
        if let Some(other) = before.filter(|before| before.key != key && now.before(skew) <= before.expires) {
            return Err(refused(format!(
                "it belongs to another key until {}; choose another name with --name, or remove that node first: \
                 `host nodes remove {name}`",
                other.expires
            )));
        }
        let mut transaction = Transaction::new()
            .when(Condition::absent(removed))
            .when(as_read(&name_key, entry.as_ref()))
            .then(put(name_key, &NodeName { key, expires }).map_err(unavailable)?);
        if let Some(token) = token {
            let token_key = node_token_key(token.id()).map_err(unavailable)?;
            let entry = store.get(&token_key).await.map_err(unavailable)?.entry;
            let used = entry.as_ref().map(decode::<NodeTokenRecord>).transpose().map_err(unavailable)?;
            match used.map(|used| used.used_by) {
                Some(None) => return Err(TokenError::Revoked { id: token.id() }.into()),
                Some(Some(by)) if by != key.to_string() => return Err(TokenError::Used { id: token.id() }.into()),
                _ => transaction = transaction.when(as_read(&token_key, entry.as_ref())),
            }
            if token.use_once() {
                let record = NodeTokenRecord { used_by: Some(key.to_string()) };
                transaction = transaction.then(put(token_key, &record).map_err(unavailable)?);
            }
        }
        if transact(store, transaction).await?.succeeded {
            return Ok(());
        }
    }
    Err(unavailable(TenantError::Conflict))
}

/// Decides whether a certificate may be issued for a token of a tenant, or renewed, and records that.
pub(crate) async fn admit_tenant(
    store: &dyn MetaStore,
    tenant: &Name,
    id: TokenId,
    key: KeyId,
    expires: Timestamp,
) -> Result<(), JoinRefusal> {
    for _ in 0..ATTEMPTS_MAX {
        let token_key = token_key(tenant, id).map_err(unavailable)?;
        let tenant_key = tenant_key(tenant).map_err(unavailable)?;
        let entry = store.get(&token_key).await.map_err(unavailable)?.entry;
        let entry = entry.ok_or(TokenError::Revoked { id })?;
        let token: TenantToken = decode(&entry).map_err(unavailable)?;
        // The same key may repeat its request: it did not receive the certificate.
        if token.use_once && token.last_use.as_ref().is_some_and(|last| last.key != key) {
            return Err(TokenError::Used { id }.into());
        }
        let certificates = token.last_use.as_ref().map_or(0, |last| last.certificates) + 1;
        // Other certificates of the token may be valid for longer.
        let expires = token.last_use.as_ref().map_or(expires, |last| last.expires.max(expires));
        let token = TenantToken { last_use: Some(TokenUse { key, certificates, expires }), ..token };
        let transaction = Transaction::new()
            .when(Condition::exists(tenant_key))
            .when(Condition::unchanged(token_key.clone(), entry.mod_revision))
            .then(put(token_key, &token).map_err(unavailable)?);
        if transact(store, transaction).await?.succeeded {
            return Ok(());
        }
    }
    Err(unavailable(TenantError::Conflict))
}

/// Executes a transaction of a join. If its outcome is unknown, the join is tried again: it can be repeated.
async fn transact(store: &dyn MetaStore, transaction: Transaction) -> Result<TransactResponse, JoinRefusal> {
    store.transact(transaction).await.map_err(unavailable)
}

fn unavailable(error: impl ToString) -> JoinRefusal {
    JoinRefusal::Unavailable(error.to_string())
}

/// The condition that an entry is as it was read.
fn as_read(key: &Key, entry: Option<&Entry>) -> Condition {
    match entry {
        Some(entry) => Condition::unchanged(key.clone(), entry.mod_revision),
        None => Condition::absent(key.clone()),
    }
}

/// Executes the operations that `plan` returns, after other changes of what nodes accept.
async fn change<'a, T>(
    store: &'a dyn MetaStore,
    plan: impl Fn() -> BoxFuture<'a, Result<(Vec<Operation>, T), ClusterError>> + Send,
) -> Result<T, ClusterError> {
    change_in_order(store, keys::changed_key()?, &[], plan).await
}

/// Executes the operations that `plan` returns under conditions, if no other change of this key is made meanwhile, otherwise
/// plans again.
pub(crate) async fn change_in_order<'a, T>(
    store: &'a dyn MetaStore,
    key: Key,
    conditions: &[Condition],
    plan: impl Fn() -> BoxFuture<'a, Result<(Vec<Operation>, T), ClusterError>> + Send,
) -> Result<T, ClusterError> {
    for _ in 0..ATTEMPTS_MAX {
        let entry = store.get(&key).await?.entry;
        let (operations, result) = plan().await?;
        let mut transaction = Transaction::new().when(as_read(&key, entry.as_ref()));
        transaction = conditions.iter().cloned().fold(transaction, Transaction::when);
        transaction = transaction.then(Operation::put(key.clone(), MetaValue::new(Vec::new())));
        transaction.then.extend(operations);
        match store.transact(transaction).await {
            Ok(done) if done.succeeded => return Ok(result),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(TenantError::Conflict.into())
}

async fn find_tenant(store: &dyn MetaStore, name: &Name) -> Result<(TenantRecord, Revision), ClusterError> {
    let entry = store.get(&tenant_key(name)?).await?.entry;
    let entry = entry.ok_or_else(|| TenantError::Unknown(name.clone()))?;
    Ok((decode(&entry)?, entry.mod_revision))
}

async fn tokens(store: &dyn MetaStore, tenant: &Name) -> Result<Vec<TenantToken>, ClusterError> {
    let (entries, _) = read_all(store, keys::token_keys(Some(tenant))?).await?;
    entries.iter().map(decode).collect()
}

/// Puts a value as JSON.
pub(crate) fn put(key: Key, value: &impl Serialize) -> Result<Operation, ClusterError> {
    let value = encoding::json(format_args!("the entry `{key}` of the cluster's store"), value)?;
    Ok(Operation::put(key, MetaValue::new(value)))
}

/// Decodes an entry of JSON.
pub(crate) fn decode<T: DeserializeOwned>(entry: &Entry) -> Result<T, ClusterError> {
    serde_json::from_slice(entry.value.as_bytes()).map_err(|_| ClusterError::Unreadable(entry.key.to_string()))
}

/// Returns the key to which a node's name belongs.
pub(crate) async fn key_of_node(store: &dyn MetaStore, name: &Name) -> Result<Option<KeyId>, ClusterError> {
    let entry = store.get(&names_key(name)?).await?.entry;
    Ok(entry.as_ref().map(decode::<NodeName>).transpose()?.map(|name| name.key))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sandbar_meta::{MemoryStore, MetaLimits, SystemClock};
    use sandbar_wire::{Authority, JoinGrant, TenantRole};

    use super::super::issue::{NewTokenSpec, issue_token};
    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000);
    const WEEK: Duration = Duration::from_secs(7 * 86_400);

    fn store() -> MemoryStore {
        MemoryStore::new(MetaLimits::default(), Arc::new(SystemClock::default()))
    }

    fn authority() -> Authority {
        let folder = tempfile::tempdir().unwrap();
        Authority::create(&folder.path().join("authority"), NOW).unwrap()
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn key(number: u8) -> KeyId {
        KeyId([number; 32])
    }

    fn code(result: Result<(), JoinRefusal>) -> &'static str {
        match result {
            Ok(()) => "",
            Err(JoinRefusal::Token(error)) => error.code(),
            Err(JoinRefusal::Name { .. }) => "name",
            Err(other) => panic!("{other}"),
        }
    }

    #[tokio::test]
    async fn a_name_belongs_to_one_key_at_a_time() {
        let (store, authority) = (store(), authority());
        let token = |use_once| authority.token(JoinGrant::Node, use_once, Duration::from_secs(60), NOW).unwrap();
        let [any, once, revoked] = [token(false), token(true), token(false)];
        revoke_node_token(&store, revoked.id()).await.unwrap();
        let later = NOW.after(WEEK + Duration::from_secs(CLOCK_SKEW_S_MAX));
        for (node, number, token, now, expected) in [
            ("a", 1, Some(&any), NOW, ""),
            // Repeated, and renewed.
            ("a", 1, Some(&any), NOW, ""),
            ("a", 1, None, NOW, ""),
            ("a", 2, Some(&any), NOW, "name"),
            ("a", 2, None, later, "name"),
            // The last certificate has expired.
            ("a", 2, Some(&any), later.after(Duration::from_secs(1)), ""),
            ("b", 3, Some(&revoked), NOW, "token-revoked"),
            ("b", 3, Some(&once), NOW, ""),
            ("b", 3, Some(&once), NOW, ""),
            ("c", 4, Some(&once), NOW, "token-used"),
            ("c", 4, Some(&any), NOW, ""),
        ] {
            let admitted = admit_node(&store, &name(node), key(number), token, now.after(WEEK), now).await;
            assert_eq!(code(admitted), expected, "{node} {number}");
        }
        // A removed node's name is free, and its key is not.
        remove_node(&store, &name("c"), key(4)).await.unwrap();
        for (node, number, expected) in [("c", 4, "name"), ("d", 4, "name"), ("c", 5, "")] {
            let admitted = admit_node(&store, &name(node), key(number), Some(&any), NOW.after(WEEK), NOW).await;
            assert_eq!(code(admitted), expected, "{node} {number}");
        }
        let access = read_access(&store, None).await.unwrap().unwrap();
        assert_eq!(access.accepted.revoked_keys, BTreeSet::from([key(4)]));
        assert_eq!(key_of_node(&store, &name("c")).await.unwrap(), Some(key(5)));
    }

    #[tokio::test]
    async fn tokens_end_with_their_revocation_and_their_tenant() {
        let (store, authority, ada) = (store(), authority(), name("ada"));
        let accepted = async || match read_access(&store, None).await.unwrap().unwrap().accepted.tenants {
            AcceptedTenants::Tokens(tenants) => tenants,
            other => panic!("{other:?}"),
        };
        let issue = async |use_once| {
            let lifetime = Duration::from_secs(60);
            let spec = NewTokenSpec { role: TenantRole::Submitter, use_once, lifetime, created_by: None };
            issue_token(&store, Some(&authority), &ada, spec).await.map(|(token, _)| token.id)
        };
        assert!(matches!(issue(false).await, Err(ClusterError::Tenant(TenantError::Unknown(_)))));
        add(&store, &ada, TenantSettings::default(), NOW).await.unwrap();
        let (any, once) = (issue(false).await.unwrap(), issue(true).await.unwrap());
        assert_eq!(accepted().await, BTreeMap::from([(ada.clone(), BTreeSet::from([any, once]))]));
        for (token, number, expected) in [
            (any, 1, ""),
            (any, 2, ""),
            (once, 1, ""),
            (once, 1, ""),
            (once, 2, "token-used"),
            (TokenId([0; 16]), 1, "token-revoked"),
        ] {
            assert_eq!(code(admit_tenant(&store, &ada, token, key(number), NOW).await), expected, "{number}");
        }
        let tokens = list(&store, Some(&ada)).await.unwrap().remove(0).tokens;
        let certificates =
            |id| tokens.iter().find(|token| token.id == id).unwrap().last_use.as_ref().unwrap().certificates;
        assert_eq!([any, once].map(certificates), [2, 2]);
        // Nothing has changed since the last read; a use changes nothing that nodes accept.
        let revision = read_access(&store, None).await.unwrap().unwrap().revision;
        admit_tenant(&store, &ada, any, key(1), NOW).await.unwrap();
        assert!(read_access(&store, Some(revision)).await.unwrap().is_none());
        revoke_token(&store, &ada, any, &|_| Ok(())).await.unwrap();
        assert!(read_access(&store, Some(revision)).await.unwrap().is_some());
        assert_eq!(code(admit_tenant(&store, &ada, any, key(1), NOW).await), "token-revoked");
        assert_eq!(accepted().await, BTreeMap::from([(ada.clone(), BTreeSet::from([once]))]));
        // A tenant of the same name accepts nothing of the former one.
        remove(&store, &ada).await.unwrap();
        assert_eq!(accepted().await, BTreeMap::new());
        add(&store, &ada, TenantSettings::default(), NOW).await.unwrap();
        assert_eq!(code(admit_tenant(&store, &ada, once, key(1), NOW).await), "token-revoked");
        assert_eq!(accepted().await, BTreeMap::from([(ada, BTreeSet::new())]));
    }

    #[tokio::test]
    async fn tenants_and_tokens_are_bounded() {
        let (store, ada) = (store(), name("ada"));
        add(&store, &ada, TenantSettings::default(), NOW).await.unwrap();
        let token = |number: usize, expires: Timestamp| TenantToken {
            id: TokenId((number as u128).to_be_bytes()),
            role: TenantRole::Viewer,
            use_once: false,
            created_by: None,
            issued: NOW,
            expires,
            last_use: None,
        };
        for number in 0..TOKENS_MAX {
            create_token(&store, &ada, &token(number, NOW), NOW).await.unwrap();
        }
        let refused = create_token(&store, &ada, &token(TOKENS_MAX, NOW), NOW).await.unwrap_err();
        assert!(matches!(refused, ClusterError::Tenant(TenantError::TokenLimit(_, TOKENS_MAX))), "{refused}");
        // Those that are over make room.
        let later = NOW.after(WEEK);
        create_token(&store, &ada, &token(TOKENS_MAX, later), later).await.unwrap();
        let left = list(&store, Some(&ada)).await.unwrap().remove(0).tokens.len();
        assert_eq!(left, TOKENS_MAX + 1 - TOKENS_MAX / 4);
        for number in 1..TENANTS_MAX {
            add(&store, &name(&format!("t{number}")), TenantSettings::default(), NOW).await.unwrap();
        }
        let refused = add(&store, &name("more"), TenantSettings::default(), NOW).await.unwrap_err();
        assert!(matches!(refused, ClusterError::Tenant(TenantError::TenantLimit(TENANTS_MAX))), "{refused}");
    }
}
