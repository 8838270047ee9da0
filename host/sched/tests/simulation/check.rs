//! Whether a scheduler wants done what should be, and knows what it should.

use std::collections::{BTreeMap, BTreeSet};

use sandbar_core::{ActorId, Code, ObjectId, Strategy, TaskId, WorkerId};
use sandbar_sched::{Action, ActorState, ObjectState, Role, TaskState, UNIT, Work};

use crate::groups::Room;
use crate::model::{Given, Model, Step, Steps, Task, Value, Worker, fits, is_light};

impl Model {
    /// Checks what a scheduler wants done, and what it says of itself.
    pub fn check(&mut self, actions: &[Action<u64>], steps: &Steps) {
        self.check_records(steps);
        let mut step = std::mem::take(&mut self.step);
        for (id, task) in &mut self.tasks {
            let view = steps.task(TaskId(*id));
            task.stands = view.is_some_and(|view| view.state == TaskState::Queued);
        }
        for action in actions {
            self.check_action(action, &mut step, steps);
        }
        assert!(step.ended.is_empty(), "tasks {:?} should have ended", step.ended);
        assert!(step.dropped.is_empty(), "values {:?} should have been dropped", step.dropped);
        assert!(step.returned.is_empty(), "objects {:?} should have been returned", step.returned);
        assert!(step.told.is_empty(), "{:?} should have been delivered", step.told);
        assert!(step.refused.is_empty(), "{:?} should have been refused", step.refused);
        assert!(step.interrupted.is_empty(), "{:?} should have been interrupted", step.interrupted);
        assert!(step.withdrawn.is_empty(), "{:?} should have been withdrawn", step.withdrawn);
        assert!(step.items.is_empty(), "items {:?} should have been told of", step.items);
        assert!(step.credits.is_empty(), "{:?} should have been credited", step.credits);
        assert!(step.jobs_done.is_empty(), "jobs {:?} should be done", step.jobs_done);
        for (id, codes) in step.failed.iter().filter(|(id, codes)| !codes.is_empty() && self.objects.contains_key(id)) {
            if self.actors.contains_key(id) {
                continue;
            }
            // What was begun again may have returned something that is there.
            let Some(Err(error)) = steps.value(ObjectId(*id)) else { continue };
            let of_need = self.tasks[id].needs.iter().any(|need| {
                self.objects.get(need).is_none_or(|need| matches!(need.value, Value::Failed | Value::Lost))
            });
            // It may have failed of the one while it was to fail of the other.
            let of_death = error.fault.code == Code::ActorDied && matches!(self.tasks[id].work, Work::Method(_));
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
        self.check_lent(steps);
        self.check_streams(steps);
        self.check_groups(steps);
    }

    fn check_action(&mut self, action: &Action<u64>, step: &mut Step, steps: &Steps) {
        let count_down = |counts: &mut BTreeMap<(u32, u64), u32>, worker: &WorkerId, object: &ObjectId| {
            let key = (worker.0, object.0);
            let left = counts.get_mut(&key).unwrap_or_else(|| panic!("nobody waits for {action:?}"));
            *left -= 1;
            counts.retain(|_, left| *left > 0);
        };
        match action {
            Action::Run { worker, task, attempt } => self.check_run(worker.0, task.0, attempt.0, steps),
            Action::Recall { worker } => {
                let worker = self.workers.get_mut(&worker.0).expect("a worker that is there is asked");
                assert!(!std::mem::replace(&mut worker.is_recalled, true), "it was asked before");
                assert!(worker.given.iter().filter(|given| !given.is_blocked).count() > 1, "it has something to give");
                assert_eq!(worker.role, Role::Tasks);
            }
            Action::Interrupt { worker, task, attempt } => {
                assert!(step.interrupted.remove(&(worker.0, task.0)), "task {task} is not to be interrupted");
                let worker = &self.workers[&worker.0];
                let mut given = worker.given.iter().chain(&worker.residents);
                let is_there = given.any(|given| given.task == task.0 && given.attempt == attempt.0);
                // What hands back wrong values may have made an actor nevertheless.
                let is_maker = self.actors.contains_key(&task.0);
                assert!(is_there || is_maker || !self.tasks.contains_key(&task.0), "what a worker has is interrupted");
            }
            Action::Withdraw { worker, task, .. } => {
                assert!(step.withdrawn.remove(&(worker.0, task.0)), "call {task} is not to be withdrawn");
            }
            Action::Hire { node, role } => {
                assert!(self.near().any(|near| near == node.0) && matches!(role, Role::Actors | Role::Actor(_)));
                self.hires.push((node.0, *role));
            }
            Action::Deliver { worker, object, .. } => {
                count_down(&mut step.told, worker, object);
                assert!(steps.value(*object).is_some(), "what is delivered is there");
            }
            Action::Refuse { worker, object, .. } => count_down(&mut step.refused, worker, object),
            Action::Item { worker, stream, object } => {
                assert!(step.items.remove(&(worker.0, stream.0, object.0)), "{object} is no item of {stream}");
            }
            Action::Credit { worker, task, taken } => {
                assert!(step.credits.remove(&(worker.0, task.0, *taken)), "generator {task} has no such credit");
            }
            Action::Drop { value, .. } => {
                assert!(step.dropped.remove(value), "value {value} is still referred to");
                assert!(self.values.remove(value), "value {value} was dropped before");
            }
            Action::Ended { task, .. } => assert!(step.ended.remove(&task.0), "task {task} should not have ended"),
            Action::Ask { object } => self.check_ask(object.0, step),
            Action::Returned { object } => {
                assert!(step.returned.remove(&object.0), "object {object} is not borrowed, or referred to");
                assert_eq!(steps.actor(ActorId(object.0)), None, "nobody has a handle");
            }
            // What comes of these is checked with the groups.
            Action::SetAside { .. } | Action::GiveBack { .. } => {}
            Action::JobDone { job, .. } => assert!(step.jobs_done.remove(&job.0), "job {job} is not done"),
        }
    }

    fn turn(&self, id: u64) -> (i32, u32, u64) {
        let task = &self.tasks[&id];
        (-task.priority, u32::MAX - task.depth, task.number)
    }

    /// Tasks that could be begun, by anybody who may, in order.
    fn queued(&self) -> Vec<u64> {
        let is_queued = |(id, task): &(&u64, &Task)| {
            let waits = !task.has_ended && task.worker.is_none() && self.has_needs(task);
            waits && self.jobs[&task.job].first != Some(**id) && matches!(task.work, Work::Task | Work::Stream(_))
        };
        let mut queued: Vec<u64> = self.tasks.iter().filter(is_queued).map(|(id, _)| *id).collect();
        queued.sort_by_key(|id| self.turn(*id));
        queued
    }

    /// Whether a call could be given: what it needs is there, and all before it of its caller were.
    fn is_callable(&self, id: u64) -> bool {
        let task = &self.tasks[&id];
        let Work::Method(ActorId(actor)) = &task.work else { return false };
        let is_before =
            |other: &&u64| self.tasks[*other].number < task.number && self.tasks[*other].parent == task.parent;
        let calls = self.calls(*actor);
        self.has_needs(task) && calls.iter().filter(is_before).all(|other| self.tasks[other].worker.is_some())
    }

    fn check_call(&mut self, worker: u32, id: u64, actor: u64) {
        assert_eq!(self.home(actor), Some(worker), "call {id} goes where its actor is");
        assert!(self.is_callable(id), "it is not the turn of call {id}");
        self.tasks.get_mut(&id).expect("it was found").worker = Some(worker);
    }

    /// What makes actors and waits for a place, in order.
    fn unplaced(&self) -> Vec<u64> {
        let waits = |task: &Task| matches!(task.work, Work::Actor(_)) && !task.has_ended && task.worker.is_none();
        let waiting = self.tasks.iter().filter(|(_, task)| waits(task) && self.has_needs(task));
        let mut all: Vec<u64> = waiting.map(|(id, _)| *id).collect();
        all.sort_by_key(|id| self.turn(*id));
        all
    }

    fn check_making(&mut self, worker_id: u32, id: u64, steps: &Steps) {
        let (task, worker) = (&self.tasks[&id], &self.workers[&worker_id]);
        assert_eq!(worker.role, self.maker_role(id, worker.node), "actor {id} is made where it may");
        if !self.may_hold(task) {
            let better = self.better_place(id, worker.node);
            assert_eq!(better, None, "actor {id} is not for node {}", worker.node);
        }
        assert!(self.has_room(task, worker.node), "actor {id} has no room on node {}", worker.node);
        let alike = self.unplaced().into_iter().find(|other| is_alike(&self.tasks[other], task));
        assert_eq!(alike, Some(id), "it is another's turn");
        let given = self.given(id, worker.node, steps);
        self.workers.get_mut(&worker_id).expect("it was found").given.push(given);
        self.tasks.get_mut(&id).expect("it was found").worker = Some(worker_id);
    }

    /// Who makes an actor on a node.
    fn maker_role(&self, id: u64, node: u32) -> Role {
        match self.tasks[&id].demand.cpus >= UNIT {
            _ if self.far.contains(&node) => Role::Peer,
            true => Role::Actor(ActorId(id)),
            false => Role::Actors,
        }
    }

    /// Nodes with room for an actor, and whether somebody is there to make it.
    fn places(&self, id: u64) -> impl Iterator<Item = (u32, bool)> {
        let task = &self.tasks[&id];
        let has_room = move |node: &u32| self.has_room(task, *node) && !self.is_starting(*node);
        self.nodes.keys().copied().filter(has_room).map(move |node| {
            let role = self.maker_role(id, node);
            (node, self.workers.values().any(|worker| worker.node == node && worker.role == role))
        })
    }

    /// A node where an actor should rather be than on this one: where fewer are, and nowhere far unless it is to be spread.
    fn better_place(&self, id: u64, on: u32) -> Option<u32> {
        let rank = |node: u32| {
            let of_node = self.workers.values().filter(|worker| worker.node == node);
            let actors: usize = of_node.map(|worker| worker.residents.len()).sum();
            (self.far.contains(&node) && self.tasks[&id].strategy != Strategy::Spread, actors)
        };
        if matches!(self.maker_role(id, on), Role::Actor(_)) {
            return None;
        }
        // It goes nowhere far where somebody who is near is to come before.
        let is_far = |node: &u32| self.far.contains(node);
        let is_awaited = self.places(id).any(|(node, has_maker)| !has_maker && !is_far(&node));
        let is_usable = |(node, has_maker): &(u32, bool)| match is_far(&on) {
            true => *has_maker || !is_far(node),
            false => *has_maker && !(is_awaited && is_far(node)),
        };
        let better = self.places(id).filter(is_usable).find(|(node, _)| rank(*node) < rank(on));
        better.map(|(node, _)| node)
    }

    /// A call that its actor should have been given.
    pub fn left_out(&self, actor: u64) -> Option<u64> {
        let waits = |id: &u64| self.tasks[id].worker.is_none() && self.is_callable(*id);
        self.home(actor).and_then(|_| self.calls(actor).into_iter().find(waits))
    }

    /// What is known of actors, and that none waits for nothing.
    fn check_actors(&self, steps: &Steps) {
        for view in steps.actors() {
            let maker = &self.tasks[&view.id.0];
            let given: BTreeSet<u64> =
                self.calls(view.id.0).into_iter().filter(|call| self.tasks[call].worker.is_some()).collect();
            assert_eq!(view.given.iter().map(|call| call.0).collect::<BTreeSet<_>>(), given);
            assert_eq!(view.calls, self.calls(view.id.0).len() as u64);
            assert_eq!(view.state == ActorState::Dead, maker.has_ended);
            assert_eq!(view.state == ActorState::Alive, self.home(view.id.0).is_some());
            assert_eq!(view.saved.map(|object| object.0), self.actors[&view.id.0].saved);
            assert_eq!(self.left_out(view.id.0), None, "actor {} could be called", view.id);
        }
        let mut seen: Vec<&Task> = Vec::new();
        for id in self.unplaced() {
            let task = &self.tasks[&id];
            if seen.iter().any(|other| is_alike(other, task)) || self.may_hold(task) {
                continue;
            }
            seen.push(task);
            // It goes nowhere far while there is room nearer, and may wait for who was asked for there, or is there.
            let own = Role::Actor(ActorId(id));
            let is_awaited = self.hires.iter().any(|(_, role)| [Role::Actors, own].contains(role))
                || self.workers.values().any(|worker| worker.role == own);
            let is_near = is_awaited || self.places(id).any(|(node, _)| !self.far.contains(&node));
            let could = |(node, has_maker): &(u32, bool)| *has_maker && !(is_near && self.far.contains(node));
            assert_eq!(self.places(id).find(could), None, "actor {id} waits for a place that there is");
        }
    }

    fn check_run(&mut self, worker_id: u32, id: u64, attempt: u32, steps: &Steps) {
        let task = self.tasks.get(&id).expect("a task that is there is run");
        assert!(!task.has_ended && task.worker.is_none(), "task {id} is run twice");
        assert_eq!(task.attempt, attempt, "task {id}");
        assert!(
            task.needs.iter().all(|need| matches!(self.objects[need].value, Value::Ready(..))),
            "task {id} has no needs"
        );
        match task.work {
            Work::Task | Work::Stream(_) => {}
            Work::Actor(_) => return self.check_making(worker_id, id, steps),
            Work::Method(actor) => return self.check_call(worker_id, id, actor.0),
        }
        let worker = self.workers.get(&worker_id).expect("a worker that is there runs it");
        let is_first = self.jobs[&task.job].first == Some(id);
        assert_eq!(worker.role == Role::Tasks, !is_first, "task {id} is run where it may");
        let unblocked: Vec<&Given> = worker.given.iter().filter(|given| !given.is_blocked).collect();
        let given = self.given(id, worker.node, steps);
        if unblocked.is_empty() || is_first {
            let has_room =
                if is_first { self.is_free_for(task, worker.node) } else { self.has_room(task, worker.node) };
            assert!(has_room, "task {id} has no room on node {}", worker.node);
        } else {
            assert!(!self.draining.contains(&worker.node), "node {} is to go", worker.node);
            let is_of_group = matches!(task.strategy, Strategy::Group { .. });
            assert!(is_of_group || !self.is_crowded(worker.node), "others have taken what node {} has", worker.node);
            assert!(is_light(&task.demand), "task {id} is run alone");
            assert!(
                unblocked.iter().all(|other| is_alike(&self.tasks[&other.task], task) && other.bundle == given.bundle),
                "task {id} is given with others of its kind"
            );
            assert!(task.strategy != Strategy::Spread, "task {id} is to be spread");
            assert!(unblocked.len() < 1024);
        }
        if !is_first {
            let is_of_group = matches!(task.strategy, Strategy::Group { .. });
            let is_held = !is_of_group && self.starting().any(|(_, node)| node == worker.node);
            assert!(!is_held, "node {} is held", worker.node);
            let queued = self.queued();
            let alike = queued.iter().find(|other| is_alike(&self.tasks[other], task));
            assert_eq!(alike, Some(&id), "it is another's turn");
            let first = &self.tasks[&queued[0]];
            let could = unblocked.is_empty() && self.has_room(first, worker.node) && !self.may_hold(first);
            // A node is held for a driver against all but those who have room in bundles.
            let is_of_bundle = matches!(first.strategy, Strategy::Group { .. });
            let could = could && (is_of_bundle || !self.is_starting(worker.node));
            assert!(queued[0] == id || !could, "it is the turn of task {}, and not of task {id}", queued[0]);
            if queued[0] == id && unblocked.is_empty() && !self.may_hold(task) {
                let best = self.rank(task, worker.node, worker.given.len(), worker_id);
                let other = self.idle().into_iter().find(|(load, other, node)| {
                    self.rank(task, *node, *load, *other) < best && self.has_room(task, *node)
                });
                assert_eq!(other, None, "it is not for worker {worker_id}");
            }
        }
        self.workers.get_mut(&worker_id).expect("it was found").given.push(given);
        self.tasks.get_mut(&id).expect("it was found").worker = Some(worker_id);
    }

    fn check_objects(&self, steps: &Steps) {
        let pins = self.pins();
        let mut count = 0;
        for view in steps.objects() {
            count += 1;
            let object = self.objects.get(&view.id.0).unwrap_or_else(|| panic!("{view:?} should be gone"));
            let holds: BTreeMap<u32, u64> =
                view.holds.iter().map(|(worker, times)| (worker.0, (*times).into())).collect();
            assert_eq!(holds, object.holds, "who holds object {}", view.id);
            assert_eq!(view.pins, pins.get(&view.id.0).copied().unwrap_or(0), "what refers to object {}", view.id);
            assert_eq!(steps.is_borrowed(view.id), object.is_borrowed, "whether object {} is borrowed", view.id);
            let is_wanted = object.value == Value::Promised && (!object.holds.is_empty() || view.pins > 0);
            assert_eq!(steps.is_promise_wanted(view.id), is_wanted, "whether somebody waits for object {}", view.id);
            let state = match (&object.value, steps.value(view.id)) {
                (Value::Pending | Value::Promised | Value::Away, None) => ObjectState::Pending,
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
            let task = self.tasks.get(&view.id.0).unwrap_or_else(|| panic!("{view:?} should be gone"));
            let is_blocked = || {
                if matches!(task.work, Work::Method(_)) {
                    return task.is_blocked;
                }
                let worker = &self.workers[&task.worker.expect("it is in a worker")];
                worker.given.iter().any(|given| given.task == view.id.0 && given.is_blocked)
            };
            match view.state {
                TaskState::Succeeded | TaskState::Failed | TaskState::Stopped => {
                    assert!(task.has_ended, "{view:?}");
                    continue;
                }
                TaskState::Pending => assert!(task.worker.is_none() && !self.has_needs(task), "{view:?}"),
                TaskState::Queued => assert!(task.worker.is_none() && self.has_needs(task), "{view:?}"),
                TaskState::Running => assert!(!is_blocked(), "{view:?}"),
                TaskState::Blocked => assert!(is_blocked(), "{view:?}"),
            }
            live += 1;
            assert_eq!(view.worker.map(|worker| worker.0), task.worker);
            assert_eq!((view.attempt.0, view.depth), (task.attempt, task.depth));
            assert!(steps.call(view.id).is_some());
        }
        assert_eq!(live, self.tasks.values().filter(|task| !task.has_ended).count(), "tasks are missing");
    }

    fn check_room(&self, steps: &Steps) {
        assert_eq!(steps.nodes().count(), self.nodes.len());
        for node in steps.nodes() {
            let (cpus, rest) = self.free(Room::Node(node.id.0));
            assert_eq!((node.free_cpus, node.free_rest), (cpus, &rest), "what node {} has left", node.id);
            assert_eq!(node.others, &self.others(node.id.0), "what others use of node {}", node.id);
        }
        assert_eq!(steps.workers().count(), self.workers.len());
        for view in steps.workers() {
            let worker = &self.workers[&view.id.0];
            let of = |is_blocked: bool| -> BTreeSet<u64> {
                worker.given.iter().filter(|given| given.is_blocked == is_blocked).map(|given| given.task).collect()
            };
            assert_eq!(view.given.iter().map(|task| task.0).collect::<BTreeSet<_>>(), of(false));
            assert_eq!(view.blocked.iter().map(|task| task.0).collect::<BTreeSet<_>>(), of(true));
            let residents: BTreeSet<u64> = worker.residents.iter().map(|given| given.task).collect();
            assert_eq!(view.actors.iter().map(|actor| actor.0).collect::<BTreeSet<_>>(), residents);
            assert_eq!(view.is_recalled, worker.is_recalled);
        }
    }

    /// The first task waits only while no idle worker has room for it.
    fn check_idle(&self) {
        for (first, node) in self.starting() {
            let (cpus, rest) = self.free(Room::Node(node));
            assert!(!fits(&first.demand, cpus, &rest), "a first task waits that has room");
        }
        let Some(first) = self.queued().first().map(|id| &self.tasks[id]) else { return };
        for (_, id, node) in self.idle().into_iter().filter(|_| !self.may_hold(first)) {
            assert!(!self.has_room(first, node), "worker {id} could run the first task");
        }
    }

    /// First tasks that wait for room, and where.
    pub fn starting(&self) -> impl Iterator<Item = (&Task, u32)> {
        self.jobs.values().filter_map(|job| {
            let first = self.tasks.get(&job.first?)?;
            let waits = !first.has_ended && first.worker.is_none() && self.has_needs(first);
            let node = self.workers[&job.driver?].node;
            waits.then_some((first, node))
        })
    }

    fn is_starting(&self, on: u32) -> bool {
        self.starting().any(|(_, node)| node == on)
    }

    /// By which workers are chosen for a task: the least first.
    fn rank(&self, task: &Task, on: u32, load: usize, worker: u32) -> (usize, bool, usize, u32) {
        let of_node = self.workers.values().filter(|worker| worker.node == on);
        let tasks = |worker: &Worker| if worker.role == Role::Tasks { worker.given.len() } else { 0 };
        let all = of_node.map(|worker| tasks(worker) + worker.residents.len()).sum();
        (if task.strategy == Strategy::Spread { all } else { 0 }, self.far.contains(&on), load, worker)
    }

    /// A task as it is given to a worker.
    fn given(&self, id: u64, node: u32, steps: &Steps) -> Given {
        let (task, bundle) = (&self.tasks[&id], self.bundle_of(id, node, steps));
        let (attempt, demand, strategy) = (task.attempt, task.demand.clone(), task.strategy);
        Given { task: id, attempt, demand, strategy, bundle, is_blocked: false, is_ghost: false }
    }

    /// Load, number and node of workers of anybody that have nothing to do, where no first task waits for room.
    fn idle(&self) -> Vec<(usize, u32, u32)> {
        let held: BTreeSet<u32> = self.starting().map(|(_, node)| node).collect();
        let is_idle = |worker: &Worker| worker.role == Role::Tasks && worker.given.iter().all(|given| given.is_blocked);
        let idle = self.workers.iter().filter(|(_, worker)| is_idle(worker) && !held.contains(&worker.node));
        idle.map(|(id, worker)| (worker.given.len(), *id, worker.node)).collect()
    }
}

fn is_alike(a: &Task, b: &Task) -> bool {
    a.demand == b.demand && a.strategy == b.strategy
}
