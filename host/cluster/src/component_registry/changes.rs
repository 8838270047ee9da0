//! Registered components and signing keys in the cluster's store.
//!
//! Each change of a tenant's registry also changes one key, on whose revision it is conditional: changes of a tenant happen
//! one after another.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{BoxFuture, FutureExt as _};
use sandbar_core::ComponentId;
use sandbar_meta::{Key, KeyRange, MetaStore, Operation};
use sandbar_wire::{Name, PublicKey};

use super::error::ComponentError;
use super::record::{ComponentKey, NewComponent, RegisteredComponent, signed_message};
use super::version::ComponentVersion;
use crate::error::ClusterError;
use crate::jobs::{key_of_tenant, keys_of_tenant};
use crate::registry::read_all;
use crate::state::ClusterState;
use crate::tenants::{self, TenantSettings, change_in_order, decode, put};

/// Parts of keys after those of a tenant: of components, after which a name and a version follow; of signing keys, after which
/// the key follows; and of the key that each change changes.
const COMPONENTS: &str = "components/";
const KEYS: &str = "component-keys/";
const CHANGED: &str = "components-changed";
/// Maximum versions of a tenant, with yanked ones, of which the first one is forgotten to make room. Lists have all of them.
const VERSIONS_MAX: usize = 1000;
/// Maximum signing keys of a tenant.
const KEYS_MAX: usize = 64;

fn component_key(tenant: &Name, ComponentVersion { name, version }: &ComponentVersion) -> Result<Key, ClusterError> {
    key_of_tenant(tenant, format_args!("{COMPONENTS}{name}/{version}"))
}

fn component_keys(tenant: &Name) -> Result<KeyRange, ClusterError> {
    keys_of_tenant(tenant, COMPONENTS)
}

fn signing_key(tenant: &Name, public: PublicKey) -> Result<Key, ClusterError> {
    key_of_tenant(tenant, format_args!("{KEYS}{public}"))
}

/// Returns all components of a tenant, by name and version.
pub(super) async fn list(store: &dyn MetaStore, tenant: &Name) -> Result<Vec<RegisteredComponent>, ClusterError> {
    let (entries, _) = read_all(store, component_keys(tenant)?).await?;
    let mut all: Vec<RegisteredComponent> = entries.iter().map(decode).collect::<Result<_, _>>()?;
    all.sort_by(|a, b| a.pushed.version.cmp(&b.pushed.version));
    Ok(all)
}

/// Returns the signing keys of a tenant.
pub(super) async fn keys(store: &dyn MetaStore, tenant: &Name) -> Result<Vec<ComponentKey>, ClusterError> {
    let (entries, _) = read_all(store, keys_of_tenant(tenant, KEYS)?).await?;
    entries.iter().map(decode).collect()
}

/// Checks whether a component may be registered, before it is received.
pub(super) async fn check(
    store: &dyn MetaStore,
    tenant: &Name,
    settings: &TenantSettings,
    new: &NewComponent,
) -> Result<(), ClusterError> {
    let keys = keys(store, tenant).await?;
    check_signature(tenant, new, &keys)?;
    let all = list(store, tenant).await?;
    Ok(check_room(tenant, settings, new, &all).map(|_| ())?)
}

/// Registers a component. Returns what is registered: if the same was pushed before, that.
pub(super) async fn add(
    store: &dyn MetaStore,
    tenant: &Name,
    settings: &TenantSettings,
    new: &RegisteredComponent,
) -> Result<RegisteredComponent, ClusterError> {
    let plan = || {
        async move {
            let keys = keys(store, tenant).await?;
            check_signature(tenant, &new.pushed, &keys)?;
            let all = list(store, tenant).await?;
            let key = component_key(tenant, &new.pushed.version)?;
            if let Some(before) = check_room(tenant, settings, &new.pushed, &all)? {
                // Another push may add a signature. It replaces one only if it is by a key of the tenant.
                let [first, second] = match keys.is_empty() {
                    true => [before.pushed.signature, new.pushed.signature],
                    false => [new.pushed.signature, before.pushed.signature],
                };
                let signature = first.or(second);
                let pushed = NewComponent { signature, ..before.pushed.clone() };
                let again = RegisteredComponent { pushed, ..before.clone() };
                return Ok((vec![put(key, &again)?], again));
            }
            let mut operations = vec![put(key, new)?];
            if all.len() >= VERSIONS_MAX {
                let yanked = all.iter().filter(|each| each.yanked).min_by_key(|each| each.pushed_ms);
                let forgotten = yanked.ok_or(ComponentError::VersionLimit(all.len()))?;
                operations.push(Operation::delete(&component_key(tenant, &forgotten.pushed.version)?));
            }
            Ok((operations, new.clone()))
        }
        .boxed()
    };
    transact(store, tenant, plan).await
}

