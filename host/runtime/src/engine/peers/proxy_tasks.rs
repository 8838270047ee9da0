//! Jobs of other nodes, and proxy tasks: tasks that stand for other nodes in a job. A proxy task runs in the node's proxy
//! worker. It is the parent of the tasks that the node has submitted, and holds its references.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use sandbar_core::{JobId, JobRun, NodeId, TaskId};
use sandbar_sched::{Event, Submission};

use super::super::context::Context;
use super::connections::IntroducedJob;
use crate::calls::{Program, TaskPayload};
use crate::peer::{JobRoot, PeerMessage};

/// Jobs of other nodes, and proxy tasks.
#[derive(Debug, Default)]
pub(super) struct ProxyTasks {
    /// Local ids of jobs of other nodes.
    jobs: BTreeMap<JobRoot, JobId>,
    roots: FxHashMap<JobId, JobRoot>,
    /// Names of their root tasks.
    names: FxHashMap<JobId, Arc<str>>,
    /// Their identities in accounts.
    runs: FxHashMap<JobId, JobRun>,
    /// Jobs whose root node is not connected. They end with the tasks that run here for others.
    orphans: BTreeSet<JobId>,
    /// Proxy tasks.
    tasks: BTreeMap<(NodeId, JobId), TaskId>,
    /// Proxy tasks that have not ended.
    live: FxHashMap<TaskId, NodeId>,
}

impl ProxyTasks {
    pub(super) fn len(&self) -> usize {
        self.live.len() + self.tasks.len() + self.jobs.len() + self.roots.len() + self.orphans.len()
    }

    pub(super) fn is_proxy(&self, task: TaskId) -> bool {
        self.live.contains_key(&task)
    }

    /// A proxy task is to end. Returns whether it is one.
    pub(super) fn end(&mut self, task: TaskId) -> bool {
        self.live.remove(&task).is_some()
    }

    /// Returns the root of a job that another node runs.
    pub(super) fn remote_root(&self, job: JobId) -> Option<JobRoot> {
        self.roots.get(&job).copied()
    }

    /// Returns the root of a job.
    pub(super) fn root(&self, cx: &Context, job: JobId) -> JobRoot {
        self.remote_root(job).unwrap_or(JobRoot { node: cx.node(), job })
    }

    /// Returns the local id of a job of another node that something of runs here.
    pub(super) fn known_job(&self, root: JobRoot) -> Option<JobId> {
        self.jobs.get(&root).copied()
    }

    /// Returns the local id of a job for a message of a node, unless it has ended, or that node has not introduced it. A job
    /// of another node may be new here.
    pub(super) fn job_of_root(&mut self, cx: &mut Context, node: NodeId, root: JobRoot) -> Option<JobId> {
        if root.node == cx.node() {
            return cx.jobs.contains_key(&root.job).then_some(root.job);
        }
        let job = match self.known_job(root) {
            Some(job) => job,
            None => {
                let IntroducedJob { tenant, run, name } = cx.peers.introduction(node, root)?.clone();
                let job = cx.ids.next_job();
                self.jobs.insert(root, job);
                self.roots.insert(job, root);
                self.names.insert(job, name);
                self.runs.insert(job, run.clone());
                cx.start_job(job, tenant, run, None);
                job
            }
        };
        self.orphans.remove(&job);
        Some(job)
    }

    /// A node introduces a job of another node.
    pub(super) fn introduced(
        &mut self,
        cx: &mut Context,
        node: NodeId,
        root: JobRoot,
        introduced: IntroducedJob,
    ) -> io::Result<()> {
        if root.node != cx.node() {
            cx.peers.introduced(node, root, introduced)?;
            self.job_of_root(cx, node, root);
        }
        Ok(())
    }

    /// Returns the name of a job's root task.
    fn name(&self, cx: &Context, job: JobId) -> Arc<str> {
        let own = cx.jobs.get(&job).and_then(|job| cx.scheduler.task(job.first)).map(|first| first.name.clone());
        own.or_else(|| self.names.get(&job).cloned()).unwrap_or_else(|| "job".into())
    }

