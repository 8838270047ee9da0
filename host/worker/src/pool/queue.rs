//! The queue of calls of a pool: clients add calls, and each worker's driver takes as many as it can run.
//!
//! The calls of each job are in a lane of their own. A driver takes calls of a lane for the time of a *time slice*, which
//! needs a [lease](super::Leases): the node's scheduler decides which lane is next. The calls of the node itself need
//! none.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use sandbar_core::{Fault, TenantId};
use tokio::sync::Notify;

use super::calls::{CallRun, LaneId, OWN_LANE, PendingCall};
use super::leases::{Lease, Leases};

/// Time after which a time slice ends if other work waits for the lease.
const TIME_SLICE: Duration = Duration::from_millis(10);
/// Time that a driver keeps a lease while its lane is empty, unless other work waits for it.
const IDLE_TIME: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    wake: Notify,
}

/// A driver's handle of the queue.
pub(super) struct QueueHandle {
    queue: Arc<Queue>,
    is_retired: bool,
}

impl QueueHandle {
    /// Removes this driver, which leaves the waiting calls to the other drivers. Returns whether there are any.
    pub(super) fn retire(&mut self) -> bool {
        let mut state = self.queue.lock();
        if !self.is_retired && state.drivers > 1 {
            state.drivers -= 1;
            self.is_retired = true;
        }
        self.is_retired
    }
}

impl Deref for QueueHandle {
    type Target = Arc<Queue>;

    fn deref(&self) -> &Arc<Queue> {
        &self.queue
    }
}

impl Drop for QueueHandle {
    fn drop(&mut self) {
        if !self.is_retired {
            let mut state = self.lock();
            state.drivers -= 1;
            // The last driver drops the waiting calls, which closes their receivers.
            let left = (state.drivers == 0).then(|| state.take_all());
            drop(state);
            drop(left);
        }
    }
}

#[derive(Debug)]
struct QueueState {
    lanes: BTreeMap<LaneId, Lane>,
    next_lane: LaneId,
    /// Granted leases that no driver has taken.
    granted: VecDeque<(LaneId, Lease)>,
    /// Number of drivers that wait for a time slice and have not been woken.
    asleep: usize,
    /// Number of drivers.
    drivers: usize,
    /// The fault of the pool, if no worker can run calls.
    failed: Option<Fault>,
    closed: bool,
}

/// The waiting calls of a job.
#[derive(Debug)]
struct Lane {
    tenant: TenantId,
    /// Source of its leases; `None` for the node's own calls.
    leases: Option<Arc<dyn Leases>>,
    /// Numbers of requested leases, and of leases that drivers hold.
    requested: usize,
    held: usize,
    runs: VecDeque<CallRun>,
    /// Number of calls in `runs`.
    calls: usize,
    /// Drivers that wait for calls in their time slice: those that have not been woken, and those that have.
    asleep: usize,
    woken: usize,
    wake: Arc<Notify>,
}

impl Lane {
    fn new(tenant: TenantId, leases: Option<Arc<dyn Leases>>) -> Lane {
        let (requested, held, calls, asleep, woken) = Default::default();
        let (runs, wake) = Default::default();
        Lane { tenant, leases, requested, held, runs, calls, asleep, woken, wake }
    }

    /// Counts further lease requests: one for each waiting call that no driver was woken for, up to `leases_max` leases.
    fn request(&mut self, leases_max: usize) -> LeaseRequests {
        let missing = self.calls.saturating_sub(self.woken + self.requested);
        let count = missing.min(leases_max.saturating_sub(self.held + self.requested));
        self.requested += count;
        LeaseRequests { count, leases: self.leases.clone().filter(|_| count > 0) }
    }
}

/// Leases to request once the queue is unlocked.
struct LeaseRequests {
    count: usize,
    leases: Option<Arc<dyn Leases>>,
}

/// A time slice of a driver, in which it takes the calls of one lane.
#[derive(Debug)]
pub(super) struct TimeSlice {
    lane: LaneId,
    pub(super) tenant: TenantId,
    lease: Option<(Lease, Arc<dyn Leases>)>,
    ends: Instant,
}

impl TimeSlice {
    /// Returns whether the time slice should end: its time has passed, and other work waits.
    pub(super) fn is_over(&mut self, queue: &Queue) -> bool {
        let Some((_, leases)) = &self.lease else { return false };
        let now = Instant::now();
        if now < self.ends {
            return false;
        }
        let is_over = leases.is_contended() || queue.has_waiting_lane();
        if !is_over {
            self.ends = now + TIME_SLICE;
        }
        is_over
    }
}

impl QueueState {
    fn take_all(&mut self) -> Vec<CallRun> {
        let mut all = Vec::new();
        for lane in self.lanes.values_mut() {
            lane.calls = 0;
            all.extend(lane.runs.drain(..));
        }
        all
    }
}

