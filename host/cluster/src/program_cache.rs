//! Loaded programs, which jobs of the same component share.

use std::sync::Arc;

use sandbar_core::{ComponentId, Limits};
use sandbar_runtime::Program;

/// Maximum number of programs.
const PROGRAMS_MAX: usize = 64;

/// The last used programs, the most recent one last.
#[derive(Default)]
pub(crate) struct ProgramCache(Vec<(ComponentId, Limits, Arc<Program>)>);

impl ProgramCache {
    /// Returns a program, which becomes the most recent one.
    pub(crate) fn get(&mut self, component: ComponentId, limits: Limits) -> Option<Arc<Program>> {
        let at = self.0.iter().position(|(other, cached_limits, _)| *other == component && *cached_limits == limits)?;
        let found = self.0.remove(at);
        let program = found.2.clone();
        self.0.push(found);
        Some(program)
    }

    /// Inserts a program. Returns the cached one, which another task may have loaded concurrently.
    pub(crate) fn insert(&mut self, component: ComponentId, limits: Limits, program: Arc<Program>) -> Arc<Program> {
        if let Some(cached) = self.get(component, limits) {
            return cached;
        }
        if self.0.len() >= PROGRAMS_MAX {
            self.0.remove(0);
        }
        self.0.push((component, limits, program.clone()));
        program
    }
}
