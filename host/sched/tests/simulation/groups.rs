//! The model's placement groups. It takes the placement from the scheduler and checks it.

use std::collections::BTreeSet;

use sandbar_core::{Code, GroupId, GroupStrategy, Strategy, TaskId, TenantId, WorkerId};
use sandbar_sched::{Event, GroupSpec, GroupState, RESOURCE_UNIT, ResourceSet, Submission, SubmissionKind, WorkerKind};

use crate::cluster::History;
use crate::model::{AssignedTask, Model, Node, Steps, Task, Value, fits, is_cpu_only};

pub struct Group {
    pub job: u32,
    strategy: GroupStrategy,
    pub bundles: Vec<ResourceSet>,
    /// Nodes of the placed bundles.
    pub nodes: Vec<Option<u32>>,
    /// Nodes of the reserved bundles.
    pub reserving_on: Vec<Option<u32>>,
    /// The task with which a local-only group is removed.
    pub owner: Option<u64>,
    /// The value of the group's object, until the group is created.
    pub value: Option<u64>,
    pub has_failed: bool,
}

impl Group {
    /// Whether bundles are pending_actors and no reservation is pending.
    fn is_waiting(&self) -> bool {
        self.is_incomplete() && !self.is_reserving()
    }

    fn is_incomplete(&self) -> bool {
        !self.has_failed && self.nodes.contains(&None)
    }

    pub fn is_reserving(&self) -> bool {
        self.reserving_on.iter().any(Option::is_some)
    }

    /// Placed or reserved nodes of the bundles.
    fn places(&self) -> impl Iterator<Item = Option<u32>> {
        self.nodes.iter().zip(&self.reserving_on).map(|(node, reserving_on)| node.or(*reserving_on))
    }
}

/// Something with resources for tasks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Node(u32),
    Bundle(u64, u32),
}

impl Model {
    pub fn create_group(&mut self, id: u64, task: TaskId, worker: WorkerId, spec: &GroupSpec, value: u64) {
        self.values.add([value]);
        let is_known = self.is_known(id) || self.groups.contains_key(&id);
        let creator = self.running(worker, task).filter(|_| !is_known).map(|task| (task.job, task.cancellation));
        let Some((job, cancellation)) = creator else {
            self.step.dropped.insert(value);
            return;
        };
        let of_job = self.groups.values().filter(|group| group.job == job).count() as u64;
        let limits = self.jobs[&job].limits;
        let is_good = cancellation == 0
            && self.job_objects(job) < limits.objects_max
            && of_job < limits.groups_max
            && !spec.bundles.is_empty()
            && spec.bundles.iter().all(|bundle| *bundle != ResourceSet::default());
        if !is_good {
            self.create(id, job, Value::Failed, Some(worker.0));
            self.step.dropped.insert(value);
            return;
        }
        self.create(id, job, Value::Pending, Some(worker.0));
        let (bundles, nodes) = (spec.bundles.clone(), vec![None; spec.bundles.len()]);
        let (reserving_on, owner) = (nodes.clone(), spec.local_only.then_some(task.0));
        let (strategy, value) = (spec.strategy, Some(value));
        let group = Group { job, strategy, bundles, nodes, reserving_on, owner, value, has_failed: false };
        self.groups.insert(id, group);
        self.fail_infeasible_groups();
    }

    /// Closes a group and cancels the tasks in it.
    pub fn close_group(&mut self, id: u64) {
        let is_in_it =
            |assigned: &&AssignedTask| !assigned.is_ghost && assigned.bundle.is_some_and(|(group, _)| group == id);
        let all = self.workers.values().flat_map(|worker| worker.assigned.iter().chain(&worker.actors));
        let occupants: Vec<u64> = all.filter(is_in_it).map(|assigned| assigned.task).collect();
        let group = self.groups.get_mut(&id).expect("it is there");
        group.has_failed = true;
        group.nodes.fill(None);
        group.reserving_on.fill(None);
        if let Some(value) = group.value.take() {
            self.step.dropped.insert(value);
            self.objects.get_mut(&id).expect("it is pending").value = Value::Failed;
        }
        occupants.into_iter().for_each(|task| self.cancel_task(task, 1));
    }

