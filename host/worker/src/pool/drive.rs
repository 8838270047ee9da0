//! The driver of one worker: takes calls from the queue, sends several in one message while the queue is long, enforces
//! their deadlines, and replaces the process when it dies.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::{Code, Fault, LOG_BYTES_MAX, TenantId};
use serde::ser::{Serialize, SerializeSeq, Serializer};

use super::answer::unpack;
use super::calls::{CallRun, Caller, Losses, PendingCall};
use super::options::PoolOptions;
use super::queue::{QueueHandle, TimeSlice};
use super::results::{CallResult, LogLine, SubmissionResult};
use super::running::RunningWorkers;
use super::worker::{SLOTS, WorkerProcess, steps};
use crate::protocol::{
    CALLS_BYTES_MAX, CALLS_MAX, Call, CallReply, CallWork, FromWorker, MESSAGE_TIME_MAX, Output, Payload, ToWorker,
};

/// Number of deadline checks per time limit of a call, and the bounds of the interval between checks.
const TICKS_A_LIMIT: u32 = 20;
const TICK_MIN: Duration = Duration::from_millis(1);
const TICK_MAX: Duration = Duration::from_millis(50);
/// Minimum total time of the calls of a message: calls that are quicker together share one message, because waking a
/// process on another processor takes as long.
const MESSAGE_TIME_MIN: Duration = Duration::from_micros(100);
/// A worker gets one call at a time while its calls take longer than this, so that other workers can run the waiting
/// calls.
const LONG_CALL: Duration = Duration::from_millis(100);
/// Pause before a worker is started again after a failed start, and the number of attempts.
const START_PAUSE: Duration = Duration::from_millis(200);
const STARTS_MAX: u32 = 5;
/// Maximum number of processes that a driver keeps for other tenants than the current one, and the time after which it ends
/// them if it has no calls. A process starts in some milliseconds.
const PARKED_MAX: usize = 8;
const PARK_TIME: Duration = Duration::from_secs(10);

/// A message in flight, with calls whose ids count from `first`.
struct InFlight {
    slot: usize,
    first: u64,
    runs: Vec<CallRun>,
    /// Number of calls in all runs.
    calls: usize,
}

impl InFlight {
    fn items(&self) -> impl Iterator<Item = (&Caller, &PendingCall)> {
        self.runs.iter().flat_map(|run| run.calls.as_slice().iter().map(|item| (&*run.caller, item)))
    }
}

/// Serializes the calls of a message from the queue's entries.
struct Calls<'a>(&'a InFlight);

impl Serialize for Calls<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut calls = serializer.serialize_seq(Some(self.0.calls))?;
        for CallRun { caller, calls: items } in &self.0.runs {
            let binding = caller.binding.id as u32;
            for PendingCall { seed, work, .. } in items.as_slice() {
                calls.serialize_element(&Call { binding, seed: *seed, work })?;
            }
        }
        calls.end()
    }
}

struct Driver {
    options: PoolOptions,
    queue: QueueHandle,
    slice: Option<TimeSlice>,
    /// Processes of other tenants than the current one, the one that served last at the end.
    parked: VecDeque<WorkerProcess>,
    /// Messages in flight, in the order in which they were sent.
    sent: Vec<InFlight>,
    next_id: u64,
    /// When the worker got its first call in flight, or last replied.
    busy_since: Instant,
    /// Maximum number of calls of a message.
    calls_max: usize,
    /// Minimum number of calls of a message: those that take [`MESSAGE_TIME_MIN`].
    calls_min: usize,
    /// Whether calls take so long that none should wait behind another in this worker.
    long: bool,
    /// Whether the process describes a component: such calls, of components of any tenant, run in a process of their own.
    is_used_up: bool,
}

