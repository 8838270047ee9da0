//! Other nodes: tasks that they run for this node, tasks that this node runs for them, and objects and actors of both.
//!
//! See [`crate::peer`] for the protocol, and [`connections`] for how the scheduler sees a peer.

mod actors;
mod borrowed;
mod checkpoints;
mod connections;
mod drain;
mod executor;
mod limits;
mod opened_files;
mod owner;
mod peer_values;
mod programs;
mod proxy_tasks;
mod remote_values;
mod reservations;
mod result_cache;
mod submitted;

use std::io;
use std::sync::Arc;

use sandbar_core::{ActorId, Attempt, Fault, GroupId, JobId, NodeId, ObjectId, TaskError, TaskId, WorkerId};
use sandbar_jobs::AttemptRecord;
use sandbar_sched::{Event, ResourceSet, Submission, WorkerKind};
use sandbar_store::SealedFile;
use sandbar_wire::Priority;
use sandbar_worker::program::AttemptUsage;

pub(super) use self::actors::default_retries;
pub(crate) use self::connections::Connections;
pub(super) use self::limits::too_large_for_peers;
pub(super) use self::result_cache::is_resumable;
pub(super) use self::result_cache::lineage_of;

use self::borrowed::Borrowed;
use self::checkpoints::{Checkpoints, RemoteCheckpoint};
use self::connections::IntroducedJob;
use self::drain::Drain;
use self::executor::{Executor, release_returns, send_cancelled};
use self::owner::{RemoteFinished, RemoteItem, TaskName};
use self::peer_values::{OutgoingValue, outgoing, with_contents};
use self::programs::{IntroducedProgram, Programs};
use self::proxy_tasks::ProxyTasks;
use self::remote_values::{CheckpointFetched, MissedValues};
use self::reservations::{Reservations, ReserveRequest};
use self::result_cache::ResultCache;
use self::submitted::HostingParts;
use super::context::Context;
use super::effects::{Effect, JobEffect};
use super::refs::{AttemptRef, OpenedFile, ProgressAmount, ReceivedObject, ReservationRef, TaskInWorker};
use super::values::{Recipient, RemoteKey};
use crate::calls::{Program, TaskPayload};
use crate::peer::{CachedResult, Callback, JobRoot, LoadResult, PeerLine, PeerMessage, RemoteTaskSpec};

/// Work of this node with other nodes. Its parts do not call each other, but for those below them in this order: connections,
/// proxy tasks and borrowed objects; values; owner, executor and programs; actors, checkpoints, reservations, drain.
#[derive(Default)]
pub(super) struct Peers {
    proxies: ProxyTasks,
    borrowed: Borrowed,
    missed: MissedValues,
    executor: Executor,
    programs: Programs,
    checkpoints: Checkpoints,
    reservations: Reservations,
    results: ResultCache,
    drain: Drain,
}

/// A message that reports something of a job of this node: it goes to the job recorder.
pub(super) enum JobReport<'a> {
    Log {
        job: JobId,
        task: TaskId,
        name: Arc<str>,
        worker: WorkerId,
        level: u8,
        line: &'a str,
    },
    Progress {
        job: JobId,
        task: TaskId,
        name: &'a str,
        done: u64,
        total: Option<u64>,
    },
    /// An attempt that another node ran: with the job and the name of its task, unless it is no longer wanted.
    Attempt {
        of: Option<TaskName>,
        attempt: AttemptRecord,
    },
}

impl Peers {
    /// Returns the numbers of items of each part, for tests.
    pub(super) fn counts(&self, cx: &Context) -> [usize; 8] {
        [
            self.executor.len(),
            self.proxies.len(),
            self.borrowed.len(),
            cx.remote_values.len(),
            self.missed.len(),
            self.checkpoints.len(),
            self.reservations.len(),
            cx.peers.remote_workers(),
        ]
    }

