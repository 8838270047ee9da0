//! Ready tasks, in dispatch order: higher priority first, then greater depth, then earlier submission. Depth first
//! bounds the number of waiting tasks.
//!
//! Tasks of one shape share a queue: if the first one does not fit, none of them does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use sandbar_core::{NodeId, Strategy};

use crate::keys::{ShapeKey, TaskKey};
use crate::resources::ResourceSet;
use crate::slab::Slab;
use crate::tasks::Task;

/// Priority and depth of a task. The smaller level is dispatched first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level {
    priority: Reverse<i32>,
    depth: Reverse<u32>,
}

impl Level {
    pub(crate) fn new(priority: i32, depth: u32) -> Level {
        Level { priority: Reverse(priority), depth: Reverse(depth) }
    }
}

/// Position of a task in the dispatch order: its level, then its submission number.
pub(crate) type Rank = (Level, u64);

/// A request for resources and placement, with the queue of the tasks that make it.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) demand: ResourceSet,
    pub(crate) strategy: Strategy,
    /// The node that has the dependencies of these tasks.
    pub(crate) preferred_node: Option<NodeId>,
    /// Expected duration of one task, as of the last push.
    pub(crate) nanos: u64,
    /// Whether the request is for processors alone, which a worker leases once for several tasks.
    pub(crate) is_cpu_only: bool,
    /// Number of queued tasks.
    pub(crate) len: usize,
    /// Whether some node could ever have room, and the membership count for which that was computed.
    pub(crate) feasible: (u64, bool),
    /// Number of classes and assigned tasks that use the shape.
    uses: usize,
    levels: BTreeMap<Level, Fifo>,
    /// The rank under which the shape is in the queue's order.
    rank: Option<Rank>,
}

/// Queued tasks of one level.
#[derive(Debug, Default)]
struct Fifo {
    /// A linked list through the tasks, in the order of submission.
    first: Option<TaskKey>,
    last: Option<TaskKey>,
    /// Tasks that were queued after later ones: they waited for objects, or run again.
    late: BTreeMap<u64, TaskKey>,
}

#[derive(Debug)]
pub(crate) struct Queue {
    shapes: Slab<ShapeKey, Shape>,
    by_demand: BTreeMap<(ResourceSet, Strategy, Option<NodeId>), ShapeKey>,
    order: BTreeSet<(Rank, ShapeKey)>,
}