/// Runs until the pool is dropped. Each process serves one tenant, from its start to its end.
pub(super) async fn drive(index: usize, options: PoolOptions, queue: QueueHandle, running: Arc<RunningWorkers>) {
    let starts_now = !options.on_demand;
    let mut driver = Driver {
        options,
        queue,
        slice: None,
        parked: VecDeque::new(),
        sent: Vec::new(),
        next_id: 1,
        busy_since: Instant::now(),
        calls_max: 1,
        calls_min: 1,
        long: false,
        is_used_up: false,
    };
    let mut failures = 0;
    if !starts_now && !driver.find_slice().await {
        return;
    }
    loop {
        let tenant = driver.slice.as_ref().map_or(TenantId::DEFAULT, |slice| slice.tenant);
        let process = match driver.unpark(tenant) {
            Some(process) => Ok(process),
            None => WorkerProcess::start(&driver.options, tenant).await,
        };
        match process {
            Ok(mut process) => {
                failures = 0;
                running.started(index, process.id(), tenant);
                let served = driver.serve(&mut process).await;
                running.ending(index);
                match served {
                    Ok(ServeEnd::Closed) => return,
                    Ok(ServeEnd::OtherTenant) => driver.park(process),
                    Ok(ServeEnd::UsedUp) => {
                        if !driver.find_slice().await {
                            return;
                        }
                    }
                    Err(end) => driver.handle_death(&mut process, &end),
                }
            }
            Err(e) => {
                failures += 1;
                if failures >= STARTS_MAX {
                    // Leaves the calls to other workers: the start may have failed because too many processes exist.
                    if driver.queue.retire() {
                        driver.slice.take().into_iter().for_each(|slice| driver.queue.end_slice(slice));
                    } else {
                        driver.queue.fail(&Fault::new(Code::Host, format!("a worker can't be started: {e}")));
                    }
                    return;
                }
                tokio::time::sleep(START_PAUSE).await;
            }
        }
    }
}

/// Why a healthy worker process serves no more calls now.
#[derive(Debug, PartialEq, Eq)]
enum ServeEnd {
    /// The queue is closed.
    Closed,
    /// The next time slice is of another tenant.
    OtherTenant,
    /// The process ran code that no other call may meet.
    UsedUp,
}

/// Reason for which a worker ended.
enum WorkerEnd {
    /// The current call exceeded its deadline.
    Deadline,
    /// The worker died, or sent an invalid message.
    Died(io::Error),
}

impl From<io::Error> for WorkerEnd {
    fn from(error: io::Error) -> Self {
        WorkerEnd::Died(error)
    }
}

impl Driver {
    /// Keeps a process for the next time slice of its tenant, and ends the one that was not used for longest if there are too
    /// many.
    fn park(&mut self, process: WorkerProcess) {
        self.parked.push_back(process);
        if self.parked.len() > PARKED_MAX {
            self.parked.pop_front();
        }
    }

    /// Takes the process of a tenant.
    fn unpark(&mut self, tenant: TenantId) -> Option<WorkerProcess> {
        let at = self.parked.iter().position(|process| process.tenant() == tenant)?;
        self.parked.remove(at)
    }

    /// Serves one worker process.
    async fn serve(&mut self, process: &mut WorkerProcess) -> Result<ServeEnd, WorkerEnd> {
        self.is_used_up = false;
        let mut watch = StallWatch::new();
        let mut tick = tokio::time::interval(TICK_MAX);
        loop {
            self.fill_in_time(process).await?;
            if self.sent.is_empty() {
                if self.is_used_up {
                    self.slice.take().into_iter().for_each(|slice| self.queue.end_slice(slice));
                    return Ok(ServeEnd::UsedUp);
                }
                if !self.find_calls().await {
                    return Ok(ServeEnd::Closed);
                }
                if self.slice.as_ref().is_some_and(|slice| slice.tenant != process.tenant()) {
                    return Ok(ServeEnd::OtherTenant);
                }
                watch = StallWatch::new();
                continue;
            }
            tokio::select! {
                biased;
                message = process.receive() => match message? {
                    FromWorker::Replies { slot, done } => {
                        self.settle(process, slot as usize, done)?;
                        watch = StallWatch::new();
                    }
                    FromWorker::Ready => return Err(io::Error::other("it is ready a second time").into()),
                },
                _ = tick.tick() => {
                    let (reported, _, steps) = process.progress();
                    let current_call = self.item(self.current_call(reported));
                    let limit = current_call.map_or(0, |(caller, _)| caller.binding.limits.time_ms_max);
                    let limit = Duration::from_millis(limit);
                    let due = self.sent.iter().flat_map(InFlight::items).map(|(_, item)| item.work.steps()).sum();
                    if watch.is_over(steps, due, limit) {
                        return Err(WorkerEnd::Deadline);
                    }
                    tick.reset_after((limit / TICKS_A_LIMIT).clamp(TICK_MIN, TICK_MAX));
                }
            }
        }
    }

    /// Waits for calls, in this time slice or the next. Returns false when the queue is closed.
    async fn find_calls(&mut self) -> bool {
        if let Some(mut slice) = self.slice.take() {
            if self.queue.continue_slice(&mut slice).await {
                self.slice = Some(slice);
                return true;
            }
            self.queue.end_slice(slice);
        }
        self.find_slice().await
    }

