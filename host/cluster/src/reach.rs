//! How a node is reached by a name: all addresses that the name stands for are tried, one soon after another, and the first
//! that answers is taken (as RFC 8305 has it for TCP). Reasons are kept for each address.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt as _};
use sandbar_wire::{BindError, EndpointEnvironment};
use tokio::net::UdpSocket;

use super::ClusterError;

/// The next address is tried after this, whether the one before has failed or not.
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// An attempt that takes longer is told of.
const SAY_AFTER: Duration = Duration::from_millis(300);
/// What failed is tried again after this.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// A closed port says so within this, if it does.
const PROBE_TIME: Duration = Duration::from_millis(300);
const PROBES: usize = 3;
/// A name of more addresses is tried by the first ones.
const ADDRESSES_MAX: usize = 16;
/// Bytes of a host's name, as of DNS.
const HOST_BYTES_MAX: usize = 255;

/// `HOST:PORT`: a name or an address, which stands in brackets if it is one of IPv6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    host: String,
    port: u16,
}

impl NodeAddress {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for NodeAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<NodeAddress, String> {
        let expected = "HOST:PORT is expected, and [HOST]:PORT for an IPv6 address";
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').ok_or("the port is missing: [HOST]:PORT is expected")?),
            None => {
                let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("the port is missing: {expected}"))?;
                if host.contains(':') {
                    return Err(format!("an IPv6 address stands in brackets: [{host}]:{port}"));
                }
                (host, port)
            }
        };
        let is_of_host = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '/' | '[' | ']' | '@');
        if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.chars().all(is_of_host) {
            return Err(format!("`{}` is no host: {expected}", host.chars().take(60).collect::<String>()));
        }
        let is_port = !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_port);
        Ok(NodeAddress { host: host.to_owned(), port: port.ok_or("the port is a number from 0 to 65535")? })
    }
}

