//! Ready tasks of each tenant, in dispatch order: higher priority first, then greater depth, then earlier submission. Depth
//! first bounds the number of waiting tasks.
//!
//! Tasks of one shape share a queue: if the first one does not fit, none of them does.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use sandbar_core::{NodeId, Strategy};

use crate::event::SubmissionKind;
use crate::records::keys::{ShapeKey, TaskKey, TenantKey};
use crate::records::level::Level;
use crate::records::resources::ResourceSet;
use crate::records::slab::Slab;
use crate::records::tasks::Tasks;

/// Position of a task in the dispatch order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) level: Level,
    /// Submission number of the task.
    pub(crate) number: u64,
}

/// Position of a shape in the dispatch order: that of its first task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RankedShape {
    pub(crate) rank: Rank,
    pub(crate) shape: ShapeKey,
}

/// Whether some node could ever have room for a shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Feasibility {
    /// The membership count for which it was computed.
    pub(crate) membership: u64,
    pub(crate) is_feasible: bool,
}

/// What tasks of one shape request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Request {
    pub(crate) tenant: TenantKey,
    pub(crate) demand: ResourceSet,
    pub(crate) strategy: Strategy,
    /// The node that has the dependencies of these tasks.
    pub(crate) preferred_node: Option<NodeId>,
    /// Whether they are leases.
    pub(crate) is_lease: bool,
}

/// A request for resources and placement, with the queue of the tasks that make it.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) tenant: TenantKey,
    pub(crate) demand: ResourceSet,
    pub(crate) strategy: Strategy,
    pub(crate) preferred_node: Option<NodeId>,
    pub(crate) is_lease: bool,
    /// Expected duration of one task, as of the last push.
    pub(crate) nanos: u64,
    /// Whether the request is for processors alone, which a worker leases once for several tasks.
    pub(crate) is_cpu_only: bool,
    /// Number of queued tasks.
    pub(crate) len: usize,
    pub(crate) feasibility: Feasibility,
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
    by_request: BTreeMap<Request, ShapeKey>,
    /// Shapes with queued tasks, by tenant in dispatch order. No set is empty.
    orders: BTreeMap<TenantKey, BTreeSet<RankedShape>>,
    /// Number of queued leases.
    pub(crate) leases: usize,
}

impl Request {
    /// Returns the request of a submission.
    pub(crate) fn new(tenant: TenantKey, demand: &ResourceSet, strategy: Strategy, kind: &SubmissionKind) -> Request {
        let is_lease = *kind == SubmissionKind::Lease;
        Request { tenant, demand: demand.clone(), strategy, preferred_node: None, is_lease }
    }
}

impl Queue {
    pub(crate) fn new() -> Queue {
        Queue { shapes: Slab::new(), by_request: BTreeMap::new(), orders: BTreeMap::new(), leases: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.orders.is_empty()
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
    pub(crate) fn use_request(&mut self, request: Request) -> ShapeKey {
        if let Some(at) = self.by_request.get(&request) {
            self.shapes[*at].uses += 1;
            return *at;
        }
        let Request { tenant, demand, strategy, preferred_node, is_lease } = request.clone();
        let at = self.shapes.insert(Shape {
            tenant,
            strategy,
            preferred_node,
            is_lease,
            nanos: 0,
            is_cpu_only: demand.is_cpu_only(),
            len: 0,
            feasibility: Feasibility { membership: 0, is_feasible: false },
            uses: 1,
            levels: BTreeMap::new(),
            rank: None,
            demand,
        });
        self.by_request.insert(request, at);
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
            let Shape { tenant, demand, strategy, preferred_node, is_lease, .. } = shape;
            self.by_request.remove(&Request { tenant, demand, strategy, preferred_node, is_lease });
        }
    }

    /// Returns a tenant's first shape in dispatch order, or the one after `previous`.
    pub(crate) fn after(&self, tenant: TenantKey, previous: Option<RankedShape>) -> Option<RankedShape> {
        let order = self.orders.get(&tenant)?;
        match previous {
            None => order.first().copied(),
            // Fast path: usually one shape is queued.
            Some(previous) if order.last() == Some(&previous) => None,
            Some(previous) => order.range((Bound::Excluded(previous), Bound::Unbounded)).next().copied(),
        }
    }

    /// Iterates over the tenants with queued tasks.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = TenantKey> {
        self.orders.keys().copied()
    }

