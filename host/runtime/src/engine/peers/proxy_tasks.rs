//! Jobs of which tasks come from other nodes, and the tasks that stand for these here.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use sandbar_core::{JobId, NodeId, TaskId, TenantId};
use sandbar_sched::{Event, Submission};

use super::super::State;
use crate::Program;
use crate::calls::Call;
use crate::peer::{JobRoot, PeerMessage};

/// Seats, and jobs that other nodes run.
#[derive(Debug, Default)]
pub(super) struct Seats {
    /// Jobs of other nodes, and what they are called here.
    jobs: BTreeMap<JobRoot, JobId>,
    roots: FxHashMap<JobId, JobRoot>,
    /// What the first tasks of these are called.
    names: FxHashMap<JobId, Arc<str>>,
    /// Those whose root is gone, or the connection to it: they go with what is run for others.
    orphans: BTreeSet<JobId>,
    /// Seats that have not ended.
    all: FxHashMap<TaskId, NodeId>,
}

impl Seats {
    /// How many there are, and jobs of other nodes.
    pub(super) fn len(&self) -> usize {
        self.all.len() + self.jobs.len() + self.roots.len() + self.orphans.len()
    }

    /// A seat is to end. Says whether it was one.
    pub(super) fn end(&mut self, task: TaskId) -> bool {
        self.all.remove(&task).is_some()
    }

    pub(super) fn is_one(&self, task: TaskId) -> bool {
        self.all.contains_key(&task)
    }

    /// Of a job that another node runs.
    pub(super) fn root(&self, job: JobId) -> Option<JobRoot> {
        self.roots.get(&job).copied()
    }
}

impl State {
    /// A job, as other nodes know it.
    pub(in super::super) fn root(&self, job: JobId) -> JobRoot {
        self.peers.seats.root(job).unwrap_or(JobRoot { node: self.options.node, job })
    }

    /// As above, if it is another node's.
    pub(in super::super) fn root_elsewhere(&self, job: JobId) -> Option<JobRoot> {
        self.peers.seats.root(job)
    }

    /// A node says what the first task of a job is called, and what its cluster calls the job if that may be taken over.
    pub(super) fn name_job(&mut self, root: JobRoot, name: &str, lasting: Option<&str>) {
        if let Some(lasting) = lasting.filter(|_| root.node != self.options.node) {
            self.peers.remains.introduce(root, lasting);
        }
        if let Some(job) = self.job_of_root(root)
            && root.node != self.options.node
        {
            let name = self.names.of(name.to_owned());
            self.peers.seats.names.insert(job, name);
        }
    }

    /// What the first task of a job is called.
    fn name_of(&self, job: JobId) -> Arc<str> {
        let own = self.jobs.get(&job).and_then(|job| self.sched.task(job.first)).map(|first| first.name.clone());
        own.or_else(|| self.peers.seats.names.get(&job).cloned()).unwrap_or_else(|| "job".into())
    }

    /// A node learns of a job before it is given the first of it.
    pub(super) fn introduce(&mut self, node: NodeId, job: JobId) {
        if self.peers.all.get_mut(&node).is_some_and(|peer| peer.jobs.insert(job)) {
            let (root, name) = (self.root(job), self.name_of(job));
            let lasting = self.jobs.get(&job).and_then(|job| job.lasting.as_ref()).map(|lasting| lasting.name.clone());
            let lasting = lasting.as_deref().map(Cow::Borrowed);
            self.peers.say(node, &PeerMessage::Job { root, name: Cow::Borrowed(&name), lasting });
        }
    }

    /// A job that other nodes know, if it has not ended. One of another node may be new here.
    pub(super) fn job_of_root(&mut self, root: JobRoot) -> Option<JobId> {
        if root.node == self.options.node {
            return self.jobs.contains_key(&root.job).then_some(root.job);
        }
        let job = match self.peers.seats.jobs.get(&root) {
            Some(job) => *job,
            None => {
                let job = self.number_job();
                self.peers.seats.jobs.insert(root, job);
                self.peers.seats.roots.insert(job, root);
                let limits = self.options.job_limits;
                self.step(Event::JobStarted { job, tenant: TenantId::DEFAULT, limits });
                job
            }
        };
        self.peers.seats.orphans.remove(&job);
        Some(job)
    }

    /// The task that stands for a node in a job, on whose behalf it holds things.
    pub(super) fn seat_of(&mut self, node: NodeId, job: JobId, program: &Arc<Program>) -> Option<TaskId> {
        let peer = self.peers.all.get_mut(&node)?;
        if let Some(seat) = peer.seats.get(&job) {
            return Some(*seat);
        }
        // As its job's first task, which it stands for to all that is run here.
        let (id, worker) = (self.ids.take(1).map(TaskId)?, peer.anchor);
        peer.seats.insert(job, id);
        self.peers.seats.all.insert(id, node);
        let call = Call::of(program.clone(), u32::MAX, 0, Box::default(), self.clock);
        let task = Submission::bare(id, job, self.name_of(job), call);
        self.step(Event::ProxyTaskStarted { task, worker });
        Some(id)
    }

