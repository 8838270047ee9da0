//! Actors of which other nodes have handles, or that they have.
//!
//! What is made on behalf of a job that another node runs is made by that: there it is found by its name, and outlives this
//! node. But what is in a placement group of this node, or is to be on this node, is made here.

use sandbar_core::{ActorId, ActorOptions, Attempt, Code, Fault, JobId, NodeId, ObjectId, Strategy, TaskId, WorkerId};
use sandbar_sched::{Event, Submission, SubmissionKind};

use super::super::State;
use super::super::hear::too_large;
use super::lent::Sending;
use crate::calls::Call;
use crate::peer::{Amounts, JobRoot, PeerMessage, RemoteActor, RemoteTaskSpec, RemoteWork};

/// So many calls of an actor are begun again as its owner says.
pub(in super::super) const AS_ITS_OWNER_SAYS: u32 = u32::MAX;

impl State {
    /// Where what makes an actor is to be sent, if it is not made here.
    pub(in super::super) fn maker_root(&self, task: &Submission<Call>) -> Option<JobRoot> {
        let SubmissionKind::ActorCreation(spec) = &task.kind else { return None };
        let is_local = match task.strategy {
            Strategy::Group { .. } => true,
            Strategy::Node { node, soft: false } => node == self.options.node && spec.name.is_none(),
            _ => false,
        };
        self.peers.seats.root(task.job).filter(|_| !is_local)
    }

    /// Has a job's root make an actor.
    pub(in super::super) fn make_at(&mut self, root: JobRoot, worker: WorkerId, task: Submission<Call>) {
        self.deadlines.forget(task.id);
        if let (Some(fault), Some((parent, ..))) =
            (too_large(1, task.dependencies.len() + task.refs.len(), task.call.arguments.len()), task.parent)
        {
            return self.step(Event::PutFailed { object: task.id.returns(0), task: parent, worker, fault });
        }
        let (Some((parent, ..)), Some(make)) = (task.parent, task.call.make.as_deref()) else { return };
        let Some(lender) = self.ask_of_root(root, (task.job, parent), worker, task.id.returns(0)) else { return };
        let (anchor, seat) = lender;
        self.step(Event::ActorBorrowed { actor: ActorId(task.id.0), worker: anchor });
        self.tell_program(root.node, &task.call.program);
        for object in task.dependencies.iter().chain(&task.refs) {
            self.step(Event::ReferenceAdded { object: *object, worker: anchor, task: seat });
        }
        let errand = RemoteTaskSpec {
            task: task.id,
            demand: Amounts::of(&task.demand),
            priority: task.priority,
            depth: self.sched.task(parent).map_or(1, |parent| parent.depth).saturating_add(1),
            refs: task.refs,
            work: RemoteWork::CreateActor {
                options: make.actor.clone(),
                actor_name: make.name.as_deref().map(Into::into),
                strategy: task.strategy,
            },
            ..self.errand(task.job, &task.name, &task.call)
        };
        self.peers.say(root.node, &PeerMessage::Submit(errand));
    }

    /// Has a job's root find an actor.
    pub(in super::super) fn find_at(
        &mut self,
        root: JobRoot,
        (job, task): (JobId, TaskId),
        worker: WorkerId,
        object: ObjectId,
        name: &str,
    ) {
        if let Some((anchor, _)) = self.ask_of_root(root, (job, task), worker, object) {
            self.step(Event::ActorBorrowed { actor: ActorId(object.0), worker: anchor });
            self.peers.say(root.node, &PeerMessage::FindActor { object, job: root, name: name.into() });
        }
    }

    /// A task gets an object that the root of its job makes, and lends. Gives the root's anchor and its seat.
    fn ask_of_root(
        &mut self,
        root: JobRoot,
        (job, task): (JobId, TaskId),
        worker: WorkerId,
        object: ObjectId,
    ) -> Option<(WorkerId, TaskId)> {
        let program = self.sched.call(task)?.program.clone();
        let (anchor, seat) = (self.peers.anchor(root.node), self.seat_of(root.node, job, &program));
        let (Some(anchor), Some(seat)) = (anchor, seat) else {
            let fault = Fault::new(Code::ActorDied, "the node that runs the job, and has its actors, is not connected");
            self.step(Event::PutFailed { object, task, worker, fault });
            return None;
        };
        self.introduce(root.node, job);
        self.borrow_for(root.node, object, task, worker);
        Some((anchor, seat))
    }

