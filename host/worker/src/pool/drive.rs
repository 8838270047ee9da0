//! What drives one worker: it takes calls from the queue, sends several at once
//! while the queue is long, watches their deadlines, and replaces the process
//! when it dies.

use std::collections::{VecDeque, vec_deque};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::{Code, Fault};
use serde::{Serialize, Serializer};

use super::answer::{Delivered, unpack};
use super::link::{Link, SLOTS};
use super::queue::Seat;
use super::{Answers, Item, Memory, PoolOptions, Request};
use crate::protocol::{CALLS_BYTES_MAX, CALLS_MAX, Call, Done, FromWorker, Output, Payload, TURN, ToWorker, Work};

/// Deadlines are looked at so often while a call may take its limit, within these bounds.
const TICKS_A_LIMIT: u32 = 20;
const TICK_MIN: Duration = Duration::from_millis(1);
const TICK_MAX: Duration = Duration::from_millis(50);
/// A worker idles for a moment after each call that takes longer, so that others can have those that wait.
const LONG: Duration = Duration::from_millis(100);
/// A worker that can't be started is tried again after this, so often.
const START_PAUSE: Duration = Duration::from_millis(200);
const STARTS_MAX: u32 = 5;

struct Sent {
    id: u64,
    slot: usize,
    item: Item,
}

/// Calls of a message, as they lie here.
struct Calls<'a>(vec_deque::Iter<'a, Sent>);

impl Serialize for Calls<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone().map(|sent| {
            let Request { binding, seed, work, without } = &sent.item.request;
            Call { binding: binding.id as u32, seed: *seed, work, without: without.as_slice() }
        }))
    }
}

struct Driver {
    options: PoolOptions,
    queue: Seat,
    /// Calls on their way, in the order in which they were sent; those of a message have its slot.
    sent: VecDeque<Sent>,
    /// The slots of messages on their way.
    busy: [bool; SLOTS],
    next_id: u64,
    /// Calls that go into a message.
    calls_max: usize,
    /// Whether calls take so long that none is to wait for another here.
    long: bool,
}

/// Runs until the pool is dropped.
pub(super) async fn drive(index: usize, options: PoolOptions, queue: Seat, memory: Arc<Memory>) {
    let mut driver =
        Driver { options, queue, sent: VecDeque::new(), busy: [false; SLOTS], next_id: 1, calls_max: 1, long: false };
    let mut failures = 0;
    loop {
        match Link::start(&driver.options).await {
            Ok(mut link) => {
                failures = 0;
                memory.started(index, link.process());
                match driver.serve(&mut link).await {
                    Ok(()) => return,
                    Err(end) => {
                        memory.ending(index);
                        driver.bury(&mut link, &end);
                    }
                }
            }
            Err(e) => {
                failures += 1;
                if failures >= STARTS_MAX {
                    driver.refuse_all(&format!("a worker can't be started: {e}")).await;
                    return;
                }
                tokio::time::sleep(START_PAUSE).await;
            }
        }
    }
}

/// Why a worker is no more.
enum End {
    /// The call at hand ran over its deadline.
    Deadline,
    /// It died, or said something that makes no sense.
    Died(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Died(error)
    }
}

impl Driver {
    /// Serves one worker process. Returns when there will be no more calls.
    async fn serve(&mut self, link: &mut Link) -> Result<(), End> {
        let mut watch = Watch::new();
        let mut tick = tokio::time::interval(TICK_MAX);
        loop {
            self.fill(link).await?;
            if self.sent.is_empty() {
                if !self.queue.has_some().await {
                    return Ok(());
                }
                watch = Watch::new();
                continue;
            }
            tokio::select! {
                biased;
                message = link.receive() => match message? {
                    FromWorker::Done { slot, done } => {
                        self.settle(link, slot as usize, done)?;
                        watch = Watch::new();
                    }
                    FromWorker::Ready => return Err(io::Error::other("it is ready a second time").into()),
                },
                _ = tick.tick() => {
                    let (id, ..) = link.progress();
                    let at_hand = self.sent.iter().find(|s| s.id == id).or(self.sent.front());
                    let limit = at_hand.map_or(0, |s| s.item.request.binding.limits.time_ms_max);
                    let limit = Duration::from_millis(limit);
                    if watch.is_over(link, limit) {
                        return Err(End::Deadline);
                    }
                    tick.reset_after((limit / TICKS_A_LIMIT).clamp(TICK_MIN, TICK_MAX));
                }
            }
        }
    }

