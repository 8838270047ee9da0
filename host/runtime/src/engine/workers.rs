//! Workers: started, looked after, replaced; and tasks that are to end there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sandbar_core::{JobId, TaskId, WorkerId};
use sandbar_jobs::LogEntry;
use sandbar_sched::{Event, WorkerKind};
use sandbar_worker::program::ProgramWorkerOptions;

use super::act::give;
use super::deadlines::{AssignedAttempt, ExpiredAttempt};
use super::{Counts, State};
use crate::client::Seat;
use crate::link::Link;
use crate::members::Member;

/// A worker that ends within this, without a message, could not be started.
const START_TIME_MAX: Duration = Duration::from_secs(2);
/// A worker that can't be started is tried again so often.
const STARTS_MAX: u32 = 5;
/// The level of what is worth a look.
const WARN: u8 = 2;

impl State {
    pub(super) fn start_worker(&mut self, role: WorkerKind) -> Option<WorkerId> {
        let id = self.number_worker()?;
        // What many actors share is not to be kept from one by another's children.
        let worker_options =
            ProgramWorkerOptions { inline: role != WorkerKind::Actors, ..self.options.worker_options.clone() };
        match Member::start(&worker_options, id, role, &self.doorbell) {
            Ok(member) => {
                if let WorkerKind::Actor(actor) = role {
                    self.of_actors.insert(actor, id);
                }
                self.add(member);
                Some(id)
            }
            Err(error) => {
                log::warn!("a worker can't be started: {error}");
                self.failed_starts += 1;
                None
            }
        }
    }

    /// Takes a client in as a worker: of its job's first task, mostly.
    pub(super) fn seat(&mut self, role: WorkerKind, mut seat: Seat) -> Option<WorkerId> {
        let id = self.number_worker()?;
        seat.sit(id);
        self.add(Member::new(id, role, Link::Client(seat)));
        Some(id)
    }

    fn add(&mut self, mut member: Member) {
        self.tell_holds(&mut member.link);
        let (worker, role) = (member.id, member.role);
        self.members.insert(worker, member);
        self.step(Event::WorkerReady { worker, node: self.options.node, kind: role });
    }

    /// A worker is gone, or has to go.
    pub(super) fn lose(&mut self, worker: WorkerId, why: &str) {
        let Some(mut member) = self.members.remove(&worker) else { return };
        member.link.kill();
        log::warn!("worker {} ({:?}) is lost: {why}", worker.0, member.role);
        let begun = member.all_begun();
        member.arrived.drain(..).flatten().for_each(|key| self.store.values.drop_value(key));
        self.forget_worker(worker);
        if begun.is_empty() && !member.has_spoken && member.started.elapsed() < START_TIME_MAX {
            self.failed_starts += 1;
        } else {
            self.failed_starts = 0;
        }
        if !begun.is_empty() {
            let words = format!("worker {} is lost: {why}", worker.0);
            self.count_lost(&begun, &words, |counts| counts.lost += 1);
        }
        self.step(Event::WorkerLost { worker, started: begun });
        if self.failed_starts < STARTS_MAX {
            self.replace(member.role);
        } else {
            self.give_up(why);
        }
    }

    /// Counts attempts that went with a worker or a node, for each job that had some there.
    pub(super) fn count_lost(&mut self, begun: &[TaskId], words: &str, count: impl Fn(&mut Counts)) {
        let mut jobs: BTreeMap<JobId, u64> = BTreeMap::new();
        for job in begun.iter().filter_map(|task| self.sched.job_of(*task)) {
            *jobs.entry(job).or_default() += 1;
        }
        for (job, attempts) in jobs {
            let Some(job) = self.jobs.get_mut(&job) else { continue };
            count(&mut job.counts);
            job.counts.lost_attempts += attempts;
            let line = format!("{words}; attempts of tasks lost with it: {attempts}");
            job.log.send(LogEntry { task: None, level: WARN, line: &line });
        }
    }

    /// Nothing is waited for of a worker that is gone.
    pub(super) fn forget_worker(&mut self, worker: WorkerId) {
        self.store.lose_worker(worker);
        self.deadlines.forget_worker(worker);
    }

    /// Starts workers for tasks where some are missing: they could not be started before, again and again.
    pub(super) fn replace_missing(&mut self) {
        let there = self.members.values().filter(|member| member.role == WorkerKind::Tasks).count();
        for _ in there..self.options.workers {
            self.start_worker(WorkerKind::Tasks);
        }
    }

    /// Starts another worker for one that is gone.
    fn replace(&mut self, role: WorkerKind) {
        match role {
            WorkerKind::Tasks => drop(self.start_worker(role)),
            // Of a job whose first task was not begun.
            WorkerKind::Driver(job) if self.jobs.contains_key(&job) => {
                if let (Some(driver), Some(job)) = (self.start_worker(role), self.jobs.get_mut(&job)) {
                    job.driver = driver;
                }
            }
            // The scheduler asks for another, if it wants one.
            WorkerKind::Driver(_) | WorkerKind::Actors | WorkerKind::Actor(_) | WorkerKind::PeerProxy => {}
        }
    }

    /// What is to be done now and then.
    pub(super) fn look_after(&mut self, now: Instant) {
        let mut gone = Vec::new();
        for member in self.members.values_mut() {
            member.link.take_unpublished();
            if let Some(why) = member.broken.take() {
                gone.push((member.id, why));
            } else if !member.link.has_some() && member.link.is_gone() {
                gone.push((member.id, "it has ended".to_owned()));
            }
            while let Some(task) = member.waiting.front().copied() {
                match give(member, &self.sched, &mut self.store, task) {
                    Ok(true) => drop(member.waiting.pop_front()),
                    Ok(false) => break,
                    Err(e) => {
                        gone.push((member.id, e.to_string()));
                        break;
                    }
                }
            }
        }
        for (worker, why) in gone {
            self.lose(worker, &why);
        }
        self.carry_out();
        self.end_late(now);
        self.end_late_calls();
        self.hire();
        self.end_again(now);
        self.say_unmet(now);
        self.look_for_circles(now);
        self.hold_jobs(now);
        self.look_after_leaving();
        self.let_go_of_remains(now);
        self.tell_loads(now);
        self.end_orphans();
    }

    /// Ends attempts that exceed their time limits.
    fn end_late(&mut self, now: Instant) {
        let State { deadlines, sched, members, .. } = self;
        let assigned = |task: TaskId| {
            let view = sched.task(task)?;
            let worker = view.worker?;
            Some(AssignedAttempt {
                worker,
                attempt: view.attempt,
                is_started: members.get(&worker).is_some_and(|member| member.has_begun(task)),
                is_actor_call: sched.actor_of(task).is_some(),
            })
        };
        for expired in deadlines.expired(now, |task| sched.task(task).is_some(), assigned) {
            let ExpiredAttempt { task, worker, attempt, is_actor_call, reason } = expired;
            if is_actor_call {
                self.withdraw(worker, task, attempt);
            } else {
                self.interrupt(worker, task, attempt, Some(reason));
            }
        }
    }

    /// Interrupts attempts again that were told to end and have not, and kills workers where that takes too long.
    fn end_again(&mut self, now: Instant) {
        for (task, worker) in self.deadlines.unfinished() {
            // The flag in shared memory names one task.
            if let Some(member) = self.members.get(&worker).filter(|member| member.link.at_hand() == Some(task.0)) {
                member.link.interrupt(task.0);
            }
        }
        for worker in self.deadlines.stuck_workers(now) {
            self.lose(worker, "a task did not end when it was told to");
        }
    }
}