    /// Waits for a time slice. Ends parked processes that are not needed for a while. Returns false when the queue is closed.
    async fn find_slice(&mut self) -> bool {
        let parked = std::mem::take(&mut self.parked);
        let mut next = std::pin::pin!(self.queue.next_slice());
        self.slice = match tokio::time::timeout(PARK_TIME, &mut next).await {
            Ok(slice) => {
                self.parked = parked;
                slice
            }
            Err(_) => {
                drop(parked);
                next.await
            }
        };
        self.slice.is_some()
    }

    /// Returns how many calls may be in flight: as many as two messages hold, fewer when fewer wait, so that no worker
    /// holds calls that another could run, except for [`MESSAGE_TIME_MIN`] of them.
    fn depth(&self, slice: &TimeSlice) -> usize {
        let share = self.queue.len(slice) / self.options.workers.max(1);
        share.clamp(self.calls_min, if self.long { 1 } else { 2 * self.calls_max })
    }

    /// Returns how many calls go into the next message; zero while the worker has enough, and when its time slice is over.
    fn room(&mut self) -> usize {
        let Some(mut slice) = self.slice.take() else { return 0 };
        let on_their_way = self.sent.iter().map(|sent| sent.calls).sum();
        let is_over = slice.is_over(&self.queue) || self.is_used_up;
        let room = if is_over { 0 } else { room(self.depth(&slice), self.calls_min, self.sent.len(), on_their_way) };
        self.slice = Some(slice);
        room
    }

    /// Like `fill`, but fails when the worker has stopped reading: when nothing has progressed for the longest time
    /// limit of a call.
    async fn fill_in_time(&mut self, process: &mut WorkerProcess) -> Result<(), WorkerEnd> {
        let limit = Duration::from_millis(self.options.limits.time_ms_max);
        let (progress, mut watch) = (process.progress_memory(), StallWatch::new());
        let mut fill = std::pin::pin!(self.fill(process));
        loop {
            match tokio::time::timeout(TICK_MAX, &mut fill).await {
                Ok(filled) => return filled,
                Err(_) if watch.is_over(steps(&progress), u64::MAX, limit) => return Err(WorkerEnd::Deadline),
                Err(_) => {}
            }
        }
    }

    async fn fill(&mut self, process: &mut WorkerProcess) -> Result<(), WorkerEnd> {
        loop {
            let count_max = self.room();
            let slot = (0..SLOTS).find(|slot| self.sent.iter().all(|sent| sent.slot != *slot));
            let Some(slot) = slot.filter(|_| count_max > 0) else { return Ok(()) };
            let runs = self.pick(count_max);
            if runs.is_empty() {
                return Ok(());
            }
            let mut picked = runs.iter().flat_map(|run| run.calls.as_slice());
            self.is_used_up = picked.any(|item| matches!(item.work, CallWork::Describe));
            let (first, calls) = (self.next_id, runs.iter().map(|run| run.calls.len()).sum());
            self.next_id += calls as u64;
            if self.sent.is_empty() {
                self.busy_since = Instant::now();
            }
            // The calls are recorded before they are sent, so that they are not lost when the worker dies.
            let sent = self.sent.push_mut(InFlight { slot, first, runs, calls });
            for CallRun { caller, .. } in &sent.runs {
                if !process.is_last_binding(&caller.binding) {
                    process.send_binding(&caller.binding).await?;
                }
            }
            let file = sent.items().next().and_then(|(_, item)| match item.work.payload() {
                Some(Payload::File { file, .. }) => Some(file.as_fd()),
                Some(Payload::Stored { file, .. }) => file.as_ref().map(|file| file.as_fd()),
                _ => None,
            });
            let message = ToWorker::Calls { slot: slot as u32, first, calls: Calls(sent) };
            match process.send(&message, file.as_slice()).await {
                // The worker has not received the message and is healthy. A retry would be as large.
                Err(e) if e.kind() == io::ErrorKind::FileTooLarge => {
                    let fault = Fault::new(Code::Host, e.to_string());
                    let unsent = self.sent.pop().map_or_else(Vec::new, |sent| sent.runs);
                    unsent.into_iter().for_each(|run| run.refuse(&fault));
                }
                sent => sent?,
            }
        }
    }

