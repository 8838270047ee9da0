//! Requests of tenants about their components.

use std::sync::Arc;

use sandbar_core::{Blame, ComponentId};
use sandbar_jobs::now_ms;
use sandbar_wire::{Frames, Name, PublicKey};

use super::changes;
use super::error::ComponentError;
use super::record::{ComponentFunction, ComponentKey, NewComponent, RegisteredComponent};
use super::version::ComponentVersion;
use crate::error::ClusterError;
use crate::files::StoredFile;
use crate::jobs::{
    COMPONENT_COPIES, Outcome, RESPONSE_TIME_MAX, RefusalCode, TenantResponse, Upload, node_failed, refused, rejected,
    retry_later, send, while_in_progress,
};
use crate::state::ClusterState;
use crate::{chunks, components};

/// Maximum functions of a component that are listed, and maximum characters of their names.
const FUNCTIONS_MAX: usize = 32;
const FUNCTION_CHARS_MAX: usize = 64;

/// Registers a component, and keeps copies of it.
pub(crate) async fn push(
    cluster: &Arc<ClusterState>,
    tenant: &Name,
    new: NewComponent,
    frames: &mut Frames,
) -> Outcome<TenantResponse> {
    let settings = cluster.tenants.settings(tenant).ok_or_else(|| retry_later("the tenant is unknown"))?;
    changes::check(&*cluster.store, tenant, &settings, &new).await.map_err(rejected)?;
    let upload = Upload { cluster, tenant, settings: &settings };
    let NewComponent { component, bytes, .. } = new;
    upload.component((component, bytes), &TenantResponse::SendContent(new.file()), frames).await?;
    let stored = cluster.tenant_components.get(tenant, component).and_then(|file| file.metadata().ok());
    if let Some(stored) = stored.filter(|stored| stored.len() != bytes) {
        let message = format!("the component has {} bytes, not {bytes}", stored.len());
        return Err(refused(RefusalCode::Component, message));
    }
    let work = async {
        let functions =
            components::functions_of_tenant(cluster, tenant, component).await.map_err(|fault| {
                match fault.code.blame() {
                    Blame::Host => node_failed(fault),
                    _ => refused(RefusalCode::Component, fault),
                }
            })?;
        let functions = functions.into_iter().take(FUNCTIONS_MAX).map(|function| ComponentFunction {
            name: function.name.chars().take(FUNCTION_CHARS_MAX).collect(),
            kind: function.kind,
        });
        let registered =
            RegisteredComponent { pushed: new, pushed_ms: now_ms(), functions: functions.collect(), yanked: false };
        let added = changes::add(&*cluster.store, tenant, &settings, &registered).await.map_err(rejected)?;
        components::replicate(cluster, tenant, component, COMPONENT_COPIES).await;
        Ok(TenantResponse::Component(Box::new(added)))
    };
    while_in_progress(frames, work).await
}

/// Sends a tenant's components.
pub(crate) async fn list(cluster: &ClusterState, tenant: &Name, frames: &Frames) -> Outcome<Option<TenantResponse>> {
    let all = changes::list(&*cluster.store, tenant).await.map_err(rejected)?;
    let bytes = serde_json::to_vec(&all).map_err(node_failed)?;
    send(frames, &TenantResponse::Components).await?;
    chunks::send(frames, &bytes, RESPONSE_TIME_MAX).await.map_err(retry_later)?;
    Ok(None)
}

/// Sends a registered component, which any node may have.
pub(crate) async fn pull(
    cluster: &Arc<ClusterState>,
    tenant: &Name,
    component: ComponentId,
    frames: &Frames,
) -> Outcome<Option<TenantResponse>> {
    let registered = changes::find(&*cluster.store, tenant, component).await.map_err(rejected)?;
    let unknown = || rejected(ClusterError::Component(ComponentError::NotRegistered(component.short())));
    let bytes = registered.ok_or_else(unknown)?.pushed.bytes;
    let fetched = while_in_progress(frames, components::ensure_of_tenant(cluster, tenant, component)).await;
    fetched.map_err(|fault| {
        log::debug!("component {component} of tenant {tenant} can't be sent: {fault}");
        refused(RefusalCode::Component, components::NOWHERE)
    })?;
    let (state, name) = (cluster.clone(), tenant.clone());
    let read = tokio::task::spawn_blocking(move || {
        state.tenant_components.get(&name, component).and_then(|file| components::read_all(&file).ok())
    });
    let content = read.await.map_err(node_failed)?.ok_or_else(|| retry_later("the component was evicted"))?;
    send(frames, &TenantResponse::Output(StoredFile { file: component.into(), bytes })).await?;
    chunks::send(frames, &content, RESPONSE_TIME_MAX).await.map_err(retry_later)?;
    Ok(None)
}

/// Yanks a component, or takes that back.
pub(crate) async fn yank(
    cluster: &ClusterState,
    tenant: &Name,
    version: &ComponentVersion,
    yanked: bool,
) -> Outcome<TenantResponse> {
    let settings = cluster.tenants.settings(tenant).ok_or_else(|| retry_later("the tenant is unknown"))?;
    let changed = changes::yank(&*cluster.store, tenant, &settings, version, yanked).await.map_err(rejected)?;
    Ok(TenantResponse::Component(Box::new(changed)))
}

/// Returns a tenant's signing keys.
pub(crate) async fn keys(cluster: &ClusterState, tenant: &Name) -> Outcome<TenantResponse> {
    let keys = changes::keys(&*cluster.store, tenant).await.map_err(rejected)?;
    Ok(TenantResponse::ComponentKeys(keys))
}

/// Adds a signing key.
pub(crate) async fn add_key(cluster: &ClusterState, tenant: &Name, key: PublicKey) -> Outcome<TenantResponse> {
    let new = ComponentKey { key, added_ms: now_ms() };
    changes::add_key(&*cluster.store, tenant, new).await.map_err(rejected)?;
    Ok(TenantResponse::Done)
}

/// Removes a signing key.
pub(crate) async fn remove_key(cluster: &ClusterState, tenant: &Name, key: PublicKey) -> Outcome<TenantResponse> {
    changes::remove_key(&*cluster.store, tenant, key).await.map_err(rejected)?;
    Ok(TenantResponse::Done)
}
