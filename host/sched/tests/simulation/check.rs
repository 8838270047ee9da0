//! Checks of the scheduler's actions and views against the model.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{ActorId, Code, ObjectId, Strategy, TaskId, TenantId, WorkerId};
use sandbar_sched::{Action, ActorState, ObjectState, RESOURCE_UNIT, SubmissionKind, TaskState, WorkerKind};

use crate::groups::Room;
use crate::model::{AssignedTask, Model, Step, Steps, Task, Value, Worker, fits, is_cpu_only};

impl Model {
    /// Checks the actions of a step, and the scheduler's views after it.
    pub fn check(&mut self, actions: &[Action<u64>], steps: &Steps) {
        self.check_records(steps);
        let mut step = std::mem::take(&mut self.step);
        for (id, task) in &mut self.tasks {
            let view = steps.task(TaskId(*id));
            task.is_queued = view.is_some_and(|view| view.state == TaskState::Queued);
        }
        for action in actions {
            self.check_action(action, &mut step, steps);
        }
        assert!(step.ended.is_empty(), "tasks {:?} should have ended", step.ended);
        assert!(step.dropped.is_empty(), "values {:?} should have been dropped", step.dropped);
        assert!(step.returned.is_empty(), "objects {:?} should have been returned", step.returned);
        assert!(step.delivered.is_empty(), "{:?} should have been delivered", step.delivered);
        assert!(step.refused.is_empty(), "{:?} should have been refused", step.refused);
        assert!(step.interrupted.is_empty(), "{:?} should have been interrupted", step.interrupted);
        assert!(step.withdrawn.is_empty(), "{:?} should have been withdrawn", step.withdrawn);
        assert!(step.items.is_empty(), "items {:?} should have been delivered", step.items);
        assert!(step.credits.is_empty(), "{:?} should have been credited", step.credits);
        assert!(step.jobs_done.is_empty(), "jobs {:?} should be done", step.jobs_done);
        for (id, codes) in step.failed.iter().filter(|(id, codes)| !codes.is_empty() && self.objects.contains_key(id)) {
            if self.actors.contains_key(id) {
                continue;
            }
            // Another return of a task that ran again may have its value.
            let Some(Err(error)) = steps.value(ObjectId(*id)) else { continue };
            let of_need = self.tasks[id].dependencies.iter().any(|need| {
                self.objects.get(need).is_none_or(|need| matches!(need.value, Value::Failed | Value::Lost))
            });
            // Several causes of failure may apply; either may be reported.
            let of_death =
                error.fault.code == Code::ActorDied && matches!(self.tasks[id].kind, SubmissionKind::Method(_));
            assert!(
                codes.contains(&error.fault.code) || of_need || of_death,
                "task {id} failed of {codes:?}, not of {error}"
            );
        }
        self.check_objects(steps);
        self.check_tasks(steps);
        self.check_room(steps);
        self.check_idle();
        self.check_actors(steps);
        self.check_borrowed_actors(steps);
        self.check_streams(steps);
        self.check_groups(steps);
    }