impl From<SocketAddr> for NodeAddress {
    fn from(address: SocketAddr) -> NodeAddress {
        // An address's own words, with its zone, if it has one.
        let text = address.to_string();
        let host = text.rsplit_once(':').map_or(text.as_str(), |(host, _)| host);
        NodeAddress { host: host.trim_matches(['[', ']']).to_owned(), port: address.port() }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeAddress { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenOn {
    /// On all addresses of the machine, of IPv6 and of IPv4, at this port; 0 is any.
    Any(u16),
    /// There alone: at the first address that the name stands for and this machine has.
    At(NodeAddress),
}

impl ListenOn {
    pub(super) async fn bind(&self) -> Result<EndpointEnvironment, ClusterError> {
        let candidates = match self {
            ListenOn::Any(port) => vec![(Ipv6Addr::UNSPECIFIED, *port).into(), (Ipv4Addr::UNSPECIFIED, *port).into()],
            ListenOn::At(name) => resolve(name, TRY_AGAIN * 10).await?,
        };
        let mut failed = None;
        for address in candidates {
            match EndpointEnvironment::udp(address) {
                Ok(environment) => return Ok(environment),
                // Somebody else has the port: the other family's would be half of what was asked for.
                Err(reason) if reason.kind() == io::ErrorKind::AddrInUse => {
                    return Err(BindError::Address { address, reason }.into());
                }
                Err(reason) => failed = Some(BindError::Address { address, reason }),
            }
        }
        Err(failed.map_or_else(|| ClusterError::Nowhere(format!("{self:?}"), NO_ADDRESS.to_owned()), Into::into))
    }

    /// From which address others are asked before the node listens: its own, where that is of the other's family.
    pub(super) fn towards(&self, address: SocketAddr) -> SocketAddr {
        let own = match self {
            ListenOn::At(name) => name.host.parse().ok(),
            ListenOn::Any(_) => None,
        };
        let own = own.filter(|own: &std::net::IpAddr| own.is_ipv4() == address.is_ipv4());
        own.map_or_else(|| unspecified(address), |own| SocketAddr::new(own, 0))
    }
}

const NO_ADDRESS: &str = "the name stands for no address";

/// Any address of the family of another, and any port.
pub(super) fn unspecified(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// All addresses of a name, those of IPv6 and of IPv4 in turn.
pub(super) async fn resolve(name: &NodeAddress, time: Duration) -> Result<Vec<SocketAddr>, ClusterError> {
    let nowhere = |reason: String| ClusterError::Nowhere(name.to_string(), reason);
    let found = tokio::time::timeout(time, tokio::net::lookup_host((name.host.as_str(), name.port))).await;
    let found = found.map_err(|_| nowhere(format!("no answer from the name service within {} s", time.as_secs())))?;
    let found = found.map_err(|e| nowhere(format!("the name can't be resolved: {e}")))?;
    let addresses = in_turn(found.collect());
    if addresses.is_empty() { Err(nowhere(NO_ADDRESS.to_owned())) } else { Ok(addresses) }
}

/// Families in turn, beginning with the first; within a family in the system's order.
fn in_turn(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let begins = found.first().is_some_and(SocketAddr::is_ipv6);
    let (one, other): (VecDeque<_>, VecDeque<_>) = found.into_iter().partition(|a| a.is_ipv6() == begins);
    let (mut families, mut all) = ([one, other], Vec::new());
    while families.iter().any(|family| !family.is_empty()) && all.len() < ADDRESSES_MAX {
        for address in families.iter_mut().filter_map(VecDeque::pop_front) {
            if !all.contains(&address) {
                all.push(address);
            }
        }
    }
    all
}

/// What comes of the first address of a name at which an attempt succeeds. Each attempt has a bound of its own.
pub(super) async fn first<T, F>(
    name: &NodeAddress,
    time: Duration,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<(SocketAddr, T), ClusterError>
where
    F: Future<Output = Result<T, ClusterError>>,
{
    let addresses = resolve(name, time).await?;
    race(name, addresses, time, attempt).await
}

/// Says what is tried, and for how long, if that is not done at once.
pub(super) async fn aloud<T>(what: impl fmt::Display, time: Duration, work: impl Future<Output = T>) -> T {
    let say = async {
        tokio::time::sleep(SAY_AFTER).await;
        log::info!("trying {what}, for up to {}", seconds(time));
        std::future::pending().await
    };
    tokio::select! {
        biased;
        done = work => done,
        never = say => never,
    }
}

async fn race<T, F>(
    name: &NodeAddress,
    addresses: Vec<SocketAddr>,
    time: Duration,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<(SocketAddr, T), ClusterError>
where
    F: Future<Output = Result<T, ClusterError>>,
{
    let one = async |address: SocketAddr| {
        let attempt = tokio::time::timeout(time, attempt(address));
        let result = tokio::select! {
            biased;
            done = attempt => done.unwrap_or_else(|_| Err(ClusterError::NoAnswer(address, time))),
            refused = refused(address) => Err(refused),
        };
        (address, result)
    };
    let (mut waiting, mut failed) = (VecDeque::from(addresses), Vec::new());
    let mut under_way = FuturesUnordered::new();
    loop {
        under_way.extend(waiting.pop_front().map(&one));
        let next = async {
            if waiting.is_empty() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(NEXT_AFTER).await;
        };
        tokio::select! {
            biased;
            done = under_way.next() => match done {
                Some((address, Ok(done))) => return Ok((address, done)),
                Some((address, Err(error))) => failed.push((address, error)),
                None => return Err(none(name, failed)),
            },
            () = next => {}
        }
    }
}

fn none(name: &NodeAddress, mut failed: Vec<(SocketAddr, ClusterError)>) -> ClusterError {
    match failed.len() {
        1 => failed.swap_remove(0).1,
        _ => ClusterError::Unreached(name.to_string(), failed),
    }
}

/// Is done if the system says that nothing goes there: what listens there gets a datagram that says nothing.
async fn refused(address: SocketAddr) -> ClusterError {
    if let Ok(socket) = UdpSocket::bind(unspecified(address)).await {
        if let Err(reason) = socket.connect(address).await {
            return ClusterError::NoRoute(address, reason);
        }
        for _ in 0..PROBES {
            let sent = socket.send(&[0]).await.map(drop);
            let answer = match sent {
                Ok(()) => tokio::time::timeout(PROBE_TIME, socket.recv(&mut [0])).await.map(|r| r.map(drop)),
                Err(e) => Ok(Err(e)),
            };
            match answer {
                Ok(Err(e)) if e.kind() == io::ErrorKind::ConnectionRefused => return ClusterError::Closed(address),
                Ok(Err(e)) => return ClusterError::NoRoute(address, e),
                Ok(Ok(())) | Err(_) => {}
            }
        }
    }
    std::future::pending().await
}

/// Tries again for so long what may succeed later, and says so.
pub(super) async fn patiently<T>(
    time: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T, ClusterError>,
) -> Result<T, ClusterError> {
    let (since, mut said) = (Instant::now(), String::new());
    loop {
        let error = match attempt().await {
            Err(error) if error.may_retry() => error,
            done => return done,
        };
        let left = time.saturating_sub(since.elapsed());
        if left < TRY_AGAIN {
            return Err(ClusterError::GaveUp(Box::new(error), since.elapsed()));
        }
        let words = error.to_string();
        if words != said {
            log::warn!("{words}; trying again for {}", seconds(left));
            said = words;
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

pub(super) fn seconds(time: Duration) -> String {
    format!("{:.0} s", time.as_secs_f64().max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_and_ports() {
        for (text, expected) in [
            ("first:7410", Ok("first:7410")),
            ("10.0.0.1:0", Ok("10.0.0.1:0")),
            ("[::1]:7410", Ok("[::1]:7410")),
            ("[fe80::1%lo]:7410", Ok("[fe80::1%lo]:7410")),
            ("::1:7511", Err("an IPv6 address stands in brackets: [::1]:7511")),
            ("[::1]", Err("the port is missing: [HOST]:PORT is expected")),
            ("[::1]7410", Err("the port is missing: [HOST]:PORT is expected")),
            ("localhost", Err("the port is missing: HOST:PORT is expected, and [HOST]:PORT for an IPv6 address")),
            ("first:", Err("the port is a number from 0 to 65535")),
            ("first:+1", Err("the port is a number from 0 to 65535")),
            ("first:65536", Err("the port is a number from 0 to 65535")),
            (":7410", Err("`` is no host: HOST:PORT is expected, and [HOST]:PORT for an IPv6 address")),
            ("a b:1", Err("`a b` is no host: HOST:PORT is expected, and [HOST]:PORT for an IPv6 address")),
        ] {
            let parsed = text.parse::<NodeAddress>().map(|address| address.to_string());
            assert_eq!(parsed.as_deref().map_err(String::as_str), expected, "{text}");
        }
        for address in ["10.0.0.1:5", "[::1]:5", "[fe80::1%3]:5"] {
            assert_eq!(NodeAddress::from(address.parse::<SocketAddr>().unwrap()).to_string(), address);
        }
    }

    fn addresses(all: &[&str]) -> Vec<SocketAddr> {
        all.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns() {
        let found = addresses(&["[::1]:1", "[::2]:1", "1.1.1.1:1", "2.2.2.2:1", "3.3.3.3:1", "[::1]:1"]);
        let expected = addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "3.3.3.3:1"]);
        assert_eq!(in_turn(found), expected);
    }

    /// What is written of an attempt at each of these ports of this machine.
    async fn raced(outcomes: &'static [(u16, Result<u64, u64>)]) -> Result<u16, String> {
        // Sockets that say nothing: no port is closed.
        let name: NodeAddress = "name:1".parse().unwrap();
        let all: Vec<_> = outcomes.iter().map(|(last, _)| SocketAddr::from(([127, 0, 0, 1], *last))).collect();
        let attempt = async |address: SocketAddr| {
            let (_, outcome) = outcomes.iter().find(|(last, _)| *last == address.port()).unwrap();
            let (Ok(ms) | Err(ms)) = *outcome;
            tokio::time::sleep(Duration::from_millis(ms)).await;
            outcome.map(drop).map_err(|_| ClusterError::Silent)
        };
        let won = race(&name, all, Duration::from_secs(2), attempt).await;
        won.map(|(address, ())| address.port()).map_err(|e| e.to_string())
    }

    #[tokio::test]
    async fn the_first_that_answers_is_taken() {
        let sockets: Vec<_> = (0..2).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        let of =
            |outcomes: [Result<u64, u64>; 2]| &*Box::leak(Box::new([(ports[0], outcomes[0]), (ports[1], outcomes[1])]));
        for (outcomes, expected) in [
            ([Ok(1), Ok(1)], 0),
            // The first takes long, or fails at once: the second is tried.
            ([Ok(5000), Ok(1)], 1),
            ([Err(1), Ok(1)], 1),
            ([Ok(400), Err(1)], 0),
        ] {
            assert_eq!(raced(of(outcomes)).await, Ok(ports[expected]), "{outcomes:?}");
        }
        let failed = raced(of([Err(1), Err(1)])).await.unwrap_err();
        for port in ports {
            assert!(failed.contains(&format!("127.0.0.1:{port}: no node answers")), "{failed}");
        }
    }

    #[tokio::test]
    async fn a_closed_port_is_no_wait() {
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let since = Instant::now();
        let never = async |_| std::future::pending::<Result<(), ClusterError>>().await;
        let error = first(&closed.into(), Duration::from_secs(20), never).await.unwrap_err();
        assert!(matches!(error, ClusterError::Closed(address) if address == closed), "{error}");
        assert!(since.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn silence_ends_when_it_was_said() {
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let since = Instant::now();
        let never = async |_| std::future::pending::<Result<(), ClusterError>>().await;
        let time = Duration::from_millis(700);
        let error = first(&silent.local_addr().unwrap().into(), time, never).await.unwrap_err();
        assert!(matches!(error, ClusterError::NoAnswer(..)), "{error}");
        assert!((700..3000).contains(&(since.elapsed().as_millis() as u64)), "{:?}", since.elapsed());
    }

    #[tokio::test]
    async fn what_may_succeed_later_is_tried_again() {
        let mut tries = 0;
        let third = patiently(Duration::from_secs(20), async || {
            tries += 1;
            if tries < 3 { Err(ClusterError::Silent) } else { Ok(tries) }
        });
        assert_eq!(third.await.ok(), Some(3));
        let since = Instant::now();
        let never = patiently(Duration::from_secs(20), async || Err::<(), _>(ClusterError::NoTenant)).await;
        assert!(matches!(never, Err(ClusterError::NoTenant)) && since.elapsed() < Duration::from_secs(5));
        let late = patiently(Duration::from_millis(600), async || Err::<(), _>(ClusterError::Silent)).await;
        assert!(matches!(late, Err(ClusterError::GaveUp(..))));
    }
}