impl Queue {
    pub(super) fn new() -> Queue {
        let state = QueueState {
            lanes: [(OWN_LANE, Lane::new(TenantId::DEFAULT, None))].into(),
            next_lane: OWN_LANE + 1,
            granted: VecDeque::new(),
            asleep: 0,
            drivers: 0,
            failed: None,
            closed: false,
        };
        Queue { state: Mutex::new(state), wake: Notify::new() }
    }

    /// Adds a driver.
    pub(super) fn register(self: &Arc<Queue>) -> QueueHandle {
        self.lock().drivers += 1;
        QueueHandle { queue: self.clone(), is_retired: false }
    }

    /// Adds a lane for the calls of a job.
    pub(super) fn add_lane(&self, tenant: TenantId, leases: Arc<dyn Leases>) -> LaneId {
        let mut state = self.lock();
        let id = state.next_lane;
        state.next_lane += 1;
        state.lanes.insert(id, Lane::new(tenant, Some(leases)));
        id
    }

    /// Removes a lane with its calls.
    pub(super) fn remove_lane(&self, lane: LaneId) {
        let removed = self.lock().lanes.remove(&lane);
        drop(removed);
    }

    /// Appends calls to the lane of their caller.
    ///
    /// # Errors
    /// Fails if no worker can run them.
    pub(super) fn push(self: &Arc<Queue>, run: CallRun) -> Result<(), Option<Fault>> {
        let mut state = self.lock();
        if state.drivers == 0 || state.failed.is_some() {
            return Err(state.failed.clone());
        }
        let (id, calls) = (run.caller.lane, run.calls.len());
        let Some(lane) = state.lanes.get_mut(&id).filter(|_| calls > 0) else { return Ok(()) };
        lane.runs.push_back(run);
        let requests = self.added(&mut state, id, calls);
        drop(state);
        self.send(id, requests);
        Ok(())
    }

    /// Counts added calls, wakes as many drivers that wait for them, and requests leases for the others.
    fn added(&self, state: &mut QueueState, id: LaneId, calls: usize) -> LeaseRequests {
        let (drivers, asleep) = (state.drivers, state.asleep);
        let Some(lane) = state.lanes.get_mut(&id) else { return LeaseRequests { count: 0, leases: None } };
        lane.calls += calls;
        if lane.leases.is_none() {
            let woken = calls.min(asleep);
            state.asleep -= woken;
            (0..woken).for_each(|_| self.wake.notify_one());
            return LeaseRequests { count: 0, leases: None };
        }
        let woken = calls.min(lane.asleep);
        lane.asleep -= woken;
        lane.woken += woken;
        (0..woken).for_each(|_| lane.wake.notify_one());
        lane.request(drivers)
    }

    /// Sends lease requests.
    fn send(self: &Arc<Queue>, lane: LaneId, requests: LeaseRequests) {
        let LeaseRequests { count, leases: Some(leases) } = requests else { return };
        for _ in 0..count {
            // A scheduler that never grants a request must not keep the pool alive.
            let queue = Arc::downgrade(self);
            leases.request(Box::new(move |lease| Queue::grant(&queue, lane, lease)));
        }
    }

    /// Receives a granted lease. Returns it at once if its lane has no calls left.
    fn grant(queue: &Weak<Queue>, id: LaneId, lease: Lease) {
        let Some(queue) = queue.upgrade() else { return };
        let mut state = queue.lock();
        let Some(lane) = state.lanes.get_mut(&id) else { return };
        lane.requested -= 1;
        if lane.calls == 0 {
            drop(state);
            return drop(lease);
        }
        lane.held += 1;
        state.granted.push_back((id, lease));
        if state.asleep > 0 {
            state.asleep -= 1;
            queue.wake.notify_one();
        }
    }

    /// Takes the first `leases_max` calls of a lane, up to one that `fits` rejects. Drops calls whose receiver has been
    /// dropped.
    pub(super) fn take(
        &self,
        slice: &TimeSlice,
        leases_max: usize,
        mut fits: impl FnMut(&PendingCall) -> bool,
    ) -> Vec<CallRun> {
        let (mut taken, mut unwanted) = (Vec::new(), Vec::new());
        let mut left = leases_max;
        let mut state = self.lock();
        let Some(lane) = state.lanes.get_mut(&slice.lane) else { return taken };
        while let Some(first) = lane.runs.front_mut().filter(|_| left > 0) {
            let all = first.calls.len();
            if first.caller.is_closed() {
                unwanted.extend(lane.runs.pop_front());
                lane.calls -= all;
                continue;
            }
            let some = first.calls.as_slice().iter().take(left).position(|item| !fits(item)).unwrap_or(all.min(left));
            if some < all {
                taken.extend((some > 0).then(|| first.split(some)));
                lane.calls -= some;
                break;
            }
            taken.extend(lane.runs.pop_front());
            lane.calls -= all;
            left -= all;
        }
        drop(state);
        taken
    }

