//! What an end has to show: a key, a certificate, and the authority it trusts; and the folder that keeps them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;

use super::folder::{Lock, SecretFolder};
use super::trust::Side;
use super::{IdentityError, Key, Trust};
use crate::clock::Timestamp;
use crate::name::{PeerIdentity, Role};

const KEY: &str = "identity.key";
const CERTIFICATE: &str = "identity.crt";
const AUTHORITY: &str = "authority.crt";

/// A key, and the authority's word for who has it.
#[derive(Debug, Clone)]
pub struct Identity {
    key: Arc<Key>,
    certificate: CertificateDer<'static>,
    trust: Trust,
    own: PeerIdentity,
}

impl Identity {
    /// Of certificates in DER. One that has ended is none.
    ///
    /// # Errors
    /// When the authority did not sign it, it is for another key, or it does not count now.
    pub fn new(
        key: Arc<Key>,
        certificate: Vec<u8>,
        authority: Vec<u8>,
        now: Timestamp,
    ) -> Result<Identity, IdentityError> {
        let (certificate, trust) = (CertificateDer::from(certificate), Trust::new(authority.into())?);
        let own = trust.identify(std::slice::from_ref(&certificate), Side::Client, now)?;
        if own.key != key.id() {
            let reason = format!("it is for key {}, not {}", own.key, key.id());
            return Err(IdentityError::Malformed { what: "the own certificate", reason });
        }
        if own.role == Role::Node {
            trust.signed(&certificate, Side::Server, now)?;
        }
        Ok(Identity { key, certificate, trust, own })
    }

    /// What is kept in a folder, whoever else uses it: several commands of one tenant.
    ///
    /// # Errors
    /// When there is none, it is no good any more, or others can read it.
    pub fn load(folder: &Path, now: Timestamp) -> Result<Identity, IdentityError> {
        let folder = SecretFolder::open(folder)?;
        load(&folder, now)?
            .ok_or(IdentityError::Missing { path: folder.path().to_owned(), what: "certificate: join a cluster first" })
    }

    /// Keeps it in a folder, which is made.
    ///
    /// # Errors
    /// When the folder can't be written, or others can read it.
    pub fn save(&self, folder: &Path) -> Result<(), IdentityError> {
        let folder = SecretFolder::create(folder)?;
        folder.write(KEY, self.key.der())?;
        save(&folder, self)
    }

    /// Who this end is.
    pub fn own(&self) -> &PeerIdentity {
        &self.own
    }

    /// Its key.
    pub fn key(&self) -> &Arc<Key> {
        &self.key
    }

    /// Whom it trusts.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Its certificate (DER).
    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// When to ask for the next certificate: after two thirds of this one's time, so that a third is left for a cluster
    /// whose authority can't be reached.
    pub fn renew_at(&self) -> Timestamp {
        let life = self.own.expires.0.saturating_sub(self.own.begins.0);
        self.own.begins.after(Duration::from_secs(life / 3 * 2))
    }
}

/// The folder of a node, which one process at a time is. The lock lasts as long as this.
#[derive(Debug)]
pub struct NodeFolder {
    folder: SecretFolder,
    _lock: Lock,
}

impl NodeFolder {
    /// Takes a folder for this process; it is made if it is missing.
    ///
    /// # Errors
    /// When another process has it, it can't be written, or others can read it.
    pub fn lock(path: &Path) -> Result<NodeFolder, IdentityError> {
        let folder = SecretFolder::create(path)?;
        let lock = folder.lock()?;
        Ok(NodeFolder { folder, _lock: lock })
    }

    /// The node's key: made when it is first asked for, the same ever after.
    ///
    /// # Errors
    /// When it can't be read, written or made.
    pub fn key(&self) -> Result<Arc<Key>, IdentityError> {
        if let Some(der) = self.folder.read(KEY)? {
            return Ok(Arc::new(Key::from_der(&der)?));
        }
        let key = Key::generate()?;
        self.folder.write(KEY, key.der())?;
        Ok(Arc::new(key))
    }

    /// Who the node is; none before it has joined.
    ///
    /// # Errors
    /// When what is there can't be read, or is no good any more.
    pub fn load(&self, now: Timestamp) -> Result<Option<Identity>, IdentityError> {
        load(&self.folder, now)
    }

    /// Keeps what joining or renewing gave.
    ///
    /// # Errors
    /// When it is not for the key that is there, or can't be written.
    pub fn save(&self, identity: &Identity) -> Result<(), IdentityError> {
        if self.key()?.id() != identity.key.id() {
            let reason = "it is for another key than the folder's".to_owned();
            return Err(IdentityError::Malformed { what: "the identity", reason });
        }
        save(&self.folder, identity)
    }
}

fn load(folder: &SecretFolder, now: Timestamp) -> Result<Option<Identity>, IdentityError> {
    // The certificate is written last: with it, all is there.
    let Some(certificate) = folder.read(CERTIFICATE)? else { return Ok(None) };
    let missing = |what| IdentityError::Missing { path: folder.path().to_owned(), what };
    let authority = folder.read(AUTHORITY)?.ok_or_else(|| missing(AUTHORITY))?;
    let key = folder.read(KEY)?.ok_or_else(|| missing(KEY))?;
    Identity::new(Arc::new(Key::from_der(&key)?), certificate, authority, now).map(Some)
}

fn save(folder: &SecretFolder, identity: &Identity) -> Result<(), IdentityError> {
    folder.write(AUTHORITY, identity.trust.certificate())?;
    folder.write(CERTIFICATE, &identity.certificate)
}
