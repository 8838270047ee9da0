//! Shared state of a job: its objects, its connection to the node, and its program.

use std::sync::Arc;

use sandbar_core::{ObjectId, TaskKind};
use sandbar_node::{ClientJob, LoadedProgram, ProgramTask};

use crate::table::{ReleasedObjects, Table};

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
    pub(crate) fn release_all(&self, released: ReleasedObjects) {
        released.into_iter().for_each(|(object, count)| self.link.release(object, count));
    }

    /// Returns a task and its index in the program, or the names of the available tasks.
    pub(crate) fn find(&self, name: &str, is_kind: fn(TaskKind) -> bool) -> Result<(u32, &ProgramTask), String> {
        let candidates = || self.program.tasks().iter().zip(0..).filter(|(task, _)| is_kind(task.kind));
        let found = candidates().find(|(task, _)| &*task.name == name);
        found.map(|(task, index)| (index, task)).ok_or_else(|| {
            let available: Vec<&str> = candidates().map(|(task, _)| &*task.name).collect();
            if available.is_empty() { "none".to_owned() } else { available.join(", ") }
        })
    }

    /// Reports taken items to the node. Called before a wait, which may depend on them.
    pub(crate) fn report_taken(&self) {
        self.table.unreported().into_iter().for_each(|(stream, taken)| self.link.items_consumed(stream, taken));
    }
}
