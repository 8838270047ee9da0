//! Members of a cluster: selection of the member to call, and fail-over.

use std::fmt;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sandbar_core::Seed;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Status;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::rpc;
use super::status::{Failure, failure};
use super::timeouts::{Backoff, EtcdTimeouts, ms};
use crate::{EtcdAddress, EtcdTls, LeaseId, MetaError};

/// Flow-control window of one watch, so that unread watches do not block the others.
const WATCH_WINDOW_BYTES: u32 = 64 << 10;
const CALLS_WINDOW_BYTES: u32 = 1 << 20;
const TCP_KEEPALIVE: Duration = Duration::from_secs(10);
/// Maximum size of a certificate or key file, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Whether a call may be sent twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// The call may be repeated.
    Repeatable,
    /// The call must be applied at most once.
    Once,
}

/// All members that the address names.
pub(super) struct Members {
    members: Vec<Member>,
    /// Index of the member to call: the one that responded last, or the next to try.
    current: AtomicUsize,
    pub(super) times: EtcdTimeouts,
    seed: Mutex<Seed>,
}

struct Member {
    name: String,
    calls: Channel,
    watches: Channel,
    answered: Mutex<Option<Instant>>,
}

impl Members {
    /// Creates the members without connecting. Clients with different seeds start with different members.
    pub(super) fn new(
        address: &EtcdAddress,
        watchers_max: usize,
        times: EtcdTimeouts,
        mut seed: Seed,
    ) -> Result<Members, MetaError> {
        let wrong = |reason: String| MetaError::Address { address: address.to_string(), reason };
        let tls = address.tls.as_ref().map(read_tls).transpose().map_err(wrong)?;
        let watch_windows = u64::from(WATCH_WINDOW_BYTES) * watchers_max.max(1) as u64;
        let watch_windows = u32::try_from(watch_windows).unwrap_or(u32::MAX).min(i32::MAX as u32);
        let member = |name: &String| {
            let scheme = if tls.is_some() { "https" } else { "http" };
            let mut endpoint =
                Endpoint::from_shared(format!("{scheme}://{name}"))?.connect_timeout(ms(times.connect_ms_max));
            if let Some(tls) = &tls {
                endpoint = endpoint.tls_config(tls.clone().timeout(ms(times.connect_ms_max)))?;
            }
            // Closes idle connections to a machine that vanished.
            endpoint = endpoint.tcp_keepalive(Some(TCP_KEEPALIVE)).tcp_keepalive_interval(Some(TCP_KEEPALIVE));
            let calls = endpoint.clone().initial_stream_window_size(CALLS_WINDOW_BYTES);
            let watches = endpoint
                .initial_stream_window_size(WATCH_WINDOW_BYTES)
                .initial_connection_window_size(watch_windows)
                .http2_keep_alive_interval(ms(times.ping_ms))
                .keep_alive_timeout(ms(times.ping_response_ms_max));
            let (calls, watches) = (calls.connect_lazy(), watches.connect_lazy());
            Ok::<_, tonic::transport::Error>(Member { name: name.clone(), calls, watches, answered: Mutex::new(None) })
        };
        let members = address.endpoints.iter().map(member).collect::<Result<Vec<_>, _>>();
        let members = members.map_err(|e| wrong(e.to_string()))?;
        let current = AtomicUsize::new(seed.below(members.len() as u32) as usize);
        Ok(Members { members, current, times, seed: Mutex::new(seed) })
    }

