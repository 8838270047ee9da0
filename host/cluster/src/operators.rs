//! Operators' commands: tenants, their tokens, and the removal of nodes.

use std::time::Duration;

use sandbar_wire::{Clock as _, Name, SystemClock, TenantRole, TokenId};

use crate::audit::{AuditActor, AuditEntry};
use crate::cluster::Cluster;
use crate::error::ClusterError;
use crate::member::Member;
use crate::registry;
use crate::tenants::{self, NewTokenSpec, Tenant, TenantSettings, TenantToken};
use crate::usage::{self, UsageQuery, UsageReport};

impl Cluster {
    /// Adds a tenant.
    ///
    /// # Errors
    /// Fails if the cluster has a tenant of that name or too many, a setting is out of its range, or the store does not
    /// respond.
    pub async fn add_tenant(&self, name: &Name, settings: TenantSettings) -> Result<(), ClusterError> {
        let add = tenants::add(&*self.state().store, name, settings, SystemClock.now());
        self.audited("add-tenant", describe(name, &settings), add).await
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
        let change = async {
            let settings = tenants::set(&*self.state().store, name, set).await?;
            Ok((describe(name, &settings), settings))
        };
        self.audited_as("set-tenant", format!("tenant {name}"), change).await
    }

    /// Removes a tenant: its certificates and tokens are revoked, and its jobs end.
    ///
    /// # Errors
    /// Fails if there is no such tenant, or the store does not respond.
    pub async fn remove_tenant(&self, name: &Name) -> Result<(), ClusterError> {
        let remove = tenants::remove(&*self.state().store, name);
        self.audited("remove-tenant", format!("tenant {name}"), remove).await
    }

    /// Returns all tenants, or the one of a name, in the order of their names.
    ///
    /// # Errors
    /// Fails if there is no tenant of that name, or the store does not respond.
    pub async fn tenants(&self, only: Option<&Name>) -> Result<Vec<Tenant>, ClusterError> {
        tenants::list(&*self.state().store, only).await
    }

    /// Returns what was used on all nodes.
    ///
    /// # Errors
    /// Fails if the store does not respond, or the report is too long.
    pub async fn usage(&self, query: &UsageQuery) -> Result<UsageReport, ClusterError> {
        usage::report(self.state(), query).await
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
        let spec = NewTokenSpec { role, use_once, lifetime, created_by: None };
        let issue = async {
            let (token, text) = tenants::issue_token(store, authority, name, spec).await?;
            Ok((describe_token(name, &token), (token, text)))
        };
        self.audited_as("create-token", format!("tenant {name}, role {role}"), issue).await
    }

    /// Revokes a token of a tenant, and all certificates that came from it.
    ///
    /// # Errors
    /// Fails if the tenant has no such token, or the store does not respond.
    pub async fn revoke_tenant_token(&self, name: &Name, id: TokenId) -> Result<(), ClusterError> {
        let revoke = tenants::revoke_token(&*self.state().store, name, id, &|_| Ok(()));
        self.audited("revoke-token", format!("tenant {name}, token {id}"), revoke).await
    }

    /// Revokes a token of nodes. Nodes that have joined with it stay.
    ///
    /// # Errors
    /// Fails if the store does not respond.
    pub async fn revoke_node_token(&self, id: TokenId) -> Result<(), ClusterError> {
        let revoke = tenants::revoke_node_token(&*self.state().store, id);
        self.audited("revoke-node-token", format!("token {id}"), revoke).await
    }

    /// Removes a node from the cluster for good: the certificates of its key are revoked, and its name is free.
    ///
    /// # Errors
    /// Fails if it is this node, no node has that name, or the store does not respond.
    pub async fn remove(&self, name: &str) -> Result<(), ClusterError> {
        self.audited("remove-node", format!("node {name}"), self.remove_node(name)).await
    }

    async fn remove_node(&self, name: &str) -> Result<(), ClusterError> {
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

    /// Does what an operator requested, and records it.
    pub(crate) async fn audited<T>(
        &self,
        action: &'static str,
        subject: String,
        change: impl Future<Output = Result<T, ClusterError>>,
    ) -> Result<T, ClusterError> {
        let described = async { Ok((subject.clone(), change.await?)) };
        self.audited_as(action, subject.clone(), described).await
    }

    /// Does what an operator requested, and records it with the subject that it returns, or with this one if it fails.
    async fn audited_as<T>(
        &self,
        action: &'static str,
        subject: String,
        change: impl Future<Output = Result<(String, T), ClusterError>>,
    ) -> Result<T, ClusterError> {
        let audit = &self.state().audit;
        audit.check().await.map_err(ClusterError::Refused)?;
        let changed = change.await;
        let (subject, refusal) = match &changed {
            Ok((subject, _)) => (subject.clone(), None),
            Err(error) => (subject, Some(("failed".to_owned(), error.to_string()))),
        };
        audit.append(AuditEntry { by: AuditActor::Operator, action, subject, refusal }).await;
        if changed.is_ok() {
            // This node acts by it when the command ends; the others do within seconds.
            self.state().network.endpoint.read_access().await;
        }
        changed.map(|(_, result)| result)
    }
}

fn describe(name: &Name, settings: &TenantSettings) -> String {
    // Settings are numbers, and can be encoded.
    format!("tenant {name}: {}", serde_json::to_string(settings).unwrap_or_default())
}

fn describe_token(name: &Name, token: &TenantToken) -> String {
    let once = if token.use_once { ", for one use" } else { "" };
    format!("tenant {name}, role {}, token {}{once}, until {}", token.role, token.id, token.expires)
}