    fn check_action(&mut self, action: &Action<u64>, step: &mut Step, steps: &Steps) {
        let count_down = |counts: &mut BTreeMap<(u32, u64), u32>, worker: &WorkerId, object: &ObjectId| {
            let key = (worker.0, object.0);
            let left = counts.get_mut(&key).unwrap_or_else(|| panic!("no waiter for {action:?}"));
            *left -= 1;
            counts.retain(|_, left| *left > 0);
        };
        match action {
            Action::Run { worker, task, attempt } => self.check_run(worker.0, task.0, attempt.0, steps),
            Action::Recall { worker } => {
                let worker = self.workers.get_mut(&worker.0).expect("a worker that is there is asked");
                assert!(!std::mem::replace(&mut worker.recall_pending, true), "it was asked before");
                assert!(
                    worker.assigned.iter().filter(|assigned| !assigned.is_blocked).count() > 1,
                    "it has something to give"
                );
                assert!(matches!(worker.kind, WorkerKind::Tasks(_) | WorkerKind::RemoteTasks));
            }
            Action::Interrupt { worker, task, attempt } => {
                assert!(step.interrupted.remove(&(worker.0, task.0)), "task {task} is not to be interrupted");
                let worker = &self.workers[&worker.0];
                let mut assigned = worker.assigned.iter().chain(&worker.actors);
                let is_there = assigned.any(|assigned| assigned.task == task.0 && assigned.attempt == attempt.0);
                // A creation task with a wrong result may have created an actor.
                let is_creation = self.actors.contains_key(&task.0);
                assert!(
                    is_there || is_creation || !self.tasks.contains_key(&task.0),
                    "what a worker has is interrupted"
                );
            }
            Action::Withdraw { worker, task, .. } => {
                assert!(step.withdrawn.remove(&(worker.0, task.0)), "call {task} is not to be withdrawn");
            }
            Action::StartWorker { node, kind } => {
                assert!(
                    self.local_nodes().any(|local| local == node.0)
                        && matches!(kind, WorkerKind::Tasks(_) | WorkerKind::Actors(_) | WorkerKind::Actor(_))
                );
                self.nodes.get_mut(&node.0).expect("it is local").worker_requests.push(*kind);
            }
            Action::Deliver { worker, object, .. } => {
                count_down(&mut step.delivered, worker, object);
                assert!(steps.value(*object).is_some(), "what is delivered is there");
            }
            Action::Refuse { worker, object, .. } => count_down(&mut step.refused, worker, object),
            Action::DeliverItem { worker, stream, object } => {
                assert!(step.items.remove(&(worker.0, stream.0, object.0)), "{object} is no item of {stream}");
            }
            Action::Credit { worker, task, consumed } => {
                assert!(step.credits.remove(&(worker.0, task.0, *consumed)), "generator {task} has no such credit");
            }
            Action::Drop { value, .. } => {
                assert!(step.dropped.remove(value), "value {value} is still referred to");
                self.values.drop(*value);
            }
            Action::TaskFinished { task, .. } => {
                assert!(step.ended.remove(&task.0), "task {task} should not have ended")
            }
            Action::FetchBorrowed { object } => self.check_fetch(object.0, step),
            Action::ReleaseBorrow { object } => {
                assert!(step.returned.remove(&object.0), "object {object} is not borrowed, or referred to");
                assert_eq!(steps.actor(ActorId(object.0)), None, "no handle exists");
            }
            // The group checks cover these.
            Action::ReserveBundles { .. } | Action::ReleaseBundles { .. } => {}
            Action::JobDone { job, .. } => assert!(step.jobs_done.remove(&job.0), "job {job} is not done"),
        }
    }

    fn rank_of(&self, id: u64) -> (i32, u32, u64) {
        let task = &self.tasks[&id];
        (-task.priority, u32::MAX - task.depth, task.number)
    }

    /// Returns the tenant's ready tasks that any of its task workers may run, and leases, in dispatch order.
    fn queued(&self, tenant: TenantId) -> Vec<u64> {
        let is_queued = |(id, task): &(&u64, &Task)| {
            let waits = !task.has_finished && task.worker.is_none() && self.dependencies_ready(task);
            waits
                && task.tenant == tenant
                && self.jobs[&task.job].first != Some(**id)
                && matches!(task.kind, SubmissionKind::Function | SubmissionKind::Generator(_) | SubmissionKind::Lease)
        };
        let mut queued: Vec<u64> = self.tasks.iter().filter(is_queued).map(|(id, _)| *id).collect();
        queued.sort_by_key(|id| self.rank_of(*id));
        queued
    }

    /// Returns the tenants with jobs.
    fn tenants(&self) -> BTreeSet<TenantId> {
        self.jobs.values().map(|job| job.tenant).collect()
    }