    pub fn end_groups(&mut self, job: u32) {
        let pending = self.groups.values().filter(|group| group.job == job).filter_map(|group| group.value);
        self.step.dropped.extend(pending);
        self.groups.retain(|_, group| group.job != job);
    }

    pub fn lose_bundles(&mut self, lost: u32) {
        for group in self.groups.values_mut().filter(|group| group.places().any(|node| node == Some(lost))) {
            group.nodes.iter_mut().for_each(|at| *at = at.filter(|node| *node != lost));
            group.reserving_on.fill(None);
        }
    }

    /// Removes the groups of finished tasks.
    pub fn end_groups_of_task(&mut self, ended: &BTreeSet<u64>) {
        let is_kept = |group: &Group| group.owner.is_some_and(|owner| ended.contains(&owner));
        let all: Vec<u64> = self.groups.iter().filter(|(_, group)| is_kept(group)).map(|(id, _)| *id).collect();
        for id in all {
            if !self.groups[&id].has_failed {
                self.close_group(id);
            }
            self.groups.remove(&id);
        }
    }

    /// Returns the nodes where bundles of a group may be placed.
    fn nodes_of(&self, group: &Group) -> Vec<u32> {
        let may = |node: &u32| group.owner.is_none() || !self.is_remote(*node);
        self.nodes.keys().copied().filter(may).collect()
    }

    fn waiting(&self) -> impl Iterator<Item = u64> {
        self.groups.iter().filter(|(_, group)| group.is_waiting()).map(|(id, _)| *id)
    }

    /// Fails groups that could not be placed on otherwise empty nodes.
    pub fn fail_infeasible_groups(&mut self) {
        let impossible = |id: &u64| {
            let left = |node: u32| {
                let mut rest = self.nodes[&node].resources.clone();
                let group = &self.groups[id];
                for (_, bundle) in group.nodes.iter().zip(&group.bundles).filter(|(at, _)| **at == Some(node)) {
                    rest.cpus -= bundle.cpus;
                    take_rest(&mut rest, bundle);
                }
                (rest.cpus.into(), ResourceSet { cpus: 0, ..rest })
            };
            !self.has_way(id, left)
        };
        let waiting = self.groups.iter().filter(|(_, group)| group.is_incomplete() && !self.nodes_of(group).is_empty());
        let impossible: Vec<u64> = waiting.map(|(id, _)| *id).filter(impossible).collect();
        impossible.into_iter().for_each(|id| self.close_group(id));
    }

    /// Whether the pending_actors bundles of a group can be placed, by exhaustive search.
    fn has_way(&self, id: &u64, left: impl Fn(u32) -> (i128, ResourceSet)) -> bool {
        let group = &self.groups[id];
        let with_left = |node| {
            let (cpus, rest) = left(node);
            (node, cpus, rest)
        };
        let mut nodes: Vec<(u32, i128, ResourceSet)> = self.nodes_of(group).into_iter().map(with_left).collect();
        place_from(group, 0, &mut group.nodes.clone(), &mut nodes)
    }

    /// Takes over the placements and reservations of this step, after a check that there was room.
    pub fn place_groups(&mut self, steps: &Steps) {
        self.place_reserved(steps);
        for view in steps.groups() {
            let id = view.id.0;
            let before: Vec<Option<u32>> = self.groups[&id].places().collect();
            for (index, bundle) in view.bundles.iter().enumerate() {
                let (placed, reserving_on) =
                    (bundle.placed.map(|(node, ..)| node.0), bundle.reserving_on.map(|node| node.0));
                let Some(node) = placed.or(reserving_on) else { continue };
                assert!(before[index].is_none_or(|before| before == node), "bundles stay where they are");
                if before[index].is_none() {
                    let (cpus, rest) = self.left(node);
                    assert!(fits(bundle.total, cpus, &rest), "bundle {index} of group {id} has no room on {node}");
                    assert!(reserving_on.is_some() || !self.is_remote(node), "node {node} was not asked");
                    assert!(!self.is_draining(node), "node {node} is to go");
                    let is_remote = self.is_remote(node);
                    let group = self.groups.get_mut(&id).expect("it is there");
                    assert!(group.owner.is_none() || !is_remote, "group {id} is local only");
                    (group.nodes[index], group.reserving_on[index]) = (placed, reserving_on);
                }
            }
            let group = self.groups.get_mut(&id).expect("it is there");
            if group.places().eq(before) && !group.value.is_some_and(|_| group.nodes.iter().all(Option::is_some)) {
                continue;
            }
            let nodes: BTreeSet<u32> = group.places().map(|node| node.expect("all or none")).collect();
            match group.strategy {
                GroupStrategy::StrictPack => assert_eq!(nodes.len(), 1, "group {id}"),
                GroupStrategy::StrictSpread => assert_eq!(nodes.len(), group.nodes.len(), "group {id}"),
                GroupStrategy::Pack | GroupStrategy::Spread => {}
            }
            if !group.is_reserving()
                && let Some(value) = group.value.take()
            {
                self.objects.get_mut(&id).expect("it is pending").value = Value::Ready(value, Vec::new());
            }
        }
    }

