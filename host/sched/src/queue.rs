//! Tasks that could be begun, in the order in which they are: higher priority, then deeper, then earlier submitted.
//! Children before their aunts bounds how many wait.
//!
//! Tasks of one shape wait in one line: where the first does not fit, none of them does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use sandbar_core::{NodeId, Strategy};

use crate::places::{ShapeAt, TaskAt};
use crate::resources::Demand;
use crate::slab::Slab;
use crate::tasks::Task;

/// What comes first is less.
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

/// When it is a task's turn: its level, then its number in the order of submission.
pub(crate) type Turn = (Level, u64);

/// What tasks take of a node, and those that wait for it.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) demand: Demand,
    pub(crate) strategy: Strategy,
    /// The node where the objects are that they need.
    pub(crate) near: Option<NodeId>,
    /// How long one takes, as was known when the last was put in line.
    pub(crate) nanos: u64,
    /// Processors alone, which a worker takes once for several.
    pub(crate) is_light: bool,
    /// Tasks in line.
    pub(crate) len: usize,
    /// Whether some node could ever have room, as of when so many nodes had come and gone.
    pub(crate) feasible: (u64, bool),
    /// Classes that are of it, and tasks that workers were given.
    uses: usize,
    levels: BTreeMap<Level, Fifo>,
    /// Under which turn the queue knows it.
    turn: Option<Turn>,
}

/// Tasks of one level.
#[derive(Debug, Default)]
struct Fifo {
    /// A chain through the tasks, in the order of submission.
    first: Option<TaskAt>,
    last: Option<TaskAt>,
    /// Those that came after later ones: they had waited for objects, or are begun again.
    late: BTreeMap<u64, TaskAt>,
}

#[derive(Debug)]
pub(crate) struct Queue {
    shapes: Slab<ShapeAt, Shape>,
    by_demand: BTreeMap<(Demand, Strategy, Option<NodeId>), ShapeAt>,
    order: BTreeSet<(Turn, ShapeAt)>,
}

impl Queue {
    pub(crate) fn new() -> Queue {
        Queue { shapes: Slab::new(), by_demand: BTreeMap::new(), order: BTreeSet::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    #[inline]
    pub(crate) fn shape(&self, at: ShapeAt) -> &Shape {
        &self.shapes[at]
    }

    pub(crate) fn shape_mut(&mut self, at: ShapeAt) -> &mut Shape {
        &mut self.shapes[at]
    }

    pub(crate) fn shapes(&self) -> usize {
        self.shapes.len()
    }

    /// The shape of a demand, which is in use once more.
    pub(crate) fn use_demand(&mut self, demand: &Demand, strategy: Strategy, near: Option<NodeId>) -> ShapeAt {
        let key = (demand.clone(), strategy, near);
        if let Some(at) = self.by_demand.get(&key) {
            self.shapes[*at].uses += 1;
            return *at;
        }
        let at = self.shapes.insert(Shape {
            demand: demand.clone(),
            strategy,
            near,
            nanos: 0,
            is_light: demand.is_light(),
            len: 0,
            feasible: (0, false),
            uses: 1,
            levels: BTreeMap::new(),
            turn: None,
        });
        self.by_demand.insert(key, at);
        at
    }

    pub(crate) fn use_shape(&mut self, at: ShapeAt) {
        self.shapes[at].uses += 1;
    }

    pub(crate) fn leave_shape(&mut self, at: ShapeAt) {
        let shape = &mut self.shapes[at];
        shape.uses -= 1;
        if shape.uses == 0
            && let Some(shape) = self.shapes.remove(at)
        {
            self.by_demand.remove(&(shape.demand, shape.strategy, shape.near));
        }
    }

    /// Whose turn it is, or whose it is after this one's.
    pub(crate) fn after(&self, turn: Option<(Turn, ShapeAt)>) -> Option<(Turn, ShapeAt)> {
        match turn {
            None => self.order.first().copied(),
            // Mostly there is one shape.
            Some(turn) if self.order.last() == Some(&turn) => None,
            Some(turn) => self.order.range((Bound::Excluded(turn), Bound::Unbounded)).next().copied(),
        }
    }

    /// Shapes of which tasks wait.
    pub(crate) fn waiting(&self) -> Vec<ShapeAt> {
        self.order.iter().map(|(_, shape)| *shape).collect()
    }

    /// Puts a task in line. Says whether it is the first of its shape.
    pub(crate) fn push<C>(
        &mut self,
        tasks: &mut Slab<TaskAt, Task<C>>,
        at: TaskAt,
        shape_at: ShapeAt,
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
                tasks[at].ahead = last;
                match last {
                    Some(last) => tasks[last].behind = Some(at),
                    None => fifo.first = Some(at),
                }
                fifo.last = Some(at);
            }
        }
        let is_first = shape.turn.is_none_or(|turn| (level, number) < turn);
        if is_first {
            self.refresh(shape_at, tasks);
        }
        is_first
    }