    /// Whether work of another tenant waits, for which resources may be kept.
    fn others_wait(&self, tenant: TenantId) -> bool {
        self.tenants().into_iter().filter(|other| *other != tenant).any(|other| {
            let has_actors = self.pending_actors().iter().any(|id| self.tasks[id].tenant == other);
            has_actors || !self.queued(other).is_empty() || self.starting().any(|(first, _)| first.tenant == other)
        })
    }

    /// Whether a worker runs tasks of a tenant.
    fn runs_tasks_of(&self, worker: &Worker, tenant: TenantId) -> bool {
        matches!(worker.kind, WorkerKind::Tasks(of) if of == tenant) || worker.kind == WorkerKind::RemoteTasks
    }

    /// Whether a call may be assigned: its dependencies have values, and all earlier calls of its caller are assigned.
    fn is_callable(&self, id: u64) -> bool {
        let task = &self.tasks[&id];
        let SubmissionKind::Method(ActorId(actor)) = &task.kind else { return false };
        let is_before =
            |other: &&u64| self.tasks[*other].number < task.number && self.tasks[*other].parent == task.parent;
        let calls = self.calls(*actor);
        self.dependencies_ready(task) && calls.iter().filter(is_before).all(|other| self.tasks[other].worker.is_some())
    }

    fn check_call(&mut self, worker: u32, id: u64, actor: u64) {
        assert_eq!(self.actor_worker(actor), Some(worker), "call {id} goes where its actor is");
        assert!(self.is_callable(id), "it is not the turn of call {id}");
        self.tasks.get_mut(&id).expect("it was found").worker = Some(worker);
    }

    /// Returns the creation tasks that wait for a worker, in dispatch order.
    fn pending_actors(&self) -> Vec<u64> {
        let waits = |task: &Task| {
            matches!(task.kind, SubmissionKind::ActorCreation(_)) && !task.has_finished && task.worker.is_none()
        };
        let waiting = self.tasks.iter().filter(|(_, task)| waits(task) && self.dependencies_ready(task));
        let mut all: Vec<u64> = waiting.map(|(id, _)| *id).collect();
        all.sort_by_key(|id| self.rank_of(*id));
        all
    }

    fn check_creation(&mut self, worker_id: u32, id: u64, steps: &Steps) {
        let (task, worker) = (&self.tasks[&id], &self.workers[&worker_id]);
        assert_eq!(
            worker.kind,
            self.creation_worker_kind(id, worker.node),
            "actor {id} is created on an allowed worker"
        );
        if !self.may_hold(task) && !self.others_wait(task.tenant) {
            let better = self.better_place(id, worker.node);
            assert_eq!(better, None, "actor {id} is not for node {}", worker.node);
        }
        assert!(self.has_room(task, worker.node), "actor {id} has no room on node {}", worker.node);
        let alike = self.pending_actors().into_iter().find(|other| equal_requests(&self.tasks[other], task));
        assert_eq!(alike, Some(id), "it is another's turn");
        let assigned = self.assigned(id, worker.node, steps);
        self.workers.get_mut(&worker_id).expect("it was found").assigned.push(assigned);
        self.tasks.get_mut(&id).expect("it was found").worker = Some(worker_id);
    }

    /// Returns the kind of worker that creates an actor on a node.
    fn creation_worker_kind(&self, id: u64, node: u32) -> WorkerKind {
        match self.tasks[&id].demand.cpus >= RESOURCE_UNIT {
            _ if self.is_remote(node) => WorkerKind::PeerProxy,
            true => WorkerKind::Actor(ActorId(id)),
            false => WorkerKind::Actors(self.tasks[&id].tenant),
        }
    }

