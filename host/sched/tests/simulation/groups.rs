//! What a scheduler should know of placement groups. Where it places them is taken from it, and checked.

use std::collections::BTreeSet;

use sandbar_core::{Code, GroupId, GroupStrategy, Strategy, TaskId, WorkerId};
use sandbar_sched::{Demand, Event, GroupSpec, GroupState, Role, Submission, UNIT, Work};

use crate::cluster::History;
use crate::model::{Given, Model, Steps, Task, Value, fits, is_light};

pub struct Group {
    pub job: u32,
    strategy: GroupStrategy,
    pub bundles: Vec<Demand>,
    /// Where each bundle is.
    pub nodes: Vec<Option<u32>>,
    /// Where it is to be, if all nodes agree.
    pub asked: Vec<Option<u32>>,
    /// Whether it lies on nodes alone that are near: it goes with this task.
    pub keeper: Option<u64>,
    /// What its object will have, until it does.
    pub value: Option<u64>,
    pub has_failed: bool,
}

impl Group {
    /// Whether it lacks something, and waits for no answer.
    fn is_waiting(&self) -> bool {
        self.is_incomplete() && !self.is_tried()
    }

    fn is_incomplete(&self) -> bool {
        !self.has_failed && self.nodes.contains(&None)
    }

    pub fn is_tried(&self) -> bool {
        self.asked.iter().any(Option::is_some)
    }

    /// Where each bundle is, or is to be.
    fn places(&self) -> impl Iterator<Item = Option<u32>> {
        self.nodes.iter().zip(&self.asked).map(|(node, asked)| node.or(*asked))
    }
}

/// Something that tasks take of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Node(u32),
    Bundle(u64, u32),
}

impl Model {
    pub fn create_group(&mut self, id: u64, task: TaskId, worker: WorkerId, spec: &GroupSpec, value: u64) {
        self.values.insert(value);
        let is_known = self.is_known(id) || self.groups.contains_key(&id);
        let maker = self.running(worker, task).filter(|_| !is_known).map(|task| (task.job, task.stop));
        let Some((job, stop)) = maker else {
            self.step.dropped.insert(value);
            return;
        };
        let of_job = self.groups.values().filter(|group| group.job == job).count() as u64;
        let limits = self.jobs[&job].limits;
        let is_good = stop == 0
            && self.job_objects(job) < limits.objects_max
            && of_job < limits.groups_max
            && !spec.bundles.is_empty()
            && spec.bundles.iter().all(|bundle| *bundle != Demand::default());
        if !is_good {
            self.create(id, job, Value::Failed, Some(worker.0));
            self.step.dropped.insert(value);
            return;
        }
        self.create(id, job, Value::Pending, Some(worker.0));
        let (bundles, nodes) = (spec.bundles.clone(), vec![None; spec.bundles.len()]);
        let (asked, keeper) = (nodes.clone(), spec.near.then_some(task.0));
        let (strategy, value) = (spec.strategy, Some(value));
        let group = Group { job, strategy, bundles, nodes, asked, keeper, value, has_failed: false };
        self.groups.insert(id, group);
        self.fail_impossible_groups();
    }

    /// A group is not there any more: who is in it is to end.
    pub fn close_group(&mut self, id: u64) {
        let is_in_it = |given: &&Given| !given.is_ghost && given.bundle.is_some_and(|(group, _)| group == id);
        let all = self.workers.values().flat_map(|worker| worker.given.iter().chain(&worker.residents));
        let occupants: Vec<u64> = all.filter(is_in_it).map(|given| given.task).collect();
        let group = self.groups.get_mut(&id).expect("it is there");
        group.has_failed = true;
        group.nodes.fill(None);
        group.asked.fill(None);
        if let Some(value) = group.value.take() {
            self.step.dropped.insert(value);
            self.objects.get_mut(&id).expect("it is pending").value = Value::Failed;
        }
        occupants.into_iter().for_each(|task| self.stop(task, 1));
    }

    pub fn end_groups(&mut self, job: u32) {
        let pending = self.groups.values().filter(|group| group.job == job).filter_map(|group| group.value);
        self.step.dropped.extend(pending);
        self.groups.retain(|_, group| group.job != job);
    }

    pub fn lose_bundles(&mut self, lost: u32) {
        for group in self.groups.values_mut().filter(|group| group.places().any(|node| node == Some(lost))) {
            group.nodes.iter_mut().for_each(|at| *at = at.filter(|node| *node != lost));
            group.asked.fill(None);
        }
    }

