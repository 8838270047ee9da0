//! Dispatch levels of tasks.

use std::cmp::Reverse;

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
