//! Operators' commands: tenants, their tokens, and the removal of nodes.

use std::time::Duration;

use sandbar_wire::{Clock as _, Name, SystemClock, TenantRole, TokenId};

use crate::cluster::Cluster;
use crate::error::ClusterError;
use crate::member::Member;
use crate::registry;
use crate::tenants::{self, NewTokenSpec, Tenant, TenantSettings, TenantToken};

impl Cluster {
    /// Adds a tenant.
    ///
    /// # Errors
    /// Fails if the cluster has a tenant of that name or too many, a setting is out of its range, or the store does not
    /// respond.
    pub async fn add_tenant(&self, name: &Name, settings: TenantSettings) -> Result<(), ClusterError> {
        tenants::add(&*self.state().store, name, settings, SystemClock.now()).await
    }

    /// Replaces the settings of a tenant by what `set` returns for the present ones. Returns the new settings.
    ///
    /// # Errors
    /// Fails if there is no such tenant, a setting is out of its range, or the store does not respond.
    pub async fn set_tenant(
        &self,
        name: &Name,
        set: &(dyn Fn(TenantSettings) -> TenantSettings + Sync),
    ) -> Result<TenantSettings, ClusterError> {
        tenants::set(&*self.state().store, name, set).await
    }

    /// Removes a tenant: its certificates and tokens are revoked, and its jobs end.
    ///
    /// # Errors
    /// Fails if there is no such tenant, or the store does not respond.
    pub async fn remove_tenant(&self, name: &Name) -> Result<(), ClusterError> {
        tenants::remove(&*self.state().store, name).await
    }

    /// Returns all tenants, or the one of a name, in the order of their names.
    ///
    /// # Errors
    /// Fails if there is no tenant of that name, or the store does not respond.
    pub async fn tenants(&self, only: Option<&Name>) -> Result<Vec<Tenant>, ClusterError> {
        tenants::list(&*self.state().store, only).await
    }

    /// Creates a token of a tenant, which is valid for `lifetime`. Returns it with its secret text.
    ///
    /// # Errors
    /// Fails if there is no such tenant, this node does not have the authority, the lifetime is too long, or the store
    /// does not respond.
    pub async fn create_tenant_token(
        &self,
        name: &Name,
        role: TenantRole,
        use_once: bool,
        lifetime: Duration,
    ) -> Result<(TenantToken, String), ClusterError> {
        let (store, authority) = (&*self.state().store, self.state().authority.as_deref());
        tenants::issue_token(store, authority, name, NewTokenSpec { role, use_once, lifetime, created_by: None }).await
    }

    /// Revokes a token of a tenant, and all certificates that came from it.
    ///
    /// # Errors
    /// Fails if the tenant has no such token, or the store does not respond.
    pub async fn revoke_tenant_token(&self, name: &Name, id: TokenId) -> Result<(), ClusterError> {
        tenants::revoke_token(&*self.state().store, name, id, &|_| Ok(())).await
    }

    /// Revokes a token of nodes. Nodes that have joined with it stay.
    ///
    /// # Errors
    /// Fails if the store does not respond.
    pub async fn revoke_node_token(&self, id: TokenId) -> Result<(), ClusterError> {
        tenants::revoke_node_token(&*self.state().store, id).await
    }

    /// Removes a node from the cluster for good: the certificates of its key are revoked, and its name is free.
    ///
    /// # Errors
    /// Fails if it is this node, no node has that name, or the store does not respond.
    pub async fn remove(&self, name: &str) -> Result<(), ClusterError> {
        let (state, names) = (self.state(), |members: &[Member]| {
            members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", ")
        });
        if name == state.own.name {
            return Err(ClusterError::OwnNode(name.to_owned()));
        }
        let parsed: Name = name.parse().map_err(|e| ClusterError::InvalidName(name.to_owned(), e))?;
        match tenants::key_of_node(&*state.store, &parsed).await? {
            Some(key) => tenants::remove_node(&*state.store, &parsed, key).await,
            None => {
                let members = registry::list(&*state.store).await?;
                Err(ClusterError::UnknownNode(name.to_owned(), names(&members)))
            }
        }
    }
}
