//! Shared state of a job: its objects, its connection to the node, and its program.

use std::sync::Arc;

use sandbar_core::{ObjectId, TaskKind};
use sandbar_node::{ClientJob, LoadedProgram, ProgramTask};

use crate::table::{Released, Table};

/// State that a job and the handles to its objects share.
#[doc(hidden)]
#[derive(Debug)]
pub struct JobState {
    pub(crate) table: Arc<Table>,
    pub(crate) link: ClientJob,
    pub(crate) program: LoadedProgram,
}

impl JobState {
    /// Releases a dropped handle's hold on an object.
    pub(crate) fn release(&self, object: ObjectId) {
        self.release_all(self.table.release(object));
    }

    /// Releases objects at the node.
    pub(crate) fn release_all(&self, released: Released) {
        released.into_iter().for_each(|(object, times)| self.link.release(object, times));
    }

    /// Returns a task and its index in the program, or the names of the available tasks.
    pub(crate) fn find(&self, name: &str, is_one: fn(TaskKind) -> bool) -> Result<(u32, &ProgramTask), String> {
        let ones = || self.program.tasks().iter().zip(0..).filter(|(task, _)| is_one(task.kind));
        let found = ones().find(|(task, _)| &*task.name == name);
        found.map(|(task, place)| (place, task)).ok_or_else(|| {
            let there: Vec<&str> = ones().map(|(task, _)| &*task.name).collect();
            if there.is_empty() { "none".to_owned() } else { there.join(", ") }
        })
    }

    /// Reports taken items to the node. Called before a wait, which may depend on them.
    pub(crate) fn report_taken(&self) {
        self.table.unreported().into_iter().for_each(|(stream, taken)| self.link.items_consumed(stream, taken));
    }
}