    /// Groups go with tasks that have ended.
    pub fn end_kept_groups(&mut self, ended: &BTreeSet<u64>) {
        let is_kept = |group: &Group| group.keeper.is_some_and(|keeper| ended.contains(&keeper));
        let all: Vec<u64> = self.groups.iter().filter(|(_, group)| is_kept(group)).map(|(id, _)| *id).collect();
        for id in all {
            if !self.groups[&id].has_failed {
                self.close_group(id);
            }
            self.groups.remove(&id);
        }
    }

    /// Nodes where bundles of a group may lie.
    fn nodes_of(&self, group: &Group) -> Vec<u32> {
        let may = |node: &u32| group.keeper.is_none() || !self.far.contains(node);
        self.nodes.keys().copied().filter(may).collect()
    }

    fn waiting(&self) -> impl Iterator<Item = u64> {
        self.groups.iter().filter(|(_, group)| group.is_waiting()).map(|(id, _)| *id)
    }

    /// Groups fail for which the nodes that there are would not do if nothing else were there.
    pub fn fail_impossible_groups(&mut self) {
        let impossible = |id: &u64| {
            let left = |node: u32| {
                let mut rest = self.nodes[&node].clone();
                let group = &self.groups[id];
                for (_, bundle) in group.nodes.iter().zip(&group.bundles).filter(|(at, _)| **at == Some(node)) {
                    rest.cpus -= bundle.cpus;
                    take_rest(&mut rest, bundle);
                }
                (rest.cpus.into(), Demand { cpus: 0, ..rest })
            };
            !self.has_way(id, left)
        };
        let waiting = self.groups.iter().filter(|(_, group)| group.is_incomplete() && !self.nodes_of(group).is_empty());
        let impossible: Vec<u64> = waiting.map(|(id, _)| *id).filter(impossible).collect();
        impossible.into_iter().for_each(|id| self.close_group(id));
    }

    /// Whether there is a way to place what a group lacks, by trying all of them.
    fn has_way(&self, id: &u64, left: impl Fn(u32) -> (i128, Demand)) -> bool {
        let group = &self.groups[id];
        let with_left = |node| {
            let (cpus, rest) = left(node);
            (node, cpus, rest)
        };
        let mut nodes: Vec<(u32, i128, Demand)> = self.nodes_of(group).into_iter().map(with_left).collect();
        go_on(group, 0, &mut group.nodes.clone(), &mut nodes)
    }

