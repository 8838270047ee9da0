//! What drives one worker: it takes calls from the queue, sends several at once
//! while the queue is long, watches their deadlines, and replaces the process
//! when it dies.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::{Code, Fault, LOG_BYTES_MAX};
use serde::ser::{Serialize, SerializeSeq, Serializer};

use super::answer::unpack;
use super::link::{Link, SLOTS, steps};
use super::queue::Seat;
use super::{Answer, Called, Caller, Item, LogLine, Losses, Memory, PoolOptions, Run};
use crate::protocol::{CALLS_BYTES_MAX, CALLS_MAX, Call, Done, FromWorker, Output, Payload, TURN, ToWorker, Work};

/// Deadlines are looked at so often while a call may take its limit, within these bounds.
const TICKS_A_LIMIT: u32 = 20;
const TICK_MIN: Duration = Duration::from_millis(1);
const TICK_MAX: Duration = Duration::from_millis(50);
/// Calls that are together quicker than this go in one message: to wake a process on another processor takes as long.
const MOMENT: Duration = Duration::from_micros(100);
/// A worker idles for a moment after each call that takes longer, so that others can have those that wait.
const LONG: Duration = Duration::from_millis(100);
/// A worker that can't be started is tried again after this, so often.
const START_PAUSE: Duration = Duration::from_millis(200);
const STARTS_MAX: u32 = 5;

/// A message with calls on its way, whose ids count from `first`.
struct Sent {
    slot: usize,
    first: u64,
    runs: Vec<Run>,
    /// In all of them.
    calls: usize,
}

impl Sent {
    fn items(&self) -> impl Iterator<Item = (&Caller, &Item)> {
        self.runs.iter().flat_map(|run| run.calls.as_slice().iter().map(|item| (&*run.caller, item)))
    }
}

/// Calls of a message, as they lie here.
struct Calls<'a>(&'a Sent);

impl Serialize for Calls<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut calls = serializer.serialize_seq(Some(self.0.calls))?;
        for Run { caller, calls: items } in &self.0.runs {
            let binding = caller.binding.id as u32;
            for Item { seed, work, .. } in items.as_slice() {
                calls.serialize_element(&Call { binding, seed: *seed, work })?;
            }
        }
        calls.end()
    }
}

struct Driver {
    options: PoolOptions,
    queue: Seat,
    /// What is on its way, in the order in which it was sent.
    sent: Vec<Sent>,
    next_id: u64,
    /// Calls that go into a message.
    calls_max: usize,
    /// Calls that take [`MOMENT`], of those that go into a message.
    calls_min: usize,
    /// Whether calls take so long that none is to wait for another here.
    long: bool,
}

