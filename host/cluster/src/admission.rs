//! Admission of nodes and tenants: which of those that have a token, or a certificate to renew, get a certificate.

use std::sync::{Arc, OnceLock};

use futures::future::{BoxFuture, FutureExt as _};
use sandbar_meta::MetaStore;
use sandbar_wire::{Applicant, Clock as _, JoinPolicy, JoinRefusal, Principal, SystemClock};

use crate::audit::{AuditActor, AuditEntry, AuditLog};
use crate::tenants;

/// Decides by the cluster's store, which is opened after the endpoint.
#[derive(Clone)]
pub(crate) struct StoreAdmission {
    store: Arc<OnceLock<Arc<dyn MetaStore>>>,
    audit: AuditLog,
}

impl StoreAdmission {
    pub(crate) fn new(audit: AuditLog) -> StoreAdmission {
        StoreAdmission { store: Arc::default(), audit }
    }

    /// Sets the store. Applicants are told to retry before that.
    pub(crate) fn set_store(&self, store: Arc<dyn MetaStore>) {
        // A node opens one store.
        let _ = self.store.set(store);
    }

    async fn decide(&self, applicant: &Applicant<'_>) -> Result<(), JoinRefusal> {
        let Applicant { principal, key, token, expires, .. } = *applicant;
        let store = self.store.get().ok_or_else(|| JoinRefusal::Unavailable("the node is starting".to_owned()))?;
        match principal {
            Principal::Node(name) => tenants::admit_node(&**store, name, key, token, expires, SystemClock.now()).await,
            Principal::Tenant(name, access) => tenants::admit_tenant(&**store, name, access.token, key, expires).await,
        }
    }
}

/// Returns the entry of a decision.
fn entry(applicant: &Applicant<'_>, refusal: Option<&JoinRefusal>) -> AuditEntry {
    let (action, subject) = match applicant.principal {
        Principal::Node(name) => ("certify-node", format!("node {name}")),
        Principal::Tenant(name, access) => {
            ("certify-client", format!("tenant {name}, role {}, token {}", access.role, access.token))
        }
    };
    let by = AuditActor::Applicant { key: applicant.key.to_string(), address: applicant.address.to_string() };
    let refusal = refusal.map(|refusal| ("refused".to_owned(), refusal.to_string()));
    AuditEntry { by, action, subject, refusal }
}

impl JoinPolicy for StoreAdmission {
    fn admit<'a>(&'a self, applicant: &'a Applicant<'a>) -> BoxFuture<'a, Result<(), JoinRefusal>> {
        async move {
            self.audit.check().await.map_err(JoinRefusal::Unavailable)?;
            let admitted = self.decide(applicant).await;
            self.audit.append(entry(applicant, admitted.as_ref().err())).await;
            admitted
        }
        .boxed()
    }
}