    /// Returns the nodes with room for an actor, and whether they have a worker for it.
    fn places(&self, id: u64) -> impl Iterator<Item = (u32, bool)> {
        let task = &self.tasks[&id];
        let has_room = move |node: &u32| self.has_room(task, *node) && !self.is_starting_any(*node);
        self.nodes.keys().copied().filter(has_room).map(move |node| {
            let kind = self.creation_worker_kind(id, node);
            (node, self.workers.values().any(|worker| worker.node == node && worker.kind == kind))
        })
    }

    /// Returns a node that is preferable to `on` for an actor: with fewer actors, and local unless the actor is spread.
    fn better_place(&self, id: u64, on: u32) -> Option<u32> {
        let rank = |node: u32| {
            let of_node = self.workers.values().filter(|worker| worker.node == node);
            let actors: usize = of_node.map(|worker| worker.actors.len()).sum();
            (self.is_remote(node) && self.tasks[&id].strategy != Strategy::Spread, actors)
        };
        if matches!(self.creation_worker_kind(id, on), WorkerKind::Actor(_)) {
            return None;
        }
        // Remote nodes wait for local workers that are being started.
        let is_remote = |node: &u32| self.is_remote(*node);
        let is_awaited = self.places(id).any(|(node, has_worker)| !has_worker && !is_remote(&node));
        let is_usable = |(node, has_worker): &(u32, bool)| match is_remote(&on) {
            true => *has_worker || !is_remote(node),
            false => *has_worker && !(is_awaited && is_remote(node)),
        };
        let better = self.places(id).filter(is_usable).find(|(node, _)| rank(*node) < rank(on));
        better.map(|(node, _)| node)
    }

    /// Returns a call that should have been assigned.
    pub fn omitted_actor(&self, actor: u64) -> Option<u64> {
        let waits = |id: &u64| self.tasks[id].worker.is_none() && self.is_callable(*id);
        self.actor_worker(actor).and_then(|_| self.calls(actor).into_iter().find(waits))
    }

    /// Checks the views of actors, and that no actor waits without a reason.
    fn check_actors(&self, steps: &Steps) {
        for view in steps.actors() {
            let creator = &self.tasks[&view.id.0];
            let assigned: BTreeSet<u64> =
                self.calls(view.id.0).into_iter().filter(|call| self.tasks[call].worker.is_some()).collect();
            assert_eq!(view.assigned.iter().map(|call| call.0).collect::<BTreeSet<_>>(), assigned);
            assert_eq!(view.calls, self.calls(view.id.0).len() as u64);
            assert_eq!(view.state == ActorState::Dead, creator.has_finished);
            assert_eq!(view.state == ActorState::Alive, self.actor_worker(view.id.0).is_some());
            assert_eq!(view.checkpoint.map(|object| object.0), self.actors[&view.id.0].checkpoint);
            assert_eq!(self.omitted_actor(view.id.0), None, "actor {} could be called", view.id);
        }
        let mut seen: Vec<&Task> = Vec::new();
        for id in self.pending_actors() {
            let task = &self.tasks[&id];
            let is_alike = seen.iter().any(|other| equal_requests(other, task));
            if is_alike || self.may_hold(task) || self.others_wait(task.tenant) {
                continue;
            }
            seen.push(task);
            // Remote nodes wait while a local node has room, or a local worker is requested.
            let own = WorkerKind::Actor(ActorId(id));
            let mut requests = self.nodes.values().flat_map(|node| &node.worker_requests);
            let is_awaited = requests.any(|kind| [WorkerKind::Actors(task.tenant), own].contains(kind))
                || self.workers.values().any(|worker| worker.kind == own);
            let has_local_place = is_awaited || self.places(id).any(|(node, _)| !self.is_remote(node));
            let could = |(node, has_worker): &(u32, bool)| *has_worker && !(has_local_place && self.is_remote(*node));
            assert_eq!(self.places(id).find(could), None, "actor {id} waits for a place that there is");
        }
    }

