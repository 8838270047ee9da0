//! Actors that wait for each other in cycles, and bounded waits.

use std::time::Duration;

use sandbar_guest::Code;
use sandbar_guest::prelude::*;

struct Peer {
    other: Option<PeerHandle>,
    kept: ObjectRef<u64>,
}

#[actor]
impl Peer {
    pub fn new() -> Peer {
        Peer { other: None, kept: put(&70) }
    }

    pub fn echo(&mut self, number: u64) -> u64 {
        number
    }

    pub fn echo_shared(&self, number: u64) -> u64 {
        number
    }

    /// Calls another actor, and blocks until it answers.
    pub fn calls(&mut self, other: PeerHandle) -> Result<u64, TaskError> {
        let reply = other.echo(1).get();
        self.other = Some(other);
        reply
    }

    /// Makes the first of these actors call the others in turn, and blocks.
    pub fn passes_on(&mut self, to: Vec<PeerHandle>) -> Result<u64, TaskError> {
        match to.split_first() {
            Some((first, others)) => first.passes_on(others.to_vec()).get(),
            None => Ok(1),
        }
    }

    /// Calls another actor, and awaits the answer concurrently with other calls.
    pub async fn calls_async(&self, other: PeerHandle) -> Result<u64, TaskError> {
        other.echo_shared(1).await
    }

    /// Calls another actor, and awaits the answer exclusively.
    pub async fn calls_exclusively(&mut self, other: PeerHandle) -> Result<u64, TaskError> {
        other.echo(1).await
    }

    /// Calls another actor through a task.
    pub fn sends(&mut self, other: PeerHandle) -> Result<u64, TaskError> {
        messenger::submit(other).get()
    }

    /// Calls another actor, and waits for at most `ms` milliseconds.
    pub fn calls_with_timeout(&mut self, other: PeerHandle, ms: u64) -> Result<u64, TaskError> {
        other.echo(1).get_timeout(Duration::from_millis(ms))
    }

    /// Returns the value that the constructor stored.
    pub fn kept(&self) -> Result<u64, TaskError> {
        self.kept.get()
    }

    pub fn sleeps(&mut self, ms: u64) -> u64 {
        std::thread::sleep(Duration::from_millis(ms));
        ms
    }

    pub async fn sleeps_async(&self, ms: u64) -> u64 {
        std::thread::sleep(Duration::from_millis(ms));
        ms
    }
}

#[task]
fn messenger(to: PeerHandle) -> Result<u64, TaskError> {
    to.echo(1).get()
}

fn outcomes(results: &[Result<u64, TaskError>]) -> String {
    let outcome = |result: &Result<u64, TaskError>| match result {
        Ok(number) => number.to_string(),
        Err(error) => error.fault.code.as_str().to_owned(),
    };
    results.iter().map(outcome).collect::<Vec<_>>().join(" ")
}

/// Runs an actor that calls itself and waits: a deadlock.
#[task]
fn calls_itself() -> Result<u64, TaskError> {
    let peer = Peer::submit();
    peer.calls(peer.clone()).get()
}

/// Runs a call that returns to its actor through `others` other actors: a deadlock.
#[task]
fn comes_back(others: usize) -> Result<u64, TaskError> {
    let first = Peer::submit();
    let others: Vec<_> = (0..others).map(|_| Peer::submit()).chain([first.clone()]).collect();
    first.passes_on(others).get()
}

/// Runs `actors` actors, each of which calls the next, and the last the first.
#[task]
fn call_in_a_ring(actors: usize) -> String {
    let all: Vec<_> = (0..actors).map(|_| Peer::submit()).collect();
    let pending: Vec<_> = all.iter().zip(all.iter().cycle().skip(1)).map(|(a, b)| a.calls(b.clone())).collect();
    let results: Vec<_> = pending.iter().map(|call| call.get()).collect();
    let errors: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    let of_circles = errors.iter().all(|error| error.fault.code == Code::Deadlock);
    let after: Vec<_> = all.iter().map(|peer| peer.echo(5).get()).collect();
    format!("{} {of_circles} {}", !errors.is_empty(), outcomes(&after))
}

/// Runs cycles through a task, by exclusive async methods, by concurrent ones, and by bounded waits.
#[task]
fn rings_of_other_kinds() -> String {
    let peer = Peer::submit();
    let by_task = peer.sends(peer.clone()).get();
    let (a, b) = (Peer::submit(), Peer::submit());
    let alone = [a.calls_exclusively(b.clone()), b.calls_exclusively(a.clone())].map(|call| call.get());
    let one_failed = alone.iter().any(Result::is_err);
    let (a, b) = (Peer::submit(), Peer::submit());
    let shared = [a.calls_async(b.clone()), b.calls_async(a.clone())].map(|call| call.get());
    let (a, b) = (Peer::submit(), Peer::submit());
    let in_time = [a.calls_with_timeout(b.clone(), 100), b.calls_with_timeout(a.clone(), 100)].map(|call| call.get());
    format!("{} {one_failed}; {}; {}", outcomes(&[by_task]), outcomes(&shared), in_time.iter().any(Result::is_err))
}

/// Runs long waits without a cycle, which have to succeed.
#[task]
fn patient(ms: u64) -> String {
    let (a, b) = (Peer::submit(), Peer::submit());
    let slow = b.sleeps(ms);
    let results = [a.calls(b.clone()), a.echo(2)].map(|call| call.get());
    outcomes(&[results, [slow.get(), b.sleeps_async(10).get()]].concat())
}

/// Waits until a detached actor is ready, for its creator, for a finder, and for `get_if_exists`. Uses the value it
/// stored.
#[task]
fn detached_is_ready() -> Result<u64, TaskError> {
    let detached_peer = Peer::options().name("detached-peer").detached().submit();
    detached_peer.ready()?;
    let found = PeerHandle::find("detached-peer")?;
    found.ready()?;
    let same = Peer::options().name("detached-peer").detached().get_if_exists().submit();
    same.ready()?;
    let kept = found.kept().get()?;
    let waited = same.echo(7).get()?;
    detached_peer.kill();
    Ok(kept + waited)
}
