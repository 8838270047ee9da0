//! The key and certificate of a node, and the node that it joined.

use std::path::Path;
use std::time::Duration;

use sandbar_machine::write_atomically;
use sandbar_wire::{
    Authority, Clock, EndpointEnvironment, Identity, JoinToken, Key, Name, NodeFolder, Principal, Role, SystemClock,
    WireLimits,
};

use crate::addresses::NodeAddress;
use crate::attempts::{announce_if_slow, connect_first, retry};
use crate::error::ClusterError;
use crate::options::ClusterOptions;

/// Folder of the key and the certificate, in the data folder.
pub(crate) const IDENTITY: &str = "identity";
/// File with the address of the node that was joined, in the data folder.
const JOINED: &str = "joined";
/// Maximum time of one attempt to reach a node.
pub(crate) const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(6);
/// Digits of the key's hash in a default name.
const KEY_DIGITS: usize = 6;

/// Returns the node's identity: the stored one, or a new one from its own authority or from the node that it joins.
pub(crate) async fn load_or_join(
    folder: &NodeFolder,
    authority: Option<&Authority>,
    options: &ClusterOptions,
) -> Result<Identity, ClusterError> {
    let now = SystemClock.now();
    let has_token = options.join.as_ref().is_some_and(|(_, token)| token.is_some());
    match folder.load(now) {
        Ok(Some(identity)) => return check_stored(options, identity),
        // With a token, an unusable certificate is replaced.
        Err(error) if !has_token => return Err(error.into()),
        Ok(None) | Err(_) => {}
    }
    let key = folder.key()?;
    let name = name(options, &key)?;
    let identity = match (authority, &options.join) {
        (Some(authority), _) => {
            let lifetime = Duration::from_secs(sandbar_wire::CERTIFICATE_LIFETIME_S);
            let certificate = authority.certify(&key.request()?, &Principal::Node(name), lifetime, now)?;
            Identity::new(key, certificate, authority.trust().certificate().to_vec(), now)?
        }
        (None, Some((address, Some(token)))) => {
            let token: JoinToken = token.parse().map_err(ClusterError::Token)?;
            let attempt = async |address| {
                let (environment, limits) =
                    (EndpointEnvironment::udp(options.listen.source_for(address))?, WireLimits::default());
                Ok(sandbar_wire::join(environment, address, &token, key.clone(), Role::Node, &name, &limits).await?)
            };
            let join = async || connect_first(address, ATTEMPT_TIME_MAX, &attempt).await;
            let joined = retry(options.join_time_max, join);
            announce_if_slow(address, options.join_time_max, joined).await?.1
        }
        _ => return Err(ClusterError::NoIdentity(options.data.clone())),
    };
    folder.save(&identity)?;
    Ok(identity)
}

/// Checks that the stored identity matches the options.
fn check_stored(options: &ClusterOptions, identity: Identity) -> Result<Identity, ClusterError> {
    let (own, folder) = (identity.own(), options.data.clone());
    if let Some((_, Some(token))) = &options.join {
        check_same_cluster(&folder, &identity, &token.parse().map_err(ClusterError::Token)?)?;
    }
    match &options.name {
        Some(name) if name != own.name.as_str() => {
            Err(ClusterError::OtherName { folder, has: own.name.as_str().to_owned(), name: name.clone() })
        }
        _ => Ok(identity),
    }
}

/// Checks that a token is for the cluster whose certificate the folder has.
pub(crate) fn check_same_cluster(folder: &Path, identity: &Identity, token: &JoinToken) -> Result<(), ClusterError> {
    if token.authority() == identity.trust().fingerprint() {
        return Ok(());
    }
    let (has, token) = (identity.own().cluster.to_string(), token.cluster().to_string());
    Err(ClusterError::OtherCluster { folder: folder.to_owned(), has, token })
}

/// Returns the node to join: the one in the options, which is then stored, or else the stored one.
pub(crate) fn joined_node(options: &ClusterOptions) -> Result<Option<NodeAddress>, ClusterError> {
    let path = options.data.join(JOINED);
    if let Some((address, _)) = &options.join {
        write_atomically(&path, address.to_string().as_bytes()).map_err(|e| ClusterError::Folder(path, e))?;
        return Ok(Some(address.clone()));
    }
    match std::fs::read_to_string(&path) {
        Ok(text) => match text.trim().parse() {
            Ok(address) => Ok(Some(address)),
            Err(e) => Err(ClusterError::Folder(path, std::io::Error::other(format!("`{}`: {e}", text.trim())))),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(ClusterError::Folder(path, e)),
    }
}

fn name(options: &ClusterOptions, key: &Key) -> Result<Name, ClusterError> {
    let parse = |text: &str| text.parse().map_err(|e| ClusterError::InvalidName(text.to_owned(), e));
    if let Some(name) = &options.name {
        return parse(name);
    }
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_ascii_lowercase();
    let valid: String = machine.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
    // Containers of one machine can have its name, and processes with equal ids.
    let digits: String = key.id().to_string().chars().take(KEY_DIGITS).collect();
    let text = format!("{}-{digits}", valid.trim_matches('-'));
    parse(text.trim_start_matches('-'))
}