/// Yanks a component, or takes that back.
pub(super) async fn yank(
    store: &dyn MetaStore,
    tenant: &Name,
    settings: &TenantSettings,
    version: &ComponentVersion,
    yanked: bool,
) -> Result<RegisteredComponent, ClusterError> {
    let plan = || {
        async move {
            let mut all = list(store, tenant).await?;
            let at = all.iter().position(|each| each.pushed.version == *version);
            let found = all.remove(at.ok_or_else(|| ComponentError::Unknown(version.clone()))?);
            if !yanked {
                check_room(tenant, settings, &found.pushed, &all)?;
            }
            let changed = RegisteredComponent { yanked, ..found };
            Ok((vec![put(component_key(tenant, version)?, &changed)?], changed))
        }
        .boxed()
    };
    transact(store, tenant, plan).await
}

/// Adds a signing key.
pub(super) async fn add_key(store: &dyn MetaStore, tenant: &Name, new: ComponentKey) -> Result<(), ClusterError> {
    let plan = || {
        async move {
            let all = keys(store, tenant).await?;
            if all.iter().any(|other| other.key == new.key) {
                return Ok((Vec::new(), ()));
            }
            if all.len() >= KEYS_MAX {
                return Err(ComponentError::KeyLimit(all.len()).into());
            }
            Ok((vec![put(signing_key(tenant, new.key)?, &new)?], ()))
        }
        .boxed()
    };
    transact(store, tenant, plan).await
}

/// Removes a signing key.
pub(super) async fn remove_key(store: &dyn MetaStore, tenant: &Name, public: PublicKey) -> Result<(), ClusterError> {
    let plan = || {
        async move {
            let key = signing_key(tenant, public)?;
            store.get(&key).await?.entry.ok_or(ComponentError::NoKey(public))?;
            Ok((vec![Operation::delete(&key)], ()))
        }
        .boxed()
    };
    transact(store, tenant, plan).await
}

/// Executes a change of a tenant's registry.
async fn transact<'a, T>(
    store: &'a dyn MetaStore,
    tenant: &Name,
    plan: impl Fn() -> BoxFuture<'a, Result<(Vec<Operation>, T), ClusterError>> + Send,
) -> Result<T, ClusterError> {
    let exists = tenants::exists(tenant)?;
    change_in_order(store, key_of_tenant(tenant, CHANGED)?, &[exists], plan).await
}

/// Checks the signature of a component against the tenant's keys, if there are any.
fn check_signature(tenant: &Name, new: &NewComponent, keys: &[ComponentKey]) -> Result<(), ComponentError> {
    let NewComponent { version, component, signature, .. } = new;
    if let Some(signature) = signature
        && !signature.key.has_signed(&signed_message(tenant, version, *component), &signature.signature)
    {
        return Err(ComponentError::WrongSignature(version.clone()));
    }
    match signature {
        _ if keys.is_empty() => Ok(()),
        None => Err(ComponentError::Unsigned(version.clone())),
        Some(signature) if keys.iter().any(|key| key.key == signature.key) => Ok(()),
        Some(signature) => Err(ComponentError::UnknownKey(version.clone(), signature.key)),
    }
}