    /// Returns whether a task stands for another node, or was submitted by one.
    pub(super) fn is_of_other_node(&self, cx: &Context, task: TaskId) -> bool {
        let is_hosted = |parent: TaskId| self.proxies.is_proxy(parent);
        cx.peers.is_any()
            && (self.proxies.is_proxy(task)
                || cx.scheduler.task(task).and_then(|view| view.parent).is_some_and(is_hosted))
    }

    /// Returns the root of a job that another node runs.
    #[cfg(test)]
    pub(super) fn remote_root(&self, job: JobId) -> Option<JobRoot> {
        self.proxies.remote_root(job)
    }

    /// Returns whether a task stands for another node.
    #[cfg(test)]
    pub(super) fn is_proxy(&self, task: TaskId) -> bool {
        self.proxies.is_proxy(task)
    }

    /// Connects a node. `ids` are worker ids: of its proxy worker, and of its slots.
    pub(super) fn join(
        &mut self,
        cx: &mut Context,
        node: NodeId,
        line: PeerLine,
        mut ids: impl Iterator<Item = WorkerId>,
    ) {
        let Some(proxy_worker) = ids.next() else { return };
        cx.peers.add(node, line, proxy_worker);
        self.drain.node_joined(cx, node);
        cx.step(Event::WorkerReady { worker: proxy_worker, node, kind: WorkerKind::PeerProxy });
        for slot in ids {
            cx.peers.add_worker(slot, node);
            cx.step(Event::WorkerReady { worker: slot, node, kind: WorkerKind::RemoteTasks });
        }
    }

    /// Disconnects a node: all work for it, and of it for this node, ends.
    pub(super) fn disconnect(&mut self, cx: &mut Context, node: NodeId) {
        if !cx.peers.contains(node) {
            return;
        }
        let there = cx.scheduler.workers().filter(|worker| worker.node == node);
        let mut lost: Vec<TaskId> =
            there.flat_map(|worker| worker.assigned.into_iter().chain(worker.blocked)).collect();
        lost.retain(|task| !self.proxies.is_proxy(*task));
        let lost = cx.count_by_job(&lost);
        for (job, attempts) in &lost {
            cx.usage.book(*job, |amounts| amounts.attempts_lost += attempts);
        }
        cx.push(Effect::Job(JobEffect::NodeLost(lost, format!("node {node} is lost"))));
        cx.peers.remove(node);
        self.executor.remove(|hosted| hosted.owner == node);
        self.programs.node_lost(node);
        self.reservations.node_lost(node);
        self.checkpoints.node_lost(node);
        self.drain.node_lost(node);
        // Before anything that is reconstructed is assigned to it.
        cx.step(Event::NodeLost { node });
        self.results.roots_lost(cx.time.now, |root| root.node == node);
        for job in self.proxies.remove_node(node) {
            self.end_remote_job(cx, job);
        }
        self.end_orphans(cx);
        self.borrowed.lender_lost(cx, node);
        self.missed.node_lost(cx, node);
    }