    /// Takes over where groups were placed in this step, or are to be, if they could be.
    pub fn place_groups(&mut self, steps: &Steps) {
        self.place_agreed(steps);
        for view in steps.groups() {
            let id = view.id.0;
            let before: Vec<Option<u32>> = self.groups[&id].places().collect();
            for (index, bundle) in view.bundles.iter().enumerate() {
                let (placed, asked) = (bundle.placed.map(|(node, ..)| node.0), bundle.asked.map(|node| node.0));
                let Some(node) = placed.or(asked) else { continue };
                assert!(before[index].is_none_or(|before| before == node), "bundles stay where they are");
                if before[index].is_none() {
                    let (cpus, rest) = self.left(node);
                    assert!(fits(bundle.total, cpus, &rest), "bundle {index} of group {id} has no room on {node}");
                    assert!(asked.is_some() || !self.far.contains(&node), "node {node} was not asked");
                    assert!(!self.draining.contains(&node), "node {node} is to go");
                    let group = self.groups.get_mut(&id).expect("it is there");
                    assert!(group.keeper.is_none() || !self.far.contains(&node), "group {id} is to be near");
                    (group.nodes[index], group.asked[index]) = (placed, asked);
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
            if !group.is_tried()
                && let Some(value) = group.value.take()
            {
                self.objects.get_mut(&id).expect("it is pending").value = Value::Ready(value, Vec::new());
            }
        }
    }

    /// What is known of groups, and that none waits for nothing.
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
                assert_eq!(bundle.asked.map(|node| node.0), group.asked[index as usize], "group {}", view.id);
                if let Some((_, cpus, rest)) = bundle.placed {
                    let free = self.free(Room::Bundle(view.id.0, index));
                    assert_eq!((cpus, rest), (free.0, &free.1), "bundle {index} of group {}", view.id);
                }
            }
        }
        let held: BTreeSet<u32> = self.starting().map(|(_, node)| node).chain(self.draining.iter().copied()).collect();
        self.check_aside();
        // Where others could be placed that wait, nodes may be held for the first of them.
        if let [only] = self.waiting().collect::<Vec<_>>()[..] {
            let left = |node: u32| match held.contains(&node) || self.refused.contains(&(only, node)) {
                true => (-1, Demand::default()),
                false => self.left(node),
            };
            assert!(!self.has_way(&only, left), "group {only} could be placed");
        }
    }

    /// Nodes may be held for a group: what is not in one may wait.
    pub fn may_hold(&self, task: &Task) -> bool {
        !matches!(task.strategy, Strategy::Group { .. }) && self.waiting().next().is_some()
    }

    /// Whether a task may be where it wants to.
    pub fn may_be_there(&self, task: &Submission<u64>) -> bool {
        let Strategy::Group { group, bundle } = task.strategy else {
            return task.strategy == Strategy::Default || !matches!(task.work, Work::Method(_));
        };
        let Some(record) = self.groups.get(&group.0) else { return false };
        let could = |(total, index): (&Demand, u32)| {
            bundle.is_none_or(|bundle| bundle == index) && fits(&task.demand, total.cpus.into(), total)
        };
        let is_usual = !matches!(task.work, Work::Method(_)) && record.job == task.job.0 && !record.has_failed;
        is_usual && record.bundles.iter().zip(0..).any(could)
    }

    /// The object that a task has to wait for.
    pub fn pending_group(&self, strategy: Strategy) -> Option<u64> {
        let Strategy::Group { group: GroupId(group), .. } = strategy else { return None };
        self.groups.get(&group).and_then(|record| record.value).map(|_| group)
    }

    pub fn group_is_gone(&self, strategy: Strategy) -> bool {
        let Strategy::Group { group, .. } = strategy else { return false };
        self.groups.get(&group.0).is_none_or(|group| group.has_failed)
    }

    pub fn fail_of_group(&mut self, id: u64) {
        self.fail(id, Code::GroupRemoved);
        self.fail(id, Code::Infeasible);
    }

    fn is_allowed(&self, task: &Task, on: u32) -> bool {
        let Strategy::Node { node, soft } = task.strategy else { return true };
        let could = |total: &Demand| fits(&task.demand, total.cpus.into(), total);
        let is_there = self.nodes.get(&node.0).is_some_and(could) && !self.draining.contains(&node.0);
        node.0 == on || soft && !is_there
    }

    /// Whether some node would do for a task, with nothing else there.
    pub fn could_be_there(&self, task: &Task) -> bool {
        let could = |(node, total): (&u32, &Demand)| {
            self.is_allowed(task, *node) && fits(&task.demand, total.cpus.into(), total)
        };
        matches!(task.strategy, Strategy::Group { .. }) || self.nodes.iter().any(could)
    }

    /// Whether there is room for a task on a node.
    pub fn has_room(&self, task: &Task, node: u32) -> bool {
        !self.draining.contains(&node) && self.is_free_for(task, node)
    }

    /// As above, of a node that may be about to go.
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

    /// The bundle that a task was given, which has to be one that it may have.
    pub fn bundle_of(&self, id: u64, node: u32, steps: &Steps) -> Option<(u64, u32)> {
        let Strategy::Group { group, bundle } = self.tasks[&id].strategy else { return None };
        let view = steps.groups().find(|view| view.id == group).expect("it is there");
        let has = |index: &usize| view.bundles[*index].occupants.contains(&TaskId(id));
        let index = (0..view.bundles.len()).find(has).expect("it is in one");
        assert!(bundle.is_none_or(|bundle| bundle as usize == index), "task {id} is in another bundle");
        assert_eq!(self.groups[&group.0].nodes[index], Some(node), "task {id}");
        // It may have ended by the end of the step.
        let seen = steps.bundle_of(TaskId(id));
        assert!(seen.is_none_or(|seen| seen == (group, index as u32)), "task {id} is in {seen:?}");
        Some((group.0, index as u32))
    }

    /// What something that a worker was given takes of.
    pub fn room_of(&self, given: &Given, node: u32) -> Room {
        let placed = |(group, index): &(u64, u32)| {
            self.groups.get(group).is_some_and(|group| group.nodes[*index as usize].is_some())
        };
        given.bundle.filter(placed).map_or(Room::Node(node), |(group, index)| Room::Bundle(group, index))
    }

    /// What something has left.
    pub fn free(&self, room: Room) -> (i128, Demand) {
        let (node, mut rest) = match room {
            Room::Node(node) => (node, self.nodes[&node].clone()),
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
            let mut leases: Vec<(&Demand, Strategy)> = Vec::new();
            for given in worker.given.iter().filter(|given| self.room_of(given, node) == room) {
                take_rest(&mut rest, &given.demand);
                let lease = (&given.demand, given.strategy);
                let has_actors = matches!(worker.role, Role::Actors | Role::Peer);
                let shares = is_light(&given.demand) && !has_actors && leases.contains(&lease);
                if given.is_blocked || shares {
                    continue;
                }
                cpus -= i128::from(given.demand.cpus);
                leases.push(lease);
            }
            for given in worker.residents.iter().filter(|given| self.room_of(given, node) == room) {
                cpus -= i128::from(given.demand.cpus);
                take_rest(&mut rest, &given.demand);
            }
        }
        (cpus, rest)
    }
}

