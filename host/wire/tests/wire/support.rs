//! A test cluster: an authority in a folder, identities, and endpoints on loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use sandbar_wire::*;
use tempfile::TempDir;

pub const DAY: u64 = 86_400;
pub const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub struct Cluster {
    folder: TempDir,
    pub authority: Arc<Authority>,
}

impl Cluster {
    pub fn new() -> Cluster {
        let folder = TempDir::new().unwrap();
        let authority = Authority::create(&folder.path().join("authority"), now()).unwrap();
        Cluster { folder, authority: Arc::new(authority) }
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn node(&self, name: &str) -> Identity {
        self.identity(Role::Node, name)
    }

    pub fn tenant(&self, name: &str) -> Identity {
        self.identity(Role::Tenant, name)
    }

    pub fn identity(&self, role: Role, name: &str) -> Identity {
        self.identity_of(role, name, now(), 7 * DAY)
    }

    /// Issues an identity at a given time for a number of seconds. It may not be valid now.
    pub fn identity_of(&self, role: Role, name: &str, at: Timestamp, lifetime_s: u64) -> Identity {
        self.identity_for(Arc::new(Key::generate().unwrap()), role, name, at, lifetime_s)
    }

    pub fn identity_for(&self, key: Arc<Key>, role: Role, name: &str, at: Timestamp, lifetime_s: u64) -> Identity {
        let lifetime = Duration::from_secs(lifetime_s);
        let certificate =
            self.authority.certify(&key.request().unwrap(), &principal(role, name), lifetime, at).unwrap();
        Identity::new(key, certificate, self.authority.trust().certificate().to_vec(), at).unwrap()
    }

    pub fn endpoint(&self, name: &str) -> Endpoint {
        bind(&self.node(name))
    }

    /// Returns an issuer that admits everybody with a token.
    pub fn issuer(&self) -> CertificateIssuer {
        CertificateIssuer::new(self.authority.clone(), |_: &Applicant<'_>| Ok(()))
    }
}

/// Token from which the certificates of tenants come, unless a test exchanges another one.
pub const TOKEN: TokenId = TokenId([7; 16]);

/// Returns a node, or a tenant whose role is the one of submitters.
pub fn principal(role: Role, name: &str) -> Principal {
    match role {
        Role::Node => Principal::Node(n(name)),
        Role::Tenant => Principal::Tenant(n(name), TenantAccess { role: TenantRole::Submitter, token: TOKEN }),
    }
}

pub fn bind(identity: &Identity) -> Endpoint {
    bind_with(identity, WireLimits::default())
}

pub fn bind_with(identity: &Identity, limits: WireLimits) -> Endpoint {
    Endpoint::bind(LOOPBACK, identity, limits).unwrap()
}

pub fn bind_at(identity: &Identity, clock: &OffsetClock) -> Endpoint {
    let environment =
        EndpointEnvironment { clock: Arc::new(clock.clone()), ..EndpointEnvironment::udp(LOOPBACK).unwrap() };
    Endpoint::bind_on(environment, identity, WireLimits::default()).unwrap()
}

/// Connects two endpoints and returns both ends of the connection.
pub async fn connect(from: &Endpoint, to: &Endpoint) -> (Connection, Connection) {
    let address = to.address().unwrap();
    let expect = ExpectedPeer::AnyNode;
    let (outgoing, accepted) = tokio::join!(from.connect(address, &expect), async {
        tokio::select! {
            node = to.accept(Role::Node) => node,
            tenant = to.accept(Role::Tenant) => tenant,
        }
    });
    (outgoing.unwrap(), accepted.unwrap())
}

pub fn n(name: &str) -> Name {
    name.parse().unwrap()
}

pub fn now() -> Timestamp {
    SystemClock.now()
}

pub fn ago(seconds: u64) -> Timestamp {
    now().before(Duration::from_secs(seconds))
}

/// A clock with an offset in seconds.
#[derive(Debug, Clone, Default)]
pub struct OffsetClock(Arc<AtomicI64>);

impl OffsetClock {
    pub fn by(seconds: i64) -> OffsetClock {
        let clock = OffsetClock::default();
        clock.set_offset(seconds);
        clock
    }

    pub fn set_offset(&self, seconds: i64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl Clock for OffsetClock {
    fn now(&self) -> Timestamp {
        Timestamp(now().0.saturating_add_signed(self.0.load(Ordering::Relaxed)))
    }
}

/// Waits for a condition, up to 10 s.
pub async fn until(condition: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited for {condition}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
