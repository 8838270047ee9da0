//! Sending of responses to tenants.

use std::fmt::Display;
use std::time::Duration;

use sandbar_wire::Frames;

use super::tenant_messages::{Refusal, RefusalCode, TenantResponse};
use crate::error::ClusterError;
use crate::tenants::TenantError;

/// Interval of [`TenantResponse::InProgress`].
const IN_PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The result of a tenant's request, or the response that rejects it.
pub(crate) type Outcome<T> = Result<T, TenantResponse>;

/// Refuses a request.
pub(crate) fn refused(code: RefusalCode, message: impl Display) -> TenantResponse {
    TenantResponse::Refused(Refusal { code: code.as_str().to_owned(), message: message.to_string() })
}

/// Refuses a request because this node failed. The reason, which may name files of the node, is for the node's log.
pub(crate) fn node_failed(reason: impl Display) -> TenantResponse {
    log::warn!("a tenant's request failed: {reason}");
    refused(RefusalCode::Node, "the node failed; its log has the reason, which its operator can read")
}

/// Rejects a request that may succeed in a moment. The reason, which may name addresses of the cluster, is for the node's
/// log.
pub(crate) fn retry_later(reason: impl Display) -> TenantResponse {
    log::debug!("a tenant must retry its request: {reason}");
    TenantResponse::RetryLater("the cluster can't serve the request now".to_owned())
}

/// Rejects a request because of an error.
pub(crate) fn rejected(error: ClusterError) -> TenantResponse {
    match error {
        ClusterError::Tenant(error @ TenantError::Conflict) => TenantResponse::RetryLater(error.to_string()),
        ClusterError::Tenant(error) => refused(RefusalCode::Token, error),
        ClusterError::Component(error) => {
            TenantResponse::Refused(Refusal { code: error.code().to_owned(), message: error.to_string() })
        }
        error if error.may_retry() => retry_later(error),
        error => node_failed(error),
    }
}

/// Sends a response.
pub(crate) async fn send(frames: &Frames, response: &TenantResponse) -> Outcome<()> {
    let bytes = serde_json::to_vec(response).map_err(node_failed)?;
    // If the tenant has disconnected, nobody receives the rejection.
    frames.send(&bytes).await.map_err(retry_later)
}

/// Runs `work`, and notifies the tenant meanwhile that its request is in progress.
pub(crate) async fn while_in_progress<T>(frames: &Frames, work: impl Future<Output = T>) -> T {
    let report = async {
        loop {
            tokio::time::sleep(IN_PROGRESS_INTERVAL).await;
            // If the tenant has disconnected, the work continues.
            let _ = send(frames, &TenantResponse::InProgress).await;
        }
    };
    tokio::select! {
        done = work => done,
        never = report => never,
    }
}
