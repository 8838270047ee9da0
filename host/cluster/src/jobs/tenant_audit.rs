//! Audit records of tenants' requests: what changes something, and what is refused.

use super::tenant_client::Client;
use super::tenant_messages::{NewClusterJob, TenantRequest, TenantResponse};
use super::tenant_responses::Outcome;
use crate::audit::{AuditActor, AuditEntry};
use crate::state::ClusterState;

/// Action of requests that change nothing, or can't be decoded. They are recorded if they are refused.
const OTHER: &str = "request";

/// Maximum files and components that a record names.
const NAMED_MAX: usize = 10;

/// Describes a submission: its components and files.
fn submission(new: &NewClusterJob) -> String {
    let mut text = new.program.clone();
    let components = new.work.components();
    let files: Vec<_> = new.work.files().into_iter().collect();
    let named = components.iter().take(NAMED_MAX).map(|component| format!(", component {component}"));
    text.extend(named.chain(files.iter().take(NAMED_MAX).map(|file| format!(", file {}", file.file))));
    let more = components.len().saturating_sub(NAMED_MAX) + files.len().saturating_sub(NAMED_MAX);
    if more > 0 {
        text += &format!(", {more} more");
    }
    text
}

/// The action of a request, and what it concerns.
#[derive(Debug, Clone)]
pub(crate) struct AuditedRequest {
    action: &'static str,
    subject: String,
}

impl AuditedRequest {
    /// A request that was not decoded yet.
    pub(crate) fn unknown() -> AuditedRequest {
        AuditedRequest { action: OTHER, subject: String::new() }
    }

    pub(crate) fn new(request: &TenantRequest) -> AuditedRequest {
        let (action, subject) = match request {
            TenantRequest::Submit(new) => ("submit", submission(new)),
            TenantRequest::Stop { job } => ("stop-job", format!("job {job}")),
            TenantRequest::StopActor { actor } => ("stop-actor", format!("actor {actor}")),
            TenantRequest::CreateToken { role, .. } => ("create-token", format!("role {role}")),
            TenantRequest::RevokeToken { token } => ("revoke-token", format!("token {token}")),
            TenantRequest::PushComponent(new) => {
                let signature = new.signature.map_or_else(String::new, |signature| format!(", key {}", signature.key));
                ("push-component", format!("component {}, {}{signature}", new.version, new.component))
            }
            TenantRequest::YankComponent { version, yanked: true } => {
                ("yank-component", format!("component {version}"))
            }
            TenantRequest::YankComponent { version, yanked: false } => {
                ("unyank-component", format!("component {version}"))
            }
            TenantRequest::AddComponentKey { key } => ("add-component-key", format!("key {key}")),
            TenantRequest::RemoveComponentKey { key } => ("remove-component-key", format!("key {key}")),
            TenantRequest::PullComponent { component } => (OTHER, format!("component {component}")),
            TenantRequest::Follow { job, .. }
            | TenantRequest::Status { job }
            | TenantRequest::Query { job, .. }
            | TenantRequest::Output { job } => (OTHER, format!("job {job}")),
            TenantRequest::List { .. }
            | TenantRequest::Tenant
            | TenantRequest::FindIssuer
            | TenantRequest::Actors
            | TenantRequest::Components
            | TenantRequest::ComponentKeys
            | TenantRequest::Usage { .. } => (OTHER, String::new()),
        };
        AuditedRequest { action, subject }
    }

    /// Whether the request changes something, so that it must not be carried out without a record.
    pub(crate) fn is_change(&self) -> bool {
        self.action != OTHER
    }

    /// Records the request and its result, if it changed something or was refused.
    pub(crate) async fn record(
        self,
        cluster: &ClusterState,
        client: Client<'_>,
        handled: &Outcome<Option<TenantResponse>>,
    ) {
        let AuditedRequest { action, mut subject } = self;
        let refusal = match handled {
            // The client tries again.
            Err(TenantResponse::RetryLater(_))
            | Ok(Some(TenantResponse::RetryLater(_) | TenantResponse::Redirect(_))) => {
                return;
            }
            Err(TenantResponse::Refused(refusal)) | Ok(Some(TenantResponse::Refused(refusal))) => {
                Some((refusal.code.clone(), refusal.message.clone()))
            }
            Ok(Some(TenantResponse::Job(job))) if action == "submit" => {
                subject = format!("job {}: {subject}", job.id);
                None
            }
            Ok(Some(TenantResponse::Token(token, _))) => {
                subject = format!("{subject}, token {}", token.id);
                None
            }
            _ => None,
        };
        if refusal.is_none() && action == OTHER {
            return;
        }
        let (name, role, token) = (client.tenant.clone(), client.access.role, client.access.token.to_string());
        let by = AuditActor::Tenant { name, role, token };
        cluster.audit.append(AuditEntry { by, action, subject, refusal }).await;
    }
}