    fn check_run(&mut self, worker_id: u32, id: u64, attempt: u32, steps: &Steps) {
        let task = self.tasks.get(&id).expect("a task that is there is run");
        assert!(!task.has_finished && task.worker.is_none(), "task {id} is run twice");
        assert_eq!(task.attempt, attempt, "task {id}");
        assert!(
            task.dependencies.iter().all(|need| matches!(self.objects[need].value, Value::Ready(..))),
            "task {id} has no needs"
        );
        match task.kind {
            SubmissionKind::Function | SubmissionKind::Generator(_) => {}
            SubmissionKind::Lease => return self.check_lease(worker_id, id, steps),
            SubmissionKind::ActorCreation(_) => return self.check_creation(worker_id, id, steps),
            SubmissionKind::Method(actor) => return self.check_call(worker_id, id, actor.0),
        }
        let worker = self.workers.get(&worker_id).expect("a worker that is there runs it");
        let is_first = self.jobs[&task.job].first == Some(id);
        assert_eq!(self.runs_tasks_of(worker, task.tenant), !is_first, "task {id} is run where it may");
        let unblocked: Vec<&AssignedTask> = worker.assigned.iter().filter(|assigned| !assigned.is_blocked).collect();
        let assigned = self.assigned(id, worker.node, steps);
        if unblocked.is_empty() || is_first {
            let has_room =
                if is_first { self.is_free_for(task, worker.node) } else { self.has_room(task, worker.node) };
            assert!(has_room, "task {id} has no room on node {}", worker.node);
        } else {
            assert!(!self.is_draining(worker.node), "node {} is to go", worker.node);
            let is_of_group = matches!(task.strategy, Strategy::Group { .. });
            assert!(
                is_of_group || !self.is_overcommitted(worker.node),
                "others have taken what node {} has",
                worker.node
            );
            assert!(is_cpu_only(&task.demand), "task {id} is run alone");
            assert!(
                unblocked
                    .iter()
                    .all(|other| equal_requests(&self.tasks[&other.task], task) && other.bundle == assigned.bundle),
                "task {id} is assigned beside equal requests"
            );
            assert!(task.strategy != Strategy::Spread, "task {id} is to be spread");
            assert!(unblocked.len() < 1024);
        }
        if !is_first {
            let is_of_group = matches!(task.strategy, Strategy::Group { .. });
            let is_held = !is_of_group && self.is_starting(worker.node, task.tenant);
            assert!(!is_held, "node {} is held", worker.node);
            let queued = self.queued(task.tenant);
            let alike = queued.iter().find(|other| equal_requests(&self.tasks[other], task));
            assert_eq!(alike, Some(&id), "it is another's turn");
            let first = &self.tasks[&queued[0]];
            let could = match self.lease_node(first) {
                Some(node) => self.has_room(first, node) && !self.is_starting(node, task.tenant),
                None => {
                    unblocked.is_empty() && self.has_room(first, worker.node) && first.kind != SubmissionKind::Lease
                }
            };
            let is_alone = !self.others_wait(task.tenant);
            let could = could && !self.may_hold(first) && is_alone && !self.awaits_worker(first, worker);
            // A node that is held for a driver still runs tasks in bundles.
            let is_of_bundle = matches!(first.strategy, Strategy::Group { .. });
            let could = could && (is_of_bundle || !self.is_starting(worker.node, task.tenant));
            assert!(queued[0] == id || !could, "it is the turn of task {}, and not of task {id}", queued[0]);
            if queued[0] == id && unblocked.is_empty() && !self.may_hold(task) && is_alone {
                let best = self.rank(task, worker.node, worker.assigned.len(), worker_id);
                let other = self.idle(task.tenant).into_iter().find(|(load, other, node)| {
                    self.rank(task, *node, *load, *other) < best && self.has_room(task, *node)
                });
                assert_eq!(other, None, "it is not for worker {worker_id}");
            }
        }
        self.workers.get_mut(&worker_id).expect("it was found").assigned.push(assigned);
        self.tasks.get_mut(&id).expect("it was found").worker = Some(worker_id);
    }