    /// Checks the views of groups, and that no group waits without a reason.
    pub fn check_groups(&self, steps: &Steps) {
        assert_eq!(steps.groups().count(), self.groups.len());
        for view in steps.groups() {
            let group = &self.groups[&view.id.0];
            let state = match (group.has_failed, group.value) {
                (true, _) => GroupState::Infeasible,
                (_, Some(_)) => GroupState::Pending,
                _ if group.is_incomplete() => GroupState::Rescheduling,
                _ => GroupState::Created,
            };
            assert_eq!(view.state, state, "group {}", view.id);
            for (index, bundle) in (0..).zip(&view.bundles) {
                let placed = bundle.placed.map(|(node, ..)| node.0);
                assert_eq!(placed, group.nodes[index as usize], "group {}", view.id);
                assert_eq!(
                    bundle.reserving_on.map(|node| node.0),
                    group.reserving_on[index as usize],
                    "group {}",
                    view.id
                );
                if let Some((_, cpus, rest)) = bundle.placed {
                    let free = self.free(Room::Bundle(view.id.0, index));
                    assert_eq!((cpus, rest), (free.0, &free.1), "bundle {index} of group {}", view.id);
                }
            }
        }
        let draining = self.nodes.keys().copied().filter(|node| self.is_draining(*node));
        let held: BTreeSet<u32> = self.starting().map(|(_, node)| node).chain(draining).collect();
        self.check_reservations();
        // With several pending groups, nodes may be held for the first one.
        if let [only] = self.waiting().collect::<Vec<_>>()[..] {
            let left = |node: u32| match held.contains(&node) || self.reservations.is_refused(only, node) {
                true => (-1, ResourceSet::default()),
                false => self.left(node),
            };
            assert!(!self.has_way(&only, left), "group {only} could be placed");
        }
    }

    /// Whether nodes may be held for a group, so that tasks outside of groups wait.
    pub fn may_hold(&self, task: &Task) -> bool {
        !matches!(task.strategy, Strategy::Group { .. }) && self.waiting().next().is_some()
    }

    /// Whether the placement strategy of a submission is valid.
    pub fn is_placement_valid(&self, task: &Submission<u64>) -> bool {
        let Strategy::Group { group, bundle } = task.strategy else {
            return task.strategy == Strategy::Default || !matches!(task.kind, SubmissionKind::Method(_));
        };
        let Some(record) = self.groups.get(&group.0) else { return false };
        let could = |(total, index): (&ResourceSet, u32)| {
            bundle.is_none_or(|bundle| bundle == index) && fits(&task.demand, total.cpus.into(), total)
        };
        let is_usual =
            !matches!(task.kind, SubmissionKind::Method(_)) && record.job == task.job.0 && !record.has_failed;
        is_usual && record.bundles.iter().zip(0..).any(could)
    }

    /// Returns the object of a pending group that a task must wait for.
    pub fn pending_group(&self, strategy: Strategy) -> Option<u64> {
        let Strategy::Group { group: GroupId(group), .. } = strategy else { return None };
        self.groups.get(&group).and_then(|record| record.value).map(|_| group)
    }

    pub fn group_is_removed(&self, strategy: Strategy) -> bool {
        let Strategy::Group { group, .. } = strategy else { return false };
        self.groups.get(&group.0).is_none_or(|group| group.has_failed)
    }