impl Queue {
    pub(crate) fn new() -> Queue {
        Queue { shapes: Slab::new(), by_demand: BTreeMap::new(), order: BTreeSet::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    #[inline]
    pub(crate) fn shape(&self, at: ShapeKey) -> &Shape {
        &self.shapes[at]
    }

    pub(crate) fn shape_mut(&mut self, at: ShapeKey) -> &mut Shape {
        &mut self.shapes[at]
    }

    pub(crate) fn shapes(&self) -> usize {
        self.shapes.len()
    }

    /// Returns the shape of a request and counts one more use of it.
    pub(crate) fn use_demand(
        &mut self,
        demand: &ResourceSet,
        strategy: Strategy,
        preferred_node: Option<NodeId>,
    ) -> ShapeKey {
        let key = (demand.clone(), strategy, preferred_node);
        if let Some(at) = self.by_demand.get(&key) {
            self.shapes[*at].uses += 1;
            return *at;
        }
        let at = self.shapes.insert(Shape {
            demand: demand.clone(),
            strategy,
            preferred_node,
            nanos: 0,
            is_cpu_only: demand.is_cpu_only(),
            len: 0,
            feasible: (0, false),
            uses: 1,
            levels: BTreeMap::new(),
            rank: None,
        });
        self.by_demand.insert(key, at);
        at
    }

    pub(crate) fn use_shape(&mut self, at: ShapeKey) {
        self.shapes[at].uses += 1;
    }

    pub(crate) fn leave_shape(&mut self, at: ShapeKey) {
        let shape = &mut self.shapes[at];
        shape.uses -= 1;
        if shape.uses == 0
            && let Some(shape) = self.shapes.remove(at)
        {
            self.by_demand.remove(&(shape.demand, shape.strategy, shape.preferred_node));
        }
    }

    /// Returns the first shape in dispatch order, or the one after `rank`.
    pub(crate) fn after(&self, rank: Option<(Rank, ShapeKey)>) -> Option<(Rank, ShapeKey)> {
        match rank {
            None => self.order.first().copied(),
            // Fast path: usually one shape is queued.
            Some(rank) if self.order.last() == Some(&rank) => None,
            Some(rank) => self.order.range((Bound::Excluded(rank), Bound::Unbounded)).next().copied(),
        }
    }

    /// Returns the shapes that have queued tasks, in dispatch order.
    pub(crate) fn waiting(&self) -> Vec<ShapeKey> {
        self.order.iter().map(|(_, shape)| *shape).collect()
    }

    /// Queues a task. Returns whether it is the first of its shape.
    pub(crate) fn push<C>(
        &mut self,
        tasks: &mut Slab<TaskKey, Task<C>>,
        at: TaskKey,
        shape_at: ShapeKey,
        level: Level,
    ) -> bool {
        let shape = &mut self.shapes[shape_at];
        let fifo = shape.levels.entry(level).or_default();
        let number = tasks[at].number;
        shape.len += 1;
        match fifo.last {
            Some(last) if tasks[last].number > number => {
                tasks[at].is_late = true;
                fifo.late.insert(number, at);
            }
            last => {
                tasks[at].previous_in_queue = last;
                match last {
                    Some(last) => tasks[last].next_in_queue = Some(at),
                    None => fifo.first = Some(at),
                }
                fifo.last = Some(at);
            }
        }
        let is_first = shape.rank.is_none_or(|rank| (level, number) < rank);
        if is_first {
            self.refresh(shape_at, tasks);
        }
        is_first
    }

    /// Returns the first task of a shape.
    pub(crate) fn first<C>(&self, shape: ShapeKey, tasks: &Slab<TaskKey, Task<C>>) -> Option<(Rank, TaskKey)> {
        self.shapes[shape].first(tasks)
    }

    /// Removes a task from its queue.
    pub(crate) fn remove<C>(
        &mut self,
        tasks: &mut Slab<TaskKey, Task<C>>,
        at: TaskKey,
        shape_at: ShapeKey,
        level: Level,
    ) {
        self.take(tasks, at, shape_at, level);
        self.refresh(shape_at, tasks);
    }

    /// Like `remove`, without an update of the dispatch order. The caller calls `refresh` after a series of these.
    pub(crate) fn take<C>(
        &mut self,
        tasks: &mut Slab<TaskKey, Task<C>>,
        at: TaskKey,
        shape_at: ShapeKey,
        level: Level,
    ) {
        let shape = &mut self.shapes[shape_at];
        let Some(fifo) = shape.levels.get_mut(&level) else { unreachable!("a queued task has a level") };
        shape.len -= 1;
        let task = &mut tasks[at];
        if std::mem::take(&mut task.is_late) {
            fifo.late.remove(&task.number);
        } else {
            let (previous_in_queue, next_in_queue) = (task.previous_in_queue.take(), task.next_in_queue.take());
            match previous_in_queue {
                Some(previous_in_queue) => tasks[previous_in_queue].next_in_queue = next_in_queue,
                None => fifo.first = next_in_queue,
            }
            match next_in_queue {
                Some(next_in_queue) => tasks[next_in_queue].previous_in_queue = previous_in_queue,
                None => fifo.last = previous_in_queue,
            }
        }
        if fifo.first.is_none() && fifo.late.is_empty() {
            shape.levels.remove(&level);
        }
    }

    /// Updates the position of a shape in the dispatch order.
    pub(crate) fn refresh<C>(&mut self, shape_at: ShapeKey, tasks: &Slab<TaskKey, Task<C>>) {
        let shape = &mut self.shapes[shape_at];
        let rank = shape.first(tasks).map(|(rank, _)| rank);
        if rank == shape.rank {
            return;
        }
        if let Some(before) = std::mem::replace(&mut shape.rank, rank) {
            self.order.remove(&(before, shape_at));
        }
        if let Some(rank) = rank {
            self.order.insert((rank, shape_at));
        }
    }

    /// Frees memory if no shape is left.
    pub(crate) fn shrink(&mut self) {
        self.shapes.shrink();
    }
}

impl Shape {
    /// Whether a worker may be assigned several tasks in advance. Tasks with the spread strategy are assigned one by
    /// one.
    pub(crate) fn goes_in_advance(&self) -> bool {
        self.is_cpu_only && self.strategy != Strategy::Spread
    }

    /// Whether the tasks run in bundles of a placement group.
    pub(crate) fn is_in_group(&self) -> bool {
        matches!(self.strategy, Strategy::Group { .. })
    }

    fn first<C>(&self, tasks: &Slab<TaskKey, Task<C>>) -> Option<(Rank, TaskKey)> {
        let (level, fifo) = self.levels.first_key_value()?;
        let fresh = fifo.first.map(|at| (tasks[at].number, at));
        let late = fifo.late.first_key_value().map(|(number, at)| (*number, *at));
        let (number, at) = match (fresh, late) {
            (Some(fresh), Some(late)) => fresh.min(late),
            (fresh, late) => fresh.or(late)?,
        };
        Some(((*level, number), at))
    }
}
