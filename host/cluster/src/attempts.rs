//! Attempts to reach a node: at all addresses of its name, one shortly after another, until the first answers (as RFC 8305
//! does for TCP), and again while that may help. Errors are reported for each address.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::net::UdpSocket;

use crate::addresses::{NodeAddress, resolve, unspecified};
use crate::error::{ClusterError, seconds};

/// Target of this module's log lines, which announce attempts and retries to users.
pub const ATTEMPTS_LOG_TARGET: &str = module_path!();

/// Delay before the next address is tried, unless the previous one has failed by then.
const STAGGER: Duration = Duration::from_millis(250);
/// Time after which an attempt is announced in the log.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(300);
/// Delay between retries.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum wait for the ICMP error of a closed port, and the number of datagrams sent for it.
const PROBE_TIME_MAX: Duration = Duration::from_millis(300);
const PROBES: usize = 3;

/// Attempts to connect to all addresses of a name, for at most `time` each. Returns the first success and its address.
pub(crate) async fn connect_first<T, F>(
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

/// Logs the attempt and its time limit, unless `work` finishes quickly.
pub(crate) async fn announce_if_slow<T>(target: impl fmt::Display, time: Duration, work: impl Future<Output = T>) -> T {
    let announce = async {
        tokio::time::sleep(ANNOUNCE_AFTER).await;
        log::info!("trying {target}, for up to {}", seconds(time));
        std::future::pending().await
    };
    tokio::select! {
        biased;
        done = work => done,
        never = announce => never,
    }
}

/// Retries an attempt while its error is temporary, for at most `time`. Logs each new error.
pub(crate) async fn retry<T>(
    time: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T, ClusterError>,
) -> Result<T, ClusterError> {
    let (since, mut logged) = (Instant::now(), String::new());
    loop {
        let error = match attempt().await {
            Err(error) if error.may_retry() => error,
            done => return done,
        };
        let left = time.saturating_sub(since.elapsed());
        if left < RETRY_DELAY {
            return Err(ClusterError::TimedOut(Box::new(error), since.elapsed()));
        }
        let message = error.to_string();
        if message != logged {
            log::warn!("{message}; trying again for {}", seconds(left));
            logged = message;
        }
        tokio::time::sleep(RETRY_DELAY).await;
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
            refused = detect_refusal(address) => Err(refused),
        };
        (address, result)
    };
    let (mut waiting, mut failed) = (VecDeque::from(addresses), Vec::new());
    let mut running = FuturesUnordered::new();
    loop {
        running.extend(waiting.pop_front().map(&one));
        let next = async {
            if waiting.is_empty() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(STAGGER).await;
        };
        tokio::select! {
            biased;
            done = running.next() => match done {
                Some((address, Ok(done))) => return Ok((address, done)),
                Some((address, Err(error))) => failed.push((address, error)),
                None => return Err(combine(name, failed)),
            },
            () = next => {}
        }
    }
}

/// Returns the only error, or one that lists all.
fn combine(name: &NodeAddress, mut failed: Vec<(SocketAddr, ClusterError)>) -> ClusterError {
    match failed.len() {
        1 => failed.swap_remove(0).1,
        _ => ClusterError::Unreachable(name.to_string(), failed),
    }
}

