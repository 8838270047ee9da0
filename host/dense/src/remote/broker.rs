//! How a worker gets a connection: it asks its node.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbar_process::socket;
use serde::{Deserialize, Serialize};

use super::Remote;
use super::process::wait;
use crate::{Described, Gpu};

/// A driver that makes no device within this is given up: there is no GPU then.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(90);

/// Where there was none, one is asked for again after this.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// What a worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToBroker {
    /// It wants to know what GPU there is.
    Describe,
    /// It wants one.
    Connect {
        /// The job that it is for, which has it for itself.
        job: u64,
    },
}

/// What is answered: what the GPU is, if there is one. Files of who wants one: its process's socket, and memory shared with
/// it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FromBroker(pub Option<Described>);

/// Whom a worker asks for GPUs, and those that it has got.
#[derive(Debug, Clone)]
pub struct Broker(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// None where nobody has any.
    socket: Option<OwnedFd>,
    /// What GPU there is, once that was asked.
    described: Option<Option<Arc<Described>>>,
    /// By the job that has it.
    gpus: HashMap<u64, Gpu>,
    /// When one was asked for in vain.
    refused: Option<Instant>,
    /// By the job: nanoseconds that its operations would have saved on a GPU so far, while it has none.
    missed: HashMap<u64, f64>,
}

/// Jobs of which a broker remembers what they missed.
const MISSED_MAX: usize = 1024;

impl Broker {
    /// One who is asked by a socket, or has none to give.
    pub fn new(socket: Option<OwnedFd>) -> Broker {
        Broker(Arc::new(Mutex::new(State {
            socket,
            described: None,
            gpus: HashMap::new(),
            refused: None,
            missed: HashMap::new(),
        })))
    }

    /// What GPU there is, if there is one. Several of a machine are taken to be like the first.
    pub fn described(&self) -> Option<Arc<Described>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State { socket, described, .. } = &mut *state;
        let ask = || ask(socket.as_ref()?, ToBroker::Describe)?.0.map(Arc::new);
        described.get_or_insert_with(ask).clone()
    }

    /// Whether to start a GPU's process, which takes `start_nanos`, for an operation that it would do `saved_nanos` sooner:
    /// once the operations of the job in this worker would have saved the start together.
    pub fn is_worth_start(&self, job: u64, saved_nanos: f64, start_nanos: f64) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.gpus.contains_key(&job) {
            return true;
        }
        if state.missed.len() >= MISSED_MAX && !state.missed.contains_key(&job) {
            state.missed.clear();
        }
        let missed = state.missed.entry(job).or_default();
        *missed += saved_nanos;
        *missed >= start_nanos
    }

    /// A GPU for a job, if there is one: the one that was got before, while that is there. Waits for it.
    pub fn gpu(&self, job: u64) -> Option<Gpu> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody has the others any more.
        state.gpus.retain(|of, gpu| !gpu.is_lost() && (*of == job || Arc::strong_count(&gpu.remote) > 1));
        if !state.gpus.contains_key(&job) {
            let gpu = state.connect(job)?;
            state.gpus.insert(job, gpu);
        }
        state.gpus.get(&job).cloned()
    }
}

impl State {
    fn connect(&mut self, job: u64) -> Option<Gpu> {
        if self.refused.is_some_and(|refused| refused.elapsed() < ASKED_AGAIN_AFTER) {
            return None;
        }
        let Some((_, files)) = ask(self.socket.as_ref()?, ToBroker::Connect { job }) else {
            // Who does not answer now will not the next time.
            self.socket = None;
            return None;
        };
        let connect = |files| {
            let [socket, area] = <[OwnedFd; 2]>::try_from(files).ok()?;
            Some(Gpu::new(Remote::new(socket, area).ok()?))
        };
        let gpu = connect(files);
        self.refused = gpu.is_none().then(Instant::now);
        gpu
    }
}

fn ask(socket: &OwnedFd, what: ToBroker) -> Option<(Option<Described>, Vec<OwnedFd>)> {
    let (mut frame, mut received) = (Vec::new(), Vec::new());
    socket::send(socket, socket::frame(&what, &mut frame).ok()?, &[]).ok()?;
    if !wait(socket, CONNECT_TIME_MAX).ok()? {
        return None;
    }
    let (FromBroker(described), files) = socket::receive(socket, &mut received).ok()??;
    Some((described, files))
}