    /// Takes calls for a message: up to `count_max` with short inputs, or one with a file and nothing else.
    fn pick(&self, count_max: usize) -> Vec<CallRun> {
        let mut bytes = 0;
        let fits = |item: &PendingCall| {
            let inline = item.inline_bytes();
            // The description of a component is read alone.
            let inline = inline.filter(|_| !matches!(item.work, CallWork::Describe));
            let fits = bytes == 0 || (inline.is_some() && bytes <= CALLS_BYTES_MAX);
            // Counts at least one byte, so that zero bytes means no call yet.
            bytes += if fits { inline.unwrap_or(CALLS_BYTES_MAX + 1).max(1) } else { 0 };
            fits
        };
        self.slice.as_ref().map_or_else(Vec::new, |slice| self.queue.take(slice, count_max, fits))
    }

    /// Handles the replies to a message. Calls that were not started go back to the queue, for the first free worker.
    fn settle(&mut self, process: &WorkerProcess, slot: usize, done: Vec<CallReply>) -> Result<(), WorkerEnd> {
        let wrong = || io::Error::other("it answers other calls than it was sent");
        self.busy_since = Instant::now();
        let answered = |sent: &InFlight| sent.slot == slot && (1..=sent.calls).contains(&done.len());
        let at = self.sent.iter().position(answered).ok_or_else(wrong)?;
        let InFlight { mut runs, calls, .. } = self.sent.remove(at);
        // Calls with large output or long run time are answered one by one; after that they are sent one by one.
        let nanos = done.iter().fold(0, |sum: u64, done| sum.saturating_add(done.nanos)) / done.len() as u64;
        let quick = usize::try_from(MESSAGE_TIME_MAX.as_nanos() as u64 / nanos.max(1)).unwrap_or(CALLS_MAX);
        let count_max = if done.len() < calls { done.len() } else { 2 * self.calls_max };
        self.calls_max = count_max.min(quick).clamp(1, CALLS_MAX);
        self.calls_min = (MESSAGE_TIME_MIN.as_nanos() as u64 / nanos.max(1)).clamp(1, self.calls_max as u64) as usize;
        self.long = nanos > LONG_CALL.as_nanos() as u64;
        let mut done = done.into_iter();
        for runs in runs.chunk_by_mut(|one, next| Arc::ptr_eq(&one.caller, &next.caller)) {
            let caller = runs[0].caller.clone();
            let mut results = Vec::with_capacity(done.len().min(runs.iter().map(|run| run.calls.len()).sum()));
            for CallRun { calls, .. } in runs {
                // `zip` consumes neither a reply without a call nor a call without a reply.
                let answered = done.by_ref().take(calls.len()).zip(calls);
                results.extend(answered.map(|(done, item)| answer(process, slot, &caller, item, done)));
            }
            if !results.is_empty() {
                caller.answer(results);
            }
        }
        self.queue.requeue(runs.into_iter().filter(|run| run.calls.len() > 0));
        Ok(())
    }

    /// Returns the call in flight with this id.
    fn item(&self, id: u64) -> Option<(&Caller, &PendingCall)> {
        let is_sent = |sent: &&InFlight| (sent.first..sent.first + sent.calls as u64).contains(&id);
        self.sent.iter().find(is_sent).and_then(|sent| sent.items().nth((id - sent.first) as usize))
    }

    /// Returns the id of the worker's current call: the reported one, or the next one in flight if the reported id is
    /// unknown.
    fn current_call(&self, reported: u64) -> u64 {
        let next = self.sent.first().map_or(reported, |sent| sent.first);
        self.item(reported).map_or(next, |_| reported)
    }

    /// Kills the process, and requeues or fails the calls that it had.
    fn handle_death(&mut self, process: &mut WorkerProcess, end: &WorkerEnd) {
        let (reported, group, _) = process.progress();
        let current_call = self.current_call(reported);
        let (exit, busy) = (process.kill(), self.busy_since.elapsed());
        let left = |caller: &Caller, item, id| {
            if id != current_call {
                return Some(item);
            }
            if let Some(usage) = &caller.usage {
                usage.add(|usage| {
                    usage.attempts_lost += 1;
                    usage.cpu_ns = usage.cpu_ns.saturating_add(busy.as_nanos() as u64);
                });
            }
            // The worker's report is used only for a call that it has started.
            let (group, logged) = if id == reported { (group, process.logged()) } else { (None, Vec::new()) };
            after_death(caller, item, group, logged, end, &exit)
        };
        let mut runs = Vec::new();
        for sent in self.sent.drain(..) {
            let mut ids = sent.first..;
            for CallRun { caller, calls } in sent.runs {
                let calls = calls.zip(&mut ids).filter_map(|(item, id)| left(&caller, item, id)).collect();
                runs.push(CallRun::new(caller, calls));
            }
        }
        self.queue.requeue(runs.into_iter().filter(|run| run.calls.len() > 0));
    }
}