    pub fn fail_of_group(&mut self, id: u64) {
        self.fail(id, Code::GroupRemoved);
        self.fail(id, Code::Infeasible);
    }

    fn is_allowed(&self, task: &Task, on: u32) -> bool {
        let Strategy::Node { node, soft } = task.strategy else { return true };
        let could = |node: &Node| !node.is_draining && fits(&task.demand, node.resources.cpus.into(), &node.resources);
        let is_there = self.nodes.get(&node.0).is_some_and(could);
        node.0 == on || soft && !is_there
    }

    /// Whether a task could run on some node that nothing else used.
    pub fn has_feasible_node(&self, task: &Task) -> bool {
        let could = |(id, node): (&u32, &Node)| {
            self.is_allowed(task, *id) && fits(&task.demand, node.resources.cpus.into(), &node.resources)
        };
        matches!(task.strategy, Strategy::Group { .. }) || self.nodes.iter().any(could)
    }

    /// Whether a node has room for a task.
    pub fn has_room(&self, task: &Task, node: u32) -> bool {
        !self.is_draining(node) && self.is_free_for(task, node)
    }

    /// Like `has_room`, also for draining nodes.
    pub fn is_free_for(&self, task: &Task, node: u32) -> bool {
        let Strategy::Group { group, bundle } = task.strategy else {
            let (cpus, rest) = self.left(node);
            return self.is_allowed(task, node) && fits(&task.demand, cpus, &rest);
        };
        let Some(record) = self.groups.get(&group.0) else { return false };
        let here = record.nodes.iter().zip(0u32..).filter(|(at, _)| **at == Some(node));
        here.map(|(_, index)| index).filter(|index| bundle.is_none_or(|bundle| bundle == *index)).any(|index| {
            let (cpus, rest) = self.free(Room::Bundle(group.0, index));
            fits(&task.demand, cpus, &rest)
        })
    }

    /// Returns the bundle of a task, after a check that the task may use it.
    pub fn bundle_of(&self, id: u64, node: u32, steps: &Steps) -> Option<(u64, u32)> {
        let Strategy::Group { group, bundle } = self.tasks[&id].strategy else { return None };
        let view = steps.groups().find(|view| view.id == group).expect("it is there");
        let has = |index: &usize| view.bundles[*index].occupants.contains(&TaskId(id));
        let index = (0..view.bundles.len()).find(has).expect("it is in one");
        assert!(bundle.is_none_or(|bundle| bundle as usize == index), "task {id} is in another bundle");
        assert_eq!(self.groups[&group.0].nodes[index], Some(node), "task {id}");
        // The task may have finished within the step.
        let seen = steps.bundle_of(TaskId(id));
        assert!(seen.is_none_or(|seen| seen == (group, index as u32)), "task {id} is in {seen:?}");
        Some((group.0, index as u32))
    }

    /// Returns the node or bundle whose resources an assigned task uses.
    pub fn room_of(&self, assigned: &AssignedTask, node: u32) -> Room {
        let placed = |(group, index): &(u64, u32)| {
            self.groups.get(group).is_some_and(|group| group.nodes[*index as usize].is_some())
        };
        assigned.bundle.filter(placed).map_or(Room::Node(node), |(group, index)| Room::Bundle(group, index))
    }

    /// Returns free resources.
    pub fn free(&self, room: Room) -> (i128, ResourceSet) {
        let (node, mut rest) = match room {
            Room::Node(node) => (node, self.nodes[&node].resources.clone()),
            Room::Bundle(group, index) => {
                let group = &self.groups[&group];
                let node = group.nodes[index as usize].expect("it is placed");
                (node, group.bundles[index as usize].clone())
            }
        };
        let mut cpus = i128::from(std::mem::take(&mut rest.cpus));
        if let Room::Node(_) = room {
            for group in self.groups.values() {
                for (_, bundle) in group.places().zip(&group.bundles).filter(|(at, _)| *at == Some(node)) {
                    cpus -= i128::from(bundle.cpus);
                    take_rest(&mut rest, bundle);
                }
            }
        }
        for worker in self.workers.values().filter(|worker| worker.node == node) {
            let mut leases: Vec<(TenantId, &ResourceSet, Strategy)> = Vec::new();
            for assigned in worker.assigned.iter().filter(|assigned| self.room_of(assigned, node) == room) {
                take_rest(&mut rest, &assigned.demand);
                let lease = (assigned.tenant, &assigned.demand, assigned.strategy);
                let runs_several =
                    matches!(worker.kind, WorkerKind::Actors(_) | WorkerKind::PeerProxy | WorkerKind::Leases);
                let shares = is_cpu_only(&assigned.demand) && !runs_several && leases.contains(&lease);
                if assigned.is_blocked || shares {
                    continue;
                }
                cpus -= i128::from(assigned.demand.cpus);
                leases.push(lease);
            }
            for assigned in worker.actors.iter().filter(|assigned| self.room_of(assigned, node) == room) {
                cpus -= i128::from(assigned.demand.cpus);
                take_rest(&mut rest, &assigned.demand);
            }
        }
        (cpus, rest)
    }
}

