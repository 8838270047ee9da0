//! The workers for programs, as the hub has them.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use rustc_hash::FxHashSet;
use sandbar_core::{Fault, TaskId, WorkerId};
use sandbar_sched::WorkerKind;
use sandbar_store::ValueKey;
use sandbar_worker::program::{Doorbell, ProgramWorker, ProgramWorkerOptions, TaskPosition};

use super::link::Link;

/// A worker, or a client, and what it was given.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: WorkerId,
    pub(super) role: WorkerKind,
    pub(super) link: Link,
    /// Tasks that it was given, and where they stand, in order.
    given: VecDeque<(TaskPosition, TaskId)>,
    /// Tasks that it has begun.
    begun: FxHashSet<TaskId>,
    /// Tasks that found no room.
    pub(super) waiting: VecDeque<TaskId>,
    /// Numbers of the programs that it has.
    pub(super) programs: FxHashSet<u32>,
    /// Values of the message at hand, taken in, or why they are not.
    pub(super) arrived: VecDeque<Result<ValueKey, Fault>>,
    /// A message that waits until there is room for these, and all behind it.
    pub(super) held: Option<Vec<u8>>,
    pub(super) started: Instant,
    /// It has said something: it could be started.
    pub(super) has_spoken: bool,
    /// Why it is to be ended.
    pub(super) broken: Option<String>,
}

impl Member {
    /// A process.
    pub(super) fn start(
        options: &ProgramWorkerOptions,
        id: WorkerId,
        role: WorkerKind,
        doorbell: &Doorbell,
    ) -> io::Result<Member> {
        let name = match role {
            WorkerKind::Tasks => "tasks",
            WorkerKind::Driver(_) => "driver",
            WorkerKind::Actors => "actors",
            WorkerKind::Actor(_) => "actor",
            WorkerKind::PeerProxy => "peer",
        };
        Ok(Member::new(id, role, Link::Process(ProgramWorker::start(options, id, name, doorbell)?)))
    }

    pub(super) fn new(id: WorkerId, role: WorkerKind, link: Link) -> Member {
        Member {
            id,
            role,
            link,
            given: VecDeque::new(),
            begun: FxHashSet::default(),
            waiting: VecDeque::new(),
            programs: FxHashSet::default(),
            arrived: VecDeque::new(),
            held: None,
            started: Instant::now(),
            has_spoken: false,
            broken: None,
        }
    }

    pub(super) fn gave(&mut self, task: TaskId, given: TaskPosition) {
        self.given.push_back((given, task));
    }

    /// A task that was begun without having been given.
    pub(super) fn began(&mut self, task: TaskId) {
        self.begun.insert(task);
    }

    /// A task has ended.
    pub(super) fn ended(&mut self, task: TaskId) {
        // Mostly the one given first.
        match self.given.front() {
            Some((_, first)) if *first == task => drop(self.given.pop_front()),
            _ => {
                if !self.begun.remove(&task) {
                    self.given.retain(|(_, given)| *given != task);
                }
            }
        }
    }

    /// A call was given, and will not be begun.
    pub(super) fn dropped(&mut self, task: TaskId) {
        if let Some(at) = self.given.iter().position(|(_, given)| *given == task) {
            self.given.remove(at);
        }
    }

    /// A task waits: others are begun before it has ended.
    pub(super) fn waits(&mut self, task: TaskId) {
        if let Some((_, first)) = self.given.front()
            && *first == task
        {
            self.given.pop_front();
            self.begun.insert(task);
        }
    }

    /// Whether a task has been begun.
    pub(super) fn has_begun(&self, task: TaskId) -> bool {
        let taken = self.link.taken();
        self.begun.contains(&task) || self.given.iter().any(|(given, other)| *other == task && given.is_started(taken))
    }

    /// Takes back what was not begun.
    pub(super) fn take_back(&mut self) -> Vec<TaskId> {
        let taken = self.link.take_back();
        let kept = self.given.partition_point(|(given, _)| given.is_started(taken));
        let back = self.given.split_off(kept);
        back.into_iter().map(|(_, task)| task).collect()
    }

    /// The tasks that it has begun and that have not ended.
    pub(super) fn all_begun(&self) -> Vec<TaskId> {
        let taken = self.link.taken();
        let given = self.given.iter().filter(|(given, _)| given.is_started(taken)).map(|(_, task)| *task);
        let mut begun: Vec<_> = given.chain(self.begun.iter().copied()).collect();
        begun.sort_unstable();
        begun
    }

    /// Whether it has anything to do that somebody waits for. A client's task is to say something when it likes.
    pub(super) fn is_busy(&self) -> bool {
        let has_tasks = !self.given.is_empty() || !self.begun.is_empty();
        has_tasks && !self.link.is_client() || self.held.is_some()
    }
}
