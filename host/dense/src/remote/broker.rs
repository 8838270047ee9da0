//! Connections of a worker to GPU processes, requested from its node.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbar_process::socket;
use serde::{Deserialize, Serialize};

use super::GpuClient;
use super::process::wait;
use crate::{DeviceProfile, Gpu};

/// Maximum wait for a connection: a driver that creates no device until then is given up.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(90);

/// Interval between requests for a GPU after one was refused.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Request of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BrokerRequest {
    /// Describe the available GPU.
    Describe,
    /// Connect to a GPU.
    Connect {
        /// Job that has the GPU's process for itself.
        job: u64,
    },
}

/// Response: the profile of the GPU, if there is one. A connection's files are its socket and its shared memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BrokerResponse(pub Option<DeviceProfile>);

/// A worker's source of GPUs, with its open connections.
#[derive(Debug, Clone)]
pub struct Broker(Arc<Mutex<BrokerState>>);

#[derive(Debug)]
struct BrokerState {
    /// Socket to the node; `None` if the node provides no GPUs.
    socket: Option<OwnedFd>,
    /// Profile of the GPU, once requested.
    profile: Option<Option<Arc<DeviceProfile>>>,
    /// Connections by job.
    gpus: HashMap<u64, Gpu>,
    /// Time of the last refused request.
    refused: Option<Instant>,
    /// Nanoseconds that a GPU would have saved so far, by job without a connection.
    missed_nanos: HashMap<u64, f64>,
}

/// Maximum number of jobs in `missed_nanos`.
const MISSED_JOBS_MAX: usize = 1024;

impl Broker {
    /// Creates a broker that uses a socket, or one without GPUs.
    pub fn new(socket: Option<OwnedFd>) -> Broker {
        Broker(Arc::new(Mutex::new(BrokerState {
            socket,
            profile: None,
            gpus: HashMap::new(),
            refused: None,
            missed_nanos: HashMap::new(),
        })))
    }

    /// Returns the profile of the GPU, if there is one. Several GPUs of a machine are assumed to equal the first.
    pub fn profile(&self) -> Option<Arc<DeviceProfile>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let BrokerState { socket, profile, .. } = &mut *state;
        let request = || request(socket.as_ref()?, BrokerRequest::Describe)?.0.map(Arc::new);
        profile.get_or_insert_with(request).clone()
    }

    /// Whether to start a GPU's process, which takes `start_nanos`, for an operation that it finishes `saved_nanos`
    /// earlier: once the job's operations in this worker would have saved the start time in total.
    pub fn is_worth_start(&self, job: u64, saved_nanos: f64, start_nanos: f64) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.gpus.contains_key(&job) {
            return true;
        }
        if state.missed_nanos.len() >= MISSED_JOBS_MAX && !state.missed_nanos.contains_key(&job) {
            state.missed_nanos.clear();
        }
        let missed_nanos = state.missed_nanos.entry(job).or_default();
        *missed_nanos += saved_nanos;
        *missed_nanos >= start_nanos
    }

    /// Returns a GPU for a job, if there is one: the existing connection, or a new one. Blocks until connected.
    pub fn gpu(&self, job: u64) -> Option<Gpu> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Drops connections that no session uses.
        state.gpus.retain(|gpu_job, gpu| !gpu.is_lost() && (*gpu_job == job || Arc::strong_count(&gpu.remote) > 1));
        if !state.gpus.contains_key(&job) {
            let gpu = state.connect(job)?;
            state.gpus.insert(job, gpu);
        }
        state.gpus.get(&job).cloned()
    }
}

impl BrokerState {
    fn connect(&mut self, job: u64) -> Option<Gpu> {
        if self.refused.is_some_and(|refused| refused.elapsed() < RETRY_INTERVAL) {
            return None;
        }
        let Some((_, files)) = request(self.socket.as_ref()?, BrokerRequest::Connect { job }) else {
            // A node that does not respond now will not respond later.
            self.socket = None;
            return None;
        };
        let connect = |files| {
            let [socket, area] = <[OwnedFd; 2]>::try_from(files).ok()?;
            Some(Gpu::new(GpuClient::new(socket, area).ok()?))
        };
        let gpu = connect(files);
        self.refused = gpu.is_none().then(Instant::now);
        gpu
    }
}

fn request(socket: &OwnedFd, message: BrokerRequest) -> Option<(Option<DeviceProfile>, Vec<OwnedFd>)> {
    let (mut frame, mut received) = (Vec::new(), Vec::new());
    socket::send(socket, socket::frame(&message, &mut frame).ok()?, &[]).ok()?;
    if !wait(socket, CONNECT_TIME_MAX).ok()? {
        return None;
    }
    let (BrokerResponse(profile), files) = socket::receive(socket, &mut received).ok()??;
    Some((profile, files))
}
