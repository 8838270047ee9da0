//! Interpretation of gRPC errors: whether the call was applied, and whether another member may execute it.

use tonic::{Code, ConnectError, Status};

use crate::{LeaseId, LimitKind, MetaError};

/// Maximum size of a response, in bytes.
pub(super) const RESPONSE_BYTES_MAX: usize = 8 << 20;

/// Failure of a call to a member.
#[derive(Debug)]
pub(super) enum Failure {
    /// The call was not applied; another member may execute it.
    NotDone(String),
    /// The call may have been applied.
    Maybe(String),
    /// The call was not applied, and every member would reject it.
    Final(MetaError),
}

/// Messages that distinguish cases of the same gRPC code. They belong to etcd's API (`rpctypes`), and etcd's own
/// clients match on them.
const NO_LEADER: &str = "etcdserver: no leader";
const TOO_MANY_REQUESTS: &str = "etcdserver: too many requests";
const NO_LEARNER: &str = "etcdserver: rpc not supported for learner";
const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";
const NO_LEASE: &str = "etcdserver: requested lease not found";
/// Message of this side's gRPC library.
const RESPONSE_TOO_LARGE: &str = "Error, decoded message length too large";

/// Classifies the error status of `endpoint` for a call about `lease`, if it has one.
pub(super) fn failure(status: &Status, endpoint: &str, lease: Option<LeaseId>) -> Failure {
    let message = status.message();
    let reason = || format!("{endpoint}: {}", describe(status));
    if was_not_sent(status) || [NO_LEADER, TOO_MANY_REQUESTS, NO_LEARNER].contains(&message) {
        return Failure::NotDone(reason());
    }
    Failure::Final(match (status.code(), message) {
        (_, NO_SPACE) => MetaError::Full(format!(
            "{endpoint}: {message}; raise its --quota-backend-bytes, compact it and disarm the alarm"
        )),
        (Code::NotFound, NO_LEASE) => MetaError::LeaseNotFound(lease.unwrap_or(LeaseId(0))),
        (Code::OutOfRange, _) if message.starts_with(RESPONSE_TOO_LARGE) => too_large(),
        (Code::InvalidArgument | Code::FailedPrecondition | Code::PermissionDenied, _)
        | (Code::Unauthenticated | Code::Unimplemented | Code::NotFound | Code::OutOfRange, _) => {
            MetaError::Refused { endpoint: endpoint.to_owned(), reason: message.to_owned() }
        }
        _ => return Failure::Maybe(reason()),
    })
}

fn too_large() -> MetaError {
    MetaError::limit(LimitKind::ResponseBytes, RESPONSE_BYTES_MAX + 1, RESPONSE_BYTES_MAX)
}

/// Whether no connection was available to send the call on.
fn was_not_sent(status: &Status) -> bool {
    causes(status).any(|cause| cause.is::<ConnectError>())
}

/// Returns the message with the innermost cause: transport errors nest several uninformative ones.
fn describe(status: &Status) -> String {
    let inner = causes(status).last().map(ToString::to_string);
    match inner {
        Some(cause) if status.message().is_empty() || !status.message().contains(&cause) => {
            format!("{} ({cause})", status.message())
        }
        _ => status.message().to_owned(),
    }
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(std::error::Error::source(status), |cause| cause.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_map_to_errors() {
        let connect = || Status::from_error(Box::new(ConnectError("refused".into())));
        for (status, expected) in [
            (connect(), "not done"),
            (Status::unavailable(NO_LEADER), "not done"),
            (Status::resource_exhausted(TOO_MANY_REQUESTS), "not done"),
            (Status::unavailable("etcdserver: request timed out"), "maybe"),
            (Status::unavailable("etcdserver: leader changed"), "maybe"),
            (Status::unavailable("etcdserver: server stopped"), "maybe"),
            (Status::unknown("h2 protocol error"), "maybe"),
            (Status::cancelled("x"), "maybe"),
            (Status::deadline_exceeded("x"), "maybe"),
            (Status::internal("x"), "maybe"),
            (Status::resource_exhausted(NO_SPACE), "meta-full"),
            (Status::not_found(NO_LEASE), "meta-lease-not-found"),
            (Status::out_of_range(format!("{RESPONSE_TOO_LARGE}: found 9 bytes")), "meta-limit"),
            (Status::permission_denied("etcdserver: permission denied"), "meta-refused"),
            (Status::unimplemented("unknown service"), "meta-refused"),
            (Status::invalid_argument("etcdserver: user name is empty"), "meta-refused"),
        ] {
            let found = match failure(&status, "a:1", Some(LeaseId(7))) {
                Failure::NotDone(reason) => reason.starts_with("a:1: ").then_some("not done"),
                Failure::Maybe(reason) => reason.starts_with("a:1: ").then_some("maybe"),
                Failure::Final(error) => Some(error.code()),
            };
            assert_eq!(found, Some(expected), "{status:?}");
        }
    }
}