    /// A node wants the handle of an actor of a job that this one runs.
    pub(super) fn find_for(&mut self, node: NodeId, object: ObjectId, root: JobRoot, name: &str) {
        let job = self.job_of_root(root);
        let seat = job.and_then(|job| self.seat_in(node, job));
        match (seat, self.peers.anchor(node)) {
            (Some(seat), Some(anchor)) => self.find(anchor, TaskId(object.0), (seat, Attempt(0)), name),
            _ => {
                let fault = Fault::new(Code::Cancelled, "its job has ended");
                let value = Sending::failed(&sandbar_core::TaskError { fault, chain: Vec::new() });
                self.peers
                    .say(node, &PeerMessage::ObjectValue { object, value: value.as_sent(), contains: Vec::new() });
            }
        }
    }

    /// An actor that another node means; none if it has ended, and that node was told.
    pub(super) fn callee(&mut self, node: NodeId, callee: RemoteActor) -> Option<ActorId> {
        match callee {
            RemoteActor::Lent(actor) => {
                self.meet_actor(actor);
                Some(actor)
            }
            RemoteActor::Hosted(task, attempt) => {
                let id = *self.peers.theirs.get(&(node, task))?;
                self.peers.given.get(&id).filter(|given| given.errand().1 == attempt)?;
                Some(ActorId(id.0))
            }
        }
    }

    /// An actor may be that of a node which has lent its handle.
    pub(in super::super) fn meet_actor(&mut self, actor: ActorId) {
        if self.sched.actor(actor).is_none()
            && let Some(lender) = self.lender_of(actor.handle())
            && let Some(worker) = self.peers.anchor(lender)
        {
            self.step(Event::ActorBorrowed { actor, worker });
        }
    }

    /// How often calls of an actor are begun again that say nothing else.
    pub(in super::super) fn call_retries(&self, actor: ActorId) -> u32 {
        match self.made(actor) {
            Some(made) => made.actor.max_task_retries,
            None if self.peers.is_any() => AS_ITS_OWNER_SAYS,
            None => 0,
        }
    }

    /// How an actor that is with another node is meant there.
    fn as_callee(&self, actor: ActorId) -> RemoteActor {
        match self.sched.task(actor.creation_task()) {
            Some(maker) if self.made(actor).is_some() => RemoteActor::Hosted(maker.id, maker.attempt),
            _ => RemoteActor::Lent(actor),
        }
    }

    /// What another node is to do.
    pub(super) fn errand_work<'a>(&self, worker: WorkerId, task: TaskId, call: &'a Call) -> Option<RemoteWork<'a>> {
        if let Some(actor) = self.sched.actor_of(task) {
            let view = self.sched.task(task)?;
            let retries = (view.retries_max != AS_ITS_OWNER_SAYS).then_some(view.retries_max);
            return Some(RemoteWork::Call { actor: self.as_callee(actor), retries, retry_on: view.retry_on });
        }
        if let Some(make) = &call.make {
            let begun_anew = self.sched.task(task).map_or(0, |view| view.attempt.0);
            let max_restarts = make.actor.max_restarts.saturating_sub(begun_anew);
            let options = ActorOptions { max_restarts, detached: false, get_if_exists: false, ..make.actor.clone() };
            let saved = self.sched.actor(ActorId(task.0)).and_then(|actor| actor.checkpoint);
            return Some(RemoteWork::HostActor(options, saved));
        }
        debug_assert!(self.peers.is_far(worker), "it is another node's");
        Some(match self.sched.stream(task.returns(0)).filter(|_| call.is_generator()) {
            Some(stream) => RemoteWork::Generator(stream.buffer),
            None => RemoteWork::Task,
        })
    }

    /// Ends an actor that another node has, or begins it anew there. Says whether it is another's.
    pub(in super::super) fn kill_at(&mut self, actor: ActorId, restart: bool) -> bool {
        if let Some(lender) = self.lender_of(actor.handle()) {
            self.peers.say(lender, &PeerMessage::KillActor(RemoteActor::Lent(actor), restart));
            return true;
        }
        let there = self.sched.actor(actor).and_then(|actor| self.peers.far.get(&actor.worker?).copied());
        match there.filter(|_| restart) {
            Some(node) => {
                self.peers.say(node, &PeerMessage::KillActor(self.as_callee(actor), true));
                true
            }
            None => false,
        }
    }

    /// A node wants an actor ended, or begun anew.
    pub(super) fn kill_for(&mut self, node: NodeId, callee: RemoteActor, restart: bool) {
        let (Some(actor), Some(anchor)) = (self.callee(node, callee), self.peers.anchor(node)) else { return };
        self.kill(anchor, actor, restart);
    }
}
