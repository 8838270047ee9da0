//! This end's identity: its key, its certificate and the authority it trusts, and the folder that stores them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;

use super::folder::{Lock, SecretFolder};
use super::trust::HandshakeSide;
use super::{IdentityError, Key, TrustAnchor};
use crate::clock::Timestamp;
use crate::name::{PeerIdentity, Role};

const KEY: &str = "identity.key";
const CERTIFICATE: &str = "identity.crt";
const AUTHORITY: &str = "authority.crt";

/// A key and the certificate that the authority issued for it.
#[derive(Debug, Clone)]
pub struct Identity {
    key: Arc<Key>,
    certificate: CertificateDer<'static>,
    trust: TrustAnchor,
    own: PeerIdentity,
}

impl Identity {
    /// Combines a key with certificates (DER) and checks them.
    ///
    /// # Errors
    /// The authority did not sign the certificate, it is for another key, or it is not valid at `now`.
    pub fn new(
        key: Arc<Key>,
        certificate: Vec<u8>,
        authority: Vec<u8>,
        now: Timestamp,
    ) -> Result<Identity, IdentityError> {
        let (certificate, trust) = (CertificateDer::from(certificate), TrustAnchor::new(authority.into())?);
        let own = trust.identify(std::slice::from_ref(&certificate), HandshakeSide::Client, now)?;
        if own.key != key.id() {
            let reason = format!("it is for key {}, not {}", own.key, key.id());
            return Err(IdentityError::Malformed { item: "this machine's certificate", reason });
        }
        if own.role == Role::Node {
            trust.signed(&certificate, HandshakeSide::Server, now)?;
        }
        Ok(Identity { key, certificate, trust, own })
    }

    /// Loads the identity from a folder without locking it, so that several commands of a tenant can use it at once.
    ///
    /// # Errors
    /// The folder has none or is readable by others, or the certificate is not valid at `now`.
    pub fn load(folder: &Path, now: Timestamp) -> Result<Identity, IdentityError> {
        let folder = SecretFolder::open(folder)?;
        load(&folder, now)?
            .ok_or(IdentityError::Missing { path: folder.path().to_owned(), item: "certificate: join a cluster first" })
    }

    /// Stores the identity in a folder, which is created if missing.
    ///
    /// # Errors
    /// The folder can't be written, or is readable by others.
    pub fn save(&self, folder: &Path) -> Result<(), IdentityError> {
        let folder = SecretFolder::create(folder)?;
        folder.write(KEY, self.key.der())?;
        save(&folder, self)
    }

    /// Returns this end's subject and certificate data.
    pub fn own(&self) -> &PeerIdentity {
        &self.own
    }

    /// Returns the key.
    pub fn key(&self) -> &Arc<Key> {
        &self.key
    }

    /// Returns the trusted authority.
    pub fn trust(&self) -> &TrustAnchor {
        &self.trust
    }

    /// Returns the certificate (DER).
    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns when to renew: after two thirds of the certificate's validity, which leaves a third to reach the
    /// authority.
    pub fn renew_at(&self) -> Timestamp {
        let life = self.own.expires.0.saturating_sub(self.own.begins.0);
        self.own.begins.after(Duration::from_secs(life / 3 * 2))
    }
}

/// The folder of a node, locked for this process until dropped: one process at a time runs a node.
#[derive(Debug)]
pub struct NodeFolder {
    folder: SecretFolder,
    _lock: Lock,
}

impl NodeFolder {
    /// Locks a folder for this process, and creates it if missing.
    ///
    /// # Errors
    /// Another process has locked it, it can't be written, or it is readable by others.
    pub fn lock(path: &Path) -> Result<NodeFolder, IdentityError> {
        let folder = SecretFolder::create(path)?;
        let lock = folder.lock()?;
        Ok(NodeFolder { folder, _lock: lock })
    }

    /// Returns the node's key, which the first call generates.
    ///
    /// # Errors
    /// The key can't be read, written or generated.
    pub fn key(&self) -> Result<Arc<Key>, IdentityError> {
        if let Some(der) = self.folder.read(KEY)? {
            return Ok(Arc::new(Key::from_der(&der)?));
        }
        let key = Key::generate()?;
        self.folder.write(KEY, key.der())?;
        Ok(Arc::new(key))
    }

    /// Loads the node's identity; `None` before it has joined.
    ///
    /// # Errors
    /// The files can't be read, or the certificate is not valid at `now`.
    pub fn load(&self, now: Timestamp) -> Result<Option<Identity>, IdentityError> {
        load(&self.folder, now)
    }

    /// Stores the result of a join or a renewal.
    ///
    /// # Errors
    /// The identity is for another key than the folder's, or the folder can't be written.
    pub fn save(&self, identity: &Identity) -> Result<(), IdentityError> {
        if self.key()?.id() != identity.key.id() {
            let reason = "it is for another key than the folder's".to_owned();
            return Err(IdentityError::Malformed { item: "the identity", reason });
        }
        save(&self.folder, identity)
    }
}

fn load(folder: &SecretFolder, now: Timestamp) -> Result<Option<Identity>, IdentityError> {
    // The certificate is written last: if it exists, so do the other files.
    let Some(certificate) = folder.read(CERTIFICATE)? else { return Ok(None) };
    let missing = |item| IdentityError::Missing { path: folder.path().to_owned(), item };
    let authority = folder.read(AUTHORITY)?.ok_or_else(|| missing(AUTHORITY))?;
    let key = folder.read(KEY)?.ok_or_else(|| missing(KEY))?;
    Identity::new(Arc::new(Key::from_der(&key)?), certificate, authority, now).map(Some)
}

fn save(folder: &SecretFolder, identity: &Identity) -> Result<(), IdentityError> {
    folder.write(AUTHORITY, identity.trust.certificate())?;
    folder.write(CERTIFICATE, &identity.certificate)
}
