//! Renewal of certificates before they expire: the request over a connection, and the announcement to all peers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::certificate_issuer::Applicant;
use super::environment::canonical;
use super::join::{JoinError, accept_certificate};
use super::state::EndpointState;
use crate::channel::{ByteLimit, read_whole, send_request, send_response};
use crate::connection::Connection;
use crate::connection_state::ConnectionState;
use crate::disconnect::close;
use crate::identity::{HandshakeSide, Identity, IdentityError, PeerError};
use crate::name::Role;
use crate::protocol::{CERTIFICATES_BYTES_MAX, JoinRefusal, JoinResponse, NEWER, RENEW, RenewRequest};
use crate::router::RenewalHandler;

/// Minimum time between two certificates for one peer, as each costs a signature.
const INTERVAL: Duration = Duration::from_secs(1);

impl RenewalHandler for EndpointState {
    fn handle_renewal(
        self: Arc<Self>,
        connection: Weak<ConnectionState>,
        send: quinn::SendStream,
        mut receive: quinn::RecvStream,
    ) {
        tokio::spawn(async move {
            let request = self.read_certificate_message(&mut receive).await?;
            let connection = connection.upgrade()?;
            let response = self.renew(&connection, &request).await;
            drop(connection);
            let time = Duration::from_millis(self.limits.join_time_ms_max);
            timeout(time, send_response(send, &postcard::to_stdvec(&response).ok()?)).await.ok()
        });
    }

    fn handle_newer_certificate(self: Arc<Self>, connection: Weak<ConnectionState>, mut receive: quinn::RecvStream) {
        tokio::spawn(async move {
            let certificate = self.read_certificate_message(&mut receive).await?;
            let connection = connection.upgrade()?;
            if let Err(reason) = self.accept_newer(&connection, certificate) {
                close(&connection.quinn, reason.close_code(), &reason.to_string());
            }
            Some(())
        });
    }
}

impl EndpointState {
    async fn read_certificate_message(&self, receive: &mut quinn::RecvStream) -> Option<Vec<u8>> {
        let ms = self.limits.join_time_ms_max;
        let max = ByteLimit { kind: "certificate", bytes: CERTIFICATES_BYTES_MAX as u32, limit: "a constant" };
        let until = Instant::now() + Duration::from_millis(ms);
        read_whole(receive, max, until, ms).await.ok().map(Vec::from)
    }

    async fn renew(&self, connection: &ConnectionState, request: &[u8]) -> JoinResponse {
        let issuer = self.issuer().clone().ok_or(JoinRefusal::NoAuthority)?;
        if !connection.may_renew(INTERVAL) {
            return Err(JoinRefusal::Busy);
        }
        let malformed = |e: postcard::Error| JoinRefusal::Request(e.to_string());
        let request: RenewRequest = postcard::from_bytes(request).map_err(malformed)?;
        let (peer, now) = (&connection.peer, self.environment.clock.now());
        let applicant = Applicant {
            principal: &peer.principal(),
            key: peer.key,
            token: None,
            expires: issuer.expiry(now),
            address: canonical(connection.quinn.remote_address()),
        };
        issuer.issue(&applicant, &request.request, now).await
    }

    /// Accepts a newer certificate for the same subject and key. The peer proved possession of the key when it
    /// connected.
    fn accept_newer(&self, connection: &ConnectionState, certificate: Vec<u8>) -> Result<(), PeerError> {
        let (before, trust) = (&connection.peer, self.identity().trust().clone());
        let side = match before.role {
            Role::Node => HandshakeSide::Server,
            Role::Tenant => HandshakeSide::Client,
        };
        let newer = trust.identify(&[certificate.into()], side, self.environment.clock.now())?;
        if newer.role != before.role {
            return Err(PeerError::Role { expected: before.role, actual: newer.role });
        }
        if newer.name != before.name {
            return Err(PeerError::Name { expected: before.name.clone(), actual: newer.name });
        }
        if newer.access != before.access {
            return Err(PeerError::Malformed(
                "it is for another role within the tenant, or of another token".to_owned(),
            ));
        }
        if newer.key != before.key {
            return Err(PeerError::Malformed("it is for another key".to_owned()));
        }
        connection.entry.set_peer(newer)
    }
}

pub(super) async fn request_renewal(
    shared: &Arc<EndpointState>,
    connection: &Connection,
) -> Result<Identity, JoinError> {
    let before = shared.identity().clone();
    let request = postcard::to_stdvec(&RenewRequest { request: before.key().request()? });
    let request = request.map_err(|e| JoinError::Malformed(e.to_string()))?;
    let max = ByteLimit { kind: "answer", bytes: CERTIFICATES_BYTES_MAX as u32, limit: "a constant" };
    let time = Duration::from_millis(shared.limits.join_time_ms_max);
    let response = send_request(connection.quic(), &[&[RENEW], &request], max, time).await?;
    let now = shared.environment.clock.now();
    let next = accept_certificate(&response, before.key().clone(), before.trust().fingerprint(), now)?;
    match is_same_subject(&before, &next) {
        true => Ok(next),
        false => Err(JoinError::Malformed(format!("the certificate is for {}", next.own()))),
    }
}

pub(super) fn set_identity(shared: &Arc<EndpointState>, next: &Identity) -> Result<(), IdentityError> {
    {
        let mut now = shared.identity();
        if !is_same_subject(&now, next) {
            let reason = format!("it is for {} with key {}", next.own(), next.key().id());
            return Err(IdentityError::Malformed { item: "the next identity", reason });
        }
        shared.resolver.replace(next)?;
        *now = next.clone();
    }
    let time = Duration::from_millis(shared.limits.join_time_ms_max);
    for quinn in shared.peers.all() {
        let certificate = next.certificate().to_vec();
        tokio::spawn(async move {
            let announcing = async {
                let (mut send, _) = quinn.open_bi().await.ok()?;
                send.write_all(&[NEWER]).await.ok()?;
                send_response(send, &certificate).await.ok()
            };
            timeout(time, announcing).await
        });
    }
    Ok(())
}

/// Returns whether both identities have the same subject, key and authority.
fn is_same_subject(before: &Identity, next: &Identity) -> bool {
    let (a, b) = (before.own(), next.own());
    (&a.cluster, a.principal(), a.key) == (&b.cluster, b.principal(), b.key)
        && before.trust().fingerprint() == next.trust().fingerprint()
}
