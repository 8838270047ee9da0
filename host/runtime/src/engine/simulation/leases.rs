//! A job of a simulated node that requests leases, and returns each after at most 5 ms.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandbar_core::{JobId, Seed, TenantId};
use sandbar_worker::CallJob;

use super::super::Engine;
use crate::lease_request::{LeaseId, LeaseRequest};

/// Total number of leases that a job requests.
const LEASES: u64 = 6;

/// A job that works under leases.
pub(super) struct LeaseJob {
    id: JobId,
    requested: u64,
    granted: Arc<Mutex<Vec<LeaseId>>>,
    /// Leases that the job holds, with the times at which it returns them.
    held: Vec<(Duration, LeaseId)>,
    returned: u64,
    has_ended: bool,
}

impl LeaseJob {
    pub(super) fn start(engine: &mut Engine, id: JobId, tenant: TenantId) -> LeaseJob {
        let (run, usage) = Default::default();
        engine.start_call_job(id, CallJob { name: "train", tenant, origin: None, run, usage }).unwrap();
        let (requested, granted, held, returned) = Default::default();
        LeaseJob { id, requested, granted, held, returned, has_ended: false }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Requests and returns leases. Returns whether any were requested or returned.
    ///
    /// # Errors
    /// The job holds more leases than the node has processors.
    pub(super) fn run(
        &mut self,
        engine: &mut Engine,
        random: &mut Seed,
        now: Duration,
        processors: u32,
    ) -> Result<bool, String> {
        if self.has_ended {
            return Ok(false);
        }
        let mut worked = false;
        if self.requested < LEASES && random.below(10) == 0 {
            worked = true;
            let (id, granted) = (LeaseId(self.requested), self.granted.clone());
            self.requested += 1;
            let granted = Box::new(move |()| granted.lock().unwrap_or_else(PoisonError::into_inner).push(id));
            engine.request_lease(LeaseRequest { id, job: self.id, granted });
        }
        let granted = std::mem::take(&mut *self.granted.lock().unwrap_or_else(PoisonError::into_inner));
        for lease in granted {
            self.held.push((now + Duration::from_micros(random.below(5000).into()), lease));
        }
        if self.held.len() > processors as usize {
            return Err(format!("the job holds {} leases of {processors} processors", self.held.len()));
        }
        for (until, lease) in std::mem::take(&mut self.held) {
            if until > now {
                self.held.push((until, lease));
                continue;
            }
            worked = true;
            engine.return_lease(lease);
            self.returned += 1;
        }
        if self.returned == LEASES {
            self.has_ended = true;
            engine.end_call_job(self.id);
        }
        Ok(worked)
    }
}
