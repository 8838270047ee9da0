//! Calls that wait for a worker, and the callers that get their results.

use std::sync::{Arc, Mutex, PoisonError};

use sandbar_core::Fault;
use tokio::sync::{mpsc, oneshot};

use super::binding::Binding;
use super::leases::CallUsage;
use super::results::{CallResult, LogLine, SubmissionResult};
use crate::protocol::CallWork;

/// Identity of a lane of the queue.
pub(super) type LaneId = u64;
/// The lane of the node's own calls, which need no leases.
pub(super) const OWN_LANE: LaneId = 0;

/// A call for any worker of the pool.
#[derive(Debug, Clone)]
pub struct CallRequest {
    /// The bound function.
    pub binding: Arc<Binding>,
    /// Seed of the call.
    pub seed: u64,
    /// Operation, with its input.
    pub work: CallWork,
}

/// A bound function and the receiver of its results, shared by many calls.
#[derive(Debug)]
pub struct Caller {
    pub(super) binding: Arc<Binding>,
    to: ReplyTo,
    /// Lane of its calls in the queue.
    pub(super) lane: LaneId,
    /// Counts what its calls use; `None` for the node's own calls.
    pub(super) usage: Option<CallUsage>,
}

#[derive(Debug)]
enum ReplyTo {
    /// Receiver of one result, which is taken when the result is sent.
    One(Mutex<Option<oneshot::Sender<CallResult>>>),
    Many(mpsc::UnboundedSender<Vec<SubmissionResult>>),
}

impl Caller {
    /// Creates a caller of `binding` that sends its results to `results`, several at a time.
    pub fn new(binding: Arc<Binding>, results: mpsc::UnboundedSender<Vec<SubmissionResult>>) -> Arc<Caller> {
        Arc::new(Caller { binding, to: ReplyTo::Many(results), lane: OWN_LANE, usage: None })
    }

    pub(super) fn once(
        binding: Arc<Binding>,
        to: oneshot::Sender<CallResult>,
        lane: LaneId,
        usage: Option<CallUsage>,
    ) -> Arc<Caller> {
        Arc::new(Caller { binding, to: ReplyTo::One(Mutex::new(Some(to))), lane, usage })
    }

    pub(super) fn result_for(&self, token: u64, mut called: CallResult) -> SubmissionResult {
        if called.result.is_err() {
            called.result = called.result.map_err(|fault| fault.in_function(&self.binding.name));
        }
        SubmissionResult { token, called }
    }

    /// Returns whether the receiver of the results has been dropped.
    pub(super) fn is_closed(&self) -> bool {
        match &self.to {
            ReplyTo::One(to) => {
                to.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_none_or(|to| to.is_closed())
            }
            ReplyTo::Many(to) => to.is_closed(),
        }
    }

    /// Sends results. The receiver may have been dropped, in which case they are discarded.
    pub(super) fn answer(&self, results: Vec<SubmissionResult>) {
        match &self.to {
            ReplyTo::One(to) => {
                let to = to.lock().unwrap_or_else(PoisonError::into_inner).take();
                _ = to.zip(results.into_iter().next()).map(|(to, answer)| to.send(answer.called));
            }
            ReplyTo::Many(to) => _ = to.send(results),
        }
    }
}

/// A call to [submit](super::Pool::submit).
#[derive(Debug)]
pub struct CallSubmission {
    /// Token that identifies its result.
    pub token: u64,
    /// Seed of the call.
    pub seed: u64,
    /// Operation, with its input.
    pub work: CallWork,
}

/// Consecutive calls of one caller: at least one, and exactly one for [`ReplyTo::One`].
#[derive(Debug)]
pub(super) struct CallRun {
    pub caller: Arc<Caller>,
    /// Calls, taken from the front.
    pub calls: std::vec::IntoIter<PendingCall>,
}

#[derive(Debug)]
pub(super) struct PendingCall {
    pub token: u64,
    pub seed: u64,
    pub work: CallWork,
    /// `None` for most calls. Boxed, because small entries make the queue faster.
    pub losses: Option<Box<Losses>>,
}

/// Failures of a call so far.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Number of workers that died while they ran it.
    pub deaths: u32,
    /// Groups that ended a worker, each with its fault.
    pub groups: Vec<(u32, Fault)>,
    /// Log of these groups.
    pub log: Vec<LogLine>,
}

impl CallRun {
    pub(super) fn new(caller: Arc<Caller>, calls: Vec<PendingCall>) -> CallRun {
        CallRun { caller, calls: calls.into_iter() }
    }

    /// Splits off the first `calls` calls.
    pub(super) fn split(&mut self, calls: usize) -> CallRun {
        CallRun::new(self.caller.clone(), self.calls.by_ref().take(calls).collect())
    }

    /// Fails all calls with the same fault.
    pub(super) fn refuse(self, fault: &Fault) {
        let CallRun { caller, calls } = self;
        caller.answer(calls.map(|item| caller.result_for(item.token, fault.clone().into())).collect());
    }
}
