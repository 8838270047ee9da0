//! A cluster to test with: an authority in a folder, identities that it signs, endpoints on the loopback.

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

    /// Signed at a time, for so many seconds. It counts at that time; now it may not.
    pub fn identity_of(&self, role: Role, name: &str, at: Timestamp, lifetime_s: u64) -> Identity {
        self.identity_for(Arc::new(Key::generate().unwrap()), role, name, at, lifetime_s)
    }

    pub fn identity_for(&self, key: Arc<Key>, role: Role, name: &str, at: Timestamp, lifetime_s: u64) -> Identity {
        let lifetime = Duration::from_secs(lifetime_s);
        let certificate = self.authority.certify(&key.request().unwrap(), role, &n(name), lifetime, at).unwrap();
        Identity::new(key, certificate, self.authority.trust().certificate().to_vec(), at).unwrap()
    }

    pub fn endpoint(&self, name: &str) -> Endpoint {
        bind(&self.node(name))
    }

    /// A node that takes in whoever has a token.
    pub fn registry(&self) -> Registry {
        Registry::new(self.authority.clone(), |_: &Applicant<'_>| Ok(()))
    }
}

pub fn bind(identity: &Identity) -> Endpoint {
    bind_with(identity, WireLimits::default())
}

pub fn bind_with(identity: &Identity, limits: WireLimits) -> Endpoint {
    Endpoint::bind(LOOPBACK, identity, limits).unwrap()
}

pub fn bind_at(identity: &Identity, clock: &TurnedClock) -> Endpoint {
    let ground = Ground { clock: Arc::new(clock.clone()), ..Ground::udp(LOOPBACK).unwrap() };
    Endpoint::bind_on(ground, identity, WireLimits::default()).unwrap()
}

/// Connects two endpoints, whoever they are: what the one and the other got.
pub async fn connect(from: &Endpoint, to: &Endpoint) -> (Connection, Connection) {
    let address = to.address().unwrap();
    let expect = Expect::AnyNode;
    let (made, accepted) = tokio::join!(from.connect(address, &expect), async {
        tokio::select! {
            node = to.accept(Role::Node) => node,
            tenant = to.accept(Role::Tenant) => tenant,
        }
    });
    (made.unwrap(), accepted.unwrap())
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

/// A clock that is off by so many seconds.
#[derive(Debug, Clone, Default)]
pub struct TurnedClock(Arc<AtomicI64>);

impl TurnedClock {
    pub fn by(seconds: i64) -> TurnedClock {
        let clock = TurnedClock::default();
        clock.turn(seconds);
        clock
    }

    pub fn turn(&self, seconds: i64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl Clock for TurnedClock {
    fn now(&self) -> Timestamp {
        Timestamp(now().0.saturating_add_signed(self.0.load(Ordering::Relaxed)))
    }
}

/// Waits until it is so, for some seconds.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many random cases; `SANDBAR_SEED` is one of them alone.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let asked_for = |name: &str| -> Option<u64> {
        std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
    };
    match asked_for("SANDBAR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..asked_for("SANDBAR_SEEDS").unwrap_or(count),
    }
}

/// Says which seed it was when a random test fails.
pub struct Replay(pub u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SANDBAR_SEED={} replays it", self.0);
        }
    }
}