/// Runs until the pool is dropped.
pub(super) async fn drive(index: usize, options: PoolOptions, queue: Seat, memory: Arc<Memory>) {
    let mut driver = Driver { options, queue, sent: Vec::new(), next_id: 1, calls_max: 1, calls_min: 1, long: false };
    let mut failures = 0;
    if driver.options.on_demand && !driver.queue.has_some().await {
        return;
    }
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
                    // Another worker may do: what keeps this one from starting is perhaps that there are many.
                    if driver.queue.leave() {
                        return;
                    }
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
            self.fill_in_time(link).await?;
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
                    let (said, _, steps) = link.progress();
                    let at_hand = self.item(self.at_hand(said));
                    let limit = at_hand.map_or(0, |(caller, _)| caller.binding.limits.time_ms_max);
                    let limit = Duration::from_millis(limit);
                    let due = self.sent.iter().flat_map(Sent::items).map(|(_, item)| item.work.steps()).sum();
                    if watch.is_over(steps, due, limit) {
                        return Err(End::Deadline);
                    }
                    tick.reset_after((limit / TICKS_A_LIMIT).clamp(TICK_MIN, TICK_MAX));
                }
            }
        }
    }

    /// How many calls may be on their way: as many as go into two messages, less when less wait, so that no worker sits
    /// on calls that another could run, but for those of a [`MOMENT`].
    fn depth(&self) -> usize {
        let share = self.queue.len() / self.options.workers.max(1);
        share.clamp(self.calls_min, if self.long { 1 } else { 2 * self.calls_max })
    }

    /// How many calls go into the next message; none while the worker has enough.
    fn room(&self) -> usize {
        let on_their_way = self.sent.iter().map(|sent| sent.calls).sum();
        room(self.depth(), self.calls_min, self.sent.len(), on_their_way)
    }

    /// Fills, unless the worker has stopped reading: nothing has moved for as long as any call may take.
    async fn fill_in_time(&mut self, link: &mut Link) -> Result<(), End> {
        let limit = Duration::from_millis(self.options.limits.time_ms_max);
        let (progress, mut watch) = (link.progress_memory(), Watch::new());
        let mut fill = std::pin::pin!(self.fill(link));
        loop {
            match tokio::time::timeout(TICK_MAX, &mut fill).await {
                Ok(filled) => return filled,
                Err(_) if watch.is_over(steps(&progress), u64::MAX, limit) => return Err(End::Deadline),
                Err(_) => {}
            }
        }
    }

    async fn fill(&mut self, link: &mut Link) -> Result<(), End> {
        loop {
            let most = self.room();
            let slot = (0..SLOTS).find(|slot| self.sent.iter().all(|sent| sent.slot != *slot));
            let Some(slot) = slot.filter(|_| most > 0) else { return Ok(()) };
            let runs = self.pick(most);
            if runs.is_empty() {
                return Ok(());
            }
            let (first, calls) = (self.next_id, runs.iter().map(|run| run.calls.len()).sum());
            self.next_id += calls as u64;
            // From here on they are known, whatever becomes of the worker.
            let sent = self.sent.push_mut(Sent { slot, first, runs, calls });
            for Run { caller, .. } in &sent.runs {
                if !link.knows(&caller.binding) {
                    link.send_binding(&caller.binding).await?;
                }
            }
            let file = sent.items().next().and_then(|(_, item)| match item.work.payload() {
                Some(Payload::File { file, .. }) => Some(file.as_fd()),
                Some(Payload::Stored { file, .. }) => file.as_ref().map(|file| file.as_fd()),
                _ => None,
            });
            let message = ToWorker::Calls { slot: slot as u32, first, calls: Calls(sent) };
            match link.send(&message, file.as_slice()).await {
                // The worker has not seen it, and is well; asked again, it would be as large.
                Err(e) if e.kind() == io::ErrorKind::FileTooLarge => {
                    let fault = Fault::new(Code::Host, e.to_string());
                    let unsent = self.sent.pop().map_or_else(Vec::new, |sent| sent.runs);
                    unsent.into_iter().for_each(|run| run.refuse(&fault));
                }
                sent => sent?,
            }
        }
    }

    /// Takes calls for a message: up to `most`, whose inputs are short, or one with a file and nothing beside it.
    fn pick(&self, most: usize) -> Vec<Run> {
        let mut bytes = 0;
        let fits = |item: &Item| {
            let inline = item.inline_bytes();
            let fits = bytes == 0 || (inline.is_some() && bytes <= CALLS_BYTES_MAX);
            // At least one, so that the first is known by it.
            bytes += if fits { inline.unwrap_or(CALLS_BYTES_MAX + 1).max(1) } else { 0 };
            fits
        };
        self.queue.take(most, fits)
    }

    /// Takes the answers of a message. Those not begun go back, for whichever worker is free first.
    fn settle(&mut self, link: &Link, slot: usize, done: Vec<Done>) -> Result<(), End> {
        let wrong = || io::Error::other("it answers other calls than it was sent");
        let answered = |sent: &Sent| sent.slot == slot && (1..=sent.calls).contains(&done.len());
        let at = self.sent.iter().position(answered).ok_or_else(wrong)?;
        let Sent { mut runs, calls, .. } = self.sent.remove(at);
        // Calls that hand back much or take long come back one by one: then they are sent one by one.
        let nanos = done.iter().fold(0, |sum: u64, done| sum.saturating_add(done.nanos)) / done.len() as u64;
        let quick = usize::try_from(TURN.as_nanos() as u64 / nanos.max(1)).unwrap_or(CALLS_MAX);
        let most = if done.len() < calls { done.len() } else { 2 * self.calls_max };
        self.calls_max = most.min(quick).clamp(1, CALLS_MAX);
        self.calls_min = (MOMENT.as_nanos() as u64 / nanos.max(1)).clamp(1, self.calls_max as u64) as usize;
        self.long = nanos > LONG.as_nanos() as u64;
        let mut done = done.into_iter();
        for runs in runs.chunk_by_mut(|one, next| Arc::ptr_eq(&one.caller, &next.caller)) {
            let caller = runs[0].caller.clone();
            let mut answers = Vec::with_capacity(done.len().min(runs.iter().map(|run| run.calls.len()).sum()));
            for Run { calls, .. } in runs {
                // No answer is drawn for which there is no call, and no call for which there is no answer.
                let answered = done.by_ref().take(calls.len()).zip(calls);
                answers.extend(answered.map(|(done, item)| answer(link, slot, &caller, item, done)));
            }
            if !answers.is_empty() {
                caller.answer(answers);
            }
        }
        self.queue.put_back(runs.into_iter().filter(|run| run.calls.len() > 0));
        Ok(())
    }

    /// The call on its way with this id.
    fn item(&self, id: u64) -> Option<(&Caller, &Item)> {
        let of = |sent: &&Sent| (sent.first..sent.first + sent.calls as u64).contains(&id);
        self.sent.iter().find(of).and_then(|sent| sent.items().nth((id - sent.first) as usize))
    }

    /// The call that a worker has at hand, by the one it says: the next where it has come to none of these yet.
    fn at_hand(&self, said: u64) -> u64 {
        let next = self.sent.first().map_or(said, |sent| sent.first);
        self.item(said).map_or(next, |_| said)
    }

    /// Decides what becomes of the calls that a dead worker had.
    fn bury(&mut self, link: &mut Link, end: &End) {
        let (said, group, _) = link.progress();
        let at_hand = self.at_hand(said);
        let how = link.kill();
        let left = |caller: &Caller, item, id| {
            if id != at_hand {
                return Some(item);
            }
            // What a worker says is of a call that it has begun.
            let (group, logged) = if id == said { (group, link.journal()) } else { (None, Vec::new()) };
            after_death(caller, item, group, logged, end, &how)
        };
        let mut runs = Vec::new();
        for sent in self.sent.drain(..) {
            let mut ids = sent.first..;
            for Run { caller, calls } in sent.runs {
                let calls = calls.zip(&mut ids).filter_map(|(item, id)| left(&caller, item, id)).collect();
                runs.push(Run::new(caller, calls));
            }
        }
        self.queue.put_back(runs.into_iter().filter(|run| run.calls.len() > 0));
    }

    async fn refuse_all(&mut self, why: &str) {
        let fault = Fault::new(Code::Host, why);
        while self.queue.has_some().await {
            self.queue.take(usize::MAX, |_| true).into_iter().for_each(|run| run.refuse(&fault));
        }
    }
}