/// Checks whether the tenant may register a component beside `all`. Returns the registered one if it is there already.
fn check_room<'a>(
    tenant: &Name,
    settings: &TenantSettings,
    new: &NewComponent,
    all: &'a [RegisteredComponent],
) -> Result<Option<&'a RegisteredComponent>, ComponentError> {
    if let Some(before) = all.iter().find(|other| other.pushed.version == new.version) {
        let is_same = before.pushed.component == new.component;
        return is_same.then_some(Some(before)).ok_or_else(|| ComponentError::Exists(new.version.clone()));
    }
    // Several versions may be one component. Nodes keep no yanked ones.
    let kept = all.iter().filter(|other| !other.yanked).map(|other| &other.pushed);
    let kept: BTreeMap<ComponentId, u64> = kept.chain([new]).map(|each| (each.component, each.bytes)).collect();
    let bytes = kept.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    let limits = [
        ("components", kept.len() as u64, settings.components_max.into(), "components-max"),
        ("bytes of components", bytes, settings.components_bytes_max, "components-bytes-max"),
    ];
    match limits.into_iter().find(|(_, count, max, _)| count > max) {
        Some((what, count, max, setting)) => {
            Err(ComponentError::Limit { tenant: tenant.clone(), what, count, max, setting })
        }
        None => Ok(None),
    }
}

/// Checks that the tenant may use components: if it has signing keys, each must be registered and signed with one of them.
pub(crate) async fn check_signed(
    store: &dyn MetaStore,
    tenant: &Name,
    components: &[ComponentId],
) -> Result<(), ClusterError> {
    let keys = keys(store, tenant).await?;
    if keys.is_empty() {
        return Ok(());
    }
    let all = list(store, tenant).await?;
    for component in components {
        let mut versions = all.iter().filter(|each| each.pushed.component == *component).peekable();
        if versions.peek().is_none() {
            return Err(ComponentError::NotSigned(component.short()).into());
        }
        let check = |each: &RegisteredComponent| match each.yanked {
            true => Err(ComponentError::Yanked(each.pushed.version.clone())),
            false => check_signature(tenant, &each.pushed, &keys),
        };
        // One version that may be used is enough.
        let mut refused = None;
        let may_be_used = versions.any(|each| check(each).map_err(|error| refused = Some(error)).is_ok());
        if !may_be_used && let Some(error) = refused {
            return Err(error.into());
        }
    }
    Ok(())
}

/// Returns the components of a tenant that no node may evict: those of its unfinished jobs, and registered ones unless they
/// were yanked.
pub(crate) async fn components_in_use(
    cluster: &ClusterState,
    tenant: &Name,
) -> Result<BTreeSet<ComponentId>, ClusterError> {
    let mut in_use = cluster.jobs.index().components_in_use(tenant);
    let registered = list(&*cluster.store, tenant).await?;
    in_use.extend(registered.iter().filter(|each| !each.yanked).map(|each| each.pushed.component));
    Ok(in_use)
}

