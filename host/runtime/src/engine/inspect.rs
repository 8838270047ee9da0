//! What can be seen of a job while it runs. The hub looks for a moment, whatever there is to see.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sandbar_core::{JobId, ObjectId, TaskId};
use sandbar_jobs::{
    ActorRow, HolderRow, JobFolderLimits, JobQuery, JobResponse, JobSummary, Listing, MemoryView, NameSummary,
    ObjectRow, ProcessRow, RunState, TaskRow, WorkerRow,
};
use sandbar_sched::{ActorState, ActorView, ObjectState, ObjectView, TaskState, TaskView, WorkerKind};

use super::actors::HOME;
use super::{State, Stored};

/// So many tasks or objects are looked at, of however many there are.
const LOOKED_AT_MAX: usize = 200_000;

/// Where a value lies.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// Where its object is: it is small.
    Node,
    Memory,
    Disk,
    /// On another node.
    Away,
}

impl Place {
    fn as_str(self) -> &'static str {
        match self {
            Place::Node => "node",
            Place::Memory => "memory",
            Place::Disk => "disk",
            Place::Away => "away",
        }
    }
}

impl State {
    /// The answer to a question on a job.
    pub(super) fn look(&self, job: JobId, question: JobQuery) -> JobResponse {
        if !self.jobs.contains_key(&job) {
            return JobResponse::Refused("the job has just ended".to_owned());
        }
        let rows = |limit: u32| limit.min(JobFolderLimits::DEFAULT.rows_max) as usize;
        match question {
            JobQuery::Tasks { limit, state, name } => {
                let name = name.as_deref();
                JobResponse::Tasks(self.list_tasks(job, rows(limit), state, name))
            }
            JobQuery::Summary => JobResponse::Summary(self.summary(job)),
            JobQuery::Actors { limit } => JobResponse::Actors(self.list_actors(job, rows(limit))),
            JobQuery::Objects { limit } => JobResponse::Objects(self.list_objects(job, rows(limit))),
            JobQuery::Workers { limit } => JobResponse::Workers(self.list_workers(rows(limit))),
            JobQuery::Groups { limit } => JobResponse::Groups(self.list_groups(job, rows(limit))),
            JobQuery::Nodes { limit } => JobResponse::Nodes(self.list_nodes(rows(limit))),
            JobQuery::Memory => JobResponse::Memory(self.memory(job)),
            JobQuery::Stop => JobResponse::Refused("who answers for the job stops it".to_owned()),
        }
    }

    /// Those that workers have, those that wait, then those that have ended.
    fn list_tasks(&self, job: JobId, limit: usize, state: Option<RunState>, name: Option<&str>) -> Listing<TaskRow> {
        let is_wanted =
            |other: &str, at: RunState| state.is_none_or(|state| state == at) && name.is_none_or(|name| name == other);
        let mut rows: Vec<TaskRow> = Vec::new();
        let live = self.tasks_in_workers(job).chain(self.tasks_in_line(job));
        rows.extend(live.filter(|view| is_wanted(view.name, run_state(view.state))).take(limit).map(|v| self.row(&v)));
        if let Some(job) = self.jobs.get(&job) {
            rows.extend(job.records.rows(limit - rows.len(), is_wanted));
        }
        let counted = self.summary(job).names.into_iter().filter(|of| name.is_none_or(|name| name == of.name));
        Listing::new(counted.map(|of| of.count(state)).sum(), rows)
    }