    /// How many calls may be on their way: as many as go into two messages, less when less wait, so that no worker sits
    /// on calls that another could run.
    fn depth(&self) -> usize {
        let share = self.queue.len() / self.options.workers.max(1);
        share.clamp(1, if self.long { 1 } else { 2 * self.calls_max })
    }

    async fn fill(&mut self, link: &mut Link) -> Result<(), End> {
        loop {
            let depth = self.depth();
            let most = depth.saturating_sub(self.sent.len()).min(depth.div_ceil(2));
            let slot = self.busy.iter().position(|busy| !busy);
            let Some(slot) = slot.filter(|_| most > 0) else { return Ok(()) };
            let first = self.sent.len();
            self.pick(most, slot);
            for sent in self.sent.range(first..) {
                link.send_binding(&sent.item.request.binding).await?;
            }
            let sent = || self.sent.range(first..);
            if sent().len() == 0 {
                return Ok(());
            }
            let file = sent().find_map(|s| match s.item.request.work.payload() {
                Some(Payload::File { file, .. }) => Some(file.as_fd()),
                _ => None,
            });
            self.busy[slot] = true;
            let message = ToWorker::Calls { slot: slot as u32, first: self.sent[first].id, calls: Calls(sent()) };
            link.send(&message, file.as_slice()).await?;
        }
    }

    /// Takes calls for a message: up to `most`, whose inputs are short, or one with a file and nothing beside it.
    fn pick(&mut self, most: usize, slot: usize) {
        let Driver { queue, sent, next_id, .. } = self;
        let mut bytes = 0;
        let fits = |item: &Item| {
            let inline = item.inline_bytes();
            let fits = bytes == 0 || (inline.is_some() && bytes <= CALLS_BYTES_MAX);
            // At least one, so that the first is known by it.
            bytes += if fits { inline.unwrap_or(CALLS_BYTES_MAX + 1).max(1) } else { 0 };
            fits
        };
        let send = |item| {
            sent.push_back(Sent { id: *next_id, slot, item });
            *next_id += 1;
        };
        queue.take(most, fits, send);
    }

    /// Takes the answers of a message. Those not begun go back, for whichever worker is free first.
    fn settle(&mut self, link: &Link, slot: usize, done: Vec<Done>) -> Result<(), End> {
        let wrong = || io::Error::other("it answers other calls than it was sent");
        let first = self.sent.iter().position(|s| s.slot == slot).ok_or_else(wrong)?;
        let count = self.sent.range(first..).take_while(|s| s.slot == slot).count();
        if done.is_empty() || done.len() > count {
            return Err(wrong().into());
        }
        // Calls that hand back much or take long come back one by one: then they are sent one by one.
        let nanos = done.iter().fold(0, |sum: u64, done| sum.saturating_add(done.nanos)) / done.len() as u64;
        let quick = usize::try_from(TURN.as_nanos() as u64 / nanos.max(1)).unwrap_or(CALLS_MAX);
        let most = if done.len() < count { done.len() } else { 2 * self.calls_max };
        self.calls_max = most.min(quick).clamp(1, CALLS_MAX);
        self.long = nanos > LONG.as_nanos() as u64;
        self.busy[slot] = false;
        let mut answers = Answers::with_capacity(done.len());
        let mut all = self.sent.drain(first..first + count);
        // In this order no call is drawn for which there is no answer.
        for (done, sent) in done.into_iter().zip(all.by_ref()) {
            let mut item = sent.item;
            let taken = if let Output::Slot(bytes) = done.output { bytes as usize } else { 0 };
            let delivered = Delivered { output: &done.output, log_bytes: done.log_bytes };
            let Request { work, binding, .. } = &item.request;
            let mut called =
                unpack(work, &binding.limits, link.slot(slot), delivered, done.result.map_err(|fault| *fault));
            if let Ok(completed) = &mut called.result {
                (completed.memory_bytes, completed.nanos) = (done.memory_bytes, done.nanos);
                completed.lost_groups = item.losses.take().map_or_else(Vec::new, |losses| losses.groups);
            }
            link.release(slot, taken);
            answers.add(item, called);
        }
        self.queue.put_back(all.map(|sent| sent.item));
        Ok(())
    }

