//! The server side of joining: a node with the authority's key issues certificates to clients that have a join token.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, timeout};

use super::certificate_issuer::{Applicant, CertificateIssuer};
use super::environment::canonical;
use super::handshake::peer_chain;
use super::state::EndpointState;
use super::transport;
use crate::channel::{ByteLimit, ChannelError, read_whole, send_response};
use crate::disconnect::close;
use crate::identity::{IdentityError, JoinToken, self_signed_key};
use crate::protocol::{CERTIFICATES_BYTES_MAX, CloseCode, JoinRefusal, JoinRequest, JoinResponse};

pub(super) fn enable(shared: &Arc<EndpointState>, issuer: CertificateIssuer) -> Result<(), IdentityError> {
    let trust = {
        let identity = shared.identity();
        issuer.check(&identity)?;
        identity.trust().clone()
    };
    let version = shared.environment.version;
    let server =
        transport::server(&shared.limits, &shared.environment.clock, shared.resolver.clone(), &trust, version, true)?;
    *shared.issuer() = Some(issuer);
    shared.quinn.set_server_config(Some(server));
    Ok(())
}

/// Serves one join request of a client. Returns whether a certificate was issued.
pub(super) async fn serve(shared: &Arc<EndpointState>, quinn: &quinn::Connection) -> bool {
    let time = Duration::from_millis(shared.limits.join_time_ms_max);
    let (code, is_granted) = match timeout(time, exchange(shared, quinn)).await {
        Err(_) => (CloseCode::Slow, false),
        Ok(Err(code)) => (code, false),
        Ok(Ok(is_granted)) => (CloseCode::Done, is_granted),
    };
    close(quinn, code, "join finished");
    is_granted
}

/// Returns whether a certificate was issued, or the code to close with.
async fn exchange(shared: &EndpointState, quinn: &quinn::Connection) -> Result<bool, CloseCode> {
    let disconnected = |_| CloseCode::Done;
    let (send, mut receive) = quinn.accept_bi().await.map_err(disconnected)?;
    let max = ByteLimit { kind: "request to join", bytes: CERTIFICATES_BYTES_MAX as u32, limit: "a constant" };
    // Never reached: the caller's timeout is shorter.
    let ms = shared.limits.join_time_ms_max * 2;
    let request = read_whole(&mut receive, max, Instant::now() + Duration::from_millis(ms), ms).await;
    let malformed = |_| CloseCode::Malformed;
    let request = request.map_err(|error| match error {
        ChannelError::TooLong { .. } => CloseCode::Malformed,
        _ => CloseCode::Done,
    })?;
    let request = postcard::from_bytes(&request).map_err(malformed)?;
    let response = decide(shared, quinn, &request).await;
    let (role, name, address) = (request.role, &request.name, canonical(quinn.remote_address()));
    match &response {
        Ok(_) => log::info!("{role} `{name}` at {address} got a certificate with a join token"),
        Err(refusal) => log::warn!("refused {role} `{name}` at {address}, which has a join token: {refusal}"),
    }
    send_response(send, &postcard::to_stdvec(&response).map_err(malformed)?).await.map_err(|_| CloseCode::Done)?;
    // The client closes the connection once it has read the answer.
    quinn.closed().await;
    Ok(response.is_ok())
}

async fn decide(shared: &EndpointState, quinn: &quinn::Connection, request: &JoinRequest) -> JoinResponse {
    let issuer = shared.issuer().clone().ok_or(JoinRefusal::NoAuthority)?;
    let now = shared.environment.clock.now();
    let token: JoinToken = request.token.parse().map_err(JoinRefusal::Token)?;
    token.check(issuer.trust(), request.role, &request.name, now)?;
    let key = peer_chain(quinn).first().and_then(|certificate: &CertificateDer<'_>| self_signed_key(certificate));
    let applicant = Applicant {
        principal: &token.grant().principal(&request.name, token.id()),
        key: key.ok_or_else(|| JoinRefusal::Request("the connection has a certificate already".to_owned()))?,
        token: Some(&token),
        expires: issuer.expiry(now),
        address: canonical(quinn.remote_address()),
    };
    issuer.issue(&applicant, &request.request, now).await
}