    /// As above, of a job of which something runs here.
    pub(super) fn seat_in(&mut self, node: NodeId, job: JobId) -> Option<TaskId> {
        match self.peers.all.get(&node)?.seats.get(&job) {
            Some(seat) => Some(*seat),
            None => self.seat_of(node, job, &self.program_of(job)?),
        }
    }

    /// The program of a job that runs here: that of some task which stands for others, or of its first.
    pub(super) fn program_of(&self, job: JobId) -> Option<Arc<Program>> {
        let first = self.jobs.get(&job).map(|job| job.first);
        let seats = self.peers.all.values().filter_map(|peer| peer.seats.get(&job).copied());
        let mut calls = first.into_iter().chain(seats).filter_map(|task| self.sched.call(task));
        calls.next().map(|call| call.program.clone())
    }

    /// A node needs nothing more of a job. If it is the job's root, nobody does.
    pub(super) fn hear_job_ended(&mut self, node: NodeId, root: JobRoot) {
        let is_own = root.node == self.options.node;
        if root.node == node {
            self.peers.remains.root_ended(root);
        }
        let job = if is_own { Some(root.job) } else { self.peers.seats.jobs.get(&root).copied() };
        self.end_waiting(node, |errand| errand.job == root);
        let Some(job) = job else { return };
        let is_left = || self.peers.all.iter().any(|(other, peer)| *other != node && peer.seats.contains_key(&job));
        if !is_own && (root.node == node || !is_left()) {
            return self.end_guest(job);
        }
        if let Some((seat, given)) = self.leave_seat(node, job) {
            self.step(Event::Cancelled { task: seat, recursive: true });
            given.into_iter().for_each(|id| self.let_go(node, id));
        }
    }

    /// Nothing is done for a node any more of a job: it is told so of each thing that it gave. Gives its seat, and what that was.
    fn leave_seat(&mut self, node: NodeId, job: JobId) -> Option<(TaskId, Vec<(TaskId, u32)>)> {
        let seat = self.peers.all.get_mut(&node)?.seats.remove(&job)?;
        self.forget_asides(|_, of| of == seat);
        let given = self.forget_given(|given| given.owner == node && given.job == job);
        given.iter().for_each(|(_, given)| self.say_cancelled(node, given.errand()));
        Some((seat, given.into_iter().map(|(id, given)| (id, given.returns)).collect()))
    }

    /// A node holds what a task returns no more.
    pub(super) fn let_go(&mut self, node: NodeId, (id, returns): (TaskId, u32)) {
        let Some(worker) = self.peers.anchor(node) else { return };
        self.steps((0..returns).map(|index| Event::ReferencesReleased { object: id.returns(index), worker, count: 1 }));
    }

    /// A job of another node is to end here.
    fn end_guest(&mut self, job: JobId) {
        let Some(root) = self.peers.seats.roots.remove(&job) else { return };
        self.peers.seats.jobs.remove(&root);
        self.peers.seats.names.remove(&job);
        self.peers.seats.orphans.remove(&job);
        self.tell_job_ended(job, root);
        self.step(Event::JobEnded { job });
    }

    /// A job ends here: other nodes need not do anything of it for this one, and this one does nothing for them.
    pub(in super::super) fn tell_job_ended(&mut self, job: JobId, root: JobRoot) {
        for node in self.peers.all.keys().copied().collect::<Vec<_>>() {
            let had_seat = self.leave_seat(node, job).is_some();
            let has_tasks = self.peers.all.get_mut(&node).is_some_and(|peer| peer.jobs.remove(&job));
            if had_seat || has_tasks {
                self.peers.say(node, &PeerMessage::JobEnded(root));
            }
        }
    }

    /// A node is gone, and with it the tasks that stood for it.
    pub(super) fn lose_seats(&mut self, node: NodeId) {
        self.peers.seats.all.retain(|_, of| *of != node);
        for (root, job) in self.peers.seats.jobs.clone() {
            if root.node == node {
                self.peers.seats.orphans.insert(job);
            } else if !self.peers.all.values().any(|peer| peer.seats.contains_key(&job)) {
                self.end_guest(job);
            }
        }
        self.end_orphans();
    }

    /// Jobs end whose root is gone, once nothing of them is run for others.
    pub(in super::super) fn end_orphans(&mut self) {
        let is_over = |job: &JobId| !self.peers.given.values().any(|given| given.job == *job);
        let over: Vec<JobId> = self.peers.seats.orphans.iter().copied().filter(is_over).collect();
        over.into_iter().for_each(|job| self.end_guest(job));
    }
}