/// Places the bundles of a group from `next` on.
fn place_from(group: &Group, next: usize, at: &mut Vec<Option<u32>>, nodes: &mut [(u32, i128, ResourceSet)]) -> bool {
    if next == at.len() {
        let distinct: BTreeSet<u32> = at.iter().flatten().copied().collect();
        return match group.strategy {
            GroupStrategy::Pack | GroupStrategy::Spread => true,
            GroupStrategy::StrictPack => distinct.len() == 1,
            GroupStrategy::StrictSpread => distinct.len() == at.len(),
        };
    }
    if at[next].is_some() {
        return place_from(group, next + 1, at, nodes);
    }
    let demand = &group.bundles[next];
    for index in 0..nodes.len() {
        let (node, cpus, rest) = nodes[index].clone();
        if fits(demand, cpus, &rest) {
            nodes[index].1 -= i128::from(demand.cpus);
            take_rest(&mut nodes[index].2, demand);
            at[next] = Some(node);
            let is_good = place_from(group, next + 1, at, nodes);
            (nodes[index], at[next]) = ((node, cpus, rest), None);
            if is_good {
                return true;
            }
        }
    }
    false
}

fn take_rest(rest: &mut ResourceSet, demand: &ResourceSet) {
    rest.gpus -= demand.gpus;
    rest.memory -= demand.memory;
    for (name, amount) in demand.custom.iter().filter(|(_, amount)| **amount > 0) {
        *rest.custom.get_mut(name).expect("it has it") -= amount;
    }
}

impl History {
    /// Picks a placement group, of a job if one is given.
    pub fn any_group(&mut self, job: Option<u32>) -> Option<GroupId> {
        let of_job = self.model.groups.iter().filter(|(_, group)| job.is_none_or(|job| job == group.job));
        let all: Vec<u64> = of_job.map(|(id, _)| *id).collect();
        self.pick(&all).map(GroupId)
    }

    /// A task creates a placement group.
    pub fn create_group(&mut self, worker: WorkerId, task: TaskId) {
        self.number += 10;
        let strategy = match self.seed.below(6) {
            0 => GroupStrategy::Pack,
            1 => GroupStrategy::StrictPack,
            2..4 => GroupStrategy::Spread,
            _ => GroupStrategy::StrictSpread,
        };
        let mut bundle = || {
            let demand =
                ResourceSet { cpus: RESOURCE_UNIT / 2 * u64::from(1 + self.seed.below(3)), ..ResourceSet::default() };
            match self.seed.below(10) {
                0..7 => demand,
                7 => ResourceSet { gpus: RESOURCE_UNIT, ..demand },
                8 => ResourceSet { memory: 60, ..demand },
                _ => ResourceSet { custom: [("tpu".into(), RESOURCE_UNIT)].into(), ..demand },
            }
        };
        let bundles = (0..3).map(|_| bundle()).collect::<Vec<_>>();
        let bundles = bundles.into_iter().take(self.seed.below(32) as usize / 5).collect();
        // Groups of other schedulers are usually local only.
        let local_only = if self.model.is_proxy_task(task.0) { self.chance(70) } else { self.chance(5) };
        let (group, spec) = (GroupId(self.number), GroupSpec { name: None, strategy, bundles, local_only });
        self.event(Event::GroupCreated { group, task, worker, spec, value: self.number });
    }
}
