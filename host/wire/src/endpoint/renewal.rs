//! The next certificate, before the one at hand ends: asked for over a connection, and shown to all others.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::Shared;
use super::ground::canonical;
use super::join::{JoinError, granted};
use super::joins::{Applicant, grant};
use super::peers::close;
use crate::channel::{Most, ask as ask_peer, read_whole, tell};
use crate::connection::{Connection, Inner};
use crate::identity::{Identity, IdentityError, PeerError, Side};
use crate::name::Role;
use crate::protocol::{CERTIFICATES_BYTES_MAX, JoinAnswer, JoinRefusal, NEWER, RENEW, RenewRequest};

/// What an endpoint does with streams that are about certificates. Each is a task that ends by itself.
pub(crate) trait Renewals: Send + Sync + std::fmt::Debug {
    /// The peer asks for its next certificate.
    fn renew(self: Arc<Self>, connection: Weak<Inner>, send: quinn::SendStream, receive: quinn::RecvStream);
    /// The peer shows a newer certificate.
    fn newer(self: Arc<Self>, connection: Weak<Inner>, receive: quinn::RecvStream);
}

/// A peer gets no more than one certificate in this time: each costs a signature.
const INTERVAL: Duration = Duration::from_secs(1);

impl Renewals for Shared {
    fn renew(self: Arc<Self>, connection: Weak<Inner>, send: quinn::SendStream, mut receive: quinn::RecvStream) {
        tokio::spawn(async move {
            let request = self.message(&mut receive).await?;
            let connection = connection.upgrade()?;
            let answer = self.renewed(&connection, &request);
            drop(connection);
            let time = Duration::from_millis(self.limits.join_time_ms_max);
            timeout(time, tell(send, &postcard::to_stdvec(&answer).ok()?)).await.ok()
        });
    }

    fn newer(self: Arc<Self>, connection: Weak<Inner>, mut receive: quinn::RecvStream) {
        tokio::spawn(async move {
            let certificate = self.message(&mut receive).await?;
            let connection = connection.upgrade()?;
            if let Err(reason) = self.accept_newer(&connection, certificate) {
                close(connection.quinn(), reason.close_code(), &reason.to_string());
            }
            Some(())
        });
    }
}

impl Shared {
    async fn message(&self, receive: &mut quinn::RecvStream) -> Option<Vec<u8>> {
        let ms = self.limits.join_time_ms_max;
        let most = Most { what: "certificate", bytes: CERTIFICATES_BYTES_MAX as u32, limit: "a constant" };
        let until = Instant::now() + Duration::from_millis(ms);
        read_whole(receive, most, until, ms).await.ok().map(Vec::from)
    }

    fn renewed(&self, connection: &Inner, request: &[u8]) -> JoinAnswer {
        let registry = self.registry().clone().ok_or(JoinRefusal::NoAuthority)?;
        if !connection.may_renew(INTERVAL) {
            return Err(JoinRefusal::Busy);
        }
        let malformed = |e: postcard::Error| JoinRefusal::Request(e.to_string());
        let request: RenewRequest = postcard::from_bytes(request).map_err(malformed)?;
        let peer = connection.peer();
        let applicant = Applicant {
            role: peer.role,
            name: &peer.name,
            key: peer.key,
            token: None,
            address: canonical(connection.quinn().remote_address()),
        };
        grant(self, &registry, &applicant, &request.request)
    }

    /// It has to be the same peer's, of the same key: that it has the key it proved when it connected.
    fn accept_newer(&self, connection: &Inner, certificate: Vec<u8>) -> Result<(), PeerError> {
        let (before, trust) = (connection.peer(), self.identity().trust().clone());
        let side = match before.role {
            Role::Node => Side::Server,
            Role::Tenant => Side::Client,
        };
        let newer = trust.identify(&[certificate.into()], side, self.ground.clock.now())?;
        if newer.role != before.role {
            return Err(PeerError::Role { wanted: before.role, got: newer.role });
        }
        if newer.name != before.name {
            return Err(PeerError::Name { wanted: before.name.clone(), got: newer.name });
        }
        if newer.key != before.key {
            return Err(PeerError::Malformed("it is for another key".to_owned()));
        }
        connection.entry.renewed(newer)
    }
}

pub(super) async fn ask(shared: &Arc<Shared>, connection: &Connection) -> Result<Identity, JoinError> {
    let before = shared.identity().clone();
    let request = postcard::to_stdvec(&RenewRequest { request: before.key().request()? });
    let request = request.map_err(|e| JoinError::Malformed(e.to_string()))?;
    let most = Most { what: "answer", bytes: CERTIFICATES_BYTES_MAX as u32, limit: "a constant" };
    let time = Duration::from_millis(shared.limits.join_time_ms_max);
    let answer = ask_peer(connection.quic(), &[&[RENEW], &request], most, time).await?;
    let now = shared.ground.clock.now();
    let next = granted(&answer, before.key().clone(), before.trust().fingerprint(), now)?;
    match same(&before, &next) {
        true => Ok(next),
        false => Err(JoinError::Malformed(format!("the certificate is for {}", next.own()))),
    }
}

pub(super) fn show(shared: &Arc<Shared>, next: &Identity) -> Result<(), IdentityError> {
    {
        let mut now = shared.identity();
        if !same(&now, next) {
            let reason = format!("it is for {} with key {}", next.own(), next.key().id());
            return Err(IdentityError::Malformed { what: "the next identity", reason });
        }
        shared.shown.show(next)?;
        *now = next.clone();
    }
    let time = Duration::from_millis(shared.limits.join_time_ms_max);
    for quinn in shared.peers.all() {
        let certificate = next.certificate().to_vec();
        tokio::spawn(async move {
            let saying = async {
                let (mut send, _) = quinn.open_bi().await.ok()?;
                send.write_all(&[NEWER]).await.ok()?;
                tell(send, &certificate).await.ok()
            };
            timeout(time, saying).await
        });
    }
    Ok(())
}

/// Whether it is the same end's, with the same key.
fn same(before: &Identity, next: &Identity) -> bool {
    let (a, b) = (before.own(), next.own());
    (&a.cluster, a.role, &a.name, a.key) == (&b.cluster, b.role, &b.name, b.key)
        && before.trust().fingerprint() == next.trust().fingerprint()
}