    /// Decodes and handles a message of a node.
    ///
    /// # Errors
    /// The message is invalid.
    pub(super) fn handle<'a>(
        &mut self,
        cx: &mut Context,
        node: NodeId,
        frame: &'a [u8],
    ) -> io::Result<Option<JobReport<'a>>> {
        let Some(worker) = cx.peers.proxy_worker(node) else { return Ok(None) };
        match postcard::from_bytes(frame).map_err(io::Error::other)? {
            PeerMessage::Program { program, tenant, component, limits } => {
                let of_tenant = cx.jobs.keys().filter(|job| cx.scheduler.tenant_of(**job) == Some(tenant));
                let own: Vec<Arc<Program>> = of_tenant.filter_map(|job| self.proxies.program_of(cx, *job)).collect();
                let introduced = IntroducedProgram { program, tenant, component, limits };
                self.programs.load(cx, node, introduced, own.into_iter())?;
            }
            PeerMessage::Job { root, tenant, run, name, lasting } => {
                if let Some(lasting) = lasting.filter(|_| root.node != cx.node()) {
                    self.results.introduce(root, &lasting);
                }
                let introduced = IntroducedJob { tenant, run, name: cx.ids.names.intern(name.into_owned()) };
                self.proxies.introduced(cx, node, root, introduced)?;
            }
            PeerMessage::Submit(spec) => self.handle_submit(cx, node, spec, frame)?,
            PeerMessage::Recall(slot) => {
                let waiting = self.programs.remove_waiting(cx, node, |spec| spec.slot == slot);
                let waiting = waiting.into_iter().map(|remote| remote.task).collect();
                self.executor.handle_recall(cx, node, slot, waiting);
            }
            PeerMessage::Recalled(worker, tasks) => {
                if cx.peers.node_of(worker) == Some(node) {
                    cx.step(Event::Recalled { worker, tasks });
                }
            }
            PeerMessage::Cancel(task, attempt, ends_call) => {
                self.cancel_waiting(cx, node, |spec| (spec.task, spec.attempt) == (task, attempt));
                self.executor.handle_cancel(cx, node, AttemptRef { task, attempt }, ends_call);
            }
            PeerMessage::JobEnded(root) => self.handle_job_ended(cx, node, root),
            PeerMessage::Finished { task, attempt, slot, returned, system, usage } => {
                let usage = AttemptUsage { started: cx.time.nanos.saturating_sub(usage.started), ..usage };
                let finished = RemoteFinished { task, attempt, slot, returned, is_system: system, usage };
                let record = owner::handle_finished(cx, &mut self.borrowed, node, finished);
                return Ok(record.map(|(of, attempt)| JobReport::Attempt { of, attempt }));
            }
            PeerMessage::Blocked(task, blocked) => {
                if let Some(worker) = cx.scheduler.task(task).and_then(|view| view.worker)
                    && cx.peers.node_of(worker) == Some(node)
                {
                    cx.step(Event::Blocked { task, worker, blocked });
                }
            }
            PeerMessage::Yielded { task, attempt, slot, index, object, value, contains } => {
                let item = RemoteItem { task, attempt, slot, index, object, value, contains };
                owner::handle_item(cx, &mut self.borrowed, node, item);
            }
            PeerMessage::Checkpoint { task, attempt, object, value, contains } => {
                let checkpoint = RemoteCheckpoint { task, attempt, object, value, contains };
                self.checkpoints.handle(cx, &mut self.borrowed, node, checkpoint);
            }
            PeerMessage::ItemsTaken(task, consumed) => self.executor.handle_items_taken(cx, node, task, consumed),
            PeerMessage::FindActor { object, job, name } => {
                actors::handle_find(cx, &mut self.proxies, node, object, job, &name);
            }
            PeerMessage::OpenFile { object, job, number } => {
                opened_files::handle_open(cx, &mut self.proxies, node, object, job, number);
            }
            PeerMessage::KillActor(actor, restart) => {
                let actor = actors::actor_of_message(cx, &self.borrowed, &self.executor, node, actor);
                if let Some(actor) = actor {
                    cx.push(Effect::KillActor(worker, actor, restart));
                }
            }
            PeerMessage::RequestObject(object, is_missed) => {
                self.missed.handle_request(cx, object, worker, is_missed);
            }
            PeerMessage::ObjectValue { object, value, contains } => {
                let received = ReceivedObject { object, value, contains };
                let Peers { proxies, borrowed, .. } = self;
                submitted::handle_value(cx, proxies, borrowed, node, received, Priority::Get);
            }
            PeerMessage::Release(object, count) => {
                self.programs.handle_released(cx, node, object);
                cx.step(Event::ReferencesReleased { object, worker, count });
            }
            PeerMessage::Log { job, task, name, worker, level, line } => {
                let name = name.as_ref().into();
                return Ok(Some(JobReport::Log { job, task, name, worker, level, line }));
            }
            PeerMessage::Progress { job, task, name, done, total } => {
                return Ok(Some(JobReport::Progress { job, task, name, done, total }));
            }
            PeerMessage::ReserveBundles { group, attempt, job, program, bundles } => {
                let request = ReserveRequest { group, attempt, job, program, bundles };
                self.reservations.handle_reserve(cx, &mut self.proxies, &self.programs, node, request);
            }
            PeerMessage::ReserveReply(group, attempt, granted) => {
                cx.step(Event::ReserveReply { group, node, attempt, granted });
            }
            PeerMessage::ReleaseBundles(group, attempt) => {
                self.reservations.handle_release(cx, node, group, attempt);
            }
            PeerMessage::Load(usage) => cx.step(Event::NodeLoad { node, external_usage: usage.resources() }),
            PeerMessage::Leaving => self.drain.handle_leaving(cx, node),
            PeerMessage::Released => self.drain.handle_released(node),
        }
        Ok(None)
    }

    /// A node submits a task, which waits until its program is loaded.
    ///
    /// # Errors
    /// The task is invalid.
    fn handle_submit(
        &mut self,
        cx: &mut Context,
        node: NodeId,
        spec: RemoteTaskSpec<'_>,
        frame: &[u8],
    ) -> io::Result<()> {
        let is_own = spec.job.node == cx.node();
        let own = || is_own.then(|| self.proxies.program_of(cx, spec.job.job)).flatten();
        match self.programs.get_or_wait(node, spec.program, frame, own)? {
            programs::Lookup::Waits => Ok(()),
            programs::Lookup::Loaded(Err(fault)) => {
                submitted::refuse(cx, node, &spec, fault);
                Ok(())
            }
            programs::Lookup::Loaded(Ok(program)) => {
                let Peers { proxies, borrowed, executor, reservations, .. } = self;
                let parts = HostingParts { proxies, borrowed, executor, reservations };
                submitted::start(cx, parts, node, spec, program)
            }
        }
    }

    /// A program of a node was loaded, or can't be.
    pub(super) fn loaded(&mut self, cx: &mut Context, node: NodeId, program: u32, loaded: LoadResult) {
        let waiting = self.programs.loaded(cx, node, program, loaded);
        // Without the program, bundles could not be reserved.
        self.reservations.report_soon(node);
        for frame in waiting {
            let Ok(PeerMessage::Submit(spec)) = postcard::from_bytes(&frame) else { continue };
            if self.handle_submit(cx, node, spec, &frame).is_err() {
                cx.push(Effect::Disconnect(node));
            }
        }
    }

    fn cancel_waiting(&mut self, cx: &mut Context, node: NodeId, is_cancelled: impl Fn(&RemoteTaskSpec<'_>) -> bool) {
        for remote in self.programs.remove_waiting(cx, node, is_cancelled) {
            send_cancelled(cx, node, remote);
        }
    }

    /// A node needs nothing more of a job. If the node is the job's root, no node does.
    fn handle_job_ended(&mut self, cx: &mut Context, node: NodeId, root: JobRoot) {
        let is_own = root.node == cx.node();
        cx.peers.forget_introduction(node, root);
        if root.node == node {
            self.results.root_ended(root);
        }
        let job = if is_own { Some(root.job) } else { self.proxies.known_job(root) };
        self.cancel_waiting(cx, node, |spec| spec.job == root);
        let Some(job) = job else { return };
        if !is_own && (root.node == node || !self.proxies.is_in_other(job, node)) {
            return self.end_remote_job(cx, job);
        }
        if let Some((proxy, hosted)) = self.end_for(cx, node, job) {
            cx.step(Event::Cancelled { task: proxy, recursive: true });
            hosted.into_iter().for_each(|(id, returns)| release_returns(cx, node, id, returns));
        }
    }

    /// Ends all work for a node in a job. Returns its proxy task, and the tasks with the number of their returned objects.
    fn end_for(&mut self, cx: &mut Context, node: NodeId, job: JobId) -> Option<(TaskId, Vec<(TaskId, u32)>)> {
        let proxy = self.proxies.remove(node, job)?;
        self.reservations.proxy_ended(proxy);
        let hosted = self.executor.remove(|hosted| hosted.owner == node && hosted.job == job);
        hosted.iter().for_each(|(_, hosted)| send_cancelled(cx, node, hosted.remote));
        Some((proxy, hosted.into_iter().map(|(id, hosted)| (id, hosted.returns)).collect()))
    }

    /// Ends a job of another node here.
    fn end_remote_job(&mut self, cx: &mut Context, job: JobId) {
        if let Some(root) = self.proxies.remove_job(job) {
            self.announce_job_ended(cx, job, root);
            cx.step(Event::JobEnded { job });
        }
    }

    /// Tells other nodes that this one needs nothing more of a job, and ends their work in it.
    fn announce_job_ended(&mut self, cx: &mut Context, job: JobId, root: JobRoot) {
        for node in cx.peers.nodes() {
            let had_proxy = self.end_for(cx, node, job).is_some();
            if cx.peers.forget_job(node, job) || had_proxy {
                cx.peers.send(node, &PeerMessage::JobEnded(root));
            }
        }
    }

    /// Ends jobs whose root is not connected, once no task of them runs for other nodes.
    fn end_orphans(&mut self, cx: &mut Context) {
        let ended: Vec<JobId> = self.proxies.orphans().filter(|job| !self.executor.has_job(*job)).collect();
        ended.into_iter().for_each(|job| self.end_remote_job(cx, job));
    }

    /// A job of this node starts, with results of an earlier run. Nodes that have more results keep them until it ends.
    pub(super) fn job_started(&mut self, cx: &mut Context, job: JobId, results: Vec<CachedResult>) {
        let Some(name) = cx.jobs.get(&job).and_then(|job| job.cluster_name.clone()) else { return };
        self.results.resume_job(job, results);
        if self.results.is_resumed(job) {
            self.results.introduce(self.proxies.root(cx, job), &name);
            for node in cx.peers.nodes() {
                self.proxies.introduce(cx, node, job);
            }
        }
    }

    /// A job of this node has ended.
    pub(super) fn job_ended(&mut self, cx: &mut Context, job: JobId) {
        let root = self.proxies.root(cx, job);
        self.announce_job_ended(cx, job, root);
        self.results.root_ended(root);
        self.results.job_ended(job);
    }

    /// Submits a task that another node runs, or that has a result of an earlier run. Returns the task otherwise.
    pub(super) fn submit(
        &mut self,
        cx: &mut Context,
        worker: WorkerId,
        task: Submission<TaskPayload>,
    ) -> Option<Submission<TaskPayload>> {
        if let Some(root) = actors::creating_root(cx, &self.proxies, &task) {
            actors::create_at_root(cx, &mut self.proxies, &mut self.borrowed, root, worker, task);
            return None;
        }
        self.results.resume_task(cx, worker, task)
    }

    /// Has a job's root find an actor. Returns whether another node is the root.
    pub(super) fn find_actor(
        &mut self,
        cx: &mut Context,
        task: TaskId,
        worker: WorkerId,
        object: ObjectId,
        name: &str,
    ) -> bool {
        let job = cx.scheduler.job_of(task);
        let Some((job, root)) = job.and_then(|job| Some((job, self.proxies.remote_root(job)?))) else { return false };
        let requester = TaskInWorker { job, task, worker };
        actors::find_at_root(cx, &mut self.proxies, &mut self.borrowed, root, requester, object, name);
        true
    }

    /// Has a job's root open a file. Returns whether another node is the root.
    pub(super) fn open_file(&mut self, cx: &mut Context, opened: &OpenedFile) -> bool {
        let job = cx.scheduler.job_of(opened.task);
        let Some((job, root)) = job.and_then(|job| Some((job, self.proxies.remote_root(job)?))) else { return false };
        opened_files::open_at_root(cx, &mut self.proxies, &mut self.borrowed, (job, root), opened);
        true
    }

    /// Tells the scheduler of an actor of another node.
    pub(super) fn meet_actor(&self, cx: &mut Context, actor: ActorId) {
        actors::meet(cx, &self.borrowed, actor);
    }

    /// Kills an actor of another node. Returns whether another node has it.
    pub(super) fn kill_actor(&self, cx: &mut Context, actor: ActorId, restart: bool) -> bool {
        actors::kill(cx, &self.borrowed, actor, restart)
    }

    /// Assigns a task to a slot of another node.
    pub(super) fn assign(&self, cx: &mut Context, worker: WorkerId, task: TaskId) {
        owner::assign(cx, &self.proxies, worker, task);
    }

    pub(super) fn recall(cx: &mut Context, worker: WorkerId) {
        owner::recall(cx, worker);
    }

    /// Ends an attempt on another node, even a running call of an actor if `ends_call`.
    pub(super) fn cancel(&mut self, cx: &mut Context, worker: WorkerId, attempt: AttemptRef, ends_call: bool) {
        owner::cancel(cx, &mut self.proxies, worker, attempt, ends_call);
    }

    pub(super) fn send_credit(cx: &mut Context, worker: WorkerId, task: TaskId, consumed: u64) {
        owner::send_credit(cx, worker, task, consumed);
    }

    /// Delivers an object to a node that requested it, or the results of its task.
    pub(super) fn deliver(&mut self, cx: &mut Context, worker: WorkerId, object: ObjectId) {
        if let Some(finished) = self.executor.handle_return(object) {
            if let Some(finished) = finished {
                self.results.task_finished(cx, &self.proxies, &finished);
            }
            return self.executor.send_results(cx, object);
        }
        let (Some(node), Some(value)) = (cx.peers.node_of(worker), outgoing(cx, object)) else { return };
        let (value, contains) = with_contents(cx, object, value);
        cx.peers.send(node, &PeerMessage::ObjectValue { object, value: value.as_message(), contains });
    }

    /// Delivers an item of a stream to the owner of its generator.
    pub(super) fn deliver_item(&mut self, cx: &mut Context, worker: WorkerId, stream: ObjectId, object: ObjectId) {
        self.executor.send_item(cx, worker, stream, object);
    }

    /// Tells a node that it can't have an object.
    pub(super) fn refuse(cx: &mut Context, worker: WorkerId, object: ObjectId, error: &TaskError) {
        let Some(node) = cx.peers.node_of(worker) else { return };
        let value = OutgoingValue::failed(error);
        let value = value.as_message();
        cx.peers.send(node, &PeerMessage::ObjectValue { object, value, contains: Vec::new() });
    }

    pub(super) fn request_object(&mut self, cx: &mut Context, object: ObjectId) {
        self.borrowed.request(cx, object);
    }

    pub(super) fn release_object(&mut self, cx: &mut Context, object: ObjectId) {
        self.borrowed.release(cx, object);
    }

    pub(super) fn deliver_remote(cx: &mut Context, key: RemoteKey, recipient: Recipient) {
        MissedValues::deliver(cx, key, recipient);
    }

    pub(super) fn drop_remote(&mut self, cx: &mut Context, key: RemoteKey) {
        let checkpoint = self.missed.drop_value(cx, key);
        self.checkpoint_fetched(cx, checkpoint);
    }

    /// A value was fetched, or can't be.
    pub(super) fn fetched(&mut self, cx: &mut Context, number: u64, fetched: Result<SealedFile, Fault>) {
        let checkpoint = self.missed.fetched(cx, &mut self.borrowed, number, fetched);
        self.checkpoint_fetched(cx, checkpoint);
    }

    fn checkpoint_fetched(&mut self, cx: &mut Context, fetched: Option<CheckpointFetched>) {
        if let Some(fetched) = fetched {
            self.checkpoints.fetched(cx, fetched);
        }
    }

    pub(super) fn reserve_bundles(
        &self,
        cx: &mut Context,
        node: NodeId,
        attempt: ReservationRef,
        bundles: &[(u32, ResourceSet)],
    ) {
        reservations::request(cx, &self.proxies, node, attempt, bundles);
    }

    pub(super) fn release_bundles(cx: &mut Context, node: NodeId, group: GroupId, attempt: Attempt) {
        cx.peers.send(node, &PeerMessage::ReleaseBundles(group, attempt));
    }

    /// An attempt has finished in its worker.
    pub(super) fn attempt_finished(&mut self, task: TaskId, usage: &AttemptUsage) {
        self.executor.attempt_finished(task, usage);
    }

    /// A task has ended.
    pub(super) fn task_ended(&mut self, task: TaskId, error: Option<&TaskError>) {
        self.executor.task_ended(task, error);
    }

    /// Tells owners of hosted actors that have ended, after the results of their calls.
    pub(super) fn send_ended_actors(&mut self, cx: &mut Context) {
        self.executor.send_ended_actors(cx);
    }

    pub(super) fn task_blocked(&self, cx: &mut Context, task: TaskId, blocked: bool) {
        self.executor.task_blocked(cx, task, blocked);
    }

    /// An actor has a new checkpoint.
    pub(super) fn actor_checkpointed(&mut self, cx: &mut Context, actor: ActorId, object: ObjectId) {
        checkpoints::send(cx, &mut self.proxies, &self.executor, actor, object);
    }

    /// Sends a log line of a task to the node that runs its job.
    pub(super) fn log(&self, cx: &mut Context, worker: WorkerId, task: TaskId, level: u8, line: &str) {
        if let Some(root) = cx.scheduler.job_of(task).and_then(|job| self.proxies.remote_root(job)) {
            executor::send_log(cx, root, worker, task, level, line);
        }
    }

    /// Sends progress of a task to the node that runs its job.
    pub(super) fn progress(&self, cx: &mut Context, task: TaskId, name: &str, progress: ProgressAmount) {
        if let Some(root) = cx.scheduler.job_of(task).and_then(|job| self.proxies.remote_root(job)) {
            executor::send_progress(cx, root, task, name, progress);
        }
    }

    /// Returns the value of a cached result of another node's job.
    pub(super) fn cached_value(&self, object: ObjectId) -> Option<SealedFile> {
        self.results.file(object)
    }

    /// Returns cached results of a job from a number on, each with the number after it.
    pub(super) fn cached_results(&self, name: &str, from: u64) -> Vec<(u64, CachedResult)> {
        self.results.page(name, from)
    }

    /// Drains this node: see [`Drain::start`].
    pub(super) fn drain(&mut self, cx: &mut Context, reply: Callback<()>) {
        self.drain.start(cx, reply);
    }

    /// Performs periodic work. `has_jobs` is set if jobs of this node run; `leases` are resources of leases, by the
    /// node that they are for.
    pub(super) fn tick(&mut self, cx: &mut Context, has_jobs: bool, leases: &[(NodeId, ResourceSet)]) {
        let Peers { drain, executor, borrowed, proxies, results, reservations, .. } = self;
        drain.tick(cx, borrowed, proxies, !has_jobs && executor.is_empty());
        results.expire(cx.time.now);
        reservations.report_load(cx, |cx| {
            let mut usage = executor.usage_by_owner(cx);
            leases.iter().for_each(|(node, lease)| usage.entry(*node).or_default().add(lease));
            usage
        });
        self.end_orphans(cx);
    }
}