/// Returns how many calls go into the next message of a worker that has `messages` messages with `on_their_way` calls
/// in flight, of which `depth` are allowed; zero while it has enough.
fn room(depth: usize, calls_min: usize, messages: usize, on_their_way: usize) -> usize {
    let whole = depth.div_ceil(2).max(calls_min);
    match (messages, depth.saturating_sub(on_their_way)) {
        (0, _) => whole,
        // The worker should have its next message when it finishes this one, which may be larger than the current queue
        // would make it.
        (1, _) if depth >= 2 * calls_min => whole,
        (_, 0) => 0,
        // The worker has more than one message; the small remainder goes into the next.
        (_, few) if few < whole && on_their_way > whole => 0,
        (_, more) => more.clamp(calls_min, whole),
    }
}

/// Converts a worker's reply to the result of a call.
fn answer(
    process: &WorkerProcess,
    slot: usize,
    caller: &Caller,
    item: PendingCall,
    done: CallReply,
) -> SubmissionResult {
    let PendingCall { token, work, losses, .. } = item;
    let taken = match &done.delivered {
        None => 0,
        // A failed call does not report the size of its collected output.
        Some(delivered) if delivered.result.is_err() && matches!(work, CallWork::Collect(..)) => usize::MAX,
        Some(delivered) => match delivered.output {
            Output::Slot(bytes) => bytes as usize,
            Output::Inline(_) => 0,
        },
    };
    let (nanos, memory_bytes) = (done.nanos, done.memory_bytes);
    let (lost_groups, lost_log) = losses.map_or_else(Default::default, |lost| (lost.groups, lost.log));
    let mut called = unpack(&work, &caller.binding.limits, process.slot(slot), done, lost_groups);
    if !lost_log.is_empty() {
        called.log.splice(..0, lost_log);
    }
    process.release(slot, taken);
    if let Some(usage) = &caller.usage {
        let log_bytes: u64 = called.log.iter().map(|line| line.message.len() as u64 + 1).sum();
        usage.add(|usage| {
            match &called.result {
                Ok(_) => usage.attempts_succeeded += 1,
                Err(_) => usage.attempts_failed += 1,
            }
            usage.tasks += 1;
            usage.cpu_ns = usage.cpu_ns.saturating_add(nanos);
            usage.memory_bytes_max = usage.memory_bytes_max.max(memory_bytes);
            usage.log_bytes += log_bytes;
        });
    }
    caller.result_for(token, called)
}

/// Returns the call if it should run again: without the group that ended the worker, or unchanged while it has retries
/// left.
fn after_death(
    caller: &Caller,
    mut item: PendingCall,
    group: Option<u32>,
    logged: Vec<LogLine>,
    end: &WorkerEnd,
    exit: &str,
) -> Option<PendingCall> {
    let limits = caller.binding.limits;
    let losses = item.losses.get_or_insert_default();
    let fault = match end {
        WorkerEnd::Deadline => {
            Fault::new(Code::TimeOut, format!("ran longer than {} ms (time_ms_max)", limits.time_ms_max))
        }
        WorkerEnd::Died(e) => {
            losses.deaths += 1;
            let deaths = losses.deaths;
            if deaths <= limits.retries_max {
                return Some(item);
            }
            Fault::new(Code::WorkerLost, format!("{deaths} workers died while they ran it; the last: {exit} ({e})"))
        }
    };
    losses.log(logged);
    let Some(group) = group.filter(|group| item.work.leave_out(*group)) else {
        let log = std::mem::take(&mut losses.log);
        caller.answer(vec![caller.result_for(item.token, CallResult { log, result: Err(fault) })]);
        return None;
    };
    losses.deaths = 0;
    losses.groups.push((group, fault));
    Some(item)
}

impl Losses {
    /// Keeps log lines, up to the log limit of one call.
    fn log(&mut self, logged: Vec<LogLine>) {
        let cost = |line: &LogLine| size_of::<LogLine>() + line.message.len();
        let kept: usize = self.log.iter().map(cost).sum();
        let mut left = (LOG_BYTES_MAX as usize).saturating_sub(kept);
        self.log.extend(logged.into_iter().map_while(|line| {
            left = left.checked_sub(cost(&line))?;
            Some(line)
        }));
    }
}