    /// Decides what becomes of the calls that a dead worker had.
    fn bury(&mut self, link: &mut Link, end: &End) {
        let (id, group, _) = link.progress();
        let how = link.kill();
        self.busy = [false; SLOTS];
        let left = |sent: Sent| {
            if sent.id == id { after_death(sent.item, group, end, &how) } else { Some(sent.item) }
        };
        self.queue.put_back(self.sent.drain(..).filter_map(left).collect::<Vec<_>>().into_iter());
    }

    async fn refuse_all(&mut self, why: &str) {
        let fault = Fault::new(Code::Host, why);
        while self.queue.has_some().await {
            let mut refused = Vec::new();
            self.queue.take(usize::MAX, |_| true, |item| refused.push(item));
            refused.into_iter().for_each(|item| item.answer(fault.clone().into()));
        }
    }
}

/// The item to run again, if it is: without the group that took the worker's
/// life, or as it is while it has lives left.
fn after_death(mut item: Item, group: Option<u32>, end: &End, how: &str) -> Option<Item> {
    let limits = item.request.binding.limits;
    let losses = item.losses.get_or_insert_default();
    let fault = match end {
        End::Deadline => Fault::new(Code::TimeOut, format!("ran longer than {} ms (time_ms_max)", limits.time_ms_max)),
        End::Died(e) => {
            losses.deaths += 1;
            let deaths = losses.deaths;
            if deaths <= limits.retries_max {
                return Some(item);
            }
            Fault::new(Code::WorkerLost, format!("{deaths} workers died while they ran it; the last: {how} ({e})"))
        }
    };
    match group {
        Some(group) if !item.request.without.contains(&group) => {
            item.request.without.push(group);
            losses.deaths = 0;
            losses.groups.push((group, fault));
            Some(item)
        }
        _ => {
            item.answer(fault.into());
            None
        }
    }
}

/// Notices when nothing has moved for too long.
struct Watch {
    steps: Option<u64>,
    since: Instant,
}

impl Watch {
    fn new() -> Self {
        Watch { steps: None, since: Instant::now() }
    }

    fn is_over(&mut self, link: &Link, limit: Duration) -> bool {
        let (_, _, steps) = link.progress();
        if self.steps != Some(steps) {
            self.steps = Some(steps);
            self.since = Instant::now();
        }
        self.since.elapsed() > limit
    }
}

impl Item {
    /// Bytes of its input, where that goes into the message.
    fn inline_bytes(&self) -> Option<usize> {
        match self.request.work.payload() {
            None => Some(0),
            Some(Payload::Inline { header, body }) => Some(header.len() + body.len()),
            Some(Payload::File { .. }) => None,
        }
    }
}

impl Work {
    fn payload(&self) -> Option<&Payload> {
        match self {
            Work::Describe => None,
            Work::Process(payload) | Work::Collect(payload, _) | Work::Fit(payload, _) | Work::Predict(payload, _) => {
                Some(payload)
            }
        }
    }
}