    /// Checks that a lease is granted in its turn, where there is room.
    fn check_lease(&mut self, worker_id: u32, id: u64, steps: &Steps) {
        let (task, worker) = (&self.tasks[&id], &self.workers[&worker_id]);
        assert_eq!(worker.kind, WorkerKind::Leases, "lease {id} is granted where leases are");
        assert!(self.has_room(task, worker.node), "lease {id} has no room on node {}", worker.node);
        assert!(!self.is_starting(worker.node, task.tenant), "node {} is held", worker.node);
        let queued = self.queued(task.tenant);
        let alike = queued.iter().find(|other| equal_requests(&self.tasks[other], task));
        assert_eq!(alike, Some(&id), "it is another's turn");
        let first = &self.tasks[&queued[0]];
        let has_room = |(_, _, node): &(usize, u32, u32)| self.has_room(first, *node);
        let is_task = first.kind != SubmissionKind::Lease && !self.may_hold(first) && !self.others_wait(task.tenant);
        let could = is_task && self.idle_for(first).iter().any(has_room);
        assert!(queued[0] == id || !could, "it is the turn of task {}, and not of lease {id}", queued[0]);
        let assigned = self.assigned(id, worker.node, steps);
        self.workers.get_mut(&worker_id).expect("it was found").assigned.push(assigned);
        self.tasks.get_mut(&id).expect("it was found").worker = Some(worker_id);
    }

    /// Returns the node of the worker that has the leases, if the task is a lease and there is such a worker.
    fn lease_node(&self, task: &Task) -> Option<u32> {
        let is_lease = task.kind == SubmissionKind::Lease;
        let mut all = self.workers.values().filter(|worker| is_lease && worker.kind == WorkerKind::Leases);
        all.next().map(|worker| worker.node)
    }

    fn check_objects(&self, steps: &Steps) {
        let pins = self.pins();
        let mut count = 0;
        for view in steps.objects() {
            count += 1;
            let object = self.objects.get(&view.id.0).unwrap_or_else(|| panic!("{view:?} should not exist"));
            let holds: BTreeMap<u32, u64> =
                view.holders.iter().map(|(worker, times)| (worker.0, (*times).into())).collect();
            assert_eq!(holds, object.holds, "holders of object {}", view.id);
            assert_eq!(view.pins, pins.get(&view.id.0).copied().unwrap_or(0), "what refers to object {}", view.id);
            assert_eq!(steps.is_borrowed(view.id), object.is_borrowed, "whether object {} is borrowed", view.id);
            let is_needed = object.value == Value::Promised && (!object.holds.is_empty() || view.pins > 0);
            assert_eq!(
                steps.is_promise_referenced(view.id),
                is_needed,
                "whether somebody waits for object {}",
                view.id
            );
            let state = match (&object.value, steps.value(view.id)) {
                (Value::Pending | Value::Promised | Value::Borrowed, None) => ObjectState::Pending,
                (Value::Ready(value, _), Some(Ok(there))) if value == there => ObjectState::Ready,
                (Value::Failed, Some(Err(_))) => ObjectState::Failed,
                (Value::Lost, Some(Err(error))) => {
                    let name = format!("object {} ", view.id);
                    assert!(error.fault.code == Code::ObjectLost && error.fault.message.contains(&name), "{error}");
                    ObjectState::Failed
                }
                (_, there) => panic!("object {} is {there:?}", view.id),
            };
            assert_eq!(view.state, state);
        }
        assert_eq!(count, self.objects.len(), "objects are missing");
    }