    /// The tasks of a job that were given to workers.
    pub(super) fn tasks_in_workers(&self, job: JobId) -> impl Iterator<Item = TaskView<'_>> {
        let all = self.sched.workers().flat_map(|worker| worker.assigned.into_iter().chain(worker.blocked));
        all.filter_map(move |task| self.sched.task(task).filter(|view| view.job == job))
    }

    fn tasks_in_line(&self, job: JobId) -> impl Iterator<Item = TaskView<'_>> {
        let all = self.sched.tasks().take(LOOKED_AT_MAX);
        all.filter(move |view| view.job == job && matches!(view.state, TaskState::Pending | TaskState::Queued))
    }

    fn row(&self, view: &TaskView<'_>) -> TaskRow {
        let call = self.sched.call(view.id);
        let began = self.jobs.get(&view.job).map_or(0, |job| job.records.job_started_ns());
        TaskRow {
            id: view.id.short(),
            name: view.name.as_ref().to_owned(),
            state: run_state(view.state),
            waits_for: match view.state {
                TaskState::Pending => Some("objects".to_owned()),
                TaskState::Blocked if self.asleep.contains(&view.id) => Some("a time".to_owned()),
                TaskState::Blocked => Some("objects".to_owned()),
                TaskState::Queued => Some("a worker".to_owned()),
                _ => None,
            },
            parent: view.parent.map(TaskId::short),
            attempts: view.attempt.0 + 1,
            worker: view.worker.map(|worker| worker.0),
            submitted_ns: call.map(|call| call.submitted.saturating_sub(began)),
            begun_ns: None,
            ended_ns: None,
            computed_ns: None,
            gpu_ns: None,
            bytes_in: call.map(|call| self.bytes_of(call)),
            bytes_out: None,
            memory_bytes: None,
            error: None,
        }
    }

    /// What has ended, and on top of that what lives.
    fn summary(&self, id: JobId) -> JobSummary {
        let mut names = self.jobs.get(&id).map(|job| job.records.summaries()).unwrap_or_default();
        let mut live: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for class in self.sched.classes().filter(|class| class.job == id && class.live > 0) {
            live.entry(class.name).or_default().0 += class.live;
        }
        for view in self.tasks_in_workers(id) {
            live.entry(view.name).or_default().1 += 1;
        }
        for of in &mut names {
            if let Some((live, running)) = live.remove(of.name.as_str()) {
                (of.pending, of.running) = (live.saturating_sub(running), running);
            }
        }
        names.extend(live.into_iter().map(|(name, (live, running))| NameSummary {
            pending: live.saturating_sub(running),
            running,
            ..NameSummary::new(name)
        }));
        JobSummary { names, progress: Vec::new() }
    }

    /// The objects of a job that are looked at, the last ones made, and how many there are.
    fn objects(&self, job: JobId) -> (Vec<(u64, ObjectView)>, u64) {
        let bytes = |object: &ObjectView| self.whereabouts(object.id).map_or(0, |(_, bytes)| bytes);
        let last = self.sched.objects_of(job).take(LOOKED_AT_MAX);
        (last.map(|object| (bytes(&object), object)).collect(), self.sched.count_objects(job))
    }

    /// Where a value lies, if there is one, and its bytes.
    pub(super) fn whereabouts(&self, object: ObjectId) -> Option<(Place, u64)> {
        match self.sched.value(object)?.ok()? {
            Stored::Inline(bytes) => Some((Place::Node, bytes.len() as u64)),
            Stored::Away(key) => {
                let (bytes, copy) = self.away(*key);
                let place = match copy.and_then(|copy| self.store.values.view(copy)) {
                    Some(view) if view.in_memory => Place::Memory,
                    Some(_) => Place::Disk,
                    None => Place::Away,
                };
                Some((place, bytes))
            }
            Stored::Kept(key, _) => {
                let view = self.store.values.view(*key)?;
                Some((if view.in_memory { Place::Memory } else { Place::Disk }, view.bytes))
            }
        }
    }

    /// By id: those of a job, and those that all jobs find.
    fn list_actors(&self, job: JobId, limit: usize) -> Listing<ActorRow> {
        let mut found: Vec<_> = self.sched.actors().filter(|actor| actor.job == job || actor.job == HOME).collect();
        found.sort_unstable_by_key(|actor| actor.id);
        let total = found.len() as u64;
        let row = |actor: ActorView<'_>| ActorRow {
            id: actor.id.creation_task().short(),
            name: actor.name.or(actor.creator).map_or_else(String::new, |name| name.as_ref().to_owned()),
            state: match actor.state {
                ActorState::Pending | ActorState::Creating => "pending",
                ActorState::Alive => "alive",
                ActorState::Restarting => "restarting",
                ActorState::Dead => "dead",
            }
            .to_owned(),
            worker: actor.worker.map(|worker| worker.0),
            restarts: actor.restarts,
            calls: actor.calls,
        };
        Listing::new(total, found.into_iter().take(limit).map(row).collect())
    }

    /// The largest first.
    fn list_objects(&self, job: JobId, limit: usize) -> Listing<ObjectRow> {
        let (mut found, total) = self.objects(job);
        let looked_at = Some(found.len() as u64).filter(|looked_at| *looked_at < total);
        found.sort_unstable_by_key(|(bytes, object)| (Reverse(*bytes), object.id));
        let row = |(bytes, object): (u64, ObjectView)| ObjectRow {
            id: object.id.short(),
            task: object.task.map(TaskId::short),
            state: match object.state {
                ObjectState::Pending => "pending",
                ObjectState::Ready => "ready",
                ObjectState::Failed => "failed",
            }
            .to_owned(),
            place: self.whereabouts(object.id).map(|(place, _)| place.as_str().to_owned()),
            bytes,
            pins: object.pins,
            workers: object.holders.iter().map(|(worker, _)| worker.0).collect(),
            contains: object.contents.len() as u32,
        };
        Listing { total, looked_at, rows: found.into_iter().take(limit).map(row).collect() }
    }

    fn list_workers(&self, limit: usize) -> Listing<WorkerRow> {
        let total = self.members.len() as u64;
        let mut workers: Vec<_> = self.sched.workers().collect();
        workers.sort_unstable_by_key(|worker| worker.id);
        let rows = workers.into_iter().take(limit).filter_map(|worker| {
            let member = self.members.get(&worker.id)?;
            let task = member.link.at_hand().and_then(|task| {
                let view = self.sched.task(TaskId(task))?;
                Some((view.id.short(), view.name.as_ref().to_owned()))
            });
            Some(WorkerRow {
                id: worker.id.0,
                role: match worker.kind {
                    WorkerKind::Driver(_) if member.link.is_client() => "client",
                    WorkerKind::Driver(_) => "driver",
                    WorkerKind::Tasks => "tasks",
                    WorkerKind::Actors => "actors",
                    WorkerKind::Actor(_) => "actor",
                    WorkerKind::PeerProxy => "peer",
                }
                .to_owned(),
                process: member.link.process(),
                task,
                given: worker.assigned.len() as u64,
                waiting: worker.blocked.len() as u64,
                memory_bytes: 0,
            })
        });
        Listing::new(total, rows.collect())
    }

    fn memory(&self, job: JobId) -> MemoryView {
        let (found, objects) = self.objects(job);
        let is_partial = (found.len() as u64) < objects;
        let mut view = MemoryView { objects, is_partial, ..MemoryView::default() };
        let mut by_worker: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut by_tasks = (0, 0);
        for (bytes, object) in found {
            match self.whereabouts(object.id) {
                Some((Place::Node, bytes)) => view.node_bytes += bytes,
                Some((Place::Memory, bytes)) => view.memory_bytes += bytes,
                Some((Place::Disk, bytes)) => view.disk_bytes += bytes,
                Some((Place::Away, _)) | None => {}
            }
            let count = |(objects, held): &mut (u64, u64)| (*objects, *held) = (*objects + 1, *held + bytes);
            if object.pins > 0 {
                count(&mut by_tasks);
            }
            object.holders.iter().for_each(|(worker, _)| count(by_worker.entry(worker.0).or_default()));
        }
        let holder = |name: String, (objects, bytes)| HolderRow { name, objects, bytes };
        view.holders = by_worker.into_iter().map(|(worker, held)| holder(format!("worker {worker}"), held)).collect();
        if by_tasks.0 > 0 {
            view.holders.push(holder("tasks and values".to_owned(), by_tasks));
        }
        let node = ("node".to_owned(), std::process::id());
        let workers = self.members.values().map(|member| (format!("worker {}", member.id), member.link.process()));
        let process = |(name, process)| ProcessRow { name, process, memory_bytes: 0 };
        view.processes = std::iter::once(node).chain(workers).map(process).collect();
        view
    }
}

fn run_state(state: TaskState) -> RunState {
    match state {
        TaskState::Pending | TaskState::Queued => RunState::Pending,
        TaskState::Running | TaskState::Blocked => RunState::Running,
        TaskState::Succeeded => RunState::Succeeded,
        TaskState::Failed => RunState::Failed,
        TaskState::Cancelled => RunState::Stopped,
    }
}
