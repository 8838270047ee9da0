//! Inspection of a running job: tasks, objects, actors, workers, placement groups, nodes. Each query examines a bounded number
//! of items.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use sandbar_core::{JobId, TaskId};
use sandbar_jobs::{
    ActorRow, BundleRow, GroupRow, HolderRow, JobFolderLimits, JobQuery, JobResponse, JobSummary, Listing, MemoryView,
    NameSummary, NodeRow, ObjectRow, ProcessRow, ResourceRow, RunState, TaskRow, WorkerRow,
};
use sandbar_sched::{
    ActorState, ActorView, BundleView, GroupState, GroupView, ObjectState, ObjectView, RESOURCE_UNIT, ResourceSet,
    TaskState, TaskView, WorkerKind, WorkerView,
};

use super::context::Context;
use super::deadlocks::Deadlocks;
use super::jobs::Jobs;
use super::values::ValuePlace;

/// Maximum number of tasks, and of objects, that a query examines.
const LOOKED_AT_MAX: usize = 200_000;

/// What the queries read.
pub(super) struct Inspection<'a> {
    pub(super) cx: &'a Context,
    pub(super) jobs: &'a Jobs,
    pub(super) deadlocks: &'a Deadlocks,
}

impl Inspection<'_> {
    /// Answers a query about a job.
    pub(super) fn query(&self, job: JobId, query: JobQuery) -> JobResponse {
        if !self.jobs.contains(job) {
            return JobResponse::Refused("the job has just ended".to_owned());
        }
        let rows = |limit: u32| limit.min(JobFolderLimits::DEFAULT.rows_max) as usize;
        match query {
            JobQuery::Tasks { limit, state, name } => {
                let name = name.as_deref();
                JobResponse::Tasks(self.list_tasks(job, rows(limit), state, name))
            }
            JobQuery::Summary => JobResponse::Summary(self.summary(job)),
            JobQuery::Actors { limit } => JobResponse::Actors(self.list_actors(job, rows(limit))),
            JobQuery::Objects { limit } => JobResponse::Objects(self.list_objects(job, rows(limit))),
            JobQuery::Workers { limit } => JobResponse::Workers(self.list_workers(job, rows(limit))),
            JobQuery::Groups { limit } => JobResponse::Groups(self.list_groups(job, rows(limit))),
            JobQuery::Nodes { limit } => JobResponse::Nodes(self.list_nodes(rows(limit))),
            JobQuery::Memory => JobResponse::Memory(self.memory(job)),
            JobQuery::Stop => JobResponse::Refused("the job is stopped elsewhere".to_owned()),
        }
    }

    /// Assigned tasks first, then waiting ones, then finished ones.
    fn list_tasks(&self, job: JobId, limit: usize, state: Option<RunState>, name: Option<&str>) -> Listing<TaskRow> {
        let is_selected =
            |other: &str, at: RunState| state.is_none_or(|state| state == at) && name.is_none_or(|name| name == other);
        let mut rows: Vec<TaskRow> = Vec::new();
        let live = self.cx.assigned_tasks(job).chain(self.unassigned_tasks(job));
        rows.extend(
            live.filter(|view| is_selected(view.name, run_state(view.state))).take(limit).map(|v| self.row(&v)),
        );
        if let Some(records) = self.jobs.records(job) {
            rows.extend(records.rows(limit - rows.len(), is_selected));
        }
        let counted = self.summary(job).names.into_iter().filter(|row| name.is_none_or(|name| name == row.name));
        Listing::new(counted.map(|row| row.count(state)).sum(), rows)
    }

    fn unassigned_tasks(&self, job: JobId) -> impl Iterator<Item = TaskView<'_>> {
        let all = self.cx.scheduler.tasks().take(LOOKED_AT_MAX);
        all.filter(move |view| view.job == job && matches!(view.state, TaskState::Pending | TaskState::Queued))
    }

    fn row(&self, view: &TaskView<'_>) -> TaskRow {
        let call = self.cx.scheduler.call(view.id);
        let began = self.jobs.records(view.job).map_or(0, |records| records.job_started_ns());
        TaskRow {
            id: view.id.short(),
            name: view.name.as_ref().to_owned(),
            state: run_state(view.state),
            waits_for: match view.state {
                TaskState::Pending => Some("objects".to_owned()),
                TaskState::Blocked if self.deadlocks.is_sleeping(view.id) => Some("a time".to_owned()),
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
            bytes_in: call.map(|call| self.cx.input_bytes(call)),
            bytes_out: None,
            memory_bytes: None,
            error: None,
        }
    }

    /// Counts finished and unfinished tasks.
    fn summary(&self, id: JobId) -> JobSummary {
        let mut names = self.jobs.records(id).map(|records| records.summaries()).unwrap_or_default();
        let mut live: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for class in self.cx.scheduler.classes().filter(|class| class.job == id && class.live > 0) {
            live.entry(class.name).or_default().0 += class.live;
        }
        for view in self.cx.assigned_tasks(id) {
            live.entry(view.name).or_default().1 += 1;
        }
        for row in &mut names {
            if let Some((live, running)) = live.remove(row.name.as_str()) {
                (row.pending, row.running) = (live.saturating_sub(running), running);
            }
        }
        names.extend(live.into_iter().map(|(name, (live, running))| NameSummary {
            pending: live.saturating_sub(running),
            running,
            ..NameSummary::new(name)
        }));
        JobSummary { names, progress: Vec::new() }
    }

    /// Returns the objects that were created last, with their sizes, and the number of all.
    fn objects(&self, job: JobId) -> (Vec<(u64, ObjectView)>, u64) {
        let bytes = |object: &ObjectView| self.cx.value_place(object.id).map_or(0, |(_, bytes)| bytes);
        let last = self.cx.scheduler.objects_of(job).take(LOOKED_AT_MAX);
        (last.map(|object| (bytes(&object), object)).collect(), self.cx.scheduler.count_objects(job))
    }

    /// Actors of a job and detached ones of its tenant, by id.
    pub(super) fn list_actors(&self, job: JobId, limit: usize) -> Listing<ActorRow> {
        let tenant = self.cx.scheduler.tenant_of(job).unwrap_or_default();
        let detached = self.cx.detached_jobs.get(&tenant).copied();
        let is_of_job = |actor: &ActorView<'_>| actor.job == job || Some(actor.job) == detached;
        let mut found: Vec<_> = self.cx.scheduler.actors().filter(is_of_job).collect();
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

    /// Objects, the largest first.
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
            place: self.cx.value_place(object.id).map(|(place, _)| place_name(place).to_owned()),
            bytes,
            pins: object.pins,
            workers: object.holders.iter().map(|(worker, _)| worker.0).collect(),
            contains: object.contents.len() as u32,
        };
        Listing { total, looked_at, rows: found.into_iter().take(limit).map(row).collect() }
    }

    /// Lists the workers that the tenant of a job uses.
    fn list_workers(&self, job: JobId, limit: usize) -> Listing<WorkerRow> {
        let tenant = self.cx.scheduler.tenant_of(job);
        let is_its = |worker: &WorkerView| tenant.is_some() && self.cx.tenant_of_worker(worker.kind) == tenant;
        let mut workers: Vec<_> = self.cx.scheduler.workers().filter(is_its).collect();
        let total = workers.len() as u64;
        workers.sort_unstable_by_key(|worker| worker.id);
        let rows = workers.into_iter().take(limit).filter_map(|worker| {
            let connected = self.cx.workers.get(&worker.id)?;
            let task = connected.link.current_task().and_then(|task| {
                let view = self.cx.scheduler.task(TaskId(task))?;
                Some((view.id.short(), view.name.as_ref().to_owned()))
            });
            Some(WorkerRow {
                id: worker.id.0,
                role: match worker.kind {
                    WorkerKind::Driver(_) if connected.link.is_client() => "client",
                    WorkerKind::Driver(_) => "driver",
                    WorkerKind::Tasks(_) => "tasks",
                    WorkerKind::RemoteTasks => "remote",
                    WorkerKind::Actors(_) => "actors",
                    WorkerKind::Actor(_) => "actor",
                    WorkerKind::PeerProxy => "peer",
                    WorkerKind::Leases => "leases",
                }
                .to_owned(),
                process: connected.link.process_id(),
                task,
                given: worker.assigned.len() as u64,
                waiting: worker.blocked.len() as u64,
                memory_bytes: 0,
            })
        });
        Listing::new(total, rows.collect())
    }

    /// Placement groups of a job, by id.
    fn list_groups(&self, job: JobId, limit: usize) -> Listing<GroupRow> {
        let of_job = || self.cx.scheduler.groups().filter(|group| group.job == job);
        Listing::new(of_job().count() as u64, of_job().take(limit).map(|group| group_row(&group)).collect())
    }

    /// Nodes, by id.
    fn list_nodes(&self, limit: usize) -> Listing<NodeRow> {
        let nodes = self.cx.scheduler.nodes();
        let row = |node: sandbar_sched::NodeView<'_>| NodeRow {
            id: node.id.0,
            resources: resources(
                node.total,
                Some((
                    node.free_cpus - i128::from(node.external_usage.cpus),
                    &node.free_rest.saturating_sub(node.external_usage),
                )),
            ),
        };
        let mut rows: Vec<NodeRow> = nodes.map(row).collect();
        rows.sort_unstable_by_key(|row| row.id);
        let total = rows.len() as u64;
        rows.truncate(limit);
        Listing::new(total, rows)
    }

    fn memory(&self, job: JobId) -> MemoryView {
        let (found, objects) = self.objects(job);
        let is_partial = (found.len() as u64) < objects;
        let mut view = MemoryView { objects, is_partial, ..MemoryView::default() };
        let mut by_worker: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut by_tasks = (0, 0);
        for (bytes, object) in found {
            match self.cx.value_place(object.id) {
                Some((ValuePlace::Inline, bytes)) => view.node_bytes += bytes,
                Some((ValuePlace::Memory, bytes)) => view.memory_bytes += bytes,
                Some((ValuePlace::Disk, bytes)) => view.disk_bytes += bytes,
                Some((ValuePlace::Remote, _)) | None => {}
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
        let tenant = self.cx.scheduler.tenant_of(job);
        let workers = self.cx.workers.values().filter(|worker| self.cx.tenant_of_worker(worker.kind) == tenant);
        let workers = workers.map(|worker| (format!("worker {}", worker.id), worker.link.process_id()));
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

fn place_name(place: ValuePlace) -> &'static str {
    match place {
        ValuePlace::Inline => "node",
        ValuePlace::Memory => "memory",
        ValuePlace::Disk => "disk",
        ValuePlace::Remote => "away",
    }
}

fn group_row(group: &GroupView<'_>) -> GroupRow {
    let state = match group.state {
        GroupState::Pending => "pending",
        GroupState::Created => "created",
        GroupState::Rescheduling => "rescheduling",
        GroupState::Infeasible => "infeasible",
    };
    let bundle = |bundle: &BundleView<'_>| BundleRow {
        node: bundle.placed.map(|(node, ..)| node.0),
        resources: resources(bundle.total, bundle.placed.map(|(_, cpus, rest)| (cpus, rest))),
        occupants: bundle.occupants.len() as u64,
    };
    GroupRow {
        id: group.id.short(),
        name: group.name.map(|name| name.as_ref().to_owned()),
        strategy: group.strategy.as_str().to_owned(),
        state: state.to_owned(),
        bundles: group.bundles.iter().map(bundle).collect(),
    }
}

/// Returns the rows of the existing resources, with their free amounts.
fn resources(total: &ResourceSet, free: Option<(i128, &ResourceSet)>) -> Vec<ResourceRow> {
    let (free_cpus, rest) = free.map_or((0, None), |(cpus, rest)| (cpus, Some(rest)));
    let of_rest = |field: &dyn Fn(&ResourceSet) -> u64| rest.map_or(0, field) as f64;
    let unit = RESOURCE_UNIT as f64;
    let row = |name: &str, total: f64, free: f64| ResourceRow { name: name.to_owned(), total, free };
    let mut rows = vec![
        row("cpus", total.cpus as f64 / unit, free_cpus as f64 / unit),
        row("gpus", total.gpus as f64 / unit, of_rest(&|rest| rest.gpus) / unit),
        row("memory", total.memory as f64, of_rest(&|rest| rest.memory)),
    ];
    rows.extend(total.custom.iter().map(|(name, amount)| {
        let free = of_rest(&|rest| rest.custom.get(name).copied().unwrap_or(0));
        row(name, *amount as f64 / unit, free / unit)
    }));
    rows.retain(|row| row.total > 0.0);
    rows
}