    /// Describes a job to a node that does not know it.
    pub(super) fn introduce(&self, cx: &mut Context, node: NodeId, job: JobId) {
        if cx.peers.must_introduce(node, job) {
            let (root, name) = (self.root(cx, job), self.name(cx, job));
            let lasting = cx.jobs.get(&job).and_then(|job| job.cluster_name.clone());
            let lasting = lasting.as_deref().map(Cow::Borrowed);
            let run = cx.jobs.get(&job).map(|job| &job.run).or_else(|| self.runs.get(&job)).cloned();
            let (tenant, run) = (cx.scheduler.tenant_of(job).unwrap_or_default(), run.unwrap_or_default());
            let name = Cow::Borrowed(&*name);
            cx.peers.send(node, &PeerMessage::Job { root, tenant, run, name, lasting });
        }
    }

    /// Returns the proxy task of a node in a job, which the first call starts. Returns `None` without a connection.
    pub(super) fn get_or_start(
        &mut self,
        cx: &mut Context,
        node: NodeId,
        job: JobId,
        program: &Arc<Program>,
    ) -> Option<TaskId> {
        let worker = cx.peers.proxy_worker(node)?;
        if let Some(task) = self.tasks.get(&(node, job)) {
            return Some(*task);
        }
        let id = cx.ids.take(1).map(TaskId)?;
        self.tasks.insert((node, job), id);
        self.live.insert(id, node);
        let call = TaskPayload::new(program.clone(), u32::MAX, 0, Box::default(), cx.time.nanos);
        // It has the name of the job's root task, which it stands for.
        let task = Submission::bare(id, job, self.name(cx, job), call);
        cx.step(Event::ProxyTaskStarted { task, worker });
        Some(id)
    }

    /// Like [`ProxyTasks::get_or_start`], for a job of which something runs here.
    pub(super) fn get_or_start_known(&mut self, cx: &mut Context, node: NodeId, job: JobId) -> Option<TaskId> {
        match self.tasks.get(&(node, job)).filter(|_| cx.peers.contains(node)) {
            Some(task) => Some(*task),
            None => {
                let program = self.program_of(cx, job)?;
                self.get_or_start(cx, node, job, &program)
            }
        }
    }

    /// Returns the program of a job of which something runs here: that of its root task, or of a proxy task.
    pub(super) fn program_of(&self, cx: &Context, job: JobId) -> Option<Arc<Program>> {
        let first = cx.jobs.get(&job).map(|job| job.first);
        let proxies = self.tasks.iter().filter(|((_, other), _)| *other == job).map(|(_, task)| *task);
        let mut calls = first.into_iter().chain(proxies).filter_map(|task| cx.scheduler.call(task));
        calls.next().map(|call| call.program.clone())
    }

    /// Returns whether a node other than this one has a proxy task in a job.
    pub(super) fn is_in_other(&self, job: JobId, except: NodeId) -> bool {
        self.tasks.keys().any(|(node, other)| *node != except && *other == job)
    }

    /// Removes the proxy task of a node in a job.
    pub(super) fn remove(&mut self, node: NodeId, job: JobId) -> Option<TaskId> {
        self.tasks.remove(&(node, job))
    }

    /// Removes a job of another node. Returns its root.
    pub(super) fn remove_job(&mut self, job: JobId) -> Option<JobRoot> {
        let root = self.roots.remove(&job)?;
        self.jobs.remove(&root);
        self.names.remove(&job);
        self.runs.remove(&job);
        self.orphans.remove(&job);
        Some(root)
    }

    /// Removes a node's proxy tasks. Returns the jobs that no other node needs; jobs that it is the root of are orphans.
    pub(super) fn remove_node(&mut self, node: NodeId) -> Vec<JobId> {
        self.live.retain(|_, owner_node| *owner_node != node);
        self.tasks.retain(|(owner_node, _), _| *owner_node != node);
        let mut unneeded = Vec::new();
        for (root, job) in &self.jobs {
            if root.node == node {
                self.orphans.insert(*job);
            } else if !self.tasks.keys().any(|(_, other)| other == job) {
                unneeded.push(*job);
            }
        }
        unneeded
    }

    pub(super) fn orphans(&self) -> impl Iterator<Item = JobId> {
        self.orphans.iter().copied()
    }
}