    fn check_tasks(&self, steps: &Steps) {
        let mut live = 0;
        for view in steps.tasks() {
            let task = self.tasks.get(&view.id.0).unwrap_or_else(|| panic!("{view:?} should not exist"));
            let is_blocked = || {
                if matches!(task.kind, SubmissionKind::Method(_)) {
                    return task.is_blocked;
                }
                let worker = &self.workers[&task.worker.expect("it is in a worker")];
                worker.assigned.iter().any(|assigned| assigned.task == view.id.0 && assigned.is_blocked)
            };
            match view.state {
                TaskState::Succeeded | TaskState::Failed | TaskState::Cancelled => {
                    assert!(task.has_finished, "{view:?}");
                    continue;
                }
                TaskState::Pending => assert!(task.worker.is_none() && !self.dependencies_ready(task), "{view:?}"),
                TaskState::Queued => assert!(task.worker.is_none() && self.dependencies_ready(task), "{view:?}"),
                TaskState::Running => assert!(!is_blocked(), "{view:?}"),
                TaskState::Blocked => assert!(is_blocked(), "{view:?}"),
            }
            live += 1;
            assert_eq!(view.worker.map(|worker| worker.0), task.worker);
            assert_eq!((view.attempt.0, view.depth), (task.attempt, task.depth));
            assert!(steps.call(view.id).is_some() || task.kind == SubmissionKind::Lease);
        }
        assert_eq!(live, self.tasks.values().filter(|task| !task.has_finished).count(), "tasks are missing");
    }

    fn check_room(&self, steps: &Steps) {
        assert_eq!(steps.nodes().count(), self.nodes.len());
        for node in steps.nodes() {
            let (cpus, rest) = self.free(Room::Node(node.id.0));
            assert_eq!((node.free_cpus, node.free_rest), (cpus, &rest), "what node {} has left", node.id);
            assert_eq!(node.external_usage, &self.external_usage(node.id.0), "what others use of node {}", node.id);
        }
        assert_eq!(steps.workers().count(), self.workers.len());
        for view in steps.workers() {
            let worker = &self.workers[&view.id.0];
            let tasks_where = |is_blocked: bool| -> BTreeSet<u64> {
                worker
                    .assigned
                    .iter()
                    .filter(|assigned| assigned.is_blocked == is_blocked)
                    .map(|assigned| assigned.task)
                    .collect()
            };
            assert_eq!(view.assigned.iter().map(|task| task.0).collect::<BTreeSet<_>>(), tasks_where(false));
            assert_eq!(view.blocked.iter().map(|task| task.0).collect::<BTreeSet<_>>(), tasks_where(true));
            let actors: BTreeSet<u64> = worker.actors.iter().map(|assigned| assigned.task).collect();
            assert_eq!(view.actors.iter().map(|actor| actor.0).collect::<BTreeSet<_>>(), actors);
            assert_eq!(view.recall_pending, worker.recall_pending);
        }
    }

    /// Checks that the first queued task waits only while no idle worker has room for it.
    fn check_idle(&self) {
        for (first, node) in self.starting() {
            let (cpus, rest) = self.free(Room::Node(node));
            assert!(!fits(&first.demand, cpus, &rest), "a first task waits that has room");
        }
        // Resources may be kept for the first task of the tenant that is served first.
        let firsts = self.tenants().into_iter().filter_map(|tenant| Some(&self.tasks[self.queued(tenant).first()?]));
        let firsts: Vec<&Task> = firsts.collect();
        let others_wait = |first: &&Task| self.pending_actors().iter().any(|id| self.tasks[id].tenant != first.tenant);
        let all_could_run = firsts.iter().all(|first| !others_wait(first) && self.could_run(first));
        assert!(firsts.is_empty() || !all_could_run, "the first tasks of all tenants could run");
    }

    /// Whether there are room and a worker for the first queued task of a tenant.
    fn could_run(&self, first: &Task) -> bool {
        if self.may_hold(first) {
            return false;
        }
        if first.kind == SubmissionKind::Lease {
            let node = self.lease_node(first).filter(|node| !self.is_starting_any(*node));
            return node.is_some_and(|node| self.has_room(first, node));
        }
        self.idle_for(first).into_iter().any(|(.., node)| !self.is_starting_any(node) && self.has_room(first, node))
    }

