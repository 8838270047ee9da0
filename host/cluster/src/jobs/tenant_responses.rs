//! Sending of responses to tenants.

use std::time::Duration;

use sandbar_wire::Frames;

use super::tenant_messages::TenantResponse;
use crate::error::ClusterError;

/// Interval of [`TenantResponse::InProgress`].
const IN_PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The result of a tenant's request, or the response that rejects it.
pub(crate) type Outcome<T> = Result<T, TenantResponse>;

/// Refuses a request.
pub(crate) fn refused(reason: impl ToString) -> TenantResponse {
    TenantResponse::Refused(reason.to_string())
}

/// Rejects a request that may succeed in a moment.
pub(crate) fn retry_later(reason: impl ToString) -> TenantResponse {
    TenantResponse::RetryLater(reason.to_string())
}

/// Rejects a request because of an error.
pub(crate) fn rejected(error: ClusterError) -> TenantResponse {
    if error.may_retry() { retry_later(error) } else { refused(error) }
}

/// Sends a response.
pub(crate) async fn send(frames: &Frames, response: &TenantResponse) -> Outcome<()> {
    let bytes = serde_json::to_vec(response).map_err(refused)?;
    frames.send(&bytes).await.map_err(refused)
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