    /// Calls a member, and fails over to others until one responds or the call times out.
    pub(super) async fn call<A, F: Future<Output = Result<A, Status>>>(
        &self,
        effect: Effect,
        lease: Option<LeaseId>,
        ask: impl Fn(Channel) -> F,
    ) -> Result<A, MetaError> {
        let end = Instant::now() + ms(self.times.call_ms_max);
        let mut rotation = MemberRotation::new(self);
        loop {
            let at = self.current();
            let reason = match self.attempt(at, effect, lease, &ask, end).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Maybe(reason)) if effect == Effect::Once => {
                    self.leave(at);
                    return Err(MetaError::Unknown { endpoints: vec![self.members[at].name.clone()], reason });
                }
                Err(Failure::Maybe(reason) | Failure::NotDone(reason)) => reason,
            };
            self.leave(at);
            rotation.next(end, reason).await?;
        }
    }

    async fn attempt<A, F: Future<Output = Result<A, Status>>>(
        &self,
        at: usize,
        effect: Effect,
        lease: Option<LeaseId>,
        ask: impl Fn(Channel) -> F,
        end: Instant,
    ) -> Result<A, Failure> {
        let member = &self.members[at];
        let within = |time: Duration| end.min(Instant::now() + time);
        let attempt = ms(self.times.attempt_ms_max);
        if effect == Effect::Once && !member.is_fresh(ms(self.times.fresh_ms)) {
            let probe = member.answer(within(attempt), None, rpc::probe(member.calls.clone())).await;
            probe.map_err(|failed| match failed {
                Failure::Maybe(reason) => Failure::NotDone(reason),
                other => other,
            })?;
        }
        member.answer(within(attempt), lease, ask(member.calls.clone())).await
    }

    /// Opens a watch at any member. Returns the member's index as well.
    pub(super) async fn watch<A, F: Future<Output = Result<A, Status>>>(
        &self,
        open: impl Fn(Channel) -> F,
    ) -> Result<(usize, A), MetaError> {
        let end = Instant::now() + ms(self.times.call_ms_max);
        let mut rotation = MemberRotation::new(self);
        loop {
            let at = self.current();
            let member = &self.members[at];
            let until = end.min(Instant::now() + ms(self.times.attempt_ms_max));
            let reason = match member.answer(until, None, open(member.watches.clone())).await {
                Ok(answer) => return Ok((at, answer)),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Maybe(reason) | Failure::NotDone(reason)) => reason,
            };
            self.leave(at);
            rotation.next(end, reason).await?;
        }
    }

    pub(super) fn name(&self, at: usize) -> &str {
        &self.members[at].name
    }

    fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Moves on to the next member, unless another call has already done so.
    pub(super) fn leave(&self, at: usize) {
        let next = (at + 1) % self.members.len();
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        *self.members[at].answered() = None;
    }

    /// Returns the pause before a retry.
    pub(super) fn pause(&self, backoff: &mut Backoff) -> Duration {
        backoff.next(&mut self.seed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Member {
    async fn answer<A>(
        &self,
        until: Instant,
        lease: Option<LeaseId>,
        call: impl Future<Output = Result<A, Status>>,
    ) -> Result<A, Failure> {
        let started = Instant::now();
        match timeout_at(until, call).await {
            Ok(Ok(answer)) => {
                *self.answered() = Some(Instant::now());
                Ok(answer)
            }
            Ok(Err(status)) => Err(failure(&status, &self.name, lease)),
            Err(_) => Err(Failure::Maybe(format!("{}: no answer in {} ms", self.name, started.elapsed().as_millis()))),
        }
    }

    fn is_fresh(&self, time: Duration) -> bool {
        self.answered().is_some_and(|answered| answered.elapsed() < time)
    }

    fn answered(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rotation of calls through the members: each member once without delay, then all again after a pause.
struct MemberRotation<'a> {
    members: &'a Members,
    failed: usize,
    backoff: Backoff,
}

impl<'a> MemberRotation<'a> {
    fn new(members: &'a Members) -> MemberRotation<'a> {
        MemberRotation { members, failed: 0, backoff: Backoff::new(&members.times) }
    }

    async fn next(&mut self, end: Instant, reason: String) -> Result<(), MetaError> {
        self.failed += 1;
        let is_round = self.failed.is_multiple_of(self.members.members.len());
        let pause = if is_round { self.members.pause(&mut self.backoff) } else { Duration::ZERO };
        if Instant::now() + pause >= end {
            let endpoints = self.members.members.iter().map(|member| member.name.clone()).collect();
            return Err(MetaError::Unavailable { endpoints, reason });
        }
        sleep(pause).await;
        Ok(())
    }
}

fn read_tls(files: &EtcdTls) -> Result<ClientTlsConfig, String> {
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read_pem(&files.ca, "CERTIFICATE")?));
    if let Some((cert, key)) = &files.identity {
        config = config.identity(Identity::from_pem(read_pem(cert, "CERTIFICATE")?, read_pem(key, "PRIVATE KEY")?));
    }
    Ok(config)
}

/// Reads a PEM file with at least one `kind` item: a file without any would be read as an empty list.
fn read_pem(path: &Path, kind: &str) -> Result<String, String> {
    let read = fs::metadata(path).and_then(|metadata| match metadata.len() {
        0..=PEM_BYTES_MAX => fs::read_to_string(path),
        bytes => Err(std::io::Error::other(format!("{bytes} bytes are more than {PEM_BYTES_MAX}"))),
    });
    let text = read.map_err(|e| format!("{} can't be read: {e}", path.display()))?;
    let is_begin = |line: &str| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&format!("{kind}-----"));
    if text.lines().any(is_begin) { Ok(text) } else { Err(format!("{} has no {kind} in PEM form", path.display())) }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| &member.name)).finish()
    }
}