/// Places the bundles of a group from `next` on that lie nowhere.
fn go_on(group: &Group, next: usize, at: &mut Vec<Option<u32>>, nodes: &mut [(u32, i128, Demand)]) -> bool {
    if next == at.len() {
        let distinct: BTreeSet<u32> = at.iter().flatten().copied().collect();
        return match group.strategy {
            GroupStrategy::Pack | GroupStrategy::Spread => true,
            GroupStrategy::StrictPack => distinct.len() == 1,
            GroupStrategy::StrictSpread => distinct.len() == at.len(),
        };
    }
    if at[next].is_some() {
        return go_on(group, next + 1, at, nodes);
    }
    let demand = &group.bundles[next];
    for index in 0..nodes.len() {
        let (node, cpus, rest) = nodes[index].clone();
        if fits(demand, cpus, &rest) {
            nodes[index].1 -= i128::from(demand.cpus);
            take_rest(&mut nodes[index].2, demand);
            at[next] = Some(node);
            let is_good = go_on(group, next + 1, at, nodes);
            (nodes[index], at[next]) = ((node, cpus, rest), None);
            if is_good {
                return true;
            }
        }
    }
    false
}

fn take_rest(rest: &mut Demand, demand: &Demand) {
    rest.gpus -= demand.gpus;
    rest.memory -= demand.memory;
    for (name, amount) in demand.custom.iter().filter(|(_, amount)| **amount > 0) {
        *rest.custom.get_mut(name).expect("it has it") -= amount;
    }
}

impl History {
    /// A placement group, of a job if one is named.
    pub fn any_group(&mut self, job: Option<u32>) -> Option<GroupId> {
        let of_job = self.model.groups.iter().filter(|(_, group)| job.is_none_or(|job| job == group.job));
        let all: Vec<u64> = of_job.map(|(id, _)| *id).collect();
        self.pick(&all).map(GroupId)
    }

    /// A task makes a placement group.
    pub fn create_group(&mut self, worker: WorkerId, task: TaskId) {
        self.number += 10;
        let strategy = match self.seed.below(6) {
            0 => GroupStrategy::Pack,
            1 => GroupStrategy::StrictPack,
            2..4 => GroupStrategy::Spread,
            _ => GroupStrategy::StrictSpread,
        };
        let mut bundle = || {
            let demand = Demand { cpus: UNIT / 2 * u64::from(1 + self.seed.below(3)), ..Demand::default() };
            match self.seed.below(10) {
                0..7 => demand,
                7 => Demand { gpus: UNIT, ..demand },
                8 => Demand { memory: 60, ..demand },
                _ => Demand { custom: [("tpu".into(), UNIT)].into(), ..demand },
            }
        };
        let bundles = (0..3).map(|_| bundle()).collect::<Vec<_>>();
        let bundles = bundles.into_iter().take(self.seed.below(32) as usize / 5).collect();
        // Mostly other schedulers want them near.
        let near = if self.model.is_seat(task.0) { self.chance(70) } else { self.chance(5) };
        let (group, spec) = (GroupId(self.number), GroupSpec { name: None, strategy, bundles, near });
        self.event(Event::GroupCreated { group, task, worker, spec, value: self.number });
    }
}