    /// Returns the idle workers of a task's tenant that do not wait for a local worker that is being started.
    fn idle_for(&self, first: &Task) -> Vec<(usize, u32, u32)> {
        let idle = self.idle(first.tenant).into_iter();
        idle.filter(|(_, id, _)| !self.awaits_worker(first, &self.workers[id])).collect()
    }

    /// Whether a task may wait for a local worker, which is being started, rather than go to a remote one.
    fn awaits_worker(&self, task: &Task, worker: &Worker) -> bool {
        let kind = WorkerKind::Tasks(task.tenant);
        self.is_remote(worker.node)
            && task.strategy != Strategy::Spread
            && self.nodes.values().any(|node| node.worker_requests.contains(&kind))
    }

    /// Returns the root tasks that wait for room, with their nodes.
    pub fn starting(&self) -> impl Iterator<Item = (&Task, u32)> {
        self.jobs.values().filter_map(|job| {
            let first = self.tasks.get(&job.first?)?;
            let waits = !first.has_finished && first.worker.is_none() && self.dependencies_ready(first);
            let node = self.workers[&job.driver?].node;
            waits.then_some((first, node))
        })
    }

    fn is_starting(&self, on: u32, tenant: TenantId) -> bool {
        self.starting().any(|(first, node)| node == on && first.tenant == tenant)
    }

    fn is_starting_any(&self, on: u32) -> bool {
        self.starting().any(|(_, node)| node == on)
    }

    /// Returns the rank by which a worker is chosen for a task; the least rank wins.
    fn rank(&self, task: &Task, on: u32, load: usize, worker: u32) -> (usize, bool, usize, u32) {
        let of_node = self.workers.values().filter(|worker| worker.node == on);
        let tasks = |worker: &Worker| match worker.kind {
            WorkerKind::Tasks(_) | WorkerKind::RemoteTasks => worker.assigned.len(),
            _ => 0,
        };
        let all = of_node.map(|worker| tasks(worker) + worker.actors.len()).sum();
        (if task.strategy == Strategy::Spread { all } else { 0 }, self.is_remote(on), load, worker)
    }

    /// Returns the assignment of a task.
    fn assigned(&self, id: u64, node: u32, steps: &Steps) -> AssignedTask {
        let (task, bundle) = (&self.tasks[&id], self.bundle_of(id, node, steps));
        let (attempt, demand, strategy) = (task.attempt, task.demand.clone(), task.strategy);
        AssignedTask {
            task: id,
            tenant: task.tenant,
            attempt,
            demand,
            strategy,
            bundle,
            is_blocked: false,
            is_ghost: false,
        }
    }

    /// Returns load, id and node of the tenant's idle task workers on nodes where none of its root tasks waits.
    fn idle(&self, tenant: TenantId) -> Vec<(usize, u32, u32)> {
        let starting = self.starting().filter(|(first, _)| first.tenant == tenant);
        let held: BTreeSet<u32> = starting.map(|(_, node)| node).collect();
        let is_idle = |worker: &Worker| {
            self.runs_tasks_of(worker, tenant) && worker.assigned.iter().all(|assigned| assigned.is_blocked)
        };
        let idle = self.workers.iter().filter(|(_, worker)| is_idle(worker) && !held.contains(&worker.node));
        idle.map(|(id, worker)| (worker.assigned.len(), *id, worker.node)).collect()
    }
}

fn equal_requests(a: &Task, b: &Task) -> bool {
    let is_lease = |task: &Task| task.kind == SubmissionKind::Lease;
    a.tenant == b.tenant && a.demand == b.demand && a.strategy == b.strategy && is_lease(a) == is_lease(b)
}