/// How many calls go into the next message of a worker that has `messages` with calls `on_their_way`, of which there may
/// be `depth`; none while it has enough.
fn room(depth: usize, calls_min: usize, messages: usize, on_their_way: usize) -> usize {
    let whole = depth.div_ceil(2).max(calls_min);
    match (messages, depth.saturating_sub(on_their_way)) {
        (0, _) => whole,
        // It is to have the next when it is through with this one, which may be larger than what waits would make it.
        (1, _) if depth >= 2 * calls_min => whole,
        (_, 0) => 0,
        // It has more than a message: what little it lacks goes with the next.
        (_, few) if few < whole && on_their_way > whole => 0,
        (_, more) => more.clamp(calls_min, whole),
    }
}

/// What came of a call, whose worker says that it is `done`.
fn answer(link: &Link, slot: usize, caller: &Caller, item: Item, done: Done) -> Answer {
    let Item { token, work, losses, .. } = item;
    let taken = match &done.delivered {
        None => 0,
        // Of a call that failed nobody says what it had collected.
        Some(delivered) if delivered.result.is_err() && matches!(work, Work::Collect(..)) => usize::MAX,
        Some(delivered) => match delivered.output {
            Output::Slot(bytes) => bytes as usize,
            Output::Inline(_) => 0,
        },
    };
    let (lost_groups, lost_log) = losses.map_or_else(Default::default, |lost| (lost.groups, lost.log));
    let mut called = unpack(&work, &caller.binding.limits, link.slot(slot), done, lost_groups);
    if !lost_log.is_empty() {
        called.log.splice(..0, lost_log);
    }
    link.release(slot, taken);
    caller.answer_of(token, called)
}

