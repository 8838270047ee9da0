//! Requests of a client about the registry of its tenant's components.

use std::path::Path;

use sandbar_core::ComponentId;
use sandbar_wire::PublicKey;

use super::client::{ClusterClient, receive, unexpected};
use super::tenant_messages::{TenantRequest, TenantResponse};
use crate::component_registry::{ComponentKey, ComponentVersion, NewComponent, RegisteredComponent};
use crate::error::ClusterError;
use crate::files::{self, StoredFile};

impl ClusterClient {
    /// Registers the component in a file. Returns it as it is registered.
    ///
    /// # Errors
    /// Fails if the file can't be read or has another component, a node refuses it, or none responds in time.
    pub async fn push_component(
        &mut self,
        new: NewComponent,
        file: &Path,
    ) -> Result<RegisteredComponent, ClusterError> {
        self.retry_until_answered(async |client| client.push_once(&new, file).await.map(Some)).await
    }

    async fn push_once(&mut self, new: &NewComponent, file: &Path) -> Result<RegisteredComponent, ClusterError> {
        let mut frames = self.send(&TenantRequest::PushComponent(new.clone())).await?;
        loop {
            match receive(&mut frames).await? {
                TenantResponse::SendContent(content) if content == new.file() => files::send(&frames, file).await?,
                TenantResponse::Component(component) => return Ok(*component),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Returns the registered components, by name and version.
    ///
    /// # Errors
    /// Fails if no node responds.
    pub async fn components(&mut self) -> Result<Vec<RegisteredComponent>, ClusterError> {
        self.request_json(&TenantRequest::Components, |response| matches!(response, TenantResponse::Components)).await
    }

    /// Downloads a registered component, and then replaces the file at `path`. Creates the folders of `path`.
    ///
    /// # Errors
    /// Fails if it is not registered, no node has it any more, or the file can't be written.
    pub async fn pull_component(&mut self, component: ComponentId, path: &Path) -> Result<StoredFile, ClusterError> {
        self.download(&TenantRequest::PullComponent { component }, path).await
    }

    /// Yanks a component, so that new jobs don't use it, or takes that back.
    ///
    /// # Errors
    /// Fails if there is no such component, there is no room to take it back, or no node responds.
    pub async fn yank_component(
        &mut self,
        version: &ComponentVersion,
        yanked: bool,
    ) -> Result<RegisteredComponent, ClusterError> {
        match self.request_redirected(&TenantRequest::YankComponent { version: version.clone(), yanked }).await? {
            TenantResponse::Component(component) => Ok(*component),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the keys that sign components.
    ///
    /// # Errors
    /// Fails if no node responds.
    pub async fn component_keys(&mut self) -> Result<Vec<ComponentKey>, ClusterError> {
        match self.request_redirected(&TenantRequest::ComponentKeys).await? {
            TenantResponse::ComponentKeys(keys) => Ok(keys),
            other => Err(unexpected(&other)),
        }
    }

    /// Adds a key that signs components. From then on, jobs use only signed ones.
    ///
    /// # Errors
    /// Fails if the client is no admin, there are too many keys, or no node responds.
    pub async fn add_component_key(&mut self, key: PublicKey) -> Result<(), ClusterError> {
        self.request_change(&TenantRequest::AddComponentKey { key }).await
    }

    /// Removes a key that signs components.
    ///
    /// # Errors
    /// Fails if the client is no admin, there is no such key, or no node responds.
    pub async fn remove_component_key(&mut self, key: PublicKey) -> Result<(), ClusterError> {
        self.request_change(&TenantRequest::RemoveComponentKey { key }).await
    }
}