/// Detects a worker that makes no progress for too long.
struct StallWatch {
    steps: Option<u64>,
    /// Number of changes of `steps`.
    moves: u64,
    since: Instant,
}

impl StallWatch {
    fn new() -> Self {
        StallWatch { steps: None, moves: 0, since: Instant::now() }
    }

    /// Returns whether `steps` has not changed for `limit`. The worker controls `steps`, so only `due` changes count.
    fn is_over(&mut self, steps: u64, due: u64, limit: Duration) -> bool {
        if self.steps != Some(steps) && self.moves <= due {
            self.steps = Some(steps);
            self.moves += 1;
            self.since = Instant::now();
        }
        self.since.elapsed() > limit
    }
}

impl PendingCall {
    /// Returns the bytes of its input if that travels inside the message.
    fn inline_bytes(&self) -> Option<usize> {
        match self.work.payload() {
            None => Some(0),
            Some(Payload::Inline { header, body }) => Some(header.len() + body.len()),
            Some(Payload::File { .. } | Payload::Stored { .. }) => None,
        }
    }
}

impl CallWork {
    /// Excludes a group from now on. Returns whether the group was due: a worker may report any group.
    fn leave_out(&mut self, group: u32) -> bool {
        match self {
            CallWork::Describe | CallWork::Process(_) | CallWork::Collect(..) => false,
            CallWork::Fit(_, groups) | CallWork::Predict(_, groups) => {
                (groups.first..groups.count).contains(&group) && groups.without.insert(group)
            }
        }
    }

    /// Returns how many steps a worker reports for this work: one, plus one per batch or group.
    fn steps(&self) -> u64 {
        1 + match self {
            CallWork::Describe => 0,
            CallWork::Fit(_, groups) | CallWork::Predict(_, groups) => {
                u64::from(groups.count.saturating_sub(groups.first))
            }
            CallWork::Process(payload) | CallWork::Collect(payload, _) => payload.batches(),
        }
    }

    fn payload(&self) -> Option<&Payload> {
        match self {
            CallWork::Describe => None,
            CallWork::Process(payload)
            | CallWork::Collect(payload, _)
            | CallWork::Fit(payload, _)
            | CallWork::Predict(payload, _) => Some(payload),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Groups;

    #[test]
    fn a_worker_that_counts_and_does_nothing_is_over() {
        let moment = Duration::from_millis(3);
        let mut honest = StallWatch::new();
        let mut lying = StallWatch::new();
        for steps in 0..20 {
            std::thread::sleep(2 * moment);
            assert!(!honest.is_over(steps, 30, moment), "{steps}");
            assert_eq!(lying.is_over(steps, 9, moment), steps > 9, "{steps}");
        }
        std::thread::sleep(2 * moment);
        assert!(honest.is_over(19, 30, moment));
    }

    #[test]
    fn a_worker_has_a_message_at_hand_and_the_next() {
        for (depth, calls_min, messages, on_their_way, expected) in [
            (2048, 15, 0, 0, 1024),
            (2048, 15, 1, 1024, 1024),
            (2048, 15, 2, 2048, 0),
            (2048, 15, 2, 1100, 0),
            (2048, 15, 2, 1000, 1024),
            // The queue is shorter than before: the current message is larger than the next.
            (400, 15, 1, 1024, 200),
            (400, 15, 2, 1224, 0),
            // So few calls that another worker should run them.
            (15, 15, 1, 15, 0),
            (15, 15, 0, 0, 15),
            (1, 1, 1, 5, 0),
            // Slow calls, or calls with a file each.
            (2, 1, 1, 1, 1),
            (2, 1, 2, 2, 0),
            (8, 1, 3, 3, 4),
        ] {
            let room = room(depth, calls_min, messages, on_their_way);
            assert_eq!(room, expected, "{depth} {calls_min} {messages} {on_their_way}");
        }
    }

    #[test]
    fn no_group_is_left_out_twice() {
        let payload = || Payload::Inline { header: [].into(), body: [].into() };
        let groups = || Box::new(Groups { count: 3, first: 0, ..Groups::default() });
        let mut fit = CallWork::Fit(payload(), groups());
        let claims = [(2, true), (2, false), (0, true), (3, false), (u32::MAX, false), (1, true), (1, false)];
        for (group, expected) in claims {
            assert_eq!(fit.leave_out(group), expected, "{group}");
        }
        for mut work in [CallWork::Describe, CallWork::Process(payload())] {
            assert!(!work.leave_out(0), "{work:?}");
        }
    }
}
