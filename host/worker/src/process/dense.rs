//! Dense algebra of calls.

use sandbar_dense::remote::Broker;
use sandbar_dense::{DeviceChoice, Session};

use super::bound_function::BoundFunction;

/// Job id for GPU connections: the workers of a pool belong to one job.
const NO_JOB: u64 = u64::MAX;

/// Dense algebra of a call.
pub(super) struct Dense {
    broker: Broker,
    device: Option<DeviceChoice>,
    tensor_bytes_max: u64,
    session: Option<Session>,
}

impl Dense {
    pub(super) fn new(broker: &Broker, function: &BoundFunction) -> Dense {
        let (device, tensor_bytes_max) = (function.device, function.limits.tensor_bytes_max);
        Dense { broker: broker.clone(), device, tensor_bytes_max, session: None }
    }

    /// Returns the session with the call's tensors, created on first use.
    pub(super) fn session(&mut self) -> &mut Session {
        let Dense { broker, device, tensor_bytes_max, session } = self;
        session.get_or_insert_with(|| {
            // Without a device in the job file, results must have the same bits on every machine.
            let is_here = matches!(device, None | Some(DeviceChoice::Cpu));
            let broker = (!is_here).then(|| (broker.clone(), NO_JOB));
            Session::new(broker, *device, *tensor_bytes_max)
        })
    }
}

impl Drop for Dense {
    fn drop(&mut self) {
        if self.session.as_ref().is_some_and(Session::is_lost) {
            // The tensors on a GPU were lost through no fault of the guest. Another worker runs the call again, as
            // after the death of a worker.
            std::process::exit(1);
        }
    }
}
