//! Connections of a worker to GPU processes, requested from its node.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbar_process::socket;
use serde::{Deserialize, Serialize};

use super::GpuClient;
use super::process::wait;
use crate::{Cancellation, DenseError, DeviceProfile, Gpu};

/// Maximum wait for a connection: a driver that creates no device until then is given up.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(90);

/// Maximum time between two checks whether to end a wait.
const WAIT_MAX: Duration = Duration::from_millis(10);

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
    /// The request whose response has not arrived, because the wait for it was cancelled.
    unanswered: Option<BrokerRequest>,
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
            unanswered: None,
            profile: None,
            gpus: HashMap::new(),
            refused: None,
            missed_nanos: HashMap::new(),
        })))
    }

    /// Returns the profile of the GPU, if there is one. Several GPUs of a machine are assumed to equal the first. `None`
    /// if the wait for it was cancelled.
    pub fn profile(&self, cancellation: Cancellation) -> Option<Arc<DeviceProfile>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.profile.is_none() {
            let response = state.request(BrokerRequest::Describe, cancellation).ok()?;
            state.profile = Some(response.and_then(|(profile, _)| profile).map(Arc::new));
        }
        state.profile.clone().flatten()
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

    /// Returns a GPU for a job, if there is one: the existing connection, or a new one. Blocks until connected, or
    /// cancelled.
    pub fn gpu(&self, job: u64, cancellation: Cancellation) -> Option<Gpu> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Drops connections that no session uses.
        state.gpus.retain(|gpu_job, gpu| !gpu.is_lost() && (*gpu_job == job || Arc::strong_count(&gpu.remote) > 1));
        if !state.gpus.contains_key(&job) {
            state.connect(job, cancellation)?;
        }
        state.gpus.get(&job).cloned()
    }
}

/// Response of the node, with its files.
type ResponseWithFiles = (Option<DeviceProfile>, Vec<OwnedFd>);

impl BrokerState {
    /// Connects to a GPU for a job.
    fn connect(&mut self, job: u64, cancellation: Cancellation) -> Option<()> {
        if self.refused.is_some_and(|refused| refused.elapsed() < RETRY_INTERVAL) {
            return None;
        }
        let response = self.request(BrokerRequest::Connect { job }, cancellation).ok()?;
        let Some((_, files)) = response else {
            // A node that does not respond now will not respond later.
            self.socket = None;
            return None;
        };
        // It may have been connected by an earlier request.
        if !self.gpus.contains_key(&job) {
            self.add_gpu(job, files);
        }
        Some(())
    }

    fn add_gpu(&mut self, job: u64, files: Vec<OwnedFd>) {
        let connect = |files| {
            let [socket, area] = <[OwnedFd; 2]>::try_from(files).ok()?;
            Some(Gpu::new(GpuClient::new(socket, area).ok()?))
        };
        let gpu = connect(files);
        self.refused = gpu.is_none().then(Instant::now);
        self.gpus.extend(gpu.map(|gpu| (job, gpu)));
    }

    /// Sends a request and waits for its response; `None` if the node does not respond.
    ///
    /// # Errors
    /// When the wait was cancelled. The next request first waits for the response.
    fn request(
        &mut self,
        message: BrokerRequest,
        cancellation: Cancellation,
    ) -> Result<Option<ResponseWithFiles>, DenseError> {
        if let Some(earlier) = self.unanswered {
            let response = self.receive(cancellation)?;
            self.unanswered = None;
            if let (BrokerRequest::Connect { job }, Some((_, files))) = (earlier, response) {
                self.add_gpu(job, files);
                if message == earlier {
                    return Ok(Some((None, Vec::new())));
                }
            }
        }
        let Some(socket) = &self.socket else { return Ok(None) };
        let mut frame = Vec::new();
        let sent = socket::frame(&message, &mut frame).and_then(|frame| socket::send(socket, frame, &[]));
        if sent.is_err() {
            return Ok(None);
        }
        self.unanswered = Some(message);
        let response = self.receive(cancellation)?;
        self.unanswered = None;
        Ok(response)
    }

    /// Waits for a response.
    fn receive(&self, cancellation: Cancellation) -> Result<Option<ResponseWithFiles>, DenseError> {
        let Some(socket) = &self.socket else { return Ok(None) };
        let until = Instant::now() + CONNECT_TIME_MAX;
        loop {
            cancellation.check()?;
            match wait(socket, WAIT_MAX) {
                Ok(true) => break,
                Ok(false) if Instant::now() < until => {}
                _ => return Ok(None),
            }
        }
        let received = socket::receive(socket, &mut Vec::new()).ok().flatten();
        Ok(received.map(|(BrokerResponse(profile), files)| (profile, files)))
    }
}