    /// The first task of a shape.
    pub(crate) fn first<C>(&self, shape: ShapeAt, tasks: &Slab<TaskAt, Task<C>>) -> Option<(Turn, TaskAt)> {
        self.shapes[shape].first(tasks)
    }

    /// Takes a task out of its line.
    pub(crate) fn remove<C>(&mut self, tasks: &mut Slab<TaskAt, Task<C>>, at: TaskAt, shape_at: ShapeAt, level: Level) {
        self.take(tasks, at, shape_at, level);
        self.refresh(shape_at, tasks);
    }

    /// As `remove`, of the first of its shape, of which the queue learns by `refresh` after some of these.
    pub(crate) fn take<C>(&mut self, tasks: &mut Slab<TaskAt, Task<C>>, at: TaskAt, shape_at: ShapeAt, level: Level) {
        let shape = &mut self.shapes[shape_at];
        let Some(fifo) = shape.levels.get_mut(&level) else { unreachable!("a task in line has a level") };
        shape.len -= 1;
        let task = &mut tasks[at];
        if std::mem::take(&mut task.is_late) {
            fifo.late.remove(&task.number);
        } else {
            let (ahead, behind) = (task.ahead.take(), task.behind.take());
            match ahead {
                Some(ahead) => tasks[ahead].behind = behind,
                None => fifo.first = behind,
            }
            match behind {
                Some(behind) => tasks[behind].ahead = ahead,
                None => fifo.last = ahead,
            }
        }
        if fifo.first.is_none() && fifo.late.is_empty() {
            shape.levels.remove(&level);
        }
    }

    /// Learns whose turn it is in a shape.
    pub(crate) fn refresh<C>(&mut self, shape_at: ShapeAt, tasks: &Slab<TaskAt, Task<C>>) {
        let shape = &mut self.shapes[shape_at];
        let turn = shape.first(tasks).map(|(turn, _)| turn);
        if turn == shape.turn {
            return;
        }
        if let Some(before) = std::mem::replace(&mut shape.turn, turn) {
            self.order.remove(&(before, shape_at));
        }
        if let Some(turn) = turn {
            self.order.insert((turn, shape_at));
        }
    }

    /// Gives memory back, once nothing is left.
    pub(crate) fn shrink(&mut self) {
        self.shapes.shrink();
    }
}

impl Shape {
    /// Whether several tasks may be given to a worker in advance: not those that are to be spread.
    pub(crate) fn goes_in_advance(&self) -> bool {
        self.is_light && self.strategy != Strategy::Spread
    }

    /// Whether it takes of bundles, not of nodes.
    pub(crate) fn is_of_group(&self) -> bool {
        matches!(self.strategy, Strategy::Group { .. })
    }

    fn first<C>(&self, tasks: &Slab<TaskAt, Task<C>>) -> Option<(Turn, TaskAt)> {
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