/// Finds a registered component of a tenant.
pub(super) async fn find(
    store: &dyn MetaStore,
    tenant: &Name,
    component: ComponentId,
) -> Result<Option<RegisteredComponent>, ClusterError> {
    Ok(list(store, tenant).await?.into_iter().find(|each| each.pushed.component == component))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;

    use sandbar_meta::{MemoryStore, MetaLimits, SystemClock, Transaction};
    use sandbar_wire::{Signature, SigningKey, Timestamp};

    use super::super::record::ComponentSignature;
    use super::*;

    fn store() -> MemoryStore {
        MemoryStore::new(MetaLimits::default(), Arc::new(SystemClock::default()))
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn id(number: u8) -> ComponentId {
        ComponentId::from_digest([number; 32])
    }

    fn new(version: &str, number: u8) -> RegisteredComponent {
        let version = version.parse().unwrap();
        let pushed = NewComponent { version, component: id(number), bytes: 10, signature: None };
        RegisteredComponent { pushed, pushed_ms: 1, functions: Vec::new(), yanked: false }
    }

    fn code<T>(result: Result<T, ClusterError>) -> &'static str {
        match result {
            Ok(_) => "",
            Err(ClusterError::Component(error)) => error.code(),
            Err(other) => panic!("{other}"),
        }
    }

    async fn with_tenant(tenant: &Name) -> MemoryStore {
        let store = store();
        tenants::add(&store, tenant, TenantSettings::default(), Timestamp(1)).await.unwrap();
        store
    }

    #[tokio::test]
    async fn versions_never_change_and_are_bounded() {
        let ada = name("ada");
        let store = with_tenant(&ada).await;
        let settings = TenantSettings { components_max: 3, components_bytes_max: 25, ..TenantSettings::default() };
        let push = async |version, number| code(add(&store, &ada, &settings, &new(version, number)).await);
        for (version, number, expected) in [
            ("a@1.0.0", 1, ""),
            ("a@1.0.0", 1, ""),
            ("a@1.0.0", 2, "component-exists"),
            ("a@1.10.0", 2, ""),
            // With the others, 30 bytes. The same component again has none.
            ("b@1.0.0", 3, "component-limit"),
            ("a@1.9.0", 2, ""),
            ("c@1.0.0", 2, ""),
        ] {
            assert_eq!(push(version, number).await, expected, "{version} {number}");
        }
        let version = |text: &str| text.parse::<ComponentVersion>().unwrap();
        let yank = async |text: &str, yanked| code(yank(&store, &ada, &settings, &version(text), yanked).await);
        assert_eq!([yank("a@2.0.0", true).await, yank("a@1.0.0", true).await], ["no-component", ""]);
        // A yanked version takes no room, and keeps its name.
        assert_eq!([push("b@1.0.0", 3).await, push("a@1.0.0", 3).await], ["", "component-exists"]);
        assert!(add(&store, &ada, &settings, &new("a@1.0.0", 1)).await.unwrap().yanked);
        assert_eq!(yank("a@1.0.0", false).await, "component-limit");
        assert_eq!([yank("b@1.0.0", true).await, yank("a@1.0.0", false).await], ["", ""]);
        let all = list(&store, &ada).await.unwrap();
        let all: Vec<_> = all.iter().map(|each| (each.pushed.version.to_string(), each.yanked)).collect();
        let expected =
            [("a@1.0.0", false), ("a@1.9.0", false), ("a@1.10.0", false), ("b@1.0.0", true), ("c@1.0.0", false)];
        assert_eq!(all, expected.map(|(version, yanked)| (version.to_owned(), yanked)));
        // Other tenants have registries of their own, and a removed tenant none.
        let bob = name("bob");
        assert!(list(&store, &bob).await.unwrap().is_empty());
        let refused = add(&store, &bob, &settings, &new("a@1.0.0", 1)).await;
        assert!(matches!(refused, Err(ClusterError::Tenant(_))), "{refused:?}");
        tenants::remove(&store, &ada).await.unwrap();
        assert!(list(&store, &ada).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn the_first_yanked_version_makes_room() {
        let (ada, settings) = (name("ada"), TenantSettings::default());
        let store = with_tenant(&ada).await;
        for number in 0..VERSIONS_MAX {
            let component = RegisteredComponent { pushed_ms: number as u64, ..new(&format!("a@{number}.0.0"), 1) };
            let key = component_key(&ada, &component.pushed.version).unwrap();
            store.transact(Transaction::new().then(put(key, &component).unwrap())).await.unwrap();
        }
        let push = async || code(add(&store, &ada, &settings, &new("b@1.0.0", 1)).await);
        assert_eq!(push().await, "component-limit");
        for version in ["a@7.0.0", "a@5.0.0"] {
            yank(&store, &ada, &settings, &version.parse().unwrap(), true).await.unwrap();
        }
        assert_eq!(push().await, "");
        let all = list(&store, &ada).await.unwrap();
        let has = |version: &str| all.iter().any(|each| each.pushed.version.to_string() == version);
        assert_eq!([has("a@5.0.0"), has("a@7.0.0"), has("b@1.0.0")], [false, true, true]);
    }

    #[tokio::test]
    async fn with_keys_only_signed_components_are_used() {
        let folder = tempfile::tempdir().unwrap();
        let key = |der: &str| {
            let path = folder.path().join("key");
            fs::write(&path, format!("-----BEGIN PRIVATE KEY-----\n{der}\n-----END PRIVATE KEY-----\n")).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            SigningKey::read(&path).unwrap()
        };
        let own = key("MC4CAQAwBQYDK2VwBCIEIJq8KYki7c5x9fDTOnHf93bRqTygDsSkX+8yMZ+MtInd");
        let other = key("MC4CAQAwBQYDK2VwBCIEIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
        let (ada, settings) = (name("ada"), TenantSettings::default());
        let store = with_tenant(&ada).await;
        let signed = |key: &SigningKey, tenant: &Name, mut component: RegisteredComponent| {
            let NewComponent { version, component: id, signature, .. } = &mut component.pushed;
            let message = signed_message(tenant, version, *id);
            *signature =
                Some(ComponentSignature { key: key.public().unwrap(), signature: key.sign(&message).unwrap() });
            component
        };
        let push = async |component: &RegisteredComponent| {
            let checked = code(check(&store, &ada, &settings, &component.pushed).await);
            assert_eq!(code(add(&store, &ada, &settings, component).await), checked);
            checked
        };
        let uses = async |numbers: &[u8]| {
            let ids: Vec<_> = numbers.iter().map(|number| id(*number)).collect();
            code(check_signed(&store, &ada, &ids).await)
        };
        // Without keys, anything goes but a wrong signature.
        assert_eq!(push(&new("a@1.0.0", 1)).await, "");
        assert_eq!(push(&signed(&other, &ada, new("a@1.1.0", 2))).await, "");
        let mut forged = signed(&own, &ada, new("a@1.2.0", 3));
        forged.pushed.signature.as_mut().unwrap().signature = Signature([1; 64]);
        assert_eq!(push(&forged).await, "signature");
        // Nobody replaces a signature.
        let again = add(&store, &ada, &settings, &signed(&own, &ada, new("a@1.1.0", 2))).await.unwrap();
        assert_eq!(again.pushed.signature.unwrap().key, other.public().unwrap());
        assert_eq!(uses(&[1, 2, 9]).await, "");
        let added = ComponentKey { key: own.public().unwrap(), added_ms: 1 };
        add_key(&store, &ada, added).await.unwrap();
        add_key(&store, &ada, added).await.unwrap();
        assert_eq!(keys(&store, &ada).await.unwrap(), [added]);
        assert_eq!([uses(&[1]).await, uses(&[2]).await, uses(&[9]).await], ["not-signed", "signature", "not-signed"]);
        assert_eq!(push(&new("a@1.3.0", 4)).await, "not-signed");
        assert_eq!(push(&signed(&other, &ada, new("a@1.3.0", 4))).await, "signature");
        assert_eq!(push(&signed(&own, &name("bob"), new("a@1.3.0", 4))).await, "signature");
        assert_eq!(push(&signed(&own, &ada, new("a@1.3.0", 4))).await, "");
        assert_eq!([uses(&[4]).await, uses(&[4, 1]).await], ["", "not-signed"]);
        // Signed later.
        assert_eq!(push(&signed(&own, &ada, new("a@1.0.0", 1))).await, "");
        assert_eq!(uses(&[4, 1]).await, "");
        yank(&store, &ada, &settings, &"a@1.3.0".parse().unwrap(), true).await.unwrap();
        assert_eq!(uses(&[4]).await, "yanked");
        // Another version of the same component is not yanked.
        assert_eq!(push(&signed(&own, &ada, new("a@1.3.1", 4))).await, "");
        assert_eq!(uses(&[4]).await, "");
        remove_key(&store, &ada, own.public().unwrap()).await.unwrap();
        assert_eq!(code(remove_key(&store, &ada, own.public().unwrap()).await), "no-key");
        assert_eq!(uses(&[9]).await, "");
        for number in 0..KEYS_MAX {
            let key = PublicKey([number as u8; 32]);
            add_key(&store, &ada, ComponentKey { key, added_ms: 1 }).await.unwrap();
        }
        assert_eq!(code(add_key(&store, &ada, added).await), "key-limit");
    }
}