/// The item to run again, if it is: without the group that took the worker's
/// life, or as it is while it has lives left.
fn after_death(
    caller: &Caller,
    mut item: Item,
    group: Option<u32>,
    logged: Vec<LogLine>,
    end: &End,
    how: &str,
) -> Option<Item> {
    let limits = caller.binding.limits;
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
    losses.log(logged);
    let Some(group) = group.filter(|group| item.work.leave_out(*group)) else {
        let log = std::mem::take(&mut losses.log);
        caller.answer(vec![caller.answer_of(item.token, Called { log, result: Err(fault) })]);
        return None;
    };
    losses.deaths = 0;
    losses.groups.push((group, fault));
    Some(item)
}

impl Losses {
    /// Keeps what was logged, no more of it than one call may log.
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

/// Notices when nothing has moved for too long.
struct Watch {
    steps: Option<u64>,
    /// How often it has moved.
    moves: u64,
    since: Instant,
}

impl Watch {
    fn new() -> Self {
        Watch { steps: None, moves: 0, since: Instant::now() }
    }

    /// Whether `steps`, which the worker counts and may count as it likes, have not moved for `limit`. They move `due`
    /// times at most.
    fn is_over(&mut self, steps: u64, due: u64, limit: Duration) -> bool {
        if self.steps != Some(steps) && self.moves <= due {
            self.steps = Some(steps);
            self.moves += 1;
            self.since = Instant::now();
        }
        self.since.elapsed() > limit
    }
}

impl Item {
    /// Bytes of its input, where that goes into the message.
    fn inline_bytes(&self) -> Option<usize> {
        match self.work.payload() {
            None => Some(0),
            Some(Payload::Inline { header, body }) => Some(header.len() + body.len()),
            Some(Payload::File { .. } | Payload::Stored { .. }) => None,
        }
    }
}

impl Work {
    /// From here on does without a group. Says whether it was to be run: a worker may claim any.
    fn leave_out(&mut self, group: u32) -> bool {
        match self {
            Work::Describe | Work::Process(_) | Work::Collect(..) => false,
            Work::Fit(_, groups) | Work::Predict(_, groups) => {
                (groups.first..groups.count).contains(&group) && groups.without.insert(group)
            }
        }
    }

    /// How often a worker that runs it says that it goes on: once, and for each batch or group.
    fn steps(&self) -> u64 {
        1 + match self {
            Work::Describe => 0,
            Work::Fit(_, groups) | Work::Predict(_, groups) => u64::from(groups.count.saturating_sub(groups.first)),
            Work::Process(payload) | Work::Collect(payload, _) => payload.batches(),
        }
    }

    fn payload(&self) -> Option<&Payload> {
        match self {
            Work::Describe => None,
            Work::Process(payload) | Work::Collect(payload, _) | Work::Fit(payload, _) | Work::Predict(payload, _) => {
                Some(payload)
            }
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
        let mut honest = Watch::new();
        let mut lying = Watch::new();
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
            // Less waits than did: the message at hand is larger than the next.
            (400, 15, 1, 1024, 200),
            (400, 15, 2, 1224, 0),
            // So little that another worker should have it.
            (15, 15, 1, 15, 0),
            (15, 15, 0, 0, 15),
            (1, 1, 1, 5, 0),
            // Slow ones, or with a file each.
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
        let mut fit = Work::Fit(payload(), groups());
        let claims = [(2, true), (2, false), (0, true), (3, false), (u32::MAX, false), (1, true), (1, false)];
        for (group, expected) in claims {
            assert_eq!(fit.leave_out(group), expected, "{group}");
        }
        for mut work in [Work::Describe, Work::Process(payload())] {
            assert!(!work.leave_out(0), "{work:?}");
        }
    }
}