/// Returns when the operating system reports a closed port or a missing route, which QUIC does not. Sends meaningless
/// datagrams, which nodes ignore.
async fn detect_refusal(address: SocketAddr) -> ClusterError {
    if let Ok(socket) = UdpSocket::bind(unspecified(address)).await {
        if let Err(reason) = socket.connect(address).await {
            return ClusterError::NoRoute(address, reason);
        }
        for _ in 0..PROBES {
            let sent = socket.send(&[0]).await.map(drop);
            let response = match sent {
                Ok(()) => tokio::time::timeout(PROBE_TIME_MAX, socket.recv(&mut [0])).await.map(|r| r.map(drop)),
                Err(e) => Ok(Err(e)),
            };
            match response {
                Ok(Err(e)) if e.kind() == io::ErrorKind::ConnectionRefused => return ClusterError::PortClosed(address),
                Ok(Err(e)) => return ClusterError::NoRoute(address, e),
                Ok(Ok(())) | Err(_) => {}
            }
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Races attempts at these ports of this machine, which succeed or fail after the given number of milliseconds.
    /// Returns the port of the first success.
    async fn race_outcomes(outcomes: &'static [(u16, Result<u64, u64>)]) -> Result<u16, String> {
        let name: NodeAddress = "name:1".parse().unwrap();
        let all: Vec<_> = outcomes.iter().map(|(port, _)| SocketAddr::from(([127, 0, 0, 1], *port))).collect();
        let attempt = async |address: SocketAddr| {
            let (_, outcome) = outcomes.iter().find(|(port, _)| *port == address.port()).unwrap();
            let (Ok(ms) | Err(ms)) = *outcome;
            tokio::time::sleep(Duration::from_millis(ms)).await;
            outcome.map(drop).map_err(|_| ClusterError::NoResponse)
        };
        let won = race(&name, all, Duration::from_secs(2), attempt).await;
        won.map(|(address, ())| address.port()).map_err(|e| e.to_string())
    }

    #[tokio::test]
    async fn the_first_answer_wins() {
        // Sockets that never answer: their ports are not closed.
        let sockets: Vec<_> = (0..2).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        let outcomes_of =
            |outcomes: [Result<u64, u64>; 2]| &*Box::leak(Box::new([(ports[0], outcomes[0]), (ports[1], outcomes[1])]));
        for (outcomes, expected) in [
            ([Ok(1), Ok(1)], 0),
            // The first is slow or fails at once: the second is tried.
            ([Ok(5000), Ok(1)], 1),
            ([Err(1), Ok(1)], 1),
            ([Ok(400), Err(1)], 0),
        ] {
            assert_eq!(race_outcomes(outcomes_of(outcomes)).await, Ok(ports[expected]), "{outcomes:?}");
        }
        let failed = race_outcomes(outcomes_of([Err(1), Err(1)])).await.unwrap_err();
        for port in ports {
            assert!(failed.contains(&format!("127.0.0.1:{port}: no node responds")), "{failed}");
        }
    }

    #[tokio::test]
    async fn a_closed_port_fails_at_once() {
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let since = Instant::now();
        let never = async |_| std::future::pending::<Result<(), ClusterError>>().await;
        let error = connect_first(&closed.into(), Duration::from_secs(20), never).await.unwrap_err();
        assert!(matches!(error, ClusterError::PortClosed(address) if address == closed), "{error}");
        assert!(since.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn silence_ends_with_the_time() {
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let since = Instant::now();
        let never = async |_| std::future::pending::<Result<(), ClusterError>>().await;
        let time = Duration::from_millis(700);
        let error = connect_first(&silent.local_addr().unwrap().into(), time, never).await.unwrap_err();
        assert!(matches!(error, ClusterError::NoAnswer(..)), "{error}");
        assert!((700..3000).contains(&(since.elapsed().as_millis() as u64)), "{:?}", since.elapsed());
    }

    #[tokio::test]
    async fn temporary_errors_are_retried() {
        let mut tries = 0;
        let third = retry(Duration::from_secs(20), async || {
            tries += 1;
            if tries < 3 { Err(ClusterError::NoResponse) } else { Ok(tries) }
        });
        assert_eq!(third.await.ok(), Some(3));
        let since = Instant::now();
        let never = retry(Duration::from_secs(20), async || Err::<(), _>(ClusterError::TokenRequired)).await;
        assert!(matches!(never, Err(ClusterError::TokenRequired)) && since.elapsed() < Duration::from_secs(5));
        let late = retry(Duration::from_millis(600), async || Err::<(), _>(ClusterError::NoResponse)).await;
        assert!(matches!(late, Err(ClusterError::TimedOut(..))));
    }
}
