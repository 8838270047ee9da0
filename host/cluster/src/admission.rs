//! Admission of nodes and tenants: which of those that have a token, or a certificate to renew, get a certificate.

use std::sync::{Arc, OnceLock};

use futures::future::{BoxFuture, FutureExt as _};
use sandbar_meta::MetaStore;
use sandbar_wire::{Applicant, Clock as _, JoinPolicy, JoinRefusal, Principal, SystemClock};

use crate::tenants;

/// Decides by the cluster's store, which is opened after the endpoint.
#[derive(Clone, Default)]
pub(crate) struct StoreAdmission(Arc<OnceLock<Arc<dyn MetaStore>>>);

impl StoreAdmission {
    /// Sets the store. Applicants are told to retry before that.
    pub(crate) fn set_store(&self, store: Arc<dyn MetaStore>) {
        // A node opens one store.
        let _ = self.0.set(store);
    }
}

impl JoinPolicy for StoreAdmission {
    fn admit<'a>(&'a self, applicant: &'a Applicant<'a>) -> BoxFuture<'a, Result<(), JoinRefusal>> {
        let Applicant { principal, key, token, expires, .. } = *applicant;
        async move {
            let store = self.0.get().ok_or_else(|| JoinRefusal::Unavailable("the node is starting".to_owned()))?;
            match principal {
                Principal::Node(name) => {
                    tenants::admit_node(&**store, name, key, token, expires, SystemClock.now()).await
                }
                Principal::Tenant(name, access) => {
                    tenants::admit_tenant(&**store, name, access.token, key, expires).await
                }
            }
        }
        .boxed()
    }
}