    /// Returns the shapes that have queued tasks, by tenant in dispatch order.
    pub(crate) fn waiting(&self) -> Vec<ShapeKey> {
        self.orders.values().flatten().map(|queued| queued.shape).collect()
    }

    /// Queues a task. Returns whether it is the first of its shape.
    pub(crate) fn push<C>(&mut self, tasks: &mut Tasks<C>, at: TaskKey, shape_at: ShapeKey, level: Level) -> bool {
        let shape = &mut self.shapes[shape_at];
        let fifo = shape.levels.entry(level).or_default();
        let number = tasks[at].number;
        shape.len += 1;
        self.leases += usize::from(shape.is_lease);
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
        let is_first = shape.rank.is_none_or(|rank| Rank { level, number } < rank);
        if is_first {
            self.refresh(shape_at, tasks);
        }
        is_first
    }

    /// Returns the first task of a shape.
    pub(crate) fn first<C>(&self, shape: ShapeKey, tasks: &Tasks<C>) -> Option<(Rank, TaskKey)> {
        self.shapes[shape].first(tasks)
    }

    /// Removes a task from its queue.
    pub(crate) fn remove<C>(&mut self, tasks: &mut Tasks<C>, at: TaskKey, shape_at: ShapeKey, level: Level) {
        self.take(tasks, at, shape_at, level);
        self.refresh(shape_at, tasks);
    }

    /// Like `remove`, without an update of the dispatch order. The caller calls `refresh` after a series of these.
    pub(crate) fn take<C>(&mut self, tasks: &mut Tasks<C>, at: TaskKey, shape_at: ShapeKey, level: Level) {
        let shape = &mut self.shapes[shape_at];
        let Some(fifo) = shape.levels.get_mut(&level) else { unreachable!("a queued task has a level") };
        shape.len -= 1;
        self.leases -= usize::from(shape.is_lease);
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
    pub(crate) fn refresh<C>(&mut self, shape_at: ShapeKey, tasks: &Tasks<C>) {
        let shape = &mut self.shapes[shape_at];
        let rank = shape.first(tasks).map(|(rank, _)| rank);
        if rank == shape.rank {
            return;
        }
        let tenant = shape.tenant;
        let before = std::mem::replace(&mut shape.rank, rank);
        let order = self.orders.entry(tenant).or_default();
        if let Some(rank) = before {
            order.remove(&RankedShape { rank, shape: shape_at });
        }
        if let Some(rank) = rank {
            order.insert(RankedShape { rank, shape: shape_at });
        } else if order.is_empty() {
            self.orders.remove(&tenant);
        }
    }

    /// Frees memory if no shape is left.
    pub(crate) fn shrink(&mut self) {
        self.shapes.shrink();
    }
}

impl Shape {
    /// Whether a worker may be assigned several tasks in advance. Leases, and tasks with the spread strategy, are assigned
    /// one by one.
    pub(crate) fn goes_in_advance(&self) -> bool {
        self.is_cpu_only && self.strategy != Strategy::Spread && !self.is_lease
    }

    /// Whether the tasks run in bundles of a placement group.
    pub(crate) fn is_in_group(&self) -> bool {
        matches!(self.strategy, Strategy::Group { .. })
    }

    fn first<C>(&self, tasks: &Tasks<C>) -> Option<(Rank, TaskKey)> {
        let (level, fifo) = self.levels.first_key_value()?;
        let fresh = fifo.first.map(|at| (tasks[at].number, at));
        let late = fifo.late.first_key_value().map(|(number, at)| (*number, *at));
        let (number, at) = match (fresh, late) {
            (Some(fresh), Some(late)) => fresh.min(late),
            (fresh, late) => fresh.or(late)?,
        };
        Some((Rank { level: *level, number }, at))
    }
}