    /// Puts calls that were taken but not started back at the front.
    pub(super) fn requeue(self: &Arc<Queue>, runs: impl DoubleEndedIterator<Item = CallRun>) {
        for run in runs.rev() {
            let mut state = self.lock();
            let (id, calls) = (run.caller.lane, run.calls.len());
            let Some(lane) = state.lanes.get_mut(&id) else { continue };
            lane.runs.push_front(run);
            let requests = self.added(&mut state, id, calls);
            drop(state);
            self.send(id, requests);
        }
    }

    /// Waits for a time slice. Returns `None` when the queue is closed and has none.
    pub(super) async fn next_slice(&self) -> Option<TimeSlice> {
        loop {
            let mut woken = std::pin::pin!(self.wake.notified());
            let unused = {
                let mut unused = Vec::new();
                let mut state = self.lock();
                if let Some(slice) = state.next_slice(&mut unused) {
                    return Some(slice);
                }
                if state.closed {
                    return None;
                }
                // From here on, every added call wakes this driver.
                woken.as_mut().enable();
                state.asleep += 1;
                unused
            };
            drop(unused);
            woken.await;
        }
    }

    /// Waits until the slice's lane has calls, which another driver may take first. Returns whether the time slice continues.
    pub(super) async fn continue_slice(&self, slice: &mut TimeSlice) -> bool {
        if slice.is_over(self) {
            return false;
        }
        let wake = {
            let state = self.lock();
            let may_wait = !state.closed && state.granted.is_empty();
            match (state.lanes.get(&slice.lane), &slice.lease) {
                (Some(lane), _) if lane.calls > 0 => return true,
                (Some(lane), Some((_, leases))) if may_wait && !leases.is_contended() => lane.wake.clone(),
                _ => return false,
            }
        };
        let mut woken = std::pin::pin!(wake.notified());
        {
            let mut state = self.lock();
            let Some(lane) = state.lanes.get_mut(&slice.lane) else { return false };
            if lane.calls > 0 {
                return true;
            }
            woken.as_mut().enable();
            lane.asleep += 1;
        }
        // The counters below show whether the driver was woken.
        let _ = tokio::time::timeout(IDLE_TIME, woken).await;
        let mut state = self.lock();
        let Some(lane) = state.lanes.get_mut(&slice.lane) else { return false };
        // Another driver may have been woken instead.
        if lane.woken > 0 {
            lane.woken -= 1
        } else {
            lane.asleep -= 1
        }
        lane.calls > 0
    }

    /// Ends a time slice: returns its lease, and requests another if its lane has calls.
    pub(super) fn end_slice(self: &Arc<Queue>, slice: TimeSlice) {
        let TimeSlice { lane: id, lease: Some((lease, _)), .. } = slice else { return };
        // Returns the lease before it requests another: earlier requests come first.
        drop(lease);
        let mut state = self.lock();
        let drivers = state.drivers;
        let Some(lane) = state.lanes.get_mut(&id) else { return };
        lane.held -= 1;
        let requests = lane.request(drivers);
        drop(state);
        self.send(id, requests);
    }

    /// Returns whether a driver could begin a time slice.
    fn has_waiting_lane(&self) -> bool {
        let state = self.lock();
        !state.granted.is_empty() || state.lanes[&OWN_LANE].calls > 0
    }

    /// Returns the number of waiting calls of a time slice's lane.
    pub(super) fn len(&self, slice: &TimeSlice) -> usize {
        self.lock().lanes.get(&slice.lane).map_or(0, |lane| lane.calls)
    }

    /// Refuses the waiting calls, and all that are added.
    pub(super) fn fail(&self, fault: &Fault) {
        let mut state = self.lock();
        state.failed = Some(fault.clone());
        let all = state.take_all();
        let granted = std::mem::take(&mut state.granted);
        drop(state);
        drop(granted);
        all.into_iter().for_each(|run| run.refuse(fault));
    }

    /// Closes the queue to new time slices.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.asleep = 0;
        drop(state);
        self.wake.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Returns the next time slice. Adds leases whose lanes have no calls to `unused`.
    fn next_slice(&mut self, unused: &mut Vec<Lease>) -> Option<TimeSlice> {
        let ends = Instant::now() + TIME_SLICE;
        let own = &self.lanes[&OWN_LANE];
        if own.calls > 0 {
            return Some(TimeSlice { lane: OWN_LANE, tenant: own.tenant, lease: None, ends });
        }
        while let Some((id, lease)) = self.granted.pop_front() {
            match self.lanes.get_mut(&id) {
                Some(Lane { calls: 1.., tenant, leases: Some(leases), .. }) => {
                    let (tenant, lease) = (*tenant, Some((lease, leases.clone())));
                    return Some(TimeSlice { lane: id, tenant, lease, ends });
                }
                Some(lane) => {
                    lane.held -= 1;
                    unused.push(lease);
                }
                None => unused.push(lease),
            }
        }
        None
    }
}
